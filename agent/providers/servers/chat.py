"""The chat completion format, as its many servers really send it, read into a `Reply`. Pure."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kernelwright.agent.log.records import Reply, Usage


class Lenient(BaseModel):
    """A part of a server's answer: what is not named here is let pass."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _cost(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


Count = Annotated[int | None, BeforeValidator(_count)]
"""A number of tokens; None where the server left it out or sent something else."""
Words = Annotated[str | None, BeforeValidator(_text)]


class Message(Lenient):
    """Reasoning stands in `reasoning_content` (DeepSeek, older vLLM) or in `reasoning` (OpenRouter, newer vLLM)."""

    content: str | None = None
    refusal: Words = None
    reasoning: Words = None
    reasoning_content: Words = None


class ChatChoice(Lenient):
    """One answer; only one is asked for."""

    message: Message
    finish_reason: Words = None


class InputDetails(Lenient):
    """Parts of the input tokens."""

    cached_tokens: Count = None
    cache_write_tokens: Count = None


class OutputDetails(Lenient):
    """Parts of the output tokens."""

    reasoning_tokens: Count = None


class UsageForm(Lenient):
    """A usage object as one form of the interface sends it."""

    def told(self, as_sent: str) -> Usage:
        """In our words; `as_sent` is the whole object as JSON."""
        raise NotImplementedError


class ChatUsage(UsageForm):
    """`cost` is OpenRouter's; `prompt_cache_hit_tokens` is DeepSeek's word for cached tokens."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    prompt_cache_hit_tokens: Count = None
    cost: Annotated[float | None, BeforeValidator(_cost)] = None

    def told(self, as_sent: str) -> Usage:
        inside, outside = (
            self.prompt_tokens_details or InputDetails(),
            self.completion_tokens_details or OutputDetails(),
        )
        hits = self.prompt_cache_hit_tokens
        return Usage(
            input_tokens=self.prompt_tokens,
            cached_tokens=hits if inside.cached_tokens is None else inside.cached_tokens,
            cache_write_tokens=inside.cache_write_tokens,
            output_tokens=self.completion_tokens,
            reasoning_tokens=outside.reasoning_tokens,
            cost_usd=self.cost,
            raw=as_sent,
        )


class Completion(Lenient):
    """A chat completion."""

    choices: tuple[ChatChoice, ...] = Field(min_length=1)
    id: Words = None
    model: Words = None


def read_completion(answer: dict[str, Any]) -> Completion | None:
    """The completion that `answer` is; None where it is something else."""
    try:
        return Completion.model_validate(answer)
    except ValidationError:
        return None


def read_usage(raw: object, form: type[UsageForm] = ChatUsage) -> Usage:
    """The usage object in our words; whatever it does not say, or says in a strange way, is None."""
    if not isinstance(raw, dict):
        return Usage()
    as_sent = json.dumps(raw, default=str)
    try:
        return form.model_validate(raw).told(as_sent)
    except ValidationError:
        return Usage(raw=as_sent)


def read_reply(answer: dict[str, Any], *, asked_model: str, request_id: str | None, latency_s: float) -> Reply | None:
    """The reply in a server's answer; None where the answer is no chat completion."""
    completion = read_completion(answer)
    if completion is None:
        return None
    choice = completion.choices[0]
    message = choice.message
    return Reply(
        text=message.content or message.refusal or "",
        reasoning=message.reasoning or message.reasoning_content or "",
        finish_reason=choice.finish_reason,
        model=completion.model or asked_model,
        usage=read_usage(answer.get("usage")),
        provider="openai",
        provider_request_id=request_id or completion.id,
        latency_s=latency_s,
    )
