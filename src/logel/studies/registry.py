"""All studies by name. What belongs to one (tasks, claims, figure) is in its own module."""

from __future__ import annotations

from logel.errors import OptionError
from logel.studies import (
    accuracy,
    accuracy_control,
    accuracy_intervals,
    accuracy_jacobians,
    accuracy_worlds,
    audit,
    audit_wrong,
    cohort,
    crossroad,
    foragers,
    gridworld,
    hopper,
    lunarlander,
    misspecified,
    nulls,
    reacher,
)
from logel.studies.study import Study

STUDIES = {
    study.name: study
    for study in (
        gridworld.KNOWN,
        gridworld.LEARNING,
        gridworld.CURVES,
        accuracy.RANDOM,
        accuracy.PAPER,
        accuracy.KNOWN,
        accuracy_intervals.NULL,
        accuracy_intervals.COVERAGE,
        accuracy_worlds.STUDY,
        accuracy_control.STUDY,
        accuracy.BOUND,
        accuracy_jacobians.STUDY,
        crossroad.STUDY,
        hopper.STUDY,
        reacher.STUDY,
        audit.STUDY,
        audit.FRESH,
        audit_wrong.STUDY,
        foragers.STUDY,
        lunarlander.STUDY,
        cohort.STUDY,
        nulls.STUDY,
        misspecified.STUDY,
    )
}
GROUPS = {
    "gridworld": tuple(name for name in STUDIES if name.startswith("gridworld-")),
    "accuracy": tuple(name for name in STUDIES if name.startswith("accuracy-")),
    "mujoco": ("hopper", "reacher"),
}


def select(name: str) -> list[Study]:
    """The studies a name stands for."""
    if name in GROUPS:
        return [STUDIES[member] for member in GROUPS[name]]
    if name not in STUDIES:
        choices = ", ".join([*GROUPS, *STUDIES])
        raise OptionError(f"unknown study {name!r}: choose one of {choices}")
    return [STUDIES[name]]
