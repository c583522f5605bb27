"""Every command that a page names is one that there is, with options that it has; every link leads somewhere."""

import math
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from typing import get_args

import pytest
import typer

from bench.__main__ import BENCHES
from bench.results.records import Searched, read_lines
from bench.sections import RECORD, answered_by, left_out, tables, target
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.strategies import SHIPPED
from kernelwright.cli import app
from kernelwright.problems.input_distributions import DISTRIBUTIONS
from kernelwright.problems.languages import LANGUAGES
from kernelwright.sandbox.correctness.checks import CHECKS
from kernelwright.sandbox.verdict.gpu_timing import CALLS_MS, CHAIN_MS, CHAIN_SHARE, CHAIN_SHORT_MS
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.settings import Accuracy, Defence, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Passed
from tests import structure
from tests.docs.pages import DOCS, NEEDS, PAGES, ROOT, blocks, inline, lines, name_of, prose, runnable
from tests.docs.walking import FILES, RMS_NORM, called, write
from tests.support.commands import run_with
from tests.support.problems import PROBLEM, RIGHT
from tests.support.runs import passed
from tests.support.servers import fake_reply, http_stub

COMMAND = typer.main.get_command(app)
TARGETS = set(re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {"demo"}
SHELL = {"make", "kernelwright", "python", "export"}
OTHERS = {"--include-dashboard", "--object-store-memory", "--array", "--privileged", "--fix"}
"""Options of other programs that the prose names."""
ALL = [line for page in PAGES for line in lines(page)]
OURS = [line for line in ALL if line.words[0] == "kernelwright"]


def test_what_is_run_as_a_bench_can_be_run():
    for module, _, function in (place.partition(".") for place in BENCHES.values()):
        (path,) = [*ROOT.glob(f"bench/{module}.py"), *ROOT.glob(f"bench/{module}/__init__.py")]
        assert re.search(rf"^def {function}\(", path.read_text(), re.MULTILINE), function


def leaf(words):
    """The command that the words name, and the words that are left for it."""
    command = COMMAND
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"no command {words[0]!r}; there are: {', '.join(command.commands)}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def options(command):
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union({"--help"}, *(options(one) for one in getattr(command, "commands", {}).values()))


def check_named(words):
    """Of a command in the prose, which may be given in part."""
    if words[0] == "kernelwright":
        command, rest = leaf([word for word in words[1:] if re.fullmatch("[a-z-]+", word) or word.startswith("-")])
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options(command)
    elif words[0] == "make":
        assert set(words[1:]) <= TARGETS
    else:
        assert words[3:4] == [] or words[3] in BENCHES


def test_the_pages_name_commands():
    assert len(OURS) > 50 and len({line.page for line in OURS}) > 5


@pytest.mark.parametrize("line", OURS, ids=str)
def test_a_command_has_the_words_that_it_is_given(line):
    command, rest = leaf(line.words[1:])
    command.make_context(command.name, list(rest))


@pytest.mark.parametrize("line", ALL, ids=str)
def test_what_a_command_needs_is_one_of_few_things(line):
    assert line.needs is None or line.needs in NEEDS


@pytest.mark.parametrize("line", [line for line in ALL if line.words[0] not in SHELL], ids=str)
def test_another_program_s_command_says_what_it_needs(line):
    assert line.needs


@pytest.mark.parametrize("line", [line for line in ALL if line.words[0] == "make"], ids=str)
def test_the_makefile_has_what_a_page_types(line):
    done = subprocess.run([*line.words, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_prose_are_there(page):
    for code in inline(page):
        words = [word for word in code.split() if not re.fullmatch(r"[A-Z_]+=\S+", word)]
        if words and (words[0] in ("kernelwright", "make") or words[:3] == ["python", "-m", "bench"]):
            check_named(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_in_the_prose_are_some_command_s(page):
    known = options(COMMAND) | OTHERS
    named = {code.split()[0].partition("=")[0] for code in inline(page) if code.startswith("--")}
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_pages_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if heading:
            assert heading in headings(target), link


def headings(page):
    """As sites and GitHub name them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in found}


def test_the_site_has_every_page_in_its_menu():
    menu = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    named = re.findall(r"[\w/-]+\.md", str(menu))
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_picture_of_the_packages_is_drawn_from_today_s_imports():
    drawn = runpy.run_path(str(DOCS / "pictures/packages.py"))["drawn"]()
    assert (DOCS / "pictures/packages.svg").read_text() == drawn


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_are_there(page):
    rooms = r"(?:agent|bench|docs|evals|kernelwright|problems|prompts|sandbox|tests)"
    paths = [code for code in inline(page) if re.fullmatch(rf"{rooms}/[\w./-]+", code)]
    assert not [path for path in paths if not re.search("[A-Z]{4}", path) and not (ROOT / path).exists()]


ROWS = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| .+ \| (.+) \|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
NOUNS = [(noun, re.findall(r"`([^`]+)`", places)) for names, places in ROWS for noun in re.findall(r"`(\w+)`", names)]
CLASSES = [(noun, places) for noun, places in NOUNS if noun[0].isupper()]


def test_each_is_a_class_in_one_of_the_files_that_its_row_names():
    for noun, places in CLASSES:
        files = [
            path
            for place in places
            for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
        ]
        assert any(re.search(rf"^(?:class {noun}\b|{noun} =)", path.read_text(), re.MULTILINE) for path in files), noun


def test_the_folders_that_the_page_lists_are_those_of_the_packages():
    page = (DOCS / "architecture.md").read_text()
    for package in structure.BELOW:
        (row,) = re.findall(rf"^\| `{package}` \| [^|]+ \|([^|]*)\|", page, re.MULTILINE)
        rooms = {one.room.split(".")[0] for one in structure.modules().values() if one.package == package and one.room}
        assert set(re.findall(r"`(\w+)`", row)) == rooms


PAGES = {package: structure.ROOT / package / "README.md" for package in ("sandbox", "kernelwright_child")}


def rooms_named(package):
    """The first column of the page's table; a dot is the package's own folder."""
    cells = re.findall(r"^\| `([\w/]+|\.)` \|", PAGES[package].read_text(), re.MULTILINE)
    return [cell.strip(".").replace("/", ".") for cell in cells]


@pytest.mark.parametrize("package", PAGES)
def test_a_package_s_page_names_each_of_its_folders(package):
    found = {module.room for module in structure.modules().values() if module.package == package}
    assert {room for room in rooms_named(package) if room} == {room for room in found if room}


@pytest.mark.parametrize("package", PAGES)
def test_the_files_that_a_package_s_page_names_are_there(package):
    folders = {structure.ROOT / package, structure.ROOT / "kernelwright_child"}
    for name in re.findall(r"`([\w/]+\.(?:py|cpp))`", PAGES[package].read_text()):
        assert (structure.ROOT / name).is_file() or any(any(folder.rglob(name)) for folder in folders), name


def test_a_language_is_named_in_its_own_file_alone():
    data = {"catalog", "examples", "snippets"}
    files = [path for package in structure.BELOW for path in (structure.ROOT / package).rglob("*.py")]
    shipped = [path.relative_to(structure.ROOT) for path in files if not data & set(path.parts)]
    found = [str(path) for path in shipped if re.search("helion", read(path), re.IGNORECASE)]
    assert found == ["problems/languages/helion.py"]


def read(path):
    return (structure.ROOT / path).read_text(encoding="utf-8")


def first_column(page, heading):
    """The first cells of the table whose heading begins so."""
    rows = (DOCS / page).read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.strip("|").split("|")[0].strip() for row in rows]


def names(page, heading):
    return [name for cell in first_column(page, heading) for name in re.findall(r"`([^`]+)`", cell)]


def test_the_judge_s_page_has_every_input_distribution():
    assert sorted(first_column("judge.md", "distribution")) == sorted(DISTRIBUTIONS)


def test_it_has_every_check_that_can_be_disabled():
    assert sorted(names("judge.md", "check")) == sorted({*get_args(Defence), *(one.name for one in CHECKS)})


def test_it_has_every_effort_and_every_accuracy():
    assert names("judge.md", "`--effort`") == list(get_args(JudgingEffort))
    assert names("judge.md", "`--accuracy`") == list(get_args(Accuracy))


def test_the_page_on_gpus_has_the_uncertainty_of_the_clock():
    text = (DOCS / "gpu.md").read_text()
    chain = f"| `chain` | {1000 * CHAIN_MS:g} us, or {100 * CHAIN_SHARE:g} % where that is more |"
    assert f"{chain} {1000 * CHAIN_SHORT_MS:g} us |" in text
    assert f"| `calls` | {CALLS_MS:g} ms | {CALLS_MS:g} ms |" in text


def test_it_has_every_language_of_gpus():
    assert set(names("gpu.md", "target")) == {name for name, one in LANGUAGES.items() if one.device == "cuda"}


def test_the_search_s_page_has_every_strategy_and_the_defaults():
    assert sorted(names("search.md", "`--strategy`")) == sorted(SHIPPED)
    text, config = (DOCS / "search.md").read_text(), SearchConfig(target="cpp", model="any")
    for line in (
        f"| `drafts`, `repairs` | {config.drafts}, {config.repairs} |",
        f"| `patience`, `gain` | {config.patience}, {config.gain} |",
        f"| `confirm`, `tune` | {config.confirm}, {config.tune} |",
        f"| `models`, `stall`, `choice` | none, {config.stall}, `{config.choice}` |",
    ):
        assert line in text


def test_the_page_on_records_has_every_key_of_a_verdict():
    assert sorted(names("formats-and-records.md", "keys")) == sorted(report(passed(2.0)))


@pytest.mark.parametrize("page", ["judge.md", "gpu.md"])
def test_the_example_of_a_page_is_the_stored_verdict_that_it_names(page):
    (record,) = [code.split()[-1] for code in inline(DOCS / page) if "--recheck bench/records" in code]
    found = run_with(ROOT, "judge", "--recheck", record)
    assert found.returncode == 0, found.stderr
    assert found.stdout.partition("samples: ")[2].strip() in " ".join(blocks(DOCS / page, "console")[0].split())


PAGE = (DOCS / "search.md").read_text(encoding="utf-8")
FOUND = list(read_lines(RECORD, Searched.model_validate_json))


def test_its_tables_are_those_of_the_record():
    assert FOUND
    for table in tables(FOUND):
        assert table in PAGE


def test_what_leaving_a_section_out_was_worth_follows_from_the_first_verdicts():
    speedups = {}
    for one in FOUND:
        verdict = one.attempts[0].attempt.verdict
        if answered_by(one) != "recorded" and isinstance(verdict, Passed):
            speedups[left_out(one), one.problem] = verdict.measurement.speedup
    ratios = [speedups["crib", problem] / speedups["", problem] for name, problem in speedups if name == "crib"]
    middle = math.prod(ratios) ** (1 / len(ratios))
    (line,) = [line for line in tables(FOUND)[0].splitlines() if line.startswith("| crib |")]
    assert f"| {middle:.2f} ({len(ratios)} problems) |" in line


def test_every_run_of_a_target_was_asked_about_the_same_problems():
    asked = {}
    for one in FOUND:
        if answered_by(one) != "recorded":
            asked.setdefault(target(one), {}).setdefault(left_out(one), set()).add(one.problem)
    for parts in asked.values():
        others = {frozenset(names) for left, names in parts.items() if left}
        assert len(others) == 1 and parts[""] >= next(iter(others))


README = ROOT / "README.md"


def test_the_readme_begins_with_two_commands_of_make():
    assert [line.words for line in lines(README)][:2] == [["make", "run"], ["make", "test"]]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """What the README's user has done by then: a run, and a verdict on record."""
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "my_problem.py").write_text(PROBLEM)
    (folder / "my_right.py").write_text(RIGHT)
    with http_stub(fake_reply(RIGHT)) as server:
        short = "--attempts 1 --set measure=false --set confirm=0"
        start = shlex.split(f"kernelwright run my_problem.py --model m --out runs/TIME {short}")
        assert called(start, folder, server).returncode in (0, 1)  # on a busy machine, too noisy to keep a kernel
        judged = called(
            shlex.split("kernelwright judge my_problem.py my_right.py --effort search --json"), folder, server
        )
    (folder / "record.json").write_text(judged.stdout)
    return folder


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, FILES | {"my_strategy.py": STRATEGY})
    return tmp_path


STRATEGY = """
from kernelwright.agent.strategies import draft, drafts_made

def propose(view, slots, rng):
    return [draft(view, drafts_made(view))]
"""


def marked(line):
    """What judges takes long, and tests of the command line judge the same way."""
    judging = {"run", "resume", "replay", "judge", "score", "check", "--verify"} & set(line.words)
    long = judging and "simulated" not in line.words
    return pytest.param(line, marks=pytest.mark.long if long else (), id=line.text)


@pytest.mark.slow
@pytest.mark.parametrize("line", [marked(line) for line in runnable(README)])
def test_a_command_of_the_readme_works(folder, earlier, model_server, line):
    candidate = RIGHT if re.search("my_problem|path/to|runs/|KernelBench", line.text) else RMS_NORM
    (folder / "candidate.py").write_text(candidate)
    server = model_server(fake_reply(candidate))
    words = [word.replace("http://localhost:8000/v1", server.base_url) for word in line.words]
    take_over(earlier, folder, words)
    if "softmax_rows" in words:
        # One right answer for all problems there is not: what is said is asked, and the wrong ones are told.
        assert called([*words, "--attempts", "1"], folder, server).returncode == 1
        return
    if "run" in words:
        words += ["--attempts", "16" if "simulated" in words else "1"]  # which answers are right is drawn
    done = called(words, folder, server)
    if "check" in words and "too short to be timed" in done.stdout:  # on a busy machine, a problem of this size
        assert done.returncode == 1
        return
    assert done.returncode == 0, done.stdout + done.stderr


def take_over(earlier, folder, words):
    if any(word.startswith("runs") and word != "runs/theirs" for word in words):
        shutil.copytree(earlier / "runs", folder / "runs", dirs_exist_ok=True)
    if "runs/A" in words:
        (folder / "runs/TIME").rename(folder / "runs/A")
        shutil.copytree(folder / "runs/A", folder / "runs/B")
    if "record.json" in words:
        shutil.copy(earlier / "record.json", folder)


@pytest.mark.long
@pytest.mark.slow
def test_the_python_of_the_readme_works(tmp_path):
    (code,) = blocks(README, "python")
    (tmp_path / "candidate.py").write_text(RMS_NORM)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Interval(" in done.stdout


def test_the_needed_programs_are_those_that_the_readme_names():
    needed = README.read_text().partition("Needed: ")[2].partition(".\n")[0]
    for program in ("make", "g++"):
        assert program in needed and shutil.which(program)
