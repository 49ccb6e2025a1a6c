"""The figures of an estimate's page: titles, captions, text alternatives and data tables.

The drawings themselves are `assets/page.js`; each finds its place by the name in `data-plot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from logel.data.limits import listed
from logel.report.page_course import course_figure
from logel.report.page_forest import forest_figures
from logel.report.page_parts import choice, figure, remark
from logel.report.safe_text import NOTHING, escape, number

Data = dict[str, Any]
_LEVELS = ("50", "80", "95")
# Read aloud, a longer text alternative than this many entries helps nobody: there is the table.
_MOST_TOLD = 30
_MOST_CHIPS = 16
_VERDICTS = {
    "paid": ("Paid for", "the whole 95% interval is above zero"),
    "pays": ("Pays for", "the whole 95% interval is below zero"),
    "small": ("Small", "the whole 95% interval is within a tenth of the largest sure weight"),
    "open": ("Sign open", "the 95% interval contains zero, or there is none to be trusted"),
    "silent": ("Not identified", "no amount of such data can tell"),
}


def estimate_figures(data: Data) -> dict[str, list[str]]:
    """The figures by section; a section without any is left out of the page."""
    return {
        "weights": [_weights(data)],
        "learners": [] if data["forest"] is None else forest_figures(data["forest"]),
        "map": [] if data["map"] is None else [_map(data["map"])],
        "identified": _identified(data),
        "stages": [] if data["stages"] is None else _stages(data),
        "fit": [_cards(_fit(data))],
        "planning": [] if data["planning"] is None else [_planning(data)],
    }


def _cards(figures: Iterable[str]) -> str:
    return f'<div class="cards">{"".join(figures)}</div>'


def _names(data: Data) -> list[str]:
    return [data["names"][j] for j in data["weights"]["index"]]


def _weights(data: Data) -> str:
    found, names = data["weights"], _names(data)
    ends = [
        [f"{number(low)} to {number(high)}" for low, high in found["intervals"][level]]
        for level in _LEVELS
    ]
    percents = [NOTHING if p is None else f"{100 * p:.1f}%" for p in found["positive"]]
    errors = map(number, found["error"])
    weights = [number(w, 4) for w in found["weight"]]
    columns = zip(names, found["weight"], ends[-1], strict=True)
    told = [f"{name} {number(w)} ({interval})" for name, w, interval in columns]
    intervals = [(level, f"{level}%") for level in _LEVELS]
    orders = [("weight", "By weight"), ("raw", "As given")]
    return figure(
        "weights",
        "Reward weights",
        "Dots are the recovered weights, lines their intervals; a filled dot means that the 95% "
        "interval excludes zero. On the right, the probability that the weight is positive.",
        alt=f"Weights with 95% intervals: {'; '.join(told[:_MOST_TOLD])}.",
        headers=[
            *("feature", "weight", "std err"),
            *(f"{level}% interval" for level in _LEVELS),
            "P(weight > 0)",
        ],
        rows=zip(names, weights, errors, *ends, percents, strict=True),
        told="Weights and their intervals",
        controls=f'<div class="controls">{choice("level", "Interval", intervals, "95")}'
        f"{choice('order', 'Order', orders, 'weight')}</div>",
    )


def _map(drawn: Data) -> str:
    values = drawn["values"]
    fine = drawn["extent"] is not None
    step = 4 if fine else 1
    return figure(
        "map",
        "Recovered reward over two coordinates" if fine else "Recovered reward on the map",
        drawn["caption"],
        alt=f"A map of {len(values)} rows and {len(values[0])} columns; {_extremes(values)}.",
        headers=["row", *(f"column {c + 1}" for c in range(0, len(values[0]), step))],
        rows=[
            [f"{r + 1}", *(number(v, 2) for v in values[r][::step])]
            for r in range(0, len(values), step)
        ],
        told="Reward by cell" + (" (every fourth cell)" if fine else ""),
        look="side",
    )


def _extremes(values: Sequence[Sequence[float | None]]) -> str:
    known = [(v, r, c) for r, row in enumerate(values) for c, v in enumerate(row) if v is not None]
    if not known:
        return "nothing is known"
    return "; ".join(
        f"{what} {number(value)} in row {row + 1}, column {column + 1}"
        for what, (value, row, column) in (("highest", max(known)), ("lowest", min(known)))
    )


def _identified(data: Data) -> list[str]:
    gauge, verdicts = data["gauge"], data["weights"]["verdict"]
    members: dict[str, list[str]] = {word: [] for word in _VERDICTS}
    for name, word in zip(_names(data), verdicts, strict=True):
        members[word].append(name)
    if not members["small"]:
        del members["small"]
    groups = f'<div class="groups">{"".join(_chips(*group) for group in members.items())}</div>'
    rank = (
        f"Rank {gauge['rank']} of {len(data['names'])}; condition number "
        f"{number(gauge['condition'])}."
    )
    if not gauge["sentences"]:
        return [groups, f"<p>Every direction of the weights is identified. {escape(rank)}</p>"]
    sentences = "".join(f"<li>{escape(line, longest=700)}</li>" for line in gauge["sentences"])
    body = [groups, f'<ul class="plain">{sentences}</ul><p>{escape(rank)}</p>']
    return [*body, _gauge(gauge, _names(data))] if gauge["plot"] else body


def _chips(word: str, members: Sequence[str]) -> str:
    label, meaning = _VERDICTS[word]
    chips = "".join(f"<li>{escape(name, longest=60)}</li>" for name in members[:_MOST_CHIPS])
    if len(members) > _MOST_CHIPS:
        chips += f'<li class="none">and {len(members) - _MOST_CHIPS} more</li>'
    chips = chips or '<li class="none">none</li>'
    return f'<div class="group {word}"><h3>{label}</h3><p>{meaning}</p><ul>{chips}</ul></div>'


def _gauge(gauge: Data, names: Sequence[str]) -> str:
    rows = gauge["rows"]
    kinds = ["not identified"] * gauge["none"]
    kinds += ["hardly identified"] * (len(rows) - gauge["none"])

    def terms(row: Sequence[float]) -> str:
        pairs = zip(row, names, strict=True)
        return listed((f"{number(c, 2)} {name}" for c, name in pairs if abs(c) > 0.05), most=12)

    return figure(
        "gauge",
        "Combinations of weights the data cannot tell",
        "Adding any multiple of such a combination to the weights would look the same (or almost). "
        "Shown are the coefficients, the largest scaled to 1; among several, blue is positive and "
        "orange negative.",
        alt="; ".join(f"{kind}: {terms(row)}" for kind, row in zip(kinds, rows, strict=True)),
        headers=["feature", *(f"{i + 1}: {kind}" for i, kind in enumerate(kinds))],
        rows=[[n, *(number(row[i], 2) for row in rows)] for i, n in enumerate(names)],
        told="Coefficients of each combination",
    )


def _stages(data: Data) -> list[str]:
    views = data["stages"]
    last = len(views["stages"]) - 1
    player = (
        '<div class="player"><button type="button" id="play" aria-pressed="false">Play</button>'
        f'<input type="range" id="stage" min="0" max="{last}" value="{last}" step="1" '
        'aria-label="Stage"><output id="stage-name" for="stage"></output></div>'
    )
    cards = []
    if views["visits"] is not None:
        cards.append(_visits(data))
    if views["returns"] is not None:
        cards += [_returns(data), _expectations(data)]
    if views["movement"]:
        cards.append(_movement(views))
    return [player, _cards(cards)] if cards else []


def _visits(data: Data) -> str:
    visits = data["stages"]["visits"]
    first, last = visits[0], visits[-1]
    top = max(range(len(last)), key=lambda s: last[s])
    grid = bool(data["map"] and data["map"]["moves"])
    arrows = " Arrows are the actions taken there, longer for more frequent ones." if grid else ""
    shares = enumerate(zip(first, last, strict=True))
    return figure(
        "visits",
        "Where it goes, and what it does there",
        f"Stronger colour marks a larger share of the stage's steps.{arrows}",
        alt=f"At the last stage the learner spends most of its time, {100 * last[top]:.0f}%, in "
        f"state {top} (at the first stage {100 * first[top]:.0f}%).",
        headers=["state", "first stage", "last stage"],
        rows=[[s, f"{100 * a:.1f}%", f"{100 * b:.1f}%"] for s, (a, b) in shares],
        told="Share of the steps spent in each state",
        look="tall",
    )


def _returns(data: Data) -> str:
    views = data["stages"]
    returns, errors = views["returns"], views["return_errors"]
    rows = zip(views["stages"], returns, errors, views["episodes"], strict=True)
    return figure(
        "returns",
        "Return under the recovered reward",
        f"Mean return per episode (discount {number(data['gamma'])}) with twice its standard "
        "error; it should rise if the learner was after this reward.",
        alt=f"From {number(returns[0])} at the first stage to {number(returns[-1])} at the last.",
        headers=["stage", "mean return", "std err", "episodes"],
        rows=[[t, number(r, 4), number(e), n] for t, r, e, n in rows],
        told="Return by stage",
    )


def _expectations(data: Data) -> str:
    views = data["stages"]
    names = [data["names"][j] for j in views["features"]]
    rows = [[number(v) for v in row] for row in views["expectations"]]
    told = [f"{n} from {a} to {b}" for n, a, b in zip(names, rows[0], rows[-1], strict=True)]
    return figure(
        "expectations",
        "What it collects",
        "Discounted sum of each feature per episode: the chosen stage (dot), the first stage "
        "(tick) and the range over all stages (band).",
        alt="; ".join(told[:_MOST_TOLD]),
        headers=["stage", *names],
        rows=[[t, *row] for t, row in zip(views["stages"], rows, strict=True)],
        told="Feature expectations by stage",
    )


def _movement(views: Data) -> str:
    moved, name = views["movement"], views["movement_name"]
    noise = views["movement_noise"] or [None] * len(moved)
    aside = " The line is what sampling alone would show of a learner that stands still."
    return figure(
        "movement",
        "Movement from stage to stage",
        f"By {name}.{aside if views['movement_noise'] else ''}",
        alt=f"{len(moved)} steps; the largest is {number(max(m or 0 for m in moved))}, the last "
        f"{number(moved[-1])}.",
        headers=["step", name, "by sampling alone"],
        rows=zip(range(len(moved)), map(number, moved), map(number, noise), strict=True),
        told="Movement by step",
        look="wide",
    )


def _fit(data: Data) -> list[str]:
    steps, course = data["steps"], data["course"]
    chance = steps["chance"]
    few = " With so few parameters, cosines tell little." if chance > 0.5 else ""
    parts = [] if course is None else [course_figure(course)]
    parts.append(
        _series(
            "cosines",
            "Does it move where the reward says?",
            "Cosine between observed and predicted movement, step by step; 1 is perfect, "
            f"{number(chance)} what chance would give (dashed).{few}",
            steps["cosines"],
            "cosine",
        )
    )
    if course is None:
        title = "Share of the movement explained"
        caption = (
            "Share of each step's squared length that the reward accounts for; noise of the "
            "observation counts as unexplained, and below zero the prediction is too long."
        )
        parts.append(_series("explained", title, caption, steps["explained"], "share explained"))
    if course is None or not course["replayed"]:
        parts.append(_rates(steps["rates"]))
    return [*parts, *_solve(data)]


def _rates(found: Sequence[float | None]) -> str:
    """A sentence where all are equal. Replayed learners have those of their settings."""
    title, rates = "Learning rates", [rate for rate in found if rate is not None]
    if len(rates) > 1 and max(rates) - min(rates) <= 1e-9 * abs(max(rates)):
        return remark(title, f"The same in all {len(rates)} steps: {number(rates[0])}.")
    caption = "Estimated rate of every step, in units that go with the weights."
    return _series("rates", title, caption, found, "learning rate")


def _solve(data: Data) -> list[str]:
    """How the path was found, which rules were tried, how the solver went."""
    parts, trace = [], data["trace"]
    if data["held_out"] is not None:
        title = "Quality of the clones"
        caption = (
            "Held-out log-likelihood per step of each stage's clone; a dip is a stage whose policy "
            "was hard to recover."
        )
        column = "log-likelihood per step"
        parts.append(_series("held-out", title, caption, data["held_out"], column, "stage"))
    if data["models"]:
        parts.append(_models(data["models"], data["beside_walk"]))
    if len(trace["value"]) > 1:
        title, caption = "Objective during the solve", "After every update; it should level off."
        values, at = trace["value"], trace["update"]
        parts.append(_series("trace", title, caption, values, "objective", "update", at))
    return parts


def _models(models: Sequence[tuple[str, float]], beside: str) -> str:
    rows = [[name, number(gain, 4)] for name, gain in models]
    return figure(
        "models",
        "Which kind of learner is it?",
        f"Log evidence of every learner model, over a random walk{beside}; higher is better, and "
        "zero is no better than no reward at all.",
        alt=f"Best: {models[0][0]} at {number(models[0][1])}.",
        headers=["learner model", "log evidence over a random walk"],
        rows=rows,
        told="Learner models",
    )


def _series(
    plot: str,
    title: str,
    caption: str,
    values: Sequence[float | None],
    column: str,
    index: str = "step",
    at: Sequence[int] | None = None,
) -> str:
    """A figure of one number per step, stage or update."""
    known = sorted(v for v in values if v is not None)
    alt = "no finite value."
    if known:
        low, middle, high = (number(known[i]) for i in (0, len(known) // 2, -1))
        alt = f"{len(values)} values of {column} by {index}: from {low} to {high}, median {middle}."
    return figure(
        plot,
        title,
        caption,
        alt=alt,
        headers=[index, column],
        rows=[[t, number(v, 4)] for t, v in zip(at or range(len(values)), values, strict=True)],
        told=f"{title}: {column} by {index}",
    )


def _planning(data: Data) -> str:
    widths, names = data["planning"], _names(data)
    rows = list(zip(names, widths["now"], widths["episodes"], widths["stages"], strict=True))
    told = [
        f"{name} {number(now, 2)} now, {number(episodes, 2)} with twice the episodes, "
        f"{number(stages, 2)} with twice the stages"
        for name, now, episodes, stages in rows[:_MOST_TOLD]
    ]
    return figure(
        "planning",
        "Expected width of the 95% intervals",
        "Now, with twice the episodes per stage, and with twice the stages: an information bound "
        "that takes the estimate for the truth.",
        alt="; ".join(told),
        headers=["feature", "now", "twice the episodes", "twice the stages"],
        rows=[[name, *map(number, found)] for name, *found in rows],
        told="Widths of the 95% intervals",
    )
