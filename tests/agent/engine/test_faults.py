"""A fault is put into a correct kernel: the prompt that asks for its repair says what decides."""

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK
from tests.support.faults import FAULTS, PROBLEM, RIGHT, missing_words, repair_prompt, with_fault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judge():
    with Judge(PROBLEM, QUICK.model_copy(update={"call_timeout_s": 2.0})) as judge:
        yield judge


def test_the_kernel_is_right_without_a_fault(judge):
    verdict = judge.judge(Candidate(source=RIGHT, language="cpp"))
    assert isinstance(verdict, Passed), verdict


@pytest.mark.parametrize("fault", FAULTS)
def test_the_repair_prompt_names_what_decides(judge, fault):
    source = with_fault(fault)
    assert source != RIGHT
    verdict = judge.judge(Candidate(source=source, language="cpp"))
    assert isinstance(verdict, Failed), verdict
    assert not missing_words(fault, verdict), repair_prompt(source, verdict)


@pytest.mark.parametrize("fault", ["a missing semicolon", "a method that is not there"])
def test_no_line_of_the_evidence_stands_twice(judge, fault):
    source = with_fault(fault)
    verdict = judge.judge(Candidate(source=source, language="cpp"))
    lines = [line.strip() for line in repair_prompt(source, verdict).splitlines() if len(line.strip()) > 20]
    assert len(lines) == len(set(lines))
