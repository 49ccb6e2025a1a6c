"""Reward features by name, for every command that takes them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from logel.errors import OptionError

if TYPE_CHECKING:
    from logel.rewards.features import RewardFeatures, StepFeatures

FeaturesName = Annotated[
    str | None,
    Option(
        metavar="MODULE:NAME",
        help="Reward features: of a module of yours (MODULE:NAME), of an environment that has "
        "ready-made ones (FrozenLake-v1), or made from bounds (generic:MyWorld-v0).",
    ),
]
_GENERIC = "generic"


def named_features(name: str | None) -> RewardFeatures | StepFeatures | None:
    """The features that `--features` names, if it is given."""
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    if module == _GENERIC and attribute:
        return _generic(attribute)
    if not attribute:
        return _ready_made(name)
    return _own_features(module, attribute)


def known_features(env_id: str) -> RewardFeatures | StepFeatures:
    """Ready-made features of an environment."""
    from logel.envs.ready_made import FEATURES

    if env_id in FEATURES:
        return FEATURES[env_id]
    import gymnasium

    if env_id not in gymnasium.registry and ":" not in env_id:
        raise OptionError(
            f"there is no environment {env_id!r} in Gymnasium: check the name "
            f"(features are known for {', '.join(FEATURES)})"
        )
    raise OptionError(
        f"no reward features are known for {env_id}: name your own by --features module:name, or "
        f"take --features {_GENERIC}:{env_id} (known: {', '.join(FEATURES)})"
    )


def _ready_made(name: str) -> RewardFeatures | StepFeatures:
    from logel.envs.ready_made import FEATURES

    if name not in FEATURES:
        raise OptionError(
            f"--features must be module:name, {_GENERIC}:ENVIRONMENT, or an environment with "
            f"ready-made features ({', '.join(FEATURES)}), but is {name!r}"
        )
    return FEATURES[name]


def with_names(features: Any) -> Any:
    """The features, refused if they have no names."""
    if not hasattr(features, "names"):
        raise OptionError(
            "the features to be recorded must have names: wrap your function as "
            'FunctionFeatures(function, ("one", "two")) of logel.rewards.features'
        )
    return features


def _generic(env_id: str) -> RewardFeatures:
    import gymnasium

    from logel.envs.ready_made import generic_features

    try:
        env = gymnasium.make(env_id, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        raise OptionError(f"cannot make the environment {env_id!r}: {error}") from None
    try:
        return generic_features(env)
    finally:
        env.close()


def _own_features(module: str, attribute: str) -> Any:
    """Of a module of the user's own, looked up in the current folder too."""
    name = f"{module}:{attribute}"
    if not module:
        raise OptionError(f"--features must be module:name, but is {name!r}")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"cannot load the features {name}: {error}") from None
    finally:
        if added:
            sys.path.remove(here)
    if not callable(found):
        raise OptionError(f"{name} must be a function of transitions, but is {found!r}")
    return found
