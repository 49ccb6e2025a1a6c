import re
from pathlib import Path

import numpy as np

from logel.studies import plots


def test_equal_figures_give_equal_bytes_whatever_the_last_digits_of_the_layout(
    tmp_path: Path,
) -> None:
    saved = []
    for width in (0.5, 0.5 + 1e-15):
        figure = plots.new_figure(4, 3)
        # The solver of the layout decides about last digits by accident: here they are ours.
        figure.set_layout_engine("none")
        for left in (0.0, 0.5):
            axes = figure.add_axes((left, 0.1, width / 2, 0.5))
            axes.plot([0, 1], [0, 1], marker="o")
        plots.save_figure(figure, tmp_path / f"{len(saved)}.svg")
        saved.append((tmp_path / f"{len(saved)}.svg").read_bytes())
    assert saved[0] == saved[1]
    names = re.findall(rb'\bid="([^"]*)"', saved[0])
    assert len(set(names)) == len(names)
    used = set(re.findall(rb'url\(#([^)]*)\)|href="#([^"]*)"', saved[0]))
    assert len(used) >= 3  # two rectangles to clip by, and a marker
    assert all((clip or mark) in names for clip, mark in used)


def test_cases_are_named_in_words() -> None:
    assert plots.in_words("known", False) == "parameters hidden"
    assert plots.in_words("steps", 10) == "10 steps"
    assert plots.in_words("walk", "steady") == "steady"
    assert plots.in_words("shared_rate", np.bool_(False)) == "not shared rate"
