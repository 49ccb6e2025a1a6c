"""Ways to spoil a file: bytes, JSON, cells, members of archives, and what stands in its place."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator
BYTES = (0, 1, 9, 10, 13, 27, 34, 44, 47, 91, 92, 123, 127, 128, 254, 255)
WORDS = (
    b"99999999999999999999", b"-1", b"1e999", b"nan", b"null", b"true", b"\x00" * 8, b"\xff" * 8,
    b"\x80\x04\x95", b"../../", b"[" * 300, b"\n\n", b",,,,", b'"', b"0" * 400, b"\xf0\x9f\x98\x80",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**40, 2**63, -(2**63), 10**9, 10**400, 0.5, 1e308, 1e-308,
    float("nan"), float("inf"), "", "x", "\x1b[31m", "../../etc/passwd", "\ud800", "a" * 5000,
    [], {}, [[]], [[[[]]]], [1, 2], {"a": 1}, [None] * 50, {"": {"": {"": {}}}}, "1", "nan",
)  # fmt: skip


def spoil(folder: Path, outside: Path, rng: Rng) -> str:
    """Spoil one file of a folder, seldom two; tells how."""
    done = []
    for _ in range(1 if rng.random() < 0.8 else 2):
        files = sorted(path for path in folder.rglob("*") if can_be_spoilt(path))
        if not files:
            break
        path = files[rng.integers(len(files))]
        if rng.random() < 0.02:
            done.append(f"{path.name} {replaced(path, outside, rng)}")
            continue
        ways = [way for fits, way in WAYS if fits(path)]
        way = ways[rng.integers(len(ways))]
        path.write_bytes(way(path.read_bytes(), rng))
        done.append(f"{path.name} {way.__name__}")
    return ", ".join(done)


def can_be_spoilt(path: Path) -> bool:
    """Not what was put in a file's place before."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 10**6


def replaced(path: Path, outside: Path, rng: Rng) -> str:
    """Something else where the file was."""
    path.unlink()
    match int(rng.integers(5)):
        case 0:
            path.symlink_to(outside)
            return "is a link outside"
        case 1:
            path.symlink_to(path)
            return "is a link to itself"
        case 2:
            os.mkfifo(path)
            return "is a pipe"
        case 3:
            path.mkdir()
            return "is a folder"
        case _:
            with path.open("wb") as file:
                file.truncate(2**40)
            return "is a terabyte of nothing"


# --- bytes --------------------------------------------------------------------------------------


def bytes_changed(data: bytes, rng: Rng) -> bytes:
    raw = bytearray(data or b"\x00")
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(raw)))
        raw[at] = int(rng.choice(BYTES)) if rng.random() < 0.5 else raw[at] ^ 1 << rng.integers(8)
    return bytes(raw)


def bytes_cut(data: bytes, rng: Rng) -> bytes:
    low, high = sorted(int(k) for k in rng.integers(0, len(data) + 1, 2))
    return data[:low] if rng.random() < 0.5 else data[:low] + data[high:]


def bytes_repeated(data: bytes, rng: Rng) -> bytes:
    low, high = sorted(int(k) for k in rng.integers(0, len(data) + 1, 2))
    return data[:high] + data[low:high] * int(rng.integers(1, 4)) + data[high:]


def word_inserted(data: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(data) + 1))
    word = WORDS[rng.integers(len(WORDS))]
    rest = at + (len(word) if rng.random() < 0.5 else 0)
    return data[:at] + word + data[rest:]


def number_changed(data: bytes, rng: Rng) -> bytes:
    """Four or eight bytes, as sizes and offsets of binary formats are."""
    width = int(rng.choice([2, 4, 8]))
    at = int(rng.integers(max(len(data) - width, 1)))
    value = int(rng.choice([0, 1, 2**15, 2**16 - 1]))
    if width > 2:
        value = (1 << int(rng.integers(8 * width))) - int(rng.integers(2))
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


# --- JSON ---------------------------------------------------------------------------------------


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every position in nested lists and dictionaries but the top."""
    if not isinstance(value, dict | list):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        yield from places(inner, (*at, key))


def any_value(rng: Rng) -> Any:
    return copy.deepcopy(VALUES[rng.integers(len(VALUES))])


def value_changed(value: Any, rng: Rng) -> Any:
    """The same JSON with something in it replaced, left out, doubled or nested."""
    everywhere = list(places(value))
    if not everywhere:
        return any_value(rng)
    *path, last = everywhere[rng.integers(len(everywhere))]
    inside = value
    for key in path:
        inside = inside[key]
    match int(rng.integers(8)):
        case 0:
            del inside[last]
        case 1 if isinstance(inside, list):
            inside.insert(last, inside[last])
        case 2:
            deep: Any = inside[last]
            for _ in range(int(rng.choice([1, 50, 150, 900]))):
                deep = [deep]
            inside[last] = deep
        case _:
            inside[last] = any_value(rng)
    return value


def json_changed(data: bytes, rng: Rng) -> bytes:
    """A file of JSON, or of lines of it."""
    try:
        return json.dumps(value_changed(json.loads(data), rng)).encode()
    except (ValueError, RecursionError):
        lines = data.split(b"\n")
        k = int(rng.integers(len(lines)))
        try:
            lines[k] = json.dumps(value_changed(json.loads(lines[k]), rng)).encode()
        except (ValueError, RecursionError):
            return bytes_changed(data, rng)
        return b"\n".join(lines)


def header_changed(data: bytes, rng: Rng) -> bytes:
    """The JSON at the head of a safetensors file, with the right length before it."""
    n = int.from_bytes(data[:8], "little")
    try:
        header = json.dumps(value_changed(json.loads(data[8 : 8 + n]), rng)).encode()
    except (ValueError, RecursionError):
        return bytes_changed(data, rng)
    return len(header).to_bytes(8, "little") + header + data[8 + n :]


# --- tables and archives ------------------------------------------------------------------------


def cell_changed(data: bytes, rng: Rng) -> bytes:
    rows = [row.split(b",") for row in data.split(b"\n")]
    row = rows[rng.integers(len(rows))]
    wild = (b"", b"nan", b"1e999", b"-1", b"9" * 30, b"x", b'"', b"1.5", b"true", b"\x1b[31m")
    row[rng.integers(len(row))] = wild[rng.integers(len(wild))]
    return b"\n".join(b",".join(row) for row in rows)


def rows_moved(data: bytes, rng: Rng) -> bytes:
    rows = data.split(b"\n")
    one, two = (int(k) for k in rng.integers(len(rows), size=2))
    rows[one], rows[two] = rows[two], rows[one]
    return b"\n".join(rows)


def member_changed(data: bytes, rng: Rng) -> bytes:
    """One file inside a zip archive spoilt; archives in archives are opened, too."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError):
        return bytes_changed(data, rng)
    if not members:
        return bytes_changed(data, rng)
    name = sorted(members)[rng.integers(len(members))]
    inner = members[name]
    ways = [*ANY, member_changed] if inner[:2] == b"PK" else list(ANY)
    if inner[:1] in b"{[":
        ways = [json_changed, *ways]
    if rng.random() < 0.05:
        members[str(rng.choice(["../evil", "/etc/x", "data.pkl", "x/data.pkl"]))] = inner
    elif rng.random() < 0.05:
        del members[name]
    else:
        members[name] = ways[rng.integers(len(ways))](inner, rng)
    packed = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", packed) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return result.getvalue()


Way = Callable[[bytes, Rng], bytes]
ANY: tuple[Way, ...] = (bytes_changed, bytes_cut, bytes_repeated, word_inserted, number_changed)


def of(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.suffix in suffixes


# What fits a kind of file is taken more often than what fits any.
WAYS: tuple[tuple[Callable[[Path], bool], Way], ...] = (
    *((lambda path: True, way) for way in ANY),
    *((of(".json", ".jsonl"), json_changed) for _ in range(8)),
    *((of(".safetensors"), header_changed) for _ in range(4)),
    *((of(".csv", ".md"), way) for way in (cell_changed, cell_changed, rows_moved)),
    *((of(".zip", ".npz"), member_changed) for _ in range(8)),
)
