"""The pooled world model against known worlds, naive loops and Polya's urn."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.stage import Episode, Stage
from logel.envs.tabular import TabularMDP, random_mdp, sample_episodes, uniform_policy
from logel.errors import HistoryError, PolicyError
from logel.policies.softmax import TabularSoftmax
from logel.worlds.counting import pool_world
from logel.worlds.table import TabularWorld


def packed(batch: Any) -> Stage:
    """Episodes of equal length, none terminated."""
    n, horizon = batch.actions.shape
    return Stage(
        observations=batch.states[:, :-1].reshape(-1),
        actions=batch.actions.reshape(-1),
        lengths=np.full(n, horizon),
        terminated=np.zeros(n, dtype=bool),
        last_observations=batch.states[:, -1],
        features=batch.features.reshape(n * horizon, -1),
    )


def watched(mdp: TabularMDP, n_episodes: int, seed: int, n_stages: int = 2) -> TabularWorld:
    rng = np.random.default_rng(seed)
    stages = [
        packed(
            sample_episodes(mdp, uniform_policy(mdp), rng=rng, n_episodes=n_episodes, horizon=10)
        )
        for _ in range(n_stages)
    ]
    return pool_world(stages, TabularSoftmax(mdp.n_states, mdp.n_actions), gamma=mdp.gamma)


def steps(moves: list[tuple[int, int, int, float]]) -> Stage:
    """One-step episodes (state, action, next state, feature); next state -1 is termination."""
    return Stage.from_episodes(
        [
            Episode(np.array([s, max(t, 0)]), np.array([a]), np.array([[phi]]), terminated=t < 0)
            for s, a, t, phi in moves
        ]
    )


# --- against the truth ----------------------------------------------------------------------


def test_the_model_converges_to_the_world() -> None:
    mdp = random_mdp(np.random.default_rng(0), n_states=4, n_actions=2, n_features=2, gamma=0.9)
    errors = []
    for n_episodes in (100, 10_000):
        world = watched(mdp, n_episodes, seed=1)
        errors.append(
            (
                np.abs(world.transitions - mdp.transitions).max(),
                np.abs(world.features - mdp.expected_features).max(),
                np.abs(world.initial - mdp.initial).max(),
            )
        )
        visits = world.counts.sum(axis=0)[:, :, None]
        error = world.transitions - mdp.transitions
        # Five standard errors, and what is shrunk away at the largest possible concentration.
        allowed = 5 * np.sqrt(mdp.transitions * (1 - mdp.transitions) / visits) + 30 / visits
        assert (np.abs(error) < allowed).all()
        np.testing.assert_allclose(world.transitions.sum(axis=2), 1.0, atol=1e-12)
    assert (np.array(errors[1]) < 0.3 * np.array(errors[0])).all()
    assert max(errors[1]) < 0.03


def test_a_deterministic_world_is_found_up_to_vanishing_shrinkage() -> None:
    # State s, action a: to (s + a + 1) mod 5, paid 10 s + a.
    def model(n: int) -> TabularWorld:
        moves = [(s, a, (s + a + 1) % 5, 10.0 * s + a) for s in range(5) for a in range(3)]
        return pool_world([steps(moves * n)], TabularSoftmax(5, 3), gamma=0.9)

    truth = np.zeros((5, 3, 5))
    payments = np.zeros((5, 3, 1))
    for s in range(5):
        for a in range(3):
            truth[s, a, (s + a + 1) % 5] = 1.0
            payments[s, a] = 10 * s + a
    few, many = model(3), model(300)
    np.testing.assert_array_equal(few.transitions.argmax(axis=2), truth.argmax(axis=2))
    # Deterministic pairs differ within a state, so the evidence must choose hardly any shrinkage.
    assert np.abs(few.transitions - truth).max() < 0.02
    assert np.abs(many.transitions - truth).max() < 2e-4
    assert np.abs(few.features - payments).max() < 0.5
    assert np.abs(many.features - payments).max() < 5e-3
    np.testing.assert_array_equal(many.counts, np.full((1, 5, 3), 300.0))
    np.testing.assert_allclose(many.initial, 0.2)


def test_actions_without_effect_share_what_they_show() -> None:
    # Where actions do not matter, a pair seen once must borrow nearly all from its state.
    rng = np.random.default_rng(2)
    moves = [(0, 0, int(rng.random() < 0.7), 0.0) for _ in range(400)]
    moves += [(0, 1, int(rng.random() < 0.7), 0.0) for _ in range(400)]
    moves += [(0, 2, 0, 0.0)]
    world = pool_world([steps(moves)], TabularSoftmax(2, 3), gamma=0.9)
    np.testing.assert_allclose(world.transitions[0, 2], [0.3, 0.7], atol=0.06)


def urn(outcomes: Any, fallback: Any, c: float) -> float:
    """Log-probability of outcomes (S, A, k) drawn one by one from Polya's urn."""
    total = 0.0
    for s, a in np.ndindex(outcomes.shape[:2]):
        drawn = np.zeros(outcomes.shape[2])
        for k, n in enumerate(outcomes[s, a].astype(int)):
            for _ in range(n):
                total += np.log((drawn[k] + c * fallback[s, k]) / (drawn.sum() + c))
                drawn[k] += 1
    return total


@pytest.mark.parametrize("seed", range(4))
def test_shrinkage_is_the_documented_mixture_at_the_evidence_s_concentration(seed: int) -> None:
    # The last action is never taken: its row is what the other rows are shrunk to.
    rng = np.random.default_rng(seed)
    spread = (0.3, 3.0, 30.0, 300.0)[seed]
    centre = rng.dirichlet(np.ones(3), size=3)
    moves = []
    outcomes = np.zeros((3, 3, 3))
    for s, a in np.ndindex(3, 2):
        outcomes[s, a] = rng.multinomial(12, rng.dirichlet(spread * centre[s] + 1e-3))
        moves += [(s, a, t, 0.0) for t in range(3) for _ in range(int(outcomes[s, a, t]))]
    world = pool_world([steps(moves)], TabularSoftmax(3, 3), gamma=0.9)
    fallback = world.transitions[:, 2]
    pooled = outcomes.sum(axis=1) / 24
    np.testing.assert_allclose(fallback, pooled, atol=2e-3)
    grid = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    c = max(grid, key=lambda value: urn(outcomes, fallback, value))
    expected = (outcomes[:, :2] + c * fallback[:, None]) / (12 + c)
    np.testing.assert_allclose(world.transitions[:, :2], expected, atol=1e-9)


# --- termination and unseen endings ---------------------------------------------------------


def test_termination_is_missing_mass_only_where_it_happened() -> None:
    moves = [(0, 0, 1, 0.0)] * 30 + [(0, 0, -1, 0.0)] * 10
    moves += [(0, 1, 0, 0.0)] * 40 + [(1, 0, 0, 0.0)] * 40 + [(1, 1, 1, 0.0)] * 40
    world = pool_world([steps(moves)], TabularSoftmax(2, 2), gamma=0.9)
    missing = 1 - world.transitions.sum(axis=2)
    assert missing[0, 0] == pytest.approx(0.25, abs=0.01)
    # Never from the other state, and hardly from the other action of this one.
    assert (missing[1] >= -1e-12).all() and missing[1].max() < 1e-4
    assert missing[0, 1] < 0.01
    assert (world.transitions >= 0).all()


def test_without_termination_no_mass_is_missing_not_even_of_pairs_never_seen() -> None:
    world = pool_world([steps([(0, 0, 1, 1.0), (1, 1, 0, 2.0)])], TabularSoftmax(3, 2), gamma=0.9)
    np.testing.assert_allclose(world.transitions.sum(axis=2), 1.0, atol=1e-12)
    # State 2 was never left: it keeps the agent.
    assert (world.transitions[2, :, 2] > 0.99).all()
    # Where only one action is known, the other is taken to lead where that one leads.
    assert world.transitions[0, 1, 1] > 0.99


def test_an_unseen_last_state_is_no_outcome() -> None:
    rng = np.random.default_rng(3)
    observations, actions = rng.integers(0, 3, (20, 7)), rng.integers(0, 2, (20, 6))
    features = rng.normal(size=(20, 6, 1))
    policy = TabularSoftmax(3, 2)

    def model(episodes: list[Episode]) -> TabularWorld:
        return pool_world([Stage.from_episodes(episodes)], policy, gamma=0.9)

    rows = list(zip(observations, actions, features, strict=True))
    unseen = model([Episode(o[:6], a, f) for o, a, f in rows])
    shorter = model([Episode(o[:6], a[:5], f[:5]) for o, a, f in rows])
    np.testing.assert_allclose(unseen.transitions, shorter.transitions, atol=1e-12)
    # The last action was seen all the same, and so was what it paid.
    assert unseen.counts.sum() == 120 and shorter.counts.sum() == 100
    longer = model([Episode(o, a, f) for o, a, f in rows])
    assert np.abs(longer.transitions - unseen.transitions).max() > 1e-3
    # Termination is an outcome whether or not the state was recorded.
    over = model([Episode(o[:6], a, f, terminated=True) for o, a, f in rows])
    np.testing.assert_allclose(
        over.transitions,
        model([Episode(o, a, f, terminated=True) for o, a, f in rows]).transitions,
    )
    assert (1 - over.transitions.sum(axis=2)).max() > 0.05


def test_one_episode_does_not_run_into_the_next() -> None:
    # Each episode stays in its state; only the seam between them would lead from 0 to 1.
    stage = Stage.from_episodes(
        [Episode(np.full(9, s), np.zeros(8, int), np.zeros((8, 1))) for s in (0, 1)]
    )
    world = pool_world([stage], TabularSoftmax(2, 1), gamma=0.9)
    assert world.transitions[0, 0, 1] < 1e-2 and world.transitions[1, 0, 0] < 1e-2
    np.testing.assert_allclose(world.initial, [0.5, 0.5])


# --- features -------------------------------------------------------------------------------


def test_features_are_means_and_unseen_pairs_expect_those_of_where_they_lead() -> None:
    # Paid on arrival: 5 in state 0, -2 in state 1. Action 1 of state 0 is never taken.
    pay = (5.0, -2.0)
    moves = [(0, 0, t, pay[t]) for t in (0, 1, 1, 1)] * 25
    moves += [(1, a, 0, pay[0]) for a in (0, 1)] * 50
    world = pool_world([steps(moves)], TabularSoftmax(2, 2), gamma=0.9)
    assert world.features[0, 0, 0] == pytest.approx(0.25 * 5 - 0.75 * 2, abs=0.02)
    np.testing.assert_allclose(world.features[1, :, 0], 5.0, atol=0.02)
    assert world.features[0, 1, 0] == pytest.approx(world.transitions[0, 1] @ pay, abs=1e-3)
    # A payment that belongs to the pair wins over the arrival's as the pair is seen more often.
    found = []
    for n in (1, 10, 100):
        rare = pool_world([steps(moves + [(0, 1, 0, 20.0)] * n)], TabularSoftmax(2, 2), gamma=0.9)
        found.append(float(rare.features[0, 1, 0]))
    assert found[0] < found[1] < found[2] < 20 and found[2] > 19.5


# --- sums by episode ------------------------------------------------------------------------


def naive_sums(stage: Stage, gamma: float, n_states: int, n_actions: int) -> Any:
    episodes = list(stage.episodes)
    q = stage.features.shape[1]  # type: ignore[union-attr]
    to_go: list[list[Any]] = []
    for episode in episodes:
        phi = episode.features
        to_go.append(
            [
                sum((gamma**k * phi[k] for k in range(h, len(phi))), np.zeros(q))
                for h in range(len(phi))
            ]
        )
    sums = np.zeros((len(episodes), n_states, n_actions, q))
    for e, episode in enumerate(episodes):
        for h, action in enumerate(episode.actions):
            others = [rows[h] for rows in to_go if len(rows) > h]
            sums[e, episode.observations[h], action] += to_go[e][h] - sum(others) / len(others)
    return sums


@st.composite
def histories(draw: st.DrawFn) -> list[Stage]:
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    stages = []
    for _ in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
        stages.append(
            Stage.from_episodes(
                [
                    Episode(
                        rng.integers(0, 3, n + 1),
                        rng.integers(0, 2, n),
                        rng.normal(size=(n, 2)),
                        draw(st.booleans()),
                    )
                    for n in lengths
                ]
            )
        )
    return stages


@given(stages=histories(), gamma=st.sampled_from([0.0, 0.5, 0.97]))
@settings(max_examples=40)
def test_episode_sums_equal_the_loop(stages: list[Stage], gamma: float) -> None:
    world = pool_world(stages, TabularSoftmax(3, 2), gamma=gamma)
    assert len(world.episode_sums) == len(stages)
    for stage, sums in zip(stages, world.episode_sums, strict=True):
        np.testing.assert_allclose(sums, naive_sums(stage, gamma, 3, 2), atol=1e-12)


# --- invariances ----------------------------------------------------------------------------


@given(stages=histories(), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_the_world_does_not_depend_on_the_order_of_what_was_seen(
    stages: list[Stage], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    policy = TabularSoftmax(3, 2)
    world = pool_world(stages, policy, gamma=0.9)
    assert (world.transitions >= 0).all()
    assert world.transitions.sum(axis=2).max() <= 1 + 1e-12
    assert world.initial.sum() == pytest.approx(1.0)
    assert world.horizon == max(int(stage.lengths.max()) for stage in stages)
    order = rng.permutation(len(stages))
    episodes = [rng.permutation(stage.n_episodes) for stage in stages]
    mixed = pool_world([stages[t].take(episodes[t]) for t in order], policy, gamma=0.9)
    for name in ("transitions", "features", "initial"):
        np.testing.assert_allclose(getattr(mixed, name), getattr(world, name), atol=1e-12)
    np.testing.assert_array_equal(mixed.counts, world.counts[order])
    for found, t in zip(mixed.episode_sums, order, strict=True):
        np.testing.assert_allclose(found, world.episode_sums[t][episodes[t]], atol=1e-12)


@given(stages=histories(), seed=st.integers(0, 100))
@settings(max_examples=30)
def test_relabelling_states_and_actions_relabels_the_world(stages: list[Stage], seed: int) -> None:
    rng = np.random.default_rng(seed)
    s, a = rng.permutation(3), rng.permutation(2)
    policy = TabularSoftmax(3, 2)
    world = pool_world(stages, policy, gamma=0.9)
    renamed = [
        replace(
            stage,
            observations=s[stage.observations],
            actions=a[stage.actions],
            last_observations=s[stage.last_observations],
        )
        for stage in stages
    ]
    other = pool_world(renamed, policy, gamma=0.9)
    pairs = np.ix_(s, a)
    np.testing.assert_allclose(other.transitions[np.ix_(s, a, s)], world.transitions, atol=1e-12)
    np.testing.assert_allclose(other.features[pairs], world.features, atol=1e-12)
    np.testing.assert_array_equal(other.counts[:, s][:, :, a], world.counts)


def test_features_in_another_basis_are_the_world_of_transformed_features() -> None:
    mdp = random_mdp(np.random.default_rng(4), n_states=3, n_actions=2, n_features=2)
    rng = np.random.default_rng(5)
    basis = rng.normal(size=(2, 3))
    batch = sample_episodes(mdp, uniform_policy(mdp), rng=rng, n_episodes=9, horizon=4)
    stage, policy = packed(batch), TabularSoftmax(3, 2)
    world = pool_world([stage], policy, gamma=0.9).with_features(basis)
    assert stage.features is not None
    direct = pool_world([replace(stage, features=stage.features @ basis)], policy, gamma=0.9)
    assert (world.n_states, world.n_actions, world.n_features) == (3, 2, 3)
    np.testing.assert_allclose(world.features, direct.features, atol=1e-12)
    np.testing.assert_allclose(world.episode_sums[0], direct.episode_sums[0], atol=1e-12)
    np.testing.assert_array_equal(world.transitions, direct.transitions)
    np.testing.assert_array_equal(world.counts, direct.counts)


@pytest.mark.parametrize(("gamma", "horizon"), [(0.0, 1), (0.1, 6), (0.5, 20), (0.99, 30)])
def test_the_horizon_ends_with_the_episodes_or_with_the_discount(
    gamma: float, horizon: int
) -> None:
    # .1^6 and .5^20 are the first powers not above a millionth; .99^30 is far from it.
    stage = Stage.from_episodes(
        [Episode(np.zeros(n, int), np.zeros(n, int), np.ones((n, 1))) for n in (30, 2)]
    )
    assert pool_world([stage], TabularSoftmax(1, 2), gamma=gamma).horizon == horizon


# --- memory ---------------------------------------------------------------------------------


def long_world(*, s: int, a: int, q: int, horizon: int, m: int) -> TabularWorld:
    rng = np.random.default_rng(0)
    return TabularWorld(
        transitions=rng.dirichlet(np.ones(s), size=(s, a)),
        features=rng.normal(size=(s, a, q)),
        initial=np.full(s, 1 / s),
        gamma=0.99,
        horizon=horizon,
        counts=np.ones((m, s, a)),
        episode_sums=tuple(rng.normal(size=(2, s, a, q)) for _ in range(m)),
    )


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:
    """What comes out, and the most bytes held on the way."""
    tracemalloc.start()
    found = work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found, peak


def test_the_landscape_of_long_histories_fits_into_memory() -> None:
    # Action values of all times, stages and features at once would take 700 MB.
    s, a, q, horizon, m = 60, 4, 30, 300, 40
    assert 8 * horizon * m * s * a * q > 690e6
    world = long_world(s=s, a=a, q=q, horizon=horizon, m=m)
    parameters = np.random.default_rng(1).normal(size=(m, world.n_parameters))
    found, peak = peak_of(lambda: world.gradient(parameters, np.ones(q)))
    assert found.design.shape == (m, 180, q)
    assert peak < 100e6


def test_blocks_of_stages_change_nothing_but_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    world = long_world(s=8, a=3, q=2, horizon=100, m=30)
    parameters = np.random.default_rng(1).normal(size=(30, 16))
    whole, most = peak_of(lambda: world.gradient(parameters, np.ones(2), curved=True))
    # How parameters move every state at every time would be this much, of all stages at once.
    assert most < 8 * 100 * 30 * 8 * 16 / 2
    monkeypatch.setattr("logel.worlds.table._AT_ONCE", 2**12)
    found, peak = peak_of(lambda: world.gradient(parameters, np.ones(2), curved=True))
    assert peak <= 1.01 * most  # what caches happen to hold is not the point
    for name in ("design", "noise", "curvature"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-12)


# --- errors ---------------------------------------------------------------------------------


def test_stages_that_cannot_be_pooled_are_refused() -> None:
    stage, policy = steps([(0, 0, 1, 1.0)]), TabularSoftmax(2, 2)
    with pytest.raises(HistoryError, match="no features"):
        pool_world([replace(stage, features=None)], policy, gamma=0.9)
    with pytest.raises(PolicyError, match="state 7 is outside"):
        pool_world([replace(stage, observations=np.array([7]))], policy, gamma=0.9)


@pytest.mark.parametrize("last", [-1, 2, 9])
def test_a_last_state_outside_the_world_is_refused_unless_terminal(last: int) -> None:
    # Silently, 2 would read as termination and the others as outcomes of another pair.
    stage = replace(steps([(0, 1, 1, 1.0), (0, 0, 1, 1.0)]), last_observations=np.array([1, last]))
    policy = TabularSoftmax(2, 2)
    with pytest.raises(PolicyError, match=rf"episode 1 ends in state {last}, outside 0\.\.1"):
        pool_world([stage], policy, gamma=0.9)
    over = replace(stage, terminated=np.array([False, True]))
    assert pool_world([over], policy, gamma=0.9).transitions[0, 0].sum() < 0.9
