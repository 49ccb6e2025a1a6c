"""Histories at addresses: object stores, web servers, memory, through fsspec.

    LearningHistory.load("s3://bucket/run")

Only the address the user gave is opened, and files of our own names right below it: nothing that
a file says becomes a part of an address, addresses that lead through others (`::`) are refused, and
a web server's redirections are not followed. What a server sends is as hostile as a stranger's
folder: its size is compared and counted before and while it is read, and its sha256 before it is
parsed. Keys and endpoints come from the environment, where fsspec looks for them; none is kept
here, so that a history sent to another process says where it is and nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from logel.data.limits import FilePath, ask_memory, optional, shown
from logel.data.places import Folder, Place, check_size
from logel.errors import (
    FormatError,
    LogelError,
    OptionError,
    StorageError,
    one_line,
)

_ADDRESS = re.compile(r"([A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
_HTTP = ("http", "https")
# What fsspec knows beyond these may run commands, or lead to yet other addresses.
_KINDS = ("memory", *_HTTP, "s3", "gs", "gcs", "az", "abfs", "abfss")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", **dict.fromkeys(_HTTP, "aiohttp")}
_PACKAGES |= dict.fromkeys(("az", "abfs", "abfss"), "adlfs")
# What is read at a time, and how long a web server may keep silent.
_CHUNK, _SECONDS = 2**26, 60.0


def is_address(path: object) -> bool:
    """Whether what was given is an address, not a path."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def place_of(path: FilePath) -> Place:
    """Where a history lies, or is to lie: a path, or an address of one of the kinds we open."""
    if not is_address(path):
        return Folder(Path(path))
    address = str(path)
    kind = address.partition("://")[0].lower()
    if "::" in address:
        raise OptionError(f"{_public(address)} leads through other addresses: give the last one")
    parts = urlsplit(address)
    if kind == "file":
        if parts.netloc not in ("", "localhost"):
            raise OptionError(f"{_public(address)} names a machine: write file:///path")
        return Folder(Path(unquote(parts.path)))
    known = ", ".join(f"{one}://" for one in ("file", *_KINDS))
    for wrong, why in (
        (kind not in _KINDS, f"cannot be opened: an address begins with {known}"),
        ("?" in address or "#" in address, "has a query: keys belong into the environment"),
        (".." in parts.path.split("/"), "leads upwards: give the folder's own address"),
    ):
        if wrong:
            raise OptionError(f"{_public(address)} {why}")
    return Address(address.rstrip("/"))


def _public(address: str) -> str:
    """An address without the password or the keys in it."""
    return shown(re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", address)[0]), most=300)


@dataclass(frozen=True)
class Address(Place):
    """A folder on a server, in an object store, or in memory; files appear whole there.

    Nobody can be kept away from such a place: two who write to it at a time spoil it.
    """

    url: str
    # What was written to files of lines, which cannot grow there: they are written anew.
    _lines: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return _public(self.url)

    def __reduce__(self) -> tuple[type[Address], tuple[str]]:
        return Address, (self.url,)

    @property
    def shared(self) -> bool:
        """What is in this process's memory, no other process finds."""
        return self._kind != "memory"

    @property
    def _kind(self) -> str:
        return self.url.partition("://")[0].lower()

    def where(self, name: str) -> str:
        """Its address."""
        return f"{self}/{name}"

    def read(self, name: str) -> bytes:
        """All of a file."""
        if (data := self._fetched(name)) is None:
            raise FormatError(f"{self} is not a learning history: there is no {name} in it")
        return data

    def read_lines(self, name: str) -> bytes:
        """All of a file, if there is one."""
        return self._fetched(name) or b""

    def read_sized(self, name: str, n_bytes: int, told_by: str) -> bytes:
        """All of a file, if the server says that it is as large as it should be."""
        if (data := self._fetched(name, n_bytes, told_by)) is None:
            raise FormatError(f"{self.where(name)} is missing or not a plain file")
        check_size(len(data), n_bytes, self.where(name), told_by)
        return data

    def check_new(self) -> None:
        """Refuse what holds a file already; servers of web pages take none."""
        if self._kind in _HTTP:
            raise OptionError(f"cannot write to {self}: a web server only shows histories")
        with self._failing(self):
            try:
                found = self._files.find(self.url, maxdepth=1)
            except FileNotFoundError:
                return
        if found:
            raise FormatError(f"{self} already exists: choose another address")

    def hold(self) -> Callable[[], None]:
        """Look once more whether somebody came first; nothing more can be done."""
        self.check_new()
        return lambda: None

    def write(self, name: str, data: bytes) -> None:
        """In one piece."""
        with self._failing(self.where(name), StorageError, "cannot write"):
            self._files.pipe_file(f"{self.url}/{name}", data)

    def add_line(self, name: str, line: bytes) -> None:
        """By writing all lines again."""
        whole = self._lines.get(name, b"") + line + b"\n"
        self.write(name, whole)
        self._lines[name] = whole

    @property
    def _files(self) -> Any:
        """The fsspec file system, which remembers nothing about files."""
        fsspec = optional("fsspec", "remote")
        options: dict[str, Any] = {"use_listings_cache": False}
        if self._kind in _HTTP:
            # A large stage may take long, but a server that says nothing has died.
            patience = optional("aiohttp", "remote").ClientTimeout(total=None, sock_read=_SECONDS)
            options |= {"allow_redirects": False, "client_kwargs": {"timeout": patience}}
            # What is packed small may unpack to anything.
            options["headers"] = {"Accept-Encoding": "identity"}
        try:
            return fsspec.filesystem(self._kind, **options)
        except ImportError:
            package = _PACKAGES[self._kind]
            raise OptionError(
                f"{package} is not installed, which {self._kind} needs: pip install {package}"
            ) from None

    def _fetched(self, name: str, n_bytes: int | None = None, told_by: str = "") -> bytes | None:
        """All of a file, None if there is none; its size is looked at first."""
        where = self.where(name)
        with self._failing(where):
            try:
                with self._opened(name) as file:
                    size = _size_of(file)
                    if size is not None and n_bytes is not None:
                        check_size(size, n_bytes, where, told_by)
                    size = n_bytes if size is None else size
                    ask_memory(size or 0, where)
                    return _all_of(file, size, where)
            except FileNotFoundError:
                return None

    def _opened(self, name: str) -> Any:
        """A file that is fetched as it is read, and not ahead of that."""
        address = f"{self.url}/{name}"
        if self._kind not in _HTTP:
            return self._files.open(address, "rb", cache_type="none")
        # As a stream, which can be left when it becomes too long; the size here only says that
        # nobody need ask for it in a request of its own.
        file = self._files.open(address, "rb", block_size=0, size=1)
        if file.r.status != 200:
            file.close()
            raise FormatError(
                f"{self.where(name)} cannot be read: the server answers {file.r.status}, and "
                "nothing but the address itself is opened"
            )
        return file

    @contextmanager
    def _failing(
        self, where: object, kind: type[LogelError] = FormatError, what: str = "cannot read"
    ) -> Iterator[None]:
        """One sentence, without keys in it, for whatever a network or a server does wrong."""
        try:
            yield
        except LogelError:
            raise
        except Exception as error:
            # Each store has errors of its own, with nothing in common.
            told = re.sub(r"\S+://\S+", lambda found: _public(found[0]), one_line(error))
            raise kind(f"{what} {where}: {told}") from None


def _size_of(file: Any) -> int | None:
    """What an opened file says of its size, if it does."""
    answer = getattr(file, "r", None)
    size = getattr(file, "size", None) if answer is None else answer.content_length
    return size if isinstance(size, int) and size >= 0 else None


def _all_of(file: Any, size: int | None, where: str) -> bytes:
    """Everything, but no more than was promised or, where nothing was, than the budget."""
    parts, got = [], 0
    while part := file.read(_CHUNK if size is None else min(_CHUNK, size + 1 - got)):
        parts.append(bytes(part))
        got += len(part)
        if size is None:
            ask_memory(got, where)
        elif got > size:
            raise FormatError(f"{where} is corrupted: it goes on after its {size} bytes")
    return b"".join(parts)
