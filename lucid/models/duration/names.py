"""Buckets of alike job names (``train-a-1``, ``train-b``, ...): Levenshtein, then affinity propagation.

Affinity propagation (Frey and Dueck, Science 315, 2007) needs every pairwise similarity, n² of them. To stay
bounded at 100,000 distinct names:

1. case and numbers are normalised away first (`name_stem`), which merges most of what differs between runs;
2. only the `SAMPLE` most frequent stems (ties: the alphabet) are clustered, so time and memory of the
   clustering do not depend on n;
3. every other stem joins its nearest exemplar, compared block by block, if at least `CLOSE` similar;
   else it has no bucket: O(n × exemplars) time, O(block × exemplars) memory. The `KEPT` most frequent
   stems are remembered; a rarer one counts as new, and a new name falls back on its user's history.

Looking up a name later needs neither library: known stems are a dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from lucid.core.frozen import dataclass
from lucid.errors import ModelError
from lucid.models.duration.features import name_stem

__all__ = ["NameBuckets"]

SAMPLE: Final = 400
CLOSE: Final = 0.6
KEPT: Final = 20_000
_BLOCK: Final = 4096
# Compared characters of a stem: bounds the quadratic cost of one comparison.
_LONGEST: Final = 64


@dataclass(frozen=True, slots=True)
class NameBuckets:
    """`bucket_of`: stem to bucket label; a label is the exemplar's stem followed by ``*``."""

    bucket_of: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def fit(cls, names: Iterable[str | None]) -> NameBuckets:
        """Group the names seen in training; deterministic, whatever the order of `names`."""
        counts = Counter(stem for name in names if (stem := name_stem(name)))
        stems = sorted(counts, key=lambda stem: (-counts[stem], stem))
        if not stems:
            return cls()
        exemplars = _exemplars(stems[:SAMPLE])
        return cls(_nearest(stems[:KEPT], exemplars))

    def __call__(self, names: Sequence[str | None]) -> list[str | None]:
        """The bucket of every name; None where the name is absent or like none of the known ones."""
        seen: dict[str | None, str | None] = {}
        for name in names:
            if name not in seen:
                seen[name] = self.bucket_of.get(name_stem(name) or "")
        return [seen[name] for name in names]

    def to_json(self) -> dict[str, str]:
        """Stem to bucket, ready for JSON."""
        return dict(self.bucket_of)

    @classmethod
    def from_json(cls, data: object, *, source: str) -> NameBuckets:
        """Check and build.

        Raises:
            ModelError: not an object of text to text; the message names `source`.
        """
        if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
            raise ModelError(f"{source}: names is not an object of stem to bucket; train the model again")
        return cls(dict(data))


def _exemplars(stems: Sequence[str]) -> list[str]:
    # Imported here: only training needs them, and importing costs the daemon a second.
    import warnings

    from sklearn.cluster import AffinityPropagation
    from sklearn.exceptions import ConvergenceWarning

    if len(stems) <= 2:
        return list(stems)
    with warnings.catch_warnings():
        # Names that are all equally (un)like never settle; whatever it has by then is still a grouping.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="All samples have mutually equal similarities")
        fitted = AffinityPropagation(affinity="precomputed", random_state=0, max_iter=200).fit(
            _similarity(stems, stems)
        )
    centres = fitted.cluster_centers_indices_
    exemplars = [stems[int(index)] for index in centres]
    if not exemplars:
        return list(stems)
    # A frequent stem that is like none of the exemplars is a bucket of its own.
    alone = _similarity(stems, exemplars).max(axis=1) < CLOSE
    return exemplars + [stem for stem, is_alone in zip(stems, alone.tolist(), strict=True) if is_alone]


def _nearest(stems: Sequence[str], exemplars: Sequence[str]) -> dict[str, str]:
    bucket_of: dict[str, str] = {}
    for start in range(0, len(stems), _BLOCK):
        block = stems[start : start + _BLOCK]
        similarity = _similarity(block, exemplars)
        best = similarity.argmax(axis=1)
        for row, stem in enumerate(block):
            if similarity[row, best[row]] >= CLOSE:
                bucket_of[stem] = exemplars[int(best[row])] + "*"
    return bucket_of


def _similarity(left: Sequence[str], right: Sequence[str]) -> Any:
    """1 - Levenshtein distance / longer length, shape (left, right)."""
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    return cdist(
        [stem[:_LONGEST] for stem in left],
        [stem[:_LONGEST] for stem in right],
        scorer=Levenshtein.normalized_similarity,
        dtype=np.float32,
        workers=1,
    )
