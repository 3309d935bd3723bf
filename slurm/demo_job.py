"""A job of the demonstration: no GPU is there, so its work is waiting and its readings are emulated.

    demo_job.py FOLDER WORK_S GPU_UTIL MEM_UTIL SUMMARY

Works WORK_S seconds at full speed. While another such job stands on the same GPUs both slow down by the contention
model (lucid/binder/contention.py); each finds the other by a file per GPU in FOLDER. After three seconds it writes
SUMMARY, a sampler's summary with JOB for its number, as a sampler would. Runs on any Python 3.
"""

import os
import sys
import time

TICK_S = 0.2
MEASURED_S = 3.0


def main():
    folder, work_s, gpu, mem, summary = sys.argv[1], *map(float, sys.argv[2:5]), sys.argv[5]
    job = os.environ["SLURM_JOB_ID"]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    node = os.environ.get("SLURMD_NODENAME", "")
    places = [os.path.join(folder, "gpus", "%s-%s" % (node, g)) for g in gpus]
    os.umask(0)  # jobs of several users find each other in these folders
    for place in places:
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, job), "w") as file:
            file.write("%g %g" % (gpu, mem))
    try:
        run(folder, job, work_s, gpu, mem, summary, places)
    finally:
        for place in places:
            os.unlink(os.path.join(place, job))


def run(folder, job, work_s, gpu, mem, summary, places):
    began = before = time.monotonic()
    told = False
    while work_s > 0:
        time.sleep(TICK_S)
        now = time.monotonic()
        work_s -= (now - before) * speed(places[0], job, gpu, mem)
        before = now
        if not told and now - began >= MEASURED_S:
            told = True
            path = os.path.join(folder, "profiles", job + ".json")
            with open(path + ".tmp", "w") as file:
                file.write(summary.replace("JOB", job))
            os.rename(path + ".tmp", path)


def speed(place, job, gpu, mem):
    for other in os.listdir(place):
        if other != job:
            try:
                with open(os.path.join(place, other)) as file:
                    u, m = map(float, file.read().split())
            except (OSError, ValueError):
                continue
            return 1 / (1 + 0.3 * gpu * u * 1e-4 + 0.4 * mem * m * 1e-4)
    return 1.0


main()
