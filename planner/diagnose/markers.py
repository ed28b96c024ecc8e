"""Log lines that tell where in a run the program is. Pure text.

Markers are the lines frameworks print on entering a phase; they stand in for a traceback where there is none.
"""

from __future__ import annotations

import re

from planner.diagnose.records import RunPhase

_MARKER_CHARACTERS = 300  # of a line: what tells the phase stands near its beginning

# Phase, words of which one must be there (a cheap test that most lines fail), pattern; all in small letters.
_MARKERS: tuple[tuple[RunPhase, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        RunPhase.BUILD_MODEL,
        ("shards", "fetching", "weights file", "safetensors", "instantiating", "pretrained"),
        re.compile(
            r"loading checkpoint shards|fetching \d+ files|loading weights file|loading safetensors"
            r"|instantiating model|loading pretrained"
        ),
    ),
    (
        RunPhase.CHECKPOINT_LOAD,
        ("checkpoint", "resum", "restor"),
        re.compile(
            r"resume[_ ]from[_ ]checkpoint(?!['\"]?\s{0,2}[:=]\s{0,2}(?:none|false|null|['\"]{2}))"
            r"|\bresuming (?:from|training)|attempting to resume|restoring (?:from|states|checkpoint)"
            r"|restored? (?:from )?checkpoint|load(?:ing|ed) (?:model |optimizer |trainer )?(?:states? "
            r"|weights )?(?:from )?(?:a |the )?(?:last )?checkpoint(?! shards)"
            r"|continuing training from checkpoint|=> load(?:ing|ed) checkpoint|event: resume"
        ),
    ),
    (
        RunPhase.CHECKPOINT_SAVE,
        ("sav", "consolidat", "event:"),
        re.compile(
            r"saving (?:the )?(?:model |full |final |optimizer |intermediate )?(?:checkpoint|state|weights|model)"
            r"|begin save|\[torch\] saving|model weights saved|save_(?:checkpoint|16bit_model|pretrained)\b"
            r"|configuration saved in|consolidat(?:ing|e|ed) (?:state|weights|check)"
            r"|checkpoint is about to be saved|event: (?:save|checkpoint)"
        ),
    ),
    (
        RunPhase.EVALUATION,
        ("evaluat", "valid", "prediction", "sanity", "(val", "(eval"),
        re.compile(
            r"\*+ running (?:evaluation|prediction|validation)|\brunning (?:evaluation|validation)"
            r"|^\W*evaluating\b|^\W*valid\w{0,8}\b.{0,40}\d+/\d+|\bepoch \((?:valid|val|eval)"
            r"|starting evaluation|sanity checking"
        ),
    ),
    (
        RunPhase.BUILD_ENGINE,
        ("partition", "optimizer", "deepspeedzero", "parameter offload"),
        re.compile(
            r"before initializing optimizer states|deepspeedzerooffload initialize"
            r"|before creating fp(?:16|32) partitions|after creating fp(?:16|32) partitions"
            r"|parameter offload: total|partition count \["
            r"|initializing optimizer states|deepspeed final optimizer"
        ),
    ),
    (
        RunPhase.DATA,
        ("token", "map (", "generating", "dataset"),
        re.compile(
            r"running tokenizer|\bmap \(num_proc|tokenizing|generating \w+ split|loading dataset shards|packing dataset"
        ),
    ),
    # A line of a running training loop: what was loaded, saved or built before it is over.
    (
        RunPhase.UNKNOWN,
        ("loss", "iter", "step", "it/s", "s/it", "tokens/s"),
        re.compile(
            r"\bloss\b.{0,12}[\d.]{2,}|\biter(?:ation)?\W{1,3}\d+|\bglobal_step\W{1,3}\d+|\bstep\W{1,3}\d+"
            r"|it/s\b|s/it\b|tokens/s"
        ),
    ),
)


def marker_of(text: str) -> RunPhase | None:
    """The phase that this line says the run is in; UNKNOWN for a line of the training loop; None for other lines."""
    text = text[:_MARKER_CHARACTERS].lower()
    for phase, words, pattern in _MARKERS:
        if any(word in text for word in words) and pattern.search(text):
            return phase
    return None
