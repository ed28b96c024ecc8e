"""Reads the keys of DeepSpeed's configuration out of its releases and writes `planner/rules/key_history.json`.

Run by hand when a release comes out:

    pip download --no-deps --no-binary :all: deepspeed==0.19.8    # each version into one folder, then unpacked
    python -m tests.tools.read_deepspeed_keys FOLDER              # which holds deepspeed-0.14.0/, deepspeed-0.14.1/

Nothing of DeepSpeed is imported: the sources are parsed. A block is a pydantic model (its fields are the keys, and
unknown ones are refused) or a mapping that functions read key by key (`get_scalar_param(block, KEY, ...)`,
`block.get(KEY)`, `KEY in block`, `block[KEY]`, the constants resolved from the modules that define them).
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TARGET = Path(__file__).parents[2] / "planner" / "rules" / "key_history.json"

# Pydantic models, by class name. A model of the same name moves between files over the years.
MODELS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param",
    "DeepSpeedZeroOffloadOptimizerConfig": "zero_optimization.offload_optimizer",
    "ZenFlowConfig": "zero_optimization.zenflow",
    "DeepSpeedZeroLeafModuleConfig": "zero_optimization.leaf_module",
    "DeepSpeedBF16Config": "bf16",
    "DeepSpeedFP16Config": "fp16",
    "TPTrainingConfig": "tensor_parallel",
    "TPConfig": "tensor_parallel.tp",
    "TensorBoardConfig": "tensorboard",
    "WandbConfig": "wandb",
    "CSVConfig": "csv_monitor",
    "CometConfig": "comet",
    "DeepSpeedThroughputTimerConfig": "timers.throughput",
    "CompileConfig": "compile",
    "CommsLoggerConfig": "comms_logger",
    "CommsConfig": "comms_logger",  # before 0.14.4 (and with other names); not a block of the file by itself
    "HybridEngineConfig": "hybrid_engine",
}
NOT_BLOCKS = {"CommsConfig"}
DATACLASSES = {"AutoEPConfig": "expert_parallel"}

# Where mappings are read key by key, and which block a variable holds there.
READERS: dict[str, dict[str, str]] = {
    "runtime/config.py": {
        "param_dict": "",
        "_param_dict": "",
        "fp16_dict": "fp16",
        "checkpoint_params": "checkpoint",
        "par_write_params": "checkpoint.parallel_write",
        "data_types_params": "data_types",
        "elastic_dict": "elasticity",
    },
    "runtime/zero/config.py": {"param_dict": ""},
    "runtime/precision_config.py": {"param_dict": ""},
    "runtime/activation_checkpointing/config.py": {
        "param_dict": "",
        "act_chkpt_config_dict": "activation_checkpointing",
    },
    "runtime/model_checkpointing/config.py": {
        "param_dict": "",
        "checkpoint_dict": "checkpoint",
        "writer_dict": "checkpoint.writer",
    },
    "runtime/swap_tensor/aio_config.py": {"param_dict": "", "aio_dict": "aio"},
    "runtime/tensor_parallel/config.py": {"ds_config": ""},
    "runtime/data_pipeline/config.py": {},
    "runtime/compiler.py": {"param_dict": ""},
    "comm/config.py": {"ds_config": ""},
    "monitor/config.py": {"param_dict": ""},
    "profiling/config.py": {"param_dict": "", "flops_profiler_dict": "flops_profiler"},
    "autotuning/config.py": {"param_dict": "", "autotuning_dict": "autotuning"},
    "nebula/config.py": {"param_dict": "", "nebula_dict": "nebula"},
    "compression/config.py": {},
    "datastates/config.py": {"param_dict": ""},
    "elasticity/elasticity.py": {"ds_config": ""},
    "elasticity/config.py": {"param_dict": "elasticity"},
    "utils/config.py": {"param_dict": ""},
    "__init__.py": {"config": "", "config_dict": ""},
}
# In these functions the variable means another block than in the rest of the file (None: not read here).
EXCEPTIONS = {
    ("autotuning/config.py", "get_model_info_config"): {"param_dict": "autotuning"},
    ("runtime/config.py", "_reject_removed_config_keys"): {"param_dict": None},
    ("runtime/model_checkpointing/config.py", "get_checkpoint_writer_config"): {"param_dict": "checkpoint"},
    ("runtime/config.py", "get_sparse_attention_mode"): {"param_dict": "sparse_attention"},
    ("runtime/config.py", "get_sparse_attention_type"): {"param_dict": "sparse_attention"},
    ("runtime/data_pipeline/config.py", "get_curriculum_enabled_legacy"): {"param_dict": ""},
}
LITERAL_TOP = {
    "runtime/data_pipeline/config.py": ("data_efficiency",),
    "compression/config.py": ("compression_training",),
}
# Read as mappings in other places than the parser: the launcher, the engine, the optimizers.
READ_ELSEWHERE = {
    "": ("communication_data_type", "seq_parallel_communication_data_type"),  # keys that are default arguments
    "optimizer": ("type", "params", "legacy_fusion"),
    "scheduler": ("type", "params"),
    "checkpoint": ("tag_validation", "load_universal", "use_node_local_storage", "parallel_write"),
}
ALIASES = {"bf16": "bfloat16"}


@dataclass
class Release:
    """What one release takes. `strict`: blocks that refuse unknown keys. `defaults`: source text by dotted path."""

    version: tuple[int, int, int]
    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    strict: set[str] = field(default_factory=set)
    defaults: dict[str, str] = field(default_factory=dict)


def read_release(folder: Path) -> Release:
    """Everything about one unpacked source distribution."""
    version = tuple(int(part) for part in folder.name.removeprefix("deepspeed-").split("."))
    release = Release(version=version)  # type: ignore[arg-type]
    root = folder / "deepspeed"
    constants = _constants(root)
    _read_models(root, release, constants)
    for path, variables in READERS.items():
        if (root / path).exists():
            _read_mappings(root / path, path, variables, constants, release)
            release.keys[""].update(name for name in LITERAL_TOP.get(path, ()))
    for block, names in READ_ELSEWHERE.items():
        release.keys[block].update(names)
    _read_pipeline(root, release)
    for name in {path.split(".")[0] for path in release.keys if path}:
        release.keys[""].add(name)
    for block, alias in ALIASES.items():  # two names of one block
        release.keys[""].add(alias)
        release.keys[block] |= release.keys.pop(alias, set())
    for path in list(release.keys):
        parent, _, name = path.rpartition(".")
        if parent:
            release.keys[parent].add(name)
    default = constants.get("GRADIENT_CLIPPING_DEFAULT")
    release.defaults["gradient_clipping"] = str(float(default or 0))
    return release


def _constants(root: Path) -> dict[str, object]:
    """NAME = literal of every module that defines constants; later files do not overwrite earlier ones."""
    found: dict[str, object] = {}
    names = [*root.rglob("*constants.py"), *(root / path for path in READERS), root / "runtime/zero/offload_config.py"]
    for path in names:
        if not path.exists() or "inference" in path.parts:
            continue
        own: dict[str, object] = {}  # within a module the last one counts: some names first hold their documentation
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if isinstance(node.value, ast.Constant) and name.isupper():
                    own[name] = node.value.value
        found = {**own, **found}
    return found


def _read_models(root: Path, release: Release, constants: dict[str, object]) -> None:
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        wanted = {name for name in (*MODELS, *DATACLASSES) if f"class {name}" in text}
        if not wanted - NOT_BLOCKS or "inference" in path.parts:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name in wanted - NOT_BLOCKS:
                block = MODELS.get(node.name) or DATACLASSES[node.name]
                _read_model(node, block, release, constants)


def _read_model(node: ast.ClassDef, block: str, release: Release, constants: dict[str, object]) -> None:
    if node.name in MODELS:
        release.strict.add(block)
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name = item.target.id
        if name.startswith("_"):
            continue
        release.keys[block].add(name)
        default = item.value
        if isinstance(default, ast.Call) and getattr(default.func, "id", "") == "Field":
            for keyword in default.keywords:
                if keyword.arg == "alias":
                    release.keys[block].add(str(_literal(keyword.value, constants)))
            default = (
                default.args[0]
                if default.args
                else next((keyword.value for keyword in default.keywords if keyword.arg == "default"), None)
            )
        if default is not None:
            release.defaults[f"{block}.{name}"] = _default_text(default, constants)


def _default_text(node: ast.expr, constants: dict[str, object]) -> str:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "pp_int":
        node = node.args[0]
    value = _literal(node, constants)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(float(value))
    return str(value) if value is not None else ast.unparse(node)


def _literal(node: ast.expr, constants: dict[str, object]) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    return None


def _read_mappings(
    path: Path, relative: str, variables: dict[str, str], constants: dict[str, object], release: Release
) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        here: dict[str, str | None] = {**variables, **EXCEPTIONS.get((relative, function.name), {})}
        for names in _loop_names(function, constants):
            for base, key in _reads(function):
                block = _block_of(base, here, names)
                name = _literal(key, names)
                if block is not None and isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name):
                    release.keys[block].add(name)


def _loop_names(function: ast.FunctionDef, constants: dict[str, object]) -> Iterator[dict[str, object]]:
    """The constants, once for each value of a loop `for key in [A, B]` over names of keys."""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and isinstance(node.iter, ast.List)]
    if not loops or not isinstance(loops[0].target, ast.Name):
        yield constants
        return
    for value in loops[0].iter.elts:  # type: ignore[attr-defined]
        yield {**constants, loops[0].target.id: _literal(value, constants)}


def _reads(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(mapping, key) of every read in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", "")
            if name in ("get_scalar_param", "get_dict_param", "get_list_param") and len(node.args) > 1:
                yield node.args[0], node.args[1]
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                yield node.func.value, node.args[0]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            right = node.comparators[0]
            if isinstance(right, ast.Call) and isinstance(right.func, ast.Attribute) and right.func.attr == "keys":
                right = right.func.value
            yield right, node.left
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield node.value, node.slice


def _block_of(base: ast.expr, variables: dict[str, str | None], constants: dict[str, object]) -> str | None:
    if isinstance(base, ast.Name):
        return variables.get(base.id)
    if isinstance(base, ast.Attribute):
        return variables.get(base.attr)
    if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr == "get":
        parent, key = _block_of(base.func.value, variables, constants), base.args[0]
    elif isinstance(base, ast.Subscript):
        parent, key = _block_of(base.value, variables, constants), base.slice
    else:
        return None
    name = _literal(key, constants)
    if parent is None or not isinstance(name, str):
        return None
    return f"{parent}.{name}" if parent else name


def _read_pipeline(root: Path, release: Release) -> None:
    """The defaults of `get_pipeline_config`, and what the pipeline engine reads beside them."""
    tree = ast.parse((root / "runtime/config.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "get_pipeline_config":
            for mapping in [item for item in ast.walk(node) if isinstance(item, ast.Dict) and item.keys]:
                release.keys["pipeline"].update(str(key.value) for key in mapping.keys if isinstance(key, ast.Constant))
    engine = (root / "runtime/pipe/engine.py").read_text(encoding="utf-8")
    release.keys["pipeline"].update(re.findall(r"config\.pipeline(?:\[|\.get\()['\"](\w+)['\"]", engine))


def spans(present: list[bool], versions: list[str]) -> list[list[str]]:
    """[[first, gone], ...]: "" as first when the oldest release has it, "" as gone when the newest has it."""
    found: list[list[str]] = []
    for place, there in enumerate(present):
        if there and (place == 0 or not present[place - 1]):
            found.append(["" if place == 0 else versions[place], ""])
        if not there and place and present[place - 1]:
            found[-1][1] = versions[place]
    return found


def history(releases: list[Release]) -> dict[str, object]:
    """All releases folded into spans."""
    versions = [".".join(map(str, release.version)) for release in releases]
    paths = sorted({path for release in releases for path in release.keys})
    keys = {}
    for path in paths:
        names = sorted({name for release in releases for name in release.keys.get(path, set())})
        keys[path] = {
            name: spans([name in release.keys.get(path, set()) for release in releases], versions) for name in names
        }
    strict = {
        path: spans([path in release.strict for release in releases], versions)
        for path in sorted({path for release in releases for path in release.strict})
    }
    changed = {}
    for path in sorted({path for release in releases for path in release.defaults}):
        steps: list[list[str]] = []
        for release, version in zip(releases, versions):
            value = release.defaults.get(path)
            if value is not None and (not steps or steps[-1][1] != value):
                steps.append([version, value])
        if len(steps) > 1:
            changed[path] = steps
    return {"versions": versions, "keys": keys, "strict": strict, "defaults": changed}


def render(found: dict[str, object]) -> str:
    """The data file's text: one line a key."""
    return _lines(found, indent="") + "\n"


def _lines(entries: dict[str, object], *, indent: str) -> str:
    """A mapping as JSON, one entry a line, mappings within it likewise."""
    inner = indent + " "
    rows = [
        f"{inner}{json.dumps(name)}: {_lines(value, indent=inner) if isinstance(value, dict) else json.dumps(value)}"
        for name, value in entries.items()
    ]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def main(folder: Path) -> None:
    """Read all releases under `folder` and write the table."""
    folders = [
        path for path in folder.iterdir() if re.fullmatch(r"deepspeed-\d+\.\d+\.\d+", path.name) and path.is_dir()
    ]
    releases = sorted((read_release(path) for path in folders), key=lambda release: release.version)
    TARGET.write_text(render(history(releases)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
