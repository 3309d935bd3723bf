"""Optimus: fitted loss and speed curves, marginal gains, and an even spread on few nodes."""

from lucid.systems.optimus.allocate import RESOURCES, Allocation, OptimusJob, allocate
from lucid.systems.optimus.baseline import Claim, fair_shares, pick_node
from lucid.systems.optimus.epochs import converged_at, end_epoch
from lucid.systems.optimus.fit import (
    Kind,
    LossModel,
    SpeedEstimator,
    SpeedModel,
    fit_loss,
    fit_speed,
    loss_sigma,
)
from lucid.systems.optimus.probe import POINTS, merge_points, next_probe

__all__ = [
    "POINTS",
    "RESOURCES",
    "Allocation",
    "Claim",
    "Kind",
    "LossModel",
    "OptimusJob",
    "SpeedEstimator",
    "SpeedModel",
    "allocate",
    "converged_at",
    "end_epoch",
    "fair_shares",
    "fit_loss",
    "fit_speed",
    "loss_sigma",
    "merge_points",
    "next_probe",
    "pick_node",
]
