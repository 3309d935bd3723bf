"""What a policy takes for granted: of the cluster, of users' programs, and of what is known beforehand."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lucid.core.ports import Capability
from lucid.orchestrator.policies import ESTIMATES, Estimates
from lucid.orchestrator.policy import Policy

__all__ = ["PolicyRequirements", "requirements_of"]

_CODE = (
    (Capability.ADAPT, "an agent in the training loop, checkpoints"),
    (Capability.INTERLEAVE, "an executor that lets jobs take turns, checkpoints"),
    (Capability.RESIZE, "any number of GPUs, checkpoints"),
    (Capability.PREEMPT, "checkpoints"),
)
"""What users' programs must have been given for a capability, the most demanding first."""


_WORDS = {
    "none": "no durations",
    "given": "estimated durations",
    "limits": "time limits",
    "true": "TRUE durations",
}


@dataclass(frozen=True, slots=True)
class PolicyRequirements:
    """``durations``: what is known of them, "none", "given" (estimates), "limits" (users' time limits, or
    estimates times a factor) or "true" (which only a replay has).
    ``preempts``, ``resizes``: are running jobs stopped and resumed, or moved to more or fewer GPUs?
    ``changes_batch``: does it change the batch size users chose? ``code``: what their programs must have been given,
    empty for nothing.
    """

    durations: str
    preempts: bool
    resizes: bool
    changes_batch: bool
    code: str

    def text(self) -> str:
        """As one line: ``true durations, preempts; code: checkpoints``."""
        words = [_WORDS[self.durations]]
        words += ["preempts"] if self.preempts else []
        words += ["resizes"] if self.resizes else []
        words += ["changes batch sizes"] if self.changes_batch else []
        return f"{', '.join(words)}; code: {self.code or 'unchanged'}"

    def data(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def requirements_of(policy: Policy) -> PolicyRequirements:
    """Read off what the policy needs of a cluster, and what it is told of durations."""
    needs = policy.needs
    return PolicyRequirements(
        ESTIMATES.get(policy.name, Estimates.GIVEN).value,
        Capability.PREEMPT in needs,
        Capability.RESIZE in needs,
        Capability.ADAPT in needs,
        next((words for capability, words in _CODE if capability in needs), ""),
    )
