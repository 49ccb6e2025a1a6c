"""What a network's outputs say about actions: log-probabilities and their derivatives, stacked.

Outputs are (K, B, o) for K candidates and B observations; `extra` (K, e) are parameters beside the
network (log-deviations). Derivatives are w.r.t. outputs and extra alone: the network does the rest.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class Head(Protocol):
    """One kind of action distribution."""

    n_extra: int

    def log_prob(self, outputs: Tensor, extra: Tensor, actions: Tensor) -> Tensor:
        """Of actions (B, ...) or (K, B, ...), shape (K, B)."""

    def backward(
        self, outputs: Tensor, extra: Tensor, actions: Tensor, weight: Tensor, entropy: float
    ) -> tuple[Tensor, Tensor]:
        """Gradients of sum(weight * log_prob) + entropy * mean entropy; weight is (K, B)."""

    def fisher(self, outputs: Tensor, extra: Tensor, change: Tensor) -> Tensor:
        """Curvature of `divergence` times a change of the outputs."""

    def fisher_extra(self, beside: Tensor) -> Tensor:
        """The same for the extra, which all observations share."""

    def divergence(self, new: Tensor, new_extra: Tensor, old: Tensor, old_extra: Tensor) -> Tensor:
        """Mean KL divergence of the new from the old, shape (K,).

        As sb3-contrib has it: of Gaussians the mean over the dimensions of actions, not the sum.
        """


class GaussianHead:
    """Means from the network, log-deviations beside it."""

    def __init__(self, action_dim: int) -> None:
        self.n_extra = action_dim

    def log_prob(self, outputs: Tensor, extra: Tensor, actions: Tensor) -> Tensor:
        """See `Head`."""
        scaled = (actions - outputs) * torch.exp(-extra)[:, None]
        constant = extra.sum(dim=1, keepdim=True) + self.n_extra * _LOG_ROOT_TWO_PI
        return -0.5 * (scaled * scaled).sum(dim=2) - constant

    def backward(
        self, outputs: Tensor, extra: Tensor, actions: Tensor, weight: Tensor, entropy: float
    ) -> tuple[Tensor, Tensor]:
        """See `Head`."""
        precision = torch.exp(-2 * extra)[:, None]
        off = actions - outputs
        back = off * precision * weight[:, :, None]
        # Each log-deviation adds one to the entropy of every observation alike.
        own = (back * off).sum(dim=1) - weight.sum(dim=1, keepdim=True) + entropy
        return back, own

    def fisher(self, outputs: Tensor, extra: Tensor, change: Tensor) -> Tensor:
        """See `Head`."""
        return change * torch.exp(-2 * extra)[:, None] / self.n_extra

    def fisher_extra(self, beside: Tensor) -> Tensor:
        """See `Head`."""
        return 2 * beside / self.n_extra

    def divergence(self, new: Tensor, new_extra: Tensor, old: Tensor, old_extra: Tensor) -> Tensor:
        """See `Head`."""
        ratio = torch.exp(2 * (new_extra - old_extra))[:, None]
        off = ((new - old) * torch.exp(-old_extra)[:, None]) ** 2
        terms = 0.5 * (ratio + off - 1) - (new_extra - old_extra)[:, None]
        return terms.mean(dim=(1, 2))


class CategoricalHead:
    """Logits of all actions."""

    n_extra = 0

    def log_prob(self, outputs: Tensor, extra: Tensor, actions: Tensor) -> Tensor:
        """See `Head`."""
        logs = torch.log_softmax(outputs, dim=2)
        index = actions.expand(outputs.shape[:2])[:, :, None]
        return logs.gather(2, index)[:, :, 0]

    def backward(
        self, outputs: Tensor, extra: Tensor, actions: Tensor, weight: Tensor, entropy: float
    ) -> tuple[Tensor, Tensor]:
        """See `Head`."""
        logs = torch.log_softmax(outputs, dim=2)
        probabilities = logs.exp()
        back = -probabilities * weight[:, :, None]
        index = actions.expand(outputs.shape[:2])[:, :, None]
        back.scatter_add_(2, index, weight[:, :, None])
        if entropy:
            surprise = (probabilities * logs).sum(dim=2, keepdim=True)
            back -= (entropy / outputs.shape[1]) * probabilities * (logs - surprise)
        return back, extra

    def fisher(self, outputs: Tensor, extra: Tensor, change: Tensor) -> Tensor:
        """See `Head`."""
        weighted = torch.softmax(outputs, dim=2) * change
        return weighted - torch.softmax(outputs, dim=2) * weighted.sum(dim=2, keepdim=True)

    def fisher_extra(self, beside: Tensor) -> Tensor:
        """See `Head`."""
        return beside

    def divergence(self, new: Tensor, new_extra: Tensor, old: Tensor, old_extra: Tensor) -> Tensor:
        """See `Head`."""
        logs = torch.log_softmax(new, dim=2)
        return (logs.exp() * (logs - torch.log_softmax(old, dim=2))).sum(dim=2).mean(dim=1)
