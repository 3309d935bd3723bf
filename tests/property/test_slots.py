"""Who starts in slots is decided once, by the policy: the rule of the start is the rule of whom others may join."""

from __future__ import annotations

import random
from dataclasses import replace

from builders import HEAVY, LIGHT, FixedPredictor, a_job, at, guess, nodes, part
from builders import settings as rules_of
from lucid.binder.binder import Binder
from lucid.core.job import Pending
from lucid.core.ledger import Ledger


def test_a_job_starts_in_slots_if_and_only_if_another_may_join_it() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        gpus, gss = rng.choice([1, 2, 4]), rng.choice([0, 1, 2, 4])
        profile = replace(rng.choice([LIGHT, HEAVY]), unstable=rng.random() < 0.2)
        entry = Pending(a_job("j", gpus, shareable=rng.random() < 0.7), 0.0, profile, alone=rng.random() < 0.3)
        known = {"j": guess(1000.0, rng.choice([0, 1, 2])), "p": guess(10.0, 0)}
        vc, packing = part(nodes(3, 2)), rules_of(packing={"gss": gss}).packing
        placement = at("n1:0-1 n2:0-1") if gpus == 4 else at("n1:0") if gpus == 1 else at("n1:0-1")
        binder = Binder(vc, Ledger(vc), known, FixedPredictor(), packing, 0.0)
        in_slots = binder.in_slots(entry, known["j"].share_score, len(placement))
        binder.started(entry, placement)
        guest = Pending(a_job("p", gpus), 0.0, LIGHT)
        beside = None
        if binder.bars(guest, 0, gss) is None or gpus == 4:  # a job of two nodes is barred anyway
            beside, _ = binder.partner(guest, 10.0, 0, gss)
        assert bool(in_slots) is (beside is not None), f"seed {seed}: {in_slots}"
