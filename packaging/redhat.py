"""A staged tree as an .rpm: a spec file without any building in it, for rpmbuild of any distribution."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from debian import MAINTAINER as _MAINTAINER
from scripts import RPM, script
from staging import Target

__all__ = ["build_rpm"]

_ABOUT = {
    "lucid": (
        "Scheduler of GPU jobs beside Slurm",
        """lucidd orders, profiles and packs deep-learning jobs on a Slurm cluster
with GPUs, and explains each decision. lucidctl is its command line,
lucid-web serves read-only pages. Installing this package changes nothing
in Slurm, and starts nothing.

Python libraries are in a private environment below /usr/lib/lucid, at the
versions that were tested.""",
    ),
    "lucid-node": (
        "Sampler and hooks of Lucid for the nodes of a Slurm cluster",
        """lucid-sampler reads the GPUs of running jobs from beside them. Prolog,
epilog and task prolog start it, and MPS for jobs that share a GPU. Nothing
runs until slurm.conf names these hooks or lucid-sampler.service is enabled.""",
    ),
}


_LIBRARIES = [
    f"{name}(64bit)"
    for name in ("libc.so.6(GLIBC_2.28)", "libstdc++.so.6()", "libgcc_s.so.1()", "libz.so.1()")
]  # fmt: skip


def build_rpm(target: Target, package: str, root: Path, work: Path, out: Path, level: int) -> Path:
    """Write the package; returns its path."""
    short, long = _ABOUT[package]
    needs = [f"/usr/bin/python{target.python}", *(_LIBRARIES if package == "lucid" else _LIBRARIES[:1])]
    when = time.strftime("%a %b %d %Y", time.gmtime(_epoch()))
    scripts = "".join(
        f"%{name}\n{body}exit 0\n\n"
        for name, (part, head) in RPM.items()
        if (body := script(target, package, part, head).replace("%", "%%"))
    )
    spec = work / f"{package}.spec"
    spec.write_text(
        f"""# made by packaging/redhat.py
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global __brp_mangle_shebangs %{{nil}}
%global _build_id_links none
Name: {package}
Version: {target.version}
Release: 1
Summary: {short}
License: Apache-2.0
Group: System Environment/Daemons
Packager: {_MAINTAINER}
URL: {target.homepage}
AutoReqProv: no
{"".join(f"Requires: {need}{chr(10)}" for need in needs)}Requires: systemd

%description
{long}

%prep
%build
%install
mkdir -p %{{buildroot}}
cp -a {root}/. %{{buildroot}}/

{scripts}%files
%defattr(-,root,root,-)
{_files(root, package)}
%changelog
* {when} {_MAINTAINER} - {target.version}-1
- Built from the sources of {target.version}.
"""
    )
    top = work / f"rpm-{package}"
    words = [
        "rpmbuild", "-bb", "--quiet", "--target", target.arch, "--define", f"_topdir {top}",
        "--define", f"_rpmdir {top}/out", "--define", f"_binary_payload w{level}T0.xzdio",
        "--define", "use_source_date_epoch_as_buildtime 1", "--define", "_buildhost localhost",
        "--define", "clamp_mtime_to_source_date_epoch 1", str(spec),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"rpmbuild failed:\n{done.stdout}{done.stderr}")
    made = next((top / "out").rglob("*.rpm"))
    return made.replace(out / made.name)


def _epoch() -> int:
    return int(os.environ["SOURCE_DATE_EPOCH"])


def _files(root: Path, package: str) -> str:
    """Every file; folders only where they are ours."""
    own = re.compile(rf"usr/lib/{package}(/|$)|usr/share/doc/{package}(/|$)|etc/lucid$")
    lines = []
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        quoted = f'"/{name}"'
        if path.is_dir() and not path.is_symlink():
            if own.match(name):
                lines.append(f"%dir {quoted}")
        elif name.startswith("etc/"):
            lines.append(f"%config(noreplace) {quoted}")
        elif name.startswith(("usr/share/doc/", "usr/share/man/")):
            lines.append(f"%doc {quoted}")
        else:
            lines.append(quoted)
    return "\n".join(lines) + "\n"
