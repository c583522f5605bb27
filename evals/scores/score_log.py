"""The verdicts of a `score` as the log of a run, in memory: boards and pages read both alike.

Each source is an attempt, in the order in which it was judged first. One that was judged several times has the verdict
of the current judge version and the most effort, the latest of equals. Cost, tokens and prompt stay unknown.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from kernelwright.agent.log import events
from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.records import Ask, FoundCandidate, PromptOutline, Reply, Usage
from kernelwright.agent.log.store import HEADER, SCHEMA, Header, RunLog
from kernelwright.evals.scores.judgements import Judgement, Judgements, rows_of
from kernelwright.evals.scores.scoring import DATABASE, source_digest
from kernelwright.prompts import Target
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import AT_EFFORT

NO_PROMPT = source_digest("")


def is_score(folder: Path) -> bool:
    return (folder / DATABASE).is_file() and not (folder / HEADER).exists()


def folders_in(folder: Path) -> list[Path]:
    """The folder itself where it is a run or a score, else those right under it. Raises `RunLogError` for none."""
    if is_score(folder) or (folder / HEADER).exists():
        return [folder]
    found = sorted({path.parent for name in (HEADER, DATABASE) for path in folder.glob(f"*/{name}")})
    if not found:
        what = f"{folder} holds no run and no score" if folder.exists() else f"there is no folder {folder}"
        raise RunLogError(f"{what}; give the folder of one, or one that holds some")
    return found


def last_judgement(folder: Path) -> int | None:
    """The number of a score's last judgement, which grows with each; None for a run."""
    return int(rows_of(folder / DATABASE, "max(rowid)")[0][0] or 0) if is_score(folder) else None


def logs_by_device(folder: Path) -> Iterator[RunLog]:
    """The log of a score for each device that it was judged on. Raises `RunLogError`."""
    for row in rows_of(folder / DATABASE, "DISTINCT json_extract(record, '$.conditions.device')"):
        with log_of(folder, row[0]) as log:
            yield log


def log_of(folder: Path, device: str | None = None) -> RunLog:
    """The log of a run, or of a score: what was judged on one device, or on all. Raises `RunLogError`."""
    if not is_score(folder):
        return RunLog.open(folder)
    found, texts = Judgements.read(folder / DATABASE), dict(rows_of(folder / DATABASE, "sha256, text", "texts"))
    chosen: dict[tuple[str, str, str], Judgement] = {}
    names: dict[str, str] = {}
    for one in found:
        key = (one.problem_digest, one.candidate_digest, one.conditions.device)
        if device not in (None, one.conditions.device) or not texts.keys() >= {*key[:2]}:
            continue
        chosen[key] = max(one, chosen.get(key, one), key=_weight)
        is_taken = one.problem in names.values()
        names.setdefault(one.problem_digest, f"{one.problem}@{one.problem_digest[:8]}" if is_taken else one.problem)
    if not chosen:
        why = "verdict whose source was kept" if found else "verdict yet"
        raise RunLogError(f"{folder} holds no {why}; the same `kernelwright score` again adds what is missing")
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    memory.executescript(SCHEMA)
    log, counts = RunLog(folder, _header(folder, list(chosen.values()), names, texts), memory), Counter[str]()
    log.append(events.RunStarted(run_id=log.header.run_id), [texts[digest] for digest in names])
    for one in chosen.values():
        counts[one.problem_digest] += 1
        of = {"problem": names[one.problem_digest], "attempt": counts[one.problem_digest]}
        log.extend(_attempt(one, of, log.header.run_id, texts[one.candidate_digest]), one.time)
    for digest, count in counts.items():
        log.append(events.Stopped(problem=names[digest], reason=f"{count} scored"))
    return log


def _weight(one: Judgement) -> tuple[bool, int]:
    return one.conditions.judge_version == str(JUDGE_VERSION), [*AT_EFFORT].index(one.verdict.evidence.effort)


def _header(folder: Path, judged: list[Judgement], names: dict[str, str], texts: dict[str, str]) -> Header:
    languages = {candidate_of(texts[one.candidate_digest]).language for one in judged}
    name = folder.resolve().name
    search = {"model": name, "strategy": "score", "target": ", ".join(sorted(languages))}
    return Header(
        config={"search": search, "judging": json.loads(judged[-1].conditions.settings)},
        device=", ".join(dict.fromkeys(one.conditions.device for one in judged)),
        versions=judged[-1].verdict.evidence.versions,
        run_id=name,
        started=min(one.time for one in judged),
        problems={name: digest for digest, name in names.items()},
    )


def _attempt(one: Judgement, of: dict[str, Any], model: str, source: str) -> list[tuple[events.Body, list[str]]]:
    language = candidate_of(source).language
    target = language if language in get_args(Target) else "cpp"
    ask = Ask(**of, role="propose", target=target, parent=None, idea=one.candidate, directive="", model=model)
    prompt = PromptOutline(role="propose", target=target, digest=NO_PROMPT, stable_digest=NO_PROMPT, sections=())
    request = {"request_digest": "", "temperature": None, "max_tokens": None, "sample": 0}
    unknown = {"text": "", "finish_reason": None, "usage": Usage(), "latency_s": None}
    reply = Reply(**unknown, model=model, provider=DATABASE, provider_request_id=one.key)
    found = FoundCandidate(digest=one.candidate_digest, language=language, how=f"the file {one.candidate}")
    return [
        (events.Asked(**of, ask=ask, prompt=prompt, **request), [""]),
        (events.Replied(**of, reply_digest=reply.digest, reply=reply.facts), [reply.model_dump_json()]),
        (events.CandidateExtracted(**of, candidate=found), [source]),
        (events.JudgedAttempt(**of, verdict=one.verdict), []),
    ]
