"""Writing so that nothing is lost and nothing of others is touched.

Files are written whole or not at all, folders belong to one process at a time, and no name that is
opened for writing is followed through a link. Temporary files have names nobody can foresee, are
created exclusively, and are cleared away when the process that made them is gone.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from logel.data.limits import FilePath
from logel.errors import FormatError, StorageError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: nothing is locked there.
    fcntl = None

# Not every system knows them.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for its other end
_TOKEN_BYTES = 8
_TEMPORARY = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.tmp")
# Between its creation and its lock a file looks abandoned.
_STALE_SECONDS = 60.0


def write_atomically(path: Path, data: bytes, *, tidy: bool = True) -> None:
    """Write under a temporary name, flush to disk, rename: readers see all of it or nothing.

    What a killed process left of the same file is cleared away (`tidy`), which looks through the
    folder; whoever writes many files into a folder of its own need not do so every time.
    """
    if tidy:
        clear_stale(path.parent, path.name)
    temporary = _temporary(path)
    with writing(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                _locked(descriptor)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
                temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink()


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file of lines; what could not be written whole is taken back."""
    with writing(path):
        descriptor = _open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            before = os.fstat(descriptor).st_size
            try:
                whole = memoryview(line + b"\n")
                while whole:
                    whole = whole[file.write(whole) :]
                os.fsync(descriptor)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file when the disk is full, or whatever else prevents writing it."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def clear_stale(folder: Path, name: str | None = None) -> None:
    """Remove temporary files of a folder, or of one name in it, that no living process writes."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name)
            if found and (name is None or found["name"] == name):
                with suppress(OSError):
                    _remove_abandoned(Path(entry.path))


def _remove_abandoned(path: Path) -> None:
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode) or time.time() - about.st_mtime < _STALE_SECONDS:
        return
    descriptor = os.open(path, os.O_RDONLY | _NO_WAITING | _NO_LINKS)
    try:
        if _locked(descriptor):
            path.unlink()
    finally:
        os.close(descriptor)


def check_new_folder(path: Path) -> None:
    """Refuse a path where something would be overwritten; an empty folder is as good as none."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FormatError(f"{path} already exists: choose another path or remove it first")


def reserve(path: Path) -> int:
    """Make a new folder and hold it for this process, until the returned descriptor is closed.

    The kernel lets go of it even after SIGKILL.
    """
    check_new_folder(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        if not _locked(descriptor):
            raise FormatError(f"{path} is being written by another process: choose another path")
        # Somebody may have come first.
        check_new_folder(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def new_folder(path: FilePath) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes it if all goes well, and else vanishes.

    `path` is taken at once, as an empty folder, so that hours of work do not end in a quarrel
    about it. Killed processes leave it empty, which is as good as none.
    """
    # Absolute, so that `history/..` and the like have a name.
    whole = Path(path).resolve()
    ours = not whole.exists()
    held = reserve(whole)
    temporary = _temporary(whole)
    try:
        # Whoever makes this folder holds it: what lies about is nobody's.
        for left in _temporary_folders(whole):
            shutil.rmtree(left, ignore_errors=True)
        with writing(whole):
            temporary.mkdir()
        yield temporary
        with writing(whole):
            temporary.replace(whole)
        ours = False
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if ours:
            with suppress(OSError):
                whole.rmdir()
        os.close(held)


def _temporary_folders(whole: Path) -> list[Path]:
    with os.scandir(whole.parent) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if (found := _TEMPORARY.fullmatch(entry.name))
            and found["name"] == whole.name
            and entry.is_dir(follow_symlinks=False)
        ]


@contextmanager
def lock_file(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a file for this process, or tell by False that another one does.

    What the file holds stays as it is; a link is refused, wherever it leads.
    """
    descriptor = _open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        yield _locked(descriptor, wait=wait)
    finally:
        os.close(descriptor)


def _open_plain(path: Path, flags: int) -> int:
    """Open a plain file for writing; links, pipes and devices are refused."""
    try:
        descriptor = os.open(path, flags | _NO_WAITING | _NO_LINKS, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise FormatError(f"{path} is a link, or no plain file: remove it first") from None
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path} is not a plain file: remove it first")
    return descriptor


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(_TOKEN_BYTES)}.tmp")


def _locked(descriptor: int, *, wait: bool = False) -> bool:
    """Whether this process now holds the file."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        # Some network drives know no locks; work goes on as it did before there were any.
        return True
    return True
