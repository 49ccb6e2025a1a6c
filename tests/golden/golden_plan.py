"""Which methods are asked about which history."""

from __future__ import annotations

from fnmatch import fnmatch

EVERYWHERE = ("default", "paper", "two-step", "mirror")
AUTHORS = ("authors",)
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
    "*-gradient-cloned": AUTHORS,
    "*-gradient-known": AUTHORS,
    "grid-gpomdp-*": AUTHORS,
    "long-*": AUTHORS,
    "table-natural-*": AUTHORS,
    "table-unequal*": AUTHORS,
    "grid-gpomdp-known": (*ALL, "default-cloned", "two-step-cloned"),
    "grid-gpomdp-known-rates": (*MIRROR, "mirror-cloned"),
    "linear-gradient-cloned": (
        "default-quick",
        *PAPER,
        *TWO_STEP,
        "crossroad-paper",
        "joint-gradient",
        "mirror-no-bootstrap",
    ),
    "linear-natural-known-rates*": ("joint-gradient", "joint-natural"),
    "softmax-plane-known": (*QUICK, "joint-gradient", "joint-natural"),
    "control-gradient-known": ("default-quick", "crossroad-paper", "joint-natural"),
    "control-gradient-known-rates": (*MIRROR, *PAPER),
    "control-gradient-cloned": ("crossroad-paper", "paper-fisher"),
    "control-backwards": ("crossroad-paper",),
    "gaussian-plane-unequal-known": ("mirror-deviations", "mirror-no-bootstrap"),
    "gaussian-plane-own-episodes": ("mirror-no-debias", "mirror-shared"),
    "network-gradient-known": (*QUICK, *PAPER, *TWO_STEP, "crossroad-paper", *MIRROR, "joint"),
    "network-adam-known": ("mirror-deviations",),
    "network-own-episodes": ("mirror-no-debias", "mirror-no-bootstrap"),
    "categorical-gradient-known": ("mirror-no-bootstrap", "mirror-unbiased", "joint"),
    "table-natural-known-rates": ("crossroad-paper",),
    "table-natural-cloned": CROSSROAD,
    "table-one-step": ("joint-natural", "mirror-schedule"),
    "table-walk-*": ("mirror-free", "default-quick"),
    "network-walk-known": ("mirror-free",),
}
# Instead of what is asked everywhere: where others ask the same, or clones take long.
ONLY: dict[str, tuple[str, ...]] = {
    "network-few-rows": ("mirror",),
    "network-gradient-cloned": ("default",),
    "categorical-gradient-cloned": ("default",),
    # Five steps or fewer convince no regression, whoever learns: walks are for the joint fit.
    "control-walk-cloned": ("two-step",),
    "*-walk-*": ("default",),
    "*-adam-known": ("default", "two-step"),
    # For networks the default is "mirror".
    "network-*": ("default", "paper", "two-step"),
    "categorical-*": ("default", "paper", "two-step"),
    # What tells these learners apart is the joint fit.
    "grid-[qs]*-cloned": ("default",),
    "grid-[qs]*-known": ("default", "mirror"),
    "control-gradient-cloned-rates": ("two-step",),
    "gaussian-plane-constant-cloned": ("default", "mirror"),
    "grid-gpomdp-cloned-rates": ("default", "two-step"),
    "linear-natural-known-rates-scaled": ("default", "mirror"),
    "linear-gradient-cloned-rates": ("default", "two-step"),
    "control-natural-cloned": ("two-step",),
    "linear-natural-cloned": ("default", "two-step"),
    "softmax-plane-unequal": ("default", "two-step"),
    "table-constant": ("default", "two-step"),
    "table-unequal": ("default", "paper", "two-step"),
    "table-duplicated": ("default", "two-step"),
}


def methods_for(name: str) -> list[str]:
    """The methods asked about a history."""
    basic = next((m for pattern, m in ONLY.items() if fnmatch(name, pattern)), EVERYWHERE)
    more = [m for pattern, methods in MORE.items() if fnmatch(name, pattern) for m in methods]
    return list(dict.fromkeys([*basic, *more]))
