"""The sandbox's own folder: what is kept between runs (programs, templates) and the folders of running servers.

Layout below the root: `programs/`, `templates/`, `runs/`, `locks/`. A kept folder is made under another name and
renamed when finished, so a half-made one is never seen.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CACHE_VARIABLE = "ORBIT_SANDBOX_CACHE"
_RUNS = "runs"
_OWNER = "owner"
_CHECKOUT = Path(__file__).resolve().parents[2]


def cache_root(environ: Mapping[str, str], *, checkout: Path = _CHECKOUT) -> Path:
    """Where the sandbox keeps its files: ORBIT_SANDBOX_CACHE, else `.cache/` of the checkout, else the user's cache.

    The user's cache is $XDG_CACHE_HOME/result-inbox, by default ~/.cache/result-inbox (XDG Base Directory).
    """
    chosen = environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".cache" / "sandbox"
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and base.startswith("/") else Path.home() / ".cache") / "result-inbox"


class Cache:
    """The folder itself. Safe for several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def kept(self, name: str) -> Path | None:
        """The finished folder of this name (`programs/…`, `templates/…`), or None."""
        folder = self.root / name
        return folder if folder.is_dir() else None

    def keep(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of this name; when missing, one process makes it while the others wait.

        `make` fills an empty folder. When it raises, nothing is kept.
        """
        with self.locked(name.replace("/", "-")):
            folder = self.root / name
            if folder.is_dir():
                return folder
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Left by a process that was killed while making it; we hold the lock, so nobody works there.
            for left in folder.parent.glob(f".{folder.name}.*"):
                shutil.rmtree(left)
            making = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
            making.mkdir(mode=0o700)
            try:
                make(making)
                making.rename(folder)
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise
            return folder

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of this name among all processes that use this folder."""
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def new_run(self) -> RunFolder:
        """Make a folder for one running server, and remove those whose owner was killed."""
        runs = self.root / _RUNS
        runs.mkdir(parents=True, exist_ok=True)
        # Under one lock, so that a folder that is just being made is not taken for an abandoned one.
        with self.locked(_RUNS):
            for left in runs.iterdir():
                _remove_abandoned(left)
            return RunFolder(self, runs / secrets.token_hex(6))


class RunFolder:
    """A folder that belongs to this process, by a lock on a file in it, until `remove()`."""

    def __init__(self, cache: Cache, path: Path) -> None:
        self.cache = cache
        self.path = path
        path.mkdir(mode=0o700)
        self._owner = os.open(path / _OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder and everything in it; does nothing the second time."""
        if self._owner >= 0:
            with self.cache.locked(_RUNS):
                shutil.rmtree(self.path)
            os.close(self._owner)
            self._owner = -1


def _remove_abandoned(folder: Path) -> None:
    """Remove a run folder whose owner is gone: the kernel let go of its lock. The caller holds the lock of all."""
    try:
        owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        shutil.rmtree(folder)  # its owner was killed before it made the file
        return
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(folder)
    finally:
        os.close(owner)
