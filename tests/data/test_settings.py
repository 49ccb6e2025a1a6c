"""A learner's settings: what is kept comes back, and what strangers write is checked."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logel import Episode, LearningHistory
from logel.data.settings import ACTIVATIONS, HUGE, KEY, LearnerSettings, RewardNormaliser
from logel.errors import HistoryError
from logel.policies import sb3

NAMES = [item.name for item in fields(LearnerSettings)]
GARBAGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63])
    | st.floats()
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
WHOLE = LearnerSettings(
    "PPO",
    gamma=0.9,
    n_steps=2048,
    n_epochs=10,
    max_grad_norm=0.5,
    normalize_advantage=True,
    optimizer="Adam",
    optimizer_options={"beta1": 0.9, "beta2": 0.999, "eps": 1e-5},
    pi=(64, 32),
    vf=(),
    activation="tanh",
    reward_normaliser=RewardNormaliser(gamma=0.95, clip=5.0),
    use_sde=False,
    n_updates_between=3,
)


def history(metadata: dict[str, Any]) -> LearningHistory:
    episode = Episode(np.zeros((3, 1)), np.zeros(2, dtype=int))
    return LearningHistory.from_episodes([[episode], [episode]], metadata=metadata)


def test_settings_survive_json_and_a_folder(tmp_path: Path) -> None:
    values = json.loads(json.dumps(WHOLE.to_json(), allow_nan=False))
    assert set(values) == set(NAMES)
    assert LearnerSettings.from_json(values) == WHOLE
    # A later version may know more.
    assert LearnerSettings.from_json({**values, "temperature": object()}) == WHOLE
    history({KEY: values}).save(tmp_path / "h")
    assert LearnerSettings.of(LearningHistory.load(tmp_path / "h")) == WHOLE


def test_what_is_not_said_is_not_known() -> None:
    assert LearnerSettings.of(history({})) is None
    # As recorders wrote before there were settings.
    before = {"learner": "PPO", "gamma": 0.99, "n_envs": 4, "n_steps": 64, "policy": {"hidden": []}}
    assert LearnerSettings.of(history(before)) is None
    bare = LearnerSettings("Mine")
    assert all(getattr(bare, name) is None for name in NAMES if name != "algorithm")
    assert LearnerSettings.from_json({"algorithm": "Mine", "gamma": None}) == bare


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"gamma": 1.5}, "gamma must be a number from 0 to 1, but is 1.5"),
        ({"gamma": math.nan}, "gamma must be a number from 0 to 1, but is nan"),
        ({"ent_coef": 10**400}, "ent_coef must be a number"),
        ({"ent_coef": 10**5000}, "ent_coef must be a number"),
        ({"vf_coef": math.inf}, "vf_coef must be a number"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number from 0 to 1e.30, but is '0.1'"),
        ({"n_steps": True}, "n_steps must be a whole number from 1"),
        ({"n_steps": 2.0}, "n_steps must be a whole number"),
        ({"n_epochs": 10**9}, "n_epochs must be a whole number from 1 to 100000"),
        ({"use_sde": 1}, "use_sde must be true or false, but is 1"),
        ({"pi": [64] * 33}, "pi must be a list of at most 32 widths, but is a list of 33"),
        ({"vf": [64, 10**6]}, "vf must be a whole number from 1 to 65536"),
        ({"pi": "64"}, "pi must be a list"),
        ({"activation": "step"}, "activation must be one of tanh, relu"),
        ({"activation": []}, "activation must be one of"),
        ({"optimizer": "os.system('x')"}, "optimizer must be the name of a class"),
        ({"optimizer_options": {"eps": "x"}}, "optimizer_options eps must be a number"),
        ({"optimizer_options": {"a b": 1}}, "optimizer_options must be the name"),
        ({"optimizer_options": {f"a{i}": 1 for i in range(33)}}, "at most 32 numbers"),
        ({"reward_normaliser": 3}, "reward_normaliser must be a table"),
        ({"reward_normaliser": {"clip": -1}}, "reward normaliser's clip must be a number from 0"),
        ({"algorithm": None}, "algorithm must be the name of a class"),
    ],
)
def test_nonsense_is_named(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HistoryError, match=told):
        LearnerSettings.of(history({KEY: {"algorithm": "PPO", **values}}))


@given(GARBAGE | st.dictionaries(st.sampled_from(NAMES), GARBAGE, max_size=4))
def test_garbage_is_refused_or_sound(values: Any) -> None:
    tries = [values, {"algorithm": "PPO", **values}] if isinstance(values, dict) else [values]
    for mapping in tries:
        try:
            settings = LearnerSettings.from_json(mapping)
        except HistoryError as error:
            assert len(str(error)) < 300
        else:
            again = LearnerSettings.from_json(json.loads(json.dumps(settings.to_json())))
            assert again == settings


@given(st.dictionaries(st.sampled_from(NAMES), GARBAGE))
def test_a_learner_is_believed_where_it_makes_sense(values: dict[str, Any]) -> None:
    settings = LearnerSettings.believed(values)
    json.dumps(settings.to_json(), allow_nan=False)
    for name, value in values.items():
        kept = getattr(settings, name)
        finite = not (isinstance(value, float) and math.isinf(value))
        if kept is not None and name != "algorithm" and finite:
            assert LearnerSettings(**{"algorithm": "PPO", name: value}) == LearnerSettings(
                **{"algorithm": "PPO", name: kept}
            )


def test_numbers_of_other_kinds_are_taken_for_what_they_are() -> None:
    settings = LearnerSettings.believed(
        {
            "algorithm": "PPO",
            "max_grad_norm": math.inf,
            "gamma": np.float64(0.5),
            "n_steps": np.int64(7),
            "learning_rate": -1.0,
        }
    )
    assert settings == LearnerSettings("PPO", max_grad_norm=HUGE, gamma=0.5, n_steps=7)
    assert type(settings.gamma) is float and type(settings.n_steps) is int


def test_activations_are_those_that_policies_know() -> None:
    assert tuple(sb3.ACTIVATIONS) == ACTIVATIONS
