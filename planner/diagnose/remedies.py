"""What helps against each cause besides the priced changes: environment, code, host, trainer arguments. Pure.

Owns the words and the order. Memory freed comes from the log's own figures where they tell it; times are not guessed.
"""

from __future__ import annotations

from typing import Any

from planner.diagnose import remedies_host
from planner.diagnose.causes import Cause
from planner.diagnose.records import EventKind, Fix, Hint, RunPhase
from planner.diagnose.remedy import Remedy, RemedyRule, allocator_variable, from_log


def remedies_for(remedy: Remedy) -> list[Fix]:
    """The remedies of the verdict's cause, best first."""
    return _BY_CAUSE[remedy.verdict.cause](remedy)


def _fragmentation(remedy: Remedy) -> list[Fix]:
    variable = allocator_variable(remedy.event)
    idle = remedy.shares.idle if remedy.shares is not None else None
    if remedy.event is not None and remedy.event.backend == "cuda-async":
        return [
            Fix(
                change={"env": {variable: "backend:native,expandable_segments:True"}},
                why="the native allocator with expandable segments returns and joins blocks that the "
                "cudaMallocAsync pool retains",
            )
        ]
    if remedy.facts.has(Hint.WINDOWS, Hint.WSL):
        return [
            from_log(
                {"env": {variable: "garbage_collection_threshold:0.8,max_split_size_mb:512"}},
                "expandable segments need Linux; there, large blocks are kept whole and idle ones returned earlier",
                idle,
            )
        ]
    return [
        from_log(
            {"env": {variable: "expandable_segments:True"}},
            "segments that can grow make idle blocks one piece; no change of the model or the batch",
            idle,
        )
    ]


def _other_process(remedy: Remedy) -> list[Fix]:
    frees = remedy.shares.foreign if remedy.shares is not None else None
    pids = [other.pid for other in (remedy.event.others if remedy.event else ())] or [
        p.pid for p in remedy.facts.processes if p.pid
    ]
    fixes = []
    if remedy.facts.has(Hint.COLOCATED):
        fixes.append(
            from_log(
                {"run": {"gpu_memory_utilization": "lower"}},
                "an inference engine shares the device: give it less, or let it sleep while training",
                frees,
            )
        )
    change: dict[str, Any] = (
        {"end_or_move_processes": sorted(set(pids))[:16]}
        if pids
        else {"find_processes": "nvidia-smi; fuser -v /dev/nvidia*"}
    )
    fixes.append(from_log({"host": change}, "end or move what else is on the device before shrinking the job", frees))
    if remedy.facts.has(Hint.ZOMBIE):
        fixes.append(
            Fix(
                change={
                    "host": {"clear_device": "fuser -v /dev/nvidia*; end it on the host, or have the device reset"}
                },
                why="a process that is not visible here (another namespace, a defunct worker) keeps the "
                "memory until it is ended there",
            )
        )
    return fixes


def _leak(remedy: Remedy) -> list[Fix]:
    return [
        Fix(
            change={"code": {"losses and metrics": "keep loss.item() or loss.detach(), never the tensor"}},
            why="a kept loss or output keeps its whole graph; lists that grow with the steps are the usual place",
        ),
        Fix(
            change={
                "code": {
                    "find it": "torch.cuda.memory._record_memory_history(); "
                    "torch.cuda.memory._dump_snapshot('oom.pickle')"
                }
            },
            why="`planner diagnose oom.pickle` shows by stack who holds what has grown",
        ),
    ]


def _save_spike(remedy: Remedy) -> list[Fix]:
    gathered = 2 * remedy.model.num_parameters if remedy.model is not None else None
    return [
        Fix(
            change={"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": False}},
            why="keep checkpoints sharded and make whole weights afterwards with zero_to_fp32.py",
            frees_bytes=gathered,
            basis="computed" if gathered is not None else "",
        ),
        Fix(
            change={
                "code": {
                    "state_dict": "gather onto the CPU, one rank at a time; torch.cuda.empty_cache() before saving"
                }
            },
            why="gathered states need not stand on the device beside the live ones",
        ),
    ]


def _resume_spike(remedy: Remedy) -> list[Fix]:
    return [
        Fix(
            change={
                "code": {
                    "torch.load": "map_location='cpu'",
                    "after load_state_dict": "del checkpoint; torch.cuda.empty_cache()",
                }
            },
            why="the loaded copy need not be on the device, and must not outlive the loading",
        ),
        Fix(
            change={
                "code": {"checkpoint": "convert with ds_to_universal.py and load with checkpoint.load_universal: true"}
            },
            why="a universal checkpoint is loaded piece by piece",
        ),
    ]


def _nominal(remedy: Remedy) -> list[Fix]:
    total = remedy.shares.total if remedy.shares is not None else None
    fixes = [
        Fix(
            change={"run": {"gpu_memory_usable_bytes": total}}
            if total
            else {"run": {"gpu_memory_usable_bytes": "torch.cuda.mem_get_info()"}},
            why="plan with what the runtime exposes (`planner probe` measures it), not with the label",
        )
    ]
    if remedy.event is not None and remedy.event.backend == "hip":
        fixes.append(
            Fix(
                change={"host": {"vram": "firmware carve-out, kernel parameters amdgpu.gttsize / ttm.pages_limit"}},
                why="on APUs the driver decides how much is exposed",
            )
        )
    return fixes


def _limit(remedy: Remedy) -> list[Fix]:
    if remedy.event is not None and remedy.event.backend == "mps":
        return [
            Fix(
                change={"env": {"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0"}},
                why="removes the upper limit; the system may then swap or stall",
            ),
            Fix(change={"run": {"micro_batch_size": "smaller"}}, why="stays below the limit"),
        ]
    figures = remedy.event.figures if remedy.event is not None else None
    free = figures.free if figures is not None else None
    return [
        from_log(
            {"code": {"torch.cuda.set_per_process_memory_fraction": 1.0}},
            "the limit was set by the program (or a library); the device has room",
            free,
        )
    ]


def _single(remedy: Remedy) -> list[Fix]:
    fixes = []
    if remedy.event is not None and remedy.event.backend == "xpu":
        fixes.append(
            Fix(
                change={"env": {"UR_L0_USE_RELAXED_ALLOCATION_LIMITS": "1"}},
                why="asks Level Zero for allocations above 4 GiB; not every driver grants it",
            )
        )
    fixes.append(
        Fix(
            change={"run": {"micro_batch_size": "smaller"}}, why="smaller activations stay below the limit of one block"
        )
    )
    fixes.append(
        Fix(
            change={"code": {"the failing tensor": "compute it in pieces (chunked loss, chunked attention)"}},
            why="only the one block is too large",
        )
    )
    return fixes


def _evaluation(remedy: Remedy) -> list[Fix]:
    return [
        Fix(
            change={"trainer_args": {"eval_accumulation_steps": 1, "per_device_eval_batch_size": 1}},
            why="moves outputs to the host after every step instead of after the whole evaluation",
        ),
        Fix(
            change={
                "code": {
                    "preprocess_logits_for_metrics": "return logits.argmax(-1)",
                    "evaluation": "under torch.no_grad()",
                }
            },
            why="predictions are smaller than logits by the size of the vocabulary",
        ),
    ]


def _placement(remedy: Remedy) -> list[Fix]:
    foreign = remedy.shares.foreign if remedy.shares is not None else None
    return [
        from_log(
            {
                "code": {
                    "before any CUDA call": "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
                    "torch.load": "map_location='cpu'",
                }
            },
            "each rank then has a context on its own device only",
            foreign,
        )
    ]


def _not_memory(remedy: Remedy) -> list[Fix]:
    if remedy.event is not None and remedy.event.kind is EventKind.COLLECTIVE:
        return [
            Fix(
                change={"env": {"NCCL_DEBUG": "INFO", "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000"}},
                why="shows which rank did not come to the collective; mend that, not memory",
            )
        ]
    return []


def _unknown(remedy: Remedy) -> list[Fix]:
    fixes = [
        Fix(
            change={"host": {"look": "nvidia-smi (rocm-smi) while it runs; run alone on the device once"}},
            why="rules other users of the device in or out",
        ),
        Fix(
            change={
                "code": {
                    "look": "torch.cuda.memory._record_memory_history(); torch.cuda.memory._dump_snapshot('oom.pickle')"
                }
            },
            why="`planner diagnose oom.pickle` shows who held the memory",
        ),
    ]
    if remedy.model is not None and any("disagree" in words for words in remedy.verdict.evidence):
        fixes.insert(
            0,
            Fix(
                change={"run": {"activation_checkpointing": "full"}},
                why="computed with what is configured; check that it is really switched on in the model",
            ),
        )
        fixes.insert(
            1,
            Fix(
                change={"code": {"model": "build under deepspeed.zero.Init / HfDeepSpeedConfig"}},
                why="weights that are placed whole before sharding stay in the allocator's cache",
            ),
        )
    return fixes


def _loading(remedy: Remedy) -> list[Fix]:
    """For capacity while a model is placed."""
    return [
        Fix(
            change={
                "zero_optimization": {"stage": 3},
                "code": {"model": "build under deepspeed.zero.Init / HfDeepSpeedConfig"},
            },
            why="weights are sharded as they are made, so no rank ever holds the whole model; the "
            "batch plays no part here",
        )
    ]


def _capacity(remedy: Remedy) -> list[Fix]:
    event = remedy.event
    if event is not None and event.phase is RunPhase.BUILD_MODEL:
        return _loading(remedy)
    fixes: list[Fix] = []
    if "square" in remedy.verdict.grows:
        fixes.append(
            Fix(change={"run": {"attention": "flash"}}, why="flash or sdpa attention never makes the matrix of scores")
        )
    if event is not None and event.backend == "nccl":
        fixes.append(
            Fix(
                change={"env": {"NCCL_BUFFSIZE": "2097152"}},
                why="NCCL's buffers lie outside PyTorch's pool; halving them leaves room, large messages "
                "lose a little speed",
            )
        )
        fixes.append(
            Fix(
                change={"code": {"before the first collective": "torch.cuda.empty_cache()"}},
                why="gives cached blocks back to the device, where NCCL can take them",
            )
        )
    if Cause.NOMINAL_VS_USABLE in remedy.verdict.also:
        fixes.extend(_nominal(remedy))
    return fixes


_BY_CAUSE: dict[Cause, RemedyRule] = {
    Cause.CAPACITY: _capacity,
    Cause.BATCH_TOO_LARGE: lambda remedy: [],
    Cause.FRAGMENTATION: _fragmentation,
    Cause.OTHER_PROCESS: _other_process,
    Cause.LEAK: _leak,
    Cause.CHECKPOINT_SAVE_SPIKE: _save_spike,
    Cause.RESUME_SPIKE: _resume_spike,
    Cause.HOST_RAM: remedies_host.host_ram,
    Cause.PINNED_HOST_MEMORY: remedies_host.pinned,
    Cause.NOMINAL_VS_USABLE: _nominal,
    Cause.PER_PROCESS_LIMIT: _limit,
    Cause.SINGLE_ALLOCATION_LIMIT: _single,
    Cause.EVAL_ACCUMULATION: _evaluation,
    Cause.RANK_PLACEMENT: _placement,
    Cause.SHM_LIMIT: remedies_host.shared_memory,
    Cause.NOT_OOM: _not_memory,
    Cause.UNKNOWN_NOT_CAPACITY: _unknown,
}
