"""What is refused at the door, and that nothing else is."""

from __future__ import annotations

import gc
import json
import math
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onward.core.errors import Invalid
from onward.core.strict_json import parse, parse_object

pytestmark = pytest.mark.contract("S0-9")

NASTY: list[tuple[bytes, str]] = [
    # not UTF-8
    (b'"\xff"', "not UTF-8, byte 1"),
    (b'{"\xff":1}', "not UTF-8, byte 2"),
    (b'{"a":"\xe2\x82"}', "not UTF-8, byte 6"),
    (b'"\xc0\x80"', "not UTF-8"),
    (b'"\xed\xa0\x80"', "not UTF-8"),
    (b'"\xf4\x90\x80\x80"', "not UTF-8"),
    (b'"\xf8\x88\x80\x80\x80"', "not UTF-8"),
    (b"\xef\xbb\xbf{}", "byte order mark"),
    (b"\xff\xfe1\x00", "not JSON"),
    (b'\xfe\xff\x00"', "not JSON"),
    # not JSON
    (b"", "ends too early"),
    (b" ", "ends too early"),
    (b"\x00", "not JSON"),
    (b"{", "ends too early"),
    (b'{"a"', "ends too early"),
    (b'{"a":', "ends too early"),
    (b'{"a":1', "ends too early"),
    (b'"abc', "ends too early"),
    (b'"abc\\', "ends too early"),
    (b'"\\u12"', "not JSON"),
    (b"[1,]", "not JSON: trailing comma in array"),
    (b'{"a":1,}', "not JSON"),
    (b"[1 2]", "not JSON"),
    (b"[,1]", "not JSON"),
    (b"{}{}", "not JSON: trailing characters"),
    (b"{} x", "not JSON"),
    (b"{}\x00", "not JSON"),
    (b"'a'", "not JSON"),
    (b"{a:1}", "not JSON"),
    (b"{1:2}", "not JSON"),
    (b'{"a"}', "not JSON"),
    (b'{"a" 1}', "not JSON"),
    (b"tru", "ends too early"),
    (b"True", "not JSON"),
    (b"None", "not JSON"),
    (b"/*c*/1", "not JSON"),
    (b"1//", "not JSON"),
    (b'"\\x41"', "not JSON"),
    (b'"a\nb"', "not JSON"),
    (b'"a\tb"', "not JSON"),
    (b'"a\x00b"', "not JSON"),
    (b"\x0b1", "not JSON"),
    (b"\xc2\xa01", "not JSON"),
    # numbers
    (b"NaN", "not JSON"),
    (b"Infinity", "not JSON"),
    (b"-Infinity", "not JSON"),
    (b"1e999", "not finite"),
    (b"-1e999", "not finite"),
    (b'{"a":[1e400]}', "not finite"),
    (b"1" + b"0" * 400 + b".0", "not finite"),
    (b"0123", "not JSON"),
    (b"-", "not JSON"),
    (b"1.", "not JSON"),
    (b".5", "not JSON"),
    (b"+1", "not JSON"),
    (b"1_0", "not JSON"),
    (b"0x10", "not JSON"),
    (b"1e", "not JSON"),
    (b"9223372036854775808", "64 bits"),
    (b"-9223372036854775809", "64 bits"),
    (b'{"a":[{"b":18446744073709551615}]}', "64 bits"),
    (b"18446744073709551616", "64 bits"),
    (b"1" * 400, "64 bits"),
    (b"1" * 5000, "64 bits"),
    (b'{"a":' + b"1" * 900_000 + b"}", "64 bits"),
    # NUL
    (b'"\\u0000"', "NUL"),
    (b'{"a\\u0000b":1}', "NUL"),
    (b'["x",{"y":"\\\\\\u0000"}]', "NUL"),
    # lone surrogates
    (b'"\\ud800"', "lone surrogate in a text, byte 1"),
    (b'"\\udc00"', "lone surrogate in a text, byte 1"),
    (b'"\\ud800\\u0041"', "lone surrogate"),
    (b'"\\uD800\\uDBFF"', "lone surrogate"),
    (b'"\\ud83d\\ude00\\udfff"', "lone surrogate in a text, byte 13"),
    (b'{"\\udead":1}', "lone surrogate"),
    (b'"\\ud800x"', "lone surrogate"),
    # a key twice
    (b'{"a":1,"a":2}', "'a' comes twice"),
    (b'{"a":1,"a":1}', "'a' comes twice"),
    (b'{"a":1,"\\u0061":2}', "'a' comes twice"),
    (b'{"a":1,"a" :2}', "'a' comes twice"),
    (b'{"a":1, "b":{"c":":","c":"::"}}', "'c' comes twice"),
    (b'[[{"":1,"":2}]]', "'' comes twice"),
    (b'{"a":1,"a":2,"b":"\\u003a"}', "'a' comes twice"),
    (b'{"a":1,"a":2,"b":"\\u003A"}', "'a' comes twice"),
    (b'{"a:":1,"a:":2}', "'a:' comes twice"),
    (b'{"a":{"x":1,"y":2},"a":":::"}', "'a' comes twice"),
    # depth
    (b"[" * 65 + b"]" * 65, "deeper than 64"),
    (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
    (b'[{"a":' * 33 + b"1" + b"}]" * 33, "deeper than 64"),
    (b"[" * 900 + b"]" * 900, "deeper than 64"),
    (b"[" * 100_000, "deeper than 64"),
    (b"[" * 100_000 + b"]" * 100_000, "deeper than 64"),
    (b'{"a":' * 100_000, "deeper than 64"),
    (b"[[]," * 65 + b"[]" + b"]" * 65, "deeper than 64"),
]

FINE: list[bytes] = [
    b"null", b"true", b"0", b"-0", b"-0.0", b"1e5", b"1E-999", b'""', b"[]", b"{}", b" {} \r\n\t",
    b"9223372036854775807", b"-9223372036854775808", b"[9007199254740993]",
    b'"\\ud83d\\ude00"', b'"\\\\u0000"', b'"\\\\ud800"', b'"\\\\\\\\u0000"', b'"\x7f"',
    b'{"a":":","b":"\\":"}', b'{"a":"\\u003a","b":1}', b'{":":{":":":"}}',
    b'{"a":{"a":1},"b":{"a":2}}',
    b'{"a":"{\\"a\\":1,\\"a\\":2}"}', b'[{"a":1},{"a":1}]',
    b"[" * 64 + b"]" * 64, b'{"a":' * 64 + b"1" + b"}" * 64, b'"' + b"[" * 100 + b'"',
    b"[" + b"[]," * 500 + b"[]]", '"\u00e9\u4f60\U0001f600"'.encode(),
]  # fmt: skip


@pytest.mark.parametrize(("body", "why"), NASTY, ids=range(len(NASTY)))
def test_a_nasty_body_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(body)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("body", FINE, ids=range(len(FINE)))
def test_an_odd_but_proper_body_passes_unchanged(body: bytes) -> None:
    assert parse(body) == json.loads(body)


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"a"'])
def test_an_object_is_an_object(body: bytes) -> None:
    assert parse_object(b'{"a":1}') == {"a": 1}
    with pytest.raises(Invalid, match="must be a JSON object"):
        parse_object(body)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00")) | st.sampled_from(
    [":", '":', "\\", '\\":', "a:b", "\\u0000", "\\u003a", "[{", "}]"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_any_proper_json_passes_unchanged(value: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert repr(parse(body)) == repr(json.loads(body))


@given(st.binary() | st.text(alphabet='{}[]":,\\u0da1e.- \t').map(str.encode))
@example(b'{"a":1,"a":1}')
def test_any_bytes_are_read_or_refused_and_only_what_json_reads_is_read(body: bytes) -> None:
    try:
        value = parse(body)
    except Invalid:
        return
    assert repr(value) == repr(json.loads(body))


class Pairs(list[tuple[str, Any]]):
    """An object as it was written: with its twins."""


def _written(value: Any) -> str:
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(k)} :{_written(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _has_twins(value: Any) -> bool:
    if isinstance(value, Pairs):
        keys = [key for key, _ in value]
        return len(set(keys)) < len(keys) or any(_has_twins(inner) for _, inner in value)
    return isinstance(value, list) and any(map(_has_twins, value))


KEYS = st.sampled_from(["a", "b", ":", "a:", '":', "\\u003a"])


@given(
    st.recursive(
        KEYS,
        lambda inner: (
            st.lists(inner, max_size=4) | st.lists(st.tuples(KEYS, inner), max_size=4).map(Pairs)
        ),
        max_leaves=12,
    )
)
def test_a_key_that_comes_twice_is_found_wherever_colons_are(value: Any) -> None:
    body = _written(value).encode()
    if _has_twins(value):
        with pytest.raises(Invalid, match="comes twice"):
            parse(body)
    else:
        assert parse(body) == json.loads(body)


@given(st.lists(st.sampled_from(["[", '{"a":']), min_size=1, max_size=90))
def test_depth_is_counted_exactly(openers: list[str]) -> None:
    closers = ["]" if opener == "[" else "}" for opener in reversed(openers)]
    body = ("".join(openers) + "1" + "".join(closers)).encode()
    if len(openers) > 64:
        with pytest.raises(Invalid, match="deeper than 64"):
            parse(body)
    else:
        assert parse(body) == json.loads(body)


@pytest.mark.parametrize(
    "unit",
    [b"{},", b'{"a":":"},', b'"\\\\\\\\",', b'"\\u003a",', b'"\\ud83d\\ude00",', b"[[[[1]]]],"],
)
def test_a_mebibyte_costs_in_proportion(unit: bytes) -> None:
    def cost(size: int) -> float:
        body = b"[" + unit * (size // len(unit)) + b"0]"
        best = math.inf
        for _ in range(3):
            began = time.thread_time()
            parse(body)
            best = min(best, time.thread_time() - began)
        return best

    gc.disable()  # how much else is on the heap says nothing about the reader
    try:
        # Eight times the body: a quadratic reader takes sixty-four times as long.
        assert cost(1 << 20) < 32 * cost(1 << 17) + 0.05
    finally:
        gc.enable()


def test_a_run_of_backslashes_costs_in_proportion() -> None:
    began = time.thread_time()
    assert parse(b'"' + b"\\\\" * 500_000 + b'u0000"') == "\\" * 500_000 + "u0000"
    with pytest.raises(Invalid):
        parse(b'"' + b"\\\\" * 500_000 + b'\\ud800"')
    assert time.thread_time() - began < 2
