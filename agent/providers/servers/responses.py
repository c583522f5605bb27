"""OpenAI's Responses format, as its servers really send it, read into a `Reply`. Pure."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError

from kernelwright.agent.log.records import Reply, Usage
from kernelwright.agent.providers.servers.chat import (
    Count,
    InputDetails,
    Lenient,
    OutputDetails,
    UsageForm,
    Words,
    read_usage,
)

LENGTH, FILTER = "max_output_tokens", "content_filter"
FINISH = {LENGTH: "length", FILTER: "content_filter"}
"""Why an answer is incomplete, in the words of chat completions."""
BROKEN = {"failed", "cancelled"}


def _parts(value: object) -> object:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


class ContentPart(Lenient):
    """A piece of text, a refusal, or a piece of reasoning."""

    type: Words = None
    text: Words = None
    refusal: Words = None


Parts = Annotated[tuple[ContentPart, ...], BeforeValidator(_parts)]


class Item(Lenient):
    """One thing that the model put out: a message or its reasoning; tools are never offered to it."""

    type: Words = None
    content: Parts = ()
    summary: Parts = ()


class Incomplete(Lenient):
    """Why an answer ends before its end."""

    reason: Words = None


class Trouble(Lenient):
    """What the server says went wrong."""

    message: Words = None


class ResponsesUsage(UsageForm):
    """llama.cpp sends None for details that it does not know."""

    input_tokens: Count = None
    output_tokens: Count = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None

    def told(self, as_sent: str) -> Usage:
        inside, outside = self.input_tokens_details or InputDetails(), self.output_tokens_details or OutputDetails()
        return Usage(
            input_tokens=self.input_tokens,
            cached_tokens=inside.cached_tokens,
            cache_write_tokens=inside.cache_write_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=outside.reasoning_tokens,
            raw=as_sent,
        )


class ResponseObject(Lenient):
    """A response."""

    output: tuple[Item, ...]
    status: Words = None
    id: Words = None
    model: Words = None
    incomplete_details: Incomplete | None = None
    error: Trouble | None = None

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length` or `content_filter`, else what the server says."""
        if self.status == "incomplete":
            reason = self.incomplete_details.reason if self.incomplete_details else None
            return FINISH.get(reason or "", reason)
        return "stop" if self.status == "completed" else self.status


def read_failure(answer: dict[str, Any]) -> str | None:
    """Why the server could not finish the response, in its words; None where it did or this is none."""
    found = _response(answer)
    if found is None or found.status not in BROKEN:
        return None
    return (found.error.message if found.error else None) or found.status


def read_response(
    answer: dict[str, Any], *, asked_model: str, request_id: str | None, latency_s: float
) -> Reply | None:
    """The reply in a server's answer; None where the answer is no response."""
    found = _response(answer)
    if found is None:
        return None
    messages = [part for item in found.output if item.type == "message" for part in item.content]
    thoughts = [part for item in found.output if item.type == "reasoning" for part in (*item.summary, *item.content)]
    text = "".join(part.text or "" for part in messages)
    return Reply(
        text=text or "".join(part.refusal or "" for part in messages),
        reasoning="\n\n".join(part.text for part in thoughts if part.text),
        finish_reason=found.finish_reason,
        model=found.model or asked_model,
        usage=read_usage(answer.get("usage"), ResponsesUsage),
        provider="responses",
        provider_request_id=request_id or found.id,
        latency_s=latency_s,
    )


def _response(answer: dict[str, Any]) -> ResponseObject | None:
    try:
        return ResponseObject.model_validate(answer)
    except ValidationError:
        return None
