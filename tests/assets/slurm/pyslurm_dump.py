"""Run where pyslurm is, inside a testbed: prints what it tells of jobs and nodes that the client reads."""

import json

import pyslurm

JOB = (
    "account", "admin_comment", "allocated_nodes", "array_id", "array_task_id", "array_tasks_parallel",
    "array_tasks_waiting", "comment", "constraints", "cpus", "dependencies", "eligible_time", "end_time",
    "excluded_nodes", "extra", "gres_binding", "gres_per_node", "heterogeneous_id", "id", "is_batch_job",
    "is_requeueable", "licenses", "max_nodes", "name", "network", "ntasks", "ntasks_per_gpu", "num_nodes",
    "partition", "priority", "qos", "requeue_count", "required_nodes", "reservation", "resource_sharing",
    "start_time", "state", "state_reason", "submit_time", "time_limit", "user_id",
)  # fmt: skip
NODE = (
    "active_features", "configured_gres", "effective_cpus", "memory_reserved_for_system", "name", "partitions",
    "real_memory", "reason", "state", "total_cpus",
)  # fmt: skip


def job_of(job: "pyslurm.Job") -> dict[str, object]:
    told = {name: getattr(job, name) for name in JOB}
    wanted = job.requested_tres
    told["requested_tres"] = wanted and {
        "gres": {name: one.count for name, one in wanted.gres.items()},
        "mem": wanted.mem and wanted.mem.count,
    }
    told["layout"] = job.get_resource_layout_per_node()
    return told


print(
    json.dumps(
        {
            "version": pyslurm.__version__,
            "jobs": [job_of(job) for job in pyslurm.Jobs.load().values()],
            "nodes": [{name: getattr(node, name) for name in NODE} for node in pyslurm.Nodes.load().values()],
        }
    )
)
