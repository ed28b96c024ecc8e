"""meshplan: plans a distributed training run and proves the plan by running it.

The package is layered; `planner/README.md` draws the layers and `pyproject.toml` enforces them.
Importing `planner` imports nothing else: the command line must answer before torch could load.
"""

__version__ = "0.1.0"
