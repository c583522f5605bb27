import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evals.scores.judgements import Judgements, JudgementsError
from kernelwright.evals.scores.scoring import CandidateFile, Shard
from kernelwright.sandbox.pool.executor import Conditions
from tests.support.runs import failed, judgement, passed

FILES = [CandidateFile(f"p{i % 3}", f"{i}.py", Path(f"{i}.py")) for i in range(60)]


@given(st.integers(1, 12))
def test_each_file_is_in_exactly_one_shard(parts):
    shards = [Shard(number, parts) for number in range(1, parts + 1)]
    assert all(sum(shard.has(file) for shard in shards) == 1 for file in FILES)


@pytest.fixture
def store(tmp_path):
    with Judgements(tmp_path / "scores.db") as store:
        yield store


def test_what_is_kept_of_a_verdict_is_what_the_judge_reported(store):
    one = judgement("a", passed(1.5))
    assert store.add(one) == store.known_like(one.problem_digest, one.candidate_digest, [one.conditions])
    assert store.add(one).report["speedup"] == one.verdict.measurement.speedup


def test_the_first_judgement_of_a_key_stays(store):
    first, second = judgement("a", passed(1.5)), judgement("a", failed())
    for one in (first, second):
        store.add(one)
    assert [found.verdict for found in store.read(store.path)] == [first.verdict]


@pytest.mark.parametrize(
    "change", [{"judge_version": "0"}, {"device": "other"}, {"torch": "other"}, {"settings": "[]"}]
)
def test_other_conditions_make_another_key(change):
    one = judgement("a", failed())
    other = one.model_copy(update={"conditions": Conditions(**one.conditions.model_dump() | change)})
    assert other.key != one.key


def test_stores_are_merged_without_doubles(store, tmp_path):
    with Judgements(tmp_path / "other.db") as other:
        for name in ("a", "b"):
            other.add(judgement(name, failed()))
    store.add(judgement("a", failed()))
    assert store.merge([tmp_path / "other.db"]) == 1
    assert [one.candidate for one in store.read(store.path)] == ["a", "b"]


def test_a_file_that_is_no_store_is_told(tmp_path):
    (tmp_path / "scores.db").write_text("no database at all, but some text that is long enough")
    with pytest.raises(JudgementsError, match="cannot use"):
        Judgements(tmp_path / "scores.db")


def test_conditions_of_an_older_release_are_read_with_the_digest_that_they_have():
    old = '{"harness":"0123456789abcdef","device":"d","torch":"2","settings":"{}"}'
    found = Conditions.model_validate_json(old)
    assert found.judge_version == "0123456789abcdef"
    assert found.digest == hashlib.sha256(old.encode()).hexdigest(), "the keys of stored records stay as they are"
