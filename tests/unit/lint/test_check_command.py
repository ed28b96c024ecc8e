"""`planner check` as a user runs it: what it prints, what it writes, how it ends."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.app.plan import plan_job
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.cli import main
from planner.resources import find_data_dir
from planner.rundir import RunDir
from planner.spec import Plan, TrialMode
from tests.unit.report.samples import quickstart_report

GOOD = {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 3}}
BAD = {**GOOD, "zero_optimization": {"stage": 3, "overlap_com": True}}


class Check:
    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder

    def __call__(self, config: Any, *flags: str, name: str = "ds_config.json") -> tuple[int, str, str]:
        path = self.folder / name
        if config is not None:
            path.write_text(config if isinstance(config, str) else json.dumps(config, indent=2))
        return self.run(str(path), *flags)

    def run(self, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["check", *words])
        printed = self._capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    def read(self, name: str = "ds_config.json") -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Check:
    return Check(capsys, tmp_path)


def test_good_file_ends_with_0(check: Check) -> None:
    code, out, _err = check(GOOD)
    assert (code, out.splitlines()[-1]) == (0, "ok: no fault; read by DeepSpeed 0.19.6 to 0.19.8")


def test_error_ends_with_2_and_quotes_its_line(check: Check) -> None:
    code, out, _err = check(BAD)
    assert code == 2
    assert '"overlap_com": true' in out
    assert "why: " in out
    assert "fix: write 'overlap_comm'" in out


def test_json_is_one_document_of_the_promised_form(check: Check) -> None:
    code, out, _err = check(BAD, "--json")
    document = json.loads(out)
    (finding,) = document["findings"]
    assert code == 2
    assert document["ok"] is False
    assert set(finding) == {"code", "severity", "file", "key", "line", "message", "why", "fix", "patch"}
    assert (finding["severity"], finding["key"], finding["line"]) == ("error", "zero_optimization.overlap_com", 6)
    assert finding["patch"] == {"zero_optimization": {"overlap_com": None, "overlap_comm": True}}


def test_quiet_leaves_the_verdict(check: Check) -> None:
    assert check(BAD, "--quiet")[1] == "not ok: 1 error; read by DeepSpeed 0.19.6 to 0.19.8\n"


def test_fix_writes_the_file_in_place_and_judges_the_new_one(check: Check) -> None:
    code, out, _err = check(BAD, "--fix")
    assert code == 0
    assert "wrote" in out
    assert json.loads(check.read()) == {**BAD, "zero_optimization": {"stage": 3, "overlap_comm": True}}
    assert list(check.folder.iterdir()) == [check.folder / "ds_config.json"]


def test_fix_says_that_comments_are_lost(check: Check) -> None:
    code, out, _err = check("{\n// mine\n" + json.dumps(BAD)[1:], "--fix", "--json")
    assert (code, json.loads(out)["comments_lost"]) == (0, True)


def test_fix_leaves_a_file_alone_that_needs_none(check: Check) -> None:
    text = '{"train_batch_size":8,   "gradient_clipping": 1.0}'
    assert check(text, "--fix")[0] == 0
    assert check.read() == text


def test_fix_elsewhere_leaves_the_file_alone(check: Check) -> None:
    code, _out, _err = check(BAD, "--fix", "--out", str(check.folder / "new.json"))
    assert code == 0
    assert json.loads(check.read()) == BAD
    assert "overlap_comm" in json.loads(check.read("new.json"))["zero_optimization"]


def test_fix_keeps_a_link_a_link(check: Check) -> None:
    (check.folder / "real.json").write_text(json.dumps(BAD))
    (check.folder / "link.json").symlink_to("real.json")
    assert check(None, "--fix", name="link.json")[0] == 0
    assert (check.folder / "link.json").is_symlink()
    assert "overlap_comm" in json.loads(check.read("real.json"))["zero_optimization"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--out", "x.json"),
        ("--fix", "--out", "/no/such/folder/x.json"),
        ("--deepspeed-version", "0.13.0"),
        ("--deepspeed-version", "new"),
        ("--gpu", "no-such-gpu"),
        ("--model", "no-such-model.json"),
        ("--accelerate-config", "no-such-file.yaml"),
        ("--trainer-args", "no-such-file"),
        ("--world-size", "0"),
    ],
)
def test_wrong_flag_is_an_error_in_three_lines(check: Check, flags: tuple[str, ...]) -> None:
    code, out, err = check(GOOD, *flags)
    assert (code, out) == (2, "")
    assert [line.split(":")[0] for line in err.splitlines()[-3:]] == ["error", "why", "fix"]


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"\xff\xfe{\x00}\x00", b"x" * ((1 << 20) + 5), b'{"a": "\xe9"}'])
def test_what_is_no_configuration_is_an_error_in_three_lines(check: Check, content: bytes) -> None:
    path = check.folder / "x.json"
    path.write_bytes(content)
    code, out, err = check.run(str(path))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_base64_and_standard_input_are_read_like_files(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps(BAD).encode()
    assert check.run(base64.urlsafe_b64encode(content).decode())[0] == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert check.run("-")[0] == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert "--out" in check.run("-", "--fix")[2]


def test_trainers_command_line_is_held_against_the_file(check: Check) -> None:
    fixed = {**GOOD, "train_micro_batch_size_per_gpu": 4}
    code, out, _err = check(fixed, "--trainer-args", "--per_device_train_batch_size 2 --bf16 True", "--json")
    document = json.loads(out)
    assert (code, document["consumer"]) == (2, "huggingface")
    assert [item["key"] for item in document["findings"] if item["code"] == "trainer-mismatch"] == [
        "train_micro_batch_size_per_gpu"
    ]


def test_accelerates_file_stands_beside_or_alone(check: Check) -> None:
    beside = check.folder / "accelerate.yaml"
    beside.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\n"
        "deepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n"
    )
    code, out, _err = check(GOOD, "--accelerate-config", str(beside), "--json")
    found = {item["key"] for item in json.loads(out)["findings"] if item["code"] == "accelerate-decided-twice"}
    assert (code, found) == (2, {"deepspeed_config.zero_stage", "deepspeed_config.offload_optimizer_device"})
    (twice, _other) = [item for item in json.loads(out)["findings"] if item["code"] == "accelerate-decided-twice"]
    assert (twice["file"], twice["line"]) == (str(beside), 4)
    assert json.loads(out)["data_parallel_size"] == 4
    code, out, _err = check.run(str(beside), "--client-optimizer", "torch.optim.AdamW", "--json")
    assert (code, json.loads(out)["findings"][0]["line"]) == (2, 5)
    assert "not rewritten" in check.run(str(beside), "--fix")[2]


def test_a_yaml_file_of_something_else_is_refused(check: Check) -> None:
    code, out, err = check("train_batch_size: 8\nzero_optimization:\n  stage: 2\n", name="config.yaml")
    assert (code, out) == (2, "")
    assert "neither accelerate's file nor a DeepSpeed configuration" in err


def test_a_gpu_and_a_model_sharpen_the_findings(check: Check) -> None:
    half = {**GOOD, "bf16": {"enabled": True}}
    found = json.loads(check(half, "--gpu", "v100-sxm-16gb", "--json")[1])["findings"]
    assert [item["code"] for item in found] == ["precision-bf16-on-gpu"]
    split = {**GOOD, "tensor_parallel": {"autotp_size": 16}}
    found = json.loads(check(split, "--model", "llama-3.1-8b", "--json")[1])["findings"]
    assert "autotp-heads" in {item["code"] for item in found}


def test_page_of_the_rules_is_current() -> None:
    from planner.rules.page import render_page
    from tests.tools.write_rules_page import PAGE

    assert PAGE.read_text(encoding="utf-8") == render_page(), "run python -m tests.tools.write_rules_page"


def _plan_folder(folder: Path, plan: Plan, config: dict[str, Any]) -> Path:
    run_dir = RunDir.create(folder / "p", plan.job_hash)
    run_dir.write_plan(plan)
    (run_dir.path / "ds_config.json").write_text(json.dumps(config))
    return run_dir.path / "ds_config.json"


def test_plans_own_file_is_read_with_the_plans_ranks_and_splits(check: Check, tmp_path: Path) -> None:
    plan = quickstart_report().plan
    layout, batch = plan.candidate.layout, plan.candidate.batch
    config = {"train_batch_size": batch.global_batch_size, "gradient_clipping": 1.0}
    path = _plan_folder(tmp_path, plan, config)
    code, out, _err = check.run(str(path), "--json")
    document = json.loads(out)
    assert code == 0
    assert document["plan"] == str(path.with_name("plan.yaml"))
    assert document["data_parallel_size"] == layout.data_parallel_size
    assert document["batch"]["train_batch_size"] == batch.global_batch_size
    words = "".join(check.run(str(path))[1].split())  # a long path is broken anywhere
    assert "plan.yamlsays" in words


def test_flags_go_before_the_plan(check: Check, tmp_path: Path) -> None:
    path = _plan_folder(tmp_path, quickstart_report().plan, GOOD)
    document = json.loads(check.run(str(path), "--json", "--world-size", "8")[1])
    assert (document["plan"], document["data_parallel_size"]) == (None, 8)


@pytest.mark.parametrize("plan", ["", "{", "name: somebody else's", "\xff", "[" * 3000])
def test_plan_of_somebody_else_says_nothing(check: Check, plan: str) -> None:
    (check.folder / "plan.yaml").write_bytes(plan.encode("latin-1"))
    assert json.loads(check(GOOD, "--json")[1])["plan"] is None


@pytest.mark.parametrize(("job", "reader"), [("quickstart", "deepspeed"), ("own-trainer", "huggingface")])
def test_emitted_folder_is_checked_as_whoever_reads_it_reads_it(
    check: Check, tmp_path: Path, job: str, reader: str
) -> None:
    """Without a flag, for the reference trainer and for a script on Hugging Face's Trainer."""
    path = find_data_dir("configs") / "jobs" / f"{job}.yaml"
    request = PlanRequest(job_path=path, out_dir=tmp_path / "p", trial_mode=TrialMode.NONE, validate=False)
    plan_job(request, console=SilentProgress())
    code, out, _err = check.run(str(tmp_path / "p" / "ds_config.json"), "--json")
    document = json.loads(out)
    assert (code, document["findings"], document["notes"]) == (0, [], [])
    assert (document["consumer"], document["data_parallel_size"]) == (reader, 2)
