"""What every method owes every history it accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.special

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import LogelError
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.inference.method import Coordinates, Method
from logel.inference.observer import Observer
from logel.inference.status import Status
from logel.policies.base import Policy
from logel.types import Array, Float


@dataclass(frozen=True, eq=False)
class Case:
    """A method asked of a history.

    Attributes:
        history: At least two stages, with features, none of them redundant.
        policy: The family.
        gamma: Discount factor.
        method: By name, or your own.
        use_parameters: Whether parameters the history has are used.
    """

    history: LearningHistory
    policy: Policy
    gamma: float
    method: str | Method = "default"
    use_parameters: bool = True

    def ask(self, **changes: Any) -> RewardEstimate:
        """The estimate, with other arguments of `infer_reward` if wanted."""
        options = {"gamma": self.gamma, "method": self.method, "seed": 0, **changes}
        history = options.pop("history", self.history)
        return infer_reward(history, self.policy, use_parameters=self.use_parameters, **options)

    @property
    def chosen(self) -> Method | None:
        """The method's choices; None for the default, which depends on the history."""
        if isinstance(self.method, Method):
            return self.method
        return None if self.method == "default" else Method.named(self.method)

    @property
    def raw_gradients(self) -> bool:
        """Whether Jacobians have no baseline that takes off what all episodes have in common."""
        chosen = self.chosen
        return (
            chosen is not None
            and chosen.coordinates is Coordinates.PARAMETERS
            and chosen.baseline not in ("time", "critic")
        )


def check_method(case: Case) -> None:
    """Every check that applies."""
    estimate = case.ask()
    for check in CHECKS:
        check(case, estimate)


def check_numbers(case: Case, estimate: RewardEstimate) -> None:
    """Weights, intervals and rates are finite, of the right shape, and in their stated scale."""
    q, m = case.history[0].features.shape[1], case.history.n_steps  # type: ignore[union-attr]
    assert estimate.weights.shape == (q,) and np.isfinite(estimate.weights).all()
    assert estimate.learning_rates.shape == (m,) and (estimate.learning_rates > 0).all()
    ends = estimate.interval()
    assert ends.shape == (q, 2)
    if estimate.covariance is not None:
        assert np.isfinite(ends).all() and (ends[:, 0] <= ends[:, 1]).all()
    if estimate.scale == "unit norm":
        np.testing.assert_allclose(np.linalg.norm(estimate.weights), 1.0, atol=1e-9)
    assert isinstance(estimate.status, Status) and estimate.summary()


def check_round_trip(case: Case, estimate: RewardEstimate) -> None:
    """What is written is what is read, to the last digit."""
    again = RewardEstimate.from_json(estimate.to_json())
    assert again.to_json() == estimate.to_json()


def check_determinism(case: Case, estimate: RewardEstimate) -> None:
    """The same seed gives the same bytes."""
    assert case.ask().to_json() == estimate.to_json(), "the same seed gave another estimate"


def check_without_intervals(case: Case, estimate: RewardEstimate) -> None:
    """Cheaper, and the same weights."""
    reads = _Counting(case.history.source)
    quick = case.ask(intervals=False, history=replace(case.history, source=reads))
    np.testing.assert_allclose(quick.weights, estimate.weights, rtol=1e-7, atol=1e-9)
    assert np.isnan(quick.interval()).all(), "intervals that nobody asked for"
    slow = _Counting(case.history.source)
    case.ask(history=replace(case.history, source=slow))
    assert reads.count <= slow.count, f"{reads.count} reads of stages instead of {slow.count}"


def check_known_rates(case: Case, estimate: RewardEstimate) -> None:
    """Twice the known rates are half the weights, and signs are the weights' own."""
    rates = case.history.learning_rates
    if rates is None or estimate.scale != "known learning rates":
        return
    half = case.ask(history=replace(case.history, learning_rates=2 * rates))
    np.testing.assert_allclose(2 * half.weights, estimate.weights, rtol=1e-3, atol=1e-6)


def check_units(case: Case, estimate: RewardEstimate) -> None:
    """A feature in other units has its weight in theirs, and nothing else changes."""
    if estimate.gauge.n:
        return
    units = np.linspace(0.5, 20.0, len(estimate.weights))
    other = case.ask(history=_refeatured(case.history, lambda x: x * units)).weights * units
    _same_direction(other, estimate, case, "units of the features")


def check_constants(case: Case, estimate: RewardEstimate) -> None:
    """A constant added to a feature of episodes that all last as long says nothing."""
    if case.raw_gradients or any(stage.terminated.any() for stage in case.history):
        return
    added = case.ask(history=_refeatured(case.history, lambda x: x + 100.0))
    _same_direction(added.weights, estimate, case, "constants added to the features")


def check_order(case: Case, estimate: RewardEstimate) -> None:
    """The order of the episodes says nothing, but for which of them form groups."""
    rng = np.random.default_rng(0)

    def shuffled(stage: Stage) -> Stage:
        return stage.take(rng.permutation(stage.n_episodes))

    other = case.ask(history=_mapped(case.history, shuffled))
    gap = np.abs(other.weights - estimate.weights)
    room = 1e-6 + np.nan_to_num(estimate.standard_errors)
    assert (gap <= room).all(), f"the order of episodes moves the weights by {gap}"


def check_duplicates(case: Case, estimate: RewardEstimate) -> None:
    """A feature given twice is named as such, and both copies share its weight."""
    twice = case.ask(
        history=_refeatured(
            case.history, lambda x: np.concatenate([x, x[:, :1]], axis=1), more=("copy",)
        )
    )
    assert twice.gauge.n == estimate.gauge.n + 1, "a duplicated feature was not found out"
    np.testing.assert_allclose(twice.weights[0], twice.weights[-1], atol=1e-6)
    assert any("copy" in sentence for sentence in twice.gauge.describe())
    assert twice.rank <= len(twice.weights) - 1


def check_silent_feature(case: Case, estimate: RewardEstimate) -> None:
    """A feature that is always zero is named, and gets no weight."""
    silent = case.ask(
        history=_refeatured(
            case.history, lambda x: np.concatenate([x, 0 * x[:, :1]], axis=1), more=("silent",)
        )
    )
    assert silent.gauge.n == estimate.gauge.n + 1
    np.testing.assert_allclose(silent.weights[-1], 0.0, atol=1e-9)


def check_observer(case: Case, estimate: RewardEstimate) -> None:
    """Watching live ends where watching afterwards does, where that is offered."""
    try:
        observer = Observer(
            case.policy,
            gamma=case.gamma,
            method=case.method,
            feature_names=case.history.feature_names,
            use_parameters=case.use_parameters,
        )
    except LogelError:
        return
    rates = case.history.learning_rates
    for t, stage in enumerate(case.history):
        rate = None if rates is None or t == 0 else float(rates[t - 1])
        live = observer.update(stage, learning_rate=rate)
    assert live is not None
    np.testing.assert_allclose(live.weights, estimate.weights, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(live.interval(), estimate.interval(), rtol=1e-6, atol=1e-8)
    assert live.status is estimate.status


def check_null(cases: Sequence[Case]) -> None:
    """Of histories of learners that want nothing, hardly any is believed.

    At the nominal 5% more than this many of n would be believed once in a hundred times.
    """
    believed = sum(case.ask().status is not Status.UNEXPLAINED for case in cases)
    most = int(scipy.special.bdtrik(0.99, len(cases), 0.05)) + 1
    assert believed <= most, f"{believed} of {len(cases)} random walks were believed"


CHECKS: tuple[Callable[[Case, RewardEstimate], None], ...] = (
    check_numbers,
    check_round_trip,
    check_determinism,
    check_without_intervals,
    check_known_rates,
    check_units,
    check_constants,
    check_order,
    check_duplicates,
    check_silent_feature,
    check_observer,
)


class _Counting:
    """A source of stages that counts how often one is read."""

    def __init__(self, source: Any) -> None:
        self.source, self.count = source, 0

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> Stage:
        self.count += 1
        stage: Stage = self.source[index]
        return stage

    def __iter__(self) -> Iterator[Stage]:
        return (self[t] for t in range(len(self)))


def _mapped(history: LearningHistory, change: Callable[[Stage], Stage]) -> LearningHistory:
    return replace(history, source=tuple(change(stage) for stage in history))


def _refeatured(
    history: LearningHistory, change: Callable[[Float], Array], more: tuple[str, ...] = ()
) -> LearningHistory:
    """The same episodes with other features."""

    def changed(stage: Stage) -> Stage:
        assert stage.features is not None
        return replace(stage, features=change(stage.features.astype(float)))

    names = history.feature_names
    stages = [changed(stage) for stage in history]
    return LearningHistory.from_stages(
        stages,
        learning_rates=history.learning_rates,
        feature_names=None if names is None else (*names, *more),
        metadata=history.metadata,
        own_episodes=history.own_episodes,
    )


def _same_direction(other: Float, estimate: RewardEstimate, case: Case, what: str) -> None:
    """Directions agree to rounding, or to a little where iterations stop early."""
    a, b = (w / max(float(np.linalg.norm(w)), 1e-300) for w in (other, estimate.weights))
    gap = float(np.linalg.norm(a - b))
    assert gap <= 1e-3, f"{what} move the direction of the weights by {gap:.2g}"
