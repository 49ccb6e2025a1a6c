"""The policy family that fits a history, where nobody named one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from logel.data.history import LearningHistory
from logel.data.limits import ask_memory
from logel.data.stage import Stage
from logel.errors import OptionError
from logel.policies.architecture import policy_of_facts
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import LinearSoftmax, TabularSoftmax

# Of the paper's networks.
_HIDDEN = (64, 64)
_MOST_LAYERS = 100
# What inference holds at once for each entry of a table, all stages together, and for each weight
# of a network: measured, and rounded up.
_TABLE_BYTES, _WEIGHT_BYTES = 1200, 64


def choose_policy(
    history: LearningHistory, family: str, *, known: bool = True, device: str = "cpu"
) -> Policy:
    """A policy family that fits a history's observations and actions.

    `auto` takes the network that was told, tables for discrete observations, and tanh networks
    otherwise. If recorded parameters
    are to be used (`known`), a network that cannot be the recorded one is refused.
    """
    _check_device(device)
    if family not in ("auto", "tabular", "linear", "mlp"):
        raise OptionError(f"unknown policy family {family!r}: auto, tabular, linear or mlp")
    if family == "auto" and (network := _network(history)) is not None:
        return policy_of_facts(network, device=device)
    policy = _chosen(history, family, known, device)
    if known:
        _check_alike(history, policy)
    return policy


def _chosen(history: LearningHistory, family: str, known: bool, device: str) -> Policy:
    signature = history.signature
    if family == "auto":
        tabular = _numbered(history) and not (known and _recorded_network(history))
        family = "tabular" if tabular and signature.discrete_actions else "mlp"
    family_of = _discrete_policy if signature.discrete_actions else _continuous_policy
    return family_of(history, family, math.prod(signature.observation_shape), device)


def tells_family(history: LearningHistory) -> bool:
    """Whether a history says its policies' family: numbered states, or a network that was noted."""
    if _recorded_network(history):
        return True
    discrete = _numbered(history) and history.signature.discrete_actions
    return discrete and history[0].parameters is None


def choose_common_policy(
    histories: Mapping[str, LearningHistory],
    family: str,
    *,
    known: bool = True,
    device: str = "cpu",
) -> Policy:
    """A family that fits several learners' histories: tables are as large as the largest needs."""
    policies = {
        name: choose_policy(history, family, known=known, device=device)
        for name, history in histories.items()
    }
    tables = [policy for policy in policies.values() if isinstance(policy, TabularSoftmax)]
    if len(tables) == len(policies):
        return TabularSoftmax(
            max(table.n_states for table in tables),
            max(table.n_actions for table in tables),
            device=device,
        )
    (first, common), *others = policies.items()
    for name, policy in others:
        if (type(policy), policy.n_parameters) != (type(common), common.n_parameters):
            raise OptionError(
                f"{first} has policies of {common.n_parameters} parameters "
                f"({type(common).__name__}), but {name} of {policy.n_parameters} "
                f"({type(policy).__name__}): learners must be of one policy family"
            )
    return common


def _check_alike(history: LearningHistory, policy: Policy) -> None:
    """Refuse a network of the recorded one's size that is known to be another."""
    recorded = history.metadata.get("policy")
    theta = history[0].parameters
    if not isinstance(recorded, dict) or "hidden" not in recorded or theta is None:
        return
    if recorded["hidden"] is None and len(theta) == policy.n_parameters:
        raise OptionError(
            "the recorded policy is not a plain network with tanh between its layers, though it has"
            " as many parameters: infer in Python with SB3Policy.from_model(model)"
        )


def _check_device(device: str) -> None:
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise OptionError(f"unknown device {device!r}: choose cpu or cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise OptionError("there is no CUDA device here: leave out --device")


def _discrete_policy(history: LearningHistory, family: str, width: int, device: str) -> Policy:
    masked = history.signature.n_masked_actions
    n_actions = masked or _count(history, "n_actions", lambda stage: int(stage.actions.max()))
    if family == "tabular":
        n_states = _count(history, "n_states", _largest_state)
        ask_memory(_TABLE_BYTES * n_states * n_actions, f"a table of {n_states} states")
        return TabularSoftmax(n_states, n_actions, device=device)
    if family == "linear":
        _ask_layers(width, n_actions)
        return LinearSoftmax(width, n_actions, device=device)
    inputs, hidden = _n_inputs(history, width), _hidden(history)
    _ask_layers(inputs, *hidden, n_actions)
    return MLPCategorical(inputs, n_actions, hidden, device=device, one_hot=_numbered(history))


def _continuous_policy(history: LearningHistory, family: str, width: int, device: str) -> Policy:
    action_dim = math.prod(history.signature.action_shape)
    if family == "tabular":
        raise OptionError("a tabular policy needs discrete actions: choose linear or mlp")
    if family == "linear":
        _ask_layers(width, action_dim)
        return LinearGaussian(width, action_dim, device=device)
    inputs, hidden = _n_inputs(history, width), _hidden(history)
    _ask_layers(inputs, *hidden, action_dim)
    return MLPGaussian(inputs, action_dim, hidden, device=device, one_hot=_numbered(history))


def _numbered(history: LearningHistory) -> bool:
    """Whether observations are numbers of states."""
    signature = history.signature
    return signature.discrete_observations and signature.observation_shape == ()


def _n_inputs(history: LearningHistory, width: int) -> int:
    """Of a network: numbers in an observation, or an indicator for each numbered state."""
    return _count(history, "n_states", _largest_state) if _numbered(history) else width


def _network(history: LearningHistory) -> Any:
    """What rebuilds a network that is no plain one, None if nothing is said."""
    recorded = history.metadata.get("policy")
    return recorded.get("network") if isinstance(recorded, dict) else None


def _recorded_network(history: LearningHistory) -> bool:
    """Whether a history holds the parameters of a network."""
    recorded = history.metadata.get("policy")
    return isinstance(recorded, dict) and "hidden" in recorded and history[0].parameters is not None


def _ask_layers(*widths: int) -> None:
    """Metadata and data may claim a network that no memory holds."""
    n = sum(below * above for below, above in itertools.pairwise(widths))
    told = " to ".join(str(width) for width in widths)
    ask_memory(_WEIGHT_BYTES * n, f"a policy with layers of {told}")


def _hidden(history: LearningHistory) -> tuple[int, ...]:
    """Widths of the hidden layers: as the recorder noted them, else those of the paper."""
    policy = history.metadata.get("policy")
    hidden = policy.get("hidden") if isinstance(policy, dict) else None
    if not isinstance(hidden, list) or not all(type(w) is int and w > 0 for w in hidden):
        return _HIDDEN
    return tuple(hidden) if len(hidden) <= _MOST_LAYERS else _HIDDEN


def _count(history: LearningHistory, key: str, largest: Callable[[Stage], int]) -> int:
    """Number of states or actions: as recorded, else one more than the largest seen."""
    recorded = history.metadata.get(key)
    if isinstance(recorded, int) and recorded > 1:
        return recorded
    return max(2, 1 + max(largest(stage) for stage in history))


def _largest_state(stage: Stage) -> int:
    acted = int(stage.observations.max())
    if stage.last_observations is None:
        return acted
    # Where the observer merely stopped looking the learner would have acted, so the policy must
    # know that state; nobody acts after the end of an episode.
    return int(stage.last_observations[~stage.terminated].max(initial=acted))
