"""Kinds of evidence against each other: prompts that differ in nothing else, and means that are drawn by problem."""

import json
import math
import random
import statistics

import pytest

from bench.measuring import interval_by_problem
from bench.pairs import (
    BEST,
    FILE,
    KINDS,
    PROFILING,
    SIDE_BY_SIDE,
    Pair,
    gain,
    pairs_of,
    side_by_side,
    tasks,
    tell,
    tell_gains,
    verdict_of,
)
from kernelwright.problems import load_problem
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.diagnoses import COUNTERS
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import KernelFacts, KernelTime, Look
from tests.support.runs import doubted

MEASURED = doubted(2.0, "confirmed").measurement
MEASURED = MEASURED.model_copy(update={"on_device": MEASURED.on_device.model_copy(update={"device": "NVIDIA H200"})})


def rendered_with(look):
    return tasks(load_problem("rms_norm"), "import torch\n\n\nclass ModelNew(torch.nn.Module): ...\n", MEASURED, look)


@pytest.fixture(scope="module")
def rendered():
    values = {COUNTERS["memory"]: 20.0, COUNTERS["waves"]: 0.2, COUNTERS["time_ns"]: 5e5}
    counters = (KernelFacts(kernel="tile", metrics={"device memory": "20 %"}, values=values),)
    look = Look(kernels=(KernelTime(name="tile", launches=1, ms=0.5),), counters=counters)
    return rendered_with(look)


def test_the_prompts_of_a_pair_differ_in_nothing_but_the_evidence(rendered):
    assert set(rendered) == set(KINDS)
    bare, raw, diagnosed = (rendered[kind].splitlines() for kind in KINDS)
    added = {name: [line for line in text if line not in bare] for name, text in (("raw", raw), ("own", diagnosed))}
    assert all(line in raw and line in diagnosed for line in bare)
    assert "  device memory: 20 %" in added["raw"]
    assert not any("device memory: 20" in line for line in added["own"]) and any(
        "blocks" in line for line in added["own"]
    )


def test_a_prompt_without_a_profile_needs_none(rendered):
    assert rendered_with(Look())["no profile"] == rendered["no profile"]


def test_a_parent_is_profiled():
    settings = PROFILING.model_copy(update={"device": "cpu", "min_pairs": 1, "max_pairs": 1})
    with Judge(load_problem("rms_norm"), settings) as judge:
        assert judge.settings.profile and judge.settings.worker_pairs == 1


def test_a_parent_and_its_children_have_a_verdict_each():
    problem = load_problem("rms_norm")
    right = problem.source.replace("class Model(", "class ModelNew(")
    settings = JudgeSettings(effort="screen")
    found = side_by_side(problem, {"no profile": "class ModelNew: ...\n", "parent": right}, settings)
    assert [found[name].outcome for name in ("no profile", "parent")] == ["failed", "passed"]
    with pytest.raises(SandboxError, match="the parent fails"):
        side_by_side(problem, {"parent": "class ModelNew: ...\n"}, settings)
    assert SIDE_BY_SIDE.effort == "rank", "a search ends where a candidate is far better, and knows little then"


def test_failures_and_losses_count_as_no_gain():
    assert [gain(ratio) for ratio in (None, 0.5, 1.0)] == [0.0, 0.0, 0.0]
    assert gain(2.0) == pytest.approx(math.log(2))


def test_an_interval_is_drawn_by_problem():
    rng = random.Random(1)
    problem = {f"{name} {part}": name for name in "abcdefghijklmnop" for part in range(2)}
    sure = {pair: 0.2 + rng.gauss(0, 0.02) for pair in problem}
    low, high = interval_by_problem(zip(problem.values(), sure.values(), strict=True))
    assert low < statistics.fmean(sure.values()) < high and verdict_of(low, high) == "wins"
    unsure = {pair: rng.gauss(0, 0.2) for pair in problem}
    low, high = interval_by_problem(zip(problem.values(), unsure.values(), strict=True))
    assert verdict_of(low, high) == "undecided"
    together = {pair: 0.3 if problem[pair] == "a" else 0.0 for pair in problem}
    low, _ = interval_by_problem(zip(problem.values(), together.values(), strict=True))
    assert verdict_of(low, 1.0) == "undecided", "two pairs of one problem are no two witnesses"


def test_the_table_holds_every_kind(tmp_path):
    rows = [
        {"pair": f"{name}-float32", "problem": name, "kind": kind, "ratio": ratio, "outcome": "passed"}
        for name in ("level1/5", "level1/15", "level2/5")
        for kind, ratio in zip(KINDS, (1.0, 0.9, 1.5), strict=True)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = str(tell(path)).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:5]] == list(KINDS)
    assert "1.500 [1.500, 1.500], wins" in lines[4] and "1.000 [1.000, 1.000], undecided" in lines[3]


def test_pairs_are_fixed_by_digest(tmp_path):
    (tmp_path / FILE).write_text('"level1/5 bfloat16" = "ab"\n')
    assert pairs_of(tmp_path) == [Pair("level1/5", "bfloat16", "ab")]
    assert pairs_of(tmp_path)[0].name == "level1-5-bfloat16"


def test_a_search_s_gain_is_the_mean_over_its_kernels_and_a_failure_counts_as_none(tmp_path):
    rows = [{"problem": f"level1/{at}", "kind": BEST, "ratio": ratio} for at, ratio in enumerate((1.0, 2.0, 4.0, None))]
    assert "4 kernels: 1.682 [1.000, 2.8" in str(tell_gains(rows)), "the fourth root of 8"
    (path := tmp_path / "gains.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tell(path) == tell_gains(rows)
    assert "nothing is judged" in str(tell_gains([]))
