"""Options and histories that all baselines refuse, in the same words."""

from __future__ import annotations

from logel.data.history import LearningHistory
from logel.errors import IdentificationError, OptionError


def check_stages(history: LearningHistory) -> None:
    """Refuse a history in which nothing moves because it has a single stage."""
    if len(history) < 2:
        raise IdentificationError(f"the history has {len(history)} stage: at least two are needed")


def check_positive(**values: float) -> None:
    """Refuse options that must be positive, by name."""
    for name, value in values.items():
        if not value > 0:
            raise OptionError(f"{name} must be positive, but is {value}")
