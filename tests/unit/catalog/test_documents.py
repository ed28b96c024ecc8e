"""Reading text of unknown origin: plain values and places, or a three-part error; never anything else."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from planner.catalog.documents import MAX_FILE_BYTES, parse_json_object, read_text
from planner.catalog.yaml_text import parse_yaml, read_yaml
from planner.errors import InputError
from tests.rights import as_nobody


def test_parse_yaml_scalars_follow_the_core_schema() -> None:
    text = (
        "a: 1e-4\nb: no\nc: 012\nd: 1:30\ne: '8'\nf: true\ng: ~\nh: -3\ni: .5\nj: 2024-01-01\nk: 1_000\nl: 5.\nm: 0x10"
    )
    assert parse_yaml(text, label="t").value == {
        "a": 1e-4,
        "b": "no",
        "c": "012",
        "d": "1:30",
        "e": "8",
        "f": True,
        "g": None,
        "h": -3,
        "i": 0.5,
        "j": "2024-01-01",
        "k": "1_000",
        "l": 5.0,
        "m": "0x10",
    }


def test_parse_yaml_special_floats_are_read_for_the_schema_to_refuse() -> None:
    values = parse_yaml("[.inf, -.INF, .nan]", label="t").value
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])


def test_parse_yaml_place_names_line_of_nearest_value() -> None:
    document = parse_yaml("a:\n  b:\n    - 1\n    - {c: 2}\n", label="job.yaml")
    assert document.place(("a", "b", 1, "c")) == "job.yaml line 4"
    assert document.place(("a", "b", 7)) == "job.yaml line 2"
    assert document.place(("nowhere",)) == "job.yaml line 1"


def test_parse_yaml_alias_in_moderation_is_taken() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x", label="t").value == {"a": {"b": 1}, "c": {"b": 1}}


def test_parse_yaml_merge_key_is_a_plain_key_so_schemas_refuse_it() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x}", label="t").value["c"] == {"<<": {"b": 1}}


_BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
_DEEP_BY_ALIAS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (_BOMB, "aliases blow"),
        (_DEEP_BY_ALIAS, "nested deeper"),
        ("a: &a [*a]", "has no anchor before it"),
        ("a: *b", "has no anchor before it"),
        ("[" * 500, "nested deeper"),
        ("[" * 500_000, "nest"),
        ("{a: " * 5000, "nested deeper"),
        ("- " * 5000 + "x", "nested deeper"),
        ("[" + "1," * 200_000 + "1]", "more than 100000 values"),
        ("!!python/object/apply:os.system ['true']", "is not taken"),
        ("a: !mine x", "is not taken"),
        ("a: !!int '3'", "is not taken"),
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is there twice (first on line 1)"),
        ("? [a]\n: 1", "not a plain word"),
        ("? {a: b}\n: 1", "not a plain word"),
        ("a: 1\n---\nb: 2", "second document"),
        ("a: " + "9" * 31, "31 digits"),
        ("a: [1, 2", "not valid YAML"),
        ("a: 'x", "not valid YAML"),
        ("a: b: c", "line 1: not valid YAML"),
        ("a:\n\t- 1", "line 2: not valid YAML"),
        ("a: \x07", "not valid YAML"),
        ("a: \ud800", "not valid text"),
        ("%YAML 9.9\n---\na: 1", "not valid YAML"),
    ],
)
def test_parse_yaml_dangerous_or_broken_text_is_refused_and_does_not_hang(text: str, fragment: str) -> None:
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        parse_yaml(text, label="job.yaml")
    assert fragment in caught.value.error
    assert caught.value.fix
    assert time.monotonic() - start < 60


def test_parse_yaml_tab_gets_its_own_mend() -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml("a:\n\t- 1", label="t")
    assert "spaces" in caught.value.fix


def _missing(folder: Path) -> Path:
    return folder / "none.yaml"


def _folder(folder: Path) -> Path:
    return folder


def _empty(folder: Path) -> Path:
    return _with(folder, b" \n\n")


def _binary(folder: Path) -> Path:
    return _with(folder, b"\x89PNG\r\n\x1a\n\0\0")


def _zero_byte(folder: Path) -> Path:
    return _with(folder, b"a: 1\0")


def _latin(folder: Path) -> Path:
    return _with(folder, "a: é".encode("latin-1"))


def _utf16(folder: Path) -> Path:
    return _with(folder, "a: 1".encode("utf-16"))


def _large(folder: Path) -> Path:
    path = folder / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100 << 20)  # sparse: 100 MB that take no room
    return path


def _pipe(folder: Path) -> Path:
    path = folder / "pipe"
    os.mkfifo(path)
    return path


def _long_name(folder: Path) -> Path:
    return folder / ("x" * 400)


def _dangling(folder: Path) -> Path:
    path = folder / "link.yaml"
    path.symlink_to(folder / "nowhere")
    return path


def _list(folder: Path) -> Path:
    return _with(folder, b"- 1\n- 2\n")


def _comment_only(folder: Path) -> Path:
    return _with(folder, b"# nothing but words\n")


def _with(folder: Path, data: bytes) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (_missing, "there is no file"),
        (_folder, "is a folder"),
        (_empty, "is empty"),
        (_binary, "not UTF-8 text"),
        (_zero_byte, "not UTF-8 text (byte 4)"),
        (_latin, "not UTF-8 text (byte 3)"),
        (_utf16, "not UTF-8 text"),
        (_large, "larger than 1 MiB"),
        (_pipe, "not a regular file"),
        (_long_name, "cannot be read"),
        (_dangling, "there is no file"),
        (_list, "is a mapping of keys, found a list"),
        (_comment_only, "is a mapping of keys, found nothing"),
    ],
)
def test_read_yaml_unfit_file_is_refused(tmp_path: Path, make: object, fragment: str) -> None:
    assert callable(make)
    with pytest.raises(InputError) as caught:
        read_yaml(make(tmp_path), what="job file")
    assert fragment in caught.value.error
    assert caught.value.why
    assert caught.value.fix


def test_read_text_without_rights_is_refused(tmp_path: Path) -> None:
    path = _with(tmp_path, b"a: 1")
    path.chmod(0)
    with as_nobody(), pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_text(path, what="job file")


def test_read_text_byte_order_mark_and_exact_limit_are_taken(tmp_path: Path) -> None:
    assert read_text(_with(tmp_path, b"\xef\xbb\xbfa: 1"), what="job file") == "a: 1"
    assert len(read_text(_with(tmp_path, b"a" * MAX_FILE_BYTES), what="job file")) == MAX_FILE_BYTES


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("[1]", "not an object"),
        ('{"a": NaN}', "NaN"),
        ('{"a": Infinity}', "Infinity"),
        ('{"a": 1, "a": 2}', "there twice"),
        ('{"a": ', "line 1: not valid JSON"),
        ('{\n"a": 1,\n}', "line 3: not valid JSON"),
        ('{"a":' * 20_000, "nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "config.json: "),
    ],
)
def test_parse_json_object_unfit_text_is_refused(text: str, fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json_object(text, label="config.json")
    assert fragment in caught.value.error
