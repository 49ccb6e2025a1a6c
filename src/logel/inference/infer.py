"""From a learning history to reward weights: which inference to run.

`infer_joint.py` infers path, weights and kind of learner together, for families with few
parameters; `infer_mirror.py` works in function space, for any family; `two_step.py` is the paper's
pipeline with what improves it.
"""

from __future__ import annotations

import logging
from typing import Any

from logel.data.history import LearningHistory
from logel.errors import IdentificationError, OptionError
from logel.inference.choose import JointMethod
from logel.inference.estimate import RewardEstimate
from logel.inference.joint import infer_jointly, joint_applies
from logel.inference.method import Method, MirrorMethod
from logel.inference.mirror import infer_in_function_space
from logel.inference.two_step import infer_two_step
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig, CloneMethod
from logel.threads import limited_threads
from logel.types import FeatureFunction, Progress
from logel.worlds.own_episodes import Baseline

__all__ = ["METHODS", "AnyMethod", "JointMethod", "Method", "MirrorMethod", "infer_reward"]

logger = logging.getLogger(__name__)

AnyMethod = Method | JointMethod | MirrorMethod

METHODS: dict[str, AnyMethod] = {
    # The paper's algorithm. What it leaves open, and what we take: the G(PO)MDP estimator (it names
    # two); no baseline (it mentions none, and asks for an unbiased estimator); a weak unit prior in
    # cloning (the plain maximum does not exist for actions never taken); rates start equal; epsilon
    # is relative to the rates we start from (the scale of the rates is not identified).
    "paper": Method(),
    # What the authors' experiments run: few-step cloning and the component-wise baseline.
    "authors": Method(clone=CloneConfig(method=CloneMethod.ADAM), baseline=Baseline.COMPONENT),
    # For families without a pooled world model: unbiased Jacobians with the simplest variance
    # reduction, one rate for all steps, a metric of all the noise there is, bias removed where that
    # promises much, and doubts in the intervals. What was measured is in docs/estimators.md: mostly
    # better coverage.
    "two-step": Method(
        baseline=Baseline.TIME,
        shared_rate=True,
        metric="noise",
        debias="auto",
        process_noise=True,
    ),
    # Path, weights and learner model together; families with few parameters.
    "joint": JointMethod(),
    # Steps of the policy itself, not of its parameters: any softmax or Gaussian family.
    "mirror": MirrorMethod(),
}


@limited_threads()
def infer_reward(
    history: LearningHistory,
    policy: Policy,
    *,
    gamma: float,
    method: str | AnyMethod = "default",
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    intervals: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> RewardEstimate:
    """Recover the reward weights of a learner from its history.

    Identification: unless the history carries learning rates (and the learner model has any), the
    weights are only known up to a positive factor and are returned with unit norm; `scale` in the
    estimate says which. See `RewardEstimate` for sign and gauge.

    Args:
        history: What was observed, at least two stages.
        policy: Family of the learner's policies (or of the clones that stand for them).
        gamma: The learner's discount factor, in [0, 1).
        method: "default" takes "joint" for tabular and linear policies of moderate size, "two-step"
            for larger ones and "mirror" for networks; "paper" is exactly the paper's algorithm,
            "authors" what its experiments run; or a `Method`, `JointMethod` or `MirrorMethod` of
            your own.
        features: Maps (observations, actions, next_observations) to reward features (N, q); needed
            when the episodes carry none.
        use_parameters: Use the history's policy parameters if it has them, instead of cloning.
        intervals: Whether to compute intervals, clones' held-out fit and comparisons with learners
            that want nothing; False is faster.
        seed: Chooses held-out episodes and starting points; the same seed gives the same estimate.
        progress: Called with (what, done, total) during long work.
    """
    if not 0 <= gamma < 1:
        raise OptionError(f"gamma must be in [0, 1), but is {gamma}")
    if len(history) < 2:
        raise IdentificationError(
            f"the history has {len(history)} stage: at least two are needed to see the learner move"
        )
    report = progress or (lambda what, done, total: None)
    name, chosen = _choose(method, policy, history, use_parameters)
    family, d = type(policy).__name__, policy.n_parameters
    logger.info("method %s: %d stages, %s with %d parameters", name, len(history), family, d)
    options: dict[str, Any] = {
        "name": name,
        "gamma": gamma,
        "features": features,
        "use_parameters": use_parameters,
        "intervals": intervals,
        "seed": seed,
        "report": report,
    }
    if isinstance(chosen, JointMethod):
        return infer_jointly(history, policy, method=chosen, **options)
    if isinstance(chosen, MirrorMethod):
        return infer_in_function_space(history, policy, method=chosen, **options)
    return infer_two_step(history, policy, method=chosen, **options)


def _choose(
    method: str | AnyMethod, policy: Policy, history: LearningHistory, use_parameters: bool
) -> tuple[str, AnyMethod]:
    if not isinstance(method, str):
        return "custom", method
    if method == "default":
        name = "two-step" if policy.convex else "mirror"
        if joint_applies(policy, history, use_parameters=use_parameters):
            name = "joint"
        return f"default ({name})", METHODS[name]
    if method not in METHODS:
        raise OptionError(
            f"unknown method {method!r}: choose one of {', '.join(['default', *METHODS])}"
        )
    return method, METHODS[method]
