"""`logel record`: a history from checkpoints; its sub-commands let learners of our own learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from logel.cli.console import (
    Json,
    NumberOfWorkers,
    Quiet,
    RayAddress,
    Seed,
    Verbose,
    answer,
    one_of,
    progress_bars,
)
from logel.cli.features import FeaturesName, known_features, named_features, with_names
from logel.errors import OptionError

if TYPE_CHECKING:
    from logel.data.history import LearningHistory
    from logel.envs.gridworld import GridMap

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
    features: FeaturesName = None,
    activation: Annotated[
        str, Option(help="Between layers: tanh, relu, elu, leaky_relu, gelu or silu.")
    ] = "tanh",
    gamma: Annotated[
        float | None, Option(help="Discount factor; by default the checkpoints'.")
    ] = None,
    seed: Seed = 0,
    workers: NumberOfWorkers = 1,
    ray: RayAddress = None,
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
    from logel.workers import Workers

    chosen = known_features(env) if features is None else with_names(named_features(features))
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
            workers=Workers(workers, ray),
        )
    sentence = f"recorded {len(history)} checkpoints, {episodes} episodes each, in {out}"
    answer(_made(out, history, episodes), sentence, json_output=json_output)


def record_gridworld(
    out: Annotated[Path, Argument(help="Folder of the new history.")],
    learner: Annotated[
        str,
        Option(
            help="gpomdp, qlearning, spi or svi.",
            autocompletion=one_of(("gpomdp", "qlearning", "spi", "svi")),
        ),
    ] = "gpomdp",
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
