"""T-REX (Brown et al., 2019), with the order of learning for a ranking.

A snippet of a later stage is taken to be better than one of an earlier stage, and a network r is
fitted so that sums of predicted rewards agree:

    P(late better than early)  =  sigmoid( sum over late of r  -  sum over early of r ),

by cross-entropy on random pairs of snippets, each inside one episode. Neither policies nor
transitions are modelled, so that neither `policy` nor `gamma` matters.

Comparing snippets of equal length leaves the reward's zero unknown, and standardising leaves out
its scale; `TrexConfig.zero` says where zero is put, which matters where episodes can end early. The
reward is a function of what the policy saw: of normalised observations, if those were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.baselines.networks import (
    Activation,
    Network,
    check_positive,
    descend,
    flat_rows,
    forward,
    frozen,
    initial_parameters,
)
from logel.baselines.reward_file import RewardFile, load_reward, number, save_reward
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import Choice, FormatError, HistoryError, IdentificationError, OptionError
from logel.types import Array, Float, Progress

Int = npt.NDArray[np.int64]
_KIND = "t-rex"
# Rows evaluated at a time where all of them are: bounds memory.
_BLOCK = 2**14


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


class Zero(Choice):
    """Where the reward's zero is put.

    MEAN: at the mean over all rows of the history.
    FIRST_STAGE: at the mean over the first stage, so that improvements are positive.
    NETWORK: where the fitted network has it.
    """

    MEAN = "mean"
    FIRST_STAGE = "first-stage"
    NETWORK = "network"


@dataclass(frozen=True)
class TrexConfig:
    """Choices of the fit.

    Attributes:
        snippet_length: Times in a snippet.
        ends: See `Ends`.
        inputs: See `Inputs`.
        zero: See `Zero`; by default "network" if ends are absorbing, else "mean".
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
    zero: Zero | str | None = None
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
        default = Zero.MEAN if self.ends is Ends.INSIDE else Zero.NETWORK
        object.__setattr__(self, "zero", default if self.zero is None else Zero(self.zero))
        check_positive(
            snippet_length=self.snippet_length,
            n_members=self.n_members,
            n_steps=self.n_steps,
            batch_pairs=self.batch_pairs,
            rate=self.rate,
            test_pairs=self.test_pairs,
        )
        if not 0 <= self.holdout < 1:
            raise OptionError(f"holdout must be in [0, 1), but is {self.holdout}")


@dataclass(frozen=True, eq=False)
class TrexReward:
    """The mean of standardised networks.

    Attributes:
        members: Each has standard deviation one over the history, and zero where asked.
        uses_actions: Whether they look at observation and action, or at the observation alone.
        accuracy: Share of held-out pairs ordered rightly; NaN if there were none.
    """

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

    def save(self, path: str | PathLike[str]) -> None:
        """Write to one file: safetensors with a JSON header."""
        networks = {f"member-{i}": member for i, member in enumerate(self.members)}
        facts = {"uses_actions": self.uses_actions, "accuracy": self.accuracy}
        save_reward(path, _KIND, RewardFile(networks, {}, facts))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> TrexReward:
        """Read what `save` wrote; anything else is a FormatError."""
        content = load_reward(path, _KIND)
        try:
            return cls(
                members=tuple(
                    content.networks[f"member-{i}"] for i in range(len(content.networks))
                ),
                uses_actions=bool(content.facts["uses_actions"]),
                accuracy=number(content.facts["accuracy"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"{path} is not a reward of T-REX: {error}") from None


@dataclass(frozen=True, eq=False)
class Snippets:
    """Everything that may be compared: where snippets start, stage by stage.

    Attributes:
        starts: For every stage, rows of the whole history at which a snippet may start.
        lengths: For every stage, how long each of them is.
    """

    starts: tuple[Int, ...]
    lengths: tuple[Int, ...]

    @property
    def stages(self) -> Int:
        """Indices of the stages that have any."""
        return np.flatnonzero([len(starts) > 0 for starts in self.starts])

    def pairs(self, n_pairs: int, rng: np.random.Generator) -> tuple[Int, Int, Int]:
        """Random pairs of different stages, all pairs of stages alike, the earlier one first.

        Returns:
            Stage, first row and length of both snippets, each of shape (n_pairs, 2).
        """
        known = self.stages
        first = rng.integers(0, len(known), n_pairs)
        # Shifting by 1..n-1 around the circle never meets the same stage again.
        second = (first + rng.integers(1, len(known), n_pairs)) % len(known)
        stages = np.sort(known[np.stack([first, second], axis=1)], axis=1)
        sizes = np.array([len(starts) for starts in self.starts])
        picks = rng.integers(0, sizes[stages])
        offsets = np.cumsum(sizes) - sizes
        index = offsets[stages] + picks
        return stages, np.concatenate(self.starts)[index], np.concatenate(self.lengths)[index]


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
    report = progress or (lambda what, done, total: None)
    if len(history) < 2:
        raise IdentificationError(f"the history has {len(history)} stage: at least two are needed")
    rng = np.random.default_rng(seed)
    table, stages = _read(history, config)
    training, held_out = _split(stages, config, rng)
    shift, scale = table.mean(axis=0, dtype=float), table.std(axis=0, dtype=float)
    # A number that never varies says nothing: leave it as it is.
    scale = np.where(scale > 1e-6 * (1 + np.abs(shift)), scale, 1.0)
    rows = torch.from_numpy(((table - shift) / scale).astype(np.float32))
    n_first = int(history[0].n_steps)
    members, total = [], np.zeros(len(rows))
    for index in range(config.n_members):
        what = f"reward {index + 1} of {config.n_members}"
        fitted = _fit_member(rows, training, config, rng, partial(_tell, report, what, config))
        values = _evaluate(fitted, rows)
        seen = {Zero.MEAN: values, Zero.FIRST_STAGE: values[:n_first], Zero.NETWORK: np.zeros(1)}
        zero, spread = seen[Zero(str(config.zero))].mean(), max(float(values.std()), 1e-12)
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
) -> tuple[npt.NDArray[np.float32], list[tuple[Int, Int, Int]]]:
    """Inputs of all rows, and the snippets of every stage in rows of the whole history."""
    tables, stages, first_row = [], [], 0
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
        stages.append((first_row + starts, lengths, episodes))
        first_row += stage.n_steps
    return np.concatenate(tables), stages


def _split(
    stages: Sequence[tuple[Int, Int, Int]], config: TrexConfig, rng: np.random.Generator
) -> tuple[Snippets, Snippets]:
    """Snippets to learn from and held-out ones, of different episodes."""
    parts: tuple[list[tuple[Int, Int]], list[tuple[Int, Int]]] = ([], [])
    for starts, lengths, episodes in stages:
        known = rng.permutation(np.unique(episodes))
        n_held_out = 0
        if config.holdout > 0 and len(known) > 1:
            n_held_out = min(max(1, round(config.holdout * len(known))), len(known) - 1)
        aside = np.isin(episodes, known[:n_held_out])
        for part, rows in zip(parts, (~aside, aside), strict=True):
            part.append((starts[rows], lengths[rows]))
    training, held_out = (
        Snippets(tuple(a for a, _ in part), tuple(b for _, b in part)) for part in parts
    )
    return training, held_out


def _fit_member(
    rows: Tensor,
    snippets: Snippets,
    config: TrexConfig,
    rng: np.random.Generator,
    report: Callable[[int], None],
) -> Network:
    """One network, fitted to random pairs."""
    net = initial_parameters([rows.shape[1], *config.hidden, 1], rng, dtype=rows.dtype)

    def loss() -> Tensor:
        _, starts, lengths = snippets.pairs(config.batch_pairs, rng)
        return pair_loss(net, rows, starts, lengths, snippet_length=config.snippet_length)

    descend(loss, net, n_steps=config.n_steps, rate=config.rate, report=report)
    return frozen(net, Activation.RELU)


def _evaluate(net: Network, rows: Tensor) -> Float:
    """Predicted rewards of all rows, shape (N,)."""
    table = rows.numpy()
    blocks = range(0, len(table), _BLOCK)
    return np.concatenate([net(table[i : i + _BLOCK])[:, 0] for i in blocks]).astype(float)


def _accuracy(
    rewards: Float, held_out: Snippets, config: TrexConfig, rng: np.random.Generator
) -> float:
    """Share of held-out pairs whose later snippet has the higher sum; a tie is half right."""
    if len(held_out.stages) < 2:
        return float("nan")
    _, starts, lengths = held_out.pairs(config.test_pairs, rng)
    sums = np.concatenate([[0.0], np.cumsum(rewards)])
    found = sums[starts + lengths] - sums[starts]
    return float((np.sign(found[:, 1] - found[:, 0]).mean() + 1) / 2)


def _tell(report: Progress, what: str, config: TrexConfig, done: int) -> None:
    report(what, done, config.n_steps)
