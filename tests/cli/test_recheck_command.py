"""`judge --recheck` computes any stored record again from its samples."""

import gzip
import json
import re
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelwright.cli import app
from kernelwright.evals.verdict_store import run_summary
from kernelwright.sandbox.verdict.report import report
from tests.contract.outputs import RECORDS
from tests.support.runs import ended, failed, passed, scored

VERDICTS = passed(1.5), failed("check"), passed(3.0)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A run, a score, an event as it is stored, reports as lines, and the published record of an old run."""
    monkeypatch.chdir(tmp_path)
    ended(tmp_path / "run", *VERDICTS)
    scored(tmp_path / "mine", *VERDICTS)
    Path("event.json").write_text(json.dumps({"kind": "judged", "verdict": VERDICTS[0].model_dump(mode="json")}))
    Path("lines.jsonl").write_text("".join(json.dumps(report(one) | {"problem": "p"}) + "\n" for one in VERDICTS))
    Path("results.jsonl.gz").write_bytes((RECORDS / "results.jsonl.gz").read_bytes())
    Path("torn.gz").write_bytes(gzip.compress(b"{}" * 99)[:-9])


def rechecked(record):
    done = CliRunner().invoke(app, ["judge", "--recheck", record, "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr


MANY = "run", "mine", "lines.jsonl", "lines.jsonl:p"
ONE = "run:one/1", "mine:one/3", "mine:one/3.py", "event.json", "lines.jsonl:3", "results.jsonl.gz:1"


@pytest.mark.parametrize("record", [*MANY, *ONE])
def test_every_form_of_a_record_agrees_with_its_samples(record):
    counts = {"records": 3, "without_samples": 1} if record in MANY else {"records": 1, "without_samples": 0}
    assert rechecked(record) == (0, {"agrees": True, "differences": {}} | counts)


def test_a_stored_number_that_its_samples_do_not_give_is_named():
    run_summary(Path("run"))
    derived, results = Path("run/derived.json").read_text(), gzip.decompress(Path("results.jsonl.gz").read_bytes())
    Path("run/derived.json").write_text(re.sub(r'"candidate_ms":[\d.]+', '"candidate_ms":0.5', derived))
    Path("forged.jsonl").write_text(re.sub(r'"low":[\d.]+', '"low":77.0', results.decode()))
    with sqlite3.connect("mine/scores.db") as store:
        store.execute("DROP TRIGGER judgements_no_update")
        store.execute("UPDATE judgements SET report = json_replace(report, '$.speedup', 99.0)")
    wanted = {"mine:one/1": "speedup", "run:one/3": "candidate_ms", "forged.jsonl": "speedup_low"}
    for record, key in wanted.items():
        code, told = rechecked(record)
        assert (code, *told["differences"]) == (1, key)


MISTAKES = {"run:one/9": "no record one/9", "lines.jsonl:x": "no record x", "mine:one/2": "only a passed verdict"}
MISTAKES |= {"absent.jsonl.gz": "no record absent", "absent:1": "no record absent", "torn.gz": "torn.gz is no JSON"}


@pytest.mark.parametrize("record", MISTAKES)
def test_what_is_no_record_ends_with_2_and_one_sentence(record):
    code, told = rechecked(record)
    assert (code, told.count("\n")) == (2, 1) and MISTAKES[record] in told
