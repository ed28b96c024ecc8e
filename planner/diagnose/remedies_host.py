"""What helps where the node, not the device, ran out: host memory, locked memory, shared memory. Pure."""

from __future__ import annotations

from planner.diagnose.records import Fix, Hint, RunPhase
from planner.diagnose.remedy import Remedy


def host_ram(remedy: Remedy) -> list[Fix]:
    """Against the node running out of memory."""
    settings = remedy.facts.settings
    event = remedy.event
    fixes = []
    if (event is not None and event.phase is RunPhase.CHECKPOINT_LOAD) or remedy.facts.has(Hint.RESUMES):
        fixes.append(
            Fix(
                change={
                    "code": {"torch.load": "mmap=True, map_location='cpu'; ranks one after the other"},
                    "host": {"memory_or_swap": "more"},
                },
                why="resuming needs the file's content beside the live states, once per rank that loads "
                "at the same time",
            )
        )
    one_gathers = any("times the others" in words for words in remedy.verdict.evidence)
    if one_gathers or (event is not None and event.phase is RunPhase.BUILD_MODEL):
        fixes.append(
            Fix(
                change={
                    "code": {
                        "model": "build under deepspeed.zero.Init / HfDeepSpeedConfig; load and save shard by shard"
                    }
                },
                why="one rank (or each) holds a whole copy; sharded construction never makes one",
            )
        )
    if event is not None and event.phase is RunPhase.DATA:
        fixes.append(
            Fix(
                change={"run": {"dataloader_num_workers": "fewer"}},
                why="each loader worker holds its own batches and copies",
            )
        )
    if settings.offload_param or remedy.facts.has(Hint.OFFLOADS):
        fixes.append(
            Fix(
                change={"zero_optimization": {"offload_param": {"device": "none"}}},
                why="parameters back on the devices, where there is room",
            )
        )
    fixes.append(
        Fix(
            change={"host": {"memory": "more (or a higher container or job limit)"}},
            why="offloading moves the need to the node; it does not remove it",
        )
    )
    return fixes


def pinned(remedy: Remedy) -> list[Fix]:
    """Against a failure to lock host memory."""
    fixes = []
    if (remedy.event is not None and remedy.event.backend == "bitsandbytes") or remedy.facts.has(Hint.PAGED_OPTIMIZER):
        fixes.append(
            Fix(
                change={"trainer_args": {"optim": "adamw_torch"}},
                why="a paged optimizer needs managed memory, which is not available everywhere (WSL); an "
                "ordinary one does not",
            )
        )
    config = remedy.config
    used = (
        {"offload_optimizer": config.offload_optimizer, "offload_param": config.offload_param}
        if config is not None
        else {}
    )
    blocks = [name for name, device in used.items() if device] or ["offload_optimizer", "offload_param"]
    fixes.append(
        Fix(
            change={"zero_optimization": {name: {"pin_memory": False} for name in blocks}},
            why="ordinary host memory instead of page-locked; copies get slower, the limit on locked "
            "memory does not apply",
        )
    )
    if remedy.facts.has(Hint.WSL):
        fixes.append(
            Fix(change={"host": {".wslconfig": "[wsl2] memory=<more>"}}, why="WSL locks at most a part of its memory")
        )
    else:
        fixes.append(Fix(change={"host": {"ulimit": "ulimit -l unlimited"}}, why="a limit on locked memory may be set"))
    return fixes


def shared_memory(remedy: Remedy) -> list[Fix]:
    """Against a full /dev/shm."""
    fixes = [
        Fix(
            change={
                "host": {
                    "shm_size": "docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir with medium "
                    "Memory on /dev/shm"
                }
            },
            why="the default of a container is 64 MiB",
        ),
        Fix(change={"run": {"dataloader_num_workers": "fewer"}}, why="each worker keeps its batches in /dev/shm"),
        Fix(
            change={"code": {"torch.multiprocessing.set_sharing_strategy": "file_system"}},
            why="shares by files instead of descriptors, where their number is the limit",
        ),
    ]
    if remedy.event is not None and "nccl" in remedy.event.text.lower():
        fixes.insert(
            1, Fix(change={"env": {"NCCL_SHM_DISABLE": "1"}}, why="NCCL then does without shared memory, more slowly")
        )
    return fixes
