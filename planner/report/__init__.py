"""The plan told to people: text and one self-contained HTML file, pure functions of records.

Reading the records from a plan folder is `rundir`'s, writing the files is `app`'s, terminals are `cli`'s.
"""

from planner.report.input import CandidateRow, ExplainedLine, RejectionRow, ReportInput

__all__ = ["CandidateRow", "ExplainedLine", "RejectionRow", "ReportInput"]
