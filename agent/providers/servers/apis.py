"""The two forms in which OpenAI's servers are asked: chat completions, which nearly all speak, and responses."""

from typing import TYPE_CHECKING, Any, Protocol

from kernelwright.agent.log.records import Reply, Request
from kernelwright.agent.providers.options import Api
from kernelwright.agent.providers.servers.chat import read_reply
from kernelwright.agent.providers.servers.responses import read_failure, read_response

if TYPE_CHECKING:
    import openai


class ApiForm(Protocol):
    """How a request goes out and how its answer is read."""

    @property
    def noun(self) -> str:
        """What an answer is called in a sentence."""
        ...

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
        """The request as arguments of the client; `is_own` where OpenAI itself is asked."""
        ...

    async def send(self, client: "openai.AsyncOpenAI", arguments: dict[str, Any]) -> Any:
        """What the client makes of the answer."""
        ...

    def is_answer(self, answer: Any) -> bool:
        """Whether the client read a JSON object: an HTML page comes back from it as a str."""
        ...

    def failure(self, plain: dict[str, Any]) -> str | None:
        """Why the server says in its answer that there is none."""
        ...

    def read(self, plain: dict[str, Any], request: Request, request_id: str | None, latency_s: float) -> Reply | None:
        """The reply to `request`; None where the answer is of another form."""
        ...


class Chat:
    """`/chat/completions`."""

    noun = "chat completion"

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
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
        return read_failure(plain)

    def read(self, plain: dict[str, Any], request: Request, request_id: str | None, latency_s: float) -> Reply | None:
        reply = read_response(plain, asked_model=request.model, request_id=request_id, latency_s=latency_s)
        # llama.cpp calls an answer completed that ran into its limit.
        if reply is None or reply.finish_reason != "stop" or not _at_limit(reply, request):
            return reply
        return reply.model_copy(update={"finish_reason": "length"})


WIRES: dict[Api, ApiForm] = {"chat": Chat(), "responses": Responses()}


def _at_limit(reply: Reply, request: Request) -> bool:
    written = reply.usage.output_tokens
    return request.max_tokens is not None and written is not None and written >= request.max_tokens


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
