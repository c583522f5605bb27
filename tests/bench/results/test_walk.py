"""From task files to the page, on a processor: a real run whose answers come later, kept, judged again, drawn."""

import json
import shlex
import shutil
from hashlib import sha256

import pytest

from bench.results.figures import after_each_answer, dtype_boards, level_figures
from bench.results.records import indexed, read_index, read_lines, records_in
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.scheduler import views_of
from kernelwright.evals.metrics import summarize
from kernelwright.evals.report import summary_rows
from kernelwright.evals.verdict_store import Judgement
from tests.bench.results.walk import Walk

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """The runs of both dtypes, at their end, and what their commands said on the way."""
    found = Walk(tmp_path_factory.mktemp("walk"))
    found.lay_out()
    chosen = found.bench(
        "select", found.tree, found.root / "chosen", "--runs", found.runs, "--model", "writer 2026-11-22"
    )
    assert chosen.returncode == 0, chosen.stderr
    found.told = [[found.kernelwright(*shlex.split(line)[1:])] for line in chosen.stdout.splitlines()]
    for said, run in zip(found.told, (found.runs / "float32", found.runs / "bfloat16"), strict=True):
        if run.name == "bfloat16":
            said.append(found.kernelwright("resume", run))
        while found.answer(run, most=1 if len(said) == 1 else 9):
            said.append(found.kernelwright("resume", run))
    both = found.runs / "float32", found.runs / "bfloat16"
    kept = found.bench("keep", *both)
    for run in both if kept.returncode == 1 else ():  # an overloaded machine may have failed at a last judging
        found.kernelwright("resume", run)
        kept = found.bench("keep", *both)
    assert kept.returncode == 0 and "4 problems of 2 runs" in kept.stdout, kept.stderr
    return found


def test_a_run_rests_until_its_answers_come_and_goes_on_where_it_was(walk):
    *resting, last = walk.told[0]
    assert [said.returncode for said in resting] == [1, 1, 1]
    for said, missing in zip(resting, (3, 3, 2), strict=True):
        assert f"{missing} answer(s)" in said.stderr and "its task" in said.stderr
    assert last.returncode == 1 and "answer(s)" not in last.stderr, "of one problem nothing is right"


def test_going_on_before_an_answer_came_asks_nothing_anew(walk):
    *resting, last = walk.told[1]
    assert ["waits for 1 answer(s)" in said.stderr for said in resting] == [True] * 3
    assert "answer(s)" not in last.stderr
    assert len(list((walk.runs / "bfloat16/tasks").glob("*.task.md"))) == 2


def test_every_answer_stands_in_the_index_with_what_came_of_it(walk):
    rows = {(row.address, row.dtype): row for row in read_index(walk.results).rows}
    assert [turn.outcome for turn in rows["level1/5", "float32"].tries] == ["passed", "passed"]
    assert [turn.role for turn in rows["level2/5", "float32"].tries] == ["propose", "repair"]
    assert [turn.outcome for turn in rows["level2/5", "float32"].tries] == ["failed at check", "passed"]
    for dtype in ("float32", "bfloat16"):
        assert [turn.outcome for turn in rows["level1/15", dtype].tries] == ["no candidate (no_code)"] * 2
    assert all(row.facts.best.measured.effort == "rank" for row in rows.values() if row.kernel)
    assert all(row.reference.baselines_ms["eager"] > 0 for row in rows.values())
    assert all(turn.prompt_tokens > 1000 for row in rows.values() for turn in row.tries)


def test_every_number_of_the_index_comes_from_the_record(walk):
    index, records = read_index(walk.results), records_in(walk.results)
    assert indexed(records, list(read_lines(walk.results / "again.jsonl.gz", Judgement.model_validate_json))) == index
    for one in records:
        by_digest = {each.attempt.candidate.digest: each.attempt for each in one.attempts if each.attempt.candidate}
        if one.facts.best is not None:
            assert one.facts.best.measured == summarize(by_digest[one.facts.best.candidate_digest].ruling)


def test_the_kept_kernels_are_files_by_their_digests(walk):
    rows = [row for row in read_index(walk.results).rows if row.kernel]
    assert {row.kernel for row in rows} == {
        str(path.relative_to(walk.results)) for path in (walk.results / "kernels").rglob("*.py")
    }
    for row in rows:
        text = (walk.results / row.kernel).read_bytes()
        assert sha256(text).hexdigest() == row.facts.best.candidate_digest


def test_nothing_that_is_kept_holds_a_text_of_the_benchmark(walk):
    kept = "".join(one.model_dump_json() for one in records_in(walk.results))
    kept += (walk.results / "index.json").read_text()
    for path in walk.tree.rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if "torch.randn" in line or '"""' in line]
        assert len(lines) > 1 and not [line for line in lines if json.dumps(line.strip())[1:-1] in kept]


def test_keeping_the_same_runs_again_changes_no_byte(walk, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(walk.results, copy)
    done = walk.bench("keep", walk.runs / "bfloat16", walk.runs / "float32", folder=copy)
    assert done.returncode == 0, done.stderr
    assert contents(copy) == contents(walk.results)


def test_what_was_not_chosen_beforehand_is_not_kept(walk, tmp_path):
    (tmp_path / "selection.toml").write_text(
        (walk.results / "selection.toml").read_text().replace('"level2/5"', '"level2/25"')
    )
    done = walk.bench("keep", walk.runs / "float32", folder=tmp_path)
    assert done.returncode == 2 and "level2/5 in float32" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["selection.toml"]


def test_the_page_is_the_same_byte_for_byte_wherever_it_is_drawn(walk, tmp_path):
    surroundings = [{"PYTHONHASHSEED": "1", "TZ": "UTC"}, {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C"}]
    for name, others in zip(("one", "two"), surroundings, strict=True):
        done = walk.bench("draw", "--docs", tmp_path / name, **others)
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert set(contents(tmp_path / "one")) == {
        "results.md",
        "results-prompt.txt",
        *(f"pictures/results-{dtype}{kind}.svg" for dtype in ("float32", "bfloat16") for kind in ("", "-curves")),
    }


def test_the_page_s_figures_are_those_of_the_commands_for_the_same_run(walk):
    board = json.loads(walk.kernelwright("leaderboard", walk.runs / "float32", "--json").stdout)["boards"][0]
    told = board["rows"][0]
    with RunLog.open(walk.runs / "float32") as log:
        summary = {row["problem"]: row for row in summary_rows(views_of(log), walk.runs)}
    one = dtype_boards(read_index(walk.results))[0]
    found = level_figures(one.ranked, list(one.results()))
    assert {p: one.row.fast["best"][float(p)] for p in told["fast"]["best"]} == told["fast"]["best"]
    assert found.mean.model_dump() == told["geometric_mean"] and found.right == told["correct"]
    assert found.fast_1["best"] == told["fast"]["best"]["1.0"] == after_each_answer(one)[-1].fast_1
    assert found.of_floor == told["roofline"]
    for kept, cell in one.pairs:
        row = summary[kept.problem]
        found = cell.published
        measured_here = (found.speedup, found.low, found.high) if kept.kernel else (None, None, None)
        assert measured_here == (row["speedup"], row["speedup_low"], row["speedup_high"])


def test_every_kept_kernel_is_judged_again_and_a_stopped_judging_goes_on(walk):
    stopped = walk.bench("again", walk.tree, "--minutes", 0)
    assert stopped.returncode == 1 and stopped.stdout.count("no time was left") == 2
    done = walk.bench("again", walk.tree)
    rows = [row for row in read_index(walk.results).rows if row.kernel]
    assert all(row.again is not None and row.again.measured.effort == "rank" for row in rows), done.stderr
    met = sum(row.again.meets for row in rows)
    assert f"the intervals of {met} of 2 kept kernels meet" in done.stdout
    assert done.returncode == (0 if met == 2 else 1)
    before = contents(walk.results)
    assert walk.bench("again", walk.tree).stdout.startswith("the intervals of")
    assert contents(walk.results) == before


def test_another_checkout_or_another_kernel_is_not_judged_in_the_place_of_theirs(walk, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(walk.results, copy)
    (copy / "again.jsonl.gz").unlink(missing_ok=True)
    index = read_index(copy)
    bare = index.model_copy(update={"rows": tuple(row.model_copy(update={"again": None}) for row in index.rows)})
    (copy / "index.json").write_text(bare.model_dump_json())
    tree = tmp_path / "tree"
    shutil.copytree(walk.tree, tree)
    path = next((tree / "level1").glob("5_*.py"))
    path.write_text(path.read_text() + "\n# another\n")
    done = walk.bench("again", tree, folder=copy)
    assert done.returncode == 2 and "another level1/5" in done.stderr
    (copy / "kernels/float32/level1-5.py").write_text("# another\n")
    assert "2 kept kernels" in walk.bench("again", walk.tree, folder=copy).stdout
    assert (copy / "kernels").is_dir() and contents(copy / "kernels") == contents(walk.results / "kernels")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
