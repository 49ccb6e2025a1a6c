"""`logel infer`, `logel report` and `logel train`: recover a reward, show it, put it to work."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from logel.cli.console import (
    Clone,
    Discount,
    FamilyName,
    Json,
    MethodName,
    NumberOfWorkers,
    OwnWorlds,
    Quiet,
    RayAddress,
    Resume,
    Seed,
    StageRange,
    Verbose,
    WorldFile,
    answer,
    cut,
    history_at,
    progress_bars,
    read_with_progress,
    save_and_show,
    workers_of,
)
from logel.cli.features import FeaturesName, named_features
from logel.errors import OptionError, printed
from logel.threads import limited_threads

if TYPE_CHECKING:
    from logel.inference.estimate import RewardEstimate
    from logel.policies.base import Policy
    from logel.worlds.known import KnownWorld

_ASK = "hint: the history does not say its learner; if PPO, A2C or TRPO, try --method replay"


def infer(
    history: Annotated[
        list[Any],
        Argument(
            metavar="HISTORY...",
            parser=history_at,
            help="Folder or address of a learning history; several: learners that share a reward.",
        ),
    ],
    gamma: Discount = None,
    method: MethodName = "default",
    policy: FamilyName = "auto",
    clone: Clone = False,
    features: FeaturesName = None,
    stages: StageRange = None,
    world: WorldFile = None,
    hierarchy: Annotated[
        bool,
        Option("--hierarchy", help="Learners resemble each other: a mean, a spread, each one's."),
    ] = False,
    own_worlds: OwnWorlds = False,
    out: Annotated[Path | None, Option(help="Save the estimate as JSON.")] = None,
    device: Annotated[str, Option(help="Where to compute: cpu or cuda.")] = "cpu",
    seed: Seed = 0,
    workers: NumberOfWorkers = 1,
    ray: RayAddress = None,
    resume: Resume = False,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Recover reward weights from a recorded history, or from those of several learners."""
    from logel.data.history import LearningHistory

    if out is not None:
        check_target(out)
    learners = named_folders(histories_in(history) or history)
    loaded = {n: cut(LearningHistory.load(folder), stages) for n, folder in learners.items()}
    from logel.inference.arguments import common_gamma
    from logel.inference.infer import infer_group, infer_reward
    from logel.inference.replayed import replay_might_apply
    from logel.policies.choose import choose_common_policy

    family = choose_common_policy(loaded, policy, known=not clone, device=device)
    options: dict[str, Any] = {
        "gamma": common_gamma(loaded, gamma),
        "method": method,
        "features": named_features(features),
        "use_parameters": not clone,
        "seed": seed,
        "pool_world": not own_worlds,
        "world": None if world is None else known_world(world, family),
        "workers": workers_of(workers, ray, resume=resume),
    }
    with progress_bars(quiet or json_output, verbose=verbose) as report:
        if hierarchy:
            found: Any = infer_group(loaded, family, progress=report, **options)
        else:
            every = next(iter(loaded.values())) if len(loaded) == 1 else loaded
            found = infer_reward(every, family, progress=report, **options)
    save_and_show(found, out, json_output=json_output)
    first = next(iter(loaded.values()))
    if method == "default" and not (clone or json_output) and replay_might_apply(first, family):
        typer.echo(_ASK, err=True)


def unexplained(
    history: Annotated[
        Any,
        Argument(
            metavar="HISTORY",
            parser=history_at,
            help="Folder or address of the history behind the estimate.",
        ),
    ],
    estimate: Annotated[Path, Argument(help="The estimate, as saved by logel infer --out.")],
    policy: FamilyName = "auto",
    clone: Clone = False,
    features: FeaturesName = None,
    stages: StageRange = None,
    world: WorldFile = None,
    out: Annotated[
        Path | None, Option(help="Save what was found as JSON, for logel report --unexplained.")
    ] = None,
    device: Annotated[str, Option(help="Where to compute: cpu or cuda.")] = "cpu",
    workers: NumberOfWorkers = 1,
    ray: RayAddress = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Look for a reward that no named feature explains: is there any, and where does it pay?"""
    from logel.data.history import LearningHistory
    from logel.inference.estimate import RewardEstimate
    from logel.policies.choose import choose_common_policy

    if out is not None:
        check_target(out)
    found = RewardEstimate.load(estimate)
    loaded = cut(LearningHistory.load(history), stages)
    family = choose_common_policy({"history": loaded}, policy, known=not clone, device=device)
    with progress_bars(quiet or json_output, verbose=verbose) as report:
        answer = found.unexplained(
            loaded,
            family,
            features=named_features(features),
            use_parameters=not clone,
            world=None if world is None else known_world(world, family),
            progress=report,
            workers=workers_of(workers, ray),
        )
    save_and_show(answer, out, json_output=json_output)


def known_world(path: Path, family: Policy) -> KnownWorld:
    """A world out of a file, for a policy that sees numbered states."""
    from logel.policies.softmax import TabularSoftmax
    from logel.worlds.world_files import read_world

    if not isinstance(family, TabularSoftmax):
        raise OptionError("--world needs numbered states: leave it out, or pass --policy tabular")
    return read_world(path, family.n_states, family.n_actions)


def histories_in(paths: Sequence[Path | str]) -> list[Path | str]:
    """The places given, or the folders inside the only one if it is no history itself."""
    from logel.data.folder import MANIFEST

    one = paths[0]
    if (
        len(paths) == 1
        and isinstance(one, Path)
        and one.is_dir()
        and not (one / MANIFEST).is_file()
    ):
        return sorted(path.parent for path in one.glob(f"*/{MANIFEST}"))
    return list(paths)


def named_folders(folders: Sequence[Path | str]) -> dict[str, Any]:
    """Histories by the shortest names of their places that tell them apart."""
    last = [PurePosixPath(f).name if isinstance(f, str) else f.name for f in folders]
    names = last if len(set(last)) == len(last) else [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise OptionError("one is named twice: nothing counts for two")
    return dict(zip(names, folders, strict=True))


def check_target(out: Path) -> None:
    """An inference may take hours: say before it that its answer cannot be saved."""
    if not out.parent.is_dir():
        raise OptionError(f"cannot save the estimate: there is no folder {out.parent}")
    if out.is_dir():
        raise OptionError(f"cannot save the estimate: {out} is a folder; name a file")


def report(
    run: Annotated[
        list[Path],
        Argument(
            metavar="RUN_OR_ESTIMATE...",
            help="What `logel infer` or `compare` saved, or a folder of `logel reproduce`; several "
            "estimates: side by side.",
        ),
    ],
    history: Annotated[
        Any,
        Option(
            metavar="HISTORY",
            parser=history_at,
            help="Folder or address of the history behind the estimate: adds stages and maps.",
        ),
    ] = None,
    out: Annotated[Path, Option(help="The page to write.")] = Path("report.html"),
    stages: StageRange = None,
    checks: Annotated[
        Path | None, Option(help="What `logel check` saved: adds a section on the controls.")
    ] = None,
    picture: Annotated[Path | None, Option(help="A PNG of the reward to show as it is.")] = None,
    unexplained: Annotated[
        Path | None, Option(help="What `logel unexplained` saved about the estimate.")
    ] = None,
    open_page: Annotated[bool, Option("--open", help="Show it in the browser.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page, readable offline, about an estimate or a study."""
    from logel.data.history import LearningHistory
    from logel.inference.check import EstimateChecks
    from logel.inference.unexplained import Unexplained
    from logel.report.page import write_report

    result = _reported(run, alone=not any((history, picture, checks, unexplained)))
    loaded = None if history is None else cut(LearningHistory.load(history), stages)
    drawn = None if picture is None else picture.read_bytes()
    checked = None if checks is None else EstimateChecks.load(checks)
    with progress_bars(quiet or json_output) as told:
        if loaded is not None:
            loaded = read_with_progress(loaded, told)
        hidden = None if unexplained is None else Unexplained.load(unexplained)
        page = write_report(
            result, out, history=loaded, picture=drawn, checks=checked, unexplained=hidden
        )
    size = page.stat().st_size
    sentence = f"wrote {page} ({size / 1e3:.0f} kB)"
    answer({"report": str(page), "bytes": size}, sentence, json_output=json_output)
    if open_page:
        webbrowser.open(page.resolve().as_uri())


def _reported(paths: Sequence[Path], *, alone: bool) -> Path | dict[str, RewardEstimate]:
    """One path, or several saved estimates by the shortest names that tell them apart."""
    from logel.inference.estimate import RewardEstimate

    for path in paths:
        if not path.exists():
            raise OptionError(f"there is no estimate and no study at {path}")
    if len(paths) == 1:
        return paths[0]
    if not alone:
        raise OptionError("several estimates are compared without a history, checks or picture")
    named = {name.removesuffix(".json"): path for name, path in named_folders(paths).items()}
    return {name: RewardEstimate.load(path) for name, path in named.items()}


def train(
    estimate: Annotated[Path, Option(help="The estimate, as saved by logel infer --out.")],
    env: Annotated[str, Option(help="Gymnasium name of the environment.")],
    features: FeaturesName = None,
    init: Annotated[
        Path | None, Option(help="History whose first policy is the agent's first.")
    ] = None,
    updates: Annotated[int, Option(help="Updates of PPO.")] = 30,
    out: Annotated[Path, Option(help="New folder: curve, summary, model.")] = Path("trained"),
    tensorboard: Annotated[Path | None, Option(help="Folder of TensorBoard's scalars.")] = None,
    seed: Seed = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a PPO agent on a recovered reward; measure it by the environment's own."""
    from logel.data.history import LearningHistory
    from logel.inference.estimate import RewardEstimate
    from logel.learners.train import train_on_estimate

    reward = RewardEstimate.load(estimate)
    initial = None
    if init is not None:
        initial = LearningHistory.load(init)[0].parameters
        if initial is None:
            raise OptionError(f"{init} does not hold the policies' parameters: leave out --init")
    # Batches of PPO are too small to gain from threads, and lose much on a busy machine.
    with limited_threads(), progress_bars(quiet or json_output, verbose=verbose) as report:
        summary = train_on_estimate(
            reward,
            env,
            out=out,
            updates=updates,
            seed=seed,
            initial=initial,
            features=named_features(features),
            tensorboard=tensorboard,
            progress=report,
        )
    if not reward.verdict.shown:
        typer.echo(printed([f"the reward is {reward.verdict}"]), err=True)
    if json_output:
        typer.echo(json.dumps(summary, indent=1))
        return
    returns = [value for value in summary["returns"] if value is not None] or [float("nan")]
    typer.echo(
        f"true return in {env}: {returns[0]:.1f} at first, {returns[-1]:.1f} after "
        f"{updates - 1} updates, at best {max(returns):.1f}\ncurve, summary and model: {out}"
    )
