"""The learners behind the golden histories: many kinds, each watched briefly.

Only `make.py` uses this, and only to make histories that are not there yet: what was recorded is
kept, whatever becomes of the simulators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from golden_entries import GOLDEN, family_of, squares

from logel import LearningHistory, Stage
from logel.envs import lqr
from logel.envs.gridworld import GridMap, gridworld_mdp
from logel.envs.parametric import FeaturisedMDP, LinearControl
from logel.envs.tabular import random_mdp
from logel.learners.gradient_ascent import (
    GradientAscent,
    ParameterWalk,
    observe_parametric,
    sampled_gradient,
)
from logel.learners.tabular import (
    GPOMDPLearner,
    NaturalGradientAscent,
    QLearner,
    RandomWalk,
    SoftPolicyIteration,
    SoftValueIteration,
    observe,
)

Float = npt.NDArray[np.float64]
Maker = Callable[[], LearningHistory]
OWN_EPISODES = "learnt_from_these_episodes"


def labelled(history: LearningHistory, spec: dict[str, Any], **more: Any) -> LearningHistory:
    """The history with its family and discount in the metadata."""
    return replace(history, metadata={**history.metadata, GOLDEN: spec, **more})


# --- tables ---------------------------------------------------------------------------------------

GRID = gridworld_mdp(GridMap.parse(". o .\n. d b\n. . g"), gamma=0.9)
GRID_WEIGHTS = np.array([-1.0, -3.0, -5.0, 0.0, 7.0])
SMALL = random_mdp(np.random.default_rng(3), n_states=4, n_actions=3, n_features=3, branching=3)
SMALL_WEIGHTS = np.array([0.8, -0.5, 0.3])


def _table_spec(mdp: Any) -> dict[str, Any]:
    options = {"n_states": mdp.n_states, "n_actions": mdp.n_actions}
    return {"family": "TabularSoftmax", "options": options, "gamma": mdp.gamma}


def table(mdp: Any, weights: Float, learner: Any, **options: Any) -> LearningHistory:
    """A tabular learner, watched."""
    settings = {"n_steps": 4, "n_episodes": 20, "horizon": 10, "seed": 0, **options}
    return labelled(observe(mdp, learner, weights=weights, **settings), _table_spec(mdp))


def grid(learner: Any, **options: Any) -> LearningHistory:
    """A learner in a gridworld of nine cells."""
    return table(GRID, GRID_WEIGHTS, learner, **options)


def small(learner: Any, **options: Any) -> LearningHistory:
    """A learner in a random world of four states."""
    return table(SMALL, SMALL_WEIGHTS, learner, **options)


def linear(learner: Any, *, scale: float = 1.0, **options: Any) -> LearningHistory:
    """A learner that sees six states through three features."""
    rng = np.random.default_rng(5)
    mdp = random_mdp(rng, n_states=6, n_actions=3, n_features=3, branching=3)
    world = FeaturisedMDP(mdp, scale * rng.standard_normal((6, 3)), horizon=10)
    settings = {"n_steps": 5, "n_episodes": 20, "seed": 0, **options}
    history = observe_parametric(world, learner, weights=[0.8, -0.5, 0.3], **settings)
    spec = {
        "family": "LinearSoftmax",
        "options": {"n_features": 3, "n_actions": 3},
        "gamma": world.gamma,
        "table": world.state_features.tolist(),
    }
    return labelled(history, spec)


# --- control --------------------------------------------------------------------------------------


def control(learner: Any, *, sigma: float | None = 0.3, **options: Any) -> LearningHistory:
    """A point mass under a linear Gaussian policy."""
    world = LinearControl(lqr.point_mass(horizon=10), sigma=sigma)
    start = np.zeros(2) if sigma is not None else np.array([0.0, 0.0, np.log(0.3)])
    settings = {"n_steps": 5, "n_episodes": 20, "seed": 0, "initial": start, **options}
    history = observe_parametric(world, learner, weights=[0.5, 0.4, 0.7], **settings)
    given = {"n_features": 2, "action_dim": 1, "sigma": sigma}
    return labelled(history, {"family": "LinearGaussian", "options": given, "gamma": world.gamma})


@dataclass(frozen=True, eq=False)
class Plane:
    """A noisy linear system in the plane, for any family over its two coordinates.

    Attributes:
        spec: The family, as the metadata say it.
        horizon: Longest episode.
        unequal: Whether episodes are cut at random, and end outside a disc of radius 2.5.
    """

    spec: dict[str, Any]
    horizon: int = 10
    unequal: bool = False
    feature_names: tuple[str, ...] = ("-x1^2", "-x2^2", "-|a|^2", "x1")

    @property
    def policy(self) -> Any:
        """The family."""
        return family_of(self.spec)

    @property
    def gamma(self) -> float:
        """Discount factor."""
        return float(self.spec["gamma"])

    def sample(self, parameters: Any, *, rng: np.random.Generator, n_episodes: int) -> Stage:
        """Episodes of the policy with these parameters."""
        policy, x = self.policy, rng.standard_normal((n_episodes, 2))
        states, actions = [x], []
        for _ in range(self.horizon):
            a = policy.sample(parameters, x, rng)
            x = x @ _A.T + _pushes(a) @ _B.T + 0.4 * rng.standard_normal(x.shape)
            states.append(x)
            actions.append(a)
        seen, taken = np.stack(states, axis=1), np.stack(actions, axis=1)
        lengths, ended = self._ends(seen, rng)
        rows = np.arange(self.horizon) < lengths[:, None]
        before, after, a = seen[:, :-1][rows], seen[:, 1:][rows], taken[rows]
        return Stage(
            observations=before,
            actions=a,
            lengths=lengths,
            terminated=ended,
            last_observations=seen[np.arange(n_episodes), lengths],
            features=squares(before, _pushes(a), after),
        )

    def _ends(self, seen: Float, rng: np.random.Generator) -> tuple[Any, Any]:
        lengths = np.full(len(seen), self.horizon)
        if not self.unequal:
            return lengths, np.zeros(len(seen), dtype=bool)
        lengths = rng.integers(self.horizon // 2, self.horizon + 1, len(seen))
        outside = np.linalg.norm(seen[:, 1:], axis=2) > 2.5
        first = np.where(outside.any(axis=1), outside.argmax(axis=1) + 1, self.horizon + 1)
        return np.minimum(lengths, first), first <= lengths


_A = np.array([[0.8, 0.3], [-0.2, 0.7]])
_B = np.array([[0.6, 0.0], [0.2, 0.5]])
_DISCRETE = np.array([[0.0, 0.0], [0.8, 0.2], [-0.5, 0.7]])
PLANE_WEIGHTS = np.array([0.7, 0.3, 0.4, 0.5])


def _pushes(actions: npt.NDArray[Any]) -> Float:
    return _DISCRETE[actions] if actions.dtype.kind == "i" else np.asarray(actions, dtype=float)


def _spec(family: str, **options: Any) -> dict[str, Any]:
    return {"family": family, "options": options, "gamma": 0.9}


SOFTMAX = {**_spec("LinearSoftmax", n_features=3, n_actions=3), "map": "with_one"}
GAUSSIAN = {**_spec("LinearGaussian", n_features=3, action_dim=2, sigma=0.5), "map": "with_one"}
LEARNT = {**_spec("LinearGaussian", n_features=3, action_dim=2, sigma=None), "map": "with_one"}
MLP = _spec("MLPGaussian", observation_dim=2, action_dim=2, hidden=[4], sigma=0.5)
MLP_LEARNT = _spec("MLPGaussian", observation_dim=2, action_dim=2, hidden=[3], sigma=None)
CATEGORICAL = _spec("MLPCategorical", observation_dim=2, n_actions=3, hidden=[4])


def plane(
    spec: dict[str, Any],
    learner: Any,
    *,
    unequal: bool = False,
    horizon: int = 10,
    **options: Any,
) -> LearningHistory:
    """A learner in the plane."""
    world = Plane(spec, unequal=unequal, horizon=horizon)
    settings = {"n_steps": 5, "n_episodes": 24, "seed": 0, "initial": _start(world), **options}
    history = observe_parametric(world, learner, weights=PLANE_WEIGHTS, **settings)  # type: ignore[arg-type]
    return labelled(history, spec)


def own_episodes(
    spec: dict[str, Any], rate: float, *, unequal: bool = False, seed: int = 0
) -> LearningHistory:
    """A learner that learns from the very episodes that are kept."""
    world, rng = Plane(spec, unequal=unequal), np.random.default_rng(seed)
    theta, stages = _start(world), []
    for _ in range(6):
        stage = world.sample(theta, rng=rng, n_episodes=24)
        stages.append(replace(stage, parameters=theta))
        move = sampled_gradient(world, theta, stage, weights=PLANE_WEIGHTS)  # type: ignore[arg-type]
        # A little noise of its own: exact steps have likelihoods that only rounding bounds.
        theta = theta + rate * move + 0.01 * rng.standard_normal(theta.shape)
    history = LearningHistory.from_stages(stages, feature_names=world.feature_names)
    return labelled(history, spec, **{OWN_EPISODES: True})


def _start(world: Plane) -> Float:
    policy, rng = world.policy, np.random.default_rng(1)
    if world.spec["family"].startswith("MLP"):
        return np.asarray(policy.initial(rng))
    return 0.1 * rng.standard_normal(policy.n_parameters)


# --- special cases --------------------------------------------------------------------------------


def with_column(
    history: LearningHistory, name: str, column: Callable[[Float], Float]
) -> LearningHistory:
    """The history with one more reward feature."""
    stages = [
        replace(s, features=np.column_stack([s.features, column(np.asarray(s.features))]))
        for s in history
    ]
    return _like(history, stages, names=(*(history.feature_names or ()), name))


def duplicated(history: LearningHistory) -> LearningHistory:
    """Its first feature twice."""
    return with_column(history, "copy", lambda features: features[:, 0])


def with_constant(history: LearningHistory) -> LearningHistory:
    """A feature that is always one."""
    return with_column(history, "one", lambda features: np.ones(len(features)))


def cut(history: LearningHistory) -> LearningHistory:
    """Episodes end in state 0, or at random."""
    rng = np.random.default_rng(2)
    return _like(history, [_cut_stage(stage, rng) for stage in history])


def _cut_stage(stage: Stage, rng: np.random.Generator) -> Stage:
    episodes = []
    for episode in stage.episodes:
        length = int(rng.integers(4, len(episode) + 1))
        home = np.flatnonzero(episode.observations[1 : length + 1] == 0)
        if ended := len(home) > 0:
            length = int(home[0]) + 1
        assert episode.features is not None
        episodes.append(
            replace(
                episode,
                observations=episode.observations[: length + 1],
                actions=episode.actions[:length],
                features=episode.features[:length],
                terminated=ended,
            )
        )
    return Stage.from_episodes(episodes, stage.parameters)


def without_ends(history: LearningHistory) -> LearningHistory:
    """The last state of every episode was not seen."""
    return _like(history, [replace(stage, last_observations=None) for stage in history])


def without_features(history: LearningHistory) -> LearningHistory:
    """No features recorded: they are computed by `squares`."""
    bare = _like(history, [replace(s, features=None) for s in history], names=None)
    return labelled(bare, {**bare.metadata[GOLDEN], "features": "squares"})


def backwards(history: LearningHistory) -> LearningHistory:
    """The stages in reverse, as the crossroad study does."""
    return _like(history, list(history)[::-1])


def still(history: LearningHistory) -> LearningHistory:
    """Nothing moves: one stage, again and again."""
    return _like(history, [history[0]] * len(history))


_SAME: Any = object()


def _like(history: LearningHistory, stages: Sequence[Stage], names: Any = _SAME) -> LearningHistory:
    return LearningHistory.from_stages(
        stages,
        learning_rates=history.learning_rates,
        feature_names=history.feature_names if names is _SAME else names,
        metadata=history.metadata,
    )


# --- the histories --------------------------------------------------------------------------------

PG = GPOMDPLearner(learning_rate=1.0, n_episodes=30, horizon=10)
FADING = GPOMDPLearner(learning_rate=1.0, schedule="1/(1+t)", n_episodes=30, horizon=10)
Q = QLearner(learning_rate=0.2, n_steps=60)
SPI, SVI = SoftPolicyIteration(temperature=3.0), SoftValueIteration()
NATURAL = NaturalGradientAscent(1.0)
K, R = {"parameters": True}, {"learning_rates": True}
KR = {**K, **R}
# More rows than the 1024 up to which networks used to be cloned to the end of their patience.
MANY = {"n_steps": 2, "n_episodes": 54, "horizon": 20}
# Clear learners, watched for long enough to convince (fewer than six steps never do).
SLOW = NaturalGradientAscent(0.3)
CLEAR = GradientAscent(1.0, exact=True)
LARGE_BATCHES = GradientAscent(0.03, n_episodes=200)
LARGE_BATCHES_SOFT = GradientAscent(0.3, n_episodes=200)

HISTORIES: dict[str, Maker] = {
    "grid-gpomdp-cloned": lambda: grid(PG),
    "grid-gpomdp-cloned-rates": lambda: grid(PG, **R),
    "grid-gpomdp-known": lambda: grid(PG, **K),
    "grid-gpomdp-known-rates": lambda: grid(FADING, **KR),
    "grid-q-cloned": lambda: grid(Q),
    "grid-q-known": lambda: grid(Q, **K),
    "grid-spi-cloned": lambda: grid(SPI),
    "grid-spi-known": lambda: grid(SPI, **K),
    "grid-svi-cloned": lambda: grid(SVI),
    "grid-svi-known": lambda: grid(SVI, **K),
    "table-natural-cloned": lambda: small(NATURAL),
    "table-natural-cloned-rates": lambda: small(NATURAL, **R),
    "table-natural-known-rates": lambda: small(NATURAL, **KR),
    "table-walk-cloned": lambda: small(RandomWalk(0.3)),
    "table-walk-known": lambda: small(RandomWalk(0.3), **K),
    "table-one-step": lambda: small(NATURAL, n_steps=1, n_episodes=30),
    "table-one-step-known": lambda: small(NATURAL, n_steps=1, n_episodes=30, **K),
    "table-one-stage": lambda: small(NATURAL, n_steps=1).slice(0, 1),
    "table-still": lambda: still(small(NATURAL)),
    "table-still-known": lambda: still(small(NATURAL, **K)),
    "table-duplicated": lambda: duplicated(small(NATURAL)),
    "table-duplicated-known": lambda: duplicated(small(NATURAL, **K)),
    "table-constant": lambda: with_constant(small(NATURAL)),
    "table-constant-known": lambda: with_constant(small(NATURAL, **K)),
    "table-unequal": lambda: cut(small(NATURAL)),
    "table-unequal-known": lambda: cut(small(NATURAL, **K)),
    "table-without-ends": lambda: without_ends(small(NATURAL)),
    "table-two-episodes": lambda: small(NATURAL, n_episodes=2, horizon=20),
    "linear-gradient-cloned": lambda: linear(GradientAscent(1.0)),
    "linear-gradient-known": lambda: linear(GradientAscent(1.0, exact=True), **K),
    "linear-gradient-known-rates": lambda: linear(
        GradientAscent(1.0, schedule="1/(1+t)", exact=True), **KR
    ),
    "linear-gradient-cloned-rates": lambda: linear(GradientAscent(1.0), **R),
    "linear-natural-cloned": lambda: linear(GradientAscent(0.3, direction="natural")),
    "linear-natural-known-rates": lambda: linear(
        GradientAscent(0.3, direction="natural", exact=True), **KR
    ),
    "linear-natural-known-rates-scaled": lambda: linear(
        GradientAscent(0.3, direction="natural", exact=True), scale=3.0, **KR
    ),
    "linear-adam-known": lambda: linear(GradientAscent(0.2, direction="adam"), **K),
    "linear-walk-cloned": lambda: linear(ParameterWalk(0.2)),
    "linear-walk-known": lambda: linear(ParameterWalk(0.2), **K),
    "linear-duplicated-known": lambda: duplicated(linear(GradientAscent(1.0), **K)),
    "softmax-plane-cloned": lambda: plane(SOFTMAX, GradientAscent(0.8)),
    "softmax-plane-known": lambda: plane(SOFTMAX, GradientAscent(0.8), **K),
    "softmax-plane-natural-known-rates": lambda: plane(
        SOFTMAX, GradientAscent(0.3, direction="natural"), **KR
    ),
    "softmax-plane-unequal": lambda: plane(SOFTMAX, GradientAscent(0.8), unequal=True),
    "control-gradient-cloned": lambda: control(GradientAscent(0.02, exact=True)),
    "control-gradient-known": lambda: control(GradientAscent(0.02), **K),
    "control-gradient-known-rates": lambda: control(GradientAscent(0.02, exact=True), **KR),
    "control-gradient-cloned-rates": lambda: control(GradientAscent(0.02, exact=True), **R),
    "control-natural-known-rates": lambda: control(
        GradientAscent(0.3, direction="natural", exact=True), sigma=None, **KR
    ),
    "control-natural-cloned": lambda: control(GradientAscent(0.3, direction="natural"), sigma=None),
    "control-adam-known": lambda: control(GradientAscent(0.05, direction="adam"), **K),
    "control-walk-cloned": lambda: control(ParameterWalk(0.1)),
    "control-walk-known": lambda: control(ParameterWalk(0.1), **K),
    "control-backwards": lambda: backwards(control(GradientAscent(0.02, exact=True), **K)),
    "gaussian-plane-own-episodes": lambda: own_episodes(GAUSSIAN, 0.02),
    "gaussian-plane-unequal-known": lambda: plane(LEARNT, GradientAscent(0.02), unequal=True, **K),
    "gaussian-plane-bare": lambda: without_features(
        plane(GAUSSIAN, GradientAscent(0.1, direction="natural"), **K)
    ),
    "gaussian-plane-constant-cloned": lambda: with_constant(plane(GAUSSIAN, GradientAscent(0.02))),
    "network-gradient-known": lambda: plane(MLP, GradientAscent(0.02), **K),
    "network-gradient-known-rates": lambda: plane(MLP, GradientAscent(0.02), **KR),
    "network-gradient-cloned": lambda: plane(MLP, GradientAscent(0.05), **MANY),
    "network-few-rows": lambda: plane(MLP, GradientAscent(0.02), n_steps=2),
    "network-adam-known": lambda: plane(MLP_LEARNT, GradientAscent(0.03, direction="adam"), **K),
    "network-walk-known": lambda: plane(MLP, ParameterWalk(0.1), **K),
    "network-own-episodes": lambda: own_episodes(MLP, 0.02, unequal=True),
    "network-duplicated-known": lambda: duplicated(plane(MLP, GradientAscent(0.02), **K)),
    "categorical-gradient-known": lambda: plane(CATEGORICAL, GradientAscent(0.2), **K),
    "categorical-gradient-known-rates": lambda: plane(CATEGORICAL, GradientAscent(0.2), **KR),
    "categorical-gradient-cloned": lambda: plane(CATEGORICAL, GradientAscent(0.8), **MANY),
    "categorical-walk-known": lambda: plane(CATEGORICAL, ParameterWalk(0.1), **K),
    "categorical-unequal-known": lambda: plane(CATEGORICAL, GradientAscent(0.2), unequal=True, **K),
    "long-table-known": lambda: small(SLOW, n_steps=10, **K),
    "long-table-cloned": lambda: small(SLOW, n_steps=9, n_episodes=40),
    "long-linear-known": lambda: linear(CLEAR, n_steps=12, **K),
    "long-linear-cloned": lambda: linear(CLEAR, n_steps=9, n_episodes=40),
    "long-gaussian-known": lambda: plane(GAUSSIAN, LARGE_BATCHES, n_steps=10, **K),
    "long-network-known": lambda: plane(MLP, LARGE_BATCHES, n_steps=12, **K),
    "long-categorical-known": lambda: plane(CATEGORICAL, LARGE_BATCHES_SOFT, n_steps=9, **K),
}
