"""A run under way comes out of its parcel as it went in, and the parcel holds no text of the benchmark."""

import gzip
import json
import shutil

import pytest

from bench.results.keeping import pack, read_selection, unpack
from kernelwright.agent.log.store import RunLog
from kernelwright.problems import ProblemError
from tests.bench.results.walk import Walk

pytestmark = pytest.mark.slow
WORDS = (
    *("run", "--target", "cpp", "--provider", "files", "--attempts", "2", "--set", "measure=false"),
    *("--set", "drafts=1", "--set", "tune=0"),
)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """A run over two problems that has opened a task for each and waits; one is answered."""
    found = Walk(tmp_path_factory.mktemp("parcel"))
    found.lay_out()
    said = found.kernelwright(*WORDS, "--suite", f"{found.tree}:level1[5,15]", "--out", found.runs / "float32")
    assert said.returncode == 1, said.stderr
    task = sorted((found.runs / "float32" / "tasks").glob("*.task.md"))[0]
    task.with_name(task.name.replace(".task.", ".answer.")).write_text("No kernel comes to mind.\n")
    return found


@pytest.fixture(scope="module")
def parcel(walk):
    path = walk.results / "under-way" / "float32.json.gz"
    said = walk.bench("pack", walk.tree, walk.runs / "float32")
    assert said.returncode == 0 and said.stdout == f"{path}: {path.stat().st_size} bytes\n", said.stderr
    return path


def test_it_comes_out_as_it_went_in_and_goes_on(walk, parcel):
    said = walk.bench("unpack", walk.tree, walk.root / "other")
    assert said.stdout == f"{walk.root / 'other' / 'float32'}: 1 answers\n", said.stderr
    before, after = walk.runs / "float32", walk.root / "other" / "float32"
    with RunLog.open(before) as one, RunLog.open(after) as two:
        assert list(one.events()) == list(two.events()) and one.digest() == two.digest()
        assert one.header == two.header
        assert [one.problem(name) for name in one.header.problems] == [
            two.problem(name) for name in two.header.problems
        ]
    walk.kernelwright("resume", after)
    tasks = {path.name: path.read_bytes() for path in (before / "tasks").glob("*.task.md")}
    again = {path.name: path.read_bytes() for path in (after / "tasks").glob("*.task.md")}
    waiting = tasks.keys() & again.keys()
    assert waiting and {name: tasks[name] for name in waiting} == {name: again[name] for name in waiting}
    with RunLog.open(after) as log:
        assert [event.body.kind for event in log.events()].count("replied") == 1


def test_no_text_of_the_benchmark_is_in_it_and_it_is_the_same_each_time(walk, parcel):
    raw = gzip.decompress(parcel.read_bytes()).decode()
    for path in walk.tree.rglob("*.py"):
        text = path.read_text()
        assert text not in raw and json.dumps(text)[1:-1] not in raw
        assert json.dumps(json.dumps(text)[1:-1])[1:-1] not in raw
    other = walk.root / "again.json.gz"
    pack(walk.runs / "float32", walk.tree, read_selection(walk.results), other)
    assert other.read_bytes() == parcel.read_bytes()


def test_another_text_and_a_taken_folder_are_refused(walk, parcel, tmp_path):
    selection = read_selection(walk.results)
    found = json.loads(gzip.decompress(parcel.read_bytes()))
    digest = next(digest for digest, text in found["blobs"].items() if "\0" in text)
    found["blobs"][digest] += " "
    bad = tmp_path / "bad.json.gz"
    bad.write_bytes(gzip.compress(json.dumps(found).encode()))
    with pytest.raises(ProblemError, match=digest[:8]):
        unpack(bad, walk.tree, selection, tmp_path / "run")
    found["blobs"][digest] = found["blobs"][digest][:-1]
    found["answers"]["../outside"] = "x"
    bad.write_bytes(gzip.compress(json.dumps(found).encode()))
    with pytest.raises(ProblemError, match="would write outside"):
        unpack(bad, walk.tree, selection, tmp_path / "run")
    with pytest.raises(ProblemError, match="is not empty"):
        unpack(parcel, walk.tree, selection, walk.runs / "float32")
    tree = tmp_path / "tree"
    shutil.copytree(walk.tree, tree)
    (tree / "level1" / "5_max_rows.py").write_text("# another\n")
    with pytest.raises(ProblemError, match="has another level1/5"):
        unpack(parcel, tree, selection, tmp_path / "run")
    with pytest.raises(ProblemError, match="not a parcel of a run"):
        unpack(tree / "level1" / "5_max_rows.py", walk.tree, selection, tmp_path / "run")
    with pytest.raises(ProblemError, match="holds no log of a run"):
        pack(tmp_path, walk.tree, selection, tmp_path / "out.json.gz")


def test_what_nobody_has_answered_is_asked_anew(walk, parcel):
    selection, run, path = read_selection(walk.results), walk.root / "rest" / "float32", walk.root / "rest.json.gz"
    unpack(parcel, walk.tree, selection, run)
    walk.kernelwright("resume", run)  # the reply without a kernel is read, and its repair asked for
    pack(run, walk.tree, selection, path)

    def asked(folder):
        with RunLog.open(folder) as log:
            bodies = {event.body.attempt: event for event in log.events() if event.body.kind == "asked"}
        return bodies[2]

    unpack(path, walk.tree, selection, walk.root / "anew", anew=True)
    before, after = asked(run), asked(walk.root / "anew")
    assert after.time > before.time and after.body == before.body, "by the same prompts as before"
    tasks = sorted(file.name for file in (run / "tasks").glob("*.task.md"))
    written = sorted(file.name for file in (walk.root / "anew" / "tasks").glob("*.task.md"))
    assert len(written) == 2 and set(written) <= set(tasks)
    (repair,) = [name for name in written if after.body.request_digest[:16] in name]
    (run / "tasks" / repair.replace(".task.", ".answer.")).write_text("Nothing again.\n")
    pack(run, walk.tree, selection, path)
    unpack(path, walk.tree, selection, walk.root / "answered", anew=True)
    assert asked(walk.root / "answered").time == before.time, "an answer that waits is not lost"
    walk.kernelwright("resume", walk.root / "answered")
    with RunLog.open(walk.root / "answered") as log:
        assert [event.body.kind for event in log.events()].count("replied") == 2
