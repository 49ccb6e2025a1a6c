"""Gaussian families over real actions, and the one whose means are linear in state features."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.data.stage import Stage
from logel.errors import OptionError, PolicyError
from logel.policies.base import Counted, Fitted, Policy, ScoreRows
from logel.policies.fisher import DenseFisher, Fisher
from logel.policies.layers import FeatureMap, Layers, LinearPolicy
from logel.types import Array, Float

_LOG_2PI = math.log(2 * math.pi)
# Action dimensions up to which three quadrature nodes each are affordable: 27 in all.
MOST_QUADRATURE = 3
# Three Gauss-Hermite nodes integrate polynomials up to fifth order exactly.
_NODES = ((-math.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (math.sqrt(3.0), 1 / 6))


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
    def worlds(self) -> tuple[str, ...]:
        """The critic is averaged over actions by quadrature, if they have few dimensions."""
        return ("critic",) if self.action_dim <= MOST_QUADRATURE else ()

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
        return self.tensor(np.log(sigma)).to(theta)

    def completed(self, theta: Tensor, values: Tensor) -> Tensor:
        """Means and log-deviations, shape (N, 2 k)."""
        return torch.cat([values, self.log_std(theta).expand_as(values)], dim=1)

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Means and log-deviations, shape (N, 2 k)."""
        means = self.means(theta[: self.n_mean_parameters], observations)
        return self.completed(theta, means)

    def log_density(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-density of each action, shape (N,)."""
        means, log_std = outputs.chunk(2, dim=1)
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

    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of every row's actions, up to a constant, shape (N,)."""
        return outputs[:, self.action_dim :].sum(dim=1)

    def nodes(self, outputs: Tensor) -> Iterator[tuple[Float, Tensor]]:
        """Nodes of Gaussian quadrature, exact for polynomials of fifth order."""
        mean, log_std = outputs.chunk(2, dim=1)
        if self.action_dim > MOST_QUADRATURE:
            raise OptionError(
                f"the pooled critic handles up to {MOST_QUADRATURE} action dimensions, not "
                f"{self.action_dim}: use method='two-step'"
            )
        for nodes in product(_NODES, repeat=self.action_dim):
            weight = math.prod(w for _, w in nodes)
            offset = self.tensor([z for z, _ in nodes])
            yield np.full(len(mean), weight), mean + offset * log_std.exp()

    def action_numbers(self, actions: Tensor) -> Float:
        """The actions themselves, shape (N, k)."""
        return np.asarray(actions.cpu().numpy(), dtype=float)

    def action_moments(self, outputs: Tensor) -> tuple[Float, Float]:
        """Means and deviations, each (N, k)."""
        mean, log_std = outputs.chunk(2, dim=1)
        return mean.cpu().numpy(), log_std.exp().cpu().numpy()

    @property
    def n_scores(self) -> int:
        """Standardised actions z."""
        return self.action_dim

    def output_rows(
        self, outputs: Float, actions: Array, following: Float | None
    ) -> tuple[ScoreRows, ScoreRows | None]:
        """Scores z = (a - mean) / deviation of the means, z^2 - 1 of the deviations."""
        means, log_std = np.split(outputs, 2, axis=1)
        z = (actions - means) * np.exp(-log_std)
        moved, sharpened = np.zeros_like(z), np.zeros_like(z)
        if following is not None:
            new_means, new_log_std = np.split(following, 2, axis=1)
            # With r the ratio of deviations and d the shift of the mean in deviations, the
            # log-ratio is -r^2 (z - d)^2 / 2 + z^2 / 2: r^2 d times z plus (1 - r^2) / 2 times
            # z^2 - 1.
            squared = np.exp(2 * (log_std - new_log_std))
            moved = squared * (new_means - means) * np.exp(-log_std)
            sharpened = 1 - squared
        ones = np.ones(self.action_dim)
        return ScoreRows(z, ones, moved), ScoreRows(z**2 - 1, 2 * ones, sharpened)

    def output_scores(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of the log-density w.r.t. means and fitted log-deviations, each (N, k)."""
        means, log_std = outputs.chunk(2, dim=1)
        scaled = (actions - means) * torch.exp(-log_std)
        return scaled * torch.exp(-log_std), scaled**2 - 1.0 if self.sigma is None else None


@dataclass(frozen=True)
class LinearGaussian(LinearPolicy, GaussianPolicy):
    """Means linear in state features, deviations fixed or fitted: one maximum in either case.

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
    def layers(self) -> Layers:
        """One layer, to the means."""
        return Layers((self.n_features, self.action_dim), inputs_first=True)

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

    def closed_form(
        self, data: Counted, start: Float, strength: float, centre: Float, max_iterations: int
    ) -> Fitted:
        """Least squares for given deviations; alternates with fitted ones: the prior joins them."""
        x, y = data.observations.cpu().numpy(), data.actions.cpu().numpy()
        middle = centre[: self.n_mean_parameters].reshape(self.n_features, self.action_dim)
        theta = start
        for iteration in range(1, max_iterations + 1):
            deviation = np.exp(self.log_std(self.tensor(theta)).cpu().numpy())
            columns = []
            for root, target, z in zip(np.sqrt(strength) * deviation, y.T, middle.T, strict=True):
                # The prior as rows of data: no normal equations, so offsets in x cost no digits.
                rows = np.concatenate([x, root * np.eye(self.n_features)]) if root > 0 else x
                target = np.concatenate([target, root * z]) if root > 0 else target
                columns.append(np.linalg.lstsq(rows, target, rcond=None)[0])
            linear = np.stack(columns, axis=1)
            if self.sigma is not None:
                return linear.reshape(-1), True, iteration
            spread = np.sqrt(np.maximum(((y - x @ linear) ** 2).mean(axis=0), 1e-12))
            before, theta = theta, np.concatenate([linear.reshape(-1), np.log(spread)])
            if np.abs(theta - before).max() <= 1e-10:
                return theta, True, iteration
        return theta, False, max_iterations
