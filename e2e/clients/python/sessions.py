"""Plays recorded dialogues turn by turn, several at a time, and prints one line of JSON: what was asked and how much
of it the replicas took from their caches. Usage: sessions.py TRACE SESSIONS AT_A_TIME; environment: BASE_URL, MODEL."""

import gzip
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0, timeout=120)
MODEL = os.environ["MODEL"]


def play(session):
    """Each of the assistant's turns is one request over all that came before it."""
    counts = {"requests": 0, "failed": [], "prompt": 0, "cached": 0}
    messages = session["messages"]
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            usage = client.chat.completions.create(model=MODEL, messages=messages[:i], max_tokens=4).usage
        except Exception as e:  # counted: the test wants none
            counts["failed"].append(f"{type(e).__name__}: {e}")
            continue
        counts["requests"] += 1
        counts["prompt"] += usage.prompt_tokens
        counts["cached"] += usage.prompt_tokens_details.cached_tokens
    return counts


def main(path, sessions, at_a_time):
    with gzip.open(path, "rt") as f:
        some = [json.loads(line) for _, line in zip(range(sessions), f)]
    total = {"requests": 0, "failed": [], "prompt": 0, "cached": 0}
    with ThreadPoolExecutor(at_a_time) as pool:
        for counts in pool.map(play, some):
            for name, value in counts.items():
                total[name] += value
    print(json.dumps(total))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
