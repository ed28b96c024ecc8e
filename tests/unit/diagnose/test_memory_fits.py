"""The memory-fits cases: answered by `estimate` where they ask whether a run fits, by `diagnose` where they ask why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.app.diagnose import diagnose_logs
from planner.app.diagnose_request import DiagnoseRequest
from planner.app.diagnose_setting import gather
from planner.app.estimate import estimate_one
from planner.diagnose.config_reading import read_memory_config
from planner.diagnose.pricing import view_of
from planner.diagnose.records import LogFacts
from tests.unit.diagnose.reading import GIB, load_cases, oom_text, verdict_of

CASES = {case["id"]: case for case in load_cases("memory_fits.yaml")}
MIB = 2**20

# What a case asks beyond what an estimate or a diagnosis can say, with the reason.
NOT_ANSWERED: dict[str, str] = {}
PARTLY_ANSWERED = {
    "MEM-14": "whether hidden 6144 just fits depends on optimizer and offload, which the report "
    "does not tell; the failing "
    "size's own log is diagnosed",
    "MEM-21": "the figures of quantised bases are outside the model; that the optimizer decides the rest is answered",
}


def _estimate(**row: Any) -> dict[str, Any]:
    answer = estimate_one(row)
    assert answer["feasible"], answer
    return answer


def _llama(hidden: int, layers: int, heads: int, ffn: int, vocab: int = 32000) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
    }


def _t5(ffn: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_model": 1024,
        "d_ff": ffn,
        "d_kv": 128,
        "num_heads": heads,
        "num_layers": 24,
        "num_decoder_layers": 24,
        "vocab_size": 32128,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
    }


def _gpt(hidden: int, layers: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": 32,
        "vocab_size": 51200,
        "n_positions": 1024,
    }


def test_every_case_is_a_test_or_named_with_its_reason() -> None:
    answered = {name[5:11].upper().replace("_", "-") for name in globals() if name.startswith("test_mem_")}
    assert answered | set(NOT_ANSWERED) == set(CASES)
    assert len(NOT_ANSWERED) * 20 <= len(CASES)


@pytest.mark.parametrize(
    ("ffn", "heads", "gpu", "measured_gb"), [(65536, 128, "a100-40gb", 234), (16384, 32, "rtx3090-24gb", 71)]
)
def test_mem_01_offloaded_t5_fits_the_card_and_asks_for_the_host_memory_that_was_measured(
    ffn: int, heads: int, gpu: str, measured_gb: int
) -> None:
    answer = _estimate(
        model=_t5(ffn, heads),
        gpu=gpu,
        world_size=1,
        seq_len=128,  # --max_source_length 128 --max_target_length 128 in the report's commands
        micro_batch_size=1,
        zero_stage=2,
        offload_optimizer="cpu",
        precision="fp16",
    )
    memory = answer["memory"]
    assert memory["high_bytes"] <= memory["usable_bytes"]
    assert memory["host_bytes"] == pytest.approx(measured_gb * 1e9, rel=0.25)


@pytest.mark.parametrize(("hidden", "layers", "fits"), [(3072, 72, True), (4096, 98, False), (8192, 50, False)])
def test_mem_03_zero_divides_by_data_parallel_ranks_not_by_gpus(hidden: int, layers: int, fits: bool) -> None:
    answer = _estimate(
        model=_gpt(hidden, layers),
        gpu="v100-sxm-32gb",
        world_size=8,
        tensor_parallel_size=8,
        seq_len=1024,
        micro_batch_size=1,
        zero_stage=1,
        precision="fp16",
        runtime="megatron",
        activation_checkpointing="full",
    )
    assert answer["fits"] is fits


def test_mem_04_full_fine_tune_of_7b_on_one_card_is_too_large_by_its_states_alone() -> None:
    answer = _estimate(model="llama-2-7b", gpu="a100-80gb", world_size=1, seq_len=4096, micro_batch_size=4)
    breakdown = answer["memory"]["breakdown"]
    states = breakdown["parameters_bytes"] + breakdown["gradients_bytes"] + breakdown["optimizer_bytes"]
    assert not answer["fits"]
    assert states > 80 * GIB


def test_mem_11_14b_with_zero_2_needs_checkpointing_and_micro_batch_1_or_zero_3() -> None:
    model = _llama(5120, 48, 40, 13824, vocab=152064) | {"num_key_value_heads": 8}
    row = {"model": model, "gpu": "a100-40gb", "world_size": 4, "seq_len": 2048, "offload_optimizer": "cpu"}
    plain = _estimate(**row, zero_stage=2, micro_batch_size=2)
    assert not plain["fits"]
    assert plain["memory"]["breakdown"]["parameters_bytes"] == pytest.approx(29.5e9, rel=0.02)
    assert not _estimate(**row, zero_stage=2, micro_batch_size=2, activation_checkpointing="full")["fits"]
    assert _estimate(**row, zero_stage=2, micro_batch_size=1, activation_checkpointing="full")["fits"]
    assert _estimate(**row, zero_stage=3, micro_batch_size=1, activation_checkpointing="full")["fits"]


def test_mem_13_estimate_separates_live_parameters_and_activations_and_the_whole_model_is_recognised() -> None:
    row = {"model": "llama-2-7b", "gpu": "v100-sxm-16gb", "world_size": 4, "seq_len": 2048, "micro_batch_size": 1}
    offload = {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu", "precision": "fp16"}
    answer = _estimate(**row, **offload)
    breakdown = answer["memory"]["breakdown"]
    assert not answer["fits"]
    assert breakdown["buffers_bytes"] >= 2e9  # live parameters: 1e9 x 2 bytes
    assert answer["memory"]["device_used_bytes"] > 20 * 0.49e9  # not DeepSpeed's estimator, which counts states only
    given = gather(DiagnoseRequest(paths=(), model="llama-2-7b", gpu="v100-sxm-16gb", world_size=4), LogFacts())
    assert given.setting is not None
    whole = next(t for t in view_of(given.setting).tensors if t.name == "the whole model in 16 bit")
    assert whole.size_bytes == pytest.approx((14678 - 1500) * MIB, rel=0.05)  # measured after init, without a context
    loading = oom_text(request=0.1, total=15.78, free=0.05, live=13.6, idle=0.1, in_use=15.7)
    log = (
        'Traceback (most recent call last):\n  File "x.py", line 2, in main\n    m = '
        f'A.from_pretrained("x")\n  File "m.py", line 4, in from_pretrained\n{loading}'
    )
    assert verdict_of(log).grows == "weights: every rank places the whole model"


def test_mem_14_stage_3_that_holds_on_to_parameters_is_told_to_hold_fewer(tmp_path: Path) -> None:
    log, config = tmp_path / "run.log", tmp_path / "ds.json"
    log.write_text(CASES["MEM-14"]["input"]["cases"][1]["log"])
    config.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}'
    )
    document = diagnose_logs(DiagnoseRequest(paths=(log,), config=config)).document
    assert document["cause"] == "capacity"
    changes = [fix["change"].get("zero_optimization", {}) for fix in document["fixes"]]
    assert any("stage3_max_live_parameters" in change for change in changes)


def test_mem_15_host_of_600_gb_is_too_small_and_of_800_gb_is_not() -> None:
    answer = _estimate(
        model=_llama(6656, 60, 52, 17920),
        gpu="a100-40gb",
        world_size=8,
        seq_len=2048,
        micro_batch_size=1,
        zero_stage=3,
        offload_optimizer="cpu",
        offload_param="cpu",
        activation_checkpointing="full",
    )
    assert 600e9 < answer["memory"]["host_bytes"] < 800e9
    assert answer["memory"]["high_bytes"] <= answer["memory"]["usable_bytes"]


@pytest.mark.parametrize(("gpus", "measured_gb"), [(4, 160), (8, 178)])
def test_mem_16_host_memory_of_an_offloaded_7b_is_near_what_was_measured(gpus: int, measured_gb: int) -> None:
    answer = _estimate(
        model="llama-2-7b",
        gpu="a100-40gb",
        world_size=gpus,
        seq_len=512,
        micro_batch_size=1,
        zero_stage=3,
        offload_optimizer="cpu",
        offload_param="cpu",
    )
    assert answer["memory"]["host_bytes"] == pytest.approx(measured_gb * 1e9, rel=0.2)
    assert answer["memory"]["host_bytes"] > 94e9


def test_mem_20_far_more_live_memory_than_computed_is_a_setting_not_in_effect(tmp_path: Path) -> None:
    log, config = tmp_path / "run.log", tmp_path / "ds.json"
    log.write_text(CASES["MEM-20"]["input"]["log"])
    config.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, '
        '"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}'
    )
    request = DiagnoseRequest(
        paths=(log,),
        config=config,
        model="qwen2.5-32b",
        gpu="h100-80gb",
        world_size=8,
        seq_len=4096,
        activation_checkpointing="full",
    )
    document = diagnose_logs(request).document
    assert document["cause"] == "unknown-not-capacity"
    assert "prediction and observation disagree" in document["evidence"][0]
    assert document["fixes"][0]["change"] == {"run": {"activation_checkpointing": "full"}}


def test_mem_21_optimizer_is_an_input_that_decides_bytes_a_parameter() -> None:
    row = {"model": _llama(3200, 26, 32, 8640), "gpu": "a100-80gb", "world_size": 1, "seq_len": 1024}
    sizes = {
        name: _estimate(**row, optimizer=name)["memory"]["breakdown"]["optimizer_bytes"]
        for name in ("adamw", "adam8bit")
    }
    assert sizes["adamw"] - sizes["adam8bit"] == pytest.approx(6 * 3.43e9, rel=0.05)


def test_mem_25_logits_of_4096_tokens_and_128k_words_are_recognised_by_their_size() -> None:
    request = DiagnoseRequest(paths=(), model="llama-3.1-8b", gpu="h100-80gb", seq_len=4096)
    setting = gather(request, LogFacts()).setting
    assert setting is not None
    tensors = {tensor.name: tensor.size_bytes for tensor in view_of(setting).tensors}
    assert tensors["the logits"] == 128256 * 4096 * 2
    assert tensors["the logits in fp32"] == 2 * tensors["the logits"]


def test_mem_26_buckets_cost_what_was_measured_with_each_knob() -> None:
    rows = CASES["MEM-26"]["input"]["rows"]

    def buffers(row: dict[str, Any]) -> float:
        zero = {
            "stage": 2,
            "contiguous_gradients": row["contiguous_gradients"],
            "overlap_comm": row["overlap_comm"],
            "reduce_bucket_size": row["bucket"],
        }
        config = read_memory_config({"fp16": {"enabled": True}, "zero_optimization": zero})
        return config.reduce_buffer_bytes / MIB

    first = rows[0]
    for row in rows[1:]:
        assert buffers(first) - buffers(row) == pytest.approx(first["MiB"] - row["MiB"], abs=4)


def test_mem_28_whole_copies_on_every_rank_are_what_the_host_needs_at_load(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "Loading checkpoint shards:  20%|##  | 3/15\n[ERROR] [launch.py:321:sigkill_handler] "
        "['python'] exits with return code = -9\n"
    )
    request = DiagnoseRequest(paths=(log,), model="llama-2-70b", gpu="a100-80gb", world_size=4)
    document = diagnose_logs(request).document
    assert document["cause"] == "host-ram"
    assert "on each of 4 ranks is 513.92 GiB" in " ".join(document["evidence"])  # 4 x 138 GB
    assert "zero.Init" in document["fixes"][0]["change"]["code"]["model"]


def test_mem_29_router_mask_of_131072_tokens_is_recognised_by_its_size(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(oom_text(request=48.0, total=139.8, free=30.0, live=108.0, idle=0.5, in_use=109.5))
    request = DiagnoseRequest(paths=(log,), model="qwen3-30b-a3b", gpu="h200", world_size=8, seq_len=131072)
    document = diagnose_logs(request).document
    assert "the router's one-hot mask over all layers" in " ".join(document["evidence"])
    assert "experts" in document["grows"]


def test_mem_30_reserved_far_above_live_is_fragmentation_and_expandable_segments_free_it(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(oom_text(request=0.5, total=17.2, free=0.1, live=10.83, idle=5.56, in_use=17.0))
    document = diagnose_logs(DiagnoseRequest(paths=(log,))).document
    assert document["cause"] == "fragmentation"
    fix = document["fixes"][0]
    assert fix["change"] == {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
    assert fix["frees_bytes"] == pytest.approx(5.56 * GIB, rel=0.01)
