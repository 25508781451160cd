"""What Python's openai raises on each fault. Environment: BASE_URL (with /v1), FAULTS (names, separated by commas)."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0, timeout=60)


def ask(fault, stream):
    messages = [{"role": "user", "content": f"fault:{fault};"}]
    text = ""
    try:
        if not stream:
            text = client.chat.completions.create(model="m", messages=messages).choices[0].message.content
        else:
            for chunk in client.chat.completions.create(model="m", messages=messages, stream=True):
                text += chunk.choices[0].delta.content or ""
        raised = ""
    except Exception as e:
        raised = type(e).__name__
    return {"fault": fault, "stream": stream, "raised": raised, "text": text[:100]}


cases = [(f, s) for f in os.environ["FAULTS"].split(",") for s in (True, False)]
with ThreadPoolExecutor(len(cases)) as pool:
    for result in pool.map(lambda c: ask(*c), cases):
        print(json.dumps(result), flush=True)
