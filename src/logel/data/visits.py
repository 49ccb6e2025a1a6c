"""From the places somebody visited to episodes, where places and ways between them are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from logel.data.stage import Episode
from logel.errors import HistoryError, OptionError
from logel.types import Array


def episode_of_visits(
    places: npt.ArrayLike,
    successors: npt.ArrayLike,
    *,
    features: Callable[[Array, Array, Array], npt.ArrayLike] | None = None,
    left: bool = False,
    terminated: bool = False,
) -> Episode:
    """An episode out of the numbers of the places visited, in order.

    Ways there were not are recorded as illegal (`action_masks`).

    Args:
        places: Shape (T + 1,), or (T,) if the last move led out.
        successors: Where every way leads, shape (S, A), as for `KnownWorld`: a place, S for out,
            -1 for nowhere.
        features: Maps (places, actions, next places) to reward features (T, q).
        left: Whether the last move was out of the world, after the last place; it ended the
            episode. The state after it stands for nothing, and is written as the first place.
        terminated: Whether the last place ended the episode.
    """
    visited, table = np.asarray(places), np.asarray(successors)
    if table.ndim != 2 or table.dtype.kind not in "iu":
        raise OptionError(f"successors must be whole numbers of shape (S, A), not {table.shape}")
    if visited.ndim != 1 or visited.dtype.kind not in "iu" or len(visited) + left < 2:
        raise HistoryError("places must be at least two whole numbers, or one and left=True")
    wild = (visited < 0) | (visited >= len(table))
    if wild.any():
        at = int(np.argmax(wild))
        raise HistoryError(f"visit {at}: place {visited[at]} is outside 0..{len(table) - 1}")
    reached = np.append(visited[1:], [len(table)] if left else []).astype(np.int64)
    here = visited[: len(reached)]
    fits = table[here] == reached[:, None]
    if not fits.any(axis=1).all():
        at = int(np.argmin(fits.any(axis=1)))
        to = "out" if reached[at] == len(table) else f"to place {reached[at]}"
        raise HistoryError(
            f"visit {at}: no way leads from place {here[at]} {to}: correct the visits or successors"
        )
    seen = np.append(visited, visited[:1]) if left else visited
    actions = fits.argmax(axis=1)
    known = None if features is None else np.asarray(features(here, actions, seen[1:]))
    return Episode(seen, actions, known, terminated or left, table[here] >= 0)
