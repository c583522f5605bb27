"""Replay of a recorded run without network and judge: every decision is made again and must come out the same.

Inputs are taken from the record: replies, verdicts, quick times, failures, and the prompts of runs in an older format.
The rest is derived again: decisions, prompts, candidates, duplicates, the best. So a replay proves that the record is
complete.
"""

from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from kernelwright.agent.briefs import BriefMaker, sheet_in
from kernelwright.agent.compat import is_complete_text
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.engine import Decider, PreparedAsk, asked_again, extracted, noted, replies_of
from kernelwright.agent.log import events
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.agent.log.view import View
from kernelwright.agent.steering import IdeaStatistics, load_prices
from kernelwright.agent.strategies import Stop, load_strategy
from kernelwright.problems.problem import Record
from kernelwright.prompts import Prompt, TargetVersions, continued


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


def recorded_decider(log: RunLog, texts: RunLog, problem: str, config: SearchConfig, prompt: Prompt) -> Decider:
    """Make what decides in a run, for the device that one of its prompts names; `texts` has what its views name."""
    versions = TargetVersions.model_validate(log.header.config.get("versions") or {})
    shown = next((section.text for section in prompt.sections if section.name == "hardware"), "\n\nunknown")
    briefs = BriefMaker(sheet_in(shown, prompt.target), versions, texts, config.history_tokens)
    strategy = load_strategy(config.strategy, config)
    return Decider(log.problem(problem), config, strategy, briefs, load_prices(config.prices))


class _Player:
    def __init__(self, recorded: RunLog, again: RunLog) -> None:
        self.recorded, self.again = recorded, again
        self.views: dict[str, View] = {}
        self.count = 1
        self.opened: defaultdict[str, deque[PreparedAsk]] = defaultdict(deque)

    def play(self, event: events.Event) -> None:
        """Log the event as it comes out now. Only a run's first event is of no problem, and it is made with the log."""
        assert isinstance(event.body, events.OfProblem)
        name = event.body.problem
        view = self.views.get(name) or View(problem=name)
        body, texts = self.made(event.body, view)
        if body != event.body:
            before, after = event.body.model_dump(), body.model_dump()
            field = next(name for name in before if before[name] != after.get(name))
            what = f"event {event.seq}, {event.kind} of attempt {event.attempt} of {name!r}, differs in {field!r}"
            raise ReplayDiffers(f"{what}; use the version of kernelwright that recorded the run")
        self.count = self.again.append(body, texts).seq
        # With the recorded time, since a budget of wall seconds is decided by it.
        self.views[name] = view.after(events.Event(seq=self.count, time=event.time, body=body))

    def made(self, body: Any, view: View) -> tuple[Any, list[str]]:
        """Make the event again with its texts; those that only the world decides are taken as recorded."""
        match body:
            case events.Equipped():
                return self.equipped(body), []
            case events.Asked():
                return self.asked(body, view)
            case events.Kept():
                best = view.best
                if best is None or best.standing is None:
                    what = f"attempt {body.attempt} of {body.problem!r} was kept"
                    raise ReplayDiffers(f"{what} and nothing is the best now")
                return body.model_copy(
                    update={"attempt": best.number, "speedup": best.standing, "previous": view.kept}
                ), []
            case events.Replied() | events.RepliedAgain():
                return body, [self.recorded.text(body.reply_digest)]
            case events.AskedAgain():
                attempt = view.attempt(body.attempt)
                longer = continued(self.again.prompt(attempt.prompt), replies_of(attempt, self.again)[0].text)
                return asked_again(body.problem, attempt, longer), [longer.text]
            case events.CandidateExtracted() | events.NoCandidate():
                return extracted(view.attempt(body.attempt), view, self.again)
            case events.Noted():
                return noted(body.problem, view.attempt(body.attempt), self.again), []
            case events.JudgedAttempt():
                candidate = view.attempt(body.attempt).candidate
                known = view.first_with(candidate.identity) if candidate else None
                verdict, same_as = (known.verdict, known.number) if known else (body.verdict, None)
                return body.model_copy(update={"verdict": verdict, "same_as": same_as}), []
            case _:
                return body, []

    def equipped(self, body: events.Equipped) -> events.Equipped:
        """Ideas by the wins of this run come out again; those by other runs' wins are taken as recorded."""
        if body.config.learn_from or body.problem in self.views:
            return body
        ideas = IdeaStatistics(self.again, body.config).ideas(self.recorded.problem(body.problem))
        return body.model_copy(update={"ideas": ideas})

    def asked(self, body: events.Asked, view: View) -> tuple[events.Asked, list[str]]:
        prompt, config = self.recorded.prompt(body.prompt), view.config
        is_old = is_complete_text(body.prompt.sections)
        texts = [prompt.text] if is_old else [section.text for section in prompt.sections]
        if body.decision is None or config is None:
            return body, texts
        queue = self.opened[body.problem]
        if body.decision.first == body.attempt:
            decider = recorded_decider(self.recorded, self.again, body.problem, config, prompt)
            decision = decider.decide(view, body.decision.room)
            if isinstance(decision, Stop) or not decision:
                reason = decision.reason if isinstance(decision, Stop) else "there is nothing to ask yet"
                raise ReplayDiffers(f"attempt {body.attempt} of {body.problem!r} is not asked now: {reason}")
            queue.clear()
            queue.extend(decision)
        if not queue:
            return body, []
        opened = queue.popleft()
        if is_old:  # its prompts were rendered from other templates
            rendered = {name: getattr(body, name) for name in ("prompt", "request_digest", "sample")}
            return opened.asked.model_copy(update=rendered), texts
        return opened.asked, list(opened.texts)
