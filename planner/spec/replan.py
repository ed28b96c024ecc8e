"""Planning again, and planning ahead for lost nodes: what changed, what the old plan is worth now, what a checkpoint
needs. Written into `plan.yaml` of the plan that came of it."""

from __future__ import annotations

from enum import StrEnum

from planner.spec._record import record, require
from planner.spec.kinds import Provenance


class ChangeKind(StrEnum):
    """What can differ between where a plan was made for and where it shall run."""

    GPU = "gpu"
    NODES = "nodes"
    GPUS_PER_NODE = "gpus_per_node"
    USABLE_MEMORY = "usable_memory"
    HOST_MEMORY = "host_memory"
    INTRA_NODE_LINK = "intra_node_link"
    INTER_NODE_LINK = "inter_node_link"
    SOFTWARE = "software"
    DRIVER = "driver"
    HOSTS = "hosts"  # the nodes' names
    MACHINE = "machine"  # another machine ran the trials


@record
class Change:
    """One difference; `before` and `after` are what people read."""

    kind: ChangeKind
    what: str
    before: str
    after: str

    @property
    def sentence(self) -> str:
        return f"{self.what}: {self.after}, was {self.before}"


@record
class Verdict:
    """What an old plan is worth somewhere else, in words and figures.

    `starts`: the layout is legal there and there are enough GPUs; `fits`: it also keeps the job's headroom of memory
    free. Figures are 0 and `kind` None where it does not start.
    """

    starts: bool
    fits: bool
    sentence: str
    step_time_s: float = 0.0
    tokens_per_s: float = 0.0
    device_used_bytes: int = 0
    usable_bytes: int = 0
    kind: Provenance | None = None

    @property
    def runs(self) -> bool:
        return self.starts and self.fits


class CheckpointWay(StrEnum):
    """How a checkpoint of one plan comes to another."""

    AS_IS = "as_is"
    CONVERT = "convert"  # by the trainer's own converter
    UNIVERSAL = "universal"  # by DeepSpeed's, for programs of the user's own
    CANNOT = "cannot"


@record
class CheckpointRoute:
    """`command` "" where nothing has to be run; `script`: the file of the plan folder that runs it."""

    way: CheckpointWay
    why: str
    command: str = ""
    script: str = ""


@record
class ReplanSummary:
    """Where a plan came from. Speeds are what either plan promises, `old_here` is the old plan on the new cluster."""

    from_dir: str
    old_key: str
    old_tokens_per_s: float
    old_kind: Provenance
    changes: tuple[Change, ...]
    old_here: Verdict
    num_kept: int  # trials of the old plan that hold here
    num_prior: int  # the others
    checkpoint: CheckpointRoute
    carried: str = "correct the model"  # what those others do here, after "they"


@record
class SurvivalPlan:
    """The plan for some of the nodes. `folder` is inside the plan's; "" where no layout can use so many nodes, and then
    `note` says why and `nearest_nodes` is the next smaller number that can (0: none)."""

    nodes: int
    folder: str = ""
    key: str = ""
    tokens_per_s: float = 0.0
    kind: Provenance | None = None
    checkpoint: CheckpointWay | None = None
    nearest_nodes: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        require(bool(self.folder) == bool(self.key), "a folder holds a plan")
