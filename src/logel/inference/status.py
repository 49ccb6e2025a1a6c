"""How an inference ended, in one word and a sentence that says what to do."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How an inference ended; each value is a sentence that says what to do."""

    OK = "the fit converged"
    RANK_DEFICIENT = (
        "the fit converged, but some directions of the weights are not determined: the "
        "minimum-norm weights are given; see the gauge report"
    )
    UNEXPLAINED = (
        "no reward of these features explains the movement better than wanting nothing does: do "
        "not trust these weights; watch more stages or episodes, or check features and learner"
    )
    REVERSIBLE = (
        "solved, but the policy loses most of what it had decided when it began: read backwards, "
        "this is a learner of the opposite reward, so do not trust the sign of these weights"
    )
    INCOMPLETE = (
        "solved, but something that these weights do not tell moves the policy again and again: do "
        "not trust them; add features, try another rule, or fewer stages, lest the reward changes"
    )
    OUT_OF_SCALE = (
        "weights or intervals are no usable numbers: bring the column that the notes name to about "
        "unit size"
    )
    NOT_CONVERGED = (
        "stopped before convergence: increase max_iterations (joint fits: the rounds in heats; "
        "replay: try another seed, or more members)"
    )
    RATES_AT_BOUND = (
        "every learning rate sits at its lower bound: the movement does not follow any reward of "
        "this form; check the learner model and the features"
    )
    CONTROL_FAILED = (
        "the fit converged, but a control fails: do not trust these weights; the notes name it"
    )
