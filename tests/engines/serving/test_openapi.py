"""The served OpenAPI document is true: no made-up request ends in 5xx, and no schema lies.

What the document forbids is refused, and what it says of answers holds. The answers are scripted
here, so that thousands of requests take seconds; a slow test asks the real process the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import negative_data_rejection, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engines.dflash2.decode import Round
from engines.dflash2.tokenizer import Tokenizer

from .support import Served, prefill, running, scripted_engine, step

POSTS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
GETS = ["/v1/models", "/v1/models/{name}", "/health", "/metrics", "/openapi.json"]
# Why what the document allows may be refused: fields that conflict, and what does not fit.
BEYOND_A_SCHEMA = ("conflicting_fields", "context_length_exceeded")
TIMEOUT_S = 120  # a stream that fills the context on a busy machine takes more than the usual ten
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def url(tokenizer: Tokenizer) -> Iterator[str]:
    def script() -> Iterator[Round]:
        yield prefill(40)
        yield step([41, 42], finish_reason="length")

    with running(scripted_engine(tokenizer, script)) as server:
        yield server.url


def ask(url: str, method: str, path: str, mode: GenerationMode, *, num_requests: int) -> None:
    """Requests that obey the document, or that do not; every answer must obey it."""
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operation: APIOperation = document[path][method]

    @settings(
        max_examples=num_requests,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask_once(case: Case) -> None:
        response = case.call_and_validate(checks=CHECKS, timeout=TIMEOUT_S)
        if mode is GenerationMode.POSITIVE and response.status_code != 200:
            assert response.json()["error"]["code"] in BEYOND_A_SCHEMA, response.text

    ask_once()


@pytest.mark.parametrize("path", POSTS)
def test_requests_that_obey_the_document_are_answered(url: str, path: str) -> None:
    ask(url, "POST", path, GenerationMode.POSITIVE, num_requests=30)


@pytest.mark.parametrize("path", POSTS)
def test_requests_that_the_document_forbids_are_refused(url: str, path: str) -> None:
    ask(url, "POST", path, GenerationMode.NEGATIVE, num_requests=30)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics", "/openapi.json"])
def test_what_can_be_looked_at_looks_as_the_document_says(url: str, path: str) -> None:
    ask(url, "GET", path, GenerationMode.POSITIVE, num_requests=1)


def test_any_name_of_a_model_is_found_or_not(url: str) -> None:
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    for name in ("tiny", "other", "a/b", "%", "ü", "x" * 500):
        case = document["/v1/models/{name}"]["GET"].Case(path_parameters={"name": name})
        response = case.call_and_validate(checks=CHECKS)
        assert response.status_code == (200 if name == "tiny" else 404)


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", POSTS)
def test_the_real_process_keeps_the_document_too(
    served: Served, path: str, mode: GenerationMode
) -> None:
    ask(served.url, "POST", path, mode, num_requests=100)


# --- the document itself ---


def test_a_stream_and_a_whole_answer_are_what_the_document_says(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    answers = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "text/event-stream"}
    body = {"messages": [{"role": "user", "content": "x"}], "return_token_ids": True}
    for stream, media_type in ((False, "application/json"), (True, "text/event-stream")):
        response = httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": stream})
        assert response.headers["content-type"].partition(";")[0] == media_type


def test_the_document_says_whether_a_key_is_wanted(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, lambda: iter([]))
    with running(engine, api_key="k") as server:
        paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert paths["/v1/completions"]["post"]["security"] == [{"key": []}]
    assert paths["/health"]["get"]["security"] == []
