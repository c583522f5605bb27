import pytest

from tests.agent.providers.test_openai_provider import DETAILED, REQUEST, Answer, used
from tests.agent.providers.test_openai_provider import asked as asked_chat
from tests.agent.providers.test_openai_provider import refused as refused_chat


def asked(*answers, **options):
    return asked_chat(*answers, api="responses", **options)


def refused(*answers, **options):
    return refused_chat(*answers, api="responses", **options)


def message(text="Hello.", kind="output_text"):
    words = "refusal" if kind == "refusal" else "text"
    content = [{"type": kind, words: text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}


def response(*output, status="completed", **fields):
    head = {"id": "resp-1", "object": "response", "created_at": 1, "model": "some-model-0125", "status": status}
    return head | {"output": list(output or [message()])} | fields


def test_an_ordinary_answer_to_an_input_and_a_limit_becomes_a_reply():
    limited = REQUEST.model_copy(update={"max_tokens": 9})
    reply, server = asked(Answer(response(), x_request_id="req-7"), request=limited)
    assert (reply.text, reply.finish_reason, reply.model) == ("Hello.", "stop", "some-model-0125")
    assert (reply.provider, reply.provider_request_id) == ("responses", "req-7")
    assert server.bodies == [{"model": "some-model", "input": "Write a kernel.", "max_output_tokens": 9}]


@pytest.mark.parametrize(
    ("messages", "text"),
    [((message("One, "), message("two.")), "One, two."), ((message("I will not.", "refusal"),), "I will not.")],
    ids=["the parts of several", "a refusal where there is no other"],
)
def test_the_texts_of_messages_are_one(messages, text):
    assert asked(Answer(response(*messages)))[0].text == text


@pytest.mark.parametrize("field", ["summary", "content"])
def test_reasoning_is_read_from_its_summary_and_from_its_words(field):
    thought = {"type": "reasoning", "id": "r", "summary": [], field: [{"type": "any_text", "text": "Let me think."}]}
    reply, _ = asked(Answer(response(thought, message())))
    assert (reply.text, reply.reasoning) == ("Hello.", "Let me think.")


@pytest.mark.parametrize(("reason", "said"), [("max_output_tokens", "length"), ("content_filter", "content_filter")])
def test_an_incomplete_answer_says_why(reason, said):
    reply, _ = asked(Answer(response(status="incomplete", incomplete_details={"reason": reason})))
    assert reply.finish_reason == said


def test_an_answer_that_is_as_long_as_its_limit_was_cut_off_whatever_the_server_says():
    usage = {"input_tokens": 1, "output_tokens": 9}
    reply, _ = asked(Answer(response(usage=usage)), request=REQUEST.model_copy(update={"max_tokens": 9}))
    assert reply.finish_reason == "length"


def test_an_answer_that_failed_is_a_passing_failure_in_the_servers_words():
    error = refused(Answer(response(status="failed", error={"code": "server_error", "message": "out of memory"})))
    assert "(out of memory)" in str(error)
    assert error.retryable


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {key.replace("prompt", "input").replace("completion", "output"): DETAILED[key] for key in DETAILED},
            (9, 4, 3, 8, 6),
        ),
        ({"input_tokens": 9, "output_tokens": 8, "output_tokens_details": None}, (9, None, None, 8, None)),
        ({"input_tokens": "many"}, (None, None, None, None, None)),
        (None, (None, None, None, None, None)),
    ],
    ids=["openai", "llama.cpp", "nonsense", "none"],
)
def test_usage_is_read_and_what_is_unknown_is_none(usage, expected):
    assert used(asked(Answer(response(usage=usage)))) == (*expected, None)


@pytest.mark.parametrize(
    "answer",
    [Answer("<html>Welcome</html>"), Answer({"status": "ok"}), Answer(["no", "object"]), Answer({"output": "words"})],
    ids=["page", "other object", "list", "output that is no list"],
)
def test_what_is_no_response_is_told_with_the_address(answer):
    error = refused(answer)
    assert "http://127.0.0.1:" in str(error) and "with a response" in str(error)
    assert "--base-url" in str(error) and "OPENAI_BASE_URL" in str(error)


def test_a_server_without_responses_is_told():
    error = refused(Answer({"error": {"message": "not here"}}, status=404))
    assert "(404: not here)" in str(error) and "responses" in str(error)
