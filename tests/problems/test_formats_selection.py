import pytest

from kernelwright.evals.runs import suite
from kernelwright.problems import ProblemError, load_problem
from kernelwright.problems.arithmetic import NotArithmetic, evaluate
from kernelwright.problems.formats import read_collection, select
from tests.support.foreign import write_tree
from tests.support.synthetic import write_synthetic

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


def test_a_suite_is_a_selection_of_a_collection_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_KERNELBENCH", str(write_tree(tmp_path)))
    names = [load_problem(address).name for address in suite("kernelbench:level1[10],level2", "cpp")]
    assert names == ["level1_10_Ten", "level2_3_Triple"]


def test_a_suite_is_found_in_the_folder_of_its_name(tmp_path, monkeypatch):
    write_tree(tmp_path / "KernelBench/KernelBench")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELWRIGHT_KERNELBENCH", raising=False)
    assert suite("kernelbench:level2", "cpp") == ("KernelBench::level2/3",)


def test_a_suite_may_name_a_path(tmp_path):
    assert suite(f"{write_tree(tmp_path)}:level2", "cpp") == (f"{tmp_path}::level2/3",)


def test_a_suite_leaves_out_what_can_not_be_judged(tmp_path):
    write_synthetic(tmp_path, 40)
    chosen = suite(f"{tmp_path}:level1[1-40]", "cpp")
    assert 0 < len(chosen) < 40 and not any(address.endswith("level1/6") for address in chosen)


def test_a_collection_that_is_nowhere_is_told_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELWRIGHT_KERNELBENCH", raising=False)
    with pytest.raises(ProblemError, match="KERNELWRIGHT_KERNELBENCH"):
        suite("kernelbench:level1", "cpp")


VALUES = {"2 * (a + 1)": 8, "a // 2 ** 1": 1, "-a": -3, "a == 3 and 1 < 2": True, "(a, 2)": (3, 2), "a % 2": 1}
REFUSED_TEXTS = ["9 ** 9 ** 9", "a.item()", "__import__('os')", "b", "1 / 0", "a if a else 1", "[0] * 10 ** 9", "("]


@pytest.mark.parametrize("text", VALUES)
def test_arithmetic_is_evaluated(text):
    assert evaluate(text, {"a": 3}) == VALUES[text]


@pytest.mark.parametrize("text", REFUSED_TEXTS)
def test_more_than_arithmetic_is_refused(text):
    with pytest.raises(NotArithmetic):
        evaluate(text, {"a": 3})
