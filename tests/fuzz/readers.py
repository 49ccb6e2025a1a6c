"""Every reader of files from strangers: a sound example, and how all of it is read."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.numpy
import torch
from tests.estimates import example

from logel.baselines.networks import Network
from logel.baselines.trex import TrexReward
from logel.data.folder import STAGES, recorded_versions
from logel.data.history import LearningHistory
from logel.data.inspection import inspect_history
from logel.data.settings import LearnerSettings
from logel.data.stage import Episode
from logel.errors import FormatError
from logel.inference.answers import load_answer
from logel.inference.check import Control, EstimateChecks
from logel.inference.contrast import Contrast
from logel.inference.controls import Variant
from logel.inference.estimate import RewardEstimate
from logel.inference.group import GroupEstimate
from logel.inference.unexplained import Unexplained
from logel.learners.checkpoints import read_normaliser
from logel.policies.choose import choose_policy
from logel.policies.sb3 import SB3Policy, checkpoint_parameters
from logel.policies.sb3_checkpoint import recorded_gamma
from logel.policies.sb3_settings import checkpoint_settings
from logel.report.page_unexplained import unexplained_parts
from logel.report.study_page import find_studies, read_study, study_page
from logel.studies.run.files import load_result, save_outcome
from logel.studies.run.tasks import Task
from logel.worlds.world_files import read_world

TASK, MADE_BY = Task("study", {"x": 1}, 0), {"function": "f", "config": {}}


@dataclass(frozen=True)
class Reader:
    """A kind of file: `make` writes a sound example into a folder, `read` reads all of it."""

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]


def small_history() -> LearningHistory:
    rng = np.random.default_rng(0)
    stages = [
        [Episode(rng.integers(0, 3, 4), rng.integers(0, 2, 3), rng.normal(size=(3, 2)))]
        for _ in range(3)
    ]
    return LearningHistory.from_episodes(
        stages,
        parameters=np.zeros((3, 3)),
        learning_rates=[0.1, 0.2],
        feature_names=["near", "far"],
        metadata={"gamma": 0.9, "n_states": 3, "policy": {"hidden": [4]}},
    )


def made_history(folder: Path) -> None:
    small_history().save(folder / "h")


def made_old_history(folder: Path) -> None:
    small_history().save(folder / "h")
    lines = [json.loads(line) for line in (folder / "h" / STAGES).read_text().splitlines()]
    manifest = json.loads((folder / "h" / "manifest.json").read_text())
    manifest |= {"format_version": 1, "stages": lines[:-1], "complete": True}
    (folder / "h" / "manifest.json").write_text(json.dumps(manifest))
    (folder / "h" / STAGES).unlink()


def read_history(folder: Path) -> None:
    history = LearningHistory.load(folder / "h")
    recorded_versions(folder / "h")
    inspect_history(history)
    history.parameters()
    LearnerSettings.of(history)
    choose_policy(history, "auto", known=False)
    assert repr(history)


def signed_again(folder: Path) -> None:
    """Make the lines agree with stages that were changed, so that these are read at all."""
    path = folder / "h" / STAGES
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[:-1]:
        data = (folder / "h" / line["file"]).read_bytes()
        line |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def made_estimate(folder: Path) -> None:
    example(draws=np.random.default_rng(0).normal(size=(5, 3))).save(folder / "e.json")


def made_contrast(folder: Path) -> None:
    draws = np.random.default_rng(0).normal(size=(5, 3))
    Contrast.of(example(draws=draws), example(draws=-draws), names=("a", "b"), seed=0).save(
        folder / "e.json"
    )


def made_bare_estimate(folder: Path) -> None:
    """Without draws intervals come from a covariance."""
    example().save(folder / "e.json")


def made_group(folder: Path) -> None:
    rng = np.random.default_rng(0)
    one, two = (example(draws=rng.normal(size=(5, 3))) for _ in range(2))
    GroupEstimate(one, {"a": one, "b": two}, np.array([0.1, 0.2, 0.3])).save(folder / "e.json")


def made_unexplained(folder: Path) -> None:
    """What nobody named, on a plane of two elements and an action."""
    Unexplained(
        gain=5.0,
        names=("here", "there", "action 1"),
        centres=np.array([[0.0, 1.0], [1.0, 0.5], [np.nan, np.nan]]),
        discrete=False,
        shares=np.array([0.7, 0.2, 0.1]),
        amounts=np.array([1.0, -0.5, 0.1]),
        errors=np.array([0.1, 0.2, 0.3]),
        feature_names=("speed",),
        alike=np.array([0.3]),
        correlations=np.array([-0.2]),
        entangled=0.5,
        rule="replay",
    ).save(folder / "u.json")


def read_unexplained(folder: Path) -> None:
    """Read, said, and drawn."""
    found = Unexplained.load(folder / "u.json")
    found.summary()
    unexplained_parts(found)


def made_checks(folder: Path) -> None:
    w = np.array([0.8, -0.6, 0.0])
    variant = Variant("so", "", w, w - 0.1, w + 0.1, 3.0)
    controls = tuple(Control(kind, (variant, variant)) for kind in ("gammas", "shuffled"))
    EstimateChecks(example(), controls).save(folder / "c.json")


def read_checks(folder: Path) -> None:
    found = EstimateChecks.load(folder / "c.json")
    assert found.summary() and found.to_json()


def read_estimate(folder: Path) -> None:
    found = load_answer(folder / "e.json")
    assert found.summary() and found.to_json() and repr(found)
    if isinstance(found, RewardEstimate):
        found.probability_positive()
        found.expected_widths(2.0)
        assert found._repr_html_()


def made_tables(folder: Path, suffix: str) -> None:
    history = small_history()
    second = history.stages_to_dataframe()
    assert second is not None
    frames: dict[str, pd.DataFrame] = {"steps": history.to_dataframe(), "stages": second}
    for name, frame in frames.items():
        path = folder / f"{name}.{suffix}"
        if suffix == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path, index=False)


def read_csv(folder: Path) -> None:
    LearningHistory.from_csv(folder / "steps.csv", stages=folder / "stages.csv")


def read_own_csv(folder: Path) -> None:
    LearningHistory.from_csv(folder / "steps.csv")


def read_parquet(folder: Path) -> None:
    LearningHistory.from_parquet(folder / "steps.parquet", stages=folder / "stages.parquet")


def read_minari(folder: Path) -> None:
    LearningHistory.from_minari(sorted((folder / "d").iterdir()))


def made_checkpoint(folder: Path) -> None:
    def tensors(**content: object) -> bytes:
        buffer = io.BytesIO()
        torch.save(OrderedDict(content), buffer)
        return buffer.getvalue()

    widths = {"mlp_extractor.policy_net.0": (4, 3), "mlp_extractor.policy_net.2": (4, 4)}
    widths |= {"action_net": (2, 4), "mlp_extractor.value_net.0": (4, 3), "value_net": (1, 4)}
    layers = {f"{name}.weight": torch.ones(shape) for name, shape in widths.items()}
    layers |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in widths.items()}
    group = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-5, "params": [0]}
    facts = {"gamma": 0.9, "n_steps": 8, "action_space": {":type:": "<class 'x.Discrete'>"}}
    with zipfile.ZipFile(folder / "model.zip", "w") as archive:
        archive.writestr("data", json.dumps(facts))
        archive.writestr("policy.pth", tensors(**layers))
        archive.writestr("policy.optimizer.pth", tensors(state={}, param_groups=[group]))
    statistics = {"observation_mean": [0.0] * 3, "observation_var": [1.0] * 3}
    (folder / "model.json").write_text(json.dumps(statistics))


def read_checkpoint_files(folder: Path) -> None:
    path = folder / "model.zip"
    recorded_gamma(path)
    checkpoint_settings(path)
    checkpoint_parameters(path)
    SB3Policy.from_checkpoint(path)
    read_normaliser(folder / "model.json", (3,))


def made_reward(folder: Path) -> None:
    net = Network((np.ones((4, 3)), np.ones((1, 4))), (np.zeros(4), np.zeros(1)), "tanh")
    TrexReward((net,), False, 0.9).save(folder / "r.safetensors")


def made_study(folder: Path) -> None:
    claims = [{"name": "n", "verdict": "holds", "measured": 1.0, "target": "x", "note": None}]
    (folder / "claims.json").write_text(json.dumps(claims))
    (folder / "made-by.json").write_text(json.dumps({"study": "s", "runs": 3, "packages": {}}))
    (folder / "summary.md").write_text("# s\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")


def read_study_folder(folder: Path) -> None:
    for found in find_studies(folder):
        read_study(found)
    assert study_page([folder])


def made_task(folder: Path) -> None:
    save_outcome(folder, TASK, outcome=[{"value": 1.0, "note": "x"}], made_by=MADE_BY)


def made_world(folder: Path) -> None:
    np.savez(folder / "w.npz", successors=np.zeros((3, 2), dtype=int), terminal=np.array([2]))
    moves = "state,action,next_state,probability\n0,0,1,1.0\n1,1,,0.5\n1,1,2,0.5\n"
    (folder / "w.csv").write_text(moves)


def read_worlds(folder: Path) -> None:
    for name in ("w.npz", "w.csv"):
        if not (folder / name).exists():
            raise FormatError("a file was taken away")
        read_world(folder / name, 3, 2)


READERS = (
    Reader("history", made_history, read_history),
    Reader("history, signed", made_history, read_history),
    Reader("history, version 1", made_old_history, read_history),
    Reader("estimate", made_estimate, read_estimate),
    Reader("contrast", made_contrast, read_estimate),
    Reader("check", made_checks, read_checks),
    Reader("unexplained", made_unexplained, read_unexplained),
    Reader("CSV", lambda folder: made_tables(folder, "csv"), read_csv),
    Reader("Parquet", lambda folder: made_tables(folder, "parquet"), read_parquet),
    Reader("Minari", lambda folder: small_history().slice(1).to_minari(folder / "d"), read_minari),
    Reader("checkpoint", made_checkpoint, read_checkpoint_files),
    Reader("reward", made_reward, lambda folder: TrexReward.load(folder / "r.safetensors")),
    Reader("study folder", made_study, read_study_folder),
    Reader("task file", made_task, lambda f: load_result(f, TASK, made_by=MADE_BY)),
    Reader("world", made_world, read_worlds),
    Reader("group", made_group, read_estimate),
    Reader("estimate, no draws", made_bare_estimate, read_estimate),
    Reader("CSV, ours", lambda f: small_history().to_csv(f / "steps.csv"), read_own_csv),
)
# Stages whose arrays were changed, behind a right signature.
SIGNED = "history, signed"


def changed_stage(data: bytes, rng: np.random.Generator) -> bytes:
    """The arrays of a stage with one of them bent, retyped, reshaped, renamed or left out."""
    arrays = dict(safetensors.numpy.load(data))
    name = str(rng.choice(sorted(arrays)))
    array = arrays.pop(name).copy()
    match int(rng.integers(6)):
        case 0 if array.size:
            extremes = [0, -1, 2**62, -(2**63), 2**31]
            wild = [np.nan, np.inf, 1e308, -1e-308]
            picked = extremes if array.dtype.kind in "iu" else wild
            if array.dtype.kind != "b":
                array.reshape(-1)[rng.integers(array.size)] = picked[rng.integers(len(picked))]
        case 1:
            kinds = ["i1", "u1", "i4", "f2", "f4", "f8", "u8", "?"]
            with np.errstate(all="ignore"):
                array = array.astype(kinds[rng.integers(len(kinds))])
        case 2:
            array = array.reshape(1, *array.shape)
        case 3:
            array = np.concatenate([array, array])
        case 4:
            array = array[:0]
        case _:
            name = str(rng.choice(["parameters", "evil", "", "actions", "\x1b[2J"]))
    return safetensors.numpy.save({**arrays, name: np.ascontiguousarray(array)})
