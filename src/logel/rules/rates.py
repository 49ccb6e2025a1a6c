"""How learning rates may run over the steps, and what a learner's movement says about it.

Rates are rarely constant: deep learners anneal theirs. The rates of single steps are known badly,
a schedule with one unknown number well, and from two things: how far the policy goes along the
advantages, and how far it strays from them, since a learner's own noise usually shrinks and grows
with its rate. Schedules are weighed by evidence and averaged: where the steps say little, they say
little about the rates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.special

from logel.errors import Choice
from logel.types import Float

# The learner's own variance, per coordinate, in units of the mean square movement.
_NOISE = np.geomspace(1e-6, 10.0, 41)


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
    families = shapes(n_steps)
    result = []
    for family in families:
        share = 1.0 / (len(families) * len(family))
        for shape in family:
            even = np.ones(n_steps)
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
    variance = moments.sampled + _NOISE[:, None] * typical * schedule.noise**2
    precision = 1.0 / variance
    square = np.einsum("st,tij->sij", precision * schedule.rates**2, moments.gram)
    inner = (precision * schedule.rates) @ moments.inner
    penalised = square + weights_precision * np.eye(q)
    explained = (inner * np.linalg.solve(penalised, inner[..., None])[..., 0]).sum(axis=1)
    _, log_determinant = np.linalg.slogdet(penalised)
    logs = 0.5 * (
        moments.n_coordinates * np.log(precision).sum(axis=1)
        - (precision @ moments.squared - explained)
        - (log_determinant - q * np.log(weights_precision))
    )
    best = int(np.argmax(logs))
    return Weighed(float(scipy.special.logsumexp(logs) - np.log(len(logs))), precision[best])


def posterior(weighed: list[Weighed], among: list[Schedule]) -> Float:
    """Probabilities of the schedules."""
    logs = np.array([w.log_evidence + np.log(s.prior) for w, s in zip(weighed, among, strict=True)])
    return np.asarray(scipy.special.softmax(logs))
