"""A staged tree as a .deb: control, maintainer scripts, checksums; put together by dpkg-deb."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
from email.utils import formatdate
from pathlib import Path

from scripts import DEB, script
from staging import REPO, Target

__all__ = ["MAINTAINER", "build_deb"]

_SONAMES = {"libc.so.6": "libc6", "libstdc++.so.6": "libstdc++6", "libgcc_s.so.1": "libgcc-s1", "libz.so.1": "zlib1g"}
_OF_LIBC = (
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
)
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_NAME, _MAIL = os.environ.get("DEBFULLNAME", "Lucid developers"), os.environ.get("DEBEMAIL", "lucid@example.org")
MAINTAINER = f"{_NAME} <{_MAIL}>"
"""Who a site's packages are from: DEBFULLNAME and DEBEMAIL, as Debian's own tools read them."""
_ABOUT = {
    "lucid": (
        "scheduler of GPU jobs beside Slurm",
        """ lucidd orders, profiles and packs deep-learning jobs on a Slurm cluster
 with GPUs, and explains each decision. lucidctl is its command line,
 lucid-web serves read-only pages. Installing this package changes nothing
 in Slurm, and starts nothing.
 .
 Python libraries are in a private environment below /usr/lib/lucid, at the
 versions that were tested.""",
    ),
    "lucid-node": (
        "sampler and hooks of Lucid for the nodes of a Slurm cluster",
        """ lucid-sampler reads the GPUs of running jobs from beside them. Prolog,
 epilog and task prolog start it, and MPS for jobs that share a GPU. Nothing
 runs until slurm.conf names these hooks or lucid-sampler.service is enabled.""",
    ),
}


def build_deb(target: Target, package: str, root: Path, tag: str, out: Path, level: int) -> Path:
    """Write the package; returns its path. ``tag``: of the distribution, as ``~deb13``."""
    version, arch = f"{target.version}-1{tag}", _ARCH[target.arch]
    doc = root / "usr/share/doc" / package
    when = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    log = (
        f"lucid-scheduler ({version}) unstable; urgency=medium\n\n  * Built from the sources of {target.version}.\n\n"
    )
    with (doc / "changelog.Debian.gz").open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(f"{log} -- {MAINTAINER}  {when}\n".encode())
    (doc / "changelog.Debian.gz").chmod(0o644)
    _overrides(package, root)
    control = root / "DEBIAN"
    control.mkdir()
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    size = sum(-(-path.stat().st_size // 1024) for path in files)
    short, long = _ABOUT[package]
    (control / "control").write_text(
        f"Package: {package}\nSource: lucid-scheduler\nVersion: {version}\nArchitecture: {arch}\n"
        f"Maintainer: {MAINTAINER}\nInstalled-Size: {size}\n"
        f"Depends: {_needs(root, target)}, "
        "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles\n"
        f"Suggests: {'slurm-client, munge' if package == 'lucid' else 'slurmd, munge'}\n"
        f"Section: admin\nPriority: optional\nDescription: {short}\n{long}\n"
    )
    conffiles = [f"/{path.relative_to(root)}" for path in files if path.relative_to(root).parts[0] == "etc"]
    if conffiles:
        (control / "conffiles").write_text("\n".join(conffiles) + "\n")
    sums = (f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.relative_to(root)}\n" for p in files)
    (control / "md5sums").write_text("".join(sums))
    for name, (part, head) in DEB.items():
        if body := script(target, package, part, head):
            (control / name).write_text(f"#!/bin/sh\nset -e\n{body}exit 0\n")
            (control / name).chmod(0o755)
    path = out / f"{package}_{version}_{arch}.deb"
    words = ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{level}", "--build", str(root), str(path)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(control)
    return path


def _overrides(package: str, root: Path) -> None:
    source = REPO / f"packaging/files/{package}.lintian-overrides"
    if source.exists():
        to = root / "usr/share/lintian/overrides" / package
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)
        to.chmod(0o644)


def _needs(root: Path, target: Target) -> str:
    """The interpreter, and the packages whose libraries the private ones are linked with."""
    shipped, wanted, glibc = set(), set(), (2, 17)
    for path in root.rglob("*.so*"):
        shipped.add(path.name)
        words = ["readelf", "--wide", "--dynamic", "--version-info", str(path)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        wanted |= set(re.findall(r"NEEDED\).*\[(.+)\]", said))
        glibc = max([glibc, *((2, int(minor)) for minor in re.findall(r"\bGLIBC_2\.(\d+)\b", said))])
    outside = wanted - shipped - set(_OF_LIBC)
    if unknown := outside - set(_SONAMES):
        raise SystemExit(f"libraries that no package is known for: {', '.join(sorted(unknown))}")
    known = sorted(_SONAMES[name] for name in outside)
    libc = f"libc6 (>= {glibc[0]}.{glibc[1]})"
    return ", ".join(["python3", f"python{target.python}", *(libc if name == "libc6" else name for name in known)])
