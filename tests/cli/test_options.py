"""Where, in which dtype, with how much memory and against what: the options that judging commands share."""

import json

import pytest

from kernelwright.options import DeviceOptions, JudgingOptions, check_device, device_for, memory_size, size_for
from kernelwright.problems import load_problem
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.terminal import UserMistake
from kernelwright_child import driver
from tests.support.problems import RIGHT
from tests.support.servers import fake_reply

pytestmark = pytest.mark.slow


WITHOUT_DEVICE = pytest.mark.skipif(driver.device_count() > 0, reason="this machine has a CUDA device")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("24GiB", 24 * 2**30),
        ("24 gib", 24 * 2**30),
        ("1.5G", 1_500_000_000),
        ("512MB", 512_000_000),
        ("2097152", 2**21),
    ],
)
def test_a_size_of_memory_is_read_with_its_unit(text, count):
    assert memory_size(text) == count


@pytest.mark.parametrize("text", ["", "much", "GiB", "-1GiB", "24 GiBs", "12", "1KiB"])
def test_what_is_no_size_or_too_little_for_anything_is_a_mistake(text):
    with pytest.raises(UserMistake, match="24GiB"):
        memory_size(text)


def test_memory_is_a_child_s_on_a_processor_and_all_that_is_used_on_a_gpu():
    assert JudgingOptions(memory="2GiB").settings("cpu").memory_bytes == 2**31
    on_device = JudgingOptions(memory="2GiB").settings("cuda:1")
    assert on_device.device_memory_bytes == 2**31
    assert on_device.memory_bytes == JudgingOptions().settings("cpu").memory_bytes


def test_what_nobody_said_is_not_among_the_settings_that_were_chosen():
    assert JudgingOptions().settings("cpu").model_fields_set == {"device", "jail", "compiled"}


def test_an_effort_is_one_of_three():
    assert [JudgingOptions(effort=name).settings("cpu").effort for name in ("screen", "search", "rank")] == [
        "screen", "search", "rank",
    ]  # fmt: skip
    with pytest.raises(UserMistake, match=r"'quick'.* screen, search, rank"):
        JudgingOptions(effort="quick").settings("cpu")


def test_further_baselines_are_a_list_or_none():
    assert JudgingOptions(baselines="tf32, shipped").settings("cuda").baselines == ("tf32", "shipped")
    assert JudgingOptions(baselines="none").settings("cuda").baselines == ()


@pytest.mark.parametrize("names", ["fast", "tf32,", "none,tf32", "", "compiled-tf32"])
def test_a_baseline_that_cannot_be_is_a_mistake(names):
    with pytest.raises(UserMistake, match=r"--baselines|--compile"):
        JudgingOptions(baselines=names).settings("cuda")


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        (JudgingOptions(effort="screen", compiled=["default"]), {}, "leave --compile"),
        (JudgingOptions(effort="screen", sanitize=True), {}, "leave --compile, --sanitize"),
        (JudgingOptions(effort="search"), {"min_pairs": 40}, "leave --pairs out"),
    ],
)
def test_what_a_smaller_effort_does_not_do_is_a_mistake_to_ask_for(options, more, said):
    with pytest.raises(UserMistake, match=said):
        options.settings("cuda", **more)


@pytest.mark.parametrize(("asked", "count"), [("cpu", 0), ("cuda", 1), ("cuda:0", 1), ("cuda:3", 4), ("cuda:3", None)])
def test_a_device_that_is_there_is_taken(asked, count):
    check_device(asked, count)


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "cpu:0", "H200", ""])
def test_what_names_no_device_is_a_mistake(asked):
    with pytest.raises(UserMistake, match="cpu, cuda, and cuda:N"):
        check_device(asked, 8)


@pytest.mark.parametrize(
    ("asked", "count", "said"),
    [("cuda", 0, "has no CUDA device"), ("cuda:1", 1, "has cuda:0 alone"), ("cuda:8", 8, "has cuda:0 to cuda:7")],
)
def test_a_device_that_is_not_there_is_the_machine_s_lack_with_what_there_is(asked, count, said):
    with pytest.raises(MachineError, match=said):
        check_device(asked, count)


@pytest.mark.parametrize("language", ["python", "cpp", "cuda", "triton"])
def test_every_language_may_be_judged_on_a_gpu_if_the_user_says_so(language):
    assert device_for("cuda:1", language, "cpu", local=False) == "cuda:1"


@pytest.mark.parametrize(("devices", "executor"), [(2, "local"), (None, "ray")])
def test_one_device_by_its_number_is_not_several(devices, executor):
    with pytest.raises(UserMistake, match="--device cuda:1"):
        DeviceOptions(executor, devices=devices).check_with("cuda:1")
    DeviceOptions(executor, devices=devices).check_with("cuda")


def test_a_catalog_problem_has_its_size_for_a_gpu_there_unless_another_is_asked_for():
    assert size_for("rms_norm", None, "cuda") == "gpu"
    assert size_for("rms_norm", "cpu", "cuda") == "cpu"
    assert size_for("rms_norm", None, "cpu") is None
    assert size_for("problem.py", None, "cuda") is None


@pytest.mark.parametrize(("word", "name"), [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")])
def test_kernelbench_s_word_for_a_dtype_is_the_same_problem(word, name):
    assert load_problem("rms_norm", dtype=word) == load_problem("rms_norm", dtype=name)
    assert load_problem("rms_norm", dtype=word).dtype == name


def test_another_dtype_is_another_problem():
    digests = {load_problem("rms_norm", dtype=dtype).digest for dtype in (None, "float32", "float16", "bfloat16")}
    assert len(digests) == 4


@WITHOUT_DEVICE
@pytest.mark.parametrize(
    "words",
    [
        ("judge", "problem.py", "right.py"),
        ("score", "problem.py", "ours"),
        ("run", "problem.py", "--target", "triton"),
        ("problems", "check", "problem.py"),
    ],
)
def test_a_gpu_that_is_asked_for_and_not_there_ends_with_3(kernelwright, files, words):
    (files / "ours/problem").mkdir(parents=True)
    (files / "ours/problem/a.py").write_text(RIGHT)
    done = kernelwright(*words, "--device", "cuda:1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert "--device cuda:1" in done.stderr


def test_a_cast_problem_is_shown_with_its_dtype_and_so_is_its_prompt(kernelwright, files):
    shown = kernelwright("problems", "show", "problem.py", "--dtype", "bf16")
    assert "# dtype bfloat16" in shown.stdout
    record = json.loads(kernelwright("problems", "show", "problem.py", "--dtype", "bf16", "--json").stdout)
    posed = load_problem(str(files / "problem.py"), dtype="bf16")
    assert (record["dtype"], record["digest"]) == ("bfloat16", posed.digest)
    done = kernelwright("prompt", "problem.py", "--dtype", "bf16")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_verdict_says_where_it_was_reached_and_in_which_dtype(kernelwright, files):
    asked = ("--dtype", "bf16", "--device", "cpu", "--memory", "4GiB", "--effort", "screen")
    done = kernelwright("judge", "problem.py", "right.py", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("device: ")]
    assert line.startswith("device: cpu, ") and line.endswith(", bfloat16")


@pytest.mark.long
@pytest.mark.slow
def test_a_run_keeps_device_dtype_and_limits_and_goes_on_with_them(kernelwright, files, model_server):
    server = model_server(fake_reply(RIGHT))
    asked = ("--dtype", "fp16", "--threads", 1, "--memory", "3GiB", "--out", "out", "--attempts", 1)
    done = kernelwright("run", "problem.py", "--model", "m", "--base-url", server.base_url, *asked)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # on a busy machine, too noisy to keep a kernel
    header = json.loads((files / "out/header.json").read_text())
    judging = header["config"]["judging"]
    assert (judging["device"], judging["threads"], judging["memory_bytes"]) == ("cpu", 1, 3 * 2**30)
    assert header["problems"] == {"problem": load_problem(str(files / "problem.py"), dtype="float16").digest}
    intro = kernelwright("resume", "out").stdout.splitlines()[0]
    assert ", on cpu, " in intro and ", float16, " in intro
    if (files / "out/best").exists():
        assert load_problem(str(files / "out/best/problem/problem")).dtype == "float16"


@pytest.mark.long
@pytest.mark.slow
def test_a_run_against_torch_compile_fills_its_column_of_the_board(kernelwright, files, model_server):
    server = model_server(fake_reply(RIGHT))
    asked = ("--compile", "default", "--out", "out", "--attempts", 1)
    done = kernelwright("run", "problem.py", "--model", "m", "--base-url", server.base_url, *asked)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    (board,) = json.loads(kernelwright("leaderboard", "out", "--json").stdout)["boards"]
    (row,) = board["rows"]
    assert row["cells"][0]["published"]["speedups"].keys() == {"eager", "torch.compile default"}
    assert row["fast"]["compile"]["0.0"] == 1.0
