"""The `logel` command. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from logel.cli.console import (
    Commands,
    JsonOption,
    QuietOption,
    SeedOption,
    Stopped,
    VerboseOption,
    options_of_all,
)
from logel.cli.console import progress_bars as _progress
from logel.cli.data import register_data_commands
from logel.cli.record import record as record_command
from logel.cli.report import report as report_command
from logel.errors import LogelError, OptionError

if TYPE_CHECKING:
    from logel.data.history import LearningHistory
    from logel.policies.base import Policy

app = typer.Typer(
    cls=Commands,
    callback=options_of_all,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
record_app = typer.Typer(callback=record_command, invoke_without_command=True, no_args_is_help=True)
app.add_typer(record_app, name="record")
app.command("report")(report_command)


def main() -> None:
    """Run the command line; a mistake of the user costs one sentence and exit code 2."""
    try:
        app(prog_name="logel")
    except LogelError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {_escape(str(error))}")
        sys.exit(2)
    except OSError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {_escape(str(error))}")
        sys.exit(2)
    except Stopped as stop:
        Console(stderr=True, soft_wrap=True).print(_escape(str(stop)), highlight=False)
        sys.exit(130)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to save the picture.")] = Path("demo.png"),
    steps: Annotated[int, typer.Option(help="Updates of the learner to watch.")] = 30,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """A learner learns in the gridworld; watching only its trajectories, recover its reward."""
    from logel.studies.plots import picture_format, require_matplotlib, save_figure

    require_matplotlib()
    picture_format(out)
    from logel.studies.demo import demo_figure, run_demo

    with _progress(quiet or json_output) as report:
        result = run_demo(n_steps=steps, seed=seed, progress=report)
    save_figure(demo_figure(result), out)
    if json_output:
        typer.echo(json.dumps({**result.to_dict(), "picture": str(out)}, indent=1))
        return
    console = Console()
    table = Table(
        title=f"What the learner wants, after watching {steps} updates", title_justify="left"
    )
    for column in ("area", "true weight", "recovered", "95% interval"):
        table.add_column(column, justify="left" if column == "area" else "right")
    ends = result.estimate.interval(0.95)
    for name, true, found, (low, high) in zip(
        result.estimate.feature_names,
        result.true_weights,
        result.estimate.weights,
        ends,
        strict=True,
    ):
        table.add_row(name, f"{true:+.3f}", f"{found:+.3f}", f"[{low:+.3f}, {high:+.3f}]")
    console.print(table)
    console.print(
        f"Both scaled to unit length; only differences between areas can be seen.\n"
        f"Planning for the recovered reward earns {result.value:.3f} of at most "
        f"{result.best_value:.3f}; the learner itself had reached {result.learner_value:.3f}, "
        f"a uniform policy {result.uniform_value:.3f}.\nPicture: {out}"
    )


@record_app.command("gridworld")
def record_gridworld(
    out: Annotated[Path, typer.Argument(help="Folder of the new history.")],
    learner: Annotated[str, typer.Option(help="gpomdp, qlearning, spi or svi.")] = "gpomdp",
    steps: Annotated[int, typer.Option(help="Updates to record.")] = 30,
    episodes: Annotated[int, typer.Option(help="Episodes per stage.")] = 50,
    horizon: Annotated[int, typer.Option(help="Length of an episode.")] = 20,
    weights: Annotated[
        str, typer.Option(help="Reward: code, paper-text, or name=value,name=value,...")
    ] = "code",
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Text file with a map of characters.")
    ] = None,
    parameters: Annotated[bool, typer.Option(help="Also record the policies' parameters.")] = False,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Record a learner in the paper's gridworld, or in one of your own."""
    from logel.envs.gridworld import grid_weights, gridworld_mdp, parse_weights
    from logel.learners.tabular import LEARNERS, observe

    if learner not in LEARNERS:
        raise OptionError(f"unknown learner {learner!r}: choose one of {', '.join(LEARNERS)}")
    mdp = gridworld_mdp(read_map(map_file))
    with _progress(quiet or json_output, verbose=verbose) as report:
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
        history.save(out, progress=report)
    if json_output:
        made = {"history": str(out), "stages": len(history), "episodes_per_stage": episodes}
        typer.echo(json.dumps(made))
    else:
        typer.echo(f"recorded {len(history)} stages of {episodes} episodes in {out}")


@app.command()
def infer(
    history: Annotated[Path, typer.Argument(help="Folder of a learning history.")],
    gamma: Annotated[
        float | None, typer.Option(help="Discount factor; by default the one in the history.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="default, joint, two-step, mirror, paper or authors.")
    ] = "default",
    policy: Annotated[
        str, typer.Option(help="auto, tabular, linear or mlp: the family of the policies.")
    ] = "auto",
    clone: Annotated[
        bool, typer.Option("--clone", help="Clone even if the parameters are recorded.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Save the estimate as JSON.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu or cuda.")] = "cpu",
    seed: SeedOption = 0,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Recover reward weights from a recorded history."""
    from logel.data.history import LearningHistory

    if out is not None and not out.parent.is_dir():
        raise OptionError(f"cannot save the estimate: there is no folder {out.parent}")
    if out is not None and out.is_dir():
        raise OptionError(f"cannot save the estimate: {out} is a folder; name a file")
    loaded = LearningHistory.load(history)
    discount = loaded.metadata.get("gamma") if gamma is None else gamma
    if not isinstance(discount, int | float):
        raise OptionError("the history does not say the discount factor: pass --gamma")
    from logel.inference.infer import infer_reward

    with _progress(quiet or json_output, verbose=verbose) as report:
        estimate = infer_reward(
            loaded,
            choose_policy(loaded, policy, device=device),
            gamma=float(discount),
            method=method,
            use_parameters=not clone,
            seed=seed,
            progress=report,
        )
    if out is not None:
        estimate.save(out)
    typer.echo(estimate.to_json() if json_output else estimate.summary())


@app.command()
def train(
    estimate: Annotated[Path, typer.Option(help="The estimate, as saved by logel infer --out.")],
    env: Annotated[str, typer.Option(help="Environment: CartPole-v1, Hopper-v5 or Reacher-v5.")],
    init: Annotated[
        Path | None, typer.Option(help="History whose first policy is the agent's first.")
    ] = None,
    updates: Annotated[int, typer.Option(help="Updates of PPO.")] = 30,
    out: Annotated[Path, typer.Option(help="New folder: curve, summary, model.")] = Path("trained"),
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder of TensorBoard's scalars.")
    ] = None,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Train a PPO agent on a recovered reward; measure it by the environment's own."""
    from logel.data.history import LearningHistory
    from logel.inference.estimate import RewardEstimate
    from logel.learners.observing import train_observer

    reward = RewardEstimate.load(estimate)
    initial = None
    if init is not None:
        initial = LearningHistory.load(init)[0].parameters
        if initial is None:
            raise OptionError(f"{init} does not hold the policies' parameters: leave out --init")
    import torch

    torch.set_num_threads(1)
    with _progress(quiet or json_output, verbose=verbose) as report:
        summary = train_observer(
            reward,
            env,
            out=out,
            updates=updates,
            seed=seed,
            initial=initial,
            tensorboard=tensorboard,
            progress=report,
        )
    if json_output:
        typer.echo(json.dumps(summary, indent=1))
        return
    returns = [value for value in summary["returns"] if value is not None] or [float("nan")]
    typer.echo(
        f"true return in {env}: {returns[0]:.1f} at first, {returns[-1]:.1f} after "
        f"{updates - 1} updates, at best {max(returns):.1f}\ncurve, summary and model: {out}"
    )


@app.command()
def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="gridworld (-known, -learners, -curves), accuracy (-random, -paper, -known, "
            "-null, -coverage, -worlds, -bound, -jacobians), crossroad, or mujoco (hopper, "
            "reacher)."
        ),
    ],
    runs: Annotated[int, typer.Option(help="Number of seeds.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs"),
    observers: Annotated[
        str,
        typer.Option(help="Comma-separated: default, paper, authors, lfl, girl, trex, learner."),
    ] = "default,paper,authors,lfl,girl,trex,learner",
    weights: Annotated[
        str, typer.Option(help="True reward: code, paper-text, or name=value,name=value,...")
    ] = "code",
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Text file with a map of characters.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short version to try the pipeline (mujoco).")
    ] = False,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished", help="Compute nothing: report on what is done, even while others run."
        ),
    ] = False,
    backend: Annotated[str, typer.Option(help="joblib, or ray.")] = "joblib",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Reproduce a study of the paper: table, figure, claims. Stop it and run it again at will."""
    from logel.studies.claims import claims_table
    from logel.studies.registry import select
    from logel.studies.study import StudyOptions
    from logel.studies.study import reproduce as run_study

    chosen = select(study)
    options = StudyOptions(
        runs=runs,
        seed=seed,
        observers=tuple(name.strip() for name in observers.split(",")),
        weights=weights,
        map_text="" if map_file is None else "/".join(read_map(map_file).rows),
        quick=quick,
    )
    if backend not in ("joblib", "ray"):
        raise OptionError(f"backend must be joblib or ray, but is {backend!r}")
    console, failed, report = Console(), False, []
    for part in chosen:
        if not (quiet or json_output):
            console.print(f"[bold]{part.name}[/bold]")
        result = run_study(
            part,
            options,
            out=out,
            jobs=jobs,
            backend="ray" if backend == "ray" else "joblib",
            address=address,
            progress=not (quiet or json_output),
            finished=finished,
        )
        failed = failed or bool(result.run.failures)
        report.append(
            {
                "study": part.name,
                "folder": str(result.folder),
                "failures": [failure.error for failure in result.run.failures],
                "claims": [{**vars(c), "verdict": c.verdict} for c in result.claims],
            }
        )
        if not json_output:
            console.print(result.run.summary())
            console.print(claims_table(result.claims))
            console.print(f"Table, figure and claims: {result.folder}")
    if json_output:
        typer.echo(json.dumps(report, indent=1, default=str))
    if failed:
        raise typer.Exit(1)


@app.command("build-networks")
def build_networks(
    out: Annotated[Path, typer.Option(help="Folder of the networks.")] = Path("networks"),
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Build the crossroad's road networks again, with netconvert (pip install eclipse-sumo)."""
    from logel.envs.crossroad.network import N_ROADS, build_network, find_netconvert, network_path

    if find_netconvert() is not None:
        out.mkdir(parents=True, exist_ok=True)
    built: list[str] = []
    with _progress(quiet or json_output) as report:
        for n_roads in N_ROADS:
            path = out / network_path(n_roads).name
            build_network(n_roads, path)
            built.append(str(path))
            report("networks", len(built), len(N_ROADS))
    typer.echo(json.dumps(built) if json_output else f"built {', '.join(built)}")


register_data_commands(app)


def choose_policy(history: LearningHistory, family: str, *, device: str = "cpu") -> Policy:
    """A policy family that fits a history's observations and actions.

    `auto` takes tables for discrete observations and networks otherwise.
    """
    import numpy as np
    import torch

    from logel.policies.gaussian import LinearGaussian
    from logel.policies.networks import MLPCategorical, MLPGaussian
    from logel.policies.softmax import LinearSoftmax, TabularSoftmax

    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise OptionError(f"unknown device {device!r}: choose cpu or cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise OptionError("there is no CUDA device here: leave out --device")
    if family not in ("auto", "tabular", "linear", "mlp"):
        raise OptionError(f"unknown policy family {family!r}: auto, tabular, linear or mlp")
    signature = history.signature
    tabular = signature.discrete_observations and signature.observation_shape == ()
    if family == "auto":
        family = "tabular" if tabular and signature.discrete_actions else "mlp"
    width = int(np.prod(signature.observation_shape, dtype=int))
    if not signature.discrete_actions:
        action_dim = int(np.prod(signature.action_shape, dtype=int))
        if family == "tabular":
            raise OptionError("a tabular policy needs discrete actions: choose linear or mlp")
        if family == "linear":
            return LinearGaussian(width, action_dim, device=device)
        return MLPGaussian(width, action_dim, hidden=_hidden(history), device=device)
    n_actions = _count(history, "n_actions", "actions")
    if family == "tabular":
        return TabularSoftmax(_count(history, "n_states", "observations"), n_actions, device=device)
    if family == "linear":
        return LinearSoftmax(width, n_actions, device=device)
    return MLPCategorical(width, n_actions, hidden=_hidden(history), device=device)


def _hidden(history: LearningHistory) -> tuple[int, ...]:
    """Widths of the hidden layers: as the recorder noted them, else those of the paper."""
    policy = history.metadata.get("policy")
    hidden = policy.get("hidden") if isinstance(policy, dict) else None
    if not isinstance(hidden, list) or not all(type(w) is int and 0 < w < 10**5 for w in hidden):
        return (64, 64)
    # Metadata may claim a network that no memory holds.
    between = sum(a * b for a, b in itertools.pairwise(hidden))
    return tuple(hidden) if between <= 10**8 and len(hidden) <= 100 else (64, 64)


def _count(history: LearningHistory, key: str, column: str) -> int:
    """Number of states or actions: as recorded, else one more than the largest seen."""
    recorded = history.metadata.get(key)
    if isinstance(recorded, int) and recorded > 1:
        return recorded
    return max(2, 1 + max(int(getattr(stage, column).max()) for stage in history))


def read_map(path: Path | None) -> Any:
    """The default map, or one from a text file."""
    from logel.envs.gridworld import GridMap

    if path is None:
        return GridMap.parse()
    try:
        return GridMap.parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the map {path}: {error}") from None


if __name__ == "__main__":
    main()
