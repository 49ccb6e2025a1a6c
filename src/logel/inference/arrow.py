"""Which way time runs, and what the steps leave over that comes back at every one of them.

Read backwards, a learner looks much like one that wants the opposite: to first order in its steps
it is the same. What tells the two apart is where they start. Learners begin undecided and become
decided; a history whose policy loses most of what it had decided may be read backwards, with the
opposite weights, and hardly anything in it says which of the two is true.

What steps leave over by chance differs from step to step. What comes back at steps that share no
stage is no chance: a feature that is not among the given ones, or a rule that is not the learner's.
"""

from __future__ import annotations

import numpy as np
import torch

from logel.policies.base import Policy
from logel.types import Array, Float

KEPT = 0.5
"""Share of its decisions that a policy keeps if it does no worse than to change its mind."""
# Rows that a sketch has.
_SKETCH = 512
# Rows of a stage that tell how decided a policy is.
SOME_ROWS = 1000
# Steps of which enough pairs share no stage, and ways to turn residuals round.
_FEWEST_STEPS, _WAYS = 5, 2000
# Steps beyond which neighbours are taken together, so that asking costs no more.
_MOST_STEPS = 64
# Share of those ways in which what is left would return as much: two questions are asked.
_CHANCE = 0.01
# Shares below this are nothing, whether chance or not.
_LITTLE = 0.02


def less_decided(
    policy: Policy,
    parameters: tuple[Float, Float],
    seen: tuple[Array, Array],
    kept: float = KEPT,
) -> bool:
    """Whether a policy kept less of how decided it began, on what was seen at both ends.

    Args:
        policy: The family.
        parameters: Of the first and the last stage, each (d,).
        seen: Observations of these stages.
        kept: Share below which it did.
    """
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
    if (turned >= rest.sum() * (1 - 1e-9)).mean() > _CHANCE:
        return 0.0
    return min(found / common, 1.0)


def _products(one: Float, other: Float) -> float:
    """Sum of the inner products of all pairs of steps (m, k) that share no stage."""
    near = (one * other).sum() + (one[1:] * other[:-1]).sum() + (one[:-1] * other[1:]).sum()
    return float(one.sum(axis=0) @ other.sum(axis=0) - near)
