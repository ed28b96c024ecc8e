"""The list of what is installed: all that the planner needs, and nothing of tools that only build or test it."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement

from planner.trial import installed_packages


def test_list_is_a_requirements_file_of_what_is_installed() -> None:
    packages = installed_packages()
    parsed = [Requirement(line) for line in packages]
    assert [str(one) for one in parsed] == list(packages)
    for one in parsed:
        assert importlib.metadata.version(one.name) in one.specifier


def test_list_holds_what_decides_a_measurement_and_no_tools() -> None:
    names = {line.partition("==")[0] for line in installed_packages()}
    assert {"torch", "deepspeed", "transformers", "optuna", "sqlalchemy", "numpy", "safetensors"} <= names
    assert not {"pytest", "ruff", "mypy", "import-linter"} & names
