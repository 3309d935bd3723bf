"""The Grafana boards and the alert rules: as they are made, and asked of a real Prometheus that scraped a lucidd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from filled_site import filled_site
from lucid.daemon.reporting.metrics import METRICS
from lucid.daemon.reporting.waste_inputs import MetricsSource
from prometheus_box import FOLDER, ROOT, Exporter, Prometheus, make, plain

QUERIES = [
    pytest.param(expr, panel.empty, id=f"{board.uid}: {panel.title}: {number}")
    for board in make.BOARDS
    for panel in board.panels
    for number, (expr, _) in enumerate(panel.queries)
]
VALUES = [pytest.param(alert.value, alert.empty, id=alert.name) for alert in make.ALERTS]
KINDS = {"_total": "counter", "_duration_seconds": "histogram"}
EMPTY_HERE = {
    "LucidForecastsMiss": "fewer than fifty starts have been judged",
    "LucidModelUnusable": "no models",
    "LucidPartitionUnplanned": "all partitions are planned",
}
"""By panel or alert, why even the site of these tests has no data for it."""


def test_the_files_are_what_the_script_makes() -> None:
    there = {
        path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir() if path.suffix in (".json", ".yml")
    }
    assert there == make.made(), "python slurm/grafana/make.py"


def test_boards_have_ids_of_their_own_and_no_panel_over_another() -> None:
    boards = [json.loads(text) for name, text in make.made().items() if name.endswith(".json")]
    assert len({board["uid"] for board in boards}) == len(boards) == 3
    for board in boards:
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(x + 8 <= 24 for x, _ in places)


def test_every_alert_has_a_runbook() -> None:
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    heads = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert heads == [alert.name for alert in make.ALERTS]
    for alert in make.ALERTS:
        assert f"docs/monitoring.md#{alert.name.lower()}" in make.made()["alerts.yml"]


def metric_rows() -> list[str]:
    """A row of docs/metrics.md for each metric, in the order of the table."""
    rows: list[str] = []
    for metric, words in METRICS.items():
        name, _, labels = metric.rstrip("}").partition("{")
        kind = next((kind for end, kind in KINDS.items() if name.endswith(end)), "gauge")
        rows.append(f"| `{name}` | {kind} | {', '.join(f'`{one}`' for one in labels.split(',') if one)} | {words} |")
    return rows


def test_every_metric_stands_in_the_reference() -> None:
    """``LUCID_WRITE_GOLDEN=1`` writes the table."""
    page = ROOT / "docs/metrics.md"
    head, _, rest = page.read_text(encoding="utf-8").partition("|---|---|---|---|\n")
    after = rest[re.search(r"^(?!\|)", rest, re.MULTILINE).start() :]  # type: ignore[union-attr]
    made = f"{head}|---|---|---|---|\n" + "\n".join(metric_rows()) + f"\n{after}"
    if os.environ.get("LUCID_WRITE_GOLDEN"):
        page.write_text(made, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == made, "LUCID_WRITE_GOLDEN=1 writes it"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("no Prometheus: apt-get install prometheus")
    site = filled_site(tmp_path_factory.mktemp("site"))
    exporter = Exporter(MetricsSource(site.settings, now_s=lambda: site.slurm.now))
    found = Prometheus(tmp_path_factory.mktemp("prometheus"), exporter.port)
    try:
        found.scraped(2)
        site.turns(120.0)
        found.scraped(5)
        yield found
    finally:
        found.stop()
        exporter.server.shutdown()
        exporter.server.server_close()


def test_prometheus_takes_every_sample(prometheus: Prometheus) -> None:
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    found = prometheus.ask("query", query='count({__name__=~"lucid_.+"})')["result"]
    assert float(found[0]["value"][1]) > 100


@pytest.mark.parametrize(("expr", "empty"), [*QUERIES, *VALUES])
def test_every_query_has_data(prometheus: Prometheus, expr: str, empty: str, request: pytest.FixtureRequest) -> None:
    found = prometheus.ask("query", query=plain(expr))["result"]
    name = request.node.callspec.id
    if name in EMPTY_HERE:
        assert empty == EMPTY_HERE[name]
        assert not found
    else:
        assert found, "no data"


def test_rules_are_loaded_and_only_what_is_so_fires(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules] == [alert.name for alert in make.ALERTS]
    assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
    going = {rule["name"] for rule in rules if rule["state"] != "inactive"}
    assert "LuciddSilent" in going, "the site's clock is far behind"
    assert "LucidStoreUnreadable" not in going


def test_promtool_passes_the_alert_rules_where_a_configuration_names_them(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: apt-get install prometheus")
    path = tmp_path / "prometheus.yml"
    path.write_text(f"rule_files: ['{FOLDER / 'alerts.yml'}']\nscrape_configs: [{{job_name: lucid}}]\n")
    done = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
