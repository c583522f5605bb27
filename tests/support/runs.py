"""Runs of any size with made-up verdicts, written as a search would log them, and judgements. Seeded."""

import hashlib
import random
import sqlite3
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from kernelwright.agent.log.events import Asked, CandidateExtracted, JudgedAttempt, Kept, NoCandidate, Replied, Stopped
from kernelwright.agent.log.records import Ask, FoundCandidate, PromptOutline, Reply, Usage
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.agent.replies import NotExtracted
from kernelwright.evals.verdict_store import Judgement, VerdictStore, source_digest
from kernelwright.problems import Problem
from kernelwright.prompts import Prompt
from kernelwright.prompts.brief import Section
from kernelwright.sandbox.pool.executor import Conditions
from kernelwright.sandbox.verdict.gpu_timing import ClockCheck, DeviceRecord
from kernelwright.sandbox.verdict.verdicts import (
    Authenticity,
    Evidence,
    Failed,
    Measurement,
    Pairing,
    Passed,
    ProblemStatus,
)

REFERENCE = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(8)]


def get_init_inputs():
    return []
"""
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAGES = ("scan", "build", "load", "run", "check", "time")
LOG = "candidate.py:14:22: error: 'blockDim' was not declared in this scope\n   14 |     int i = blockDim.x;\n"


def problem(name, family="made", **changes):
    return Problem(name=name, title=f"What {name} does", family=family, size="cpu", source=REFERENCE, **changes)


def setting(device="Example CPU", model="model-a", judge_version="h1"):
    search = {"model": model, "strategy": "refine", "target": "cpp"}
    versions = {"python": "3.11", "judge_version": judge_version}
    return Setting(config={"search": search}, device=device, versions=versions)


def evidence(weak=False, judge_version=None, label="custom", effort="rank"):
    status = ProblemStatus(status="weak", why=("it accepts zeros",)) if weak else ProblemStatus(status="ok")
    return Evidence(
        jail=("namespaces", "filter"),
        seconds={"build": 4.2, "time": 1.5},
        authenticity=Authenticity(label=label, evidence=("it defines kernels of its own",)),
        effort=effort,
        problem_status=status,
        versions={"python": "3.11"} | ({"judge_version": judge_version} if judge_version else {}),
    )


def passed(speedup, rng=None, pairs=20, compiled=None, shipped=None, spread=0.01, **facts):
    """A verdict with that speedup against eager, and others against torch.compile and against eager as shipped."""
    rng = rng or random.Random(0)
    candidate = tuple(round(rng.lognormvariate(0, spread), 5) for _ in range(pairs))
    factors = {"eager": speedup} | ({"torch.compile default": compiled} if compiled else {})
    factors |= {"eager as shipped": shipped} if shipped else {}
    pairings = tuple(
        Pairing(
            baseline=name,
            candidate_ms=candidate,
            baseline_ms=tuple(round(ms * factor * rng.lognormvariate(0, spread), 5) for ms in candidate),
        )
        for name, factor in factors.items()
    )
    return Passed(measurement=Measurement(pairings=pairings, threads=2), evidence=evidence(**facts))


def doubted(speedup, kind, **more):
    """A verdict of that speedup that is `too_noisy` or `unconfirmed`, of an older clock (`events`) or `confirmed`."""
    found = passed(speedup, spread=0.0)
    device = DeviceRecord(
        device="a GPU", architecture="9.0", driver="570", switches={}, device_ms={},
        latency_ms={"candidate": (1.5,), "eager": (9.0,)}, host_ms={"candidate": (1.2,), "eager": (8.0,)},
        check=ClockCheck(
            method="chain", candidate_ms=(speedup if kind == "unconfirmed" else 1.0,), empty_ms=(0.0,)
        ) if kind != "events" else None,
    )  # fmt: skip
    clock = {"clock": "events" if kind == "events" else "gpu", "on_device": device}
    placebo = Pairing(baseline="eager", candidate_ms=(1.0,) * 20, baseline_ms=(2.0,) * 20)
    changed = {"placebo": placebo} if kind == "too_noisy" else clock
    return found.model_copy(update={"measurement": found.measurement.model_copy(update=changed | more)})


def failed(stage="check", reason=None, log=LOG):
    reason = reason or f"went wrong at {stage}: axis 0 is reversed\n512 of 512 elements are off (100 %)"
    return Failed(stage=stage, reason=reason, log=log, evidence=evidence())


def source_of(number, rng):
    body = "\n".join(f"        # step {i}: {rng.randrange(10**9)}" for i in range(40))
    return f'''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
// attempt {number}
torch::Tensor doubled(torch::Tensor x) {{ return x * {number}; }}
"""


class ModelNew(torch.nn.Module):
    def forward(self, x):
{body}
        return x * 2
'''


class Writer:
    """Writes whole attempts of one problem, in bulk: as the engine would, with many events in one transaction."""

    def __init__(self, log, name, rng):
        self.log, self.name, self.rng = log, name, rng
        self.events, self.blobs = [], {}
        self.best = None
        self.count = 0

    def ask(self, parent=None, role="propose"):
        """An attempt whose answer is still to come; its number."""
        self.count += 1
        number, of = self.count, {"problem": self.name, "attempt": self.count}
        sections = (
            Section(name="contract", text="Write a class ModelNew. " * 60, stable=True),
            Section(name="problem", text=REFERENCE, stable=True),
            Section(name="parent", text=f"Attempt {parent} came before {number}.", stable=False),
        )
        prompt = Prompt(role=role, target="cpp", sections=sections)
        ask = Ask(
            attempt=number, problem=self.name, role=role, target="cpp", parent=parent, idea=f"idea {number % 7}",
            directive="", model="model-a",
        )  # fmt: skip
        request = {"request_digest": "0" * 64, "temperature": None, "max_tokens": None, "sample": 0}
        self.put(
            Asked(**of, ask=ask, prompt=PromptOutline.of(prompt), **request), *(section.text for section in sections)
        )
        return number

    def attempt(
        self, verdict=None, reply=None, parent=None, role="propose", source=None, cost=0.01, why=None, same_as=None
    ):
        """One finished attempt; without a verdict it is one without a candidate."""
        number = self.ask(parent, role)
        of = {"problem": self.name, "attempt": number}
        source = source or source_of(number, self.rng)
        answer = Reply(
            text=reply or f"<think>Let me see {number}.</think>\nHere it is.\n\n```python\n{source}```\n",
            reasoning=f"I think about {number}.",
            finish_reason="stop",
            model="model-a-2026",
            usage=Usage(input_tokens=900, output_tokens=400, reasoning_tokens=100, cost_usd=cost),
            provider="made",
            provider_request_id=None,
            latency_s=1.25,
        )
        self.put(Replied(**of, reply_digest=answer.digest, reply=answer.facts), answer.model_dump_json())
        if verdict is None:
            self.put(NoCandidate(**of, why=why or NotExtracted(kind="refusal", detail="The reply refuses.")))
            return number
        digest = hashlib.sha256(source.encode()).hexdigest()
        found = FoundCandidate(digest=digest, language="cpp", how="the only block")
        self.put(CandidateExtracted(**of, candidate=found), source)
        self.put(JudgedAttempt(**of, verdict=verdict, same_as=same_as))
        speedup = verdict.measurement.speedup if isinstance(verdict, Passed) else None
        if speedup is not None and (self.best is None or speedup > self.best[0]):
            self.put(Kept(**of, speedup=speedup, previous=self.best and self.best[1]))
            self.best = speedup, number
        return number

    def put(self, body, *blobs):
        time = START + timedelta(seconds=len(self.events))
        attempt = getattr(body, "attempt", None)
        self.events.append((time.isoformat(), body.kind, self.name, attempt, body.model_dump_json()))
        self.blobs |= {hashlib.sha256(blob.encode()).hexdigest(): blob.encode() for blob in blobs}

    def stop(self, reason="the budget is used up"):
        self.put(Stopped(problem=self.name, reason=reason))
        self.flush()

    def flush(self):
        with sqlite3.connect(self.log.folder / "run.db") as connection:
            connection.executemany(
                "INSERT INTO events (time, kind, problem, attempt, payload) VALUES (?, ?, ?, ?, ?)", self.events
            )
            connection.executemany(
                "INSERT INTO blobs SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE sha256 = ?1)",
                self.blobs.items(),
            )
        self.events, self.blobs = [], {}


@contextmanager
def writing(folder, *verdicts, of=None, chosen=None, seed=0):
    """The writer of a new run over one problem, after an attempt for each verdict; what it has written is flushed."""
    of = of or problem("one")
    with RunLog.create(folder, [of], chosen or setting()) as log:
        writer = Writer(log, of.name, random.Random(seed))
        for verdict in verdicts:
            writer.attempt(verdict)
        yield writer
        if writer.events:
            writer.flush()


def ended(folder, *verdicts, **how):
    with writing(folder, *verdicts, **how) as writer:
        writer.stop()
    return folder


def made_run(folder, problems=2, attempts=10, seed=0, **circumstances):
    """A run with that many problems and attempts for each; about half of the attempts pass."""
    rng = random.Random(seed)
    wanted = [problem(f"problem_{i}", family=("norm", "matmul", "conv")[i % 3]) for i in range(problems)]
    with RunLog.create(folder, wanted, setting(**circumstances)) as log:
        for one in wanted:
            writer = Writer(log, one.name, rng)
            for number in range(1, attempts + 1):
                writer.attempt(made_verdict(rng), **lineage(number, rng))
            writer.stop()
    return folder


def lineage(number, rng):
    if number <= 2:
        return {}
    return {"parent": rng.randrange(1, number), "role": rng.choice(["repair", "improve"])}


def made_verdict(rng):
    chance = rng.random()
    if chance < 0.5:
        return passed(rng.lognormvariate(0.3, 0.5), rng, compiled=rng.lognormvariate(0.1, 0.4))
    return failed(rng.choice(STAGES)) if chance < 0.9 else None


CONDITIONS = Conditions(judge_version="h", device="d", torch="2", settings="{}")


def scored(folder, *verdicts, of=None, source=None, device="Example CPU"):
    """The folder of a score, new or with more in it: a candidate for each verdict."""
    of = of or problem("one")
    with VerdictStore(folder / "scores.db") as store:
        for number, verdict in enumerate(verdicts, 1):
            text = source or source_of(number, random.Random(number))
            store.keep(of.record, text)
            settings = f'{{"effort": "{verdict.evidence.effort}"}}'
            # No copy: that would carry a digest over which was computed before.
            under = type(CONDITIONS)(**(CONDITIONS.model_dump() | {"device": device, "settings": settings}))
            about = {"problem": of.name, "problem_digest": of.digest, "candidate_digest": source_digest(text)}
            store.add(judgement(f"{of.name}/{number}.py", verdict, conditions=under, **about))
    return folder


def judgement(name, verdict, **changes):
    about = {"problem": "one", "problem_digest": "p", "candidate": name, "candidate_digest": name} | changes
    return Judgement(**{"conditions": CONDITIONS, "time": datetime.now(UTC), "verdict": verdict} | about)
