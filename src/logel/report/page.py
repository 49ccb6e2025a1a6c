"""The report: one HTML file that needs nothing else, with the figures drawn by its own script.

Text, tables and text alternatives are written here, so that the page can be read without scripts;
`assets/page.js` draws the figures from the JSON in the page. Whatever comes from a file is escaped
in both places, and a content security policy allows only the very style and script of this page.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from logel import __version__
from logel.data.folder import write_atomically
from logel.data.history import LearningHistory
from logel.errors import FormatError, OptionError
from logel.inference.estimate import RewardEstimate
from logel.report.page_data import page_data
from logel.report.page_figures import estimate_figures
from logel.report.reward_maps import RewardMap
from logel.report.safe_text import clean, content_hash, embed_json, escape, plain, table
from logel.types import FeatureFunction

LARGEST_PAGE = 3 * 10**6
PNG = b"\x89PNG\r\n\x1a\n"


def asset(name: str) -> str:
    """The text of a file under `assets`."""
    return files("logel.report").joinpath("assets", name).read_text("utf-8")


def assemble(*, title: str, body: str, data: Any) -> str:
    """The page around a body: style, script, data, and the policy that allows nothing else."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {content_hash(style)}; "
        f"script-src {content_hash(script)}; base-uri 'none'; form-action 'none'"
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


def estimate_page(
    estimate: RewardEstimate,
    history: LearningHistory | None = None,
    *,
    features: FeatureFunction | None = None,
    reward_map: RewardMap | None = None,
    picture: bytes | None = None,
    title: str = "What the learner wants",
) -> str:
    """The page of an estimate, as HTML.

    Args:
        estimate: The estimate.
        history: The history it was made from: adds the stages and, in small discrete worlds, maps.
        features: Computes the reward features, where the history carries none.
        reward_map: A drawing of the reward; by default one is made where names or history allow.
        picture: A PNG of the reward to show as it is.
        title: Of the page.
    """
    found = page_data(estimate, history, features=features, reward_map=reward_map)
    data = plain(found)
    figures = estimate_figures(data)
    body = [
        _hero(title, data),
        _list_section("warnings", "Warnings", data["warnings"], marker="warning"),
        section("weights", "What it wants", "", figures["weights"]),
        section("map", "Where it is paid", "", [*figures["map"], *_picture(picture)]),
        section("identified", "What the data can tell, and what not", "", figures["identified"]),
        section(
            "stages",
            "Watching it learn",
            "Move the slider, or press play, to follow the learner from stage to stage.",
            figures["stages"],
        ),
        section(
            "fit",
            "How well the reward explains the learning",
            "A reward is believable when the learner moves where the reward says it should.",
            figures["fit"],
        ),
        section("planning", "What more data would bring", "", figures["planning"]),
        _list_section("next", "What to do next", data["next"], marker="step"),
        _provenance(data),
    ]
    return assemble(title=title, body="\n".join(part for part in body if part), data=data)


def write_report(
    result: RewardEstimate | str | PathLike[str],
    out: str | PathLike[str] = "report.html",
    *,
    history: LearningHistory | None = None,
    features: FeatureFunction | None = None,
    reward_map: RewardMap | None = None,
    picture: bytes | None = None,
) -> Path:
    """Write the report of an estimate, of an estimate's file, or of a study's folder.

    Args:
        result: An estimate; or the path of one (`estimate.json`, or a folder with such a file); or
            a folder written by `logel reproduce`.
        out: The page to write.
        history: As in `estimate_page`; of no use for studies, like the rest.
        features: As in `estimate_page`.
        reward_map: As in `estimate_page`.
        picture: As in `estimate_page`.

    Returns:
        The path of the page.
    """
    from logel.report.study_page import find_studies, study_page

    target = Path(out)
    if not target.parent.is_dir():
        raise OptionError(f"cannot write the report: there is no folder {target.parent}")
    if target.is_dir():
        raise OptionError(f"cannot write the report: {target} is a folder; name a file")
    studies: Sequence[Path] = ()
    if not isinstance(result, RewardEstimate):
        path = Path(result)
        if path.is_dir() and (path / "estimate.json").is_file():
            path = path / "estimate.json"
        if target.exists() and target.samefile(path):
            raise OptionError(f"the report would replace the estimate {path}: name another file")
        if path.is_dir():
            studies = find_studies(path)
        else:
            result = RewardEstimate.load(path)
    if isinstance(result, RewardEstimate):
        page = estimate_page(
            result, history, features=features, reward_map=reward_map, picture=picture
        )
    else:
        if history is not None:
            raise OptionError(f"{result} is a study, not an estimate: leave out the history")
        page = study_page(studies)
    write_atomically(target, page.encode())
    return target


def section(name: str, title: str, lead: str, parts: Sequence[str]) -> str:
    """A section of the page; nothing if it has no parts."""
    if not parts:
        return ""
    lead = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
        f"{escape(title)}</h2>{lead}{''.join(parts)}</section>"
    )


def _hero(title: str, data: dict[str, Any]) -> str:
    facts = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
        for label, value in data["facts"]
    )
    status = data["status"]
    return (
        f'<header class="hero"><p class="eyebrow">{escape(title)}</p>'
        f"<h1>{escape(data['headline'], longest=2000)}</h1>"
        f'<p class="lead">{escape(data["qualifier"], longest=2000)}</p>'
        f'<p class="status {escape(status["mood"])}"><b>{escape(status["name"])}</b> '
        f"<span>{escape(status['sentence'], longest=1000)}</span></p>"
        f'<dl class="facts">{facts}</dl></header>'
    )


def _list_section(name: str, title: str, lines: Sequence[str], *, marker: str) -> str:
    if not lines:
        return ""
    items = "".join(
        f"<li>{escape(line[:1].upper() + line[1:], longest=1000)}</li>" for line in lines
    )
    return section(name, title, "", [f'<ol class="{marker}s">{items}</ol>'])


def _picture(picture: bytes | None) -> list[str]:
    if picture is None:
        return []
    if not picture.startswith(PNG):
        raise FormatError("the picture of the reward must be a PNG file")
    alt = "The reward, as drawn by whoever made this page"
    return [image(picture, title="A picture of the reward", alt=alt)]


def image(png: bytes, *, title: str, alt: str, extra: str = "") -> str:
    """A PNG inside the page, with its title, text alternative and whatever goes below."""
    encoded = base64.b64encode(png).decode()
    return (
        f'<figure class="card picture"><figcaption><h3>{escape(title)}</h3></figcaption>'
        f'<img alt="{escape(alt)}" '
        f'src="data:image/png;base64,{encoded}">'
        f"{extra}</figure>"
    )


def _provenance(data: dict[str, Any]) -> str:
    method = clean(data["method"])
    method = f'<p class="lead">{escape(method[:1].upper() + method[1:])}.</p>'
    config = table(["choice", "value"], data["config"], caption="Every choice of the inference")
    versions = table(["package", "version"], data["versions"], caption="Packages it was made with")
    return section(
        "made", "How this was made", "", [method, f'<div class="pair">{config}{versions}</div>']
    )
