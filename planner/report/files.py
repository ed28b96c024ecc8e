"""The emitted files, each line with what it is for."""

from __future__ import annotations

from planner.report.document import Block, Column, ListedLine, Listing, Paragraph, Table
from planner.report.input import ReportInput


def file_blocks(report: ReportInput) -> tuple[Block, ...]:
    """Every emitted file line by line, the DeepSpeed config among them; without their texts, the config's settings."""
    if report.files:
        intro = "Each line that does something, with what it is for."
        return (
            Paragraph(text=intro),
            *(
                Listing(
                    path=file.path,
                    does=file.does,
                    lines=tuple(ListedLine(text=text, why=why) for text, why in zip(file.lines, file.whys)),
                )
                for file in report.files
            ),
        )
    if not report.config_lines:
        return ()
    columns = (Column(heading="setting", code=True), Column(heading="value", code=True), Column(heading="why"))
    return (Table(columns=columns, rows=tuple((line.key, line.value, line.why) for line in report.config_lines)),)
