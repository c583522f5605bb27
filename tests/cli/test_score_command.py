import json

import pytest

from tests.support.problems import PROBLEM, RIGHT, WRONG

pytestmark = [pytest.mark.long, pytest.mark.slow]
EXTENSION = "from torch.utils.cpp_extension import load_inline\next = lambda: load_inline('x', 'int x;')\n"
ENDS = "import os\n\nos._exit(0)\n\n\nclass ModelNew:\n    pass\n"


@pytest.fixture
def folders(tmp_path):
    """A good problem with four candidates, two of them the same; a broken one and one that does not run."""
    texts = {
        "tasks/level1/1_cumsum.py": PROBLEM,
        "tasks/level1/2_broken.py": "x = (",
        "tasks/level1/3_crashes.py": PROBLEM.replace("torch.randn(256, 2048)", "1 / 0"),
        "candidates/level_1_problem_1_sample_0_kernel.py": RIGHT,
        "candidates/level_1_problem_1_sample_1_kernel.py": WRONG,
        "candidates/1_cumsum/again.py": RIGHT,
        "candidates/1_cumsum/ends.py": ENDS,
        "candidates/2_broken/a.py": RIGHT,
        "candidates/3_crashes/a.py": RIGHT,
        "candidates/stranger.py": RIGHT,
        "candidates/1_cumsum/reply.md": RIGHT,
        "candidates/.git/reply.md": RIGHT,
    }
    for place, text in texts.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    return tmp_path


def scored(kernelwright, *words, **environment):
    done = kernelwright("score", "tasks", "candidates", "--json", *words, **environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done, {line["candidate"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_one_bad_candidate_or_problem_does_not_stop_the_batch(kernelwright, folders):
    done, lines = scored(kernelwright)
    outcomes = {name: (line["outcome"], line.get("stage")) for name, line in lines.items()}
    assert outcomes == {
        "level_1_problem_1_sample_0_kernel.py": ("passed", None),
        "level_1_problem_1_sample_1_kernel.py": ("failed", "check"),
        "1_cumsum/again.py": ("passed", None),
        "1_cumsum/ends.py": ("failed", lines["1_cumsum/ends.py"]["stage"]),
        "2_broken/a.py": ("not_judged", None),
        "3_crashes/a.py": ("not_judged", None),
    }
    assert done.returncode == 1
    assert "stranger.py" in done.stderr and "1 .md and .txt files" in done.stderr
    assert lines["1_cumsum/again.py"]["problem"] == "level1/1_cumsum"


def test_what_this_machine_can_not_judge_at_all_ends_with_3_and_a_sentence(kernelwright, folders):
    (folders / "own/1_cumsum").mkdir(parents=True)
    (folders / "own/1_cumsum/a.py").write_text(EXTENSION + RIGHT)
    done = kernelwright("score", "tasks", "own", CXX="no-such-compiler")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "'no-such-compiler'" in done.stderr


def test_kernels_for_a_gpu_end_with_3_where_there_is_none(kernelwright, folders):
    (folders / "own/1_cumsum").mkdir(parents=True)
    (folders / "own/1_cumsum/a.py").write_text("import triton\n\n@triton.jit\ndef kernel():\n    pass\n" + RIGHT)
    done = kernelwright("score", "tasks", "own", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3, done.stdout + done.stderr
    unread, sentence = done.stderr.splitlines()
    assert "1 files" in unread and "level1/2_broken: " in unread
    assert "no CUDA device" in sentence


def test_what_this_machine_can_judge_in_part_ends_with_1(kernelwright, folders):
    for name in ("2_broken", "3_crashes"):
        (folders / f"candidates/{name}/a.py").unlink()
    (folders / "candidates/1_cumsum/own.py").write_text(EXTENSION + RIGHT)
    done, lines = scored(kernelwright, CXX="no-such-compiler")
    assert lines["1_cumsum/own.py"]["outcome"] == "not_judged"
    assert done.returncode == 1


def test_what_was_judged_is_not_judged_again_unless_it_changed(kernelwright, folders):
    for name in ("2_broken", "3_crashes"):
        (folders / f"candidates/{name}/a.py").unlink()
    scored(kernelwright)
    done, lines = scored(kernelwright)
    assert (done.returncode, done.stderr.count("passed"), len(lines)) == (0, 0, 4)
    (folders / "candidates/1_cumsum/ends.py").write_text(RIGHT + "\n")
    done, lines = scored(kernelwright)
    assert "1_cumsum/ends.py: passed" in done.stderr
    assert done.stderr.count("passed") == 1
    scored(kernelwright, "--effort", "search", "--out", "brief")
    told = kernelwright("leaderboard", "brief").stdout
    assert "1 kernels do not count" in told and "--verify" in told, told


def test_shards_divide_the_files_and_merge(kernelwright, folders):
    for name in ("2_broken", "3_crashes"):
        (folders / f"candidates/{name}/a.py").unlink()
    parts = [scored(kernelwright, "--shard", f"{i}/2", "--out", f"part{i}")[1] for i in (1, 2)]
    assert not set(parts[0]) & set(parts[1])
    done, lines = scored(kernelwright, "--out", "whole", "--merge", "part1", "--merge", "part2")
    assert set(lines) == set(parts[0]) | set(parts[1])
    assert "passed" not in done.stderr
