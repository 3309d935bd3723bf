"""What people run beside Slurm: ``people.py NAME``, on a testbed, as one of them. Prints what the program says of its
jobs. Of PyTorch Lightning and Nextflow, which are not installed, what they type is typed here."""

import signal
import subprocess
import sys
import time
from pathlib import Path

GPU = "--gres=gpu:1"


def typed(line):
    return subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout.strip()


def until(ready, limit_s=200):
    end = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end:
            sys.exit("waited in vain")
        time.sleep(0.5)


def state(job):
    return typed(f"squeue -h -t all -j {job} -o %T")


def work(number):
    __import__("time").sleep(3)  # parsl sends the function alone
    return 12 // number


def by_submitit():
    import submitit

    class Trains:
        saved = 0

        def __call__(self):
            until(lambda: self.saved)
            return self.saved

        def checkpoint(self):
            self.saved += 1
            return submitit.helpers.DelayedSubmission(self)

    executor = submitit.AutoExecutor("log")
    executor.update_parameters(slurm_partition="vc-a", timeout_min=5, gpus_per_node=1, slurm_array_parallelism=2)
    array = executor.map_array(work, range(1, 5))
    fails, trains, gone = (executor.submit(*what) for what in ((work, 0), (Trains(),), (time.sleep, 300)))
    until(lambda: state(trains.job_id) == state(gone.job_id) == "RUNNING")
    time.sleep(3)
    trains._interrupt(timeout=False)
    gone.cancel()
    until(lambda: gone.done(force_check=True))
    print([job.result() for job in array], type(fails.exception()).__name__, trains.result(), gone.state.split()[0])


def by_dask():
    from dask.distributed import Client
    from dask_jobqueue import SLURMCluster

    asked = {"cores": 1, "memory": "1GB", "walltime": "0:10:0", "job_extra_directives": [GPU], "interface": "lo"}
    with SLURMCluster(queue="vc-a", **asked) as cluster, Client(cluster) as client:
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=200)
        print(client.gather(client.map(work, range(1, 5))))
        cluster.scale(jobs=0)
        until(lambda: not typed("squeue -h --me"))
        cluster.adapt(minimum_jobs=0, maximum_jobs=2)
        print(client.gather(client.map(work, range(5, 9))))
        until(lambda: not typed("squeue -h --me"))


def by_parsl():
    import parsl

    provider = parsl.providers.SlurmProvider(
        partition="vc-a", scheduler_options=f"#SBATCH {GPU}", walltime="00:10:00", init_blocks=2, max_blocks=2,
        exclusive=False,
    )  # fmt: skip
    run = f"{sys.executable} -m parsl.executors.high_throughput."
    executor = parsl.HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=1, provider=provider)
    executor.interchange_launch_cmd = [*f"{run}interchange".split()]
    executor.launch_cmd = executor.launch_cmd.replace("process_worker_pool.py", f"{run}process_worker_pool")
    with parsl.load(parsl.Config(executors=[executor], strategy="none")):
        found = [parsl.python_app(work)(number) for number in range(5)]
        print(type(found[0].exception()).__name__, [one.result() for one in found[1:]])


def by_snakemake():
    Path("Snakefile").write_text(
        "rule all:\n    input: expand('out.{n}', n=range(3))\n"
        "rule one:\n    output: 'out.{n}'\n    shell: 'sleep 3; if [ {wildcards.n} = 2 -a ! -e again ]; "
        "then touch again; exit 3; fi; echo {wildcards.n} > {output}'\n"
    )
    line = f"{sys.executable} -m snakemake --executor slurm --jobs 3 --retries 1 --latency-wait 20 "
    line += "--slurm-init-seconds-before-status-checks 3 --default-resources slurm_partition=vc-a runtime=5 gpu=1"
    done = subprocess.run(line.split(), check=False)
    print(done.returncode, *sorted(path.name for path in Path().glob("out.*")))


TRAINS = """import os, signal, subprocess, sys, time
job, array = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_JOB_ID")
job = array + "_" + os.environ["SLURM_ARRAY_TASK_ID"] if array else job
def requeues(*_):
    open("hpc_ckpt_1." + job, "w").close()
    sys.exit(subprocess.call(["scontrol", "requeue", job]))
signal.signal(signal.SIGUSR1, requeues)
signal.signal(signal.SIGTERM, lambda *_: None)
open("fit." + job, "w").close()
time.sleep(3 if os.path.exists("hpc_ckpt_1." + job) else 600)
"""


def as_lightning():
    Path("trains.py").write_text(TRAINS)
    line = f"sbatch --parsable -p vc-a -t 10 {GPU} --signal=SIGUSR1@90 --wrap='srun {sys.executable} trains.py'"
    jobs = [typed(line), typed(f"{line} --array=0") + "_0"]
    until(lambda: all(Path(f"fit.{job}").exists() for job in jobs))
    for job in jobs:
        typed(f"scancel --signal=USR1 {job}")
    until(lambda: all(state(job) == "COMPLETED" for job in jobs))


def as_nextflow():
    """A task counts as lost once it is not listed for ``lost_s``: in place of its 270 s."""
    lost_s, found, seen = 8, {}, {}
    for task, ends in (("ok", "sleep 3; exit 0"), ("fails", "sleep 3; exit 4"), ("long", "sleep 15; exit 0")):
        Path(task).mkdir()
        Path(task, ".command.run").write_text(
            f"#!/bin/bash\n#SBATCH -J nf-train_({task})\n#SBATCH -o {Path(task).absolute()}/.command.log\n"
            f"#SBATCH --no-requeue\n#SBATCH --signal B:USR2@30\n#SBATCH -t 00:05:00\n#SBATCH --mem 500M\n"
            f"#SBATCH -p vc-a\n#SBATCH {GPU}\ntrap 'echo $? > .exitcode' EXIT\ntouch .command.begin\n{ends}\n"
        )
        seen[task, typed(f"cd {task}; sbatch .command.run").split()[-1]] = time.monotonic()
    while len(found) < len(seen):
        time.sleep(1)
        rows = typed("squeue --noheader -o '%i %t' -t all -p vc-a -u alice").splitlines()
        listed = dict(row.split() for row in rows)
        for task, job in seen:
            if listed.get(job) in ("PD", "R", "CG", "CF"):
                seen[task, job] = time.monotonic()
            code = Path(task, ".exitcode")
            if code.exists() and code.read_text():
                found[task] = code.read_text().strip()
            elif time.monotonic() > seen[task, job] + lost_s:
                found[task] = "terminated for an unknown reason"
    print(sorted(found.items()))


if __name__ == "__main__":
    signal.alarm(500)
    globals()[sys.argv[1]]()
