"""Every command that a page names is one that there is, with options that it has; every link leads somewhere."""

import re
import runpy
import subprocess
import tomllib

import pytest
import typer

from bench.__main__ import BENCHES
from kernelwright.cli import app
from tests.docs.pages import DOCS, NEEDS, PAGES, ROOT, inline, lines, name_of, prose

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
