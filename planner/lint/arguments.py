"""The Trainer's arguments as people have them: a command line, a shell script, a YAML or JSON file.

Owns reading and naming. What the arguments mean beside a DeepSpeed file is the business of the rules.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from planner.catalog.yaml_text import parse_yaml
from planner.errors import InputError
from planner.lint.reader import read_document
from planner.rules import plain_number

_MOST_ARGUMENTS = 1000
_OPTION = re.compile(r"(?:^|[\s'\"])--[A-Za-z]")
_TRUE = {"true": True, "false": False}
# Other trainers' names (axolotl, LLaMA-Factory, TRL) for the same arguments.
_SAME = {
    "micro_batch_size": "per_device_train_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "lr": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "num_warmup_steps": "warmup_steps",
}


def read_trainer_arguments(text: str, *, label: str) -> dict[str, Any]:
    """Arguments by the Trainer's names; values are booleans, numbers or words. InputError for what is none of these."""
    start = text.lstrip()
    if start.startswith("{"):
        document = read_document(text)
        if document.unreadable:
            fact = document.syntax[0]
            raise InputError(
                f"{label} line {fact.line} column {fact.column}: {fact.detail}",
                why="the Trainer's arguments were taken for JSON, because they begin with {",
                fix="mend it there",
            )
        given: Mapping[str, Any] = document.value
    elif _OPTION.search(text):
        given = dict(_command_line(text))
    else:
        value = parse_yaml(text, label=label).value
        if not isinstance(value, dict):
            raise InputError(
                f"{label} holds no Trainer arguments",
                why="arguments are --name value on a command line, or `name: value` in a YAML or JSON file",
                fix='write them like --trainer-args "--per_device_train_batch_size 8 --bf16 true"',
            )
        given = value
    return _named(given)


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, value in list(given.items())[:_MOST_ARGUMENTS]:
        plain = str(name).replace("-", "_")
        canonical = _SAME.get(plain, plain)
        if canonical == plain or canonical not in given:
            arguments[canonical] = _plain(value)
    return arguments


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    word = value.strip()
    if word.lower() in _TRUE:
        return _TRUE[word.lower()]
    number = plain_number(word)
    return word if number is None else number


def _command_line(text: str) -> Iterator[tuple[str, Any]]:
    words = _words(text.replace("\\\r\n", " ").replace("\\\n", " "))
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if equals:
            yield name, value
        elif place < len(words) and not words[place].startswith("--"):
            yield name, words[place]
            place += 1
        else:
            yield name, True


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote that never ends: a piece of a script
        return text.replace('"', " ").replace("'", " ").split()
