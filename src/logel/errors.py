"""One exception class per kind of mistake; every message is a sentence that says what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path

# Messages quote files, which may hold anything: nobody reads more of it.
_MOST_CHARACTERS = 300


def harmless(text: str) -> str:
    """A stranger's text without control characters, which could rewrite the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def printed(lines: Iterable[str]) -> str:
    """Lines to be printed, whoever wrote them."""
    return "\n".join(map(harmless, lines))


def one_line(error: object) -> str:
    """What a parser says of a stranger's file, short and on one line."""
    text = harmless(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


class LogelError(Exception):
    """Base of all errors raised on purpose by logel; the command line exits with code 2 on it."""

    def __str__(self) -> str:
        text = printed(super().__str__().split("\n"))
        # The beginning says where, the end what to do.
        most = 2 * _MOST_CHARACTERS
        return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


class OptionError(LogelError, ValueError):
    """An argument has a value that makes no sense, whatever the data."""


def check_gamma(gamma: float) -> float:
    """The discount factor; refused where sums may have no limit under it."""
    if not 0 <= gamma < 1:
        raise OptionError(f"gamma must be in [0, 1), but is {one_line(gamma)}")
    return gamma


class Choice(enum.StrEnum):
    """Base of options chosen by name: an unknown name is an OptionError that lists the known."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        known = ", ".join(member.value for member in cls)
        raise OptionError(f"unknown {cls.__name__.lower()} {value!r}: choose one of {known}")


class HistoryError(LogelError, ValueError):
    """The observed data are malformed: the message names stage, episode and value."""


class FormatError(LogelError, ValueError):
    """A file or folder is not what it should be: corrupted, truncated, too new, or not ours."""


class TooLargeError(FormatError):
    """Something would take more memory than the budget; the message says how to raise it."""


class StorageError(LogelError, OSError):
    """A file could not be written, for example because the disk is full; the message names it."""


class PolicyError(LogelError, ValueError):
    """The data do not fit the policy family: an action out of range, a wrong dimension."""


class IdentificationError(LogelError, ValueError):
    """The data cannot determine a reward at all: too few stages, or no movement between them."""


class WorkerError(LogelError, RuntimeError):
    """A process that worked for us died; the message says what to try."""


class MissingExtraError(LogelError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: {_install(extra)}")


def _install(extra: str) -> str:
    """The command that installs an extra, also where logel runs from a checkout."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "pyproject.toml").is_file():
        return f"pip install 'logel[{extra}]'"
    # In the checkout itself the short form does.
    where = "." if Path.cwd() == checkout else str(checkout)
    return f"pip install '{where}[{extra}]'"
