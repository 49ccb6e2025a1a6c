"""The default inference: fit every rule, keep the one with evidence.

Learners differ in how they turn reward into the next policy, and a wrong assumption about it costs
more than anything else. So the assumption is inferred too: each rule is fitted to the same
trajectories, and the one whose evidence is highest gives the weights. The evidence is the
probability of every stage predicted from those before it, so a rule pays for what it fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from logel.inference.arrow import order_gain, restless, runs_forward, thinned
from logel.inference.known_path import fit_known_path
from logel.inference.method import Method
from logel.inference.rolled import SampledPosterior, rolled_out
from logel.inference.rounds import LARGEST_DENSE
from logel.inference.smooth import JointFit, Start, fit_path, fit_random_walk
from logel.inference.weight_posterior import WeightPosterior, weight_posterior
from logel.rules.rule import Rule
from logel.types import Float, Progress
from logel.workers import SERIAL, Executor

logger = logging.getLogger(__name__)
# Rounds in which circles come to rest: twelve to thirty in the hardest of seventeen.
_SETTLING_ROUNDS = 60
# Stages that tell how well coordinates of clones are known.
_SEEN_STAGES = 8
# Rounds of the random walk, of other accounts without a reward, and of the winner without one.
_WALK_ROUNDS, _NULL_ROUNDS, _WEIGHTLESS_ROUNDS = 12, 12, 8


@dataclass(frozen=True, eq=False)
class RuleChoice:
    """The rule with the highest evidence, and how the others did.

    Attributes:
        name: The chosen rule.
        walk: The fit of a random walk, which every rule has to beat.
        gains: Log evidence (with prior odds) of each rule over the random walk, best first.
        reward_gain: Log evidence of the chosen rule over the best account without a reward: a
            random walk of logits or of values, or the same learner with all weights zero.
        fits: The fit of every rule.
    """

    name: str
    fits: Mapping[str, JointFit]
    walk: JointFit
    gains: Mapping[str, float]
    reward_gain: float

    @property
    def fit(self) -> JointFit:
        """Of the chosen rule."""
        return self.fits[self.name]

    def posterior(self, name: str) -> WeightPosterior | SampledPosterior:
        """Of the weights under one of the rules, in the world's own features."""
        fit = self.fits[name]
        if fit.draws is not None:
            return SampledPosterior(fit.draws)
        return weight_posterior(fit.weights, fit.covariance, fit.variances.scale)


def choose_rule(
    rules: Mapping[str, Rule],
    method: Method,
    *,
    cloned: Float | None = None,
    nulls: Sequence[Rule] | None = None,
    report: Progress | None = None,
    run: Executor = SERIAL,
) -> RuleChoice:
    """Fit all rules and choose by evidence.

    Every rule starts from the random walk's path with no weights; those whose steps may be large
    also from what regressing on clones would answer. The better start goes on. (Where steps are
    small both lead to the same fit.)

    Args:
        rules: The candidates, by name.
        method: How long, and at which odds.
        cloned: Parameters of each stage's own clone, shape (m + 1, d).
        nulls: Further accounts without a reward that the chosen rule has to beat, beside the
            random walk and itself with all weights zero; None compares with the walk alone.
        report: Called with (what, done, total).
        run: What fits rules, several at a time if it can.
    """
    anyone = next(iter(rules.values()))
    walk = fit_random_walk(anyone, start=None if cloned is None else Start(cloned))
    fits: dict[str, JointFit] = {}

    def gain(name: str) -> float:
        return fits[name].evidence - walk.evidence - prior_cost(name, method)

    running = list(rules)
    effort = _Effort(report, sum(rounds for rounds, _ in method.heats) * len(running), nulls)
    effort.spend(_WALK_ROUNDS)
    for heat, (rounds, margin) in enumerate(method.heats):
        begun = [(rules[name], fits.get(name)) for name in running]
        for name, fit in zip(
            running, run.map(_continued, begun, (walk, cloned, rounds)), strict=True
        ):
            fits[name] = fit
            effort.spend(rounds)
        lead = max(gain(name) for name in fits)
        running = [n for n in running if not fits[n].converged and gain(n) >= lead - margin]
        effort.spend(0, left=sum(rounds for rounds, _ in method.heats[heat + 1 :]) * len(running))
        logger.info("rules, heat %d: %s", heat + 1, _standing(fits, gain))
    fits = {name: rolled_out(fit) for name, fit in fits.items()}
    order = sorted(fits, key=gain, reverse=True)
    hurried = set(fits)
    while order[0] in hurried and not fits[order[0]].settled:
        # Another may be ahead once this one has come to rest.
        hurried.discard(order[0])
        fits[order[0]] = _settled(fits[order[0]])
        order = sorted(fits, key=gain, reverse=True)
    best = fits[order[0]]
    without = [walk.evidence, *_without_reward(best, walk, nulls, effort, run)]
    return RuleChoice(
        name=order[0],
        fits=fits,
        walk=walk,
        gains={name: gain(name) for name in order},
        reward_gain=best.evidence - max(without) - prior_cost(order[0], method),
    )


def forward(rule: Rule, path: Float, parameters: Float) -> bool:
    """Whether a path (m + 1, D) of policies surely follows a rule the way it is read."""
    around = _around(rule, path, parameters)
    return around is not None and runs_forward(*around, np.diff(path, axis=0))


def unsteady(rule: Rule, path: Float, parameters: Float) -> tuple[str, ...]:
    """How the steps along a known path (m + 1, D) contradict a rule, in sentences."""
    around = _around(rule, path, parameters)
    if around is None:
        return ()
    left = path[1:] - rule.following(path[:-1], parameters)
    weights = parameters[: rule.n_features]
    return restless(*around, np.diff(path, axis=0), left, weights)


def _around(rule: Rule, path: Float, parameters: Float) -> tuple[Float, Float] | None:
    """Design and shape of the noise; None where states are no policies, or too many numbers."""
    if rule.keeps_values or rule.state_dim > LARGEST_DENSE:
        return None
    found = rule.refreshed(path).predict(path[:-1], parameters, states_known=True)
    return found.design[:, :, : rule.n_features], found.shape


def ordered(fit: JointFit, walk: JointFit, cloned: Float) -> float:
    """`order_gain` of clones (m + 1, d), whichever way they go or where a fitted rule leads.

    In coordinates that are known alike, by what some stages show of them.
    """
    middle, ahead = (
        cloned.mean(axis=0),
        (np.diff(cloned, axis=0) - left_of(fit, cloned)).sum(axis=0),
    )
    some = np.unique(np.linspace(0, len(cloned) - 1, _SEEN_STAGES).astype(int))
    rows = np.concatenate([thinned(cloned), ahead[None]])
    seen = np.concatenate([walk.model.observe(t, middle).times(rows) for t in some], axis=1)
    return max(order_gain(path) for path in (seen[:-1], seen[:-1] @ seen[-1:].T))


def left_of(fit: JointFit, cloned: Float) -> Float:
    """What a fitted rule leaves of the clones' steps, (m, d)."""
    model, states = fit.model, fit.states[:-1]
    predicted = model.as_policy(model.following(states, fit.parameters)) - model.as_policy(states)
    return np.asarray(np.diff(cloned, axis=0) - predicted)


def prior_cost(name: str, method: Method) -> float:
    """Log prior odds against a rule."""
    return 0.0 if name == "gradient" else method.complexity_cost


def _continued(
    common: tuple[JointFit, Float | None, int], begun: tuple[Rule, JointFit | None]
) -> JointFit:
    """A rule fitted for some more rounds, from where it stands or from the better start."""
    (walk, cloned, rounds), (rule, fit) = common, begun
    if fit is not None:
        rule = rule.refreshed(fit.model.as_policy(fit.states))
        return fit_path(rule, max_rounds=rounds, start=fit)
    rule = rule.refreshed(walk.states)
    fit = fit_path(rule, max_rounds=rounds, start=walk)
    if cloned is None or not rule.second_start:
        return fit
    states = rule.from_policy(cloned)
    regressed = fit_known_path(rule.refreshed(cloned), states, max_rounds=4)
    other = fit_path(rule, max_rounds=rounds, start=Start(states, regressed.parameters))
    return max(fit, other, key=lambda fit: fit.evidence)


def _settled(fit: JointFit) -> JointFit:
    """A fit that went round in circles, brought to rest.

    With few trials in a stage each of the variances depends much on where the others are, and
    moving all of them at once overshoots for ever. Ever shorter moves end between the extremes.
    """
    rule = fit.model.refreshed(fit.model.as_policy(fit.states))
    return fit_path(rule, max_rounds=_SETTLING_ROUNDS, start=fit, settling=True)


def _without_reward(
    best: JointFit, walk: JointFit, nulls: Sequence[Rule] | None, effort: _Effort, run: Executor
) -> Iterator[float]:
    """Evidence of accounts without a reward, beside the random walk's."""
    if nulls is None:
        return
    accounts = [*((null, _NULL_ROUNDS) for null in nulls), (best.model, _WEIGHTLESS_ROUNDS)]
    found = run.map(_account, [(*account, account[0] is best.model) for account in accounts], walk)
    for (_, rounds), evidence in zip(accounts, found, strict=True):
        effort.spend(rounds)
        yield evidence


def _account(walk: JointFit, account: tuple[Rule, int, bool]) -> float:
    """Evidence of a rule fitted for some rounds, with all weights zero or not."""
    rule, rounds, weightless = account
    return fit_path(rule, max_rounds=rounds, start=walk, weightless=weightless).evidence


def _standing(fits: Mapping[str, JointFit], gain: Callable[[str], float]) -> str:
    """The rules tried, best first, with their gains."""
    return ", ".join(f"{name} {gain(name):+.1f}" for name in sorted(fits, key=gain, reverse=True))


class _Effort:
    """Counts rounds of fitting, so that the time left can be told though models drop out."""

    def __init__(self, report: Progress | None, heats: int, nulls: Sequence[Rule] | None) -> None:
        self.report, self.done = report, 0
        self.last = 0 if nulls is None else _NULL_ROUNDS * len(nulls) + _WEIGHTLESS_ROUNDS
        self.total = _WALK_ROUNDS + heats + self.last

    def spend(self, rounds: int, *, left: int | None = None) -> None:
        """Tell that some rounds are done and, between heats, how many the others may take."""
        self.done += rounds
        if left is not None:
            self.total = self.done + left + self.last
        if self.report is not None:
            self.report("rules", self.done, self.total)
