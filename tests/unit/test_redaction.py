"""Secrets are taken out of what is shown, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.redaction import hide_secrets, hide_url_passwords, secret_values, sounds_secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p%20w@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("cannot reach mysql+pymysql://root:a/b@h/d now", "cannot reach mysql+pymysql://root:***@h/d now"),
        ("redis://:secret@h", "redis://:***@h"),
        ("postgresql://h/d?password=x&a=1", "postgresql://h/d?password=***&a=1"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("time 10:30 and a@b", "time 10:30 and a@b"),
    ],
)
def test_password_of_a_url_is_hidden_and_the_rest_is_not(text: str, shown: str) -> None:
    assert hide_url_passwords(text) == shown


def test_variables_whose_names_sound_secret_give_their_values() -> None:
    environment = {"WANDB_API_KEY": "abcdef123", "HF_TOKEN": "hf_0123456", "PATH": "/usr/bin", "DB_PASSWORD": "x"}
    assert secret_values(environment) == ("hf_0123456", "abcdef123")
    assert hide_secrets("key abcdef123, path /usr/bin", secret_values(environment)) == "key ***, path /usr/bin"


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "GITHUB_TOKEN", "DATABASE_URL", "my_passwd"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert sounds_secret(name)


@pytest.mark.parametrize("name", ["PATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "LANG"])
def test_ordinary_names_are_not(name: str) -> None:
    assert not sounds_secret(name)


@given(st.text(), st.lists(st.text(min_size=6), max_size=3))
def test_no_secret_survives(text: str, secrets: list[str]) -> None:
    hidden = hide_secrets(text + "".join(secrets), sorted(secrets, key=len, reverse=True))
    assert all(secret not in hidden or secret in "***" * 9 for secret in secrets if "*" not in secret)
