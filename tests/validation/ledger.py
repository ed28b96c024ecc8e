"""The accuracy ledger: how far off the cost model is, by source, recomputed from the data.

    python -m tests.validation.ledger            prints it, with the rows of one source when one is named
    python -m tests.validation.ledger --write    renews ledger.json and the table in planner/cost/README.md

Renewing refuses figures that are worse than the kept ones by more than a tenth, unless `--worse-because REASON` is
given; the reason stays in ledger.json. `test_ledger` holds the code against the kept figures.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from planner.spec._record import record
from planner.spec.codec import from_plain, to_plain
from tests.validation import h200_rows, published_rows, trainer_rows
from tests.validation.calibration_rows import Learning, learning, learning_table

KEPT = Path(__file__).parent / "ledger.json"
README = Path(__file__).parents[2] / "planner" / "cost" / "README.md"
START, END = "<!-- ledger: made by tests/validation/ledger.py -->", "<!-- ledger: end -->"
WORSE_FRACTION, WORSE_FLOOR = 0.10, 0.001  # of the kept median; and what rounding may move
SWEEP_ROWS = 5  # fewer rows of one model on one set of devices say nothing about their order

PUBLISHED = (
    ("simumax", "SimuMax: Megatron-Core on B200"),
    ("vtrain_measured", "vTrain: Megatron-DeepSpeed on A100"),
    ("ultrascale_runs", "ultrascale: nanotron on H100"),
    ("llm_foundry_readme", "llm-foundry on A100, H100"),
    ("bigscience_bloom", "BLOOM on V100, A100"),
    ("internevo", "InternEvo on A100"),
    ("megatron_papers_and_llama3", "Megatron papers on A100, H100"),
    ("deepspeed", "DeepSpeed's autotuning examples, V100"),
    ("huggingface", "Hugging Face docs, V100"),
    ("torchtune", "torchtune on A100"),
    ("nvidia_bridge_memory_studies", "Megatron-Bridge on H100"),
)


@record
class Figure:
    """The errors of one quantity over one source's rows. `order`: mean rank correlation within sweeps; `sweeps` of
    them, 0 where no sweep has enough rows. `peer_median`: of the source's own predictions of the same rows, or -1."""

    source: str
    title: str
    runtime: str
    quantity: str
    rows: int
    median: float
    within_90: float
    bias: float
    order: float
    sweeps: int
    peer_median: float


@record
class Pair:
    """One row: what was seen and what the model says. `sweep` "": the row belongs to none."""

    name: str
    seen: float
    estimated: float
    sweep: str = ""
    peer: float = 0.0

    @property
    def error(self) -> float:
        return self.estimated / self.seen - 1


def pairs_by_quantity(source: str) -> dict[str, list[Pair]]:
    """Every row of a source with what is known of it."""
    if source == "h200":
        return _h200_pairs(h200_rows.rows())
    if source == "h200_trainer":
        return trainer_rows.pairs(Pair)
    return _published_pairs(published_rows.rows(source))


def _published_pairs(rows: Iterable[published_rows.PublishedRow]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = defaultdict(list)
    for row in rows:
        if row.step_time_s:
            time = Pair(
                name=row.name,
                seen=row.step_time_s,
                estimated=row.estimated_time_s,
                sweep=row.sweep,
                peer=row.peer_time_s,
            )
            found["step time"].append(time)
        if row.memory_bytes:
            memory = Pair(name=row.name, seen=row.memory_bytes, estimated=row.estimated_bytes, peer=row.peer_bytes)
            found[row.counter.replace("_", " ")].append(memory)
    return found


def _h200_pairs(rows: Iterable[h200_rows.Row]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = defaultdict(list)
    for row in rows:
        if row.ran_out:
            continue
        memory, model = row.estimate.memory, row.name.split()[0]
        found["allocated"].append(Pair(name=row.name, seen=row.allocated_bytes, estimated=memory.allocated_bytes))
        if not row.retried:
            used = Pair(name=row.name, seen=row.device_used_bytes, estimated=memory.device_used_bytes)
            found["device used"].append(used)
        if not row.emulated:
            time = Pair(name=row.name, seen=row.step_time_s, estimated=row.estimate.step_time_s, sweep=model)
            found["step time"].append(time)
    return found


def figures() -> tuple[Figure, ...]:
    """All of the ledger, recomputed."""
    asked = [
        ("h200", "H200, DeepSpeed 0.19.8, Hugging Face models", "deepspeed", pairs_by_quantity("h200")),
        ("h200_trainer", "H200, the reference trainer", "deepspeed", pairs_by_quantity("h200_trainer")),
    ]
    for source, title in PUBLISHED:
        rows = published_rows.rows(source)
        for runtime in sorted({row.runtime for row in rows}):
            key = source if runtime == rows[0].runtime else f"{source}, {runtime}"
            asked.append((key, title, runtime, _published_pairs(row for row in rows if row.runtime == runtime)))
    found = [
        _figure(source, title, runtime, quantity=quantity, pairs=pairs)
        for source, title, runtime, by_quantity in asked
        for quantity, pairs in sorted(by_quantity.items())
    ]
    everything = [pair for source, _ in PUBLISHED for pair in pairs_by_quantity(source).get("step time", [])]
    return (*found, _figure("published", "all published step times", "all", quantity="step time", pairs=everything))


def _figure(source: str, title: str, runtime: str, *, quantity: str, pairs: list[Pair]) -> Figure:
    errors = np.array([pair.error for pair in pairs])
    peers = [abs(pair.peer / pair.seen - 1) for pair in pairs if pair.peer]
    orders = sweep_orders(pairs)
    return Figure(
        source=source,
        title=title,
        runtime=runtime,
        quantity=quantity,
        rows=len(pairs),
        median=round(float(np.median(np.abs(errors))), 4),
        within_90=round(float(np.quantile(np.abs(errors), 0.9)), 4),
        bias=round(float(np.median(errors)), 4),
        order=round(float(np.mean(orders)), 3) if orders else 0.0,
        sweeps=len(orders),
        peer_median=round(float(np.median(peers)), 4) if peers else -1.0,
    )


def sweep_orders(pairs: list[Pair]) -> list[float]:
    """Rank correlation of each sweep with enough rows."""
    sweeps: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.sweep:
            sweeps[pair.sweep].append(pair)
    return [rank_correlation(sweep) for sweep in sweeps.values() if len(sweep) >= SWEEP_ROWS]


def rank_correlation(pairs: list[Pair]) -> float:
    """Spearman's, of what was seen and what was estimated."""
    seen, estimated = ([pair.seen for pair in pairs], [pair.estimated for pair in pairs])
    ranks = [np.argsort(np.argsort(values)) for values in (seen, estimated)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def kept() -> tuple[tuple[Figure, ...], dict[str, str]]:
    """The committed figures, and the reasons given for those that became worse."""
    document = json.loads(KEPT.read_text())
    return tuple(from_plain(Figure, plain) for plain in document["figures"]), document["worse_because"]


def worse_than(old: tuple[Figure, ...], new: tuple[Figure, ...]) -> list[str]:
    """Which medians became worse by more than a tenth, in words."""
    before = {(figure.source, figure.quantity): figure.median for figure in old}
    found = []
    for figure in new:
        was = before.get((figure.source, figure.quantity))
        if was is not None and figure.median > was * (1 + WORSE_FRACTION) + WORSE_FLOOR:
            found.append(f"{figure.source}, {figure.quantity}: median error {figure.median:.2%}, kept {was:.2%}")
    return found


def table(all_figures: tuple[Figure, ...]) -> str:
    """The ledger as a Markdown table, and how many rows each runtime has."""
    lines = [
        "| rows | runtime | of what | count | median error | 90 % within | leaning | order in sweeps | its own model |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for figure in all_figures:
        order = f"{figure.order:.2f} ({figure.sweeps})" if figure.sweeps else "–"
        peer = f"{figure.peer_median:.1%}" if figure.peer_median >= 0 else "–"
        cells = (
            figure.title,
            figure.runtime,
            figure.quantity,
            str(figure.rows),
            f"{figure.median:.2%}" if figure.median < 0.005 else f"{figure.median:.1%}",
            f"{figure.within_90:.1%}",
            f"{figure.bias:+.1%}",
            order,
            peer,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Rows by runtime: {_by_runtime(all_figures)}."])


def _by_runtime(all_figures: tuple[Figure, ...]) -> str:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for figure in all_figures:
        if figure.runtime == "all":
            continue
        kind = "step times" if figure.quantity == "step time" else "memory figures"
        counts[figure.runtime][kind] += figure.rows
    parts = [
        f"{runtime} {' and '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"
        for runtime, kinds in sorted(counts.items())
    ]
    return "; ".join(parts)


def rendered(all_figures: tuple[Figure, ...], learned: tuple[Learning, ...]) -> str:
    """Both tables, as they stand in the README."""
    return f"{table(all_figures)}\n\nSelf-calibration, the rows not tried:\n\n{learning_table(learned)}"


def readme_text() -> str:
    """What stands in the cost model's README."""
    return README.read_text().split(START)[1].split(END)[0].strip()


def learning_rows() -> tuple[Learning, ...]:
    """The kept figures of self-calibration."""
    return tuple(from_plain(Learning, plain) for plain in json.loads(KEPT.read_text())["learning"])


def _write(new: tuple[Figure, ...], *, reason: str) -> None:
    reasons: dict[str, str] = {}
    if KEPT.exists():
        old, reasons = kept()
        worse = worse_than(old, new)
        if worse and not reason:
            raise SystemExit("worse by more than a tenth, give --worse-because:\n" + "\n".join(worse))
        reasons |= {line.partition(":")[0]: reason for line in worse}
    learned = learning()
    document = {
        "worse_because": reasons,
        "figures": [to_plain(figure) for figure in new],
        "learning": [to_plain(row) for row in learned],
    }
    KEPT.write_text(json.dumps(document, indent=1) + "\n")
    head, _, rest = README.read_text().partition(START)
    _, _, tail = rest.partition(END)
    README.write_text(f"{head}{START}\n{rendered(new, learned)}\n{END}{tail}")


def _main() -> None:
    parser = argparse.ArgumentParser(description="The cost model's accuracy ledger.")
    parser.add_argument("source", nargs="?", help="print every row of this source")
    parser.add_argument("--write", action="store_true", help="renew ledger.json and the README's table")
    parser.add_argument("--worse-because", default="", help="why figures may become worse")
    options = parser.parse_args()
    if options.source:
        for quantity, pairs in sorted(pairs_by_quantity(options.source).items()):
            for pair in pairs:
                figures_text = f"seen {pair.seen:.6g} estimated {pair.estimated:.6g} {pair.error:+.1%}"
                print(f"{quantity:12} {pair.name:80} {figures_text}")
        return
    new = figures()
    print(table(new))
    if options.write:
        _write(new, reason=options.worse_because)


if __name__ == "__main__":
    _main()
