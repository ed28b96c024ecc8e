"""How a run was started, as its log says: batch, accumulation, world, ZeRO stage, parameters, the device's label.

Pure text. The last value wins where a launcher's command line and the framework's own report differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from planner.diagnose.records import RunSettings
from planner.diagnose.sizes import size_bytes

_NUMBERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "micro_batch_size",
        re.compile(
            r"(?:per[-_]device[-_]train[-_]batch[-_]size|train_micro_batch_size_per_gpu"
            r"|micro[-_]batch[-_]size|Instantaneous batch size per device)['\"]?[\s:=.]{1,12}(\d{1,7})\b"
        ),
    ),
    (
        "gradient_accumulation_steps",
        re.compile(r"[Gg]radient[-_ ][Aa]ccumulation[-_ ][Ss]teps['\"]?[\s:=.]{1,12}(\d{1,7})\b"),
    ),
    (
        "world_size",
        re.compile(r"(?:dist_world_size|world[-_]size|WORLD_SIZE|num_processes)['\"]?[\s:=.]{1,12}(\d{1,7})\b"),
    ),
    (
        "zero_stage",
        re.compile(
            r"(?:zero_optimization_stage|zero[-_]stage|[\"']stage[\"']"
            r"|ZeRO[- ](?:[Ss]tage[- ]?)?)['\"]?[\s:=.]{0,12}([0-3])\b"
        ),
    ),
    (
        "seq_len",
        re.compile(
            r"(?:max[-_]seq[-_]len(?:gth)?|seq(?:uence)?[-_]len(?:gth)?|model_max_length|cutoff_len"
            r"|max_length|block_size)['\"]?[\s:=.]{1,12}(\d{2,8})\b"
        ),
    ),
)
_PARTITION = re.compile(r"partition count \[\d{1,6}(?:, ?\d{1,6})*\] and sizes\[\((\d{1,15}),")
_TRAINABLE = re.compile(
    r"(?:all params|total params?|num(?:ber of)? param(?:eter)?s|Number of trainable parameters"
    r"|model has|params)[\s:=|]{1,6}([\d,]{5,20}|\d+(?:\.\d+)? ?[BMbm](?:illion)?)\b"
)
_NOMINAL = re.compile(r"(?:VRAM[:\s]{1,4}|nominal\D{0,40}?)(\d{2,9}(?:\.\d+)?)\s?([MG])i?B?\b")
_DEVICE_NAME = re.compile(
    r"\b((?:NVIDIA|AMD|Intel|GeForce|Tesla|Quadro|RTX"
    r"|Radeon)[\w ().-]{0,40}?(\d{1,3}) ?GB(?: ?HBM\d\w?)?(?: MIG [\w.]{1,20})?)"
)
_SPOKEN_NOMINAL = re.compile(
    r"\b(\d{1,3}) ?G(?:i?B)? (?:of )?(?:GPU|CUDA|VRAM|video|graphics|card)\b|\b(?:GPU|card) (?:with|of) (\d{1,3}) ?GB?",
    re.IGNORECASE,
)
_MIG = re.compile(r"MIG (\d{1,2}g\.(\d{1,3})gb)", re.IGNORECASE)
_VISIBLE = re.compile(
    r"CUDA_VISIBLE_DEVICES[=:]\s?['\"]?([\w,-]{1,200})|--include[= ](?:localhost"
    r"|[\w.-]+):([\d,]{1,200})|\binclude: (?:localhost|[\w.-]+):([\d,]{1,200})"
)
_CHECKPOINTING = re.compile(
    r"(?:gradient|activation)[-_](?:checkpointing|checkpoint)['\"]?[\s:=]{1,4}(?:[Tt]rue|full)"
    r"|--gradient[-_]checkpointing(?!\S|\s+[Ff]alse)"
)
_OFFLOAD = re.compile(
    r"offload_(optimizer|param)(?:_device)?['\"]?[\s:=]{1,4}(?:\{['\"]?device['\"]?[\s:]{1,3})?['\"]?(cpu|nvme)"
)


def read_settings(lines: Iterable[str]) -> RunSettings:
    """The settings named in these lines; 0, None or "" for what is not."""
    values: dict[str, int] = {}
    offloads: set[str] = set()
    device_name, nominal, visible, parameters, checkpoints = "", 0, "", 0, False
    for text in lines:
        for name, pattern in _NUMBERS:
            found = pattern.search(text)
            if found is not None:
                values[name] = int(found[1])
        partition, trainable = _PARTITION.search(text), _TRAINABLE.search(text)
        if partition is not None:
            parameters = int(partition[1])
        elif trainable is not None and not parameters:
            parameters = _count(trainable[1])
        nominal = _nominal(text) or nominal
        device = _DEVICE_NAME.search(text)
        device_name = device[1] if device is not None else device_name
        seen = _VISIBLE.search(text)
        visible = next(filter(None, seen.groups()), visible) if seen is not None else visible
        checkpoints = checkpoints or bool(_CHECKPOINTING.search(text))
        offloads.update(found[1] for found in _OFFLOAD.finditer(text))
    return RunSettings(
        micro_batch_size=values.get("micro_batch_size", 0),
        gradient_accumulation_steps=values.get("gradient_accumulation_steps", 0),
        world_size=values.get("world_size", 0),
        zero_stage=values.get("zero_stage"),
        seq_len=values.get("seq_len", 0),
        num_parameters=parameters,
        nominal_bytes=nominal,
        device_name=device_name,
        visible_devices=visible,
        checkpoints_activations=checkpoints,
        offload_optimizer="optimizer" in offloads,
        offload_param="param" in offloads,
    )


def nominal_in_words(text: str) -> int:
    """The device's memory as a user names it: `I have 40GB of CUDA memory`, `8 GB card`; 0 where none is named."""
    found = _SPOKEN_NOMINAL.search(text)
    return int(next(filter(None, found.groups()))) * 2**30 if found is not None else 0


def _nominal(text: str) -> int:
    """The device's memory by its label: the driver's VRAM line, a note, a MIG profile, a name with a size."""
    mig = _MIG.search(text)
    if mig is not None:
        return int(mig[2]) * 2**30
    found = _NOMINAL.search(text)
    if found is not None:
        return size_bytes(found[1], f"{found[2]}iB") or 0
    named = _DEVICE_NAME.search(text)
    return int(named[2]) * 2**30 if named is not None else 0


def _count(words: str) -> int:
    """`8,030,261,248`, `6.05B`, `125 million`."""
    number = re.match(r"\d+(?:\.\d+)?(?=\s?[BMbm])", words)
    if number is not None:
        scale = 10**9 if "b" in words.lower() else 10**6
        return round(float(number[0]) * scale)
    return int(words.replace(",", "").split(".")[0])
