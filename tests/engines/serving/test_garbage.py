"""What nobody should send: broken HTTP, broken JSON, numbers that are none. Never a 5xx."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.dflash2.fields import CHAT_FIELDS, COMPLETION_FIELDS, TOKENIZE_FIELDS
from engines.dflash2.tokenizer import Tokenizer

from .support import prefill, scripted

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    with scripted(tokenizer, lambda: iter([prefill(40, "length")])) as client:
        yield client


# --- below the API: bytes that are no HTTP ---

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BROKEN_HTTP = {
    "no HTTP at all": b"\x00\xff\xfe garbage\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "a version that is not": b"GET /health HTTP/x.y\r\nHost: x\r\n\r\n",
    "a header without a colon": b"GET /health HTTP/1.1\r\nHost x\r\n\r\n",
    "a header with a null byte": b"GET /health HTTP/1.1\r\nHost: \x00\r\n\r\n",
    "a header of 200 kB": b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    "200,000 headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200_000 + b"\r\n",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a length of 30 digits": HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a chunk that has no size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a transfer coding that is not": HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
}


@pytest.mark.parametrize("sent", BROKEN_HTTP.values(), ids=BROKEN_HTTP.keys())
def test_broken_http_is_refused_or_cut_off_and_the_server_lives_on(
    client: httpx.Client, sent: bytes
) -> None:
    answer = answer_to(client, sent)
    assert answer == b"" or answer.split()[1] in (b"400", b"413", b"501"), answer[:100]
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "path", ["/%zz", "/%00", "/%ff%fe", "//health", "/v1/../health", "/v1/models/%2e%2e", "/" * 9]
)
def test_odd_paths_are_not_found(client: httpx.Client, path: str) -> None:
    answer = answer_to(client, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")


def answer_to(client: httpx.Client, sent: bytes) -> bytes:
    """The first bytes of what comes back; none if the connection was cut off."""
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, timeout=10) as connection:
        try:
            connection.sendall(sent)
            return connection.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            return b""


# --- bodies that are no JSON, or JSON that nobody can mean ---

DIGITS = "9" * 4300  # as many as Python's int reads, and one sum more than its str writes
BODIES = {
    "nested arrays": '{"prompt": ' + "[" * 10_000 + "]" * 10_000 + "}",
    "nested objects": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "nested and unfinished": "[" * 100_000,
    "nested as deep as is read": '{"prompt": ' + "[" * 400 + "]" * 400 + "}",
    "half a surrogate pair": '{"prompt": "\\ud83d"}',
    "half a surrogate pair as a name": '{"\\udc00": 1}',
    "not a number": '{"prompt": "x", "temperature": NaN}',
    "infinity": '{"prompt": "x", "top_p": Infinity}',
    "minus infinity": '{"prompt": "x", "temperature": -Infinity}',
    "1e400": '{"prompt": "x", "max_tokens": 1e400}',
    "-1e400": '{"prompt": "x", "seed": -1e400}',
    "4,300 digits": f'{{"prompt": "x", "max_tokens": {DIGITS}}}',
    "5,000 digits": f'{{"prompt": "x", "max_tokens": {DIGITS}{"9" * 700}}}',
    "a token id of 4,300 digits": f'{{"prompt": [{DIGITS}]}}',
    "a name of a megabyte": '{"' + "x" * 1_000_000 + '": 1}',
    "100,000 names": json.dumps({f"name{i}": i for i in range(100_000)}),
    "100,000 times a name": "{" + ",".join(['"a": 1'] * 100_000) + "}",
    "invalid UTF-8": b'{"prompt": "\xc3\x28"}',
    "a byte order mark alone": b"\xef\xbb\xbf",
    "two objects": '{"prompt": "x"}{"prompt": "x"}',
    "a trailing comma": '{"prompt": "x",}',
    "single quotes": "{'prompt': 'x'}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_that_cannot_be_meant_is_refused_in_the_apis_shape(
    client: httpx.Client, body: str | bytes
) -> None:
    response = client.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 2000  # quoted, but not repeated


@pytest.mark.parametrize("name", ["max_tokens", "min_tokens", "seed", "top_k"])
@pytest.mark.parametrize("value", [True, False, "5", [5], {"a": 5}, 5.5, 2**70, -(2**70)])
def test_what_is_no_whole_number_is_refused(client: httpx.Client, name: str, value: object) -> None:
    response = client.post("/v1/completions", json={"prompt": "x", name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


def test_a_whole_number_may_be_written_with_a_point(client: httpx.Client) -> None:
    body = {"prompt": [5.0, 6], "max_tokens": 1.0, "top_k": 2.0, "seed": 0.0}
    response = client.post("/v1/completions", json=body)
    assert response.json()["usage"]["prompt_tokens"] == 2


def test_control_characters_are_only_characters(client: httpx.Client) -> None:
    body = {"prompt": "\x00\x01\x1b[31m\u2028\ufeff\U0010ffff", "max_tokens": 1}
    assert client.post("/v1/completions", json=body).status_code == 200


# --- any JSON in any field ---

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**18, max_value=10**30)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
STARTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "/v1/completions": ({"prompt": "x"}, sorted(COMPLETION_FIELDS)),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "x"}]},
        sorted(CHAT_FIELDS),
    ),
    "/tokenize": ({"prompt": "x"}, sorted(TOKENIZE_FIELDS)),
    "/detokenize": ({"tokens": [1]}, ["tokens", "model"]),
}


@pytest.mark.parametrize("path", STARTS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_json_in_any_field_is_answered_or_refused(
    client: httpx.Client, path: str, data: st.DataObject
) -> None:
    start, names = STARTS[path]
    changes = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))
    response = client.post(path, content=json.dumps({**start, **changes}), headers=JSON)
    assert response.status_code in (200, 400, 404), response.text
