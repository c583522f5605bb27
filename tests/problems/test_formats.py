import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow.parquet
import pytest

from kernelwright.evals.checking import check_entry, examine_problem
from kernelwright.evals.runs import suite
from kernelwright.problems import ProblemError, load_problem
from kernelwright.problems import problem as libraries
from kernelwright.problems.arithmetic import NotArithmetic, evaluate
from kernelwright.problems.formats import format_of, read_collection, select
from kernelwright.problems.formats.flashinfer import changed_parameters
from kernelwright.problems.source import parse
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.support.foreign import (
    CONFIGURATIONS,
    DEFINITION,
    PLAIN,
    RMS,
    TASK,
    TOLERANCE,
    WORKLOAD,
    rows,
    write_robust,
    write_sol,
    write_task,
    write_trace_set,
    write_tree,
)
from tests.support.synthetic import COUNT, KINDS, SPECIAL, write_synthetic

COLLECTIONS = {
    "kernelbench": (write_tree, ["level1/1", "level1/2", "level1/10", "level2/3"]),
    "flashinfer": (write_trace_set, [f"rms_norm_h64/{WORKLOAD['uuid']}"]),
    "robust-kbench": (write_robust, [f"tasks/linear/{number}" for number in range(4)]),
    "kernelbot": (write_task, ["sort_v2/0", "sort_v2/1"]),
}


def only(root):
    (entry,) = read_collection(root).entries
    return entry


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_is_known_by_its_files_and_read_in_order_under_unique_names_and_addresses(tmp_path, name):
    write, ids = COLLECTIONS[name]
    root = write(tmp_path)
    reading = read_collection(root)
    assert (reading.format, [entry.id for entry in reading.entries]) == (name, ids)
    problems = {entry.id: entry.problem for entry in reading.entries if entry.problem}
    names = [problem.name for problem in problems.values()]
    assert len(set(names)) == len(names) and not any(set(one) & set("/ @:") for one in names)
    assert {address: load_problem(f"{root}::{address}") for address in problems} == problems


def test_a_file_of_a_tree_is_judged_by_its_own_text_and_knows_its_level_and_number(tmp_path):
    tree = write_tree(tmp_path)
    assert load_problem(str(tree / "level1/1_Double.py")).source == PLAIN
    problem = load_problem(str(tree / "level2/3_Triple.py"))
    assert (problem.name, problem.origin.id, problem.origin.title) == ("3_Triple", "level2/3", "3_Triple.py")
    (note,) = read_collection(tree).notes
    assert "notes.py" in note, "what is beside the problems is told"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_of_the_data_set_are_read(tmp_path, suffix):
    path = tmp_path / f"kernelbench{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows())))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows()), path)
    found = read_collection(path)
    assert [(entry.id, entry.problem.name) for entry in found.entries] == [
        ("level1/1", "level1_1_Double"),
        ("level2/3", "level2_3_Triple"),
    ]


NO_ENDS = "\u2028\u2029\x85"
"""Letters that JSON leaves as they are and `str.splitlines` takes for the end of a line."""


@pytest.mark.parametrize("letter", NO_ENDS)
def test_rows_are_cut_at_newlines_alone(tmp_path, letter):
    path = tmp_path / "rows.jsonl"
    given = [row | {"code": f"# one{letter}two\n{row['code']}"} for row in rows()]
    path.write_text("\r\n".join(json.dumps(row, ensure_ascii=False) for row in given), encoding="utf-8")
    assert [entry.problem.source for entry in read_collection(path).entries] == [row["code"] for row in given]


@pytest.mark.parametrize("letter", NO_ENDS)
def test_workloads_are_cut_at_newlines_alone_and_a_bad_line_costs_no_other(tmp_path, letter):
    root = write_sol(tmp_path, DEFINITION, [WORKLOAD])
    lines = [json.dumps(WORKLOAD | {"note": f"one{letter}two"}, ensure_ascii=False), "", "{", '{"uuid": "x"}']
    (root / "workload.jsonl").write_text("\n".join(lines), encoding="utf-8")
    good, bad, incomplete = read_collection(root).entries
    assert (good.status, bad.status, incomplete.status) == ("read", "broken", "broken")
    assert "line 3 of workload.jsonl" in bad.why


BAD_ROWS = {
    "no JSON": ("{", "JSON object"),
    "a list": ("[1]", "JSON object"),
    "a missing column": (json.dumps({"level": 1, "name": "x", "problem_id": 1}), "no code"),
    "a level in words": (json.dumps(rows()[0] | {"level": "easy"}), "not a number"),
    "broken code": (json.dumps(rows()[0] | {"code": "def ("}), "syntax error"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_broken_with_its_reason_and_the_others_are_read(tmp_path, name):
    line, said = BAD_ROWS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n" + json.dumps(rows()[1]))
    bad, good = read_collection(path).entries
    assert bad.status == "broken" and said in bad.why and good.status == "read"


def test_an_unknown_column_is_told_and_a_number_that_comes_twice_is_broken_the_second_time(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(rows()[0] | {"hint": "x"})] * 2))
    first, second = read_collection(path).entries
    assert (first.status, second.status) == ("read", "broken")
    assert "'hint'" in first.notes[0] and len(first.notes) == 1


def test_a_missing_library_is_told_with_its_remedy(monkeypatch):
    with pytest.raises(libraries.LibraryMissing, match=r"not_there.*'kernelwright\[data\]'"):
        libraries.library("not_there.at_all", "reading x.parquet")


def test_every_configuration_of_a_task_is_a_problem_with_its_own_sizes(tmp_path):
    sources = [entry.problem.source for entry in read_collection(write_robust(tmp_path)).entries]
    assert len(set(sources)) == 4 and all("'in_features': 64" in source for source in sources)


def test_a_task_without_configurations_uses_its_functions_defaults_and_those_that_are_no_lists_are_broken(tmp_path):
    root = write_robust(tmp_path)
    configurations = root / "tasks/linear/config_forward.json"
    configurations.unlink()
    assert only(root).status == "read"
    configurations.write_text(json.dumps(CONFIGURATIONS | {"single_init_configs": 3}))
    assert "single_init_configs" in only(root).why


def test_a_backward_task_is_told_to_be_left_out(tmp_path):
    root = write_robust(tmp_path)
    (root / "tasks/linear/func_backward.py").write_text("")
    assert "func_backward.py" in read_collection(root).entries[0].notes[0]


def test_a_source_begins_with_the_definitions_own_text_and_takes_sizes_and_numbers_from_axes_and_workload(tmp_path):
    source = only(write_trace_set(tmp_path)).problem.source
    assert source.startswith(RMS.rstrip())
    assert "randn([32, 64]" in source and "1e-06,\n" in source


@pytest.mark.parametrize("name", ["max_atol", "max_rtol"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.5])
def test_a_workload_with_an_absurd_tolerance_is_refused(tmp_path, name, value):
    entry = only(write_sol(tmp_path, DEFINITION, [WORKLOAD | {"tolerance": {name: value}}]))
    assert entry.problem is None and entry.status == "broken" and name in entry.why


def test_a_workloads_tolerance_is_kept(tmp_path):
    entry = only(write_sol(tmp_path, DEFINITION, [WORKLOAD | {"tolerance": TOLERANCE}]))
    assert entry.problem.tolerance.stated.model_dump(exclude_none=True) == TOLERANCE


NOT_IN_ORDER = {
    "a file of tensors": (
        {}, {"inputs": {"x": {"type": "safetensors", "path": "a", "tensor_key": "x"}}}, "unsupported", "no files",
    ),
    "eight bits": (
        {"inputs": DEFINITION["inputs"] | {"x": {"shape": ["rows"], "dtype": "float8_e4m3fn"}}}, {}, "unsupported",
        "float8_e4m3fn",
    ),
    "a name of ours": ({"reference": RMS + "\nclass Model: pass\n"}, {}, "unsupported", "defines Model"),
    "a constraint that the workload breaks": ({}, {"axes": {"rows": 0}}, "broken", "rows > 0"),
    "no run": ({"reference": "import torch\n"}, {}, "broken", "no function run"),
    "no reference": ({"reference": None}, {}, "broken", "reference"),
    "a missing axis": ({}, {"axes": {}}, "broken", "axis 'rows' has no size"),
    "an undefined axis": ({"outputs": {"y": {"shape": ["depth"], "dtype": "float32"}}} , {}, "broken", "'depth'"),
    "a parameter that is none": (
        {"inputs": {"x y": {"shape": ["rows"], "dtype": "float32"}}}, {}, "broken", "parameter",
    ),
    "a custom input without its function": (
        {}, {"inputs": {"x": {"type": "custom"}}}, "broken", "custom_inputs_entrypoint",
    ),
    "a function that is not there": ({"custom_inputs_entrypoint": "make"}, {}, "broken", "no function 'make'"),
    "a number without a value": ({}, {"inputs": {}}, "broken", "'eps' has no value"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_IN_ORDER)
def test_a_definition_beyond_the_judge_is_unsupported_and_one_that_is_not_in_order_broken(tmp_path, name):
    definition, workload, status, said = NOT_IN_ORDER[name]
    entry = only(write_sol(tmp_path, DEFINITION | definition, [WORKLOAD | workload]))
    assert entry.status == status and said in entry.why and "\n" not in entry.why


def test_inputs_that_a_reference_changes_are_copied_for_it():
    text = "def run(a, b, c, d):\n    a.add_(1)\n    b[0] = 2\n    c += 1\n    return d.relu()\n"
    assert changed_parameters(parse(text, "x")) == {"a", "b", "c"}


def test_custom_inputs_are_made_by_the_definitions_own_function(tmp_path):
    make = "\ndef make(axes_and_scalars, device):\n    return {}\n"
    definition = DEFINITION | {"reference": RMS + make, "custom_inputs_entrypoint": "make"}
    inputs = {name: {"type": "custom"} for name in DEFINITION["inputs"]}
    source = only(write_sol(tmp_path, definition, [WORKLOAD | {"inputs": inputs}])).problem.source
    assert "_custom_inputs({'half': 32, 'rows': 32, 'hidden': 64}, _torch.device('cpu'))" in source


def test_a_task_carries_the_files_that_its_reference_imports(tmp_path):
    source = read_collection(write_task(tmp_path)).entries[0].problem.source
    assert "input_t = output_t" in source and "'size': 256" in source and "'seed'" not in source


BAD_TASKS = {
    "another language": (TASK.replace("lang: py", "lang: cu"), "unsupported", "'cu'"),
    "no YAML": ("files: [", "broken", "not valid YAML"),
    "no files": ("lang: py", "broken", "files"),
    "no cases": (TASK.partition("tests:")[0], "broken", "neither benchmarks nor tests"),
}


@pytest.mark.parametrize("name", BAD_TASKS)
def test_a_task_that_can_not_be_judged_says_why(tmp_path, name):
    text, status, said = BAD_TASKS[name]
    entry = read_collection(write_task(tmp_path, text)).entries[0]
    assert entry.status == status and said in entry.why


def test_a_folder_of_loose_files_is_no_collection_and_an_empty_one_is_told(tmp_path):
    with pytest.raises(ProblemError, match="no collection"):
        read_collection(tmp_path)
    (tmp_path / "problem.py").write_text(PLAIN)
    assert format_of(tmp_path) is None


def test_one_of_several_problems_is_asked_for_by_its_address_and_a_refused_one_says_its_reason(tmp_path):
    with pytest.raises(ProblemError, match=r"4 problems.*::tasks/linear/0"):
        load_problem(str(write_robust(tmp_path)))
    with pytest.raises(ProblemError, match=r"level1/2 of .* get_inputs"):
        load_problem(f"{write_tree(tmp_path)}::level1/2")


CHOICES = {
    "": ["level1/1", "level1/2", "level1/10", "level2/3"],
    "level1": ["level1/1", "level1/2", "level1/10"],
    "level1[10,1]": ["level1/10", "level1/1"],
    "level1[2-10]": ["level1/2", "level1/10"],
    "level2,level1[1]": ["level2/3", "level1/1"],
    "level1,level1[1]": ["level1/1", "level1/2", "level1/10"],
    "level2/3": ["level2/3"],
    "*Triple": ["level2/3"],
    "level1_10_Ten": ["level1/10"],
}
REFUSED = {
    "level3": "'level3'",
    "level1[4]": "numbers 1 to 10",
    "level1[x]": "'x' in level1[x]",
    "level1[9-3]": "'9-3' in level1[9-3]",
    "level1[": "cannot be read",
    "level1,,level2": "cannot be read",
    "level1[1],": "cannot be read",
}


@pytest.fixture
def entries(tmp_path):
    return read_collection(write_tree(tmp_path)).entries


@pytest.mark.parametrize("selection", CHOICES)
def test_a_selection_names_its_problems_in_its_order(entries, selection):
    assert [entry.id for entry in select(entries, selection)] == CHOICES[selection]


@pytest.mark.parametrize("selection", REFUSED)
def test_what_is_not_there_is_one_sentence(entries, selection):
    with pytest.raises(ProblemError) as caught:
        select(entries, selection)
    assert REFUSED[selection] in str(caught.value) and "\n" not in str(caught.value)


def test_a_suite_is_a_selection_of_a_collection_that_the_environment_or_a_path_names(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_KERNELBENCH", str(write_tree(tmp_path)))
    names = [load_problem(address).name for address in suite("kernelbench:level1[10],level2", "cpp")]
    assert names == ["level1_10_Ten", "level2_3_Triple"]
    assert suite(f"{tmp_path}:level2", "cpp") == (f"{tmp_path}::level2/3",)


def test_a_suite_is_found_in_the_folder_of_its_name_or_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELWRIGHT_KERNELBENCH", raising=False)
    with pytest.raises(ProblemError, match="KERNELWRIGHT_KERNELBENCH"):
        suite("kernelbench:level1", "cpp")
    write_tree(tmp_path / "KernelBench/KernelBench")
    assert suite("kernelbench:level2", "cpp") == ("KernelBench::level2/3",)


def test_a_suite_leaves_out_what_can_not_be_judged(tmp_path):
    write_synthetic(tmp_path, 40)
    chosen = suite(f"{tmp_path}:level1[1-40]", "cpp")
    assert 0 < len(chosen) < 40 and not any(address.endswith("level1/6") for address in chosen)


VALUES = {"2 * (a + 1)": 8, "a // 2 ** 1": 1, "-a": -3, "a == 3 and 1 < 2": True, "(a, 2)": (3, 2), "a % 2": 1}
REFUSED_TEXTS = ["9 ** 9 ** 9", "a.item()", "__import__('os')", "b", "1 / 0", "a if a else 1", "[0] * 10 ** 9", "("]


@pytest.mark.parametrize("text", VALUES)
def test_arithmetic_is_evaluated(text):
    assert evaluate(text, {"a": 3}) == VALUES[text]


@pytest.mark.parametrize("text", REFUSED_TEXTS)
def test_more_than_arithmetic_is_refused(text):
    with pytest.raises(NotArithmetic):
        evaluate(text, {"a": 3})


CHILD_OF_8_GIB = JudgeSettings(memory_bytes=8 * 2**30)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    return root, write_synthetic(root)


@pytest.fixture(scope="module")
def by_id(tree):
    return {entry.id: entry for entry in read_collection(tree[0]).entries}


def test_every_problem_has_its_entry(tree, by_id):
    assert list(by_id) == list(tree[1]) and len(by_id) == COUNT


@pytest.mark.parametrize("kind", [*KINDS, *SPECIAL])
def test_a_kind_is_read_or_refused_as_it_should_and_what_is_no_python_is_broken(tree, by_id, kind):
    found = {by_id[id].status for id, name in tree[1].items() if name == kind}
    assert found == {KINDS[kind].read if kind in KINDS else "broken"}


def test_every_refusal_is_one_line_that_says_why(by_id):
    refused = [entry for entry in by_id.values() if entry.problem is None]
    assert refused and all(entry.why and "\n" not in entry.why for entry in refused)


def test_reading_runs_nothing(tree):
    before = set(sys.modules)
    read_collection(tree[0])
    assert not {name for name in set(sys.modules) - before if name.startswith("not_there")}


def test_needed_memory_is_reported_before_anything_runs_and_small_inputs_are_not_refused(tree, by_id):
    large, plain = (
        {backend_of(CHILD_OF_8_GIB).refusal_by_text(by_id[id].problem) for id, name in tree[1].items() if name == kind}
        for kind in ("much_memory", "plain")
    )
    assert None not in large and all("GiB" in sentence for sentence in large)
    assert plain == {None}


@pytest.mark.long
@pytest.mark.slow
def test_each_kind_ends_in_its_status_when_it_is_run_in_the_jail(tree, by_id):
    first = {name: id for id, name in reversed(tree[1].items())}
    chosen = [by_id[first[name]] for name in (*KINDS, *SPECIAL)]
    with ThreadPoolExecutor(2) as pool:
        lines = pool.map(partial(check_entry, examine_problem, JudgeSettings(threads=1)), chosen)
    found = {line.problem: line for line in lines}
    wrong = {name: found[first[name]] for name, kind in KINDS.items() if found[first[name]].status not in kind.judged}
    assert not wrong
