"""Token files from text and JSONL: whole or not there, resumed where a run was cut off, in little memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from planner.errors import InputError
from planner.runtime import tokens
from planner.runtime.tokens import Order, make_token_file

END = 0


@pytest.fixture(scope="module", name="tokenizer")
def tokenizer_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that gives each byte-level character an id of its own, saved as transformers saves one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": END, **{letter: number for number, letter in enumerate(alphabet, start=1)}}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>").save_pretrained(folder)  # noqa: S106
    return folder


def read(path: Path, token_bytes: int = 2) -> np.ndarray:
    return np.fromfile(path, dtype=f"<u{token_bytes}")


def order(files: list[Path], tokenizer: Path, out: Path, **more: object) -> Order:
    return Order(files=tuple(files), tokenizer=tokenizer, out=out, **more)  # type: ignore[arg-type]


def test_jsonl_documents_end_with_the_end_token(tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"body": "ab"}\n\n{"body": "c"}\n')
    made = make_token_file(order([source], tokenizer, tmp_path / "t.bin", field="body"))
    ids = read(tmp_path / "t.bin")
    assert (made["documents"], made["tokens"], made["token_bytes"]) == (2, 5, 2)
    assert list(np.flatnonzero(ids == END)) == [2, 4]
    assert not list(tmp_path.glob("t.bin.*"))


def test_text_is_one_document_however_it_is_cut_and_no_character_is_split(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("ä€😀x\n" * 50 + "long line without an end " * 20, encoding="utf-8")
    make_token_file(order([source], tokenizer, tmp_path / "whole.bin"))
    monkeypatch.setattr(tokens, "PIECE_BYTES", 7)
    monkeypatch.setattr(tokens, "BATCH_BYTES", 30)
    made = make_token_file(order([source], tokenizer, tmp_path / "cut.bin"))
    assert (read(tmp_path / "cut.bin") == read(tmp_path / "whole.bin")).all()
    assert made["documents"] == 1 and made["tokens"] == len(source.read_bytes()) + 1


def test_run_that_was_cut_off_goes_on_and_gives_the_same_file(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, path in enumerate(files):
        path.write_text("".join(json.dumps({"text": f"document {number} {line}"}) + "\n" for line in range(40)))
    make_token_file(order(files, tokenizer, tmp_path / "whole.bin"))
    monkeypatch.setattr(tokens, "BATCH_BYTES", 200)
    written = []
    real = tokens._write_note

    def cut_off(note: Path, identity: str, place: tokens.Place) -> None:
        written.append(place)
        if len(written) == 5:
            raise KeyboardInterrupt  # after the tokens were written and before that was noted
        real(note, identity, place)

    monkeypatch.setattr(tokens, "_write_note", cut_off)
    with pytest.raises(KeyboardInterrupt):
        make_token_file(order(files, tokenizer, tmp_path / "t.bin"))
    assert not (tmp_path / "t.bin").exists()
    made = make_token_file(order(files, tokenizer, tmp_path / "t.bin"))
    assert made["resumed_after_tokens"] == written[3].tokens > 0
    assert (read(tmp_path / "t.bin") == read(tmp_path / "whole.bin")).all() and made["documents"] == 120


def test_lines_are_counted_from_the_files_beginning_where_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "b"}\nbroken\n')
    with pytest.raises(InputError, match="line 3") as caught:
        list(tokens._documents(tmp_path / "a.jsonl", len(b'{"text": "a"}\n'), field="text"))
    assert caught.value.why.startswith("it is no JSON: Expecting value")


def test_a_tokenizer_without_an_end_token_is_told_of(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    made = make_token_file(order([tmp_path / "a.txt"], tokenizer, tmp_path / "t.bin"))
    assert made["separates_documents"]
    settings = json.loads((tokenizer / "tokenizer_config.json").read_text())
    bare = tmp_path / "bare"
    shutil.copytree(tokenizer, bare)
    (bare / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    made = make_token_file(order([tmp_path / "a.txt"], bare, tmp_path / "u.bin"))
    assert (made["separates_documents"], made["tokens"]) == (False, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "a"}\n\n{"text": 3}\n', "line 3: 'text' is no text"),
        (b'{"text": "a"}\n{"other": "x"}\n', "line 2: the line holds no text under 'text'"),
        (b"not json\n", "line 1: the line holds no text under 'text'"),
        (b'["text"]\n', "line 1: the line holds no text under 'text'"),
        (b"\n", "hold no text"),
    ],
)
def test_lines_that_hold_no_text_are_refused_with_their_place(
    tokenizer: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=words):
        make_token_file(order([tmp_path / "a.jsonl"], tokenizer, tmp_path / "t.bin"))
    assert not (tmp_path / "t.bin").exists()


def test_what_cannot_be_read_or_written_over_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "there.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="not UTF-8"):
        make_token_file(order([tmp_path / "a.txt"], tokenizer, tmp_path / "t.bin"))
    with pytest.raises(InputError, match="exists"):
        make_token_file(order([tmp_path / "a.txt"], tokenizer, tmp_path / "there.bin"))
    with pytest.raises(InputError, match="no tokenizer"):
        make_token_file(order([tmp_path / "a.txt"], tmp_path, tmp_path / "t.bin"))
    with pytest.raises(InputError, match="no file"):
        make_token_file(order([tmp_path / "b.txt"], tokenizer, tmp_path / "t.bin"))
    with pytest.raises(InputError, match="no folder"):
        make_token_file(order([tmp_path / "a.txt"], tokenizer, tmp_path / "nowhere" / "t.bin"))


@pytest.fixture(name="gapped")
def gapped_fixture(tmp_path: Path) -> Path:
    """A vocabulary of two whose higher id needs more than 2 bytes."""
    inner = Tokenizer(models.WordLevel(vocab={"low": 1, "high": 70_000}, unk_token="low"))  # noqa: S106
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path / "gapped")
    return tmp_path / "gapped"


def test_width_follows_the_highest_id_and_not_the_number_of_entries(gapped: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("low high low")
    made = make_token_file(order([source], gapped, tmp_path / "t.bin"))
    assert (made["token_bytes"], made["vocab_size"]) == (4, 70_001)
    assert list(read(tmp_path / "t.bin", 4)) == [1, 70_000, 1]
    with pytest.raises(InputError, match="ids up to 70,000, which do not fit into 2 bytes"):
        make_token_file(order([source], gapped, tmp_path / "two.bin", token_bytes=2))


def test_id_above_the_vocabulary_is_refused_and_never_cut_off(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setattr(tokens, "_tokenize", lambda *_: np.array([70_000]))
    with pytest.raises(InputError, match="the text holds ids up to 70,000"):
        make_token_file(order([tmp_path / "a.txt"], tokenizer, tmp_path / "t.bin"))
    assert not (tmp_path / "t.bin").exists()


def test_line_without_an_end_is_refused_before_it_fills_memory(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "LINE_BYTES", 1 << 20)
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": "' + "x" * (1 << 20) + '"}\n')
    with pytest.raises(InputError, match="longer than 1 MiB"):
        make_token_file(order([tmp_path / "a.jsonl"], tokenizer, tmp_path / "t.bin"))


def test_json_file_is_jsonl_or_refused_by_its_content(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_text('\n{"text": "ab"}\n{"text": "c"}\n')
    assert make_token_file(order([tmp_path / "lines.json"], tokenizer, tmp_path / "t.bin"))["documents"] == 2
    for content in ('[{"text": "ab"}]', '{\n  "text": "ab"\n}\n', "[" * 100_000):
        (tmp_path / "whole.json").write_text(content)
        with pytest.raises(InputError, match="is no JSONL"):
            make_token_file(order([tmp_path / "whole.json"], tokenizer, tmp_path / "w.bin"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "\\ud800"}', "surrogate"),
        ("[" * 200_000, "nested too deeply"),
        ('{"text": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_refused_line_is_named_and_leaves_nothing(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str
) -> None:
    monkeypatch.setattr(tokens, "BATCH_BYTES", 1)  # what comes before was written and noted
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: ") as refused:
        make_token_file(order([source], tokenizer, tmp_path / "t.bin"))
    assert words in refused.value.why
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("written", [0, 1])
def test_full_disk_is_refused_and_what_was_noted_is_kept(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    monkeypatch.setattr(tokens, "BATCH_BYTES", 1)
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one"}\n{"text": "two"}\n')
    synced = []

    def full(_descriptor: int) -> None:
        synced.append(1)
        if len(synced) > written:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tokens.os, "fsync", full)
        with pytest.raises(InputError, match=r"cannot write .*t\.bin\.part") as refused:
            make_token_file(order([source], tokenizer, tmp_path / "t.bin"))
    assert "no space left" in refused.value.why
    assert (tmp_path / "t.bin.part").exists() == bool(written)
    made = make_token_file(order([source], tokenizer, tmp_path / "t.bin"))
    assert (made["resumed_after_tokens"] > 0, made["documents"]) == (bool(written), 2)
