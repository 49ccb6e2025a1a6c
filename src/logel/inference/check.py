"""Controls in one call: is the answer gone where it should be, and the same where it should be?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.contents import elsewhere
from logel.data.history import LearningHistory
from logel.data.store import write_atomically
from logel.errors import LogelError, OptionError, one_line, printed
from logel.inference.arguments import settled
from logel.inference.controls import (
    KINDS,
    Asked,
    Outcome,
    Variant,
    check_options,
    variants_of,
)
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.inference.plots import plot_checks
from logel.inference.saved import array, check_format, load_json, plain, read_json
from logel.inference.status import Status
from logel.inference.verdict import Finding, Verdict
from logel.inference.watched import unheard
from logel.policies.base import Policy
from logel.types import Progress
from logel.workers import Executor, Workers, opened

FORMAT, FORMAT_VERSION = "logel-checks", 1
# Of one control; a file may claim any number.
_MOST_VARIANTS, _VARIANTS = 100, {"reversed": (1, 1), "decoys": (1, 1), "halves": (3, 3)}


@dataclass(frozen=True, eq=False)
class Control:
    """One control: what was inferred for it.

    Attributes:
        kind: Its key in `logel.inference.controls.KINDS`.
        variants: One for each inference; of halves, also their difference.
    """

    kind: str
    variants: tuple[Variant, ...]

    @property
    def title(self) -> str:
        """What it is called."""
        return KINDS[self.kind].title

    def judged(self, whole: RewardEstimate) -> tuple[Outcome, str]:
        """Outcome and reason beside the estimate that is checked."""
        return KINDS[self.kind].judge(whole, self.variants)


@dataclass(frozen=True, eq=False)
class EstimateChecks:
    """An estimate and its controls.

    Attributes:
        estimate: What is checked.
        controls: In the order in which they were made.
        complete: Whether all that were asked for were made.
    """

    estimate: RewardEstimate
    controls: tuple[Control, ...]
    complete: bool = True

    @property
    def verdict(self) -> Verdict:
        """That on the estimate; not shown if a control fails."""
        finding, reason = self.checked.verdict
        if failed := self._failed:
            return Verdict(finding, f"{reason}. {'. '.join(failed)}")
        if finding is not Finding.NOT_SHOWN:
            outcomes = [outcome for _, outcome, _ in self.rows()]
            passed = outcomes.count(Outcome.PASSED.value)
            reason += f"; controls passed: {passed} of {len(outcomes)}, none failed"
            reason += "" if self.complete else "; the check was interrupted"
        return Verdict(finding, reason)

    @property
    def _failed(self) -> list[str]:
        """Which controls fail and why, if there was anything to fail for."""
        if not self.estimate.verdict.shown:
            return []
        return [f"{t}: {why}" for t, outcome, why in self.rows() if outcome == Outcome.FAILED.value]

    @property
    def checked(self) -> RewardEstimate:
        """The estimate after its controls: its status warns if one fails."""
        if not (failed := self._failed):
            return self.estimate
        notes = (*self.estimate.notes, *(f"control failed: {one}" for one in failed))
        return replace(self.estimate, status=Status.CONTROL_FAILED, notes=notes)

    def rows(self) -> list[tuple[str, str, str]]:
        """Title, outcome and reason of every control."""
        judged = [(one.title, one.judged(self.estimate)) for one in self.controls]
        return [(title, outcome.value, why) for title, (outcome, why) in judged]

    def summary(self) -> str:
        """The verdict, and a line for every control."""
        rows = self.rows()
        widths = [max(len(row[k]) for row in rows) if rows else 0 for k in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {why}" for a, b, why in rows]
        return printed([f"verdict: {self.verdict}", "", *lines])

    def plot(self, axes: Any = None) -> list[Any]:
        """Draw the largest weights beside what every control made of them.

        Needs the extra `report`. Without axes a new figure of pyplot's is made; returns the axes.
        """
        return plot_checks(self, axes)

    def to_plain(self) -> dict[str, Any]:
        """Plain values, of which JSON is made."""
        rows = zip(self.controls, self.rows(), strict=True)
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "verdict": self.verdict.to_plain(),
            "complete": self.complete,
            "controls": [
                {
                    "kind": control.kind,
                    # For readers of the file, as the verdict: who loads it judges anew.
                    "outcome": outcome,
                    "reason": why,
                    "variants": [plain(vars(one)) for one in control.variants],
                }
                for control, (_, outcome, why) in rows
            ],
            "estimate": self.estimate.to_plain(),
        }

    def to_json(self) -> str:
        """As JSON; not-a-number becomes null."""
        return json.dumps(self.to_plain(), indent=1, allow_nan=False)

    @classmethod
    def from_plain(cls, raw: Any) -> EstimateChecks:
        """From the values of `to_plain`; what is malformed raises what `read_json` understands."""
        check_format(raw, FORMAT, FORMAT_VERSION, "check")
        estimate = RewardEstimate.from_plain(raw["estimate"])
        q = len(estimate.weights)
        controls = tuple(_control(one, q) for one in raw["controls"])
        if len({one.kind for one in controls}) < len(controls):
            raise ValueError("a control is there twice")
        if not isinstance(raw["complete"], bool):
            raise ValueError(f"complete must be true or false, not {raw['complete']!r:.40}")
        return cls(estimate, controls, raw["complete"])

    @classmethod
    def from_json(cls, text: str | bytes) -> EstimateChecks:
        """Read what `to_json` wrote; raises FormatError on anything else."""
        return read_json(text, cls.from_plain, "check")

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON, atomically."""
        write_atomically(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> EstimateChecks:
        """Read what `save` wrote."""
        return load_json(path, cls.from_json, "check")


def check_estimate(
    history: LearningHistory,
    policy: Policy | None = None,
    *,
    gamma: float | None = None,
    controls: Sequence[str] | None = None,
    quick: bool = False,
    n_decoys: int = 2,
    windows: Sequence[int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    keep: Callable[[EstimateChecks], object] | None = None,
    workers: int | Workers | Executor = 1,
    **options: Any,
) -> EstimateChecks:
    """Recover the reward, and ask whether it would have been found where there is none.

    Every control infers again with the same method and options: with the stages read backwards and
    shuffled, where the same reward should not be found; beside features that nobody can want; from
    each half of the stages; with half and twice the horizon; in other windows, if the history was
    cut from sessions; and without single stages. See "Know when not to trust it" for what passes.

    Args:
        history: Of one learner.
        policy: See `infer_reward`, which gets all other arguments as well.
        gamma: The learner's discount factor.
        controls: Which of "reversed", "shuffled", "decoys", "halves", "gammas", "windows" and
            "stages"; by default all.
        quick: Leave out gammas, windows and single stages, and shuffle once instead of thrice.
        n_decoys: Random functions of observation and action to add to the features.
        windows: Other numbers of windows; by default half as many and twice as many where the
            history is known to be cut from sessions, else none.
        seed: Of the inferences, and of everything random in the controls.
        progress: Called with (what, done, total).
        keep: Called with what is done so far after every control, so that it is not lost.
        workers: How many inferences are made at a time, see `infer_reward`.
        options: Further arguments of `infer_reward`.
    """
    if not isinstance(history, LearningHistory):
        raise OptionError("one learner is checked at a time: pass its history")
    cheap = [name for name, kind in KINDS.items() if not (quick and kind.dear)]
    wanted = cheap if controls is None else list(controls)
    check_options(options, n_decoys, wanted)
    known = options.get("use_parameters", True)
    policy, gamma = settled(history, policy, gamma, known=known)
    asked = Asked(
        *(history, gamma, options.get("features"), known, wanted, quick, n_decoys, windows, seed),
    )
    work = {name: len(trials) for name, trials in asked.trials().items()}
    options = {"gamma": gamma, "seed": seed, **options}
    report, total = progress or unheard, 1 + sum(work.values())
    with opened(workers) as run:
        estimate = infer_reward(history, policy, **options, progress=progress, workers=run)
        report("controls", 1, total)
        checks, done = EstimateChecks(estimate, (), complete=not work), 1
        # Others have nobody to report to.
        tell = progress if run.here else None
        far = None if run.here else elsewhere(history.source)
        if far is not None:
            asked = asked._replace(history=replace(history, source=far))
        options["workers"] = Workers(cache=run.cache)
        pieces = [(name, k) for name, n in work.items() for k in range(n)]
        found = run.map(partial(_tried, tell=tell), pieces, (asked, policy, options))
        for name, n in work.items():
            made: dict[str, RewardEstimate | str] = {}
            for what, one in islice(found, n):
                made[what], done = one, done + 1
                report("controls", done, total)
            control = Control(name, variants_of(name, estimate, made, n_decoys))
            so_far = (*checks.controls, control)
            checks = EstimateChecks(estimate, so_far, complete=len(so_far) == len(work))
            if keep is not None:
                keep(checks)
    return checks


def _tried(
    common: tuple[Asked, Policy, Mapping[str, Any]],
    piece: tuple[str, int],
    *,
    tell: Progress | None,
) -> tuple[str, RewardEstimate | str]:
    """The name of one of a control's inferences, and what it gives or why it cannot be made."""
    asked, policy, options = common
    kind, k = piece
    name, history, changes = next(islice(KINDS[kind].trials(asked), k, None))
    try:
        return name, infer_reward(history, policy, **{**options, **changes, "progress": tell})
    except LogelError as error:
        return name, one_line(error)


def _control(raw: Mapping[str, Any], q: int) -> Control:
    if raw["kind"] not in KINDS:
        raise ValueError(f"there is no control {raw['kind']!r:.40}")
    least, most = _VARIANTS.get(raw["kind"], (1, _MOST_VARIANTS))
    if not least <= len(raw["variants"]) <= most:
        raise ValueError(f"a control of kind {raw['kind']!r} has {least} to {most} variants")
    return Control(raw["kind"], tuple(_variant(one, raw["kind"], q) for one in raw["variants"]))


def _variant(raw: Mapping[str, Any], kind: str, q: int) -> Variant:
    n = len(raw["weights"])
    if (n != q) if kind != "decoys" else not q < n <= q + _MOST_VARIANTS:
        raise ValueError(f"a variant of {kind!r} has {n} weights, the estimate {q}")
    weights, low, high = (array(raw[name], (n,)) for name in ("weights", "low", "high"))
    gain = np.nan if raw["gain"] is None else float(raw["gain"])
    return Variant(str(raw["name"]), str(raw["doubt"]), weights, low, high, gain)
