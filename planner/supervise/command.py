"""The launch command of one attempt, made from the one that the launch script gave. Pure."""

from __future__ import annotations

from planner.errors import InputError
from planner.spec._record import record


@record
class Variation:
    """How an attempt's command differs. `folder` "": the plan's own files. `end_step`: the training's step to end after
    in the place of the given `--steps`, which count from where an attempt begins; None: as given."""

    folder: str
    attempt_dir: str
    resume: bool
    end_step: int | None = None


def vary_command(command: tuple[str, ...], variation: Variation) -> tuple[str, ...]:
    """The reference trainer's command with another task and config, going on where the last attempt saved."""
    words = list(command)
    if variation.folder:
        words = _with_value(words, "--task", f"{variation.folder}/task.json")
        words = _with_value(words, "--deepspeed-config", f"{variation.folder}/ds_config.json")
    if variation.end_step is not None:
        words = [*_without(words, "--steps"), "--end-step", str(variation.end_step)]
    if variation.resume and "--resume" not in words:
        words.append("--resume")
    return (*words, "--supervised", variation.attempt_dir)


def cannot_start(command: tuple[str, ...], problem: OSError) -> InputError:
    """What to tell of a command that the system refused to start."""
    return InputError(
        f"cannot start {command[0]}",
        why=(problem.strerror or str(problem)).lower(),
        fix="name a program that exists and may be run after `--`, as launch.sh does",
    )


def value_of(command: tuple[str, ...], option: str) -> str | None:
    """The value of an option, written as `--x 1` or `--x=1`; None when it is not there."""
    for place, word in enumerate(command):
        if word == option and place + 1 < len(command):
            return command[place + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _with_value(words: list[str], option: str, value: str) -> list[str]:
    changed = list(words)
    for place, word in enumerate(words):
        if word == option and place + 1 < len(words):
            changed[place + 1] = value
        elif word.startswith(f"{option}="):
            changed[place] = f"{option}={value}"
    return changed


def _without(words: list[str], option: str) -> list[str]:
    kept = []
    is_value = False
    for word in words:
        if is_value or word == option or word.startswith(f"{option}="):
            is_value = word == option and not is_value
            continue
        kept.append(word)
    return kept
