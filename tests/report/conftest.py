"""The history that most tests of the report show."""

from __future__ import annotations

import pytest
from pages import grid_history

from logel.data.history import LearningHistory


@pytest.fixture(scope="session")
def history() -> LearningHistory:
    """Read by many; nobody can change it."""
    return grid_history()
