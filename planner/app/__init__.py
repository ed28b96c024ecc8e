"""One function per use case; the composition root. What users type and see is `planner.cli`'s.

Importing this package loads nothing: the command line needs the records of `requests` and `progress` before it knows
which use case will run, and has to answer `--help` at once. Each use case is imported from its own module.
"""
