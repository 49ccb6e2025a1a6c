"""Every method says of every stored history what it said when the golden files were made.

What a fix rightly changes is listed in `CHANGED`, field by field, with the reason; the new values
are made by `python tests/golden/make.py --changed PATTERN`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any, NamedTuple

import pytest
from golden_entries import CHANGED as CHANGED_FILE
from golden_entries import (
    ESTIMATES,
    INTERVALS,
    LOOSE,
    NUMBERS,
    asked,
    differences,
    distance,
    expected,
    load,
    read,
)


class Change(NamedTuple):
    """Fields of some entries that may be others now, why, in one line, and by how much at most."""

    entries: str
    fields: tuple[str, ...]
    reason: str
    at_most: float = math.inf


STATUS, PLANNED, MODELS = ("status",), ("twice_the_episodes",), ("model", "models")
STEPS = "2: whole steps are the unit of evidence, and five or fewer never convince"
UPDATE_RULES = "2: held-out steps do not choose between update rules any more"
OWN_NOISE = "3: the learner's own noise does not halve with twice the episodes"
UNITS = "1: natural steps of known rate no longer depend on the units of the policy's features"
GROUPS = "8: a group left out of the pooled world is left out of Fisher information and noise too"
CENTRED = "14: features are centred where no episode terminates, so constants in them have no say"
TAILS = "14: without bootstrap what a cut episode misses is the features' mean now, not zero"
ENDS = "14: ends of intervals go only as far as unit weights do in what is identified"
DRAWS = "14: the exact gauge has its direction the other way round, so other draws are drawn"
CLONES = "15: networks stop early on small stages, and take smaller batches up to some 2,500"
GRADUAL = "16: gradual soft value iteration is tried too, and has a share of the draws"
BY_VALUES = "16: soft value and soft policy iteration are smoothed by values, with less rounding"
STRAYED = "17: steps between known policies do not count for less because they strayed"
OPENED = "17: intervals of six steps and more that show no reward exclude no direction"
BACKWARDS = "17: what is unlearnt may be a learner of the opposite reward, read backwards"
LEFT_OVER = "17: natural steps leave the same again where gradients are fitted"
ASIDE = "20: every stage sets episodes of its own aside, whoever clones it"
ROUNDS = "20: networks are cloned in rounds of Adam whose rate rises and falls"
ORDER = "20: sums go by columns, and rounding decides whether a direction at the edge is weak"
STARTS = "20: clones start elsewhere, and so do joint fits, which end by evidence, not by rest"
# In the pooled world centring is exact but for the critic's ridge, with which its effect shrinks;
# how little it does to "mirror" was measured.
LITTLE, LESS = 1e-3, 1e-4
# Numbers are those of shared/architecture.md, "Found wrong on the way".
CHANGED = (
    Change("*/paper*", STATUS, STEPS),
    Change("*/authors", STATUS, STEPS),
    Change("*/crossroad*", STATUS, STEPS),
    Change("*/two-step*", STATUS, STEPS),
    Change("*/mirror*", STATUS, STEPS),
    Change("categorical-*/default*", STATUS, STEPS),
    Change("network-*/default*", STATUS, STEPS),
    Change("*/two-step*", MODELS, UPDATE_RULES),
    Change("*/crossroad", MODELS, UPDATE_RULES),
    Change("*/two-step*", PLANNED, OWN_NOISE),
    Change("*-natural-known-rates*/default", ("weights", *INTERVALS), UNITS),
    Change("*-natural-known-rates*/joint-natural", ("weights", *INTERVALS), UNITS),
    Change("*/default-quick", INTERVALS, "4: without intervals there is nothing to plan by"),
    Change("*/mirror-free", ("*",), "2: rates of single steps are refused in function space"),
    Change("control-*/default", INTERVALS, GROUPS, 0.3),
    Change("control-*/joint-natural", INTERVALS, GROUPS, 0.1),
    Change("*gaussian-*/default", INTERVALS, GROUPS, 0.1),
    Change("softmax-plane-*/default*", INTERVALS, GROUPS, 0.1),
    Change("softmax-plane-*/joint*", INTERVALS, GROUPS, 0.1),
    Change("control-*/default*", NUMBERS, CENTRED, LITTLE),
    Change("*gaussian-*/default", NUMBERS, CENTRED, LITTLE),
    Change("softmax-plane-*/default*", NUMBERS, CENTRED, LITTLE),
    Change("*categorical-*/default*", NUMBERS, CENTRED, LESS),
    Change("*network-*/default*", NUMBERS, CENTRED, LESS),
    Change("*/mirror*", NUMBERS, CENTRED, LESS),
    Change("*-known*/mirror-no-bootstrap", NUMBERS, TAILS, 1.0),
    Change("linear-gradient-cloned/mirror-no-bootstrap", NUMBERS, TAILS, 0.2),
    Change("grid-*/default*", INTERVALS, ENDS, 0.02),
    Change("grid-*/mirror*", INTERVALS, ENDS, 0.2),
    Change("*-duplicated*/mirror", INTERVALS, ENDS, 0.3),
    Change("network-duplicated-known/default", INTERVALS, ENDS, 0.3),
    Change("gaussian-plane-constant-cloned/mirror", INTERVALS, ENDS, 1.0),
    Change("*-constant*/default", INTERVALS, DRAWS, 0.2),
    Change("network-few-rows/mirror", (*NUMBERS, "held_out"), CLONES),
    Change("*-known*/default*", (*NUMBERS, "model"), STRAYED),
    Change("*-known*/joint*", NUMBERS, STRAYED),
    Change("control-backwards/default", (*NUMBERS, "model"), STRAYED),
    Change("gaussian-plane-[bo][aw]*/default", NUMBERS, STRAYED),
    Change("categorical-gradient-cloned/*", (*NUMBERS, "held_out"), CLONES),
    Change("network-gradient-cloned/*", (*NUMBERS, "held_out"), CLONES),
    Change("grid-*/default*", ("models",), GRADUAL),
    Change("*table-*/default*", ("models",), GRADUAL),
    Change("grid-*-cloned/default", INTERVALS, GRADUAL, 0.06),
    Change("table-*/default", INTERVALS, GRADUAL, 0.06),
    # Nobody knows how this one learns: its few episodes leave under a nat between the rules.
    Change("table-unequal/default", ("*",), GRADUAL),
    Change("grid-s*-cloned/default", NUMBERS, BY_VALUES, 1e-4),
    Change("*control-*/*", INTERVALS, OPENED),
    Change("*-known-rates/*", INTERVALS, OPENED),
    Change("long-*-cloned/*", INTERVALS, OPENED),
    Change("control-backwards/default", STATUS, BACKWARDS),
    Change("long-table-known/*", (*STATUS, *INTERVALS), LEFT_OVER),
    Change("*", ("held_out",), ASIDE),
    Change("linear-*-cloned*/default*", (*NUMBERS, "models"), STARTS, 0.03),
    Change("linear-gradient-cloned/joint-gradient", (*NUMBERS, "models"), STARTS, 0.01),
    Change("long-linear-cloned/default", (*NUMBERS, "models"), STARTS, 0.01),
    Change("table-unequal/paper", NUMBERS, STARTS, 1e-4),
    Change("categorical-gradient-cloned/*", (*NUMBERS, "held_out"), ROUNDS),
    Change("network-gradient-cloned/*", (*NUMBERS, "held_out"), ROUNDS),
    Change("network-few-rows/mirror", (*NUMBERS, "held_out"), ROUNDS),
    Change("network-own-episodes/*", ("weak",), ORDER),
)

STORED: dict[str, Any] = read(ESTIMATES)["entries"]
REPLACED: dict[str, Any] = read(CHANGED_FILE)["entries"]


def today(entry: str) -> dict[str, Any]:
    """What is to be said now."""
    return expected(entry, STORED, REPLACED)


def changes_behind(entry: str, field: str) -> Iterator[Change]:
    """The listed changes that may be why a field of an entry is another one now."""
    gap = distance(today(entry).get(field), STORED[entry].get(field))
    for change in CHANGED:
        named = fnmatch(entry, change.entries) and any(fnmatch(field, f) for f in change.fields)
        if named and gap <= change.at_most:
            yield change


@pytest.mark.parametrize("entry", sorted(STORED))
def test_answers_are_the_stored_ones(entry: str) -> None:
    name, method = entry.split("/")
    assert not differences(entry, asked(load(name), method), today(entry))


def test_every_change_has_a_reason_and_every_reason_a_change() -> None:
    used = set()
    for entry in REPLACED:
        changed = differences(entry, today(entry), STORED[entry])
        assert changed, f"{entry} did not change: make.py --changed '{entry}'"
        for field in changed:
            reasons = set(changes_behind(entry, field))
            assert reasons, f"CHANGED does not say why {field} of {entry} is another one now"
            used |= reasons
    assert used == set(CHANGED), f"nothing changed so: {set(CHANGED) - used}"


def test_no_answer_became_surer() -> None:
    changed = {entry for entry, new in REPLACED.items() if "status" in new}
    found = {REPLACED[entry]["status"] for entry in changed}
    assert found == {"UNEXPLAINED", "REVERSIBLE", "INCOMPLETE"}


def test_clear_learners_watched_for_long_convince() -> None:
    doubted = {entry for entry in STORED if entry.startswith("long-") and _doubted(entry)}
    assert doubted == {
        "long-linear-cloned/authors",
        "long-table-cloned/authors",
        "long-table-cloned/mirror",
        "long-table-cloned/paper",
        "long-table-cloned/two-step",
        # The learner follows natural gradients.
        "long-table-known/authors",
        "long-table-known/paper",
        "long-table-known/two-step",
    }


def _doubted(entry: str) -> bool:
    return bool(today(entry)["status"] not in ("OK", "RANK_DEFICIENT"))


def test_patterns_match_something() -> None:
    for loose in LOOSE:
        assert any(fnmatch(entry, loose.entries) for entry in STORED), loose.entries
