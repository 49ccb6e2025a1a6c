"""Differentiable policy families: flat parameters in, log-probabilities out, batched.

A family is a frozen description without state: the parameters theta, shape (d,), always travel as
an argument. `prepare` turns a stage's arrays into tensors once; every other method takes those.

To add a family, subclass `SoftmaxPolicy` or `GaussianPolicy` and give `n_parameters` (or
`n_mean_parameters`), `prepare_observations` and `outputs` (or `means`): sampling, derivatives,
Fisher information, cloning, the pooled critic and mirror descent follow. A family may say more of
itself and is then served better: `convex`, `worlds`, `n_state_features`, `initial`, `closed_form`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.data.stage import Stage
from logel.errors import PolicyError
from logel.policies.fisher import Fisher, ProductFisher
from logel.types import Array, Float

Fitted = tuple[Float, bool, int]
"""Parameters (d,) found by a search, whether it converged, and its iterations."""


def check_range(stage: Stage, what: str, values: Array, count: int) -> None:
    """Raise PolicyError, naming the episode, unless a stage's values (N,) lie in 0..count - 1."""
    bad = (values < 0) | (values >= count)
    if bad.any():
        row = int(np.argmax(bad))
        raise PolicyError(f"{stage.place(row)}: {what} {values[row]} is outside 0..{count - 1}")


class Counted(NamedTuple):
    """A stage's steps as tensors, N rows, each with how often it occurs."""

    observations: Tensor
    actions: Tensor
    counts: Tensor


class ScoreRows(NamedTuple):
    """Functions of the action, k of them, with mean zero under the policy in every row's state."""

    values: Float  # of the actions taken, shape (N, k)
    # Covariance in each state, (N, k, k); its diagonal, (k,), if always the same.
    information: Float
    movement: Float  # covariance with the log-ratio of the next policy to this one, (N, k)


class Policy(ABC):
    """A family pi_theta(a | s); see the module's description.

    Attributes:
        device: Where tensors live.
        discrete_actions: Whether actions are numbered.
        convex: Whether minus the log-likelihood is convex in theta: cloning has one answer.
    """

    device: str = "cpu"
    discrete_actions: ClassVar[bool]
    convex: ClassVar[bool] = False

    @property
    def worlds(self) -> tuple[str, ...]:
        """Pooled worlds the family can be seen in, best first.

        "table": observations are the numbers of states, "distinct": so are the different
        observations, if they are few, "critic": the features' critic is averaged over actions.
        """
        return ()

    @property
    def tabular(self) -> bool:
        """Whether observations are the numbers of states: counts of pairs then say everything."""
        return "table" in self.worlds

    @property
    def n_state_features(self) -> int | None:
        """Width of the `state_features` that outputs are linear in; None if there are none."""
        return None

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number d of parameters."""

    @property
    def floats_per_step(self) -> int:
        """Numbers held per step while differentiating; bounds the memory of streamed blocks."""
        return 64

    def initial(self, rng: np.random.Generator) -> Float:
        """Where cloning the first stage starts, shape (d,)."""
        return np.zeros(self.n_parameters)

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
    def log_density(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-probability (density) of each action under its row of outputs, shape (N,)."""

    def log_prob(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-probability (density) of each action, shape (N,)."""
        return self.log_density(self.outputs(theta, observations), actions)

    @abstractmethod
    def sample(self, theta: npt.ArrayLike, observations: Array, rng: np.random.Generator) -> Array:
        """One action per observation."""

    @abstractmethod
    def fisher_root(self, outputs: Tensor) -> Tensor:
        """Matrix R of every row with R @ R.T the Fisher information of the outputs, (N, o, r)."""

    # The distribution that outputs stand for: SoftmaxPolicy and GaussianPolicy know it.

    @property
    def n_scores(self) -> int:
        """Number k of functions in the first of `output_rows`."""
        raise PolicyError(
            f"{type(self).__name__} is neither a softmax nor a Gaussian family: mirror "
            "descent needs the scores of one of them"
        )

    def output_rows(
        self, outputs: Float, actions: Array, following: Float | None
    ) -> tuple[ScoreRows, ScoreRows | None]:
        """Scores in terms of outputs, and those of deviations, which are shared by all states.

        The following policy's outputs are those of the next stage, None if there is none.
        """
        raise NotImplementedError

    def completed(self, theta: Tensor, values: Tensor) -> Tensor:
        """Outputs from what a network puts out: with a missing logit, or log-deviations."""
        raise NotImplementedError

    def output_scores(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of the log-probability w.r.t. logits or means, and fitted log-deviations."""
        raise NotImplementedError

    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of every row's actions, up to a constant, shape (N,)."""
        raise NotImplementedError

    def nodes(self, outputs: Tensor) -> Iterator[tuple[Float, Tensor]]:
        """Actions (N rows) that stand for all, each with its weights (N,) in every row."""
        raise NotImplementedError

    def action_numbers(self, actions: Tensor) -> Float:
        """Actions as numbers that can be averaged: indicators, or themselves, shape (N, k)."""
        raise NotImplementedError

    def action_moments(self, outputs: Tensor) -> tuple[Float, Float]:
        """Mean and deviation of `action_numbers` in every row, each (N, k)."""
        raise NotImplementedError

    def state_features(self, observations: Array) -> Float:
        """What outputs are linear in, shape (N, n_state_features)."""
        return np.asarray(self.prepare_observations(observations).cpu().numpy())

    def counted(self, stage: Stage) -> Counted:
        """A checked stage's steps, equal ones as one row where that is worth it."""
        observations, actions = self.prepare(stage)
        return Counted(observations, actions, self._counts(observations, None))

    def closed_form(
        self, data: Counted, start: Float, strength: float, centre: Float, max_iterations: int
    ) -> Fitted | None:
        """The most likely parameters, if no general search is needed; see `cloning`."""
        return None

    def prepare(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """Check a stage against the family and turn it into tensors."""
        self.check(stage)
        return self.prepare_observations(stage.observations), self.prepare_actions(stage.actions)

    def check(self, stage: Stage) -> None:
        """Raise PolicyError, naming the episode, when a stage cannot come from this family."""
        if stage.signature.discrete_actions != self.discrete_actions:
            kinds = ("continuous", "discrete")
            needed, given = kinds if not self.discrete_actions else kinds[::-1]
            raise PolicyError(f"{type(self).__name__} needs {needed} actions, not {given} ones")

    def tensor(self, values: npt.ArrayLike) -> Tensor:
        """A float64 tensor on the family's device."""
        return torch.tensor(np.asarray(values, dtype=np.float64), device=self.device)

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        single = torch.func.grad(lambda th, x, a: self.log_density(self._alone(th, x), a[None])[0])
        each = torch.func.vmap(single, in_dims=(None, 0, 0))
        return each(theta, self.inputs(observations), actions)

    def inputs(self, observations: Tensor) -> Any:
        """Prepared observations, in the form in which single rows are differentiated."""
        return observations

    def _alone(self, theta: Tensor, inputs: Any) -> Tensor:
        """Outputs of a single row out of `inputs`, shape (1, o)."""
        return self.outputs(theta, inputs[None])

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

    def mean_score(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of the rows' mean log-probability, shape (d,)."""
        theta = theta.detach().requires_grad_(True)
        value = self.log_prob(theta, observations, actions).mean()
        return torch.autograd.grad(value, theta)[0]

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta in the given observations (optionally with multiplicities)."""
        theta = theta.detach()
        weight = self._counts(observations, counts)

        def product(vector: Float) -> Float:
            # J v by differentiating J^T u along u: forward mode would load torch's deprecated
            # decompositions, which warn.
            point = theta.clone().requires_grad_(True)
            value = self.outputs(point, observations)
            dummy = torch.zeros_like(value, requires_grad=True)
            (pulled,) = torch.autograd.grad(value, point, dummy, create_graph=True)
            (pushed,) = torch.autograd.grad(pulled, dummy, self.tensor(vector), retain_graph=True)
            root = self.fisher_root(value.detach()) * weight.sqrt()[:, None, None]
            inner = torch.einsum("nor,npr,np->no", root, root, pushed)
            (product,) = torch.autograd.grad(value, point, inner)
            return np.asarray(product.cpu().numpy())

        def diagonal(most: int | None) -> Float:
            total = torch.zeros_like(theta)
            some = slice(None, None, max(1, len(weight) // (most or len(weight))))
            rows, times = observations[some], weight[some] * (weight.sum() / weight[some].sum())
            block = max(1, 2**22 // self.n_parameters)
            for start in range(0, len(rows), block):
                part = slice(start, start + block)
                total += self._fisher_diagonal(theta, rows[part], times[part])
            return np.asarray(total.cpu().numpy())

        return ProductFisher(self.n_parameters, product, diagonal)

    def _counts(self, observations: Tensor, counts: Tensor | None) -> Tensor:
        if counts is not None:
            return counts
        return torch.ones(len(observations), dtype=torch.float64, device=self.device)

    def _fisher_diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Tensor:
        root = self.fisher_root(self.outputs(theta, observations))
        single = torch.func.grad(lambda th, x, r: (self._alone(th, x)[0] * r).sum())
        batched, inputs = torch.func.vmap(single, in_dims=(None, 0, 0)), self.inputs(observations)
        total = torch.zeros_like(theta)
        for column in root.unbind(dim=2):
            total += (weight[:, None] * batched(theta, inputs, column) ** 2).sum(dim=0)
        return total
