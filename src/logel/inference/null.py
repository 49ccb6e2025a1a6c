"""Is there a reward at all? How much better one explains the steps than wanting nothing would.

All answers come on one scale: nats, the log odds of a reward over none. Fits of whole paths have
them from their evidence. Regressions get them from a test in which *steps* are the unit: a learner
that wants nothing might as well have moved the other way at any step, whatever its coordinates have
in common, so the explained movement is compared with what it is when whole steps are turned round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from logel.inference.steps import Steps
from logel.types import Float

# Gain a reward must bring before its weights deserve trust: the odds of twenty to one.
CONVINCING = float(np.log(20.0))
# Steps of which one in twenty ways to turn them is the history itself, opposites being one.
ENOUGH_STEPS = 6
# Steps up to which every way of turning them round is tried, and ways tried of more.
_ALL_WAYS, _SOME_WAYS = 10, 999
# Numbers held for the ways that are tried at once: memory must not grow with ways times steps.
_BLOCK = 2**17
# Alternations between weights and rates in every turned history; the direction settles in fewer.
_ROUNDS = 30


def no_reward(gain: float) -> float:
    """Probability that there is none, both being as likely before."""
    return float(1 / (1 + np.exp(np.clip(gain, -50, 50))))


def turned_gain(steps: Steps, learning_rates: Float | None, *, seed: int) -> float:
    """Minus the log of the chance that steps without aim are explained as well as these, in nats.

    Exact for steps that are as likely as their opposites. With m steps the chance cannot be found
    smaller than 2^(1 - m), so fewer than `ENOUGH_STEPS` never convince.

    Args:
        steps: Compressed, in the coordinates to be fitted.
        learning_rates: Shape (m,), or None if every step has its own, fitted again each time.
        seed: Chooses ways to turn many steps.
    """
    grams = steps.grams()
    square, inner = grams[:, :-1, :-1], grams[:, :-1, -1]
    blocks = step_signs(steps.n_steps, seed, ways=max(1, _BLOCK // inner.size))
    if learning_rates is None:
        explained = np.concatenate([_with_own_rates(square, inner, signs) for signs in blocks])
    else:
        total = np.einsum("t,tij->ij", learning_rates**2, square)
        sums = np.concatenate([(signs * learning_rates) @ inner for signs in blocks])
        explained = np.einsum("si,ij,sj->s", sums, np.linalg.pinv(total, hermitian=True), sums)
    # The first row is the history as it was; rounding must not make equals differ.
    as_good = explained >= explained[0] * (1 - 1e-9)
    return float(-np.log(as_good.mean()))


def shortness(n_steps: int) -> tuple[str, ...]:
    """A note for histories that are too short to convince, whatever they show."""
    if n_steps >= ENOUGH_STEPS:
        return ()
    return (
        f"{n_steps} steps cannot tell a reward from a random walk: watch at least {ENOUGH_STEPS}",
    )


def step_signs(m: int, seed: int, ways: int) -> Iterator[Float]:
    """Ways to turn steps round, so many at once, shape (ways, m).

    The very first turns none; opposites count as one.
    """
    rng = np.random.default_rng([seed, m])
    n = 2 ** (m - 1) if m <= _ALL_WAYS else _SOME_WAYS + 1
    for first in range(0, n, ways):
        block = np.arange(first, min(first + ways, n))
        if m <= _ALL_WAYS:
            turned = (block[:, None] >> np.arange(m)) & 1
        else:
            turned = rng.integers(0, 2, (len(block), m))
            turned[block == 0] = 0
        yield np.asarray(1.0 - 2.0 * turned, dtype=float)


def _with_own_rates(square: Float, inner: Float, signs: Float) -> Float:
    """Explained movement with one rate per step, not negative, fitted for every way."""
    rates = np.ones_like(signs)
    turned = signs[:, :, None] * inner
    ridge = 1e-12 * max(float(np.einsum("tii->", square)), 1e-300) * np.eye(square.shape[1])
    for _ in range(_ROUNDS):
        total = np.einsum("st,tij->sij", rates**2, square) + ridge
        sums = np.einsum("st,sti->si", rates, turned)
        weights = np.linalg.solve(total, sums[..., None])[..., 0]
        along = np.maximum(np.einsum("sti,si->st", turned, weights), 0.0)
        size = np.maximum(np.einsum("si,tij,sj->st", weights, square, weights), 1e-300)
        rates = along / size
        scale = rates.mean(axis=1, keepdims=True)
        rates = rates / np.where(scale > 0, scale, 1.0)
    return np.asarray((along**2 / size).sum(axis=1))
