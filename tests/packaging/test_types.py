import shutil

import pytest

import kernelwright
from tests.packaging.environments import done

pytestmark = [pytest.mark.slow, pytest.mark.long]

USES = """

def told(problem: str, source: str) -> str:
    verdict: Verdict = judge(load_problem(problem), Candidate(source=source), Settings(min_pairs=4))
    if isinstance(verdict, Passed):
        return f"{verdict.measurement.speedup:.2f}"
    return verdict.reason
"""
WRONG = "\n\nload_problem(7)\n"


@pytest.fixture
def program(elsewhere):
    names = ",\n    ".join(kernelwright.__all__)
    every = f"\n\nEVERY = ({', '.join(kernelwright.__all__)})\n"
    path = elsewhere / "theirs.py"
    path.write_text(f'"""Theirs."""\n\nfrom kernelwright import (\n    {names},\n)\n{every}{USES}')
    return path


def test_mypy_is_content_with_it_and_not_with_a_mistake(from_wheel, elsewhere, program):
    words = ("-m", "mypy", "--strict", "--config-file", "/dev/null", "--cache-dir", elsewhere / ".types", program.name)
    assert "no issues found" in from_wheel.run(*words, cwd=elsewhere)
    program.write_text(program.read_text() + WRONG)
    said = done(from_wheel.python, *words, cwd=elsewhere, code=1)
    assert said.count("error:") == 1 and "load_problem" in said


def test_pyright_is_content_with_it_and_not_with_a_mistake(from_wheel, elsewhere, program):
    checker = shutil.which("pyright")
    if checker is None:
        pytest.skip("no pyright is found: npm install --global pyright")
    (elsewhere / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    words = (checker, "--pythonpath", from_wheel.python, program.name)
    assert done(*words, cwd=elsewhere).startswith("0 errors, 0 warnings")
    program.write_text(program.read_text() + WRONG)
    assert "reportArgumentType" in done(*words, cwd=elsewhere, code=1)
