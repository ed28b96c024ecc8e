"""The supervisor with a stand-in for the launcher: a small program that fails as ranks fail."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from planner.errors import NoFeasiblePlan, PlannerError
from planner.rundir import names
from planner.supervise.attempt import StopFlag
from planner.supervise.loop import Ports, Supervision, Supervisor, read_state
from planner.supervise.nodes import CONVERTING, Alone, Peers, SharedFolder

# Leaves word as a rank does; behaves by the task it is given. `peer` is a rank of a session of its own that hangs.
STANDIN = """
import json, os, pathlib, subprocess, sys, time
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--supervised") + 1])
task = words[words.index("--task") + 1]
print("standing in for", task, "--resume" in words, flush=True)
peer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
(folder / "peer").write_text(str(peer.pid))
memory = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4194304 bytes"
def leave(message, stopped=False):
    failure = None if stopped else {
        "exception": "RuntimeError", "message": message, "failed_at_s": time.time(), "chain": []}
    word = {"rank": 0, "phase": "backward", "steps_done": 3, "failure": failure, "stopped": stopped}
    (folder / "rank-00000.json").write_text(json.dumps(word))
behaviour = json.loads(os.environ["STANDIN"]).get(task, "done")
if behaviour == "oom":
    leave(memory)
    peer.wait()  # a launcher notices that its ranks are gone
    sys.exit(1)
if behaviour == "bug":
    leave("shapes do not match")
    sys.exit(1)
if behaviour == "refuse":
    word = {"error": "it holds checkpoints", "why": "they would be lost", "fix": "--resume", "exit_code": 2}
    (folder / "refusal.json").write_text(json.dumps(word))
    time.sleep(600)
if behaviour == "wait":
    while not (folder / "stop").exists():
        time.sleep(0.05)
    leave("", stopped=True)
peer.kill()
peer.wait()
"""


class Run:
    """One supervision of the stand-in."""

    def __init__(self, folder: Path, behaviour: dict[str, str], *, fallbacks: int = 2, resume: bool = False) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.stop = StopFlag()
        (folder / "standin.py").write_text(textwrap.dedent(STANDIN))
        words = [sys.executable, str(folder / "standin.py"), "--task", "task.json", "--deepspeed-config", "c"]
        self.supervision = Supervision(
            plan_dir=folder,
            command=(*words, *(["--resume"] if resume else [])),
            fallbacks=tuple(f"f{number}" for number in range(1, fallbacks + 1)),
            checkpoint_dir=str(folder / "checkpoints"),
            environment={**os.environ, "STANDIN": json.dumps(behaviour)},
        )

    def start(self, peers: Peers | None = None, *, cause: str = "capacity") -> int:
        ports = Ports(diagnose=lambda _folder: cause, say=self.said.append, pause=lambda _seconds: None)
        return Supervisor(self.supervision, peers or Alone(), ports, self.stop).run()

    @property
    def levels(self) -> list[int]:
        return [attempt.level for attempt in read_state(self.folder).attempts]


def no_peer_is_left(folder: Path) -> bool:
    return not any(_runs(int(path.read_text())) for path in folder.glob("logs/run-*/peer"))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # whoever inherited it has not looked yet
    except psutil.NoSuchProcess:
        return False


def test_supervisor_out_of_memory_ends_all_ranks_and_goes_down_the_ladder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_text("global_step3")
    run = Run(tmp_path, {"task.json": "oom", "f1/task.json": "oom"})
    assert run.start() == 0
    assert run.levels == [0, 1, 2]
    assert no_peer_is_left(tmp_path)
    assert "from the checkpoint after step 3" in run.said[-1]
    assert "f2/task.json True" in (tmp_path / "logs" / "run-0003" / "output.log").read_text()


def test_supervisor_hands_on_the_step_to_end_after_though_it_is_reached_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoints").mkdir()
    run = Run(tmp_path, {"task.json": "oom"})
    run.supervision = replace(run.supervision, command=(*run.supervision.command, "--steps", "3"))
    (tmp_path / "standin.py").write_text(
        'import pathlib, sys\npathlib.Path("checkpoints/latest").write_text("global_step3")\nprint(sys.argv[1:])\n'
        + textwrap.dedent(STANDIN)
    )
    monkeypatch.chdir(tmp_path)
    assert run.start() == 0
    assert "'--end-step', '3'" in (tmp_path / "logs" / "run-0002" / "output.log").read_text()


def test_supervisor_nothing_left_stops_with_the_reason_and_exit_3(tmp_path: Path) -> None:
    run = Run(tmp_path, {"task.json": "oom", "f1/task.json": "oom"}, fallbacks=1)
    with pytest.raises(NoFeasiblePlan, match="ran out of memory") as caught:
        run.start()
    assert caught.value.exit_code == 3 and "all 1 fallbacks" in caught.value.why
    assert run.levels == [0, 1] and no_peer_is_left(tmp_path)


def test_supervisor_leak_is_started_again_as_it_was_then_left(tmp_path: Path) -> None:
    run = Run(tmp_path, {"task.json": "oom"})
    assert run.start(cause="leak") == 0
    assert run.levels == [0, 0, 1]


def test_supervisor_other_failures_are_not_started_again(tmp_path: Path) -> None:
    run = Run(tmp_path, {"task.json": "bug"})
    assert run.start() == 1
    assert run.levels == [0] and "shapes do not match" in run.said[0]
    assert no_peer_is_left(tmp_path)  # though the launcher died before its child was ever seen


def test_supervisor_a_refusal_is_said_once_with_its_own_exit_code_and_is_no_attempt(tmp_path: Path) -> None:
    run = Run(tmp_path, {"task.json": "refuse"})
    with pytest.raises(PlannerError, match="it holds checkpoints") as caught:
        run.start()
    assert caught.value.exit_code == 2
    assert run.said == [] and run.levels == [] and no_peer_is_left(tmp_path)


def test_supervisor_resumed_run_begins_with_the_fallback_that_the_last_one_ended_with(tmp_path: Path) -> None:
    assert Run(tmp_path, {"task.json": "oom"}).start() == 0
    again = Run(tmp_path, {"task.json": "oom"}, resume=True)
    assert again.start() == 0
    assert again.levels == [0, 1, 1]


def test_supervisor_told_to_stop_lets_the_ranks_save_and_ends_with_130(tmp_path: Path) -> None:
    run = Run(tmp_path, {"task.json": "wait"})

    def tell() -> None:
        while not list(tmp_path.glob("logs/run-*/peer")):
            time.sleep(0.02)
        run.stop.tell()

    threading.Thread(target=tell).start()
    assert run.start() == 130
    assert read_state(tmp_path).attempts[-1].end == "stopped" and no_peer_is_left(tmp_path)


def test_two_supervisors_of_one_folder_agree_on_the_fallback(tmp_path: Path) -> None:
    """The second node's ranks are well: they are ended because the first's ran out of memory."""
    logs = tmp_path / names.LOGS_DIR
    logs.mkdir()
    codes: dict[int, int] = {}

    def supervise(node: int) -> None:
        run = Run(tmp_path, {"task.json": "oom" if node == 0 else "wait"})
        run.supervision = Supervision(
            plan_dir=tmp_path,
            command=run.supervision.command,
            fallbacks=run.supervision.fallbacks,
            checkpoint_dir="",
            environment=run.supervision.environment,
            is_first_node=node == 0,
        )
        codes[node] = run.start(SharedFolder(logs, node_rank=node, nodes=2))

    nodes = [threading.Thread(target=supervise, args=(node,)) for node in range(2)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(timeout=120)
    assert codes == {0: 0, 1: 0}
    assert [attempt.level for attempt in read_state(tmp_path).attempts] == [0, 1]


def test_node_waits_while_the_first_one_makes_a_checkpoint_fit(tmp_path: Path) -> None:
    """The first node comes long after the other's time to meet would have passed."""
    numbers: dict[int, int | None] = {}
    first = SharedFolder(tmp_path, node_rank=0, nodes=2, meeting_s=60.0)
    second = SharedFolder(tmp_path, node_rank=1, nodes=2, meeting_s=3.0)
    mark = tmp_path / CONVERTING
    mark.touch()
    other = threading.Thread(target=lambda: numbers.update({1: second.meet(lambda: 0)}))
    other.start()
    for beat in range(1, 9):
        time.sleep(1.0)
        os.utime(mark, ns=(beat, beat))
    mark.unlink()
    numbers[0] = first.meet(lambda: 7)
    other.join(timeout=60)
    assert numbers == {0: 7, 1: 7}


def test_mark_of_a_conversion_that_was_killed_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / CONVERTING).touch()
    assert SharedFolder(tmp_path, node_rank=1, nodes=2, meeting_s=0.1).meet(lambda: 1) is None


def test_nodes_that_share_no_folder_do_not_find_each_other(tmp_path: Path) -> None:
    assert SharedFolder(tmp_path, node_rank=0, nodes=2, meeting_s=0.1).meet(lambda: 1) is None
    assert SharedFolder(tmp_path, node_rank=1, nodes=2, meeting_s=0.1).meet(lambda: 1) is None


def test_nodes_waited_for_are_named_once(tmp_path: Path) -> None:
    said: list[str] = []
    peers = SharedFolder(tmp_path, node_rank=0, nodes=3, meeting_s=0.1, say=said.append)
    assert peers.meet(lambda: 1) is None
    assert len(said) == 1 and "--node-rank 1 to 2" in said[0]


def test_node_that_is_told_to_stop_waits_no_longer_and_starts_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, {})
    (tmp_path / names.LOGS_DIR).mkdir()
    run.stop.tell()
    peers = SharedFolder(
        tmp_path / names.LOGS_DIR, node_rank=1, nodes=2, meeting_s=3600.0, is_stopped=lambda: run.stop.times > 0
    )
    assert run.start(peers) == 130
    assert not list((tmp_path / names.LOGS_DIR).glob("run-*"))
