"""What histories and estimates say of themselves in a Python prompt and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from logel.data.contents import Contents
from logel.data.limits import shown
from logel.data.observations import in_words

# Names shown before the rest is only counted, and characters of each.
_MOST_NAMES, _LONGEST = 8, 40
# Of what a recorder notes, the facts that tell one history from another.
_NOTED = ("environment", "learner", "gamma", "seed")


def estimate_line(estimate: Any) -> str:
    """The largest weights of a `RewardEstimate`, and how far to trust them, in one line."""
    order = np.sort(np.argsort(-np.abs(estimate.weights), kind="stable")[:_MOST_NAMES])
    pairs = [
        f"{shown(estimate.feature_names[j], _LONGEST)}={estimate.weights[j]:.3g}" for j in order
    ]
    hidden = len(estimate.weights) - len(order)
    more = f" and {hidden} smaller" if hidden else ""
    return (
        f"RewardEstimate({', '.join(pairs)}{more}; {estimate.scale}, "
        f"{len(estimate.learning_rates)} steps, {estimate.verdict.finding.value})"
    )


def history_line(history: Contents) -> str:
    """Size and kinds of a history in one line; reads no stage."""
    facts = _facts(history)
    parts = [facts.pop("stages"), *(f"{key} {value}" for key, value in facts.items())]
    return f"LearningHistory({'; '.join(parts)})"


def history_html(history: Contents) -> str:
    """The facts of a history as a small table; reads no stage, and escapes every name."""
    cell = 'style="text-align:left;padding:2px 12px 2px 0"'
    metadata, plain = history.metadata, (str, int, float)
    noted = {key: str(metadata[key]) for key in _NOTED if isinstance(metadata.get(key), plain)}
    rows = "".join(
        f"<tr><th {cell}>{escaped(key)}</th><td {cell}>{escaped(value)}</td></tr>"
        for key, value in (_facts(history) | noted).items()
    )
    return (
        f'<div><b>Learning history</b></div><table style="border-collapse:collapse">{rows}</table>'
    )


def escaped(text: str) -> str:
    """A stranger's text, to be put into HTML."""
    # A lone surrogate, which JSON can spell, cannot be sent to a notebook.
    return html.escape(text.encode("utf-8", "replace").decode()[:600], quote=True)


def _facts(history: Contents) -> dict[str, str]:
    signature = history.signature
    interrupted = "" if history.complete else ", recording interrupted"
    return {
        "stages": f"{len(history)} stages{interrupted}",
        "observations": _kind(signature.observation_shape, signature.discrete_observations)
        if signature.observation_parts is None
        else in_words(signature.observation_parts),
        "actions": _kind(signature.action_shape, signature.discrete_actions),
        "features": _features(history.feature_names, signature.n_features),
        "learning rates": "unknown" if history.learning_rates is None else "known",
    }


def _kind(shape: tuple[int, ...], discrete: bool) -> str:
    kind = "integer" if discrete else "real"
    return kind if shape == () else f"{kind} {shape}"


def _features(names: Sequence[str] | None, number: int | None) -> str:
    if number is None:
        return "not recorded"
    if names is None:
        return f"{number} without names"
    listed = ", ".join(shown(name, _LONGEST) for name in names[:_MOST_NAMES])
    hidden = len(names) - _MOST_NAMES
    return f"{listed} and {hidden} more" if hidden > 0 else listed
