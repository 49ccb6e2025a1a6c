"""The page of studies: their claims with verdicts, figures, summary and provenance.

A study's folder is what `logel reproduce` writes; it may come from anyone, so that every part is
checked, cut to size and escaped, and pictures enter the page only as pictures.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from logel.data.limits import listed, parse_json
from logel.errors import FormatError
from logel.report.page_parts import PNG, assemble, choice, image, section, table
from logel.report.safe_text import clean, escape, number, plain

_LARGEST_TEXT = 8 * 2**20
_LARGEST_PICTURE = 32 * 2**20
_MOST_CLAIMS = 400
_MOST_ROWS = 400
_MOST_PICTURES = 12
_MOST_MADE = 40
# A longer summary scrolls by itself.
_MOST_OPEN = 40
_BADGES = {"holds": "holds", "does not hold": "fails", "undecided": "undecided"}
_LOOKS = {"holds": "for", "does not hold": "against"}

# Rows of cells, the header first.
Table = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class StudyFolder:
    """What a study's folder holds: claims, summary, pictures by name, provenance."""

    name: str
    claims: Sequence[Mapping[str, Any]]
    tables: Sequence[Table]
    pictures: Sequence[tuple[str, bytes]]
    made_by: Mapping[str, Any]


def find_studies(folder: Path) -> list[Path]:
    """The folder itself if it is a study's, else the studies in it."""
    if (folder / "claims.json").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/claims.json") if path.is_file())
    if not found:
        hint = "a folder of `logel reproduce`, or an estimate"
        if (folder / "manifest.json").is_file():
            hint = f"an estimate: first run `logel infer {folder} --out estimate.json`"
        raise FormatError(f"{folder} holds nothing to report: give {hint}")
    return found


def read_study(folder: Path) -> StudyFolder:
    """Read and check a study's folder."""
    claims_file, made_file, summary = (
        folder / name for name in ("claims.json", "made-by.json", "summary.md")
    )
    claims = _read_json(claims_file)
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise FormatError(f"{claims_file} is not a list of claims")
    made_by = _read_json(made_file) if made_file.is_file() else {}
    if not isinstance(made_by, dict):
        raise FormatError(f"{made_file} does not say what a study was made by")
    tables = parse_tables(_read_text(summary) if summary.is_file() else "")
    return StudyFolder(
        name=clean(made_by.get("study", folder.resolve().name), longest=80),
        claims=claims[:_MOST_CLAIMS],
        # The first table of a summary repeats the claims.
        tables=tables[1:] if claims else tables,
        pictures=_read_pictures(folder),
        made_by=made_by,
    )


def parse_tables(text: str) -> list[Table]:
    """Tables in Markdown with a bar at both ends of every line; other lines separate them."""
    lines = (line.strip() for line in text.splitlines())
    groups = groupby(lines, lambda line: len(line) > 1 and line[0] == line[-1] == "|")
    tables = [_rows_of(group) for inside, group in groups if inside]
    return [rows[: _MOST_ROWS + 1] for rows in tables if len(rows) > 1]


def _rows_of(lines: Iterable[str]) -> Table:
    rows = (tuple(cell.strip().strip("*") for cell in line[1:-1].split("|")) for line in lines)
    rule = {"-", ":"}
    return tuple(row for row in rows if not all(cell and set(cell) <= rule for cell in row))


def study_page(folders: Sequence[Path]) -> str:
    """The page of one or more studies, as HTML."""
    studies = [read_study(folder) for folder in folders]
    body = [_hero(studies), *(_section(study, i) for i, study in enumerate(studies))]
    title = f"Study: {studies[0].name}" if len(studies) == 1 else f"{len(studies)} studies"
    return assemble(title=title, body="\n".join(body), data={})


def _section(study: StudyFolder, index: int) -> str:
    parts = [_claims(study, index)] if study.claims else []
    parts += [
        image(png, title=f"Figure {name}", alt=f"{study.name}: figure {name}")
        for name, png in study.pictures
    ]
    parts += [_summary(rows) for rows in study.tables]
    return section(f"study-{index}", study.name, "", [*parts, _made(study)])


def _hero(studies: Sequence[StudyFolder]) -> str:
    said = [str(claim.get("verdict")) for study in studies for claim in study.claims]
    tally = {verdict: said.count(verdict) for verdict in _BADGES}
    name = listed(study.name for study in studies)
    return (
        f'<header class="hero"><p class="eyebrow">{escape(name)}</p>'
        f"<h1>{escape(_finding(name, tally))}</h1>"
        '<p class="lead">A claim holds, or does not, when the whole 98% interval of its statistic '
        f"lies on one side of the threshold; otherwise it is undecided.</p>{_tally(tally)}</header>"
    )


def _finding(name: str, tally: Mapping[str, int]) -> str:
    n, holds, still_open = sum(tally.values()), tally["holds"], tally["undecided"]
    if n == 0:
        return f"{name}: figures and tables, no claims."
    claims = "1 claim" if n == 1 else f"{n} claims"
    sentence = f"Of {claims}, {holds} hold{'s' if holds == 1 else ''}"
    if still_open:
        sentence += f", {still_open} remain{'s' if still_open == 1 else ''} open"
    if tally["does not hold"]:
        sentence += f", and {tally['does not hold']} did not survive the numbers"
    return f"{sentence}."


def _tally(tally: Mapping[str, int]) -> str:
    total = sum(tally.values())
    if total == 0:
        return ""
    bars, at = "", 0.0
    for verdict in ("holds", "undecided", "does not hold"):
        look = f"fill-{_LOOKS[verdict]}" if verdict in _LOOKS else "track"
        share = 100 * tally[verdict] / total
        bars += f'<rect x="{at:.2f}" y="0" width="{share:.2f}" height="10" class="{look}"/>'
        at += share
    told = ", ".join(f"{count} {verdict}" for verdict, count in tally.items())
    return (
        f'<div class="tally" role="img" aria-label="{escape(told)}">'
        f'<svg viewBox="0 0 100 10" preserveAspectRatio="none">{bars}</svg></div>'
    )


def _claims(study: StudyFolder, index: int) -> str:
    options = [("all", "All"), ("holds", "Hold"), ("undecided", "Open"), ("fails", "Do not hold")]
    filters = choice("verdict", "Show", options, "all") if index == 0 else ""
    return (
        f'<div class="card open claims"><h3>Claims</h3><div class="controls">{filters}</div>'
        '<div class="scroll" tabindex="0"><table><caption>Each claim with the mean of its '
        "statistic over runs, its 98% interval (line) and the threshold (tick).</caption>"
        "<thead><tr>"
        '<th scope="col">verdict</th><th scope="col" class="what">claim</th>'
        '<th scope="col">interval</th><th scope="col">mean</th><th scope="col">runs</th>'
        f"</tr></thead><tbody>{''.join(map(_claim, study.claims))}</tbody></table></div></div>"
    )


def _claim(raw: Mapping[str, Any]) -> str:
    claim = plain(raw, digits=12)
    verdict = str(claim.get("verdict"))
    badge = _BADGES.get(verdict, "undecided")
    value, low, high, threshold = (
        _float(claim.get(name)) for name in ("value", "low", "high", "threshold")
    )
    wanted = f"wanted {claim.get('wanted')} {number(threshold)}"
    drawn = ""
    if value is not None and low is not None and high is not None and threshold is not None:
        drawn = _interval(value, low, high, threshold, _LOOKS.get(verdict, "open"))
    return (
        f'<tr data-verdict="{badge}">'
        f'<td><span class="badge {badge}">{escape(verdict)}</span></td>'
        f'<th scope="row" class="what">{escape(claim.get("claim"))}'
        f"<small>{escape(claim.get('observer'))}: {escape(claim.get('statistic'))}; "
        f"{escape(claim.get('source'))}</small></th><td>{drawn}</td>"
        f"<td>{number(value)}<small>{number(low)} to {number(high)}; {escape(wanted)}</small></td>"
        f"<td>{escape(claim.get('runs'))}</td></tr>"
    )


def _float(value: object) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _interval(value: float, low: float, high: float, threshold: float, look: str) -> str:
    """Mean, interval and threshold of a claim on a line of its own scale."""
    left, right = min(low, threshold), max(high, threshold)
    span = (right - left) or 1.0
    if not math.isfinite(span):
        return ""

    def x(at: float) -> str:
        return f"{8 + 134 * (at - left) / span:.1f}"

    told = f"{number(low)} to {number(high)}, threshold {number(threshold)}"
    return (
        f'<svg viewBox="0 0 150 22" role="img" aria-label="{escape(told)}">'
        f'<line x1="{x(threshold)}" x2="{x(threshold)}" y1="3" y2="19" class="ink"/>'
        f'<line x1="{x(low)}" x2="{x(high)}" y1="11" y2="11" class="{look}" stroke-width="3" '
        'stroke-opacity="0.55" stroke-linecap="round"/>'
        f'<circle cx="{x(value)}" cy="11" r="4.5" class="fill-{look}"/></svg>'
    )


def _summary(rows: Table) -> str:
    told = "Means over runs with half the width of their 98% intervals"
    look = "open" if len(rows) <= _MOST_OPEN else "closed"
    data = table(rows[0], _even(rows), caption=told)
    return f'<div class="card {look}"><h3>Summary</h3>{data}</div>'


def _even(rows: Table) -> list[list[str]]:
    width = len(rows[0])
    return [[*row[:width], *[""] * (width - len(row))] for row in rows[1:]]


def _made(study: StudyFolder) -> str:
    made = study.made_by
    lines = [(f"option {key}", value) for key, value in _items(made, "options")]
    lines = [("study", study.name), *lines, ("commit", made.get("commit") or "unknown")]
    return (
        f'<div class="card"><h3>How this was made</h3><p><code>{escape(_command(study))}</code></p>'
        f'<div class="pair">{table(["what", "value"], lines, caption="The study and its options")}'
        f"{table(['package', 'version'], _items(made, 'packages'), caption='Packages')}</div></div>"
    )


def _items(made: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    """A mapping in what a study was made by, cut to size; nothing if it is something else."""
    found = made.get(name)
    return list(found.items())[:_MOST_MADE] if isinstance(found, dict) else []


def _command(study: StudyFolder) -> str:
    """The command line that makes the study again."""
    options = dict(_items(study.made_by, "options"))
    parts = ["logel", "reproduce", study.name]
    for name in ("runs", "seed", "observers", "weights"):
        value = options.get(name)
        if isinstance(value, list):
            value = ",".join(map(str, value))
        if value not in (None, ""):
            parts += [f"--{name}", clean(value, longest=200)]
    return shlex.join(parts)


def _read_pictures(folder: Path) -> list[tuple[str, bytes]]:
    paths = sorted(folder.glob("*.png"))[:_MOST_PICTURES]
    return [(path.name, _read_png(path)) for path in paths]


def _read_png(path: Path) -> bytes:
    if not path.is_file():
        raise FormatError(f"{path} is not a plain file")
    if path.stat().st_size > _LARGEST_PICTURE:
        raise FormatError(f"{path} is larger than any figure of a study")
    png = path.read_bytes()
    if not png.startswith(PNG):
        raise FormatError(f"{path} is not a PNG picture")
    return png


def _read_text(path: Path) -> str:
    if path.stat().st_size > _LARGEST_TEXT:
        raise FormatError(f"{path} is larger than any file of a study")
    return path.read_bytes().decode("utf-8", errors="replace")


def _read_json(path: Path) -> Any:
    return parse_json(_read_text(path).encode(), path)
