"""Rewards that no learner can show are found exactly, whatever the sampling; others are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.stage import Stage
from logel.inference.gauge import Gauge
from logel.inference.gauge_sums import (
    CONSTANT,
    DEPENDENT,
    NO_CHOICE,
    POTENTIAL,
    STATE_ALONE,
    ZERO,
    GaugeSums,
    plain_basis,
)
from logel.types import Float


def walks(
    rng: np.random.Generator,
    *,
    n_states: int = 4,
    n_actions: int = 3,
    n_episodes: int = 30,
    length: int = 12,
    spread: float = 1.0,
    ends: float = 0.0,
) -> Stage:
    """Random walks of a random policy in a random world; no features yet.

    With spread 0 the world is deterministic; `ends` is the chance that a time is the last.
    """
    size = (n_states, n_actions)
    sure = np.eye(n_states)[rng.integers(n_states, size=size)]
    transitions = (1 - spread) * sure + spread * rng.dirichlet(np.ones(n_states), size=size)
    observations, actions, lengths, terminated, last = [], [], [], [], []
    for _ in range(n_episodes):
        s = int(rng.integers(n_states))
        over_at = rng.geometric(ends) if ends else np.inf
        for _ in range(int(min(length, over_at))):
            a = int(rng.integers(n_actions))
            observations.append(s)
            actions.append(a)
            s = int(rng.choice(n_states, p=transitions[s, a]))
        lengths.append(int(min(length, over_at)))
        terminated.append(over_at <= length)
        last.append(s)
    return Stage(
        observations=np.array(observations),
        actions=np.array(actions),
        lengths=np.array(lengths),
        terminated=np.array(terminated),
        last_observations=np.array(last),
    )


def shaping(stage: Stage, potential: Float, gamma: float) -> Float:
    """What a potential of the states pays at every row; the end of a terminated one is worth 0."""
    after = potential[stage.next_observations()]
    after[(stage.starts + stage.lengths - 1)[stage.terminated]] = 0.0
    return potential[stage.observations] - gamma * after


def by_pair(rng: np.random.Generator, stage: Stage) -> Float:
    """A random reward of state and action."""
    table = rng.normal(size=(stage.observations.max() + 1, stage.actions.max() + 1))
    return np.asarray(table[stage.observations, stage.actions])


def gauge_of(
    stage: Stage, *columns: Any, gamma: float, bootstrap: bool | None = True, pieces: int = 1
) -> Gauge:
    """The gauge of the given features, streamed in pieces."""
    sums = GaugeSums(gamma)
    whole = replace(stage, features=np.stack(columns, axis=1))
    for part in np.array_split(np.arange(stage.n_episodes), pieces):
        sums.add(whole.take(part))
    return sums.gauge(tuple(f"f{j}" for j in range(len(columns))), bootstrap=bootstrap)


def assert_spans(gauge: Gauge, *vectors: Any, atol: float = 1e-7) -> None:
    """The gauge is the span of the vectors."""
    assert gauge.n == len(vectors), gauge.describe()
    np.testing.assert_allclose(gauge.directions @ gauge.directions.T, np.eye(gauge.n), atol=1e-9)
    for vector in vectors:
        unit = np.array(vector, dtype=float) / np.linalg.norm(vector)
        np.testing.assert_allclose(gauge.project(unit), 0.0, atol=atol)


# --- tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [0.0, 0.05])
@pytest.mark.parametrize("spread", [0.0, 0.7])
@pytest.mark.parametrize("pieces", [1, 4])
def test_a_potential_is_found_in_a_table(spread: float, ends: float, pieces: int) -> None:
    rng = np.random.default_rng(0)
    stage = walks(rng, spread=spread, ends=ends)
    potential = shaping(stage, rng.normal(size=4), 0.9)
    gauge = gauge_of(stage, by_pair(rng, stage), potential, gamma=0.9, pieces=pieces)
    assert_spans(gauge, [0, 1])
    assert gauge.describe() == [f"the weight of f1 is not identified: {POTENTIAL}"]
    # Another discount, or a trace of something else, and it can be told.
    assert gauge_of(stage, by_pair(rng, stage), potential, gamma=0.8).n == 0
    other = potential + 1e-5 * by_pair(rng, stage)
    assert gauge_of(stage, by_pair(rng, stage), other, gamma=0.9).n == 0


def test_nobody_needs_to_see_how_episodes_end() -> None:
    rng = np.random.default_rng(1)
    stage = walks(rng)
    columns = by_pair(rng, stage), shaping(stage, rng.normal(size=4), 0.9)
    assert_spans(gauge_of(replace(stage, last_observations=None), *columns, gamma=0.9), [0, 1])


def test_the_values_of_states_nobody_acted_in_are_free() -> None:
    rng = np.random.default_rng(2)
    stage = walks(rng, n_states=3, length=5)
    assert stage.last_observations is not None
    # One episode ends in a state of its own: its value may be what makes a reward a potential.
    last = stage.last_observations.copy()
    last[0] = 3
    stage = replace(stage, last_observations=last)
    columns = by_pair(rng, stage), shaping(stage, rng.normal(size=4), 0.9)
    assert_spans(gauge_of(stage, *columns, gamma=0.9), [0, 1])


def test_rewards_of_the_state_alone_are_silent_when_nothing_else_counts() -> None:
    rng = np.random.default_rng(3)
    stage = walks(rng, n_states=3, ends=0.3)
    pairs = np.eye(9)[3 * stage.observations + stage.actions].T
    for bootstrap in (True, False, None):
        gauge = gauge_of(stage, *pairs, gamma=0.0, bootstrap=bootstrap)
        assert_spans(gauge, *np.kron(np.eye(3), np.ones(3)))
        assert gauge.describe() == [
            f"adding the same amount to f{j}, f{j + 1}, f{j + 2} is not identified: {STATE_ALONE}"
            for j in (0, 3, 6)
        ]
    # With a discount, states are worth choosing; only the level of all (a potential) is not,
    # and not even that where episodes end.
    assert gauge_of(stage, *pairs, gamma=0.5).n == 3
    assert gauge_of(stage, *pairs, np.ones(stage.n_steps), gamma=0.5).n == 4


def test_what_pays_where_there_is_no_choice_is_seen_only_through_the_way_there() -> None:
    # From 0, action 0 leads to 1 and action 1 to 2; there only action 0 is taken, back to 0.
    states, moves = [0, 1, 0, 2] * 20, [0, 0, 1, 0] * 20
    stage = Stage(
        observations=np.array(states),
        actions=np.array(moves),
        lengths=np.array([80]),
        terminated=np.array([False]),
        last_observations=np.array([0]),
    )
    in_one, in_two = np.equal(states, 1), np.equal(states, 2)
    gauge = gauge_of(stage, in_one.astype(float), in_two.astype(float), gamma=0.9)
    assert_spans(gauge, [1, 1])
    assert gauge.reasons == (POTENTIAL,)
    # A learner that looks no further chooses nothing there.
    assert gauge_of(stage, in_one.astype(float), in_two.astype(float), gamma=0.0).n == 2


def test_features_that_differ_only_by_chance_cannot_be_told_apart() -> None:
    rng = np.random.default_rng(4)
    stage = walks(rng, spread=0.5)
    paid = by_pair(rng, stage)
    # Noise that sums to zero in every pair.
    pair = 3 * stage.observations + stage.actions
    noise = rng.normal(size=stage.n_steps)
    noise -= (np.bincount(pair, weights=noise) / np.maximum(np.bincount(pair), 1))[pair]
    gauge = gauge_of(stage, paid, paid + noise, gamma=0.0)
    assert_spans(gauge, [1, -1])


@given(st.integers(0, 10**6), st.integers(0, 2), st.sampled_from([0.0, 0.5, 0.99]))
@settings(max_examples=40, deadline=None)
def test_potentials_and_nothing_else_in_random_worlds(seed: int, k: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    n_states, n_actions = (int(n) for n in rng.integers(2, 6, size=2))
    stage = walks(
        rng,
        n_states=n_states,
        n_actions=n_actions,
        n_episodes=60,
        spread=float(rng.random()),
        ends=float(rng.choice([0.0, 0.1])),
    )
    potentials = [shaping(stage, rng.normal(size=n_states), gamma) for _ in range(k)]
    others = [by_pair(rng, stage), rng.normal(size=stage.n_steps)]
    mixing = rng.normal(size=(k + 2, k + 2))
    mixed = mixing @ np.stack([*potentials, *others])
    # mixed' v = plain' (mixing' v): silent where mixing' v is zero but for the potentials.
    silent = np.linalg.inv(mixing.T)[:, :k].T
    gauge = gauge_of(stage, *mixed, gamma=gamma)
    if k == 2 and n_states == 2 and gamma == 0.0:
        assert gauge.n >= 2  # two states have no more than two functions
        return
    assert_spans(gauge, *silent, atol=1e-5)


# --- horizons -------------------------------------------------------------------------------


def test_at_a_horizon_of_their_own_learners_see_potentials_but_no_constants() -> None:
    rng = np.random.default_rng(5)
    stage = walks(rng, length=8)
    ones = np.full(stage.n_steps, 3.0)
    columns = by_pair(rng, stage), shaping(stage, rng.normal(size=4), 0.9), ones
    assert_spans(gauge_of(stage, *columns, gamma=0.9), [0, 1, 0], [0, 0, 1])
    cut = gauge_of(stage, *columns, gamma=0.9, bootstrap=False)
    assert_spans(cut, [0, 0, 1])
    assert cut.reasons == (CONSTANT,)
    assert_spans(gauge_of(stage, *columns, gamma=0.9, bootstrap=None), [0, 0, 1])
    # Once the end hardly counts, neither does the horizon.
    assert gauge_of(stage, *columns, gamma=0.1, bootstrap=False).n == 1
    shaped = shaping(stage, rng.normal(size=4), 0.1)
    assert_spans(
        gauge_of(stage, columns[0], shaped, ones, gamma=0.1, bootstrap=False), [0, 1, 0], [0, 0, 1]
    )


def test_a_single_decision_makes_rewards_of_the_state_silent_at_any_discount() -> None:
    rng = np.random.default_rng(6)
    stage = walks(rng, length=1, n_episodes=200)
    of_state = rng.normal(size=4)[stage.observations]
    columns = by_pair(rng, stage), of_state
    gauge = gauge_of(stage, *columns, gamma=0.9, bootstrap=False)
    assert_spans(gauge, [0, 1])
    assert gauge.reasons == (NO_CHOICE,)
    # If life goes on somewhere, it matters where.
    assert gauge_of(stage, *columns, gamma=0.9, bootstrap=True).n == 0
    assert gauge_of(stage, *columns, gamma=0.9, bootstrap=None).n == 0


def test_a_constant_pays_for_lasting_once_episodes_end() -> None:
    rng = np.random.default_rng(7)
    alive, dying = walks(rng), walks(rng, ends=0.1)
    for bootstrap in (True, False):
        for stage, n in ((alive, 1), (dying, 0)):
            columns = by_pair(rng, stage), np.ones(stage.n_steps)
            assert gauge_of(stage, *columns, gamma=0.9, bootstrap=bootstrap).n == n


def test_steps_and_ends_that_are_all_paid_are_collinear_and_called_so() -> None:
    rng = np.random.default_rng(8)
    stage = walks(rng, ends=0.1, n_episodes=60)
    over = np.zeros(stage.n_steps, dtype=bool)
    over[(stage.starts + stage.lengths - 1)[stage.terminated]] = True
    goal = over & (stage.actions == 0)
    hole = over & ~goal
    step = np.ones(stage.n_steps)
    gauge = gauge_of(stage, step, goal, hole, by_pair(rng, stage), gamma=0.9)
    assert_spans(gauge, [0.1, 0.9, 0.9, 0])
    assert gauge.reasons == (
        "f0, f1 and f2 are collinear under discounting, because every episode that ends does so in "
        "one of the two (f1 and f2)",
    )
    # An end that is not paid sets all of them free.
    other = hole & (stage.actions == 1)
    assert gauge_of(stage, step, goal, hole & ~other, gamma=0.9).n == 0


# --- continuous worlds ----------------------------------------------------------------------


def drifts(rng: np.random.Generator, *, n_episodes: int = 40, length: int = 15) -> Stage:
    """A point in the plane that is pushed about; no features yet."""
    x = rng.normal(size=(n_episodes, 2))
    pushes = rng.normal(size=(n_episodes, length, 2))
    path = [x]
    for time in range(length):
        path.append(0.9 * path[-1] + 0.3 * pushes[:, time])
    seen = np.stack(path, axis=1)
    return Stage(
        observations=seen[:, :-1].reshape(-1, 2),
        actions=pushes.reshape(-1, 2),
        lengths=np.full(n_episodes, length),
        terminated=np.zeros(n_episodes, dtype=bool),
        last_observations=seen[:, -1],
    )


def quadratic(x: Any) -> Float:
    return np.asarray(2 + x[:, 0] - 3 * x[:, 0] * x[:, 1] + 0.5 * x[:, 1] ** 2)


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("known", [True, False])
def test_a_quadratic_potential_is_found_in_a_continuous_world(pieces: int, known: bool) -> None:
    rng = np.random.default_rng(8)
    stage = drifts(rng)
    cost = (stage.actions**2).sum(axis=1)
    there = stage.next_observations()
    shaped = quadratic(stage.observations) - 0.95 * quadratic(there)
    near = -(there**2).sum(axis=1)
    if not known:
        stage = replace(stage, last_observations=None)
    gauge = gauge_of(stage, cost, shaped, near, gamma=0.95, pieces=pieces)
    assert_spans(gauge, [0, 1, 0])
    assert gauge.reasons == (POTENTIAL,)
    assert gauge_of(stage, cost, shaped, near, gamma=0.9).n == 0
    pushed = stage.observations[:, 0] * stage.actions[:, 0]
    assert gauge_of(stage, cost, shaped + 1e-5 * pushed, near, gamma=0.95).n == 0
    # At a horizon of its own (.95 ** 15 is .46) a learner can show it.
    assert gauge_of(stage, cost, shaped, near, gamma=0.95, bootstrap=False).n == 0


def test_quadratics_of_the_state_are_silent_when_nothing_else_counts() -> None:
    stage = drifts(np.random.default_rng(9))
    cost = (stage.actions**2).sum(axis=1)
    here, both = quadratic(stage.observations), stage.observations[:, 0] * stage.actions[:, 0]
    gauge = gauge_of(stage, cost, here, both, gamma=0.0)
    assert_spans(gauge, [0, 1, 0])
    assert gauge.reasons == (STATE_ALONE,)


def test_a_few_rows_of_a_continuous_world_make_no_potential() -> None:
    rng = np.random.default_rng(10)
    stage = drifts(rng, n_episodes=2, length=5)
    columns = rng.normal(size=(3, stage.n_steps))
    assert gauge_of(stage, *columns, gamma=0.9).n == 0


def test_few_observations_are_a_table_whatever_they_look_like() -> None:
    rng = np.random.default_rng(11)
    stage = walks(rng, n_states=5)
    columns = by_pair(rng, stage), shaping(stage, rng.normal(size=5), 0.9)
    assert stage.last_observations is not None
    points = rng.normal(size=(5, 1)).astype(np.float32)  # a line: quadratics are not enough
    seen = replace(
        stage,
        observations=points[stage.observations],
        last_observations=points[stage.last_observations],
    )
    assert_spans(gauge_of(seen, *columns, gamma=0.9), [0, 1])


def test_actions_taken_once_each_tell_nothing_by_themselves() -> None:
    # Discrete states, each seen once: no table, or anything would be a potential.
    rng = np.random.default_rng(12)
    n = 300
    stage = Stage(
        observations=np.arange(n),
        actions=rng.integers(2, size=n),
        lengths=np.ones(n, dtype=int),
        terminated=np.ones(n, dtype=bool),
    )
    assert gauge_of(stage, *rng.normal(size=(2, n)), gamma=0.0).n == 0


def test_what_one_action_alone_pays_is_silent_however_many_states_have_but_one() -> None:
    # In one of five states both actions are taken, in the others one alone, again and again.
    states = np.tile(np.arange(5), 8)
    actions = np.where(states == 0, np.arange(40) // 5 % 2, 0)
    n = len(states)
    stage = Stage(
        observations=states,
        actions=actions,
        lengths=np.ones(n, dtype=int),
        terminated=np.ones(n, dtype=bool),
    )
    pairs = np.eye(6)[np.where(states == 0, actions, states + 1)].T
    gauge = gauge_of(stage, *pairs, gamma=0.0)
    levels = np.concatenate([[[1, 1, 0, 0, 0, 0]] / np.sqrt(2), np.eye(6)[2:]])
    assert_spans(gauge, *levels)


# --- any world ------------------------------------------------------------------------------


@pytest.mark.parametrize("continuous", [False, True])
def test_dependent_features_and_zeros_say_why(continuous: bool) -> None:
    rng = np.random.default_rng(13)
    stage = drifts(rng) if continuous else walks(rng, ends=0.1)
    x, y = rng.normal(size=(2, stage.n_steps))
    gauge = gauge_of(stage, x, y, 3 * x, np.zeros(stage.n_steps), gamma=0.9)
    assert_spans(gauge, [0, 0, 0, 1], [3, 0, -1, 0])
    assert gauge.reasons == (ZERO, DEPENDENT)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_neither_units_nor_offsets_matter(offset: float, scale: float) -> None:
    rng = np.random.default_rng(14)
    stage = walks(rng)
    shaped = shaping(stage, rng.normal(size=4), 0.9)
    gauge = gauge_of(stage, scale * (by_pair(rng, stage) + offset), shaped + offset, gamma=0.9)
    assert_spans(gauge, [0, 1])


def test_single_precision_is_enough() -> None:
    rng = np.random.default_rng(15)
    stage = walks(rng)
    columns = np.stack([by_pair(rng, stage), shaping(stage, rng.normal(size=4), 0.9)], axis=1)
    sums = GaugeSums(0.9)
    sums.add(replace(stage, features=columns.astype(np.float32)))
    assert_spans(sums.gauge(("a", "b"), bootstrap=True), [0, 1])


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_the_basis_keeps_the_span_and_names_few_features(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = np.kron(np.eye(k), rng.uniform(0.5, 2, size=3))
    scale = 10 ** rng.uniform(-3, 3, size=3 * k)
    mixed = rng.normal(size=(k, k)) @ blocks / scale
    basis = plain_basis([mixed, mixed[:1]], scale)
    np.testing.assert_allclose(basis @ basis.T, np.eye(k), atol=1e-9)
    assert (np.count_nonzero(basis, axis=1) == 3).all()
    assert list((basis != 0).argmax(axis=1)) == [3 * j for j in range(k)]
