"""The app for Open OnDemand: as far as it can be checked without one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from scenes.pages import Pages

FOLDER = Path(__file__).parents[3] / "packaging/ondemand"
DOCUMENTED = {
    "name", "category", "subcategory", "role", "description", "icon", "url", "metadata", "new_window", "caption",
}  # fmt: skip
"""Keys of a manifest.yml, as OnDemand's documentation lists them."""


def test_the_manifest_has_documented_keys_and_leads_to_where_the_pages_are() -> None:
    manifest = yaml.safe_load((FOLDER / "lucid/manifest.yml").read_text())
    assert manifest.keys() <= DOCUMENTED
    assert {"name", "category", "description"} <= manifest.keys()
    web = settings()
    assert manifest["url"] == f"{web['root_path']}/"


def settings() -> dict[str, object]:
    found = re.search(r"```toml\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert found
    web = tomllib.loads(found[1])["web"]
    assert isinstance(web, dict)
    return web


def test_apache_names_the_reader_in_the_header_that_the_pages_believe_and_takes_it_from_nobody_else() -> None:
    lines = yaml.safe_load((FOLDER / "ood_portal.yml").read_text())["custom_vhost_directives"]
    web = settings()
    assert lines[0] == f'<Location "{web["root_path"]}">'
    assert lines[-1] == "</Location>"
    words = [line.split() for line in lines]
    unset = words.index(["RequestHeader", "unset", str(web["user_header"])])
    assert words[unset + 1][:3] == ["RequestHeader", "set", web["user_header"]]
    assert any(line.strip() == "Require valid-user" for line in lines)


def test_the_pages_answer_such_a_proxy_with_its_readers_own_jobs(tmp_path: Path) -> None:
    pages = Pages(tmp_path, web=settings(), private="jobs")
    try:
        address = str(pages.web.trusted_proxies[0])
        for user, sees in (("bob", True), ("carol", False)):
            answer = pages.client(user, root="/lucid", address=address).get("/lucid/job/13")
            assert (answer.status_code == 200) is sees, user
    finally:
        pages.source.stop()
