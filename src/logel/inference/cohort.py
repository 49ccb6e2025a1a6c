"""Several learners watched, each fitted by itself, and what they say together.

Every learner has its own path, its own rates and its own kind of learning. What is pooled before
any is fitted is the world they live in, and the units of the features. What each says of the
weights is then put together by direction (`logel.inference.direction`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from logel.data.history import LearningHistory
from logel.errors import IdentificationError, LogelError, OptionError
from logel.inference.answer import Asked, answer
from logel.inference.direction import Evidence, Stack, student_accounts
from logel.inference.estimate import RewardEstimate
from logel.inference.found import Found
from logel.inference.gauge import Gauge
from logel.inference.gauge_sums import common_gauge
from logel.inference.null import no_reward
from logel.inference.path import feature_basis
from logel.inference.spread import Spread
from logel.inference.watched import Company, Watched
from logel.types import Float, Progress
from logel.workers import SERIAL, Executor

Histories = Sequence[LearningHistory] | Mapping[str, LearningHistory]
_Result = TypeVar("_Result")
Fit = Callable[[Watched], tuple[Found, Gauge, Asked]]


@dataclass(frozen=True, eq=False)
class Single:
    """One of several learners, fitted by itself.

    Attributes:
        name: What it is called.
        found: Its fit.
        gauge: What it cannot tell.
        estimate: Its own answer, as if it were alone in a world that all of them tell about.
        evidence: What it says of the weights, in coordinates of the cohort's basis.
    """

    name: str
    found: Found
    gauge: Gauge
    asked: Asked
    estimate: RewardEstimate
    evidence: Evidence


@dataclass(frozen=True, eq=False)
class Cohort:
    """Several learners, ready to be put together.

    Attributes:
        singles: The learners.
        gauge: What none of them can tell.
        basis: Takes coordinates of the identified weights, in units of the features' ranges, to the
            weights, shape (q, k).
        pools: Whether the world was pooled over all of them.
        seed: Of the draws.
        intervals: Whether the answer is to have any.
        silent: Names of learners whose histories tell no weight, which are none of the singles.
    """

    singles: tuple[Single, ...]
    gauge: Gauge
    basis: Float
    pools: bool
    seed: int
    intervals: bool = True
    silent: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.singles)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the learners."""
        return tuple(single.name for single in self.singles)

    def called(self, prefix: str) -> Cohort:
        """Learners whose names begin so, without that, in the world of all."""
        n = len(prefix)
        singles = [replace(s, name=s.name[n:]) for s in self.singles if s.name.startswith(prefix)]
        silent = tuple(name[n:] for name in self.silent if name.startswith(prefix))
        return replace(self, singles=tuple(singles), silent=silent)

    def stack(self, rng: np.random.Generator) -> Stack:
        """Their evidence, with what is not known of the world in everyone's own.

        Learners that are seen well would else be sure of directions that differ by the errors of
        their world. Where the world is one, all are off together besides (`world_moves`).
        """
        return Stack.of([single.evidence.widened() for single in self.singles], rng)

    def world_moves(self) -> Float:
        """Everyone's weights without each group of the common world's episodes, (g, n, k)."""
        moved = [single.evidence.moved for single in self.singles]
        if not self.pools or len({len(m) for m in moved}) != 1:
            return np.zeros((0, len(moved), self.basis.shape[1]))
        return np.stack(moved, axis=1)


def named_histories(histories: Histories) -> dict[str, LearningHistory]:
    """Histories by name; those without one are numbered."""
    if isinstance(histories, Mapping):
        named = {str(name): history for name, history in histories.items()}
    else:
        named = {f"learner {i + 1}": history for i, history in enumerate(histories)}
    if len(named) < 1:
        raise OptionError("there is no history: at least one is needed")
    for name, history in named.items():
        if not isinstance(history, LearningHistory):
            raise OptionError(
                f"{name} is not a learning history but {type(history).__name__}: pass histories, "
                "in a list or by name"
            )
    return named


def infer_each(
    histories: Mapping[str, LearningHistory],
    watch: Callable[[LearningHistory], Watched],
    fit: Fit,
    *,
    pool_world: bool,
    report: Progress,
    run: Executor = SERIAL,
) -> Cohort:
    """Fit every learner by itself.

    Args:
        histories: By the learner's name.
        watch: How a history is looked at.
        fit: How one learner is fitted.
        pool_world: Whether all of them live in one world.
        report: Called with (what, done, total).
        run: What fits learners, several at a time if it can.
    """
    members = {name: _naming(name, watch, history) for name, history in histories.items()}
    members, still = _looked(members)
    first, *others = (member.look.names for member in members.values())
    for name, names in zip(list(members)[1:], others, strict=True):
        if names != first:
            raise OptionError(
                f"{name} has the features {', '.join(names)}, but {next(iter(members))} has "
                f"{', '.join(first)}: learners must be described by the same features"
            )
    company = Company(tuple(members.values()), pool_world)
    fitted, silent = _fitted(fit, company, tuple(members), report, run)
    gauge = common_gauge([gauge for _, gauge, _ in fitted.values()])
    if gauge.n == len(first):
        raise IdentificationError(
            "no direction of the weights is identified: each is silent for all of the learners"
        )
    basis = feature_basis(gauge, company.moments.ranges())
    singles = [
        Single(name, *one, answer(*one), _naming(name, _evidence, one[0], company, basis))
        for name, one in fitted.items()
    ]
    seed = next(iter(members.values())).seed
    return Cohort(tuple(singles), gauge, basis, pool_world, seed, silent=(*still, *silent))


def _looked(members: Mapping[str, Watched]) -> tuple[dict[str, Watched], tuple[str, ...]]:
    """Learners who do anything, and the names of those who never do anything else."""
    moving: dict[str, Watched] = {}
    still: dict[str, IdentificationError] = {}
    for name, member in members.items():
        try:
            _naming(name, lambda one: one.look, member)
        except IdentificationError as error:
            still[name] = error
        else:
            moving[name] = member
    if not moving:
        raise next(iter(still.values()))
    return moving, tuple(still)


def _fitted(
    fit: Fit, company: Company, names: tuple[str, ...], report: Progress, run: Executor
) -> tuple[dict[str, tuple[Found, Gauge, Asked]], tuple[str, ...]]:
    """Fits by name, and the names of learners who show nothing; an error if nobody does."""
    fitted: dict[str, tuple[Found, Gauge, Asked]] = {}
    silent: dict[str, IdentificationError] = {}
    done = run.map(_one_of, enumerate(names), (fit, company))
    for i, (name, found) in enumerate(zip(names, done, strict=True)):
        if isinstance(found, IdentificationError):
            silent[name] = found
        else:
            fitted[name] = found
        report("learners", i + 1, len(names))
    if not fitted:
        raise next(iter(silent.values()))
    return fitted, tuple(silent)


def _one_of(
    common: tuple[Fit, Company], which: tuple[int, str]
) -> tuple[Found, Gauge, Asked] | IdentificationError:
    """The fit of one of several learners, or why it shows nothing."""
    (fit, company), (index, name) = common, which
    try:
        return _naming(name, fit, replace(company.members[index], company=company))
    except IdentificationError as error:
        return error


def _naming(name: str, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """The result; errors name the learner, those about options depend on none."""
    try:
        return function(*arguments)
    except LogelError as error:
        if isinstance(error, OptionError):
            raise
        raise type(error)(f"{name}: {error}") from None


def _evidence(found: Found, company: Company, basis: Float) -> Evidence:
    """What a fit says of the weights, in coordinates of the basis."""
    if found.evidence is not None:
        back = np.linalg.pinv(found.evidence.basis)
        return found.evidence.through(back @ basis, np.linalg.pinv(basis) @ found.evidence.basis)
    if found.spread is None:
        raise IdentificationError(
            "nothing is known of how uncertain the weights are, so that they cannot be weighed "
            "against others': watch at least three episodes in every stage"
        )
    ranges = company.moments.ranges()
    mean, covariance, freedom = _moments(found, found.spread)
    scaled = covariance * np.outer(ranges, ranges)
    accounts = []
    for account in student_accounts(found.rule, mean * ranges, scaled, freedom):
        accounts.append(account.through(basis * ranges[:, None]))
    return Evidence(tuple(accounts), no_reward(found.gain), np.zeros((0, basis.shape[1])), basis)


def _moments(found: Found, spread: Spread) -> tuple[Float, Float, int]:
    """Weights, their covariance and its degrees of freedom.

    A covariance of unit weights says nothing of their size: it is taken to be as uncertain as any
    of the directions across.
    """
    if spread.draws is None:
        assert spread.covariance is not None
        mean, covariance, freedom = found.weights / found.size, spread.covariance, spread.freedom
    else:
        mean, freedom = spread.draws.mean(axis=0), 0
        covariance = np.cov(spread.draws.T).reshape(len(mean), len(mean))
    along = mean / max(float(np.linalg.norm(mean)), 1e-300)
    across = (np.trace(covariance) - along @ covariance @ along) / max(len(mean) - 1, 1)
    extra = max(across - float(along @ covariance @ along), 0.0)
    return mean, covariance + extra * np.outer(along, along), freedom
