"""Audits that must find nothing, or are told something wrong; see `logel.studies.audit`.

The same learners in three of the worlds. Either their parameters drift at random by steps of the
same sizes, or their run is read backwards: there is nothing to find. Or the history says one of the
learner's settings wrongly: epochs 4 for 10, twice the rate, gamma .9 for .95.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from logel.envs.audit import WORLDS
from logel.studies import plots
from logel.studies.audit import (
    LEARNERS,
    PACKAGES,
    draw_means,
    fits,
    observe,
    recorded_learner,
    require_learners,
    said,
    size_of,
    table_by,
)
from logel.studies.claims import Claim
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# One room, one world whose episodes end, one with little more than a body: enough to be wrong in.
IN_WORLDS = ("room", "cartpole", "pendulum")
NOTHING = ("nothing", "backwards")


def run(task: Task) -> list[Row]:
    """One observer of a learner that wants nothing, or of a false account of one that does."""
    import torch

    from logel.learners.audit import backwards, drifted, family, misreported, wrong_gamma

    torch.set_num_threads(1)
    case, world = task.text("case"), WORLDS[task.text("world")]
    history, training = recorded_learner(task)
    policy, gamma = family(world), world.gamma
    if case == "nothing":
        rng = task.rng(ignoring=("observer",))
        history = drifted(history, world, size_of(task), policy, rng)
    elif case == "backwards":
        history = backwards(history)
    else:
        history = misreported(history, case)
        gamma = wrong_gamma(gamma) if case == "gamma" else gamma
    return observe(task, history, policy, gamma, training)


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Where there is nothing to find nothing is found; false settings do little harm."""
    for case in dict.fromkeys(table.case):
        rows = fits(table, observer="replay", case=case)
        if rows.empty:
            continue
        warned = [bool(value) for value in rows.warns]
        if case in NOTHING:
            yield said(f"{case}: says so", warned, "share of runs whose status warns", above=0.95)
            yield said(
                f"{case}: calls nothing paid",
                rows.significant,
                "share of weights whose interval excludes zero",
                below=0.07,
            )
        else:
            # A run whose status warns has misled nobody.
            sound = [1.0 if w else float(c) for w, c in zip(warned, rows.coverage, strict=True)]
            yield said(
                f"wrong {case}: misleads little",
                sound,
                "coverage of 95% intervals, 1 where the status warns",
                above=0.8,
            )


def summary(table: pd.DataFrame) -> str:
    """Means by case as Markdown; where there is nothing to find, no truth is to be met."""
    real = table[~table.case.isin(NOTHING)]
    keys, truth = ["case", "learner", "observer"], ("error", "coverage", "found", "signs")
    nothing = table_by(table[table.case.isin(NOTHING)], keys, (*truth, "false_alarms"))
    return f"{nothing}\nWrong settings:\n\n{table_by(real, keys)}"


def figure(table: pd.DataFrame) -> Figure:
    """Warnings and significant weights where there are none; coverage under wrong settings."""
    drawn = plots.new_figure(11, 3.6)
    panels = drawn.subplots(1, 3)
    rows = fits(table)
    rows = rows.assign(warns=rows.warns.astype(float))
    nothing, real = rows[rows.case.isin(NOTHING)], rows[~rows.case.isin(NOTHING)]
    for axes, part, measure, wanted, title in (
        (panels[0], nothing, "warns", 0.95, "nothing to find: status warns"),
        (panels[1], nothing, "significant", 0.07, "nothing to find: weights called paid"),
        (panels[2], real, "coverage", 0.8, "wrong settings: coverage"),
    ):
        draw_means(axes, part, measure, key="case")
        plots.rule(axes, wanted, dotted=True)
        plots.tidy(axes, title=title)
    plots.runs_legend(drawn, panels[0], table, "mean and 98% interval; dotted: wanted")
    return drawn


STUDY = Study(
    name="audit-wrong",
    cases=(
        {
            "world": IN_WORLDS,
            "learner": LEARNERS,
            "case": NOTHING,
            "observer": ("replay", "mirror"),
        },
        # Only PPO has epochs; what TRPO has a rate for is its critic.
        {"world": IN_WORLDS, "learner": ("PPO",), "case": ("epochs",), "observer": ("replay",)},
        {
            "world": IN_WORLDS,
            "learner": LEARNERS,
            "case": ("rate", "gamma"),
            "observer": ("replay",),
        },
    ),
    run=run,
    claims=claims,
    figure=figure,
    observers=("replay", "mirror"),
    quick=True,
    summary=summary,
    packages=PACKAGES,
    require=require_learners,
)
