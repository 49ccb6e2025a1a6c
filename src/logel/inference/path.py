"""Path, weights and rule together, in a world pooled over all stages.

Hidden paths are smoothed under every rule and the rule with the highest evidence is taken; known
ones are regressed on. Which world a policy family acts in, and which rules that world offers, is
decided here and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp

from logel.data.stage import Stage
from logel.errors import IdentificationError, OptionError
from logel.inference.arrow import disorder, order_gain, repeated_share
from logel.inference.choose import (
    RuleChoice,
    choose_rule,
    forward,
    left_of,
    ordered,
    prior_cost,
    unsteady,
)
from logel.inference.direction import Account, Evidence, student_accounts
from logel.inference.found import Found
from logel.inference.gauge import FAR_LEVEL, Fit, Gauge, check_movement, explain
from logel.inference.greedy import GREEDY
from logel.inference.known_path import fit_known_path
from logel.inference.method import Method
from logel.inference.more_data import Planning
from logel.inference.null import CONVINCING, no_reward
from logel.inference.rolled import reweighed
from logel.inference.smooth import JointFit, expected_covariance, fit_path
from logel.inference.spread import Spread, spread_of, student_draws, unit_rows
from logel.inference.status import Status
from logel.inference.watched import Look, Watched
from logel.policies.base import Policy
from logel.policies.cloned_path import known_or_cloned
from logel.policies.cloning import CloneConfig
from logel.policies.softmax import TabularSoftmax
from logel.rules.catalogue import RULES
from logel.rules.rule import Rule
from logel.rules.values import DriftingValues
from logel.types import Float
from logel.worlds.base import World
from logel.worlds.choose import pooler
from logel.worlds.legal import one_width
from logel.worlds.linear import LinearWorld
from logel.worlds.table import TabularWorld

logger = logging.getLogger(__name__)
# Parameters of a table: its states meet in sparse products, whose work grows with their number.
# This many take minutes of one core.
LARGEST_TABLE = 3000
# Other families, and tables with more choice in some states than in others, go through matrices.
# Work of a hidden path of m steps of D parameters under all rules, in units of m D^3: this much
# takes about a minute of one core.
AFFORDABLE = 1.5e8
# Known paths are regressed on, which is D x D algebra a few dozen times.
LARGEST_KNOWN = 600
# Observed times beyond which revisiting all of them in every round takes minutes.
LARGEST_ROWS = 100_000


def path_applies(watched: Watched) -> bool:
    """Whether the whole path can be fitted at once: a convex family of moderate size."""
    policy, known = watched.policy, watched.look.parameters is not None
    d, n_steps = policy.n_parameters, watched.history.n_steps
    if isinstance(policy, TabularSoftmax) and one_width(policy.legal):
        return d <= LARGEST_TABLE
    affordable = d <= LARGEST_KNOWN if known else n_steps * float(d) ** 3 <= AFFORDABLE
    if not (policy.convex and affordable and policy.worlds):
        return False
    if policy.tabular:
        return True
    # A known path is gone through once, a hidden one in every round.
    return watched.look.n_rows <= (10 * LARGEST_ROWS if known else LARGEST_ROWS)


def find_along_path(watched: Watched, look: Look, method: Method) -> tuple[Found, Gauge]:
    """Weights, rates, rule and their uncertainty, and what cannot be told under that rule."""
    if not path_applies(watched):
        raise OptionError(
            f"method 'joint' needs a table of up to {LARGEST_TABLE} parameters with as many legal "
            "actions wherever there is a choice, or a policy family that is linear in few "
            f"({LARGEST_KNOWN} if they are known; hidden, their cube times the steps may reach "
            f"{AFFORDABLE:.2g}) and up to {LARGEST_ROWS} observed times: use 'two-step' for others"
        )
    names, offset, basis = grounds(watched, method)
    watched = replace(watched, offset=offset)
    worlds = Worlds(watched, basis, look)
    rng = np.random.default_rng(watched.seed)
    known = look.parameters
    if known is None:
        found, draw = _smoothed(worlds, names, method)
    else:
        found, draw = _regressed(worlds, names, method, known)
    # Another of the rules may have heard what the chosen one cannot.
    gauge = look.gauge(bootstrap=_life_goes_on(watched.policy, [found.rule]))
    found = replace(
        found,
        weights=gauge.project(found.weights),
        rank=len(gauge.feature_names) - gauge.n,
        keeps_scale=watched.history.learning_rates is not None and RULES[found.rule].keeps_scale,
    )
    if found.spread is not None:
        draws = _or_no_reward(found.gain, basis, draw(method.n_draws, rng), rng)
        draws = draws - (draws @ gauge.directions.T) @ gauge.directions
        # A table of few visits leaves much open; its intervals say so, without a reason for each.
        said = () if watched.policy.tabular or found.gain < CONVINCING else left_open(gauge, draws)
        found = replace(
            found, spread=replace(found.spread, draws=draws), notes=(*found.notes, *said)
        )
    return found, gauge


def grounds(watched: Watched, method: Method) -> tuple[list[str], Float | None, Float]:
    """Rules to try, constants to take off the features, and the basis of what can be told."""
    common, policy = watched.common, watched.policy
    moments = common.moments
    names = _among((TabularWorld if policy.tabular else LinearWorld).offers, method)
    # Q-learners are drawn to what they have not tried by rewards below its first value, zero: the
    # level of the features is theirs to see, unless it is so far off that it cannot be meant.
    beyond = FAR_LEVEL if "q-learning" in names else 0.0
    gauge = common.gauge(bootstrap=_life_goes_on(policy, names))
    return names, moments.offset(beyond=beyond), feature_basis(gauge, moments.ranges())


def feature_basis(gauge: Gauge, ranges: Float) -> Float:
    """Matrix (q, k) that takes features to the identified ones, measured in units of their ranges.

    The weights' prior is the same in all directions of these, whatever units the features came in.
    """
    basis = np.eye(len(ranges))
    if gauge.n:
        basis = np.linalg.svd(gauge.directions * ranges, full_matrices=True)[2][gauge.n :].T
    return np.asarray(basis / ranges[:, None])


def left_open(gauge: Gauge, draws: Float) -> tuple[str, ...]:
    """A note on features that may as well be paid for as pay, and much, for all the steps say.

    Such is effort where a gain starts at zero: it has no gradient there, as it is least.
    """
    low, high = np.quantile(unit_rows(draws), [0.025, 0.975], axis=0)
    most = np.sqrt(np.clip(1 - (gauge.directions**2).sum(axis=0), 0, None))
    # Half of all that a weight can be, either way.
    wide = (most > 1e-6) & (np.minimum(-low, high) > most / 2)
    if not wide.any() or wide.all():
        return ()
    named = ", ".join(
        f"'{gauge.feature_names[j]}' ({low[j]:.2f} to {high[j]:.2f})" for j in np.flatnonzero(wide)
    )
    return (
        f"left open, whether it is paid for or pays: {named}. Where the policies were, that makes "
        "hardly a difference to how they move",
    )


def _life_goes_on(policy: Policy, names: Iterable[str]) -> bool | None:
    """Whether the rules look beyond the end of episodes; None if some do and others do not.

    In tables only gradients are those of the observed horizon; elsewhere all rules climb them.
    """
    looks = {policy.tabular and name != "gradient" for name in names}
    return looks.pop() if len(looks) == 1 else None


def _among(offered: Iterable[str], method: Method) -> list[str]:
    """The rules to try of those that the world offers."""
    names = list(offered)
    if unknown := [name for name in method.models or () if name not in RULES]:
        raise OptionError(f"unknown rules {unknown}: choose from {', '.join(RULES)}")
    chosen = names if method.models is None else [n for n in method.models if n in names]
    if not chosen:
        raise OptionError(
            f"none of the rules {method.models} fits this policy family: choose from "
            f"{', '.join(names)}"
        )
    return chosen


def _or_no_reward(gain: float, basis: Float, draws: Float, rng: np.random.Generator) -> Float:
    """Draws that allow for the account without any reward, in proportion to its probability.

    If nothing was learnt, the data say nothing about the weights, and any direction is as likely as
    any other: what is called significant has to survive that.
    """
    nothing = rng.random(len(draws)) < no_reward(gain)
    size = np.linalg.norm(draws, axis=1).mean()
    anything = rng.standard_normal((len(draws), basis.shape[1])) @ basis.T
    anything *= size / max(float(np.linalg.norm(anything, axis=1).mean()), 1e-300)
    return np.where(nothing[:, None], anything, draws)


class Worlds:
    """Builds the world a policy family acts in, with all episodes or without some of them."""

    def __init__(self, watched: Watched, basis: Float, look: Look) -> None:
        self.watched, self.basis, self.look, self.fewest = watched, basis, look, look.fewest
        history, policy, company = watched.history, watched.policy, watched.company
        if company is None or not company.pools:
            self._company = None
            self._pooled = pooler(history, policy, gamma=watched.gamma, known=watched.world)
            self.world = self._pool(watched.stages())
            return
        self._company, self.fewest = company, company.fewest
        own = company.pool(watched.stages(), basis)
        self.world = company.world(own, basis, watched.offset, None, 0)

    @property
    def elsewhere(self) -> Worlds:
        """The same for another process."""
        there = copy(self)
        there.watched = self.watched.elsewhere
        return there

    def _pool(self, stages: Iterable[Stage]) -> World:
        return self._pooled(stages).with_features(self.basis)

    def rule(self, name: str, world: World) -> Rule:
        """One kind of learner in a world."""
        return RULES[name](world, self.watched.history.learning_rates)

    def outward(self, rule: Rule, policies: Float, parameters: Float) -> Float:
        """Takes the weights of a fitted rule to the given features and true rates, shape (q, k)."""
        if self.watched.history.learning_rates is None:
            return self.basis
        return self.basis * rule.unit(policies, parameters)

    def nulls(self) -> list[Rule]:
        """Accounts without a reward, beside the random walk of the policy's parameters."""
        return [DriftingValues(self.world)] if "soft-value" in self.world.offers else []

    def n_groups(self) -> int:
        """Groups of episodes that can be left out in turn; none if there are too few."""
        return self.world.n_groups(self.fewest)

    def without(self, group: int, n_groups: int, policies: Float) -> World:
        """The world without a group of episodes; the actions to be explained are all there."""

        def pool() -> World:
            watched, company = self.watched, self._company
            if company is None:
                return self._pool(watched.without(group, n_groups))
            return company.world(self.world, self.basis, watched.offset, group, n_groups)

        return self.world.leaving_out(group, pool, policies)


def _smoothed(
    worlds: Worlds, names: list[str], method: Method
) -> tuple[Found, Callable[[int, np.random.Generator], Float]]:
    """Path, weights and rule together; and how to draw weights."""
    watched, basis = worlds.watched, worlds.basis
    path, _ = known_or_cloned(
        watched.history,
        watched.policy,
        CloneConfig(holdout=0.0),
        use_parameters=False,
        rng=np.random.default_rng(watched.seed),
        progress=watched.report,
        run=watched.run,
    )
    if (path == path[0]).all():
        raise IdentificationError(
            "every stage shows the same actions: the policy does not move, there is nothing to "
            "explain"
        )
    rules = {name: worlds.rule(name, worlds.world) for name in names}
    nulls = worlds.nulls() if watched.intervals else None
    choice = choose_rule(
        rules, method, cloned=path, nulls=nulls, report=watched.report, run=watched.run
    )
    fit, without = choice.fit, np.zeros((0, basis.shape[1]))
    expected = []
    if watched.intervals:
        if fit.draws is None:
            more = [{"episodes": 2.0}, {"more_steps": len(fit.states) - 1}]
            expected = [watched.run.start(_expected, one, fit) for one in more]
        shifted = partial(_smoothed_in, choice.name, fit)
        without = _without_groups(worlds, fit.model.as_policy(fit.states), shifted)
    noise = spread_of(without) if len(without) else np.zeros((basis.shape[1],) * 2)
    back = worlds.outward(fit.model, fit.model.as_policy(fit.states), fit.parameters)
    order = ordered(choice.fit, choice.walk, path)
    found = Found(
        weights=back @ choice.posterior(choice.name).mean,
        rates=fit.model.rates_of(fit.parameters, watched.history.n_steps),
        fit=_explained(choice),
        gain=min(choice.reward_gain, order),
        notes=(*disorder(order), *((GREEDY,) if choice.greedy else ())),
        words=_words("path cloned jointly with the weights", choice.name, choice.gains),
        rule=choice.name,
        gains=choice.gains,
        solved=Status.OK if fit.settled else Status.NOT_CONVERGED,
        trace=np.array(fit.trace),
        rank=0,
        condition=float(np.linalg.cond(fit.covariance)) ** 0.5,
        keeps_scale=False,
        spread=Spread(planning=_plan(fit, expected, noise, back)) if watched.intervals else None,
        evidence=_evidence(choice, without, basis) if watched.company is not None else None,
        # Clones of few episodes look decided by chance, the smoothed path hardly.
        unlearns=worlds.look.unlearns(watched.policy, path)
        and worlds.look.unlearns(watched.policy, choice.walk.states, kept=1.0)
        and not forward(fit.model, choice.walk.states, fit.parameters),
        repeats=repeated_share(np.diff(path, axis=0), left_of(fit, path)),
    )
    return found, lambda n, rng: choice.draws(noise, n, rng) @ back.T


def _smoothed_in(name: str, fit: JointFit, worlds: Worlds, world: World) -> Float:
    """Weights (q,) that a fit goes to in another world."""
    rule = worlds.rule(name, world)
    if fit.draws is not None:
        return reweighed(fit, rule)
    return fit_path(rule, max_rounds=1, start=fit, weights_only=True).weights


def _regressed_in(name: str, states: Float, worlds: Worlds, world: World) -> Float:
    """Weights (q,) that regressing on a known path gives in another world."""
    fit = fit_known_path(worlds.rule(name, world), states, max_rounds=6)
    return fit.parameters[: worlds.basis.shape[1]]


def _evidence(choice: RuleChoice, without: Float, basis: Float) -> Evidence:
    """What the history says under every rule, the prior of the weights taken out."""
    gains = np.array(list(choice.gains.values()))
    shares = np.exp(gains - logsumexp(gains))
    accounts = []
    for name, share in zip(choice.gains, shares, strict=True):
        fit = choice.fits[name]
        precision = np.linalg.inv((fit.covariance + fit.covariance.T) / 2)
        values, axes = np.linalg.eigh(precision)
        seen = np.maximum(values - 1 / fit.variances.scale, 0.0)
        accounts.append(Account(name, share, precision @ fit.weights, (axes * seen) @ axes.T))
    return Evidence(
        accounts=tuple(accounts),
        chance=no_reward(choice.reward_gain),
        moved=without - choice.fit.weights if len(without) else without,
        basis=basis,
    )


def _explained(choice: RuleChoice) -> Fit:
    """How well the chosen rule predicts the movement of the policies as the data alone show them.

    The movement is that of the random walk's path, which knows nothing of the model; both are
    compared as logits relative to the last action.
    """
    model = choice.fit.model
    moved = np.diff(choice.walk.states, axis=0)
    states = choice.fit.states[:-1]
    following = model.following(states, choice.fit.parameters)
    predicted = model.as_policy(following) - model.as_policy(states)
    return explain(
        moved, predicted[:, :, None], np.ones(1), np.ones(len(moved)), fitted=model.n_features
    )


def _words(path: str, name: str, gains: Iterable[str]) -> str:
    runners = [other for other in gains if other != name]
    second = f", runner-up '{runners[0]}'" if runners else ""
    return f"{path}, rule '{name}' by evidence{second}"


def _expected(fit: JointFit, more: dict[str, Any]) -> Float:
    return expected_covariance(fit, **more)


def _plan(
    fit: JointFit, expected: Sequence[Callable[[], Float]], spread: Float, basis: Float
) -> Planning | None:
    """What more data would do to the weights' covariance, where that is what limits them."""
    if not expected:
        return None
    matrices = [fit.covariance + spread, *(one() + spread / 2 for one in expected)]
    return Planning(*(basis @ matrix @ basis.T for matrix in matrices))


def _regressed(
    worlds: Worlds, names: list[str], method: Method, states: Float
) -> tuple[Found, Callable[[int, np.random.Generator], Float]]:
    """Weights and rule, the path being known; and how to draw weights."""
    basis, watched = worlds.basis, worlds.watched
    check_movement(np.diff(states, axis=0))
    world = worlds.world.at(states[:-1])
    # A policy shows values only up to a potential, so value learners need the smoother.
    usable = [name for name in names if not RULES[name].keeps_values] or ["gradient"]
    rules = {name: worlds.rule(name, world) for name in usable}
    fits = {name: fit_known_path(rule, states) for name, rule in rules.items()}
    without = max(fit_known_path(rule, states, weightless=True).evidence for rule in rules.values())

    def gain(name: str) -> float:
        return fits[name].evidence - without - prior_cost(name, method)

    order = sorted(fits, key=gain, reverse=True)
    logger.info("rules: %s", ", ".join(f"{n} {gain(n):+.1f}" for n in order))
    best, fit, rule = order[0], fits[order[0]], rules[order[0]]
    q = basis.shape[1]
    replicates = np.zeros((0, q))
    if watched.intervals:
        replicates = _without_groups(worlds, states, partial(_regressed_in, best, states))
    extra = spread_of(replicates) if len(replicates) else np.zeros((q, q))
    freedom = max(fit.degrees_of_freedom, 3)
    following = rule.following(states[:-1], fit.parameters)
    moved = (following - states[:-1])[:, :, None]
    back = worlds.outward(rule, states, fit.parameters)
    # The learner's own noise is in its steps: only the world is seen better in more episodes.
    sampling, learner = (back @ c @ back.T for c in (extra, fit.covariance))
    gains, in_order = {name: gain(name) for name in order}, order_gain(states)
    found = Found(
        weights=back @ fit.parameters[:q],
        rates=rule.rates_of(fit.parameters, len(states) - 1),
        fit=explain(np.diff(states, axis=0), moved, np.ones(1), np.ones(len(moved)), fitted=q),
        gain=min(gain(best), in_order),
        notes=disorder(in_order),
        words=_words("known parameters", best, gains),
        rule=best,
        gains=gains,
        solved=Status.OK,
        trace=np.array([fit.evidence]),
        rank=0,
        condition=float(np.linalg.cond(fit.covariance)) ** 0.5,
        keeps_scale=False,
        spread=Spread(planning=Planning.of(sampling, learner)) if watched.intervals else None,
        evidence=Evidence(
            tuple(student_accounts(best, fit.parameters[:q], fit.covariance, freedom)),
            no_reward(gain(best)),
            replicates - fit.parameters[:q] if len(replicates) else replicates,
            basis,
        ),
        unlearns=worlds.look.unlearns(watched.policy, rule.as_policy(states))
        and not forward(rule, states, fit.parameters),
        repeats=repeated_share(np.diff(states, axis=0), states[1:] - following),
        unsteady=unsteady(rule, states, fit.parameters),
    )

    def draw(n: int, rng: np.random.Generator) -> Float:
        """The learner's noise and the world's are known each as well as there are steps, groups."""
        draws = student_draws(fit.parameters[:q], fit.covariance, freedom, n, rng)
        if len(replicates):
            draws += student_draws(np.zeros(q), extra, len(replicates) - 1, n, rng)
        return np.asarray(draws @ back.T)

    return found, draw


def _without_groups(
    worlds: Worlds, policies: Float, shifted: Callable[[Worlds, World], Float]
) -> Float:
    """Weights with each group of episodes left out of the world model, shape (g, q).

    Args:
        worlds: Builds the world without a group.
        policies: The path, shape (m + 1, d).
        shifted: The weights (q,) that the fit goes to in another world of these.
    """
    n_groups, q = worlds.n_groups(), worlds.basis.shape[1]
    logger.info("intervals: the world model without each of %d groups of episodes", n_groups)
    replicates, watched = [np.zeros((0, q))], worlds.watched
    # What travels does not report; here it is the object that all groups share, sums kept.
    there = worlds if watched.run.here else worlds.elsewhere
    for weights in watched.run.map(_without, range(n_groups), (there, n_groups, policies, shifted)):
        replicates.append(weights[None])
        watched.report("intervals", len(replicates) - 1, n_groups)
    return np.concatenate(replicates)


def _without(
    common: tuple[Worlds, int, Float, Callable[[Worlds, World], Float]], group: int
) -> Float:
    """Weights (q,) without one group of episodes."""
    worlds, n_groups, policies, shifted = common
    return shifted(worlds, worlds.without(group, n_groups, policies))
