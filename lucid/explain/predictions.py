"""Predictions in words: the terms that an estimate is made of, and the path through the share tree."""

from __future__ import annotations

import math
from typing import Any

from lucid.core.prediction import DurationTerms, Prediction, Split, Term, prediction_to_dict
from lucid.explain.formatting import duration
from lucid.text import shown

_LABELS = ("Tiny", "Medium", "Jumbo")
_LEAST_SHOWN = 0.005
"""Terms that together change the estimate by less than this share are summed up in one line."""
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_BESIDE = {
    "user_last": "the user's last job",
    "user_last_3": "the user's last 3 jobs",
    "user_last_11": "the user's last 11 jobs",
    "user_trend": "the user's recent jobs, newer ones counting more",
    "user_upper": "the longest quarter of the user's jobs",
    "same_request": "the user's jobs with the same request",
    "same_request_recent": "the latest of the user's jobs with the same request",
    "same_request_last": "the user's last job with the same request",
    "same_name": "the user's jobs with such a name",
    "limit_ratio": "the requested time limit",
    "best user_median11": "the user's last 11 jobs",
    "best request_median": "the user's jobs with the same request",
    "best request_median11": "the user's last 11 jobs with the same request",
    "best name_median": "the user's jobs with such a name",
    "best name_median3": "the user's last 3 jobs with such a name",
}
"""Features that are logarithms of a factor beside the anchor."""
_NAMED = {
    "user": "user {}",
    "account": "account {}",
    "partition": "VC {}",
    "qos": "QOS {}",
    "name": "name like {}",
    "gpus": "{} GPUs",
    "cpus": "{} CPUs",
    "nodes": "{} nodes",
    "memory_mib": "{} MiB of memory",
    "user_jobs": "{} jobs of the user so far",
    "user_spread": "spread of the user's jobs {}",
    "same_request_jobs": "{} jobs of the user with the same request",
    "same_name_jobs": "{} jobs of the user with such a name",
}
_MISSING = {
    "user_last_11": "no earlier job of the user",
    "same_request": "no job of the user with the same request",
    "same_request_recent": "no job of the user with the same request",
    "same_request_last": "no job of the user with the same request",
    "same_name": "no job of the user with such a name",
    "limit_ratio": "no time limit requested",
    "limit_s": "no time limit requested",
    "name": "name unlike any other",
}
_TREE = {
    "gpu_util": ("GPU utilisation", " %"),
    "gmem_util": ("GPU memory utilisation", " %"),
    "gmem_mib": ("GPU memory", " MiB"),
    "amp": ("mixed precision", ""),
}


def prediction_lines(prediction: Prediction, user: str) -> list[str]:
    """The estimate and the share score, with what made them. Effects of terms are in order of their size, each beside
    the ones before it, so that they add up to the estimate."""
    lines = [f"estimate {duration(prediction.duration_s)} by {prediction.duration_source}"]
    terms = prediction.duration_terms
    if terms is not None:
        if terms.high_s is not None:
            lines[0] += f"; in 8 of 10 cases between {duration(terms.low_s)} and {duration(terms.high_s)}"
        lines = [f"{lines[0]}:", *(f"    {line}" for line in _term_lines(terms, user))]
    if prediction.share_score is not None:
        label = _LABELS[prediction.share_score]
        lines.append(f"share score {prediction.share_score} ({label}) by {prediction.share_source}")
        lines += [f"    {_split_words(split)}" for split in prediction.share_splits]
    return [shown(line) for line in lines]


def prediction_data(prediction: Prediction) -> dict[str, Any]:
    """The prediction as JSON, with the effect of every term in seconds beside its score."""
    data = prediction_to_dict(prediction)
    terms = prediction.duration_terms
    if terms is not None:
        effects = effects_s(terms)
        for item in data["duration_terms"]["terms"]:
            item["effect_s"] = effects[item["name"]]
        data["duration_terms"]["intercept_effect_s"] = effects[""]
    return data


def effects_s(terms: DurationTerms) -> dict[str, float]:
    """The seconds that each term, and the intercept under "", adds; together they are the estimate.

    A term multiplies, so what it adds depends on what was there before: the anchor first, then the others from the
    largest to the smallest score."""
    anchor, *rest = terms.terms
    ordered = sorted([*rest, Term("", "", terms.intercept)], key=lambda term: -abs(term.score))
    at = anchor.score
    found = {anchor.name: math.exp(at) - terms.offset_s}
    for term in ordered:
        found[term.name] = math.exp(at + term.score) - math.exp(at)
        at += term.score
    return found


def _term_lines(terms: DurationTerms, user: str) -> list[str]:
    effects = effects_s(terms)
    anchor, *rest = terms.terms
    lines = [f"{_anchor_words(anchor, user)}: {duration(effects[anchor.name])}"]
    least = _LEAST_SHOWN * max(abs(value) for value in effects.values())
    small = 0.0
    for term in sorted([*rest, Term("", "", terms.intercept)], key=lambda term: -abs(term.score)):
        if abs(effects[term.name]) < least:
            small += effects[term.name]
        else:
            lines.append(f"{_words(term)}: {_signed(effects[term.name])}")
    if round(abs(small)) > 0:
        lines.append(f"smaller terms together: {_signed(small)}")
    return lines


def _anchor_words(term: Term, user: str) -> str:
    if term.name == "user median":
        return f"user {user}, median of {term.value}"
    if term.name == "near limit":
        return f"a user without a finished job; median of {term.value} who had jobs with such a time limit"
    if term.name == "demand mean":
        return f"a user without a finished job; mean of all jobs with {term.value}"
    return "nothing has finished yet; taken for granted"


def _words(term: Term) -> str:
    if not term.name:
        return "jobs in general, compared with that"
    if " & " in term.name:  # a pairwise term: both features by name
        return f"{term.name.replace('_', ' ')} ({term.value})"
    if term.value == "missing":
        return _MISSING.get(term.name, f"{term.name.replace('_', ' ')} not known")
    if term.name in _BESIDE:
        return f"{_BESIDE[term.name]}, {_factor(float(term.value))}"
    if term.name in _NAMED:
        return _NAMED[term.name].format(term.value)
    if term.name == "hour":
        return f"submitted about {int(float(term.value)):02}:00"
    if term.name == "weekday":
        return f"submitted on a {_WEEKDAYS[int(float(term.value))]}"
    if term.name == "limit_s":
        return f"time limit {duration(float(term.value))}"
    if term.name == "user_idle_s":
        return f"the user's last job ended {duration(float(term.value))} before"
    if term.name == "time run so far":
        return f"has already run {term.value} without ending"
    if term.name == "requested limit":
        return f"capped at the requested limit ({term.value})"
    return f"{term.name.replace('_', ' ')} {term.value}"


def _factor(log: float) -> str:
    """A factor beside the median, in words."""
    factor = math.exp(log)
    if abs(log) < _LEAST_SHOWN:
        return "as long as that"
    return f"{factor:.2g} times that"


def _signed(seconds: float) -> str:
    return f"{'−' if seconds < 0 else '+'}{duration(abs(seconds))}"


def _split_words(split: Split) -> str:
    words, unit = _TREE.get(split.feature, (split.feature, ""))
    relation = "at most" if split.at_most else "above"
    return f"{words} {split.value:,.4g}{unit} is {relation} {split.threshold:,.4g}{unit}"
