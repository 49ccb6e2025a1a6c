"""Processes killed at random moments: what they were writing must load, or be made again, the same.

Usage: `python -m benchmarks.kills [--kills 100] [--seed 0] [--only recorder record import study]`;
`benchmarks.killed` says what is killed, and what must be left.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.killed import run
from benchmarks.report import Check, report


def main() -> int:
    """Kill, and print the table; the exit code says whether anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=())
    asked = parser.parse_args()
    checks = [
        Check(
            name,
            ", ".join(f"{count} {what}" for what, count in told.items()),
            "none wrong",
            told["wrong"] == 0,
        )
        for name, told in run(asked.kills, asked.seed, asked.only).items()
    ]
    return report(f"{asked.kills} kills each, seed {asked.seed}", checks)


if __name__ == "__main__":
    sys.exit(main())
