"""Installed in each way, it judges; also from a folder that has packages named like our folders."""

import json
import shutil
import tarfile
import zipfile

import pytest

import kernelwright
from tests.packaging.environments import COLLIDING, ROOT, done, tracked

pytestmark = [pytest.mark.slow, pytest.mark.long]

IMPORTED = (
    "import kernelwright; [getattr(kernelwright, name) for name in kernelwright.__all__]; print(kernelwright.__file__)"
)
CANDIDATE = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.amax(x, dim=1)
"""
JUDGE = """
from kernelwright import JudgeSettings, judge_many

if __name__ == "__main__":
    quick = JudgeSettings(min_pairs=4, max_pairs=4, worker_pairs=1)
    for one in judge_many([("max_rows", open("candidate.py").read())], settings=quick):
        print(one.error or one.report["outcome"])
"""


@pytest.fixture
def candidate(elsewhere):
    (elsewhere / "candidate.py").write_text(CANDIDATE)
    return "candidate.py"


def test_all_public_names_are_imported_from_where_it_is_installed(environment, elsewhere, place):
    assert environment.run("-c", IMPORTED, cwd=elsewhere).startswith(str(place))


def test_a_problem_of_the_catalog_is_judged_by_the_command(environment, elsewhere, candidate):
    said = environment.run("-m", "kernelwright", "judge", "max_rows", candidate, "--json", cwd=elsewhere)
    assert json.loads(said)["outcome"] == "passed"


def test_a_program_of_theirs_judges_in_processes_beside_it(environment, elsewhere, candidate):
    (elsewhere / "theirs.py").write_text(JUDGE)
    assert environment.run("theirs.py", cwd=elsewhere) == "passed\n"


def test_prompts_and_recorded_answers_are_found(from_wheel, elsewhere):
    from_wheel.run("-m", "kernelwright", "run", "max_rows", "--provider", "recorded", "--out", "run", cwd=elsewhere)
    assert (elsewhere / "run" / "best" / "max_rows").is_dir()


def test_a_run_is_shown_in_the_inspector(from_wheel, elsewhere):
    simulated = ("--provider", "simulated", "--attempts", "3", "--out", "run")
    from_wheel.run("-m", "kernelwright", "run", "max_rows", *simulated, cwd=elsewhere)
    from_wheel.run("-m", "kernelwright", "inspect", "run", "--export", "run.html", cwd=elsewhere)
    assert "<html" in (elsewhere / "run.html").read_text()


def test_what_is_installed_is_hidden_from_a_candidate_but_for_the_jail_s_own_package(from_wheel, elsewhere):
    ask = "from kernelwright.sandbox.jail import bubblewrap; print(*bubblewrap.hidden_paths())"
    assert from_wheel.run("-c", ask, cwd=elsewhere).split() == [str(from_wheel.site / "kernelwright")]


def test_the_snooping_candidate_learns_nothing_from_what_is_installed(from_wheel, place):
    tests = place / "snooping"
    shutil.copytree(ROOT / "tests", tests / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tests)
    said = from_wheel.run(
        *("-m", "pytest", "tests/hostile/test_attacks.py", "-q", "-k", "attempt or honest", "-p", "no:cacheprovider"),
        cwd=tests,
    )
    assert " passed" in said and "kernelwright" not in said


OURS = {"kernelwright", "kernelwright_child"}
ONLY_HERE = ("README.md", "ruff.toml")
"""What the folders have for those who work on them."""


def shipped():
    """All files of the packages, by the names under which they are installed."""
    homes = {name: f"kernelwright/{name}" for name in COLLIDING} | {name: name for name in OURS}
    parts = [name.partition("/") for name in tracked()]
    found = {f"{homes[top]}/{rest}" for top, _, rest in parts if top in homes and not rest.endswith(ONLY_HERE)}
    return found - {f"kernelwright/{name}" for name in COLLIDING}


def test_the_archive_of_the_sources_holds_every_file_of_the_packages_and_no_link(sdist):
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert shipped() - names == set()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert not [name for name in names if name.partition("/")[0] in (*COLLIDING, "tests", "bench")]


def test_the_wheel_holds_exactly_the_files_of_the_packages_and_serves_every_python_and_machine(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == shipped()
    assert wheel.name.endswith("-py3-none-any.whl")


def test_pip_puts_one_package_and_the_jail_s_own_into_site_packages(from_folder, from_wheel):
    for environment in (from_folder, from_wheel):
        (about,) = environment.installed() - OURS
        assert about.startswith("kernelwright-") and about.endswith(".dist-info")
        assert {name for name in COLLIDING if (environment.site / "kernelwright" / name).is_symlink()} == set()


def test_what_a_command_line_says_of_its_version_is_what_was_installed(from_wheel, wheel, elsewhere):
    (about,) = from_wheel.installed() - OURS
    assert from_wheel.run("-m", "kernelwright", "--version", cwd=elsewhere).split()[1] == about.split("-")[1][:-5]


USES = """

def told(problem: str, source: str) -> str:
    verdict: Verdict = judge(load_problem(problem), Candidate(source=source), JudgeSettings(min_pairs=4))
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
