"""An estimate, a history and a page taken apart, for the tests of the report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge
from logel.inference.more_data import Planning
from logel.inference.status import Status

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", '" onload="x')
STUDY = Path(__file__).parents[2] / "docs" / "results" / "accuracy-random"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)


def example(names: tuple[str, ...] = ("goal", "cliff", "grass"), **changes: Any) -> RewardEstimate:
    """Paid for the first feature, pays for the second, undecided about the third."""
    covariance = np.diag([0.01, 0.01, 0.04])
    base = RewardEstimate(
        weights=np.array([0.8, -0.6, 0.05]),
        feature_names=names,
        learning_rates=np.linspace(0.1, 0.3, 9),
        covariance=covariance,
        degrees_of_freedom=50,
        scale="unit norm",
        status=Status.OK,
        notes=(),
        gauge=Gauge(names, np.zeros((0, 3)), "", np.zeros((0, 3))),
        fit=Fit(np.linspace(0.2, 0.6, 9), np.linspace(0.5, 0.8, 9), 0.1),
        method="by hand",
        config={"gamma": 0.9, "clone": {"method": "mle"}},
        objective_trace=np.array([3.0, 2.0, 1.5]),
        rank=3,
        condition=3.5,
        models={"gradient": 12.0, "natural": -3.0},
        held_out=np.array([-1.0, np.nan, *np.linspace(-1.2, -1.1, 8)]),
        planning=Planning.of(covariance, 0 * covariance),
    )
    return replace(base, **changes)


def grid_history(
    *, columns: int = 4, rows: int = 3, n_stages: int = 10, names: tuple[str, ...] | None = None
) -> LearningHistory:
    """A walker on a grid whose actions are down, up, left, right; the last cell resets.

    Features: one-hot of three areas, the state arrived at modulo three.
    """
    rng = np.random.default_rng(0)
    moves = np.array([columns, -columns, -1, 1])
    n_states = rows * columns
    stages = []
    for t in range(n_stages):
        episodes = []
        for _ in range(30):
            state, states, actions = 0, [0], []
            for _ in range(15):
                biased = rng.random() < 0.8 * t / n_stages
                action = int(rng.choice([0, 3])) if biased else int(rng.integers(4))
                row, column = divmod(state, columns)
                inside = (row < rows - 1, row > 0, column > 0, column < columns - 1)[action]
                state = 0 if state == n_states - 1 else state + moves[action] * inside
                states.append(state)
                actions.append(action)
            features = np.eye(3)[np.array(states[1:]) % 3]
            episodes.append(Episode(np.array(states), np.array(actions), features))
        stages.append(episodes)
    return LearningHistory.from_episodes(
        stages, feature_names=names or ("goal", "cliff", "grass"), metadata={"n_states": n_states}
    )


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts by type."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])
