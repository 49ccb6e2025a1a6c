"""Every method says of every stored history what it said when the golden files were made.

An entry that a fix rightly changes is listed in `CHANGED` with the reason, and its new values are
made by `python tests/golden/make.py --changed PATTERN`.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest
from golden_entries import CHANGED as CHANGED_FILE
from golden_entries import ESTIMATES, LOOSE, asked, differences, load, read

# Pattern of history/method -> why its answer is another one now, in one line.
CHANGED: dict[str, str] = {}

STORED: dict[str, Any] = read(ESTIMATES)["entries"]
REPLACED: dict[str, Any] = read(CHANGED_FILE)["entries"]


def listed(entry: str) -> bool:
    """Whether a fix is known to change the entry."""
    return any(fnmatch(entry, pattern) for pattern in CHANGED)


@pytest.mark.parametrize("entry", sorted(STORED))
def test_answers_are_the_stored_ones(entry: str) -> None:
    name, method = entry.split("/")
    stored = STORED[entry]
    if listed(entry):
        assert entry in REPLACED, f"make.py --changed '{entry}', or narrow the pattern"
        stored = REPLACED[entry]
    assert not differences(entry, asked(load(name), method), stored)


def test_what_is_listed_as_changed_did_change() -> None:
    for entry in {*filter(listed, STORED), *REPLACED}:
        assert listed(entry), f"{entry} is in changed.json, but CHANGED does not say why"
        new = REPLACED.get(entry, {})
        assert differences(entry, new, STORED[entry]), f"{entry} did not change: do not list it"


def test_patterns_match_something() -> None:
    for pattern in {*CHANGED, *(loose.entries for loose in LOOSE)}:
        assert any(fnmatch(entry, pattern) for entry in STORED), pattern
