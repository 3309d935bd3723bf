"""What replays traces, and what looks at, converts and makes them.

Read in this order: ``simulate``, ``replay_options``, ``trace``, ``trace_options``, ``compare``,
``gains``, ``demo``.
Others import ``simulate``, ``replay_options``, ``trace``, ``compare``, ``demo``.
"""
