"""Families over several choices at a time: one softmax for each, independent given the state."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.special
import torch
from torch import Tensor

from logel.data.stage import Stage
from logel.errors import PolicyError
from logel.policies.base import Policy, ScoreRows
from logel.types import Array, Float


class ProductPolicy(Policy):
    """Several discrete choices; `outputs` are the logits of all of them side by side, (N, sum).

    Actions are whole numbers of shape (N, k), one column per choice.

    Attributes:
        choices: How many options each choice has.
        binary: Whether every choice is yes or no, and a network puts out the logit of yes alone.
    """

    discrete_actions: ClassVar[bool] = True
    choices: tuple[int, ...]
    binary: bool

    def check(self, stage: Stage) -> None:
        """Raise PolicyError, naming the episode, when a stage cannot come from this family."""
        super().check(stage)
        k = len(self.choices)
        if stage.actions.shape[1:] != (k,):
            raise PolicyError(
                f"the policy makes {k} choices at a time, but the data hold actions of shape "
                f"{stage.actions.shape}"
            )
        bad = (stage.actions < 0) | (stage.actions >= np.array(self.choices))
        if bad.any():
            row, choice = (int(i) for i in np.argwhere(bad)[0])
            raise PolicyError(
                f"{stage.place(row)}: choice {choice} is {stage.actions[row, choice]}, outside "
                f"0..{self.choices[choice] - 1}"
            )

    def prepare_actions(self, actions: Array) -> Tensor:
        """Actions as an integer tensor, shape (N, k)."""
        return torch.tensor(np.asarray(actions), dtype=torch.int64, device=self.device)

    def completed(self, theta: Tensor, values: Tensor) -> Tensor:
        """Logits of all options; no is 0 where only yes has one."""
        if not self.binary:
            return values
        return torch.stack([torch.zeros_like(values), values], dim=2).reshape(len(values), -1)

    def _logs(self, outputs: Tensor) -> list[Tensor]:
        """Log-probabilities of the options of every choice."""
        parts = torch.split(outputs, list(self.choices), dim=1)
        return [torch.log_softmax(part, dim=1) for part in parts]

    def log_density(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-probability of each row's choices together, shape (N,)."""
        taken = zip(self._logs(outputs), actions.unbind(dim=1), strict=True)
        return torch.stack([logs.gather(1, a[:, None])[:, 0] for logs, a in taken]).sum(dim=0)

    def sample(self, theta: npt.ArrayLike, observations: Array, rng: np.random.Generator) -> Array:
        """One row of choices per observation."""
        outputs = self.outputs(self.tensor(theta), self.prepare_observations(observations))
        columns = []
        for logs in self._logs(outputs.detach().cpu()):
            cumulative = logs.exp().numpy().cumsum(axis=1)
            draws = rng.random(len(cumulative)) * cumulative[:, -1]
            columns.append((draws[:, None] >= cumulative).sum(axis=1))
        return np.stack(columns, axis=1).astype(np.int64)

    def fisher_root(self, outputs: Tensor) -> Tensor:
        """A root for each choice, diag(p) - p p^T in its block, shape (N, sum, sum)."""
        total = sum(self.choices)
        root, at = outputs.new_zeros(len(outputs), total, total), 0
        for logs in self._logs(outputs):
            p, n = logs.exp(), logs.shape[1]
            block = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :]
            root[:, at : at + n, at : at + n] = block
            at += n
        return root

    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of every row's choices together, shape (N,)."""
        return torch.stack([-(x.exp() * x).sum(dim=1) for x in self._logs(outputs)]).sum(dim=0)

    def action_numbers(self, actions: Tensor) -> Float:
        """Indicators of the options, side by side, shape (N, sum)."""
        columns = actions.cpu().numpy().T
        parts = [np.eye(n)[column] for n, column in zip(self.choices, columns, strict=True)]
        return np.concatenate(parts, axis=1)

    def action_moments(self, outputs: Tensor) -> tuple[Float, Float]:
        """Mean and deviation of the indicators, each (N, sum)."""
        p = torch.cat([logs.exp() for logs in self._logs(outputs)], dim=1).cpu().numpy()
        return p, np.sqrt(p * (1 - p))

    @property
    def n_scores(self) -> int:
        """Indicators less their probabilities, of all options but the last of every choice."""
        return sum(self.choices) - len(self.choices)

    def output_rows(
        self, outputs: Float, actions: Array, following: Float | None
    ) -> tuple[ScoreRows, ScoreRows | None]:
        """Scores w.r.t. the logits; choices do not go together, so neither do their scores."""
        cuts, n = np.cumsum(self.choices)[:-1], len(outputs)
        after = [None] * len(self.choices) if following is None else np.split(following, cuts, 1)
        values, blocks, movement = [], [], []
        for logits, taken, then in zip(np.split(outputs, cuts, 1), actions.T, after, strict=True):
            p = scipy.special.softmax(logits, axis=1)[:, :-1]
            block = np.eye(p.shape[1]) * p[:, None] - p[:, :, None] * p[:, None]
            values.append(np.eye(logits.shape[1])[taken, :-1] - p)
            blocks.append(block)
            change = np.zeros_like(logits) if then is None else then - logits
            relative = (change - change[:, -1:])[:, :-1]
            movement.append(np.einsum("nab,nb->na", block, relative))
        information, at = np.zeros((n, self.n_scores, self.n_scores)), 0
        for block in blocks:
            k = block.shape[1]
            information[:, at : at + k, at : at + k] = block
            at += k
        scores, moved = (np.concatenate(parts, axis=1) for parts in (values, movement))
        return ScoreRows(scores, information, moved), None
