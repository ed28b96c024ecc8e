"""What the emitter writes passes the linter without a finding: both go by the same tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.emit import render_ds_config
from planner.rules import ConfigContext, check_config
from planner.space import enumerate_candidates
from planner.spec import OptimizerName, OptimizerSpec, Precision
from planner.spec.columns import candidate_at
from tests.unit.space.jobs import decoder, job


@pytest.mark.parametrize("optimizer", [name for name in OptimizerName if name is not OptimizerName.ADAM8BIT])
@pytest.mark.parametrize("version", ["0.19.6", "0.19.8"])
def test_emitted_configuration_has_no_findings(optimizer: OptimizerName, version: str) -> None:
    asked = job(decoder(num_layers=4), global_batch_size=16, precision=tuple(Precision)[:3])
    asked = replace(asked, training=replace(asked.training, optimizer=OptimizerSpec(name=optimizer)))
    columns = enumerate_candidates(asked).columns
    assert len(columns) > 100
    for row in range(0, len(columns), 7):
        candidate = candidate_at(columns, row, num_layers=4)
        config = render_ds_config(candidate, job=asked, deepspeed_version=version)
        context = ConfigContext(
            world_size=8,
            tensor_parallel_size=candidate.layout.tensor_parallel_size,
            pipeline_parallel_size=candidate.layout.pipeline_parallel_size,
            deepspeed_version=version,
            client_optimizer=False,
        )
        assert check_config(config, context) == (), candidate.key
