"""Site defaults below a job: what they may say, who wins, and that it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.jobfile import defaults_sentence, dump_job, list_defaults, load_job, resolve_job
from planner.resources import CatalogFolder, find_data_dir
from planner.spec import JobSpec

JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 128, global_batch_size: 16}
cluster: {gpu: h100, nodes: 2}
"""
SITE = """\
slurm: {partition: gpu, account: everyone}
kubernetes: {image: registry.example/train:1}
environment: {NCCL_IB_HCA: mlx5_0}
prices: {h100: {per_hour: 2.1, currency: EUR, source: our contract, date: 2026-11}}
cluster: {mtbf_hours: 2000}
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site folder, and no user's folder, named by the environment."""
    folder, user = tmp_path / "site", tmp_path / "user"
    folder.mkdir()
    user.mkdir()
    (folder / "defaults.yaml").write_text(SITE)
    monkeypatch.setenv("MESHPLAN_SITE_CONFIGS", str(folder))
    monkeypatch.setenv("MESHPLAN_CONFIGS", str(user))
    return folder


def _resolved(tmp_path: Path, text: str, **options: bool) -> JobSpec:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return resolve_job(load_job(path, **options))


def test_defaults_reach_a_job_that_says_nothing_of_them(tmp_path: Path) -> None:
    job = _resolved(tmp_path, JOB)
    assert dict(job.launch.slurm) == {"partition": "gpu", "account": "everyone"}
    assert dict(job.launch.environment) == {"NCCL_IB_HCA": "mlx5_0"}
    assert dict(job.launch.kubernetes) == {"image": "registry.example/train:1"}
    assert (job.cluster.gpu.price_per_hour, job.cluster.gpu.price_currency) == (2.1, "EUR")
    assert job.cluster.gpu.price_source == "our contract, 2026-11"
    assert job.cluster.mtbf_s == 2000 * 3600


@pytest.mark.parametrize("place", ["slurm: {account: mine}", "launch: {slurm: {account: mine}}"])
def test_job_wins_key_by_key_wherever_it_says_it(tmp_path: Path, place: str) -> None:
    job = _resolved(tmp_path, JOB + place)
    assert dict(job.launch.slurm) == {"partition": "gpu", "account": "mine"}


def test_other_spelling_of_an_option_is_the_jobs_word_too(tmp_path: Path, site: Path) -> None:
    (site / "defaults.yaml").write_text("slurm: {mail-user: site}")
    assert dict(_resolved(tmp_path, JOB + "slurm: {mail_user: me}").launch.slurm) == {"mail_user": "me"}


def test_users_defaults_win_over_the_sites(tmp_path: Path) -> None:
    (tmp_path / "user" / "defaults.yaml").write_text("slurm: {partition: mine}")
    assert dict(_resolved(tmp_path, JOB).launch.slurm)["partition"] == "mine"


def test_price_nearer_to_the_job_wins(tmp_path: Path) -> None:
    job = _resolved(tmp_path, JOB.replace("nodes: 2", "nodes: 2, price_per_gpu_hour: 3"))
    assert (job.cluster.gpu.price_per_hour, job.cluster.gpu.price_currency) == (3.0, "USD")


def test_without_site_defaults_the_job_stands_alone(tmp_path: Path) -> None:
    job = _resolved(tmp_path, JOB, site_defaults=False)
    assert (job.launch.slurm, job.launch.environment, job.cluster.mtbf_s) == ((), (), 0.0)


def test_resolved_job_takes_no_defaults_again(tmp_path: Path, site: Path) -> None:
    job = _resolved(tmp_path, JOB)
    (site / "defaults.yaml").write_text("slurm: {qos: high}")
    assert _resolved(tmp_path, dump_job(job)) == job


def test_what_was_taken_is_told_and_listed(tmp_path: Path, site: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "slurm: {account: mine}")
    said = defaults_sentence(load_job(tmp_path / "job.yaml").site_defaults)
    assert str(site / "defaults.yaml") in said
    assert "slurm.partition" in said and "slurm.account" not in said
    folders = (CatalogFolder(origin="site", path=site), CatalogFolder(origin="shipped", path=find_data_dir("configs")))
    assert {one.key for one in list_defaults(folders)} >= {"slurm.partition", "prices.h100", "cluster.mtbf_hours"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("training: {seq_len: 1}", "training is not for site defaults"),
        ("cluster: {nodes: 4}", "cluster.nodes is not for site defaults"),
        ("launch: {command: rm}", "launch.command is not for site defaults"),
    ],
)
def test_what_belongs_to_a_training_is_refused_with_its_place(
    tmp_path: Path, site: Path, text: str, error: str
) -> None:
    (site / "defaults.yaml").write_text(text)
    with pytest.raises(InputError, match=error) as refused:
        _resolved(tmp_path, JOB)
    assert "defaults.yaml line 1" in str(refused.value)


def test_wrong_value_of_a_default_names_its_file(tmp_path: Path, site: Path) -> None:
    (site / "defaults.yaml").write_text("slurm:\n  partition: [a, b]\n")
    with pytest.raises(InputError, match=r"defaults\.yaml"):
        _resolved(tmp_path, JOB)
