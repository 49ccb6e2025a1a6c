"""Behavioural cloning: each stage's policy parameters by maximum likelihood.

    theta[t] = argmax  sum_{steps of t} log pi_theta(a | s) - strength / 2 ||theta - centre||^2

The log-linear families are fitted to convergence by Newton's method with their exact information
(one step for LinearGaussian: it is least squares), networks by L-BFGS or, on large stages, by
minibatches until held-out episodes are predicted no better. Stages are warm-started along the
history. The prior is explicit: without it, an action never taken in a state would have an infinite
logit, and a state never visited no logit at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import Choice, HistoryError, LogelError, OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.fisher import Fisher
from logel.policies.gaussian import GaussianPolicy, LinearGaussian
from logel.policies.softmax import TabularSoftmax
from logel.types import Float, Progress

logger = logging.getLogger(__name__)
# Networks on more steps than this are fitted by minibatches.
_MANY_STEPS = 1024
# Early stopping: rows per minibatch, first rate, passes without progress before the rate is cut,
# the cut, how often; and the share set aside when the configuration asks for none.
_BATCH, _RATE, _PATIENCE, _CUT, _CUTS, _ASIDE = 512, 1e-3, 2, 0.3, 3, 0.1


class CloneMethod(Choice):
    """How parameters are fitted.

    AUTO: EARLY_STOPPING for networks on stages of more than 1024 steps, else MLE.
    MLE: maximum likelihood with the Gaussian prior, to convergence.
    EARLY_STOPPING: minibatches of Adam on most episodes, until the others are predicted no better.
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


@dataclass(frozen=True, eq=False)
class ClonedPath:
    """The clones of all stages and the configuration that made them."""

    clones: tuple[Clone, ...]
    config: CloneConfig

    @property
    def parameters(self) -> Float:
        """Shape (m + 1, d)."""
        return np.stack([clone.parameters for clone in self.clones])


@dataclass(frozen=True, eq=False)
class _Data:
    """A stage's steps as tensors, with multiplicities where rows repeat."""

    observations: Tensor
    actions: Tensor
    counts: Tensor

    @property
    def size(self) -> float:
        return float(self.counts.sum())


def clone(
    stages: Iterable[Stage],
    policy: Policy,
    config: CloneConfig | None = None,
    *,
    rng: np.random.Generator | None = None,
    progress: Callable[[int], None] | None = None,
) -> ClonedPath:
    """Clone the policy of every stage.

    Args:
        stages: A history, or any stages in order.
        policy: The family to fit.
        config: Choices; the defaults suit the log-linear families.
        rng: Chooses held-out episodes and a network's starting point.
        progress: Called with the number of stages done.
    """
    config = config or CloneConfig()
    rng = rng or np.random.default_rng(0)
    clones: list[Clone] = []
    theta = starting_point(policy, rng)
    for t, stage in enumerate(stages):
        try:
            clones.append(clone_stage(stage, policy, config, start=theta, rng=rng))
        except LogelError as error:
            raise type(error)(f"stage {t}: {error}") from None
        theta = clones[-1].parameters
        _log(t, stage, clones[-1])
        if progress is not None:
            progress(t + 1)
    return ClonedPath(tuple(clones), config)


def _log(t: int, stage: Stage, found: Clone) -> None:
    held_out = np.isfinite(found.held_out)
    logger.info(
        "stage %d: %d episodes, %slog-likelihood %.3f, %d iterations%s",
        t,
        stage.n_episodes,
        "held-out " if held_out else "",
        found.held_out if held_out else found.log_likelihood,
        found.iterations,
        "" if found.converged else " (not converged)",
    )


def known_parameters(history: LearningHistory, policy: Policy) -> Float | None:
    """The parameters a history carries, (m + 1, d), checked against the family; None if none."""
    known = history.parameters()
    if known is None:
        return None
    if known.shape[1] != policy.n_parameters:
        raise HistoryError(
            f"the history's policies have {known.shape[1]} parameters, but the family "
            f"{policy.n_parameters}: pass the matching family, or use_parameters=False (--clone) "
            "to clone"
        )
    return known.astype(float)


def known_or_cloned(
    history: LearningHistory,
    policy: Policy,
    config: CloneConfig,
    *,
    use_parameters: bool,
    rng: np.random.Generator,
    progress: Progress,
) -> tuple[Float, ClonedPath | None]:
    """Known parameters if there are any and they are wanted, or cloned ones with their path."""
    known = known_parameters(history, policy) if use_parameters else None
    if known is not None:
        return known, None
    total = len(history)
    path = clone(
        history, policy, config, rng=rng, progress=lambda done: progress("cloning", done, total)
    )
    return path.parameters, path


def clone_stage(
    stage: Stage, policy: Policy, config: CloneConfig, *, start: Float, rng: np.random.Generator
) -> Clone:
    """Clone one stage, warm-started at `start`."""
    policy.check(stage)
    centre = start if config.prior_centre == "previous" else np.zeros_like(start)
    data = _data(policy, stage)
    held_out = float("nan")
    if stops_early(policy, stage, config):
        share = config.holdout or _ASIDE
        aside = min(max(1, round(share * stage.n_episodes)), stage.n_episodes - 1)
        rest, test = _split(policy, stage, aside, rng)
        theta, converged, iterations = _early_stopping(
            policy, rest, test, config, start=start, centre=centre, rng=rng
        )
        held_out = _log_likelihood(policy, theta, test)
    else:
        theta, converged, iterations = _fit(policy, data, config, start, centre)
        n_held_out = round(config.holdout * stage.n_episodes)
        if n_held_out > 0 and n_held_out < stage.n_episodes:
            rest, test = _split(policy, stage, n_held_out, rng)
            held_out = _log_likelihood(policy, _fit(policy, rest, config, theta, centre)[0], test)
    return Clone(
        parameters=theta,
        fisher=policy.fisher(policy.tensor(theta), data.observations, data.counts),
        log_likelihood=_log_likelihood(policy, theta, data),
        held_out=held_out,
        converged=converged,
        iterations=iterations,
    )


def stops_early(policy: Policy, stage: Stage, config: CloneConfig) -> bool:
    """Whether a stage is cloned by minibatches; one episode alone cannot be split."""
    if config.method is CloneMethod.AUTO:
        large = not policy.convex and stage.n_steps > _MANY_STEPS
        return large and stage.n_episodes > 1
    if config.method is CloneMethod.EARLY_STOPPING and isinstance(policy, TabularSoftmax):
        raise PolicyError("tables are cloned exactly: use method='mle', not early stopping")
    if config.method is CloneMethod.EARLY_STOPPING and stage.n_episodes < 2:
        raise HistoryError("early stopping needs at least two episodes: use method='mle'")
    return config.method is CloneMethod.EARLY_STOPPING


def _split(
    policy: Policy, stage: Stage, n_held_out: int, rng: np.random.Generator
) -> tuple[_Data, _Data]:
    """A stage without some of its episodes, and those."""
    order = rng.permutation(stage.n_episodes)
    rest, test = stage.take(order[n_held_out:]), stage.take(order[:n_held_out])
    return _data(policy, rest), _data(policy, test)


def starting_point(policy: Policy, rng: np.random.Generator) -> Float:
    """Where cloning the first stage starts: zero, or a network's own choice."""
    initial = getattr(policy, "initial", None)
    return np.zeros(policy.n_parameters) if initial is None else np.asarray(initial(rng))


def _data(policy: Policy, stage: Stage) -> _Data:
    """Tensors of a stage; tabular rows are reduced to their counts, which say all there is."""
    if isinstance(policy, TabularSoftmax):
        pair = stage.observations * policy.n_actions + stage.actions
        counts = np.bincount(pair)
        seen = np.flatnonzero(counts)
        return _Data(
            policy.prepare_observations(seen // policy.n_actions),
            policy.prepare_actions(seen % policy.n_actions),
            policy.tensor(counts[seen]),
        )
    observations, actions = policy.prepare(stage)
    return _Data(observations, actions, policy.tensor(np.ones(len(actions))))


def _log_likelihood(policy: Policy, theta: Float, data: _Data) -> float:
    with torch.no_grad():
        values = policy.log_prob(policy.tensor(theta), data.observations, data.actions)
        return float((data.counts * values).sum()) / data.size


def _fit(
    policy: Policy, data: _Data, config: CloneConfig, start: Float, centre: Float
) -> tuple[Float, bool, int]:
    """Parameters, whether they converged, iterations."""
    if config.method is CloneMethod.ADAM:
        return _few_adam_steps(policy, data, start)
    if isinstance(policy, LinearGaussian):
        return _least_squares(policy, data, config, start, centre)
    if policy.convex:
        return _newton(policy, data, config, start, centre)
    return _lbfgs(policy, data, config, start, centre)


def _newton(
    policy: Policy, data: _Data, config: CloneConfig, start: Float, centre: Float
) -> tuple[Float, bool, int]:
    """Newton's method with step halving; for log-linear families the Hessian is minus Fisher."""

    def penalised(theta: Float) -> float:
        prior = 0.5 * config.prior_strength * float(((theta - centre) ** 2).sum())
        return _log_likelihood(policy, theta, data) * data.size - prior

    theta, value = start.copy(), penalised(start)
    for iteration in range(config.max_iterations):
        tensor = policy.tensor(theta)
        score = policy.vjp(tensor, data.observations, data.actions, data.counts[:, None])
        gradient = score[:, 0].cpu().numpy() - config.prior_strength * (theta - centre)
        if np.linalg.norm(gradient) <= config.tolerance * data.size:
            return theta, True, iteration
        fisher = policy.fisher(tensor, data.observations, data.counts)
        step = fisher.solve(gradient, ridge=config.prior_strength)
        size = 1.0
        while (proposed := penalised(theta + size * step)) < value and size > 1e-10:
            size /= 2
        if size <= 1e-10:
            # No ascent left along Newton's direction: rounding is all that remains.
            return theta, True, iteration
        theta, value = theta + size * step, proposed
    return theta, False, config.max_iterations


def _least_squares(
    policy: LinearGaussian, data: _Data, config: CloneConfig, start: Float, centre: Float
) -> tuple[Float, bool, int]:
    """Closed form for given deviations; alternate with fitted ones (they meet in the prior)."""
    x, y = data.observations.cpu().numpy(), data.actions.cpu().numpy()
    shape = (policy.n_features, policy.action_dim)
    theta, strength = start.copy(), config.prior_strength
    middle = centre[: policy.n_mean_parameters].reshape(shape)
    identity, width = np.eye(policy.n_features), policy.n_features
    for iteration in range(1, config.max_iterations + 1):
        variance = np.exp(2 * policy.log_std(policy.tensor(theta)).cpu().numpy())
        columns = []
        for v, target, z in zip(variance, y.T, middle.T, strict=True):
            # The prior as rows of data: no normal equations, so offsets in x cost no digits.
            root = np.sqrt(strength * v)
            matrix = np.concatenate([x, root * identity]) if root > 0 else x
            target = np.concatenate([target, root * z]) if root > 0 else target
            columns.append(np.linalg.lstsq(matrix, target, rcond=None)[0][:width])
        linear = np.stack(columns, axis=1)
        if policy.sigma is not None:
            return linear.reshape(-1), True, iteration
        spread = np.sqrt(np.maximum(((y - x @ linear) ** 2).mean(axis=0), 1e-12))
        updated = np.concatenate([linear.reshape(-1), np.log(spread)])
        moved = float(np.abs(updated - theta).max())
        theta = updated
        if moved <= 1e-10:
            return theta, True, iteration
    return theta, False, config.max_iterations


def _lbfgs(
    policy: Policy, data: _Data, config: CloneConfig, start: Float, centre: Float
) -> tuple[Float, bool, int]:
    """Full-batch L-BFGS with a strong-Wolfe line search."""
    theta = policy.tensor(start).requires_grad_(True)
    middle = policy.tensor(centre)
    optimiser = torch.optim.LBFGS(
        [theta],
        max_iter=config.max_iterations,
        tolerance_grad=config.tolerance,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        values = policy.log_prob(theta, data.observations, data.actions)
        prior = 0.5 * config.prior_strength * ((theta - middle) ** 2).sum()
        loss: Tensor = (prior - (data.counts * values).sum()) / data.size
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    closure()
    assert theta.grad is not None
    iterations = int(optimiser.state[theta]["n_iter"])
    # L-BFGS also stops when steps become tiny; a small gradient is what counts.
    converged = float(theta.grad.abs().max()) <= max(config.tolerance, 1e-5)
    return theta.detach().cpu().numpy(), converged, iterations


def _early_stopping(
    policy: Policy,
    data: _Data,
    held_out: _Data,
    config: CloneConfig,
    *,
    start: Float,
    centre: Float,
    rng: np.random.Generator,
) -> tuple[Float, bool, int]:
    """Passes of Adam in single precision; the parameters that predict the held-out steps best."""
    theta = policy.tensor(start).float().requires_grad_(True)
    middle = policy.tensor(centre).float()
    observations, actions = _single(data)
    tests = _single(held_out)
    optimiser = torch.optim.Adam([theta], lr=_RATE)
    pull = 0.5 * config.prior_strength / data.size

    def score() -> float:
        with torch.no_grad():
            return float(policy.log_prob(theta, *tests).mean())

    best, kept, waited, cuts = score(), theta.detach().clone(), 0, 0
    for epoch in range(1, config.max_iterations + 1):
        order = torch.from_numpy(rng.permutation(len(actions))).to(theta.device)
        for at in range(0, len(order), _BATCH):
            rows = order[at : at + _BATCH]
            optimiser.zero_grad()
            fit = policy.log_prob(theta, observations[rows], actions[rows]).mean()
            loss: Tensor = pull * ((theta - middle) ** 2).sum() - fit
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
    return kept.double().cpu().numpy(), False, config.max_iterations


def _single(data: _Data) -> tuple[Tensor, Tensor]:
    actions = data.actions.float() if data.actions.is_floating_point() else data.actions
    return data.observations.float(), actions


def _few_adam_steps(policy: Policy, data: _Data, start: Float) -> tuple[Float, bool, int]:
    """Three steps of Adam at rate .5 on the mean log-likelihood plus .01 times the entropy."""
    theta = policy.tensor(start).requires_grad_(True)
    optimiser = torch.optim.Adam([theta], lr=0.5)
    n_steps = 3
    for _ in range(n_steps):
        optimiser.zero_grad()
        values = policy.log_prob(theta, data.observations, data.actions)
        entropy = _entropy(policy, policy.outputs(theta, data.observations))
        loss = -(data.counts * (values + 0.01 * entropy)).sum() / data.size
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return theta.detach().cpu().numpy(), True, n_steps


def _entropy(policy: Policy, outputs: Tensor) -> Tensor:
    """Entropy of each row's action distribution, up to a constant."""
    if isinstance(policy, GaussianPolicy):
        return outputs[:, policy.action_dim :].sum(dim=1)
    logits = torch.log_softmax(outputs, dim=-1)
    return -(logits.exp() * logits).sum(dim=1)
