"""The report's section on other cluster sizes and other hardware, as the model sees them."""

from __future__ import annotations

from planner.report.document import Block, Column, Paragraph, Table
from planner.report.units import format_count, format_rate_short
from planner.report.wording import short_candidate
from planner.spec.outlook import ClusterOption, Outlook

SHOWN = 10  # of a front: its ends and an even choice between


def outlook_blocks(outlook: Outlook | None) -> tuple[Block, ...]:
    """Fronts of speed against GPUs and cost, the smallest cluster, and what if; nothing where nothing was looked at."""
    if outlook is None or not outlook.by_gpus:
        return ()
    blocks: list[Block] = []
    smallest = outlook.smallest
    if smallest is not None:
        text = f"The fewest devices on which a layout fits: {format_count(smallest.world_size)}, with "
        blocks.append(
            Paragraph(text=text + f"{short_candidate(smallest.candidate)} (computed, as all of this section).")
        )
    if len(outlook.by_gpus) > 1:
        blocks.append(Paragraph(text="Where more devices bring more speed:"))
        blocks.append(_front(outlook.by_gpus))
    if len(outlook.by_cost) > 1 and outlook.by_cost != outlook.by_gpus:
        blocks.append(Paragraph(text="Where a higher price of a token brings more speed:"))
        blocks.append(_front(outlook.by_cost))
    return (*blocks, *_what_if(outlook))


def thinned(options: tuple[ClusterOption, ...]) -> tuple[ClusterOption, ...]:
    """At most `SHOWN` of a front: the first, the last, and every so many between."""
    if len(options) <= SHOWN:
        return options
    places = {round(index * (len(options) - 1) / (SHOWN - 1)) for index in range(SHOWN)}
    return tuple(options[place] for place in sorted(places))


def _front(options: tuple[ClusterOption, ...]) -> Table:
    priced = any(option.usd_per_hour for option in options)
    money = "$" if options[0].currency == "USD" else options[0].currency
    costs = [Column(heading=f"{money}/hour", numeric=True), Column(heading=f"{money}/billion tokens", numeric=True)]
    columns = [
        Column(heading="devices", numeric=True),
        Column(heading="nodes", numeric=True),
        Column(heading="tokens/s", numeric=True),
        *(costs if priced else []),
        Column(heading="candidate"),
    ]
    rows = tuple(
        (
            format_count(option.world_size),
            format_count(option.nodes),
            format_rate_short(option.tokens_per_s),
            *((f"{option.usd_per_hour:,.0f}", f"{option.usd_per_billion_tokens:,.0f}") if priced else ()),
            short_candidate(option.candidate),
        )
        for option in thinned(options)
    )
    return Table(columns=tuple(columns), rows=rows)


def _what_if(outlook: Outlook) -> tuple[Block, ...]:
    if not outlook.what_if:
        return ()
    columns = (
        Column(heading="what if"),
        Column(heading="tokens/s", numeric=True),
        Column(heading="gain", numeric=True),
        Column(heading="candidate"),
        Column(heading="detail"),
    )
    rows = tuple(
        (
            change.change,
            format_rate_short(change.tokens_per_s) if change.candidate is not None else "–",
            f"{change.gain_fraction:+.0%}" if change.candidate is not None else "–",
            short_candidate(change.candidate) if change.candidate is not None else "–",
            change.detail,
        )
        for change in outlook.what_if
    )
    return (
        Paragraph(text="What other hardware would bring, against the fastest by the same model (computed):"),
        Table(columns=columns, rows=rows),
    )
