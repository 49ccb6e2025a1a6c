"""Behavioural cloning: each stage's policy parameters by maximum likelihood.

    theta[t] = argmax  sum_{steps of t} log pi_theta(a | s) - strength / 2 ||theta - centre||^2

The log-linear families are fitted to convergence by Newton's method with their exact information
(one step for LinearGaussian: it is least squares), networks by minibatches until held-out episodes
are predicted no better: to convergence they would learn a small stage by heart. The prior is
explicit: without it, an action never taken in a state would have an infinite logit, and a state
never visited no logit at all. `cloned_path` clones all stages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from logel.data.stage import Stage
from logel.errors import Choice, HistoryError, OptionError, PolicyError
from logel.policies.base import Counted, Fitted, Policy
from logel.policies.fisher import Fisher
from logel.types import Float

logger = logging.getLogger(__name__)
# Where the likelihood is not convex, stages up to this size are fitted to convergence if they have
# so many steps per parameter: explaining noise then costs d / 2n, at most 1/60 nat a step.
_MANY_STEPS, _STEPS_PER_PARAMETER = 1024, 30
# Early stopping goes in rounds, in each of which Adam's rate rises to this and falls to nothing.
# The first one has so many updates, or as many as this number of passes has; each has twice those
# of the one before it. So stages cost alike however few their steps.
_RATE, _UPDATES, _PASSES = 2e-3, 200, 4
# Share of a round in which the rate rises; rows in a minibatch: a share of all within two bounds.
_RISING, _BATCHES, _SMALLEST_BATCH, _BATCH = 0.1, 50, 32, 512
# A round without progress is repeated at a smaller rate, so often. Another one brings about a tenth
# of what the last did: where held-out steps cannot tell a tenth from chance, that was enough.
_CUT, _CUTS, _TELLING = 0.3, 2, 10.0
# Adam's decay rates of the mean and of the squares.
_MEAN, _SQUARES = 0.9, 0.999
# Share set aside when the configuration asks for none.
_ASIDE = 0.1
# Rows from which the typical parameter's information is told.
_SOME_ROWS = 2048


class CloneMethod(Choice):
    """How parameters are fitted.

    AUTO: MLE for families that are convex, or have 30 steps per parameter and no more than 1024
        in all; EARLY_STOPPING for the others (networks).
    MLE: maximum likelihood with the Gaussian prior, to convergence.
    EARLY_STOPPING: minibatches of Adam on most episodes, until the others are predicted no better
        (of a single episode: on its first steps, until the last ones are).
    ADAM: the authors' few steps of Adam (3 at rate .5, entropy bonus .01, warm-started); no prior.
    """

    AUTO = "auto"
    MLE = "mle"
    EARLY_STOPPING = "early-stopping"
    ADAM = "adam"


@dataclass(frozen=True)
class CloneConfig:
    """Choices of the cloning step.

    Attributes:
        method: See `CloneMethod`.
        prior_strength: Precision of the Gaussian prior on every parameter (but the fitted
            log-deviations of LinearGaussian), in units of information: 1 weighs as much as the
            data that would pin a parameter to +-1. It depends on the units of observations:
            bring them to about unit size.
        prior_centre: "zero", or "previous" for the preceding stage's estimate.
        holdout: Share of the episodes set aside to score the fit (the parameters returned are
            fitted on all of them, but with early stopping, which always sets some aside); 0 to
            skip.
        max_iterations: Limit on Newton or L-BFGS iterations, or on passes over the data.
        tolerance: Stop when the gradient's norm per step is below this.
    """

    method: CloneMethod | str = CloneMethod.AUTO
    prior_strength: float = 1.0
    prior_centre: str = "zero"
    holdout: float = 0.2
    max_iterations: int = 200
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", CloneMethod(self.method))
        if self.prior_strength < 0:
            raise OptionError(f"prior_strength must not be negative: {self.prior_strength}")
        if self.prior_centre not in ("zero", "previous"):
            raise OptionError(f"prior_centre must be 'zero' or 'previous': {self.prior_centre!r}")
        if not 0 <= self.holdout < 1:
            raise OptionError(f"holdout must be in [0, 1), but is {self.holdout}")


@dataclass(frozen=True, eq=False)
class Clone:
    """One stage's cloned policy.

    Attributes:
        parameters: Shape (d,).
        fisher: Information about the parameters in the stage's data (without the prior).
        log_likelihood: Mean log-probability per step, in-sample.
        held_out: The same on held-out episodes by a fit that did not see them; NaN if skipped.
        converged: Whether the tolerance was reached.
        iterations: Iterations made.
    """

    parameters: Float
    fisher: Fisher
    log_likelihood: float
    held_out: float
    converged: bool
    iterations: int

    @cached_property
    def typical_information(self) -> float:
        """About the median parameter, as some of the data tell it."""
        return float(np.median(self.fisher.diagonal(_SOME_ROWS)))


def clone_stage(
    stage: Stage, policy: Policy, config: CloneConfig, *, start: Float, rng: np.random.Generator
) -> Clone:
    """Clone one stage, warm-started at `start`."""
    centre = start if config.prior_centre == "previous" else np.zeros_like(start)
    search = _Search(policy, config, start, centre)
    data = scored = policy.counted(stage)
    held_out = float("nan")
    if stops_early(policy, stage, config):
        parts = _split(policy, stage, config.holdout or _ASIDE, rng)
        rest, test = map(_single, parts)
        theta, converged, iterations = search.early_stopping(rest, test, rng)
        held_out = _log_likelihood(policy, theta, test)
        scored = _single(data)
    else:
        theta, converged, iterations = search.fit(data)
        if 0 < round(config.holdout * stage.n_episodes) < stage.n_episodes:
            rest, test = _split(policy, stage, config.holdout, rng)
            again = replace(search, start=theta).fit(rest)[0]
            held_out = _log_likelihood(policy, again, test)
    return Clone(
        parameters=theta,
        fisher=policy.fisher(policy.tensor(theta), data.observations, data.counts),
        log_likelihood=_log_likelihood(policy, theta, scored),
        held_out=held_out,
        converged=converged,
        iterations=iterations,
    )


def stops_early(policy: Policy, stage: Stage, config: CloneConfig) -> bool:
    """Whether a stage is cloned by minibatches; a single step cannot be split."""
    if config.method is CloneMethod.AUTO:
        n, few = stage.n_steps, _STEPS_PER_PARAMETER * policy.n_parameters
        return not policy.convex and (n > _MANY_STEPS or 1 < n < few)
    if config.method is not CloneMethod.EARLY_STOPPING:
        return False
    if policy.tabular:
        raise PolicyError("tables are cloned exactly: use method='mle', not early stopping")
    if stage.n_steps < 2:
        raise HistoryError("early stopping needs at least two steps: use method='mle'")
    return True


def _split(
    policy: Policy, stage: Stage, share: float, rng: np.random.Generator
) -> tuple[Counted, Counted]:
    """A stage without some of its episodes, and those; a single episode's first and last steps."""
    alone = stage.n_episodes == 1
    n = stage.n_steps if alone else stage.n_episodes
    aside = min(max(1, round(share * n)), n - 1)
    if alone:
        steps = policy.counted(stage)
        cut = n - aside
        return Counted(*(part[:cut] for part in steps)), Counted(*(part[cut:] for part in steps))
    order = rng.permutation(n)
    rest, test = stage.take(order[aside:]), stage.take(order[:aside])
    return policy.counted(rest), policy.counted(test)


def _log_likelihood(policy: Policy, theta: Float, data: Counted) -> float:
    """Mean per step."""
    values = _log_prob(policy, policy.tensor(theta).to(data.counts), data)
    return float((data.counts * values).sum() / data.counts.sum())


def _log_prob(policy: Policy, theta: Tensor, data: Counted) -> Tensor:
    """Of every row, shape (N,)."""
    with torch.no_grad():
        return policy.log_prob(theta, data.observations, data.actions)


def _single(data: Counted) -> Counted:
    """In single precision: exact enough for what is not searched to the end."""
    return Counted(*(part.float() if part.is_floating_point() else part for part in data))


@dataclass(frozen=True, eq=False)
class _Search:
    """A search for a stage's parameters: where it starts, and where the prior has its centre."""

    policy: Policy
    config: CloneConfig
    start: Float
    centre: Float

    def fit(self, data: Counted) -> Fitted:
        """To convergence, or the authors' few steps."""
        if self.config.method is CloneMethod.ADAM:
            return self.few_adam_steps(data)
        strength, limit = self.config.prior_strength, self.config.max_iterations
        found = self.policy.closed_form(data, self.start, strength, self.centre, limit)
        if found is not None:
            return found
        return self.newton(data) if self.policy.convex else self.lbfgs(data)

    def loss(self, theta: Tensor, data: Counted) -> Tensor:
        """Minus the log-likelihood, plus the prior, per step."""
        fit = self.policy.log_prob(theta, data.observations, data.actions)
        away = ((theta - self.policy.tensor(self.centre)) ** 2).sum()
        prior = 0.5 * self.config.prior_strength * away
        return (prior - (data.counts * fit).sum()) / data.counts.sum()

    def newton(self, data: Counted) -> Fitted:
        """Newton's method, steps halved; for log-linear families the Hessian is minus Fisher."""
        policy, size = self.policy, float(data.counts.sum())

        def value(theta: Float) -> float:
            with torch.no_grad():
                return -size * float(self.loss(policy.tensor(theta), data))

        theta, reached = self.start.copy(), value(self.start)
        if np.isnan(reached):
            raise PolicyError(
                "the actions have no likelihood under the policy where cloning starts: bring "
                "observations to about unit size"
            )
        for iteration in range(self.config.max_iterations):
            tensor = policy.tensor(theta)
            score = policy.vjp(tensor, data.observations, data.actions, data.counts[:, None])
            pull = self.config.prior_strength * (theta - self.centre)
            gradient = score[:, 0].cpu().numpy() - pull
            slope = float(np.linalg.norm(gradient)) / size
            if slope <= self.config.tolerance:
                return theta, True, iteration
            fisher = policy.fisher(tensor, data.observations, data.counts)
            step = fisher.solve(gradient, ridge=self.config.prior_strength)
            found = _ascended(value, theta, step, reached)
            if found is None:
                # No ascent left along Newton's direction: at a maximum rounding is all that
                # remains, and anywhere else the search has failed.
                return theta, slope <= self.config.tolerance**0.5, iteration
            theta, reached = found
        return theta, False, self.config.max_iterations

    def lbfgs(self, data: Counted) -> Fitted:
        """Full-batch L-BFGS with a strong-Wolfe line search."""
        theta = self.policy.tensor(self.start).requires_grad_(True)
        optimiser = torch.optim.LBFGS(
            [theta],
            max_iter=self.config.max_iterations,
            tolerance_grad=self.config.tolerance,
            tolerance_change=1e-14,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = self.loss(theta, data)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimiser.step(closure)  # type: ignore[no-untyped-call]
        closure()
        assert theta.grad is not None
        iterations = int(optimiser.state[theta]["n_iter"])
        # L-BFGS also stops when steps become tiny; a small gradient is what counts.
        converged = float(theta.grad.abs().max()) <= max(self.config.tolerance, 1e-5)
        return theta.detach().cpu().numpy(), converged, iterations

    def early_stopping(self, data: Counted, test: Counted, rng: np.random.Generator) -> Fitted:
        """Rounds of Adam in single precision, each from the parameters that predict `test` best."""
        policy, n = self.policy, len(data.actions)
        batch = min(n, max(_SMALLEST_BATCH, min(n // _BATCHES, _BATCH)))
        updates, made, cuts = max(1, min(_UPDATES, _PASSES * n // batch)), 0, 0
        kept = policy.tensor(self.start).to(data.counts)
        best = _log_prob(policy, kept, test)
        while made * batch < self.config.max_iterations * n:
            tried = self.round(kept, data, batch, updates, _RATE * _CUT**cuts, rng)
            made += updates
            reached = _log_prob(policy, tried, test)
            gained = (reached - best).double()
            if not (gain := float(gained.mean())) > 0:
                if cuts == _CUTS:
                    return kept.double().cpu().numpy(), True, made
                cuts += 1
                continue
            best, kept, updates = reached, tried, 2 * updates
            told = float(gained.std(correction=0)) / len(gained) ** 0.5
            if made >= _UPDATES and gain < _TELLING * told:
                return kept.double().cpu().numpy(), True, made
        return kept.double().cpu().numpy(), False, made

    def round(
        self,
        start: Tensor,
        data: Counted,
        batch: int,
        updates: int,
        rate: float,
        rng: np.random.Generator,
    ) -> Tensor:
        """Where Adam goes in so many minibatches, of passes in random orders.

        Written out: torch.optim compiles, which takes a second to import and as long as the rest.
        """
        theta, centre = start.clone(), self.policy.tensor(self.centre).to(start)
        mean, squares = torch.zeros_like(theta), torch.zeros_like(theta)
        pull = self.config.prior_strength / len(data.actions)
        parts = _minibatches(data, batch, rng)
        for k in range(1, updates + 1):
            score = self.policy.mean_score(theta, *next(parts))
            score.sub_(theta - centre, alpha=pull)
            mean.lerp_(score, 1 - _MEAN)
            squares.mul_(_SQUARES).addcmul_(score, score, value=1 - _SQUARES)
            done = k / (updates + 1)
            now = rate * min(done / _RISING, (1 - done) / (1 - _RISING)) / (1 - _MEAN**k)
            sizes = (squares / (1 - _SQUARES**k)).sqrt_().add_(1e-8)
            theta.addcdiv_(mean, sizes, value=now)
        return theta

    def few_adam_steps(self, data: Counted) -> Fitted:
        """Three steps of Adam at rate .5 on the mean log-likelihood plus .01 times the entropy."""
        theta = self.policy.tensor(self.start).requires_grad_(True)
        optimiser = torch.optim.Adam([theta], lr=0.5)
        n_steps = 3
        for _ in range(n_steps):
            optimiser.zero_grad()
            values = self.policy.log_prob(theta, data.observations, data.actions)
            entropy = self.policy.entropy(self.policy.outputs(theta, data.observations))
            loss = -(data.counts * (values + 0.01 * entropy)).sum() / data.counts.sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return theta.detach().cpu().numpy(), True, n_steps


def _ascended(
    value: Callable[[Float], float], theta: Float, step: Float, reached: float
) -> tuple[Float, float] | None:
    """The first of the whole step, its half, ... down to 1e-10 of it that loses nothing."""
    for size in 0.5 ** np.arange(34):
        # NaN is never at least anything: a step that leaves the range of floats is too long.
        if (proposed := value(theta + size * step)) >= reached:
            return theta + size * step, proposed
    return None


def _minibatches(
    data: Counted, batch: int, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Observations and actions of so many rows, for ever."""
    n = len(data.actions)
    while True:
        order = torch.from_numpy(rng.permutation(n)).to(data.actions.device)
        for at in range(0, n - batch + 1, batch):
            rows = order[at : at + batch]
            yield data.observations.index_select(0, rows), data.actions.index_select(0, rows)
