"""The two forms in which OpenAI's servers are asked, chat completions and responses, as they really come. Pure."""

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kernelwright.agent.log.records import Reply, Request, Usage
from kernelwright.agent.providers.provider import Api

if TYPE_CHECKING:
    import openai


class Lenient(BaseModel):
    """A part of a server's answer: what is not named here is let pass."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _cost(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


Count = Annotated[int | None, BeforeValidator(_count)]
"""A number of tokens; None where the server left it out or sent something else."""
Words = Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)]


class Message(Lenient):
    """Reasoning stands in `reasoning_content` (DeepSeek, older vLLM) or in `reasoning` (OpenRouter, newer vLLM)."""

    content: str | None = None
    refusal: Words = None
    reasoning: Words = None
    reasoning_content: Words = None


class ChatChoice(Lenient):
    message: Message
    finish_reason: Words = None


class Details(Lenient):
    cached_tokens: Count = None
    cache_write_tokens: Count = None
    reasoning_tokens: Count = None


class UsageForm(Lenient):
    def told(self, as_sent: str) -> Usage:
        """In our words; `as_sent` is the whole object as JSON."""
        raise NotImplementedError


class ChatUsage(UsageForm):
    """`cost` is OpenRouter's; `prompt_cache_hit_tokens` is DeepSeek's word for cached tokens."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    prompt_cache_hit_tokens: Count = None
    cost: Annotated[float | None, BeforeValidator(_cost)] = None

    def told(self, as_sent: str) -> Usage:
        inside, outside = self.prompt_tokens_details or Details(), self.completion_tokens_details or Details()
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
    choices: tuple[ChatChoice, ...] = Field(min_length=1)
    id: Words = None
    model: Words = None


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
    try:
        completion = Completion.model_validate(answer)
    except ValidationError:
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


LENGTH, FILTER = "max_output_tokens", "content_filter"
FINISH = {LENGTH: "length", FILTER: "content_filter"}
"""Why an answer is incomplete, in the words of chat completions."""
BROKEN = {"failed", "cancelled"}


def _parts(value: object) -> object:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


class ContentPart(Lenient):
    type: Words = None
    text: Words = None
    refusal: Words = None


Parts = Annotated[tuple[ContentPart, ...], BeforeValidator(_parts)]


class Item(Lenient):
    """One thing that the model put out: a message or its reasoning; tools are never offered to it."""

    type: Words = None
    content: Parts = ()
    summary: Parts = ()


class Trouble(Lenient):
    reason: Words = None
    message: Words = None


class ResponsesUsage(UsageForm):
    """llama.cpp sends None for details that it does not know."""

    input_tokens: Count = None
    output_tokens: Count = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None

    def told(self, as_sent: str) -> Usage:
        inside, outside = self.input_tokens_details or Details(), self.output_tokens_details or Details()
        return Usage(
            input_tokens=self.input_tokens,
            cached_tokens=inside.cached_tokens,
            cache_write_tokens=inside.cache_write_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=outside.reasoning_tokens,
            raw=as_sent,
        )


class ResponseObject(Lenient):
    output: tuple[Item, ...]
    status: Words = None
    id: Words = None
    model: Words = None
    incomplete_details: Trouble | None = None
    error: Trouble | None = None

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length` or `content_filter`, else what the server says."""
        if self.status == "incomplete":
            reason = self.incomplete_details.reason if self.incomplete_details else None
            return FINISH.get(reason or "", reason)
        return "stop" if self.status == "completed" else self.status


def _response(answer: dict[str, Any]) -> ResponseObject | None:
    try:
        return ResponseObject.model_validate(answer)
    except ValidationError:
        return None


class Chat:
    """`/chat/completions`."""

    noun = "chat completion"

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
        """The request as arguments of the client; `is_own` where OpenAI itself is asked."""
        # OpenAI's newer models refuse max_tokens; most other servers know nothing else.
        limit = "max_completion_tokens" if is_own else "max_tokens"
        message = {"role": "user", "content": request.prompt}
        options = _given({"temperature": request.temperature, limit: request.max_tokens})
        return {"model": request.model, "messages": [message], **options}

    async def send(self, client: "openai.AsyncOpenAI", arguments: dict[str, Any]) -> Any:
        return await client.chat.completions.create(**arguments)

    def is_answer(self, answer: Any) -> bool:
        from openai.types.chat import ChatCompletion

        return isinstance(answer, ChatCompletion)

    def failure(self, plain: dict[str, Any]) -> str | None:
        """None: a chat completion can not say that it failed."""
        return None

    def read(self, plain: dict[str, Any], request: Request, request_id: str | None, latency_s: float) -> Reply | None:
        """The reply to `request`; None where the answer is of another form."""
        return read_reply(plain, asked_model=request.model, request_id=request_id, latency_s=latency_s)


class Responses:
    """`/responses`: what OpenAI's reasoning models are best asked through. Nothing is kept on the server."""

    noun = "response"

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
        options = _given({"temperature": request.temperature, "max_output_tokens": request.max_tokens})
        kept = {"store": False} if is_own else {}
        return {"model": request.model, "input": request.prompt, **options, **kept}

    async def send(self, client: "openai.AsyncOpenAI", arguments: dict[str, Any]) -> Any:
        return await client.responses.create(**arguments)

    def is_answer(self, answer: Any) -> bool:
        from openai.types.responses import Response

        return isinstance(answer, Response)

    def failure(self, plain: dict[str, Any]) -> str | None:
        found = _response(plain)
        if found is None or found.status not in BROKEN:
            return None
        return (found.error.message if found.error else None) or found.status

    def read(self, plain: dict[str, Any], request: Request, request_id: str | None, latency_s: float) -> Reply | None:
        found = _response(plain)
        if found is None:
            return None
        messages = [part for item in found.output if item.type == "message" for part in item.content]
        thoughts = [part for item in found.output if item.type == "reasoning" for part in item.summary + item.content]
        usage, reason = read_usage(plain.get("usage"), ResponsesUsage), found.finish_reason
        # llama.cpp calls an answer completed that ran into its limit.
        if reason == "stop" and request.max_tokens and (usage.output_tokens or 0) >= request.max_tokens:
            reason = "length"
        return Reply(
            text="".join(part.text or "" for part in messages) or "".join(part.refusal or "" for part in messages),
            reasoning="\n\n".join(part.text for part in thoughts if part.text),
            finish_reason=reason,
            model=found.model or request.model,
            usage=usage,
            provider="responses",
            provider_request_id=request_id or found.id,
            latency_s=latency_s,
        )


WIRES: dict[Api, Chat | Responses] = {"chat": Chat(), "responses": Responses()}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
