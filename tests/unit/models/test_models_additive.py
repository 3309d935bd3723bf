"""The additive tables score as the library they were taken from, and refuse files that make no model."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel, from_ebm
from scenes.models import damaged

pd = pytest.importorskip("pandas")
glassbox = pytest.importorskip("interpret.glassbox")

CATEGORIES = ["ann", "bob", "cy", None]


def train(objective: str) -> Any:
    rng = np.random.default_rng(7)
    x = rng.normal(size=400)
    x[::17] = np.nan
    who = rng.choice(np.array(CATEGORIES, dtype=object), size=400)
    z = np.round(rng.exponential(size=400), 1)
    y = np.exp(0.5 * np.nan_to_num(x) + (who == "ann") * 0.7 - 0.2 * z + np.nan_to_num(x) * (who == "bob"))
    frame = pd.DataFrame({"x": x, "who": who, "z": z})
    with warnings.catch_warnings():
        # interpret warns that its own plots leave out the missing bin; our tables keep it.
        warnings.filterwarnings("ignore", message="Missing values detected")
        light = {"interactions": 3, "max_rounds": 60, "outer_bags": 2, "n_jobs": 1, "random_state": 0}
        types = ["continuous", "nominal", "continuous"]
        return glassbox.ExplainableBoostingRegressor(feature_types=types, objective=objective, **light).fit(frame, y)


@pytest.fixture(scope="module", params=["rmse", "rmse_log"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, AdditiveModel]:
    ebm = train(request.param)
    return ebm, from_ebm(ebm)


number = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True, width=64))
name = st.one_of(st.sampled_from([*CATEGORIES, "dora"]), st.text(min_size=1, max_size=4).filter(str.strip))


@settings(max_examples=examples(200), deadline=None)
@given(rows=st.lists(st.tuples(number, name, number), min_size=1, max_size=20))
def test_equals_the_library_with_missing_and_unseen_values(
    pair: tuple[Any, AdditiveModel], rows: list[tuple[Any, ...]]
) -> None:
    ebm, model = pair
    columns = {key: [row[i] for row in rows] for i, key in enumerate(("x", "who", "z"))}
    kinds = {"x": float, "who": object, "z": float}
    frame = pd.DataFrame({name: np.array(columns[name], dtype=kind) for name, kind in kinds.items()})
    np.testing.assert_allclose(model.predict(columns), ebm.predict(frame), rtol=1e-9, atol=1e-9)


def test_cut_points_belong_to_the_bin_above_and_importance_is_the_librarys(pair: tuple[Any, AdditiveModel]) -> None:
    ebm, model = pair
    np.testing.assert_allclose([t.importance for t in model.terms], ebm.term_importances(), rtol=1e-9)
    cuts = np.array(model.terms[2].axes[0].cuts)
    frame = pd.DataFrame({"x": 0.0, "who": "ann", "z": cuts})
    columns = {"x": np.zeros(len(cuts)), "who": ["ann"] * len(cuts), "z": cuts}
    np.testing.assert_allclose(model.predict(columns), ebm.predict(frame), rtol=1e-9, atol=1e-9)


@given(x=number, who=name, z=number)
@settings(max_examples=examples(200), deadline=None)
def test_terms_and_intercept_sum_to_the_score(pair: tuple[Any, AdditiveModel], x: Any, who: Any, z: Any) -> None:
    model = pair[1]
    row = {"x": x, "who": who, "z": z}
    total = model.intercept + sum(addend.score for addend in model.explain_one(row))
    assert total == pytest.approx(float(model.score({k: [v] for k, v in row.items()})[0]), abs=1e-9)


def test_json_round_trip_is_exact(pair: tuple[Any, AdditiveModel]) -> None:
    model = pair[1]
    back = AdditiveModel.from_json(json.loads(json.dumps(model.to_json())))
    columns = {"x": np.linspace(-3, 3, 50), "who": ["ann", None] * 25, "z": np.linspace(0, 5, 50)}
    assert (back.predict(columns) == model.predict(columns)).all()
    assert back.to_json() == model.to_json()


def test_text_in_a_continuous_column_is_unknown_unless_it_is_a_number(pair: tuple[Any, AdditiveModel]) -> None:
    axis = pair[1].terms[2].axes[0]
    bin_of = axis.bins([1.5])[0]
    assert axis.bins(["soon", "1.5", None, 1.5]).tolist() == [axis.size - 1, bin_of, 0, bin_of]


def test_wrong_columns_and_estimators_are_refused(pair: tuple[Any, AdditiveModel]) -> None:
    for says, columns in {
        r"'who', row 1: 3 is a int.*give text": {"x": [0, 0], "who": ["ann", 3], "z": [0, 0]},
        r"\['z'\] are needed": {"x": [0], "who": ["ann"]},
        "differ in length": {"x": [0, 1], "who": ["ann"], "z": [0]},
    }.items():
        with pytest.raises(ModelError, match=says):
            pair[1].predict(columns)
    with pytest.raises(ModelError, match="fitted regressor"):
        from_ebm(glassbox.ExplainableBoostingRegressor())


DAMAGE: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("format",), "lucid-additive/9", r"'lucid-additive/9' - at `\$.format`"),
    (("link",), "logit", r"'logit' - at `\$.link`"),
    (("intercept",), float("nan"), "number nan"),
    (("intercept",), True, r"got `bool` - at `\$.intercept`"),
    (("terms",), {}, "Expected `array`"),
    (("terms", 0, "axes"), [], r"shapes .*, its axes say \(\).*terms\[0\]"),
    (("terms", 0, "axes", 0, "kind"), "fuzzy", r"'fuzzy' - at `\$.terms\[0\].axes\[0\].kind`"),
    (("terms", 0, "axes", 0, "cuts"), [2.0, 1.0], "do not ascend"),
    (("terms", 0, "scores"), [0.0], "have shapes"),
    (("terms", 0, "scores", 1), None, "not finite"),
    (("terms", 0, "scores", 1), "x", "could not convert"),
    (("terms", 0, "weights", 1), -1.0, "negative"),
    (("terms", 1, "axes", 0, "categories"), {"ann": 0}, "not in a bin"),
]


@pytest.mark.parametrize(("path", "value", "says"), DAMAGE)
def test_inconsistent_files_are_refused_with_place_and_remedy(
    pair: tuple[Any, AdditiveModel], path: tuple[Any, ...], value: Any, says: str
) -> None:
    with pytest.raises(ModelError, match=rf"m\.json: .*({says}).*train the model again"):
        AdditiveModel.from_json(damaged(pair[1].to_json(), path, value), source="m.json")
