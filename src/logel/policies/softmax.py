"""Softmax families over finitely many actions: tables, and logits linear in state features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy.special
import torch
from torch import Tensor

from logel.data.limits import ask_memory
from logel.data.stage import Stage
from logel.errors import OptionError, PolicyError
from logel.policies.base import Counted, Policy, ScoreRows, check_range
from logel.policies.fisher import BlockFisher, DenseFisher, Fisher
from logel.policies.layers import FeatureMap, Layers, LinearPolicy
from logel.types import FORBIDDEN, Array, Flags, Float

LegalActions = Callable[[Array], npt.ArrayLike]
"""Maps N observations to which actions are legal in each, shape (N, n_actions)."""


class SoftmaxPolicy(Policy):
    """Families over finitely many actions; `outputs` are logits, shape (N, n_actions).

    Illegal actions have the logit `FORBIDDEN`: their probability is exactly zero.
    """

    discrete_actions: ClassVar[bool] = True
    n_actions: int

    def legal_actions(self, observations: Array) -> Flags | None:
        """Which actions are legal in each of N observations, (N, n_actions); None: all are."""
        return None

    @property
    def worlds(self) -> tuple[str, ...]:
        """The critic is averaged over all actions."""
        return ("critic",)

    def check(self, stage: Stage) -> None:
        """Raise PolicyError, naming the episode, when a stage cannot come from this family."""
        super().check(stage)
        if stage.actions.ndim != 1:
            raise PolicyError(
                f"discrete actions must be flat, but have shape {stage.actions.shape}: use .ravel()"
            )
        check_range(stage, "action", stage.actions, self.n_actions)
        self._check_legal(stage)

    def _check_legal(self, stage: Stage) -> None:
        """Refuse actions that were taken where they are not legal."""
        legal = self.legal_actions(stage.observations)
        if legal is None:
            return
        bad = ~legal[np.arange(stage.n_steps), stage.actions]
        if bad.any():
            row = int(np.argmax(bad))
            seen = stage.observations[row]
            where = f"state {seen}" if seen.ndim == 0 else "what was observed"
            options = np.flatnonzero(legal[row]).tolist()
            raise PolicyError(
                f"{stage.place(row)}: action {stage.actions[row]} is illegal in {where}, where "
                f"{options} are legal: correct the data, or say in legal= that it can be done"
            )

    def prepare_actions(self, actions: Array) -> Tensor:
        """Actions as an integer tensor, shape (N,)."""
        return torch.tensor(np.asarray(actions), dtype=torch.int64, device=self.device)

    def log_density(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-probability of each action, shape (N,)."""
        logits = torch.log_softmax(outputs, dim=-1)
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

    def _free_information(self, outputs: Tensor) -> Tensor:
        """Information of one action about all logits but the last, one matrix per row."""
        p = torch.softmax(outputs, dim=-1)[:, :-1]
        ask_memory(2 * p.element_size() * p.numel() * p.shape[1], f"{p.shape[1] + 1} actions")
        return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]

    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of every row's actions, shape (N,)."""
        logits = torch.log_softmax(outputs, dim=-1)
        return -(logits.exp() * logits).sum(dim=1)

    def nodes(self, outputs: Tensor) -> Iterator[tuple[Float, Tensor]]:
        """Every action with its probabilities."""
        shares = torch.softmax(outputs, dim=1).cpu().numpy()
        for a in range(self.n_actions):
            yield shares[:, a], torch.full((len(shares),), a, device=outputs.device)

    def action_numbers(self, actions: Tensor) -> Float:
        """Indicators, shape (N, n_actions)."""
        return np.eye(self.n_actions)[actions.cpu().numpy()]

    def action_moments(self, outputs: Tensor) -> tuple[Float, Float]:
        """Mean and deviation of the indicators, each (N, n_actions)."""
        p = torch.softmax(outputs, dim=1).cpu().numpy()
        return p, np.sqrt(p * (1 - p))

    @property
    def n_scores(self) -> int:
        """Indicators of actions minus their probabilities; the last one follows from the others."""
        return self.n_actions - 1

    def output_rows(
        self, outputs: Float, actions: Array, following: Float | None
    ) -> tuple[ScoreRows, ScoreRows | None]:
        """Scores w.r.t. logits; there are no deviations."""
        p = scipy.special.softmax(outputs, axis=1)[:, :-1]
        information = np.eye(self.n_scores) * p[:, None] - p[:, :, None] * p[:, None]
        movement = np.zeros_like(p)
        if following is not None:
            # The log-ratio is the difference of logits up to a function of the state.
            # Where the last action is illegal it does not move, and the others' mean is taken out.
            change = following - outputs
            relative = change - change[:, -1:]
            movement = np.einsum("nab,nb->na", information, relative[:, :-1])
        return ScoreRows(np.eye(self.n_actions)[actions, :-1] - p, information, movement), None

    def completed(self, theta: Tensor, values: Tensor) -> Tensor:
        """Logits of all actions; the last one is 0 where it is missing."""
        return torch.nn.functional.pad(values, (0, self.n_actions - values.shape[1]))

    def output_scores(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradient of the log-probability w.r.t. the logits, shape (N, n_actions)."""
        taken = torch.nn.functional.one_hot(actions, self.n_actions)
        return taken - torch.softmax(outputs, dim=-1), None


@dataclass(frozen=True)
class TabularSoftmax(SoftmaxPolicy):
    """One logit per state and action, but one per state, which is fixed at 0.

    theta is state-major, d = n_states * (n_actions - 1): the last action's logit is 0. Where
    `legal` says what can be done in which state, theta holds the legal actions but the last of
    every state, in the order of their numbers: d is the number of legal pairs less the number of
    states. A state with one legal action has no parameter, costs nothing and tells nothing.

    Attributes:
        n_states: Number S of states.
        n_actions: Number A of actions.
        device: Where tensors live.
        legal: Which actions are legal in which state, booleans of shape (S, A); None: all are.
    """

    convex: ClassVar[bool] = True
    n_states: int
    n_actions: int
    device: str = "cpu"
    # Told apart by `_same`: arrays cannot be compared in one go.
    legal: Flags | None = field(default=None, compare=False, repr=False)
    _same: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.legal is None:
            return
        legal = np.array(self.legal)
        if legal.shape != (self.n_states, self.n_actions) or legal.dtype != bool:
            raise OptionError(
                f"legal must be booleans of shape ({self.n_states}, {self.n_actions}), one row "
                f"per state, but has {legal.dtype} of shape {legal.shape}"
            )
        stuck = ~legal.any(axis=1)
        if stuck.any():
            raise OptionError(
                f"legal leaves no action in state {int(np.argmax(stuck))}: where nobody acts, as "
                "after the end of an episode, give any one action"
            )
        legal.setflags(write=False)
        self.__dict__.update(legal=legal, _same=legal.tobytes())  # frozen for everyone else

    @cached_property
    def free(self) -> npt.NDArray[np.int64]:
        """Places of the parameters in the flat table of logits (S A,), in the order of theta."""
        free = np.ones((self.n_states, self.n_actions), dtype=bool)
        last = np.full(self.n_states, self.n_actions - 1)
        if self.legal is not None:
            free &= self.legal
            last -= np.argmax(self.legal[:, ::-1], axis=1)
        free[np.arange(self.n_states), last] = False
        return np.flatnonzero(free)

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return len(self.free)

    @property
    def worlds(self) -> tuple[str, ...]:
        """Observations are the numbers of states."""
        return ("table",)

    @property
    def n_state_features(self) -> int:
        """An indicator per state."""
        return self.n_states

    @property
    def floats_per_step(self) -> int:
        """Sums over rows go straight into the table."""
        return 4

    def legal_actions(self, observations: Array) -> Flags | None:
        """Which actions are legal in each of N states, (N, n_actions); None: all are."""
        return None if self.legal is None else self.legal[np.asarray(observations)]

    def _check_legal(self, stage: Stage) -> None:
        """Refuse what is no state of the table, and actions that are not legal there."""
        signature = stage.signature
        if not signature.discrete_observations or signature.observation_shape != ():
            raise PolicyError(
                "TabularSoftmax needs one integer state per time, but observations have shape "
                f"{signature.observation_shape}"
            )
        check_range(stage, "state", stage.observations, self.n_states)
        super()._check_legal(stage)

    def prepare_observations(self, observations: Array) -> Tensor:
        """States as an integer tensor, shape (N,)."""
        return torch.tensor(np.asarray(observations), dtype=torch.int64, device=self.device)

    def state_features(self, observations: Array) -> Float:
        """Indicators, shape (N, n_states)."""
        return np.eye(self.n_states)[np.asarray(observations)]

    def counted(self, stage: Stage) -> Counted:
        """The pairs of state and action that occur."""
        self.check(stage)
        counts = np.bincount(stage.observations * self.n_actions + stage.actions)
        states, actions = np.divmod(np.flatnonzero(counts), self.n_actions)
        return Counted(
            self.prepare_observations(states),
            self.prepare_actions(actions),
            self.tensor(counts[counts > 0]),
        )

    def table(self, theta: Tensor) -> Tensor:
        """Logits of all states, shape (n_states, n_actions)."""
        if self.legal is None:
            return self.completed(theta, theta.reshape(self.n_states, self.n_actions - 1))
        base = self.tensor(np.where(self.legal, 0.0, FORBIDDEN)).to(theta.dtype)
        return base.reshape(-1).index_copy(0, self._free_tensor, theta).reshape(base.shape)

    @property
    def _free_tensor(self) -> Tensor:
        return torch.as_tensor(self.free, device=self.device)

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Logits, shape (N, n_actions)."""
        return self.table(theta)[observations]

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        rows = theta.new_zeros(len(actions), self.n_states, self.n_actions)
        scores, _ = self.output_scores(self.outputs(theta, observations), actions)
        rows[torch.arange(len(actions), device=self.device), observations] = scores
        return rows.reshape(len(actions), -1)[:, self._free_tensor]

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q), scattered into the table."""
        q = cotangents.shape[1]
        sums = theta.new_zeros(self.n_states * self.n_actions, q)
        sums.index_add_(0, observations * self.n_actions + actions, cotangents)
        taken = sums.reshape(self.n_states, self.n_actions, q)
        p = torch.softmax(self.table(theta), dim=-1)
        result = taken - p[:, :, None] * taken.sum(dim=1, keepdim=True)
        return result.reshape(-1, q)[self._free_tensor]

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta: one block per state."""
        visits = torch.bincount(observations, weights=counts, minlength=self.n_states)
        if self.legal is None:
            blocks = visits[:, None, None] * self._free_information(self.table(theta))
            return BlockFisher(blocks.cpu().numpy())
        p = torch.softmax(self.table(theta), dim=-1)
        information = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        keep = torch.zeros_like(p).reshape(-1)
        keep[self._free_tensor] = 1.0
        keep = keep.reshape(p.shape)
        kept = visits[:, None, None] * keep[:, :, None] * keep[:, None, :] * information
        return BlockFisher(kept.cpu().numpy(), self.free)


@dataclass(frozen=True)
class LinearSoftmax(LinearPolicy, SoftmaxPolicy):
    """Logits linear in state features; the last action's logit is fixed at 0.

    theta is feature-major: d = n_features * (n_actions - 1), entry f * (n_actions - 1) + a.

    Attributes:
        n_features: Width of the state features.
        n_actions: Number of actions.
        feature_map: Maps N observations to (N, n_features); None uses the observations themselves.
        device: Where tensors live.
        legal: Maps N observations to which actions are legal in each, booleans (N, n_actions);
            None: all are. Where the last action is illegal, the others' logits still are relative
            to its own, which is 0. Prepared observations carry what is legal behind the features.
    """

    n_features: int
    n_actions: int
    feature_map: FeatureMap | None = None
    device: str = "cpu"
    legal: LegalActions | None = None

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.layers.n_parameters

    @property
    def worlds(self) -> tuple[str, ...]:
        """A table of the different observations, or else the critic."""
        return ("distinct", "critic")

    @property
    def floats_per_step(self) -> int:
        """The products of scores and cotangents are formed row by row."""
        return self.n_features + 3 * self.n_actions

    @property
    def layers(self) -> Layers:
        """One layer, to all logits but the last."""
        return Layers((self.n_features, self.n_actions - 1), inputs_first=True)

    def legal_actions(self, observations: Array) -> Flags | None:
        """Which actions are legal in each of N observations, (N, n_actions); None: all are."""
        if self.legal is None:
            return None
        return checked_legal(self.legal(observations), (len(observations), self.n_actions))

    def prepare_observations(self, observations: Array) -> Tensor:
        """State features (N, n_features) and, if not all is legal, what is, (N, n_actions)."""
        features, legal = super().prepare_observations(observations), self.legal_actions
        flags = legal(observations)
        return features if flags is None else torch.cat([features, self.tensor(flags)], dim=1)

    def state_features(self, observations: Array) -> Float:
        """What logits are linear in, shape (N, n_features)."""
        return np.asarray(super().prepare_observations(observations).cpu().numpy())

    def layer_inputs(self, observations: Tensor) -> Tensor:
        """State features out of prepared observations."""
        return observations[:, : self.n_features]

    def limited(self, outputs: Tensor, observations: Tensor) -> Tensor:
        """Logits with those of illegal actions at `FORBIDDEN`."""
        return (
            outputs if self.legal is None else barred(outputs, observations[:, self.n_features :])
        )

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta, dense."""
        inner = self._free_information(self.outputs(theta, observations))
        weight, k = self._counts(observations, counts), self.n_actions - 1
        observations = self.layer_inputs(observations)
        matrix = torch.empty(self.n_features, k, self.n_features, k, dtype=inner.dtype)
        for a in range(k):
            for b in range(a + 1):
                block = observations.T @ ((weight * inner[:, a, b])[:, None] * observations)
                matrix[:, a, :, b] = matrix[:, b, :, a] = block.cpu()
        return DenseFisher(matrix.reshape(self.n_parameters, -1).numpy())


def checked_legal(values: npt.ArrayLike, shape: tuple[int, int]) -> Flags:
    """What somebody says is legal in N observations, if it can be."""
    legal = np.asarray(values)
    if legal.shape != shape or legal.dtype != bool:
        raise PolicyError(
            f"legal must give booleans of shape {shape}, one row per observation, but gives "
            f"{legal.dtype} of shape {legal.shape}"
        )
    if not legal.any(axis=1).all():
        row = int(np.argmin(legal.any(axis=1)))
        raise PolicyError(f"legal leaves no action in row {row}: every state needs at least one")
    return legal


def barred(logits: Tensor, legal: Tensor) -> Tensor:
    """Logits (N, n_actions) with those of illegal actions, (N, n_actions), at `FORBIDDEN`."""
    return torch.where(legal > 0, logits, torch.full_like(logits, FORBIDDEN))
