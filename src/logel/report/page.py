"""The report: one HTML file that needs nothing else, with the figures drawn by its own script.

Text, tables and text alternatives are written here, so that the page can be read without scripts;
`assets/page.js` draws the figures from the JSON in the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.data.store import write_atomically
from logel.errors import FormatError, OptionError
from logel.inference.answers import Answer, load_answer
from logel.inference.check import EstimateChecks
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.group import GroupEstimate
from logel.inference.unexplained import Unexplained
from logel.report.page_compare import compare_page
from logel.report.page_data import page_data
from logel.report.page_figures import estimate_figures
from logel.report.page_forest import contrast_page, forest_data
from logel.report.page_parts import PNG, assemble, image, section, table
from logel.report.page_unexplained import unexplained_parts
from logel.report.page_words import sentence
from logel.report.safe_text import clean, escape, number, plain
from logel.report.study_page import find_studies, study_page
from logel.types import FeatureFunction

_TITLE, _TITLE_OF_MANY = "What the learner wants", "What the learners want"
# Title and lead of every section with figures.
_SECTIONS = {
    "weights": ("What it wants", ""),
    "learners": ("Who says so", ""),
    "map": ("Where it is paid", ""),
    "unexplained": (
        "What nobody named",
        "The learner was offered one more reward from a dictionary made of what was observed.",
    ),
    "identified": ("What the data can tell, and what not", ""),
    "stages": (
        "Watching it learn",
        "Move the slider, or press play, to follow the learner from stage to stage.",
    ),
    "fit": (
        "How well the reward explains the learning",
        "A reward is believable when the learner moves where the reward says it should.",
    ),
    "planning": ("What more data would bring", ""),
}


def estimate_page(
    estimate: RewardEstimate,
    history: LearningHistory | None = None,
    *,
    features: FeatureFunction | None = None,
    picture: bytes | None = None,
    group: GroupEstimate | None = None,
    checks: EstimateChecks | None = None,
    unexplained: Unexplained | None = None,
) -> str:
    """The page of an estimate, as HTML; see `write_report`.

    With `group`, the estimate is its mean, and its single learners are shown.
    """
    if checks is not None:
        estimate = _checked(estimate, checks)
    data = plain(page_data(estimate, history, features=features))
    data["forest"] = plain(forest_data(estimate, group))
    figures = estimate_figures(data)
    figures["unexplained"] = unexplained_parts(unexplained)
    if picture is not None:
        if not picture.startswith(PNG):
            raise FormatError("the picture of the reward must be a PNG file")
        alt = "The reward, as drawn by whoever made this page"
        figures["map"].append(image(picture, title="A picture of the reward", alt=alt))
    sections = [section(name, *_SECTIONS[name], figures.get(name, [])) for name in _SECTIONS]
    body = [
        _hero(data),
        _list_section("warnings", "Warnings", data["warnings"], marker="warnings"),
        *sections,
        "" if checks is None else _controls(checks),
        _list_section("next", "What to do next", data["next"], marker="steps"),
        _provenance(data),
    ]
    title = _TITLE_OF_MANY if estimate.learners else _TITLE
    return assemble(title=title, body="\n".join(part for part in body if part), data=data)


def write_report(
    result: Answer | str | PathLike[str] | Mapping[str, RewardEstimate],
    out: str | PathLike[str] = "report.html",
    *,
    history: LearningHistory | None = None,
    features: FeatureFunction | None = None,
    picture: bytes | None = None,
    checks: EstimateChecks | None = None,
    unexplained: Unexplained | None = None,
) -> Path:
    """Write the report of an estimate, of an estimate's file, or of a study's folder.

    Args:
        result: An estimate of one learner, several, or a group; a contrast; or the path of one
            (`estimate.json`, or a folder with such a file); or a folder written by
            `logel reproduce`; or several estimates by name, to be compared.
        out: The page to write.
        history: The history behind the estimate: adds the stages and, in small discrete worlds,
            maps. Of no use for studies, like the rest.
        features: Computes the reward features, where the history carries none.
        picture: A PNG of the reward to show as it is.
        checks: Controls of the estimate, see `logel.check_estimate`.
        unexplained: What `estimate.unexplained(history)` found, for a section of its own.

    Returns:
        The path of the page.
    """
    _check_kinds(result, history)
    target = Path(out)
    if not target.parent.is_dir():
        raise OptionError(f"cannot write the report: there is no folder {target.parent}")
    if target.is_dir():
        raise OptionError(f"cannot write the report: {target} is a folder; name a file")
    found = _load(Path(result), target) if isinstance(result, str | PathLike) else result
    if isinstance(found, Mapping):
        page = compare_page(found)
    elif isinstance(found, RewardEstimate):
        page = estimate_page(
            found,
            history,
            features=features,
            picture=picture,
            checks=checks,
            unexplained=unexplained,
        )
    elif (history, checks, unexplained) != (None, None, None):
        raise OptionError("only an estimate of one history has a history and checks: leave it out")
    elif isinstance(found, GroupEstimate):
        page = estimate_page(found.mean, picture=picture, group=found)
    else:
        page = contrast_page(found) if isinstance(found, Contrast) else study_page(found)
    write_atomically(target, page.encode())
    return target


def _check_kinds(result: object, history: object) -> None:
    """Refuse what is no answer, and what is no history."""
    if isinstance(result, LearningHistory):
        raise OptionError(
            "the report is about an estimate, not about a history: pass the estimate first, and "
            "the history as history="
        )
    if isinstance(history, str | PathLike):
        raise OptionError(
            f"history must be a LearningHistory, not {str(history)!r}: pass "
            "LearningHistory.load(path)"
        )


def _load(path: Path, target: Path) -> Answer | Sequence[Path]:
    """The answer at a path, or the folders of the studies there."""
    if path.is_dir() and (path / "estimate.json").is_file():
        path = path / "estimate.json"
    if target.exists() and target.samefile(path):
        raise OptionError(f"the report would replace the estimate {path}: name another file")
    return find_studies(path) if path.is_dir() else load_answer(path)


def _hero(data: dict[str, Any]) -> str:
    facts = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
        for label, value in data["facts"]
    )
    verdict = data["verdict"]
    return (
        f'<header class="hero"><p class="eyebrow">'
        f"{escape(_TITLE_OF_MANY if data['forest'] else _TITLE)}</p>"
        f"<h1>{escape(data['headline'], longest=2000)}</h1>"
        f'<p class="lead">{escape(data["qualifier"], longest=2000)}</p>'
        f'<p class="status {escape(verdict["mood"])}"><b>{escape(verdict["name"])}</b> '
        f"<span>{escape(verdict['sentence'], longest=1000)}</span></p>"
        f'<dl class="facts">{facts}</dl></header>'
    )


def _checked(one: RewardEstimate, checks: EstimateChecks) -> RewardEstimate:
    """The estimate as it is after its controls."""
    other = checks.estimate
    if one.feature_names != other.feature_names or not np.allclose(one.weights, other.weights):
        raise OptionError(
            "the checks are of another estimate: check the history that it was inferred from, with "
            "the same method, gamma and seed"
        )
    return checks.checked


def _controls(checks: EstimateChecks) -> str:
    """What became of the answer where it should be gone, or the same."""
    rows = [(title, outcome, why) for title, outcome, why in checks.rows()]
    variants = [
        (control.title, variant.name, *map(number, variant.weights[: len(checks.estimate.weights)]))
        for control in checks.controls
        for variant in control.variants
    ]
    lead = sentence(f"{checks.verdict}.")
    told = table(["control", "outcome", "in words"], rows, caption="Controls")
    names = [clean(name, longest=40) for name in checks.estimate.feature_names]
    again = table(["control", "inferred", *names], variants, caption="Weights inferred again")
    return section("controls", "Where it should be gone, or the same", lead, [told, again])


def _list_section(name: str, title: str, lines: Sequence[str], *, marker: str) -> str:
    if not lines:
        return ""
    items = "".join(
        f"<li>{escape(line[:1].upper() + line[1:], longest=1000)}</li>" for line in lines
    )
    return section(name, title, "", [f'<ol class="{marker}">{items}</ol>'])


def _provenance(data: dict[str, Any]) -> str:
    method = clean(data["method"])
    method = f'<p class="lead">{escape(method[:1].upper() + method[1:])}.</p>'
    config = table(["choice", "value"], data["config"], caption="Every choice of the inference")
    versions = table(["package", "version"], data["versions"], caption="Packages it was made with")
    return section(
        "made", "How this was made", "", [method, f'<div class="pair">{config}{versions}</div>']
    )
