"""The sandbox's folder: where it is, that a kept thing is made once, and that nobody sees half of it."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from orbit.sandbox.cache import Cache, cache_root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_the_checkouts_own_folder_is_the_default(checkout: Path) -> None:
    assert cache_root({"HOME": "/home/x"}, checkout=checkout) == checkout / ".cache/sandbox"


def test_the_variable_wins(checkout: Path) -> None:
    assert cache_root({"ORBIT_SANDBOX_CACHE": "/elsewhere"}, checkout=checkout) == Path("/elsewhere")


def test_an_installed_package_uses_the_users_cache(tmp_path: Path) -> None:
    assert cache_root({"XDG_CACHE_HOME": "/xdg"}, checkout=tmp_path) == Path("/xdg/result-inbox")


@pytest.mark.parametrize("value", ["", "relative"])
def test_a_relative_xdg_cache_home_is_ignored_as_its_specification_says(tmp_path: Path, value: str) -> None:
    root = cache_root({"XDG_CACHE_HOME": value}, checkout=tmp_path)

    assert root == Path.home() / ".cache/result-inbox"


def test_a_kept_folder_is_made_once_by_many_at_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("whole")

    workers = [threading.Thread(target=cache.keep, args=("programs/x", make)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(made) == 1
    assert (tmp_path / "programs/x/file").read_text() == "whole"
    assert cache.kept("programs/x") == tmp_path / "programs/x"


def test_a_folder_that_could_not_be_finished_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.keep("templates/x", fail)

    assert cache.kept("templates/x") is None
    assert list((tmp_path / "templates").iterdir()) == []


def test_what_a_killed_maker_left_is_removed_by_the_next(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    left = tmp_path / "templates/.x.deadbeef"
    left.mkdir(parents=True)

    cache.keep("templates/x", lambda folder: (folder / "file").touch())

    assert [path.name for path in (tmp_path / "templates").iterdir()] == ["x"]


def test_a_new_run_removes_the_folders_of_killed_owners_and_no_others(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    alive = cache.new_run()
    killed = tmp_path / "runs/killed"
    killed.mkdir()
    (killed / "owner").touch()
    (tmp_path / "runs/killed-early").mkdir()

    new = cache.new_run()

    assert set((tmp_path / "runs").iterdir()) == {alive.path, new.path}
    alive.remove()
    new.remove()
    assert list((tmp_path / "runs").iterdir()) == []


def test_removing_a_run_twice_is_harmless(tmp_path: Path) -> None:
    run = Cache(tmp_path).new_run()
    run.remove()
    assert not run.path.exists()
    run.remove()


def test_a_run_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    run = Cache(tmp_path).new_run()

    assert run.path.stat().st_mode & 0o777 == 0o700
    other = os.open(run.path / "owner", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    run.remove()
