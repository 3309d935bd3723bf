"""What changes jobs in Slurm: the plan carried out, and what went wrong put right.

Read in this order: ``apply_plan``, ``job_writer``, ``start_changes``, ``prolog_extra``, ``preempting_starts``,
``emptied_gpus``, ``requeue``, ``site_factors``, ``lease_renewal``, ``repair``, ``released_list``, ``ours_list``,
``gpu_placeholders``.
Others import ``apply_plan``, ``job_writer``, ``start_changes``, ``preempting_starts``, ``site_factors``, ``repair``,
``released_list``, ``gpu_placeholders``.
"""
