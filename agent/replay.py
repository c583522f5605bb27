"""Replay of a recorded run without network and judge: every decision is made again and must come out the same.

Inputs are taken from the record: replies, verdicts, quick times, failures. The rest is derived again: decisions,
prompts, candidates, duplicates, the best. So a replay proves that the record is complete.
"""

from collections import defaultdict, deque
from pathlib import Path

from kernelwright.agent.briefs import BriefMaker, sheet_in
from kernelwright.agent.engine import Decider, PreparedAsk, asked_again, extracted, noted, replies_of
from kernelwright.agent.log import events
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.agent.log.view import View
from kernelwright.agent.steering import IdeaStatistics, load_prices
from kernelwright.agent.strategies import Stop, load_strategy
from kernelwright.problems.problem import Record
from kernelwright.prompts import TargetVersions, continued

Made = tuple[events.Body, list[str]]


class ReplayDiffers(Exception):
    """A replayed event that differs from the recorded one; the message is one sentence that names the difference."""


class Replay(Record):
    events: int
    digest: str


def replay(recorded: RunLog, folder: Path) -> Replay:
    """Do the run again in a new folder. Raises `ReplayDiffers` at the first event that comes out differently."""
    setting = Setting.model_validate(recorded.header.model_dump(include=set(Setting.model_fields)))
    problems = [recorded.problem(name) for name in recorded.header.problems]
    with RunLog.create(folder, problems, setting) as again:
        player = _Player(recorded, again)
        for event in recorded.events(after=1):
            player.play(event)
        before, after = recorded.digest(), again.digest()
    if before != after:
        raise ReplayDiffers(f"the log's digest was {before} and is {after} now; the record is damaged")
    return Replay(events=player.count, digest=after)


class _Player:
    def __init__(self, recorded: RunLog, again: RunLog) -> None:
        self.recorded = recorded
        self.again = again
        self.views: dict[str, View] = {}
        self.count = 1
        self.opened: defaultdict[str, deque[PreparedAsk]] = defaultdict(deque)

    def play(self, event: events.Event) -> None:
        assert isinstance(event.body, events.OfProblem), (
            "only the first event is of no problem, and it is made with the log"
        )
        view = self.views.get(event.body.problem) or View(problem=event.body.problem)
        body, texts = self.made(event.body, view)
        if body != event.body:
            before, after = event.body.model_dump(), body.model_dump()
            field = next(name for name in before if before[name] != after.get(name))
            raise ReplayDiffers(
                f"event {event.seq}, {event.kind} of attempt {event.attempt} of {event.problem!r}, differs in "
                f"{field!r}; use the version of kernelwright that recorded the run"
            )
        logged = self.again.append(body, texts)
        self.count = logged.seq
        # With the recorded time, since a budget of wall seconds is decided by it.
        self.views[view.problem] = view.after(events.Event(seq=logged.seq, time=event.time, body=body))

    def made(self, body: events.OfProblem, view: View) -> Made:
        match body:
            case events.Equipped():
                return self.equipped(body), []
            case events.Asked():
                return self.asked(body, view)
            case events.Kept():
                return self.kept(body, view), []
            case events.OfAttempt():
                return self.of_attempt(body, view.attempt(body.attempt), view)
            case other:
                return other, []  # type: ignore[return-value]  # the rest of the union

    def of_attempt(self, body: events.OfAttempt, attempt: Attempt, view: View) -> Made:
        match body:
            case events.Replied() | events.RepliedAgain():
                return body, [self.recorded.text(body.reply_digest)]
            case events.AskedAgain():
                longer = continued(self.again.prompt(attempt.prompt), replies_of(attempt, self.again)[0].text)
                return asked_again(body.problem, attempt, longer), [longer.text]
            case events.CandidateExtracted() | events.NoCandidate():
                return extracted(attempt, view, self.again)
            case events.Noted():
                return noted(body.problem, attempt, self.again), []
            case events.JudgedAttempt():
                known = view.first_with(attempt.candidate.identity) if attempt.candidate else None
                same_as = None if known is None else known.number
                verdict = known.verdict if known and known.verdict else body.verdict
                return events.JudgedAttempt(
                    problem=body.problem, attempt=body.attempt, verdict=verdict, same_as=same_as
                ), []
            case other:
                return other, []  # type: ignore[return-value]  # the rest of the union

    def equipped(self, body: events.Equipped) -> events.Equipped:
        """Ideas by the wins of this run come out again; those by other runs' wins are taken as recorded."""
        if body.config.learn_from or body.problem in self.views:
            return body
        ideas = IdeaStatistics(self.again, body.config).ideas(self.recorded.problem(body.problem))
        return events.Equipped(problem=body.problem, ideas=ideas, config=body.config)

    def asked(self, body: events.Asked, view: View) -> Made:
        if body.decision is None or view.config is None:
            return body, [section.text for section in self.recorded.prompt(body.prompt).sections]
        queue = self.opened[body.problem]
        if body.decision.first == body.attempt:
            decision = self.decider(body, view).decide(view, body.decision.room)
            if isinstance(decision, Stop) or not decision:
                said = decision.reason if isinstance(decision, Stop) else "there is nothing to ask yet"
                raise ReplayDiffers(f"attempt {body.attempt} of {body.problem!r} is not asked now: {said}")
            queue.clear()
            queue.extend(decision)
        opened = queue.popleft() if queue else None
        return (opened.asked, list(opened.texts)) if opened else (body, [])

    def decider(self, body: events.Asked, view: View) -> Decider:
        config = view.config
        assert config is not None
        versions = TargetVersions.model_validate(self.recorded.header.config.get("versions") or {})
        sections = self.recorded.prompt(body.prompt).sections
        shown = next((section.text for section in sections if section.name == "hardware"), "\n\nunknown")
        briefs = BriefMaker(sheet_in(shown, body.ask.target), versions, self.again, config.history_tokens)
        strategy = load_strategy(config.strategy, config)
        return Decider(self.recorded.problem(body.problem), config, strategy, briefs, load_prices(config.prices))

    def kept(self, body: events.Kept, view: View) -> events.Kept:
        best = view.best
        if best is None or best.standing is None:
            raise ReplayDiffers(f"attempt {body.attempt} of {body.problem!r} was kept and nothing is the best now")
        return events.Kept(problem=body.problem, attempt=best.number, speedup=best.standing, previous=view.kept)
