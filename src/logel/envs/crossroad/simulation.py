"""SUMO, of which every process has exactly one: who holds it, and how it goes back to its start."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

from logel.envs.crossroad.network import network_path
from logel.errors import LogelError, MissingExtraError

STEP = 0.1
"""Seconds between two moments of the simulation."""


class SimulationBusyError(LogelError, RuntimeError):
    """A second simulation was opened in one process."""


# libsumo keeps one simulation per process, and a second start would silently replace the first.
_holder: weakref.ref[Simulation] | None = None


class Simulation:
    """The process's simulation of an empty crossroad with so many roads.

    Attributes:
        sumo: The libsumo module.
    """

    def __init__(self, n_roads: int) -> None:
        global _holder
        self.sumo = require_simulator()
        _free(self.sumo)
        self.sumo.start(["sumo", *_options(n_roads)])
        _holder = weakref.ref(self)
        self.sumo.vehicletype.setImperfection("DEFAULT_VEHTYPE", 0.0)
        handle, name = tempfile.mkstemp(prefix="logel-crossroad-", suffix=".xml")
        os.close(handle)
        self.sumo.simulation.saveState(name)
        self._start = name
        self._remove_file = weakref.finalize(self, Path(name).unlink, missing_ok=True)

    def restart(self) -> None:
        """Empty the crossroad: eight times as fast as loading it again."""
        self.sumo.simulation.loadState(self._start)

    def close(self) -> None:
        """Let others have the simulation."""
        global _holder
        if _holder is not None and _holder() is self:
            self.sumo.close()
            _holder = None
        self._remove_file()


def require_simulator() -> Any:
    """The libsumo module, or one sentence that says how to install it."""
    try:
        # It prints what it thinks of other packages' versions, which is no part of any result.
        with contextlib.redirect_stdout(sys.stderr):
            import libsumo
    except ImportError:
        raise MissingExtraError("libsumo", "sumo") from None
    return libsumo


def _free(libsumo: Any) -> None:
    """See to it that nobody has the simulation who still needs it."""
    if _holder is not None and _holder() is not None:
        raise SimulationBusyError(
            "SUMO runs one simulation per process, and another Crossroad has it open: close() that "
            "one first, or use another process"
        )
    if libsumo.isLoaded():
        if _holder is None:
            raise SimulationBusyError(
                "SUMO runs one simulation per process, and this process has started one itself: "
                "close it with libsumo.close() first, or use another process"
            )
        libsumo.close()  # its environment is gone without having closed it


def _options(n_roads: int) -> list[str]:
    """SUMO's options; without check-junctions, collisions inside the junction go unreported.

    SUMO draws no random numbers here (drivers do not dawdle, speed factors are given), so that an
    episode depends on nothing but the environment's own.
    """
    options = {
        "net-file": str(network_path(n_roads)),
        "step-length": str(STEP),
        "default.speeddev": "0",
        "collision.action": "warn",
        "collision.check-junctions": "true",
        "collision.mingap-factor": "0",
        "time-to-teleport": "-1",
        "no-warnings": "true",
        "no-step-log": "true",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]
