"""Settings of a live cluster: Slurm, the daemon, the upkeep of models, the pages, and the account of wasted
GPU-hours."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, field

from lucid.config.section import NotNegative, Positive, Section
from lucid.places import HEARTBEAT, STATE_DIR, Mode


class ModelSettings(Section, frozen=True, kw_only=True):
    """Learned models: where they are kept, what they learn from, and when they are trained again.

    Paths are relative to the folder of the configuration file."""

    library: str | None = None
    """Folder of the versions. lucidd's own, where none is named: models/ in daemon.state_dir."""
    jobs: str | None = None
    """Log of finished jobs (sacct lines or CSV): durations. lucidd's own, where none is named: jobs.csv in
    daemon.state_dir, which it writes."""
    every_h: NotNegative = 6.0
    """How often lucidd looks whether a training is due, hours; 0: never (cron does, or nobody)."""
    profiles: str | None = None
    """CSV of configurations measured alone: share scores; with ``pairs`` the pair model too."""
    pairs: str | None = None
    """CSV of configurations measured together."""
    bins: str | None = None
    """CSV of submissions per bin of time: throughput."""


class Publish(StrEnum):
    """What everybody may read of lucidd's queue."""

    JOBS = "jobs"
    """Of every job its number, size, times, place, measured load and decision; no user, account or name."""
    NOTHING = "nothing"
    """Only lucidd's user and root see the queue: where Slurm's PrivateData has jobs."""


class SlurmSettings(Section, frozen=True, kw_only=True):
    """How the daemon talks to Slurm."""

    client: Literal["command", "pyslurm"] = "command"
    """By Slurm's own commands, or by pyslurm 25.11.2 or later. You install pyslurm yourself (it is under GPL-2, and
    no part of Lucid). Over pyslurm lucidd observes and orders, and needs the commands besides."""
    prefix: tuple[str, ...] = ()
    """Words before every Slurm command: ["chroot", "/srv/slurm"] or ["ssh", "head"]."""
    timeout_s: Positive = 20.0
    """A command that takes longer counts as no answer, s."""
    poll_busy_s: Positive = 1.0
    """Seconds between looks while jobs wait for Lucid or are being profiled."""
    poll_idle_s: Annotated[float, Meta(ge=1)] = 7.0
    """Seconds between looks otherwise, and so the longest that a job waits for the first look at it. With
    nodes_every_s at most 13 requests a minute; below 6, more."""
    nodes_every_s: Annotated[float, Meta(ge=1)] = 30.0
    """Seconds between looks at the nodes; at one that changed, lucidd looks at once while jobs wait."""
    writes_per_cycle: Annotated[int, Meta(ge=8)] = 60
    """Most commands that change something in one cycle; the rest waits for the next. A quarter of them, four at the
    least, is kept for putting jobs right that Slurm did not start, or that are to be released."""
    start_grace_s: Positive = 30.0
    """A released job that has not started by then is taken back and decided anew."""

    @property
    def packs(self) -> bool:
        """Can every change that pack mode makes be written this way?"""
        return self.client == "command"

    @property
    def not_packed(self) -> str:
        """Why pack mode is not to be had this way, and what to do; empty: it is."""
        if self.packs:
            return ""
        return (
            "pyslurm does not tell all of what a job asks for (--gpu-bind, exact CPUs and memory): set "
            "slurm.client = 'command', or observe or order here"
        )


class PoolSettings(Section, frozen=True, kw_only=True):
    """The VCs that lend GPUs to each other on Slurm. ``policy.lending`` says what they lend."""

    partition: str = ""
    """A partition over all nodes of these VCs, in which only lucidd starts jobs: what no VC's own partition allows.
    Its name is the pool's name, too."""
    quotas: dict[str, Annotated[int, Meta(ge=1)]] = field(default_factory=dict)
    """GPUs to which each VC is entitled: { vc-a = 8, vc-b = 4 }. Only VCs named here lend and borrow."""


class ElasticSettings(Section, frozen=True, kw_only=True):
    """Jobs whose users opted in to be resized (``lucid:elastic=`` in the comment), under a policy that resizes."""

    reports_dir: str = ""
    """Where such jobs report their progress (lucid-report), on a file system that their nodes and this host have; all
    users write there (mode 1777). Empty: nothing is resized, and a policy that must resize does not start."""
    resize_every_s: NotNegative = 300.0
    """A job that was resized, or started, keeps its GPUs for at least so long."""
    restart_s: NotNegative = 30.0
    """What a restart of such a job is taken to cost until one was measured, s: from the order to stop to the start on
    other GPUs. A job is not resized for less than its restart costs."""
    silent_s: Positive = 900.0
    """A job that has not reported for so long while it runs keeps the GPUs that it has. After twice as long it goes
    back to as many as its user wrote."""


class GpuHealthSettings(Section, frozen=True, kw_only=True):
    """GPUs that are not well (docs/gpu-health.md). What samplers see of them is reported in every mode."""

    leave_out: bool = True
    """In partitions in pack mode such a GPU gets no new start, by Lucid or by Slurm, until it is well again or a
    person returns it. Its node's other GPUs do. Off: Lucid tells only."""
    most_share: Annotated[float, Meta(gt=0, le=1)] = 0.05
    """The most of the cluster's GPUs that are left out by Lucid itself, and one at the least. Beyond it Lucid says so
    as loudly as it can: a broken sampler must not take a cluster away."""


class DaemonSettings(Section, frozen=True, kw_only=True):
    """What lucidd looks after, and where it keeps its state."""

    partitions: dict[str, Mode] = field(default_factory=dict)
    """Mode by partition (VC). lucidd leaves all other partitions alone."""
    profiling_partition: str = ""
    """Where new jobs are profiled; empty: nowhere, and profiles come from earlier runs and samplers in place."""
    pool: PoolSettings = PoolSettings()
    elastic: ElasticSettings = ElasticSettings()
    gpu_health: GpuHealthSettings = GpuHealthSettings()
    policy: str = "lucid"
    """What decides in pack mode: a policy that can run live (docs/policies.md)."""
    policies: dict[str, str] = field(default_factory=dict)
    """Another policy for some of the partitions: { research = "pollux", sweeps = "muri-l" }. So users choose a policy
    by partition. ``policy`` decides in all others."""
    stay: tuple[str, ...] = ()
    """Partitions whose jobs are not moved to another one, to borrow GPUs or to be profiled, as if each of them said
    lucid:stay in its comment: for programs that look for their jobs by partition (``squeue -p``)."""
    state_dir: str = STATE_DIR
    """lucidd's own folder: its store, models, plans, job log."""
    shared_state: bool = False
    """state_dir and heartbeat lie on a file system that two hosts have, and a second lucidd stands by on the other
    (docs/recovery.md)."""
    heartbeat: str = HEARTBEAT
    """Rewritten after every good cycle; job_submit.lua leaves jobs alone once it is old."""
    publish: Publish = Publish.JOBS
    """What lucidctl answers to those who may not read the state: from the file public.json beside the heartbeat."""
    profiles_dir: str = ""
    """Where samplers put their summaries; empty: profiles/ in state_dir."""
    lease_s: Annotated[float, Meta(ge=3)] = 15.0
    """A standby takes over once the lucidd that acts has not renewed its lease for this long, s; at least twice
    slurm.poll_idle_s."""
    gpu_mem_mib: Annotated[int, Meta(ge=1)] = 24576
    """Memory of a GPU, MiB, where no feature of the node says otherwise."""
    gpu_mem_mib_by_feature: dict[str, int] = field(default_factory=dict)
    """Memory of a GPU, MiB, on nodes with a feature: { a100 = 81920 }."""
    share_across_users: bool = False
    """Jobs of different users may share GPUs. Under MPS one user's program can hurt another's, and MPS serves one
    user at a time, so such pairs share by time-slicing."""
    mps: bool = True
    """Tell the nodes' prolog, in the job's Extra, the GPUs and the memory fence of a job in slots, so that it starts
    MPS where node.conf names it. Off: nothing is written, and pairs share by time-slicing."""
    catch_up_days: NotNegative = 7.0
    """How far back lucidd asks sacct, when it starts, for jobs that ended while it was down; at its first start,
    how much of the site's past its estimates begin with. 0: not at all."""
    keep_days: Annotated[float, Meta(ge=1)] = 90.0
    """How long decisions, actions, ended jobs, summaries of samplers and records of plans are kept."""
    record_mib: NotNegative = 200.0
    """Most that all records may take, MiB: the oldest go first. 0: none are written."""
    first_guess_s: Positive = 3600.0
    """Estimate of the run time of a job without a time limit, s, before any such job has ended."""

    def policy_of(self, partition: str) -> str:
        """The name of the policy that decides in a partition."""
        return self.policies.get(partition, self.policy)

    @property
    def rooms(self) -> tuple[str, ...]:
        """Partitions into which only lucidd moves jobs: a job there is of another VC."""
        return tuple(name for name in (self.profiling_partition, self.pool.partition) if name)


class Anonymous(StrEnum):
    """What the pages show to a reader whose name nobody vouches for."""

    NOTHING = "nothing"
    """An error page that says how to sign in; /metrics for those alone who send the token of metrics_token_file."""
    NO_NAMES = "no-names"
    """What public.json has: jobs with their numbers, sizes and decisions, users numbered, no accounts, no names."""
    EVERYTHING = "everything"
    """All of it, names too: for a page that only administrators can reach."""


class Others(StrEnum):
    """What a reader with a name sees of other people's jobs."""

    AS_SLURM = "as-slurm"
    """What Slurm's PrivateData lets squeue and sreport show him."""
    NOTHING = "nothing"
    """His own jobs alone; administrators see all."""


class WebSettings(Section, frozen=True, kw_only=True):
    """The read-only pages beside lucidd (docs/web.md)."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8765
    """Port to listen on; 0: any that is free."""
    socket: str = ""
    """A Unix socket to listen on instead: the reader is then the user at the other end of it."""
    root_path: str = ""
    """The path under which a proxy shows the pages, such as /lucid."""
    user_header: str = "X-Remote-User"
    """The header in which a trusted proxy names the reader."""
    trusted_proxies: tuple[str, ...] = ()
    """Who is believed about that header: addresses and networks (127.0.0.1, 10.0.0.0/8), and users at the other end
    of the socket (unix:www-data). Without an entry the header is passed over."""
    admins: tuple[str, ...] = ()
    """Users who see everything; root and lucidd's own user are, where the socket tells."""
    others: Others = Others.AS_SLURM
    """What a reader sees of other people's jobs."""
    anonymous: Anonymous = Anonymous.NO_NAMES
    """What a reader without a name sees, on loopback too: everybody with an account on that host can reach it. Where
    PrivateData has jobs, no job is shown to such a reader either way, unless this is everything."""
    metrics_token_file: str = ""
    """A file with a token: who sends it (Authorization: Bearer …) reads /metrics, though anonymous is nothing."""


class EfficiencySettings(Section, frozen=True, kw_only=True):
    """What `lucidctl efficiency` calls waste. Each bound is set so that ordinary work stays below it."""

    idle_after_s: Annotated[float, Meta(ge=300)] = 3600.0
    """A GPU that worked and then did nothing for so long was idle after activity, s. Evaluations on the CPU and
    checkpoints to slow storage take up to half an hour; an hour is twice that."""
