"""What killed judges leave is removed by the next one, and nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.problems import load_problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import HeldFolder, WorkFolder, sweep

ROOT = Path(__file__).parents[2]
SWEEPING = "from kernelwright.sandbox.jail.zygote import prepare_judge; prepare_judge(1)"
HOLDING = (
    "import time; from kernelwright.sandbox.workfolder import WorkFolder; "
    "print(WorkFolder().path, flush=True); time.sleep(600)"
)
NOW = {"idle_s": -1}


class Owner:
    def __init__(self, place):
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", HOLDING],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"TMPDIR": str(place)},
        )  # fmt: skip
        self.folder = Path(self.process.stdout.readline().strip())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def run(code, **variables):
    """A program of this code, with what it wrote."""
    command = [sys.executable, "-B", "-c", code]
    environment = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def left(owner):
    owner.kill()
    assert owner.folder.is_dir()
    return owner.folder


@pytest.mark.parametrize("empty", [False, True])
def test_the_folder_of_a_killed_process_is_removed(left, tmp_path, empty):
    for path in left.iterdir() if empty else ():
        path.rmdir()
    assert sweep(str(tmp_path), **NOW) == [left]
    assert not left.exists()


def test_the_folder_of_a_living_process_stays(owner, tmp_path):
    assert sweep(str(tmp_path), **NOW) == []
    assert owner.folder.is_dir()


def test_a_folder_of_this_moment_stays_for_it_may_not_be_locked_yet(left, tmp_path):
    assert sweep(str(tmp_path)) == []
    assert left.is_dir()


def test_the_folder_of_another_machine_stays(left, tmp_path):
    purpose, _, name = left.name.removeprefix("kernelwright-").split("-")
    elsewhere = left.rename(tmp_path / f"kernelwright-{purpose}-000000-{name}")
    assert sweep(str(tmp_path), **NOW) == []
    assert elsewhere.is_dir()


def test_a_link_that_is_named_like_a_folder_of_ours_is_not_followed(left, tmp_path):
    mine = tmp_path / "mine"
    left.rename(mine)
    left.symlink_to(mine)
    assert sweep(str(tmp_path), **NOW) == []
    assert mine.is_dir()


def test_a_link_in_a_folder_is_removed_and_what_it_points_to_stays(left, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("kept")
    (left / "tmp" / "link").symlink_to(mine)
    assert sweep(str(tmp_path), **NOW) == [left]
    assert (mine / "file").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_the_folder_of_another_user_stays(left, tmp_path):
    os.chown(left, 65534, 65534)
    assert sweep(str(tmp_path), **NOW) == []
    assert left.is_dir()


@pytest.mark.skipif(bool(bubblewrap.obstacle()), reason="mounting needs namespaces")
def test_a_folder_in_which_something_is_mounted_stays(left, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("kept")
    sweeping = f"from kernelwright.sandbox.workfolder import sweep; print(sweep({str(tmp_path)!r}, -1))"
    done = subprocess.run(
        [bubblewrap.program(), "--dev-bind", "/", "/", "--bind", str(mine), str(left / "build"),
         sys.executable, "-B", "-c", sweeping],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "[]\n", done.stderr
    assert (mine / "file").read_text() == "kept"


def test_a_process_that_judges_removes_at_its_start_what_is_old_enough(left, tmp_path):
    for path in (*left.iterdir(), left):
        os.utime(path, (0, 0))
    done = run(SWEEPING, TMPDIR=str(tmp_path))
    assert not left.exists(), done.stderr


def test_a_held_folder_goes_with_all_that_is_in_it_when_its_block_ends(tmp_path):
    with HeldFolder("parcel", str(tmp_path)) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "settings",
    [JudgeSettings(jail="strict", jail_without=("namespaces",)), JudgeSettings(start_timeout_s=0.0005)],
    ids=["jail", "time"],
)
def test_a_reference_that_does_not_start_leaves_no_folder(settings):
    folder = WorkFolder()
    with pytest.raises(MachineError):
        ReferenceSession(load_problem("rms_norm", "cpu"), backend_of(settings), folder=folder)
    assert not folder.path.exists()


def test_a_folder_to_which_something_is_written_while_it_is_removed_is_removed(tmp_path, monkeypatch):
    """Killed processes of a jail are on their way out for a moment, longer on a busy machine, and write until then."""
    late, remove_folder = [f"object-{number}.o" for number in range(3)], Path.rmdir

    def rmdir(path):
        if path.parent == tmp_path and late:
            (path / late.pop()).touch()
        remove_folder(path)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    HeldFolder("work", str(tmp_path)).close()
    assert (list(tmp_path.iterdir()), late) == ([], [])


def test_a_work_folder_that_can_not_be_laid_out_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("kernelwright.sandbox.workfolder.PLACES", ("home", "home"))
    with pytest.raises(MachineError, match="no work folder"):
        WorkFolder()
    assert list(tmp_path.iterdir()) == []


CLOSING = """
import os, sys
from kernelwright.sandbox.workfolder import WorkFolder, close_all

first, second = WorkFolder(), WorkFolder()
first.close()
close_all()
os._exit(0)
"""


def test_a_process_that_ends_with_work_in_its_threads_removes_its_folders(tmp_path):
    assert run(CLOSING, TMPDIR=str(tmp_path)).returncode == 0
    assert list(tmp_path.iterdir()) == []


NOWHERE_TO_WRITE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.workfolder import WorkFolder
try:
    WorkFolder()
except MachineError as error:
    print(error)
"""


def test_a_machine_without_a_folder_for_temporary_files_is_told_in_one_sentence():
    done = run(NOWHERE_TO_WRITE)
    assert done.stdout.count("\n") == 1 and "TMPDIR" in done.stdout and "2 GiB" in done.stdout, done.stderr
