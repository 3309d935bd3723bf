"""However an option reaches srun, the tasks of a step in slots have the GPUs that they have on plain Slurm, or the
step is refused with a sentence: none goes on without a GPU."""

from __future__ import annotations

from box import Box

SEEN = (
    "sh -c 'echo task $SLURM_PROCID: $CUDA_VISIBLE_DEVICES, $SLURM_STEP_GPUS, $SLURM_TRES_BIND, "
    "$SLURM_NTASKS_PER_TRES'"
)
STEPS = (
    "SLURM_GPU_BIND=single:1 srun -n2", "SLURM_GPU_BIND=map_gpu:1,0 srun -n2", "SLURM_GPU_BIND=mask_gpu:1,2 srun -n2",
    "SLURM_GPU_BIND=none srun -n2", "SLURM_GPU_BIND=per_task:1 srun -n2", "SLURM_GPU_BIND=single:2 srun -n4",
    "SLURM_TRES_BIND=gres/gpu:single:1 srun -n2", "A=--gpu-bind=map_gpu:1*3,0; srun $A -n4",
    "bash -c 'A=(-n2 --gpu-bind=single:1); srun \"${{A[@]}}\" {seen}';:", "srun -n2 --gres=gpu:1 --gpu-bind=single:1",
    "srun -n2 --gres=none --gpu-bind=single:1", "A=clo; srun -n2 --gres=gpu:1 --gpu-bind=${A}sest",
    "srun --ntasks-per-gpu=2 --gpus=2", "SLURM_NTASKS_PER_GPU=1 srun", "srun --ntasks-per-gpu=1 --gres=gpu:1",
    "SLURM_NTASKS_PER_TRES=2 srun", "env -u SLURM_MEM_PER_NODE SLURM_MEM_PER_GPU=200 srun -n2",
    "SLURM_CPUS_PER_GPU=2 srun -n2 --gpus=2",
    # as Snakemake: the variables of Slurm are taken out of the environment
    *(f"env -i PATH=$PATH SLURM_JOB_ID=$SLURM_JOB_ID srun {gpus}" for gpus in ("-n2 --gpus=2", "-n1 --gpus=1")),
)  # fmt: skip
"""On four tasks and two GPUs."""
REFUSED = {
    "A=--cpus-per-g; srun $A'pu=1' -n2": "--cpus-per-gpu",
    "A=--mem-per-g; srun $A'pu=99' -n2": "--mem-per-gpu",
    "A=clo; SLURM_GPU_BIND=${A}sest srun -n2": "--gpu-bind=closest",
}
OPTIONS = "-n4 --mem=2000 --gpus=2"


def lines_of(box: Box, job: str) -> list[str]:
    """What each step printed, in order of its tasks, the GPUs by their places among those of the job."""
    box.wait_ended(job)
    assert box.state(job) == "COMPLETED", box.output(job)
    found: list[str] = []
    first, *parts = box.output(job).split("== ")
    gpus = first.strip().split(",")
    for part in parts:
        name, *lines = part.splitlines()
        found += [name, *sorted(_by_place(line, gpus) for line in lines if line.startswith("task "))]
    return found


def _by_place(line: str, gpus: list[str]) -> str:
    task, _, rest = line.partition(": ")
    seen, step, *more = rest.split(", ")
    return f"{task}: {[gpus.index(n) for one in (seen, step) for n in one.split(',') if n]} {more}"


def in_slots(box: Box, *options: str, script: str, slots: str = "gres/shard:g1:1,gres/shard:g3:1") -> str:
    job = box.sbatch(*options, script=script)
    box.scontrol("update", f"JobId={job}", f"TresPerNode={slots}", "TresPerJob=", "TresPerTask=", "ReqNodeList=n1")
    box.scontrol("release", job)
    return job


def test_tasks_have_the_gpus_of_plain_slurm(box: Box) -> None:
    steps = [
        step.format(seen=SEEN.replace("'", '"').replace("$", r"\$")) if "{seen}" in step else step for step in STEPS
    ]
    script = "echo $CUDA_VISIBLE_DEVICES\n" + "\n".join(f"echo '== {n}'\n{s} {SEEN}" for n, s in enumerate(steps))
    plain = box.sbatch(*OPTIONS.split(), script=script)
    before = lines_of(box, plain)
    box.beat()
    job = in_slots(box, *OPTIONS.split(), script=script)
    assert "share=0" not in box.tag(job)
    assert lines_of(box, job) == before
    assert "task 3: [1, 1] ['gres/gpu:single:2,']" in before
    environ = box.run(
        "env", "SLURM_GPU_BIND=single:1", "sbatch", "--parsable", "-D", "/tmp", "-o", "/tmp/%A_%a.out",
        *OPTIONS.split(), f"--wrap=srun -n2 {SEEN}", user="alice",
    ).stdout.strip()  # fmt: skip
    assert "share=0" not in box.tag(environ), "the step maps what the login shell said"


def test_what_slots_cannot_do_is_refused_and_no_task_runs(box: Box) -> None:
    box.beat()
    script = "\n".join(f"{step} touch /tmp/ran-$SLURM_JOB_ID || echo refused" for step in REFUSED)
    job = in_slots(box, *OPTIONS.split(), script=script)
    box.wait_ended(job)
    assert not (box.root / f"tmp/ran-{job}").exists()
    said = [line for line in box.output(job).splitlines() if "Lucid: this job shares its GPUs" in line]
    assert [line.partition("can have ")[2].partition(". ")[0] for line in said] == list(REFUSED.values())
    assert box.output(job).count("refused\n") == len(REFUSED)


def test_a_step_from_the_login_node_has_gpus_as_on_plain_slurm(box: Box) -> None:
    plain = box.sbatch("--gres=gpu:2", script="sleep 60")
    box.wait("it runs", lambda: box.state(plain) == "RUNNING")
    box.beat()
    job = in_slots(box, "--gres=gpu:2", script="sleep 60", slots="gres/shard:g2:1,gres/shard:g3:1")
    box.wait("it runs", lambda: box.state(job) == "RUNNING")
    for words in (
        "--gres=gpu:1",
        "--gpus=2",
        "--gpus-per-node=1",
        "--gpus-per-task=1",
        "",
        "--gres=none",
        "--gres=gpu:3",
    ):
        said = []
        for one in (plain, job):
            line = ["srun", "-D", "/tmp", "--overlap", f"--jobid={one}", *words.split()]
            done = box.run(*line, "sh", "-c", "echo on $CUDA_VISIBLE_DEVICES", user="alice", check=False)
            said.append(
                (done.returncode, done.stdout.count(",") if "on " in done.stdout else -1, len(done.stdout) > 4)
            )
        assert said[0] == said[1], words
    box.run("scancel", plain, job)
