"""`logel record`: a history from checkpoints; its sub-commands let learners of our own learn."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logel.cli.console import JsonOption, QuietOption, SeedOption, progress_bars
from logel.errors import OptionError

if TYPE_CHECKING:
    from logel.rewards.features import RewardFeatures, StepFeatures


def record(
    context: typer.Context,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Folder of Stable-Baselines3 checkpoints, NAME_1000_steps.zip."),
    ] = None,
    env: Annotated[
        str | None, typer.Option(help="Gymnasium name of the environment they act in.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new history.")] = None,
    episodes: Annotated[int, typer.Option(help="Episodes per checkpoint.")] = 50,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Reward features of your own; known ones by default (CartPole-v1, Hopper-v5, "
            "Reacher-v5).",
        ),
    ] = None,
    activation: Annotated[
        str, typer.Option(help="Between layers: tanh, relu, elu, leaky_relu, gelu or silu.")
    ] = "tanh",
    gamma: Annotated[
        float | None, typer.Option(help="Discount factor; by default the checkpoints'.")
    ] = None,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Record a history: of checkpoints (with these options), or of a learner (sub-commands)."""
    if context.invoked_subcommand is not None:
        if checkpoints is not None:
            raise OptionError(f"give --checkpoints or {context.invoked_subcommand}, not both")
        return
    if checkpoints is None or env is None or out is None:
        raise OptionError("recording checkpoints needs --checkpoints, --env and --out")
    from logel.learners.checkpoints import record_checkpoints

    chosen = load_features(env, features)
    with progress_bars(quiet or json_output) as report:
        history = record_checkpoints(
            checkpoints,
            env,
            out,
            features=chosen,
            episodes=episodes,
            activation=activation,
            gamma=gamma,
            seed=seed,
            progress=report,
        )
    if json_output:
        made = {"history": str(out), "stages": len(history), "episodes_per_stage": episodes}
        typer.echo(json.dumps(made))
    else:
        typer.echo(f"recorded {len(history)} checkpoints, {episodes} episodes each, in {out}")


def load_features(env_id: str, name: str | None) -> RewardFeatures | StepFeatures:
    """The features named on the command line, or those known for the environment.

    Args:
        env_id: Gymnasium name of the environment.
        name: `module:name` of an object with `names` that computes features; the module is the
            user's own, looked up in the current folder too.
    """
    if name is None:
        from logel.envs.classic_control import FEATURES as CLASSIC
        from logel.envs.mujoco import FEATURES as MUJOCO

        known = {**CLASSIC, **MUJOCO}
        if env_id not in known:
            import gymnasium

            if env_id not in gymnasium.registry and ":" not in env_id:
                raise OptionError(
                    f"there is no environment {env_id!r} in Gymnasium: check --env "
                    f"(features are known for {', '.join(known)})"
                )
            raise OptionError(
                f"no reward features are known for {env_id}: name your own by --features "
                f"module:name (known: {', '.join(known)})"
            )
        return known[env_id]
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise OptionError(f"--features must be module:name, but is {name!r}")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"cannot load the features {name}: {error}") from None
    finally:
        if added:
            sys.path.remove(here)
    if not callable(found) or not hasattr(found, "names"):
        raise OptionError(
            f"{name} must be callable and have names: wrap your function as "
            'FunctionFeatures(function, ("one", "two")) of logel.rewards.features'
        )
    return found
