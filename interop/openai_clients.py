"""Clients of OpenAI's API that others wrote, against /v1 of a running server; run by `make interop`
in an environment of its own. Each prints a line, and any that fails ends the run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import litellm
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import agents
from agents import (
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    function_tool,
    set_tracing_disabled,
)

URL = f"{sys.argv[1]}/v1"
# A server that has keys is asked with one; an open one takes any.
KEY = os.environ.get("ONWARD_KEY", "unused")
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def with_openai() -> None:
    client = OpenAI(base_url=URL, api_key=KEY)
    assert "llama" in [model.id for model in client.models.list()]
    whole = client.chat.completions.create(model="llama", messages=HELLO)
    assert whole.choices[0].message.content == "Hello there."
    pieces = list(
        client.chat.completions.create(
            model="llama", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.total_tokens == 7
    assert client.responses.create(model="llama", input="hello").output_text == "Hello there."


def with_langchain() -> None:
    model = ChatOpenAI(model="llama", base_url=URL, api_key=KEY)  # type: ignore[arg-type]
    assert model.invoke("hello").content == "Hello there."
    assert "".join(str(piece.content) for piece in model.stream("hello")) == "Hello there."
    together: Any = None
    for piece in model.bind_tools([add]).stream("1 + 2?"):
        together = piece if together is None else together + piece
    assert together.tool_calls[0]["args"] == {"a": 1, "b": 2}


def with_litellm() -> None:
    asked: dict[str, Any] = {"model": "openai/llama", "messages": HELLO}
    whole = litellm.completion(**asked, api_base=URL, api_key=KEY)
    assert whole.choices[0].message.content == "Hello there."
    pieces = litellm.completion(**asked, api_base=URL, api_key=KEY, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "Hello there."
    tools = {**asked, "tools": [TOOL], "api_base": URL, "api_key": KEY}
    (call,) = litellm.completion(**tools).choices[0].message.tool_calls
    assert call.function.name == "add"
    built = litellm.stream_chunk_builder(list(litellm.completion(**tools, stream=True)))
    assert built.choices[0].message.tool_calls[0].function.arguments == '{"a": 1, "b": 2}'
    known = {"check_provider_endpoint": True, "custom_llm_provider": "openai"}
    found = litellm.get_valid_models(**known, api_base=URL, api_key=KEY)
    assert [model for model in found if model.endswith("llama")], found


async def with_openai_agents() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL, api_key=KEY)

    @function_tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    for model in (
        OpenAIChatCompletionsModel("llama", openai_client=client),
        OpenAIResponsesModel("llama", openai_client=client),
    ):
        agent = agents.Agent(name="adder", model=model, tools=[add])
        assert (await agents.Runner.run(agent, "1 + 2?")).final_output == "It is 3."
        streamed = agents.Runner.run_streamed(agent, "1 + 2?")
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == "It is 3."


async def with_pydantic_ai() -> None:
    provider = OpenAIProvider(base_url=URL, api_key=KEY)
    for model in (
        OpenAIChatModel("llama", provider=provider),
        PydanticResponsesModel("llama", provider=provider),
    ):
        agent = Agent(model)

        @agent.tool_plain
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        assert (await agent.run("1 + 2?")).output == "It is 3."
        async with agent.run_stream("1 + 2?") as stream:
            assert await stream.get_output() == "It is 3."


for run in (with_openai, with_langchain, with_litellm):
    run()
    print(f"ok  {run.__name__[5:]}")
for run_async in (with_openai_agents, with_pydantic_ai):
    asyncio.run(run_async())
    print(f"ok  {run_async.__name__[5:]}")
