"""Learners without noise of their own: weights decide the whole path, which is rolled out.

Soft policy iteration jumps to nearly deterministic policies if it is paid well. From then on most
rewards of a whole cone explain the same actions, and what the smoother finds is an edge of it, with
the width of that edge. Here weights are drawn instead: the first policy and the weights say all
later ones, so the probability of all actions is a function of few numbers.

Walkers move along lines through each other (the stretch of Goodman and Weare) and by differences of
each other, which needs no tuning and does not mind cones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, log_softmax

from logel.inference.smooth import JointFit
from logel.rules.rule import Rule
from logel.rules.values import SoftPolicy
from logel.types import Float

logger = logging.getLogger(__name__)
# Logits relative to the last action from which on a policy is nearly deterministic.
_SATURATED = 10.0
# The most weights that few walkers can explore, and the most work, in states cubed.
_MOST_WEIGHTS, _MOST_WORK = 12, 3e9
# Walkers, their moves, and those of them before any counts; starts that are tried for each.
_WALKERS, _MOVES, _BURN, _TRIED = 40, 150, 50, 10
# Draws that are tried in other worlds.
_REWEIGHED = 400
# Of the moves: how many are stretches, by up to which factor; how far the others go, at most.
_STRETCHES, _STRETCH, _APART = 0.7, 2.0, 1.7


@dataclass(frozen=True, eq=False)
class SampledPosterior:
    """Posterior of the weights as draws, shape (n, q)."""

    draws: Float

    @property
    def mean(self) -> Float:
        """Of the directions, as long as the draws are on average: long draws say no more."""
        sizes = np.linalg.norm(self.draws, axis=1)
        return np.asarray((self.draws / sizes[:, None]).mean(axis=0) * np.median(sizes))

    def draw(self, n: int, rng: np.random.Generator) -> Float:
        """Some of them, shape (n, q)."""
        return np.asarray(self.draws[rng.integers(len(self.draws), size=n)])


def rolled_out(fit: JointFit, *, seed: int = 0) -> JointFit:
    """The fit of the same rule without noise, if that explains the actions better."""
    rule = fit.model
    if not (isinstance(rule, SoftPolicy) and _saturated(fit) and _affordable(rule)):
        return fit
    roll = Rollout(rule, fit.states[0])
    draws, values = explored(roll, fit.weights, np.random.default_rng([seed, 41]))
    parameters = SampledPosterior(draws).mean
    covariance = np.cov(draws.T).reshape((rule.n_features,) * 2)
    # The posterior's entropy as if it were normal, and what the first policy costs.
    _, entropy = np.linalg.slogdet(2 * np.pi * np.e * covariance)
    evidence = float(values.mean() + 0.5 * entropy - _first_cost(fit))
    logger.info("soft policy iteration without noise: %.1f against %.1f", evidence, fit.evidence)
    if evidence <= fit.evidence:
        return fit
    states = roll.path(parameters)
    return replace(
        fit,
        states=states,
        parameters=parameters,
        covariance=covariance,
        evidence=evidence,
        log_likelihood=rule.log_likelihood(states),
        converged=True,
        trace=(*fit.trace, evidence),
        draws=draws,
    )


def explored(roll: Rollout, weights: Float, rng: np.random.Generator) -> tuple[Float, Float]:
    """Draws (n, q) of the weights by walkers that begin around a guess; their log posteriors."""
    places = _places(weights, rng)
    best = np.argsort(-roll.log_posterior(places))[: _walkers(roll.rule)]
    return walked(roll.log_posterior, places[best], rng)


def reweighed(fit: JointFit, rule: Rule) -> Float:
    """Where the mean of the draws (q,) goes in another world, that of a rule of the same kind."""
    assert fit.draws is not None and isinstance(rule, SoftPolicy)
    assert isinstance(fit.model, SoftPolicy)
    some = fit.draws[:: max(len(fit.draws) // _REWEIGHED, 1)]
    here, there = (Rollout(one, fit.states[0]).log_likelihood(some) for one in (fit.model, rule))
    odds = np.exp(there - here - (there - here).max())
    sizes = np.linalg.norm(some, axis=1)
    mean = odds @ (some / sizes[:, None]) / odds.sum()
    return np.asarray(mean * np.median(sizes))


def _saturated(fit: JointFit) -> bool:
    following = fit.model.following(fit.states[:-1], fit.parameters)
    return bool(np.abs(following).max() > _SATURATED)


def _affordable(rule: SoftPolicy) -> bool:
    work = _MOVES * _walkers(rule) * rule.n_stages * float(rule.world.table.n_states) ** 3
    return rule.n_features <= _MOST_WEIGHTS and work <= _MOST_WORK


def _walkers(rule: SoftPolicy) -> int:
    return max(_WALKERS, 4 * rule.n_features)


def _places(weights: Float, rng: np.random.Generator) -> Float:
    """Where walkers may begin: near given weights, at other sizes of them, and anywhere."""
    n, q = _TRIED * max(_WALKERS, 4 * len(weights)), len(weights)
    size = max(float(np.linalg.norm(weights)), 1e-6)
    away = size * rng.choice([0.1, 0.5, 1.0], (n, 1)) * rng.standard_normal((n, q))
    near = weights * np.exp(rng.standard_normal((n, 1))) + away
    anywhere = size * np.exp(rng.standard_normal((n, 1))) * rng.standard_normal((n, q))
    return np.concatenate([near[: n // 2], anywhere[: n - n // 2]])


def _first_cost(fit: JointFit) -> float:
    """What the first policy's freedom costs in evidence: all other policies follow from it."""
    seen, variance = fit.model.observe(0, fit.states[0]), fit.variances.start
    information = seen.factor @ seen.factor.transpose(0, 2, 1)
    _, spread = np.linalg.slogdet(np.eye(information.shape[1]) + variance * information)
    return float(0.5 * (spread.sum() + (fit.states[0] ** 2).sum() / variance))


class Rollout:
    """Paths of soft policy iteration from one policy (d,), for many weights at once."""

    def __init__(self, rule: SoftPolicy, first: Float) -> None:
        self.rule, self.first = rule, first

    def log_posterior(self, weights: Float) -> Float:
        """Up to a constant that is in it, too: of actions and weights (K, q), shape (K,).

        The weights' prior is a Cauchy distribution of unit scale, in units of features' ranges.
        """
        q = weights.shape[1]
        prior = gammaln((q + 1) / 2) - 0.5 * (q + 1) * np.log(np.pi)
        prior = prior - 0.5 * (q + 1) * np.log1p((weights**2).sum(axis=1))
        return np.asarray(prior + self.log_likelihood(weights))

    def log_likelihood(self, weights: Float) -> Float:
        """Of all stages' actions, (K,)."""
        counts, total = self.rule.world.table.counts, np.zeros(len(weights))
        for stage, states in enumerate(self._states(weights)):
            logs = log_softmax(self.rule.world.logits(states), axis=-1)
            total += (counts[stage] * logs).sum(axis=(1, 2))
        return total

    def path(self, weights: Float) -> Float:
        """Of one learner (q,), shape (m + 1, d)."""
        return np.concatenate(list(self._states(weights[None])))

    def _states(self, weights: Float) -> list[Float]:
        """Stage by stage, (K, d)."""
        world, nothing = self.rule.world, np.zeros(weights.shape[1])
        states = [np.repeat(self.first[None], len(weights), axis=0)]
        for _ in range(self.rule.n_stages - 1):
            # Values are linear in the weights, given the policy.
            found = world.evaluate(states[-1], nothing, entropy=True)
            states.append(found.values + np.einsum("kdq,kq->kd", found.design, weights))
        return states


def walked(
    log_density: Callable[[Float], Float], places: Float, rng: np.random.Generator
) -> tuple[Float, Float]:
    """Draws (n, q) of a density by walkers that begin at places (K, q), and its logs there (n,)."""
    at, values = places.copy(), log_density(places)
    n, q = len(at) // 2, at.shape[1]
    sides = slice(0, n), slice(n, len(at))
    draws, logs = [], []
    for move in range(_MOVES):
        for mine, others in (sides, sides[::-1]):
            here, there = at[mine], at[others]
            proposed, gain = _proposals(here, there, rng, q)
            found = log_density(proposed)
            taken = np.log(rng.random(len(here))) < found - values[mine] + gain
            at[mine] = np.where(taken[:, None], proposed, here)
            values[mine] = np.where(taken, found, values[mine])
        if move >= _BURN:
            draws.append(at.copy())
            logs.append(values.copy())
    return np.concatenate(draws), np.concatenate(logs)


def _proposals(
    here: Float, there: Float, rng: np.random.Generator, q: int
) -> tuple[Float, Float | float]:
    """Where walkers might go, and the log of what corrects for how they were proposed."""
    n = len(here)
    if rng.random() < _STRETCHES:
        root = np.sqrt(_STRETCH)
        factor = (1 / root + rng.random(n) * (root - 1 / root)) ** 2
        anchors = there[rng.integers(len(there), size=n)]
        return anchors + factor[:, None] * (here - anchors), (q - 1) * np.log(factor)
    i, j = rng.integers(len(there), size=(2, n))
    far = rng.uniform(0, _APART, (n, 1)) / np.sqrt(q)
    return here + far * (there[i] - there[j]), 0.0
