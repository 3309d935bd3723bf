"""Seals by munge, and what comes where there is none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lucid.errors import ActionRefused
from lucid.slurm.act.prolog_extra import free_extra
from lucid.slurm.client import Breaker
from lucid.slurm.commands import CommandClient, credential

SEAL = "MUNGE:AwQFAAD9+RbZYggCWNzWjwGw8LULZUya/Q==:"


def client(tmp_path: Path, script: str) -> CommandClient:
    program = tmp_path / "prefix"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return CommandClient([str(program)], Breaker(time.monotonic))


def test_a_text_is_sealed_for_root_behind_the_prefix(tmp_path: Path) -> None:
    sealing = client(tmp_path, f'printf "%s|" "$@" > {tmp_path}/words; echo {SEAL}')
    assert sealing.seal("lucid 1 job=7") == SEAL
    assert (tmp_path / "words").read_text() == "munge|-u|root|-s|lucid 1 job=7|"
    assert free_extra(f"lucid-gpus=1,3;lucid-seal={SEAL}")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'munge: Error: Failed to access /run/munge' >&2; exit 6", "Failed to access"),
        ("exit 127", "exit status 127"),
        ("echo MUNGE:$(id):", "cannot seal"),
        (f"echo {SEAL}; echo more", "cannot seal"),
    ],
)
def test_trouble_with_munge_is_a_refusal_that_slurms_breaker_is_not_told_of(
    tmp_path: Path, script: str, says: str
) -> None:
    breaker = Breaker(time.monotonic)
    client(tmp_path, script)
    sealing = CommandClient([str(tmp_path / "prefix")], breaker)
    for _ in range(20):
        with pytest.raises(ActionRefused) as caught:
            sealing.seal("x")
        assert says in str(caught.value)
    breaker.check()


def test_munge_that_hangs_or_is_not_there_is_given_up() -> None:
    with pytest.raises(ActionRefused, match=r"does not answer within 0\.1 s"):
        credential(["sleep", "60"], 0.1)
    with pytest.raises(ActionRefused, match="cannot be run"):
        credential(["/nowhere/munge"])
