"""`logel record`: a history from checkpoints; its sub-commands let learners of our own learn."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from logel.cli.console import Json, Quiet, Seed, Verbose, answer, progress_bars
from logel.errors import OptionError

if TYPE_CHECKING:
    from logel.data.history import LearningHistory
    from logel.envs.gridworld import GridMap
    from logel.rewards.features import RewardFeatures, StepFeatures

MapOption = Annotated[Path | None, Option("--map", help="Text file with a map of characters.")]


def record(
    context: typer.Context,
    checkpoints: Annotated[
        Path | None, Option(help="Folder of Stable-Baselines3 checkpoints, NAME_1000_steps.zip.")
    ] = None,
    env: Annotated[
        str | None, Option(help="Gymnasium name of the environment they act in.")
    ] = None,
    out: Annotated[Path | None, Option(help="Folder of the new history.")] = None,
    episodes: Annotated[int, Option(help="Episodes per checkpoint.")] = 50,
    features: Annotated[
        str | None,
        Option(
            metavar="MODULE:NAME",
            help="Reward features of your own; known ones by default (CartPole-v1, "
            "LunarLander-v3, Hopper-v5, Reacher-v5).",
        ),
    ] = None,
    activation: Annotated[
        str, Option(help="Between layers: tanh, relu, elu, leaky_relu, gelu or silu.")
    ] = "tanh",
    gamma: Annotated[
        float | None, Option(help="Discount factor; by default the checkpoints'.")
    ] = None,
    seed: Seed = 0,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Record a history: of checkpoints (with these options), or of a learner (sub-commands)."""
    if context.invoked_subcommand is not None:
        if checkpoints is not None:
            raise OptionError(f"give --checkpoints or {context.invoked_subcommand}, not both")
        return
    if checkpoints is None or env is None or out is None:
        raise OptionError("recording checkpoints needs --checkpoints, --env and --out")
    from logel.learners.checkpoints import record_checkpoints

    chosen = _known_features(env) if features is None else _own_features(features)
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
    sentence = f"recorded {len(history)} checkpoints, {episodes} episodes each, in {out}"
    answer(_made(out, history, episodes), sentence, json_output=json_output)


def record_gridworld(
    out: Annotated[Path, Argument(help="Folder of the new history.")],
    learner: Annotated[str, Option(help="gpomdp, qlearning, spi or svi.")] = "gpomdp",
    steps: Annotated[int, Option(help="Updates to record.")] = 30,
    episodes: Annotated[int, Option(help="Episodes per stage.")] = 50,
    horizon: Annotated[int, Option(help="Length of an episode.")] = 20,
    weights: Annotated[
        str, Option(help="Reward: code, paper-text, or name=value,name=value,...")
    ] = "code",
    map_file: MapOption = None,
    parameters: Annotated[bool, Option(help="Also record the policies' parameters.")] = False,
    seed: Seed = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Record a learner in the paper's gridworld, or in one of your own."""
    from logel.data.folder import write_into
    from logel.data.store import new_folder
    from logel.envs.gridworld import grid_weights, gridworld_mdp, parse_weights
    from logel.learners.tabular import LEARNERS, observe

    if learner not in LEARNERS:
        raise OptionError(f"unknown learner {learner!r}: choose one of {', '.join(LEARNERS)}")
    mdp = gridworld_mdp(read_map(map_file))
    with (
        new_folder(out) as reserved,
        progress_bars(quiet or json_output, verbose=verbose) as report,
    ):
        history = observe(
            mdp,
            LEARNERS[learner](),
            weights=grid_weights(mdp.feature_names, parse_weights(weights)),
            n_steps=steps,
            n_episodes=episodes,
            horizon=horizon,
            seed=seed,
            parameters=parameters,
            progress=report,
        )
        write_into(reserved, history, report)
    sentence = f"recorded {len(history)} stages of {episodes} episodes in {out}"
    answer(_made(out, history, episodes), sentence, json_output=json_output)


def _made(out: Path, history: LearningHistory, episodes: int) -> dict[str, Any]:
    return {"history": str(out), "stages": len(history), "episodes_per_stage": episodes}


def read_map(path: Path | None) -> GridMap:
    """The default map, or one from a text file."""
    from logel.envs.gridworld import GridMap

    if path is None:
        return GridMap.parse()
    try:
        return GridMap.parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the map {path}: {error}") from None


def _known_features(env_id: str) -> RewardFeatures | StepFeatures:
    from logel.envs.box2d import FEATURES as BOX2D
    from logel.envs.classic_control import FEATURES as CLASSIC
    from logel.envs.mujoco import FEATURES as MUJOCO

    known = {**CLASSIC, **BOX2D, **MUJOCO}
    if env_id in known:
        return known[env_id]
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


def _own_features(name: str) -> Any:
    """Of a module of the user's own, looked up in the current folder too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise OptionError(f"--features must be module:name, but is {name!r}")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
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
