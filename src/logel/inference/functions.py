"""Policies that move as functions, along the advantages of the features: mirror descent.

Every stage is summed in a basis of functions of state and action (`rules.functions`); two
neighbours make a step in standard form, whose coordinates have noise alike in all directions, for
all episodes and without each group of them in turn. Rates may follow a schedule: every schedule has
its own answer, in which steps weigh by how well they are known, and answers are averaged by the
schedules' probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, tee
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logel.data.packed import Packed
from logel.inference.arrow import repeated_in, sketched
from logel.inference.found import Found, path_words
from logel.inference.gauge import Gauge, JacobianMoments, explain_grams
from logel.inference.method import Method
from logel.inference.more_data import Planning
from logel.inference.null import shortness, turned_gain
from logel.inference.regress import (
    FUNCTION_MARGIN,
    Solution,
    evidence_ridge,
    solve,
    solve_weights,
    without_noise,
)
from logel.inference.spread import Spread, contrasted, spread_of, student_draws, variances
from logel.inference.steps import PackedSteps, Steps, beside_one, compress, is_identity
from logel.rules.functions import Basis, StageSums, regrouped
from logel.rules.rates import (
    Rates,
    Schedule,
    StepMoments,
    known_schedules,
    posterior,
    schedules,
    weigh,
)
from logel.types import Float
from logel.worlds.critic import CriticSums, fit_critic, pooled
from logel.worlds.own_episodes import StageJacobian

# Weights from which their own spread can be told well enough to shrink them by it.
_MANY_WEIGHTS = 10
# Steps left out together: what a critic has not learnt at one step it lacks at the next one too.
_TOGETHER = 2
# Times that some are left out: enough for a spread, and no more work a step in a long history.
_MOST_LEFT_OUT = 100
# Schedules less probable than this, in units of the most probable, are left out.
_NEGLIGIBLE = 0.01


@dataclass(frozen=True, eq=False)
class FunctionSteps:
    """All steps in the basis.

    Attributes:
        steps: Of all episodes.
        without: The same without each group in turn, g of them.
        parts: Products of the deviations of [design, delta] without each group from their mean,
            shape (m, g, q + 1, q + 1).
        seen: Number of coordinates of each step in which anything was seen, shape (m,).
        weak: What the gauge analysis needs.
        variance_left: Share of the advantages' variance that the critic leaves.
        shared: Design and movement in coordinates that all steps share, shape (m, k, q + 1).
    """

    steps: Steps
    without: tuple[Steps, ...]
    parts: Float
    seen: npt.NDArray[np.int64]
    weak: JacobianMoments
    variance_left: float
    shared: Float

    @property
    def n_groups(self) -> int:
        """Number g of groups."""
        return len(self.without)

    @property
    def noise(self) -> Float:
        """What sampling noise adds to the Gram matrices, shape (m, q + 1, q + 1)."""
        g = self.n_groups
        return (g - 1) / g * self.parts.sum(axis=1) if g >= 3 else 0 * self.steps.grams()

    def weighed(self, precision: Float) -> FunctionSteps:
        """Steps in units of their noise; on average they stay as large as they are."""
        relative = precision / precision.mean()
        root = np.sqrt(relative)
        return replace(
            self,
            steps=self.steps.weighed(root),
            without=tuple(steps.weighed(root) for steps in self.without),
            parts=relative[:, None, None, None] * self.parts,
        )

    def projected(self, basis: Float) -> FunctionSteps:
        """The same for weights `basis @ coordinates`."""
        if is_identity(basis):
            return self
        wide = beside_one(basis)
        return replace(
            self,
            steps=self.steps.projected(basis),
            without=tuple(steps.projected(basis) for steps in self.without),
            parts=wide.T @ self.parts @ wide,
        )


def function_steps(
    sums: Iterable[StageSums],
    *,
    n_groups: int,
    pool: float,
    prior_strength: float | None,
    rates: Float | None,
) -> FunctionSteps:
    """Bring stages to the standard form: movement = rate * design @ weights + noise.

    Args:
        sums: Of all stages in order, of which few are held at a time.
        n_groups: Groups of episodes that every stage has.
        pool: See `Method`.
        prior_strength: Of the prior that cloned policies were fitted with; None when the policies
            are known and carry no noise.
        rates: Known learning rates, or None.
    """
    ahead, here = tee(regrouped(s, n_groups) for s in sums)
    critics = pooled((s.critic_sums for s in ahead), pool)
    everyone = np.arange(n_groups)
    kept = [everyone, *(np.delete(everyone, g) for g in everyone if n_groups > 1)]
    whole, by_group = PackedSteps(), [PackedSteps() for _ in kept[1:]]
    parts, left, shared, seen = Packed(), Packed(), Packed(), Packed()
    weak = None
    for t, ((now, after), critic) in enumerate(zip(pairwise(here), critics, strict=False)):
        root = _noise_root(now, after, prior_strength)
        seen.add([len(root)])
        # Coordinates that nobody saw stay empty, so that all steps have as many.
        root = np.pad(root, ((0, root.shape[1] - len(root)), (0, 0)))
        delta = np.array([_movement(now, after, k, prior_strength) for k in kept])
        design = np.array([_design(now, critic, k) for k in kept])
        plain = np.array([now.plain[g].sum(axis=0) / now.counts[g].sum() for g in kept])
        shared.add(sketched(np.column_stack([design[0], delta[0]]))[None])
        delta, design, plain = delta @ root.T, root @ design, root @ plain
        left.add([variances(design[1:]) / variances(plain[1:])])
        whole.add(compress(delta[:1], design[:1], may_rest=True))
        for g, mine in enumerate(by_group, start=1):
            mine.add(compress(delta[g : g + 1], design[g : g + 1], may_rest=True))
        parts.add(_deviations(delta[1:], design[1:])[None])
        weak = weak or JacobianMoments.empty(design.shape[2])
        weak.add(_as_jacobian(design), 1.0 if rates is None else rates[t])
    assert weak is not None  # a history has a step
    ratios = left.rows
    return FunctionSteps(
        steps=whole.steps,
        without=tuple(mine.steps for mine in by_group),
        parts=parts.rows,
        seen=seen.rows,
        weak=weak,
        variance_left=float(np.nanmedian(ratios)) if np.isfinite(ratios).any() else float("nan"),
        shared=shared.rows,
    )


def _deviations(delta: Float, design: Float) -> Float:
    """Products of each replicate's deviation from their mean, shape (g, q + 1, q + 1)."""
    both = np.concatenate([design, delta[:, :, None]], axis=2)
    both = both - (both.mean(axis=0) if len(both) else 0.0)
    return np.asarray(np.swapaxes(both, 1, 2) @ both)


def _noise_root(now: StageSums, after: StageSums, prior_strength: float | None) -> Float:
    """Takes projections to coordinates in which their noise is alike, shape (rank, k).

    Known policies: the advantages' noise is about the Gram matrix. Cloned ones add the errors of
    two fits: the same again, and that of the next stage, which may have seen other states.
    """
    noise = now.gram
    if prior_strength is not None:
        back = _ridged(after, prior_strength)
        noise = (now.gram + now.gram @ np.linalg.solve(back, now.gram)) / 2
    values, vectors = np.linalg.eigh((noise + noise.T) / 2)
    seen = values > 1e-9 * values.max()
    return np.asarray((vectors[:, seen] / np.sqrt(values[seen])).T)


def _ridged(sums: StageSums, strength: float) -> Float:
    """Information about the log-policy per row, with a prior's share."""
    floor = 1e-9 * float(np.trace(sums.gram)) / len(sums.gram)
    ridge = max(strength / float(sums.counts.sum()), floor)
    return sums.gram + ridge * np.eye(len(sums.gram))


def _movement(
    now: StageSums,
    after: StageSums,
    kept: npt.NDArray[np.int64],
    prior_strength: float | None,
) -> Float:
    """Projected log-ratio from the kept groups, shape (k,).

    Cloned policies are moved to the maximum of the kept rows' likelihood, in the basis and to first
    order: their log-probability shifts by the inverse information times the mean score. That makes
    up for clones that stopped early, and for the rows left out.
    """
    moved = now.movement[kept].sum(axis=0) / now.counts[kept].sum()
    if prior_strength is None:
        return np.asarray(moved)
    for sums, sign in ((now, -1.0), (after, 1.0)):
        mean = sums.scores[kept].sum(axis=0) / sums.counts[kept].sum()
        moved = moved + sign * now.gram @ np.linalg.solve(_ridged(sums, prior_strength), mean)
    return np.asarray(moved)


def _design(now: StageSums, critic: CriticSums, kept: npt.NDArray[np.int64]) -> Float:
    """Projected feature advantages from the kept groups, shape (k, q).

    The critic of every other group is fitted on the rest: an advantage never meets a critic that
    has seen its own episode.
    """
    total = now.own[kept].sum(axis=0)
    for parity in (0, 1):
        served = kept[kept % 2 == parity]
        fitted = kept[kept % 2 != parity]
        if len(served) == 0:
            continue
        theta = fit_critic(critic, fitted if len(fitted) else served)
        total = total + now.critic[served].sum(axis=0) @ theta
    return np.asarray(total / now.counts[kept].sum())


def _as_jacobian(design: Float) -> StageJacobian:
    """A design (1 + g, k, q) with its spread, in the form the gauge analysis reads."""
    mean, without = design[0], design[1:]
    g = len(without)
    # Pseudo-values: independent estimates with the jackknife's spread.
    groups = g * mean - (g - 1) * without if g else mean[None]
    n = len(groups)
    return StageJacobian(mean, groups, np.full(n, 1 / n), np.zeros((n, len(mean))))


class _Weighed(NamedTuple):
    """The answer for given rates, in the coordinates of the basis.

    Attributes:
        weights: Shape (k,).
        rates: They go with, shape (m,).
        sampling: Covariance due to the episodes seen, (k, k), or None with fewer than three groups.
        learner: The same due to movement that no reward explains, beyond sampling noise, and to
            what is not known of the rates.
        solution: The least-squares solution, before the noise correction.
    """

    weights: Float
    rates: Float
    sampling: Float | None
    learner: Float
    solution: Solution


def find_weights(
    all_steps: FunctionSteps,
    gauge: Gauge,
    rates: Float | None,
    method: Method,
    seed: int,
    *,
    lagging: bool = False,
) -> Found:
    """Weights, rates and their uncertainty from steps in standard form.

    With `lagging`, a critic that we do not have led the learner: steps' disagreement counts too.
    """
    basis = gauge.identified
    steps = all_steps.projected(basis)
    m = steps.steps.n_steps
    among = [Schedule(np.ones(m), np.ones(m), 1.0)]
    if rates is not None:
        among = known_schedules(rates)
    elif method.rates is not Rates.SHARED:
        among = schedules(m)
    answers, shares, likeliest = _by_schedule(steps, among, method)
    best = _averaged(answers, shares)
    if lagging:
        best = best._replace(learner=best.learner + _disagreement(likeliest, best.rates, method))
    weights = basis @ best.weights
    found = Found(
        weights=weights,
        rates=best.rates,
        fit=explain_grams(
            all_steps.steps.grams(),
            weights,
            best.rates,
            n_parameters=float(all_steps.seen.mean()),
            fitted=basis.shape[1],
        ),
        gain=turned_gain(likeliest.steps, best.rates, seed=seed),
        words="",
        rule="mirror",
        solved=best.solution.status,
        trace=best.solution.objective_trace,
        rank=best.solution.rank,
        condition=best.solution.condition,
        keeps_scale=rates is not None,
        notes=shortness(m),
        repeats=repeated_in(all_steps.shared, best.rates, weights),
    )
    return replace(found, spread=_spread(found, best, basis, steps.n_groups - 1, method, seed))


def _spread(
    found: Found, best: _Weighed, basis: Float, freedom: int, method: Method, seed: int
) -> Spread | None:
    """Draws where only the direction is known: its sign is uncertain where the vector is.

    No linearisation shows that; with known rates the covariance alone tells.
    """
    if best.sampling is None:
        return None
    raw = found.weights
    sampling, learner = (basis @ c @ basis.T for c in (best.sampling, best.learner))
    if found.keeps_scale:
        return Spread(sampling + learner, freedom, None, Planning.of(sampling, learner))
    unit = raw / found.size
    turn = (np.eye(len(raw)) - np.outer(unit, unit)) / found.size
    rng = np.random.default_rng(seed)
    draws = student_draws(raw, sampling + learner, freedom, method.n_draws, rng)
    planning = Planning.of(turn @ sampling @ turn.T, turn @ learner @ turn.T)
    return Spread(None, freedom, draws, planning)


def _by_schedule(
    steps: FunctionSteps, among: list[Schedule], method: Method
) -> tuple[list[_Weighed], Float, FunctionSteps]:
    """An answer for every probable schedule, their shares, and the steps under the likeliest."""
    first = _answer(steps, among[0].rates, method, uncertain=False)
    size = float(first.weights @ first.weights)
    if size == 0:
        return [_answer(steps, among[0].rates, method)], np.ones(1), steps
    moments = _step_moments(steps, among[0].rates, first.weights, method)
    weighed = partial(weigh, moments, weights_precision=len(first.weights) / size)
    # Precisions of all schedules together would take more than the steps.
    probabilities = posterior([weighed(s).log_evidence for s in among], among)
    if not np.isfinite(probabilities).all():
        raise FloatingPointError("no schedule of rates has a finite probability")
    likely = np.flatnonzero(probabilities > _NEGLIGIBLE * probabilities.max())
    answers = [
        _answer(steps.weighed(weighed(among[i]).precision), among[i].rates, method) for i in likely
    ]
    top = weighed(among[int(np.argmax(probabilities))])
    shares = probabilities[likely] / probabilities[likely].sum()
    return answers, shares, steps.weighed(top.precision)


def _step_moments(
    steps: FunctionSteps, rates: Float, weights: Float, method: Method
) -> StepMoments:
    """Products of every step; `weights` are a first answer, for the size of the design's noise."""
    grams = steps.steps.grams()
    n_coordinates = float(steps.seen.mean())
    followed = weights if method.debias else np.zeros_like(weights)
    return StepMoments(
        squared=grams[:, -1, -1],
        inner=grams[:, :-1, -1],
        gram=grams[:, :-1, :-1],
        sampled=contrasted(steps.noise, followed, rates) / n_coordinates,
        n_coordinates=n_coordinates,
    )


def _averaged(answers: Sequence[_Weighed], shares: Float) -> _Weighed:
    """The mean of several answers; where they differ, nobody knows: that is uncertainty too."""
    raw = np.stack([a.weights for a in answers])
    mean = shares @ raw
    between = np.einsum("s,si,sj->ij", shares, raw - mean, raw - mean)
    sampled = [a.sampling for a in answers if a.sampling is not None]
    return _Weighed(
        weights=mean,
        rates=shares @ np.stack([a.rates for a in answers]),
        sampling=np.einsum("s,sij->ij", shares, np.stack(sampled)) if sampled else None,
        learner=np.einsum("s,sij->ij", shares, np.stack([a.learner for a in answers])) + between,
        solution=answers[int(np.argmax(shares))].solution,
    )


def _answer(
    steps: FunctionSteps, rates: Float, method: Method, *, uncertain: bool = True
) -> _Weighed:
    """The answer for given rates."""
    ridge, noise = _ridge_and_noise(steps, rates, method)
    solution = solve(steps.steps, rates, ridge=ridge)
    weights = solution.weights
    if noise.any():
        weights = _cleaned(steps.steps, noise, rates, ridge)
    sampling = None
    if steps.n_groups >= 3 and uncertain:
        sampling = spread_of(
            np.stack([_cleaned(other, noise, rates, ridge) for other in steps.without])
        )
    learner = _learner_covariance(steps, noise, rates, weights, ridge)
    return _Weighed(weights, rates, sampling, learner, solution)


def _ridge_and_noise(steps: FunctionSteps, rates: Float, method: Method) -> tuple[float, Float]:
    ridge = _penalty(steps.steps, rates, method)
    noise = _expected_noise(steps, rates, ridge)
    if not method.debias:
        # The learner followed the advantages' noise; it did not follow the errors of clones.
        noise[:, :-1, :-1] = 0.0
    return ridge, noise


def _cleaned(steps: Steps, noise: Float, rates: Float, ridge: float) -> Float:
    """Weights with the expected share of noise taken out of their normal equations."""
    return solve_weights(replace(steps, noise=noise), rates, ridge=ridge, margin=FUNCTION_MARGIN)[0]


def _penalty(steps: Steps, rates: Float, method: Method) -> float:
    """The ridge, chosen if it is not given."""
    ridge = method.ridge
    if ridge is None:
        ridge = "evidence" if steps.n_features >= _MANY_WEIGHTS else 0.0
    return evidence_ridge(steps, rates) if isinstance(ridge, str) else float(ridge)


def _expected_noise(steps: FunctionSteps, rates: Float, ridge: float) -> Float:
    """Noise of the Gram matrices to take out, shape (m, q + 1, q + 1).

    Clones and advantages come from the same actions, so their errors go together. How much is
    itself estimated: that part is shrunk by the share that is no more than chance (James and
    Stein), in the metric of the normal equations.
    """
    noise, g, q = steps.noise, steps.n_groups, steps.steps.n_features
    if g < 3:
        return noise
    grams = steps.steps.grams()
    square = np.einsum("t,tij->ij", rates**2, grams[:, :q, :q]) + ridge * np.eye(q)
    total = (g - 1) * np.einsum("t,tgi->gi", rates, steps.parts[:, :, :q, q])
    mean, inverse = total.mean(axis=0), np.linalg.pinv(square, hermitian=True)
    size = float(mean @ inverse @ mean)
    spread = float(np.einsum("gi,ij,gj->", total - mean, inverse, total - mean)) / (g * (g - 1))
    kept = max(1.0 - spread / size, 0.0) if size > 0 else 0.0
    noise[:, :q, q] *= kept
    noise[:, q, :q] *= kept
    return noise


def _learner_covariance(
    steps: FunctionSteps, noise: Float, rates: Float, weights: Float, ridge: float
) -> Float:
    """Covariance of the weights from what neither a reward nor sampling noise explains."""
    q = len(weights)
    grams = steps.steps.grams()
    freedom = max(int(steps.seen.sum()) - q, 1)
    squared = float(contrasted(grams, weights, rates).sum())
    excess = max(squared - float(contrasted(steps.noise, weights, rates).sum()), 0.0) / freedom
    seen = np.einsum("t,tij->ij", rates**2, grams[:, :q, :q])
    cleaned = without_noise(
        replace(steps.steps, noise=noise), rates, ridge=ridge, margin=FUNCTION_MARGIN
    ).matrix
    inverse = np.linalg.pinv(cleaned.T @ cleaned)
    # What the penalty hides is as uncertain as the prior it stands for; the rest is the data's.
    hidden = squared / freedom * ridge * inverse @ inverse
    return np.asarray(excess * inverse @ seen @ inverse + hidden)


def _disagreement(steps: FunctionSteps, rates: Float, method: Method) -> Float:
    """Covariance of the weights by leaving out each pair of neighbouring steps in turn.

    Of a long history more than two: each time all that is left is solved again.
    """
    ridge, noise = _ridge_and_noise(steps, rates, method)
    left_out = min(max(len(rates) // _TOGETHER, 2), _MOST_LEFT_OUT)
    place = np.arange(len(rates)) * left_out // len(rates)
    kept = (np.where(place == p, 0.0, rates) for p in range(place.max() + 1))
    return spread_of(np.stack([_cleaned(steps.steps, noise, some, ridge) for some in kept]))


def words(method: Method, basis: Basis, steps: FunctionSteps, *, known: bool, rated: bool) -> str:
    """What was done."""
    rates = "one shared rate" if method.rates is Rates.SHARED else "a schedule of rates"
    critic = ""
    if np.isfinite(steps.variance_left):
        critic = f", whose critic leaves {100 * steps.variance_left:.3g}% of their variance"
    return (
        f"{path_words(method, known=known)}, mirror descent in {basis.width} functions of state "
        f"and action ({basis.states} state features), feature advantages{critic}, "
        f"{'known rates' if rated else rates}"
    )
