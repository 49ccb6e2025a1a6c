"""The arguments of an inference: what may be left out, and what people pass by mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.errors import OptionError, check_gamma, one_line
from logel.inference.cohort import named_histories
from logel.policies.base import Policy
from logel.policies.choose import choose_common_policy, tells_family

_ONE_LIST = "one list of episodes per stage"


def settled(history: Any, policy: Any, gamma: Any, *, known: bool) -> tuple[Policy, float]:
    """Policy family and discount factor: as given, else as the history says.

    Args:
        history: A history, or several in a list or by name.
        policy: As given, or None.
        gamma: As given, or None.
        known: Whether recorded parameters are to be used.

    Raises:
        OptionError: If an argument is of another kind, or left out where no history tells it.
    """
    if isinstance(history, Policy) and isinstance(policy, LearningHistory):
        raise OptionError("history and policy are swapped: pass the history first")
    named = _named(history)
    if policy is None:
        policy = _policy_of(named, known)
    else:
        _check_policy(policy)
    if gamma is not None and (isinstance(gamma, bool) or not isinstance(gamma, int | float)):
        raise OptionError(f"gamma must be a number in [0, 1), not {_words(gamma)}")
    return policy, check_gamma(common_gamma(named, gamma))


def common_gamma(histories: Mapping[str, LearningHistory], gamma: float | None) -> float:
    """As asked, else as recorded, which must be the same for all."""
    if gamma is not None:
        return float(gamma)
    found = {name: history.gamma for name, history in histories.items()}
    (first, discount), *others = found.items()
    for name, other in others:
        if other != discount:
            raise OptionError(
                f"{first} has the discount factor {discount}, but {name} has {other}: pass gamma "
                "(--gamma)"
            )
    if discount is None:
        told = histories[first].metadata.get("gamma")
        if told is not None:
            raise OptionError(f"gamma must be in [0, 1), but is {one_line(told)} in {first}")
        raise OptionError("the history does not say the discount factor: pass gamma (--gamma)")
    return discount


def _named(history: Any) -> Mapping[str, LearningHistory]:
    """Histories by name, once it is sure that they are histories."""
    if isinstance(history, LearningHistory):
        return {"history": history}
    several = list(history.values()) if isinstance(history, Mapping) else history
    if isinstance(several, list | tuple):
        if all(isinstance(one, LearningHistory) for one in several):
            return named_histories(history)
        raise OptionError(_of_parts(several))
    if isinstance(history, str | PathLike):
        raise OptionError(f"history is a path: pass LearningHistory.load({str(history)!r}) instead")
    if hasattr(history, "columns"):
        raise OptionError("history is a table: make one with LearningHistory.from_dataframe(table)")
    raise OptionError(
        f"history must be a LearningHistory, not {_words(history)}: make one with "
        f"LearningHistory.from_episodes, {_ONE_LIST}"
    )


def _of_parts(several: Sequence[Any]) -> str:
    """What to do with a list of something else than histories."""
    make = f"LearningHistory.from_episodes({_ONE_LIST})"
    first = several[0]
    if isinstance(first, Episode):
        return (
            f"history is a list of {len(several)} episodes, which does not say the stages: make "
            f"one with {make}, or LearningHistory.from_sessions(episodes, windows=...)"
        )
    if isinstance(first, Stage):
        return "history is a list of stages: make one with LearningHistory.from_stages(stages)"
    if isinstance(first, list | tuple) and first and isinstance(first[0], Episode):
        return f"history is a list of lists of episodes: make one with {make}"
    if isinstance(first, str | PathLike):
        return "history is a list of paths: pass [LearningHistory.load(path) for path in paths]"
    return (
        f"history is a list of {_words(first)}: make one with {make}, or with "
        "LearningHistory.from_arrays(observations, actions, stages=..., episodes=...)"
    )


def _policy_of(histories: Mapping[str, LearningHistory], known: bool) -> Policy:
    for name, history in histories.items():
        if not tells_family(history):
            where = "the history" if len(histories) == 1 else name
            raise OptionError(
                f"{where} does not say the policies' family: pass policy, such as "
                "LinearSoftmax(n_features, n_actions), MLPGaussian(observation_dim, action_dim) or "
                "SB3Policy.from_model(model)"
            )
    return choose_common_policy(histories, "auto", known=known)


def _check_policy(policy: Any) -> None:
    if isinstance(policy, Policy):
        return
    if isinstance(policy, type):
        raise OptionError(
            f"policy is the class {policy.__name__}: pass an instance, such as "
            f"{policy.__name__}(...) with its sizes"
        )
    if isinstance(policy, str):
        raise OptionError(
            f"policy is the text {policy!r}: pass a policy family, such as "
            "TabularSoftmax(n_states, n_actions), or leave it out where the history says it"
        )
    if hasattr(policy, "learn") and hasattr(policy, "policy"):
        raise OptionError(
            f"policy is a model ({type(policy).__name__}): pass SB3Policy.from_model(model)"
        )
    raise OptionError(
        f"policy must be a policy family, such as TabularSoftmax(n_states, n_actions), not "
        f"{_words(policy)}"
    )


def _words(value: Any) -> str:
    """What somebody passed: its kind, and the value of short ones."""
    if isinstance(value, str | int | float | bool):
        return repr(value)
    return f"a {type(value).__name__}"
