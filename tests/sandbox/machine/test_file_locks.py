"""Locks on files whose names anybody can guess: only this user's own files are used, and the rest is told."""

import os

import pytest

from kernelwright.sandbox.locks import measuring, open_own, processor_turn, try_lock
from kernelwright.sandbox.verdict.errors import MachineError

TAKERS = {"processor_turn": lambda: processor_turn((0, 1)), "measuring": lambda: measuring(wait_s=0)}


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def names_of(take, place):
    """The names of the locks that it uses, which another user can know too."""
    with take():
        pass
    names = [path.name for path in place.iterdir()]
    for path in place.iterdir():
        path.unlink()
    return names


@pytest.mark.parametrize("name", TAKERS)
def test_a_link_in_place_of_a_lock_is_not_followed(name, own_place, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    for lock in names_of(TAKERS[name], own_place):
        (own_place / lock).symlink_to(elsewhere)
    with pytest.raises(MachineError, match=r"lock .*kernelwright.* TMPDIR"):
        TAKERS[name]().__enter__()
    assert not elsewhere.exists()


@pytest.mark.parametrize("name", TAKERS)
def test_what_can_not_be_opened_is_told_with_its_remedy(name, own_place):
    for lock in names_of(TAKERS[name], own_place):
        (own_place / lock).mkdir()
    with pytest.raises(MachineError, match=r"\(Is a directory\).* TMPDIR"):
        TAKERS[name]().__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", TAKERS)
def test_a_file_that_another_user_made_is_told(name, own_place):
    for lock in names_of(TAKERS[name], own_place):
        (own_place / lock).touch(mode=0o666)
        os.chown(own_place / lock, 4321, 4321)
    with pytest.raises(MachineError, match="another user"):
        TAKERS[name]().__enter__()


def test_a_pipe_in_place_of_a_lock_is_told_and_waits_for_nobody(own_place):
    os.mkfifo(own_place / "lock")
    with pytest.raises(MachineError, match="it is no file"):
        open_own(own_place / "lock")


def test_a_lock_is_closed_to_others_and_holds(own_place):
    first, second = open_own(own_place / "lock"), open_own(own_place / "lock")
    assert (own_place / "lock").stat().st_mode & 0o777 == 0o600
    assert try_lock(first) and not try_lock(second)
    os.close(first)
    os.close(second)
