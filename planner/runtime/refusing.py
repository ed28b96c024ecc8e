"""How ranks say that a training is refused: once for all of them, with the exit code that the error has.

Supervised, a rank leaves the refusal in the attempt's folder and waits to be ended: the supervisor says it, before the
launcher tells of its failed ranks at length. Nothing heavy is imported: a refusal may come before torch is there.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from planner.errors import PlannerError
from planner.runtime.whole_file import write_whole
from planner.spec.codec import to_plain
from planner.spec.supervision import REFUSAL_FILE, Refusal

SUPERVISED_WAIT_S = 15.0  # for the supervisor to end this rank; it looks several times a second
FIRST_WAIT_S = 3.0  # for the launcher to end this rank because the node's first one, which speaks at once, has gone


def refuse(problem: PlannerError, *, folder: Path | None, local_rank: int) -> int:
    """Say `problem` where nobody else does; the exit code. `folder`: the attempt's, None without a supervisor."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whoever ends this rank now means it
    if folder is not None and _left(problem, folder):
        time.sleep(SUPERVISED_WAIT_S)
    elif folder is None and local_rank:
        time.sleep(FIRST_WAIT_S)
    print(problem, file=sys.stderr, flush=True)
    return problem.exit_code


def _left(problem: PlannerError, folder: Path) -> bool:
    """Whether the supervisor can read it; ranks mostly refuse for the same reason, so that the last one's stands."""
    refusal = Refusal(error=problem.error, why=problem.why, fix=problem.fix, exit_code=problem.exit_code)
    try:
        write_whole(folder / REFUSAL_FILE, json.dumps(to_plain(refusal)) + "\n")
    except OSError as trouble:
        print(f"[rank] {folder} cannot be written: {trouble}", file=sys.stderr)
        return False
    return True
