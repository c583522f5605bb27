"""Tables and numbers of the reference pages are those of the code."""

import re
from typing import get_args

import pytest

from kernelwright.agent.config import SearchConfig
from kernelwright.agent.strategies import SHIPPED
from kernelwright.problems.input_distributions import DISTRIBUTIONS
from kernelwright.problems.languages import LANGUAGES
from kernelwright.sandbox.correctness.checks import CHECKS
from kernelwright.sandbox.verdict.gpu_timing import CALLS_MS, CHAIN_MS, CHAIN_SHARE, CHAIN_SHORT_MS
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.settings import Accuracy, Defence, JudgingEffort
from tests.docs.pages import DOCS, ROOT, blocks, inline
from tests.support.commands import run_with
from tests.support.runs import passed


def first_column(page, heading):
    """The first cells of the table whose heading begins so."""
    rows = (DOCS / page).read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.strip("|").split("|")[0].strip() for row in rows]


def names(page, heading):
    return [name for cell in first_column(page, heading) for name in re.findall(r"`([^`]+)`", cell)]


def test_the_judge_s_page_has_every_input_distribution():
    assert sorted(first_column("judge.md", "distribution")) == sorted(DISTRIBUTIONS)


def test_it_has_every_check_that_can_be_disabled():
    assert sorted(names("judge.md", "check")) == sorted({*get_args(Defence), *(one.name for one in CHECKS)})


def test_it_has_every_effort_and_every_accuracy():
    assert names("judge.md", "`--effort`") == list(get_args(JudgingEffort))
    assert names("judge.md", "`--accuracy`") == list(get_args(Accuracy))


def test_the_page_on_gpus_has_the_uncertainty_of_the_clock():
    text = (DOCS / "gpu.md").read_text()
    chain = f"| `chain` | {1000 * CHAIN_MS:g} us, or {100 * CHAIN_SHARE:g} % where that is more |"
    assert f"{chain} {1000 * CHAIN_SHORT_MS:g} us |" in text
    assert f"| `calls` | {CALLS_MS:g} ms | {CALLS_MS:g} ms |" in text


def test_it_has_every_language_of_gpus():
    assert set(names("gpu.md", "target")) == {name for name, one in LANGUAGES.items() if one.device == "cuda"}


def test_the_search_s_page_has_every_strategy_and_the_defaults():
    assert sorted(names("search.md", "`--strategy`")) == sorted(SHIPPED)
    text, config = (DOCS / "search.md").read_text(), SearchConfig(target="cpp", model="any")
    for line in (
        f"| `drafts`, `repairs` | {config.drafts}, {config.repairs} |",
        f"| `patience`, `gain` | {config.patience}, {config.gain} |",
        f"| `confirm`, `tune` | {config.confirm}, {config.tune} |",
        f"| `models`, `stall`, `choice` | none, {config.stall}, `{config.choice}` |",
    ):
        assert line in text


def test_the_page_on_records_has_every_key_of_a_verdict():
    assert sorted(names("formats-and-records.md", "keys")) == sorted(report(passed(2.0)))


@pytest.mark.parametrize("page", ["judge.md", "gpu.md"])
def test_the_example_of_a_page_is_the_stored_verdict_that_it_names(page):
    (record,) = [code.split()[-1] for code in inline(DOCS / page) if "--recheck bench/records" in code]
    found = run_with(ROOT, "judge", "--recheck", record)
    assert found.returncode == 0, found.stderr
    assert found.stdout.partition("samples: ")[2].strip() in " ".join(blocks(DOCS / page, "console")[0].split())
