"""Which methods are asked about which history."""

from __future__ import annotations

from fnmatch import fnmatch

EVERYWHERE = ("default", "paper", "authors", "two-step", "mirror")
QUICK = ("default-quick", "paper-quick", "two-step-quick", "mirror-quick")
PAPER = (
    "paper-critic",
    "paper-fisher",
    "paper-reinforce",
    "paper-ridge",
    "paper-ridge-evidence",
)
TWO_STEP = ("two-step-before", "two-step-debias", "two-step-no-debias")
# Non-negative weights; not for the gridworld, whose gauge makes them chaotic.
CROSSROAD = ("crossroad", "crossroad-paper")
MIRROR = (
    "mirror-free",
    "mirror-no-bootstrap",
    "mirror-no-debias",
    "mirror-ridge",
    "mirror-ridge-evidence",
    "mirror-schedule",
    "mirror-shared",
    "mirror-unbiased",
)
JOINT = ("default-seed1", "joint", "joint-gradient", "joint-natural")
ALL = (*QUICK, *PAPER, *TWO_STEP, *MIRROR, *JOINT)
# Beside what is asked everywhere, for histories whose names match.
MORE: dict[str, tuple[str, ...]] = {
    "grid-gpomdp-known": (*ALL, "default-cloned", "two-step-cloned", "mirror-cloned"),
    "grid-gpomdp-known-rates": (*MIRROR, *TWO_STEP, "default-cloned", "mirror-cloned"),
    "linear-gradient-cloned": (*QUICK, *PAPER, *TWO_STEP, *CROSSROAD, *MIRROR, "joint-gradient"),
    "linear-natural-known-rates*": ("joint-gradient", "joint-natural"),
    "softmax-plane-known": (*QUICK, *JOINT, "crossroad"),
    "control-gradient-known": (*QUICK, *TWO_STEP, *JOINT, *CROSSROAD, "paper-reinforce"),
    "control-gradient-known-rates": (*MIRROR, *PAPER),
    "control-gradient-cloned": (*QUICK, *CROSSROAD, "paper-fisher"),
    "control-backwards": CROSSROAD,
    "gaussian-plane-unequal-known": ("mirror-deviations", "mirror-no-bootstrap", "crossroad"),
    "gaussian-plane-own-episodes": ("mirror-no-debias", "mirror-shared"),
    "network-gradient-known": (*QUICK, *PAPER, *TWO_STEP, *CROSSROAD, *MIRROR, "joint"),
    "network-adam-known": ("mirror-deviations",),
    "network-gradient-cloned": ("mirror-no-debias", "mirror-shared"),
    "network-own-episodes": ("mirror-no-debias", "mirror-no-bootstrap"),
    "categorical-gradient-known": (*MIRROR, *QUICK, "paper-critic", "joint"),
    "table-natural-known-rates": (*CROSSROAD, "default-cloned"),
    "table-natural-cloned": CROSSROAD,
    "table-one-step": ("joint-natural", "mirror-schedule"),
    "table-walk-*": ("mirror-free", "mirror-schedule", "default-quick"),
    "network-walk-known": ("mirror-free",),
}
ONLY: dict[str, tuple[str, ...]] = {
    # Cloned to the end of their patience, which is chaotic: one such method is enough.
    "*-few-rows": ("authors", "mirror"),
    # For networks the default is "mirror", which is asked by name where parameters are known.
    "network-gradient-cloned*": ("default", "paper", "authors", "two-step"),
    "categorical-gradient-cloned*": ("default", "paper", "authors", "two-step"),
}


def methods_for(name: str) -> list[str]:
    """The methods asked about a history."""
    basic = next((m for pattern, m in ONLY.items() if fnmatch(name, pattern)), EVERYWHERE)
    more = [m for pattern, methods in MORE.items() if fnmatch(name, pattern) for m in methods]
    return list(dict.fromkeys([*basic, *more]))
