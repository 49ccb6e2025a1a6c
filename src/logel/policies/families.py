"""Differentiable policy families: flat parameters in, log-probabilities out, batched.

A family is a frozen description without state: the parameters theta, shape (d,), always travel as
an argument. `prepare` turns a stage's arrays into tensors once; every other method takes those.

To add a family, subclass `SoftmaxPolicy` or `GaussianPolicy`, say how many parameters there are
and how theta and prepared observations give `outputs` (logits, or means and log-deviations);
sampling, log-probabilities, scores, vector-Jacobian products and Fisher information follow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.data.history import Array, Stage
from logel.errors import OptionError, PolicyError
from logel.policies.fisher import BlockFisher, DenseFisher, Fisher, ProductFisher

Float = npt.NDArray[np.float64]
FeatureMap = Callable[[Array], npt.ArrayLike]
_LOG_2PI = math.log(2 * math.pi)


def _row_episode(stage: Stage, row: int) -> int:
    return int(np.searchsorted(stage.starts, row, side="right")) - 1


class Policy(ABC):
    """A family pi_theta(a | s); see the module's description."""

    device: str = "cpu"
    discrete_actions: ClassVar[bool]

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number d of parameters."""

    @property
    def convex(self) -> bool:
        """Whether minus the log-likelihood is convex in theta, so that cloning has one answer."""
        return False

    @property
    def groups(self) -> dict[str, slice]:
        """Named slices of theta; parameters that act differently (log-deviations) stand apart."""
        return {"policy": slice(0, self.n_parameters)}

    @property
    def floats_per_step(self) -> int:
        """Numbers held per step while differentiating; bounds the memory of streamed blocks."""
        return 64

    @abstractmethod
    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as the tensor `outputs` expects, N rows."""

    @abstractmethod
    def prepare_actions(self, actions: Array) -> Tensor:
        """Actions as a tensor: (N,) integers or (N, k) floats."""

    @abstractmethod
    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Parameters of the action distribution, one row per observation."""

    @abstractmethod
    def log_prob(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-probability (density) of each action, shape (N,)."""

    @abstractmethod
    def sample(self, theta: npt.ArrayLike, observations: Array, rng: np.random.Generator) -> Array:
        """One action per observation."""

    @abstractmethod
    def fisher_root(self, outputs: Tensor) -> Tensor:
        """Matrix R of every row with R @ R.T the Fisher information of the outputs, (N, o, r)."""

    def prepare(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """Check a stage against the family and turn it into tensors."""
        self.check(stage)
        return self.prepare_observations(stage.observations), self.prepare_actions(stage.actions)

    def check(self, stage: Stage) -> None:
        """Raise PolicyError, naming the episode, when a stage cannot come from this family."""
        if stage.signature.discrete_actions != self.discrete_actions:
            kinds = (
                ("discrete", "continuous") if self.discrete_actions else ("continuous", "discrete")
            )
            raise PolicyError(
                f"{type(self).__name__} needs {kinds[0]} actions, not {kinds[1]} ones"
            )

    def tensor(self, values: npt.ArrayLike) -> Tensor:
        """A float64 tensor on the family's device."""
        return torch.tensor(np.asarray(values, dtype=np.float64), device=self.device)

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        single = torch.func.grad(lambda th, o, a: self.log_prob(th, o[None], a[None])[0])
        return torch.func.vmap(single, in_dims=(None, 0, 0))(theta, observations, actions)

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent: shape (d, q) for cotangents (N, q).

        No per-row gradient is formed: one batched backward pass per call.
        """
        theta = theta.detach().requires_grad_(True)
        value = self.log_prob(theta, observations, actions)
        (rows,) = torch.autograd.grad(value, theta, cotangents.T, is_grads_batched=True)
        return rows.T

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta in the given observations (optionally with multiplicities)."""
        theta = theta.detach()
        weight = self._counts(observations, counts)
        function = partial(self.outputs, observations=observations)

        def product(vector: Float) -> Float:
            # J v by differentiating J^T u along u: forward mode would load torch's deprecated
            # decompositions, which warn.
            point = theta.clone().requires_grad_(True)
            value = function(point)
            dummy = torch.zeros_like(value, requires_grad=True)
            (pulled,) = torch.autograd.grad(value, point, dummy, create_graph=True)
            (pushed,) = torch.autograd.grad(pulled, dummy, self.tensor(vector), retain_graph=True)
            root = self.fisher_root(value.detach()) * weight.sqrt()[:, None, None]
            inner = torch.einsum("nor,npr,np->no", root, root, pushed)
            (product,) = torch.autograd.grad(value, point, inner)
            return np.asarray(product.cpu().numpy())

        def diagonal() -> Float:
            total = torch.zeros_like(theta)
            block = max(1, 2**22 // self.n_parameters)
            for start in range(0, len(observations), block):
                total += self._fisher_diagonal(
                    theta, observations[start : start + block], weight[start : start + block]
                )
            return np.asarray(total.cpu().numpy())

        return ProductFisher(self.n_parameters, product, diagonal)

    def _counts(self, observations: Tensor, counts: Tensor | None) -> Tensor:
        if counts is not None:
            return counts
        return torch.ones(len(observations), dtype=torch.float64, device=self.device)

    def _fisher_diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Tensor:
        root = self.fisher_root(self.outputs(theta, observations))
        single = torch.func.grad(lambda th, o, r: (self.outputs(th, o[None])[0] * r).sum())
        batched = torch.func.vmap(single, in_dims=(None, 0, 0))
        total = torch.zeros_like(theta)
        for column in root.unbind(dim=2):
            total += (weight[:, None] * batched(theta, observations, column) ** 2).sum(dim=0)
        return total


class SoftmaxPolicy(Policy):
    """Families over finitely many actions; `outputs` are logits, shape (N, n_actions)."""

    discrete_actions: ClassVar[bool] = True
    n_actions: int

    def check(self, stage: Stage) -> None:
        """Raise PolicyError, naming the episode, when a stage cannot come from this family."""
        super().check(stage)
        if stage.actions.ndim != 1:
            raise PolicyError(
                f"discrete actions must be flat, but have shape {stage.actions.shape}: use .ravel()"
            )
        bad = (stage.actions < 0) | (stage.actions >= self.n_actions)
        if bad.any():
            row = int(np.argmax(bad))
            raise PolicyError(
                f"episode {_row_episode(stage, row)}, time {stage.times[row]}: action "
                f"{stage.actions[row]} is outside 0..{self.n_actions - 1}"
            )

    def prepare_actions(self, actions: Array) -> Tensor:
        """Actions as an integer tensor, shape (N,)."""
        return torch.tensor(np.asarray(actions), dtype=torch.int64, device=self.device)

    def log_prob(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-probability of each action, shape (N,)."""
        logits = torch.log_softmax(self.outputs(theta, observations), dim=-1)
        return logits.gather(1, actions[:, None])[:, 0]

    def probabilities(self, theta: npt.ArrayLike, observations: Array) -> Float:
        """Action probabilities, shape (N, n_actions)."""
        logits = self.outputs(self.tensor(theta), self.prepare_observations(observations))
        return np.asarray(torch.softmax(logits, dim=-1).detach().cpu().numpy())

    def sample(self, theta: npt.ArrayLike, observations: Array, rng: np.random.Generator) -> Array:
        """One action per observation."""
        cumulative = self.probabilities(theta, observations).cumsum(axis=1)
        draws = rng.random(len(cumulative)) * cumulative[:, -1]
        return np.asarray((draws[:, None] >= cumulative).sum(axis=1), dtype=np.int64)

    def fisher_root(self, outputs: Tensor) -> Tensor:
        """A root of diag(p) - p p^T, shape (N, n_actions, n_actions)."""
        p = torch.softmax(outputs, dim=-1)
        return torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :]

    def logit_scores(self, logits: Tensor, actions: Tensor) -> Tensor:
        """Gradient of the log-probability w.r.t. the logits, shape (N, n_actions)."""
        return torch.nn.functional.one_hot(actions, self.n_actions) - torch.softmax(logits, dim=-1)


@dataclass(frozen=True)
class TabularSoftmax(SoftmaxPolicy):
    """One logit per state and action; the last action's logit is fixed at 0.

    theta is state-major: d = n_states * (n_actions - 1).
    """

    n_states: int
    n_actions: int
    device: str = "cpu"

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.n_states * (self.n_actions - 1)

    @property
    def convex(self) -> bool:
        """Log-linear, hence convex."""
        return True

    @property
    def floats_per_step(self) -> int:
        """Sums over rows go straight into the table."""
        return 4

    def check(self, stage: Stage) -> None:
        """Raise PolicyError, naming the episode, when a stage cannot come from this family."""
        super().check(stage)
        signature = stage.signature
        if not signature.discrete_observations or signature.observation_shape != ():
            raise PolicyError(
                "TabularSoftmax needs one integer state per time, but observations have shape "
                f"{signature.observation_shape}"
            )
        bad = (stage.observations < 0) | (stage.observations >= self.n_states)
        if bad.any():
            row = int(np.argmax(bad))
            raise PolicyError(
                f"episode {_row_episode(stage, row)}, time {stage.times[row]}: state "
                f"{stage.observations[row]} is outside 0..{self.n_states - 1}"
            )

    def prepare_observations(self, observations: Array) -> Tensor:
        """States as an integer tensor, shape (N,)."""
        return torch.tensor(np.asarray(observations), dtype=torch.int64, device=self.device)

    def table(self, theta: Tensor) -> Tensor:
        """Logits of all states, shape (n_states, n_actions)."""
        free = theta.reshape(self.n_states, self.n_actions - 1)
        return torch.cat([free, torch.zeros_like(free[:, :1])], dim=1)

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Logits, shape (N, n_actions)."""
        return self.table(theta)[observations]

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        rows = torch.zeros(
            len(actions), self.n_states, self.n_actions - 1, dtype=theta.dtype, device=self.device
        )
        index = torch.arange(len(actions), device=self.device)
        logits = self.outputs(theta, observations)
        rows[index, observations] = self.logit_scores(logits, actions)[:, :-1]
        return rows.reshape(len(actions), -1)

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q), scattered into the table."""
        q = cotangents.shape[1]
        sums = torch.zeros(self.n_states * self.n_actions, q, dtype=theta.dtype, device=self.device)
        sums.index_add_(0, observations * self.n_actions + actions, cotangents)
        taken = sums.reshape(self.n_states, self.n_actions, q)
        p = torch.softmax(self.table(theta), dim=-1)
        result = taken - p[:, :, None] * taken.sum(dim=1, keepdim=True)
        return result[:, :-1].reshape(-1, q)

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta: one block per state."""
        p = torch.softmax(self.table(theta), dim=-1)[:, :-1]
        visits = torch.bincount(observations, weights=counts, minlength=self.n_states)
        blocks = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        return BlockFisher((visits[:, None, None] * blocks).cpu().numpy())


def _mapped(feature_map: FeatureMap | None, observations: Array, n_features: int) -> Float:
    """Apply a feature map and check the width of what it returns."""
    values = observations if feature_map is None else feature_map(observations)
    table = np.asarray(values, dtype=np.float64).reshape(len(observations), -1)
    if table.shape[1] != n_features:
        raise PolicyError(
            f"the policy has {n_features} state features, but its feature map gives "
            f"{table.shape[1]}"
        )
    return table


def _kronecker_vjp(inputs: Tensor, scores: Tensor, cotangents: Tensor) -> Tensor:
    """Sum over rows of (input (x) score) (x) cotangent, shape (f * k, q), as one product."""
    q = cotangents.shape[1]
    if inputs.shape[1] < scores.shape[1]:
        # Only the narrower factor is multiplied out row by row.
        swapped = _kronecker_vjp(scores, inputs, cotangents)
        return swapped.reshape(scores.shape[1], -1, q).transpose(0, 1).reshape(-1, q)
    right = (scores[:, :, None] * cotangents[:, None, :]).reshape(len(inputs), -1)
    return (inputs.T @ right).reshape(inputs.shape[1] * scores.shape[1], q)


@dataclass(frozen=True)
class LinearSoftmax(SoftmaxPolicy):
    """Logits linear in state features; the last action's logit is fixed at 0.

    theta is feature-major: d = n_features * (n_actions - 1), entry f * (n_actions - 1) + a.

    Attributes:
        n_features: Width of the state features.
        n_actions: Number of actions.
        feature_map: Maps N observations to (N, n_features); None uses the observations themselves.
        device: Where tensors live.
    """

    n_features: int
    n_actions: int
    feature_map: FeatureMap | None = None
    device: str = "cpu"

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.n_features * (self.n_actions - 1)

    @property
    def convex(self) -> bool:
        """Log-linear, hence convex."""
        return True

    @property
    def floats_per_step(self) -> int:
        """The products of scores and cotangents are formed row by row."""
        return self.n_features + 3 * self.n_actions

    def prepare_observations(self, observations: Array) -> Tensor:
        """State features, shape (N, n_features)."""
        return self.tensor(_mapped(self.feature_map, observations, self.n_features))

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Logits, shape (N, n_actions)."""
        free = observations @ theta.reshape(self.n_features, self.n_actions - 1)
        return torch.cat([free, torch.zeros_like(free[:, :1])], dim=1)

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        inner = self.logit_scores(self.outputs(theta, observations), actions)[:, :-1]
        return (observations[:, :, None] * inner[:, None, :]).reshape(len(actions), -1)

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q)."""
        inner = self.logit_scores(self.outputs(theta, observations), actions)[:, :-1]
        return _kronecker_vjp(observations, inner, cotangents)

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta, dense."""
        p = torch.softmax(self.outputs(theta, observations), dim=-1)[:, :-1]
        weight = self._counts(observations, counts)
        k = self.n_actions - 1
        inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        matrix = torch.empty(self.n_features, k, self.n_features, k, dtype=p.dtype)
        for a in range(k):
            for b in range(a + 1):
                block = observations.T @ ((weight * inner[:, a, b])[:, None] * observations)
                matrix[:, a, :, b] = matrix[:, b, :, a] = block.cpu()
        return DenseFisher(matrix.reshape(self.n_parameters, -1).numpy())


class GaussianPolicy(Policy):
    """Families over real actions; `outputs` are means and log-deviations, shape (N, 2 k).

    With `sigma` given the deviations are fixed, otherwise the last k parameters are their
    logarithms, the same in every state.
    """

    discrete_actions: ClassVar[bool] = False
    action_dim: int
    sigma: float | Sequence[float] | None

    @abstractmethod
    def means(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Means, shape (N, k), from the parameters without the log-deviations."""

    @property
    @abstractmethod
    def n_mean_parameters(self) -> int:
        """Number of parameters of the means."""

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.n_mean_parameters + (self.action_dim if self.sigma is None else 0)

    @property
    def groups(self) -> dict[str, slice]:
        """The means' parameters, and the log-deviations' if fitted."""
        mean = {"mean": slice(0, self.n_mean_parameters)}
        if self.sigma is not None:
            return mean
        return {**mean, "log_std": slice(self.n_mean_parameters, self.n_parameters)}

    def check(self, stage: Stage) -> None:
        """Raise PolicyError, naming the episode, when a stage cannot come from this family."""
        super().check(stage)
        width = int(np.prod(stage.actions.shape[1:], dtype=int))
        if width != self.action_dim:
            raise PolicyError(
                f"the policy has {self.action_dim} action dimensions, the data {width}"
            )

    def prepare_actions(self, actions: Array) -> Tensor:
        """Actions as a tensor, shape (N, k)."""
        return self.tensor(np.reshape(actions, (len(actions), self.action_dim)))

    def log_std(self, theta: Tensor) -> Tensor:
        """Log-deviations, shape (k,)."""
        if self.sigma is None:
            return theta[self.n_mean_parameters :]
        sigma = np.broadcast_to(np.asarray(self.sigma, dtype=np.float64), (self.action_dim,))
        return self.tensor(np.log(sigma))

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Means and log-deviations, shape (N, 2 k)."""
        means = self.means(theta[: self.n_mean_parameters], observations)
        return torch.cat([means, self.log_std(theta).expand_as(means)], dim=1)

    def log_prob(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-density of each action, shape (N,)."""
        means, log_std = self.outputs(theta, observations).chunk(2, dim=1)
        scaled = (actions - means) * torch.exp(-log_std)
        return (-0.5 * scaled**2 - log_std - 0.5 * _LOG_2PI).sum(dim=1)

    def sample(self, theta: npt.ArrayLike, observations: Array, rng: np.random.Generator) -> Array:
        """One action per observation, shape (N, k)."""
        outputs = self.outputs(self.tensor(theta), self.prepare_observations(observations))
        means, log_std = outputs.detach().cpu().chunk(2, dim=1)
        noise = rng.standard_normal(means.shape)
        return np.asarray(means.numpy() + np.exp(log_std.numpy()) * noise)

    def fisher_root(self, outputs: Tensor) -> Tensor:
        """A root of diag(1 / sigma^2, 2), shape (N, 2 k, 2 k)."""
        log_std = outputs[:, self.action_dim :]
        return torch.diag_embed(
            torch.cat([torch.exp(-log_std), torch.full_like(log_std, math.sqrt(2.0))], dim=1)
        )

    def output_scores(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the log-density w.r.t. means and log-deviations, each (N, k)."""
        means, log_std = outputs.chunk(2, dim=1)
        scaled = (actions - means) * torch.exp(-log_std)
        return scaled * torch.exp(-log_std), scaled**2 - 1.0


@dataclass(frozen=True)
class LinearGaussian(GaussianPolicy):
    """Means linear in state features, deviations fixed or fitted.

    theta is feature-major, entry f * action_dim + k, then the log-deviations if fitted.

    Attributes:
        n_features: Width of the state features.
        action_dim: Number k of action dimensions.
        sigma: Fixed standard deviation (one, or one per dimension); None to fit it.
        feature_map: Maps N observations to (N, n_features); None uses the observations themselves.
        device: Where tensors live.
    """

    n_features: int
    action_dim: int
    sigma: float | Sequence[float] | None = None
    feature_map: FeatureMap | None = None
    device: str = "cpu"

    @property
    def n_mean_parameters(self) -> int:
        """Number of parameters of the means."""
        return self.n_features * self.action_dim

    @property
    def convex(self) -> bool:
        """Least squares when the deviations are fixed; jointly, still one maximum."""
        return True

    def prepare_observations(self, observations: Array) -> Tensor:
        """State features, shape (N, n_features)."""
        return self.tensor(_mapped(self.feature_map, observations, self.n_features))

    def means(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Means, shape (N, k)."""
        return observations @ theta.reshape(self.n_features, self.action_dim)

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-density, shape (N, d)."""
        mean, log_std = self.output_scores(self.outputs(theta, observations), actions)
        linear = (observations[:, :, None] * mean[:, None, :]).reshape(len(actions), -1)
        return linear if self.sigma is not None else torch.cat([linear, log_std], dim=1)

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q)."""
        mean, log_std = self.output_scores(self.outputs(theta, observations), actions)
        linear = _kronecker_vjp(observations, mean, cotangents)
        return linear if self.sigma is not None else torch.cat([linear, log_std.T @ cotangents])

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta, dense."""
        rows = observations if counts is None else counts[:, None] * observations
        precision = torch.exp(-2 * self.log_std(theta))
        matrix = torch.kron(observations.T @ rows, torch.diag(precision))
        if self.sigma is None:
            total = self._counts(observations, counts).sum()
            deviations = 2 * total * torch.eye(self.action_dim, device=self.device).double()
            corner = torch.zeros(len(matrix), self.action_dim).to(matrix)
            matrix = torch.cat(
                [torch.cat([matrix, corner], dim=1), torch.cat([corner.T, deviations], dim=1)]
            )
        return DenseFisher(matrix.cpu().numpy())


class _Network:
    """A multi-layer perceptron with tanh between layers, its weights in a flat vector.

    Layer by layer: the weight matrix (out x in, row-major), then the bias if there is one.
    """

    def __init__(self, widths: Sequence[int], bias: bool) -> None:
        self.shapes = [(out, width) for width, out in pairwise(widths)]
        self.bias = bias
        self.n_parameters = sum(o * i + (o if bias else 0) for o, i in self.shapes)

    def layers(self, theta: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of every layer, as views of theta."""
        result, at = [], 0
        for out, width in self.shapes:
            weight = theta[at : at + out * width].reshape(out, width)
            at += out * width
            bias = theta[at : at + out] if self.bias else None
            at += out if self.bias else 0
            result.append((weight, bias))
        return result

    def activations(self, theta: Tensor, inputs: Tensor) -> list[Tensor]:
        """Input of every layer, then the network's output."""
        values = [inputs]
        for index, (weight, bias) in enumerate(self.layers(theta)):
            linear = torch.nn.functional.linear(values[-1], weight, bias)
            values.append(linear if index == len(self.shapes) - 1 else torch.tanh(linear))
        return values

    def scores(self, theta: Tensor, activations: list[Tensor], output_scores: Tensor) -> Tensor:
        """Per-row gradients, shape (N, n_parameters), written once into one array.

        A row's gradient w.r.t. a weight matrix is an outer product, so a backward pass over the
        batch and one product per layer give them all.
        """
        rows = torch.empty(
            len(output_scores), self.n_parameters, dtype=theta.dtype, device=theta.device
        )
        at = self.n_parameters
        for values, back in self._backward(theta, activations, output_scores):
            out, width = back.shape[1], values.shape[1]
            if self.bias:
                rows[:, at - out : at] = back
                at -= out
            target = rows[:, at - out * width : at].view(-1, out, width)
            torch.mul(back[:, :, None], values[:, None, :], out=target)
            at -= out * width
        return rows

    def vjp(
        self, theta: Tensor, activations: list[Tensor], output_scores: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of gradient (x) cotangent, shape (n_parameters, q).

        The backward pass is shared by all cotangents; they only enter one product per layer.
        """
        parts = []
        for values, back in self._backward(theta, activations, output_scores):
            if self.bias:
                parts.append(back.T @ cotangents)
            parts.append(_kronecker_vjp(back, values, cotangents))
        return torch.cat(parts[::-1])

    def squares(
        self, theta: Tensor, activations: list[Tensor], output_scores: Tensor, weight: Tensor
    ) -> Tensor:
        """Weighted sum over rows of squared gradients, shape (n_parameters,).

        The square of an outer product is the outer product of squares: no row's gradient is formed.
        """
        parts = []
        for values, back in self._backward(theta, activations, output_scores):
            squared = weight[:, None] * back**2
            if self.bias:
                parts.append(squared.sum(dim=0))
            parts.append((squared.T @ values**2).reshape(-1))
        return torch.cat(parts[::-1])

    def _backward(
        self, theta: Tensor, activations: list[Tensor], output_scores: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """From the last layer to the first: its inputs, and gradients w.r.t. its linear outputs."""
        back = output_scores
        layers = self.layers(theta)
        for index in reversed(range(len(layers))):
            yield activations[index], back
            if index > 0:
                back = (back @ layers[index][0]) * (1.0 - activations[index] ** 2)

    def initial(self, rng: np.random.Generator, final_scale: float) -> Float:
        """Fan-in scaled normal weights, zero biases, a small last layer."""
        parts: list[Float] = []
        for index, (out, width) in enumerate(self.shapes):
            scale = final_scale if index == len(self.shapes) - 1 else 1.0
            parts.append(scale * rng.standard_normal(out * width) / np.sqrt(width))
            parts.append(np.zeros(out if self.bias else 0))
        return np.concatenate(parts)


def _flat_floats(policy: Policy, observations: Array, width: int) -> Tensor:
    table = policy.tensor(observations).reshape(len(observations), -1)
    if table.shape[1] != width:
        raise PolicyError(
            f"the policy takes observations of {width} numbers, but the data have {table.shape[1]}"
        )
    return table


def _check_widths(widths: Sequence[Any]) -> None:
    if any(not isinstance(w, int) or w < 1 for w in widths):
        raise OptionError(f"a network's layers need positive whole widths, not {list(widths)}")


@dataclass(frozen=True)
class MLPGaussian(GaussianPolicy):
    """Means from a tanh network, deviations fixed or fitted (state-independent).

    Attributes:
        observation_dim: Numbers in one observation.
        action_dim: Number k of action dimensions.
        hidden: Widths of the hidden layers.
        bias: Whether layers have biases.
        sigma: Fixed standard deviation (one, or one per dimension); None to fit it.
        device: Where tensors live.
    """

    observation_dim: int
    action_dim: int
    hidden: tuple[int, ...] = (64, 64)
    bias: bool = True
    sigma: float | Sequence[float] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        _check_widths([self.observation_dim, *self.hidden, self.action_dim])

    @property
    def network(self) -> _Network:
        """The network that gives the means."""
        return _Network([self.observation_dim, *self.hidden, self.action_dim], self.bias)

    @property
    def n_mean_parameters(self) -> int:
        """Number of parameters of the means."""
        return self.network.n_parameters

    @property
    def floats_per_step(self) -> int:
        """Activations kept for the backward pass."""
        return 4 * sum(self.hidden) + 8 * self.action_dim

    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as floats, shape (N, observation_dim)."""
        return _flat_floats(self, observations, self.observation_dim)

    def means(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Means, shape (N, k)."""
        return self.network.activations(theta, observations)[-1]

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-density, shape (N, d)."""
        inner, values, mean, log_std = self._forward(theta, observations, actions)
        rows = self.network.scores(inner, values, mean)
        return rows if self.sigma is not None else torch.cat([rows, log_std], dim=1)

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q)."""
        inner, values, mean, log_std = self._forward(theta.detach(), observations, actions)
        result = self.network.vjp(inner, values, mean, cotangents)
        return result if self.sigma is not None else torch.cat([result, log_std.T @ cotangents])

    def _fisher_diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Tensor:
        inner = theta[: self.n_mean_parameters]
        values = self.network.activations(inner, observations)
        spread = self.log_std(theta).expand_as(values[-1])
        root = self.fisher_root(torch.cat([values[-1], spread], dim=1))[:, : self.action_dim]
        total = torch.stack(
            [self.network.squares(inner, values, column, weight) for column in root.unbind(dim=2)]
        ).sum(dim=0)
        if self.sigma is not None:
            return total
        # A Gaussian has information 2 about each log-deviation.
        return torch.cat([total, (2 * weight.sum()).expand(self.action_dim)])

    def _forward(
        self, theta: Tensor, observations: Tensor, actions: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        """The network's parameters, its activations, and the scores of means and log-deviations."""
        inner = theta[: self.n_mean_parameters]
        values = self.network.activations(inner, observations)
        outputs = torch.cat([values[-1], self.log_std(theta).expand_as(values[-1])], dim=1)
        return inner, values, *self.output_scores(outputs, actions)

    def initial(self, rng: np.random.Generator) -> Float:
        """Starting parameters: a nearly constant policy with unit deviations."""
        means = self.network.initial(rng, 0.01)
        return np.concatenate([means, np.zeros(self.n_parameters - len(means))])


@dataclass(frozen=True)
class MLPCategorical(SoftmaxPolicy):
    """Logits of all actions from a tanh network.

    Attributes:
        observation_dim: Numbers in one observation.
        n_actions: Number of actions.
        hidden: Widths of the hidden layers.
        bias: Whether layers have biases.
        device: Where tensors live.
    """

    observation_dim: int
    n_actions: int
    hidden: tuple[int, ...] = (64, 64)
    bias: bool = True
    device: str = "cpu"

    def __post_init__(self) -> None:
        _check_widths([self.observation_dim, *self.hidden, self.n_actions])

    @property
    def network(self) -> _Network:
        """The network that gives the logits."""
        return _Network([self.observation_dim, *self.hidden, self.n_actions], self.bias)

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.network.n_parameters

    @property
    def floats_per_step(self) -> int:
        """Activations kept for the backward pass."""
        return 4 * sum(self.hidden) + 8 * self.n_actions

    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as floats, shape (N, observation_dim)."""
        return _flat_floats(self, observations, self.observation_dim)

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Logits, shape (N, n_actions)."""
        return self.network.activations(theta, observations)[-1]

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        values = self.network.activations(theta, observations)
        return self.network.scores(theta, values, self.logit_scores(values[-1], actions))

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q)."""
        theta = theta.detach()
        values = self.network.activations(theta, observations)
        scores = self.logit_scores(values[-1], actions)
        return self.network.vjp(theta, values, scores, cotangents)

    def _fisher_diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Tensor:
        values = self.network.activations(theta, observations)
        root = self.fisher_root(values[-1])
        return torch.stack(
            [self.network.squares(theta, values, column, weight) for column in root.unbind(dim=2)]
        ).sum(dim=0)

    def initial(self, rng: np.random.Generator) -> Float:
        """Starting parameters: a nearly uniform policy."""
        return self.network.initial(rng, 0.01)
