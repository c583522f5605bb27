"""The Ray executor with the real judge: a cluster of this machine alone, with declared devices."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernelwright.agent.scheduler import ExecutorEvaluator
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import Product, Work
from kernelwright.sandbox.pool.ray import RayExecutor
from kernelwright.sandbox.storage import VARIABLE
from kernelwright.sandbox.verdict.verdicts import Candidate
from kernelwright_child import supervisor
from tests.sandbox.pool.test_executor import executor as local_executor
from tests.support.executors import COMPILED, HIDDEN, NEGATED, QUICK, batch, judged, outcome, right

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    # Not by importing it: Ray reads then whether it has to ask for a token.
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'kernelwright[ray]'"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two declared devices need two cores"),
]


def executor(*kinds):
    return RayExecutor(QUICK, None, 2, kinds)


def test_ray_and_local_give_the_same_verdicts():
    here, _ = asyncio.run(judged(local_executor("fake", "fake"), batch()))
    there, tally = asyncio.run(judged(executor("fake", "fake"), batch()))
    assert [outcome(one.verdict) for one in there] == [outcome(one.verdict) for one in here]
    assert len(tally.busy_s) == 2


async def test_what_pytorch_takes_can_be_asked_of_a_cluster():
    async with Dispatcher(executor("fake")) as dispatcher:
        verdict = await ExecutorEvaluator(dispatcher).measure(NEGATED)
    assert (list(verdict.measurement.baselines_ms), verdict.evidence.effort) == (["eager"], "screen")


def children_of(name):
    """Processes of this machine's Ray whose title has `name` in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if title.startswith("ray::") and name in title:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(("title", "stage"), [("DeviceWorker.answer", "time"), ("build", "build")])
def test_a_worker_killed_in_mid_batch_loses_nothing_and_repeats_only_its_own_work(title, stage):
    works = [right(number) for number in range(6)]

    async def kill_one(dispatcher):
        while not (pids := children_of(title)):
            await asyncio.sleep(0.02)
        os.kill(pids[0], signal.SIGKILL)

    found, tally = asyncio.run(judged(executor("fake", "fake"), works, during=kill_one))
    assert [outcome(one.verdict) for one in found] == ["passed"] * 6
    expected = Counter(build=6, time=6)
    assert tally.ended == expected
    assert tally.begun == expected + Counter({stage: 1})
    assert tally.lost == Counter({stage: 1})


def test_a_candidate_meets_neither_ray_nor_its_token():
    work = Work(problem=NEGATED, candidate=Candidate(source=HIDDEN))
    found, _ = asyncio.run(judged(executor("fake"), [work]))
    assert found[0].verdict.stage in ("load", "run")
    assert re.search(r"seen: \[\]", found[0].verdict.reason)


def test_results_belong_to_the_kind_that_was_asked_for():
    found, _ = asyncio.run(judged(executor("small", "big"), [right(1)], kind="big"))
    assert found[0].device.conditions.device == "big"


def test_a_build_reaches_the_device_through_the_object_store(tmp_path, monkeypatch):
    """The build is taken out of the store before the device asks for it, as if the store were another machine's."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))

    async def build_and_time():
        used = executor("fake")
        try:
            device = (await used.open())[0]
            work = Work(problem=NEGATED, candidate=Candidate(source=COMPILED, language="cpp"))
            product = await used.build(work)
            assert isinstance(product, Product) and product.digest
            kept = tmp_path / "store" / "builds" / product.digest
            kept.rename(tmp_path / "taken")
            answer = await used.run("time", work, product, device)
            return answer.verdict, kept
        finally:
            await used.close()

    verdict, kept = asyncio.run(build_and_time())
    assert outcome(verdict) == "passed"
    assert "taken from the store" in " ".join(verdict.evidence.builds)
    assert (kept / "entry.json").exists()


def test_a_client_without_the_token_is_turned_away(tmp_path):
    async def knock():
        used = executor("fake")
        try:
            await used.open()
            address = used.gcs_address
            (tmp_path / "token").write_text("0" * 64)
            asked = (
                "import ray\n"
                f"ray.init(address={address!r}, log_to_driver=False)\n"
                "print('IN', ray.get(ray.remote(lambda: 1).remote()))\n"
            )
            environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
            command = partial(subprocess.run, [sys.executable, "-c", asked], env=environment, timeout=120, check=False)
            return await asyncio.to_thread(command, capture_output=True, text=True)
        finally:
            await used.close()

    done = asyncio.run(knock())
    assert done.returncode != 0
    assert "IN" not in done.stdout
    assert "uth" in done.stderr


def listening():
    """Addresses on which processes of this machine's Ray, this one's descendants, and this one listen, as in /proc."""
    at = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                at[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = []
    for pid in (os.getpid(), *supervisor.descendants(os.getpid())):
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                found.append(at.get(str(path.readlink())))
    return {address for address in found if address}


def test_a_cluster_of_this_machine_alone_listens_on_the_loopback_alone():
    async def look():
        used = executor("fake")
        try:
            await used.open()
            return await asyncio.to_thread(listening)
        finally:
            await used.close()

    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    found = asyncio.run(look())
    assert found and found <= loopback
