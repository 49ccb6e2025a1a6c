"""Reading numbers out of HDF5 files that strangers wrote.

An HDF5 file can point out of itself (external links, external storage, virtual datasets), hold
Python objects, ask for filters that are loaded as plug-ins, and declare any size. None of it is
needed for arrays of numbers, so all of it is refused before any data are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.limits import CellCount, ask_memory, check_plain_file, optional, parsing
from logel.errors import FormatError
from logel.types import Array

# Deflate, shuffle, Fletcher32, n-bit, scale-offset and h5py's LZF: all part of the library itself.
_BUILT_IN_FILTERS = {1, 2, 3, 5, 6, 32000}
# What the library keeps of each chunk while it reads: half of this was measured.
_CHUNK_BYTES = 8192


class Hdf5Reader:
    """An open file out of which only plain arrays come, within limits."""

    def __init__(self, file: Any, path: Path, cells: CellCount) -> None:
        self._file = file
        self._path = path
        self._cells = cells

    def names(self) -> list[str]:
        """Names at the top of the file."""
        self._cells.limits.check("episodes", len(self._file), self._path)
        return list(self._file)

    def array(self, name: str) -> Array:
        """A dataset of numbers."""
        values = self.find(name)
        if values is None:
            raise FormatError(f"{self._path} has no {name}")
        return values

    def find(self, name: str) -> Array | None:
        """A dataset of numbers, or None when there is nothing of this name."""
        import h5py

        where = f"{self._path}, {name}"
        found = self._open(name)
        if found is None:
            return None
        if not isinstance(found, h5py.Dataset):
            raise FormatError(
                f"{where}: must be one array of numbers, but is a group (a Dict or Tuple space?); "
                "flatten it first"
            )
        if found.dtype.kind not in "biuf":
            raise FormatError(f"{where}: must be numbers, but holds {found.dtype}")
        if found.shape is None or len(found.shape) == 0:
            raise FormatError(f"{where}: must have one row per time, but is a single value")
        if found.is_virtual or found.external:
            raise FormatError(f"{where}: keeps its data in another file, which is not followed")
        _check_filters(found, where)
        if found.chunks is not None:
            self._cells.limits.check("cells", math.prod(found.chunks), f"{where}, in one chunk,")
        self._cells.add(math.prod(found.shape), where)
        _ask_chunks(found, where)
        return np.asarray(found[()])

    def _open(self, name: str) -> Any:
        """Follow hard links only, one name at a time; None where there is none."""
        import h5py

        at = self._file
        for part in name.split("/"):
            if not isinstance(at, h5py.Group):
                raise FormatError(f"{self._path}, {name}: {at.name} is not a group")
            link = at.get(part, getlink=True)
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise FormatError(
                    f"{self._path}, {name}: is a link to somewhere else, which is not followed"
                )
            at = at[part]
        return at


def _ask_chunks(dataset: Any, where: str) -> None:
    if dataset.chunks is not None:
        pairs = zip(dataset.shape, dataset.chunks, strict=True)
        n_chunks = math.prod(-(-size // chunk) for size, chunk in pairs)
        ask_memory(_CHUNK_BYTES * n_chunks, f"{where}, in {n_chunks} chunks,")


def _check_filters(dataset: Any, where: str) -> None:
    properties = dataset.id.get_create_plist()
    for k in range(properties.get_nfilters()):
        code = properties.get_filter(k)[0]
        if code not in _BUILT_IN_FILTERS:
            raise FormatError(
                f"{where}: is packed with filter {code}, which would need a plug-in; store it "
                "without, or with gzip"
            )


@contextmanager
def open_hdf5(path: Path, cells: CellCount) -> Iterator[Hdf5Reader]:
    """Open a file for reading; whatever the library says of it becomes one sentence."""
    h5py = optional("h5py", "minari")
    check_plain_file(path, cells.limits, follow_links=False)
    with parsing(path, OSError, RuntimeError, MemoryError), h5py.File(path, "r") as file:
        yield Hdf5Reader(file, path, cells)
