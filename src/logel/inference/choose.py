"""The default inference: fit every rule, keep the one with evidence.

Learners differ in how they turn reward into the next policy, and a wrong assumption about it costs
more than anything else. So the assumption is inferred too: each rule is fitted to the same
trajectories, and the one whose evidence is highest gives the weights. The evidence is the
probability of every stage predicted from those before it, so a rule pays for what it fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from logel.data.cache import Arrays, Cache, UnknownPartError, digest
from logel.inference.arrow import order_gain, restless, runs_forward, thinned
from logel.inference.greedy import greedy_evidence
from logel.inference.known_path import fit_known_path
from logel.inference.method import Method
from logel.inference.rolled import SampledPosterior, rolled_out
from logel.inference.rounds import LARGEST_DENSE, Variances
from logel.inference.smooth import JointFit, Start, fit_path, fit_random_walk
from logel.inference.weight_posterior import WeightPosterior, weight_posterior
from logel.rules.rule import Rule
from logel.types import Float, Progress
from logel.workers import SERIAL, Executor, Work
from logel.worlds.table import TabularWorld

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
            random walk of logits or of values, the same learner with all weights zero, or one
            that acts greedily.
        fits: The fit of every rule.
        greedy: Whether that last account explains the actions better than the chosen rule.
    """

    name: str
    fits: Mapping[str, JointFit]
    walk: JointFit
    gains: Mapping[str, float]
    reward_gain: float
    greedy: bool = False

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

    def draws(self, spread: Float, n: int, rng: np.random.Generator) -> Float:
        """Posterior draws that allow for every rule in proportion to its probability.

        The scale of the weights means something else under each rule: all are brought to the best
        one's.
        """
        gains = np.array([self.gains[name] for name in self.gains])
        shares = np.exp(gains - gains.max())
        numbers = rng.multinomial(n, shares / shares.sum())
        values, vectors = np.linalg.eigh(spread)
        root = vectors * np.sqrt(np.clip(values, 0, None))
        size = float(np.linalg.norm(self.posterior(self.name).mean))
        parts = []
        for name, number in zip(self.gains, numbers, strict=True):
            if number == 0:
                continue
            posterior = self.posterior(name)
            draws = posterior.draw(number, rng)
            own = float(np.linalg.norm(posterior.mean))
            if name != self.name and own > 0:
                draws = draws * (size / own)
            parts.append(draws + rng.standard_normal(draws.shape) @ root.T)
        return rng.permutation(np.concatenate(parts))


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
    race = _Race(_Ground(dict(rules), walk, cloned, tuple(nulls or ())), method, nulls, report, run)
    race.run_heats()
    order = race.brought_to_rest()
    best, greedy = race.fits[order[0]], -np.inf
    if nulls is not None and isinstance(anyone.world, TabularWorld):
        greedy = greedy_evidence(anyone.world.counts)
    without = max(walk.evidence, *race.without_reward(order[0]), greedy)
    return RuleChoice(
        name=order[0],
        fits=race.fits,
        walk=walk,
        gains={name: race.gain(name) for name in order},
        reward_gain=best.evidence - without - prior_cost(order[0], method),
        greedy=greedy > best.evidence,
    )


class _Race:
    """Rules that are fitted side by side, the worst given up after every heat.

    Args:
        ground: What all fits begin with.
        method: How long, and at which odds.
        nulls: As in `choose_rule`.
        report: Called with (what, done, total).
        run: What fits them.
    """

    def __init__(
        self,
        ground: _Ground,
        method: Method,
        nulls: Sequence[Rule] | None,
        report: Progress | None,
        run: Executor,
    ) -> None:
        self.ground, self.method, self.nulls, self.run = ground, method, nulls, run
        self.fits: dict[str, JointFit] = {}
        # Where each fit's rule was, and accounts without a reward that were begun for it.
        self._refreshed: dict[str, Float] = {}
        self._accounts: dict[str, list[Callable[[], float]]] = {}
        rounds = sum(rounds for rounds, _ in method.heats) * len(ground.rules)
        self._effort = _Effort(report, rounds, nulls)
        self._effort.spend(_WALK_ROUNDS)

    def gain(self, name: str) -> float:
        """Log evidence over the random walk, with prior odds."""
        walk = self.ground.walk.evidence
        return self.fits[name].evidence - walk - prior_cost(name, self.method)

    def run_heats(self) -> None:
        """Fit all rules; those that fall too far behind are left where they are."""
        work, running = _kept_by(self.run.cache, self.ground), list(self.ground.rules)
        heats = self.method.heats
        for heat, (rounds, margin) in enumerate(heats):
            self._heat(work, running, rounds, last=heat == len(heats) - 1)
            lead = max(self.gain(name) for name in self.fits)
            running = [
                n for n in running if not self.fits[n].converged and self.gain(n) >= lead - margin
            ]
            self._effort.spend(
                0, left=sum(rounds for rounds, _ in heats[heat + 1 :]) * len(running)
            )
            logger.info("rules, heat %d: %s", heat + 1, _standing(self.fits, self.gain))
        self.fits = {name: rolled_out(fit) for name, fit in self.fits.items()}

    def _heat(self, work: Work, running: Sequence[str], rounds: int, *, last: bool) -> None:
        ground, fits = self.ground, self.fits
        for name in running:
            self._refresh(name)
        given = [(name, ground.bare(name, fits.get(name)), rounds) for name in running]
        found = [self.run.start(work, one, ground) for one in given]
        if fits and running and last and self.nulls is not None:
            # Whoever leads now will most likely have to beat these, while others still run.
            self._begin_accounts(max(running, key=self.gain))
        for name, fit in zip(running, found, strict=True):
            fits[name] = ground.whole(name, fit())
            self._effort.spend(rounds)

    def brought_to_rest(self) -> list[str]:
        """Names, best first; whoever goes round in circles ahead of all is brought to rest."""
        fits, hurried = self.fits, set(self.fits)
        order = sorted(fits, key=self.gain, reverse=True)
        while order[0] in hurried and not fits[order[0]].settled:
            # Another may be ahead once this one has come to rest.
            first = order[0]
            hurried.discard(first)
            self._accounts.pop(first, None)
            self._refresh(first)
            fits[first] = brought_to_rest(fits[first])
            order = sorted(fits, key=self.gain, reverse=True)
        return order

    def without_reward(self, name: str) -> list[float]:
        """Evidence of accounts without a reward that a rule has to beat, beside the walk."""
        if self.nulls is None:
            return []
        if name not in self._accounts:
            self._begin_accounts(name)
        found = []
        for one, rounds in zip(self._accounts[name], self.ground.rounds, strict=True):
            found.append(one())
            self._effort.spend(rounds)
        return found

    def _begin_accounts(self, name: str) -> None:
        begun = _without_reward(self.ground, name, self._refreshed[name], self.run)
        self._accounts[name] = begun

    def _refresh(self, name: str) -> None:
        fit = self.fits.get(name)
        states = self.ground.walk.states if fit is None else fit.model.as_policy(fit.states)
        self._refreshed[name] = states


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


class _Ground(NamedTuple):
    """What all fits begin with: sent once to where they are made."""

    rules: Mapping[str, Rule]
    walk: JointFit
    cloned: Float | None
    nulls: tuple[Rule, ...]

    @property
    def rounds(self) -> list[int]:
        """Of every account without a reward, see `_without_reward`."""
        return [_NULL_ROUNDS] * len(self.nulls) + [_WEIGHTLESS_ROUNDS]

    def bare(self, name: str, fit: JointFit | None) -> JointFit | None:
        """A fit to be sent: with a world of its own only if it has one."""
        same = fit is not None and fit.model is self.rules[name]
        return replace(fit, model=None) if same else fit  # type: ignore[type-var]

    def whole(self, name: str, fit: JointFit) -> JointFit:
        """A fit that was sent."""
        return replace(fit, model=self.rules[name]) if fit.model is None else fit


def _continued(ground: _Ground, begun: tuple[str, JointFit | None, int]) -> JointFit:
    """A rule fitted for some more rounds, from where it stands or from the better start."""
    name, before, rounds = begun
    if before is None:
        return cast(JointFit, ground.bare(name, _begun(ground, ground.rules[name], rounds)))
    fit = ground.whole(name, before)
    rule = ground.rules[name].refreshed(fit.model.as_policy(fit.states))
    return cast(JointFit, ground.bare(name, fit_path(rule, max_rounds=rounds, start=fit)))


def _kept_by(cache: Cache | None, ground: _Ground) -> Work:
    """What continues fits, and finds again those that were continued so before."""
    if cache is None:
        return _continued
    try:
        return partial(_kept, cache, digest(ground))
    except UnknownPartError as error:
        logger.info("not kept: %s", error)
        return _continued


_NUMBERS = ("evidence", "log_likelihood", "rounds", "converged")
_ARRAYS = ("states", "parameters", "covariance", "trace")


def _kept(
    cache: Cache, known: str, ground: _Ground, begun: tuple[str, JointFit | None, int]
) -> JointFit:
    """What `_continued` gives, or gave before."""
    name, before, _ = begun
    made: list[JointFit] = []

    def told() -> Arrays:
        made.append(_continued(ground, begun))
        arrays = {name: np.array(getattr(made[0], name)) for name in _ARRAYS}
        numbers = [float(getattr(made[0], name)) for name in _NUMBERS]
        variances = [float(value) for value in vars(made[0].variances).values()]
        return {**arrays, "numbers": np.array([*numbers, *variances])}

    rule, n = ground.rules[name], len(_NUMBERS) + len(fields(Variances))
    shape = (rule.n_stages, rule.state_dim)

    def sound(kept: Arrays) -> bool:
        whole = kept.keys() == {*_ARRAYS, "numbers"} and kept["numbers"].shape == (n,)
        return whole and kept["states"].shape == shape

    kept = cache.kept(("rule", known, begun), told, sound)
    if made:
        return made[0]
    fit = None if before is None else ground.whole(name, before)
    policies = ground.walk.states if fit is None else fit.model.as_policy(fit.states)
    evidence, likelihood, rounds, converged, *variances = kept["numbers"].tolist()
    states, parameters, covariance, trace = (kept[name] for name in _ARRAYS)
    found = JointFit(
        *(rule.refreshed(policies), states, parameters, covariance, Variances(*variances)),
        *(evidence, likelihood, int(rounds), bool(converged), tuple(trace.tolist())),
    )
    return cast(JointFit, ground.bare(name, found))


def _begun(ground: _Ground, rule: Rule, rounds: int) -> JointFit:
    """The first rounds of a rule."""
    walk, cloned = ground.walk, ground.cloned
    rule = rule.refreshed(walk.states)
    fit = fit_path(rule, max_rounds=rounds, start=walk)
    if cloned is None or not rule.second_start:
        return fit
    states = rule.from_policy(cloned)
    regressed = fit_known_path(rule.refreshed(cloned), states, max_rounds=4)
    other = fit_path(rule, max_rounds=rounds, start=Start(states, regressed.parameters))
    return max(fit, other, key=lambda fit: fit.evidence)


def brought_to_rest(fit: JointFit) -> JointFit:
    """A fit that went round in circles, brought to rest.

    With few trials in a stage each of the variances depends much on where the others are, and
    moving all of them at once overshoots for ever. Ever shorter moves end between the extremes.
    """
    rule = fit.model.refreshed(fit.model.as_policy(fit.states))
    return fit_path(rule, max_rounds=_SETTLING_ROUNDS, start=fit, settling=True)


def _without_reward(
    ground: _Ground, name: str, policies: Float, run: Executor
) -> list[Callable[[], float]]:
    """Begins accounts without a reward, beside the random walk: others, and a rule that has none.

    Args:
        ground: What all fits begin with.
        name: Of the rule.
        policies: Where it was refreshed.
        run: What fits them.
    """
    items = [*((k, None) for k in range(len(ground.nulls))), (name, policies)]
    # The longest first.
    begun = [run.start(_account, item, ground) for item in reversed(items)]
    return begun[::-1]


def _account(ground: _Ground, item: tuple[str | int, Float | None]) -> float:
    """Evidence of one of the nulls, by number, or of a rule with all weights zero, by name."""
    which, policies = item
    if isinstance(which, int):
        rule, rounds = ground.nulls[which], _NULL_ROUNDS
        return fit_path(rule, max_rounds=rounds, start=ground.walk).evidence
    assert policies is not None
    rule, rounds = ground.rules[which].refreshed(policies), _WEIGHTLESS_ROUNDS
    return fit_path(rule, max_rounds=rounds, start=ground.walk, weightless=True).evidence


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
