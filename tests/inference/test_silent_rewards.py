"""What no learner can show has no say in the answer: silent rewards, and constants of any size."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.special import softmax

from logel import Episode, LearningHistory, LinearGaussian, Method, TabularSoftmax, infer_reward
from logel.data.stage import Stage
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import IdentificationError
from logel.inference.gauge import direction_error
from logel.inference.status import Status
from logel.learners.tabular import GPOMDPLearner, observe
from logel.types import Float

# Two contrasts of three actions, orthonormal, in each of three stimuli.
CONTRASTS = np.kron(np.eye(3), np.array([[1, -1, 0], [1, 1, -2]]).T / np.sqrt([2, 6]))
PAID = np.array([[1.0, 0.0, 0.2], [0.0, 0.5, 0.3], [0.1, 0.0, 0.8]])


@cache
def trials() -> tuple[Stage, ...]:
    """A learner that follows advantages in a task of three stimuli and three answers."""
    rng = np.random.default_rng(0)
    logits, stages = np.zeros((3, 3)), []
    for _ in range(7):
        policy = softmax(logits, axis=1)
        shown = rng.integers(3, size=900)
        answer = (rng.random((900, 1)) > policy[shown].cumsum(axis=1)).sum(axis=1)
        stages.append(
            Stage(
                observations=shown,
                actions=answer,
                lengths=np.ones(900, dtype=int),
                terminated=np.ones(900, dtype=bool),
                features=np.eye(9)[3 * shown + answer],
                parameters=(logits[:, :2] - logits[:, 2:]).reshape(-1),
            )
        )
        advantage = PAID - (policy * PAID).sum(axis=1, keepdims=True)
        logits = logits + 0.6 * advantage + 0.02 * rng.standard_normal((3, 3))
    return tuple(stages)


@pytest.mark.parametrize("use_parameters", [True, False])
@pytest.mark.parametrize("method", ["default", "mirror"])
def test_one_hot_answers_say_what_contrasts_say(method: str, use_parameters: bool) -> None:
    names = [f"{stimulus}{answer}" for stimulus in "ABC" for answer in "xyz"]
    one_hot = LearningHistory.from_stages(list(trials()), feature_names=names)
    coded = LearningHistory.from_stages(
        [replace(s, features=np.asarray(s.features) @ CONTRASTS) for s in trials()]
    )
    wide, narrow = (
        infer_reward(
            history,
            TabularSoftmax(3, 3),
            gamma=0.0,
            method=method,
            use_parameters=use_parameters,
        )
        for history in (one_hot, coded)
    )
    assert (wide.rank, narrow.rank) == (6, 6)
    assert wide.status is Status.RANK_DEFICIENT and narrow.status is Status.OK
    assert wide.gauge.n == 3 and "Ax, Ay, Az" in wide.gauge.describe()[0]
    assert all("depends on the state alone" in reason for reason in wide.gauge.reasons)
    np.testing.assert_allclose(wide.weights @ CONTRASTS, narrow.weights, atol=2e-3)
    assert direction_error(wide.weights, PAID.reshape(-1), wide.gauge) < 0.5
    # Intervals live in what is identified: those of one coding are those of the other.
    assert wide.draws is not None and narrow.draws is not None
    for level in (0.05, 0.5, 0.95):
        np.testing.assert_allclose(
            np.quantile(wide.draws @ CONTRASTS, level, axis=0),
            np.quantile(narrow.draws, level, axis=0),
            atol=0.03,
        )
    assert (np.diff(wide.interval(), axis=1) < 0.6).all()


@pytest.mark.parametrize("method", ["default", "mirror", "two-step"])
def test_features_that_are_all_silent_are_refused_and_told_why(method: str) -> None:
    stages = [replace(s, features=np.eye(3)[s.observations]) for s in trials()]
    history = LearningHistory.from_stages(stages, feature_names=["A", "B", "C"])
    with pytest.raises(IdentificationError, match=r"weight of A .* depends on the state alone"):
        infer_reward(history, TabularSoftmax(3, 3), gamma=0.0, method=method)


@cache
def gridworld() -> LearningHistory:
    mdp = gridworld_mdp()
    truth = grid_weights(mdp.feature_names)
    return observe(mdp, GPOMDPLearner(), weights=truth, n_steps=4, seed=0)


def with_potential(history: LearningHistory, gamma: float) -> LearningHistory:
    """The same with a potential of the states as a further feature."""
    potential = np.random.default_rng(1).normal(size=25)

    def shaped(stage: Stage) -> Stage:
        paid = potential[stage.observations] - gamma * potential[stage.next_observations()]
        return replace(stage, features=np.column_stack([np.asarray(stage.features), paid]))

    assert history.feature_names is not None
    return LearningHistory.from_stages(
        [shaped(stage) for stage in history], feature_names=[*history.feature_names, "shaping"]
    )


@pytest.mark.parametrize("models", [("natural",), ("gradient",)])
def test_a_potential_changes_nothing_but_at_a_horizon(models: tuple[str, ...]) -> None:
    plain = gridworld()
    method = Method.named("joint", models=models)
    one, two = (
        infer_reward(history, TabularSoftmax(25, 4), gamma=0.9, method=method, intervals=False)
        for history in (plain, with_potential(plain, 0.9))
    )
    # Episodes of 20 times end where .12 of a gradient learner's sum is still to come.
    assert (one.gauge.n, two.gauge.n) == (1, 2 if models == ("natural",) else 1)
    if models == ("natural",):
        assert any("telescopes" in sentence for sentence in two.gauge.describe())
        assert abs(two.weights[-1]) < 1e-9
        np.testing.assert_allclose(two.weights[:-1], one.weights, atol=1e-6)


# --- offsets --------------------------------------------------------------------------------


@cache
def point_mass(offset: float) -> LearningHistory:
    """The README's learner that pushes a point towards the origin, on a smaller scale."""
    rng = np.random.default_rng(0)

    def episode(gain: float) -> tuple[Float, Float, Float]:
        x, xs, pushes = 1.0, [1.0], []
        for _ in range(20):
            pushes.append(gain * x + 0.3 * rng.standard_normal())
            x += pushes[-1]
            xs.append(x)
        features = -np.stack([np.square(xs[1:]), np.square(pushes)], axis=1)
        return np.array(xs)[:, None], np.array(pushes)[:, None], features

    gain, stages = -0.1, []
    for _ in range(6):
        seen = [episode(gain) for _ in range(60)]
        stages.append([Episode(xs, pushes, phi + offset) for xs, pushes, phi in seen])
        returns = np.array([(phi @ [1.0, 0.5]).sum() for _, _, phi in seen])
        scores = [((a - gain * x[:-1]) * x[:-1]).sum() / 0.09 for x, a, _ in seen]
        gain += 0.002 * np.mean(np.array(scores) * (returns - returns.mean()))
    return LearningHistory.from_episodes(stages, feature_names=["closeness", "thrift"])


@pytest.mark.parametrize("method", ["joint", "mirror", "two-step"])
def test_a_constant_added_to_the_features_changes_nothing(method: str) -> None:
    policy = LinearGaussian(n_features=1, action_dim=1, sigma=0.3)
    one, two = (
        infer_reward(point_mass(offset), policy, gamma=0.99, method=method) for offset in (0.0, 1e5)
    )
    np.testing.assert_allclose(two.weights, one.weights, atol=1e-6)
    np.testing.assert_allclose(two.interval(), one.interval(), atol=1e-6)
    assert (two.status, two.notes) == (one.status, one.notes)


@pytest.mark.parametrize("method", ["paper", "authors"])
def test_the_papers_estimators_take_features_as_they_come_and_warn(method: str) -> None:
    policy = LinearGaussian(n_features=1, action_dim=1, sigma=0.3)

    def notes(offset: float) -> tuple[str, ...]:
        history = point_mass(offset)
        return infer_reward(history, policy, gamma=0.99, method=method, intervals=False).notes

    assert not any("far from zero" in note for note in notes(0.0))
    assert any("far from zero" in note and "thrift" in note for note in notes(1e5))


def test_a_far_level_is_an_accident_in_a_table_too() -> None:
    plain = gridworld()

    def shifted(stage: Stage) -> Stage:
        return replace(stage, features=np.asarray(stage.features) + 1e6)

    moved = LearningHistory.from_stages(
        [shifted(stage) for stage in plain], feature_names=plain.feature_names
    )
    method = Method.named("joint", models=("gradient", "natural", "soft-value"))
    one, two = (
        infer_reward(history, TabularSoftmax(25, 4), gamma=0.9, method=method, intervals=False)
        for history in (plain, moved)
    )
    np.testing.assert_allclose(two.weights, one.weights, atol=1e-5)


def test_where_episodes_end_a_constant_stays_and_is_noted() -> None:
    def ended(offset: float) -> LearningHistory:
        def end(stage: Stage) -> Stage:
            return replace(stage, terminated=np.ones(stage.n_episodes, dtype=bool))

        return LearningHistory.from_stages([end(stage) for stage in point_mass(offset)])

    policy = LinearGaussian(n_features=1, action_dim=1, sigma=0.3)
    near, far = (
        infer_reward(ended(offset), policy, gamma=0.99, method="mirror") for offset in (0.0, 1e5)
    )
    assert not any("far from zero" in note for note in near.notes)
    (note,) = [note for note in far.notes if "far from zero" in note]
    assert "add a feature that is one" in note
