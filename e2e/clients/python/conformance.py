"""Python's openai against the gateway. Environment: BASE_URL (with /v1), UPSTREAM (the scripted one)."""

import asyncio
import base64
import json
import os
import struct
import threading
import time
import urllib.request

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from report import cases_of, equal, eventually, run

BASE_URL, UPSTREAM = os.environ["BASE_URL"], os.environ["UPSTREAM"]
LOCAL, SCRIPTED = "penstock-local", "org/scripted"

client = OpenAI(base_url=BASE_URL, api_key="key-full", max_retries=0, timeout=30)
limited = OpenAI(base_url=BASE_URL, api_key="key-limited", max_retries=0, timeout=30)
ALL = {"ignore_eos": True}  # as many tokens as asked for, whatever the model would rather do
QUESTION = [{"role": "user", "content": "Where does the water go?"}]


def ask(text, c=client, **more):
    return c.chat.completions.create(model=SCRIPTED, messages=[{"role": "user", "content": text}], **more)


def upstream(path):
    with urllib.request.urlopen(UPSTREAM + path) as answer:
        return json.load(answer)


def last_body():
    return json.loads(upstream("/_last")["body"])


def raises(kind, call):
    try:
        call()
    except kind as e:
        assert type(e) is kind, f"got {type(e).__name__}, want {kind.__name__}: {e}"
        return e
    raise AssertionError(f"no {kind.__name__} was raised")


def drain(stream):
    return [chunk for chunk in stream]


# --- what the local engine does


def case_chat():
    answer = client.chat.completions.create(model=LOCAL, messages=QUESTION, max_tokens=12, temperature=0, extra_body=ALL)
    assert answer.choices[0].message.content
    equal(answer.choices[0].message.role, "assistant")
    equal(answer.usage.completion_tokens, 12)
    equal(answer.choices[0].finish_reason, "length")
    equal(answer.model, LOCAL)


def case_chat_stream_is_the_same_text():
    whole = client.chat.completions.create(model=LOCAL, messages=QUESTION, max_tokens=24, temperature=0)
    chunks = drain(client.chat.completions.create(model=LOCAL, messages=QUESTION, max_tokens=24, temperature=0, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    equal(text, whole.choices[0].message.content)
    equal([c.usage for c in chunks if c.usage], [], "usage that nobody asked for")


def case_chat_stream_with_usage():
    options = {"include_usage": True}
    chunks = drain(client.chat.completions.create(model=LOCAL, messages=QUESTION, max_tokens=5, stream=True, stream_options=options, extra_body=ALL))
    equal(chunks[-1].choices, [])
    equal(chunks[-1].usage.completion_tokens, 5)
    assert all(c.choices for c in chunks[:-1])


def case_chat_n_stop_logprobs():
    answer = client.chat.completions.create(model=LOCAL, messages=QUESTION, max_tokens=8, n=2, logprobs=True, top_logprobs=3, temperature=0, extra_body=ALL)
    equal([c.index for c in answer.choices], [0, 1])
    for choice in answer.choices:
        tokens = choice.logprobs.content
        equal(len(tokens), 8)
        assert all(t.logprob <= 0 and len(t.top_logprobs) == 3 for t in tokens)


def case_completion():
    answer = client.completions.create(model=LOCAL, prompt="The river", max_tokens=8, temperature=0)
    assert answer.choices[0].text
    chunks = drain(client.completions.create(model=LOCAL, prompt="The river", max_tokens=8, temperature=0, stream=True))
    equal("".join(c.choices[0].text for c in chunks), answer.choices[0].text)


def case_completion_echo_scores_the_prompt():
    answer = client.completions.create(model=LOCAL, prompt="The river runs.", max_tokens=0, echo=True, logprobs=1)
    scored = answer.choices[0].logprobs
    equal("".join(scored.tokens), "The river runs.")
    equal(scored.token_logprobs[0], None)
    assert all(p < 0 for p in scored.token_logprobs[1:])


def case_embeddings_base64_is_the_default():
    plain = client.embeddings.create(model=LOCAL, input="water", encoding_format="float").data[0].embedding
    default = client.embeddings.create(model=LOCAL, input="water").data[0].embedding
    assert len(plain) == len(default) > 0
    for a, b in zip(plain, default):
        assert abs(a - b) < 1e-6, (a, b)
    raw = client.embeddings.with_raw_response.create(model=LOCAL, input="water")
    assert isinstance(raw.parse().data[0].embedding, list)
    wire = client.embeddings.create(model=SCRIPTED, input="water", encoding_format="base64").data[0].embedding
    equal(last_body()["encoding_format"], "base64")
    equal(len(struct.unpack("<4f", base64.b64decode(wire))), 4)


def case_models_list_and_retrieve_with_a_slash():
    ids = [m.id for m in client.models.list()]
    assert LOCAL in ids and SCRIPTED in ids, ids
    equal(client.models.retrieve(SCRIPTED).id, SCRIPTED)  # arrives as org%2Fscripted
    equal(client.models.retrieve(LOCAL).object, "model")
    raises(openai.NotFoundError, lambda: client.models.retrieve("org/none"))


def case_async_clients_together():
    async def all_of_them():
        async with AsyncOpenAI(base_url=BASE_URL, api_key="key-full", max_retries=0) as c:

            async def one(i):
                text = ""
                stream = await c.chat.completions.create(
                    model=LOCAL, messages=[{"role": "user", "content": f"Question {i}"}], max_tokens=10, stream=True, temperature=0
                )
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                return text

            return await asyncio.gather(*(one(i) for i in range(16)))

    texts = asyncio.run(all_of_them())
    assert all(texts), texts


# --- what passes through untouched


def case_unknown_fields_arrive_both_ways():
    answer = ask("hello", extra_body={"x_client": {"a": [1, 2.5, None]}, "top_k": 7})
    equal(last_body()["x_client"], {"a": [1, 2.5, None]})
    equal(last_body()["top_k"], 7)
    equal(answer.model_extra["x_engine"], {"nested": [1, 2.5, "é"]})
    chunk = next(iter(ask("hello", stream=True)))
    equal(chunk.model_extra["x_engine"], {"nested": [1, 2.5, "é"]})


def case_headers_pass_but_the_key():
    ask("hello", extra_headers={"x-mine": "42"})
    seen = upstream("/_last")["headers"]
    equal(seen.get("x-mine"), "42")
    assert "key-full" not in seen.get("authorization", ""), "the client's key reached the engine"


def case_tools():
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    messages = [{"role": "user", "content": "script:tools"}]
    first = client.chat.completions.create(model=SCRIPTED, messages=messages, tools=[tool])
    call = first.choices[0].message.tool_calls[0]
    equal((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Oslo"}))
    equal(last_body()["tools"], [tool])
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "cold"}]
    second = client.chat.completions.create(model=SCRIPTED, messages=messages, tools=[tool])
    equal(second.choices[0].message.content, "It is cold.")


def case_tools_streamed():
    name, arguments = "", ""
    for chunk in ask("script:tools", stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    equal((name, arguments), ("get_weather", '{"city":"Oslo"}'))


class Length(BaseModel):
    answer: int
    unit: str


def case_json_schema():
    got = client.chat.completions.parse(model=SCRIPTED, messages=[{"role": "user", "content": "script:schema"}], response_format=Length)
    equal(got.choices[0].message.parsed, Length(answer=42, unit="m"))
    equal(last_body()["response_format"]["json_schema"]["name"], "Length")


def case_vision_parts():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"\x89PNG" * 2000).decode()}}
    content = [{"type": "text", "text": "script:vision"}, image]
    answer = client.chat.completions.create(model=SCRIPTED, messages=[{"role": "user", "content": content}])
    equal(answer.choices[0].message.content, "parts: text,image_url")
    equal(last_body()["messages"][0]["content"][1], image)


def case_reasoning_fields():
    equal(ask("script:reason").choices[0].message.model_extra["reasoning_content"], "First, the river.")
    chunks = drain(ask("script:reason", stream=True))
    equal("".join((c.choices[0].delta.model_extra or {}).get("reasoning_content", "") for c in chunks), "First, the river.")
    equal("".join(c.choices[0].delta.content or "" for c in chunks), "The sea.")


def case_responses():
    first = client.responses.create(model=SCRIPTED, input="hello")
    equal(first.output_text, "You said: hello")
    after = client.responses.create(model=SCRIPTED, input="again", previous_response_id=first.id)
    equal(after.output_text, "After resp_1: again")
    equal(client.responses.retrieve(first.id).id, first.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve("resp_never_made"))


def case_responses_streamed():
    events = drain(client.responses.create(model=SCRIPTED, input="hello there", stream=True))
    equal(events[-1].type, "response.completed")
    equal("".join(e.delta for e in events if e.type == "response.output_text.delta"), "You said: hello there")


def case_raw_response_headers():
    raw = limited.with_options(max_retries=5).chat.completions.with_raw_response.create(model=SCRIPTED, messages=QUESTION)
    for name in ("x-request-id", "x-penstock-queue-ms", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"):
        assert raw.headers.get(name) is not None, f"no header {name} among {dict(raw.headers)}"
    mine = client.chat.completions.with_raw_response.create(model=SCRIPTED, messages=QUESTION, extra_headers={"x-request-id": "mine-1.2_3"})
    equal(mine.headers["x-request-id"], "mine-1.2_3")
    equal(mine.request_id, "mine-1.2_3")


# --- errors are typed exceptions


def case_bad_request():
    e = raises(openai.BadRequestError, lambda: client.chat.completions.create(model=LOCAL, messages="not a list", max_tokens=4))
    equal((e.status_code, e.type, e.param), (400, "invalid_request_error", "messages"))
    assert e.code and e.request_id, (e.code, e.request_id)


def case_authentication():
    for key in ("wrong", "key-full2"):
        e = raises(openai.AuthenticationError, lambda: client.with_options(api_key=key).models.list())
        equal(e.code, "invalid_api_key")


def case_permission():
    e = raises(openai.PermissionDeniedError, lambda: ask("hello", c=client.with_options(api_key="key-local-only")))
    equal(e.code, "model_not_allowed")


def case_unknown_model():
    e = raises(openai.NotFoundError, lambda: client.chat.completions.create(model="nobody/nothing", messages=QUESTION))
    equal((e.code, e.param), ("model_not_found", "model"))


def case_rate_limit():
    c = client.with_options(api_key="key-one-a-minute")
    ask("hello", c=c)
    e = raises(openai.RateLimitError, lambda: ask("hello", c=c))
    equal((e.code, e.type), ("rate_limit_exceeded", "requests"))
    assert int(e.response.headers["retry-after"]) >= 1
    assert "requests_per_minute" in e.message, e.message


def case_engine_errors_pass_through():
    e = raises(openai.UnprocessableEntityError, lambda: ask("script:status 422"))
    equal(e.code, "engine_says_422")


def case_engine_failures():
    for stream in (False, True):
        e = raises(openai.InternalServerError, lambda: ask("script:status 500", stream=stream))
        equal((e.status_code, e.code), (502, "upstream_error"))
        assert UPSTREAM.split("//")[1] not in str(e), "an upstream address is shown"


def case_overload_inside_a_stream_is_a_status():
    e = raises(openai.InternalServerError, lambda: ask("script:inside 1000", stream=True))
    equal((e.status_code, e.code), (503, "engine_overloaded"))
    assert int(e.response.headers["retry-after"]) >= 1


def case_truncated_streams_raise():
    for script in ("die", "end", "wrong"):
        e = raises_any(openai.APIError, lambda: drain(ask("script:" + script, stream=True)))
        assert e is not None, script


def case_truncated_answers_raise():
    e = raises_any(openai.APIError, lambda: ask("script:die"))
    equal(getattr(e, "status_code", None), 502)


def case_truncated_responses_raise():
    raises_any(openai.APIError, lambda: drain(client.responses.create(model=SCRIPTED, input="script:unfinished", stream=True)))


def raises_any(kind, call):
    try:
        got = call()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}: it ended as if well, with {got!r:.500}")


# --- time


def case_timeout():
    began = time.monotonic()
    raises(openai.APITimeoutError, lambda: ask("script:slow", c=client.with_options(timeout=0.5)))
    assert time.monotonic() - began < 3
    eventually(lambda: upstream("/_open") == 0)


def case_cancelled_stream_frees_the_engine():
    stream = ask("script:drip", stream=True)
    next(iter(stream))
    equal(upstream("/_open"), 1)
    stream.close()
    eventually(lambda: upstream("/_open") == 0)


def case_cancelled_while_silent_frees_the_engine():
    gone = threading.Event()

    def call():
        try:
            ask("script:slow", c=client.with_options(timeout=0.3), stream=True)
        except openai.APITimeoutError:
            gone.set()

    t = threading.Thread(target=call)
    t.start()
    eventually(lambda: upstream("/_open") == 1)
    t.join()
    assert gone.is_set()
    eventually(lambda: upstream("/_open") == 0)


def case_retries_after_429():
    c = client.with_options(api_key="key-one-a-second", max_retries=3)
    began = time.monotonic()
    for _ in range(3):
        ask("hello", c=c)
    took = time.monotonic() - began
    assert 1 < took < 12, f"three requests at one a second took {took:.2f} s"


def case_retries_after_503():
    answer = ask("script:busy 4 a", c=client.with_options(max_retries=4))
    equal(answer.choices[0].message.content, "You said: script:busy 4 a")


def case_retries_after_an_engines_429():
    answer = ask("script:limited 4 b", c=client.with_options(max_retries=4), stream=True)
    equal("".join(c.choices[0].delta.content or "" for c in answer), "You said: script:limited 4 b")


if __name__ == "__main__":
    run(cases_of(globals()))
