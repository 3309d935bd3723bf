"""The deb in the testbed's chroot, on a real Slurm: installed, upgraded, downgraded, removed, purged.

The chroot has no systemd: what its units do beyond their command lines (sandbox, watchdog, restart, the timer) is not
covered here, nor is `deb-systemd-invoke`; the maintainer scripts skip it where /run/systemd/system is absent.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from testbeds import PATH, plain_slurm, slurms_own, why_not_made

from sdists import unpacked_sdist
from testbed import tree
from testbed.settings import layout_from

pytestmark = pytest.mark.slow
REPO = Path(__file__).resolve().parents[2]
TOOLS = REPO / "build/supply/bin/python"
SUITE = layout_from(os.environ).suite
SUITES = {"trixie": ("3.13", "~deb13")}
PYTHON, MARK = SUITES.get(SUITE, ("", ""))
"""The chroot's Python, and what a version made for it ends in."""
LIBRARY = f"usr/lib/lucid/lib/python{PYTHON}/site-packages"


class Packages:
    """The package as it is, and the one of the next version, which has a table more in its store.

    They are in a folder that all test processes of one run share: what one has built, the others take.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def now(self) -> Path:
        return self.made("deb", "now")

    @property
    def next(self) -> Path:
        return self.made("deb", "next")

    @property
    def node(self) -> Path:
        return next(self.now.parent.glob("lucid-node_*.deb"))

    def made(self, kind: str, name: str) -> Path:
        with tree.locked(self.folder / "lock"):
            built = self.folder / f"{kind}.{name}.built"
            if not built.exists():
                built.write_text(str(self._build(kind, REPO if name == "now" else self._next_version(), name)))
            return Path(built.read_text())

    def _next_version(self) -> Path:
        source = self.folder / "source"
        if source.exists():
            return source
        made = unpacked_sdist(self.folder / "sdist")
        project, schema = made / "pyproject.toml", made / "lucid/store/file.py"
        text, count = re.subn(r'^version = ".*"$', 'version = "99.0"', project.read_text(), flags=re.MULTILINE)
        assert count == 1
        project.write_text(text)
        head, closing, rest = schema.read_text().partition("\n)\n")
        schema.write_text(f'{head}\n    "CREATE TABLE of_the_next_version (one INTEGER)",{closing}{rest}')
        return made.rename(source)

    def _build(self, kind: str, source: Path, name: str) -> Path:
        """As `make deb` does it, whose tools are there."""
        out = self.folder / name
        of = f"--suite={SUITE}" if kind == "deb" else f"--python={PYTHON}"
        words = ["packaging", kind, of, "--level=0", "--out", out, "--work", self.folder / "work"]
        path = os.pathsep.join([str(source), str(REPO / "build/packages/tools")])
        done = subprocess.run(
            [str(TOOLS), *map(str, words)], cwd=source, capture_output=True, text=True, check=False, timeout=900,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return next(out.glob(f"lucid[-_][0-9]*.{kind}"))


class Host:
    """The machine on which packages come and go."""

    def __init__(self, box: Box) -> None:
        self.box, self.root = box, box.root

    def sh(self, line: str, *, user: str = "root", fails: bool = False) -> str:
        done = subprocess.run(
            ["chroot", f"--userspec={user}", str(self.root), "sh", "-ec", line],
            capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=900,
            env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        assert (done.returncode != 0) is fails, f"{line}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def install(self, deb: Path, *options: str, fails: bool = False) -> str:
        shutil.copy(deb, self.root / "srv/package.deb")
        return self.sh(f"apt-get install --yes {' '.join(options)} /srv/package.deb", fails=fails)

    @contextmanager
    def lucidd(self) -> Iterator[None]:
        """The package's, by its unit's own command line, as its unit's user; ended politely."""
        unit = (self.root / "usr/lib/systemd/system/lucidd.service").read_text()
        command = re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE)
        user = re.search(r"^User=(.+)$", unit, re.MULTILINE)
        assert command
        assert user
        with (self.root / "srv/lucidd.log").open("ab") as log:
            process = subprocess.Popen(
                ["chroot", f"--userspec={user[1]}", str(self.root), *command[1].split()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
        started, beat = time.time(), self.root / "run/lucid/heartbeat"
        try:
            self.box.wait("a heartbeat", lambda: beat.exists() and beat.stat().st_mtime >= started - 1, 60)
            assert process.poll() is None, self.log()
            yield
        finally:
            process.terminate()
            process.wait(60)

    def log(self) -> str:
        return (self.root / "srv/lucidd.log").read_text()[-3000:]

    def schema(self) -> int:
        with sqlite3.connect(f"file:{self.root}/var/lib/lucid/lucid.db?mode=ro", uri=True) as db:
            return int(db.execute("PRAGMA user_version").fetchone()[0])

    def version(self, package: str = "lucid") -> str:
        return self.sh(f"dpkg-query -W -f '${{db:Status-Status}} ${{Version}}' {package} || true").strip()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    if not PYTHON:
        pytest.skip(f"packages are made for {' and '.join(SUITES)}; the testbed is {SUITE}")
    why = why_not_made("build/packages/tools/.installed")
    if why or not shutil.which("dpkg-deb") or not shutil.which("readelf"):
        pytest.skip(f"packages cannot be built here: {why or 'dpkg-deb and readelf are needed'}")
    here = tmp_path_factory.getbasetemp()
    return Packages((here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "packages")


@pytest.fixture(scope="module")
def host(packages: Packages) -> Iterator[Host]:
    with plain_slurm("deb") as box:
        (box.root / "usr/local/bin/systemctl").unlink()
        here = Host(box)
        # instead of all of systemd, which nothing could start here
        here.sh("apt-get install --yes systemd-standalone-sysusers systemd-standalone-tmpfiles")
        yield here


@pytest.fixture(autouse=True)
def clean(host: Host) -> None:
    """What a test that failed has left."""
    host.sh("apt-get purge --yes lucid lucid-node || true")
    host.sh("rm -rf /var/lib/lucid /etc/lucid /run/lucid; userdel lucid || true")


def test_the_life_of_a_package_on_a_host_with_slurm(host: Host, packages: Packages) -> None:
    box, root = host.box, host.root
    before = slurms_own(box)

    # installed: nothing of Slurm changed, nothing runs, nothing is to run at the next start of the machine
    host.install(packages.now)
    assert slurms_own(host.box) == before
    assert not list((root / "etc/systemd").rglob("lucid*"))
    assert host.sh("pgrep -u lucid || true", user="root").strip() == ""
    assert host.sh("stat -c '%U %a' /var/lib/lucid /run/lucid").split() == ["lucid", "700", "lucid", "755"]
    assert re.match(r"lucidctl, version \d", host.sh("lucidctl --version", user="alice"))
    assert "lucid-web" in host.sh("lucid-web --help", user="alice")
    # each library of the private environment can be loaded, and none of the host's gets in
    host.sh(
        "cd /tmp; echo 'raise SystemExit(\"the wrong numpy\")' > numpy.py; PYTHONPATH=/tmp lucidctl demo --help; "
        "/usr/lib/lucid/bin/python3 -I -c 'import interpret.glassbox, optuna, pandas, rapidfuzz, "
        "rustworkx, scipy.optimize, scipy.stats, sklearn.ensemble, starlette, textual, uvicorn'; rm numpy.py",
        user="alice",
    )
    compiled = f"*.cpython-{PYTHON.replace('.', '')}.pyc"
    assert list(root.glob(f"{LIBRARY}/lucid/core/__pycache__/{compiled}"))
    assert host.sh("lucidctl demo --help", user="alice").startswith("Usage: lucidctl demo")

    # configured: the package's lucidd observes the real Slurm
    (root / "etc/lucid/lucid.toml").write_text('[daemon.partitions]\nvc-a = "observe"\nvc-b = "observe"\n')
    assert "/usr/share/doc/lucid/examples/lucid.toml" in host.sh("dpkg -L lucid").split()
    with host.lucidd():
        filler = box.sbatch("-p", "vc-a", "--gres=gpu:4", "-N2", script="sleep 25")
        waiting = box.sbatch("-p", "vc-a", "--gres=gpu:4", script="true")
        box.wait("a decision", lambda: "would" in host.sh(f"lucidctl explain {waiting} || true"), 60)
        assert "lucidd runs" in host.sh("lucidctl status")
        box.wait_ended(filler, waiting)
        box.wait("its end in the history", lambda: waiting in host.sh("lucidctl history --json || true"), 60)
    schema = host.schema()

    # installed again, and upgraded: idempotent, and what was known is known still
    host.install(packages.now, "--reinstall")
    host.install(packages.next)
    assert host.version() == f"installed 99.0-1{MARK}"
    assert host.schema() == schema, "the package itself does not touch the store"
    with host.lucidd():
        box.wait("lucidd brings the store up to date", lambda: host.schema() == schema + 1, 30)
        assert waiting in host.sh("lucidctl history --json")
    pycache = set(root.glob(f"{LIBRARY}/**/__pycache__"))
    assert pycache
    assert slurms_own(host.box) == before

    # downgraded: refused while the store is of the later version, with the words that help; nothing is changed
    said = host.install(packages.now, "--allow-downgrades", fails=True)
    assert f"schema {schema + 1}; this version reads {schema}" in said
    assert f"mv /var/lib/lucid/lucid.db /var/lib/lucid/lucid.db.schema{schema + 1}" in said
    assert host.version() == f"installed 99.0-1{MARK}"
    assert "99.0" in host.sh("lucidctl --version")
    assert waiting in host.sh("lucidctl history --json")
    host.sh(f"mv /var/lib/lucid/lucid.db /var/lib/lucid/lucid.db.schema{schema + 1}; rm -f /var/lib/lucid/lucid.db-*")
    host.install(packages.now, "--allow-downgrades")
    assert "99.0" not in host.version()
    with host.lucidd():
        assert host.schema() == schema

    # a deb that goes gives Slurm its jobs back, whoever was holding them for it; users' own holds are theirs
    held = box.sbatch("-H", "-p", "vc-a", "--gres=gpu:1")
    own = box.sbatch("-H", "-p", "vc-a", "--gres=gpu:1")
    box.run("scontrol", "update", f"JobId={held}", "AdminComment=lucid:v=1;held=1;")
    assert (root / "run/lucid/heartbeat").exists()
    host.sh("apt-get remove --yes lucid")
    box.wait_ended(held)
    assert box.job(own)["priority"]["number"] == 0
    box.run("scancel", own)
    assert host.version().startswith("config-files")
    assert not (root / "usr/lib/lucid").exists(), sorted(root.glob("usr/lib/lucid/**/*"))[:5]
    assert not (root / "usr/bin/lucidctl").is_symlink()
    assert (root / "var/lib/lucid/lucid.db").exists(), "its state stays"
    assert (root / "etc/lucid/lucid.toml").exists()

    # and comes back to what it knew
    host.install(packages.now)
    assert "lucid.db" in host.sh("ls /var/lib/lucid")

    # purged: no trace
    host.sh("apt-get purge --yes lucid")
    assert host.sh("find /etc /usr /opt /var/lib /run -xdev -iname '*lucid*' ! -path '/var/lib/dpkg/*'").strip() == ""
    assert "lucid:" not in (root / "etc/passwd").read_text()
    assert slurms_own(host.box) == before


def test_the_nodes_package_samples_without_numpy_and_its_hooks_do_nothing_unasked(
    host: Host, packages: Packages
) -> None:
    root, before = host.root, slurms_own(host.box)
    host.install(packages.node)
    assert slurms_own(host.box) == before
    said = host.sh("dpkg -L lucid-node")
    assert "numpy" not in said
    assert "pynvml.py" in said
    # no NVIDIA driver here: it says so, as it does on a node without GPUs
    assert "sampler" in host.sh("lucid-sampler status || true")
    host.sh("install -d -o lucid /var/lib/lucid && lucid-sampler --as-user lucid start --job 7 --gpus 0 --no-launch")
    assert list(root.glob("run/lucid/**/*7*")), "announced"
    host.sh("lucid-sampler --as-user lucid stop --job 7 || true")
    missing = host.sh("/usr/lib/lucid-node/bin/python3 -I -m lucid.node run --samples 1 || true")
    assert "Traceback" not in missing, missing
    # the child that a prolog's `start` leaves behind finds its modules, too
    assert "usage: lucid-sampler" in host.sh("cd /tmp && /usr/lib/lucid-node/bin/python3 -m lucid.node --help")

    # its hooks, as Slurm calls them, by node.conf as it is shipped: nothing happens; then one names a sampler
    for part in ("prolog", "epilog"):
        host.sh(f"SLURM_JOB_ID=8 SLURM_JOB_UID=1000 SLURM_JOB_GPUS=0 /usr/lib/lucid-node/slurm/{part}.d/50-lucid")
    assert not list(root.glob("run/lucid/**/*8*"))
    conf = root / "etc/lucid/node.conf"
    conf.write_text("sampler /srv/called\n")
    called = root / "srv/called"
    called.write_text('#!/bin/sh\necho "$@" >> /tmp/called\n')
    called.chmod(0o755)
    host.sh("SLURM_JOB_ID=9 SLURM_JOB_UID=1000 SLURM_JOB_GPUS=0 /usr/lib/lucid-node/slurm/prolog.d/50-lucid")
    assert "start --job 9 --slurm-id 9" in (root / "tmp/called").read_text()

    # an administrator's node.conf outlives an upgrade and a removal, and goes with the purge
    host.install(packages.node, "--reinstall", "-o", "Dpkg::Options::=--force-confold")
    assert conf.read_text() == "sampler /srv/called\n"
    host.sh("apt-get remove --yes lucid-node")
    assert not (root / "usr/lib/lucid-node").exists()
    assert conf.exists()
    host.sh("rm -r /run/lucid/* /var/lib/lucid/* || true; apt-get purge --yes lucid-node")
    assert not conf.exists()
    assert "lucid:" not in (root / "etc/passwd").read_text()


def test_bash_completes_commands_and_options(host: Host, packages: Packages) -> None:
    host.install(packages.now)
    try:
        asked = (
            ". /usr/share/bash-completion/completions/lucidctl; COMP_WORDS=(lucidctl {}); COMP_CWORD={}; "
            '_lucidctl_completion lucidctl; echo "${{COMPREPLY[@]}}"'
        )
        assert host.sh(f"bash -c '{asked.format('expl', 1)}'").split() == ["explain"]
        assert "--partition" in host.sh(f"bash -c '{asked.format('when --par', 2)}'").split()
    finally:
        host.sh("apt-get purge --yes lucid")


def test_the_rpm_does_the_same_in_a_root_folder_of_its_own(host: Host, packages: Packages) -> None:
    """rpm's own database and order of scripts; the root folder is a Debian's, so dependencies are not asked for."""
    if not shutil.which("rpm") or not shutil.which("rpmbuild"):
        pytest.skip("rpm and rpmbuild are not installed here: make rpm")
    root, before = host.root, slurms_own(host.box)
    now, following = packages.made("rpm", "now"), packages.made("rpm", "next")
    host.sh(f"apt-get install --yes python{PYTHON}")  # the deb's dependency, gone with nobody

    def rpm(*words: str, fails: bool = False) -> str:
        done = subprocess.run(
            ["rpm", "--root", str(root), "--nodeps", *words], capture_output=True, text=True, check=False, timeout=900
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    rpm("--install", str(now))
    assert slurms_own(host.box) == before
    assert rpm("--verify", "lucid").strip() == ""
    assert re.match(r"lucidctl, version \d", host.sh("lucidctl --version", user="alice"))
    assert host.sh("stat -c '%U %a' /var/lib/lucid").split() == ["lucid", "700"]
    (root / "etc/lucid/lucid.toml").write_text('[daemon.partitions]\nvc-a = "observe"\n')
    with host.lucidd():
        assert "lucidd runs" in host.sh("lucidctl status")
    schema = host.schema()
    rpm("--upgrade", str(following))
    assert list(root.glob(f"{LIBRARY}/lucid/core/__pycache__/*.pyc"))
    with host.lucidd():
        host.box.wait("lucidd brings the store up to date", lambda: host.schema() == schema + 1, 30)
    said = rpm("--upgrade", "--oldpackage", str(now), fails=True)
    assert f"schema {schema + 1}; this version reads {schema}" in said
    assert "99.0" in host.sh("lucidctl --version")
    rpm("--erase", "lucid")
    assert not (root / "usr/lib/lucid").exists()
    assert (root / "var/lib/lucid/lucid.db").exists()
    assert slurms_own(host.box) == before
    host.sh("rm -r /var/lib/lucid /etc/lucid /run/lucid; userdel lucid")
