"""Model configs: exact counts, what the runtime can split, and errors that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import list_models, load_model, model_from_config
from planner.errors import InputError
from planner.resources import CatalogFolder, find_data_dir
from planner.spec import ModelFamily

PROMISED = (
    "gpt2",
    "gpt2-xl",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.2-1b",
    "llama-1.3b",
    "qwen2.5-7b",
    "qwen3-8b",
    "mistral-7b",
    "mixtral-8x7b",
    "deepseek-v3",
    "gemma-2-9b",
    "phi-3-mini",
    "bert-large",
    "t5-large",
    "vit-large",
    "tiny-llama-cpu",
)

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def _shipped(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((find_data_dir("configs") / "models" / f"{name}.json").read_text())
    return config


@pytest.mark.parametrize("name", PROMISED)
def test_load_model_every_promised_name_is_there(name: str) -> None:
    assert load_model(name).name == name


# Counts from the models' own cards or papers, to the digits that they print.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt2", 0.124),
        ("gpt2-xl", 1.558),
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.6),
        ("llama-3.1-405b", 406),
        ("llama-3.2-1b", 1.24),
        ("llama-1.3b", 1.345),
        ("qwen2.5-7b", 7.62),
        ("qwen3-8b", 8.19),
        ("mistral-7b", 7.24),
        ("mixtral-8x7b", 46.7),
        ("deepseek-v3", 671),
        ("gemma-2-9b", 9.24),
        ("phi-3-mini", 3.82),
        ("bert-large", 0.335),
        ("t5-large", 0.738),
        ("vit-large", 0.304),
    ],
)
def test_load_model_parameters_agree_with_the_model_card(name: str, billions: float) -> None:
    assert load_model(name).num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_model_from_config_llama_counts_by_hand() -> None:
    spec = model_from_config(LLAMA, "small")
    attention = 64 * 64 + 2 * 32 * 64 + 64 * 64
    layer = attention + 3 * 64 * 128 + 2 * 64
    assert spec.num_parameters == 100 * 64 + 2 * layer + 64 + 64 * 100
    assert (spec.head_size, spec.num_kv_heads, spec.gated_mlp, spec.rms_norm) == (16, 2, True, True)
    assert spec.counts.head == 6400
    assert spec.max_seq_len == 0  # rotary positions have no limit of their own


def test_model_from_config_tied_head_is_counted_once() -> None:
    tied = model_from_config({**LLAMA, "tie_word_embeddings": True}, "tied")
    assert tied.num_parameters == model_from_config(LLAMA, "free").num_parameters - 6400


def test_model_from_config_json_is_canonical_and_complete() -> None:
    first = model_from_config(LLAMA, "a").config_json
    second = model_from_config(dict(reversed(list(LLAMA.items()))), "b").config_json
    assert first == second == json.dumps(LLAMA, sort_keys=True, separators=(",", ":"))
    assert model_from_config(json.loads(first), "a") == model_from_config(LLAMA, "a")


def test_model_from_config_label_names_become_their_number() -> None:
    config = {**_shipped("vit-base"), "id2label": {str(n): f"class {n}" for n in range(21_843)}}
    del config["num_labels"]
    spec = model_from_config(config, "vit")
    assert json.loads(spec.config_json)["num_labels"] == 21_843
    assert len(spec.config_json) < 2_000
    assert spec.num_parameters == load_model("vit-base").num_parameters + (21_843 - 1000) * 769


@pytest.mark.parametrize("name", ["llama-1.3b", "gpt2", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b"])
def test_model_from_config_runtime_families_can_be_split(name: str) -> None:
    spec = load_model(name)
    assert (spec.tensor_parallel_refusal, spec.pipeline_parallel_refusal) == ("", "")


@pytest.mark.parametrize("name", ["bert-large", "t5-large", "vit-large", "deepseek-v3", "gemma-2-9b"])
def test_model_from_config_other_families_say_why_not(name: str) -> None:
    spec = load_model(name)
    assert "runs whole" in spec.tensor_parallel_refusal
    assert "runs whole" in spec.pipeline_parallel_refusal


def test_model_from_config_shapes_of_other_architectures() -> None:
    deepseek = load_model("deepseek-v3")
    assert (deepseek.num_moe_layers, deepseek.qk_head_size, deepseek.v_head_size) == (58, 192, 128)
    assert load_model("mixtral-8x7b").num_moe_layers == 32
    assert load_model("gpt2").max_seq_len == 1024
    t5 = load_model("t5-large")
    assert (t5.family, t5.num_layers, t5.num_encoder_layers) == (ModelFamily.ENCODER_DECODER, 24, 24)
    assert load_model("vit-large").num_patches == 196
    assert load_model("mistral-7b").sliding_window == 4096
    assert load_model("qwen2.5-7b").linear_bias


@pytest.mark.parametrize("field", [key for key in LLAMA if key not in ("model_type", "num_key_value_heads")])
def test_model_from_config_missing_field_is_named_with_its_use(field: str) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config({key: value for key, value in LLAMA.items() if key != field}, "mine")
    assert f"'{field}'" in caught.value.error
    assert caught.value.why.startswith(f"{field}: ")


def test_model_from_config_misspelt_field_is_found() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "hidden_size"} | {"hiden_size": 64}
    with pytest.raises(InputError, match="it has hiden_size, is one of them meant"):
        model_from_config(config, "mine")


@pytest.mark.parametrize("value", ["64", 64.0, True, 0, -1, [], 10**12, 10**40])
def test_model_from_config_field_of_wrong_kind_is_refused(value: object) -> None:
    with pytest.raises(InputError):
        model_from_config({**LLAMA, "hidden_size": value}, "mine")


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"num_attention_heads": 5}, "not divisible"),
        ({"num_key_value_heads": 3}, "not divisible"),
        ({"attention_bias": "yes"}, "must be true or false"),
        ({"attention_dropout": 1.5}, "must be a number from 0 to below 1"),
        ({"attention_dropout": float("nan")}, ""),
        ({"architectures": ["LlamaForSequenceClassification"]}, "which is no causal language model"),
        ({"architectures": "LlamaForCausalLM"}, "must be a list of class names"),
        ({"model_type": "mistral", "num_key_value_heads": 0}, "num_key_value_heads"),
        ({"model_type": "lama"}, "cannot be counted"),
        ({"model_type": 5}, "cannot be counted"),
        ({"model_type": "llava", "text_config": {}}, "text_config"),
        ({"hidden_size": 10**6, "intermediate_size": 10**9, "num_hidden_layers": 10**6}, "parameters"),
        ({"extra": "x" * 600_000}, "characters long"),
        ({"extra": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": [[[[[1]]]]]}}}}}}}}}}}}, "deeper"),
        ({"extra": 10**29}, "absurd size"),
        ({"extra": "\ud800"}, "cannot be kept"),
        ({"extra": object()}, "cannot be kept"),
    ],
)
def test_model_from_config_contradiction_or_hostile_value_is_refused(change: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config({**LLAMA, **change}, "mine")
    assert fragment in caught.value.error


def test_model_from_config_absent_field_with_a_default_of_transformers_own_is_asked_for() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"} | {"model_type": "mistral"}
    with pytest.raises(InputError, match="no 'num_key_value_heads'"):
        model_from_config(without, "mine")
    assert model_from_config({**without, "num_key_value_heads": None}, "mine").num_kv_heads == 4


def test_model_from_config_cross_attention_is_refused() -> None:
    with pytest.raises(InputError, match="add_cross_attention"):
        model_from_config({**_shipped("gpt2"), "add_cross_attention": True}, "mine")


def test_model_from_config_unknown_type_names_near_ones_and_the_way_out() -> None:
    with pytest.raises(InputError) as caught:
        model_from_config({**LLAMA, "model_type": "lama"}, "mine")
    assert "'llama'" in caught.value.fix
    assert "factory" in caught.value.fix


def test_model_from_config_without_type_is_the_generic_decoder_with_usual_values() -> None:
    spec = model_from_config({"hidden_size": 1024, "num_layers": 24, "num_heads": 16}, "row")
    assert (spec.ffn_hidden_size, spec.vocab_size, spec.num_kv_heads) == (4096, 51_200, 16)
    assert spec.tensor_parallel_refusal == ""
    with_experts = model_from_config(
        {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "num_experts": 8, "top_k": 2}, "row"
    )
    assert (with_experts.num_moe_layers, with_experts.num_experts_per_token) == (24, 2)


@pytest.mark.parametrize(
    ("said", "gated"),
    [
        ({}, False),  # GPT's 4 x hidden
        ({"intermediate_size": 4096}, False),
        ({"intermediate_size": 2816}, True),  # 8/3 x hidden
        ({"intermediate_size": 3584}, True),  # 3.5 x hidden
        ({"num_kv_heads": 4}, True),
        ({"num_experts": 8}, True),
        ({"hidden_act": "silu"}, True),
        ({"hidden_act": "swiglu"}, True),
        ({"hidden_act": "gelu_new", "intermediate_size": 2816}, False),
        ({"hidden_act": "geglu"}, True),
        ({"gated_mlp": False, "hidden_act": "silu"}, False),
        ({"gated_mlp": True}, True),
    ],
)
def test_generic_feed_forward_is_gated_where_the_config_or_its_shape_says_so(said: dict[str, Any], gated: bool) -> None:
    spec = model_from_config({"hidden_size": 1024, "num_layers": 24, "num_heads": 16, **said}, "row")
    assert (spec.gated_mlp, spec.rms_norm) == (gated, gated)
    width = (spec.counts.expert or spec.counts.mlp_per_layer) // (1024 * spec.ffn_hidden_size)
    assert width == (3 if gated else 2)


@pytest.mark.parametrize("use_folder", [True, False])
def test_load_model_path_of_config_or_its_folder(tmp_path: Path, use_folder: bool) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    spec = load_model(str(folder if use_folder else folder / "config.json"))
    assert spec.name == "my-model"


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("lama-3.1-8b", "there is no model"),
        ("nowhere/config.json", "no file or folder"),
        ("meta-llama/Llama-3.1-8B", "no file or folder"),
        ("", "is empty"),
        ("\0", "there is no model"),
        ("x" * 5000, "there is no model"),
    ],
)
def test_load_model_unknown_is_refused(
    name: str, fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_model(name)
    if name:
        assert fragment in caught.value.error


def test_load_model_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load_model(str(tmp_path))


def test_list_models_users_model_comes_first(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "gpt2.json").write_text(json.dumps(LLAMA))
    folders = (
        CatalogFolder(origin="user", path=tmp_path),
        CatalogFolder(origin="shipped", path=find_data_dir("configs")),
    )
    assert load_model("gpt2", folders=folders).model_type == "llama"
    listing = list_models(folders=folders)
    rows = {row[0]: dict(zip(listing.columns, row)) for row in listing.rows}
    assert rows["gpt2"]["folder"] == "user"
    assert rows["llama-3.1-8b"]["num_parameters"] == 8_030_261_248
    assert rows["llama-3.1-8b"]["can_be_split"] is True
    assert len(rows) >= 25
