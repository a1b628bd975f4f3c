"""A run of any size as the harness would leave it, from a model of an engine instead of an engine.

Every line goes through the records and the writer of a real run. Plain decoding and some drafters
on an engine that is read as vLLM, 20 cells each: `generate` and `edit` one at a time (counters
around each request), `closed` loads of 48 requests at nine levels of c with two token limits
(counters around each repetition); two boots. Only the number of repetitions grows. Events with
output are not written: they are most of a folder, and may be left out.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.plan import make_plan, requests_of
from harness.records import (
    SCHEMA,
    Boot,
    Cell,
    CellEnd,
    Counters,
    Drafter,
    Engine,
    LogEntry,
    MachineFacts,
    MachineSample,
    Manifest,
    Matrix,
    Model,
    PlannedCell,
    Prompt,
    PromptSet,
    RepetitionEnd,
    Request,
    Sampling,
    Schedule,
    Session,
    Snapshot,
    Variant,
    Where,
    Workload,
)
from harness.store import Record, RunFolder

KINDS = ("code", "prose", "arithmetic", "edit")
ACCEPTANCE = {"code": 0.78, "prose": 0.55, "arithmetic": 0.85, "edit": 0.9}  # chance per position
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
TOKEN_LIMITS = (128, 384)
NUM_BOOTS = 2
K = 7
RUN_ID = "20261130-120000-scale"
BEGAN = datetime(2026, 11, 30, 12, tzinfo=UTC)


def prompt_set() -> PromptSet:
    prompts = tuple(
        Prompt(
            prompt_id=f"{kind}-{number}",
            kind=kind,
            messages=({"role": "user", "content": f"{kind} {number}"},),
            source="made up",
            licence="CC0-1.0",
        )
        for number in range(1, 4)
        for kind in KINDS
    )
    return PromptSet(name="scale12", prompts=prompts, sha256="5" * 64)


def matrix(repetitions: int, num_drafters: int) -> Matrix:
    engine = Engine(name="made-up", adapter="vllm", kind="process", command=("python",))
    target = Model(name="target", path="models/target")
    prompts = prompt_set()
    one_at_a_time = [
        Workload(
            kind=kind,  # type: ignore[arg-type]
            prompts=prompts,
            warmup=prompts,
            repetitions=repetitions,
            max_tokens=384,
        )
        for kind in ("generate", "edit")
    ]
    loads = [
        Workload(
            kind="concurrency",
            prompts=prompts,
            warmup=prompts,
            repetitions=repetitions,
            max_tokens=max_tokens,
            levels=LEVELS,
            load="closed",
            num_requests=48,
        )
        for max_tokens in TOKEN_LIMITS
    ]
    drafters = [
        Variant(
            name=f"drafter-{number}",
            engine=engine,
            target=target,
            drafter=Drafter(
                method="dflash", model=Model(name=f"drafter-{number}", path="drafter"), k=K
            ),
        )
        for number in range(1, num_drafters + 1)
    ]
    return Matrix(
        name="scale",
        path="configs/matrices/scale.yaml",
        purpose="measurement",
        variants=(Variant(name="plain", engine=engine, target=target), *drafters),
        workloads=(*one_at_a_time, *loads),
        sampling=Sampling(),
        schedule=Schedule(boots=NUM_BOOTS),
    )


def write_run(results_dir: Path, repetitions: int, num_drafters: int) -> RunFolder:
    asked = matrix(repetitions, num_drafters)
    plan = make_plan(asked)
    prompts = asked.workloads[0].prompts
    manifest = Manifest(
        schema=SCHEMA,
        run_id=RUN_ID,
        created_at=_at(0),
        tool="dflashbench",
        matrix_yaml="name: scale\n",
        matrix_path=asked.path,
        name=asked.name,
        purpose=asked.purpose,
        prompt_sets={prompts.name: prompts.sha256},
        prompt_kinds={prompts.name: {prompt.prompt_id: prompt.kind for prompt in prompts.prompts}},
        models={},
        held_constant={},
        plan=plan,
    )
    folder = RunFolder.create(results_dir, manifest)
    folder.append(_session(plan.plan_hash))
    cells = {cell.cell_id: cell for cell in plan.cells}
    now_ns = 0
    for number, block in enumerate(plan.blocks):
        where = Where(
            run_id=RUN_ID,
            session_id="s1",
            block_id=block.block_id,
            boot_id=f"{block.block_id}-s1",
        )
        made_up = _Block(where=where, prompts=prompts, chance=random.Random(number), now_ns=now_ns)
        boot = _boot(where, block.variant, now_ns)
        folder.append(boot)
        for cell_id in block.cell_ids:
            folder.append(*made_up.cell(cells[cell_id]))
        now_ns = made_up.now_ns
        folder.append(replace(boot, stopped_at=_at(made_up.now_ns), exit_code=0))
    folder.close()
    return folder


def _session(plan_hash: str) -> Session:
    machine = MachineFacts(
        hostname_hash="c0ffee",
        system="Linux",
        cpu="Some CPU",
        num_cpus=2,
        memory_bytes=24 * 1024**3,
        accelerators=(),
        python="3.11.2",
        packages={},
    )
    return Session(
        where=Where(run_id=RUN_ID, session_id="s1"),
        started_at=_at(0),
        commit="0" * 40,
        dirty=False,
        matrix_yaml="name: scale\n",
        plan_hash=plan_hash,
        machine=machine,
        device_key="d" * 12,
        client_lateness_s=0.0001,
    )


def _at(now_ns: int) -> str:
    at = BEGAN + timedelta(microseconds=now_ns // 1000)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _boot(where: Where, variant: str, began_ns: int) -> Boot:
    return Boot(
        where=where,
        variant=variant,
        argv=("python",),
        environment={},
        pid=1000,
        url="http://127.0.0.1:8000",
        started_at=_at(began_ns),
        ready_s=2.5,
        version="1.0",
        health={"max_concurrent_requests": 32},
        build="b" * 12,
        log_path=f"servers/{where.boot_id}/stderr.log",
    )


@dataclass(kw_only=True)
class _Block:
    """One boot: its clock, and the engine's counters."""

    where: Where
    prompts: PromptSet
    chance: random.Random
    now_ns: int
    drafts: int = 0
    accepted_at: tuple[int, ...] = (0,) * K
    tokens: int = 0
    requests: int = 0

    def __post_init__(self) -> None:
        self.slowness = self.chance.lognormvariate(0, 0.01)

    def cell(self, cell: Cell) -> Iterator[Record]:
        where = replace(self.where, cell_id=cell.cell_id)
        yield PlannedCell(where=replace(self.where, boot_id=None), cell=cell)
        yield LogEntry(where=where, at=_at(self.now_ns), event="cell", message="begins")
        for repetition in range(-1, cell.repetitions):
            yield from self._repetition(replace(where, repetition=repetition), cell)
        yield CellEnd(where=where, outcome="finished", message=None)

    def _repetition(self, where: Where, cell: Cell) -> Iterator[Record]:
        assert where.repetition is not None
        prompts = requests_of(cell, self.prompts, where.repetition)
        began_ns, begins_ns = self.now_ns, [self.now_ns] * cell.concurrency
        if cell.load != "single":
            yield self._snapshot(where, "before")
        for index, prompt in enumerate(prompts):
            name = f"{where.cell_id}.{where.boot_id}.{where.repetition}.{index}"
            own = replace(where, request_id=name)
            if cell.load == "single":
                yield self._snapshot(own, "before")
            free = begins_ns.index(min(begins_ns))
            request, begins_ns[free] = self._request(own, cell, prompt, index, begins_ns[free])
            yield request
            if cell.load == "single":
                yield self._snapshot(own, "after")
        if cell.load != "single":
            yield self._snapshot(where, "after")
        self.now_ns = max(begins_ns)
        yield MachineSample(
            where=replace(where, repetition=None),
            at=_at(self.now_ns - 1_000_000),
            host_cpu_share=0.5,
            memory_available_bytes=10 * 1024**3,
            client_rss_bytes=100 * 1024**2,
            engine_rss_bytes=1024**3,
        )
        yield RepetitionEnd(
            where=where,
            started_at=_at(began_ns),
            window_s=(self.now_ns - began_ns) / 1e9,
            num_requests=len(prompts),
            num_failed=0,
            in_flight_max=min(cell.concurrency, len(prompts)),
            cpu_share=0.05,
            loop_lag_max_s=0.001,
        )

    def _request(
        self, where: Where, cell: Cell, prompt: Prompt, index: int, t0_ns: int
    ) -> tuple[Request, int]:
        """Rounds of a step each until all tokens are there; every prompt has a length of its
        own.
        """
        length = cell.max_tokens - 8 - self.prompts.prompts.index(prompt)
        step_s = (0.012 + 0.002 * cell.concurrency) * self.slowness
        step_s *= self.chance.lognormvariate(0, 0.01)
        rounds = self._rounds(length, prompt.kind, cell.drafter is not None)
        ttft_s = round(0.05 * self.chance.lognormvariate(0, 0.1), 9)
        t_last_s = round(ttft_s + rounds * step_s, 9)
        wall_s = round(t_last_s + 0.0001, 9)
        request = Request(
            where=where,
            prompt_id=prompt.prompt_id,
            kind=prompt.kind,
            index=index,
            started_at=_at(t0_ns),
            t0_ns=t0_ns,
            send_lateness_s=1.1e-05,
            connect_s=None,
            status="ok",
            error=None,
            http_status=200,
            ttfr_s=ttft_s,
            ttft_s=ttft_s,
            ttfa_s=ttft_s,
            t_last_s=t_last_s,
            wall_s=wall_s,
            output_tokens=length,
            output_tokens_source="usage",
            first_tokens=1,
            first_tokens_source="usage",
            prompt_tokens=30,
            cached_tokens=0,
            num_output_events=rounds + 1,
            num_reads=rounds + 1,
            finish_reason="stop",
            distinct_4gram_share=round(self.chance.uniform(0.7, 0.95), 12),
            text_sha256=prompt.prompt_id.ljust(64, "0"),
            engine_timings=None,
            attempts=1,
            throttled=0,
            reconnects=0,
        )
        return request, t0_ns + round(wall_s * 1e9)

    def _rounds(self, length: int, kind: str, drafts: bool) -> int:
        """Steps behind the first token; the counters gain what they did."""
        self.tokens, self.requests = self.tokens + length, self.requests + 1
        if not drafts:
            return length - 1
        chance = ACCEPTANCE[kind]
        shares = [chance**position for position in range(1, K + 1)]
        rounds = max(1, round((length - 1) / (1 + sum(shares))))
        self.drafts += rounds
        accepted = [round(rounds * share) for share in shares]
        self.accepted_at = tuple(
            before + more for before, more in zip(self.accepted_at, accepted, strict=True)
        )
        return rounds

    def _snapshot(self, where: Where, moment: str) -> Snapshot:
        return Snapshot(
            where=where,
            scope="request" if where.request_id else "repetition",
            moment=moment,  # type: ignore[arg-type]
            at_ns=self.now_ns,
            quiet=True,
            settle_s=0.001,
            counters=self._counters(self.accepted_at),
            error=None,
        )

    def _counters(self, accepted_at: Sequence[int]) -> Counters:
        return Counters(
            drafts=self.drafts,
            draft_tokens=K * self.drafts,
            accepted_tokens=sum(accepted_at),
            accepted_at=tuple(accepted_at),
            tested_tokens=None,
            trimmed_tokens=None,
            plain_steps=None,
            generation_tokens=self.tokens,
            prompt_tokens=30 * self.requests,
            requests=self.requests,
            process_start_s=1.0,
            labels=("target",),
        )
