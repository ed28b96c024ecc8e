"""The records launch rendering speaks in: what comes out, and where things will lie when a script runs."""

from __future__ import annotations

from planner.spec._record import record


@record
class EmittedFile:
    """A text and the path, inside the plan folder, that it is to be written to."""

    path: str
    text: str
    executable: bool = False


@record
class LaunchPaths:
    """Where things lie for the scripts.

    `script`: of the rendered start script, inside the plan folder. `plan_dir`: absolute path of the plan folder as the
    nodes see it; "" makes the script find it from its own place, so that the folder can be moved. `python`: the
    interpreter to prefer; "" is python3 on the PATH. `made_with`: the command line that made the plan, for the header.
    """

    script: str = "launch.sh"
    plan_dir: str = ""
    python: str = ""
    made_with: tuple[str, ...] = ()
