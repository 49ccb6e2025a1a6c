"""T-REX (Brown et al., 2019), with the order of learning for a ranking.

A snippet of a later stage is taken to be better than one of an earlier stage, and a network r is
fitted so that sums of predicted rewards agree:

    P(late better than early)  =  sigmoid( sum over late of r  -  sum over early of r ),

by cross-entropy on random pairs of snippets, each inside one episode. Neither policies nor
transitions are modelled, so that neither `policy` nor `gamma` matters.

Comparing snippets of equal length leaves the reward's zero unknown, which matters where episodes
can end early, and standardising leaves out its scale: zero is put at the mean over the history,
unless `Ends.ABSORBING` makes it known. The reward is a function of what the policy saw: of
normalised observations, if those were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.baselines.checks import check_positive, check_stages
from logel.baselines.networks import (
    Activation,
    Network,
    blocks,
    descend,
    flat_rows,
    forward,
    frozen,
    initial_parameters,
)
from logel.baselines.reward_file import RewardFile, SavedReward, number
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import Choice, HistoryError, OptionError
from logel.types import Array, Float, Progress

Int = npt.NDArray[np.int64]
_POSITIVE = ("snippet_length", "n_members", "n_steps", "batch_pairs", "rate", "test_pairs")


class Inputs(Choice):
    """What the reward looks at."""

    OBSERVATION = "observation"
    OBSERVATION_ACTION = "observation-action"


class Ends(Choice):
    """What becomes of snippets that meet the end of an episode.

    INSIDE: there are none; an episode shorter than a snippet is never compared.
    ABSORBING: where the environment ended the episode they run on, earning nothing. Lasting longer
        can then be better or worse, so that the reward's zero is known.
    """

    INSIDE = "inside"
    ABSORBING = "absorbing"


@dataclass(frozen=True)
class TrexConfig:
    """Choices of the fit.

    Attributes:
        snippet_length: Times in a snippet.
        ends: See `Ends`.
        inputs: See `Inputs`.
        hidden: Widths of the hidden layers.
        n_members: Networks in the ensemble.
        n_steps: Steps of Adam for each of them.
        batch_pairs: Pairs in a minibatch.
        rate: Adam's.
        holdout: Share of each stage's episodes set aside for the accuracy; 0 to skip.
        test_pairs: Pairs of held-out snippets the accuracy is measured on.
    """

    snippet_length: int = 50
    ends: Ends | str = Ends.INSIDE
    inputs: Inputs | str = Inputs.OBSERVATION
    hidden: tuple[int, ...] = (256, 256)
    n_members: int = 1
    n_steps: int = 3000
    batch_pairs: int = 16
    rate: float = 1e-4
    holdout: float = 0.1
    test_pairs: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", Ends(self.ends))
        object.__setattr__(self, "inputs", Inputs(self.inputs))
        check_positive(**{name: getattr(self, name) for name in _POSITIVE})
        if not 0 <= self.holdout < 1:
            raise OptionError(f"holdout must be in [0, 1), but is {self.holdout}")


@dataclass(frozen=True, eq=False)
class TrexReward(SavedReward):
    """The mean of standardised networks.

    Attributes:
        members: Each has standard deviation one over the history.
        uses_actions: Whether they look at observation and action, or at the observation alone.
        accuracy: Share of held-out pairs ordered rightly; NaN if there were none.
    """

    kind = "t-rex"
    method = "T-REX"

    members: tuple[Network, ...]
    uses_actions: bool
    accuracy: float

    def __post_init__(self) -> None:
        if not self.members or any(member.n_outputs != 1 for member in self.members):
            raise OptionError("a T-REX reward needs networks with one output each")
        if len({member.n_inputs for member in self.members}) != 1:
            raise OptionError("the networks of an ensemble must look at the same inputs")

    def __call__(self, observations: Array, actions: Array, next_observations: Array) -> Float:
        """Rewards of N transitions, shape (N,); the next observation does not matter."""
        rows = flat_rows(observations)
        if self.uses_actions:
            rows = np.concatenate([rows, flat_rows(actions)], axis=1)
        total = sum(member(rows)[:, 0].astype(float) for member in self.members)
        return np.asarray(total / len(self.members))

    def _content(self) -> RewardFile:
        networks = {f"member-{i}": member for i, member in enumerate(self.members)}
        facts = {"uses_actions": self.uses_actions, "accuracy": self.accuracy}
        return RewardFile(networks, {}, facts)

    @classmethod
    def _from_content(cls, content: RewardFile) -> Self:
        members = tuple(content.networks[f"member-{i}"] for i in range(len(content.networks)))
        facts = content.facts
        return cls(members, bool(facts["uses_actions"]), number(facts["accuracy"]))


@dataclass(frozen=True, eq=False)
class Snippets:
    """Everything that may be compared, stage by stage.

    Attributes:
        stages: The stage of every snippet, shape (n,), ascending.
        starts: Its first row, of the rows of the whole history.
        lengths: Its length.
    """

    stages: Int
    starts: Int
    lengths: Int

    @cached_property
    def sizes(self) -> Int:
        """How many there are of each stage."""
        return np.bincount(self.stages)

    def pairs(self, n_pairs: int, rng: np.random.Generator) -> tuple[Int, Int, Int]:
        """Random pairs of different stages, all pairs of stages alike, the earlier one first.

        Returns:
            Stage, first row and length of both snippets, each of shape (n_pairs, 2).
        """
        known = np.flatnonzero(self.sizes)
        first = rng.integers(0, len(known), n_pairs)
        # Shifting by 1..n-1 around the circle never meets the same stage again.
        second = (first + rng.integers(1, len(known), n_pairs)) % len(known)
        stages = np.sort(known[np.stack([first, second], axis=1)], axis=1)
        picks = rng.integers(0, self.sizes[stages])
        index = (np.cumsum(self.sizes) - self.sizes)[stages] + picks
        return stages, self.starts[index], self.lengths[index]


def trex(
    history: LearningHistory,
    policy: Any = None,
    *,
    gamma: float | None = None,
    config: TrexConfig | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> TrexReward:
    """Recover a reward network from the order of a history's stages.

    Args:
        history: What was observed, at least two stages.
        policy: Not used; taken so that all methods can be called alike.
        gamma: Not used.
        config: Choices of the fit.
        seed: Chooses pairs, held-out episodes and the networks' starting points.
        progress: Called with (what, done, total) during long work.
    """
    config = config or TrexConfig()
    check_stages(history)
    rng = np.random.default_rng(seed)
    table, snippets, episodes = _read(history, config)
    training, held_out = _split(snippets, episodes, config, rng)
    shift, scale = table.mean(axis=0, dtype=float), table.std(axis=0, dtype=float)
    # A number that never varies says nothing: leave it as it is.
    scale = np.where(scale > 1e-6 * (1 + np.abs(shift)), scale, 1.0)
    rows = torch.from_numpy(((table - shift) / scale).astype(np.float32))
    members, total = [], np.zeros(len(rows))
    for index in range(config.n_members):
        what = f"reward {index + 1} of {config.n_members}"
        fitted = _fit_member(rows, training, config, rng, what, progress)
        values = np.concatenate([fitted(rows[b].numpy())[:, 0] for b in blocks(len(rows))])
        values = values.astype(float)
        # Snippets that run on after an end compare with earning nothing: the network knows zero.
        zero = values.mean() if config.ends is Ends.INSIDE else 0.0
        spread = max(float(values.std()), 1e-12)  # a network may be flat
        total += (values - zero) / spread
        members.append(
            fitted.rescaled(
                input_shift=shift, input_scale=scale, output_shift=zero, output_scale=spread
            )
        )
    return TrexReward(
        members=tuple(members),
        uses_actions=config.inputs is Inputs.OBSERVATION_ACTION,
        accuracy=_accuracy(total, held_out, config, rng),
    )


def snippets_of(stage: Stage, config: TrexConfig) -> tuple[Int, Int, Int]:
    """Where snippets may start in a stage.

    Returns:
        Row, length and episode of each, each of shape (n,).
    """
    left = np.repeat(stage.lengths, stage.lengths) - stage.times
    usable = left >= config.snippet_length
    if config.ends is Ends.ABSORBING:
        usable |= np.repeat(stage.terminated, stage.lengths)
    starts = np.flatnonzero(usable)
    episodes = np.repeat(np.arange(stage.n_episodes), stage.lengths)[starts]
    return starts, np.minimum(left[starts], config.snippet_length), episodes


def pair_loss(
    net: Sequence[Tensor], rows: Tensor, starts: Int, lengths: Int, *, snippet_length: int
) -> Tensor:
    """Cross-entropy of "the second snippet is better", for pairs given as in `Snippets.pairs`."""
    times = np.arange(snippet_length)
    index = np.minimum(starts[:, :, None] + times, len(rows) - 1)
    inside = torch.from_numpy(times < lengths[:, :, None])
    values = forward(net, rows[torch.from_numpy(index.ravel())], Activation.RELU)
    sums = (values.reshape(inside.shape) * inside).sum(dim=2)
    return torch.nn.functional.softplus(sums[:, 0] - sums[:, 1]).mean()


def _read(
    history: LearningHistory, config: TrexConfig
) -> tuple[npt.NDArray[np.float32], Snippets, Int]:
    """Inputs of all rows, all snippets, and the episode of each, numbered through."""
    tables, found, first_row, first_episode = [], [], 0, 0
    for t, stage in enumerate(history):
        parts = [flat_rows(stage.observations)]
        if config.inputs is Inputs.OBSERVATION_ACTION:
            parts.append(flat_rows(stage.actions))
        tables.append(np.concatenate(parts, axis=1).astype(np.float32))
        starts, lengths, episodes = snippets_of(stage, config)
        if len(starts) == 0:
            raise HistoryError(
                f"stage {t}: its episodes are too short, at most {stage.lengths.max()} times, for "
                f"snippets of {config.snippet_length}: lower snippet_length, or, if they were "
                "terminated, pass ends='absorbing'"
            )
        at = np.full(len(starts), t)
        found.append((at, first_row + starts, lengths, first_episode + episodes))
        first_row += stage.n_steps
        first_episode += stage.n_episodes
    *columns, numbers = (np.concatenate(column) for column in zip(*found, strict=True))
    return np.concatenate(tables), Snippets(*columns), numbers


def _split(
    snippets: Snippets, episodes: Int, config: TrexConfig, rng: np.random.Generator
) -> tuple[Snippets, Snippets]:
    """Snippets to learn from and held-out ones, of different episodes."""
    chosen = []
    for t in range(len(snippets.sizes)):
        known = rng.permutation(np.unique(episodes[snippets.stages == t]))
        n_held_out = 0
        if config.holdout > 0 and len(known) > 1:
            n_held_out = min(max(1, round(config.holdout * len(known))), len(known) - 1)
        chosen.append(known[:n_held_out])
    aside = np.isin(episodes, np.concatenate(chosen))
    columns = (snippets.stages, snippets.starts, snippets.lengths)
    training, held_out = (Snippets(*(c[rows] for c in columns)) for rows in (~aside, aside))
    return training, held_out


def _fit_member(
    rows: Tensor,
    snippets: Snippets,
    config: TrexConfig,
    rng: np.random.Generator,
    what: str,
    progress: Progress | None,
) -> Network:
    """One network, fitted to random pairs."""
    net = initial_parameters([rows.shape[1], *config.hidden, 1], rng, dtype=rows.dtype)

    def loss() -> Tensor:
        _, starts, lengths = snippets.pairs(config.batch_pairs, rng)
        return pair_loss(net, rows, starts, lengths, snippet_length=config.snippet_length)

    descend(loss, net, n_updates=config.n_steps, rate=config.rate, what=what, progress=progress)
    return frozen(net, Activation.RELU)


def _accuracy(
    rewards: Float, held_out: Snippets, config: TrexConfig, rng: np.random.Generator
) -> float:
    """Share of held-out pairs whose later snippet has the higher sum; a tie is half right."""
    if np.count_nonzero(held_out.sizes) < 2:
        return float("nan")
    _, starts, lengths = held_out.pairs(config.test_pairs, rng)
    sums = np.concatenate([[0.0], np.cumsum(rewards)])
    found = sums[starts + lengths] - sums[starts]
    return float((np.sign(found[:, 1] - found[:, 0]).mean() + 1) / 2)
