"""What setup changed can be taken back, wherever a run was killed, and never over an edit."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from lucid.errors import ConfigError
from lucid.setup import backup as module
from lucid.setup.backup import FOLDER, Journal
from lucid.setup.conf_text import Change

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files are given back to their owners by root alone")
SLURM = "ClusterName=x\nGresTypes=gpu\nProlog=/site\n# the end\n"
Picture = dict[str, tuple[bytes, int, int, int]]
WANTED = "ClusterName=x\nGresTypes=gpu,shard\nProlog=/site\n# the end\nTaskProlog=/lucid\n"


def site(root: Path) -> tuple[list[Change], Picture]:
    """Two files that are there, one of them somebody else's, and two that are not."""
    etc = root / "etc/slurm"
    etc.mkdir(parents=True)
    (etc / "slurm.conf").write_text(SLURM)
    (etc / "gres.conf").write_bytes(b"Name=gpu\r\nlast line")
    (etc / "gres.conf").chmod(0o640)
    os.chown(etc / "gres.conf", 1234, 4321)
    return changes(root), picture(root)


def changes(root: Path) -> list[Change]:
    etc = root / "etc/slurm"
    wanted = {
        etc / "slurm.conf": WANTED.encode(),
        etc / "gres.conf": b"Name=shard\n",
        etc / "lucid/deep/hook": b"#!/bin/sh\n",
        root / "etc/lucid/lucid.toml": b"[daemon]\n",
    }
    return [
        Change(path, path.read_bytes() if path.exists() else None, text, own=path.name == "lucid.toml")
        for path, text in wanted.items()
        if not path.exists() or path.read_bytes() != text
    ]


def picture(root: Path) -> Picture:
    """Every file but the record's own: bytes, mode, owner."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and root / FOLDER not in path.parents:
            seen = path.stat()
            kept = (path.read_bytes(), stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid)
            found[str(path.relative_to(root))] = kept
    return found


def set_up(root: Path, todo: list[Change]) -> None:
    journal = Journal.read(root)
    with journal.locked():
        journal.begin("pack")
        journal.apply(todo)
        journal.done()


def undo(root: Path, *, purge: bool = False) -> None:
    journal = Journal.read(root)
    restores = journal.restores(purge=purge)
    with journal.locked():
        journal.undo(restores)
        journal.remove_folders()
        journal.forget(purge=purge)


def test_undone_every_byte_mode_and_owner_is_as_before(tmp_path: Path) -> None:
    todo, before = site(tmp_path)
    set_up(tmp_path, todo)
    during = picture(tmp_path)
    assert during["etc/slurm/slurm.conf"][0] == WANTED.encode()
    assert during["etc/slurm/gres.conf"][1:] == before["etc/slurm/gres.conf"][1:], "owner and mode stay"
    assert changes(tmp_path) == []
    undo(tmp_path)
    assert picture(tmp_path).pop("etc/lucid/lucid.toml")[0] == b"[daemon]\n", "it stays until a purge"
    assert {k: v for k, v in picture(tmp_path).items() if k != "etc/lucid/lucid.toml"} == before
    assert not (tmp_path / "etc/slurm/lucid").exists()
    undo(tmp_path, purge=True)
    assert picture(tmp_path) == before
    assert not (tmp_path / FOLDER).exists()


def killed_after(root: Path, puts: int, what: str) -> bool:
    """In a process of its own, killed by SIGKILL before its write number *puts*; did it come so far?"""
    child = os.fork()
    if child == 0:
        left = [puts]
        real = module.write_atomic

        def counted(path: Path, content: bytes, **options: object) -> None:
            if left[0] == 0:
                path.with_name(f".{path.name}.1.2.tmp").write_bytes(content[:3])  # as write_atomic leaves it
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            real(path, content, **options)  # type: ignore[arg-type]

        module.write_atomic = counted  # type: ignore[assignment]
        try:
            set_up(root, changes(root)) if what == "set up" else undo(root)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("then", ["continued", "undone"])
def test_killed_at_any_write_it_is_continued_or_undone(tmp_path: Path, then: str) -> None:
    for puts in range(100):
        root = tmp_path / str(puts)
        _, before = site(root)
        if not killed_after(root, puts, "set up"):
            assert puts > 8, "four copies, four files and their record at least"
            return
        if then == "continued":
            set_up(root, changes(root))
            assert (root / "etc/slurm/slurm.conf").read_text() == WANTED
            assert not list(root.rglob(".*.tmp"))
        if Journal.read(root).state != "none":  # killed before the first record: nothing was changed
            undo(root, purge=True)
        assert picture(root) == before
    pytest.fail("it never comes to its end")


def test_an_undo_that_was_killed_goes_on(tmp_path: Path) -> None:
    for puts in range(100):
        root = tmp_path / str(puts)
        todo, before = site(root)
        set_up(root, todo)
        killed = killed_after(root, puts, "undo")
        if killed:
            undo(root)
        undo(root, purge=True)
        assert picture(root) == before
        if not killed:
            assert puts > 2
            return
    pytest.fail("it never comes to its end")


EDITS = {
    "elsewhere": lambda text: "# mine\n" + text,
    "on the same line": lambda text: text.replace("GresTypes=gpu,shard", "GresTypes=gpu,shard,nic"),
    "at the end": lambda text: text + "mine",
    "emptied": lambda _text: "",
    "in no encoding": lambda _text: "\udcff\n",
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_edited_since_is_named_with_the_edit_and_nothing_is_undone(tmp_path: Path, edit: str) -> None:
    todo, before = site(tmp_path)
    set_up(tmp_path, todo)
    conf, hook = tmp_path / "etc/slurm/slurm.conf", tmp_path / "etc/slurm/lucid/deep/hook"
    conf.write_text(EDITS[edit](WANTED), errors="surrogateescape")
    hook.write_text("#!/bin/sh\nmine\n")
    now = picture(tmp_path)
    with pytest.raises(ConfigError) as told:
        Journal.read(tmp_path).restores()
    for path in (conf, hook):
        assert f"\n--- {path}\n+++ {path}\n" in str(told.value)
    assert "\n+mine\n" in str(told.value)
    assert "-GresTypes=gpu\n" not in str(told.value), "what setup changed is no edit"
    assert picture(tmp_path) == now
    conf.rename(tmp_path / "slurm.conf.mine")
    hook.write_text("#!/bin/sh\n")
    undo(tmp_path, purge=True)
    assert picture(tmp_path) == {**before, "slurm.conf.mine": now["etc/slurm/slurm.conf"]}


def test_a_second_mode_is_undone_to_what_was_before_the_first(tmp_path: Path) -> None:
    set_up(tmp_path, site(tmp_path)[0])
    conf = tmp_path / "etc/slurm/slurm.conf"
    set_up(tmp_path, [Change(conf, conf.read_bytes(), b"something else\n")])
    undo(tmp_path)
    assert conf.read_text() == SLURM


def test_a_file_that_cannot_be_written_changes_none(tmp_path: Path) -> None:
    """Nor does one that fails only when it is written."""
    todo, before = site(tmp_path)
    (tmp_path / "etc/slurm/blocked").mkdir()
    for name, says in (("blocked", "nothing was changed"), ("n" * 250, "every file is as it was")):
        with pytest.raises(ConfigError, match=says):
            set_up(tmp_path, [*todo, Change(tmp_path / "etc/slurm" / name, None, b"x")])
        assert picture(tmp_path) == before


def test_what_was_taken_back_at_once_is_the_sites_to_edit_again(tmp_path: Path) -> None:
    """slurmctld could not use the files. The administrator then mends slurm.conf, and an undo leaves that alone."""
    todo, before = site(tmp_path)
    journal = Journal.read(tmp_path)
    with journal.locked():
        journal.begin("pack")
        journal.apply(todo)
        journal.revert(todo)
    assert picture(tmp_path) == before
    conf = tmp_path / "etc/slurm/slurm.conf"
    conf.write_text(SLURM.replace("GresTypes=gpu", "GresTypes=gpu,nic"))
    mended = picture(tmp_path)
    undo(tmp_path, purge=True)
    assert picture(tmp_path) == mended


def test_two_setups_at_once_are_refused(tmp_path: Path) -> None:
    first, second = Journal.read(tmp_path), Journal.read(tmp_path)
    with first.locked(), pytest.raises(ConfigError, match="another lucidctl setup"), second.locked():
        pass
    assert not (tmp_path / FOLDER).exists()


def test_the_record_is_roots_alone_and_a_copy_that_was_tampered_with_is_not_written_back(tmp_path: Path) -> None:
    set_up(tmp_path, site(tmp_path)[0])
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
    for path in (tmp_path / FOLDER / "files").iterdir():
        path.write_text("rm -rf")
    with pytest.raises(ConfigError, match="is not what setup put there"):
        Journal.read(tmp_path).restores()
