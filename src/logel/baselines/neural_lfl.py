"""Learning from a Learner (Jacq et al., 2019) for policies that are networks.

If every policy is the soft improvement of the one before it at temperature alpha, then

    alpha log pi'(a|s) + alpha gamma E KL(pi || pi')(s')  =  r(s, a) + f(s) - gamma E f(s')

with f minus the soft value of that step (see `logel.baselines.lfl` for tables). Here the left-hand
side is computed on each stage's transitions, and one reward network and one potential per step are
fitted to it by least squares. The reward has the shape of a policy: alpha times a log-density. That
loses nothing, since for the soft-optimal policy this is the true reward up to a potential. It
starts from the clone of the last stage, and is then fitted with the potentials.

The authors' reward is the log-density itself, which must stretch to alpha and cannot: what is left
is a constant, and a potential needs 1 / (1 - gamma) times that to make up for it. They also learn
the divergences by a network, in too few steps. `NeuralLflConfig.authors()` does as they do.

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
import numpy.typing as npt
import torch
from torch import Tensor

from logel.baselines.log_density import LogDensityReward
from logel.baselines.networks import (
    Activation,
    Network,
    check_positive,
    descend,
    forward,
    frozen,
    initial_parameters,
)
from logel.baselines.soft_improvement import StepRows, step_rows, step_targets
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import (
    Choice,
    HistoryError,
    IdentificationError,
    LogelError,
    OptionError,
    PolicyError,
)
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig, clone, known_parameters
from logel.policies.gaussian import GaussianPolicy
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import SoftmaxPolicy, TabularSoftmax
from logel.types import Float, Progress

# Rows evaluated at a time where all of them are: bounds memory.
_BLOCK = 2**14


class Divergence(Choice):
    """How the divergence of consecutive policies is known in the next state.

    EXACT: from both policies, in closed form.
    NETWORK: by a network fitted to it in the stage's states, as the authors do. In their 100 steps
        it learns little more than the mean.
    """

    EXACT = "exact"
    NETWORK = "network"


@dataclass(frozen=True)
class NeuralLflConfig:
    """Choices of the fit; see the module's description for where the defaults differ.

    Attributes:
        hidden: Widths of the reward network; by default those of the policy's, else (64, 64).
        head_hidden: Width of the divergences' and the potentials' hidden layer.
        divergence: See `Divergence`.
        scaled: Whether the reward is the temperature times a log-density, or a log-density.
        clone_steps: Minibatch steps of cloning each stage, warm-started along the history.
        divergence_steps: Of fitting the divergences.
        initial_steps: Of fitting the reward to the last stage.
        shaping_steps: Of fitting the reward with the potentials.
        batch_rows: Rows of every stage in a minibatch.
        rate: Adam's.
    """

    hidden: tuple[int, ...] | None = None
    head_hidden: int = 128
    divergence: Divergence | str = Divergence.EXACT
    scaled: bool = True
    clone_steps: int = 1000
    divergence_steps: int = 100
    initial_steps: int = 3000
    shaping_steps: int = 1000
    batch_rows: int = 256
    rate: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "divergence", Divergence(self.divergence))
        check_positive(head_hidden=self.head_hidden, batch_rows=self.batch_rows, rate=self.rate)
        for name in ("clone_steps", "divergence_steps", "initial_steps", "shaping_steps"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, but is {getattr(self, name)}")

    @classmethod
    def authors(cls) -> NeuralLflConfig:
        """The authors' own choices."""
        return cls(divergence=Divergence.NETWORK, scaled=False, batch_rows=100)


def neural_lfl(
    history: LearningHistory,
    policy: Policy,
    *,
    gamma: float,
    temperature: float = 0.7,
    config: NeuralLflConfig | None = None,
    parameters: npt.ArrayLike | None = None,
    clone_config: CloneConfig | None = None,
    use_parameters: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> LogDensityReward:
    """Recover a reward network from a history.

    Args:
        history: What was observed, at least two stages.
        policy: Gaussian or softmax family of the learner's policies; for tables see `lfl`.
        gamma: Discount factor, in [0, 1).
        temperature: The model's alpha; unless `config` says otherwise, it only scales the reward.
        config: Choices of the fit.
        parameters: The policies, shape (m + 1, d), where they have been cloned already.
        clone_config: Clone by `logel.policies.cloning.clone` like this; by default, by minibatch
            steps, which take seconds where converged clones of networks take minutes.
        use_parameters: Use the history's policy parameters if it has them, instead of cloning.
        seed: Chooses minibatches and the networks' starting points.
        progress: Called with (what, done, total) during long work.
    """
    config = config or NeuralLflConfig()
    _check(history, policy, gamma=gamma, temperature=temperature)
    fit = _Fit(config, np.random.default_rng(seed), progress or (lambda what, done, total: None))
    theta = None if parameters is None else np.asarray(parameters, dtype=float)
    if theta is None and use_parameters:
        theta = known_parameters(history, policy)
    if theta is None:
        theta = _cloned(history, policy, fit, clone_config)
    if theta.shape != (len(history), policy.n_parameters):
        raise HistoryError(
            f"parameters must have shape {(len(history), policy.n_parameters)}, one row per stage, "
            f"but have {theta.shape}"
        )
    family = reward_family(history, policy, hidden=config.hidden)
    steps = [
        step_rows(history[t], policy, theta[t], theta[t + 1], family=family, index=t)
        for t in range(history.n_steps)
    ]
    sizes, rows = [len(step.going) for step in steps], _joined(steps)
    del steps  # a long history need not be held twice
    divergence = rows.next_divergence
    if config.divergence is Divergence.NETWORK:
        divergence = _predicted_divergences(rows, sizes, fit)
    targets = step_targets(rows, divergence, gamma=gamma, temperature=temperature)
    last, start = history[len(history) - 1], family.initial(fit.rng)
    density = fit.density("reward, last stage", family, last, start, config.initial_steps)
    scale = temperature if config.scaled else 1.0
    return _fit_with_potentials(
        family, density, rows, sizes, targets, gamma=gamma, scale=scale, fit=fit
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
    report: Progress

    def batch(self, sizes: Sequence[int]) -> Tensor:
        """Rows of a minibatch: as many of every stage, whatever the stages' sizes."""
        counts = np.asarray(sizes, dtype=np.int64)
        ends = counts.cumsum()
        shape = (self.config.batch_rows, len(sizes))
        return torch.from_numpy(self.rng.integers(ends - counts, ends, shape).ravel())

    def heads(self, rows: StepRows, n_steps: int) -> list[Tensor]:
        """A network with one output per step, not yet fitted."""
        like = rows.observations
        widths = [like.shape[1], self.config.head_hidden, n_steps]
        return initial_parameters(widths, self.rng, dtype=like.dtype, device=str(like.device))

    def descend(
        self, what: str, loss: Callable[[], Tensor], parameters: Sequence[Tensor], n_steps: int
    ) -> None:
        """Minimise, telling how far it is."""
        descend(
            loss,
            parameters,
            n_steps=n_steps,
            rate=self.config.rate,
            report=lambda done: self.report(what, done, n_steps),
        )

    def density(self, what: str, family: Policy, stage: Stage, start: Float, n_steps: int) -> Float:
        """Parameters fitted to a stage's actions by maximum likelihood: a new array."""
        observations, actions = family.prepare(stage)
        theta = family.tensor(start).requires_grad_(True)

        def loss() -> Tensor:
            batch = self.batch([len(actions)])
            return -family.log_prob(theta, observations[batch], actions[batch]).mean()

        self.descend(what, loss, [theta], n_steps)
        # A copy: stages must not share one array, or consecutive policies would never differ.
        return np.array(theta.detach().cpu().numpy())


def _check(history: LearningHistory, policy: Any, *, gamma: float, temperature: float) -> None:
    if isinstance(policy, TabularSoftmax) or not isinstance(policy, GaussianPolicy | SoftmaxPolicy):
        raise PolicyError(
            f"neural LfL needs a Gaussian or softmax family, not {type(policy).__name__}: for "
            "tables use logel.baselines.lfl"
        )
    if len(history) < 2:
        raise IdentificationError(f"the history has {len(history)} stage: at least two are needed")
    if not 0 <= gamma < 1:
        raise OptionError(f"gamma must be in [0, 1), but is {gamma}")
    check_positive(temperature=temperature)


def _cloned(
    history: LearningHistory, policy: Policy, fit: _Fit, clone_config: CloneConfig | None
) -> Float:
    """Parameters of all stages, shape (m + 1, d)."""
    total = len(history)
    if clone_config is not None:
        path = clone(
            history,
            policy,
            clone_config,
            rng=fit.rng,
            progress=lambda done: fit.report("cloning", done, total),
        )
        return path.parameters
    quiet = _Fit(fit.config, fit.rng, lambda what, done, total: None)
    result = [policy.initial(fit.rng)]
    for t, stage in enumerate(history):
        try:
            result.append(quiet.density("", policy, stage, result[-1], fit.config.clone_steps))
        except LogelError as error:
            raise type(error)(f"stage {t}: {error}") from None
        fit.report("cloning", t + 1, total)
    return np.stack(result[1:])


def _joined(steps: Sequence[StepRows]) -> StepRows:
    return StepRows(
        **{f.name: torch.cat([getattr(step, f.name) for step in steps]) for f in fields(StepRows)}
    )


def _potentials(net: Sequence[Tensor], observations: Tensor, step_index: Tensor) -> Tensor:
    """The output that belongs to each row's step, shape (N,)."""
    outputs = forward(net, observations, Activation.TANH)
    return outputs.gather(1, step_index[:, None])[:, 0]


def _predicted_divergences(rows: StepRows, sizes: Sequence[int], fit: _Fit) -> Tensor:
    """Divergences in the next states, by a network fitted to those in the stages' states."""
    net = fit.heads(rows, len(sizes))
    index = _step_index(sizes, rows)

    def loss() -> Tensor:
        batch = fit.batch(sizes)
        predicted = _potentials(net, rows.observations[batch], index[batch])
        return len(sizes) * ((predicted - rows.divergence[batch]) ** 2).mean()

    fit.descend("divergences", loss, net, fit.config.divergence_steps)
    with torch.no_grad():
        return _potentials(net, rows.following, index)


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
    net = fit.heads(rows, len(sizes))
    index = _step_index(sizes, rows)

    def misfit(batch: Tensor | slice) -> Tensor:
        seen, step = rows.observations[batch], index[batch]
        reward = scale * family.log_prob(theta, seen, rows.actions[batch])
        both = torch.cat([seen, rows.following[batch]])
        here, there = _potentials(net, both, torch.cat([step, step])).chunk(2)
        return reward + here - gamma * rows.going[batch] * there - targets[batch]

    def loss() -> Tensor:
        return len(sizes) * (misfit(fit.batch(sizes)) ** 2).mean()

    fit.descend("reward with potentials", loss, [theta, *net], fit.config.shaping_steps)
    with torch.no_grad():
        blocks = range(0, len(targets), _BLOCK)
        errors = torch.cat([misfit(slice(start, start + _BLOCK)) for start in blocks])
    residual, variance = float((errors**2).mean()), float(targets.var(correction=0))
    fitted = theta.detach()
    layers = family.layers.split(fitted)
    return LogDensityReward(
        network=Network(
            tuple(np.array(weight.cpu().numpy()) for weight, _ in layers),
            tuple(np.array(bias.cpu().numpy()) for _, bias in layers if bias is not None),
            Activation.TANH,
        ),
        log_std=np.array(family.log_std(fitted).cpu().numpy())
        if isinstance(family, MLPGaussian)
        else None,
        scale=scale,
        shaping=frozen(net, Activation.TANH),
        residual=residual**0.5,
        explained=1.0 - residual / variance if variance > 0 else float("nan"),
    )


def _step_index(sizes: Sequence[int], rows: StepRows) -> Tensor:
    """The step each row belongs to, shape (N,)."""
    index = np.repeat(np.arange(len(sizes)), sizes)
    return torch.from_numpy(index).to(rows.observations.device)
