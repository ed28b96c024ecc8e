"""What else the model says of a job: other cluster sizes, what different hardware would bring. All of it computed."""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.candidate import Candidate


@record
class ClusterOption:
    """The fastest candidate that fits on one number of GPUs. Costs are in `currency`, whatever their fields are called,
    and 0 where the GPU's price is unknown."""

    nodes: int
    world_size: int
    candidate: Candidate
    tokens_per_s: float
    usd_per_hour: float
    usd_per_billion_tokens: float
    currency: str = "USD"


@record
class WhatIf:
    """The fastest candidate under one change of the hardware. `gain_fraction`: in tokens/s over the fastest without it.
    `detail`: in words, what the change is or why it brings nothing."""

    change: str
    gain_fraction: float
    tokens_per_s: float
    candidate: Candidate | None
    detail: str


@record
class Outlook:
    """`by_gpus`: where more GPUs bring more tokens/s, fewest first; `by_cost`: where paying more for a token brings
    more tokens/s, cheapest first; `smallest`: the fewest GPUs on which something fits; None: nothing does."""

    by_gpus: tuple[ClusterOption, ...] = ()
    by_cost: tuple[ClusterOption, ...] = ()
    smallest: ClusterOption | None = None
    what_if: tuple[WhatIf, ...] = ()
