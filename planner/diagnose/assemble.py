"""One failure line with the lines around it to one event: the whole message, the traceback, the phase. Text only.

Owns how far the surroundings reach and whose lines belong together (same prefix). The phrases are `device_text`'s and
`host_text`'s; where lines come from is the scanner's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from planner.diagnose.device_text import DeviceText, read_device_text
from planner.diagnose.host_text import HostText, read_host_text
from planner.diagnose.lines import Line, read_line
from planner.diagnose.markers import marker_of
from planner.diagnose.records import EventKind, Frame, MemoryEvent, RunPhase
from planner.diagnose.traceback_text import is_header, own_frame, phase_of, read_frames
from planner.diagnose.window import Window
from planner.spec._record import record

MAX_MESSAGE_LINES = 14  # of one message, over how many lines it may be broken
MAX_MESSAGE_CHARACTERS = 2400
MAX_LINES_BACK = 4000  # of all writers
MAX_OWN_LINES_BACK = 250  # of the one that failed
MAX_LINES_AHEAD = 400
SHOWN_CHARACTERS = 600

_COMPLETE = re.compile(
    r"reserved in total by|reserved by PyTorch but unallocated|\bcached\)|may cause system failure|PYTORCH_MPS_HIGH"
)
_NEXT_MESSAGE = re.compile(
    r"^\s*(?:Traceback \(most|During handling of|The above exception|Exception raised from|frame #\d"
    r"|File \"|WARNING\b|INFO\b|ERROR\b"
    r"|\[(?:INFO|WARNING|ERROR|E|W|I) ?|Loading |Saving |Epoch\b|Killing subprocess|\d{1,3}%\|)"
    r"|\b(?:CUDA|HIP|XPU|NPU) out of memory"
)
_ERROR_WORD = re.compile(
    r"Error\b|Exception\b|\bFAIL|\berror:|^\W*(?:CUDA|HIP|XPU|NPU|MPS|MUSA)\b|ERROR|raise |terminate called|what\(\)"
)


@record
class Reading:
    """A failure's kind and figures, with the text they were read in."""

    text: str
    line: Line
    device: DeviceText | None
    host: HostText | None

    @property
    def kind(self) -> EventKind:
        """The kind of event; a device's words come before the host's."""
        return self.device.kind if self.device is not None else self.host.kind if self.host else EventKind.OTHER_FAILURE


def read_failure(window: Window, start: int) -> Reading | None:
    """The failure that the line beginning at `start` reports, or None."""
    line = read_line(window.line(start))
    device = read_device_text(line.text)
    text = line.text
    if "emory" in text and not _COMPLETE.search(text):
        joined = _joined(window, start, line)
        wider = read_device_text(joined)
        if wider is not None and (device is None or (wider.kind is device.kind and wider.figures != device.figures)):
            device, text = wider, joined
    if device is not None:
        return Reading(text=text, line=line, device=device, host=None) if _is_failure(device, text) else None
    host = read_host_text(line.text)
    return Reading(text=line.text, line=line, device=None, host=host) if host is not None else None


def _is_failure(device: DeviceText, text: str) -> bool:
    """Advice about "CUDA out of memory" is not one: a failure has a size, or the words of an error before it."""
    if device.kind is not EventKind.DEVICE_ALLOCATOR:
        return True
    figures = device.figures
    return figures.requested is not None or figures.allocated is not None or bool(_ERROR_WORD.search(text))


def _joined(window: Window, start: int, line: Line) -> str:
    """The message from this line on, as far as it goes: the next lines of the same writer, joined by blanks."""
    parts = [_unboxed(line.text)]
    length = len(parts[0])
    for following in _own(window.after(start, most=MAX_LINES_AHEAD), line.stream):
        if not following.text.strip() or _NEXT_MESSAGE.search(following.text):
            break
        parts.append(_unboxed(following.text))
        length += len(parts[-1])
        if length > MAX_MESSAGE_CHARACTERS or len(parts) > MAX_MESSAGE_LINES or _COMPLETE.search(parts[-1]):
            break
    return " ".join(part for part in parts if part)[:MAX_MESSAGE_CHARACTERS]


def _unboxed(text: str) -> str:
    return " ".join(text.strip(" \t│|╭╮╰╯─").split())


def _own(lines: Iterator[bytes], stream: str) -> Iterator[Line]:
    """The lines of one writer among all."""
    for raw in lines:
        line = read_line(raw)
        if line.stream == stream:
            yield line


def assemble(window: Window, start: int, reading: Reading) -> MemoryEvent:
    """The event: the reading with its traceback and phase from the lines around it."""
    before = _before(window, start, reading.line.stream)
    frames = _frames(before)
    if not frames:
        frames = _frames_after(window, start, reading.line.stream)
    own = own_frame(frames)
    phase = phase_of(frames)
    if phase in (RunPhase.UNKNOWN, RunPhase.START):
        phase = _marked_phase(window, start, before, fallback=phase)
    device, host = reading.device, reading.host
    return MemoryEvent(
        kind=reading.kind,
        text=reading.text.strip()[:SHOWN_CHARACTERS],
        backend=device.backend if device is not None else "host",
        figures=device.figures if device is not None else host.figures if host is not None else MemoryEvent.figures,
        others=device.others if device is not None else (),
        rank=reading.line.rank,
        gpu=device.gpu if device is not None else None,
        pid=host.pid if host is not None else None,
        exit_code=host.exit_code if host is not None else None,
        phase=phase,
        file=own.file if own else "",
        line=(own.line or None) if own else None,
        function=own.function if own else "",
        frames=frames,
        environment_variable=device.environment_variable if device is not None else "",
        log_line=window.line_number(start),
    )


def _before(window: Window, start: int, stream: str) -> list[str]:
    """This writer's lines before the failure, in order, from its traceback's header on where there is one."""
    texts: list[str] = []
    for line in _own(window.before(start, most=MAX_LINES_BACK), stream):
        texts.append(line.text)
        if is_header(line.text) or len(texts) >= MAX_OWN_LINES_BACK:
            break
    texts.reverse()
    return texts


def _frames(before: Sequence[str]) -> tuple[Frame, ...]:
    """The traceback that ends at the failure. Without a header: the frames among the last lines, as an excerpt has."""
    if before and is_header(before[0]):
        return read_frames(before)
    return read_frames(before[-60:])


def _frames_after(window: Window, start: int, stream: str) -> tuple[Frame, ...]:
    """The frames that follow the message, as some tools print them: innermost first where there are several."""
    texts = []
    for line in _own(window.after(start, most=60), stream):
        if is_header(line.text):
            break
        texts.append(line.text)
    frames = read_frames(texts)
    return tuple(reversed(frames))


def _marked_phase(window: Window, start: int, before: Sequence[str], *, fallback: RunPhase) -> RunPhase:
    """The phase by the last line that marks one: this writer's, else anybody's; in a short excerpt, the next line's."""
    for text in reversed(before):
        phase = marker_of(text)
        if phase is not None:
            return phase if phase is not RunPhase.UNKNOWN else fallback
    for raw in window.before(start, most=200):
        phase = marker_of(read_line(raw).text)
        if phase is not None:
            return phase if phase is not RunPhase.UNKNOWN else fallback
    for raw in window.after(start, most=8):
        phase = marker_of(read_line(raw).text)
        if phase not in (None, RunPhase.UNKNOWN):
            return phase or fallback
    return fallback
