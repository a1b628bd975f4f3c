"""What every request passes first: the key, its id, and what a body may be."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from engines.dflash2 import commands, listener
from engines.dflash2.arguments import UsageError
from engines.dflash2.tokenizer import Tokenizer

from .support import prefill, scripted

KEY = "sk-secret"
BODY = {"prompt": "x", "max_tokens": 1}


@pytest.fixture
def guarded(tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    with scripted(tokenizer, lambda: iter([prefill(40, "length")]), api_key=KEY) as client:
        yield client


@pytest.fixture
def small(tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    """A server that takes bodies of up to 100 bytes."""
    script = [prefill(40, "length")]
    with scripted(tokenizer, lambda: iter(script), max_body_bytes=100) as client:
        yield client


# --- the key ---


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer  {KEY}", 200),
        (f"Bearer {KEY}x", 401),
        (f"Bearer {KEY[:-1]}", 401),
        ("Bearer", 401),
        (f"Basic {KEY}", 401),
        (KEY, 401),
        (b"Bearer \xff\xfe", 401),
        (None, 401),
    ],
)
def test_only_the_key_as_a_bearer_lets_a_request_pass(
    guarded: httpx.Client, header: str | bytes | None, status: int
) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = guarded.post("/v1/completions", json=BODY, headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert KEY not in response.text


def test_watching_needs_no_key_and_everything_else_does(guarded: httpx.Client) -> None:
    def status(method: str, path: str) -> int:
        return guarded.request(method, path).status_code

    assert [status("GET", path) for path in ("/health", "/metrics", "/openapi.json")] == [200] * 3
    wanted = [("GET", "/v1/models"), ("POST", "/tokenize"), ("GET", "/nowhere"), ("OPTIONS", "/v1")]
    assert [status(method, path) for method, path in wanted] == [401] * 4


def test_the_key_comes_from_the_option_or_from_the_environment() -> None:
    assert commands._api_key(None, {}) is None
    assert commands._api_key(None, {"DFLASH2_API_KEY": "a"}) == "a"
    assert commands._api_key("b", {"DFLASH2_API_KEY": "a"}) == "b"


@pytest.mark.parametrize("key", ["", " a", "a\n", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="no HTTP header can carry") as refusal:
        commands._api_key(None, {"DFLASH2_API_KEY": key})
    assert key.strip() == "" or repr(key) not in str(refusal.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_door_to_other_machines_needs_a_key(host: str) -> None:
    with pytest.raises(UsageError, match=f"--host {host} lets other machines in"):
        listener.bind(host, 0, has_key=False)
    listener.bind(host, 0, has_key=True).close()


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")]
)
def test_loopback_needs_none(host: str, url: str) -> None:
    with listener.bind(host, 0, has_key=False) as bound:
        assert listener.url_of(bound) == f"{url}{bound.getsockname()[1]}"


# --- ids ---


def test_an_answer_has_the_requests_id_or_a_new_one(guarded: httpx.Client) -> None:
    def id_of(**headers: str) -> str:
        return guarded.get("/health", headers=headers).headers["x-request-id"]

    assert id_of(**{"X-Request-Id": "trace-7/a.b"}) == "trace-7/a.b"
    first, second = id_of(), id_of()
    assert first != second
    assert first.startswith("req-")


@pytest.mark.parametrize("unfit", ["", "a b", "x" * 129, "<script>"])
def test_an_id_that_is_not_plain_is_replaced(guarded: httpx.Client, unfit: str) -> None:
    response = guarded.get("/health", headers={"X-Request-Id": unfit})
    assert response.headers["x-request-id"].startswith("req-")


def test_refusals_and_streams_have_an_id_too(guarded: httpx.Client) -> None:
    headers = {"X-Request-Id": "mine", "Authorization": f"Bearer {KEY}"}
    responses = [
        guarded.post("/v1/completions", json=BODY, headers={"X-Request-Id": "mine"}),
        guarded.get("/nowhere", headers=headers),
        guarded.post("/v1/completions", json={**BODY, "n": 2}, headers=headers),
        guarded.post("/v1/completions", json={**BODY, "stream": True}, headers=headers),
    ]
    assert [response.status_code for response in responses] == [401, 404, 400, 200]
    assert {response.headers["x-request-id"] for response in responses} == {"mine"}


# --- bodies ---


def test_a_body_up_to_the_limit_is_read_and_a_byte_more_is_refused(small: httpx.Client) -> None:
    def status(num_bytes: int, **headers: str) -> int:
        body = json.dumps({"prompt": "x", "user": ""}).encode()
        body = body[:-2] + b"u" * (num_bytes - len(body)) + body[-2:]
        return small.post(
            "/v1/completions",
            content=body if not headers else iter([body[:50], body[50:]]),
            headers={"Content-Type": "application/json", **headers},
        ).status_code

    chunked = {"Transfer-Encoding": "chunked"}  # whose length nobody says beforehand
    assert (status(100), status(101)) == (200, 413)
    assert (status(100, **chunked), status(101, **chunked)) == (200, 413)


def test_a_refusal_of_a_large_body_says_what_to_do(small: httpx.Client) -> None:
    error = small.post("/tokenize", json={"prompt": "x" * 200}).json()["error"]
    assert error["code"] == "body_too_large"
    assert "may have 100 bytes" in error["message"]
    assert "--max-body-bytes" in error["message"]


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
def test_only_bodies_declared_as_json_are_read(
    small: httpx.Client, media_type: str, status: int
) -> None:
    response = small.post(
        "/v1/completions", content=json.dumps(BODY), headers={"Content-Type": media_type}
    )
    assert response.status_code == status
