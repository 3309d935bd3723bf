"""What keeps lucidd going: barriers round what may fail, several lucidd on one store, a store that is gone.

Read in this order: ``failure_barrier``, ``guarded_models``, ``plan_errors``, ``trouble_file``, ``failover``,
``store_recovery``, ``systemd``.
"""
