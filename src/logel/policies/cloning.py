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
from collections.abc import Callable
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
# Early stopping: most and fewest rows in a minibatch; in between a pass has four updates, or small
# stages would need hundreds of passes. First rate, passes without progress before the rate is cut,
# the cut, how often; and the share set aside when the configuration asks for none.
_BATCH, _SMALLEST_BATCH, _UPDATES = 512, 32, 4
_RATE, _PATIENCE, _CUT, _CUTS, _ASIDE = 1e-3, 2, 0.3, 3, 0.1


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
        """The median parameter's, which takes a while for networks."""
        return float(np.median(self.fisher.diagonal()))


def clone_stage(
    stage: Stage, policy: Policy, config: CloneConfig, *, start: Float, rng: np.random.Generator
) -> Clone:
    """Clone one stage, warm-started at `start`."""
    centre = start if config.prior_centre == "previous" else np.zeros_like(start)
    search = _Search(policy, config, start, centre)
    data = policy.counted(stage)
    held_out = float("nan")
    if stops_early(policy, stage, config):
        rest, test = _split(policy, stage, config.holdout or _ASIDE, rng)
        theta, converged, iterations = search.early_stopping(rest, test, rng)
        held_out = _log_likelihood(policy, theta, test)
    else:
        theta, converged, iterations = search.fit(data)
        if 0 < round(config.holdout * stage.n_episodes) < stage.n_episodes:
            rest, test = _split(policy, stage, config.holdout, rng)
            again = replace(search, start=theta).fit(rest)[0]
            held_out = _log_likelihood(policy, again, test)
    return Clone(
        parameters=theta,
        fisher=policy.fisher(policy.tensor(theta), data.observations, data.counts),
        log_likelihood=_log_likelihood(policy, theta, data),
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
    with torch.no_grad():
        values = policy.log_prob(policy.tensor(theta), data.observations, data.actions)
        return float((data.counts * values).sum() / data.counts.sum())


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
        """Passes of Adam in single precision; the parameters that predict the test steps best."""
        observations, actions, tests = *_single(data), _single(test)
        batch = min(_BATCH, max(_SMALLEST_BATCH, len(actions) // _UPDATES))
        theta = self.policy.tensor(self.start).float().requires_grad_(True)
        centre = self.policy.tensor(self.centre).float()
        pull = 0.5 * self.config.prior_strength / len(actions)
        optimiser = torch.optim.Adam([theta], lr=_RATE)

        def score() -> float:
            with torch.no_grad():
                return float(self.policy.log_prob(theta, *tests).mean())

        best, kept, waited, cuts = score(), theta.detach().clone(), 0, 0
        for epoch in range(1, self.config.max_iterations + 1):
            order = torch.from_numpy(rng.permutation(len(actions))).to(theta.device)
            for at in range(0, len(order), batch):
                rows = order[at : at + batch]
                optimiser.zero_grad()
                fit = self.policy.log_prob(theta, observations[rows], actions[rows]).mean()
                loss: Tensor = pull * ((theta - centre) ** 2).sum() - fit
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            if (value := score()) > best:
                best, kept, waited = value, theta.detach().clone(), 0
                continue
            waited += 1
            if waited >= _PATIENCE:
                if cuts == _CUTS:
                    return kept.double().cpu().numpy(), True, epoch
                # From the best so far, in smaller steps.
                waited, cuts = 0, cuts + 1
                with torch.no_grad():
                    theta.copy_(kept)
                optimiser = torch.optim.Adam([theta], lr=_RATE * _CUT**cuts)
        return kept.double().cpu().numpy(), False, self.config.max_iterations

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


def _single(data: Counted) -> tuple[Tensor, Tensor]:
    observations, actions = (
        # Bytes and numbers of states stay what they are.
        part.float() if part.is_floating_point() else part
        for part in (data.observations, data.actions)
    )
    return observations, actions
