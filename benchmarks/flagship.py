"""The README's training run with other seeds: does it show what the README says, and how long?

    python -m benchmarks.flagship --first-seed 500 --seeds 10 --keep FOLDER
    python -m benchmarks.flagship --first-seed 1000 --seeds 2 --threads 2
    python -m benchmarks.flagship --a2c                     # A2C in sixteen copies

Runs the README's own lines, training and inference each in a process of its own: CartPole pays for
being alive and for nothing else, so the interval of `alive` must exclude zero and the others
include it. Seconds are processor time, about two minutes a seed. Learners are kept in the folder
named by `--keep`, and not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import Check, report
from logel.threads import ONE_THREAD

README = Path(__file__).resolve().parents[1] / "README.md"
# In place of the README's learner.
_A2C = (
    "from stable_baselines3 import A2C; "
    "from stable_baselines3.common.env_util import make_vec_env; "
    'model = A2C("MlpPolicy", make_vec_env("CartPole-v1", 16), n_steps=200, learning_rate=3e-3, '
    "seed=0)"
)
# What is measured around the README's lines, which know of nothing.
_CLOCK = "import time; _began = time.process_time()"
_TAKEN = "_taken = time.process_time() - _began"
_TOLD = "import json; print(json.dumps({'training': _taken}))"
_FOUND = (
    "import json; print(json.dumps({'ends': dict(zip(estimate.feature_names, "
    "estimate.interval(0.95).tolist())), 'status': estimate.status.name, 'inference': _taken}))"
)


def lines(seed: int, *, a2c: bool) -> tuple[str, str]:
    """The README's block that records a training run, as two scripts: training, inference."""
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [text for text in blocks if "HistoryRecorder(" in text]
    imports, steps = block.split("\n\n", 1)
    first, estimate, rest = re.split(r"^(estimate =.*\n)", steps, flags=re.MULTILINE)
    learner, learn = first.split("\n", 1)
    made = (_A2C if a2c else learner).replace("seed=0", f"seed={seed}")
    training = [imports, _CLOCK, made, learn, _TAKEN, _TOLD]
    return "\n".join(training), "\n".join([imports, _CLOCK, estimate, _TAKEN, rest, _FOUND])


def measured(seed: int, threads: int | None, kept: Path, *, a2c: bool) -> dict[str, Any]:
    """What the run with one seed says; a learner that was kept is not trained again."""
    training, inference = lines(seed, a2c=a2c)
    folder = kept / f"{'a2c' if a2c else 'ppo'}-{seed}"
    told = folder / "training.json"
    if not told.exists():
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
        folder.mkdir(parents=True)
        told.write_text(json.dumps(_ran(training, folder, threads)))
    return json.loads(told.read_text()) | _ran(inference, folder, threads)


def _ran(script: str, folder: Path, threads: int | None) -> dict[str, Any]:
    number = {} if threads is None else dict.fromkeys(ONE_THREAD, str(threads))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, **number},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{folder.name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def right(ends: dict[str, list[float]]) -> bool:
    """Whether alive, and nothing else, is called paid."""
    paid = {name: low > 0 or high < 0 for name, (low, high) in ends.items()}
    return paid.pop("alive") and ends["alive"][0] > 0 and not any(paid.values())


def main() -> int:
    """Run all seeds; the exit code says whether nine of ten were right, in time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of torch and BLAS; else their own number")
    parser.add_argument("--a2c", action="store_true", help="A2C instead of the README's learner")
    parser.add_argument("--keep", type=Path, help="folder of learners, old and new")
    options = parser.parse_args()
    if options.keep is not None:
        return counted(options, options.keep)
    with tempfile.TemporaryDirectory() as folder:
        return counted(options, Path(folder))


def counted(options: argparse.Namespace, kept: Path) -> int:
    """Say what each seed said, and how many were right."""
    good, slower = 0, []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        found = measured(seed, options.threads, kept, a2c=options.a2c)
        good += right(found["ends"])
        slower.append(found["inference"] / found["training"])
        shown = "  ".join(
            f"{n} [{low:.3f}, {high:.3f}]" for n, (low, high) in found["ends"].items()
        )
        print(
            f"seed {seed}: {shown}  {found['status']}  training {found['training']:.0f} s, "
            f"inference {found['inference']:.0f} s",
            flush=True,
        )
    checks = [
        Check(
            "only `alive` is called paid",
            f"{good} of {options.seeds}",
            "9 of 10",
            good >= 0.9 * options.seeds,
        ),
        Check(
            "inference / training, median and worst",
            f"{statistics.median(slower):.2f}, {max(slower):.2f}",
            "at most 1",
            max(slower) <= 1,
        ),
    ]
    return report("README's training run", checks)


if __name__ == "__main__":
    sys.exit(main())
