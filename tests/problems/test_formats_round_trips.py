"""What is read and written again keeps every field that is known, and tells those that are not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problems import ExcludedValues, Problem, Tolerance, load_problem
from kernelwright.problems.formats import read_collection
from kernelwright.problems.formats.flashinfer import (
    Definition,
    FlashInferTrace,
    Workload,
    read_definition,
    read_workloads,
)
from kernelwright.problems.formats.kernelbench import read_rows
from kernelwright.problems.formats.reading import INDEX, write_collection, write_problem
from kernelwright.problems.formats.robust import Configurations, read_configurations
from tests.support.foreign import (
    CONFIGURATIONS,
    DEFINITION,
    TOLERANCE,
    WORKLOAD,
    rows,
    write_robust,
    write_sol,
    write_task,
    write_trace_set,
    write_tree,
)

TRACE = {
    "definition": "rms_norm_h64",
    "workload": WORKLOAD,
    "solution": "fast",
    "evaluation": {"status": "PASSED", "log": "", "performance": {"latency_ms": 1.0}},
}


@pytest.mark.parametrize(
    ("record", "content"),
    [
        (Definition, DEFINITION),
        (Definition, DEFINITION | {"op_type": None, "type": "norm", "custom_inputs_entrypoint": None}),
        (Workload, WORKLOAD | {"tolerance": TOLERANCE}),
        (FlashInferTrace, TRACE),
        (FlashInferTrace, TRACE | {"solution": None, "evaluation": None}),
        (Configurations, CONFIGURATIONS),
    ],
)
def test_a_record_of_theirs_is_written_as_it_was_read(record, content):
    found = record.model_validate(content).model_dump(mode="json", exclude_unset=True)
    assert found == content


def test_a_field_that_is_not_known_is_kept_and_told():
    content = DEFINITION | {"colour": "red", "axes": DEFINITION["axes"] | {"more": {"type": "var", "parent": "rows"}}}
    definition = Definition.model_validate(content)
    assert definition.as_json() == content
    assert sorted(definition.unknown()) == ["axes.more.parent", "colour"]


def test_definition_and_workloads_survive_files_and_an_unknown_field_is_noted(tmp_path):
    root = write_sol(tmp_path, DEFINITION, [WORKLOAD | {"tolerance": TOLERANCE, "note": "x"}])
    definition = read_definition(root / "definition.json")
    workloads, traced = read_workloads(root / "workload.jsonl", definition)
    assert [workload.as_json() for workload in workloads] == [WORKLOAD | {"tolerance": TOLERANCE, "note": "x"}]
    assert not traced and workloads[0].unknown() == ["note"]
    (entry,) = read_collection(root).entries
    (note,) = entry.notes
    assert "'workload.note'" in note


def test_configurations_and_rows_of_the_data_set_survive_a_file(tmp_path):
    path = write_robust(tmp_path) / "tasks/linear/config_forward.json"
    found = read_configurations(path)
    assert found.model_dump(exclude_unset=True) == CONFIGURATIONS and not found.model_extra
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows())))
    assert [to_row(entry) for entry in read_rows(path).entries] == rows()


WRITERS = {"tree": write_tree, "robust": write_robust, "task": write_task, "traces": write_trace_set}


@pytest.mark.parametrize("name", WRITERS)
def test_an_imported_problem_is_the_same_problem(tmp_path, name):
    entries = read_collection(WRITERS[name](tmp_path / "theirs")).entries
    places = write_collection(tmp_path / "ours", entries)
    for entry in entries:
        if entry.problem is not None:
            again = load_problem(str(tmp_path / "ours" / places[entry.id]))
            assert again.model_copy(update={"name": entry.problem.name, "size": entry.problem.size}) == entry.problem


def test_the_index_of_an_import_holds_what_was_refused_and_why(tmp_path):
    write_collection(tmp_path / "ours", read_collection(write_tree(tmp_path / "theirs")).entries)
    index = {line["id"]: line for line in json.loads((tmp_path / "ours" / INDEX).read_text())}
    assert index["level1/2"]["status"] == "broken" and index["level1/2"]["folder"] is None
    assert index["level1/1"]["folder"] == "level1/1_Double"


LINES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1).map(str.strip).filter(bool)


@given(title=LINES, id=LINES, value=st.one_of(LINES, st.integers(-(2**60), 2**60), st.booleans()))
def test_any_title_and_detail_survives_a_manifest(tmp_path_factory, title, id, value):
    folder = tmp_path_factory.mktemp("written")
    origin = {"format": "flashinfer", "id": id, "title": title, "details": {title: [value], "table": {id: value}}}
    source = "class Model: pass\ndef get_inputs(): pass\ndef get_init_inputs(): pass\n"
    tolerance = Tolerance(factor=4, reason=title)
    values = ExcludedValues(without=("all negative", "with ties"), reason=title)
    more = {"origin": origin, "tolerance": tolerance, "values": values}
    problem = Problem(name=folder.name, title=title, family=id, size="cpu", source=source, **more)
    write_problem(folder, problem)
    assert load_problem(str(folder)) == problem


def to_row(entry):
    level, _, number = entry.id.removeprefix("level").partition("/")
    title = entry.problem.origin.title.removesuffix(".py")
    return {"code": entry.problem.source, "level": int(level), "name": title, "problem_id": int(number)}
