"""Testbeds beside the session's, and what is put into a testbed: a plain site, Lucid, a whole Python, MPS."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from box import Box

from nvml_emulator import smi as nvidia_smi
from testbed import cli, tree
from testbed.lifetime import watched
from testbed.settings import Layout, TestbedError, layout_from

REPO = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/lucid/bin"
"""The last folder has Lucid of this checkout, where ``testbeds.put_in`` has brought it."""
BARE = "PartitionName=vc-a Nodes=n[1-2] Default=YES\nPartitionName=vc-b Nodes=n[3-4]\n"
BIN = "/opt/lucid/bin"
FAKE = Path(__file__).parents[1] / "assets/mps/nvidia-cuda-mps-control"


# -- as its site has it --------------------------------------------------------------------------------------


@contextmanager
def own_testbed(suffix: str = "", **environ: str) -> Iterator[Layout]:
    """A testbed that is built and not up yet: made as it is needed, and down again afterwards. LUCID_TESTBED_KEEP=1
    leaves it up for a look.

    Args:
        suffix: of its name, after that of the session's testbed, which is LUCID_TESTBED_NAME, ``pytest`` unless set.
        environ: variables of the testbed's own, beside those of the environment.
    """
    name = "-".join(filter(None, (os.environ.get("LUCID_TESTBED_NAME", "pytest"), suffix)))
    layout = layout_from({**os.environ, **environ, "LUCID_TESTBED_NAME": name})
    if reason := cli.unfit(layout):
        pytest.skip(reason)
    keep = os.environ.get("LUCID_TESTBED_KEEP") == "1"
    with tree.locked(layout.cache / f"{layout.name}.session.lock"):
        try:
            tree.build(layout, print)
        except TestbedError as error:
            if layout.tree.exists():
                raise
            pytest.skip(f"no cached tree, and none can be made: {error}")
        cli.down(layout)
        if not keep:
            watched(layout.cache / "run")
        try:
            yield layout
        finally:
            if not keep:
                cli.down(layout)


@contextmanager
def running(suffix: str, **environ: str) -> Iterator[Box]:
    """An ``own_testbed`` that is up."""
    with own_testbed(suffix, **environ) as layout:
        cli.up(layout, print)
        yield Box(layout.root)


@contextmanager
def plain_slurm(suffix: str) -> Iterator[Box]:
    """Four nodes, vc-a and vc-b, in a testbed of its own."""
    with running(suffix, LUCID_TESTBED_PLUGIN="0", LUCID_TESTBED_VARIANT="bare") as box:
        make_plain(box)
        give_network(box)
        yield box


def give_wheel(box: Box) -> None:
    """A wheel of Lucid, in /srv/wheels."""
    wheel = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
         str(box.root / "srv/wheels"), str(REPO)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert wheel.returncode == 0, wheel.stderr


def typed(box: Box, line: str, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
    """One line, as root types it."""
    return subprocess.run(
        ["chroot", str(box.root), "sh", "-c", line],
        capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=limit_s,
        env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "COLUMNS": "200"},
    )  # fmt: skip


def ports_of(box: Box) -> str:
    """By what the nodes of this machine are told apart."""
    text = "".join(path.read_text() for path in (box.root / "etc/slurm").glob("*slurm.conf"))
    found = re.search(r"NodeHostname=\S+ NodeAddr=\S+ Port=\S+", text)
    assert found
    return found[0]


def make_plain(box: Box, partitions: str = BARE) -> None:
    """As a site has it before it hears of Lucid: GPUs without addresses or slots, no user and no file of Lucid's."""
    root, etc, ports = box.root, box.root / "etc/slurm", ports_of(box)
    own = (etc / "slurm.conf").read_text().replace("include /etc/slurm/lucid.slurm.conf\n", "")
    (etc / "slurm.conf").write_text(
        own + "GresTypes=gpu\nSelectType=select/cons_tres\nPriorityType=priority/multifactor\n"
        "AccountingStorageTRES=gres/gpu\n"
        f"NodeName=n[1-4] CPUs=16 RealMemory=64000 Gres=gpu:a100:4 {ports}\n" + partitions
    )
    (etc / "gres.conf").write_text("NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n")
    box.run("sacctmgr", "-i", "delete", "user", "lucid", check=False)
    for name in ("passwd", "group", "shadow"):
        path = root / "etc" / name
        if path.exists():
            kept = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith("lucid:")]
            path.write_text("".join(kept))
    for path in [
        *etc.glob("lucid*"),
        *etc.glob("*.lua"),
        root / "run/lucid",
        *root.glob("etc/systemd/system/lucid*"),
    ]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    stand_in = root / "usr/local/bin/systemctl"
    stand_in.write_text((Path(__file__).parent / "systemctl_stand_in.py").read_text())
    stand_in.chmod(0o755)
    box.run("/usr/local/bin/systemctl", "restart", "slurmctld", "slurmd")
    box.wait("every node", lambda: box.run("sinfo", "-h", "-N", "-t", "idle").stdout.count("\n") == 4)


def give_network(box: Box) -> None:
    """The host's name server and certificates, and apt's lists. A machine that reaches no mirror skips."""
    root = box.root
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    names = root / "etc/nsswitch.conf"
    names.write_text(names.read_text().replace("hosts: files", "hosts: files dns"))
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    # a mirror may hold sid as it was weeks ago
    (root / "etc/apt/apt.conf.d/90old-mirror").write_text('Acquire::Check-Valid-Until "false";\n')
    done = subprocess.run(
        ["chroot", str(root), "sh", "-c", "apt-get update && apt-get install -y ca-certificates"],
        capture_output=True, text=True, check=False, timeout=300,
        env={"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"no Debian mirror is reached from the testbed: {done.stderr[-300:]}")
    if certificates.exists():
        shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")


def slurms_own(box: Box) -> dict[str, bytes | str]:
    """Every file of Slurm's, and what it runs with, but for what tells the time."""
    found: dict[str, bytes | str] = {
        str(path): path.read_bytes() for path in (box.root / "etc/slurm").rglob("*") if path.is_file()
    }
    config = box.run("scontrol", "show", "config").stdout
    volatile = ("Configuration data as of", "BOOT_TIME", "NEXT_JOB_ID")
    found["config"] = "\n".join(line for line in config.splitlines() if not line.startswith(volatile))
    return found


# -- with Lucid inside ---------------------------------------------------------------------------------------


def why_not_made(target: str) -> str:
    """Makes a target of the Makefile. Two makes at once would each find the other's environment half made.

    Returns:
        The end of what make said where it failed, else "".
    """
    with tree.locked(REPO / "build/make.lock"):
        done = subprocess.run(["make", target], cwd=REPO, capture_output=True, text=True, check=False, timeout=600)
    return done.stderr[-300:] or "make failed" if done.returncode else ""


def with_lucids_needs(layout: Layout) -> Layout:
    """The layout over a tree that has a whole Python, and Lucid's dependencies for it."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["web"]]
    return grown(layout, "lucid", needs, ["python3"], lambda part: _make(part, needs))


def grown(
    layout: Layout, name: str, needs: Sequence[str], packages: Sequence[str], fill: Callable[[Path], None]
) -> Layout:
    """The layout over a copy of its tree with these Debian packages and what ``fill`` puts there. It is made once for
    these ``needs``; where it cannot be made, the test is skipped with the reason."""
    digest = hashlib.sha256("\n".join(needs).encode()).hexdigest()[:8]
    wanted = replace(layout, built=f"{layout.built}-{name}-{digest}")
    tree.build(layout, print)
    with tree.locked(layout.cache / f"{wanted.tree.name}.lock"):
        if not wanted.tree.is_dir():
            part = wanted.tree.with_name(f"{wanted.tree.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            print(f"{part.name}: what {name} needs beside Slurm (once; one to three minutes)", file=sys.stderr)
            subprocess.run(["cp", "-a", "--reflink=auto", layout.tree, part], check=True)
            give_network(Box(part))
            (part / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # a package starts no service here
            (part / "usr/sbin/policy-rc.d").chmod(0o755)
            _must("chroot", str(part), "apt-get", "install", "--yes", "-qq", "--no-install-recommends", *packages)
            _must("chroot", str(part), "apt-get", "clean")
            shutil.rmtree(part / "var/lib/apt/lists")
            fill(part)
            part.rename(wanted.tree)
    return wanted


def _make(part: Path, needs: list[str]) -> None:
    lib = "/opt/lucid/needs"
    version = max(path.name.removeprefix("python") for path in (part / "usr/lib").glob("python3.*"))
    _must(
        sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile",
        "--only-binary=:all:", "--python-version", version, "--target", f"{part}{lib}", *needs,
    )  # fmt: skip
    _must("chroot", str(part), "python3", "-m", "compileall", "-q", "-x", "/tests?/", lib)
    packages = part / f"opt/lucid/lib/python{version}/site-packages"
    packages.mkdir(parents=True)
    (packages / "lucid.pth").write_text(f"{lib}\n/opt/lucid/src\n")
    (part / "opt/lucid/pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    bin_ = part / BIN.lstrip("/")
    bin_.mkdir()
    (bin_ / "python3").symlink_to("/usr/bin/python3")


def _must(*words: str) -> None:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=1200,
        env={**os.environ, "PATH": f"{PATH}:{os.environ['PATH']}", "DEBIAN_FRONTEND": "noninteractive",
             "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"{' '.join(words[:6])} …: {(done.stderr or done.stdout)[-300:]}")


def put_in(box: Box) -> None:
    """Lucid of this checkout, in /opt/lucid/src, and its programs."""
    source = box.root / "opt/lucid/src"
    for name in ("lucid", "slurm"):
        shutil.copytree(REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in source.rglob("*"):
        if path.is_dir():
            path.chmod(0o777)  # lucidd, too, keeps what it has compiled
    where = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("lucidctl", "lucidd", "lucid-web"):
        program, (module, _, function) = box.root / BIN.lstrip("/") / name, where[name].partition(":")
        program.write_text(f"#!{BIN}/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        program.chmod(0o755)


# -- with a whole Python -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MountedPython:
    """``environment``: what a batch script exports for ``program`` to work."""

    program: str
    environment: str


def copy(path: Path, to: Path) -> None:
    """A file or a folder, into a folder."""
    if path.is_dir():
        shutil.copytree(path, to / path.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(path, to)


@contextmanager
def python_in(box: Box, python: str, home: str) -> Iterator[MountedPython]:
    """``python``, an interpreter of a virtual environment, below the folder ``home`` of the testbed."""
    asked = "import sys, sysconfig; print(sys.base_prefix, sysconfig.get_path('purelib'), *sys.version_info[:2])"
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    base, site, version = said[0], said[1], ".".join(said[2:])
    mounts = []
    for name, source in (("python", base), ("site", site)):
        (box.root / home / name).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", "-o", "ro", source, str(box.root / home / name)], check=True)
        mounts.append(box.root / home / name)
    _copy_libraries(box, Path(base), box.root / home / "lib")
    libraries = f"LD_LIBRARY_PATH=/{home}/python/lib:/{home}/lib"
    try:
        yield MountedPython(f"/{home}/python/bin/python{version}", f"{libraries} PYTHONPATH=/{home}/site")
    finally:
        for mount in mounts:
            subprocess.run(["umount", "-l", str(mount)], check=True)


def _copy_libraries(box: Box, base: Path, to: Path) -> None:
    """Those of this machine that its Python's modules need and the testbed does not have."""
    to.mkdir(exist_ok=True)
    modules = [str(path) for path in base.glob("lib/python3*/lib-dynload/*.so")]
    told = subprocess.run(["ldd", *modules], capture_output=True, text=True, check=True).stdout
    theirs = {path.name for path in (box.root / "usr/lib").rglob("*.so*")}
    for word in told.split():
        if (
            word.startswith("/")
            and ".so" in word
            and Path(word).name not in theirs
            and base not in Path(word).parents
        ):
            shutil.copy(word, to)


# -- with MPS ------------------------------------------------------------------------------------------------


def install_mps(box: Box) -> Path:
    """NVIDIA's programs, and no setting that names them; what the daemons did stands in the folder returned."""
    folder = box.root / "tmp/fake-mps"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "log").touch()
    (folder / "log").chmod(0o666)  # daemons of several users write there
    bin_ = box.root / "usr/bin"
    shutil.copy(FAKE, bin_ / "nvidia-cuda-mps-control.py")
    control = bin_ / "nvidia-cuda-mps-control"
    control.write_text('#!/bin/sh\nFAKE_MPS=/tmp/fake-mps exec python3 /usr/bin/nvidia-cuda-mps-control.py "$@"\n')
    smi = bin_ / "nvidia-smi"
    smi.write_text(nvidia_smi({f"GPU-aa{minor}": minor for minor in (2, 3, 0, 1)}))  # as on hosts of AMD
    for path in (control, smi):
        path.chmod(0o755)
    return folder


@contextmanager
def mps_on(box: Box) -> Iterator[Path]:
    """The nodes have MPS; what its daemons did stands in the folder returned."""
    folder = install_mps(box)
    conf = box.root / "etc/slurm/lucid/node.conf"
    conf.write_text("mps /etc/slurm/lucid/mps\nlimit 15\n")
    yield folder
    bin_ = box.root / "usr/bin"
    for name in ("nvidia-cuda-mps-control", "nvidia-smi", "nvidia-cuda-mps-control.py"):
        (bin_ / name).unlink()
    conf.unlink()
