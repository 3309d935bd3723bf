"""Lucid's own policy: profiled first, ordered by estimate x GPUs, packed in pairs, placed consolidated.

Read in this order: ``lucid_policy``, ``vc_plan``, ``before_queue``, ``start_job``, ``plain_with_pairs``,
``wait_order``, ``profiling_overflow``.
Others import ``lucid_policy``, ``vc_plan``.
"""
