"""Children are forked from a process that has torch imported, and are as apart from it and each other as programs."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.jail.process import Child
from kernelwright.sandbox.jail.zygote import MARK, OWN_VARIABLES, ZYGOTES, Zygotes
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
WAYS = {
    "namespaces": JudgeSettings(),
    "alone": JudgeSettings(jail_without=("namespaces",)),
    "off": JudgeSettings(jail="off"),
}
PATIENCE_S = 120
ABOUT_ITSELF = """
import json, os, random, resource, sys, tempfile, numpy, torch

def first_use(name):
    values = torch.full((64,), 0.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    getattr(torch, name)(values)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def ModelNew():
    raise RuntimeError("ABOUT " + json.dumps({
        "environment": dict(os.environ),
        "numbers": [random.random(), torch.rand(1).item(), float(numpy.random.rand())],
        "temporary": tempfile.gettempdir(),
        "folder": os.getcwd(),
        "threads": len(os.listdir("/proc/self/task")),
        "torch threads": torch.get_num_threads(),
        "path": sys.path,
        "descriptors": sorted(os.listdir("/proc/self/fd"))[:4],
        "session": os.getsid(0) == os.getpid(),
        "faults of vector functions": sum(first_use(name) for name in ("tanh", "exp", "erf")),
        "file": getattr(sys.modules.get("kernelwright_child.builder"), "__file__", None),
    }))
"""


@pytest.fixture(params=WAYS)
def settings(request):
    if request.param == "namespaces" and bubblewrap.obstacle():
        pytest.skip(f"no namespaces: {bubblewrap.obstacle()}")
    return WAYS[request.param]


@pytest.fixture
def start(folder):
    """Starts children that are closed at the end of the test."""
    started = []

    def start(settings=WAYS["off"], zygotes=ZYGOTES, kind="worker"):
        started.append(Child(kind, folder, settings, zygotes))
        started[-1].greet(time.monotonic() + PATIENCE_S)
        return started[-1]

    yield start
    for child in started:
        child.close()


@pytest.fixture
def zygotes():
    """Some of the test's own."""
    with closing(Zygotes()) as own:
        yield own


def about(child_of, settings):
    with closing(WorkFolder()) as folder, Session("builder", folder, settings) as session:
        session._child.close()
        session._child = Child("builder", folder, settings, child_of)
        session.greet()
        source, built = str(folder.write("candidate.py", ABOUT_ITSELF)), str(folder.path / "build")
        message = {"op": "build", "source": source, "entry": "ModelNew", "built": built, "arguments": {"l": []}}
        with pytest.raises(Refused) as refused:
            session.ask(message | {"threads": 1, "cores": sorted(os.sched_getaffinity(0))}, PATIENCE_S)
    return json.loads(refused.value.log.rpartition("ABOUT ")[2].splitlines()[0]), str(folder.path)


def gone(pid, limit_s=10):
    """Whether a process ends within the limit; one that nobody has collected has ended."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_children_are_forked_on_every_setting(settings, start):
    assert start(settings).way == "forked"
    assert ZYGOTES.obstacle == ""


def test_all_kinds_of_children_come_from_one_zygote(start, zygotes):
    for kind in ("builder", "worker", "reference"):
        assert start(zygotes=zygotes, kind=kind).way == "forked"
    assert len(zygotes.pids) == 1


def test_a_fork_is_like_a_program_of_its_own(settings):
    """Same layers, same environment but for its own places, nothing of the zygote's."""
    (forked, here), (spawned, there) = about(ZYGOTES, settings), about(None, settings)
    forked_environment, spawned_environment = forked.pop("environment"), spawned.pop("environment")
    spawned_environment.pop("PWD", None)  # bubblewrap's, for the folder that it starts in
    assert forked_environment == {name: value.replace(there, here) for name, value in spawned_environment.items()}
    assert MARK not in forked_environment
    assert forked["temporary"] == f"{here}/tmp"
    for fact in ("folder", "torch threads", "path", "session"):
        assert forked[fact] == spawned[fact], fact
    # 43 where they initialise themselves; a kernel that reclaims memory adds a few.
    assert max(one["faults of vector functions"] for one in (forked, spawned)) < 30
    assert forked["threads"] == 1
    assert forked["descriptors"] == ["0", "1", "2", "3"]


def test_two_forks_draw_different_random_numbers():
    first, second = (about(ZYGOTES, WAYS["off"])[0]["numbers"] for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_forked_child_is_bound_to_cores_like_a_program(start):
    for kind in ("worker", "builder"):
        cores = {way: os.sched_getaffinity(start(zygotes=way, kind=kind).pid) for way in (ZYGOTES, None)}
        assert cores[ZYGOTES] == cores[None]


def test_a_forked_child_ends_with_all_that_came_with_it(settings, folder):
    child = Child("worker", folder, settings)
    child.greet(time.monotonic() + PATIENCE_S)
    tree = child._tree()
    assert child.pid in tree
    child.close()
    assert all(gone(pid, 0.1) for pid in tree)


def test_how_a_forked_child_ended_is_told(settings, start):
    child = start(settings)
    os.kill(child.pid, signal.SIGSEGV)
    with pytest.raises(Exception, match="SIGSEGV"):
        child.receive(time.monotonic() + 10)


def test_a_fork_that_has_just_begun_is_no_offspring_of_the_candidate(settings, start):
    assert start(settings).offspring() == []


def test_another_environment_has_another_zygote(start, zygotes):
    start(WAYS["off"], zygotes)
    start(WAYS["off"].model_copy(update={"threads": 1}), zygotes)
    assert len(zygotes.pids) == 2


def test_a_zygote_that_was_killed_is_replaced(start, zygotes):
    start(zygotes=zygotes)
    (first,) = zygotes.pids
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    assert start(zygotes=zygotes).way == "forked"
    assert first not in zygotes.pids[:1]


def test_a_child_outlives_the_zygote_that_it_came_from(settings, start, zygotes):
    child = start(settings, zygotes)
    if settings.jail == "auto" and not settings.jail_without:
        os.kill(zygotes.pids[0], signal.SIGKILL)
    else:
        zygotes.close()
    child.send({"op": "nothing"})
    assert child.receive(time.monotonic() + 10) == {}


def test_where_the_zygote_dies_before_it_has_forked_the_child_is_spawned_and_that_is_logged(folder, zygotes, logged):
    with closing(Child("worker", folder, WAYS["off"], zygotes)) as child:
        (pid,) = zygotes.pids
        os.kill(pid, signal.SIGKILL)
        child.greet(time.monotonic() + PATIENCE_S)
        assert child.way == "spawned"
    assert "spawned" in logged.text and f"process {pid} " in logged.text


def test_after_repeated_failures_children_are_spawned_and_the_reason_is_kept_and_logged(start, zygotes, logged):
    for _ in range(3):
        zygotes.failed(zygotes.find({"PATH": os.defpath}), "it did not come to life")
    (message,) = logged.messages
    assert "no longer forked" in message and "it did not come to life" in message
    assert zygotes.obstacle == "it did not come to life"
    assert start(zygotes=zygotes).way == "spawned"


def test_a_zygote_that_has_grown_is_replaced_and_that_is_logged(zygotes, logged, monkeypatch):
    first = zygotes.find({"PATH": os.defpath})
    monkeypatch.setattr("kernelwright.sandbox.jail.zygote.RECYCLED_BYTES", 1)
    assert zygotes.find({"PATH": os.defpath}) is not first
    (message,) = logged.messages
    assert f"process {first.pid} " in message and "beyond its limit" in message


@pytest.mark.parametrize(("module", "way"), [("wave", "forked"), ("no_such_module", "spawned")])
def test_what_children_need_beside_torch_is_imported_for_them_where_that_can_be(folder, zygotes, module, way):
    folder.imports = (module,)
    found = []
    for _ in range(2):
        child = Child("worker", folder, WAYS["off"], zygotes)
        child.greet(time.monotonic() + PATIENCE_S)
        found.append((child.way, child._zygote.form.imports if child._zygote else None))
        child.close()
    assert found[0] == (way, (module,) if way == "forked" else None)
    assert found[1] == ("forked", (module,) if way == "forked" else ())
    assert zygotes.obstacle == ""


def test_in_a_zygotes_environment_torch_asks_cuda_for_no_devices(monkeypatch):
    """Torch's compiler looks for a device where it is imported, and what has asked CUDA can not be forked."""
    asked = []
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: asked.append("CUDA") or 1, raising=False)
    with monkeypatch.context() as there:
        for name, value in OWN_VARIABLES.items():
            there.setenv(name, value)
        assert not torch.cuda.is_available()
        assert not asked
    assert torch.cuda.is_available()
    assert asked == ["CUDA"]


def test_only_so_many_zygotes_are_kept(zygotes):
    for number in range(5):
        zygotes.find({"PATH": os.defpath, "NUMBER": str(number)})
    assert len(zygotes._found) == 4


def test_many_threads_may_ask_at_once(zygotes):
    def ask(_):
        with closing(WorkFolder()) as folder, closing(Child("worker", folder, WAYS["off"], zygotes)) as child:
            child.greet(time.monotonic() + PATIENCE_S)
            return child.way

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["forked"] * 8
    assert len(zygotes.pids) == 1


JUDGE = """
import os, sys, time
from kernelwright.sandbox.jail.process import Child
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright.sandbox.jail.zygote import ZYGOTES

folder = WorkFolder()
child = Child("worker", folder, JudgeSettings(jail="off"))
child.greet(time.monotonic() + 120)
"""


def judge(code):
    """Another judge, whose first child stands; what it prints after that."""
    words = [sys.executable, "-c", JUDGE + code]
    return subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)


def test_zygote_and_child_end_when_their_judge_is_killed():
    process = judge("print(ZYGOTES.pids[0], child.pid, flush=True); time.sleep(600)")
    pids = [int(word) for word in process.stdout.readline().split()]
    process.kill()
    process.wait()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_fork_of_the_judge_has_a_zygote_of_its_own():
    code = """
first = ZYGOTES.pids[0]
pid = os.fork()
if pid == 0:
    mine = Child("worker", WorkFolder(), JudgeSettings(jail="off"))
    mine.greet(time.monotonic() + 120)
    print(mine.way, ZYGOTES.pids[0] != first, flush=True)
    mine.close()
    ZYGOTES.close()
    os._exit(0)
os.waitpid(pid, 0)
child.send({"op": "nothing"})
print(child.receive(time.monotonic() + 10), ZYGOTES.pids[0] == first)
child.close()
folder.close()
"""
    process = judge(code)
    output, _ = process.communicate()
    assert output.splitlines() == ["forked True", "{} True"]


def test_a_protected_judge_can_still_read_its_children():
    code = """
from kernelwright.sandbox.jail.zygote import protect_this_process
from kernelwright.sandbox.tensors import read_bytes
protect_this_process()
second = Child("worker", folder, JudgeSettings())
second.greet(time.monotonic() + 120)
second.stop()
address = int(open(f"/proc/{second.pid}/maps").readline().partition("-")[0], 16)
print(len(read_bytes(second.pid, address, 16)), second.cpu_ms() > 0, second.offspring())
second.close()
child.close()
folder.close()
"""
    output, _ = judge(code).communicate()
    assert output.splitlines() == ["16 True []"]


@pytest.mark.parametrize("zygotes", [ZYGOTES, None], ids=["forked", "spawned"])
def test_a_child_that_is_timed_has_a_core_a_thread_and_a_builder_all(start, zygotes):
    one, all_of_them = WAYS["off"].model_copy(update={"threads": 1}), os.sched_getaffinity(0)
    assert os.sched_getaffinity(start(one, zygotes).pid) == {min(all_of_them)}
    assert os.sched_getaffinity(start(one, zygotes, kind="reference").pid) == {min(all_of_them)}
    assert os.sched_getaffinity(0) == all_of_them
    if zygotes is not None:
        assert os.sched_getaffinity(start(one, zygotes, kind="builder").pid) == all_of_them
