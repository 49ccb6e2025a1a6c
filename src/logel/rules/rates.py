"""How learning rates may run over the steps, and what a learner's movement says about it.

Rates are rarely constant: deep learners anneal theirs. The rates of single steps are known badly,
a schedule with one unknown number well, and from two things: how far the policy goes along the
advantages, and how far it strays from them, since a learner's own noise usually shrinks and grows
with its rate. Schedules are weighed by evidence and averaged: where the steps say little, they say
little about the rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special

from logel.errors import Choice
from logel.types import Float

# The learner's own variance, per coordinate, in units of the mean square movement.
_NOISE = np.geomspace(1e-6, 10.0, 41)
# Numbers held for the sizes of noise that are tried at once: not all sizes times all steps.
_BLOCK = 2**17


class Rates(Choice):
    """What is assumed of unknown learning rates.

    SCHEDULE: constant, or falling or rising steadily, as the evidence wants.
    SHARED: one rate for all steps.
    FREE: every step has its own rate.
    """

    SCHEDULE = "schedule"
    SHARED = "shared"
    FREE = "free"


class Schedule(NamedTuple):
    """One way in which rates may run."""

    rates: Float  # of the steps, shape (m,)
    noise: Float  # size of the learner's own noise, up to a factor, shape (m,)
    prior: float  # probability before anything is seen


class Weighed(NamedTuple):
    """What the movements say of a schedule."""

    log_evidence: float  # log marginal likelihood, up to a constant that all schedules share
    precision: Float  # of single coordinates of each step, with the most probable noise, shape (m,)


class StepMoments(NamedTuple):
    """Products of movement and design, step by step, and the movement's known noise."""

    squared: Float  # of the movement with itself, shape (m,)
    inner: Float  # with the design, shape (m, q)
    gram: Float  # of the design with itself, shape (m, q, q)
    # Variance, per coordinate, that the episodes' noise gives the movement, shape (m,).
    sampled: Float
    n_coordinates: float  # in which anything was seen, per step


def shapes(n_steps: int) -> list[list[Float]]:
    """Families of schedules with mean one: constant, linear, exponential, power of time."""
    if n_steps < 2:
        return [[np.ones(n_steps)]]
    time = np.linspace(0.0, 1.0, n_steps)
    families = [
        [np.ones(n_steps)],
        [1.0 - fall * time for fall in (*np.arange(1, 10) / 10, 0.95)],
        [np.exp(speed * time) for speed in np.arange(-16, 9) / 4 if speed != 0],
        [(1.0 + np.arange(n_steps)) ** power for power in np.arange(-8, 0) / 4],
    ]
    return [[shape / shape.mean() for shape in family] for family in families]


def schedules(n_steps: int) -> list[Schedule]:
    """All that unknown rates may be; families are equally probable.

    The learner's noise runs with the rate, or stays the same; or it alone changes.
    """
    families, even = shapes(n_steps), np.ones(n_steps)
    result = []
    for family in families:
        share = 1.0 / (len(families) * len(family))
        for shape in family:
            ways = [(shape, shape), (shape, even), (even, shape)]
            ways = ways if np.ptp(shape) > 0 else ways[:1]
            result += [Schedule(rates, noise, share / len(ways)) for rates, noise in ways]
    return result


def known_schedules(rates: Float) -> list[Schedule]:
    """For positive rates that are known: noise that runs with them, or stays the same."""
    along = rates / rates.mean()
    return [Schedule(rates, noise, 0.5) for noise in (along, np.ones(len(rates)))]


def weigh(moments: StepMoments, schedule: Schedule, weights_precision: float) -> Weighed:
    """Evidence for a schedule: weights and the size of the learner's noise are integrated out.

    The model: a step's coordinates are normal around rate * design @ weights with variance
    sampled + noise^2 s^2; weights are normal around zero, s is equally probable on all scales.
    """
    m, q = moments.inner.shape
    typical = float(moments.squared.sum()) / (m * moments.n_coordinates)

    def precise(sizes: Float) -> Float:
        return np.asarray(1.0 / (moments.sampled + sizes[:, None] * typical * schedule.noise**2))

    blocks, at_once = [], max(1, _BLOCK // m)
    for first in range(0, len(_NOISE), at_once):
        precision = precise(_NOISE[first : first + at_once])
        square = np.einsum("st,tij->sij", precision * schedule.rates**2, moments.gram)
        inner = (precision * schedule.rates) @ moments.inner
        penalised = square + weights_precision * np.eye(q)
        explained = (inner * np.linalg.solve(penalised, inner[..., None])[..., 0]).sum(axis=1)
        _, log_determinant = np.linalg.slogdet(penalised)
        blocks.append(
            moments.n_coordinates * np.log(precision).sum(axis=1)
            - (precision @ moments.squared - explained)
            - (log_determinant - q * np.log(weights_precision))
        )
    logs = 0.5 * np.concatenate(blocks)
    best = int(np.argmax(logs))
    found = float(scipy.special.logsumexp(logs) - np.log(len(logs)))
    return Weighed(found, precise(_NOISE[best : best + 1])[0])


def posterior(log_evidence: Sequence[float], among: Sequence[Schedule]) -> Float:
    """Probabilities of the schedules."""
    logs = np.array([log + np.log(s.prior) for log, s in zip(log_evidence, among, strict=True)])
    return np.asarray(scipy.special.softmax(logs))
