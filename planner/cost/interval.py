"""The interval of the memory that a run cannot do without: how sure the model is of its own allocated bytes.

Owns its constants. `memory` applies them; `calibration` asks what an out-of-memory says.
"""

from __future__ import annotations

from planner.spec.columns import FloatColumn
from planner.spec.estimate import MemoryEstimate

_GIB = float(2**30)

# `low` takes the model's own error off; `high` adds it and the fragmentation that returning cached blocks does not
# cure. H200, 139.3 GiB: 133.4 GiB of tensors ran out, 132.4 ran after such returns, 128.7 without.
_LOW_FRACTION, _HIGH_FRACTION, _HIGH_BYTES = 0.97, 1.04, 0.45 * _GIB
# A process's resident memory on CPU is known less well: malloc keeps and returns pages as it likes.
_CPU_LOW_FRACTION, _CPU_HIGH_FRACTION = 0.8, 1.25


def low_bytes(allocated: FloatColumn, *, fixed: FloatColumn, is_cpu: bool, doubt: float = 0.0) -> FloatColumn:
    """The least the run needs; `fixed`: context and communication buffers; `doubt`: of a runtime that is not known as
    well as DeepSpeed, a share of the tensors either way, of which two thirds count upwards."""
    return ((_CPU_LOW_FRACTION if is_cpu else _LOW_FRACTION) - doubt) * allocated + fixed


def high_bytes(allocated: FloatColumn, *, fixed: FloatColumn, is_cpu: bool, doubt: float = 0.0) -> FloatColumn:
    """What the run surely makes do with."""
    if is_cpu:
        return _CPU_HIGH_FRACTION * allocated
    return (_HIGH_FRACTION + doubt * 2.0 / 3.0) * allocated + fixed + _HIGH_BYTES


def largest_fitting_bytes(memory: MemoryEstimate) -> float:
    """The allocated bytes up to which this device is called large enough: `high_bytes` of them is what is usable."""
    fixed = memory.breakdown.context_bytes + memory.breakdown.communication_bytes
    if not fixed:  # a CPU process: its own memory is all that counts
        return memory.usable_bytes / _CPU_HIGH_FRACTION
    return (memory.usable_bytes - fixed - _HIGH_BYTES) / _HIGH_FRACTION
