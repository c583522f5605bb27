"""The page's figures are those of the boards, and count nothing that the boards do not."""

import hashlib
import json
import random
import re
from datetime import UTC, datetime

import pytest

from bench.results import figures
from bench.results.again import join, read_hazards
from bench.results.asking import without_open
from bench.results.figures import after_each_answer, by_idea, by_role, dtype_boards, failures, level_figures, rounds
from bench.results.keeping import Chosen, keep, read_selection
from bench.results.page import write_page
from bench.results.records import (
    Searched,
    indexed,
    is_outdated,
    judgings_in,
    meet,
    read_index,
    read_lines,
    records_in,
    rejudged,
    searched,
    waiting,
    write_lines,
)
from kernelwright.agent.config import FilesOptions, SearchConfig
from kernelwright.agent.log.events import Confirmed, Stopped
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.evals.metrics import summarize
from kernelwright.evals.runs import RunConfig
from kernelwright.evals.verdict_store import Judgement
from kernelwright.problems import ProblemError
from kernelwright.problems.problem import Origin
from kernelwright.sandbox.pool.executor import Conditions
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.bench.results.walk import ROOT, SETTINGS, table
from tests.support.runs import REFERENCE, Writer, doubted, ended, evidence, failed, passed, problem, writing

CONDITIONS = Conditions(judge_version="h2", device="Example CPU", torch="2", settings="{}")
SHA256 = hashlib.sha256(REFERENCE.encode()).hexdigest()
ADDRESSES = ("level1/5", "level1/15", "level2/5")


def made(address):
    level, _, number = address.partition("/")
    origin = Origin(format="kernelbench", id=address, title=f"{number}_Made.py")
    return problem(f"{level}_{number}_Made", family=level, origin=origin)


def setting(model="model-a", device="Example CPU", torch="2", judging=None, **changes):
    once = {"drafts": 1, "tune": 0, "share": False, "confirm": 1, "learn": False, "attempts": 2}
    search = SearchConfig(model=model, target="cpp", **(once | changes))
    plan = RunConfig(search=search, provider=FilesOptions(), judging=judging or JudgeSettings())
    versions = {"python": "3.11", "judge_version": "h1", "torch": torch}
    return Setting(config=plan.model_dump(mode="json"), device=device, versions=versions)


@pytest.fixture
def run(tmp_path):
    """Three problems: one wins by an improvement, one fails twice, one is repaired and slower than all."""
    with RunLog.create(tmp_path / "run", [made(address) for address in ADDRESSES], setting()) as log:
        first, second, third = (Writer(log, made(address).name, random.Random(0)) for address in ADDRESSES)
        first.attempt(passed(1.5, compiled=1.2, shipped=1.4))
        first.attempt(passed(3.0, compiled=2.0, shipped=2.5), parent=1, role="improve")
        first.put(Confirmed(problem=first.name, attempt=2, verdict=passed(2.9, compiled=1.9, shipped=2.4)))
        second.attempt(failed("build"))
        second.attempt(None, parent=1, role="repair")
        third.attempt(failed("check"))
        third.attempt(passed(0.8, compiled=0.7, shipped=0.8), parent=1, role="repair")
        for writer in (first, second, third):
            writer.stop()
    return tmp_path / "run"


def second_judging(row, verdict):
    return Judgement(
        problem=row.problem, problem_digest=row.facts.digest, candidate=row.kernel, conditions=CONDITIONS,
        candidate_digest=row.facts.best.candidate_digest, time=datetime(2026, 2, 3, tzinfo=UTC), verdict=verdict,
    )  # fmt: skip


def judged_later(one, answered, verdict, day):
    return Judgement(
        problem=one.problem, problem_digest=one.facts.digest, candidate="", conditions=CONDITIONS,
        candidate_digest=answered.digest, time=datetime(2026, 2, day, tzinfo=UTC), verdict=verdict,
    )  # fmt: skip


def test_what_an_older_clock_timed_is_judged_again_before_the_best_is_chosen(tmp_path):
    with RunLog.create(tmp_path / "run", [made("level1/5")], setting()) as log:
        writer = Writer(log, made("level1/5").name, random.Random(0))
        writer.attempt(doubted(3.0, "events"))
        quick = doubted(2.0, "confirmed").model_copy(update={"evidence": evidence(effort="search")})
        writer.attempt(quick, parent=1, role="improve")
        writer.stop()
    (one,) = searched(tmp_path / "run")
    first, second = one.attempts
    assert one.best == first and waiting(one, ()) == [first]

    def later(answered, speedup, day):
        return judged_later(one, answered, doubted(speedup, "confirmed"), day)

    again = [later(first, 1.5, 3)]
    now, further = rejudged(one, again)
    assert now.best.digest == second.digest and not further and waiting(one, again) == [second]
    assert [round(trial.first, 1) for trial in indexed([one], again).rows[0].tries] == [1.5, 2.0]
    again += [later(second, 2.1, 3)]
    assert [answered.digest for answered in waiting(one, again)] == [second.digest], "a second time"
    again += [later(second, 2.2, 4)]
    (row,) = indexed([one], again).rows
    assert (row.facts.best.measured.effort, round(row.facts.best.measured.speedup, 1)) == ("rank", 2.1)
    assert figures.second_apart([row]) == [pytest.approx(2.2 / 2.1 - 1, abs=0.02)] and not waiting(one, again)


def by_judge(version, speedup=2.0, moved=True):
    """A verdict of that judge; a moved result is doubted, since it may take a hand-over longer."""
    found = doubted(speedup, "confirmed")
    device = found.measurement.on_device
    check = device.check.model_copy(update={"moves_data": moved, "empty_ms": (5.0,)})
    measurement = found.measurement.model_copy(update={"on_device": device.model_copy(update={"check": check})})
    return found.model_copy(update={"measurement": measurement, "evidence": evidence(judge_version=version)})


def test_a_doubt_of_a_judge_that_took_chance_for_moved_inputs_does_not_last(tmp_path):
    assert by_judge("6").measurement.comparison == "unconfirmed"
    outdated = [is_outdated(by_judge(version)) for version in (None, "4be86e80f895e1d9", "6", "7", "8")]
    assert outdated == [True, True, True, False, False]
    assert not is_outdated(by_judge("6", moved=False)) and not is_outdated(failed()) and not is_outdated(None)

    with RunLog.create(tmp_path / "run", [made("level1/5")], setting()) as log:
        writer = Writer(log, made("level1/5").name, random.Random(0))
        writer.attempt(doubted(1.5, "confirmed"))
        writer.attempt(by_judge("6"), parent=1, role="improve")
        writer.stop()
    (one,) = searched(tmp_path / "run")
    first, second = one.attempts
    assert one.best == first and waiting(one, ()) == [second]
    verdicts = by_judge("6"), by_judge("7", moved=False)
    again = [judged_later(one, second, verdict, day) for day, verdict in enumerate(verdicts, 1)]
    assert waiting(one, again[:1]) == [second], "nor does its second judging"
    now, further = rejudged(one, again)
    assert now.best.digest == second.digest and not further


def test_an_answer_with_an_outdated_verdict_is_judged_again_unless_something_followed():
    def event(seq, kind, attempt, **body):
        return [seq, "", kind, "p", attempt, json.dumps({"problem": "p", "attempt": attempt} | body)]

    asked = {"ask": {"parent": 1}, "request_digest": "ab" * 32}
    verdict = {"verdict": by_judge("6").model_dump(mode="json")}
    rows = [event(1, "asked", 1, ask={"parent": None}), event(2, "replied", 1), event(3, "judged", 1, **verdict)]
    later = event(4, "asked", 2, **asked)
    assert without_open([*rows, later], ()) == rows[:2]
    assert without_open([*rows, later], ["ab" * 32 + ".answer.md"]) == [*rows, later]
    assert without_open([*rows, later, event(5, "replied", 2)], ()) == [*rows, later, event(5, "replied", 2)]
    rows[2] = event(3, "judged", 1, verdict=by_judge("7").model_dump(mode="json"))
    assert without_open([*rows, later], ()) == rows


def test_what_several_processes_judged_is_joined(run, tmp_path):
    rows = indexed(searched(run), ()).rows
    folders = [tmp_path / name for name in ("own", "one", "two")]
    for folder in folders:
        folder.mkdir()
        write_lines(folder / "records.jsonl.gz", searched(run))
    shared, added = (second_judging(row, passed(2.0)) for row in (rows[0], rows[2]))
    write_lines(folders[0] / "again.jsonl.gz", [shared])
    write_lines(folders[1] / "again.jsonl.gz", [shared, added])
    (folders[2] / "hazards.json").write_text('{"ab": {"racecheck": "clean"}}')
    assert join(folders[0], folders[1:]) == 1
    assert len(judgings_in(folders[0])) == 2
    assert read_hazards(folders[0]) == {"ab": {"racecheck": "clean"}}
    assert read_index(folders[0]).rows[2].again is not None


def test_a_row_has_the_numbers_of_the_verdict_that_counts(run):
    first = indexed(searched(run), ()).rows[0]
    assert first.facts.best.measured == summarize(passed(2.9, compiled=1.9, shipped=2.4))
    assert (first.address, first.title, first.dtype) == ("level1/5", "5_Made", "float32")
    assert first.kernel.endswith("float32/level1-5.py")
    assert [turn.outcome for turn in first.tries] == ["passed", "passed"]
    assert [turn.prompt_tokens for turn in first.tries] == [900, 900]


def test_rates_have_the_failures_in_their_denominator_against_each_baseline(run):
    (one,) = dtype_boards(indexed(searched(run), ()))
    found = level_figures(one.ranked, list(one.results()))
    assert (found.problems, found.right) == (3, 2)
    assert found.fast_1 == dict.fromkeys(("best", "eager", "shipped", "compile"), pytest.approx(1 / 3))
    assert found.mean == one.row.geometric_mean and found.mean.count == 2
    level1 = level_figures([pair for pair in one.ranked if pair[0].address.startswith("level1")], ["best"])
    assert (level1.problems, level1.right, level1.fast_1["best"]) == (2, 1, 0.5)


def test_the_last_of_the_answers_comes_to_what_the_board_says(run):
    (one,) = dtype_boards(indexed(searched(run), ()))
    first, last = after_each_answer(one)
    assert (first.right, first.fast_1) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert (last.right, last.fast_1) == (one.row.fast["best"][0.0], one.row.fast["best"][1.0])
    assert last.mean > first.mean > 1


def test_roles_and_ideas_tell_what_they_gained(run):
    rows = indexed(searched(run), ()).rows
    roles = by_role(rows)
    assert {role: (found.asked, found.right, found.faster) for role, found in roles.items()} == {
        "propose": (3, 1, None), "improve": (1, 1, 1), "repair": (2, 1, None),
    }  # fmt: skip
    assert roles["improve"].gain == pytest.approx(1.9 / 1.2, rel=0.05)
    ideas = by_idea(rows)
    assert next(iter(ideas)) == "idea 2" and ideas["idea 2"].gain == roles["improve"].gain
    assert (ideas["idea 1"].tried, ideas["idea 1"].won, ideas["idea 1"].gain) == (3, 2, None)
    assert {outcome: len(found) for outcome, found in failures(rows).items()} == {
        "failed at build": 1, "failed at check": 1, "no candidate (refusal)": 1,
    }  # fmt: skip


def test_what_a_later_judge_refused_counts_as_a_failure(run):
    found = searched(run)
    first = indexed(found, ()).rows[0]
    index = indexed(found, [second_judging(first, failed("check"))])
    assert not index.rows[0].again.meets
    (one,) = dtype_boards(index)
    assert one.pairs[0][1].status == "quarantined" and one.row.correct == 1
    assert [turn.outcome for turn in one.kept[0].tries] == ["passed", "refused by a later judge"]
    assert "improve" in by_role(index.rows) and by_role(index.rows)["improve"].right == 0
    assert [after.right for after in after_each_answer(one)] == [pytest.approx(1 / 3), pytest.approx(2 / 3)]


@pytest.fixture
def further(run):
    """The run, where the second problem gets a third answer: a repair that was measured with the effort `search`."""
    quick = passed(9.0, spread=0.0)
    quick = quick.model_copy(update={"evidence": evidence().model_copy(update={"effort": "search"})})
    with RunLog.open(run) as log:
        writer = Writer(log, made("level1/15").name, random.Random(0))
        writer.count = 2
        writer.attempt(quick, parent=1, role="repair")
        yield writer


def test_what_was_not_measured_in_full_counts_for_nothing_at_the_end(run, further):
    further.stop()
    (one,) = dtype_boards(indexed(searched(run), ()))
    assert one.row.correct == 2
    assert {kept.address: cell.status for kept, cell in one.pairs}["level1/15"] == "provisional"
    assert level_figures(one.ranked, ["best"]).right == 2


def test_while_a_search_goes_on_what_it_measured_counts(run, further):
    further.flush()
    (one,) = dtype_boards(indexed(searched(run), ()))
    assert one.row.correct == 2
    found = level_figures(one.ranked, list(one.results()))
    assert (found.problems, found.right, found.fast_1["best"]) == (3, 3, pytest.approx(2 / 3))
    assert len(after_each_answer(one)) == 3


def test_what_waits_for_its_answer_is_no_failure_and_no_row(results, tmp_path):
    with RunLog.create(tmp_path / "run", [made(address) for address in ADDRESSES], setting()) as log:
        first, second, third = (Writer(log, made(address).name, random.Random(1)) for address in ADDRESSES)
        first.attempt(passed(1.3))
        first.attempt(failed("check"), parent=1, role="improve")
        second.attempt(passed(2.0, spread=0.0))
        second.ask(parent=1, role="improve")
        third.ask()
        for writer in (first, second, third):
            writer.flush()
    index = keep(results, [tmp_path / "run"])
    (one,) = dtype_boards(index)
    assert [kept.address for kept, _ in one.pairs] == ["level1/5", "level1/15"]
    assert level_figures(one.ranked, ["best"]).fast_1 == {"best": 1.0}
    assert [after.answers for after in after_each_answer(one)] == [1], "the second has one answer so far"
    assert {role: found.asked for role, found in by_role(index.rows).items()} == {"propose": 2, "improve": 1}
    page = write_page(results, tmp_path / "docs")[0].read_text()
    assert "float32 3 of 3 problems" in flat(page) and "level2/5 none" in flat(page)
    (how,) = (line for line in page.splitlines() if line.startswith("| level1/15 |"))
    assert "| 1.3 k |" in how, "tokens of what was answered"
    assert "correct kernel: none" in page and "| level2/5" not in page


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("again", "meets"), [(passed(1.905, spread=0.0), True), (passed(1.2, spread=0.0), False), (failed(), False)]
)
def test_intervals_meet_if_they_have_a_point_in_common(again, meets):
    assert meet(summarize(passed(1.9)), summarize(again)) is meets


def test_the_record_is_read_back_as_it_was_and_its_bytes_are_the_same_each_time(run, tmp_path):
    found = searched(run)
    for name in ("one", "two"):
        write_lines(tmp_path / name, found)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert list(read_lines(tmp_path / "one", Searched.model_validate_json)) == found


def test_a_record_that_was_cut_off_is_told_with_its_remedy(run, tmp_path):
    write_lines(tmp_path / "one", searched(run))
    (tmp_path / "one").write_bytes((tmp_path / "one").read_bytes()[:-20])
    with pytest.raises(ProblemError, match=r"one .*\(EOFError\).*restore"):
        list(read_lines(tmp_path / "one", Searched.model_validate_json))


def test_the_page_says_what_was_chosen_and_is_not_there(run, tmp_path):
    chosen = {address: Chosen(file="x", sha256=SHA256, dtypes=("float32",)) for address in (*ADDRESSES, "level3/5")}
    (tmp_path / "selection.toml").write_text(SETTINGS + table(chosen))
    (tmp_path / "index.json").write_text(indexed(searched(run), ()).model_dump_json())
    page = write_page(tmp_path, tmp_path / "docs")[0].read_text()
    assert "float32 1 of 4 problems" in flat(page) and "level3/5 none" in flat(page) and "kernel: level1/15" in page
    assert "| level1/5 Made | 1.20, 2.00 |" in page and "| level1/15 Made | build, " in page


def test_what_ships_is_derived_from_the_record_that_ships_and_drawn_from_it(tmp_path):
    shipped, docs = ROOT / "results", ROOT / "docs"
    assert indexed(records_in(shipped), judgings_in(shipped)) == read_index(shipped)
    for path in write_page(shipped, tmp_path):
        assert path.read_text() == (docs / path.relative_to(tmp_path)).read_text(), path.name


def test_the_times_of_a_row_are_those_of_its_speedup():
    rows = [line.split(" | ") for line in (ROOT / "docs/results.md").read_text().splitlines()]
    timed = [row for row in rows if len(row) == 13 and row[11] in ("eager", "torch.compile default")]
    for row in timed or pytest.fail("no row"):
        theirs, ours, speedup = (float(one) for one in (row[3 if row[11] == "eager" else 5], row[2], row[8].split()[0]))
        assert theirs / ours == pytest.approx(speedup, rel=0.06), row[0]


def test_the_readme_s_headline_has_the_figures_of_the_page_s_table():
    page = (ROOT / "docs/results.md").read_text().splitlines()
    readme = " ".join((ROOT / "README.md").read_text().split())
    start = next(at for at, line in enumerate(page) if line.startswith("| dtype | problems |"))
    names, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in page[start : start + 4])
    for row in (dict(zip(names, cells, strict=True)) for cells in rows[1:]):
        assert f"{row['correct']} of {row['problems']}" in readme
        assert row["geometric mean of the correct [95 %]"] in readme and row["against any, failures as 1"] in readme
    assert ("result, unfinished" in readme) is any("This is under way" in line for line in page)
    twice = re.findall(r"\d+ of \d+ (?=kept kernels were)|by [\d.]+ % (?=in the|at most)", " ".join(page))
    assert len(twice) == 3 and all(said in readme for said in twice)


@pytest.fixture
def results(tmp_path):
    chosen = {address: Chosen(file="x", sha256=SHA256, dtypes=("float32",)) for address in ADDRESSES}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/selection.toml").write_text(SETTINGS + table(chosen))
    return tmp_path / "results"


def test_a_run_over_some_problems_takes_the_place_of_what_was_kept_of_them(run, results, tmp_path):
    assert len(keep(results, [run]).rows) == 3
    ended(tmp_path / "later", passed(1.3), of=made("level1/15"), chosen=setting())
    with pytest.raises(ProblemError, match=r"level1/15 in float32.* --replace"):
        keep(results, [tmp_path / "later"])
    assert len(keep(results, [run]).rows) == 3, "the same run as far as it has come"
    index = keep(results, [tmp_path / "later"], replace=True)
    assert [(row.address, row.run.split()[0]) for row in index.rows] == [
        ("level1/5", "run"), ("level1/15", "later"), ("level2/5", "run"),
    ]  # fmt: skip
    assert {path.name for path in results.rglob("*.py")} == {"level1-5.py", "level1-15.py", "level2-5.py"}


def test_one_table_is_of_one_model_and_one_device(run, results, tmp_path):
    keep(results, [run])
    ended(tmp_path / "other", of=made("level1/15"), chosen=setting(model="model-b"))
    with pytest.raises(ProblemError, match=r"float32 differ \(model-a, .*; model-b"):
        keep(results, [tmp_path / "other"], replace=True)
    with pytest.raises(ProblemError, match=r"two .*level1/5 in float32"):
        keep(results, [run, run])
    ended(tmp_path / "played", of=made("level1/15"), chosen=setting(device="simulated"))
    with pytest.raises(ProblemError, match="landscape"):
        keep(results, [tmp_path / "played"], replace=True)


LEFT_OUT = ".*leave that run out"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attempts": 50}, "search.attempts 50, "),
        ({"without": ("crib",)}, "search.without"),
        ({"strategy": "best_of"}, "search.strategy 'best_of'"),
        ({"judging": JudgeSettings(jail="off")}, f"judged without a jail{LEFT_OUT}"),
        ({"judging": JudgeSettings(jail_without=("namespaces",))}, f"judging.jail_without{LEFT_OUT}"),
        ({"judging": JudgeSettings(without=("weights",))}, f"judging.without{LEFT_OUT}"),
        ({"judging": JudgeSettings(compiled=("default",))}, f"judging.compiled{LEFT_OUT}"),
    ],
)
def test_a_run_that_was_made_or_judged_in_another_way_than_chosen_is_not_kept(results, tmp_path, changes, said):
    ended(tmp_path / "run", of=made("level1/5"), chosen=setting(**changes))
    with pytest.raises(ProblemError, match=said):
        keep(results, [tmp_path / "run"])


def test_another_problem_under_the_address_is_not_kept(results, tmp_path):
    other = made("level1/5").model_copy(update={"source": REFERENCE + "\n# another\n"})
    ended(tmp_path / "run", of=other, chosen=setting())
    with pytest.raises(ProblemError, match="another level1/5 "):
        keep(results, [tmp_path / "run"])


def test_an_option_that_no_run_can_be_held_against_is_told():
    other = read_selection(ROOT / "results").model_copy(update={"options": ("--temperature 1",)})
    with pytest.raises(ProblemError, match="--temperature 1"):
        other.settings  # noqa: B018


def test_a_search_that_ended_early_is_told_with_its_reason(results, tmp_path):
    with writing(tmp_path / "run", passed(1.3), of=made("level1/5"), chosen=setting()) as writer:
        writer.stop("the best takes as long as the floor")
    keep(results, [tmp_path / "run"])
    page = write_page(results, tmp_path / "docs")[0].read_text()
    assert "- level1/5 in float32" in page and "as long as the floor" in page


def test_the_floor_tells_nothing_of_a_kernel_below_it(run):
    (one,) = dtype_boards(indexed(searched(run), ()))
    shares = iter((0.5, 2.0, 0.5))

    def at(kept, cell):
        if (found := cell.published) is None:
            return kept, cell
        found = found.model_copy(update={"floor_ms": (found.candidate_ms or 1.0) * next(shares)})
        return kept, cell.model_copy(update={"published": found})

    found = level_figures([at(*pair) for pair in one.pairs], ["best"])
    assert (found.of_floor, found.below_floor) == (pytest.approx(0.5), 1)


def one_answer_each(folder, *verdicts):
    with RunLog.create(folder, [made(address) for address in ADDRESSES], setting()) as log:
        for address, verdict in zip(ADDRESSES, verdicts, strict=True):
            writer = Writer(log, made(address).name, random.Random(1))
            writer.attempt(verdict)
            writer.stop()
    return folder


def test_means_over_all_problems_count_failures_and_losses_as_one(results, tmp_path):
    run = one_answer_each(tmp_path / "run", passed(4.0), passed(0.5), failed("check"))
    (one,) = dtype_boards(keep(results, [run]))
    found = level_figures(one.ranked, ["best"])
    assert found.with_failures == pytest.approx(2 ** (1 / 3), rel=0.05)
    assert found.with_losses == pytest.approx(4 ** (1 / 3), rel=0.05)
    assert found.median == pytest.approx(2.25, rel=0.05) and found.fast_2 == pytest.approx(1 / 3)


def test_the_problems_at_the_wall_are_those_whose_baseline_runs_as_fast_as_a_copy():
    wall = read_selection(ROOT / "results").at_the_wall
    for one in dtype_boards(read_index(ROOT / "results")):
        for kept, cell in one.pairs:
            found = cell.published if cell.published and cell.published.passed else kept.reference
            share = kept.copy_ms / min(found.baselines_ms.values()) if found and kept.copy_ms else 0.0
            assert (share >= 0.97) is (kept.address in wall[one.dtype]), kept.address  # until it is measured again
        won = [kept.address for kept, _ in one.ranked if kept.faster_than_any]
        below, others, plain = (level_figures(one.ranked, ["best"], found) for found in (wall[one.dtype], won, ()))
        assert below.at_the_wall and below.faster == plain.faster < below.faster_below and not others.faster_than_any[1]


def test_each_round_has_its_status(run, results, tmp_path):
    rows = indexed(searched(run), ()).rows
    assert [tuple(one) for one in rounds(rows)] == [("float32", 1, 3, 3, 3), ("float32", 2, 3, 3, 3)]
    waiting = rows[0].tries[1].model_copy(update={"outcome": "not answered yet"})
    rows = (rows[0].model_copy(update={"tries": (rows[0].tries[0], waiting)}), *rows[1:])
    assert tuple(rounds(rows)[1]) == ("float32", 2, 3, 2, 2)


def test_every_factor_above_ten_that_ships_has_its_sentence():
    text = (ROOT / "docs" / "results.md").read_text()
    assert "not explained yet" not in text and "- level2/65 in float32" in text


def test_only_what_the_judge_calls_faster_counts_as_judged_faster(results, tmp_path):
    verdicts = [
        passed(speedup, random.Random(2), spread=spread) for speedup, spread in ((1.5, 0), (1.02, 0.1), (0.5, 0))
    ]
    (one,) = dtype_boards(keep(results, [one_answer_each(tmp_path / "run", *verdicts)]))
    found = level_figures(one.ranked, ["best"])
    assert (found.faster, found.fast_1["best"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_a_problem_that_the_machine_failed_at_or_that_waits_is_not_at_its_end(results, tmp_path):
    with RunLog.create(tmp_path / "run", [made("level1/5"), made("level1/15")], setting()) as log:
        for address in ("level1/5", "level1/15"):
            writer = Writer(log, made(address).name, random.Random(1))
            writer.attempt(passed(1.3))
            writer.flush()
        log.append(Stopped(problem=made("level1/5").name, reason="it was out of memory", fault="machine"))
    assert [row.stopped for row in keep(results, [tmp_path / "run"]).rows] == [None, None]
    page = write_page(results, tmp_path / "docs")[0].read_text()
    assert "float32 3 of 3 problems" in flat(page) and "level2/5 none" in flat(page)


def test_a_row_names_the_baseline_that_its_speedup_is_against(run, results, tmp_path):
    keep(results, [run])
    page = write_page(results, tmp_path / "docs")[0].read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| level1/5 Made"))
    assert "| 1.90 [" in row and row.endswith("compile default | - |")
