import json
import re
import shlex
import shutil
import sys
from datetime import UTC, datetime

import pytest

from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.events import Event, JudgedAttempt, RunLogError, Stopped
from kernelwright.agent.log.view import fold
from kernelwright.problems import load_problem
from kernelwright.problems.loading import cast
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing, Passed, ProblemStatus
from tests.docs.walking import called
from tests.support.runs import writing
from tests.support.search import (
    CONFIG,
    EVIDENCE,
    PROBLEM,
    SETTING,
    ReadingEvaluator,
    Scripted,
    new_log,
    passed,
    reply_with,
    searched,
)


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    with new_log(tmp_path_factory.mktemp("view") / "run") as log:
        searched(log)
        return tuple(log.events())


def event(body):
    return Event(seq=1, time=datetime.now(UTC), body=body)


def test_folding_in_two_parts_is_folding_at_once_and_leaves_earlier_views_as_they_were(events):
    view = early = fold(PROBLEM.name, events[:10])
    copy = early.model_copy(deep=True)
    for later in events[10:]:
        view = view.after(later)
    assert view == fold(PROBLEM.name, events)
    assert early == copy


def test_folding_costs_as_much_for_each_event_however_many_there_are(tmp_path):
    costs = []
    for attempts in (20, 80):
        with new_log(tmp_path / str(attempts)) as log:
            answers = {number: reply_with(str(number)) for number in range(1, attempts + 1)}
            config = CONFIG.model_copy(update={"attempts": attempts, "patience": attempts})
            searched(log, provider=Scripted(answers), config=config)
            events = tuple(log.events())
        costs.append(calls_in(lambda events=events: fold(PROBLEM.name, events)) / len(events))
    assert costs[1] < 1.5 * costs[0]


def calls_in(work):
    """How many functions are called: what grows with the work, and not with how slow the machine is."""
    count = 0

    def counted(frame, kind, argument):
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_failures_are_counted_by_outcome_and_a_view_of_another_problem_is_empty(events):
    assert fold(PROBLEM.name, events).failures == {"failed at check": 1, "no candidate (no_code)": 1}
    assert fold("other", events).attempts == ()


@pytest.mark.parametrize(("kind", "outcome"), [("asked", "not answered yet"), ("extracted", "not judged yet")])
def test_what_is_not_finished_is_pending(events, kind, outcome):
    end = next(index for index, event in enumerate(events) if event.kind == kind) + 1
    assert [attempt.outcome for attempt in fold(PROBLEM.name, events[:end]).pending] == [outcome]


def test_the_best_follows_a_later_and_faster_attempt(events):
    ends = [index + 1 for index, event in enumerate(events) if event.kind == "judged"]
    bests = [fold(PROBLEM.name, events[:end]).best for end in ends]
    assert [best and best.number for best in bests] == [None, 2, 4, 5, 5, 5]


def test_a_stopped_search_says_why_until_it_goes_on(events):
    stopped = fold(PROBLEM.name, [*events, event(Stopped(problem=PROBLEM.name, reason="enough"))])
    assert stopped.stopped == "enough"


def test_an_event_of_an_attempt_that_was_never_asked_and_a_gap_in_the_numbers_are_refused(events):
    with pytest.raises(RunLogError, match="has no attempt 3"):
        fold(PROBLEM.name, [event(JudgedAttempt(problem=PROBLEM.name, attempt=3, verdict=passed(1.0)))])
    later = [one for one in events if one.attempt == 2]
    with pytest.raises(RunLogError, match="from attempt 0 to 2"):
        fold(PROBLEM.name, later)


def test_the_folder_holds_the_best_kernel_its_evidence_and_how_to_judge_it_again(log):
    searched(log)
    folder = write_best(log, PROBLEM.name)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "candidate.py", "problem", "verdict.json"]
    assert (folder / "candidate.py").read_text().startswith("# judged: 2.0\n")
    assert (folder / "problem" / "reference.py").read_text() == PROBLEM.source
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["speedup"]) == ("passed", pytest.approx(2.0))
    assert (verdict["problem_digest"], verdict["attempt"], verdict["run"]) == (PROBLEM.digest, 5, "run")
    assert command_in(folder) == ["kernelwright", "judge", "./problem", "candidate.py"]
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    shutil.rmtree(folder)
    write_best(log, PROBLEM.name)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before and len(before) == 5


def command_in(folder):
    """The words that the folder's README gives for judging again, wherever in it; there is one way."""
    (command,) = re.findall(r"kernelwright judge [^`\n]*", (folder / "README.md").read_text())
    return shlex.split(command)


def test_what_was_measured_on_a_device_is_judged_again_on_one(log):
    searched(log, evaluator=doubtful(device="cuda:1"), config=CONFIG.model_copy(update={"attempts": 2}))
    assert command_in(write_best(log, PROBLEM.name))[4:] == ["--device", "cuda"]


def kernelbench_file(folder):
    """A problem as a file of KernelBench's tree, which has an origin."""
    (folder / "level1").mkdir(parents=True)
    (folder / "level1" / "5_Double.py").write_text(PROBLEM.source)
    return load_problem(str(folder / "level1" / "5_Double.py"))


POSED = {
    "a problem of the catalog": lambda folder: load_problem("max_rows"),
    "one of the catalog at its size for GPUs": lambda folder: load_problem("max_rows", "gpu"),
    "a file with an origin": kernelbench_file,
    "one in bfloat16": lambda folder: cast(kernelbench_file(folder), "bfloat16"),
    "one with rules of its own": lambda folder: PROBLEM.model_copy(
        update={"precision": "tf32", "operators": "no-library", "direction": "both", "state": "followed"}
    ),
}


def kept(folder, problem):
    with writing(folder / "run", of=problem, chosen=SETTING) as writer:
        writer.attempt(passed(2.0), source=problem.source.replace("class Model(", "class ModelNew("))
        writer.flush()
        return write_best(writer.log, problem.name)


@pytest.mark.parametrize("name", POSED)
def test_the_problem_beside_the_kernel_is_the_one_that_it_was_judged_by(tmp_path, name):
    problem = POSED[name](tmp_path)
    again = load_problem(str(kept(tmp_path, problem) / "problem"))
    assert again.model_copy(update={"name": problem.name, "size": problem.size}) == problem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a problem of the catalog", "one in bfloat16"])
def test_the_command_of_the_readme_judges_the_kernel_by_that_problem(tmp_path, name):
    problem = POSED[name](tmp_path)
    folder = kept(tmp_path, problem)
    done = called([*command_in(folder), "--effort", "screen"], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (device,) = [line for line in done.stdout.split("\n") if line.startswith("device: ")]
    assert device.endswith(", bfloat16") is (problem.dtype == "bfloat16")


def test_where_nothing_passed_nothing_is_written(log):
    searched(log, provider=Scripted({1: reply_with("check")}), config=CONFIG.model_copy(update={"attempts": 1}))
    assert write_best(log, PROBLEM.name) is None
    assert not (log.folder / "best").exists()


def test_a_folder_that_cannot_be_written_is_told(log):
    searched(log)
    (log.folder / "best").write_text("in the way")
    with pytest.raises(RunLogError, match="the run itself is safe"):
        write_best(log, PROBLEM.name)


def doubtful(status=None, samples=(2.0, 2.0), device="cpu"):
    """An evaluator whose verdicts carry a problem's status, these ratios and this device."""

    class Doubtful(ReadingEvaluator):
        async def evaluate(self, problem, candidate, **asked):
            pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * len(samples), baseline_ms=samples)
            why = ProblemStatus(status=status, why=("zeros pass",)) if status else None
            evidence = EVIDENCE.model_copy(update={"problem_status": why, "device": device})
            return Passed(measurement=Measurement(pairings=(pairing,), threads=1), evidence=evidence)

    return Doubtful()


@pytest.mark.parametrize(
    ("doubts", "said"),
    [
        ({"status": "weak"}, "not ranked: zeros pass."),
        ({"samples": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)}, "too noisy"),
        ({"samples": (0.5, 0.5)}, "slower than PyTorch"),
    ],
    ids=["a problem that lazy answers pass", "a noisy measurement", "a slower kernel"],
)
def test_the_readme_warns_of_what_is_doubtful(log, doubts, said):
    config = CONFIG.model_copy(update={"attempts": 1})
    searched(log, provider=Scripted({1: reply_with("2.0")}), evaluator=doubtful(**doubts), config=config)
    assert said in (write_best(log, PROBLEM.name) / "README.md").read_text()


def test_the_evidence_is_that_of_the_fresh_judge(log):
    searched(log, evaluator=ReadingEvaluator(afresh={"2.0": "1.8", "1.9": "1.7"}))
    verdict = json.loads((write_best(log, PROBLEM.name) / "verdict.json").read_text())
    assert verdict["speedup"] == pytest.approx(1.8)


class Noting(Scripted):
    """Answers with a note that ends as a sentence does."""

    async def complete(self, request, ask, prompt):
        return (await super().complete(request, ask, prompt)).model_copy(update={"note": "Written by hand."})


def test_a_note_and_a_reason_that_end_in_a_full_stop_get_no_second_one(log):
    searched(log, provider=Noting())
    readme = (write_best(log, PROBLEM.name) / "README.md").read_text()
    assert "\nWritten by hand.\n" in readme and ".." not in readme


def test_after_a_resume_in_which_the_kernel_is_refused_the_folder_is_of_the_next_one(log):
    searched(log, config=CONFIG.model_copy(update={"confirm": 0}))
    assert (write_best(log, PROBLEM.name) / "candidate.py").read_text().startswith("# judged: 2.0\n")
    searched(log, evaluator=ReadingEvaluator(afresh={"2.0": "check"}))
    assert (write_best(log, PROBLEM.name) / "candidate.py").read_text().startswith("# judged: 1.9\n")


def test_after_a_resume_in_which_every_kernel_is_refused_there_is_no_folder(log):
    searched(log, config=CONFIG.model_copy(update={"confirm": 0}))
    folder = write_best(log, PROBLEM.name)
    refusing = ReadingEvaluator(afresh=dict.fromkeys(("2.0", "1.9", "1.5", "1.2"), "check"))
    view = searched(log, evaluator=refusing)
    assert view.best is None and write_best(log, PROBLEM.name) is None and not folder.exists()
