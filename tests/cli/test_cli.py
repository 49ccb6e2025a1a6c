import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import logel
from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.policies.softmax import TabularSoftmax

PYTHON = [sys.executable, "-m", "logel"]


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, in a process of its own."""
    return subprocess.run(
        [*PYTHON, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "history"
    done = logel("record", "gridworld", path, "--learner", "svi", "--steps", 3, "--seed", 1)
    assert done.returncode == 0, done.stderr
    return path


def test_help_answers_within_a_second() -> None:
    spent = 1.0
    for _ in range(3):
        # Processor time of the child: others on the machine do not count, or hardly.
        before = os.times()
        assert process("--help").returncode == 0
        after = os.times()
        spent = after.children_user - before.children_user
        spent += after.children_system - before.children_system
        if spent < 1.0:
            break
    assert spent < 1.0


def test_record_writes_a_history_that_infer_reads(recorded: Path, tmp_path: Path) -> None:
    history = LearningHistory.load(recorded)
    assert len(history) == 4 and history.complete
    out = tmp_path / "estimate.json"
    done = logel("infer", recorded, "--method", "paper", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "goal" in done.stdout and "95% interval" in done.stdout
    saved = RewardEstimate.load(out)
    printed = logel("infer", recorded, "--method", "paper", "--json").stdout
    np.testing.assert_array_equal(RewardEstimate.from_json(printed).weights, saved.weights)


def test_infer_clones_or_uses_recorded_parameters(tmp_path: Path) -> None:
    path = tmp_path / "known"
    logel("record", "gridworld", path, "--steps", 2, "--parameters", "--episodes", 10)
    known = RewardEstimate.from_json(logel("infer", path, "--json").stdout)
    cloned = RewardEstimate.from_json(logel("infer", path, "--json", "--clone").stdout)
    assert "known parameters" in known.method and "cloned" in cloned.method


def walks(*, terminated: bool) -> LearningHistory:
    """A walker on states 0, 1, 2 whose episodes end on reaching 3, which it never acts in."""
    rng = np.random.default_rng(0)
    stages: list[list[Episode]] = []
    for t in range(2):
        stages.append([])
        for _ in range(20):
            states, actions = [0], []
            while states[-1] < 3 and len(actions) < 12:
                actions.append(int(rng.random() < 0.3 + 0.3 * t))
                states.append(max(0, states[-1] + 2 * actions[-1] - 1))
            features = np.eye(4)[states[1:], 1:]
            ended = terminated and states[-1] == 3
            stages[-1].append(Episode(np.array(states), np.array(actions), features, ended))
    return LearningHistory.from_episodes(stages, metadata={"gamma": 0.9})


@pytest.mark.parametrize(("terminated", "n_states"), [(False, 4), (True, 3)])
def test_states_that_are_only_arrived_in_count_if_the_learner_would_go_on(
    terminated: bool, n_states: int, tmp_path: Path
) -> None:
    history = walks(terminated=terminated)
    assert max(int(stage.observations.max()) for stage in history) == 2
    history.save(tmp_path / "history")
    done = logel("infer", tmp_path / "history", "--json")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout
        == infer_reward(history, TabularSoftmax(n_states, 2), gamma=0.9).to_json() + "\n"
    )


def test_messages_quote_names_to_the_letter(tmp_path: Path) -> None:
    arguments = ["--checkpoints", tmp_path, "--env", "CartPole-v1", "--out", tmp_path / "new"]
    done = logel("record", *arguments, "--features", "[red]no:b")
    assert done.returncode == 2 and "cannot load the features [red]no:b: " in done.stderr


def test_demo_prints_json_and_saves_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    done = logel("demo", "--out", picture, "--steps", 5, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["recovered_weights"]) == {"light", "orange", "dark", "blue", "goal"}
    assert result["best_value"] == pytest.approx(3.189, abs=1e-3)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def bad_histories(folder: Path) -> dict[str, tuple[list[object], str]]:
    """Arguments that must fail, and what the sentence must mention."""
    rng = np.random.default_rng(0)

    def episodes(n: int = 3, action: int | None = None) -> list[Episode]:
        actions = rng.integers(4, size=(n, 5)) if action is None else np.full((n, 5), action)
        return [Episode(rng.integers(25, size=6), actions[i], rng.random((5, 2))) for i in range(n)]

    meta = {"gamma": 0.9, "n_states": 25, "n_actions": 4}
    one = LearningHistory.from_episodes([episodes()], metadata=meta)
    one.save(folder / "one-stage")
    theta = np.zeros((2, 75))
    still = LearningHistory.from_episodes([episodes(), episodes()], parameters=theta, metadata=meta)
    still.save(folder / "still")
    outside = LearningHistory.from_episodes([episodes(), episodes(action=7)], metadata=meta)
    outside.save(folder / "outside")
    good = LearningHistory.from_episodes([episodes(), episodes()], metadata=meta)
    good.save(folder / "good")
    good.save(folder / "corrupt")
    stage = folder / "corrupt" / "stage-00001.safetensors"
    stage.write_bytes(stage.read_bytes()[:-9])
    good.save(folder / "newer")
    manifest = folder / "newer" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 2', '"format_version": 99'))
    unnamed = LearningHistory.from_episodes([episodes(), episodes()])
    unnamed.save(folder / "no-gamma")
    (folder / "empty").mkdir()
    return {
        "one stage": ([folder / "one-stage"], "at least two"),
        "no movement": ([folder / "still"], "do not move"),
        "action out of range": ([folder / "outside"], "stage 1: episode 0, time 0: action 7"),
        "corrupted file": ([folder / "corrupt"], "stage 1"),
        "newer format": ([folder / "newer"], "format version 99"),
        "not a history": ([folder / "empty"], "not a learning history"),
        "missing": ([folder / "nowhere"], "not a learning history: there is no such folder"),
        "a file": ([manifest], "not a learning history: it is a file"),
        "gamma of one": ([folder / "good", "--gamma", "1"], "gamma must be in"),
        "no gamma": ([folder / "no-gamma"], "--gamma"),
        "unknown method": ([folder / "good", "--method", "magic"], "unknown method"),
        "unknown device": ([folder / "good", "--device", "tpu"], "choose cpu or cuda"),
        "unknown policy": ([folder / "good", "--policy", "magic"], "unknown policy"),
    }


def test_a_mistake_exits_with_2_in_a_real_process(tmp_path: Path) -> None:
    done = process("infer", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error:") and len(done.stderr.strip().splitlines()) == 1


def test_bad_input_costs_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    out = tmp_path / "estimate.json"
    for name, (arguments, expected) in bad_histories(tmp_path).items():
        done = logel("infer", *arguments, "--out", out)
        assert done.returncode == 2, (name, done.stdout, done.stderr)
        assert expected in " ".join(done.stderr.split()), (name, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, (name, done.stderr)
        assert "Traceback" not in done.stderr
        assert not out.exists(), name


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--learner", "magic"], "unknown learner"),
        (["--weights", "light=heavy"], "name=value"),
        (["--weights", "magic"], "magic"),
        (["--map", "no-such-file"], "cannot read the map"),
        (["--steps", "0"], "n_steps"),
    ],
)
def test_bad_recording_writes_nothing(arguments: list[str], expected: str, tmp_path: Path) -> None:
    done = logel("record", "gridworld", tmp_path / "history", *arguments)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert not (tmp_path / "history").exists()


def test_recording_over_something_is_refused(recorded: Path) -> None:
    before = sorted(recorded.iterdir())
    done = logel("record", "gridworld", recorded)
    assert done.returncode == 2 and "already exists" in done.stderr
    assert sorted(recorded.iterdir()) == before


def test_own_map_and_weights(tmp_path: Path) -> None:
    (tmp_path / "map.txt").write_text("..b\n.d.\n..g\n")
    arguments = ["--map", tmp_path / "map.txt", "--weights", "light=-1,dark=-2,blue=3,goal=1"]
    done = logel("record", "gridworld", tmp_path / "h", "--steps", 1, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"] == 2
    assert LearningHistory.load(tmp_path / "h").metadata["n_states"] == 9


def test_no_folder_for_the_answer_is_said_before_the_work(recorded: Path, tmp_path: Path) -> None:
    done = logel("infer", recorded, "--out", tmp_path / "nowhere" / "estimate.json")
    assert done.returncode == 2 and "no folder" in done.stderr
    done = logel("infer", recorded, "--out", tmp_path)
    assert done.returncode == 2 and "is a folder; name a file" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", [["infer"], ["record", "gridworld"], ["reproduce"], ["record", "--out"]]
)
def test_a_negative_seed_is_refused(command: list[str], tmp_path: Path) -> None:
    done = logel(*command, tmp_path / "x", "--seed", -1)
    assert done.returncode == 2 and "--seed" in done.stderr and "Traceback" not in done.stderr


def test_a_missing_accelerator_is_one_sentence(recorded: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = logel("infer", recorded, "--device", "cuda")
    assert done.returncode == 2 and "no CUDA device" in done.stderr
