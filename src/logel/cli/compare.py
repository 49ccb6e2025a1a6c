"""`logel compare`: how the rewards of two groups of learners differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option
from typer.core import TyperCommand

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
    Seed,
    StageRange,
    Verbose,
    WorldFile,
    cut,
    history_at,
    progress_bars,
    save_and_show,
)
from logel.cli.features import FeaturesName, named_features
from logel.cli.reward import check_target, histories_in, known_world, named_folders
from logel.errors import OptionError

if TYPE_CHECKING:
    from logel.inference.contrast import Contrast

# Between the values of one `--group`: no path has it.
_BETWEEN = "\0"
_Place = Path | str


class GroupsCommand(TyperCommand):
    """A command whose option `--group` takes as many values as follow it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Values of a group become one."""
        return super().parse_args(ctx, gathered(args))


def gathered(arguments: Sequence[str]) -> list[str]:
    """Arguments with the values behind each `--group` put into one."""
    result: list[str] = []
    inside = False
    for argument in arguments:
        if argument == "--group":
            inside = True
            result += [argument, ""]
        elif inside and not argument.startswith("-"):
            result[-1] += (_BETWEEN if result[-1] else "") + argument
        else:
            inside = False
            result.append(argument)
    return result


def compare(
    group: Annotated[
        list[str],
        Option(
            metavar="HISTORY...",
            help="Folders of a group's histories, a folder that holds them, or a saved estimate of "
            "the group; given twice.",
        ),
    ],
    name: Annotated[
        list[str] | None, Option(help="What a group is called; given twice, in their order.")
    ] = None,
    gamma: Discount = None,
    method: MethodName = "default",
    policy: FamilyName = "auto",
    clone: Clone = False,
    features: FeaturesName = None,
    stages: StageRange = None,
    world: WorldFile = None,
    own_worlds: OwnWorlds = False,
    out: Annotated[Path | None, Option(help="Save the contrast as JSON.")] = None,
    seed: Seed = 0,
    workers: NumberOfWorkers = 1,
    ray: RayAddress = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say how the rewards of two groups of learners differ, feature by feature."""
    if len(group) != 2:
        raise OptionError(
            f"two groups are compared, but there are {len(group)}: pass --group twice"
        )
    if out is not None:
        check_target(out)
    paths = [[history_at(value) for value in one.split(_BETWEEN) if value] for one in group]
    names = _names(name, paths)
    saved = [_is_saved(one) for one in paths]
    if any(saved) and not all(saved):
        raise OptionError("one group is a saved estimate, the other is not: infer both, or none")
    if all(saved):
        contrast = _of_saved(paths, names, seed)
    else:
        from logel.workers import Workers

        with progress_bars(quiet or json_output, verbose=verbose) as report:
            contrast = _of_histories(
                paths,
                names,
                (gamma, policy, clone, world, stages),
                method=method,
                features=named_features(features),
                use_parameters=not clone,
                seed=seed,
                pool_world=not own_worlds,
                progress=report,
                workers=Workers(workers, ray),
            )
    save_and_show(contrast, out, json_output=json_output)


def _is_saved(paths: Sequence[_Place]) -> bool:
    return len(paths) == 1 and isinstance(paths[0], Path) and paths[0].is_file()


def _of_saved(paths: Sequence[Sequence[_Place]], names: tuple[str, str], seed: int) -> Contrast:
    from logel.inference.answers import load_answer
    from logel.inference.contrast import Contrast

    first, second = (load_answer(one[0]) for one in paths)
    if isinstance(first, Contrast) or isinstance(second, Contrast):
        raise OptionError("a contrast is not a group: pass the estimates that were compared")
    return Contrast.of(first, second, names=names, seed=seed)


def _of_histories(
    paths: Sequence[Sequence[_Place]],
    names: tuple[str, str],
    asked: tuple[float | None, str, bool, Path | None, str | None],
    **options: Any,
) -> Contrast:
    from logel.data.history import LearningHistory
    from logel.inference.arguments import common_gamma
    from logel.inference.infer import compare_groups
    from logel.policies.choose import choose_common_policy

    gamma, family, clone, world, stages = asked
    groups = [named_folders(_histories(one, name)) for one, name in zip(paths, names, strict=True)]
    first, second = (
        {n: cut(LearningHistory.load(p), stages) for n, p in one.items()} for one in groups
    )
    everyone = {
        str(p): h
        for one, loaded in zip(groups, (first, second), strict=True)
        for p, h in zip(one.values(), loaded.values(), strict=True)
    }
    discount = common_gamma(everyone, gamma)
    policy = choose_common_policy(everyone, family, known=not clone)
    options["world"] = None if world is None else known_world(world, policy)
    return compare_groups(first, second, policy, gamma=discount, names=names, **options)


def _histories(paths: Sequence[_Place], name: str) -> list[_Place]:
    """The folders given, or those inside the only one if it is no history itself."""
    found = histories_in(paths)
    if len(found) < 2:
        raise OptionError(f"{name} has {len(found)} histories: a group needs at least two learners")
    return found


def _names(given: Sequence[str] | None, paths: Sequence[Sequence[_Place]]) -> tuple[str, str]:
    """As given, else the folder that holds the group, or its file; else numbers."""
    if given:
        if len(given) != 2 or given[0] == given[1]:
            raise OptionError(f"two groups need two different names, not {', '.join(given)}")
        return given[0], given[1]
    first, second = (_name(one) or f"group {i + 1}" for i, one in enumerate(paths))
    return ("group 1", "group 2") if first == second else (first, second)


def _name(paths: Sequence[_Place]) -> str:
    """What a group's files tell; empty, if nothing."""
    if len(paths) == 1:
        return Path(paths[0]).stem
    # Of an address, too, the last names but one are what groups are called by.
    above = {Path(path).resolve().parent.name for path in paths}
    return above.pop() if len(above) == 1 else ""
