"""All rules by name; which of them can be asked is up to the world (`World.offers`)."""

from __future__ import annotations

from logel.rules.ascent import Adam, Gradient, NaturalGradient
from logel.rules.rule import Rule
from logel.rules.values import GradualValue, QLearning, SoftPolicy, SoftValue

RULES: dict[str, type[Rule]] = {
    "gradient": Gradient,
    "natural": NaturalGradient,
    "adam": Adam,
    "soft-policy": SoftPolicy,
    "soft-value": SoftValue,
    "gradual-value": GradualValue,
    "q-learning": QLearning,
}
