"""The command line: prints and exits; nothing else in the product does.

What is imported here decides how fast `planner --help` answers: use cases, and all they need, are imported by the verb
that runs them.
"""

from planner.cli.main import main, plan_main

__all__ = ["main", "plan_main"]
