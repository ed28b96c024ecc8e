"""One raw line of a log to readable text, and whose line it is: colours, time stamps and rank prefixes. Pure text.

Several programs may each put a prefix before the line (`node1: [rank3]: …`); they are taken off one by one.
"""

from __future__ import annotations

import re

from planner.spec._record import record

MAX_LINE_BYTES = 4096  # of one line; the rest of a longer one is not looked at
MAX_PREFIXES = 4

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]"
)
_TIME = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s?"
    r"|\[?[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?: \d{4})?\]?\s?"
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)? "
)
_RANKED = re.compile(
    r"\[(?:global[ _]?)?rank[ :_]{0,2}(\d{1,6})\]:?\s?"  # torch >= 2.2, Lightning, most frameworks
    r"|\[(?:default|trainer|worker|node|elastic)(\d{1,6})\]:\s?"  # torchrun --tee: role and rank
    r"|\[1,(\d{1,6})\](?:<std(?:out|err)>)?:\s?"  # mpirun --tag-output
    r"|rank[ _]?(\d{1,6}): ",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"\s{0,5}(\d{1,5}): (?=\S|\s{2,}File )")  # srun --label
_NAMED = re.compile(
    r"\(([\w:.()]{1,60}) pid=(\d{1,12})(?:, ip=[\w.:]{1,64})?\)\s?"  # Ray
    r"|\[pod/[\w.\-/]{1,120}\]\s?|[\w.-]{1,60}\s{1,12}\| "  # kubectl logs --prefix; docker compose
    r"|(?!\w*(?:Error|Exception|Warning|INFO|DEBUG)\b)(?=[\w.-]{0,60}[\d-])[a-z][\w.-]{0,60}: (?=\s"
    r"|\[|Traceback|File |W?E?R?ROR|\w+Error|Run|torch|\d{4}-)"
    r"|\d{1,3}(?:\.\d{1,3}){3}: "  # pdsh: host
)
_FILE_RANK = re.compile(r"(?:global[_-]?rank|rank|trainer|worker|proc)[_.-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_ATTEMPT = re.compile(r"attempt_\d+/(\d{1,6})/std(?:err|out)\.log$|(?:^|/)(\d{1,6})/std(?:err|out)(?:\.log)?$")
_PLAIN_NUMBER = re.compile(r"(?:^|/)(\d{1,5})\.(?:log|out|err|txt)(?:\.gz)?$")


@record
class Line:
    """`stream`: the prefixes as they stood, the same for all lines of one writer. `rank`: None where none is named."""

    text: str
    stream: str
    rank: int | None


def clean(raw: bytes) -> str:
    """The line's text without colours and control characters; what is not UTF-8 is replaced."""
    return _ESCAPES.sub("", raw[:MAX_LINE_BYTES].decode("utf-8", errors="replace"))


def read_line(raw: bytes) -> Line:
    """The text behind the line's prefixes, and whose it is."""
    return split_prefixes(clean(raw))


def split_prefixes(text: str) -> Line:
    """Take prefixes off the front of a clean line."""
    stream, rank = "", None
    for _ in range(MAX_PREFIXES):
        time = _TIME.match(text)
        if time is not None:
            text = text[time.end() :]
            continue
        found = _RANKED.match(text) or (_NUMBERED.match(text) if rank is None else None)
        if found is not None:
            number = next(group for group in found.groups() if group is not None)
            rank = int(number) if rank is None else rank
        else:
            found = _NAMED.match(text)
        if found is None:
            break
        stream += found[0].strip()
        text = text[found.end() :]
    return Line(text=text, stream=stream, rank=rank)


def rank_of_file(name: str) -> int | None:
    """The rank that a log file's path names (`rank_3.log`, torchrun's `attempt_0/3/stderr.log`); None without one."""
    found = _ATTEMPT.search(name)
    if found is not None:
        return int(found[1] or found[2])
    matches = _FILE_RANK.findall(name)
    if matches:
        return int(matches[-1])
    plain = _PLAIN_NUMBER.search(name)
    return int(plain[1]) if plain else None
