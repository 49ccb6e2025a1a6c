"""Policies of histories that recorded, step by step, which actions were legal.

A table is told what is legal in which state. To any other family what is legal is part of what it
observes: masks are put behind the observations, and the family reads them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from logel.data.observations import as_numbers
from logel.data.stage import Stage
from logel.errors import HistoryError, OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.softmax import (
    LegalActions,
    LinearSoftmax,
    SoftmaxPolicy,
    TabularSoftmax,
    barred,
    checked_legal,
)
from logel.types import Array, Flags, Float


@dataclass(frozen=True, eq=False)
class MaskedSoftmax(SoftmaxPolicy):
    """Any softmax family, limited to the legal actions of every state.

    Attributes:
        inner: The family; its logits of illegal actions count for nothing.
        legal: Maps N observations to which actions are legal in each, booleans (N, n_actions).
        observe: Maps observations to those the inner family takes; None: the same.
    """

    inner: SoftmaxPolicy
    legal: LegalActions
    observe: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        self.__dict__["device"] = self.inner.device  # frozen for everyone else

    @property
    def n_actions(self) -> int:  # type: ignore[override]
        """Number A of actions."""
        return self.inner.n_actions

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.inner.n_parameters

    @property
    def floats_per_step(self) -> int:
        """Those of the inner family, and the masks."""
        return self.inner.floats_per_step + 2 * self.n_actions

    def initial(self, rng: np.random.Generator) -> Float:
        """Where cloning the first stage starts, shape (d,)."""
        return self.inner.initial(rng)

    def legal_actions(self, observations: Array) -> Flags:
        """Which actions are legal in each of N observations, (N, n_actions)."""
        return checked_legal(self.legal(observations), (len(observations), self.n_actions))

    def prepare_observations(self, observations: Array) -> Tensor:
        """What the inner family takes, with what is legal behind it."""
        seen = observations if self.observe is None else self.observe(observations)
        prepared = self.inner.prepare_observations(seen)
        if prepared.ndim != 2:
            raise PolicyError(
                f"masks need a family that takes vectors, but {type(self.inner).__name__} takes "
                f"arrays of shape {tuple(prepared.shape[1:])}"
            )
        flags = self.tensor(self.legal_actions(observations))
        return torch.cat([prepared, flags.to(prepared.dtype)], dim=1)

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Logits, shape (N, n_actions)."""
        inputs, legal = observations[:, : -self.n_actions], observations[:, -self.n_actions :]
        return barred(self.inner.outputs(theta, inputs), legal)


def front_of(n_actions: int) -> Callable[[Array], Array]:
    """Observations in front of masks of so many actions."""
    return lambda observations: observations[:, :-n_actions]


def masks_behind(n_actions: int) -> Callable[[Array], Flags]:
    """Masks of so many actions behind observations."""
    return lambda observations: observations[:, -n_actions:] > 0


def with_masks_behind(stage: Stage) -> Stage:
    """A stage whose observations are vectors that carry its masks.

    Nobody recorded what was legal in the last state of an episode, so that it is not seen any more.
    """
    assert stage.action_masks is not None
    flat = as_numbers(stage.observations)
    seen = np.concatenate([flat, stage.action_masks], axis=1)
    return replace(stage, observations=seen, last_observations=None, action_masks=None)


def legal_table(stages: Iterable[Stage], n_states: int, n_actions: int) -> Flags:
    """What recorded masks say is legal in which state, (S, A); all where nobody acted.

    Raises:
        HistoryError: If two masks of one state differ.
    """
    named = ((f"stage {t}", stage) for t, stage in enumerate(stages))
    return _legal_table(named, n_states, n_actions)


def _legal_table(named: Iterable[tuple[str, Stage]], n_states: int, n_actions: int) -> Flags:
    """The same for stages with their names."""
    legal = np.ones((n_states, n_actions), dtype=bool)
    known = np.zeros(n_states, dtype=bool)
    for name, stage in named:
        assert stage.action_masks is not None
        first, row = np.unique(stage.observations, return_index=True)
        new = ~known[first]
        legal[first[new]], known[first] = stage.action_masks[row[new]], True
        other = (stage.action_masks != legal[stage.observations]).any(axis=1)
        if other.any():
            at = int(np.argmax(other))
            state = stage.observations[at]
            was, here = (np.flatnonzero(m).tolist() for m in (legal[state], stage.action_masks[at]))
            raise HistoryError(
                f"{name}, {stage.place(at)}: in state {state} actions {here} are legal, but "
                f"elsewhere {was}: a table needs one answer per state, so number the states apart "
                "or use another policy family"
            )
    return legal


def masked_table(
    policy: TabularSoftmax, histories: Mapping[str, Iterable[Stage]]
) -> TabularSoftmax:
    """The table of several learners, all of whom recorded masks, in one world."""

    def named() -> Iterator[tuple[str, Stage]]:
        for name, stages in histories.items():
            for t, stage in enumerate(stages):
                assert stage.action_masks is not None
                _check_width(policy, stage.action_masks.shape[1])
                yield f"{name}: stage {t}", stage

    return replace(policy, legal=_legal_table(named(), policy.n_states, policy.n_actions))


def _check_width(policy: SoftmaxPolicy, n_masked: int) -> None:
    if policy.n_actions != n_masked:
        raise OptionError(
            f"the policy has {policy.n_actions} actions, but the history's action_masks {n_masked}"
        )


def masked_policy(policy: Policy, stages: Iterable[Stage], n_masked: int) -> Policy:
    """The family for stages that recorded masks; see the module's description.

    Tables keep their observations; all others take those of `with_masks_behind`.
    """
    if not isinstance(policy, SoftmaxPolicy):
        raise OptionError(
            f"{type(policy).__name__} has no discrete actions, but the history has action_masks"
        )
    _check_width(policy, n_masked)
    if isinstance(policy, TabularSoftmax):
        if policy.legal is not None:
            return policy  # what somebody says counts; the data are checked against it
        return replace(policy, legal=legal_table(stages, policy.n_states, n_masked))
    if getattr(policy, "legal", None) is not None:
        raise OptionError("both legal= and the history's action_masks say what is legal: give one")
    front, behind = front_of(n_masked), masks_behind(n_masked)
    if isinstance(policy, LinearSoftmax):
        inner = policy.feature_map
        chosen = front if inner is None else lambda observations: inner(front(observations))
        return replace(policy, feature_map=chosen, legal=behind)
    return MaskedSoftmax(policy, behind, front)
