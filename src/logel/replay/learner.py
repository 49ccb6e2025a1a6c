"""A learner is anything that turns parameters, a state, episodes and rewards into new parameters.

Many copies learn side by side, one per candidate reward: rows of `parameters` and of whatever the
learner keeps in its state. `StackedLearner` repeats Stable-Baselines3's learners for all copies at
once; `OneByOne` calls somebody's own function for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from logel.data.settings import LearnerSettings
from logel.data.stage import Stage
from logel.policies.base import Policy
from logel.replay.actor_critic import ActorCritic, State, Update
from logel.replay.batch import Batch
from logel.replay.heads import CategoricalHead, GaussianHead, Head
from logel.replay.normaliser import RunningReturns
from logel.replay.optimisers import Optimiser
from logel.replay.stacked import ACTIVATIONS, StackedNetwork
from logel.replay.trust_region import TrustRegion, TrustUpdate
from logel.types import Array, Float

Generators = Sequence[np.random.Generator]


class Learner(Protocol):
    """Copies of a learner, each with a generator of its own for all that is random in it."""

    @property
    def words(self) -> str:
        """What it is, for the estimate's description."""

    def initial(self, rng: Generators) -> Any:
        """What each copy has beside its policy before its first update."""

    def update(
        self, parameters: Tensor, state: Any, batch: Batch, rewards: Tensor, rng: Generators
    ) -> tuple[Tensor, Any]:
        """Policies (K, d) after an update on rewards (K, N), and what is carried on."""

    def chosen(self, state: Any, members: Array) -> Any:
        """The states of some copies, by index, repeats allowed."""

    def together(self, batch: Batch) -> float:
        """Copies that are worth a group: they may go apart, in other processes."""


UpdateFunction = Callable[[Float, Any, Stage, Float, np.random.Generator], tuple[Float, Any]]
"""update(parameters, state, rollout, rewards, rng) -> (parameters, state), for one copy."""


@dataclass(frozen=True, eq=False)
class OneByOne:
    """A learner given as functions for one copy.

    Attributes:
        function: See `UpdateFunction`; must not change the state it is given.
        beginning: Makes the state before the first update; None for a learner without any.
        words: What it is.
    """

    function: UpdateFunction
    beginning: Callable[[np.random.Generator], Any] | None = None
    words: str = "the learner's own update"

    def initial(self, rng: Generators) -> list[Any]:
        """See `Learner`."""
        return [None if self.beginning is None else self.beginning(one) for one in rng]

    def update(
        self, parameters: Tensor, state: list[Any], batch: Batch, rewards: Tensor, rng: Generators
    ) -> tuple[Tensor, list[Any]]:
        """See `Learner`."""
        moved, states = [], []
        # Copies that share a generator get the same numbers from it, and leave it behind them.
        shared = [deepcopy(one) for one in rng] if len(rng) < len(state) else []
        for k, before in enumerate(state):
            last = k >= len(state) - len(rng)
            member = k % len(rng)
            own = rng[member] if last else deepcopy(shared[member])
            paid = rewards[k].double().cpu().numpy()
            theta = parameters[k].double().cpu().numpy()
            # Somebody's own update may need the gradients that replay itself does without.
            with torch.enable_grad():
                after, carried = self.function(theta, before, batch.stage, paid, own)
            moved.append(torch.as_tensor(np.asarray(after, dtype=np.float64)).to(parameters))
            states.append(carried)
        return torch.stack(moved), states

    def chosen(self, state: list[Any], members: Array) -> list[Any]:
        """See `Learner`."""
        return [state[int(k)] for k in members]

    def together(self, batch: Batch) -> float:
        """See `Learner`: alone is as well."""
        return 1


@dataclass(frozen=True, eq=False)
class StackedLearner:
    """PPO, A2C or TRPO with the settings of a history; schedules come from the stages' notes."""

    core: ActorCritic
    settings: LearnerSettings
    common: Update
    words: str

    @classmethod
    def of(
        cls,
        settings: LearnerSettings,
        policy: Policy,
        n_inputs: int,
        notes: Sequence[Mapping[str, Any]] = (),
    ) -> StackedLearner | None:
        """The learner, or None if it is of a kind that is not written out here (`unlike`).

        The stages' notes are for its words alone: updates see those of their own stage.
        """
        if unlike(settings, policy, n_inputs) is not None:
            return None
        actor, critic, head = _shapes(settings, policy, n_inputs)
        common = updated(DEFAULTS[settings.algorithm], settings)
        kind = TrustRegion if settings.algorithm == "TRPO" else ActorCritic
        optimiser = Optimiser(optimiser_name(settings), dict(settings.optimizer_options or {}))
        core = kind(actor, critic, head, optimiser)
        return cls(core, settings, common, described(settings.algorithm, common, notes))

    def initial(self, rng: Generators) -> State:
        """See `Learner`."""
        orthogonal = self.settings.ortho_init is not False
        return State(torch.stack([beginning(self.core.critic, one, orthogonal) for one in rng]))

    def update(
        self, parameters: Tensor, state: State, batch: Batch, rewards: Tensor, rng: Generators
    ) -> tuple[Tensor, State]:
        """See `Learner`."""
        state = replace(state, critic=state.critic.to(parameters))
        now = scheduled(self.common, batch.notes)
        if (normaliser := self.settings.reward_normaliser) is not None:
            before = state.returns or RunningReturns.initial(rewards)
            rewards, after = before.scaled(rewards, batch, normaliser, self.settings.n_envs)
            state = replace(state, returns=after)
        return self.core.update(parameters, state, batch, rewards, now, rng)

    def chosen(self, state: State, members: Array) -> State:
        """See `Learner`."""
        index = torch.as_tensor(np.array(members), device=state.critic.device)
        returns = None if state.returns is None else state.returns.chosen(index)
        return replace(state.of(index), returns=returns)

    def together(self, batch: Batch) -> float:
        """See `Learner`: as many as take three times as long as what all of them take once."""
        if batch.inputs.is_cuda:
            return math.inf
        rows = min(self.common.batch_size or len(batch), len(batch))
        return _WORTH / (rows * (self.core.n_policy + self.core.critic.n_parameters))


# Rows times parameters of all copies whose gradient takes three times as long as the calls for it:
# about three quarters of a millisecond.
_WORTH = 4e6
_OPTIMISERS = ("Adam", "RMSprop", "RMSpropTFLike")
# Their options that are not written out.
_ODD = ("amsgrad", "maximize", "momentum", "centered", "decoupled_weight_decay")
# Stable-Baselines3's own, for settings that nobody knows.
DEFAULTS: dict[str, Update] = {
    "PPO": Update(),
    "A2C": Update(
        gae_lambda=1.0,
        learning_rate=7e-4,
        n_epochs=1,
        batch_size=None,
        clip_range=None,
        normalize_advantage=False,
    ),
    "TRPO": TrustUpdate(),
}
# A2C has neither epochs nor minibatches nor a clip range, whatever a file says.
_NOT_OF_A2C = ("n_epochs", "batch_size", "clip_range", "clip_range_vf", "target_kl")


def unlike(settings: LearnerSettings, policy: Policy, n_inputs: int) -> str | None:
    """What about a learner `StackedLearner` cannot repeat, as half a sentence; None if nothing."""
    s = settings
    if s.algorithm not in DEFAULTS:
        return f"{s.algorithm} is not one of {', '.join(DEFAULTS)}"
    if s.use_sde:
        return "its exploration depends on the state"
    if s.pi is None or s.vf is None:
        return "its actor and critic are not known to be plain networks of their own"
    if s.activation not in ACTIVATIONS:
        return f"the activation between its layers is {s.activation or 'unknown'}"
    return _odd_optimiser(s) or _odd_shape(s, policy, n_inputs)


def _odd_optimiser(settings: LearnerSettings) -> str | None:
    name, options = optimiser_name(settings), settings.optimizer_options or {}
    if name not in _OPTIMISERS:
        return f"its optimiser is {name}"
    odd = [option for option in _ODD if options.get(option)]
    return f"its {name} has {', '.join(odd)}" if odd else None


def _odd_shape(settings: LearnerSettings, policy: Policy, n_inputs: int) -> str | None:
    actor, _, head = _shapes(settings, policy, n_inputs)
    n = actor.n_parameters + head.n_extra
    if n == policy.n_parameters:
        return None
    return f"its network has {n} parameters and not the policy's {policy.n_parameters}"


def optimiser_name(settings: LearnerSettings) -> str:
    """Of its class; by default that of the algorithm."""
    return settings.optimizer or ("RMSprop" if settings.algorithm == "A2C" else "Adam")


def _shapes(
    settings: LearnerSettings, policy: Policy, n_inputs: int
) -> tuple[StackedNetwork, StackedNetwork, Head]:
    """Actor, critic and head, of settings that tell them."""
    s = settings
    assert s.pi is not None and s.vf is not None and s.activation is not None
    n_actions = getattr(policy, "n_actions", None)
    head: Head = CategoricalHead() if n_actions else GaussianHead(policy.action_dim)  # type: ignore[attr-defined]
    n_outputs = int(n_actions) if n_actions else head.n_extra
    actor = StackedNetwork((n_inputs, *s.pi, n_outputs), s.activation)
    return actor, StackedNetwork((n_inputs, *s.vf, 1), s.activation), head


def updated(common: Update, settings: LearnerSettings) -> Update:
    """Settings of an update with those that are known put in."""
    known = {
        name: value for name in vars(common) if (value := getattr(settings, name, None)) is not None
    }
    if settings.algorithm == "A2C":
        known = {name: value for name, value in known.items() if name not in _NOT_OF_A2C}
    return replace(common, **known)


def scheduled(common: Update, notes: Any) -> Update:
    """Settings of an update at one stage: schedules have values of their own there."""
    known: dict[str, Any] = {
        name: float(value)
        for name in ("learning_rate", "clip_range", "clip_range_vf")
        if getattr(common, name) is not None and isinstance(value := notes.get(name), int | float)
    }
    return replace(common, **known)


def described(algorithm: str, common: Update, notes: Sequence[Mapping[str, Any]] = ()) -> str:
    """The learner in half a line; its rate as the stages' notes have it, where they say."""
    parts = [f"rate {_rates(common, notes)}", f"lambda {common.gae_lambda:.3g}"]
    if algorithm == "PPO":
        parts.insert(0, f"{common.n_epochs} epochs")
    return f"{algorithm} ({', '.join(parts)})"


def _rates(common: Update, notes: Sequence[Mapping[str, Any]]) -> str:
    """The learning rate, or how it goes from the first stage to the last."""
    rates = [scheduled(common, one).learning_rate for one in notes] or [common.learning_rate]
    words = [f"{rate:.2g}".replace("e-0", "e-") for rate in rates]
    low, high = (words[rates.index(end)] for end in (min(rates), max(rates)))
    if low == high:
        return low
    monotone = {words[0], words[-1]} == {low, high}
    return f"{words[0]} to {words[-1]}" if monotone else f"between {low} and {high}"


def beginning(network: StackedNetwork, rng: np.random.Generator, orthogonal: bool) -> Tensor:
    """A critic before it learnt anything, as Stable-Baselines3 makes it."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    parts = []
    for index, (width, out) in enumerate(pairwise(network.widths)):
        weight, bias = torch.empty(out, width), torch.zeros(out)
        if orthogonal:
            # Gains of SB3: the root of two between layers, one for the value.
            gain = math.sqrt(2) if index < len(network.widths) - 2 else 1.0
            torch.nn.init.orthogonal_(weight, gain=gain, generator=generator)
        else:
            bound = 1 / math.sqrt(width)
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)
        parts += [weight.flatten(), bias]
    return torch.cat(parts)
