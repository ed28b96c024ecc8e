"""`check_config` takes anything that JSON can hold."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.rules import ConfigContext, Consumer, check_config, known_keys

BLOCKS = known_keys("0.19.8")
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63, 1e308, float("inf"), float("-inf"), float("nan")]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "true", "cpu", "nvme", "none", "5e8", "AdamW", "fp16"]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Known keys in known blocks with arbitrary values, and some junk."""
    config: dict[str, Any] = {}
    for path in draw(st.sets(st.sampled_from(sorted(BLOCKS)), max_size=5)):
        current: Any = config
        for part in path.split(".") if path else ():
            current = current.setdefault(part, {}) if isinstance(current, dict) else {}
        names = st.sampled_from(sorted(BLOCKS[path].keys) or ["x"]) | st.text(max_size=6)
        if isinstance(current, dict):
            current.update(draw(st.dictionaries(names, anything, max_size=5)))
    return config


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    configurations(),
    st.builds(
        ConfigContext,
        world_size=st.integers(0, 16),
        tensor_parallel_size=st.integers(1, 4),
        pipeline_parallel_size=st.integers(1, 4),
        consumer=st.sampled_from(Consumer),
        deepspeed_version=st.sampled_from(["0.19.6", "0.19.7", "0.19.8"]),
        client_optimizer=st.sampled_from([True, False, None]),
    ),
)
def test_any_configuration_gets_findings_and_never_a_traceback(config: dict[str, Any], context: ConfigContext) -> None:
    for finding in check_config(config, context):
        assert finding.message
        assert finding.fix
        assert len(finding.message) < 1000
