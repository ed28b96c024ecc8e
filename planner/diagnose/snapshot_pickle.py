"""A pickle of plain values, read without unpickling: no class is looked up, nothing is called, memory is bounded.

A stack machine over the few opcodes that containers, strings and numbers need (protocols 2 to 5: what Python's pickle
and PyTorch's own writer emit). Any other opcode (GLOBAL, REDUCE, BUILD, …) is refused by its name. Sizes in the file
are checked against what is left of it before anything is made, memo indexes are kept in a dict, and the number of
values is limited; shared values stay shared.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from planner.errors import InputError

MAX_FILE_BYTES = 1 << 30
MAX_VALUES = 20_000_000  # made or put into containers
MAX_MEMO = 10_000_000
MAX_INTEGER_BYTES = 64  # an address has 8; a long one is somebody's joke

_MARK = object()


class _Refused(Exception):
    """What is wrong with the file, in words."""


def read_plain_pickle(data: bytes, *, label: str) -> Any:
    """The value in the pickle. InputError when it is damaged, holds more than plain values, or too many of them."""
    try:
        return _Machine(data).run()
    except _Refused as problem:
        why = str(problem)
    except (struct.error, IndexError, KeyError, TypeError, ValueError, UnicodeDecodeError, OverflowError):
        why = "the file is damaged or not a pickle"
    raise InputError(
        f"{label} cannot be read as a memory snapshot",
        why=why,
        fix="give the file that torch.cuda.memory._dump_snapshot(path) wrote, without changing it",
    )


class _Machine:
    """The state of one reading."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._budget = MAX_VALUES

    def run(self) -> Any:
        """Execute until STOP."""
        data, stack = self._data, self._stack
        size = len(data)
        while self._at < size:
            code = data[self._at]
            self._at += 1
            if code == 0x2E:  # STOP
                if len(stack) != 1:
                    raise _Refused("the file ends with more or less than one value")
                return stack[0]
            action = _ACTIONS.get(code)
            if action is None:
                raise _Refused(_foreign(code))
            action(self)
            self._budget -= 1
            if self._budget < 0:
                raise _Refused(f"it holds more than {MAX_VALUES:,} values; record fewer entries (max_entries)")
        raise _Refused("the file is cut off")

    def take(self, count: int) -> bytes:
        """The next bytes; what is not there is not made."""
        if count < 0 or count > len(self._data) - self._at:
            raise _Refused("the file is cut off")
        start = self._at
        self._at += count
        return self._data[start : self._at]

    def line(self) -> bytes:
        """The next text line, of bounded length."""
        end = self._data.find(b"\n", self._at, self._at + 4096)
        if end < 0:
            raise _Refused("the file is damaged")
        start, self._at = self._at, end + 1
        return self._data[start:end]

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def pop(self) -> Any:
        """Take the top value, which may not be a mark."""
        value = self._stack.pop()
        if value is _MARK:
            raise _Refused("the file is damaged")
        return value

    def top(self) -> Any:
        """The top value, left in place."""
        return self._stack[-1]

    def items(self) -> list[Any]:
        """All values down to the last mark, taken off with it."""
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise _Refused("the file is damaged")
        values = self._stack[place + 1 :]
        del self._stack[place:]
        return values

    def remember(self, index: int) -> None:
        """Note the top value under an index."""
        if len(self._memo) >= MAX_MEMO:
            raise _Refused("it notes too many values")
        self._memo[index] = self.top()

    def remember_next(self) -> None:
        """Note the top value under the next index (MEMOIZE)."""
        self.remember(len(self._memo))

    def recall(self, index: int) -> None:
        """Put a noted value on the stack."""
        self.push(self._memo[index])


def _foreign(code: int) -> str:
    name = next((opcode.name for opcode in pickletools.opcodes if opcode.code == chr(code)), f"0x{code:02x}")
    return f"it holds more than plain values (pickle opcode {name}); such a file could run code and is not loaded"


def _text(machine: _Machine, width: str) -> None:
    (count,) = struct.unpack(width, machine.take(struct.calcsize(width)))
    machine.push(machine.take(count).decode("utf-8", errors="replace"))


def _bytes(machine: _Machine, width: str) -> None:
    (count,) = struct.unpack(width, machine.take(struct.calcsize(width)))
    machine.push(machine.take(count))


def _number(machine: _Machine, width: str) -> None:
    machine.push(struct.unpack(width, machine.take(struct.calcsize(width)))[0])


def _long(machine: _Machine, width: str) -> None:
    (count,) = struct.unpack(width, machine.take(struct.calcsize(width)))
    if not 0 <= count <= MAX_INTEGER_BYTES:
        raise _Refused("it holds an integer of unreasonable length")
    machine.push(int.from_bytes(machine.take(count), "little", signed=True))


def _append(machine: _Machine) -> None:
    value = machine.pop()
    _a_list(machine.top()).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.items()
    _a_list(machine.top()).extend(values)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _a_dict(machine.top())[_a_key(key)] = value


def _set_items(machine: _Machine) -> None:
    values = machine.items()
    target = _a_dict(machine.top())
    for place in range(0, len(values) - 1, 2):
        target[_a_key(values[place])] = values[place + 1]


def _a_key(value: Any) -> str | int | float | None:
    """Containers are no keys: hashing what is nested a million deep would end the interpreter."""
    if isinstance(value, str | int | float) or value is None:
        return value
    raise _Refused("it has keys that are not plain")


def _a_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Refused("the file is damaged")
    return value


def _a_dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _Refused("the file is damaged")
    return value


def _tuple(machine: _Machine, count: int) -> None:
    values = [machine.pop() for _ in range(count)]
    machine.push(tuple(reversed(values)))


def _dict_of(values: list[Any]) -> dict[Any, Any]:
    return {_a_key(key): value for key, value in zip(values[0::2], values[1::2], strict=True)}


def _frame(machine: _Machine) -> None:
    machine.take(8)  # a frame's length: a hint for readers of streams


def _protocol(machine: _Machine) -> None:
    if machine.take(1)[0] > 5:
        raise _Refused("it is of a pickle protocol newer than 5")


def _decimal(machine: _Machine) -> None:
    text = machine.line().rstrip(b"L")
    machine.push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text[:40]))


_ACTIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): lambda m: m.push(_MARK),
    ord("}"): lambda m: m.push({}),
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: _number(m, "<B"),
    ord("M"): lambda m: _number(m, "<H"),
    ord("J"): lambda m: _number(m, "<i"),
    ord("G"): lambda m: _number(m, ">d"),
    ord("I"): _decimal,
    ord("L"): _decimal,
    0x8A: lambda m: _long(m, "<B"),
    0x8B: lambda m: _long(m, "<i"),
    ord("X"): lambda m: _text(m, "<I"),
    0x8C: lambda m: _text(m, "<B"),
    0x8D: lambda m: _text(m, "<Q"),
    ord("U"): lambda m: _text(m, "<B"),
    ord("T"): lambda m: _text(m, "<I"),
    ord("B"): lambda m: _bytes(m, "<I"),
    ord("C"): lambda m: _bytes(m, "<B"),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord("t"): lambda m: m.push(tuple(m.items())),
    ord("l"): lambda m: m.push(m.items()),
    ord("d"): lambda m: m.push(_dict_of(m.items())),
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    0x94: lambda m: m.remember_next(),
    ord("q"): lambda m: m.remember(m.take(1)[0]),
    ord("r"): lambda m: m.remember(struct.unpack("<I", m.take(4))[0]),
    ord("h"): lambda m: m.recall(m.take(1)[0]),
    ord("j"): lambda m: m.recall(struct.unpack("<I", m.take(4))[0]),
    ord("0"): lambda m: m.pop() and None,
    ord("2"): lambda m: m.push(m.top()),
}
