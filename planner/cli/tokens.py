"""The verb `tokens`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from planner.app.requests import TokensRequest
from planner.cli.session import JsonFlag, QuietFlag, run_verb
from planner.errors import InputError, Interrupted

NO_SEPARATOR = (
    "warning: the tokenizer names no end-of-text token (eos_token in tokenizer_config.json), so nothing stands between "
    "the documents"
)


def tokens(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Text, or JSONL (.jsonl, .ndjson, .json).")],
    tokenizer: Annotated[Path, typer.Option(metavar="FOLDER", help="Local folder of a Hugging Face tokenizer.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The token file to write.")],
    field: Annotated[str, typer.Option(metavar="KEY", help="Key of the text in a JSONL line.")] = "text",
    token_bytes: Annotated[
        int, typer.Option(metavar="2|4", help="Bytes of one token; default 2 where the vocabulary allows it.")
    ] = 0,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Make the token file that the reference trainer reads (training.data.path) from text or JSONL."""
    kept = Interrupted("interrupted", why="it was told to stop; what was tokenized is kept", fix="run it again")
    with run_verb(context, as_json=as_json, quiet=quiet, kept=kept) as session:
        if token_bytes not in (0, 2, 4):
            raise InputError("--token-bytes is 2 or 4", why=f"it is {token_bytes}", fix="leave it out, or use 4")
        request = TokensRequest(
            files=tuple(files), tokenizer=tokenizer, out_path=out, field=field, token_bytes=token_bytes
        )
        made = session.use_cases.make_tokens(request, quiet=quiet)
        session.print_json(made)
        data = f"data: {{path: {made['path']}, token_bytes: {made['token_bytes']}}}"
        session.print(
            Text(f"{made['tokens']:,} tokens of {made['documents']:,} documents in {made['path']}"),
            *(() if made.get("separates_documents", True) else (Text(NO_SEPARATOR, style="yellow"),)),
            Text(f"in the job file, under training:  {data}"),
        )
        session.print_essential(str(made["path"]))
