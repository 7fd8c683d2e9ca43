"""MCP's own conformance suite, inspector and SDK, against /mcp of a running server.

`python mcp_clients.py URL FOLDER`: the folder holds Node and the packages from npm. Any step that
fails ends the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
MCP = f"{URL}/mcp"
HERE = Path(__file__).parent
BIN = FOLDER / "node_modules" / ".bin"
ENV = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
BRIDGE = ("-e", f"ONWARD_URL={URL}", sys.executable, "-m", "onward.cli", "mcp")
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env=ENV
    )
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def with_conformance() -> None:
    tool = {"name": "json_schema_2020_12_tool", "task_types": ["json_schema_2020_12_tool"]}
    schema = {"json_schema_2020_12_tool": SCHEMA}
    httpx2.post(f"{URL}/api/v2/services", json={**tool, "schema": schema}).raise_for_status()
    expected = ("--expected-failures", HERE / "conformance.yml")
    told = run(BIN / "conformance", "server", "--url", MCP, "--suite", "all", *expected)
    print(told[told.rindex("=== SUMMARY") :] if "=== SUMMARY" in told else told[-2_000:])


def inspected(*arguments: str, over: Sequence[str]) -> Any:
    return json.loads(run(BIN / "mcp-inspector", "--cli", *over, *arguments))


def with_inspector() -> None:
    for over in ((MCP, "--transport", "http"), BRIDGE):
        tools = inspected("--method", "tools/list", over=over)["tools"]
        (add,) = (tool for tool in tools if tool["name"] == "add")
        assert add["description"] == "Adds two numbers. By the service add."
        assert add["inputSchema"]["properties"]["a"]["description"] == "the first one"
        called = ("--method", "tools/call", "--tool-name", "add")
        answer = inspected(*called, "--tool-arg", "a=1", "--tool-arg", "b=2", over=over)
        assert answer["structuredContent"]["result"] == 3, answer


async def with_sdk(mode: Any) -> None:
    async with Client(MCP, mode=mode) as client:
        assert "add" in [tool.name for tool in (await client.list_tools()).tools]
        answer = await client.call_tool("add", {"a": 1, "b": 2})
        assert answer.structured_content is not None
        assert answer.structured_content["result"] == 3
        assert (await client.call_tool("test_error_handling", {})).is_error


with_conformance()
print("ok  conformance")
with_inspector()
print("ok  inspector, over HTTP and stdio")
for mode in ("2026-07-28", "legacy"):
    asyncio.run(with_sdk(mode))
print("ok  SDK, of both generations")
run(BIN / "node", HERE / "mcp_client.mjs", URL, FOLDER)
print("ok  SDK for TypeScript")
