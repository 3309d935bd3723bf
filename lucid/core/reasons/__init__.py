"""Reasons: the very comparisons that a policy branched on, kept with the decision.

Each class is one question, its fields the values compared, its truth the answer. A policy writes
``fits = FreeGpus(...)`` and ``if fits:``, then stores ``fits``; nothing is explained afterwards.
``lucid.explain.reasons`` turns them into words."""

from lucid.core.reason import REASONS, Reason, reason_to_dict  # noqa: F401 - all reasons under one name
from lucid.core.reasons.profiling import *  # noqa: F403
from lucid.core.reasons.queue import *  # noqa: F403
from lucid.core.reasons.sharing import *  # noqa: F403
