"""TRPO of sb3-contrib as a function of stacked parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from logel.replay.actor_critic import (
    ActorCritic,
    State,
    Targets,
    Update,
    few,
    minibatches,
    shuffled,
    some_rows,
)
from logel.replay.batch import Batch

# Below it, sb3-contrib takes a squared residual for nothing.
_SOLVED = 1e-10
_TINY = 1e-8


@dataclass(frozen=True)
class TrustUpdate(Update):
    """Settings of one update; names as in sb3-contrib."""

    learning_rate: float = 1e-3
    batch_size: int | None = 128
    target_kl: float | None = 0.01
    cg_max_steps: int = 15
    cg_damping: float = 0.1
    line_search_shrinking_factor: float = 0.8
    line_search_max_iter: int = 10
    n_critic_updates: int = 10
    sub_sampling_factor: int = 1


@dataclass(frozen=True, eq=False)
class TrustRegion(ActorCritic):
    """A natural step of given divergence for the actor, then the critic by itself."""

    def update(
        self,
        parameters: Tensor,
        state: State,
        batch: Batch,
        rewards: Tensor,
        settings: Update,
        rng: Sequence[np.random.Generator],
    ) -> tuple[Tensor, State]:
        """Policies (K, d) after one update on rewards (K, N), and what is carried on."""
        assert isinstance(settings, TrustUpdate)
        targets = self.targets(parameters, state.critic, batch, rewards, settings)
        moved = self._moved(parameters, batch, targets, settings, rng)
        critic = state.critic.clone()
        moments = {name: value.clone() for name, value in state.moments.items()}
        moments = moments or self.optimiser.initial(critic)
        slope = torch.empty_like(critic)
        layers, into = self.critic.views(critic), self.critic.views(slope)
        epochs = settings.n_critic_updates
        for inputs, _, part in minibatches(batch, targets, epochs, settings.batch_size, rng):
            values, returns = self.critic.forward(layers, inputs), part.returns
            back = (values[-1][:, :, 0] - returns) * (2 / returns.shape[1])
            self.critic.backward(layers, values, back[:, :, None], into)
            self.optimiser.step(critic, slope, moments, settings.learning_rate)
        return moved, replace(state, critic=critic, moments=moments)

    def _moved(
        self,
        parameters: Tensor,
        batch: Batch,
        targets: Targets,
        settings: TrustUpdate,
        rng: Sequence[np.random.Generator],
    ) -> Tensor:
        """Policies after the actor's step."""
        # Sub-sampling takes some of the rows in a random order; it is drawn in any case.
        every, order = settings.sub_sampling_factor, shuffled(batch, rng, parameters)
        some = None if every == 1 else order[..., ::every]
        # sb3-contrib starts from a little noise, which all candidates of one generator share.
        noise = np.stack([generator.standard_normal(parameters.shape[1]) for generator in rng])
        first = (
            (1e-4 * torch.as_tensor(noise)).to(parameters).repeat(len(parameters) // len(rng), 1)
        )
        moved = []
        for k in few(parameters, len(batch) // every):
            rows = some if some is None or some.ndim == 1 else some[k]
            step = _ActorStep(self, parameters[k], batch, targets.of(k), settings, rows)
            moved.append(step.taken(first[k]))
        return torch.cat(moved)


class _ActorStep:
    """Up the surrogate as far as the divergence allows."""

    def __init__(
        self,
        learner: TrustRegion,
        parameters: Tensor,
        batch: Batch,
        targets: Targets,
        settings: TrustUpdate,
        rows: Tensor | None,
    ) -> None:
        self.learner, self.settings, self.parameters = learner, settings, parameters
        self.inputs, self.actions, part = some_rows(batch, targets, rows)
        self.old, advantages = part.log_prob, part.advantages
        if settings.normalize_advantage:
            spread = advantages.std(dim=1, keepdim=True) + _TINY
            advantages = (advantages - advantages.mean(dim=1, keepdim=True)) / spread
        self.advantages = advantages
        n = learner.actor.n_parameters
        self.layers, self.extra = learner.actor.views(parameters[:, :n]), parameters[:, n:]
        self.values = learner.actor.forward(self.layers, self.inputs)

    def taken(self, first: Tensor) -> Tensor:
        """The policies after it; as they were where no step was good enough.

        `first` is where the search for its direction starts.
        """
        head, settings = self.learner.head, self.settings
        n = self.inputs.shape[-2]
        outputs = self.values[-1]
        start = head.log_prob(outputs, self.extra, self.actions) - self.old
        weight = self.advantages * start.exp() / n
        objective = (self.advantages * start.exp()).mean(dim=1)
        back, own = head.backward(outputs, self.extra, self.actions, weight, 0.0)
        slope = torch.empty_like(self.parameters)
        self._pull(back, own, slope)
        direction = conjugate_gradients(self.curved, slope, first, settings.cg_max_steps)
        size = (direction * self.curved(direction)).sum(dim=1, keepdim=True)
        assert settings.target_kl is not None
        longest = torch.sqrt(2 * settings.target_kl / size)
        return self._searched(longest * direction, objective)

    def _pull(self, back: Tensor, own: Tensor, into: Tensor) -> None:
        """Gradients w.r.t. outputs and extra, as gradients w.r.t. parameters."""
        actor = self.learner.actor
        actor.backward(self.layers, self.values, back, actor.views(into[:, : actor.n_parameters]))
        into[:, actor.n_parameters :] = own

    def curved(self, direction: Tensor) -> Tensor:
        """Fisher information times a direction, damped."""
        actor, head = self.learner.actor, self.learner.head
        n = actor.n_parameters
        change = actor.tangent(self.layers, self.values, actor.views(direction[:, :n]))
        beside = direction[:, n:]
        back = head.fisher(self.values[-1], self.extra, change) / self.inputs.shape[-2]
        result = torch.empty_like(direction)
        self._pull(back, head.fisher_extra(beside), result)
        return result.add_(direction, alpha=self.settings.cg_damping)

    def _searched(self, step: Tensor, objective: Tensor) -> Tensor:
        """The longest of ever shorter steps that stays near and gains."""
        learner, settings = self.learner, self.settings
        n, assert_kl = learner.actor.n_parameters, settings.target_kl or 0.0
        result = self.parameters.clone()
        open_ = torch.ones(len(result), dtype=torch.bool, device=result.device)
        share = 1.0
        for _ in range(settings.line_search_max_iter):
            there = self.parameters + share * step
            outputs, extra = learner.actor.outputs(there[:, :n], self.inputs), there[:, n:]
            ratio = (learner.head.log_prob(outputs, extra, self.actions) - self.old).exp()
            gained = (self.advantages * ratio).mean(dim=1) > objective
            near = learner.head.divergence(outputs, extra, self.values[-1], self.extra) < assert_kl
            good = open_ & gained & near
            result[good] = there[good]
            open_ = open_ & ~good
            if not open_.any():
                break
            share *= settings.line_search_shrinking_factor
        return result


def conjugate_gradients(
    matrix: Callable[[Tensor], Tensor], right: Tensor, first: Tensor, max_iterations: int
) -> Tensor:
    """Solve matrix @ x = right for every row, stopping each where sb3-contrib does."""
    x = first
    residual = right - matrix(x)
    square = (residual * residual).sum(dim=1, keepdim=True)
    direction = residual.clone()
    open_ = square >= _SOLVED
    for _ in range(max_iterations):
        if not open_.any():
            break
        product = matrix(direction)
        along = (direction * product).sum(dim=1, keepdim=True)
        step = torch.where(open_, square / along, 0.0)
        x = x + step * direction
        residual = residual - step * product
        following = (residual * residual).sum(dim=1, keepdim=True)
        open_ = open_ & (following >= _SOLVED)
        direction = residual + torch.where(open_, following / square, 0.0) * direction
        square = following
    return x
