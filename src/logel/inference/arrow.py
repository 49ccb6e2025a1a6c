"""Which way time runs, and what the steps leave over that comes back at every one of them.

Read backwards, a learner looks much like one that wants the opposite: to first order in its steps
it is the same. What tells the two apart is where they start. Learners begin undecided and become
decided; a history whose policy loses most of what it had decided may be read backwards, with the
opposite weights, and hardly anything in it says which of the two is true.

Learners also go somewhere: later stages lie further on. Stages in an order that means nothing do
not, and whatever explains their steps explains a shuffle.

What steps leave over by chance differs from step to step. What comes back at steps that share no
stage is no chance: a feature that is not among the given ones, or a rule that is not the learner's.
"""

from __future__ import annotations

import numpy as np
import torch

from logel.inference.null import CONVINCING, ENOUGH_STEPS, step_signs
from logel.policies.base import Policy
from logel.types import Array, Float

KEPT, GAINED = 0.5, 1.1
"""Share of its decisions that a policy keeps if it does no worse than to change its mind; and what
a network's policy over few actions has to come to. Networks begin as random functions, and one that
is as decided at its end as it was moved too little for anything to tell the way it went."""
# Rows that a sketch has.
_SKETCH = 512
# Rows of a stage that tell how decided a policy is.
SOME_ROWS = 1000
# Steps of which enough pairs share no stage, and ways to turn residuals round.
_FEWEST_STEPS, _WAYS = 5, 2000
# Steps beyond which neighbours are taken together, so that asking costs no more.
_MOST_STEPS = 64
# Share of those ways in which what is left would return as much, and what it is where a quarter of
# what steps have in common is left: two questions are asked.
_CHANCE, _LIKELY_CHANCE, _QUARTER = 0.01, 0.04, 0.25
# Share of the steps that has to be left for its order to be asked about.
_SOME = 0.1
# Chance at which weights are said to change.
_CHANGE_CHANCE = 0.025
# Shares below this are nothing, whether chance or not.
_LITTLE = 0.02
# Stages from which on clones of few episodes lie along time too, and orders tried.
_FEWEST_STAGES, _ORDERS = 9, 1999
# Asked of all that wander, this alone must not let one in twenty pass: a chance of .02 convinces.
_STRICTER = 2.5


def less_decided(
    policy: Policy,
    parameters: tuple[Float, Float],
    seen: tuple[Array, Array],
    kept: float | None = None,
) -> bool:
    """Whether a policy kept less of how decided it began, on what was seen at both ends.

    Args:
        policy: The family.
        parameters: Of the first and the last stage, each (d,).
        seen: Observations of these stages.
        kept: Share below which it did; by default what is asked of the family.
    """
    if kept is None:
        kept = GAINED if policy.discrete_actions and not policy.convex else KEPT
    rows = [policy.prepare_observations(observations) for observations in seen]
    first, last = (
        np.mean([_decision(policy, theta, some) for some in rows]) for theta in parameters
    )
    return bool(last < kept * first)


def _decision(policy: Policy, theta: Float, observations: torch.Tensor) -> float:
    """How far from acting at random: entropy that is missing, or squared means in deviations."""
    with torch.no_grad():
        outputs = policy.outputs(policy.tensor(theta), observations)
        if policy.discrete_actions:
            even = policy.outputs(policy.tensor(np.zeros_like(theta)), observations)
            return float((policy.entropy(even) - policy.entropy(outputs)).mean())
    mean, deviation = policy.action_moments(outputs)
    return float((mean**2 / deviation**2).sum(axis=1).mean())


def order_gain(path: Float, *, seed: int = 0) -> float:
    """Minus the log of the chance that stages in any order lie along time as these do, in nats.

    For stages of which any order is as likely; infinite from where it is convincing. A first
    stage further from the others than these are spread is order enough: one step may lead to the
    end.

    Args:
        path: A point for every stage, shape (m + 1, k).
        seed: Of the orders that are tried.
    """
    n, others = len(path), path[1:].mean(axis=0)
    away = float(((path[0] - others) ** 2).sum())
    if n < _FEWEST_STAGES or away >= float(((path[1:] - others) ** 2).sum()):
        return float("inf")
    stages = thinned(path)
    products = (stages - stages.mean(axis=0)) @ (stages - stages.mean(axis=0)).T
    time = np.arange(len(stages)) - (len(stages) - 1) / 2
    orders = np.tile(time, (_ORDERS + 1, 1))
    orders[1:] = np.random.default_rng([seed, n]).permuted(orders[1:], axis=1)
    # The square of how far stages move along, the later the further; the first row is as seen.
    along = ((orders @ products) * orders).sum(axis=1)
    gain = float(-np.log(_STRICTER * (along >= along[0] * (1 - 1e-9)).mean()))
    return gain if gain < CONVINCING else float("inf")


def thinned(path: Float) -> Float:
    """Means of neighbouring stages, where there are many of them."""
    return _together(path) / _together(np.ones((len(path), 1)))


def disorder(gain: float) -> tuple[str, ...]:
    """A note for stages whose order means nothing."""
    if np.isinf(gain):
        return ()
    return (
        "stages in any other order would lie along time as these do: check their order, or watch "
        "for longer",
    )


def runs_forward(design: Float, shape: Float, moved: Float) -> bool:
    """Whether steps surely follow what was worth doing where they began, not where they ended.

    Read backwards, a step ends where the learner stood when it made it.

    Args:
        design: At the beginnings, (m, D, q).
        shape: Of the steps' noise, (m, D, D).
        moved: The steps, (m, D).
    """
    if len(moved) <= ENOUGH_STEPS:
        return False
    both = np.concatenate([design[:-1], design[1:], moved[:-1, :, None]], axis=2)
    both, q = _whitened(both, shape[:-1]), design.shape[2]
    step = both[:, :, -1]

    def left(ends: Float) -> Float:
        weights = np.linalg.lstsq(ends.reshape(-1, q), step.reshape(-1), rcond=None)[0]
        return np.asarray(((step - ends @ weights) ** 2).sum(axis=1))

    gain = left(both[:, :, q:-1]) - left(both[:, :, :q])
    signs = _turns(len(gain))
    surely = bool((signs @ gain >= gain.sum() * (1 - 1e-9)).mean() <= 2 * _CHANCE)
    return surely and bool(gain.sum() > _LITTLE * (step**2).sum())


def restless(
    design: Float, shape: Float, moved: Float, left: Float, weights: Float
) -> tuple[str, ...]:
    """What is wrong with taking steps to be made alike and each for itself, in sentences.

    Asked of known paths: those that were smoothed go on by themselves. Nor is it asked of less than
    a tenth of the steps: so much the errors of a pooled world are, which are alike at all of them.

    Args:
        design: Of the steps, (m, D, q).
        shape: Of their noise, (m, D, D).
        moved: The steps, (m, D).
        left: What the weights leave of them, (m, D).
        weights: Shape (q,).
    """
    if len(left) <= ENOUGH_STEPS:
        return ()
    both = _whitened(np.concatenate([design, np.stack([moved, left], axis=2)], axis=2), shape)
    design, left = both[:, :, :-2], both[:, :, -1]
    least = _SOME * float((both[:, :, -2] ** 2).sum())
    if (left**2).sum() <= least:
        return ()
    said = {
        "each step goes on with part of the one before it: a learner with momentum, or one whose "
        "rule is another": _carries_on(left, least),
        "late steps want something else than early ones: look at them apart": _changes(
            design, left, weights
        ),
    }
    return tuple(sentence for sentence, holds in said.items() if holds)


def _carries_on(left: Float, least: float) -> bool:
    """Whether what is left of a step (m, D) comes again in the next one, and no less than this."""
    along = (left[1:] * left[:-1]).sum(axis=1)
    signs = _turns(len(left))
    chance = ((signs[:, 1:] * signs[:, :-1]) @ along >= along.sum()).mean()
    return bool(chance <= _CHANCE and along.sum() > least)


def _changes(design: Float, left: Float, weights: Float) -> bool:
    """Whether weights drift or break along the way, but for their size: rates may change.

    Every step pulls at the weights by design' left. Pulls add up to nothing; if something changes
    their sums up to a step wander further than those of pulls turned round.
    """
    (m, _, q), size = design.shape, float(np.linalg.norm(weights))
    if q < 2 or size == 0:
        return False
    along = weights / size
    square = np.einsum("tdi,tdj->tij", design, design)
    total = square.sum(axis=0)
    share = square @ np.linalg.pinv(total, hermitian=True)
    pulls = np.einsum("tdi,td->ti", design, left)
    across = np.eye(q) - np.outer(along, along @ total) / max(along @ total @ along, 1e-300)
    across = across @ np.linalg.svd(along[None])[2][1:].T
    inverse = np.linalg.pinv((pulls @ across).T @ (pulls @ across), hermitian=True)
    turned = _turns(m)[:, :, None] * pulls
    turned = (turned - np.einsum("tij,sj->sti", share, turned.sum(axis=1))) @ across
    sums = turned.cumsum(axis=1)
    wandered = np.einsum("sti,ij,stj->s", sums, inverse, sums)
    return bool((wandered >= wandered[0] * (1 - 1e-9)).mean() <= _CHANGE_CHANCE)


def _whitened(columns: Float, shape: Float) -> Float:
    """Columns (m, D, k) in units of noise of the shapes (m, D, D)."""
    return np.asarray(np.linalg.solve(np.linalg.cholesky(shape), columns))


def _turns(m: int) -> Float:
    """Ways to turn m steps round, the first of which turns none, (ways, m)."""
    return np.concatenate(list(step_signs(m, 0, ways=_WAYS)))


def sketched(columns: Float) -> Float:
    """Columns (d, k) in fewer rows that keep their inner products, about; always the same way."""
    if len(columns) <= _SKETCH:
        return columns
    rng = np.random.default_rng(len(columns))
    signs = rng.choice([-1.0, 1.0], len(columns))
    order = rng.permutation(len(columns)) % _SKETCH
    sketch = np.zeros((_SKETCH, columns.shape[1]))
    np.add.at(sketch, order, signs[:, None] * columns)
    return sketch


def repeated_in(steps: Float, rates: Float, weights: Float, *, noisy: bool = False) -> float:
    """`repeated_share` of steps whose design and movement stand side by side, (m, k, q + 1).

    Where the design is noisy, the weights come out too small by what its noise adds to its square.
    That is no direction: the prediction is made as long as steps that share no stage say.
    """
    predicted = rates[:, None] * (steps[:, :, :-1] @ weights)
    if noisy:
        square = _products(predicted, predicted)
        length = _products(steps[:, :, -1], predicted) / square if square > 0 else 0
        predicted = predicted * (length if length > 0 else 1.0)
    return repeated_share(steps[:, :, -1], steps[:, :, -1] - predicted)


def repeated_share(moved: Float, left: Float, *, seed: int = 0) -> float:
    """Share of what steps have in common that is left unexplained again and again; zero for chance.

    Either at all steps alike, or one way in the early ones and the other way in the late ones, as
    if what is wanted changed. (The latter only across what was predicted: rates may change.)

    Args:
        moved: Movements in coordinates that all steps share, shape (m, k).
        left: What is left of them.
        seed: Of the ways to turn what is left round.
    """
    moved, left = _together(moved), _together(left)
    m = len(moved)
    if m < _FEWEST_STEPS:
        return 0.0
    predicted = moved - left
    along = (left * predicted).sum(axis=1) / np.maximum((predicted**2).sum(axis=1), 1e-300)
    late = np.where(np.arange(m) < m / 2, 1.0, -1.0)
    changing = late[:, None] * (left - along[:, None] * predicted)
    return max(_returning(moved, one, seed) for one in (left, changing))


def _together(steps: Float) -> Float:
    """Sums of neighbouring steps, where they are many; neighbouring sums share a stage, too."""
    if len(steps) <= _MOST_STEPS:
        return steps
    first = np.linspace(0, len(steps), _MOST_STEPS, endpoint=False).astype(int)
    return np.add.reduceat(steps, first, axis=0)


def _returning(moved: Float, left: Float, seed: int) -> float:
    """Of what is left, as a share of what the movements have in common.

    Only pairs of steps that share no stage are compared: errors of a clone enter both of its steps.
    """
    m, common, found = len(moved), _products(moved, moved), _products(left, left)
    if common <= 0 or found < _LITTLE * common:
        return 0.0
    apart = np.abs(np.subtract.outer(np.arange(m), np.arange(m))) > 1
    rest = np.where(apart, left @ left.T, 0.0)
    signs = np.random.default_rng([seed, m]).choice([-1.0, 1.0], (_WAYS, m))
    turned = ((signs @ rest) * signs).sum(axis=1)
    chance = _CHANCE if found < _QUARTER * common else _LIKELY_CHANCE
    if (turned >= rest.sum() * (1 - 1e-9)).mean() > chance:
        return 0.0
    return min(found / common, 1.0)


def _products(one: Float, other: Float) -> float:
    """Sum of the inner products of all pairs of steps (m, k) that share no stage."""
    near = (one * other).sum() + (one[1:] * other[:-1]).sum() + (one[:-1] * other[1:]).sum()
    return float(one.sum(axis=0) @ other.sum(axis=0) - near)
