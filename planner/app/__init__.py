"""One function per use case; the composition root. What users type and see is `planner.cli`'s."""
