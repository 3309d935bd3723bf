"""What setup makes of a site's slurm.conf and gres.conf, however they are written: merged, or refused with remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucid.core.placement import hosts_in
from lucid.errors import ConfigError
from lucid.setup.conf_text import Edit, edited, read_texts, statements_of
from lucid.setup.install import NEW_TOML, check_installation, install_files, with_keys
from lucid.setup.merge import Merged, merge_pack
from lucid.setup.nodes import host_list
from lucid.setup.render import addresses, plugin_conf

CONF = """\
ClusterName=x
# JobSubmitPlugins=lua and Prolog=/nowhere are not set here, GresTypes=mps neither
GresTypes=gpu
SelectType=select/cons_tres
PriorityType=priority/multifactor
AccountingStorageTRES=gres/gpu
NodeName=n[1-4] CPUs=16 RealMemory=64000 Gres=gpu:a100:4 Feature=ib  # rack 1
NodeName=c[1-9] CPUs=64
PartitionName=vc-a Nodes=n[1-2] Default=YES
"""
GRES = "NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n"
GPUS = addresses(range(4))
DATABASE = {"AccountingStorageType": "accounting_storage/slurmdbd"}
IN_FORCE = {"SelectType": "select/cons_tres", "PriorityType": "priority/multifactor", **DATABASE}


class Site:
    """slurm.conf, gres.conf and the rest below a folder."""

    def __init__(self, root: Path, conf: str | bytes = CONF, gres: str | bytes | None = GRES, **more: str) -> None:
        self.etc = root / "etc/slurm"
        self.root = root
        self.etc.mkdir(parents=True)
        for name, text in {"slurm.conf": conf, "gres.conf": gres, **more}.items():
            if text is not None:
                (self.etc / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def merged(
        self, in_force: Any = IN_FORCE, slots: int | None = None, packed: Any = ("n1", "n2"), **site: str
    ) -> Merged:
        texts = read_texts(self.root, self.etc / "slurm.conf")
        gres = self.etc / "gres.conf"
        own = read_texts(self.root, gres) if gres.exists() else None
        return merge_pack(texts, own, packed, in_force, site, slots)

    def made(self, **how: Any) -> tuple[Merged, dict[str, str]]:
        """Makes it so; returns the texts by name, too. A second time nothing changes."""
        merged = self.merged(**how)
        assert not merged.refused
        for path, text in merged.files.items():
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
        again = self.merged(**how)
        assert (again.files, again.refused) == ({}, [])
        return merged, {path.name: text for path, text in merged.files.items()}

    def checked(self) -> None:
        """What setup makes is what doctor wants."""
        install_files(self.root)
        (self.etc / "lucid.plugin.conf").write_text(plugin_conf({"a100"}, "/run/lucid/heartbeat"))
        assert [f for f in check_installation(self.root) if not f.ok and "written by others" not in f.says] == []


def refused(merged: Merged) -> str:
    assert merged.refused
    assert not merged.files, "nothing is changed where something is refused"
    assert all(refusal.remedy for refusal in merged.refused)
    return "\n".join(refusal.what for refusal in merged.refused)


def test_a_plain_site_is_merged_line_by_line_and_a_second_time_nothing_changes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    merged, texts = site.made()
    named = CONF.replace("Gres=gpu:a100:4 Feature=ib  # rack 1", f"Gres={GPUS} Feature=ib,a100  # rack 1")
    named = named.replace("GresTypes=gpu\n", "GresTypes=gpu,shard\n")
    assert texts["slurm.conf"] == named.replace("TRES=gres/gpu\n", "TRES=gres/gpu,gres/shard\n") + (
        "# Lucid (lucidctl setup):\nJobSubmitPlugins=lua\nCliFilterPlugins=lua\nProlog=/etc/slurm/lucid/prolog.d/*\n"
        "Epilog=/etc/slurm/lucid/epilog.d/*\nTaskProlog=/etc/slurm/lucid/task_prolog\n"
    )
    assert "Type=a100" not in texts["gres.conf"]
    assert "NodeName=n[1-4] Name=gpu Type=g3 File=/dev/nvidia3\n" in texts["gres.conf"]
    assert "NodeName=n[1-4] Name=shard Type=g3 Count=2 File=/dev/nvidia3\n" in texts["gres.conf"]
    assert merged.models == {"a100"}
    assert merged.hosts == ["n1", "n2", "n3", "n4"], "the whole line, for ports and addresses count along its hosts"
    site.checked()


def test_slots_are_as_many_as_asked_for_and_change_on_a_site_that_has_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.made()
    assert site.merged(slots=2).files == {}
    merged, texts = site.made(slots=6)
    assert merged.slotted == {"n1", "n2", "n3", "n4"}, "the whole line"
    assert f"Gres={addresses(range(4), 6)} " in texts["slurm.conf"]
    assert texts["gres.conf"].count("Name=shard") == texts["gres.conf"].count("Count=6") == 4
    assert site.merged().files == {}, "without the option they stay as they are"
    site.checked()
    assert GPUS in site.made(slots=2)[1]["slurm.conf"]
    assert "Count=8" in Site(tmp_path / "fresh").made(slots=8)[1]["gres.conf"]


def test_what_is_included_is_edited_where_it_stands(tmp_path: Path) -> None:
    lines = CONF.splitlines(keepends=True)
    nodes = "".join(line for line in lines if line.startswith("NodeName"))
    rest = "".join(line for line in lines if not line.startswith(("NodeName", "GresTypes")))
    rest += "Include nodes.conf\ninclude /etc/slurm/gres_types.conf\nINCLUDE more-%c.conf # x\n"
    more = {"nodes.conf": nodes, "gres_types.conf": "GresTypes=gpu,nic", "more-x.conf": "TaskEpilog=/x\n"}
    site = Site(tmp_path, rest, "Include gpus.conf\n", **more, **{"gpus.conf": GRES})
    _, texts = site.made()
    assert texts["gres_types.conf"] == "GresTypes=gpu,nic,shard", "no line end came with it"
    assert GPUS in texts["nodes.conf"]
    assert "NodeName" not in texts["slurm.conf"]
    assert "Type=a100" not in texts["gpus.conf"]
    assert "Name=gpu Type=g0" in texts["gres.conf"]
    (site.etc / "more-x.conf").write_text("include slurm.conf\n")
    with pytest.raises(ConfigError, match="includes itself"):
        site.merged()


UNREAD = ("GresTypes=gpu SlurmctldDebug=info", "GresTypes=", " Include x", "PriorityType x", "include /etc/gone.conf")


@pytest.mark.parametrize("line", UNREAD)
def test_a_line_with_which_slurm_does_not_start_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"slurm\.conf, line 10: Slurm does not read|gone\.conf"):
        Site(tmp_path, CONF + line + "\n").merged()


LINE = "NodeName=n[1-4] CPUs=16 RealMemory=64000 Gres=gpu:a100:4 Feature=ib  # rack 1\n"
LAYOUTS: dict[str, tuple[str | bytes, str, str]] = {
    "line ends of Windows": (
        CONF.replace("\n", "\r\n"), GRES.replace("\n", "\r\n"), f"Gres={GPUS} Feature=ib,a100  # rack 1\r\n"
    ),
    "no last line end": (CONF.rstrip("\n"), GRES.rstrip("\n"), "Default=YES\n# Lucid (lucidctl setup):\n"),
    "no UTF-8": (CONF.encode() + b"# M\xfcnchen\n", GRES, "# M\udcfcnchen\n"),
    "continued lines": (
        CONF.replace(" RealMemory=64000 ", " \\\n   RealMemory=64000 \\\n   "), GRES,
        f"CPUs=16 \\\n   RealMemory=64000 \\\n   Gres={GPUS} Feature=ib,a100  # rack 1\n",
    ),
    "models of gres.conf": (CONF.replace("gpu:a100:4", "gpu:4"), GRES, f"Gres={GPUS} Feature=ib,a100"),
    "defaults of nodes": (
        CONF.replace(LINE, 'NodeName=DEFAULT CPUs=16 Gres=gpu:a100:4 Feature=ib\nNodeName=n[1-4]\n'
                           'NodeName=DEFAULT Gres="" Feature=""\n'),
        GRES, f"\nNodeName=n[1-4] Gres={GPUS} Feature=ib,a100\n",
    ),
    "a comment that looks like a value": (
        CONF.replace(LINE, "NodeName=n[1-4] Gres=gpu:a100:4 # Feature=no\n"), GRES,
        f"NodeName=n[1-4] Gres={GPUS} Feature=a100 # Feature=no\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", LAYOUTS)
def test_however_a_file_is_laid_out_it_stays_so(tmp_path: Path, how: str) -> None:
    conf, gres, expected = LAYOUTS[how]
    merged, texts = Site(tmp_path, conf, gres).made()
    assert merged.models == {"a100"}
    assert expected in texts["slurm.conf"]
    assert "NodeName=c[1-9] CPUs=64" in texts["slurm.conf"]
    for text in texts.values():
        assert text.count("\r\n") == (text.count("\n") if "Windows" in how else 0)
        assert "\r\r" not in text


def test_lines_are_read_as_slurm_reads_them_and_a_task_prolog_has_to_call_lucids(tmp_path: Path) -> None:
    conf = CONF.replace("GresTypes=gpu\n", 'gresTYPES += "gpu,bandwidth" # x\n')
    conf = conf.replace("Feature=ib", 'Feature = "ib,nvlink"').replace("NodeName=n[1-4]", "nodename = n[1-4]")
    site = Site(tmp_path, conf + "JobSubmitPlugins = job_submit/throttle\nTaskProlog = /site/task\n")
    assert "TaskProlog=/site/task" in refused(site.merged())
    assert "TaskProlog=/site/task" in refused(site.merged(**{"/site/task": "#!/bin/sh\nexport A=b\n"}))
    _, texts = site.made(**{"/site/task": "#!/bin/sh\necho export A=b\n/etc/slurm/lucid/task_prolog\n"})
    assert 'gresTYPES += "gpu,bandwidth,shard" # x\n' in texts["slurm.conf"]
    assert "JobSubmitPlugins = job_submit/throttle,lua\n" in texts["slurm.conf"]
    assert 'Feature = "ib,nvlink,a100"  # rack 1\n' in texts["slurm.conf"]
    assert texts["slurm.conf"].count("askProlog") == 1


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("K = v", "v"), ("K+=v", "v"), ('K="a b"', "a b"), ('K="a"b', '"a"b'), ("K=a\\#b # c", "a#b"),
        ("K=a\\\nb", "ab"), ("K= \\ # c\n  v", "v"), ("K=a\\ \n b", None), ("K=a\\\\\n", "a\\"), ('K=""', ""),
        ("K= L=v", "L=v"), ("k=1\nK=2", "2"), ('K="a\tb" \\  \n', "a\tb"), ("K=\\\"a", '"a'),
    ],
)  # fmt: skip
def test_values_as_slurm_24_11_takes_them(tmp_path: Path, lines: str, value: str | None) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(lines)
    if value is None:
        with pytest.raises(ConfigError):
            read_texts(tmp_path, conf)
    else:
        assert read_texts(tmp_path, conf).settings == {"k": value}


@pytest.mark.parametrize("key", ["GresTypes", "JobSubmitPlugins", "TaskProlog", "Prolog", "AccountingStorageTRES"])
def test_what_is_in_force_and_stands_in_no_file_is_refused(tmp_path: Path, key: str) -> None:
    assert f"slurmctld has {key}=other" in refused(Site(tmp_path).merged(in_force={**IN_FORCE, key: "other"}))
    by_itself = "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpumem,gres/gpuutil"
    usual = {"AccountingStorageTRES": by_itself, "GresTypes": "gpu"}
    assert not Site(tmp_path / "usual").merged(in_force={**IN_FORCE, **usual}).refused


def test_other_plugins_prologs_and_gres_stay_beside_lucids(tmp_path: Path) -> None:
    conf = CONF.replace("gpu:a100:4", "nic:2,gpu:a100:4(S:0-1)").replace("GresTypes=gpu", "GresTypes=gpu,nic")
    conf += "JobSubmitPlugins=throttle\nProlog=/site/prolog\nEpilog=/site/epilog.d/*\nPrologFlags=Alloc,RunInJob\n"
    site = Site(tmp_path, conf, GRES + "NodeName=n[1-4] Name=nic Count=2\n")
    merged, texts = site.made()
    assert "JobSubmitPlugins=throttle,lua\n" in texts["slurm.conf"]
    assert merged.site_scripts == {"Prolog": ["/site/prolog"], "Epilog": ["/site/epilog.d/*"]}
    assert f"Gres={GPUS},nic:2 " in texts["slurm.conf"]
    assert "NodeName=n[1-4] Name=nic Count=2\n" in texts["gres.conf"]
    assert any("RunInJob" in note for note in merged.notes)
    prologs = read_texts(tmp_path, site.etc / "slurm.conf").settings["prolog"]
    assert prologs == "/etc/slurm/lucid/site_scripts,/etc/slurm/lucid/prolog.d/*", "in the order of before"


def test_prologs_of_the_site_run_through_the_wrapper_where_the_first_of_them_stood(tmp_path: Path) -> None:
    conf = '# Written by ansible. Do not edit.\nProlog = "/site/a" # why\n' + CONF + "Prolog=/site/b.d/*\nprolog=/c\n"
    site = Site(tmp_path, conf)
    merged, texts = site.made()
    assert merged.site_scripts["Prolog"] == ["/site/a", "/site/b.d/*", "/c"]
    lines = texts["slurm.conf"].splitlines()
    assert lines[:2] == ["# Written by ansible. Do not edit.", 'Prolog = "/etc/slurm/lucid/site_scripts" # why']
    assert not {"Prolog=/site/b.d/*", "prolog=/c"} & {*lines}
    again = site.merged()
    assert (again.site_scripts, again.wrapped["Prolog"]) == ({"Prolog": [], "Epilog": []}, True)


def test_plugins_of_the_sites_own_are_not_replaced_but_a_filter_that_no_model_needs_stays(tmp_path: Path) -> None:
    for name in ("job_submit.lua", "cli_filter.lua"):
        assert name in refused(Site(tmp_path / name).merged(**{name: "function slurm_job_submit() end"}))
    conf, gres = CONF.replace("gpu:a100:4", "gpu:4"), GRES.replace("Type=a100 ", "")
    merged = Site(tmp_path, conf, gres).merged(**{"cli_filter.lua": "function slurm_cli_pre_submit() end"})
    assert not merged.refused
    assert not merged.filtered
    assert "cli_filter.lua stays" in "\n".join(merged.notes)
    assert "CliFilterPlugins" not in "".join(merged.files.values())


EVERYBODYS = [("PriorityType", "priority/basic", "multifactor"), ("SelectType", "select/linear", "cons_tres")]


@pytest.mark.parametrize(("key", "value", "wanted"), EVERYBODYS)
def test_what_concerns_every_job_is_refused(tmp_path: Path, key: str, value: str, wanted: str) -> None:
    others = "".join(line for line in CONF.splitlines(keepends=True) if not line.startswith(f"{key}="))
    assert f"{key}={value}: pack mode needs" in refused(Site(tmp_path, f"{others}{key}={value}\n").merged())
    site = Site(tmp_path / "unset", others)
    assert value in refused(site.merged({**IN_FORCE, key: value})), "what is in force counts where nothing is said"
    _, texts = site.made()
    assert f"\n{key}=" in texts["slurm.conf"], "and is said from then on"
    assert wanted in texts["slurm.conf"]


def test_lines_without_node_name_stay_for_the_others_and_without_slurmdbd_nothing_is_accounted(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path / "alone", CONF.replace("AccountingStorageTRES=gres/gpu\n", ""))
    _, texts = site.made(in_force={**IN_FORCE, "AccountingStorageType": ""})
    assert "AccountingStorageTRES" not in texts["slurm.conf"], "slurmctld does not start with it"
    site = Site(tmp_path, CONF + "NodeName=h[1-2] Gres=gpu:h100:4\n", "Name=gpu File=/dev/nvidia[0-3] # all nodes\n")
    _, texts = site.made()
    assert "NodeName=h[1-2] Name=gpu File=/dev/nvidia[0-3]\n" in texts["gres.conf"]
    assert "NodeName=h[1-2] Gres=gpu:h100:4\n" in texts["slurm.conf"], "they keep their type, and get no feature"
    assert "type h100" not in texts["slurm.conf"]
    site.checked()


def test_a_line_of_more_hosts_goes_on_for_the_rest(tmp_path: Path) -> None:
    conf = CONF.replace("NodeName=n[1-4] ", "NodeName=n[1-2] ") + "NodeName=n[3-4] Gres=gpu:a100:4\n"
    _, texts = Site(tmp_path, conf).made()
    assert "NodeName=n[3-4] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n" in texts["gres.conf"]
    line = "NodeName=n[3-4] Gres=gpu:a100:4 Feature=a100\n"
    assert line in texts["slurm.conf"], "gpu:a100:1 becomes gpu:1 with the feature for everybody"


def test_auto_detect_is_switched_off_for_what_has_addresses_and_said(tmp_path: Path) -> None:
    merged, texts = Site(tmp_path, CONF + "NodeName=h1 Gres=gpu:h100:4\n", "AutoDetect=nvml\n").made()
    assert any("AutoDetect is switched off" in note for note in merged.notes)
    assert "NodeName=h1 AutoDetect=nvml\n" in texts["gres.conf"]
    assert "NodeName=n[1-4] AutoDetect=off\n" in texts["gres.conf"]
    assert "\nAutoDetect=nvml" not in "\n" + texts["gres.conf"]
    assert Site(tmp_path / "alone", gres="AutoDetect=nvml\n").made()[1]["gres.conf"].startswith("# Lucid")


def test_lines_by_gpu_keep_cores_and_links_in_any_order_and_auto_detect_loses_nothing(tmp_path: Path) -> None:
    each = "NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia{0} Cores={0} Links=-1,4,4,4\n"
    site = Site(tmp_path, gres="AutoDetect=nvml\n" + "".join(each.format(number) for number in (3, 2, 1, 0)))
    text = site.made()[1]["gres.conf"]
    for number in (0, 2):
        assert f"Name=gpu Type=g{number} File=/dev/nvidia{number} Cores={number} Links=-1,4,4,4\n" in text
    assert "Name=shard Type=g3 Count=2 File=/dev/nvidia3\n" in text
    assert "nvml" not in text
    off = Site(tmp_path / "off", gres=f"AutoDetect=nvml\nNodeName=n[1-4] AutoDetect=off\n{GRES}")
    assert not off.merged().refused


BILLED = {
    "": {"n[1-2]": True, "ALL": True, "c[1-9]": False},
    "NodeSet=gs Nodes=n[1-4]": {"gs": True},
    "NodeSet=gs Feature=ib": {"gs": True, "c[1-9],gs": True},
    "NodeSet=gs Nodes=c1\nNodeSet=gs Feature=ib": {"gs": True},
    "NodeSet=n1s Nodes=n[3-4]": {"n1s,c1": False},
    "NodeSet=gs Feature=big": {"gs": False},
    "NodeSet=gs Nodes=c[1-9]": {"gs": False, "all": True},
}
"""Partitions by how they name their nodes, and whether they have one that gets slots."""


@pytest.mark.parametrize("sets", BILLED)
def test_a_slot_is_billed_however_a_partition_names_its_nodes(tmp_path: Path, sets: str) -> None:
    conf = CONF.replace("n[1-4] CPUs", "n[1-2] CPUs") + "NodeName=n[3-4] Gres=gpu:h100:4 Feature=big\n"
    for nodes, billed in BILLED[sets].items():
        line = f"PartitionName=p Nodes={nodes} TRESBillingWeights=GRES/gpu=2.0\n"
        text = Site(tmp_path / nodes, f"{conf}{sets}\n{line}").made()[1]["slurm.conf"]
        assert (line.rstrip() + ",GRES/shard=2.0\n" in text) == billed
        assert (line in text) != billed


def test_setup_bills_a_slot_as_the_gpu_that_it_stands_for(tmp_path: Path) -> None:
    billed = 'PartitionName=DEFAULT TRESBillingWeights="CPU=1.0,Mem=0.25G,GRES/gpu=2.0"\n'
    ours = "PartitionName=vc-b Nodes=n[3-4] TRESBillingWeights=CPU=1.0,gres/gpu=8 # ours\n"
    free = "PartitionName=vc-c Nodes=n4 TRESBillingWeights=CPU=1.0\n"
    merged, texts = Site(tmp_path, CONF + billed + ours + free).made(packed=("n1", "n2", "n3", "n4"))
    assert any("billed" in note for note in merged.notes)
    assert billed.replace('2.0"', '2.0,GRES/shard=2.0"') in texts["slurm.conf"]
    assert ours.replace("gpu=8", "gpu=8,GRES/shard=8") in texts["slurm.conf"]
    assert free in texts["slurm.conf"]


@pytest.mark.parametrize(
    ("conf", "gres", "what"),
    [
        (CONF.replace("gpu:a100:4", "gpu:a100:2,gpu:v100:2"), GRES, "GPUs of a100, v100 in one"),
        (CONF.replace("gpu:a100:4", "gpu:a100:4,shard:8"), GRES, "gres/shard or gres/mps already"),
        (CONF.replace("gpu:a100:4", "gpu:a100:no_consume:4"), GRES, "Slurm gives to any number of jobs (no_consume)"),
        (CONF.replace("gpu:a100:4", "gpu:no_consume:4"), GRES, "Slurm gives to any number of jobs (no_consume)"),
        (CONF, "AutoDetect=nvml\n" + GRES, "node n1 gets the cores and links of its GPUs from AutoDetect"),
        (CONF, GRES.replace("Name=gpu", "AutoDetect=nvml Name=gpu"), "cores and links of its GPUs from AutoDetect"),
        (CONF + "NodeSet=old Feature=a100\n", GRES, "n[1-4] would join NodeSet=old (Feature=a100)"),
        (CONF.replace("GresTypes=gpu", "GresTypes=gpu,mps"), GRES, "GresTypes has mps"),
        (CONF, None, "no gres.conf"),
        (CONF, "# nothing\n", "has no line for its GPUs"),
        (CONF, GRES.replace("[0-3]", "[0-1]"), "has 2 GPUs in gres.conf, 4 in slurm.conf"),
        (CONF, GRES.replace("File=/dev/nvidia[0-3]", "Count=4"), "without File="),
        (CONF, GRES.replace("/dev/nvidia[0-3]", "/dev/a,/dev/b,/dev/c,/dev/d"), "do not end in a number of"),
        (CONF, GRES.replace("/dev/nvidia[0-3]", "/dev/nvidia[0-1],/dev/other[0-1]"), "do not end in a number of"),
        (CONF, "NodeName=n[1-3] Name=gpu File=/dev/nvidia[0-3]\nNodeName=n4 Name=gpu File=/dev/nvidia[0-2,5]\n",
         "n[1-4] stand in one NodeName line, and their GPUs have different device files"),
        (CONF, GRES.replace("File=", "MultipleFiles="), "MultipleFiles"),
        (CONF, GRES + "NodeName=n[1-4] Name=shard Count=8\n", "has gres/shard already"),
        (CONF, GRES.replace("n[1-4]", "n[1-4"), "host list that setup does not read"),
        (CONF.replace("NodeName=n[1-4]", "NodeName=n[1-4"), GRES, "host list that setup does not read"),
        (CONF.replace("NodeName=n[1-4]", "NodeName=m[1-4]"), GRES, "n1 has no NodeName line with GPUs"),
        (CONF + "PartitionName=p Nodes=n1 TRESBillingWeights=gres/gpu:a100=8\n", GRES, "gres/gpu:a100"),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused_with_remedy(tmp_path: Path, conf: str, gres: str | None, what: str) -> None:
    assert what in refused(Site(tmp_path, conf, gres).merged())


DEVICES = {"nvidia[0-1,3,5]": (0, 1, 3, 5), "dri/renderD[128-131]": range(128, 132), "nvidia[9-12]": range(9, 13)}


@pytest.mark.parametrize("device", DEVICES)
def test_an_address_is_the_number_of_the_device_file(tmp_path: Path, device: str) -> None:
    files, numbers = f"/dev/{device}", DEVICES[device]
    site = Site(tmp_path, gres=GRES.replace("/dev/nvidia[0-3]", files))
    merged, texts = site.made()
    assert ["device files of n[1-4] are not numbered 0, 1, 2" in note for note in merged.notes] == [True]
    assert f"Gres={addresses(numbers)} " in texts["slurm.conf"]
    for number, path in zip(numbers, hosts_in(files), strict=True):
        assert f"Name=gpu Type=g{number} File={path}\n" in texts["gres.conf"]
        assert f"Name=shard Type=g{number} Count=2 File={path}\n" in texts["gres.conf"]
    site.checked()


def test_addresses_of_other_files_are_refused_by_setup_and_told_by_the_check(tmp_path: Path) -> None:
    """As earlier versions wrote them where device files have holes: g2 was /dev/nvidia3."""
    site = Site(tmp_path)
    _, texts = site.made()
    old = texts["gres.conf"].replace("File=/dev/nvidia3", "File=/dev/nvidia5").replace("/dev/nvidia2", "/dev/nvidia3")
    (site.etc / "gres.conf").write_text(old)
    assert "node n1 has addresses of other files: g2 is /dev/nvidia3, g3 is /dev/nvidia5" in refused(site.merged())
    (wrong,) = {f.says for f in check_installation(tmp_path) if f.about == "node n2"}
    assert "the number of its GPU's device file, and g2 is /dev/nvidia3" in wrong
    (site.etc / "gres.conf").write_text("\n".join(reversed(texts["gres.conf"].splitlines())) + "\n")
    (wrong,) = {f.says for f in check_installation(tmp_path) if f.about == "node n2"}
    assert "which is not what gres.conf has" in wrong, "Slurm counts in the order of gres.conf"


def test_a_link_to_slurm_conf_is_read_through(tmp_path: Path) -> None:
    site = Site(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    (site.etc / "slurm.conf").rename(shared / "slurm.conf")
    (site.etc / "slurm.conf").symlink_to(shared / "slurm.conf")
    assert set(site.merged().files) == {site.etc / "slurm.conf", site.etc / "gres.conf"}


@given(st.lists(st.text("ab=#\\ \r", max_size=8), max_size=8), st.booleans())
def test_an_edit_leaves_every_other_byte_alone(lines: list[str], ends: bool) -> None:
    text = "\n".join(lines) + ("\n" if ends else "")
    assert edited(text, []) == text
    for statement in statements_of(text, Path("x")):
        before, after = text.split("\n")[: statement.first], text.split("\n")[statement.after :]
        fresh = edited(text, [Edit(statement.first, statement.after, ("new",))])
        assert fresh.split("\n")[: statement.first] == before
        assert fresh.split("\n")[statement.first + 1 :] == after


@given(st.sets(st.sampled_from([f"n{i}" for i in range(12)] + ["n007", "n008", "m", "gpu-1a"])))
def test_a_host_list_names_the_hosts_again(hosts: set[str]) -> None:
    assert not hosts or set(hosts_in(host_list(hosts))) == hosts


def test_lucid_toml_keeps_its_lines_and_comments_and_is_refused_in_another_form_with_what_to_write() -> None:
    own = '# mine\n[slurm]\n\n[daemon.partitions]\nvc-a = "observe" # first\n"vc.b" = "observe"\n\n[models]\n'
    fresh = with_keys(own, "daemon.partitions", {"vc-a": "pack", "vc.b": "observe", "vc-c": "order"})
    lines = 'vc-a = "observe" # first\n"vc.b" = "observe"\n'
    assert fresh == own.replace(lines, 'vc-a = "pack"\n"vc.b" = "observe"\nvc-c = "order"\n')
    assert with_keys(fresh, "daemon.partitions", {"vc-a": "pack", "prof": None}) == fresh
    fewer = with_keys(fresh, "daemon.partitions", {"vc.b": None, "vc-c": "order"})
    assert fewer == own.replace(lines, 'vc-a = "pack"\nvc-c = "order"\n')
    new = with_keys(NEW_TOML, "daemon", {"gpu_mem_mib_by_feature": {"a100": 40960}})
    assert new.endswith("[daemon]\ngpu_mem_mib_by_feature = { a100 = 40960 }\n")
    inline = 'daemon = { partitions = { vc-a = "observe" } }\n'
    for text in (inline, '[daemon]\npartitions.vc-a = "observe"\n', "[daemon\n"):
        with pytest.raises(ConfigError, match=r"vc-a = \"pack\"|mend it first"):
            with_keys(text, "daemon.partitions", {"vc-a": "pack"})
