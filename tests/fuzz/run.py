"""Read any number of spoilt files: `python -m tests.fuzz --cases 100000 [--seed 0] [--only NAME]`.

The cases run in a process of its own, which is watched: one that hangs, dies or is killed for its
memory is noted, and the next case goes on in a new process. Prints a table; the exit code says
whether anything was found. `--case N` runs one case and shows what was wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.readers import READERS
from tests.fuzz.watch import SECONDS, Cases, fresh_folder

# Address space beside what is mapped at the start: what is asked for beyond fails, it kills nobody.
_MORE_MEMORY = 6 * 2**30
_PATIENCE = 3 * SECONDS


def work(pipe: Connection, first: int, last: int, seed: int, only: str | None) -> None:
    """Run cases and tell of each."""
    readers = tuple(r for r in READERS if only is None or r.name == only)
    with fresh_folder() as root:
        cases = Cases(root, seed, readers)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + _MORE_MEMORY,) * 2)
        for case in range(first, last):
            name, outcome, found = cases.run(case)
            pipe.send((case, name, outcome, None if found is None else vars(found)))
    pipe.send(None)


def run(
    first: int, last: int, seed: int, only: str | None
) -> tuple[Counter[tuple[str, str]], list[dict[str, object]]]:
    """All cases, in as many processes as it takes."""
    outcomes: Counter[tuple[str, str]] = Counter()
    findings: list[dict[str, object]] = []
    context = multiprocessing.get_context("spawn")
    begun = time.monotonic()
    while first < last:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, first, last, seed, only))
        process.start()
        theirs.close()
        patience = 120.0  # to start
        while True:
            try:
                told = ours.recv() if ours.poll(patience) else "hangs"
            except EOFError:
                told = "died"
            if told is None:
                first = last
                break
            if isinstance(told, str):
                findings.append({"case": first, "what": f"the process {told}"})
                first += 1
                break
            case, name, outcome, found = told
            outcomes[name, outcome] += 1
            if found is not None:
                findings.append(found)
                print(json.dumps(found), file=sys.stderr, flush=True)
            first, patience = case + 1, float(_PATIENCE)
            if first % 5000 == 0:
                print(
                    f"{first} cases, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True
                )
        process.kill()
        process.join()
    return outcomes, findings


def table(outcomes: Counter[tuple[str, str]]) -> str:
    """Readers by outcomes, as Markdown."""
    kinds = sorted({kind for _, kind in outcomes}, key=lambda k: (k != "read", k))
    lines = [f"| reader | cases | {' | '.join(kinds)} |", f"|---|{'---|' * (len(kinds) + 1)}"]
    for reader in [r.name for r in READERS if any(name == r.name for name, _ in outcomes)]:
        counts = [outcomes[reader, kind] for kind in kinds]
        cells = [str(n) if n else "" for n in counts]
        lines.append(f"| {reader} | {sum(counts)} | {' | '.join(cells)} |")
    totals = [sum(n for (_, k), n in outcomes.items() if k == kind) for kind in kinds]
    lines.append(f"| all | {sum(totals)} | {' | '.join(map(str, totals))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[reader.name for reader in READERS])
    parser.add_argument("--case", type=int, help="run this one alone")
    asked = parser.parse_args()
    first, last = (0, asked.cases) if asked.case is None else (asked.case, asked.case + 1)
    start = time.monotonic()
    outcomes, findings = run(first, last, asked.seed, asked.only)
    print(table(outcomes))
    print(f"\n{last - first} cases of seed {asked.seed} in {time.monotonic() - start:.0f} s; "
          f"{len(findings)} findings")  # fmt: skip
    for found in findings[:50]:
        print(json.dumps(found))
    return 1 if findings else 0
