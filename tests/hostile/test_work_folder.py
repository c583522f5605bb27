"""The work folder: nobody's tricks with links reach out of it, and it goes away however it was left."""

import os
import shutil
import stat
import tempfile

import pytest

from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.workfolder import WorkFolder, remove


@pytest.fixture
def folder():
    folder = WorkFolder()
    yield folder
    folder.close()


def test_a_folder_of_any_depth_is_removed(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    top = os.open(root, os.O_RDONLY)
    here = os.dup(top)
    for _ in range(5000):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    os.close(top)
    remove(root)
    assert not root.exists()


def test_closed_folders_and_odd_names_are_removed(tmp_path):
    root = tmp_path / "root"
    (root / "closed" / "inside").mkdir(parents=True)
    (root / "closed" / "inside" / "file").write_text("x")
    (root / "name\udcff\n").write_text("x")
    os.mkfifo(root / "fifo")
    (root / "closed" / "inside").chmod(0)
    (root / "closed").chmod(0)
    remove(root)
    assert not root.exists()


def test_removing_follows_no_link(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(kept)
    remove(root)
    assert (kept / "file").read_text() == "x"


def test_the_judge_does_not_write_through_a_link_that_a_candidate_left(folder, tmp_path):
    target = tmp_path / "target"
    target.write_text("the user's")
    (folder.path / "candidate.py").symlink_to(target)
    folder.write("candidate.py", "a candidate's")
    assert target.read_text() == "the user's"
    assert (folder.path / "candidate.py").read_text() == "a candidate's"


def test_a_disk_that_is_nearly_full_is_the_machines_lack(monkeypatch):
    monkeypatch.setattr(
        "kernelwright.sandbox.workfolder.LEAST_FREE_BYTES", shutil.disk_usage(tempfile.gettempdir()).total + 1
    )
    with pytest.raises(MachineError, match=r"\d+ MiB are free.* TMPDIR"):
        WorkFolder()


def test_only_the_owner_can_look_into_a_new_folder(folder):
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_was_given_away_keeps_its_top_for_the_judge(folder):
    folder.write("candidate.py", "x")
    folder.give_to(54321)
    assert folder.path.stat().st_uid == 0
    assert {path.stat().st_uid for path in folder.path.iterdir()} == {54321}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_is_given_to_one_user_only(folder):
    folder.give_to(54321)
    with pytest.raises(ValueError, match="belongs to user 54321"):
        folder.give_to(54322)
