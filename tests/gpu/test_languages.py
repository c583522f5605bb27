"""The further languages on a device: honest candidates pass, hostile ones do not; each needs its language's package."""

import pytest

from bench.measuring import recorded_source
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.problems import catalog_names
from kernelwright.sandbox.authenticity.evidence import read_authenticity
from kernelwright.sandbox.authenticity.scan import candidate_of, refuse
from kernelwright.sandbox.machine import PACKAGES, require_package
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from kernelwright_child import driver
from tests.gpu.harness import SETTINGS, Judges
from tests.gpu.languages import HONEST, HOSTILE

EVERY = [(language, *item) for corpus in (HONEST, HOSTILE) for language in corpus for item in corpus[language].items()]
ON_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]


@pytest.mark.parametrize(("language", "name", "told"), EVERY, ids=lambda value: value if isinstance(value, str) else "")
def test_a_candidate_is_a_program_in_its_language_that_calls_its_own_kernel(language, name, told):
    assert not refuse(told.source)
    assert told.candidate.language == language
    assert read_authenticity(told.source).label == "custom"


def test_every_language_with_a_package_has_honest_and_hostile_candidates():
    assert set(HONEST) == set(HOSTILE) == set(PACKAGES)


ANSWERED = [(name, one) for name in catalog_names() for one in recorded_targets(name) if one in PACKAGES]


@pytest.mark.parametrize(("name", "language"), ANSWERED)
def test_a_recorded_answer_is_a_program_in_its_language_with_a_kernel_of_its_own(name, language):
    source = recorded_source(name, language)
    assert (candidate_of(source).language, read_authenticity(source).label) == (language, "custom")


@pytest.fixture(scope="module")
def judges():
    with Judges(SETTINGS.model_copy(update={"call_timeout_s": 60})) as judges:  # a first call may compile
        yield judges


def needs(language):
    try:
        require_package(language)
    except MachineError as obstacle:
        pytest.skip(str(obstacle))


def cases(corpus):
    return [pytest.param(language, told, id=f"{language}-{name}", marks=ON_DEVICE)
            for language in corpus for name, told in corpus[language].items()]  # fmt: skip


@pytest.mark.parametrize(("language", "told"), cases(HONEST))
def test_an_honest_candidate_passes(judges, language, told):
    needs(language)
    verdict = judges.judged(told.problem, told.source)
    assert isinstance(verdict, Passed), verdict
    assert verdict.evidence.authenticity.label == "custom"


@pytest.mark.parametrize(("language", "told"), cases(HOSTILE))
def test_a_hostile_candidate_gains_nothing(judges, language, told):
    needs(language)
    verdict = judges.judged(told.problem, told.source)
    if told.may_be_waited_for and isinstance(verdict, Passed):
        assert verdict.measurement.interval.high < 1, verdict
        return
    assert isinstance(verdict, Failed), verdict
    assert any(words in verdict.reason for words in told.words.split("|")), verdict
