"""What no named feature explains, along a path: every rule gets the dictionary beside its features.

A learner that is paid for something that nobody named looks like one of another kind. So rule and
dictionary are chosen together: all rules are fitted with named features alone, with all elements
under a narrow prior, which says what each would do, and with the best single one.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from logel.inference.choose import RuleChoice, brought_to_rest, choose_rule, prior_cost
from logel.inference.dictionary import shifted
from logel.inference.gauge import check_movement
from logel.inference.known_path import fit_known_path, step_information
from logel.inference.method import Method
from logel.inference.path import Worlds, grounds
from logel.inference.rolled import rolled_out
from logel.inference.single import Heard, judged
from logel.inference.smooth import JointFit, Start, fit_path
from logel.inference.watched import Look, Watched
from logel.policies.cloned_path import known_or_cloned
from logel.policies.cloning import CloneConfig
from logel.rules.catalogue import RULES
from logel.rules.rule import Rule
from logel.types import Float

logger = logging.getLogger(__name__)
# Deviation of an element's weight, in units of the named ones', where all are fitted together: so
# many would otherwise explain anything.
_NARROW = 0.3
# Rules that trail the best by more nats have nothing to say about the dictionary.
_CLOSE = 12.0


def hear_path(watched: Watched, wide: Watched, look: Look, method: Method) -> Heard:
    """The dictionary in a pooled world, whose path is known or smoothed.

    Args:
        watched: The history with named features.
        wide: The same with the dictionary.
        look: At the first.
        method: Whose rules are tried.
    """
    names, offset, basis = grounds(watched, method)
    (q, p), n = basis.shape, wide.history.signature.n_features or 0
    both = np.zeros((n, p + n - q))
    both[:q, :p], both[q:, p:] = basis, np.eye(n - q)
    worlds = Worlds(shifted(wide, offset), both, look)
    if look.parameters is None:
        return _smoothed(worlds, names, method, basis)
    return _known(worlds, names, method, basis, look.parameters)


def _rules(worlds: Worlds, names: list[str], columns: Float) -> dict[str, Rule]:
    """All rules with some of the features."""
    world = worlds.world.with_features(columns)
    return {name: worlds.rule(name, world) for name in names}


def _smoothed(worlds: Worlds, names: list[str], method: Method, basis: Float) -> Heard:
    """By evidence: which rule explains a hidden path best, with the dictionary or without."""
    watched, p = worlds.watched, basis.shape[1]
    path, _ = known_or_cloned(
        watched.history,
        watched.policy,
        CloneConfig(holdout=0.0),
        use_parameters=False,
        rng=np.random.default_rng(watched.seed),
        progress=watched.report,
    )
    everything = np.eye(worlds.basis.shape[1])
    scale = np.append(np.ones(p), np.full(len(everything) - p, _NARROW))
    plain, dense = (
        choose_rule(_rules(worlds, names, columns), method, cloned=path, report=watched.report)
        for columns in (everything[:, :p], everything * scale)
    )
    # Elements may make another rule the likelier one, or hide it under their own weight.
    close = [
        name
        for name in names
        if any(fits.gains[name] >= fits.gains[fits.name] - _CLOSE for fits in (plain, dense))
    ]
    best = max(
        (_single(worlds, name, method, plain, dense, scale, basis) for name in close),
        key=lambda each: each[0].singles.gain,
    )
    dense = _nearer(worlds, *best, dense, method, p)
    tried = _single(worlds, best[0].rule, method, plain, dense, scale, basis)
    heard, again = max(best, tried, key=lambda each: each[0].singles.gain)
    # One element or several: either is as likely.
    gain = float(np.logaddexp(heard.singles.gain, max(dense.gains.values())) - np.log(2))
    named = plain.gains[plain.name]
    if gain > named:
        # What is found on the way to an element may be a better path, not a reward.
        for name, fit in ((heard.rule, again), (dense.name, dense.fits[dense.name])):
            without = _without(worlds, name, fit, p).evidence - plain.walk.evidence
            named = max(named, without - prior_cost(name, method))
    logger.info("dictionary: %+.1f, named features alone %+.1f", gain, named)
    # Nor is what an element does only together with another path or another pace.
    gain = min(gain - named, tried[0].singles.raw)
    return replace(heard, singles=replace(heard.singles, gain=gain))


def _nearer(
    worlds: Worlds, heard: Heard, again: JointFit, dense: RuleChoice, method: Method, p: int
) -> RuleChoice:
    """The whole dictionary, fitted again around the likeliest element if that explains more."""
    name, q = heard.rule, worlds.basis.shape[1]
    parameters = np.concatenate([again.parameters[:p], np.zeros(q - p), again.parameters[p + 1 :]])
    parameters[p + int(np.argmax(heard.singles.odds))] = again.weights[p] / _NARROW
    fit = _from(dense.fits[name].model, again, parameters)
    if fit.evidence <= dense.fits[name].evidence:
        return dense
    gains = {**dense.gains, name: fit.evidence - dense.walk.evidence - prior_cost(name, method)}
    return replace(
        dense, name=max(gains, key=gains.__getitem__), fits={**dense.fits, name: fit}, gains=gains
    )


def _single(
    worlds: Worlds,
    name: str,
    method: Method,
    plain: RuleChoice,
    dense: RuleChoice,
    scale: Float,
    basis: Float,
) -> tuple[Heard, JointFit]:
    """One rule's best element, fitted beside the named features; its gain is over the walk."""
    fit, p = dense.fits[name], basis.shape[1]
    precision = np.asarray(np.linalg.inv((fit.covariance + fit.covariance.T) / 2), dtype=float)
    # The prior of the elements goes out; that of the named weights stays.
    prior = np.where(np.arange(len(scale)) < p, 0.0, 1 / fit.variances.scale)
    information = np.asarray((precision - np.diag(prior)) / np.outer(scale, scale))
    size = float(np.linalg.norm(fit.weights[:p]))
    pulls = np.asarray(precision @ fit.weights / scale)
    directions = np.asarray(np.linalg.pinv(basis).T, dtype=float)
    singles = judged(information[None], pulls[None], directions, size=size)
    top = int(np.argmax(singles.odds))
    again = _beside(worlds, name, plain.fits[name], p, top)
    gain = again.evidence - dense.walk.evidence - prior_cost(name, method)
    gain += -np.log(singles.shares[top]) - np.log(len(scale) - p)
    amounts = singles.amounts.copy()
    amounts[top] = again.weights[p]
    singles = replace(singles, amounts=amounts, gain=float(gain))
    return Heard(singles, name, float(np.linalg.norm(basis @ again.weights[:p]))), again


def _beside(worlds: Worlds, name: str, fit: JointFit, p: int, element: int) -> JointFit:
    """A rule fitted with one element beside the named features."""
    columns = np.eye(worlds.basis.shape[1])[:, [*range(p), p + element]]
    rule = _rules(worlds, [name], columns)[name]
    return _from(rule, fit, np.insert(fit.parameters, p, 0.0))


def _without(worlds: Worlds, name: str, fit: JointFit, p: int) -> JointFit:
    """The named features alone, from where a fit with elements ended."""
    rule = _rules(worlds, [name], np.eye(worlds.basis.shape[1])[:, :p])[name]
    return _from(rule, fit, np.delete(fit.parameters, np.arange(p, fit.model.n_features)))


def _from(rule: Rule, fit: JointFit, parameters: Float) -> JointFit:
    """A rule fitted from another fit's path."""
    start = Start(fit.states, parameters)
    found = fit_path(rule.refreshed(fit.model.as_policy(fit.states)), start=start)
    return rolled_out(found if found.settled else brought_to_rest(found))


def _known(worlds: Worlds, names: list[str], method: Method, basis: Float, states: Float) -> Heard:
    """By steps of a known path, under the rule that explains it best with the dictionary."""
    p = basis.shape[1]
    check_movement(np.diff(states, axis=0))
    world, k = worlds.world.at(states[:-1]), worlds.basis.shape[1] - p
    best: tuple[float, Heard] | None = None
    for name in [n for n in names if not RULES[n].keeps_values] or ["gradient"]:
        named = world.with_features(np.eye(p + k)[:, :p])
        fit = fit_known_path(worlds.rule(name, named), states)
        rule, around = worlds.rule(name, world), np.insert(fit.parameters, [p] * k, 0.0)
        information, pulls, moved = step_information(rule, states, around)
        # Nuisance parameters are fitted as named weights are.
        order = np.r_[:p, p + k : len(around), p : p + k]
        directions = np.zeros((len(basis), len(order) - k))
        directions[:, :p] = np.linalg.pinv(basis).T
        singles = judged(
            information[:, order][:, :, order],
            pulls[:, order],
            directions,
            moved=moved,
            seed=worlds.watched.seed,
        )
        size = float(np.linalg.norm(basis @ fit.parameters[:p]))
        total = fit.evidence - prior_cost(name, method) + singles.raw
        if best is None or total > best[0]:
            best = total, Heard(singles, name, size)
    assert best is not None
    return best[1]
