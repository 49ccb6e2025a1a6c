"""How far the weights would move if other episodes had been seen.

Delete-a-group jackknife: each group of episodes is left out of every stage in turn, the cloned
parameters take one Newton step to where they would have been without it, the Jacobians lose its
share, and the weights are solved again. The same episodes feed cloning and Jacobians, so leaving
them out of both keeps the correlation between the two.

It accounts for the sampling noise of the observed episodes. It does not see noise that the
episodes do not show, such as a learner whose own gradient estimates are noisy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from logel.cloning import ClonedPath
from logel.jacobian import StageJacobian

Float = npt.NDArray[np.float64]


def jackknife(
    parameters: Float,
    jacobians: Sequence[StageJacobian],
    path: ClonedPath | None,
    solve: Callable[[Float, Float], Float],
) -> tuple[Float, int] | None:
    """Covariance of the weights, (q, q), and its degrees of freedom.

    Args:
        parameters: Shape (m + 1, d).
        jacobians: Of stages 0..m (the last one only for its score sums), each in groups.
        path: The clones, or None when the parameters are known and carry no noise.
        solve: Maps delta (m, d) and design (m, d, q) to normalised weights (q,).

    Returns:
        None when there are too few groups of episodes to tell.
    """
    n_groups = min(len(j.groups) for j in jacobians)
    if n_groups < 3:
        return None
    jacobians = [jacobian.regrouped(n_groups) for jacobian in jacobians]
    shifts = np.zeros((n_groups, *parameters.shape))
    if path is not None:
        for t, (clone, jacobian) in enumerate(zip(path.clones, jacobians, strict=True)):
            kept = 1 - jacobian.group_weights
            # Without a group the information is about `kept` of the whole, and the gradient at
            # the full estimate is minus the group's score: one Newton step from there.
            steps = clone.fisher.solve(
                (jacobian.score_sums / kept[:, None]).T,
                ridge=path.config.prior_strength / float(kept.mean()),
            )
            shifts[:, t] = -steps.T
    replicates = []
    for g in range(n_groups):
        without = [
            (j.mean - j.group_weights[g] * j.groups[g]) / (1 - j.group_weights[g])
            for j in jacobians[:-1]
        ]
        moved = parameters + shifts[g]
        replicates.append(solve(np.diff(moved, axis=0), np.stack(without)))
    spread = np.stack(replicates) - np.mean(replicates, axis=0)
    return (n_groups - 1) / n_groups * spread.T @ spread, n_groups - 1
