"""Which keys a matrix has, of which type and with which default, one key at a time.

What several keys say together, and what lies on the disk, is for `load` to judge. The descriptions
are the reference: docs/matrix.md is printed from them.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from harness.config.tree import Plain, nearest

_NUMBER = re.compile(r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
# a token is a secret in HF_TOKEN and not in eos_token
_SECRET_KEY = re.compile(
    r"(^|_)(api_?key|secret|password|authorization|(hf|hub|api|access|auth|bearer)_token)$|^token$"
)
_SECRET_VALUE = re.compile(r"(sk-|hf_)[A-Za-z0-9_-]{8,}|Bearer\s+\S{8,}|://[^/\s]*:[^/\s]*@")
_IMAGE = re.compile(r"([^@\s]+@)?sha256:[0-9a-f]{64}")
_SECRET_ADVICE = (
    "a matrix cannot hold a secret, it is stored with every run; set an environment variable, "
    "which the engine inherits, and name that of an API key in the engine's `api_key_env`"
)


# --- scalars --------------------------------------------------------------------------------------


def _number(value: Any) -> Any:
    """The number that a plain scalar spells; anything else as it is."""
    if not isinstance(value, Plain) or not _NUMBER.fullmatch(value):
        return value
    number = float(value)
    if not math.isfinite(number):  # 695e0514 is a commit, not infinity
        return value
    return number if set(value) & set(".eE") else int(value)


def _text(value: Any) -> str:
    """Text exactly as written: 1.10 stays 1.10."""
    if not isinstance(value, str):
        raise PydanticCustomError("wrong", "must be text; quote it if you mean the word")
    if not value.strip():
        raise PydanticCustomError("wrong", "must not be empty")
    if _SECRET_VALUE.search(value):
        raise PydanticCustomError("secret", f"looks like a secret: {_SECRET_ADVICE}")
    return str(value)


def _whole(value: Any) -> int:
    number = _number(value)
    whole = isinstance(number, float) and number.is_integer()
    if isinstance(number, bool) or not (whole or isinstance(number, int)):
        raise PydanticCustomError("wrong", "must be a whole number, without quotes")
    return int(number)


def _real(value: Any) -> float:
    number = _number(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise PydanticCustomError("wrong", "must be a number, without quotes")
    return float(number)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise PydanticCustomError("wrong", "must be true or false")
    return value


def _free(value: Any) -> Any:
    """What an engine takes as it is: numbers, switches, text, lists and mappings of them."""
    if isinstance(value, dict):
        _refuse_secret_keys(value)
        return {str(key): _free(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_free(item) for item in value]
    number = _number(value)
    return _text(value) if isinstance(number, str) else number


def _settings(value: Any) -> Any:
    """Words of a command line: the engine reads them itself, so each keeps its letters.

    A number is one where it is written as it would be printed; 1.10 may be a version, 1e05 a
    commit, and both reach the engine as they stand. What lies deeper reaches it as JSON.
    """
    if not isinstance(value, dict):
        return value
    values = _free(value)
    return {name: _as_written(value[name], read) for name, read in values.items()}


def _as_written(written: Any, read: Any) -> Any:
    is_number = isinstance(written, Plain) and not isinstance(read, str)
    return str(written) if is_number and str(read) != written.replace("_", "") else read


def _refuse_secret_keys(section: dict[str, Any]) -> None:
    for key in section:
        if _SECRET_KEY.search(key.lower().replace("-", "_")):
            raise PydanticCustomError(
                "key", f"`{key}` holds a secret: {_SECRET_ADVICE}", {"key": key}
            )


Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
Whole: TypeAlias = Annotated[int, BeforeValidator(_whole)]
Real: TypeAlias = Annotated[float, BeforeValidator(_real)]
Switch: TypeAlias = Annotated[bool, BeforeValidator(_switch)]
Settings: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_settings)]


DEVICE_FACTS = ("memory_bandwidth_GBps", "memory_GB")


def _device(value: Any) -> Any:
    facts = _free(value)
    for name in DEVICE_FACTS:
        if isinstance(facts, dict) and name in facts:
            number = facts[name]
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number or number <= 0:
                raise PydanticCustomError(
                    "wrong", f"{name} must be a number above 0, not {number!r}"
                )
    return facts


Device: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_device)]


def _command_argument(value: Any) -> str:
    text = _text(value)
    if _SECRET_KEY.search(text.split("=")[0].lstrip("-").replace("-", "_").lower()):
        raise PydanticCustomError("secret", f"hands over a secret: {_SECRET_ADVICE}")
    return text


def _web_address(value: Any) -> str:
    text = _text(value)
    if not text.startswith(("http://", "https://")):
        raise PydanticCustomError("wrong", "must be a whole address, http://HOST:PORT/metrics")
    return text


def _image(value: Any) -> str:
    text = _text(value)
    if not _IMAGE.fullmatch(text):
        raise PydanticCustomError(
            "wrong",
            "names an image by a tag, which may be another one tomorrow; write NAME@sha256:..., as "
            "`docker image inspect --format '{{.RepoDigests}}' NAME` tells it, or the sha256:... "
            "of `docker image inspect --format '{{.Id}}' NAME` for one that was built here",
        )
    return text


def _container_option(value: Any) -> str:
    text = _command_argument(value)
    found = next((ours for ours in _OURS if _is_option(text, ours.names)), None)
    if found is not None:
        raise PydanticCustomError("wrong", f"is not for you to set: {found.advice}")
    return text


@dataclass(frozen=True, kw_only=True)
class _Ours:
    names: tuple[str, ...]
    advice: str


_OURS = (
    _Ours(names=("-v", "--volume", "--mount"), advice="write `mounts` or `overlay`, which count"),
    _Ours(names=("-p", "--publish", "-P", "--publish-all"), advice="write `port`, or leave it out"),
    _Ours(names=("--net", "--network"), advice="the port is published on 127.0.0.1 alone"),
    _Ours(
        names=("--name", "--label", "-l", "-d", "--detach", "--rm", "--cidfile"),
        advice="the harness finds, logs and removes its containers by it",
    ),
)


def _is_option(text: str, names: Sequence[str]) -> bool:
    """Also as `--name=value`, and short ones with more behind them."""
    is_short = any(len(name) == 2 and text.startswith(name) for name in names)
    return is_short or text.split("=")[0] in names


def _inside(value: Any) -> str:
    text = _text(value)
    if not text.startswith("/"):
        raise PydanticCustomError("wrong", "must be a whole path in the container, /...")
    if "," in text:
        raise PydanticCustomError("wrong", "must hold no comma: docker's --mount ends a word there")
    return text.rstrip("/") or "/"


# --- sections -------------------------------------------------------------------------------------


_RENAMED = {"boot_timeout_s": "ready_timeout_s"}


class Entry(BaseModel):
    """A section of the file. An unknown key is refused, with the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise PydanticCustomError("wrong", "must hold keys and values (`key: value`)")
        _refuse_secret_keys({key: None for key in data if key not in cls.model_fields})
        for key in data:
            if key not in cls.model_fields:
                raise PydanticCustomError("key", _unknown(key, cls.model_fields), {"key": key})
        return data


def _unknown(key: str, known: Collection[str]) -> str:
    if _RENAMED.get(key) in known:
        return f"`{key}` is called `{_RENAMED[key]}` now; rename it"
    return f"unknown key `{key}`{nearest(key, known)}; known here: {', '.join(known)}"


class TimeoutsEntry(Entry):
    """How long the client waits, in seconds, each on its own. What is late is a failed request."""

    connect_s: Real = Field(default=10.0, gt=0, description="until a connection is open")
    first_event_s: Real = Field(
        default=600.0,
        gt=0,
        description="from the request to its first event; a comment (keep-alive) is none. A long "
        "prefill or a cold kernel needs minutes",
    )
    idle_s: Real = Field(default=120.0, gt=0, description="without a byte in mid-stream")
    request_s: Real | None = Field(
        default=None,
        gt=0,
        description="from the request to its end; left out: as long as it goes on",
    )


class EngineEntry(Entry):
    """How one kind of server is started (`process`, `container`) or found (`attach`)."""

    adapter: Text = Field(description="how to talk to it: a name from `harness.adapters.ADAPTERS`")
    kind: Literal["process", "container", "attach"] = Field(
        default="process",
        description="`process`: we start and stop it; `container`: so do we, with docker or "
        "podman, whichever is on the PATH; `attach`: it runs already",
    )
    command: list[Annotated[str, BeforeValidator(_command_argument)]] = Field(
        default=[],
        description="for `process`: the program and its fixed arguments; `{python}` is the "
        "interpreter that runs the harness. For `container`: what follows the image, which must "
        "listen on 0.0.0.0. `{port}`, `{model}` and `{name}` are filled in",
    )
    port: Whole | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="where it is to listen, on 127.0.0.1; left out: a port that is free. One that "
        "another process has is refused before anything starts",
    )
    image: Annotated[str, BeforeValidator(_image)] | None = Field(
        default=None,
        description="for `container`: NAME@sha256:DIGEST, or sha256:ID of one that was built here; "
        "it is never pulled. A tag is refused: it may be another image tomorrow",
    )
    container_options: list[Annotated[str, BeforeValidator(_container_option)]] = Field(
        default=[],
        description="for `container`: more words for `docker run`, such as `[--gpus, all, --ipc, "
        "host]`. Name, labels, port and mounts are the harness's",
    )
    mounts: dict[str, Annotated[str, BeforeValidator(_inside)]] = Field(
        default={},
        description="for `container`: path here: path in the container, such as a cache of models. "
        "Models that are files here need none, they are found under /models",
    )
    overlay: dict[str, Annotated[str, BeforeValidator(_inside)]] = Field(
        default={},
        description="for `container`: a file or folder here: its place in the container. Each file "
        "is laid over the image's own, read-only, and its sha256 is part of what the engine is",
    )
    url: Text | None = Field(default=None, description="for `attach`: where it listens")
    metrics_urls: list[Annotated[str, BeforeValidator(_web_address)]] = Field(
        default=[],
        description="where its counters are, when not on its own page: one address per worker "
        "behind a router; they are summed",
    )
    environment: dict[str, Text] = Field(
        default={}, description="variables set for the process; it inherits the rest"
    )
    api_key_env: Text | None = Field(
        default=None, description="the environment variable that holds the API key"
    )
    ready_timeout_s: Real = Field(
        default=300.0, gt=0, description="how long it may take to its first good answer"
    )
    expected_boot_s: Real | None = Field(
        default=None,
        gt=0,
        description="how long its start takes, for the estimate of `plan` until a stored run tells",
    )
    timeouts: TimeoutsEntry = Field(
        default=TimeoutsEntry(), description="how long requests to it may take"
    )
    max_rate_per_s: Real | None = Field(
        default=None,
        gt=0,
        description="for `attach`: requests per second that a server of somebody else allows. They "
        "are spaced evenly; refused with loads that it would distort (wave, closed, poisson, and "
        "constant above it)",
    )
    resources: dict[str, Annotated[Real, Field(gt=0)]] = Field(
        default={},
        description="for `run --on ray`: what a node must have to run it, by the names that `ray "
        "start --resources` gave it, for example `{gb10: 1}`. Nothing else may measure on what it "
        "takes; without `--on ray` it says nothing",
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_secrets_out_of_the_environment(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("environment"), dict):
            _refuse_secret_keys(data["environment"])
        return data


class DrafterEntry(Entry):
    """What proposes tokens."""

    method: Text = Field(description="dflash2, mtp, eagle3, ngram, ...: the word the engine knows")
    model: Text | None = Field(
        default=None, description="a name from configs/models, a folder, or a hub name"
    )
    k: Whole | None = Field(
        default=None, ge=1, description="proposals per round; left out, the drafter decides"
    )
    depths: list[Annotated[Whole, Field(ge=1)]] = Field(
        default=[],
        min_length=1,
        description="instead of `k`: several of them, a variant for each, named after it "
        "(`NAME k=3`); the report has a table of them",
    )

    @model_validator(mode="after")
    def _is_one_depth_or_several(self) -> "DrafterEntry":
        if self.k is not None and self.depths:
            raise PydanticCustomError("wrong", "holds `k` and `depths`: write one of them")
        return self


class VariantEntry(Entry):
    """One row of a results table: engine, target, drafter, flags."""

    name: Text = Field(description="as tables show it; at least one ASCII letter or digit")
    engine: Text = Field(description="a name from `engines`")
    target: Text = Field(description="a name from configs/models, a folder, or a hub name")
    drafter: DrafterEntry | None = Field(
        default=None, description="left out: plain decoding, a reference for speed-ups"
    )
    flags: Settings = Field(default={}, description="settings of this variant alone")
    reference: Text | None = Field(
        default=None,
        description="the variant that speed-ups are taken over; left out, the plain one with the "
        "same target on the same engine",
    )
    resources: dict[str, Annotated[Real, Field(gt=0)]] | None = Field(
        default=None,
        description="instead of the engine's, to measure one thing on several kinds of machine. "
        "Variants of different resources are never compared",
    )


class SamplingEntry(Entry):
    """How tokens are drawn, for all variants alike."""

    temperature: Real = Field(default=0.0, ge=0, description="0 is greedy")
    top_p: Real | None = Field(default=None, gt=0, le=1, description="left out: not sent")
    top_k: Whole | None = Field(default=None, ge=1, description="left out: not sent")
    seed: Whole | None = Field(default=None, ge=0, description="left out: not sent")
    thinking: Switch | None = Field(
        default=None, description="for models that can think aloud; left out: not sent"
    )


class _WorkloadEntry(Entry):
    prompts: Text = Field(description="a prompt set: prompts/<name>.jsonl")
    warmup: Text | None = Field(
        default=None,
        description="a prompt set with other prompts, sent before the first repetition of each "
        "boot and never measured",
    )
    warmup_passes: Whole = Field(
        default=4,
        ge=1,
        description="how often it is sent at most: passes end when two in a row took as long, "
        "within 10 %, and `warmed_up` warns when none did",
    )
    repetitions: Whole = Field(default=3, ge=1, description="per boot")
    max_tokens: Whole = Field(ge=1, description="per request")
    length: Literal["natural", "forced"] = Field(
        default="natural",
        description="`natural`: the model ends; `forced`: exactly max_tokens, its end is ignored",
    )

    timeouts: TimeoutsEntry | None = Field(
        default=None, description="instead of all of the engine's"
    )
    cache: Literal["cold", "warm"] = Field(
        default="cold",
        description="`cold`: no prompt comes out of a prefix cache, however often it is sent "
        "(docs/terms.md says how); `warm`: prompts are sent as they are written, and from the "
        "second repetition on the engine may find the first one's. Which it was is held against "
        "the engine's own count",
    )
    retries: Whole = Field(
        default=0,
        ge=0,
        description="how often a request is sent again that 429 or 503 turned away, not before the "
        "server's Retry-After (left out there: 1 s; above 120 s: not at all); attempts and the "
        "time since the first are recorded, and the protocol id is another",
    )


class GenerateEntry(_WorkloadEntry):
    """One request at a time; a repetition sends every prompt once."""

    kind: Literal["generate"] = Field(description="one request at a time, by kind of prompt")


class EditEntry(_WorkloadEntry):
    """One request at a time, with prompts whose answers mostly copy; a table of its own."""

    kind: Literal["edit"] = Field(description="one request at a time: a file and a change to it")


class PrefillEntry(_WorkloadEntry):
    """One request at a time for one token, by length of prompt, which is the prompts' kind."""

    kind: Literal["prefill"] = Field(
        description="one request at a time; `dflashbench prompts cut` makes sets of true lengths"
    )
    max_tokens: Whole = Field(default=1, ge=1, le=1, description="one: its time is the prefill's")


class ConcurrencyEntry(_WorkloadEntry):
    """c requests in flight, for every c in `levels`."""

    kind: Literal["concurrency"] = Field(description="c requests in flight")
    levels: list[Annotated[Whole, Field(ge=1)]] = Field(
        min_length=1,
        description="the values of c, rising; for `constant` and `poisson` the most that may be in "
        "flight",
    )
    load: Literal["wave", "closed", "constant", "poisson"] = Field(
        default="wave",
        description="`wave`: a repetition is c requests that start together; `closed`: c are in "
        "flight until `num_requests` are done; `constant`, `poisson`: requests arrive at "
        "`rate_per_s`, whatever became of those before; one that finds c in flight waits for a "
        "place, which its lateness and `ttft_from_schedule` tell",
    )
    assignment: Literal["round-robin", "rotate", "balanced"] = Field(
        default="balanced",
        description="which prompts a repetition takes. `round-robin`: from the first prompt on, "
        "every time; `rotate`: goes on where the last repetition stopped; `balanced`: goes on, and "
        "`repetitions` is raised until every prompt has run equally often (the plan says so)",
    )
    num_requests: Whole | None = Field(
        default=None,
        ge=1,
        description="per repetition; for `closed`, left out: max(4c, 4 x prompts), in whole rounds "
        "of the prompt set",
    )
    rate_per_s: Real | None = Field(
        default=None, gt=0, description="arrivals per second, for `constant` and `poisson`"
    )
    seed: Whole = Field(
        default=0,
        ge=0,
        description="of the `poisson` arrivals, which are the same for every variant",
    )
    clients: Whole = Field(
        default=1,
        ge=1,
        description="for `run --on ray`: how many processes, on several nodes, share the requests "
        "of a repetition, where one cannot carry the load; at most c. Another protocol id",
    )


WorkloadEntry: TypeAlias = GenerateEntry | EditEntry | PrefillEntry | ConcurrencyEntry

WORKLOADS = ("generate", "edit", "prefill", "concurrency")
"""Their kinds."""


class ScheduleEntry(Entry):
    """In which order variants take their turns."""

    order: Literal["abba", "listed"] = Field(
        default="abba",
        description="`abba`: every second boot goes backwards, so that drift falls on all alike; "
        "needs an even number of boots. `listed`: always as written",
    )
    boots: Whole = Field(
        default=2,
        ge=1,
        description="engine starts per variant; 4 for a claim, 2 is shown as wide. An engine of "
        "kind `attach` is not started: it measures as many repetitions in all, which take turns "
        "instead of boots, and its intervals are within one boot",
    )
    cooldown_s: Real = Field(default=0.0, ge=0, description="pause between boots, or turns")
    control: Text | None = Field(
        default=None,
        description="a variant that is measured first and last besides, in boots of their own: "
        "how far the two lie apart is the machine's drift. `run --into` measures it again before "
        "it adds to a stored run",
    )


class LosslessnessEntry(Entry):
    """What is asked where a greedy output differs from the reference's."""

    rescore: Switch = Field(
        default=True,
        description="whether the reference's engine is asked, when all outputs are there, how "
        "likely it finds both tokens at each difference: in its last block, or in a start of its "
        "own where another block comes later",
    )
    tolerance_nats: Real | None = Field(
        default=None,
        gt=0,
        description="how much less likely than the likeliest, in natural logarithms, an output's "
        "token may be for a near-tie; a larger gap is a real difference. Left out: 0.01 where both "
        "engines say that they compute in float32, else 0.25 (docs/terms.md says why)",
    )


class ClientEntry(Entry):
    """What measures."""

    transport: Literal["asyncio", "httpx"] = Field(
        default="asyncio",
        description="what carries the requests. `httpx` costs about seven times the CPU and opens "
        "connections only with a request: a second opinion at low concurrency, with a protocol id "
        "of its own",
    )
    rate_ceiling_tok_per_s: Real = Field(
        default=100_000.0,
        gt=0,
        description="a stream above it, or an aggregate above c times it, is a fault of the "
        "measurement: no rate is shown, and the cell is invalid",
    )


class MatrixEntry(Entry):
    """The whole file."""

    name: Annotated[str, BeforeValidator(_text), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = (
        Field(description="part of the run's id: letters, digits, `.`, `_`, `-`")
    )
    purpose: Literal["measurement", "smoke"] = Field(
        default="measurement", description="`smoke`: a banner in the report, never a baseline"
    )
    engines: dict[str, EngineEntry] = Field(min_length=1, description="by a name of yours")
    variants: list[VariantEntry] = Field(min_length=1, description="the rows to compare")
    workloads: list[Annotated[WorkloadEntry, Field(discriminator="kind")]] = Field(
        min_length=1, description="what is asked of each variant"
    )
    sampling: SamplingEntry = Field(
        default=SamplingEntry(), description="how tokens are drawn, for all variants alike"
    )
    held_constant: Settings = Field(
        default={}, description="engine settings that are equal for all variants"
    )
    schedule: ScheduleEntry = Field(
        default=ScheduleEntry(), description="in which order variants take their turns"
    )
    losslessness: LosslessnessEntry = Field(
        default=LosslessnessEntry(), description="what is asked where greedy outputs differ"
    )
    client: ClientEntry = Field(default=ClientEntry(), description="what measures")
    device: Device = Field(
        default={},
        description="facts the machine does not tell. `memory_bandwidth_GBps`, how fast its memory "
        "can be read, is what `roof_fraction` is a share of; `memory_GB`, what there is of it, is "
        "what the pre-flight's `kv_fits` holds weights and a request against; others are kept with "
        "the run",
    )
    goals: dict[str, Annotated[Real, Field(gt=0)]] = Field(
        default={},
        description="metric, by its name in docs/figures.md: the figure to reach, above 0. The "
        "report has a table of how far each variant is from it; no check and no exit code asks",
    )


class ModelEntry(Entry):
    """configs/models/<name>.yaml"""

    path: Text = Field(description="a folder, from the project's root; or a hub name, owner/model")
    published: Text | None = Field(
        default=None,
        description="of a drafter that stands in for another: the checkpoint that published "
        "figures were measured with, as `path` or by the hash that reports show; "
        "`drafter_differs` warns where it is not this one",
    )
