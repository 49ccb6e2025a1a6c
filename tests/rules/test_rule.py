"""What every rule must do: derivatives, linearity, covariances, policies there and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from small_worlds import (
    ALL,
    FADING,
    differences,
    known_world,
    point,
    policies,
    small,
    worlds,
)

from logel.envs.tabular import (
    softmax_policy,
)
from logel.rules.ascent import Gradient
from logel.rules.catalogue import RULES
from logel.rules.rule import RandomWalk, Rule
from logel.rules.values import DriftingValues, QLearning
from logel.worlds.linear import LinearWorld
from logel.worlds.pooled import SampledWorld
from logel.worlds.table import TabularWorld


@pytest.mark.parametrize("world", worlds(), ids=["lasting", "terminating"])
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_derivatives_equal_finite_differences(kind: type[Rule], world: TabularWorld) -> None:
    model = kind(world)
    for seed in range(2):
        states, parameters = point(model, seed)
        found = model.predict(states, parameters)
        np.testing.assert_allclose(found.following, model.following(states, parameters), rtol=1e-12)
        by_parameter = differences(
            lambda p, s=states: model.following(s, p),  # type: ignore[misc]
            parameters,
        )
        np.testing.assert_allclose(found.design, by_parameter, atol=1e-7)
        if kind is not QLearning:
            by_state = differences(
                lambda s, p=parameters: model.following(s, p),  # type: ignore[misc]
                states,
            )
            np.testing.assert_allclose(found.transition, by_state, atol=1e-7)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@given(seed=st.integers(0, 1000), x=st.floats(-3, 3), y=st.floats(-3, 3))
@settings(max_examples=10)
def test_steps_are_linear_in_the_weights(kind: type[Rule], seed: int, x: float, y: float) -> None:
    model = kind(known_world(small()))
    states, first = point(model, seed)
    q = model.world.n_features
    second, zero, mixed = first.copy(), first.copy(), first.copy()
    second[:q] = np.random.default_rng(seed + 1).normal(size=q)
    zero[:q] = 0.0
    mixed[:q] = x * first[:q] + y * second[:q]
    none = model.following(states, zero)
    expected = none + sum(
        c * (model.following(states, p) - none) for c, p in ((x, first), (y, second))
    )
    np.testing.assert_allclose(model.following(states, mixed), expected, atol=1e-9)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_steps_do_not_see_one_another(kind: type[Rule]) -> None:
    # Each row is a step of its own; only the fading rate knows how late it is.
    model = kind(known_world(small()))
    states, parameters = point(model, 3)
    if kind in FADING:
        parameters[-1] = 0.0
    together = model.following(states, parameters)
    alone = np.concatenate([model.following(row[None], parameters) for row in states])
    np.testing.assert_allclose(together, alone, atol=1e-12)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_noise_shapes_are_covariances(kind: type[Rule]) -> None:
    for world in worlds():
        model = kind(world)
        states, parameters = point(model, 4)
        # Nearly deterministic policies as well: their information is almost singular.
        for factor in (1.0, 20.0):
            shape = model.predict(factor * states, parameters).shape
            assert shape.shape == (4, model.state_dim, model.state_dim)
            np.testing.assert_allclose(shape, shape.transpose(0, 2, 1), atol=1e-12)
            assert np.linalg.eigvalsh(shape).min() > 0
            np.linalg.cholesky(shape)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_states_and_policies_round_trip(kind: type[Rule]) -> None:
    model = kind(known_world(small()))
    states, _ = point(model, 5)
    parameters = model.as_policy(states)
    assert parameters.shape == (4, 8)
    again = model.from_policy(parameters)
    assert again.shape == states.shape
    np.testing.assert_allclose(model.as_policy(again), parameters, atol=1e-12)
    expected = softmax_policy(parameters[0], n_states=4, n_actions=3)
    np.testing.assert_allclose(policies(model, states[0]), expected, atol=1e-12)
    if model.keeps_values:
        assert model.state_dim == 12
        table = states.reshape(4, 4, 3)
        np.testing.assert_allclose(policies(model, states), softmax(table, axis=-1), atol=1e-12)
        # A level per state is no part of the policy: it must be forgotten, not kept.
        levelled = (table + np.arange(4)[:, None]).reshape(4, 12)
        np.testing.assert_allclose(model.as_policy(levelled), parameters, atol=1e-12)
        np.testing.assert_allclose(again.reshape(4, 4, 3).mean(axis=-1), 0.0, atol=1e-12)
    else:
        assert model.state_dim == 8
        np.testing.assert_allclose(again, states, atol=1e-12)
    np.testing.assert_array_equal(model.as_policy(states[1]), parameters[1])
    np.testing.assert_allclose(
        model.log_likelihood(np.zeros((5, model.state_dim))),
        -model.world.counts.sum() * np.log(3),  # type: ignore[attr-defined]
    )


def test_the_catalogue_holds_every_kind_of_learner_once() -> None:
    kinds = set(RULES.values())
    assert len(kinds) == len(RULES) == 7 and not kinds & {RandomWalk, DriftingValues}
    assert len({kind.name for kind in (*kinds, RandomWalk, DriftingValues)}) == 9
    assert set(TabularWorld.offers) == set(RULES) - {"adam"}
    assert set(LinearWorld.offers) == set(SampledWorld.offers) == {"gradient", "natural", "adam"}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_known_states_change_nothing_but_what_is_not_needed(kind: type[Rule]) -> None:
    model = kind(known_world(small()))
    states, parameters = point(model, 18)
    full = model.predict(states, parameters)
    brief = model.predict(states, parameters, states_known=True)
    np.testing.assert_array_equal(brief.following, full.following)
    np.testing.assert_array_equal(brief.design, full.design)
    # In tables a gradient's noise is looked at closer where steps are seen exactly.
    if kind is not Gradient:
        np.testing.assert_array_equal(brief.shape, full.shape)
