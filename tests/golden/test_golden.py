"""Every method says of every stored history what it said when the golden files were made.

What a fix rightly changes is listed in `CHANGED`, field by field, with the reason; the new values
are made by `python tests/golden/make.py --changed PATTERN`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any, NamedTuple

import pytest
from golden_entries import CHANGED as CHANGED_FILE
from golden_entries import ESTIMATES, INTERVALS, LOOSE, asked, differences, load, read


class Change(NamedTuple):
    """Fields of some entries that may be others now, and why, in one line."""

    entries: str
    fields: tuple[str, ...]
    reason: str


STATUS, PLANNED, MODELS = ("status",), ("twice_the_episodes",), ("model", "models")
FEW_STEPS = "2: steps are the unit of evidence, and five or fewer never convince"
UPDATE_RULES = "2: held-out steps do not choose between update rules any more"
OWN_NOISE = "3: the learner's own noise does not halve with twice the episodes"
UNITS = "1: natural steps of known rate no longer depend on the units of the policy's features"
# Numbers are those of shared/architecture.md, "Found wrong on the way".
CHANGED = (
    Change("*/paper*", STATUS, FEW_STEPS),
    Change("*/authors", STATUS, FEW_STEPS),
    Change("*/crossroad*", STATUS, FEW_STEPS),
    Change("*/two-step*", STATUS, FEW_STEPS),
    Change("*/mirror*", STATUS, FEW_STEPS),
    Change("categorical-*/default*", STATUS, FEW_STEPS),
    Change("network-*/default*", STATUS, FEW_STEPS),
    Change("*/two-step*", MODELS, UPDATE_RULES),
    Change("*/crossroad", MODELS, UPDATE_RULES),
    Change("*/two-step*", PLANNED, OWN_NOISE),
    Change("*/crossroad", PLANNED, OWN_NOISE),
    Change("*-natural-known-rates*/default", ("weights", *INTERVALS), UNITS),
    Change("*-natural-known-rates*/joint-natural", ("weights", *INTERVALS), UNITS),
    Change("*/default-quick", INTERVALS, "4: without intervals there is nothing to plan by"),
    Change("*/mirror-free", ("*",), "2: rates of single steps are refused in function space"),
)

STORED: dict[str, Any] = read(ESTIMATES)["entries"]
REPLACED: dict[str, Any] = read(CHANGED_FILE)["entries"]


def expected(entry: str) -> dict[str, Any]:
    """What is to be said now: the old answer with its new fields, or the new refusal."""
    new = REPLACED.get(entry, {})
    return new if "error" in new else {**STORED[entry], **new}


def changes_behind(entry: str, field: str) -> Iterator[Change]:
    """The listed changes that may be why a field of an entry is another one now."""
    for change in CHANGED:
        if fnmatch(entry, change.entries) and any(fnmatch(field, f) for f in change.fields):
            yield change


@pytest.mark.parametrize("entry", sorted(STORED))
def test_answers_are_the_stored_ones(entry: str) -> None:
    name, method = entry.split("/")
    assert not differences(entry, asked(load(name), method), expected(entry))


def test_every_change_has_a_reason_and_every_reason_a_change() -> None:
    used = set()
    for entry in REPLACED:
        changed = differences(entry, expected(entry), STORED[entry])
        assert changed, f"{entry} did not change: make.py --changed '{entry}'"
        for field in changed:
            reasons = set(changes_behind(entry, field))
            assert reasons, f"CHANGED does not say why {field} of {entry} is another one now"
            used |= reasons
    assert used == set(CHANGED), f"nothing changed so: {set(CHANGED) - used}"


def test_no_answer_became_surer() -> None:
    changed = {entry for entry, new in REPLACED.items() if "status" in new}
    assert {REPLACED[entry]["status"] for entry in changed} == {"UNEXPLAINED"}


def test_patterns_match_something() -> None:
    for loose in LOOSE:
        assert any(fnmatch(entry, loose.entries) for entry in STORED), loose.entries
