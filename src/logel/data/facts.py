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
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Some functions of compiled modules cannot tell.
        return function(*arrays)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(*arrays, **known)
    # The first ones are the arrays, whatever they are called.
    asked = [p for p in parameters[len(arrays) :] if p.name in FACTS]
    return function(*arrays, **_filled(asked, known))


def _filled(asked: Sequence[inspect.Parameter], known: Mapping[str, Any]) -> dict[str, Any]:
    """The facts for some parameters; those without a default must be known."""
    for parameter in asked:
        if parameter.default is parameter.empty and parameter.name not in known:
            raise OptionError(
                f"the features ask for {parameter.name}, which is not known here: "
                "pass it by name, or give the parameter a default"
            )
    return {one.name: known[one.name] for one in asked if one.name in known}
