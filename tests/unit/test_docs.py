"""The pages: links, words, settings, policies."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks.__main__ import PARTS
from docs.site.settings_page import field_texts, settings_example, settings_reference
from lucid.cli.site.doctor import diagnose
from lucid.config.load import SIMULATED, Settings, load_settings, settings_from, simulation_keys
from lucid.config.policy import LIVE_DEFAULTS, PolicySettings, with_defaults
from lucid.config.section import Section, is_table, keys_of
from lucid.daemon.process import main
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.registry import BUILT_IN, import_policy, make_policy

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = ("settings.md", "commands.md", "figures.md")
WIDE = ("figures.md", "0055-own-first.md", "administrator.md", "user.md", "researcher.md", "models.md", "metrics.md")
"""Pages whose lines may still be longer, and of those in docs/tutorials."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> frozenset[str]:
    """As a forge makes them of headings: small letters, hyphens for spaces, a number behind each repeated one."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found, seen = set(), Counter[str]()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8"))
    own = [((page.parent / path).resolve() if path else page, name) for path, name in links if "://" not in path]
    assert [str(at) for at, _ in own if not at.exists()] == []
    assert [f"{at.name}#{name}" for at, name in own if name and name not in anchors(at)] == []


def test_every_page_is_in_the_index() -> None:
    index = [ROOT / "docs/README.md", ROOT / "docs/decisions/README.md"]
    seen = set(index)
    for page in index:
        seen |= {(page.parent / path).resolve() for path in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))}
    assert [str(page) for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in seen] == []


def test_every_question_of_the_site_has_its_page() -> None:
    asked = tomllib.loads((ROOT / "docs/site/questions.toml").read_text(encoding="utf-8"))
    assert len(asked) >= 32
    assert [page for page in asked.values() if not (ROOT / f"docs/{page}.md").exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=named)
def test_a_page_fits_on_three_screens_and_a_record_on_one(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    if page.name not in WIDE or page == ROOT / "docs/models.md":
        assert [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > 160] == []
    if page.name not in GENERATED:
        assert len(lines) <= (60 if page.parent.name == "decisions" and page.name != "README.md" else 155)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"python -m benchmarks --only (\w+)", text)) <= set(PARTS)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= targets


def test_every_dependency_has_its_line() -> None:
    said = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text(encoding="utf-8").lower()
    declared = re.findall(r'"([a-z][a-z0-9-]+)[><=]+[^"]*"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert [name for name in declared if name not in said] == []


GLOSSARY = ROOT / "docs" / "glossary.md"
TERMS = GLOSSARY.read_text(encoding="utf-8")


@cache
def texts() -> list[tuple[str, str]]:
    """Every text that a person reads, with its path."""
    found = [*(ROOT / "lucid").rglob("*.py"), *(p for p in (ROOT / "slurm").rglob("*") if p.suffix != ".pyc")]
    paths = [path for path in [*found, *PAGES] if path.is_file() and path not in (GLOSSARY, ROOT / "CHANGELOG.md")]
    return [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8", errors="replace")) for path in paths]


def test_every_term_of_the_glossary_is_used() -> None:
    everything = "\n".join(text for path, text in texts()).lower()
    terms = re.findall(r"^\| (.+?) \|", TERMS, re.MULTILINE)
    terms = [term for term in terms if term != "term"]
    assert len(terms) > 40
    assert len(set(terms)) == len(terms), "one meaning a word"
    assert [term for term in terms if term.lower() not in everything] == []


OURS = (
    "VC", "slots?", "site factors?", "sampler", "heartbeat", "tag", "lease", "pool", "parked", "JCT", "shadow",
    "quota",
)  # fmt: skip
"""Words that no administrator of Slurm knows from elsewhere."""
DOORS = (ROOT / "docs/README.md").read_text(encoding="utf-8").split("## Researchers")[0]


@pytest.mark.parametrize("page", sorted(set(re.findall(r"\]\(((?:tutorials/)?[\w-]+\.md)", DOORS)) - {"glossary.md"}))
def test_no_word_of_ours_is_met_before_it_is_explained(page: str) -> None:
    """Where a page of administrators or users first says one, it stands in italics, with its meaning."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if page in GENERATED:
        return
    text = re.sub(r"```.*?```|^    .*$|`[^`\n]*`|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    firsts = [re.search(rf"(?<![\w./-]){word}(?![\w-])", text, re.IGNORECASE) for word in OURS]
    assert [word[0] for word in firsts if word and f"*{word[0]}*" != text[word.start() - 1 : word.end() + 1]] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=named)
def test_modules_and_files_that_docs_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/.-])((?:lucid|slurm|tests|tools|benchmarks)/[\w./-]*\w)", text)
    own = tuple(f"lucid/{name}" for name in ("slurm", "lucid", "wake", "testbed", "samples"))  # folders of a host
    own += ("tests/e2e/FILE",)
    missing = [path for path in paths if not (ROOT / path).exists() and not path.startswith(own)]
    assert [path for path in missing if not list(ROOT.glob(f"{path}*"))] == []
    modules = re.findall(r"`(lucid(?:\.\w+)+)[`(]", text)
    assert [name for name in modules if not _exists(name)] == []


def _exists(name: str) -> bool:
    """A module, or a name in one; ``lucid.policies`` is a group of entry points; files are none."""
    module, _, last = name.rpartition(".")
    if name == "lucid.policies" or last in ("toml", "db", "conf", "py"):
        return True
    with suppress(ModuleNotFoundError):  # the module has no such module in it
        if find_spec(name) is not None:
            return True
    spec = find_spec(module)
    text = "" if spec is None or spec.origin is None else Path(spec.origin).read_text(encoding="utf-8")
    return re.search(rf"\b{last}\b", text) is not None


def fields(section: type[Section], table: str = "") -> Iterator[tuple[str, str]]:
    texts = field_texts(section)
    for name, kind in keys_of(section).items():
        if is_table(kind):
            yield from fields(kind, f"{table}{name}.")
        else:
            yield f"{table}{name}", texts.get(name, "")


def studied(section: type[Section], table: str = "") -> Iterator[str]:
    for field in structs.fields(section):
        if is_table(field.type):
            yield from studied(field.type, f"{table}{field.name}.")
        elif field.name not in keys_of(section):
            yield f"{table}{field.name}"


SET_BY_FILE = {name for name, _about in fields(Settings)}


def test_what_only_a_study_sets_is_refused_by_line_and_name_in_a_file(tmp_path: Path) -> None:
    assert len(SET_BY_FILE) <= 110, "nobody has to know more settings than that"
    path = tmp_path / "lucid.toml"
    for name in {*studied(Settings)} - {"given"}:
        table, _, key = name.rpartition(".")
        path.write_text(f"[{table}]\n{key} = 1\n")
        with pytest.raises(ConfigError, match=re.escape(f"{path}: line 2: {name!r} is gone: no site set it")):
            load_settings(path)
    study = settings_from({"policy": {"reservation": {"most_share": 0.7}}}, "a study")
    assert study.policy.reservation.most_share == 0.7


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert page == settings_reference().rstrip() + "\n", "python docs/site/settings_page.py > docs/settings.md"


def test_the_example_names_every_key_that_lucidd_reads_with_its_meaning_and_changes_nothing(tmp_path: Path) -> None:
    text = settings_example()
    path = tmp_path / "lucid.toml"
    path.write_text(text)
    assert load_settings(path, live=True) == Settings()
    # with every # in front of a key taken away: all the keys of lucidd, each at its default there
    path.write_text(re.sub(r"^#(\w+ = \S)", r"\1", text, flags=re.MULTILINE))
    given, plain = load_settings(path, live=True), Settings()
    plain = plain.changed({"policy": with_defaults(plain.policy, LIVE_DEFAULTS, frozenset())})
    shown, table = set(), ""
    for line in text.splitlines():
        if found := re.match(r"\[(.+)\]$|#(\w+) =", line):
            table = found[1] or table
            shown |= {f"{table}.{found[2]}"} if found[2] else set()
    simulated = tuple(f"{key}." for key in SIMULATED)
    wanted = {name for name in SET_BY_FILE if not f"{name}.".startswith(simulated)}
    assert shown == wanted
    assert [name for name in sorted(wanted) if attrgetter(name)(given) != attrgetter(name)(plain)] == []
    words = " ".join(line.removeprefix("# ") for line in text.splitlines())
    said = {name: " ".join(about.replace("``", "`").split()) for name, about in fields(Settings)}
    assert [name for name in sorted(wanted) if said[name] not in words] == []
    assert all(said.values())


REFUSED = [
    ("[policy.pollux]\np = 1", "line 3: policy.pollux.p"),
    ("[policy.tiresias]\nthreshold_gpu_s = 1", "line 3: policy.tiresias.threshold_gpu_s"),
    ("[policy.optimus]\ninterval_s = 1", "line 3: policy.optimus.interval_s"),
    ("[overheads]\nrescale_s = 3", "line 3: overheads.rescale_s"),
    ("[policy.packing]\ngss = 1\nsame_user_only = true", "line 4: policy.packing.same_user_only"),
    ("[policy.fairness]\nshares = { a = 5 }", "line 3: policy.fairness.shares"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_lucidd_refuses_settings_of_simulations_and_simulate_takes_them(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lucid.toml"
    path.write_text(f'daemon.partitions.vc = "observe"\n{text}\n')
    load_settings(path)
    assert main(["--config", str(path), "--once"]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert words in said
    assert "lucidctl simulate --config" in said


def test_lucidd_takes_the_settings_of_the_policy_that_it_runs() -> None:
    data = {"daemon": {"policy": "tiresias"}, "policy": {"tiresias": {"threshold_gpu_s": 9.0}, "pollux": {"p": 1.0}}}
    assert simulation_keys(settings_from(data, "here")) == ["policy.pollux.p"]
    assert simulation_keys(settings_from({"policy": {"packing": {"gss": 1}}}, "here")) == []
    fair = {"daemon": {"policy": "optimus-drf"}, "policy": {"optimus": {"interval_s": 60.0}}}
    assert simulation_keys(settings_from(fair, "here")) == [], "a policy's variants take its settings"


def test_doctor_tells_of_them(tmp_path: Path) -> None:
    data = {
        "daemon": {"partitions": {"vc": "observe"}, "state_dir": str(tmp_path), "heartbeat": str(tmp_path / "beat")},
        "slurm": {"prefix": ["false"]},
        "overheads": {"requeue_s": 3},
    }
    assert any("overheads.requeue_s" in f.what and f.level == "bad" for f in diagnose(settings_from(data, "here")))


POLICIES_PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
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
    lines = list[str]()
    for group, names in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in names.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))


def lucidctl(*words: str, path: Path) -> str:
    command = [sys.executable, "-c", "from lucid.cli.main import main; main()", *words]
    env = {"PYTHONPATH": f"{path}:{ROOT}", "PATH": "", "MPLCONFIGDIR": str(path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)
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
    rows = [line.split(",") for line in (out / "patient/jobs.csv").read_text().splitlines()]
    starts = {"long": "0", "early": "20", "wide": "40000", "late": "40100", "last": "40100"}
    assert {row[0]: row[6] for row in rows[1:]} == starts
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
    assert [name for name in BUILT_IN if f"| `{name}` |" not in POLICIES_PAGE] == []
