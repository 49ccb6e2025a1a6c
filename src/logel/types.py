"""The aliases every module shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
FORBIDDEN = -1e30
"""Logit of an action that is not legal: its probability is exactly zero in any precision.

Minus infinity would say it better, but its products with that zero are not numbers."""
FeatureFunction = Callable[..., npt.ArrayLike]
"""Maps (observations, actions, next_observations), each with N rows, to features (N, q).

Parameters named `terminated`, `truncated` and `times` are filled too, see `logel.data.facts`.
"""
Progress = Callable[[str, int, int], None]
"""Called with (what, done, total) during long work."""
