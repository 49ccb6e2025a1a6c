"""One answer for several learners, and what each of them has to do with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
from scipy.special import logsumexp

from logel.inference.cohort import Cohort
from logel.inference.direction import Stack, unit
from logel.inference.estimate import RewardEstimate
from logel.inference.export import posterior_draws
from logel.inference.gauge import Fit
from logel.inference.null import CONVINCING
from logel.inference.shares import LearnerShare, share_notes
from logel.inference.spread import spread_of
from logel.inference.status import Status
from logel.inference.temper import temper
from logel.types import Float

# Draws of an answer, and of the answers without each learner.
_DRAWS, _DRAWS_WITHOUT = 1000, 400
# Share of the draws that must still count if a learner is taken out by weighing them; else the
# others' answer is drawn anew.
_STILL_ALIVE = 0.2

# Share of a shift of the weights by which evidence is differentiated: less than their own spread.
_PART = 0.1

ByLearner = Callable[[Stack], Float]
# Draws the answer of some learners: directions, and how likely each learner is under each draw.
Redraw = Callable[[Stack], tuple[Float, ByLearner]]


def shared_estimate(cohort: Cohort) -> RewardEstimate:
    """Weights that all learners share."""
    rng = np.random.default_rng(cohort.seed)
    stack = cohort.stack(rng)
    directions, log_evidence = _draw(stack, _DRAWS, rng)
    moved = world_shifts(cohort, stack, directions, lambda s: s.by_learner(directions), rng)

    def redraw(others: Stack) -> tuple[Float, ByLearner]:
        again = _draw(others, _DRAWS_WITHOUT, rng)[0]
        return again, lambda one: one.by_learner(again)

    by_learner = stack.by_learner(directions)
    shares = learner_shares(cohort, stack, directions, by_learner, redraw, rng)
    sharing = log_evidence
    notes = []
    if len(cohort) > 1 and sharing < -CONVINCING:
        notes.append(
            f"weights of their own explain the learners better than shared ones do "
            f"({sharing:+.1f} nats): use infer_group"
        )
    words = f"shared weights, {sharing:+.1f} nats over weights of their own"
    draws = unit(unit(directions @ cohort.basis.T) + moved)
    return together(cohort, stack, draws, log_evidence, shares, words, notes)


def _draw(stack: Stack, n: int, rng: np.random.Generator) -> tuple[Float, float]:
    """Directions (n, k) that all share, and the log evidence."""
    size = stack.linear.shape[2]
    found = temper(lambda points: stack.by_learner(unit(points)).sum(axis=1), size, n, rng)
    return unit(found.draws), found.log_evidence


def world_shifts(
    cohort: Cohort,
    stack: Stack,
    directions: Float,
    by_learner: ByLearner,
    rng: np.random.Generator,
) -> Float:
    """How far draws (p, q) may be off together because the common world is not known, (p, q).

    A jackknife: to first order, the mean of the draws moves by their covariance with how much
    their evidence changes when everyone's weights are those without a group of the episodes that
    the world is pooled from.
    """
    weights = unit(directions @ cohort.basis.T)
    moves = cohort.world_moves()
    if len(moves) == 0:
        return np.zeros_like(weights)
    before = by_learner(stack).sum(axis=1)
    replicates = []
    for shifts in moves:
        change = (by_learner(stack.shifted(_PART * shifts)).sum(axis=1) - before) / _PART
        replicates.append((change - change.mean()) @ weights / len(weights))
    values, vectors = np.linalg.eigh(spread_of(np.stack(replicates)))
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    return np.asarray(rng.standard_normal(weights.shape) @ root.T)


def learner_shares(
    cohort: Cohort,
    stack: Stack,
    draws: Float,
    by_learner: Float,
    redraw: Redraw,
    rng: np.random.Generator,
) -> tuple[LearnerShare, ...]:
    """Every learner's part in an answer.

    Args:
        cohort: The learners.
        stack: Their evidence.
        draws: Directions of the answer, shape (p, k).
        by_learner: Log evidence of every learner at the draws, (p, n).
        redraw: Draws the answer of some of them.
        rng: Of resampling.
    """
    shares = evidence_shares(by_learner)
    signs = _signs(unit(draws @ cohort.basis.T))
    likely = logsumexp(stack.by_account(draws), axis=0)
    found = []
    for i, single in enumerate(cohort.singles):
        others = [j for j in range(len(cohort)) if j != i]
        agreement, left = 0.0, np.zeros((1, len(cohort.basis)))
        if others:
            agreement, drawn = _without(stack, i, draws, by_learner[:, i], redraw, rng)
            left = unit(drawn @ cohort.basis.T)
        lost = bool(((signs != 0) & (_signs(left) != signs)).any())
        low, high = _own_interval(single.estimate).T
        found.append(
            LearnerShare(
                name=single.name,
                n_steps=len(single.estimate.learning_rates),
                rule=stack.rules[i][int(likely[i, : len(stack.rules[i])].argmax())],
                gain=float(single.found.gain),
                share=float(shares[i]),
                agreement=agreement,
                decisive=bool(others) and float(shares[i]) > 0.5 and lost,
                weights=unit(single.estimate.weights),
                low=low,
                high=high,
                without=unit(left.mean(axis=0)),
            )
        )
    return tuple(found)


def _own_interval(estimate: RewardEstimate) -> Float:
    """95% intervals of a learner's weights once they have unit norm, (q, 2)."""
    if estimate.scale == "unit norm":
        return estimate.interval(0.95)
    draws = unit(posterior_draws(estimate, _DRAWS, 0))
    return np.quantile(draws, [0.025, 0.975], axis=0).T


def _without(
    stack: Stack, i: int, draws: Float, own: Float, redraw: Redraw, rng: np.random.Generator
) -> tuple[float, Float]:
    """How well the others predict a learner, in nats, and draws of their answer."""
    weights = np.exp(-own - logsumexp(-own))
    if 1 / (weights**2).sum() > _STILL_ALIVE * len(draws):
        agreement = np.log(len(draws)) - logsumexp(-own)
        return float(agreement), draws[rng.choice(len(draws), len(draws), p=weights)]
    left, at = redraw(stack.take([j for j in range(len(stack)) if j != i]))
    logs = at(stack.take([i]))[:, 0]
    return float(logsumexp(logs) - np.log(len(logs))), left


def evidence_shares(by_learner: Float) -> Float:
    """Of the evidence, (n,), from its logs at draws (p, n).

    The covariance of one learner's log evidence with everyone's: for Gaussian evidence the share of
    its information in all, averaged over directions.
    """
    total = by_learner.sum(axis=1)
    shares = np.maximum((by_learner - by_learner.mean(axis=0)).T @ (total - total.mean()), 0.0)
    n = len(shares)
    return np.asarray(shares / shares.sum() if shares.sum() > 0 else np.full(n, 1 / n))


def _signs(draws: Float) -> Float:
    """Signs that 95% intervals settle, zero where they do not, (q,)."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return np.where(low > 0, 1, 0) - np.where(high < 0, 1, 0)


def reward_gain(stack: Stack, log_evidence: float) -> float:
    """Log odds that at least one learner is after a reward, over that none is, in nats.

    Beforehand every learner is as likely to learn as not. One alone has the odds it always had.
    """
    n, log_chances = len(stack), stack.log_chances
    if np.isneginf(log_chances).any():
        return float("inf")
    gain = log_evidence - float(log_chances.sum())
    if gain <= 0:
        return float("-inf")
    return float(gain + np.log1p(-np.exp(-gain)) - n * np.log(2) - np.log1p(-(0.5**n)))


def together(
    cohort: Cohort,
    stack: Stack,
    draws: Float,
    log_evidence: float,
    shares: tuple[LearnerShare, ...],
    words: str,
    notes: Sequence[str],
) -> RewardEstimate:
    """The estimate that draws (p, q) of unit weights make."""
    singles, n = cohort.singles, len(cohort)
    draws = draws - (draws @ cohort.gauge.directions.T) @ cohort.gauge.directions
    asked = singles[0].asked
    covariance = np.cov(draws.T).reshape(len(cohort.basis), -1)
    counted = Counter(one.rule for one in shares).most_common()
    told = ", ".join(f"{number} '{rule}'" for rule, number in counted)
    world = "a world pooled over all" if cohort.pools else "a world of each one's own"
    intervals = cohort.intervals
    sizes = np.sort(np.linalg.eigvalsh(covariance))[-max(cohort.basis.shape[1] - 1, 1) :]
    return RewardEstimate(
        weights=unit(draws.mean(axis=0)),
        feature_names=asked.feature_names,
        learning_rates=np.concatenate([s.estimate.learning_rates for s in singles]),
        covariance=covariance if intervals else None,
        degrees_of_freedom=0,
        scale="unit norm",
        status=_status(cohort, stack, log_evidence, shares),
        notes=(*notes, *share_notes(shares), *_notes(cohort)),
        gauge=cohort.gauge,
        fit=_fit([single.estimate.fit for single in singles]),
        method=f"method {asked.name}: {n} learners in {world}, {words}; rules {told}",
        config={
            **asdict(asked.method),
            "name": asked.name,
            "gamma": asked.gamma,
            "seed": asked.seed,
            "learners": n,
            "pool_world": cohort.pools,
        },
        objective_trace=np.zeros(0),
        rank=cohort.basis.shape[1],
        condition=float(np.sqrt(sizes[-1] / max(float(sizes[0]), 1e-300))),
        draws=draws if intervals else None,
        learners=shares,
    )


def _status(
    cohort: Cohort, stack: Stack, log_evidence: float, shares: Sequence[LearnerShare]
) -> Status:
    """Trust comes first, then how most of the evidence was come by, then what cannot be told."""
    if reward_gain(stack, log_evidence) < CONVINCING:
        return Status.UNEXPLAINED
    bad_ends = (Status.NOT_CONVERGED, Status.RATES_AT_BOUND, Status.REVERSIBLE, Status.INCOMPLETE)
    for failed in bad_ends:
        bad = [failed in (s.found.solved, s.estimate.status) for s in cohort.singles]
        if sum(one.share for one, is_bad in zip(shares, bad, strict=True) if is_bad) > 0.5:
            return failed
    return Status.RANK_DEFICIENT if cohort.gauge.n else Status.OK


def _notes(cohort: Cohort) -> list[str]:
    """What has to be known of single learners' fits."""
    singles, notes = cohort.singles, []
    if cohort.silent:
        told = ", ".join(cohort.silent)
        notes.append(f"no weight can be told from the histories of {told}: they count for nothing")
    unsettled = [s.name for s in singles if s.found.solved is Status.NOT_CONVERGED]
    if unsettled:
        notes.append(f"the fits of {', '.join(unsettled)} stopped before convergence")
    broken = [s.name for s in singles if not s.asked.complete]
    if broken:
        notes.append(f"the recording of {', '.join(broken)} was interrupted")
    if any(s.estimate.scale != "unit norm" for s in singles):
        notes.append("known learning rates were not used to compare sizes: only directions count")
    notes.extend(f"{s.name}: {note}" for s in singles for note in s.asked.contradicted)
    if not cohort.intervals:
        notes.append("no intervals were asked for")
    return notes


def _fit(fits: Sequence[Fit]) -> Fit:
    """Everyone's steps in a row, each predicted with its own weights."""

    def joined(name: str) -> Float | None:
        parts = [getattr(fit, name) for fit in fits]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    rules = {fit.rule for fit in fits}
    return Fit(
        explained=np.concatenate([fit.explained for fit in fits]),
        cosines=np.concatenate([fit.cosines for fit in fits]),
        chance=float(np.mean([fit.chance for fit in fits])),
        moved=joined("moved"),
        predicted=joined("predicted"),
        noise=joined("noise"),
        rule=rules.pop() if len(rules) == 1 else "",
    )
