"""Every type that is written to a results folder or computed from one.

Plain data and nothing else: this module knows no file, no clock, no engine and no arithmetic. All
types are frozen and keyword-only. Units stand at the end of a name (`_s`, `_ns`, `_bytes`,
`_tok_per_s`); a name without one is a count, a word or an id. A value that was not measured is
None, never 0.

Order of the file: what the user wrote, what the plan made of it, what a run recorded, what
analysis computed. `docs/results-format.md` is the promise about the recorded part; `SCHEMA` rises
when that promise changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

SCHEMA = 1

LoadShape: TypeAlias = Literal["single", "wave", "closed", "constant", "poisson"]
TransportName: TypeAlias = Literal["asyncio", "httpx"]
Assignment: TypeAlias = Literal["round-robin", "rotate", "balanced"]
CachePolicy: TypeAlias = Literal["cold", "warm"]
LengthPolicy: TypeAlias = Literal["natural", "forced"]
Level: TypeAlias = Literal["ok", "warning", "invalid"]
MemorySource: TypeAlias = Literal["accelerators", "host", "resident set"]

# --- what the user wrote (a matrix, read and checked by config.py) --------------------------------


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model folder or hub name, as `configs/models/<name>.yaml` or a path describes it."""

    name: str
    path: str
    published: str | None = None  # the checkpoint that published figures are of


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """What proposes tokens; `method` is the field's own word (dflash2, mtp, ngram, ...)."""

    method: str
    model: Model | None = None
    k: int | None = None  # proposals per round; None where the drafter alone decides


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Each its own: a long prefill is no dead connection. A comment (keep-alive) is no first
    event.
    """

    connect_s: float = 10.0
    first_event_s: float = 600.0
    idle_s: float = 120.0  # without a byte in mid-stream
    request_s: float | None = None  # from send to end; None: as long as it goes on


@dataclass(frozen=True, kw_only=True)
class Overlaid:
    """A file of ours that lies over one of a container's image."""

    path: str
    target: str  # its place in the container
    sha256: str  # as it was when the matrix was read


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one kind of server is started or found. `adapter` names a row of `adapters.ADAPTERS`."""

    name: str
    adapter: str
    kind: Literal["process", "container", "attach"]
    command: tuple[str, ...] = ()  # a program and its fixed arguments; of a container: its words
    url: str | None = None  # for kind attach
    environment: Mapping[str, str] = field(default_factory=dict)
    api_key_env: str | None = None
    ready_timeout_s: float = 300.0
    expected_boot_s: float | None = None  # for the plan, until a run has shown it
    metrics_urls: tuple[str, ...] = ()  # summed; empty: the adapter's own page
    timeouts: Timeouts = Timeouts()
    max_rate_per_s: float | None = None  # for kind attach: requests per second that it allows
    resources: Mapping[str, float] = field(default_factory=dict)  # what a node must have, on Ray
    port: int | None = None  # None: a free one
    image: str | None = None  # for kind container, by digest
    container_options: tuple[str, ...] = ()  # words of `docker run`
    mounts: Mapping[str, str] = field(default_factory=dict)  # path here: path in the container
    overlaid: tuple[Overlaid, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Engine + target + drafter + flags: one row of a results table."""

    name: str
    engine: Engine
    target: Model
    drafter: Drafter | None = None  # None: plain decoding
    flags: Mapping[str, Any] = field(default_factory=dict)
    reference: str | None = None  # the variant that speed-ups are over; None: the plain one
    resources: Mapping[str, float] | None = None  # None: its engine's


@dataclass(frozen=True, kw_only=True)
class Sampling:
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    thinking: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """`messages` as the chat API takes them; `kind` groups prompts in tables (code, prose, ...)."""

    prompt_id: str
    kind: str
    messages: tuple[Mapping[str, str], ...]
    source: str
    licence: str
    publish: bool = True  # False: neither it nor what was answered to it stands in a report


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    name: str
    prompts: tuple[Prompt, ...]
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One request at a time: `generate` by kind, `edit` of answers that copy, `prefill` by length.
    `concurrency`: `levels` requests in flight.
    """

    kind: Literal["generate", "edit", "prefill", "concurrency"]
    prompts: PromptSet
    warmup: PromptSet | None
    repetitions: int
    max_tokens: int
    length: LengthPolicy = "natural"
    levels: tuple[int, ...] = (1,)
    load: LoadShape = "single"
    assignment: Assignment = "balanced"
    num_requests: int | None = None  # per repetition; None: max(4c, 4 x prompts), rounded
    rate_per_s: float | None = None  # arrivals, for load constant and poisson
    seed: int = 0  # of the poisson arrivals
    timeouts: Timeouts | None = None  # None: the engine's
    retries: int = 0  # of a request that was turned away by 429 or 503
    cache: CachePolicy = "cold"
    clients: int = 1  # processes that share the requests of a repetition, on Ray
    warmup_passes: int = 4  # at most; two that took as long end the warm-up


@dataclass(frozen=True, kw_only=True)
class LosslessnessRules:
    """What is asked and allowed where greedy outputs differ from the reference's."""

    rescore: bool = True
    tolerance_nats: float | None = None  # None: by the type that engines compute in


@dataclass(frozen=True, kw_only=True)
class Schedule:
    order: Literal["abba", "listed"] = "abba"
    boots: int = 2
    cooldown_s: float = 0.0
    control: str | None = None  # the variant that is measured first and last besides


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One YAML file, checked. Paths in it are resolved against the file's own project."""

    name: str
    path: str
    purpose: Literal["measurement", "smoke"]
    variants: tuple[Variant, ...]
    workloads: tuple[Workload, ...]
    sampling: Sampling
    schedule: Schedule
    held_constant: Mapping[str, Any] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)
    goals: Mapping[str, float] = field(default_factory=dict)
    transport: TransportName = "asyncio"
    rate_ceiling_tok_per_s: float | None = None  # of one stream; None: any is believed
    losslessness: LosslessnessRules = LosslessnessRules()


# --- what the plan made of it ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Variant x workload x prompts x c x load shape x sampling x length policy, and its identity.

    Cells of one `workload_key` do the same work, cells of one `subject_key` have the same subject.
    `protocol_id` says how a number was made: figures of two protocol ids never share a table.
    """

    cell_id: str
    variant: str
    workload: str  # generate, edit, prefill, concurrency
    prompt_set: str
    concurrency: int
    load: LoadShape
    assignment: Assignment
    length: LengthPolicy
    sampling: Sampling
    max_tokens: int
    repetitions: int
    num_requests: int  # per repetition
    engine: str
    adapter: str
    target: str
    drafter: str | None  # the method
    k: int | None
    workload_key: str
    subject_key: str
    protocol_id: str
    reference_cell_id: str | None
    reference_reason: str | None  # why there is no reference cell
    rate_per_s: float | None = None  # arrivals, where the load has a rate
    cache: CachePolicy | None = None  # None: a run of before it was asked
    rate_ceiling_tok_per_s: float | None = None  # of one stream; None: any is believed
    drafter_model: str | None = None  # its name; None: the drafter needs none, or an older run
    resources: Mapping[str, float] | None = None  # what its node must have, on Ray
    clients: int | None = None  # None: one
    control_of: str | None = None  # the cell that it repeats to see whether the machine moved


@dataclass(frozen=True, kw_only=True)
class Block:
    """One variant's turn in the schedule: one boot of its engine, then its cells in this order."""

    block_id: str
    variant: str
    cell_ids: tuple[str, ...]
    repetitions: Mapping[str, tuple[int, int]] | None = None
    """Cell -> its first repetition of this turn and the one behind the last; None: all of them, as
    a boot of its own measures.
    """


@dataclass(frozen=True, kw_only=True)
class Plan:
    cells: tuple[Cell, ...]
    blocks: tuple[Block, ...]
    plan_hash: str
    estimated_s: float | None  # None: no stored run to estimate from


# --- what a run recorded --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Where:
    """The ids of everything a record belongs to; deeper ids are None above their level."""

    run_id: str
    session_id: str
    block_id: str | None = None
    boot_id: str | None = None
    cell_id: str | None = None
    repetition: int | None = None
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a given time left of a matrix."""

    budget_s: float
    repetitions: tuple[int, ...]  # of each workload, as if the matrix asked for them
    boots: int
    cuts: tuple[str, ...]  # what was cut, a sentence each


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Written once, before the first request."""

    schema: int
    run_id: str
    created_at: str  # ISO 8601, UTC
    tool: str  # dflashbench x.y.z
    matrix_yaml: str
    matrix_path: str
    name: str
    purpose: str
    prompt_sets: Mapping[str, str]  # name -> sha256
    prompt_kinds: Mapping[str, Mapping[str, str]]  # set -> prompt id -> kind
    models: Mapping[str, Mapping[str, Any]]  # name -> identity of its files
    held_constant: Mapping[str, Any]
    plan: Plan
    warmup_sets: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)  # what the matrix says of it
    goals: Mapping[str, float] = field(default_factory=dict)  # metric -> the figure to reach
    unpublished: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # set -> prompt ids
    prompt_sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # set -> sources
    budget: Budget | None = None  # None: it may take as long as it takes
    key_variables: tuple[str, ...] = ()  # whose values no file of the run may hold
    losslessness: LosslessnessRules | None = None  # None: a run of before it was asked


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """What a matrix that was edited made of a run; the last one counts instead of the manifest."""

    where: Where  # the session that it is for
    at: str
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell as one block will run it; an edited matrix appends to these."""

    where: Where  # session and block
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    hostname_hash: str  # equal for one machine, tells nothing else
    system: str
    cpu: str
    num_cpus: int
    memory_bytes: int | None
    accelerators: tuple[str, ...]
    python: str
    packages: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """What the client adds to the time to first token at one concurrency."""

    concurrency: int
    num_requests: int
    added_ttft_p50_s: float
    added_ttft_p99_s: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What this machine's client can measure, found with the scripted server.

    clean_events_per_s is the highest rate tried at which no stream's decode rate was wrong by 1 %,
    unclean_events_per_s the one above it at which one was; None: there was no such rate.
    """

    lateness: tuple[Lateness, ...]
    clean_events_per_s: int | None
    unclean_events_per_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class Session:
    where: Where
    started_at: str
    commit: str | None
    dirty: bool | None
    matrix_yaml: str
    plan_hash: str
    machine: MachineFacts
    device_key: str
    client_lateness_s: float | None  # p99 of what this client adds; None: not calibrated
    resumed: bool = False
    transport: str | None = None  # what carried the requests
    event_loop: str | None = None  # and on which loop
    calibration: Calibration | None = None


@dataclass(frozen=True, kw_only=True)
class Container:
    """What a container was run from; its command is the boot's `argv`."""

    program: str  # docker or podman
    name: str
    image: str  # as asked for
    image_id: str
    repo_digests: tuple[str, ...]  # none for an image that was built here
    options: tuple[str, ...]
    mounts: Mapping[str, str]  # path in the container: what lies there, models among it
    overlaid: Mapping[str, str]  # path in the container: sha256


@dataclass(frozen=True, kw_only=True)
class Boot:
    """An engine from start to stop; written at start, at ready (`ready_s`) and at stop."""

    where: Where
    variant: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # what we set, secrets left out
    pid: int | None
    url: str
    started_at: str
    ready_s: float | None  # from start to the first good answer
    version: str | None
    health: Mapping[str, Any] | None  # the engine's own facts, as found
    build: str | None  # hash of what was found
    log_path: str
    memory_peak_bytes: int | None = None
    stopped_at: str | None = None
    exit_code: int | None = None
    error: str | None = None  # why it did not boot, or died
    wanted: Mapping[str, Any] = field(default_factory=dict)  # model paths and flags we asked for
    attached: bool = False  # it ran before and goes on: no start of ours
    container: Container | None = None  # None: a process, or a server that was there
    memory_read_from: MemorySource | None = None  # None: a run of before resident sets alone
    rendered: Mapping[str, Mapping[str, str]] | None = None
    """Prompt set -> prompt id -> SHA-256 of the tokens that the engine makes of it; None: it does
    not tell.
    """


@dataclass(frozen=True, kw_only=True)
class RequestError:
    """A request's failure is data.

    kind: connect, tls, http, in_band, truncated, stall, timeout, empty, short, parse, cancelled.
    """

    kind: str
    message: str
    http_status: int | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One HTTP request, on the client's monotonic clock, seconds after `t0` unless named otherwise.

    `t0` is just before the socket write that completes the request. Definitions: docs/terms.md.
    """

    where: Where
    prompt_id: str
    kind: str
    index: int  # order within the repetition
    started_at: str
    t0_ns: int  # perf_counter_ns, comparable within one session
    send_lateness_s: float
    connect_s: float | None  # None: the connection was open before
    status: Literal["ok", "failed"]
    error: RequestError | None
    http_status: int | None
    ttfr_s: float | None
    ttft_s: float | None
    ttfa_s: float | None
    t_last_s: float | None
    wall_s: float | None
    output_tokens: int | None
    output_tokens_source: Literal["usage", "token_ids"] | None
    first_tokens: int | None
    first_tokens_source: Literal["usage", "token_ids", "events"] | None  # events: a lower bound
    prompt_tokens: int | None
    cached_tokens: int | None
    num_output_events: int
    num_reads: int
    finish_reason: str | None
    distinct_4gram_share: float | None
    text_sha256: str | None
    engine_timings: Mapping[str, Any] | None
    flags: tuple[str, ...] = ()  # unterminated_final_event, buffered_stream, possible_cap, ...
    attempts: int | None = None
    throttled: int | None = None  # attempts that 429 or 503 turned away
    since_first_attempt_s: float | None = None  # from the first attempt's t0; None: there was one
    reconnects: int | None = None  # resent because a reused connection closed without a byte
    event_tokens_source: Literal["usage", "token_ids", "mixed"] | None = None  # None: not of all
    salt: str | None = None  # stood before the prompt; None: it was sent as written


@dataclass(frozen=True, kw_only=True)
class Counters:
    """An engine's speculation ledger at one moment, summed over engine labels.

    None where it keeps no such counter.
    """

    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    accepted_at: tuple[int, ...] | None  # per position, position 0 first
    tested_tokens: int | None
    trimmed_tokens: int | None
    plain_steps: int | None
    generation_tokens: int | None
    prompt_tokens: int | None
    requests: int | None
    process_start_s: float | None  # unix time, of the youngest process; it moves at a restart
    labels: tuple[str, ...]  # the distinct model labels seen, sorted
    draft_s: float | None = None
    verify_s: float | None = None
    decode_calls: int | None = None  # the target's forward passes, those of prompts included
    generation_s: float | None = None  # sum over requests, first to last token
    cached_prompt_tokens: int | None = None  # that came from a prefix cache
    preemptions: int | None = None  # requests whose keys and values were given up for others'


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Counters read before or after a scope: a request in generate, a repetition otherwise."""

    where: Where
    scope: Literal["request", "repetition"]
    moment: Literal["before", "after"]
    at_ns: int
    quiet: bool | None  # None: the engine cannot tell
    settle_s: float  # how long it took to become quiet
    counters: Counters | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class ClientShare:
    """What one of several clients did in a repetition. Its clock was read as ours, wrong by at most
    `clock_bound_s`: half the shortest round trip.
    """

    client: str
    node: str
    num_requests: int
    concurrency: int
    cpu_share: float | None
    loop_lag_max_s: float | None
    clock_offset_s: float
    clock_bound_s: float


@dataclass(frozen=True, kw_only=True)
class RepetitionEnd:
    """A repetition that is wholly on disk. `window_s`: first send to last end."""

    where: Where
    started_at: str
    window_s: float
    num_requests: int
    num_failed: int
    in_flight_max: int
    cpu_share: float | None  # of one core, used by the client process during the window
    loop_lag_max_s: float | None
    suspended_s: float | None = None  # that the machine slept meanwhile; None: it does not tell
    clients: tuple[ClientShare, ...] | None = None  # None: one client; else the shares are theirs


@dataclass(frozen=True, kw_only=True)
class CellEnd:
    """A cell of a block that is finished (`unavailable`: its engine did not boot or died)."""

    where: Where
    outcome: Literal["finished", "unavailable"]
    message: str | None


@dataclass(frozen=True, kw_only=True)
class AcceleratorSample:
    """One accelerator's second, as its driver tells it."""

    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    memory_used_bytes: int | None
    slowed_by: tuple[str, ...] | None  # why its clock was held down; empty: by nothing


@dataclass(frozen=True, kw_only=True)
class MachineSample:
    where: Where
    at: str
    host_cpu_share: float | None  # of all cores
    memory_available_bytes: int | None
    client_rss_bytes: int | None
    engine_rss_bytes: int | None
    cpu_throttle_count: int | None = None  # slow-downs by temperature since the machine started
    cpu_steal_share: float | None = None  # of all cores, taken by the hypervisor
    accelerators: tuple[AcceleratorSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LikelyToken:
    token_id: int
    logprob: float  # natural logarithm
    text: str | None = None  # None: the engine names tokens by their ids


@dataclass(frozen=True, kw_only=True)
class Rescore:
    """What the reference's engine finds likely where an output leaves the reference's; `where` is
    that of the output. A token is None where its output ended.
    """

    where: Where
    at: str
    asked_boot_id: str | None  # None: it could not be asked
    reference_request_id: str
    reference_text_sha256: str
    index: int | None  # of the first token that differs
    token_id: int | None
    reference_token_id: int | None
    likeliest: tuple[LikelyToken, ...]  # behind the prompt and what both outputs begin with
    reason: str | None  # why nothing likely is known


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    where: Where
    at: str
    event: str
    message: str


# --- what analysis computed -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval. `reason` says why `value`, or the interval, is None."""

    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str
    n: int  # requests, ratios: boots
    method: str | None = None  # "t over boots", "bootstrap within one boot", ...
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check says of a cell (`cell_id` None: of the run), and what to do about it."""

    check: str
    level: Level
    message: str
    cell_id: str | None = None
    touches: tuple[str, ...] | None = None  # beginnings of the metrics' names; None: all figures


@dataclass(frozen=True, kw_only=True)
class QuotedFigure:
    """A figure as somebody printed it, without the measurements under it.

    It is text: nothing can be computed with it, and no comparison takes it.
    """

    section: str  # of the document
    subject: str
    what: str
    printed: str
    raw: None = None


@dataclass(frozen=True, kw_only=True)
class QuotedDocument:
    title: str
    remark: str
    figures: tuple[QuotedFigure, ...]


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One figure: a line of `show --json`. `kind` is "all" for the figure over all kinds."""

    variant: str
    workload: str
    kind: str
    concurrency: int
    load: LoadShape
    metric: str
    estimate: Estimate
    verdicts: tuple[str, ...] = ()  # names of checks that are not ok, invalid ones first
    cell_id: str | None = None
