"""What docs/policies.md and docs/write-a-policy.md say: the third-party policy works as an installed package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lucid.config.policy import PolicySettings
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.registry import BUILT_IN, import_policy, make_policy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
OWN = (ROOT / "docs" / "write-a-policy.md").read_text(encoding="utf-8")


def block(language: str, holding: str) -> str:
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", OWN, re.DOTALL) if holding in text]
    assert len(found) == 1
    return found[0]


def installed(folder: Path, module: str) -> None:
    """The page's package as pip leaves it: the module, and its entry points as metadata."""
    project = tomllib.loads(block("toml", "entry-points"))["project"]
    info = folder / "lucid_patient-0.1.dist-info"
    info.mkdir()
    (folder / "lucid_patient.py").write_text(module, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    lines = [
        line for group, names in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def lucidctl(*words: str, path: Path) -> str:
    code = "from lucid.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{path}:{ROOT}", "PATH": "", "MPLCONFIGDIR": str(path)},
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_policy_runs_and_is_explained(tmp_path: Path) -> None:
    package, trace, out = tmp_path / "site", tmp_path / "t.csv", tmp_path / "out"
    package.mkdir()
    installed(package, block("python", "class Patient"))
    trace.write_text(
        "job_id,vc,gpu_num,submit_time,duration,gpu_util,gmem_util,gmem\n"
        "long,a,4,0,40000,50,30,9000\n"  # half of the node, until 40,000 s
        "wide,a,8,10,100,50,30,9000\n"  # needs the whole node, may be passed until 14,410 s
        "early,a,4,20,20000,50,30,9000\n"  # passes it
        "late,a,2,15000,100,50,30,9000\n"  # waits behind it
        "last,a,4,20100,100,50,30,9000\n"  # would have found room, and waits behind it too
    )
    (tmp_path / "vcs.csv").write_text("vc,num\na,1\n")
    words = ["simulate", str(trace), "--vcs", str(tmp_path / "vcs.csv"), "--policy", "patient", "--out", str(out)]
    lucidctl(*words, path=package)
    starts = {
        line.split(",")[0]: line.split(",")[6] for line in (out / "patient" / "jobs.csv").read_text().splitlines()
    }
    assert starts["early"] == "20"
    assert starts["wide"] == "40000"
    assert starts["last"] == starts["late"] == "40100"
    told = lucidctl("explain", "--run", str(out), "--policy", "patient", "last", path=package)
    assert "Patience(head='wide', waited_s=20090.0, most_s=14400.0)" in told


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "import no_such_module_anywhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lucid_patient", raising=False)
    with pytest.raises(ConfigError, match=r"'patient' of lucid-patient cannot be loaded.*no_such_module_anywhere"):
        make_policy("patient", PolicySettings(), HistoryPredictor())
    with pytest.raises(ConfigError, match="repair or uninstall it"):
        import_policy("patient")
    import_policy("fifo")  # ours need no import, and unknown ones are not this function's affair


def test_every_built_in_policy_is_in_the_table() -> None:
    assert [name for name in BUILT_IN if f"| `{name}` |" not in PAGE] == []
