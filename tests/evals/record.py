"""Judgements for tests."""

from datetime import UTC, datetime

from kernelwright.evals.scores.judgements import Judgement
from kernelwright.sandbox.pool.conditions import Conditions

CONDITIONS = Conditions(judge_version="h", device="d", torch="2", settings="{}")


def judgement(name, verdict):
    return Judgement(
        problem="one",
        problem_digest="p",
        candidate=name,
        candidate_digest=name,
        conditions=CONDITIONS,
        time=datetime.now(UTC),
        verdict=verdict,
    )
