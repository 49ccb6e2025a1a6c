"""Worlds that somebody knows: a table of transitions, used where it speaks instead of counts.

Rows that are not known (all NaN or zero, or -1 in a map of successors) are counted as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from logel.data.stage import Stage
from logel.errors import HistoryError, OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.softmax import TabularSoftmax
from logel.types import Array, Float
from logel.worlds.counting import KnownRows, successors

# Tables come from text and from other programs: their rows may miss one by rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class KnownWorld:
    """What every action leads to, in a world of numbered states.

    Attributes:
        table: One of
            * a map of successors, whole numbers of shape (S, A): the state that follows, S for the
              end of the episode, -1 if it is not known;
            * probabilities P(s' | s, a), shape (S, A, S), or (S, A, S + 1) with those of the end
              of the episode last, or sparse (S A, S), state-major; rows that are all zero or NaN
              are not known.
        terminal: States in which an episode ends as soon as they are reached; nobody acts there.
        tolerated: Share of the moves seen that may contradict the table. They are left to it, and
            a note says so; a larger share is an error, as any contradiction is by default.
    """

    table: Any
    terminal: Sequence[int] = ()
    tolerated: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.tolerated < 1:
            raise OptionError(f"tolerated is a share in [0, 1), not {self.tolerated}")

    @classmethod
    def of(cls, given: KnownWorld | Any) -> KnownWorld:
        """A table alone, or with more said about it."""
        return given if isinstance(given, KnownWorld) else cls(given)

    def rows(self, n_states: int, n_actions: int) -> KnownRows:
        """The table as outcomes (S, A, S + 1), termination last, and which rows are known.

        Raises:
            OptionError: If it is no table of that many states and actions.
        """
        table, shape = self.table, (n_states, n_actions)
        if scipy.sparse.issparse(table):
            table = _of_sparse(table, *shape)
        array = np.asarray(table)
        if array.dtype.kind == "b" or array.dtype.kind not in "iuf" or array.ndim not in (2, 3):
            raise OptionError(
                f"world must be whole numbers of shape {shape} or probabilities of shape "
                f"{(*shape, n_states)}, but is {array.dtype} of shape {array.shape}"
            )
        wanted = shape if array.ndim == 2 else (*shape, n_states)
        if array.shape not in (wanted, (*shape, n_states + 1)):
            raise OptionError(
                f"the policy has {n_states} states and {n_actions} actions, so world must have "
                f"shape {wanted}, but has {array.shape}"
            )
        outcomes = _of_map(array) if array.ndim == 2 else _of_probabilities(array)
        return KnownRows(self._terminated(outcomes), outcomes.sum(axis=2) > 0)

    def _terminated(self, outcomes: Float) -> Float:
        """Arrivals in terminal states count as the end."""
        s = len(outcomes)
        for state in sorted({int(state) for state in self.terminal}):
            if not 0 <= state < s:
                raise OptionError(f"terminal state {state} is outside 0..{s - 1}")
            outcomes[:, :, s] += outcomes[:, :, state]
            outcomes[:, :, state] = 0.0
        return outcomes

    def check(self, stages: Iterable[Stage], policy: TabularSoftmax) -> str | None:
        """Hold the data against the table: a note about what it calls impossible, or None.

        Raises:
            HistoryError: If that is more than is tolerated; it names the first move.
        """
        s, a = policy.n_states, policy.n_actions
        known = self.rows(s, a)
        moves, impossible, first = 0, 0, ""
        # All stages are gone through: how many moves are impossible says what is wrong.
        for t, stage in enumerate(stages):
            try:
                rows, following = successors(stage, n_states=s)
            except PolicyError as error:
                raise PolicyError(f"stage {t}: {error}") from None
            here, does = stage.observations[rows], stage.actions[rows]
            bad = known.known[here, does] & (known.outcomes[here, does, following] == 0)
            moves, impossible = moves + len(rows), impossible + int(bad.sum())
            if bad.any() and not first:
                at = int(np.argmax(bad))
                first = f"stage {t}, {stage.place(int(rows[at]))}: " + self._told(
                    int(here[at]), int(does[at]), int(following[at]), s
                )
        if impossible == 0:
            return None
        share = impossible / moves
        if share > self.tolerated:
            raise HistoryError(
                f"{first}, which the given world calls impossible ({impossible} of {moves} moves "
                "are): correct the table or the data, leave the row out of the table, or pass "
                f"KnownWorld(table, tolerated={_above(share)})"
            )
        return (
            f"{impossible} of {moves} moves are impossible in the given world, which was believed; "
            f"the first: {first}"
        )

    def _told(self, state: int, action: int, following: int, n_states: int) -> str:
        if following == n_states:
            return f"action {action} in state {state} ends the episode"
        end = " and does not end the episode there" if following in set(self.terminal) else ""
        return f"action {action} in state {state} leads to state {following}{end}"


def known_world(given: Any, policy: Policy) -> tuple[KnownWorld, TabularSoftmax]:
    """What was given as `world`, and the policy, if the two go together."""
    if not isinstance(policy, TabularSoftmax):
        raise OptionError(
            f"world says what follows a numbered state, but {type(policy).__name__} sees no such "
            "states: use TabularSoftmax, or leave out world"
        )
    known = KnownWorld.of(given)
    known.rows(policy.n_states, policy.n_actions)
    return known, policy


def _above(share: float) -> float:
    """A round number that allows for a share."""
    return float(np.ceil(share * 1000) / 1000)


def _of_sparse(table: Any, n_states: int, n_actions: int) -> Float:
    if table.shape != (n_states * n_actions, n_states):
        raise OptionError(
            f"a sparse world has one row for each of {n_states} x {n_actions} pairs, state-major, "
            f"so shape {(n_states * n_actions, n_states)}, but has {table.shape}"
        )
    return np.asarray(table.toarray(), dtype=float).reshape(n_states, n_actions, n_states)


def _of_map(table: Array) -> Float:
    """Outcomes (S, A, S + 1) of a map of successors."""
    s, a = table.shape
    numbers = np.where(np.isnan(table), -1, table) if table.dtype.kind == "f" else table
    whole = numbers.astype(np.int64)
    bad = (whole != numbers) | (whole < -1) | (whole > s)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise OptionError(
            f"world, state {at[0]}, action {at[1]}: {table[at]} is no successor; give "
            f"a state 0..{s - 1}, {s} for the end of the episode, or -1 if it is not known"
        )
    outcomes = np.zeros((s, a, s + 1))
    state, action = np.nonzero(whole >= 0)
    outcomes[state, action, whole[state, action]] = 1.0
    return outcomes


def _of_probabilities(table: Array) -> Float:
    """Outcomes (S, A, S + 1) of probabilities of the next state."""
    probabilities = table.astype(float)
    unknown = np.isnan(probabilities).all(axis=2)
    probabilities[unknown] = 0.0
    total = probabilities.sum(axis=2)
    # A NaN beside numbers makes the total one, which no comparison accepts.
    fine = (np.abs(total - 1) <= _ROUNDING) | (probabilities == 0).all(axis=2)
    fine &= (probabilities >= 0).all(axis=2)
    if not fine.all():
        state, action = (int(i) for i in np.argwhere(~fine)[0])
        raise OptionError(
            f"world, state {state}, action {action}: probabilities must not be negative and sum to "
            f"1, but sum to {total[state, action]:.6g}; rows that are not known are all NaN or zero"
        )
    given = total > 0
    probabilities[given] /= total[given][:, None]
    ends = np.zeros((*total.shape, len(table) + 1 - probabilities.shape[2]))
    return np.concatenate([probabilities, ends], axis=2)
