"""Python's openai against limits: what it does by itself when refused. Environment: BASE_URL (with /v1), KEYS (a prefix), MODEL."""

import os
import time

import openai
from openai import OpenAI
from report import cases_of, equal, run

KEYS = os.environ["KEYS"]


def ask(key, model=os.environ["MODEL"], **more):
    c = OpenAI(base_url=os.environ["BASE_URL"], api_key=f"{KEYS}-{key}", max_retries=3, timeout=30)
    messages = [{"role": "user", "content": "hello"}]
    return c.chat.completions.create(model=model, messages=messages, **{"max_tokens": 20, **more})


def case_rate():
    began = time.monotonic()
    for _ in range(3):
        ask("rate")
    assert time.monotonic() - began > 1.9, "three requests at one a second came sooner"


def case_too_large():
    try:
        ask("large", max_tokens=20_000)
    except openai.RateLimitError as e:
        equal(e.code, "rate_limit_exceeded")
        equal(e.response.headers["x-should-retry"], "false")
        return
    raise AssertionError("a request larger than its bucket was answered")


def case_room():
    ask("room", model="narrow", extra_headers={"x-penstock-no-queue": "1"})


if __name__ == "__main__":
    run(cases_of(globals()))
