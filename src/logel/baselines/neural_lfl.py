"""Learning from a Learner (Jacq et al., 2019) for policies that are networks.

If every policy is the soft improvement of the one before it at temperature alpha, then

    alpha log pi'(a|s) + alpha gamma E KL(pi || pi')(s')  =  r(s, a) + f(s) - gamma E f(s')

with f minus the soft value of that step (see `logel.baselines.lfl` for tables). Here the left-hand
side is computed on each stage's transitions, and one reward network and one potential per step are
fitted to it by least squares. The reward has the shape of a policy: alpha times a log-density. That
loses nothing, since for the soft-optimal policy this is the true reward up to a potential. It
starts from the clone of the last stage, and is then fitted with the potentials.

Two of the authors' choices are left out. Their reward is the log-density itself, which must stretch
to alpha and cannot: what is left is a constant, and a potential needs 1 / (1 - gamma) times that to
make up for it. And they learn the divergences by a network, in too few steps, where both policies
give them in closed form.

An "epoch" of the authors' settings (1000, 100, 3000, 1000) is one step of Adam on a minibatch, not
a pass over the data: passes over ten stages of 32,000 rows would take hours.

Limits of the method itself. Sampled next states stand in for their expectation, so that in a noisy
world potentials are biased towards varying little. The reward is known up to a potential and
its scale, and a log-density is mostly negative: where episodes can end early, an agent trained on
it may prefer to end them. The reward is a function of what the policy saw, so of normalised
observations and unclipped actions if that is what the history holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logel.baselines.checks import check_positive, check_stages
from logel.baselines.log_density import LogDensityReward
from logel.baselines.networks import (
    Activation,
    blocks,
    descend,
    forward,
    frozen,
    initial_parameters,
)
from logel.baselines.soft_improvement import StepRows, step_rows, step_targets
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import LogelError, OptionError, PolicyError, check_gamma
from logel.policies.base import Policy
from logel.policies.cloned_path import known_parameters
from logel.policies.gaussian import GaussianPolicy
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import SoftmaxPolicy, TabularSoftmax
from logel.types import Float, Progress

_STEPS = ("clone_steps", "initial_steps", "shaping_steps")


@dataclass(frozen=True)
class NeuralLflConfig:
    """Choices of the fit; see the module's description for where the defaults differ.

    Attributes:
        hidden: Widths of the reward network; by default those of the policy's, else (64, 64).
        head_hidden: Width of the potentials' hidden layer.
        clone_steps: Minibatch steps of cloning each stage, warm-started along the history.
        initial_steps: Of fitting the reward to the last stage.
        shaping_steps: Of fitting the reward with the potentials.
        batch_rows: Rows of every stage in a minibatch.
        rate: Adam's.
    """

    hidden: tuple[int, ...] | None = None
    head_hidden: int = 128
    clone_steps: int = 1000
    initial_steps: int = 3000
    shaping_steps: int = 1000
    batch_rows: int = 256
    rate: float = 1e-3

    def __post_init__(self) -> None:
        check_positive(head_hidden=self.head_hidden, batch_rows=self.batch_rows, rate=self.rate)
        for name in _STEPS:
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, but is {getattr(self, name)}")


def neural_lfl(
    history: LearningHistory,
    policy: Policy,
    *,
    gamma: float,
    temperature: float = 0.7,
    config: NeuralLflConfig | None = None,
    use_parameters: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> LogDensityReward:
    """Recover a reward network from a history.

    Args:
        history: What was observed, at least two stages.
        policy: Gaussian or softmax family of the learner's policies; for tables see `lfl`.
        gamma: Discount factor, in [0, 1).
        temperature: The model's alpha; it only scales the reward.
        config: Choices of the fit.
        use_parameters: Use the history's policy parameters if it has them, instead of cloning by
            minibatch steps, which take seconds where converged clones of networks take minutes.
        seed: Chooses minibatches and the networks' starting points.
        progress: Called with (what, done, total) during long work.
    """
    _check(history, policy, gamma=gamma, temperature=temperature)
    fit = _Fit(config or NeuralLflConfig(), np.random.default_rng(seed), progress)
    theta = known_parameters(history, policy) if use_parameters else None
    if theta is None:
        theta = _cloned(history, policy, fit)
    family = reward_family(history, policy, hidden=fit.config.hidden)
    rows, sizes = _all_rows(history, policy, theta, family)
    targets = step_targets(rows, gamma=gamma, temperature=temperature)
    last, start = history[len(history) - 1], family.initial(fit.rng)
    density = fit.density(family, last, start, fit.config.initial_steps, "reward, last stage")
    return _fit_with_potentials(
        family, density, rows, sizes, targets, gamma=gamma, scale=temperature, fit=fit
    )


def reward_family(
    history: LearningHistory, policy: Policy, *, hidden: tuple[int, ...] | None = None
) -> MLPGaussian | MLPCategorical:
    """The family whose log-density is the reward, on flat observations."""
    width = int(np.prod(history.signature.observation_shape, dtype=int))
    if hidden is None:
        hidden = policy.hidden if isinstance(policy, MLPGaussian | MLPCategorical) else (64, 64)
    if isinstance(policy, GaussianPolicy):
        return MLPGaussian(width, policy.action_dim, hidden, device=policy.device)
    assert isinstance(policy, SoftmaxPolicy)
    return MLPCategorical(width, policy.n_actions, hidden, device=policy.device)


@dataclass(frozen=True, eq=False)
class _Fit:
    """What all fits share: choices, randomness, and whom to tell."""

    config: NeuralLflConfig
    rng: np.random.Generator
    progress: Progress | None

    def batch(self, sizes: Sequence[int]) -> Tensor:
        """Rows of a minibatch: as many of every stage, whatever the stages' sizes."""
        counts = np.asarray(sizes, dtype=np.int64)
        ends = counts.cumsum()
        shape = (self.config.batch_rows, len(sizes))
        return torch.from_numpy(self.rng.integers(ends - counts, ends, shape).ravel())

    def descend(
        self, loss: Callable[[], Tensor], parameters: Sequence[Tensor], n_updates: int, what: str
    ) -> None:
        """Minimise, telling how far it is, unless nobody needs to know what it is."""
        progress = self.progress if what else None
        rate = self.config.rate
        descend(loss, parameters, n_updates=n_updates, rate=rate, what=what, progress=progress)

    def density(
        self, family: Policy, stage: Stage, start: Float, n_updates: int, what: str = ""
    ) -> Float:
        """Parameters fitted to a stage's actions by maximum likelihood: a new array."""
        observations, actions = family.prepare(stage)
        theta = family.tensor(start).requires_grad_(True)

        def loss() -> Tensor:
            batch = self.batch([len(actions)])
            return -family.log_prob(theta, observations[batch], actions[batch]).mean()

        self.descend(loss, [theta], n_updates, what)
        # A copy: stages must not share one array, or consecutive policies would never differ.
        return np.array(theta.detach().cpu().numpy())


def _check(history: LearningHistory, policy: Any, *, gamma: float, temperature: float) -> None:
    if isinstance(policy, TabularSoftmax) or not isinstance(policy, GaussianPolicy | SoftmaxPolicy):
        raise PolicyError(
            f"neural LfL needs a Gaussian or softmax family, not {type(policy).__name__}: for "
            "tables use logel.baselines.lfl"
        )
    check_stages(history)
    check_gamma(gamma)
    check_positive(temperature=temperature)


def _cloned(history: LearningHistory, policy: Policy, fit: _Fit) -> Float:
    """Parameters of all stages, shape (m + 1, d)."""
    result = [policy.initial(fit.rng)]
    for t, stage in enumerate(history):
        try:
            result.append(fit.density(policy, stage, result[-1], fit.config.clone_steps))
        except LogelError as error:
            raise type(error)(f"stage {t}: {error}") from None
        if fit.progress is not None:
            fit.progress("cloning", t + 1, len(history))
    return np.stack(result[1:])


def _all_rows(
    history: LearningHistory, policy: Policy, theta: Float, family: Policy
) -> tuple[StepRows, list[int]]:
    """The rows of all steps, joined, and how many each step has."""
    steps = [
        step_rows(history[t], policy, theta[t], theta[t + 1], family=family, index=t)
        for t in range(history.n_steps)
    ]
    joined = {f.name: torch.cat([getattr(s, f.name) for s in steps]) for f in fields(StepRows)}
    return StepRows(**joined), [len(step.going) for step in steps]


def _potentials(net: Sequence[Tensor], observations: Tensor, step_index: Tensor) -> Tensor:
    """The output that belongs to each row's step, shape (N,)."""
    outputs = forward(net, observations, Activation.TANH)
    return outputs.gather(1, step_index[:, None])[:, 0]


def _fit_with_potentials(
    family: MLPGaussian | MLPCategorical,
    density: Float,
    rows: StepRows,
    sizes: Sequence[int],
    targets: Tensor,
    *,
    gamma: float,
    scale: float,
    fit: _Fit,
) -> LogDensityReward:
    """Reward and potentials, by least squares on the targets of all steps."""
    theta = family.tensor(density).requires_grad_(True)
    like, widths = rows.observations, [rows.observations.shape[1], fit.config.head_hidden]
    net = initial_parameters(
        [*widths, len(sizes)], fit.rng, dtype=like.dtype, device=str(like.device)
    )
    index = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(like.device)

    def misfit(batch: Tensor | slice) -> Tensor:
        seen, step = rows.observations[batch], index[batch]
        reward = scale * family.log_prob(theta, seen, rows.actions[batch])
        both = torch.cat([seen, rows.following[batch]])
        here, there = _potentials(net, both, torch.cat([step, step])).chunk(2)
        return reward + here - gamma * rows.going[batch] * there - targets[batch]

    def loss() -> Tensor:
        return len(sizes) * (misfit(fit.batch(sizes)) ** 2).mean()

    fit.descend(loss, [theta, *net], fit.config.shaping_steps, "reward with potentials")
    with torch.no_grad():
        errors = torch.cat([misfit(block) for block in blocks(len(targets))])
    residual, variance = float((errors**2).mean()), float(targets.var(correction=0))
    fitted = theta.detach()
    layers = [x for layer in family.layers.split(fitted) for x in layer if x is not None]
    log_std = family.log_std(fitted) if isinstance(family, MLPGaussian) else None
    return LogDensityReward(
        network=frozen(layers, Activation.TANH),
        log_std=None if log_std is None else np.array(log_std.cpu().numpy()),
        scale=scale,
        shaping=frozen(net, Activation.TANH),
        residual=residual**0.5,
        explained=1.0 - residual / variance if variance > 0 else float("nan"),
    )
