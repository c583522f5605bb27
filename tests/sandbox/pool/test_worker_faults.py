"""Workers that break off while they write: whoever waits is told, the work is done by another, nothing hangs."""

import asyncio
import io
import os
import subprocess
import sys

import pytest

from kernelwright import JudgePool
from kernelwright.agent.scheduler import ExecutorEvaluator
from kernelwright.evals.score import Batch, CandidateFile, Collected
from kernelwright.evals.verdict_store import VerdictStore
from kernelwright.sandbox.locks import processor_path
from kernelwright.sandbox.pool import executor
from kernelwright.sandbox.pool.dispatcher import TRIES, Dispatcher
from kernelwright.sandbox.pool.executor import Answer, LocalExecutor, Lost, Question, Unjudged, WorkerProcess
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.pool.lines import CHECK_S, STALLED_CHECKS, Ended, LineProcess, LineServer
from kernelwright.sandbox.pool.worker import reply_of
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.sandbox.pool.faulty import FAULTS
from tests.support.executors import QUICK, SUM, declared, judged, right
from tests.support.simulated import VERDICT

pytestmark = pytest.mark.slow


HANG_S = 60
"""Far beyond what any of this takes: a process starts within seconds, and is given up within one more."""
LARGE = "x" * 2**22
"""No pipe holds this."""
CORES = sorted(os.sched_getaffinity(0))[:1]


@pytest.fixture
def faulty(monkeypatch, tmp_path):
    """Makes workers break off in this way, so many of them one after the other."""

    def prepare(name, count):
        folder = tmp_path / "begun"
        folder.mkdir()
        monkeypatch.setenv("KERNELWRIGHT_FAULT", f"{name}:{count}:{folder}")
        monkeypatch.setenv("KERNELWRIGHT_ANSWER", Answer(verdict=VERDICT).model_dump_json(exclude_none=True))
        monkeypatch.setattr(executor, "WORKER", "tests.sandbox.pool.faulty")

    return prepare


def within_reason(work):
    async def limited():
        return await asyncio.wait_for(work, HANG_S)

    return asyncio.run(limited())


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"an_answer_that_is_none"}))
def test_whoever_waits_for_a_process_that_breaks_off_is_told_and_it_is_gone(faulty, name):
    faulty(name, 1)

    async def go():
        asked = await LineProcess.start("tests.sandbox.pool.faulty", "1", "{}")
        with pytest.raises(Ended):
            await asked.ask({"question": LARGE if name == "ended_with_its_input_full" else "?"})
        assert asked.has_ended and asked.asked == 0
        with pytest.raises(Ended):
            await asked.ask({"question": "?"})
        await asked.close()
        assert asked._process.returncode is not None

    within_reason(go())


def test_it_is_told_within_a_second_of_half_a_line(faulty):
    faulty("half_a_line", 1)

    async def go():
        asked = await LineProcess.start("tests.sandbox.pool.faulty", "1", "{}")
        waiting = asyncio.create_task(asked.ask({"question": "?"}))
        while not asked._half:
            await asyncio.sleep(0.01)
        stalled = 0
        while not waiting.done():
            await asyncio.sleep(CHECK_S)
            stalled += 1
        assert stalled <= STALLED_CHECKS + 2
        assert (STALLED_CHECKS + 1) * CHECK_S <= 1
        await asyncio.gather(waiting, return_exceptions=True)
        await asked.close()

    within_reason(go())


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_worker_broke_off_is_handed_out_again(faulty, name):
    faulty(name, 1)
    found, tally = within_reason(judged(LocalExecutor(QUICK, 1, declared(("fake",), CORES)), [right(1), right(2)]))
    assert [one.verdict for one in found] == [VERDICT] * 2
    assert sum(tally.lost.values()) >= 1


@pytest.mark.parametrize("name", ["killed_in_a_line", "nonsense"])
def test_work_that_loses_every_worker_is_told_as_lost(faulty, name):
    faulty(name, 99)

    async def go():
        async with Dispatcher(LocalExecutor(QUICK, 1, declared(("fake",), CORES))) as dispatcher:
            with pytest.raises(Unjudged, match="3 workers were lost"):
                await dispatcher.judge(right(1))
            with pytest.raises(MachineError, match="3 workers were lost"):
                await ExecutorEvaluator(dispatcher).evaluate(SUM, right(2).candidate)

    within_reason(go())


def test_an_answer_that_is_none_loses_its_worker(faulty):
    faulty("an_answer_that_is_none", 1)

    async def go():
        worker = WorkerProcess(JudgeSettings(), 1)
        with pytest.raises(Lost, match="not an answer"):
            await worker.ask(Question(stage="time", work=right(1)))
        answer = await worker.ask(Question(stage="time", work=right(1)))
        await worker.close()
        return answer

    assert within_reason(go()).verdict == VERDICT


@pytest.mark.parametrize("name, times", [("killed_in_a_line", 1), ("half_a_line", 2), ("output_closed", 3)])
def test_a_pool_tries_again_and_names_the_workers_that_a_candidate_lost(faulty, name, times):
    faulty(name, times)

    async def go():
        async with JudgePool(concurrency=2) as pool:
            return [await pool.judge(SUM, "class ModelNew: pass") for _ in range(2)]

    first, second = within_reason(go())
    assert second.report["outcome"] == "failed"
    assert first.error is None if times < TRIES else "3 workers were lost" in first.error


@pytest.mark.parametrize("name", ["killed_in_a_line", "half_a_line"])
def test_a_batch_has_a_line_for_each_file_though_workers_break_off(faulty, name, tmp_path):
    faulty(name, 2)
    files = []
    for number in range(3):
        path = tmp_path / f"{number}.py"
        path.write_text(right(number).candidate.source)
        files.append(CandidateFile("cumsum", path.name, path))
    done = []
    with VerdictStore(tmp_path / "scores.db") as store:
        used = LocalExecutor(QUICK, 1, declared(("fake",), CORES))
        Batch(store, done.append).run(Collected({"cumsum": SUM}, {}), files, used, None)
    assert sorted(one.file.name for one in done) == ["0.py", "1.py", "2.py"]
    assert all(one.measured for one in done)


class Failing:
    """A worker whose answers can not be made."""

    def answer(self, question):
        raise MemoryError


@pytest.mark.parametrize(
    "question", [{"no": "question"}, Question(stage="time", work=right(1)).model_dump(mode="json")]
)
def test_a_question_that_can_not_be_answered_is_answered(question):
    out = io.StringIO()
    server = LineServer(lambda message: reply_of(Failing(), message), 1, out)
    server.take({"id": 3, "question": question})
    server._pool.shutdown(wait=True)
    said = Answer.model_validate_json(out.getvalue().partition('"answer": ')[2].rstrip()[:-1])
    assert '"id": 3' in out.getvalue() and "please report it" in said.error.message


@pytest.mark.slow
def test_a_worker_whose_driver_is_killed_while_it_writes_ends_in_order():
    words = [sys.executable, "-m", "kernelwright.sandbox.pool.worker", "1", "{}"]
    done = subprocess.run(words, input=b'{"id": 0, "quest', capture_output=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_lock_that_can_not_be_taken_is_told_and_waited_for_by_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processor_path().mkdir()
    with Judges(JudgeSettings()) as judges:
        answer = judges.answer(Question(stage="time", work=right()))
    assert answer.error.machine_lacks and "(Is a directory)" in answer.error.message
