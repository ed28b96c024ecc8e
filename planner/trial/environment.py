"""The environment the worker starts in: named variables only, so that no secret of the user's shell travels along.

Owns which variables pass and which are set. Leaves the job's own variables to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.spec import DeviceKind

_PASSED_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP"}
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME"}
    | {"XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "CC", "CXX", "CPATH", "LIBRARY_PATH", "MAX_JOBS"}
)
_PASSED_PREFIXES = (
    *("LC_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "MALLOC_"),
    *("NCCL_", "NVSHMEM_", "GLOO_", "DS_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_"),
)
# Ranks of one machine meet on it: gloo would resolve the host's name, which not every machine can. Wrong across nodes.
LOOPBACK_VARIABLES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY")


def worker_environment(
    device: DeviceKind, shell: Mapping[str, str], *, extra: Mapping[str, str] | None = None, whole_shell: bool = False
) -> dict[str, str]:
    """What the worker's process gets: what passes from the shell, then what trials need, then the job's own (`extra`).

    `whole_shell`: all but secrets passes, for a script of the user's own, which may look its data up by any variable.

    One thread per math library: a thread pool that the parent had started would be dead in its forked children, which
    would wait for it for ever. Each rank sets its own number of threads after the fork.
    """
    passed = {name: value for name, value in shell.items() if (not _is_secret(name) if whole_shell else _passes(name))}
    single_threaded = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    on_one_machine = {  # unless the shell says otherwise
        **LOOPBACK_VARIABLES,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the driver's order, in which GPUs are probed and reported
    }
    fixed = {
        "DS_ACCELERATOR": str(device),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking whether there is a GPU must not open it before the fork
        "HF_HUB_OFFLINE": "1",  # trials download nothing
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",  # the tail of a killed rank's log is there
    }
    return {**on_one_machine, **passed, **single_threaded, **fixed, **(extra or {})}


def _passes(name: str) -> bool:
    if _is_secret(name):
        return False
    return name in _PASSED_NAMES or any(name.startswith(prefix) for prefix in _PASSED_PREFIXES)


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in _SECRET_WORDS)
