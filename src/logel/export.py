"""Estimates for other people's tools: a pandas table, arviz posterior draws."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logel.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    import pandas as pd

    from logel.estimate import RewardEstimate

Float = npt.NDArray[np.float64]


def to_frame(estimate: RewardEstimate, level: float) -> pd.DataFrame:
    """See `RewardEstimate.to_frame`."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("pandas", "report") from None
    ends = estimate.interval(level)
    return pd.DataFrame(
        {
            "feature": list(estimate.feature_names),
            "weight": estimate.weights,
            "std_err": estimate.standard_errors,
            "low": ends[:, 0],
            "high": ends[:, 1],
            "probability_positive": estimate.probability_positive(),
        }
    )


def posterior_draws(estimate: RewardEstimate, n_draws: int, seed: int) -> Float:
    """The estimate's own draws, or seeded ones that agree with its intervals, shape (n, q)."""
    if estimate.draws is not None:
        return estimate.draws
    if n_draws < 1:
        raise OptionError(f"n_draws must be at least 1, but is {n_draws}")
    if estimate.covariance is None or not np.isfinite(estimate.covariance).all():
        raise OptionError(
            "the estimate has no intervals to draw from: infer with intervals=True, from more "
            "episodes"
        )
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(estimate.covariance)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    noise = rng.standard_normal((n_draws, len(values))) @ root.T
    freedom = estimate.degrees_of_freedom
    if freedom > 0:
        noise /= np.sqrt(rng.chisquare(freedom, (n_draws, 1)) / freedom)
    return np.asarray(estimate.weights + noise)


def to_inference_data(estimate: RewardEstimate, n_draws: int, seed: int) -> Any:
    """See `RewardEstimate.to_inference_data`."""
    try:
        with warnings.catch_warnings():
            # It announces its next version when imported.
            warnings.simplefilter("ignore", FutureWarning)
            import arviz
    except ImportError:
        raise MissingExtraError("arviz", "arviz") from None
    draws = posterior_draws(estimate, n_draws, seed)
    return arviz.from_dict(
        posterior={"weights": draws[None]},
        coords={"feature": list(estimate.feature_names)},
        dims={"weights": ["feature"]},
        posterior_attrs={
            "method": estimate.method,
            "scale": estimate.scale,
            "status": estimate.status.name,
            "inference_library": "logel",
        },
    )
