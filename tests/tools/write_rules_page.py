"""Writes `planner/rules/RULES.md` from the tables: `python -m tests.tools.write_rules_page`."""

from __future__ import annotations

from pathlib import Path

from planner.rules.page import render_page

PAGE = Path(__file__).parents[2] / "planner" / "rules" / "RULES.md"

if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
