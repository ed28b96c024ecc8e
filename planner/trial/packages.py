"""What is installed here that the planner's results depend on, so that the environment can be made again."""

from __future__ import annotations

import importlib.metadata
import re

DISTRIBUTION = "meshplan"
_ROOTS = ("torch", "deepspeed", "transformers", "optuna", "numpy", "psutil", "pydantic", "pyyaml", "rich", "typer")
_OPTIONAL = ("nvidia-ml-py", "psycopg", "psycopg-binary", "pymysql", "redis")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed_packages() -> tuple[str, ...]:
    """`name==version` of the planner, all that it needs and all that those need, as far as they are here, by name.

    The form is that of a requirements file: `pip install -r` of these lines makes the environment again (a version such
    as 2.13.0+cpu is from the index that its maker names).
    """
    found: dict[str, str] = {}
    waiting = [DISTRIBUTION, *_ROOTS, *_OPTIONAL]
    while waiting:
        name = waiting.pop()
        if _normal(name) in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed, or another system's
        found[_normal(name)] = distribution.version
        waiting += _needs(distribution)
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))


def _needs(distribution: importlib.metadata.Distribution) -> list[str]:
    needed = (requirement for requirement in distribution.requires or () if "extra ==" not in requirement)
    names = (_NAME.match(requirement) for requirement in needed)
    return [name[0] for name in names if name is not None]


def _normal(name: str) -> str:
    """PEP 503: one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()
