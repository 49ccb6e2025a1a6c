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
    """The same weights from no more than two readings of every stage, and no intervals."""
    reads = _Counting(case.history.source)
    quick = case.ask(intervals=False, history=replace(case.history, source=reads))
    np.testing.assert_allclose(quick.weights, estimate.weights, rtol=1e-7, atol=1e-9)
    assert np.isnan(quick.interval()).all(), "intervals that nobody asked for"
    # Some look at the first stage once more, to see what kind of history this is.
    most = 3 * len(case.history) + 3
    assert reads.count <= most, f"{reads.count} readings of {len(case.history)} stages"


def check_known_rates(case: Case, estimate: RewardEstimate) -> None:
    """Twice the known rates are half the weights, and signs are the weights' own."""
    rates = case.history.learning_rates
    if rates is None or estimate.scale != "known learning rates":
        return
    half = case.ask(history=replace(case.history, learning_rates=2 * rates))
    _close(2 * half.weights, estimate, "known rates twice as large")


def check_units(case: Case, estimate: RewardEstimate) -> None:
    """A feature in other units has its weight in theirs; a constant added to it says nothing.

    The latter where all episodes last as long, but for gradients without a baseline, which are
    noisier for it.
    """
    if estimate.gauge.n:
        return
    ends = any(stage.terminated.any() for stage in case.history)
    constant = 0.0 if case.raw_gradients or ends else 100.0
    units = np.linspace(0.5, 20.0, len(estimate.weights))
    other = case.ask(history=_refeatured(case.history, lambda x: units * (x + constant)))
    weights = other.weights * units
    if estimate.scale == "unit norm":
        weights = weights / np.linalg.norm(weights)
    _close(weights, estimate, "units of the features")


def check_order(case: Case, estimate: RewardEstimate) -> None:
    """The order of the episodes says nothing, but for which of them form groups."""
    rng = np.random.default_rng(0)

    def shuffled(stage: Stage) -> Stage:
        return stage.take(rng.permutation(stage.n_episodes))

    other = case.ask(history=_mapped(case.history, shuffled))
    _close(other.weights, estimate, "the order of the episodes")


def check_gauge(case: Case, estimate: RewardEstimate) -> None:
    """A feature given twice, and one that is always zero, are named; neither gains by it."""
    more = case.ask(
        history=_refeatured(
            case.history,
            lambda x: np.concatenate([x, x[:, :1], 0 * x[:, :1]], axis=1),
            more=("copy", "silent"),
        )
    )
    assert more.gauge.n == estimate.gauge.n + 2, f"found: {more.gauge.describe()}"
    np.testing.assert_allclose(more.weights[0], more.weights[-2], atol=1e-6)
    np.testing.assert_allclose(more.weights[-1], 0.0, atol=1e-9)
    told = " ".join(more.gauge.describe())
    assert "copy" in told and "silent" in told
    assert more.rank <= len(more.weights) - 2


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
    check_order,
    check_gauge,
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


def _close(weights: Float, estimate: RewardEstimate, what: str) -> None:
    """Weights agree as far as they are known.

    Exactly they cannot: which episodes form a group, where iterations stop, and what prior the
    schedules of rates have, all move them within their uncertainty.
    """
    gap = np.abs(weights - estimate.weights)
    room = 1e-6 * np.abs(estimate.weights).max() + 3 * np.nan_to_num(estimate.standard_errors)
    assert (gap <= room).all(), f"{what}: weights move by {gap}, known to {room / 3}"
