"""An existing DeepSpeed configuration in its context, to findings with their lines, and to a corrected file.

Reads the files (`reader`, `accelerate_file`, `arguments`), asks the rules (`planner.rules` decides what is wrong, and
writes the sentences), and puts lines and releases to the answers. Acts on nothing: text in, records out.
"""

from planner.lint.accelerate_file import AccelerateFile, as_deepspeed, looks_like_accelerate, read_accelerate
from planner.lint.arguments import read_trainer_arguments
from planner.lint.document import Document
from planner.lint.fixing import Fixed, fix_document
from planner.lint.linting import LintResult, lint_document
from planner.lint.reader import read_document
from planner.lint.source import MAX_BYTES, decode, decode_base64

__all__ = [
    "MAX_BYTES",
    "AccelerateFile",
    "Document",
    "Fixed",
    "LintResult",
    "as_deepspeed",
    "decode",
    "decode_base64",
    "fix_document",
    "lint_document",
    "looks_like_accelerate",
    "read_accelerate",
    "read_document",
    "read_trainer_arguments",
]
