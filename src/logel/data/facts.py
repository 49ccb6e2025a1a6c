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
from collections.abc import Callable
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
    # The first ones are the arrays, whatever they are called.
    named = {p.name: p for p in parameters[len(arrays) :]}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(*arrays, **known)
    for name in FACTS:
        if name in named and named[name].default is inspect.Parameter.empty and name not in known:
            raise OptionError(
                f"the features ask for {name}, which is not known here: "
                "pass it by name, or give the parameter a default"
            )
    return function(*arrays, **{name: known[name] for name in known if name in named})
