import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kernelwright import JudgePool, JudgingError, judge_many, load_problem
from kernelwright.sandbox.locks import processor_lock, processor_path
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child.supervisor import descendants
from tests.cli.test_judge_command import KEYS
from tests.support.problems import PROBLEM, RIGHT, WRONG
from tests.support.processes import waiters

pytestmark = pytest.mark.slow
QUICK = JudgeSettings(threads=1, min_pairs=4, max_pairs=4, worker_pairs=1, warm_up=1, time_budget_s=0.1)
SLOW = RIGHT.replace("def forward(self, x):", "def forward(self, x):\n        import time; time.sleep(60)")
SMALL = PROBLEM.replace("256, 2048", "8, 32")


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """A small problem; work folders are made beside it, so that what is left can be seen."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "problem.py"
    path.write_text(SMALL)
    return str(path)


OTHERS = set()


@pytest.fixture(autouse=True)
def others():
    """Processes that other tests keep in this one."""
    OTHERS.clear()
    OTHERS.update(descendants(os.getpid()))


def leftovers(folder):
    started = [pid for pid in descendants(os.getpid()) if pid not in OTHERS]
    return started, sorted(path.name for path in folder.glob("kernelwright-*") if path.is_dir())


def test_pairs_are_judged_eight_at_a_time_and_each_gets_its_own_result(problem, tmp_path):
    pairs = [(problem, WRONG if index % 3 == 0 else RIGHT) for index in range(16)]
    results = judge_many(pairs, concurrency=8, settings=QUICK)
    assert [result.index for result in results] == list(range(16))
    assert [result.passed for result in results] == [index % 3 != 0 for index in range(16)]
    assert leftovers(tmp_path) == ([], [])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Outcomes of several problems and sources that are judged in one go."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "problem.py").write_text(SMALL)
    (folder / "broken.py").write_text(PROBLEM.replace("dim=1", "dim=7"))
    loaded = load_problem(str(folder / "problem.py"))
    other = loaded.model_copy(update={"name": "other", "source": loaded.source.replace("dim=1", "dim=0")})
    pairs = [("rellu", RIGHT), (str(folder / "broken.py"), RIGHT), (str(folder / "problem.py"), RIGHT)]
    pairs += [(loaded, RIGHT), (other, RIGHT), (other, WRONG), (loaded, "x = '\ud800")]
    return judge_many(pairs, settings=QUICK)


def test_the_report_has_the_keys_of_the_judge_command(results):
    assert set(results[2].report) >= KEYS - {"samples"} and results[2].error is None


def test_problems_may_be_records_and_what_is_wrong_with_one_stops_no_other(results):
    found = [(result.problem, result.passed) for result in results[3:6]]
    assert found == [("problem", True), ("other", False), ("other", True)]
    assert "no problem 'rellu'" in results[0].error and "does not run" in results[1].error and results[2].passed
    assert results[6].report["stage"] == "scan"


def test_results_come_as_they_finish(problem):
    async def first():
        async with JudgePool(2, QUICK) as judging:
            return await anext(judging.judge_many([(problem, SLOW), (problem, "no candidate")]))

    assert asyncio.run(first()).index == 1


def test_leaving_early_ends_every_process_and_removes_every_folder(problem, tmp_path):
    async def leave():
        async with JudgePool(4, QUICK) as judging:
            async for _ in judging.judge_many([(problem, "no candidate")] + [(problem, SLOW)] * 6):
                await asyncio.sleep(1)
                break

    start = time.monotonic()
    asyncio.run(leave())
    assert leftovers(tmp_path) == ([], []) and time.monotonic() - start < 50


@pytest.mark.long
def test_a_cancelled_task_ends_every_process_and_removes_every_folder(problem, tmp_path):
    async def work():
        async with JudgePool(4, QUICK) as judging:
            return [result async for result in judging.judge_many([(problem, SLOW)] * 6)]

    async def cancel():
        task = asyncio.create_task(work())
        while len(descendants(os.getpid())) < 3:
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert leftovers(tmp_path) == ([], [])


def test_leaving_while_another_program_times_removes_every_folder(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def leave():
        async with JudgePool(1, QUICK) as judging:
            task = asyncio.create_task(judging.judge(problem, RIGHT))
            while waiters(processor_path()) < 1:
                assert not task.done()
                await asyncio.sleep(0.05)
            task.cancel()

    with processor_lock(tuple(os.sched_getaffinity(0))):
        asyncio.run(leave())
    assert leftovers(tmp_path) == ([], [])


async def test_one_of_many_asks_can_be_cancelled_and_the_others_go_on(problem):
    async with JudgePool(2, QUICK) as judging:
        other = asyncio.create_task(judging.judge(problem, RIGHT))
        late = asyncio.create_task(judging.judge(problem, RIGHT))
        await asyncio.sleep(0)
        late.cancel()
        passed, cancelled = (await other).passed, (await asyncio.gather(late, return_exceptions=True))[0]
    assert passed and isinstance(cancelled, asyncio.CancelledError)


def test_the_death_of_the_caller_leaves_nothing(problem, tmp_path):
    code = f"""
import asyncio
from kernelwright import JudgePool
async def main():
    async with JudgePool(2) as judging:
        await judging.judge({problem!r}, {SLOW!r})
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent.parent.parent) as caller:
        while len(started := descendants(caller.pid)) < 4:
            assert caller.poll() is None
            time.sleep(0.05)
        caller.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while (alive := [pid for pid in started if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive


def test_the_callers_process_imports_no_torch(problem):
    code = f"""
import sys
from kernelwright import judge_many
print(judge_many([({problem!r}, "no candidate")])[0].report["stage"], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["scan", "False"]


def test_judging_outside_of_its_context_or_with_a_concurrency_below_one_is_refused():
    with pytest.raises(JudgingError, match="`async with"):
        asyncio.run(JudgePool(1).judge("rms_norm", "x"))
    with pytest.raises(ValueError, match="concurrency is 0"):
        JudgePool(0)
