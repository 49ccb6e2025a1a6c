"""The optimisers of Stable-Baselines3's on-policy learners, for many candidates at once.

Parameters, gradients and moments are arrays (K, n): a row per candidate. `active` (K, 1) leaves
candidates as they are that have stopped early.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adam import adam

Moments = dict[str, Tensor]


@dataclass(frozen=True)
class Optimiser:
    """Adam, RMSprop, or RMSprop as TensorFlow had it (the root over the small number too)."""

    name: str = "Adam"
    options: Mapping[str, float] = field(default_factory=dict)

    def initial(self, like: Tensor) -> Moments:
        """Before the first step."""
        square = torch.ones_like(like) if self.name == "RMSpropTFLike" else torch.zeros_like(like)
        if self.name != "Adam":
            return {"square": square}
        step = like.new_zeros((len(like), 1))
        return {"square": square, "mean": torch.zeros_like(like), "step": step}

    def step(
        self,
        flat: Tensor,
        gradient: Tensor,
        moments: Moments,
        rate: float,
        active: Tensor | None = None,
    ) -> None:
        """Move `flat` and `moments` in place."""
        if decay := self.options.get("weight_decay", 0.0):
            gradient = gradient.add(flat, alpha=decay)
        if self.name == "Adam":
            self._adam(flat, gradient, moments, rate, active)
            return
        old = None if active is None else (flat.clone(), {k: v.clone() for k, v in moments.items()})
        self._rmsprop(flat, gradient, moments, rate)
        if active is not None and old is not None:
            flat.copy_(torch.where(active, flat, old[0]))
            for name, value in moments.items():
                value.copy_(torch.where(active, value, old[1][name]))

    def _adam(
        self, flat: Tensor, gradient: Tensor, moments: Moments, rate: float, active: Tensor | None
    ) -> None:
        """Torch's own, which goes through everything once."""
        parts = [[x] for x in (flat, gradient, moments["mean"], moments["square"])]
        before, after = moments["step"], moments["step"] + (1.0 if active is None else active)
        steps = [before[0, 0]]
        if active is not None:
            # Rows that stopped earlier have taken fewer steps.
            some = active[:, 0].nonzero()[:, 0].tolist()
            parts = [[x[k] for k in some] for (x,) in parts]
            steps = [before[k, 0] for k in some]
        values, slopes, means, squares = parts
        adam(
            values,
            slopes,
            means,
            squares,
            max_exp_avg_sqs=[],
            state_steps=steps,
            fused=True,
            amsgrad=False,
            beta1=self.options.get("beta1", 0.9),
            beta2=self.options.get("beta2", 0.999),
            lr=rate,
            weight_decay=0.0,
            eps=self.options.get("eps", 1e-5),
            maximize=False,
        )
        before.copy_(after)

    def _rmsprop(self, flat: Tensor, gradient: Tensor, moments: Moments, rate: float) -> None:
        alpha, eps = self.options.get("alpha", 0.99), self.options.get("eps", 1e-5)
        square = moments["square"].mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
        root = (square + eps).sqrt_() if self.name == "RMSpropTFLike" else square.sqrt().add_(eps)
        flat.addcdiv_(gradient, root, value=-rate)


def clip_rows(gradient: Tensor, limit: float) -> None:
    """Scale rows down whose norm is above the limit, in place, as torch does for one."""
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    gradient.mul_((limit / (norm + 1e-6)).clamp_(max=1.0))
