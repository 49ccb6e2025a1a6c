"""Strings from strangers' files, made fit for a page: cleaned, escaped, embedded."""

from __future__ import annotations

import html
import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

# Longer than any name or note of ours; a file can hold anything.
LONGEST = 400
# An en dash stands for a number that is not there.
NOTHING = "\u2013"
# Line separators, control and formatting characters (bidirectional overrides among them), lone
# surrogates: none of them belongs into a line of text, and the last cannot even be encoded.
_UNFIT = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def clean(text: object, *, longest: int = LONGEST) -> str:
    """One line of printable text: whatever cannot be shown becomes U+FFFD, the rest is cut."""
    line = " ".join(str(text)[: 4 * longest].split())
    line = "".join("\ufffd" if unicodedata.category(c) in _UNFIT else c for c in line)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def escape(text: object, *, longest: int = LONGEST) -> str:
    """Clean text with the characters that mean something in HTML replaced."""
    return html.escape(clean(text, longest=longest), quote=True)


def plain(value: Any, *, digits: int = 6) -> Any:
    """Values as JSON can hold them: arrays to lists, numbers rounded, not-a-number to None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {clean(key): plain(item, digits=digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, digits=digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value if isinstance(value, int | None) else clean(value, longest=2000)


def embed_json(value: Any) -> str:
    """JSON that cannot leave the script element it stands in."""
    text = json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def number(value: float | None, digits: int = 3) -> str:
    """A number for a reader, with a real minus sign; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.{digits}g}".replace("-", "\u2212")


def fixed(value: float, places: int = 3) -> str:
    """The same with as many places in a whole column."""
    if not math.isfinite(value):
        return NOTHING
    return f"{value:+.{places}f}".replace("-", "\u2212")
