"""Tabular worlds where not every action is legal in every state.

The legal actions of every state are put side by side, the last one in the last slot, so that
logits relative to the last slot are free or forbidden and the table's own algebra holds. What is
asked of a policy or of values is asked of legal ones alone. States with one legal action are part
of the way from one choice to the next: what they pay is paid, and time passes, but nobody learns
there, so that a maze with its dead ends is the maze in which they were folded away by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from logel.data.stage import Stage
from logel.policies.softmax import TabularSoftmax
from logel.types import FORBIDDEN, Flags, Float
from logel.worlds.base import Landscape, Observation, World
from logel.worlds.counting import KnownRows, pool_world
from logel.worlds.table import RESTART, Evaluation, TabularWorld

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Slots:
    """Legal actions of every state, right-aligned in as many slots as the busiest state needs."""

    actions: Index  # number of the action in every slot, shape (S, A'); 0 where there is none
    legal: Flags  # whether there is one, shape (S, A'); always in the last slot

    @classmethod
    def of(cls, legal: Flags) -> Slots:
        """From which actions are legal in which state, shape (S, A)."""
        width = int(legal.sum(axis=1).max())
        # Illegal actions first, the others in order.
        order = np.argsort(legal, axis=1, kind="stable")[:, legal.shape[1] - width :]
        held = np.take_along_axis(legal, order, axis=1)
        return cls(np.where(held, order, 0), held)

    def table(self, world: TabularWorld) -> TabularWorld:
        """A world of all actions in terms of slots; empty ones lead nowhere and pay nothing."""
        state = np.arange(len(self.actions))[:, None]
        free = self.legal[:, :-1]
        return replace(
            world,
            transitions=world.transitions[state, self.actions] * self.legal[..., None],
            features=world.features[state, self.actions] * self.legal[..., None],
            counts=world.counts[:, state, self.actions] * self.legal,
            episode_sums=tuple(
                sums[:, state, self.actions] * self.legal[..., None] for sums in world.episode_sums
            ),
            barred=np.where(free, 0.0, FORBIDDEN),
            untried=None if world.untried is None else world.untried[state, self.actions],
        )

    def choices(self) -> tuple[Index, Slots]:
        """States with more than one legal action, and the slots of these."""
        kept = np.flatnonzero(self.legal.sum(axis=1) > 1)
        return kept, Slots(self.actions[kept], self.legal[kept])

    def relative(self, rows: Float) -> Float:
        """Rows (S, A, d) for all actions as slots relative to the last, (S (A' - 1), d)."""
        chosen = rows[np.arange(len(rows))[:, None], self.actions]
        moved = (chosen[:, :-1] - chosen[:, -1:]) * self.legal[:, :-1, None]
        return np.asarray(moved.reshape(-1, rows.shape[2]))


@dataclass(frozen=True, eq=False)
class LegalWorld(World):
    """A tabular world in slots, asked about legal actions only."""

    # It is one block, though states are independent: the smoother in products wants as many
    # coordinates in every state, which legal actions are not. So these paths go through matrices.

    table: TabularWorld
    free: Index  # places of the parameters among the logits relative to the last slot, shape (d,)
    legal_pairs: Index  # places of the legal pairs among all slots

    offers: ClassVar[tuple[str, ...]] = TabularWorld.offers
    smooth_steps: ClassVar[bool] = TabularWorld.smooth_steps
    noise_floor: ClassVar[float] = TabularWorld.noise_floor

    @property
    def n_features(self) -> int:
        """Number q of features."""
        return self.table.n_features

    @property
    def n_stages(self) -> int:
        """Number m + 1 of stages."""
        return self.table.n_stages

    @property
    def n_parameters(self) -> int:
        """Number d of legal pairs less the number of states."""
        return len(self.free)

    def with_features(self, basis: Float) -> LegalWorld:
        """The same world with features multiplied by a matrix, shape (q, k)."""
        return replace(self, table=self.table.with_features(basis))

    def with_actions_of(self, other: LegalWorld) -> LegalWorld:
        """This world, with another's actions to explain."""
        return replace(self, table=self.table.with_actions_of(other.table))

    def leaving_out(
        self, group: int, pool: Callable[[], LegalWorld], policies: Float
    ) -> LegalWorld:
        """Pooled from the other episodes."""
        rest = pool()
        return replace(rest, table=self.table.leaving_out(group, lambda: rest.table, policies))

    def placed(self, parameters: Float) -> Float:
        """Parameters (..., d) among all logits relative to the last slot, zero where forbidden."""
        whole = np.zeros((*parameters.shape[:-1], self.table.n_parameters))
        whole[..., self.free] = parameters
        return whole

    def logits(self, parameters: Float) -> Float:
        """Logits of all slots, (..., S, A'), of parameters (..., d)."""
        return self.table.logits(self.placed(parameters))

    def observe(self, stage: int, parameters: Float) -> Observation:
        """What a stage's actions say about parameters (d,)."""
        return restricted(self.table.observe(stage, self.placed(parameters)), self.free)

    def log_likelihood(self, parameters: Float) -> float:
        """Of all stages' actions along a path (m + 1, d)."""
        return self.table.log_likelihood(self.placed(parameters))

    def gradient(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """The table's landscape at legal actions."""
        return self._at_free(self.table.gradient(self.placed(parameters), weights, curved=curved))

    def natural(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """Advantages of the features, averaged over legal actions."""
        return self._at_free(self.table.natural(self.placed(parameters), weights, curved=curved))

    def evaluate(self, parameters: Float, weights: Float, *, entropy: bool) -> Evaluation:
        """Values of every policy relative to the last legal action."""
        whole = self.table.evaluate(self.placed(parameters), weights, entropy=entropy)
        free = self.free
        return replace(
            whole, values=whole.values[:, free], design=whole.design[:, free], places=free
        )

    def _at_free(self, whole: Landscape) -> Landscape:
        free = self.free
        curvature = None if whole.curvature is None else whole.curvature[:, free][:, :, free]

        def noise() -> Float:
            return whole.noise[:, free][:, :, free]

        def batch() -> Float:
            return whole.batch[:, free][:, :, free]

        return Landscape(whole.design[:, free], noise, curvature, whole.unit, batch)


def legal_world(
    stages: Iterable[Stage],
    policy: TabularSoftmax,
    *,
    gamma: float,
    known: KnownRows | None = None,
) -> LegalWorld | TabularWorld:
    """Pool the stages of a tabular policy that knows what is legal."""
    assert policy.legal is not None
    slots = Slots.of(policy.legal)
    whole = slots.table(pool_world(stages, policy, gamma=gamma, known=known))
    kept, slots = slots.choices()
    table = between_choices(whole, kept)
    if slots.legal.all():
        return replace(table, barred=None)
    return LegalWorld(table, np.flatnonzero(slots.legal[:, :-1]), np.flatnonzero(slots.legal))


def one_width(legal: Flags | None) -> bool:
    """Whether there are as many legal actions (S, A) in every state that leaves a choice."""
    if legal is None:
        return True
    widths = legal.sum(axis=1)
    return len(set(widths[widths > 1].tolist())) <= 1


def between_choices(world: TabularWorld, kept: Index) -> TabularWorld:
    """A world in slots as seen from the states where there is a choice; others are passed through.

    Values pass through them at once, discounted by the time that takes, which transitions are
    multiplied with: they may be those of an end.
    """
    forced = np.setdiff1d(np.arange(world.n_states), kept)
    leads, paid = world.transitions[forced, -1], world.features[forced, -1]

    def passing(discount: float) -> tuple[Float, Float]:
        """From forced states to choices (F, K), and what is paid on the way (F, q)."""
        onward = np.eye(len(forced)) - discount * leads[:, forced]
        found = np.linalg.solve(onward, np.concatenate([discount * leads[:, kept], paid], axis=1))
        return found[:, : len(kept)], found[:, len(kept) :]

    def moves(discount: float) -> Float:
        direct = world.transitions[kept]
        return np.asarray(direct[..., kept] + direct[..., forced] @ passing(discount)[0])

    through, received = passing(world.gamma)
    entered = world.transitions[kept][..., forced]
    return replace(
        world,
        transitions=moves(world.gamma),
        moves=moves(1 - RESTART),
        features=world.features[kept] + world.gamma * entered @ received,
        initial=world.initial[kept] + world.initial[forced] @ through,
        counts=world.counts[:, kept],
        episode_sums=tuple(sums[:, kept] for sums in world.episode_sums),
        barred=None if world.barred is None else world.barred[kept],
        untried=None if world.untried is None else world.untried[kept],
    )


def restricted(seen: Observation, places: Index) -> Observation:
    """What was seen about some of the coordinates; nothing was about the others."""
    n, height, width = seen.factor.shape
    rows, block = seen.factor.reshape(n * height, width)[places], places // height
    held, number, counts = np.unique(block, return_inverse=True, return_counts=True)
    if len(counts) and (counts == counts[0]).all():
        return Observation(seen.score[places], rows.reshape(len(held), -1, width))
    # Blocks of different sizes: one block, in which each has columns of its own.
    factor = np.zeros((len(places), len(held), width))
    factor[np.arange(len(places)), number.reshape(-1)] = rows
    told = factor.reshape(len(places), -1)
    return Observation(seen.score[places], told[None][:, :, np.abs(told).max(axis=0) > 0])
