"""What a feature function may ask for beside the transition: how and when the episode ends.

A function of (observations, actions, next_observations) that has parameters of these names gets
them as well, each of shape (N,):

    terminated   whether the step ended the episode for good
    truncated    whether a time limit ended it
    times        steps since the episode began, from 0

All others are called as they always were.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logel.errors import OptionError

FACTS = ("terminated", "truncated", "times")


def call_with_facts(function: Callable[..., Any], *arrays: Any, **facts: Any) -> Any:
    """Call a function of transitions with those facts that it asks for by name.

    Args:
        function: Of the arrays; its parameters `terminated`, `truncated` and `times` are filled,
            `**facts` gets all that are known.
        arrays: Passed by position.
        facts: The facts that are known here; None counts as not known.

    Raises:
        OptionError: If the function must have a fact that is not known.
    """
    known = {name: value for name, value in facts.items() if value is not None}
    if not callable(function):
        raise OptionError(
            f"features must be a function of transitions, not a {type(function).__name__}: names "
            "of recorded features belong to the history (feature_names)"
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Some functions of compiled modules cannot tell.
        return function(*arrays)
    _check_number(parameters, len(arrays))
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(*arrays, **known)
    # The first ones are the arrays, whatever they are called.
    asked = [p for p in parameters[len(arrays) :] if p.name in FACTS]
    return function(*arrays, **_filled(asked, known))


def _check_number(parameters: Sequence[inspect.Parameter], n_arrays: int) -> None:
    """Refuse a function that does not take the arrays by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    n = sum(p.kind in kinds for p in parameters)
    if n < n_arrays and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise OptionError(
            f"a feature function takes (observations, actions, next_observations), but this one "
            f"takes {n} arguments"
        )


def _filled(asked: Sequence[inspect.Parameter], known: Mapping[str, Any]) -> dict[str, Any]:
    """The facts for some parameters; those without a default must be known."""
    for parameter in asked:
        if parameter.default is parameter.empty and parameter.name not in known:
            raise OptionError(
                f"the features ask for {parameter.name}, which is not known here: "
                "pass it by name, or give the parameter a default"
            )
    return {one.name: known[one.name] for one in asked if one.name in known}
