"""How often a newcomer who follows the default inference returns to a file already left.

    python -m benchmarks.newcomer           # the two counts
    python -m benchmarks.newcomer --list    # and the path

A reader who follows the computation meets functions in the order in which they are first called,
and opens the file of each. Every change to a file that was open before, and left, counts as one
return: something that belongs together stands apart. The histories are small: which functions are
called does not depend on it. With all modules in one folder it was 68 returns for tables, 45 for
networks, 33 where the policies are known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import logel
from benchmarks.report import Check, report
from logel import LearningHistory, MLPGaussian, Stage, TabularSoftmax, infer_reward
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.learners.tabular import GPOMDPLearner, observe

SOURCE = Path(logel.__file__).parent
# Whether parameters are used where the history tells them, and how many returns are acceptable.
CASES = {"tables": (True, 25), "networks": (False, None), "networks, known policies": (True, 20)}


def table_history() -> tuple[LearningHistory, TabularSoftmax, float]:
    """Without the policies' parameters."""
    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names)
    learner = GPOMDPLearner(exact=True)
    history = observe(mdp, learner, weights=weights, n_steps=4, n_episodes=20, seed=5)
    return history, TabularSoftmax(mdp.n_states, mdp.n_actions), mdp.gamma


def network_history() -> tuple[LearningHistory, MLPGaussian, float]:
    rng = np.random.default_rng(0)
    policy = MLPGaussian(3, 2, hidden=(8,))
    theta, stages = policy.initial(rng), []
    for _ in range(5):
        observations = rng.standard_normal((200, 3))
        stages.append(
            Stage(
                observations=observations,
                actions=policy.sample(theta, observations, rng),
                lengths=np.full(20, 10),
                terminated=np.zeros(20, dtype=bool),
                features=rng.standard_normal((200, 4)),
                parameters=theta,
            )
        )
        theta = theta + 0.05 * rng.standard_normal(policy.n_parameters)
    return LearningHistory.from_stages(stages), policy, 0.9


def first_calls(work: Callable[[], Any]) -> list[tuple[CodeType, int]]:
    """Our functions in the order of their first call, and how deep each then is among ours."""
    found: dict[CodeType, int] = {}
    depth = 0

    def follow(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        # Comprehensions and lambdas are read with the function they stand in.
        if event not in ("call", "return") or code.co_name.startswith("<"):
            return
        if Path(code.co_filename).is_relative_to(SOURCE):
            if event == "call":
                found.setdefault(code, depth)
            depth += 1 if event == "call" else -1

    sys.setprofile(follow)
    try:
        work()
    finally:
        sys.setprofile(None)
    return list(found.items())


def returns(files: list[str]) -> int:
    """How often the next file is one that was open before and left."""
    left: set[str] = set()
    count, now = 0, files[0]
    for file in files[1:]:
        if file != now:
            left.add(now)
            count += file in left
            now = file
    return count


def opened(code: CodeType) -> bool:
    """Whether a reader opens the function: not so for sizes, signs of the language, one-liners."""
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return not code.co_name.startswith("__") and len(lines) > 3


def outline(path: list[tuple[CodeType, int]]) -> str:
    """One line for each function, indented by how deep it was called."""
    return "\n".join(
        f"{'  ' * depth}{code.co_qualname}  "
        f"{Path(code.co_filename).relative_to(SOURCE)}:{code.co_firstlineno}"
        for code, depth in path
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="Print the path as well.")
    listed = parser.parse_args().list
    checks = []
    for name, (use_parameters, most) in CASES.items():
        make = table_history if name == "tables" else network_history
        history, policy, gamma = make()
        path = first_calls(
            partial(infer_reward, history, policy, gamma=gamma, use_parameters=use_parameters)
        )
        if listed:
            print(f"{name}\n\n{outline(path)}\n")
        files = [code.co_filename for code, _ in path]
        count = returns(files)
        larger = returns([code.co_filename for code, _ in path if opened(code)])
        size = f"{len(path)} functions in {len(set(files))} files"
        measured = f"{count} ({size}); {larger} without one-liners"
        target = "" if most is None else f"at most {most}"
        checks.append(Check(name, measured, target, most is None or count <= most))
    return report("Returns to a file already left", checks)


if __name__ == "__main__":
    sys.exit(main())
