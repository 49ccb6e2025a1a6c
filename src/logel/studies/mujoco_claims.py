"""What the MuJoCo studies say: curves, claims and a summary of their tables."""

from __future__ import annotations

import pandas as pd

from logel.studies.claims import Claim, judge, mean_interval
from logel.studies.mujoco import OBSERVERS

# An agent succeeds that comes as far as the learner, and fails if it does not come half as far.
SUCCESS, FAILURE = 1.0, 0.5
PEAK_WITHIN = 0.1
WEIGHT_COLUMNS = ("feature", "weight", "low", "high", "truth")


def curves(table: pd.DataFrame, observer: str) -> pd.DataFrame:
    """Scores of one observer, one row per seed, one column per update."""
    rows = table[(table.part == "curve") & (table.observer == observer)]
    return rows.pivot(index="seed", columns="update", values="score").sort_index()


def last_scores(table: pd.DataFrame, observer: str) -> pd.Series[float]:
    """Each run's score at the end."""
    return curves(table, observer).iloc[:, -1]


def weights(table: pd.DataFrame, observer: str) -> pd.DataFrame:
    """The weight rows of one observer; none, but with their columns, if it finds no weights."""
    rows = table[(table.part == "weight") & (table.observer == observer)]
    return rows.reindex(columns=list(dict.fromkeys([*table.columns, *WEIGHT_COLUMNS])))


def _score(
    table: pd.DataFrame,
    claim: str,
    observer: str,
    *,
    over: str | None = None,
    wanted: str = "above",
    threshold: float = 0.0,
    source: str = "paper",
) -> list[Claim]:
    present = set(table.observer.unique())
    if not {observer, over or observer} <= present:
        return []
    values = last_scores(table, observer)
    what = "normalised score at the end"
    if over is not None:
        values = (values - last_scores(table, over)).dropna()
        what += f", minus that of {over}"
    return [
        judge(
            claim,
            values.tolist(),
            statistic=what,
            threshold=threshold,
            wanted=wanted,
            observer=observer,
            source=source,
        )
    ]


def _agents(table: pd.DataFrame) -> list[Claim]:
    """How agents trained on LOGEL's rewards do."""
    found = []
    for name in ("paper", "default"):
        source = "paper" if name == "paper" else "logel"
        found += _score(
            table, "comes as far as the learner", name, threshold=SUCCESS, source=source
        )
        for other in ("lfl", "trex"):
            found += _score(table, f"does better than {other}", name, over=other, source=source)
    return found


def hopper_claims(table: pd.DataFrame) -> list[Claim]:
    """The paper's claims about Hopper, and ours."""
    found = _agents(table)
    found += _score(table, "LfL fails", "lfl", wanted="below", threshold=FAILURE)
    found += _score(table, "T-REX is decent", "trex", threshold=FAILURE)
    for name in ("default", "paper"):
        rows = weights(table, name)
        if len(rows):
            found += _weight_claims(rows, name)
    return found


def _weight_claims(rows: pd.DataFrame, name: str) -> list[Claim]:
    forward = rows[rows.feature == "distance"]
    inside = (rows.low <= rows.truth) & (rows.truth <= rows.high)
    every = inside.groupby(rows.seed).all()
    return [
        judge(
            claim,
            values.tolist(),
            statistic=f"share of runs {statistic}",
            threshold=threshold,
            wanted="above",
            observer=name,
            source="logel",
        )
        for claim, values, statistic, threshold in (
            ("moving forward is paid", forward.low > 0, "with an interval above zero", 0.9),
            ("intervals are honest", every, "whose three intervals contain the truth", 0.8),
        )
    ]


def reacher_claims(table: pd.DataFrame) -> list[Claim]:
    """The paper's claims about Reacher, and ours."""
    found = _agents(table)
    for name in ("paper", "default"):
        fits = table[(table.part == "fit") & (table.observer == name)]
        if len(fits):
            found.append(
                judge(
                    "the recovered reward peaks at the target",
                    fits["peak distance"].tolist(),
                    statistic="distance of the heat map's peak from the target, in metres",
                    threshold=PEAK_WITHIN,
                    wanted="below",
                    observer=name,
                    source="logel",
                )
            )
            found.append(_slower(table, name))
    return found + _score(table, "T-REX fails", "trex", wanted="below", threshold=FAILURE)


def _slower(table: pd.DataFrame, name: str) -> Claim:
    learner, observer = curves(table, "learner"), curves(table, name)
    common = learner.columns.intersection(observer.columns)
    lag = learner[common].mean(axis=1) - observer[common].mean(axis=1)
    return judge(
        "learns slower than the learner",
        lag.dropna().tolist(),
        statistic="learner's mean score minus the observer's, over the learner's updates",
        threshold=0.0,
        wanted="above",
        observer=name,
    )


def summary(table: pd.DataFrame) -> str:
    """Scores and weights as Markdown."""
    lines = [
        "| observer | runs | score at the end | best score | seconds |",
        "|---|---|---|---|---|",
    ]
    for name in ("learner", *OBSERVERS):
        if name not in set(table.observer):
            continue
        found = curves(table, name)
        fits = table[(table.part == "fit") & (table.observer == name)]
        seconds = f"{fits.seconds.median():.0f}" if len(fits) else ""
        cells = [_interval(found.iloc[:, -1]), _interval(found.max(axis=1)), seconds]
        lines.append(f"| {name} | {len(found)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Mean ± half a 98% interval; seconds of processor time to recover the reward.",
        "",
    ]
    lines += ["| observer | feature | weight: median [range] | truth | intervals with the truth |"]
    lines += ["|---|---|---|---|---|"]
    for name in ("default", "paper"):
        rows = weights(table, name)
        for feature, part in rows.groupby("feature", sort=False):
            low, middle, high = part.weight.quantile([0, 0.5, 1])
            cells = [
                name,
                str(feature).replace("|", r"\|"),
                f"{middle:.4g} [{low:.4g}, {high:.4g}]",
                "",
                "",
            ]
            if part.truth.notna().all():
                inside = (part.low <= part.truth) & (part.truth <= part.high)
                cells[3:] = [f"{part.truth.iloc[0]:.4g}", f"{inside.sum()} of {len(part)}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _interval(values: pd.Series[float]) -> str:
    mean, low, high = mean_interval(values)
    return f"{mean:.2f} ± {(high - low) / 2:.2f}" if len(values) > 1 else f"{mean:.2f}"
