"""What the packages hold: the same tree for a deb and an rpm, from the lock and from this checkout.

Nothing of the machine that builds gets in: the libraries are the wheels of the lock for the Python that is asked for,
which need not be the Python that runs this.
"""

from __future__ import annotations

import ast
import gzip
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PACKAGES", "REPO", "Target", "source_files", "stage", "uv"]

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("lucid", "lucid-node")
_OWN = "--link-mode=copy"
"""Files of the tree are edited; as links they would be uv's cache, and every other environment made from it."""
_NOT_NEEDED = (
    # interpret-core: the same library for other systems, and twice with debug information
    r"interpret/root/bld/lib/(?!libebm_linux_{wheel}\.so$).*",
    r"(.*/)?tests?/.*",
    r".*\.(pyi|pyx|pxd|pxi|h|hpp|c|cpp|a|map|f90|tp)",
    r"[^/]+\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|uv_.*\.json|sboms/.*)",
    r"bin/.*",
    r"(.*/)?__pycache__/.*",
    r"\.lock",
)


@dataclass(frozen=True, slots=True)
class Target:
    """For whom it is built. ``python``: minor version of its /usr/bin/python3.N; ``arch``: as ``uname -m`` says."""

    family: str
    python: str
    arch: str

    @property
    def version(self) -> str:
        """Of Lucid."""
        return str(_project()["version"])

    @property
    def homepage(self) -> str:
        """Where Lucid is published."""
        return str(_project()["urls"]["Homepage"])

    @property
    def schema(self) -> int:
        """How many migrations the store of this version has had."""
        text = (REPO / "lucid/store/file.py").read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            names = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(getattr(name, "id", "") == "MIGRATIONS" for name in names):
                assert isinstance(node.value, ast.Tuple | ast.List)
                return len(node.value.elts)
        raise SystemExit("lucid/store/file.py names no MIGRATIONS")


def uv() -> str:
    """The program that reads the lock."""
    found = Path(sys.executable).with_name("uv")
    return str(found) if found.exists() else (shutil.which("uv") or "uv")


def source_files() -> list[str]:
    """What git knows, or all that an unpacked sdist has."""
    if (REPO / ".git").exists():
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True)
        return [name for name in done.stdout.split("\0") if name and (REPO / name).is_file()]
    skip = ("build", "out", ".venv")
    found = (path.relative_to(REPO) for path in REPO.rglob("*") if path.is_file())
    return [str(name) for name in found if name.parts[0] not in skip and "__pycache__" not in name.parts]


def stage(target: Target, work: Path) -> dict[str, Path]:
    """Make the root folder of each package below *work*."""
    roots = {name: work / name for name in PACKAGES}
    for root in roots.values():
        shutil.rmtree(root, ignore_errors=True)
    wheel = _wheel(work)
    _lucid(target, roots["lucid"], wheel)
    _node(target, roots["lucid-node"])
    for name, root in roots.items():
        _papers(target, name, root)
        _modes(target, root)
    return roots


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _run(*words: str | Path, cwd: Path = REPO) -> str:
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed:\n{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def _wheel(work: Path) -> Path:
    """Of a copy of the sources: setuptools leaves things where it builds, and takes them up again."""
    clean, out = work / "source", work / "wheel"
    for folder in (clean, out):
        shutil.rmtree(folder, ignore_errors=True)
    for name in source_files():
        if name.split("/")[0] in ("lucid", "slurm", "pyproject.toml", "README.md", "LICENSE"):
            (clean / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, clean / name)
    constraints = REPO / "requirements-dev.lock"
    _run(
        uv(), "build", "--native-tls", "--quiet", "--wheel", "--python", sys.executable, "--build-constraints",
        constraints, "--require-hashes", "--out-dir", out, clean,
    )  # fmt: skip
    return next(out.glob("*.whl"))


def _libraries(target: Target, site: Path, lock: str) -> None:
    _run(
        uv(), "pip", "install", "--native-tls", "--quiet", _OWN, "--python", sys.executable, "--target", site,
        "--python-version", target.python, "--python-platform", f"{target.arch}-manylinux_2_28",
        "--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", REPO / lock,
    )  # fmt: skip


def _trim(target: Target, site: Path) -> None:
    wheel = {"x86_64": "x64", "aarch64": "arm"}[target.arch]
    away = [re.compile(pattern.replace("{wheel}", wheel)) for pattern in _NOT_NEEDED]
    for path in sorted(site.rglob("*"), reverse=True):
        name = str(path.relative_to(site))
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif any(p.fullmatch(name) for p in away):
            path.unlink()


def _environment(prefix: Path, python: str, version: str) -> None:
    """A virtual environment as ``python3 -m venv`` makes it, without that Python at hand and without pip."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python3").symlink_to(f"../../../bin/{python}")
    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\n{version}")


def _launcher(root: Path, path: Path, prefix: str) -> None:
    """The program of this name, as ``[project.scripts]`` says."""
    module, _, function = _project()["scripts"][path.name].partition(":")
    text = f"import sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    path.write_text(f"#!{prefix}/bin/python3 -I\n{text}")
    link = root / "usr/bin" / path.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"..{prefix.removeprefix('/usr')}/bin/{path.name}")


def _lucid(target: Target, root: Path, wheel: Path) -> None:
    prefix = root / "usr/lib/lucid"
    site = prefix / f"lib/python{target.python}/site-packages"
    _environment(prefix, f"python{target.python}", f"version = {target.python}\n")
    _libraries(target, site, "requirements.lock")
    words = ("--native-tls", "--quiet", _OWN, "--python", sys.executable, "--target", site, "--no-deps", wheel)
    _run(uv(), "pip", "install", "--no-index", *words)
    (site / "share").rename(prefix / "share")
    _trim(target, site)
    for name in ("lucidctl", "lucidd", "lucid-web"):
        _launcher(root, prefix / "bin" / name, "/usr/lib/lucid")
    release = root / "usr/sbin/lucid-release"
    release.parent.mkdir(parents=True)
    shutil.copy(REPO / "slurm/lucid-release", release)
    for unit in ("lucidd.service", "lucid-web.service", "lucid-release.service", "lucid-release.timer"):
        _unit(root, unit)
    _copy(root, "lucid.sysusers", "usr/lib/sysusers.d/lucid.conf")
    _copy(root, "lucid.tmpfiles", "usr/lib/tmpfiles.d/lucid.conf")
    (root / "etc/lucid").mkdir(parents=True)


OF_NODES = re.compile(
    r"slurm/((prolog\.d|epilog\.d|mps|lucid_hooks|lucid_job)/"
    r"|(node_hook\.sh|task_prolog|unseal|site_scripts|lucid_[a-z]+\.py)$)"
)
"""Files of the repository that lucid-node brings for hooks and jobs."""


def _node(target: Target, root: Path) -> None:
    """The libraries that samplers need, and the modules of Lucid that they import."""
    prefix = root / "usr/lib/lucid-node"
    site = prefix / f"lib/python{target.python}/site-packages"
    _environment(prefix, f"python{target.python}", f"version = {target.python}\n")
    _libraries(target, site, "requirements-node.lock")
    _trim(target, site)
    for path in _modules("lucid.node"):
        to = site / path.relative_to(REPO)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    _launcher(root, prefix / "bin/lucid-sampler", "/usr/lib/lucid-node")
    for name in source_files():
        if OF_NODES.match(name):
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, prefix / name)
    (prefix / "slurm/node.conf").symlink_to("/etc/lucid/node.conf")
    _copy(root, "node.conf", "etc/lucid/node.conf")
    _unit(root, "lucid-sampler.service")
    _copy(root, "lucid.sysusers", "usr/lib/sysusers.d/lucid-node.conf")
    _copy(root, "lucid-node.tmpfiles", "usr/lib/tmpfiles.d/lucid-node.conf")


def _modules(package: str) -> list[Path]:
    """Every module of Lucid that *package* imports, at its start or later."""
    found: dict[str, Path] = {}
    left = [f"{package}.{path.stem}" for path in (REPO / package.replace(".", "/")).glob("*.py")]
    while left:
        name = left.pop()
        base = REPO / name.replace(".", "/")
        path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
        if name in found or not path.exists():
            continue
        found[name] = path
        left.append(name.rpartition(".")[0])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lucid"):
                left += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                left += [alias.name for alias in node.names if alias.name.startswith("lucid.")]
    return sorted(set(found.values()))


def _unit(root: Path, name: str) -> None:
    text = (REPO / "slurm/systemd" / name).read_text(encoding="utf-8")
    text = text.replace("/opt/lucid/bin/", "/usr/bin/").replace(
        "/etc/slurm/lucid/lucid-release", "/usr/sbin/lucid-release"
    )
    path = root / "usr/lib/systemd/system" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _copy(root: Path, name: str, to: str) -> None:
    (root / to).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(REPO / "packaging/files" / name, root / to)


def _papers(target: Target, name: str, root: Path) -> None:
    """Man pages, completion, documentation."""
    from manual import completions, man_pages

    from docs.site.settings_page import settings_example

    of_node = ("lucid-sampler.8",)
    for page, text in man_pages(REPO).items():
        if (page in of_node) == (name == "lucid-node"):
            _packed(root / f"usr/share/man/man{page[-1]}/{page}.gz", text)
    doc = root / "usr/share/doc" / name
    _packed(doc / "changelog.gz", (REPO / "CHANGELOG.md").read_text(encoding="utf-8"))
    (doc / "copyright").write_text(_copyright(root), encoding="utf-8")
    pages = ("nodes.md", "files.md") if name == "lucid-node" else None
    for path in sorted((REPO / "docs").glob("*.md")):
        if pages is None or path.name in pages:
            shutil.copy(path, doc / path.name)
    if name != "lucid":
        return
    (doc / "examples").mkdir()
    (doc / "examples/lucid.toml").write_text(settings_example() + "\n", encoding="utf-8")
    places = {
        "bash": "usr/share/bash-completion/completions/lucidctl",
        "zsh": f"usr/share/zsh/{'vendor-completions' if target.family == 'deb' else 'site-functions'}/_lucidctl",
        "fish": "usr/share/fish/vendor_completions.d/lucidctl.fish",
    }
    for shell, text in completions().items():
        (root / places[shell]).parent.mkdir(parents=True, exist_ok=True)
        (root / places[shell]).write_text(text, encoding="utf-8")


def _copyright(root: Path) -> str:
    """Lucid's licence, and what each library says of its own; their texts lie beside them."""
    year = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])).tm_year
    lines = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: lucid-scheduler", "",
        "Files: *", f"Copyright: {year} the authors of Lucid", "License: Apache-2.0", "",
        "License: Apache-2.0",
        " On Debian the text of the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.", "",
        "Comment:",
        " The private environment holds these libraries, without their tests and sources of C code.",
        " The licence of each is in its folder NAME.dist-info:",
    ]  # fmt: skip
    for meta in sorted(root.rglob("*.dist-info/METADATA")):
        text = meta.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        said = dict(re.findall(r"^([\w-]+): (.+)$", text, re.MULTILINE))
        classed = re.findall(r"^Classifier: License :: (?:OSI Approved :: )?(.+)$", text, re.MULTILINE)
        licence = said.get("License-Expression") or ", ".join(classed) or said.get("License", "see its folder")[:60]
        if said["Name"] != "lucid-scheduler":
            lines.append(f" {said['Name']} {said['Version']}: {licence}")
    return "\n".join(lines) + "\n"


def _packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as file:
        file.write(text.encode())


def _modes(target: Target, root: Path) -> None:
    """Folders and programs 755, all else 644, whatever the umask of who builds.

    Some modules of libraries begin like programs, and are none. Red Hat wants shared libraries executable.
    """
    root.chmod(0o755)
    for path in root.rglob("*"):
        if path.is_symlink():
            continue
        program = path.is_file() and path.open("rb").read(2) == b"#!"
        if program and "site-packages" in path.parts:
            path.write_bytes(b"#" + path.read_bytes()[2:])
            program = False
        shared = target.family == "rpm" and (path.suffix == ".so" or ".so." in path.name)
        path.chmod(0o755 if path.is_dir() or program or shared else 0o644)
