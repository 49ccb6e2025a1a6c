"""What a golden entry is: a stored history, a way to ask for its reward, and the answer.

An entry is called `history/method`. Histories are loaded from `histories/`, never made again; their
metadata say which policy family and discount go with them. All imports from inside logel are here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logel import (
    LearningHistory,
    LinearGaussian,
    LinearSoftmax,
    LogelError,
    Method,
    MLPCategorical,
    MLPGaussian,
    RewardEstimate,
    TabularSoftmax,
    infer_reward,
)

HERE = Path(__file__).parent
HISTORIES = HERE / "histories"
ESTIMATES, CHANGED = HERE / "estimates.json", HERE / "changed.json"
GOLDEN = "golden"
"""Key of a history's metadata: family, its arguments, the discount, and named functions."""

Float = npt.NDArray[np.float64]
Entry = dict[str, Any]

NAMED = ("paper", "authors", "two-step", "joint", "mirror")
PAPER, TWO_STEP = Method.named("paper"), Method.named("two-step")

METHODS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("default", *NAMED)},
    # What callers of the command line, the studies and the examples ask for beside the names.
    "default-cloned": {"use_parameters": False},
    "default-quick": {"intervals": False},
    "default-seed1": {"seed": 1},
    "paper-quick": {"method": "paper", "intervals": False},
    "two-step-quick": {"method": "two-step", "intervals": False},
    "mirror-quick": {"method": "mirror", "intervals": False},
    "mirror-cloned": {"method": "mirror", "use_parameters": False},
    "two-step-cloned": {"method": "two-step", "use_parameters": False},
    "joint-gradient": {"method": Method.named("joint", models=("gradient",))},
    "joint-natural": {"method": Method.named("joint", models=("natural",))},
    "crossroad": {
        "method": replace(TWO_STEP, nonnegative=True, uncertainty="bootstrap", n_groups=30)
    },
    "crossroad-paper": {"method": replace(PAPER, nonnegative=True)},
    "paper-critic": {"method": replace(PAPER, baseline="critic")},
    "paper-reinforce": {"method": replace(PAPER, estimator="reinforce")},
    "paper-fisher": {"method": replace(PAPER, metric="fisher")},
    "paper-ridge": {"method": replace(PAPER, ridge=0.1)},
    "paper-ridge-evidence": {"method": replace(PAPER, ridge="evidence")},
    "two-step-before": {"method": Method(baseline="time", rates="shared")},
    "two-step-no-debias": {"method": replace(TWO_STEP, debias=False)},
    "two-step-debias": {"method": replace(TWO_STEP, debias=True)},
    "mirror-shared": {"method": Method.named("mirror", rates="shared")},
    "mirror-schedule": {"method": Method.named("mirror", rates="schedule")},
    "mirror-free": {"method": ("mirror", {"rates": "free"})},
    "mirror-ridge": {"method": Method.named("mirror", ridge=1.0)},
    "mirror-ridge-evidence": {"method": Method.named("mirror", ridge="evidence")},
    "mirror-no-debias": {"method": Method.named("mirror", debias=False)},
    "mirror-no-bootstrap": {"method": Method.named("mirror", bootstrap=False)},
    "mirror-unbiased": {"method": Method.named("mirror", trace=1.0, pool=0.0)},
    "mirror-deviations": {"method": Method.named("mirror", deviations=True)},
}


# --- families and functions, by name --------------------------------------------------------------


def with_one(observations: npt.NDArray[np.generic]) -> Float:
    """A constant beside the observation."""
    x = np.asarray(observations, dtype=float).reshape(len(observations), -1)
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


def squares(observations: Any, actions: Any, following: Any) -> Float:
    """Squares of the next observation and of the action, and the next first coordinate."""
    x, a = np.asarray(following, dtype=float), np.asarray(actions, dtype=float)
    return np.concatenate([-(x**2), -(a**2).sum(axis=1, keepdims=True), x[:, :1]], axis=1)


FAMILIES = {
    family.__name__: family
    for family in (TabularSoftmax, LinearSoftmax, LinearGaussian, MLPGaussian, MLPCategorical)
}


def family_of(spec: Mapping[str, Any]) -> Any:
    """The policy family that a history's metadata describe."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in spec["options"].items()}
    if "table" in spec:
        rows = np.array(spec["table"])
        options["feature_map"] = lambda observations: rows[observations]
    elif "map" in spec:
        options["feature_map"] = {"with_one": with_one}[spec["map"]]
    return FAMILIES[spec["family"]](**options)


# --- asking ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def load(name: str) -> LearningHistory:
    """A stored history, its stages in memory."""
    history = LearningHistory.load(HISTORIES / name)
    return replace(history, source=tuple(history))


def asked(history: LearningHistory, method: str) -> Entry:
    """The answer of one method for one history, as plain values."""
    spec = history.metadata[GOLDEN]
    features = {None: None, "squares": squares}[spec.get("features")]
    options = {"gamma": spec["gamma"], "features": features, **METHODS[method]}
    try:
        if isinstance(options.get("method"), tuple):  # refused today, so made where that is caught
            name, changes = options["method"]
            options["method"] = Method.named(name, **changes)
        return described(infer_reward(history, family_of(spec), **options))
    except LogelError as error:
        return {"error": type(error).__name__, "message": str(error)}


def described(estimate: RewardEstimate) -> Entry:
    """What is kept of an estimate; spans stand for directions, whose basis means nothing."""
    gauge, planned = estimate.gauge, estimate.planning is not None
    fields = {
        "status": estimate.status.name,
        "scale": estimate.scale,
        "weights": estimate.weights,
        "interval": estimate.interval(0.95),
        "learning_rates": estimate.learning_rates,
        "explained": estimate.explained,
        "cosines": estimate.fit.cosines,
        "model": next(iter(estimate.models), None),
        "models": dict(estimate.models),
        "rank": estimate.rank,
        "features": list(estimate.feature_names),
        "gauge": gauge.directions.T @ gauge.directions if gauge.n else [],
        "weak": gauge.weak.T @ gauge.weak if len(gauge.weak) else [],
        "held_out": estimate.held_out,
        "twice_the_episodes": estimate.expected_widths(2.0, 1.0) if planned else None,
        "twice_the_stages": estimate.expected_widths(1.0, 2.0) if planned else None,
        "gauge_words": gauge.describe(),
        "method": estimate.method,
        "notes": list(estimate.notes),
    }
    return {key: _plain(value) for key, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: float(item) for key, item in value.items()}
    return int(value) if isinstance(value, np.integer) else value


# --- comparing ------------------------------------------------------------------------------------

TOLERANCE = 1e-8
# Words may be improved; what they say in numbers and names is compared.
WORDS = ("message", "notes", "method", "gauge_words")


INTERVALS = ("interval", "twice_the_episodes", "twice_the_stages")
NUMBERS = (*INTERVALS, "weights", "learning_rates", "explained", "cosines", "models", "weak")


class Loose(NamedTuple):
    """Fields of some entries that rounding alone moves by more than the usual tolerance."""

    entries: str
    fields: tuple[str, ...]
    tolerance: float


# Found by `make.py --stability`, which adds relative noise of 1e-13 to all that was observed.
LOOSE = (
    # Draws take the root of eigenvalues that are zero but for rounding: 1e-17 becomes 3e-9.
    Loose("grid-*/*mirror*", INTERVALS, 1e-6),
    Loose("*-duplicated*/*", INTERVALS, 1e-6),
    Loose("*-constant*/*", INTERVALS, 1e-6),
    # Draws of a bootstrap that end where a weight leaves its bound.
    Loose("*/crossroad", INTERVALS, 1e-6),
    # The best ridge is found by a search that stops early.
    Loose("*/*-ridge-evidence", NUMBERS, 1e-6),
    # Held-out steps: without one of them a direction is undetermined, exactly or almost.
    Loose("grid-svi-known/default", ("models",), 1e-6),
    # One known step leaves two learner models with the same evidence.
    Loose("table-one-step-known/default", ("model",), math.inf),
    # Clones by Newton's method, and by many minibatches: rounding grows on the way.
    Loose("softmax-plane-cloned/*", NUMBERS, 1e-6),
    Loose("network-gradient-cloned/*", NUMBERS, 1e-6),
)


def allowed(entry: str, field: str, tolerance: float = TOLERANCE) -> float:
    """How far a field may be from its stored value, in units of max(1, |x|)."""
    loose = [x for x in LOOSE if field in x.fields and fnmatch(entry, x.entries)]
    return max((x.tolerance for x in loose), default=tolerance)


def differences(
    entry: str, found: Entry, stored: Entry, tolerance: float = TOLERANCE
) -> dict[str, str]:
    """The fields that differ by more than is allowed, and how."""
    lines = {}
    for field in {**stored, **found}:
        a, b = found.get(field), stored.get(field)
        gap = 0.0 if field in WORDS else distance(a, b)
        if gap > allowed(entry, field, tolerance):
            lines[field] = f"{a} instead of {b} (gap {gap:.2g})"
    return lines


def distance(a: Any, b: Any) -> float:
    """Largest difference in units of max(1, |b|); infinite where kind, shape or names differ."""
    if type(a) is type(b) is list:
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if type(a) is type(b) is dict and a.keys() == b.keys():
        return max((distance(a[key], b[key]) for key in b), default=0.0)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return _gap(a, b)
    return 0.0 if a == b else math.inf


def _gap(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    gap = abs(a - b) / max(1.0, abs(b))
    return math.inf if math.isnan(gap) else gap


# --- files ----------------------------------------------------------------------------------------


def expected(entry: str, stored: Mapping[str, Entry], changed: Mapping[str, Entry]) -> Entry:
    """What is to be said now: the old answer with its new fields, or the new refusal."""
    new = changed.get(entry, {})
    return dict(new) if "error" in new else {**stored[entry], **new}


def read(path: Path) -> dict[str, Any]:
    """The file's commit and its entries."""
    return json.loads(path.read_text()) if path.exists() else {"made_at": {}, "entries": {}}


def write(path: Path, made_at: Mapping[str, str], entries: Mapping[str, Entry]) -> None:
    """One field a line: floats in full precision, and a diff that can be read."""
    blocks = []
    for name in sorted(entries):
        fields = (f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in entries[name].items())
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(fields) + "\n  }")
    body = "{\n" + ",\n".join(blocks) + "\n }" if blocks else "{}"
    path.write_text(f'{{\n "made_at": {json.dumps(dict(made_at))},\n "entries": {body}\n}}\n')
