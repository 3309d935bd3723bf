from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.errors import ConfigError

NODES = ["slurm", "render", "--nodes", "n[1-2]:gpus=2,type=a100"]


def test_render_prints_each_file_under_its_name() -> None:
    done = CliRunner().invoke(lucidctl, [*NODES, "--partition", "vc=n1", "--profiling", "prof=n2"])
    assert done.exit_code == 0
    assert "### gres.conf\n" in done.output
    assert "PartitionName=vc Nodes=n1 Default=YES\nPartitionName=prof Nodes=n2\n" in done.output


def test_render_as_json_and_into_a_folder_give_the_same_texts(tmp_path: Path) -> None:
    done = CliRunner().invoke(lucidctl, [*NODES, "--json", "--out", str(tmp_path)])
    texts = json.loads(done.output)
    assert (tmp_path / "gres.conf").read_text() == texts["gres_conf"]
    assert (tmp_path / "lucid.slurm.conf").read_text() == texts["slurm_conf"]
    assert (tmp_path / "lucid.plugin.conf").read_text() == texts["plugin_conf"]


def test_render_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(lucidctl, [*NODES, "--out", str(tmp_path / "file" / "deeper")])
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match="no gpus"):
        CliRunner().invoke(lucidctl, ["slurm", "render", "--nodes", "n1"], catch_exceptions=False)
