"""The figures of an estimate's page: titles, captions, text alternatives and data tables.

The drawings themselves are `assets/page.js`; each finds its place by the name in `data-plot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logel.report.safe_text import NOTHING, escape, listed, number, table

Data = dict[str, Any]


def figure(
    plot: str,
    title: str,
    *,
    caption: str,
    alt: str,
    rows: str,
    controls: str = "",
    look: str = "",
) -> str:
    """A card with a title, a caption, a drawing with its text alternative, and a data table."""
    return (
        f'<figure class="card {look}" id="figure-{plot}"><figcaption><h3>{escape(title)}</h3>'
        f"<p>{escape(caption, longest=900)}</p></figcaption>{controls}"
        f'<div class="plot" data-plot="{plot}" role="img" '
        f'aria-label="{escape(alt, longest=4000)}"></div>'
        f"<details><summary>Data table</summary>{rows}</details></figure>"
    )


def choice(name: str, legend: str, options: Sequence[tuple[str, str]], chosen: str) -> str:
    """Buttons of which one is on."""
    parts = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"'
        f"{' checked' if value == chosen else ''}><span>{escape(label)}</span></label>"
        for value, label in options
    )
    return f'<fieldset class="choice"><legend>{escape(legend)}</legend>{parts}</fieldset>'


def estimate_figures(data: Data) -> dict[str, list[str]]:
    """The figures by section; a section without any is left out of the page."""
    return {
        "weights": [_weights(data)],
        "map": [] if data["map"] is None else [_map(data)],
        "identified": _identified(data),
        "stages": [] if data["stages"] is None else _stages(data),
        "fit": [f'<div class="cards">{"".join(_fit(data))}</div>'],
        "planning": [] if data["planning"] is None else [_planning(data)],
    }


def _names(data: Data) -> list[str]:
    return [data["names"][j] for j in data["weights"]["index"]]


def _weights(data: Data) -> str:
    found, names = data["weights"], _names(data)
    ends = found["intervals"]["95"]
    lines = []
    for i, name in enumerate(names):
        positive = found["positive"][i]
        lines.append(
            [
                name,
                number(found["weight"][i], 4),
                number(found["error"][i]),
                *(f"{number(low)} to {number(high)}" for low, high in _ends(found, i)),
                NOTHING if positive is None else f"{100 * positive:.1f}%",
            ]
        )
    told = "; ".join(
        f"{name} {number(w)} ({number(low)} to {number(high)})"
        for name, w, (low, high) in list(zip(names, found["weight"], ends, strict=True))[:30]
    )
    headers = ["feature", "weight", "std err", "50% interval", "80% interval", "95% interval"]
    controls = (
        '<div class="controls">'
        + choice("level", "Interval", [("50", "50%"), ("80", "80%"), ("95", "95%")], "95")
        + choice("order", "Order", [("weight", "By weight"), ("raw", "As given")], "weight")
        + "</div>"
    )
    return figure(
        "weights",
        "Reward weights",
        caption="Dots are the recovered weights, lines their intervals; a filled dot means that "
        "the 95% interval excludes zero. On the right, the probability that the weight is "
        "positive.",
        alt=f"Weights with 95% intervals: {told}.",
        rows=table([*headers, "P(weight > 0)"], lines, caption="Weights and their intervals"),
        controls=controls,
    )


def _ends(found: Data, i: int) -> list[tuple[float | None, float | None]]:
    return [tuple(found["intervals"][level][i]) for level in ("50", "80", "95")]


def _map(data: Data) -> str:
    drawn = data["map"]
    rows, columns = len(drawn["values"]), len(drawn["values"][0])
    values = [(v, r, c) for r, row in enumerate(drawn["values"]) for c, v in enumerate(row)]
    known = [entry for entry in values if entry[0] is not None]
    told = "nothing is known"
    if known:
        best, worst = max(known), min(known)
        told = (
            f"highest {number(best[0])} in row {best[1] + 1}, column {best[2] + 1}; lowest "
            f"{number(worst[0])} in row {worst[1] + 1}, column {worst[2] + 1}"
        )
    fine = drawn["extent"] is not None
    step = 4 if fine else 1
    body = [
        [f"{r + 1}", *(number(v, 2) for v in row[::step])]
        for r, row in enumerate(drawn["values"])
        if r % step == 0
    ]
    return figure(
        "map",
        "Recovered reward on the map" if not fine else "Recovered reward over two coordinates",
        caption=drawn["caption"],
        alt=f"A map of {rows} rows and {columns} columns; {told}.",
        rows=table(
            ["row", *(f"column {c + 1}" for c in range(0, columns, step))],
            body,
            caption="Reward by cell" + (" (every fourth cell)" if fine else ""),
        ),
        look="side",
    )


_MOST_CHIPS = 16
_VERDICTS = {
    "paid": ("Paid for", "the whole 95% interval is above zero"),
    "pays": ("Pays for", "the whole 95% interval is below zero"),
    "open": ("Sign open", "the 95% interval contains zero, or there is none"),
    "silent": ("Not identified", "no amount of such data can tell"),
}


def _identified(data: Data) -> list[str]:
    groups = []
    for word, (label, meaning) in _VERDICTS.items():
        members = [
            n for n, v in zip(_names(data), data["weights"]["verdict"], strict=True) if v == word
        ]
        chips = "".join(f"<li>{escape(name, longest=60)}</li>" for name in members[:_MOST_CHIPS])
        if len(members) > _MOST_CHIPS:
            chips += f'<li class="none">and {len(members) - _MOST_CHIPS} more</li>'
        chips = chips or '<li class="none">none</li>'
        groups.append(
            f'<div class="group {word}"><h3>{label}</h3><p>{meaning}</p><ul>{chips}</ul></div>'
        )
    gauge = data["gauge"]
    sentences = "".join(
        f"<li>{escape(sentence, longest=700)}</li>" for sentence in gauge["sentences"]
    )
    rank = (
        f"Rank {gauge['rank']} of {len(data['names'])}; condition number "
        f"{number(gauge['condition'])}."
    )
    body = [f'<div class="groups">{"".join(groups)}</div>']
    if not sentences:
        return [*body, f"<p>Every direction of the weights is identified. {escape(rank)}</p>"]
    body.append(f'<ul class="plain">{sentences}</ul><p>{escape(rank)}</p>')
    if not gauge["plot"]:
        return body
    names = _names(data)
    kinds = ["not identified"] * gauge["none"]
    kinds += ["hardly identified"] * (len(gauge["rows"]) - gauge["none"])
    body.append(
        figure(
            "gauge",
            "Combinations of weights the data cannot tell",
            caption="Adding any multiple of such a combination to the weights would look the same "
            "(or almost). Shown are the coefficients, the largest scaled to 1; among several, "
            "blue is positive and orange negative.",
            alt="; ".join(
                f"{kind}: "
                + listed(
                    (
                        f"{number(c, 2)} {n}"
                        for c, n in zip(row, names, strict=True)
                        if abs(c) > 0.05
                    ),
                    most=12,
                )
                for kind, row in zip(kinds, gauge["rows"], strict=True)
            ),
            rows=table(
                ["feature", *(f"{i + 1}: {kind}" for i, kind in enumerate(kinds))],
                [[n, *(number(row[i], 2) for row in gauge["rows"])] for i, n in enumerate(names)],
                caption="Coefficients of each combination",
            ),
        )
    )
    return body


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
        cards.append(_returns(data))
        cards.append(_expectations(data))
    if views["movement"]:
        cards.append(_movement(data))
    return [player, f'<div class="cards">{"".join(cards)}</div>'] if cards else []


def _visits(data: Data) -> str:
    views = data["stages"]
    first, last = views["visits"][0], views["visits"][-1]
    top = max(range(len(last)), key=lambda s: last[s])
    grid = bool(data["map"] and data["map"]["moves"])
    arrows = " Arrows are the actions taken there, longer for more frequent ones." if grid else ""
    return figure(
        "visits",
        "Where it goes, and what it does there",
        caption=f"Stronger colour marks a larger share of the stage's steps.{arrows}",
        alt=f"At the last stage the learner spends most of its time, {100 * last[top]:.0f}%, in "
        f"state {top} (at the first stage {100 * first[top]:.0f}%).",
        rows=table(
            ["state", "first stage", "last stage"],
            [
                [s, f"{100 * a:.1f}%", f"{100 * b:.1f}%"]
                for s, (a, b) in enumerate(zip(first, last, strict=True))
            ],
            caption="Share of the steps spent in each state",
        ),
        look="tall",
    )


def _returns(data: Data) -> str:
    views = data["stages"]
    returns, errors = views["returns"], views["return_errors"]
    discount = f"discount {number(data['gamma'])}"
    return figure(
        "returns",
        "Return under the recovered reward",
        caption=f"Mean return per episode ({discount}) with twice its standard error; it should "
        "rise if the learner was after this reward.",
        alt=f"From {number(returns[0])} at the first stage to {number(returns[-1])} at the last.",
        rows=table(
            ["stage", "mean return", "std err", "episodes"],
            [
                [t, number(r, 4), number(e), n]
                for t, r, e, n in zip(
                    views["stages"], returns, errors, views["episodes"], strict=True
                )
            ],
            caption="Return by stage",
        ),
    )


def _expectations(data: Data) -> str:
    views = data["stages"]
    names = [data["names"][j] for j in views["features"]]
    rows = views["expectations"]
    return figure(
        "expectations",
        "What it collects",
        caption="Discounted sum of each feature per episode: the chosen stage (dot), the first "
        "stage (tick) and the range over all stages (band).",
        alt="; ".join(
            f"{n} from {number(a)} to {number(b)}"
            for n, a, b in list(zip(names, rows[0], rows[-1], strict=True))[:30]
        ),
        rows=table(
            ["stage", *names],
            [[t, *(number(v) for v in row)] for t, row in zip(views["stages"], rows, strict=True)],
            caption="Feature expectations by stage",
        ),
    )


def _movement(data: Data) -> str:
    views = data["stages"]
    moved, noise = views["movement"], views["movement_noise"] or [None] * len(views["movement"])
    aside = " The line is what sampling alone would show of a learner that stands still."
    return figure(
        "movement",
        "Movement from stage to stage",
        caption=f"By {views['movement_name']}.{aside if views['movement_noise'] else ''}",
        alt=f"{len(moved)} steps; the largest is {number(max(m or 0 for m in moved))}, the last "
        f"{number(moved[-1])}.",
        rows=table(
            ["step", views["movement_name"], "by sampling alone"],
            [[t, number(m), number(e)] for t, (m, e) in enumerate(zip(moved, noise, strict=True))],
            caption="Movement by step",
        ),
        look="wide",
    )


def _fit(data: Data) -> list[str]:
    steps = data["steps"]
    chance = steps["chance"]
    parts = [
        _series(
            "cosines",
            "Does it move where the reward says?",
            steps["cosines"],
            caption=f"Cosine between observed and predicted movement, step by step; 1 is perfect, "
            f"{number(chance)} what chance would give (dashed)."
            + (" With so few parameters, cosines tell little." if chance > 0.5 else ""),
            column="cosine",
        ),
        _series(
            "explained",
            "Share of the movement explained",
            steps["explained"],
            caption="Share of each step's squared length that the reward accounts for; noise of "
            "the observation counts as unexplained, and below zero the prediction is too long.",
            column="share explained",
        ),
        _series(
            "rates",
            "Learning rates",
            steps["rates"],
            caption="Estimated rate of every step, in units that go with the weights.",
            column="learning rate",
        ),
    ]
    if data["held_out"] is not None:
        parts.append(
            _series(
                "held-out",
                "Quality of the clones",
                data["held_out"],
                caption="Held-out log-likelihood per step of each stage's clone; a dip is a stage "
                "whose policy was hard to recover.",
                column="log-likelihood per step",
                index="stage",
            )
        )
    if data["models"]:
        best = data["models"][0]
        parts.append(
            figure(
                "models",
                "Which kind of learner is it?",
                caption="Log evidence of every learner model, over a random walk; higher is "
                "better, and zero is no better than no reward at all.",
                alt=f"Best: {best[0]} at {number(best[1])}.",
                rows=table(
                    ["learner model", "log evidence over a random walk"],
                    [[n, number(g, 4)] for n, g in data["models"]],
                    caption="Learner models",
                ),
            )
        )
    trace = data["trace"]
    if len(trace["value"]) > 1:
        parts.append(
            _series(
                "trace",
                "Objective during the solve",
                trace["value"],
                caption="After every update; it should level off.",
                column="objective",
                index="update",
                at=trace["update"],
            )
        )
    return parts


def _series(
    plot: str,
    title: str,
    values: Sequence[float | None],
    *,
    caption: str,
    column: str,
    index: str = "step",
    at: Sequence[int] | None = None,
) -> str:
    """A figure of one number per step, stage or update."""
    known = sorted(v for v in values if v is not None)
    told = "no finite value"
    if known:
        told = (
            f"{len(values)} values of {column} by {index}: from {number(known[0])} to "
            f"{number(known[-1])}, median {number(known[len(known) // 2])}"
        )
    return figure(
        plot,
        title,
        caption=caption,
        alt=f"{told}.",
        rows=table(
            [index, column],
            [[t, number(v, 4)] for t, v in zip(at or range(len(values)), values, strict=True)],
            caption=f"{title}: {column} by {index}",
        ),
    )


def _planning(data: Data) -> str:
    widths, names = data["planning"], _names(data)
    rows = list(zip(names, widths["now"], widths["episodes"], widths["stages"], strict=True))
    return figure(
        "planning",
        "Expected width of the 95% intervals",
        caption="Now, with twice the episodes per stage, and with twice the stages: an information "
        "bound that takes the estimate for the truth.",
        alt="; ".join(
            f"{n} {number(now, 2)} now, {number(e, 2)} with twice the episodes, {number(s, 2)} "
            "with twice the stages"
            for n, now, e, s in rows[:30]
        ),
        rows=table(
            ["feature", "now", "twice the episodes", "twice the stages"],
            [[n, number(now), number(e), number(s)] for n, now, e, s in rows],
            caption="Widths of the 95% intervals",
        ),
    )
