"""What else to know beside the choice: the front of speed against GPUs and cost, the smallest cluster, what if. Pure.

Everything here is the model's word, uncalibrated, so that the figures can be held against one another; the plan's own
promise may be measured. Gains are over the fastest candidate of the job by the same model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.app.draft import Draft, estimate_space, fitting
from planner.cost import EstimateColumns
from planner.search import world_sizes
from planner.space import enumerate_candidates
from planner.spec import ClusterSpec, JobSpec, LinkSpec, Objective
from planner.spec._record import record
from planner.spec.columns import CandidateColumns, FloatColumn, IntColumn, candidate_at
from planner.spec.outlook import ClusterOption, Outlook, WhatIf

MEMORY_FACTOR = 1.25  # of the device's usable memory: about one step in what vendors sell
LINK_FACTOR = 2.0  # of a link's bandwidth: one generation
NODES_LOOKED_AT = 8  # beyond the job's own, until one is found that the batch can be shared out over
WORTH_FRACTION = 0.02  # gains below this are less than the model can tell


@record
class _Priced:
    """Candidates with their estimates, and which of them fit with the job's headroom."""

    job: JobSpec
    columns: CandidateColumns
    estimates: EstimateColumns
    worlds: FloatColumn
    rows: IntColumn  # those that fit

    @property
    def tokens_per_s(self) -> FloatColumn:
        return self.estimates.tokens_per_s[self.rows]

    def fastest(self) -> int | None:
        """The row of the fastest candidate that fits."""
        return int(self.rows[np.argmax(self.tokens_per_s)]) if len(self.rows) else None

    def option(self, row: int) -> ClusterOption:
        """One row as the option of its cluster size."""
        cluster = self.job.cluster
        world = int(self.worlds[row])
        speed = float(self.estimates.tokens_per_s[row])
        hourly = world * cluster.gpu.price_per_hour
        return ClusterOption(
            nodes=-(-world // cluster.gpus_per_node),
            world_size=world,
            candidate=candidate_at(self.columns, row, num_layers=self.job.model.num_layers),
            tokens_per_s=speed,
            usd_per_hour=hourly,
            usd_per_billion_tokens=hourly / 3600.0 / speed * 1e9,
            currency=cluster.gpu.price_currency,
        )


def outlook_of(draft: Draft) -> Outlook:
    """Look around the job: every cluster size it may take (or, where it names one, every smaller one too) and a few
    changes of its hardware. Nothing of a pipeline over several kinds of nodes: its other uses were looked at before."""
    if draft.job.cluster.groups:
        return Outlook()
    own = _priced(draft.job, draft.columns, draft.estimates)
    sizes = own if draft.job.node_counts else _smaller_too(draft.job)
    fronts = _fastest_of_each_size(sizes)
    by_gpus = _front(fronts, keys=[float(option.world_size) for option in fronts])
    costs = [option.usd_per_billion_tokens for option in fronts]
    return Outlook(
        by_gpus=by_gpus,
        by_cost=_front(fronts, keys=costs) if any(costs) else (),
        smallest=fronts[0] if fronts else None,
        what_if=_what_if(own),
    )


def _price(job: JobSpec, columns: CandidateColumns) -> _Priced:
    return _priced(job, columns, estimate_space(job, columns))


def _priced(job: JobSpec, columns: CandidateColumns, estimates: EstimateColumns) -> _Priced:
    rows = np.flatnonzero(fitting(job, estimates))
    return _Priced(job=job, columns=columns, estimates=estimates, worlds=world_sizes(columns), rows=rows)


def _smaller_too(job: JobSpec) -> _Priced:
    """All sizes up to the job's own, parts of one node included."""
    asked = replace(job, objective=Objective.FEWEST_GPUS, deadline=None)
    return _price(job, enumerate_candidates(asked).columns)


def _fastest_of_each_size(priced: _Priced) -> list[ClusterOption]:
    """One option for each number of GPUs on which something fits, fewest first."""
    if not len(priced.rows):
        return []
    worlds = priced.worlds[priced.rows]
    order = np.lexsort((-priced.tokens_per_s, worlds))
    worlds = worlds[order]
    first = np.concatenate(([True], worlds[1:] != worlds[:-1]))
    return [priced.option(int(row)) for row in priced.rows[order[first]]]


def _front(options: list[ClusterOption], *, keys: list[float]) -> tuple[ClusterOption, ...]:
    """The options that are faster than all with a smaller key, in the order of the keys (GPUs, or cost of a token)."""
    front: list[ClusterOption] = []
    for _, option in sorted(zip(keys, options), key=lambda pair: (pair[0], -pair[1].tokens_per_s)):
        if not front or option.tokens_per_s > front[-1].tokens_per_s:
            front.append(option)
    return tuple(front)


def _what_if(own: _Priced) -> tuple[WhatIf, ...]:
    row = own.fastest()
    if row is None:
        return ()
    base, cluster = float(own.estimates.tokens_per_s[row]), own.job.cluster
    found = [_more_memory(own, base=base)]
    if int(own.columns.nodes[own.rows].max()) > 1:
        network = cluster.inter_node_link
        quicker = replace(cluster, inter_node_link=_quicker(network))
        found.append(_faster_link(own, quicker, f"the network between nodes ({network.name})", base=base))
    if int(own.worlds[own.rows].max()) > 1 and cluster.gpus_per_node > 1:
        inside = cluster.intra_node_link
        quicker = replace(cluster, intra_node_link=_quicker(inside))
        found.append(_faster_link(own, quicker, f"the link inside a node ({inside.name})", base=base))
    return (*found, _one_more_node(own, base=base))


def _more_memory(own: _Priced, *, base: float) -> WhatIf:
    """The fastest candidate that would fit with more memory, and from where on something faster fits at all."""
    usable = own.estimates.usable_bytes
    kept = 1.0 - own.job.memory_headroom_fraction
    needed = np.maximum(own.estimates.high_bytes, own.estimates.device_used_bytes) / kept
    on_host = own.estimates.host_bytes <= own.estimates.host_usable_bytes
    faster = on_host & (own.estimates.tokens_per_s > base * (1.0 + WORTH_FRACTION))
    enough = needed[faster].min(initial=np.inf)
    possible = np.flatnonzero(on_host & (needed <= usable * MEMORY_FACTOR))
    best = int(possible[np.argmax(own.estimates.tokens_per_s[possible])])
    detail = "nothing faster is kept out by memory"
    if np.isfinite(enough):
        detail = f"a faster candidate fits from {max(enough, usable) / 2**30:.1f} GiB usable on"
    return _result(f"{MEMORY_FACTOR - 1:.0%} more device memory", own, best, base=base, detail=detail)


def _quicker(link: LinkSpec) -> LinkSpec:
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * LINK_FACTOR)


def _faster_link(own: _Priced, cluster: ClusterSpec, words: str, *, base: float) -> WhatIf:
    """The candidates that fit, priced again on a cluster with a faster link."""
    priced = _price(replace(own.job, cluster=cluster), own.columns.take(own.rows))
    row = int(np.argmax(priced.estimates.tokens_per_s))
    return _result(f"{LINK_FACTOR:g} times the bandwidth of {words}", priced, row, base=base, detail="")


def _one_more_node(own: _Priced, *, base: float) -> WhatIf:
    """The fastest candidate on the next larger number of nodes that has one."""
    nodes = own.job.cluster.nodes
    asked = tuple(range(nodes + 1, nodes + 1 + NODES_LOOKED_AT))
    larger = enumerate_candidates(replace(own.job, node_counts=()), nodes=asked).columns
    priced = _price(own.job, larger)
    if not len(priced.rows):
        detail = f"no layout fits on {asked[0]} to {asked[-1]} nodes (the global batch must be shared out evenly)"
        return WhatIf(change="one more node", gain_fraction=0.0, tokens_per_s=0.0, candidate=None, detail=detail)
    smallest = priced.columns.nodes[priced.rows].min()
    rows = priced.rows[priced.columns.nodes[priced.rows] == smallest]
    row = int(rows[np.argmax(priced.estimates.tokens_per_s[rows])])
    more = int(smallest) - nodes
    words = "one more node" if more == 1 else f"{more} more nodes"
    detail = "" if more == 1 else "fewer more nodes have no layout that shares the global batch out evenly and fits"
    return _result(words, priced, row, base=base, detail=detail)


def _result(change: str, priced: _Priced, row: int, *, base: float, detail: str) -> WhatIf:
    speed = float(priced.estimates.tokens_per_s[row])
    return WhatIf(
        change=change,
        gain_fraction=speed / base - 1.0,
        tokens_per_s=speed,
        candidate=candidate_at(priced.columns, row, num_layers=priced.job.model.num_layers),
        detail=detail,
    )
