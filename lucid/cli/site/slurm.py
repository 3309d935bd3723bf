"""``lucidctl slurm``: writes, installs and checks the parts of Slurm's own configuration that Lucid needs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from lucid.cli.console import answer
from lucid.cli.jobs.queue import live_settings
from lucid.cli.options import PATH, Group, config_option
from lucid.core.codec import to_json
from lucid.daemon.policies import POOL_EXAMPLE
from lucid.errors import ConfigError
from lucid.setup.install import check_installation, install_files
from lucid.setup.nodes import parse_node, parse_partition
from lucid.setup.render import SLOTS, lending_text, render
from lucid.slurm.client import Breaker
from lucid.slurm.pyslurm import make_client


@click.group(cls=Group)
def slurm() -> None:
    """Write and check what Lucid needs of Slurm's configuration."""


@slurm.command("render")
@click.option("--nodes", "nodes", multiple=True, required=True, metavar="SPEC", help="like n[1-4]:gpus=4,cpus=64")
@click.option("--partition", "partitions", multiple=True, metavar="NAME=HOSTS", help="a VC; may be given again")
@click.option("--profiling", metavar="NAME=HOSTS", help="the profiling partition")
@click.option("--heartbeat", default="/run/lucid/heartbeat", show_default=True, help="where lucidd writes it")
@click.option("--files", default="/etc/slurm/lucid", show_default=True, help="where prolog and epilog are installed")
@click.option(
    "--node-extra", "node_extra", multiple=True, metavar="HOSTS=TEXT", help="more for the NodeName line of a --nodes"
)
@click.option(
    "--slots",
    type=click.IntRange(2, 8),
    default=2,
    show_default=True,
    help="jobs a GPU: 4 for groups of Muri",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="write files there instead of printing")
@click.option("--json", "as_json", is_flag=True, help="print the texts as JSON")
def render_command(
    nodes: tuple[str, ...],
    partitions: tuple[str, ...],
    profiling: str | None,
    heartbeat: str,
    files: str,
    node_extra: tuple[str, ...],
    slots: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write gres.conf, the lines for slurm.conf, and the settings of the plugin.

    SPEC is HOSTS:gpus=N. These may follow, separated by commas: cpus=N, mem=MIB, type=NAME (users ask for it as
    gpu:NAME:1), features=A+B and devices=/dev/nvidia{}. The first partition is the default partition."""
    described = [parse_partition(text, default=number == 0) for number, text in enumerate(partitions)] + (
        [parse_partition(profiling, profiling=True)] if profiling else []
    )
    groups = [parse_node(text) for text in nodes]
    rendered = render(
        groups,
        described,
        heartbeat=heartbeat,
        files=files,
        node_extra=_extra(node_extra, [g.hosts for g in groups]),
        slots=slots,
    )
    texts = {
        "gres.conf": rendered.gres_conf,
        "lucid.slurm.conf": rendered.slurm_conf,
        "lucid.plugin.conf": rendered.plugin_conf,
    }
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (out / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written ({error.strerror}); name a folder of yours") from None
    whole = "\n".join(f"### {name}\n{text}" for name, text in texts.items()).removesuffix("\n")
    answer(to_json(rendered), as_json, [whole if out is None else f"wrote {', '.join(texts)} to {out}"])


@slurm.command("lending")
@config_option
@click.option("--accounts", is_flag=True, help="Accounts keep VCs to their quotas, not a QOS of their partition.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lending_command(config: Path, accounts: bool, as_json: bool) -> None:
    """Print what to type so that the VCs of daemon.pool lend GPUs to each other. Changes nothing.

    Slurm is asked for the nodes of each VC."""
    settings = live_settings(config)
    rules = settings.daemon.pool
    if not (rules.partition and rules.quotas):
        raise ConfigError(f"{config}: daemon.pool is not set: say which VCs lend, as in\n{POOL_EXAMPLE}")
    client = make_client(settings.slurm, Breaker(time.monotonic))
    nodes = [node for node in client.nodes() if node.gpu_types]
    own = {vc: [node for node in nodes if vc in node.partitions] for vc in rules.quotas}
    without = [vc for vc, mine in own.items() if not mine]
    if without:
        raise ConfigError(f"{config}: daemon.pool.quotas.{without[0]}: that partition has no node with GPUs")
    sizes = {vc: sum(len(node.gpu_types) for node in mine) for vc, mine in own.items()}
    text = lending_text(
        rules.partition,
        rules.quotas,
        {vc: [node.name for node in mine] for vc, mine in own.items()},
        frozenset(vc for vc, gpus in sizes.items() if gpus > rules.quotas[vc]),
        sum({node.name: len(node.gpu_types) for mine in own.values() for node in mine}.values()),
        accounts,
        max((max(node.slots, default=0) for node in nodes), default=0) or SLOTS,
    )
    answer({"text": text}, as_json, [text.removesuffix("\n")])


def _extra(given: tuple[str, ...], groups: list[str]) -> dict[str, str]:
    """By hosts as a --nodes has them: the rest of their NodeName line (Sockets=, NodeAddr=, Weight=)."""
    found = {}
    for text in given:
        hosts, _equals, more = text.partition("=")
        if hosts not in groups or not more:
            raise ConfigError(
                f"--node-extra {text!r}: write HOSTS=TEXT, with the hosts of one --nodes (there: {', '.join(groups)})"
            )
        found[hosts] = more
    return found


@slurm.command("install")
@click.option("--check", is_flag=True, help="change nothing: say what is missing or wrong, and the remedy")
@click.option("--root", type=PATH, default=Path("/"), show_default=True, help="or a chroot")
@click.option("--conf", default="etc/slurm/slurm.conf", show_default=True, help="slurm.conf, below the root")
@click.option("--units", is_flag=True, help="only lucidd's units and lucid-release: enough to observe and to order")
@click.option("--force", is_flag=True, help="replace a job_submit.lua of the site's own (a copy is kept)")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
@click.pass_context
def install_command(
    ctx: click.Context, check: bool, root: Path, conf: str, units: bool, force: bool, as_json: bool
) -> None:
    """Copy plugin, prologs, release script and systemd units. Slurm's own configuration is not edited.

    With --check: exit status 1 if something is to be done."""
    if not check:
        done = install_files(root, force=force, units=units)
        after = "systemctl daemon-reload, then lucidctl doctor"
        after = after if units else "lucidctl slurm install --check says what slurm.conf still lacks"
        answer(done, as_json, [*done, f"next: {after}"])
        return
    findings = check_installation(root, conf.lstrip("/"))
    words = (
        f"{'ok ' if one.ok else 'BAD'}  {one.about}: {one.says}" + f"\n     remedy: {one.remedy}" * bool(one.remedy)
        for one in findings
    )
    answer([to_json(finding) for finding in findings], as_json, words)
    if not all(finding.ok for finding in findings):
        ctx.exit(1)
