"""The folder of the kept kernel."""

import json

import pytest

from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.run_log import RunLog
from kernelwright.problems import Problem
from tests.agent.search_parts import CONFIG, PROBLEM, SETTING, Scripted, new_log, parts_of, reply_with, searched


@pytest.fixture
def log(tmp_path):
    with new_log(tmp_path / "run") as log:
        yield log


def test_the_folder_holds_the_best_kernel_and_its_evidence(log):
    searched(log)
    folder = write_best(log, PROBLEM.name)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "candidate.py",
        "reference.py",
        "verdict.json",
    ]
    assert (folder / "candidate.py").read_text().startswith("# judged: 2.0\n")
    assert (folder / "reference.py").read_text() == PROBLEM.source


def test_the_verdict_names_what_it_is_about(log):
    searched(log)
    verdict = json.loads((write_best(log, PROBLEM.name) / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["speedup"]) == ("passed", pytest.approx(2.0))
    assert (verdict["problem_digest"], verdict["attempt"], verdict["run"]) == (PROBLEM.digest, 5, "run")


def test_the_readme_says_how_to_judge_again(log):
    searched(log)
    readme = (write_best(log, PROBLEM.name) / "README.md").read_text()
    assert "\nkernelwright judge reference.py candidate.py\n" in readme


def test_the_readme_warns_where_the_problem_sets_more_than_its_reference(tmp_path):
    import asyncio

    from kernelwright.agent.engine.search import search

    lenient = Problem(**PROBLEM.model_dump() | {"precision": "tf32"})
    with RunLog.create(tmp_path / "run", [lenient], SETTING) as log:
        asyncio.run(search(lenient, parts_of(log)))
        assert "precision: tf32" in (write_best(log, PROBLEM.name) / "README.md").read_text()


def test_writing_again_gives_the_same_files(log):
    searched(log)
    folder = write_best(log, PROBLEM.name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.unlink()
    write_best(log, PROBLEM.name)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_where_nothing_passed_nothing_is_written(log):
    searched(log, provider=Scripted({1: reply_with("check")}), config=CONFIG.model_copy(update={"attempts": 1}))
    assert write_best(log, PROBLEM.name) is None
    assert not (log.folder / "best").exists()


def test_a_folder_that_cannot_be_written_is_told(log):
    searched(log)
    (log.folder / "best").write_text("in the way")
    with pytest.raises(RunLogError, match="the run itself is safe"):
        write_best(log, PROBLEM.name)


def doubtful(status=None, samples=(2.0, 2.0)):
    """An evaluator whose verdicts carry a problem's status, and these ratios."""
    from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing, Passed, ProblemStatus
    from tests.agent.search_parts import EVIDENCE, ReadingEvaluator

    class Doubtful(ReadingEvaluator):
        async def evaluate(self, problem, candidate, **asked):
            pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * len(samples), baseline_ms=samples)
            why = ProblemStatus(status=status, why=("zeros pass",)) if status else None
            evidence = EVIDENCE.model_copy(update={"problem_status": why})
            return Passed(measurement=Measurement(pairings=(pairing,), threads=1), evidence=evidence)

    return Doubtful()


def readme_of(log, **doubts):
    config = CONFIG.model_copy(update={"attempts": 1})
    searched(log, provider=Scripted({1: reply_with("2.0")}), evaluator=doubtful(**doubts), config=config)
    return (write_best(log, PROBLEM.name) / "README.md").read_text()


def test_the_readme_warns_of_a_problem_that_lazy_answers_pass(log):
    assert "not ranked: zeros pass." in readme_of(log, status="weak")


def test_the_readme_warns_of_a_noisy_measurement(log):
    assert "too noisy for this number" in readme_of(log, samples=(0.5, 1.0, 2.0, 4.0, 8.0, 16.0))


def test_the_evidence_is_that_of_the_fresh_judge(log):
    from tests.agent.search_parts import ReadingEvaluator

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
    from tests.agent.search_parts import ReadingEvaluator

    searched(log, config=CONFIG.model_copy(update={"confirm": 0}))
    assert (write_best(log, PROBLEM.name) / "candidate.py").read_text().startswith("# judged: 2.0\n")
    searched(log, evaluator=ReadingEvaluator(afresh={"2.0": "check"}))
    assert (write_best(log, PROBLEM.name) / "candidate.py").read_text().startswith("# judged: 1.9\n")


def test_after_a_resume_in_which_every_kernel_is_refused_there_is_no_folder(log):
    from tests.agent.search_parts import ReadingEvaluator

    searched(log, config=CONFIG.model_copy(update={"confirm": 0}))
    folder = write_best(log, PROBLEM.name)
    refusing = ReadingEvaluator(afresh=dict.fromkeys(("2.0", "1.9", "1.5", "1.2"), "check"))
    view = searched(log, evaluator=refusing)
    assert view.best is None and write_best(log, PROBLEM.name) is None and not folder.exists()
