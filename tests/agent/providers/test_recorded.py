"""The recorded answers that ship: each story is whole, reads well, and its ends are what the judge says they are."""

import asyncio

import pytest

from kernelwright.agent.config import SearchConfig
from kernelwright.agent.engine import search
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers import ProviderError
from kernelwright.agent.providers.recorded import (
    CATALOG,
    RecordedProvider,
    read_session,
    recorded_targets,
    session_folder,
)
from kernelwright.agent.replies import Extraction, extract
from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK
from tests.support.search import PROBLEM, SETTING, Scripted, new_log, outline, parts_of, reply_with, searched

CONFIG = SearchConfig(model="recorded", attempts=9, drafts=1)
STORY = """\
label = "written for this test"

[[entries]]
file = "01-propose.md"
role = "propose"
prompt_digest = "{first}"
stable_digest = "{stable}"

[[entries]]
file = "02-repair.md"
role = "repair"
parent = 1
prompt_digest = "-"
stable_digest = "{stable}"

[[entries]]
file = "03-improve.md"
role = "improve"
parent = 2
prompt_digest = "-"
stable_digest = "-"

[[entries]]
file = "04-improve.md"
role = "improve"
parent = 2
prompt_digest = "-"
stable_digest = "-"
"""
SAYS = {"01-propose.md": "check", "02-repair.md": "1.5", "03-improve.md": "1.2", "04-improve.md": "1.8"}
REPLIES = {name: reply_with(judgement) for name, judgement in SAYS.items()}


@pytest.fixture
def catalog(tmp_path):
    write(tmp_path / "catalog", STORY.format(first="-", stable="-"))
    return tmp_path / "catalog"


def write(catalog, story, replies=REPLIES):
    folder = catalog / PROBLEM.name / "recorded" / "cpp"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "story.toml").write_text(story)
    for name, text in replies.items():
        (folder / name).write_text(text)


def files(view):
    return [attempt.reply.provider_request_id for attempt in view.attempts if attempt.reply]


def test_a_search_follows_the_story_to_its_end_and_a_pending_ask_is_asked_again_later(log, catalog):
    view = searched(log, provider=RecordedProvider(log, catalog), config=CONFIG)
    assert files(view) == list(REPLIES)
    assert view.best.number == 4 and "recorded answers" in view.stopped
    assert set(view.attempts[0].reply.usage.model_dump().values()) == {None}
    view = searched(log, provider=Scripted({5: reply_with("1.9")}), config=CONFIG.model_copy(update={"attempts": 5}))
    assert outline(view)[-1] == ("improve", 4, "passed")
    assert fold(PROBLEM.name, log.events()).best.number == 5


def test_a_search_that_was_stopped_goes_on_with_the_answers_that_are_left(log, catalog):
    short = CONFIG.model_copy(update={"attempts": 2})
    searched(log, provider=RecordedProvider(log, catalog), config=short)
    with RunLog.open(log.folder) as again:
        view = searched(again, provider=RecordedProvider(again, catalog), config=CONFIG)
    assert files(view) == list(REPLIES)


def test_no_answer_is_given_twice_in_several_slots(log, catalog):
    story = STORY.format(first="-", stable="-").replace('"repair"\nparent = 1', '"propose"')
    write(catalog, story.replace("parent = 2", "parent = 1"))
    config = CONFIG.model_copy(update={"slots": 2, "drafts": 2})
    view = searched(log, provider=RecordedProvider(log, catalog), config=config)
    assert files(view)[:2] == ["01-propose.md", "02-repair.md"]


def test_the_answer_that_follows_the_parents_comes_before_an_earlier_one(log, catalog):
    story = STORY.format(first="-", stable="-")
    write(catalog, story.replace('improve"\nparent = 2', 'improve"\nparent = 1', 1))
    view = searched(log, provider=RecordedProvider(log, catalog), config=CONFIG)
    assert files(view) == ["01-propose.md", "02-repair.md", "04-improve.md", "03-improve.md"]


def test_an_answer_to_another_parent_serves_where_none_follows(log, catalog):
    write(catalog, STORY.format(first="-", stable="-").replace("parent = 2", "parent = 1"))
    view = searched(log, provider=RecordedProvider(log, catalog), config=CONFIG)
    assert files(view) == list(REPLIES)


def test_the_note_says_how_like_the_recorded_prompt_is_to_this_one(log, catalog, tmp_path):
    with new_log(tmp_path / "first") as first:
        draft, repair = (
            one.prompt for one in searched(first, config=CONFIG.model_copy(update={"attempts": 2})).attempts
        )
    write(catalog, STORY.format(first=draft.digest, stable=repair.stable_digest))
    view = searched(log, provider=RecordedProvider(log, catalog), config=CONFIG)
    files, likeness, authors = zip(*(attempt.reply.note.split("; ") for attempt in view.attempts[:3]), strict=True)
    assert [file.rpartition(" ")[2] for file in files] == ["01-propose.md", "02-repair.md", "03-improve.md"]
    assert likeness[0].endswith("the same") and "measured values" in likeness[1] and "differs" in likeness[2]
    assert set(authors) == {"written for this test"}


def test_a_run_that_began_with_another_provider_can_end_with_recorded_answers(log, catalog):
    searched(log, provider=Scripted({1: reply_with("check")}), config=CONFIG.model_copy(update={"attempts": 1}))
    view = searched(log, provider=RecordedProvider(log, catalog), config=CONFIG)
    assert files(view) == [None, "02-repair.md", "03-improve.md", "04-improve.md"]


def test_a_problem_that_is_cast_has_a_story_of_its_own(tmp_path, catalog):
    cast = PROBLEM.model_copy(update={"dtype": "bfloat16"})
    with pytest.raises(ProviderError, match=r"'doubled' in bfloat16.* 'cpp' .*: none"):
        read_session(PROBLEM.name, "cpp", catalog, "bfloat16")
    (catalog / PROBLEM.name / "recorded" / "cpp").rename(catalog / PROBLEM.name / "recorded" / "cpp-bfloat16")
    assert recorded_targets(PROBLEM.name, catalog) == ()
    assert recorded_targets(PROBLEM.name, catalog, "bfloat16") == ("cpp",)
    with RunLog.create(tmp_path / "cast", [cast], SETTING) as log:
        view = asyncio.run(search(cast, parts_of(log, provider=RecordedProvider(log, catalog), config=CONFIG)))
    assert files(view) == list(REPLIES)


def test_the_targets_with_recorded_answers_are_named_and_a_problem_without_is_told(catalog):
    assert (recorded_targets(PROBLEM.name, catalog), recorded_targets("other", catalog)) == (("cpp",), ())
    with pytest.raises(ProviderError, match=r"'doubled' and target 'cuda' .*: cpp"):
        read_session(PROBLEM.name, "cuda", catalog)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("parent = 2", "parent = 4", "03-improve.md .*entry 4"),
        ("01-propose.md", "../01-propose.md", "entries.0.file"),
        ("02-repair.md", "01-propose.md", "the same file"),
        ('label = "', "label = ", "Invalid"),
        ("role", "rule", "entries.0"),
    ],
)
def test_a_malformed_story_is_told(catalog, old, new, told):
    write(catalog, STORY.format(first="-", stable="-").replace(old, new, 1))
    with pytest.raises(ProviderError, match=told):
        read_session(PROBLEM.name, "cpp", catalog)


def test_a_missing_reply_is_told(log, catalog):
    (catalog / PROBLEM.name / "recorded" / "cpp" / "01-propose.md").unlink()
    with pytest.raises(ProviderError, match=r"cannot read .*01-propose\.md"):
        searched(log, provider=RecordedProvider(log, catalog), config=CONFIG)


DTYPES = (None, "bfloat16")
STORIES = [
    (problem, target, dtype)
    for dtype in DTYPES
    for problem in catalog_names()
    for target in recorded_targets(problem, CATALOG, dtype)
]
EACH = pytest.mark.parametrize(("problem", "target", "dtype"), STORIES)
FIRST_FAILURE = {
    "activation_chain": "build",
    "argmax_rows": "run",
    "conv_transpose2d_depthwise": "run",
    "conv_transpose2d_strided_dilated": "check",
    "cross_entropy": "check",
    "max_pool2d": "check",
    "min_max": "check",
    "rms_norm": "load",
}
"""The stage at which the first answer of each story for target cpp fails."""


def answers_of(problem, target, dtype=None):
    folder = session_folder(problem, target, dtype=dtype)
    return [folder / entry.file for entry in read_session(problem, target, dtype=dtype).entries]


def candidate(path):
    found = extract(path.read_text(encoding="utf-8"))
    assert isinstance(found, Extraction), found
    return Candidate(source=found.source, language=found.language)


BRIEF = ("argmax_rows",)
"""Judged in every run of the tests; the others with the long ones."""


@pytest.mark.parametrize(("target", "count"), [("cpp", 12), ("cuda", 23)])
def test_so_many_problems_at_least_have_a_story(target, count):
    assert len([problem for problem, told, _ in STORIES if told == target]) >= count


@EACH
def test_a_session_names_every_answer_in_its_folder_each_with_its_own_candidate_and_parent(problem, target, dtype):
    entries, paths = read_session(problem, target, dtype=dtype).entries, answers_of(problem, target, dtype)
    names = [f"{number:02}-{entry.role}.md" for number, entry in enumerate(entries, start=1)]
    assert [entry.file for entry in entries] == names
    assert paths == sorted(session_folder(problem, target, dtype=dtype).glob("*.md"))
    assert len({candidate(path).digest for path in paths}) == len(paths)
    assert [entry.parent is None for entry in entries] == [entry.role == "propose" for entry in entries]
    repaired, improved = ({entry.parent for entry in entries if entry.role == role} for role in ("repair", "improve"))
    assert not repaired & improved


@pytest.mark.parametrize("problem", FIRST_FAILURE)
def test_a_story_of_the_demo_has_a_repair_and_an_improvement(problem):
    assert {"propose", "repair", "improve"} <= {entry.role for entry in read_session(problem, "cpp").entries}


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.long) for name in FIRST_FAILURE]
)
def test_the_first_answer_of_a_story_fails_at_its_stage_and_the_last_one_passes(problem):
    with Judge(load_problem(problem, "cpu"), QUICK) as judge:
        first, last = (judge.judge(candidate(answers_of(problem, "cpp")[place])) for place in (0, -1))
    assert isinstance(first, Failed) and first.stage == FIRST_FAILURE[problem], first
    assert isinstance(last, Passed), last


@pytest.mark.long
@pytest.mark.parametrize(
    "problem", [name for name, target, _ in STORIES if target == "cpp" and name not in FIRST_FAILURE]
)
def test_every_answer_of_a_story_outside_the_demo_passes(problem):
    with Judge(load_problem(problem, "cpu"), QUICK) as judge:
        verdicts = [judge.judge(candidate(path)) for path in answers_of(problem, "cpp")]
    assert all(isinstance(verdict, Passed) for verdict in verdicts), verdicts
