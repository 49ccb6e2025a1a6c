"""From history to estimate: determinism, accuracy, honest errors and honest intervals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from logel import LearningHistory, Method, RewardEstimate, infer_reward
from logel.data.stage import Episode, Stage
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.errors import HistoryError, IdentificationError, OptionError, PolicyError
from logel.inference.gauge import direction_error
from logel.inference.infer import METHODS
from logel.inference.status import Status
from logel.learners.tabular import GPOMDPLearner, RandomWalk, SoftValueIteration, observe
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.rewards.features import FunctionFeatures, OneHotAreas
from logel.workers import Serial

GRID = GridMap.parse("..b\n.d.\no.g")
MDP = gridworld_mdp(GRID, gamma=0.9)
TRUTH = grid_weights(MDP.feature_names)
POLICY = TabularSoftmax(9, 4)
SIMPLE = Method(baseline="time", rates="shared")
# Replay repeats networks, and these are tables: see test_replayed.py.
NAMED = sorted(set(METHODS) - {"replay"})


def watched(seed: int = 0, **options: Any) -> LearningHistory:
    """A learner that follows exact gradients, watched through sampled episodes."""
    settings = {"n_steps": 4, "n_episodes": 40, "horizon": 8, **options}
    learner = GPOMDPLearner(learning_rate=0.1, horizon=settings["horizon"], exact=True)
    return observe(MDP, learner, weights=TRUTH, seed=seed, **settings)


# --- determinism ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", NAMED)
def test_the_same_seed_gives_the_same_bytes(method: str) -> None:
    one, two = (
        infer_reward(watched(n_steps=2), POLICY, gamma=0.9, method=method, seed=3).to_json()
        for _ in range(2)
    )
    assert one == two


def test_networks_start_from_the_seed() -> None:
    policy = MLPCategorical(9, 4, hidden=(3,))
    history = watched(n_steps=2, n_episodes=10)
    one_hot = LearningHistory.from_stages(
        [
            replace(stage, observations=np.eye(9)[stage.observations], last_observations=None)
            for stage in history
        ]
    )
    method = replace(METHODS["authors"], rates="shared")
    texts = [
        infer_reward(one_hot, policy, gamma=0.9, method=method, intervals=False, seed=s).to_json()
        for s in (0, 0, 1)
    ]
    assert texts[0] == texts[1] != texts[2]


# --- every named method ---------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("method", NAMED)
def test_named_methods_run_and_report(method: str, known: bool) -> None:
    history = watched(parameters=known)
    estimate = infer_reward(history, POLICY, gamma=0.9, method=method)
    assert estimate.feature_names == MDP.feature_names
    assert estimate.weights.shape == (5,) and estimate.learning_rates.shape == (4,)
    assert np.linalg.norm(estimate.weights) == pytest.approx(1.0)
    assert estimate.scale == "unit norm"
    assert (estimate.learning_rates > 0).all()
    # The gauge of one-hot areas: named, and absent from the weights.
    assert estimate.gauge.n == 1 and abs(estimate.weights.sum()) < 1e-8
    assert "adding the same amount to light" in estimate.summary()
    assert method in estimate.method and estimate.config["gamma"] == 0.9
    assert (estimate.held_out is None) == (known or method == "joint")
    assert ("known parameters" in estimate.method) == known
    # Few-step cloning has no noise we could tell.
    assert np.isfinite(estimate.interval()).all() == (known or method != "authors")
    # Joint fits trace the evidence, which moves with the variances.
    assert method == "joint" or (np.diff(estimate.objective_trace) <= 1e-9).all()
    assert RewardEstimate.from_json(estimate.to_json()).summary() == estimate.summary()


def test_a_history_on_disk_gives_the_same_estimate(tmp_path: Any) -> None:
    history = watched(parameters=True, learning_rates=True)
    history.save(tmp_path / "history")
    one = infer_reward(history, POLICY, gamma=0.9, method=SIMPLE)
    two = infer_reward(LearningHistory.load(tmp_path / "history"), POLICY, gamma=0.9, method=SIMPLE)
    assert one.to_json() == two.to_json()


def test_progress_is_reported() -> None:
    calls: list[tuple[str, int, int]] = []
    infer_reward(
        watched(), POLICY, gamma=0.9, progress=lambda *call: calls.append(call), method="paper"
    )
    for what in ("cloning", "Jacobians"):
        assert [call for call in calls if call[0] == what] == [(what, i, 5) for i in range(1, 6)]


# --- accuracy -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [SIMPLE, "default", "paper"])
def test_known_parameters_recover_the_direction(method: Any) -> None:
    history = watched(parameters=True, n_episodes=500, n_steps=6)
    estimate = infer_reward(history, POLICY, gamma=0.9, method=method)
    # Chance is about 1.41; an estimate along a wrong feature would be far above a quarter.
    assert direction_error(estimate.weights, TRUTH, estimate.gauge) < 0.25
    assert np.median(estimate.fit.cosines) > 0.9 and np.median(estimate.explained) > 0.8


def test_more_episodes_help() -> None:
    errors = [
        np.mean(
            [
                direction_error(
                    infer_reward(
                        watched(seed, parameters=True, n_episodes=n),
                        POLICY,
                        gamma=0.9,
                        method=SIMPLE,
                        intervals=False,
                    ).weights,
                    TRUTH - TRUTH.mean(),
                )
                for seed in range(5)
            ]
        )
        for n in (20, 2000)
    ]
    assert errors[1] < errors[0] / 4


def test_known_rates_give_the_weights_their_scale() -> None:
    history = watched(parameters=True, learning_rates=True, n_episodes=3000)
    estimate = infer_reward(history, POLICY, gamma=0.9, method=Method(baseline="time"))
    assert estimate.scale == "known learning rates"
    np.testing.assert_allclose(estimate.learning_rates, 0.1)
    expected = TRUTH - TRUTH.mean()
    assert np.linalg.norm(estimate.weights - expected) < 0.15 * np.linalg.norm(expected)


def test_cloning_can_replace_known_parameters() -> None:
    history = watched(parameters=True)
    cloned = infer_reward(history, POLICY, gamma=0.9, method="paper", use_parameters=False)
    blind = infer_reward(watched(), POLICY, gamma=0.9, method="paper")
    np.testing.assert_array_equal(cloned.weights, blind.weights)
    assert cloned.held_out is not None and cloned.held_out.shape == (5,)


def test_standard_errors_are_the_spread_over_histories() -> None:
    # The learner follows exact gradients, so its path is the same in all histories and only the
    # observer's episodes differ: what the jackknife must account for.
    estimates = [
        infer_reward(
            watched(seed, parameters=True, n_steps=3, n_episodes=60),
            POLICY,
            gamma=0.9,
            method=SIMPLE,
        )
        for seed in range(60)
    ]
    true = np.stack([e.weights for e in estimates]).std(axis=0, ddof=1)
    claimed = np.sqrt(np.mean([e.standard_errors**2 for e in estimates], axis=0))
    ratio = claimed / true
    assert (ratio > 0.6).all() and (ratio < 1.7).all(), ratio
    # And the intervals around the mean estimate cover about as often as they say.
    centre = np.mean([e.weights for e in estimates], axis=0)
    inside = [
        (e.interval(0.9)[:, 0] <= centre) & (centre <= e.interval(0.9)[:, 1]) for e in estimates
    ]
    assert 0.78 < np.mean(inside) < 0.99


def test_standard_errors_of_cloned_parameters() -> None:
    estimates = [
        infer_reward(
            watched(seed, n_steps=2, n_episodes=100, learning_rates=True),
            POLICY,
            gamma=0.9,
            method=Method(baseline="time"),
        )
        for seed in range(40)
    ]
    true = np.stack([e.weights for e in estimates]).std(axis=0, ddof=1)
    claimed = np.sqrt(np.mean([e.standard_errors**2 for e in estimates], axis=0))
    ratio = claimed / true
    assert (ratio > 0.5).all() and (ratio < 2.0).all(), ratio


# --- what is read ---------------------------------------------------------------------------


class Counted:
    """Stages in memory that count how often each is read."""

    def __init__(self, history: LearningHistory) -> None:
        self.stages, self.reads = list(history), [0] * len(history)

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, index: int) -> Stage:
        self.reads[index] += 1
        return self.stages[index]

    def elsewhere(self) -> Counted:
        """As a folder, it could be read by another process."""
        return self


@pytest.mark.parametrize("method", ["default", "joint", "two-step", "mirror", "paper"])
@pytest.mark.parametrize("known", [False, True])
def test_what_takes_little_memory_is_read_once(method: str, known: bool) -> None:
    history = watched(parameters=known)
    source = Counted(history)
    infer_reward(replace(history, source=source), POLICY, gamma=0.9, method=method)
    assert source.reads == [1] * 5


def drawn(policy: Policy, *, known: bool) -> LearningHistory:
    """Four stages of a policy that moves, in observations of three numbers."""
    rng, stages = np.random.default_rng(0), []
    theta = policy.initial(rng)
    for _ in range(4):
        theta = theta + 0.2 * rng.standard_normal(len(theta))
        seen = rng.standard_normal((120, 3))
        acted, features = policy.sample(theta, seen, rng), rng.standard_normal((120, 2))
        lengths, ended, last = np.full(12, 10), np.zeros(12, dtype=bool), seen[:12]
        parameters = theta if known else None
        stages.append(Stage(seen, acted, lengths, ended, last, features, parameters))
    return LearningHistory.from_stages(stages)


@pytest.mark.parametrize("method", ["paper", "authors", "two-step", "mirror"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "policy", [MLPGaussian(3, 1, hidden=(4,)), LinearGaussian(3, 1)], ids=["network", "linear"]
)
def test_large_histories_are_read_twice(
    method: str, known: bool, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logel.data.contents._KEPT", 0.0)
    history = drawn(policy, known=known)
    source = Counted(history)
    ask = partial(infer_reward, policy=policy, gamma=0.9, method=method)
    found = ask(replace(history, source=source))
    # Once to look, and to clone, and once to infer.
    assert source.reads == [2] * 4
    # Where pieces are done by others, a stage is looked at and cloned at different times.
    there = ask(history, workers=_Elsewhere())
    np.testing.assert_array_equal(found.weights, there.weights)
    if not known:
        np.testing.assert_array_equal(found.held_out, there.held_out)


class _Elsewhere(Serial):
    """Other workers than this process, but in it."""


@pytest.mark.parametrize("method", ["default", "joint", "two-step", "mirror", "paper"])
def test_without_intervals_known_policies_are_read_twice(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logel.data.contents._KEPT", 0.0)
    history = watched(parameters=True)
    source = Counted(history)
    counted = replace(history, source=source)
    quick = infer_reward(counted, POLICY, gamma=0.9, method=method, intervals=False)
    # Once to look at features and sizes, once to infer.
    assert source.reads == [2] * 5
    assert quick.covariance is None and quick.planning is None
    full = infer_reward(history, POLICY, gamma=0.9, method=method)
    np.testing.assert_allclose(quick.weights, full.weights, rtol=1e-12, atol=1e-12)


# --- features -------------------------------------------------------------------------------


def without_features(history: LearningHistory) -> LearningHistory:
    return LearningHistory.from_stages([replace(stage, features=None) for stage in history])


def test_features_may_come_from_a_callable() -> None:
    history = watched(parameters=True)
    areas = OneHotAreas(GRID.areas, GRID.area_names)
    recorded = infer_reward(history, POLICY, gamma=0.9, method=SIMPLE)
    computed = infer_reward(
        without_features(history), POLICY, gamma=0.9, method=SIMPLE, features=areas
    )
    np.testing.assert_array_equal(recorded.weights, computed.weights)
    assert computed.feature_names == GRID.area_names
    unnamed = infer_reward(
        without_features(history),
        POLICY,
        gamma=0.9,
        method=SIMPLE,
        features=lambda s, a, n: areas(s, a, n),
    )
    assert unnamed.feature_names[1] == "feature 1"
    with pytest.raises(OptionError, match="stage 0 has no recorded features: pass features="):
        infer_reward(without_features(history), POLICY, gamma=0.9)
    wrong = FunctionFeatures(lambda s, a, n: np.full((len(s), 1), np.nan), ("x",))
    with pytest.raises(HistoryError, match="stage 0: features must be finite"):
        infer_reward(history, POLICY, gamma=0.9, features=wrong)


def test_other_families_see_the_same_policies() -> None:
    history = watched()
    linear = LinearSoftmax(9, 4, feature_map=lambda s: np.eye(9)[s])
    one = infer_reward(history, POLICY, gamma=0.9, method="paper")
    two = infer_reward(history, linear, gamma=0.9, method="paper")
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-5)


# --- errors and notes -----------------------------------------------------------------------


def test_a_single_stage_is_not_enough() -> None:
    with pytest.raises(IdentificationError, match="1 stage: at least two"):
        infer_reward(watched().slice(0, 1), POLICY, gamma=0.9)


def test_no_movement_is_an_error() -> None:
    stage = watched(parameters=True)[0]
    history = LearningHistory.from_stages([stage, stage, stage])
    with pytest.raises(IdentificationError, match="do not move between stages"):
        infer_reward(history, POLICY, gamma=0.9)


@pytest.mark.parametrize("gamma", [-0.1, 1.0, float("nan")])
def test_gamma_outside_its_range_is_refused(gamma: float) -> None:
    with pytest.raises(OptionError, match=r"gamma must be in \[0, 1\)"):
        infer_reward(watched(n_steps=1), POLICY, gamma=gamma)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(OptionError, match=r"unknown method 'best': choose one of .*paper"):
        infer_reward(watched(n_steps=1), POLICY, gamma=0.9, method="best")
    for options in ({"metric": "euclid"}, {"baseline": "best"}, {"estimator": "x"}):
        with pytest.raises(OptionError):
            Method(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [False, True])
def test_an_action_out_of_range_names_the_stage(known: bool) -> None:
    history = watched(parameters=known, n_steps=2)
    stages = list(history)
    actions = stages[1].actions.copy()
    actions[3 * 8 + 2] = 4
    stages[1] = replace(stages[1], actions=actions)
    with pytest.raises(
        PolicyError, match=r"^stage 1: episode 3, time 2: action 4 is outside 0\.\.3"
    ):
        infer_reward(LearningHistory.from_stages(stages), POLICY, gamma=0.9)


def test_parameters_of_another_family_are_refused() -> None:
    history = watched(parameters=True)
    with pytest.raises(HistoryError, match="27 parameters, but the family 30"):
        infer_reward(history, TabularSoftmax(10, 4), gamma=0.9)


def test_only_constant_features_are_refused() -> None:
    stages = [replace(s, features=np.ones((s.n_steps, 2))) for s in watched(parameters=True)]
    with pytest.raises(IdentificationError, match="every feature is constant"):
        infer_reward(LearningHistory.from_stages(stages), POLICY, gamma=0.9)


def test_movement_that_no_reward_explains_is_noted() -> None:
    rng = np.random.default_rng(0)
    stages = [replace(s, parameters=0.1 * rng.normal(size=27)) for s in watched(parameters=True)]
    estimate = infer_reward(LearningHistory.from_stages(stages), POLICY, gamma=0.9, method=SIMPLE)
    assert any("do not trust these weights" in note for note in estimate.notes)


def test_interrupted_histories_and_few_episodes_are_noted() -> None:
    history = replace(watched(parameters=True, n_episodes=2), complete=False)
    estimate = infer_reward(history, POLICY, gamma=0.9, method=SIMPLE)
    assert any("interrupted" in note for note in estimate.notes)
    assert any("no intervals" in note for note in estimate.notes)
    assert estimate.covariance is None


def test_costs_can_be_forced_to_be_costs() -> None:
    costs = FunctionFeatures(
        lambda s, a, n: -np.eye(5)[GRID.areas[n]], tuple(f"-{n}" for n in GRID.area_names)
    )
    method = replace(SIMPLE, nonnegative=True)
    estimate = infer_reward(
        watched(parameters=True, n_episodes=300), POLICY, gamma=0.9, method=method, features=costs
    )
    assert (estimate.weights >= 0).all()
    assert estimate.weights[GRID.area_names.index("dark")] > 0.5


def test_termination_makes_living_itself_identifiable() -> None:
    # Action 0 ends the episode; a learner that is paid for living learns to avoid it.
    rng = np.random.default_rng(1)
    policy = TabularSoftmax(1, 2)
    stages, thetas = [], [-0.2 * t for t in range(7)]
    for theta in thetas:
        episodes = []
        for _ in range(200):
            over = rng.random(10) < policy.probabilities([theta], np.array([0]))[0, 0]
            n = int(over.argmax()) + 1 if over.any() else 10
            actions = np.where(over[:n], 0, 1)
            episodes.append(Episode(np.zeros(n + 1, int), actions, np.ones((n, 1)), over.any()))
        stages.append(Stage.from_episodes(episodes, np.array([theta])))
    history = LearningHistory.from_stages(stages, feature_names=["alive"])
    estimate = infer_reward(history, policy, gamma=0.9, method=Method(rates="shared"))
    assert estimate.gauge.n == 0 and estimate.status is Status.OK
    assert estimate.weights[0] == pytest.approx(1.0)


def test_value_learners_can_be_watched() -> None:
    history = observe(MDP, SoftValueIteration(), weights=TRUTH, n_steps=3, n_episodes=200, seed=0)
    estimate = infer_reward(history, POLICY, gamma=0.9, method="default")
    assert np.isfinite(estimate.weights).all()


# --- what must not be mistaken for a reward -------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("fading", [False, True])
def test_a_random_walk_is_not_explained(known: bool, fading: bool) -> None:
    warned = 0
    for seed in range(4):
        history = observe(
            MDP,
            RandomWalk(fading=fading),
            weights=np.zeros(5),
            n_steps=6,
            n_episodes=30,
            seed=seed,
            parameters=known,
        )
        estimate = infer_reward(history, POLICY, gamma=0.9)
        warned += estimate.status is Status.UNEXPLAINED
    assert warned >= 3


def test_identical_stages_are_refused() -> None:
    stage = watched(n_steps=1)[0]
    with pytest.raises(IdentificationError, match="does not move"):
        infer_reward(LearningHistory.from_stages([stage, stage]), POLICY, gamma=0.9)


def test_weights_that_vanish_are_not_called_solved() -> None:
    # Movement straight against the only feature's gradient leaves nothing for a non-negative one.
    policy = TabularSoftmax(n_states=1, n_actions=2)
    rng = np.random.default_rng(0)
    stages = []
    for t in range(3):
        actions = rng.integers(2, size=200)
        stages.append(
            Stage(
                observations=np.zeros(200, dtype=int),
                actions=actions,
                lengths=np.ones(200, dtype=int),
                terminated=np.ones(200, dtype=bool),
                features=(actions == 0).astype(float)[:, None],
                parameters=np.array([-float(t)]),
            )
        )
    history = LearningHistory.from_stages(stages)
    method = Method(nonnegative=True, rates="shared")
    estimate = infer_reward(history, policy, gamma=0.9, method=method)
    assert not estimate.weights.any() and estimate.status is Status.UNEXPLAINED
