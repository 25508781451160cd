"""LangChain's and LlamaIndex' OpenAI clients against the gateway: one streamed chat each."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))

from report import cases_of, run  # noqa: E402

BASE_URL = os.environ["BASE_URL"]


def case_langchain_streamed_chat():
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=BASE_URL, api_key="key-full", model="penstock-local", max_tokens=20, max_retries=0)
    text = "".join(piece.text for piece in chat.stream("Where does the water go?"))
    assert text, "no text came"


def case_llamaindex_streamed_chat():
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    chat = OpenAILike(api_base=BASE_URL, api_key="key-full", model="penstock-local", is_chat_model=True, max_tokens=20, max_retries=0)
    text = "".join(piece.delta or "" for piece in chat.stream_chat([ChatMessage(role="user", content="Where does the water go?")]))
    assert text, "no text came"


if __name__ == "__main__":
    run(cases_of(globals()))
