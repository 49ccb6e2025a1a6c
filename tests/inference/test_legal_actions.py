"""Masks and known worlds through the whole inference."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from benchmarks import mazes

from logel import (
    Episode,
    KnownWorld,
    LearningHistory,
    LinearSoftmax,
    Method,
    MLPCategorical,
    TabularSoftmax,
    infer_reward,
)
from logel.envs.tree_maze import TreeMaze
from logel.errors import HistoryError, OptionError, PolicyError
from logel.inference.status import Status
from logel.learners.forager import Forager
from logel.policies.cloning import CloneConfig
from logel.rewards.features import FunctionFeatures

MAZE = TreeMaze(2)
POLICY = TabularSoftmax(MAZE.n_nodes, 3, legal=MAZE.legal)
WORLD = KnownWorld(MAZE.successors, terminal=[MAZE.port])
QUICK = Method.named("joint", models=("gradient",), heats=((6, np.inf),))
GAMMA = 0.9


@cache
def foraging(*, masks: bool = False, features: bool = True) -> LearningHistory:
    animal = Forager((4.0, 0.2, -0.2), "gradient", 0.15)
    bouts = animal.bouts(MAZE, 160, np.random.default_rng(1))
    told = [
        Episode(
            bout.observations,
            bout.actions,
            bout.features if features else None,
            bout.terminated,
            MAZE.legal[bout.observations[:-1]] if masks else None,
        )
        for bout in bouts
    ]
    names = MAZE.names if features else None
    return LearningHistory.from_sessions(told, windows=5, feature_names=names)


def one_hot(nodes: Any) -> Any:
    return np.eye(MAZE.n_nodes)[nodes]


@pytest.mark.parametrize("method", [QUICK, "two-step", "mirror", "paper"])
def test_every_method_knows_what_is_legal(method: Any) -> None:
    estimate = infer_reward(foraging(), POLICY, gamma=GAMMA, method=method)
    assert estimate.feature_names == MAZE.names and np.isfinite(estimate.weights).all()
    if method in (QUICK, "two-step"):
        assert estimate.weights[0] > 0.7


@pytest.mark.parametrize("method", [QUICK, "mirror"])
def test_recorded_masks_say_the_same_as_a_table(method: Any) -> None:
    told = infer_reward(foraging(), POLICY, gamma=GAMMA, method=method)
    free = TabularSoftmax(MAZE.n_nodes, 3)
    recorded = infer_reward(foraging(masks=True), free, gamma=GAMMA, method=method)
    # Nobody acts in the port: its masks are not recorded, and a table without them allows all.
    np.testing.assert_allclose(recorded.weights, told.weights, atol=1e-4)


def vectors(*, masks: bool) -> LearningHistory:
    """The same bouts, nodes one-hot, features yet to be computed."""
    stages = [
        [
            Episode(one_hot(e.observations), e.actions, None, e.terminated, e.action_masks)
            for e in stage.episodes
        ]
        for stage in foraging(masks=masks, features=False)
    ]
    return LearningHistory.from_episodes(stages)


FEATURES = FunctionFeatures(
    lambda o, a, n: MAZE(o.argmax(axis=1), a, n.argmax(axis=1)), names=MAZE.names
)


def test_a_linear_policy_reads_masks_like_its_own_function() -> None:
    own = LinearSoftmax(7, 3, legal=lambda x: MAZE.legal[np.asarray(x).argmax(axis=1)])
    found = [
        infer_reward(history, policy, gamma=GAMMA, features=FEATURES, method=method)
        for method in (QUICK, "mirror")
        for history, policy in (
            (vectors(masks=False), own),
            (vectors(masks=True), LinearSoftmax(7, 3)),
        )
    ]
    # Where bouts are cut off, masks of the last state are missing, and so is that state.
    for one, two in (found[:2], found[2:]):
        assert one.weights @ two.weights > 0.97
        assert one.feature_names == two.feature_names == MAZE.names
    assert found[0].weights[0] > 0.7


def test_networks_read_masks() -> None:
    estimate = infer_reward(
        vectors(masks=True),
        MLPCategorical(7, 3, hidden=(4,)),
        gamma=GAMMA,
        features=FEATURES,
        intervals=False,
        method=Method.named("mirror", clone=CloneConfig(max_iterations=10)),
    )
    assert estimate.weights[0] > 0.5


def test_an_illegal_action_names_stage_episode_and_time() -> None:
    bouts = [list(stage.episodes) for stage in foraging()]
    bouts[2][3] = Episode(np.array([0, 1, 3, 4]), np.array([1, 1, 2]), np.zeros((3, 3)))
    history = LearningHistory.from_episodes(bouts)
    with pytest.raises(PolicyError, match="stage 2: episode 3, time 2: action 2 is illegal in sta"):
        infer_reward(history, POLICY, gamma=GAMMA)


def test_one_way_corridors_are_as_good_as_none() -> None:
    """Every move takes a corridor with no way but on; folded, it is one move of gamma squared."""
    rng = np.random.default_rng(5)
    n, a, gamma, weights = 4, 2, 0.9, np.array([1.0, -0.6])
    leads = rng.integers(0, n, (n, a))
    paid = rng.normal(size=(n, a, 2))
    corridor = n + np.arange(n * a).reshape(n, a)
    legal = np.ones((n + n * a, a), dtype=bool)
    legal[n:, 1] = False
    logits = np.zeros((n, a))
    folded, whole = [], []
    for _ in range(6):
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        short, long = [], []
        for _ in range(60):
            state, states, actions = int(rng.integers(n)), [], []
            for _ in range(6):
                states.append(state)
                actions.append(int(rng.random() > chances[state, 0]))
                state = int(leads[state, actions[-1]])
            states.append(state)
            s, u = np.array(states), np.array(actions)
            short.append(Episode(s, u, paid[s[:-1], u]))
            between = corridor[s[:-1], u]
            all_states = np.append(np.stack([s[:-1], between], axis=1).reshape(-1), s[-1])
            all_actions = np.stack([u, np.zeros_like(u)], axis=1).reshape(-1)
            features = np.zeros((12, 2))
            features[::2] = paid[s[:-1], u]
            long.append(Episode(all_states, all_actions, features))
        folded.append(short)
        whole.append(long)
        kernel = np.einsum("sa,sat->st", chances, np.eye(n)[leads])
        value = np.linalg.solve(
            np.eye(n) - gamma**2 * kernel, (chances[..., None] * paid).sum(axis=1) @ weights
        )
        logits = logits + 0.5 * (paid @ weights + gamma**2 * value[leads])
    one, two = (
        infer_reward(LearningHistory.from_episodes(stages), policy, gamma=g)
        for stages, policy, g in (
            (folded, TabularSoftmax(n, a), gamma**2),
            (whole, TabularSoftmax(n + n * a, a, legal=legal), gamma),
        )
    )
    assert one.status is two.status is Status.OK
    np.testing.assert_allclose(two.weights, one.weights, atol=0.005)
    assert next(iter(one.models)) == next(iter(two.models)) == "natural"


@pytest.mark.parametrize("seed", [1000, 1010, 1018])  # one of each kind
def test_a_masked_maze_is_the_folded_one(seed: int) -> None:
    maze = TreeMaze(3)
    bouts = mazes.animal(seed, maze)
    known = KnownWorld(maze.successors, [maze.port])
    one = mazes.masked(bouts, maze, GAMMA, world=known)
    two = mazes.by_hand(bouts, maze, GAMMA, GAMMA)
    assert one.status is two.status is Status.OK
    assert next(iter(one.models)) == next(iter(two.models))
    np.testing.assert_allclose(one.weights, two.weights, atol=0.01)


# --- known worlds ---------------------------------------------------------------------------


def test_a_known_maze_is_one_line() -> None:
    estimate = infer_reward(foraging(), POLICY, gamma=GAMMA, method=QUICK, world=WORLD)
    counted = infer_reward(foraging(), POLICY, gamma=GAMMA, method=QUICK)
    assert estimate.weights[0] > 0.7
    assert (estimate.weights != counted.weights).any()


def test_who_knows_the_world_is_surer() -> None:
    """Some of these animals drank so rarely that one group of bouts holds every drink."""
    maze, widths = TreeMaze(3), []
    known = KnownWorld(maze.successors, [maze.port])
    for seed in (1002, 1006, 1010):
        bouts = mazes.animal(seed, maze)
        found = [mazes.masked(bouts, maze, GAMMA, method=QUICK, world=w) for w in (known, None)]
        widths.append([mazes.width(estimate) for estimate in found])
    known_width, counted_width = np.mean(widths, axis=0)
    assert known_width < 0.8 * counted_width


def test_contradictions_name_stage_episode_and_time() -> None:
    bouts = [list(stage.episodes) for stage in foraging()]
    bouts[1][2] = Episode(np.array([0, 1, 5]), np.array([1, 1]), np.zeros((2, 3)))
    history = LearningHistory.from_episodes(bouts)
    told = "stage 1, episode 2, time 1: action 1 in state 1 leads to state 5"
    with pytest.raises(HistoryError, match=told):
        infer_reward(history, POLICY, gamma=GAMMA, world=WORLD)
    believed = KnownWorld(MAZE.successors, terminal=[MAZE.port], tolerated=0.01)
    estimate = infer_reward(history, POLICY, gamma=GAMMA, method=QUICK, world=believed)
    assert any("1 of" in note and told in note for note in estimate.notes)
    with pytest.raises(HistoryError, match="does not end the episode there"):
        infer_reward(foraging(), POLICY, gamma=GAMMA, world=KnownWorld(MAZE.successors, [3]))
    with pytest.raises(HistoryError, match=f"state {MAZE.n_junctions // 2} ends the episode|ends"):
        infer_reward(foraging(), POLICY, gamma=GAMMA, world=MAZE.successors)


def test_worlds_are_for_tables_and_the_joint_method() -> None:
    with pytest.raises(OptionError, match="LinearSoftmax sees no such states"):
        infer_reward(vectors(masks=False), LinearSoftmax(7, 3), gamma=GAMMA, world=WORLD)
    with pytest.raises(OptionError, match="used by method 'joint', not by 'mirror'"):
        infer_reward(foraging(), POLICY, gamma=GAMMA, world=WORLD, method="mirror")


def test_all_forms_of_a_table_say_the_same() -> None:
    s, a = MAZE.legal.shape
    by_map = WORLD.rows(s, a)
    dense = np.zeros((s, a, s))
    leads = MAZE.successors
    inside = (leads >= 0) & (leads < s)
    dense[inside] = np.eye(s)[leads[inside]]
    gaps = dense.copy()
    gaps[~inside] = np.nan
    sparse = scipy.sparse.csr_matrix(dense.reshape(s * a, s))
    out = np.zeros((s, a), dtype=bool)
    out[0, 0] = True  # only a map of successors can say that a move ends the episode
    for table in (dense, gaps, sparse):
        found = KnownWorld(table, terminal=[MAZE.port]).rows(s, a)
        np.testing.assert_array_equal(found.known, by_map.known & ~out)
        np.testing.assert_array_equal(found.outcomes[~out], by_map.outcomes[~out])
    assert by_map.outcomes[0, 0, s] == 1 and not by_map.known[~MAZE.legal].any()
    drunk = np.argwhere(leads == MAZE.port)[0]
    assert by_map.outcomes[drunk[0], drunk[1], s] == 1


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (np.array([[0, 2], [1, 0]]), None),
        (np.array([[0, 3], [1, 0]]), r"state 0, action 1: 3 is no successor; give a state 0\.\.1"),
        (np.array([[0.5, 1], [1, 0]]), r"state 0, action 0: 0\.5 is no successor"),
        (np.zeros((3, 2), dtype=int), r"must have shape \(2, 2\), but has \(3, 2\)"),
        (np.full((2, 2, 2), 0.4), r"state 0, action 0: probabilities .* sum to 0\.8"),
        (np.array([[[2.0, -1]] * 2] * 2), "must not be negative"),
        (np.zeros((2, 2), dtype=bool), "whole numbers of shape"),
        (scipy.sparse.csr_matrix((2, 4)), "one row for each of 2 x 2 pairs"),
    ],
)
def test_tables_that_cannot_be_are_refused(table: Any, told: str | None) -> None:
    if told is None:
        KnownWorld(table).rows(2, 2)
        return
    with pytest.raises(OptionError, match=told):
        KnownWorld(table).rows(2, 2)


def test_bad_options_of_a_known_world() -> None:
    with pytest.raises(OptionError, match="tolerated is a share"):
        KnownWorld(MAZE.successors, tolerated=1.0)
    with pytest.raises(OptionError, match="terminal state 9 is outside"):
        KnownWorld(MAZE.successors, terminal=[9]).rows(7, 3)


def test_what_is_not_given_is_counted() -> None:
    from logel.worlds.choose import pooler

    free = TabularSoftmax(MAZE.n_nodes, 3)
    rows = MAZE.successors.copy()
    rows[1] = -1
    stages = list(foraging())
    half, none, whole = (
        pooler(stages, free, gamma=GAMMA, known=known)(stages)
        for known in (KnownWorld(rows, [MAZE.port]), None, WORLD)
    )
    np.testing.assert_array_equal(half.transitions[2], whole.transitions[2])  # type: ignore[attr-defined]
    assert half.transitions[1, 0, 0] > 0.9  # type: ignore[attr-defined]
    assert whole.transitions[1, 0, 0] == 1.0 != none.transitions[1, 0, 0]  # type: ignore[attr-defined]
