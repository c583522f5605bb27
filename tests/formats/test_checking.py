import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.evals.checking import Checked, CheckedFile, Examined, begun, check_entry, summary
from kernelwright.problems import ProblemError, load_problem
from kernelwright.problems.formats import Entry, read_collection
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child.supervisor import descendants
from tests.support.commands import run_with
from tests.support.problems import PROBLEM, stateless
from tests.support.processes import HEARING_CTRL_C

SETTINGS = JudgeSettings(threads=1, device="cpu")
RMS_NORM = load_problem("rms_norm")
ENTRY = Entry(id="level1/1", problem=RMS_NORM)
WEAK = stateless("torch.softmax(x, 1).sum(1)", "torch.randn(512, 4096)")
LINEAR = (
    "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
    "        self.layer = torch.nn.Linear(n, n)\n    def forward(self, x): return {value}\n"
    "def get_inputs(): return [torch.randn(512, 1024)]\ndef get_init_inputs(): return [1024]\n"
)
TREE = {
    "1_Sum": PROBLEM.replace("torch.randn(256, 2048)", "torch.randn(2048, 2048)"),
    "2_Weak": WEAK,
    "3_Random": PROBLEM.replace("torch.cumsum(x, dim=1)", "torch.cumsum(x, dim=1) + torch.randn_like(x)"),
    "4_Huge": PROBLEM.replace("torch.randn(256, 2048)", "torch.randn(1048576, 1048576)"),
    "5_Broken": "x = (",
    "6_Linear": LINEAR.format(value="self.layer(x)"),
    "7_Weightless": LINEAR.format(value="torch.cumsum(x, 1) + 0 * self.layer(x)"),
}
FOUND = {
    "level1/1": ("ok", []),
    "level1/2": ("weak", ["lazy", "independent"]),
    "level1/3": ("weak", ["random"]),
    "level1/4": ("unsupported here", ["memory"]),
    "level1/5": ("broken", []),
    "level1/6": ("ok", []),
    "level1/7": ("weak", ["weightless"]),
}


def write(level, texts):
    """Write problems by name into a level of a tree; return the folder that holds the tree."""
    level.mkdir(parents=True)
    for name, text in texts.items():
        (level / f"{name}.py").write_text(text)
    return level.parents[1]


@pytest.fixture
def tree(tmp_path):
    return write(tmp_path / "tree/level1", TREE)


def kernelwright(folder, *words, **environment):
    return run_with(folder, "problems", "check", *words, **environment)


def lines_of(text):
    return {line["problem"]: line for line in map(json.loads, text.splitlines())}


@pytest.mark.slow
def test_a_tree_is_told_line_by_line_and_summed_up_by_reason(tree):
    done = kernelwright(tree, "tree", "--device", "cpu", "--json")
    assert done.returncode == 1, done.stderr
    lines = lines_of(done.stdout).items()
    assert {name: (one["status"], [kind for kind in one["kinds"] if kind != "short"]) for name, one in lines} == FOUND
    *_, last = done.stderr.splitlines()
    assert last.startswith("2 ok, 3 weak (1 lazy, ") and last.endswith("(memory), 1 broken")


@pytest.mark.long
@pytest.mark.slow
def test_what_a_file_has_is_not_checked_again_until_it_changes(tree):
    words = ("tree", "--device", "cpu", "--out", "checked.jsonl", "--json")
    first = lines_of(kernelwright(tree, *words).stdout)
    (tree / "tree/level1/6_Linear.py").write_text(LINEAR.format(value="self.layer(x) * 2"))
    done = kernelwright(tree, *words)
    again = lines_of(done.stdout)
    assert "; 4 are in checked.jsonl" in done.stderr
    assert {name for name, line in again.items() if line["digest"] != first[name]["digest"]} == {"level1/6"}
    assert all(again[name] == first[name] for name in ("level1/1", "level1/2", "level1/3", "level1/7"))
    assert lines_of((tree / "checked.jsonl").read_text()) == again


@pytest.mark.long
@pytest.mark.slow
def test_another_dtype_is_checked_for_itself(tree):
    words = ("tree/level1/1_Sum.py", "--device", "cpu", "--out", "checked.jsonl", "--json")
    for dtype in ("fp32", "bf16", "bfloat16"):
        assert kernelwright(tree, *words, "--dtype", dtype).returncode == 0
    dtypes = [json.loads(line)["dtype"] for line in (tree / "checked.jsonl").read_text().splitlines()]
    assert dtypes == ["float32", "bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"), [(("--out", "checked.jsonl"), "goes on from checked.jsonl"), ((), "with --out FILE.jsonl")]
)
def test_ctrl_c_says_how_to_go_on(tree, words, said):
    for number in range(8, 60):
        (tree / f"tree/level1/{number}_More.py").write_text(PROBLEM)
    command = [sys.executable, "-P", "-c", HEARING_CTRL_C, "problems", "check", "tree", "--device", "cpu", "--json"]
    with subprocess.Popen(
        [*command, *words], cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "stopped after " in told and " of 59; " in told and said in told and "Traceback" not in told


OUTER = stateless("torch.outer(x, x)", "torch.randn(16384)")
SLEEPING = PROBLEM.replace("return torch.cumsum", "__import__('time').sleep(100); return torch.cumsum")
KILLED = PROBLEM.replace(
    "return torch.cumsum", "__import__('os').kill(__import__('os').getpid(), 9); return torch.cumsum"
)


def folder_of(tmp_path, *texts):
    write(tmp_path / "few/level1", {f"{number}_It": text for number, text in enumerate(texts, 1)})


@pytest.mark.slow
def test_small_inputs_with_a_large_result_are_refused_before_a_call_and_a_killed_reference_is_no_broken_one(tmp_path):
    folder_of(tmp_path, OUTER, KILLED, PROBLEM)
    words = ("few", "--device", "cpu", "--memory", "1GiB", "--json")
    done = kernelwright(tmp_path, *words, KERNELWRIGHT_CACHE=str(tmp_path / "cache"))
    found = lines_of(done.stdout)
    assert [line["status"] for line in found.values()][:2] == 2 * ["unsupported here"], done.stderr
    assert found["level1/3"]["kinds"] in ([], ["short"])  # on a busy machine
    (said,) = found["level1/1"]["why"]
    assert "takes 3.03 GiB of memory in float64" in said and "may take 1 GiB" in said and "--memory" in said
    assert done.returncode == 1


@pytest.mark.slow
def test_what_kills_the_process_that_checks_costs_one_line(tmp_path):
    folder_of(tmp_path, PROBLEM, SLEEPING, PROBLEM)
    command = [sys.executable, "-P", "-m", "kernelwright", "problems", "check", "few", "--device", "cpu", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        checking = [pid for pid in descendants(process.pid) if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
        under = descendants(checking[0])
        os.kill(checking[0], signal.SIGKILL)
        rest, said = process.communicate(timeout=120)
    found = lines_of(first + rest)
    assert [line["status"] == "failed" for line in found.values()] == [False, True, False], said
    assert found["level1/2"]["kinds"] == ["killed"] and "memory" in found["level1/2"]["why"][0]
    assert process.returncode == 1 and "1 failed (killed)" in said
    assert not [pid for pid in under if Path(f"/proc/{pid}").exists()]


def told(error):
    def examine(problem, settings):
        raise error

    return check_entry(examine, SETTINGS, ENTRY)


@pytest.mark.parametrize(
    ("error", "status", "kinds"),
    [
        (UnsupportedHere("it takes 300 GiB"), "unsupported here", ("memory",)),
        (UnsupportedProblem("it takes 8-bit floats"), "unsupported", ()),
        (BrokenProblem("it does not run"), "broken", ()),
        (RuntimeError("a hole"), "failed", ()),
    ],
)
def test_what_a_problem_meets_is_its_own_line(error, status, kinds):
    line = told(error)
    assert (line.status, line.kinds) == (status, kinds)
    assert str(error) in line.why[0]


def test_what_the_machine_lacks_ends_the_check():
    with pytest.raises(MachineError):
        told(MachineError("no bubblewrap"))


def test_inputs_that_can_not_fit_are_told_without_running_anything():
    small = SETTINGS.model_copy(update={"memory_bytes": 2**20})
    line = check_entry(lambda problem, settings: pytest.fail("it was run"), small, ENTRY)
    assert (line.status, line.kinds) == ("unsupported here", ("memory",))
    assert "1 MiB" in line.why[0] and "--memory" in line.why[0]


def line(name, status, *kinds):
    return Checked(problem=name, status=status, kinds=kinds)


def test_each_problem_is_counted_once_by_its_first_reason():
    lines = [line("a", "weak", "lazy", "independent"), line("b", "ok"), line("d", "weak", "random")]
    lines += [line("e", "weak", "lazy"), line("f", "broken"), *[line("c", "unsupported here", "memory")] * 2]
    ok, weak, random, unsupported, broken = summary(lines).split(", ")
    assert (ok, weak, random, broken) == ("1 ok", "3 weak (2 lazy", "1 random)", "1 broken")
    assert unsupported.startswith("2 unsupported") and unsupported.endswith("(memory)")


def ok(problem, settings):
    return Examined("ok")


def test_a_line_stands_for_the_same_problem_on_the_same_device(tmp_path):
    path = tmp_path / "checked.jsonl"
    with CheckedFile(path) as file:
        file.add(check_entry(ok, SETTINGS, ENTRY))
    with CheckedFile(path) as file:
        mine = begun(ENTRY, SETTINGS)
        assert file.known(mine) is not None
        for other in ({"device": "NVIDIA H200"}, {"digest": "0"}, {"dtype": "bfloat16"}, {"judge_version": "0"}):
            assert file.known(mine.model_copy(update=other)) is None


@pytest.mark.parametrize("status", ["unsupported here", "failed"])
def test_what_another_try_may_change_is_tried_again(tmp_path, status):
    path = tmp_path / "checked.jsonl"
    with CheckedFile(path) as file:
        file.add(begun(ENTRY, SETTINGS).model_copy(update={"status": status}))
    with CheckedFile(path) as file:
        assert file.known(begun(ENTRY, SETTINGS)) is None


def test_a_line_that_a_kill_has_cut_off_costs_itself_alone(tmp_path):
    path = tmp_path / "checked.jsonl"
    whole = check_entry(ok, SETTINGS, ENTRY).model_dump_json()
    path.write_text(f'{whole}\n{{"problem": "level1/2", "sta')
    with CheckedFile(path) as file:
        assert file.known(begun(ENTRY, SETTINGS)) is not None
        file.add(line("level1/2", "ok"))
    assert json.loads(path.read_text().splitlines()[-1])["problem"] == "level1/2"


@pytest.mark.parametrize("letter", "\u2028\u2029\x85")
def test_a_reason_with_a_letter_that_some_take_for_the_end_of_a_line_is_read_again(tmp_path, letter):
    def refuse(problem, settings):
        raise BrokenProblem(f"one{letter}two")

    path, wanted = tmp_path / "checked.jsonl", check_entry(refuse, SETTINGS, ENTRY)
    for _ in range(2):
        with CheckedFile(path) as file:
            file.add(wanted)
    with CheckedFile(path) as file:
        assert file.known(begun(ENTRY, SETTINGS)) == wanted
    assert path.read_text().count("\n") == 1


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(ProblemError, match=r"no lines.* --out"), CheckedFile(path):
        pass
    assert path.read_text() == "dear diary\n"


def test_what_can_not_be_read_is_told_from_the_text(tree):
    entries = {entry.id: entry for entry in read_collection(tree / "tree").entries}
    found = check_entry(lambda problem, settings: pytest.fail("it was run"), SETTINGS, entries["level1/5"])
    assert (found.status, found.digest) == ("broken", "")
