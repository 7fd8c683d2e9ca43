"""Every path of the server, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onward.app import build
from onward.doors.document import document
from onward.settings import Settings

TEXT = """# Every path

Made from the OpenAPI document, which a running server has at `/openapi.json`. What a path is for,
and how it behaves, is in the pages of the doors: [the native API](http-api.md),
[dispatcher and OpenAI](dispatcher.md), [/api/v1](tasks-api.md), [flow centre](flow-centre.md),
[agents](agents.md). Besides what stands here, any call may be refused as [Errors](errors.md)
describes.
"""


def page() -> str:
    found = document(build(Settings(ledger="sqlite:///:memory:")).web)
    schemas = found["components"]["schemas"]
    lines = [TEXT]
    by_tag: dict[str, list[str]] = {}
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag.setdefault(tag, []).extend(_operation(method.upper(), path, operation))
    for tag, part in by_tag.items():
        lines += [f"## {tag}", "", *part]
    lines += ["## Shapes", "", *_shapes(schemas)]
    return "\n".join(lines)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {method} {path}", "")
    for text in (operation.get("summary"), operation.get("description")):
        if text:
            yield from (_cell(text), "")
    if given := operation.get("parameters"):
        yield from ("| parameter | in | type | |", "|---|---|---|---|")
        for each in given:
            schema = each.get("schema", {})
            about = each.get("description") or schema.get("description", "")
            needed = "required" if each.get("required") else ""
            told = ", ".join(filter(None, (needed, about)))
            yield f"| `{each['name']}` | {each['in']} | {_type(schema)} | {_cell(told)} |"
        yield ""
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        yield from (f"Body ({media}): {_type(body.get('schema', {}))}", "")
    answers = [
        f"{status} {_type(content.get('schema', {}))}".strip()
        for status, response in operation["responses"].items()
        if status < "400"
        for content in list(response.get("content", {}).values())[:1] or [{}]
    ]
    yield from (f"Answers: {', '.join(answers) or 'nothing'}", "")


def _shapes(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        yield from (f"### {name}", "")
        if text := schema.get("description"):
            yield from (_cell(text), "")
        fields = schema.get("properties", {})
        if fields:
            yield from ("| field | type | |", "|---|---|---|")
            required = schema.get("required", ())
            for field, each in fields.items():
                notes = [
                    "required" if field in required else "",
                    *(_notes(part) for part in each.get("anyOf", [each])),
                ]
                yield f"| `{field}` | {_type(each)} | {_cell(', '.join(filter(None, notes)))} |"
            yield ""


def _notes(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "≥", "maximum": "≤", "maxLength": "length ≤", "maxItems": "items ≤"}
    limits = [f"{word} {schema[name]:,}" for name, word in words.items() if name in schema]
    return ", ".join(filter(None, (schema.get("description", ""), *limits)))


def _type(schema: Mapping[str, Any]) -> str:
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in parts))
    if values := schema.get("enum"):
        return ", ".join(f"`{each}`" for each in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type") or ("JSON" if schema or schema == {} else ""))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
