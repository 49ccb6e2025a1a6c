"""What nobody named, on the page: sentences, likeliest elements, and a map where there is a plane.

Drawn without scripts: squares and bars are plain SVG, whose colours are attributes.
"""

from __future__ import annotations

import numpy as np

from logel.inference.unexplained import Unexplained
from logel.report.page_parts import table
from logel.report.safe_text import escape
from logel.types import Float

# Elements in the table and among the bars.
_SHOWN = 12
_WIDTH, _BAR, _SIDE = 640, 26, 300
_PAID, _COST = "#2a7f62", "#b5483a"


def unexplained_parts(found: Unexplained | None) -> list[str]:
    """The body of the section; nothing if nobody looked."""
    if found is None:
        return []
    said = "".join(f"<li>{escape(line, longest=900)}</li>" for line in found.describe())
    notes = "".join(f"<li>{escape(note, longest=900)}</li>" for note in found.notes)
    shown = [int(j) for j in np.argsort(-found.shares, kind="stable")[:_SHOWN]]
    parts = [f'<ul class="plain">{said}{notes}</ul>', _card("Also paid for", _bars(found, shown))]
    cells = _cells(found)
    if found.found and cells is not None:
        parts.append(_card("Where it would pay", _map(*cells)))
    rows = [
        [
            found.names[j],
            f"{found.probability * found.shares[j]:.3f}",
            f"{found.amounts[j]:+.3f}",
            f"{found.errors[j]:.3f}",
        ]
        for j in shown
    ]
    headers = ["also paid for", "probability", "amount", "std err"]
    parts.append(table(headers, rows, caption="Likeliest elements of the dictionary"))
    return parts


def _card(title: str, drawing: str) -> str:
    return (
        f'<figure class="card"><figcaption><h3>{escape(title)}</h3></figcaption>{drawing}</figure>'
    )


def _svg(width: float, height: float, alt: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="{escape(alt, longest=900)}" font-size="13" fill="currentColor">{body}</svg>'
    )


def _colour(amount: float) -> str:
    return _PAID if amount > 0 else _COST


def _bars(found: Unexplained, shown: list[int]) -> str:
    """Probability of the likeliest elements; colours tell rewards from costs."""
    body, told = [], []
    for row, j in enumerate(shown):
        chance, y = found.probability * found.shares[j], row * _BAR
        body.append(
            f'<text x="300" y="{y + 17}" text-anchor="end">'
            f"{escape(found.names[j], longest=44)}</text>"
            f'<rect x="310" y="{y + 5}" width="{max(260 * chance, 1):.1f}" height="{_BAR - 10}" '
            f'fill="{_colour(found.amounts[j])}"/>'
            f'<text x="{316 + 260 * chance:.1f}" y="{y + 17}">{chance:.2f}</text>'
        )
        told.append(f"{found.names[j]} {chance:.2f}")
    alt = f"Probability that each is hidden (green: pays, red: costs): {'; '.join(told)}"
    return _svg(_WIDTH, _BAR * len(shown), alt, "".join(body))


def _cells(found: Unexplained) -> tuple[Float, Float] | None:
    """Centres on a plane (k, 2) and what each is expected to pay, if places are on a plane."""
    placed = np.isfinite(found.centres).all(axis=1)
    if found.discrete or found.centres.shape[1] != 2 or placed.sum() < 4:
        return None
    return found.centres[placed], found.bonus[placed]


def _map(centres: Float, bonus: Float) -> str:
    """A square for every bump, the more opaque the more it is expected to pay."""
    axes = [np.unique(centres[:, i]) for i in (0, 1)]
    across, down = (_SIDE / len(axis) for axis in axes)
    largest = max(float(np.abs(bonus).max()), 1e-300)
    body = []
    for (x, y), amount in zip(centres, bonus, strict=True):
        column = int(np.searchsorted(axes[0], x))
        row = len(axes[1]) - 1 - int(np.searchsorted(axes[1], y))
        body.append(
            f'<rect x="{60 + column * across:.1f}" y="{row * down:.1f}" width="{across - 1:.1f}" '
            f'height="{down - 1:.1f}" fill="{_colour(amount)}" stroke="currentColor" '
            f'stroke-opacity=".2" fill-opacity="{abs(amount) / largest:.2f}"/>'
        )
    for axis, x, y in ((axes[0], None, _SIDE + 18), (axes[1], 52, None)):
        for end, at in ((axis[0], 0.0), (axis[-1], 1.0)):
            px = 60 + across / 2 + at * (_SIDE - across) if x is None else x
            py = _SIDE - down / 2 - at * (_SIDE - down) + 5 if y is None else y
            anchor = "middle" if x is None else "end"
            body.append(f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{end:.2g}</text>')
    best = centres[int(np.abs(bonus).argmax())]
    alt = f"A map of what is hidden: most around ({best[0]:.2g}, {best[1]:.2g})"
    return _svg(_SIDE + 70, _SIDE + 24, alt, "".join(body))
