"""Which trials of a job this machine can run, and the words for what it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.ability import decide_trials
from planner.app.jobs import machine_for
from planner.errors import TrialsUnavailable
from planner.spec import DeviceKind, TrialMode
from planner.trial import Machine
from tests.unit.jobfile.jobs import MINIMAL, job_of

GIB = 1 << 30
CPU = Machine(
    device=DeviceKind.CPU,
    gpu_name="",
    cpu_name="a processor",
    num_devices=4,
    usable_bytes=4 * GIB,
    total_bytes=4 * GIB,
    host_memory_bytes=16 * GIB,
    host_available_bytes=16 * GIB,
    cpu_cores=2,
    versions=(("deepspeed", "0.19.8"),),
    fingerprint="cpu-1",
)
H100S = replace(CPU, device=DeviceKind.CUDA, gpu_name="NVIDIA H100 80GB HBM3", num_devices=8, total_bytes=81559 << 20)
EIGHT_H100 = MINIMAL.replace("gpu: cpu", "gpu: h100-sxm-80gb, gpus_per_node: 8").replace(
    "tiny-llama-cpu", "llama-3.1-8b"
)


@pytest.mark.parametrize(
    ("text", "overrides", "machine"),
    [
        (MINIMAL, (), CPU),
        (EIGHT_H100, (), H100S),
        (EIGHT_H100, ("cluster.gpus_per_node=2",), H100S),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "real"])
def test_trials_are_real_on_the_target_itself(
    tmp_path: Path, text: str, overrides: tuple[str, ...], machine: Machine, mode: str
) -> None:
    ability = decide_trials(job_of(tmp_path, text, *overrides, f"trials.mode={mode}"), machine)
    assert ability.mode is TrialMode.REAL
    assert machine.describe() in ability.note


@pytest.mark.parametrize(
    ("text", "overrides", "machine", "words"),
    [
        (EIGHT_H100, (), CPU, "this machine has no GPU: a processor"),
        (EIGHT_H100, (), replace(H100S, gpu_name="Somebody's GPU"), "the GPU here is Somebody's GPU"),
    ],
)
def test_trials_that_can_be_neither_real_nor_emulated_are_left_out_with_the_reason_or_refused(
    tmp_path: Path, text: str, overrides: tuple[str, ...], machine: Machine, words: str
) -> None:
    ability = decide_trials(job_of(tmp_path, text, *overrides), machine)
    assert ability.mode is TrialMode.NONE
    assert words in ability.note
    for mode in ("real", "emulated"):
        with pytest.raises(TrialsUnavailable) as caught:
            decide_trials(job_of(tmp_path, text, *overrides, f"trials.mode={mode}"), machine)
        assert words in caught.value.why


H200 = replace(H100S, gpu_name="NVIDIA H200", num_devices=1, total_bytes=143771 << 20)


@pytest.mark.parametrize(
    ("text", "overrides", "machine", "gpu", "words"),
    [
        (EIGHT_H100, ("cluster.nodes=2",), H100S, "h100-sxm-80gb", "trials over several nodes are not built"),
        (EIGHT_H100, (), replace(H100S, num_devices=4), "h100-sxm-80gb", "runs at most 4 ranks"),
        (EIGHT_H100, (), H200, "h200-sxm-141gb", "runs at most 1 ranks"),
        (MINIMAL, ("cluster.gpus_per_node=8",), CPU, "cpu", "runs at most 4 ranks"),
    ],
)
def test_trials_that_cannot_be_real_are_emulated_on_a_device_of_the_kind(
    tmp_path: Path, text: str, overrides: tuple[str, ...], machine: Machine, gpu: str, words: str
) -> None:
    job = job_of(tmp_path, text, *overrides)
    for mode in ("auto", "emulated"):
        ability = decide_trials(job_of(tmp_path, text, *overrides, f"trials.mode={mode}"), machine)
        assert ability.mode is TrialMode.EMULATED
        assert ability.gpu is not None
        assert ability.gpu.name == gpu
        assert f"single ranks of {job.cluster.world_size} x {job.cluster.gpu.name}" in ability.note
        assert ("so computed" in ability.note) == (gpu != job.cluster.gpu.name)
    with pytest.raises(TrialsUnavailable) as caught:
        decide_trials(job_of(tmp_path, text, *overrides, "trials.mode=real"), machine)
    assert words in caught.value.why


def test_trials_are_emulated_on_the_target_itself_when_asked_for_and_none_when_not_wanted(tmp_path: Path) -> None:
    assert decide_trials(job_of(tmp_path, MINIMAL, "trials.mode=emulated"), CPU).mode is TrialMode.EMULATED
    assert decide_trials(job_of(tmp_path, MINIMAL, "trials.mode=none"), CPU).mode is TrialMode.NONE


def test_machine_for_a_cpu_job_is_the_cpu_beside_the_gpus(tmp_path: Path) -> None:
    cpu_job = job_of(tmp_path, MINIMAL)
    assert machine_for(cpu_job, H100S).device is DeviceKind.CPU
    assert machine_for(cpu_job, CPU) is CPU
    assert machine_for(job_of(tmp_path, EIGHT_H100), H100S) is H100S
