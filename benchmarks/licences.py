"""Licences of everything installed: permissive ones pass, others must be known and optional.

Usage: `python -m benchmarks.licences`. Reads what the packages say of themselves; the exit code
says whether all is well. What logel itself needs (without extras) must be permissive.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distribution, distributions, requires

from benchmarks.report import Check, report

PERMISSIVE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Zlib|Unlicense|HPND|0BSD|CC0|BSL-1\.0",
    re.IGNORECASE,
)
# Weak copyleft or a choice, in packages that logel does not need: data, tools, a simulator.
KNOWN = {
    "certifi": "MPL-2.0",
    "hypothesis": "MPL-2.0",
    "pathspec": "MPL-2.0",
    "pygame-ce": "LGPL",  # with the extra box2d
    "libsumo": "EPL-2.0 OR GPL-2.0-or-later",
    "sumo-data": "EPL-2.0 OR GPL-2.0-or-later",
    "sumolib": "EPL-2.0 OR GPL-2.0-or-later",
    "traci": "EPL-2.0 OR GPL-2.0-or-later",
}
OURS = "logel"


def licence(one: Distribution) -> str:
    """What a package says of its licence: an expression, classifiers, or free text."""
    about = one.metadata
    if expression := about.get("License-Expression"):
        return expression
    prefix = "License :: "
    classifiers = [
        entry.rsplit(" :: ", 1)[-1]
        for entry in about.get_all("Classifier") or []
        if entry.startswith(prefix) and entry != f"{prefix}OSI Approved"
    ]
    return "; ".join(classifiers) or (about.get("License") or "").split("\n")[0].strip()[:60]


def name_of(requirement: str) -> str:
    """The package that a requirement is about."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def needed() -> set[str]:
    """Packages that logel needs without any extra, and what these need."""
    found: set[str] = set()
    waiting = [OURS]
    while waiting:
        for requirement in requires(waiting.pop()) or []:
            name = name_of(requirement)
            if "extra ==" not in requirement and name not in found and _is_installed(name):
                found.add(name)
                waiting.append(name)
    return found


def _is_installed(name: str) -> bool:
    return any(name_of(one.metadata["Name"]) == name for one in distributions())


def verdicts() -> dict[str, tuple[str, bool]]:
    """Every installed package with its licence, and whether that is well."""
    must = needed()
    told = {}
    for one in distributions():
        name = name_of(one.metadata["Name"])
        said = licence(one)
        fine = bool(PERMISSIVE.search(said)) and "GPL" not in said
        told[name] = (said, fine or (name in KNOWN and name not in must))
    return told


def main() -> int:
    """Print what is not permissive, and a count of the rest."""
    found = verdicts()
    odd = {name: pair for name, pair in found.items() if name in KNOWN or not pair[1]}
    checks = [Check(name, said, "known", fine) for name, (said, fine) in sorted(odd.items())]
    rest = f"{len(found) - len(odd)} packages"
    checks.append(Check("all others", rest, "permissive", True))
    return report(f"Licences, {distribution(OURS).version}", checks)


if __name__ == "__main__":
    sys.exit(main())
