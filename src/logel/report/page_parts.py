"""The parts pages are built of: tables, figures, sections, and the frame around them.

Whatever comes from a file is escaped, and a content security policy allows only the very style and
script of this package.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import Any

from logel import __version__
from logel.errors import OptionError
from logel.report.safe_text import embed_json, escape

# A page is sent by mail and opened on phones.
LARGEST_PAGE = 3 * 10**6
PNG = b"\x89PNG\r\n\x1a\n"


def asset(name: str) -> str:
    """The text of a file under `assets`."""
    return files("logel.report").joinpath("assets", name).read_text("utf-8")


def assemble(*, title: str, body: str, data: Any) -> str:
    """The page around a body: style, script, data, and the policy that allows nothing else."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_content_hash(style)}; "
        f"script-src {_content_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    page = Template(asset("page.html")).substitute(
        title=escape(title),
        policy=policy,
        style=style,
        script=script,
        body=body,
        data=embed_json(data),
        made=f"Made by logel {escape(__version__)} on {datetime.now(UTC):%d %B %Y}.",
    )
    if len(page.encode()) > LARGEST_PAGE:
        raise OptionError(
            f"the page would have {len(page.encode()) / 1e6:.1f} MB, more than "
            f"{LARGEST_PAGE / 1e6:g}: leave out the picture, or report fewer studies at once"
        )
    return page


def _content_hash(text: str) -> str:
    """The source expression that allows exactly this inline style or script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def section(name: str, title: str, lead: str, parts: Sequence[str]) -> str:
    """A section of the page; nothing if it has no parts."""
    if not parts:
        return ""
    lead = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
        f"{escape(title)}</h2>{lead}{''.join(parts)}</section>"
    )


def image(png: bytes, *, title: str, alt: str) -> str:
    """A PNG inside the page, with its title and text alternative."""
    encoded = base64.b64encode(png).decode()
    return (
        f'<figure class="card picture"><figcaption><h3>{escape(title)}</h3></figcaption>'
        f'<img alt="{escape(alt)}" src="data:image/png;base64,{encoded}"></figure>'
    )


def figure(
    plot: str,
    title: str,
    caption: str,
    *,
    alt: str,
    headers: Sequence[object],
    rows: Iterable[Sequence[object]],
    told: str,
    controls: str = "",
    look: str = "",
) -> str:
    """A card: title, caption, drawing with its text alternative, and data table (`told`: whose)."""
    data = table(headers, rows, caption=told)
    return (
        f'<figure class="card {look}" id="figure-{plot}"><figcaption><h3>{escape(title)}</h3>'
        f"<p>{escape(caption, longest=900)}</p></figcaption>{controls}"
        f'<div class="plot" data-plot="{plot}" role="img" '
        f'aria-label="{escape(alt, longest=4000)}"></div>'
        f"<details><summary>Data table</summary>{data}</details></figure>"
    )


def remark(title: str, text: str) -> str:
    """A card that says in words what needs no drawing."""
    return (
        f'<figure class="card"><figcaption><h3>{escape(title)}</h3><p>{escape(text)}</p>'
        "</figcaption></figure>"
    )


def choice(name: str, legend: str, options: Sequence[tuple[str, str]], chosen: str) -> str:
    """Buttons of which one is on."""
    parts = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"'
        f"{' checked' if value == chosen else ''}><span>{escape(label)}</span></label>"
        for value, label in options
    )
    return f'<fieldset class="choice"><legend>{escape(legend)}</legend>{parts}</fieldset>'


def table(headers: Sequence[object], rows: Iterable[Sequence[object]], *, caption: str) -> str:
    """An HTML table that scrolls by itself; every cell is escaped, the first heads its row."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in headers)
    body = []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
