"""Makes the golden files: small histories of many learners, and what every method says of them.

    python tests/golden/make.py                      # histories not there yet, and all estimates
    python tests/golden/make.py --changed PATTERN... # entries that a fix changes, to changed.json
    python tests/golden/make.py --stability          # do entries survive noise of 1e-13?

Estimates are made once, before a change of the code; afterwards only `--changed` is right.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from golden_entries import (
    CHANGED,
    ESTIMATES,
    HERE,
    HISTORIES,
    Entry,
    asked,
    differences,
    distance,
    expected,
    load,
    read,
    write,
)
from golden_plan import methods_for

from logel import LearningHistory


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--changed", nargs="+", metavar="PATTERN", help="history/method")
    parser.add_argument("--stability", nargs="*", metavar="PATTERN", help="report only")
    arguments = parser.parse_args()
    warnings.simplefilter("error")  # as the tests do
    if arguments.changed:
        change(arguments.changed)
    elif arguments.stability is not None:
        check_stability(arguments.stability or ["*"])
    else:
        make_histories()
        write(ESTIMATES, made_at(), computed(planned()))
        if not CHANGED.exists():
            write(CHANGED, {}, {})


def made_at() -> dict[str, str]:
    """The commit and the packages that the numbers come from."""
    import scipy
    import torch

    git = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    return {
        "commit": commit,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "torch": torch.__version__,
    }


def make_histories() -> None:
    """Histories that are not there yet."""
    from golden_worlds import HISTORIES as MAKERS

    HISTORIES.mkdir(exist_ok=True)
    for name, maker in MAKERS.items():
        if not (HISTORIES / name).exists():
            maker().save(HISTORIES / name)


def planned() -> list[str]:
    """Every entry, history by history."""
    names = sorted(folder.name for folder in HISTORIES.iterdir())
    return [f"{name}/{method}" for name in names for method in methods_for(name)]


def computed(entries: Iterable[str]) -> dict[str, Entry]:
    """The answers, with the seconds of each on the screen."""
    result = {}
    for entry in entries:
        begun = time.process_time()
        name, method = entry.split("/")
        result[entry] = asked(load(name), method)
        said = result[entry].get("status", result[entry].get("error"))
        print(f"{time.process_time() - begun:7.2f} s  {entry}: {said}", flush=True)
    return result


def matching(entries: Iterable[str], patterns: list[str]) -> list[str]:
    """The entries that are meant."""
    chosen = sorted(entry for entry in entries if any(fnmatch(entry, p) for p in patterns))
    if not chosen:
        raise SystemExit(f"no entry matches {patterns}")
    return chosen


def change(patterns: list[str]) -> None:
    """Recompute matching entries; what differs goes into changed.json, the others there stay."""
    stored = read(ESTIMATES)["entries"]
    changed = {entry: new for entry, new in read(CHANGED)["entries"].items() if entry in stored}
    for entry, found in computed(matching(stored, patterns)).items():
        if fields := differences(entry, found, stored[entry]):
            changed[entry] = found if "error" in found else {f: found[f] for f in fields}
        else:
            changed.pop(entry, None)
    write(CHANGED, made_at(), changed)


def check_stability(patterns: list[str]) -> None:
    """Report entries that move by more than 1e-9 under relative noise of 1e-13."""
    stored, changed = read(ESTIMATES)["entries"], read(CHANGED)["entries"]
    for entry in matching(stored, patterns):
        name, method = entry.split("/")
        known = expected(entry, stored, changed)
        gaps = {"again": asked(load(name), method)}
        for seed in range(2):
            gaps[f"noise {seed}"] = asked(shaken(load(name), seed), method)
        for what, found in gaps.items():
            worst = {
                field: f"{distance(found.get(field), known.get(field)):.1g}"
                for field in differences(entry, found, known, 1e-9)
            }
            if worst:
                print(f"{entry} ({what}): {worst}", flush=True)


def shaken(history: LearningHistory, seed: int) -> LearningHistory:
    """The history with relative noise of 1e-13 on everything that is not a whole number."""
    rng = np.random.default_rng(seed)

    def shake(values: Any) -> Any:
        if values is None or values.dtype.kind == "i":
            return values
        return values * (1 + 1e-13 * rng.standard_normal(values.shape))

    names = ("observations", "actions", "last_observations", "features", "parameters")
    stages = [replace(s, **{n: shake(getattr(s, n)) for n in names}) for s in history]
    return replace(history, source=tuple(stages), learning_rates=shake(history.learning_rates))


if __name__ == "__main__":
    main()
