"""Small tabular worlds, and points in them, for the tests of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from logel.envs.tabular import (
    TabularMDP,
    random_mdp,
)
from logel.rules.ascent import Gradient, NaturalGradient
from logel.rules.catalogue import RULES
from logel.rules.rule import RandomWalk, Rule
from logel.rules.values import DriftingValues
from logel.worlds.table import TabularWorld

HORIZON = 7
ALL = (*(RULES[name] for name in TabularWorld.offers), RandomWalk, DriftingValues)
FADING = (Gradient, NaturalGradient)


def known_world(mdp: TabularMDP, *, n_stages: int = 5, seed: int = 0) -> TabularWorld:
    """The true world, with made-up episodes (they only shape the noise)."""
    rng = np.random.default_rng(seed)
    shape = (mdp.n_states, mdp.n_actions)
    return TabularWorld(
        transitions=mdp.transitions,
        features=mdp.expected_features,
        initial=mdp.initial,
        gamma=mdp.gamma,
        horizon=HORIZON,
        counts=rng.integers(0, 9, (n_stages, *shape)).astype(float),
        episode_sums=tuple(rng.normal(size=(6, *shape, mdp.n_features)) for _ in range(n_stages)),
    )


def small(seed: int = 0, n_states: int = 4, n_actions: int = 3) -> TabularMDP:
    rng = np.random.default_rng(seed)
    return random_mdp(rng, n_states=n_states, n_actions=n_actions, n_features=2, gamma=0.8)


def terminating(seed: int = 0) -> tuple[TabularMDP, TabularWorld]:
    """An MDP whose last state absorbs without pay, and the same world with termination instead."""
    rng = np.random.default_rng(seed)
    s, a, q = 3, 2, 2
    transitions = np.zeros((s + 1, a, s + 1))
    transitions[:s] = rng.dirichlet(np.ones(s + 1), size=(s, a))
    transitions[s, :, s] = 1.0
    features = np.zeros((s + 1, a, q))
    features[:s] = rng.normal(size=(s, a, q))
    initial = np.append(rng.dirichlet(np.ones(s)), 0.0)
    mdp = TabularMDP(transitions, features, initial, gamma=0.9)
    world = TabularWorld(
        transitions=transitions[:s, :, :s],
        features=features[:s],
        initial=initial[:s],
        gamma=0.9,
        horizon=HORIZON,
        counts=np.ones((4, s, a)),
        episode_sums=tuple(rng.normal(size=(6, s, a, q)) for _ in range(4)),
    )
    return mdp, world


def policies(model: Rule, states: Any) -> Any:
    """Action probabilities of states, shape (..., S, A)."""
    return model.world.probabilities(model.as_policy(states))


def point(model: Rule, seed: int, m: int = 4) -> tuple[Any, Any]:
    """Random states of m steps and random parameters."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=model.world.n_features)
    nuisance = model.nuisance_mean + 0.3 * rng.normal(size=len(model.nuisance_mean))
    return rng.normal(size=(m, model.state_dim)), np.concatenate([weights, nuisance])


def differences(function: Callable[[Any], Any], x: Any, step: float = 1e-5) -> Any:
    """Central differences along the last axis of x, appended as the last axis."""
    columns = []
    for i in range(x.shape[-1]):
        move = np.zeros(x.shape[-1])
        move[i] = step
        columns.append((function(x + move) - function(x - move)) / (2 * step))
    return np.stack(columns, axis=-1)


def worlds() -> list[TabularWorld]:
    return [known_world(small()), terminating()[1]]
