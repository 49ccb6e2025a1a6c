"""`logel plan`: how long an inference will take and how much memory, before it starts."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from logel.cli.console import (
    Clone,
    Discount,
    FamilyName,
    HistoryFolder,
    Json,
    MethodName,
    NumberOfWorkers,
    Quiet,
    Seed,
    StageRange,
    WorldFile,
    cut,
    progress_bars,
    read_with_progress,
)
from logel.cli.features import FeaturesName, named_features
from logel.cli.reward import known_world


def plan(
    history: HistoryFolder,
    gamma: Discount = None,
    method: MethodName = "default",
    policy: FamilyName = "auto",
    clone: Clone = False,
    features: FeaturesName = None,
    stages: StageRange = None,
    world: WorldFile = None,
    device: Annotated[str, Option(help="Where to compute: cpu or cuda.")] = "cpu",
    seed: Seed = 0,
    workers: NumberOfWorkers = 1,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how long `logel infer` will take with the same options, and how much memory."""
    from logel.data.history import LearningHistory
    from logel.inference.plan import plan_inference
    from logel.policies.choose import choose_common_policy

    loaded = cut(LearningHistory.load(history), stages)
    family = choose_common_policy({"history": loaded}, policy, known=not clone, device=device)
    with progress_bars(quiet or json_output) as report:
        found = plan_inference(
            read_with_progress(loaded, report),
            family,
            gamma=gamma,
            method=method,
            features=named_features(features),
            use_parameters=not clone,
            world=None if world is None else known_world(world, family),
            seed=seed,
            workers=workers,
        )
    typer.echo(found.to_json() if json_output else found.summary())
