"""Results folders as a run would leave them, from a model of an engine instead of an engine.

Each variant has a step time that grows with the number of streams, and each kind of prompt a share
of drafts that is accepted; everything else (times, events, counters) follows, from a seed.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    LikelyToken,
    MachineFacts,
    Manifest,
    Matrix,
    Model,
    PlannedCell,
    Prompt,
    PromptSet,
    RepetitionEnd,
    Request,
    Rescore,
    Sampling,
    Schedule,
    Session,
    Snapshot,
    Variant,
    Where,
    Workload,
)
from harness.store import EventRow, Record, RunFolder

KINDS = ("code", "prose", "arithmetic", "refactor", "edit")
MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Milliseconds per step or round with one stream, and what each further stream adds."""

    draft_ms: float
    verify_ms: float
    per_stream_ms: float
    acceptance: Mapping[str, float] = field(default_factory=dict)  # kind -> chance per position


PLAIN = Behaviour(draft_ms=0.0, verify_ms=11.0, per_stream_ms=1.0)
DFLASH2 = Behaviour(
    draft_ms=4.5,
    verify_ms=14.0,
    per_stream_ms=9.0,
    acceptance={"code": 0.78, "prose": 0.55, "arithmetic": 0.9, "refactor": 0.82, "edit": 0.93},
)


def prompt_set(kinds: Sequence[str] = KINDS, per_kind: int = 1) -> PromptSet:
    prompts = tuple(
        Prompt(
            prompt_id=f"{kind}-{number}",
            kind=kind,
            messages=({"role": "user", "content": f"{kind} {number}"},),
            source="made up",
            licence="CC0-1.0",
        )
        for number in range(1, per_kind + 1)
        for kind in kinds
    )
    return PromptSet(name="demo5", prompts=prompts, sha256="5" * 64)


def matrix(
    *,
    boots: int = 2,
    levels: Sequence[int] = (1, 2, 4, 8),
    drafters: Sequence[str] = ("DFlash2",),
    prompts: PromptSet | None = None,
    repetitions: int = 3,
    temperature: float = 0.0,
    max_tokens: int = 192,
) -> Matrix:
    engine = Engine(name="dflash2", adapter="dflash2", kind="process", command=("python",))
    target = Model(name="demo-dense", path="models/target")
    drafter = Drafter(method="dflash2", model=Model(name="demo-dflash2", path="drafter"), k=7)
    used = prompts or prompt_set()

    def concurrency(load: str) -> Workload:
        return Workload(
            kind="concurrency",
            prompts=used,
            warmup=used,
            repetitions=2,
            max_tokens=max_tokens,
            levels=tuple(levels),
            load=load,  # type: ignore[arg-type]
        )

    generate = Workload(
        kind="generate", prompts=used, warmup=used, repetitions=repetitions, max_tokens=max_tokens
    )
    shapes = [concurrency("wave"), concurrency("closed")] if levels else []
    return Matrix(
        name="synthetic",
        path="configs/matrices/synthetic.yaml",
        purpose="measurement",
        variants=(
            Variant(name="plain", engine=engine, target=target),
            *(
                Variant(
                    name=name,
                    engine=engine,
                    target=target,
                    drafter=drafter,
                    flags={} if number == 0 else {"number": number},
                )
                for number, name in enumerate(drafters)
            ),
        ),
        workloads=(generate, *shapes),
        sampling=Sampling(temperature=temperature),
        schedule=Schedule(boots=boots),
        held_constant={"kv_len": 2048},
    )


def write_run(
    results_dir: Path,
    asked: Matrix | None = None,
    *,
    behaviours: Mapping[str, Behaviour] | None = None,
    edit: Callable[[Request], Request] = lambda request: request,
    edit_snapshot: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    edit_end: Callable[[RepetitionEnd], RepetitionEnd] = lambda end: end,
    boot_spread: float = 0.01,
    one_at_a_time: bool = False,
    broken_variant: str | None = None,
    seed: int = 7,
    run_id: str | None = None,
    created_at: str = "2026-11-29T12:00:00Z",
) -> RunFolder:
    """A whole run; the edits see every request, reading and repetition's end before it is stored.

    `seed`: of how slow each boot and request happens to be.
    """
    asked = asked or matrix()
    plan = make_plan(asked)
    used = asked.workloads[0].prompts
    manifest = Manifest(
        schema=SCHEMA,
        run_id=run_id or f"20261129-120000-{asked.name}",
        created_at=created_at,
        tool="dflashbench 0.1.0",
        matrix_yaml="name: synthetic\n",
        matrix_path=asked.path,
        name=asked.name,
        purpose=asked.purpose,
        prompt_sets={used.name: used.sha256},
        prompt_kinds={used.name: {prompt.prompt_id: prompt.kind for prompt in used.prompts}},
        models={"demo-dense": {"path": "models/target", "sha256": "ab" * 32}},
        held_constant=asked.held_constant,
        plan=plan,
        goals=asked.goals,
    )
    folder = RunFolder.create(results_dir, manifest)
    writer = _Writer(
        folder=folder,
        asked=asked,
        behaviours={"plain": PLAIN, **(behaviours or {"DFlash2": DFLASH2})},
        edit=edit,
        edit_snapshot=edit_snapshot,
        edit_end=edit_end,
        boot_spread=boot_spread,
        one_at_a_time=one_at_a_time,
        generator=random.Random(seed),
    )
    writer.session()
    cells = {cell.cell_id: cell for cell in plan.cells}
    for block in plan.blocks:
        where = Where(
            run_id=manifest.run_id,
            session_id="s1",
            block_id=block.block_id,
            boot_id=f"{block.block_id}-s1",
        )
        if block.variant == broken_variant:
            writer.broken(where, [cells[cell_id] for cell_id in block.cell_ids], block.variant)
            continue
        writer.block(where, [cells[cell_id] for cell_id in block.cell_ids], block.variant)
    folder.append(*writer.records)
    folder.close()
    return folder


OWN_TOKEN, REFERENCE_TOKEN = 7, 9
"""At which an output and its reference's part."""


def rescore(own: Request, reference: Request, likeliest: Sequence[LikelyToken]) -> Rescore:
    """What a reference's engine told of a difference at token 30."""
    return Rescore(
        where=own.where,
        at="2026-11-29T12:20:00Z",
        asked_boot_id="b4-s1",
        reference_request_id=str(reference.where.request_id),
        reference_text_sha256=str(reference.text_sha256),
        index=30,
        token_id=OWN_TOKEN,
        reference_token_id=REFERENCE_TOKEN,
        likeliest=tuple(likeliest),
        reason=None if likeliest else "the engine is a wall",
    )


@dataclass
class _Writer:
    folder: RunFolder
    asked: Matrix
    behaviours: Mapping[str, Behaviour]
    edit: Callable[[Request], Request]
    edit_snapshot: Callable[[Snapshot], Snapshot]
    edit_end: Callable[[RepetitionEnd], RepetitionEnd]
    boot_spread: float
    one_at_a_time: bool
    generator: random.Random
    now_ns: int = 1_000_000_000
    slowness: float = 1.0
    counters: Counters | None = None
    records: list[Record] = field(default_factory=list)  # written at the end: one fsync per file

    def session(self) -> None:
        machine = MachineFacts(
            hostname_hash="c0ffee",
            system="Linux 6.1 x86_64",
            cpu="Some CPU @ 2.4 GHz",
            num_cpus=2,
            memory_bytes=24 * 1024**3,
            accelerators=(),
            python="3.11.2",
            packages={"httpx": "0.28.1"},
        )
        self.records.append(
            Session(
                where=Where(run_id=self.folder.manifest.run_id, session_id="s1"),
                started_at="2026-11-29T12:00:00Z",
                commit="0123456789abcdef0123456789abcdef01234567",
                dirty=False,
                matrix_yaml="name: synthetic\n",
                plan_hash=self.folder.manifest.plan.plan_hash,
                machine=machine,
                device_key="d" * 12,
                client_lateness_s=0.0001,
            )
        )

    def boot(self, where: Where, variant: str) -> Boot:
        drafts = self.behaviours[variant].acceptance
        slots = 1 if self.one_at_a_time else 8
        return Boot(
            where=where,
            variant=variant,
            argv=("python", "-m", "engines.dflash2", "serve"),
            environment={},
            pid=1000,
            url="http://127.0.0.1:8000",
            started_at="2026-11-29T12:00:00Z",
            ready_s=2.5,
            version="0.1.0",
            health={
                "drafter": "dflash2" if drafts else "none",
                "depth": 7 if drafts else 0,
                "max_concurrent_requests": slots,
            },
            build="b" * 12,
            log_path=f"servers/{where.boot_id}/stderr.log",
            memory_peak_bytes=(420 if drafts else 380) * 1024**2,
        )

    def broken(self, where: Where, cells: Sequence[Cell], variant: str) -> None:
        message = "the server ended with code 1 before it was ready"
        boot = replace(self.boot(where, variant), ready_s=None, exit_code=1, error=message)
        self.records.append(boot)
        for cell in cells:
            end = replace(where, cell_id=cell.cell_id)
            self.records.append(CellEnd(where=end, outcome="unavailable", message=message))

    def block(self, where: Where, cells: Sequence[Cell], variant: str) -> None:
        self.slowness = self.generator.lognormvariate(0, self.boot_spread)
        drafts = bool(self.behaviours[variant].acceptance)
        self.counters = Counters(
            drafts=0,
            draft_tokens=0,
            accepted_tokens=0,
            accepted_at=(0,) * 7 if drafts else (),
            tested_tokens=0,
            trimmed_tokens=0,
            plain_steps=0,
            generation_tokens=0,
            prompt_tokens=0,
            requests=0,
            process_start_s=float(self.now_ns),
            labels=("demo",),
            draft_s=0.0,
            verify_s=0.0,
        )
        boot = self.boot(where, variant)
        self.records.append(boot)
        for cell in cells:
            self.cell(replace(where, cell_id=cell.cell_id), cell)
        self.records.append(replace(boot, stopped_at="2026-11-29T12:10:00Z", exit_code=0))

    def cell(self, where: Where, cell: Cell) -> None:
        session = Where(run_id=where.run_id, session_id=where.session_id, block_id=where.block_id)
        self.records.append(PlannedCell(where=session, cell=cell))
        for repetition in range(-1, cell.repetitions):
            self.repetition(replace(where, repetition=repetition), cell)
        self.records.append(CellEnd(where=where, outcome="finished", message=None))

    def repetition(self, where: Where, cell: Cell) -> None:
        """Workers take the next prompt as soon as they are free; a wave has as many as prompts."""
        assert where.repetition is not None
        prompts = requests_of(cell, self.asked.workloads[0].prompts, where.repetition)
        begin_ns = self.now_ns
        per_request = cell.load == "single"
        if not per_request:
            self.snapshot(where, "before")
        free_at = [begin_ns] * (1 if self.one_at_a_time else cell.concurrency)
        sent_at = [begin_ns] * cell.concurrency
        requests: list[Request] = []
        events: list[EventRow] = []
        ends: list[int] = []
        for index, prompt in enumerate(prompts):
            request_id = f"{where.cell_id}.{where.boot_id}.{where.repetition}.{index}"
            own = replace(where, request_id=request_id)
            if per_request:
                self.snapshot(own, "before")
            slot = min(range(len(free_at)), key=lambda at: free_at[at])
            worker = min(range(len(sent_at)), key=lambda at: sent_at[at])
            t0_ns = sent_at[worker]
            begins_ns = max(t0_ns, free_at[slot])
            request, row, end_ns = self.request(own, cell, prompt, index, t0_ns, begins_ns)
            free_at[slot] = sent_at[worker] = end_ns
            requests.append(self.edit(request))
            events.append(row)
            ends.append(end_ns)
            if per_request:
                self.snapshot(own, "after")
        if not per_request:
            self.snapshot(where, "after")
        if where.repetition >= 0 and cell.load != "wave":
            self.folder.write_events(cell.cell_id, str(where.boot_id), where.repetition, events)
        self.records.extend(requests)
        end = RepetitionEnd(
            where=where,
            started_at="2026-11-29T12:00:00Z",
            window_s=(max(ends) - begin_ns) / 1e9,
            num_requests=len(requests),
            num_failed=sum(request.status == "failed" for request in requests),
            in_flight_max=min(cell.concurrency, len(requests)),
            cpu_share=0.05,
            loop_lag_max_s=0.001,
        )
        self.records.append(self.edit_end(end))
        self.now_ns = max(ends) + 5 * MS

    def request(
        self, where: Where, cell: Cell, prompt: Prompt, index: int, t0_ns: int, begins_ns: int
    ) -> tuple[Request, EventRow, int]:
        behaviour = self.behaviours[cell.variant]
        streams = 1 if self.one_at_a_time else cell.concurrency
        step_ms = behaviour.draft_ms + behaviour.verify_ms
        step_ms += behaviour.per_stream_ms * (streams - 1)
        step_ms *= self.slowness * self.generator.lognormvariate(0, 0.003)
        at_ns = begins_ns + round(20 * MS * self.slowness)
        length = cell.max_tokens - 40 - 8 * KINDS.index(prompt.kind) if prompt.kind in KINDS else 96
        # greedy decoding: the same prompt takes the same rounds in every repetition and boot
        luck = random.Random(f"{cell.variant} {prompt.prompt_id}")
        emitted = self.rounds(behaviour.acceptance.get(prompt.kind), length, step_ms, luck)
        offsets = [at_ns - t0_ns]
        for _ in emitted[1:]:
            at_ns += round(step_ms * MS)
            offsets.append(at_ns - t0_ns)
        wall_ns = at_ns - t0_ns + MS // 10
        request = Request(
            where=where,
            prompt_id=prompt.prompt_id,
            kind=prompt.kind,
            index=index,
            started_at="2026-11-29T12:00:00Z",
            t0_ns=t0_ns,
            send_lateness_s=0.00005,
            connect_s=None,
            status="ok",
            error=None,
            http_status=200,
            ttfr_s=offsets[0] / 1e9,
            ttft_s=offsets[0] / 1e9,
            ttfa_s=offsets[0] / 1e9,
            t_last_s=offsets[-1] / 1e9,
            wall_s=wall_ns / 1e9,
            output_tokens=length,
            output_tokens_source="usage",
            first_tokens=1,
            first_tokens_source="usage",
            prompt_tokens=30,
            cached_tokens=0,
            num_output_events=len(emitted),
            num_reads=len(emitted),
            finish_reason="stop",
            distinct_4gram_share=0.9,
            text_sha256=prompt.prompt_id,
            engine_timings=None,
        )
        row = EventRow(
            request_id=str(where.request_id),
            offset_ns=tuple(offsets),
            tokens=tuple(emitted),
            text=f"the answer to {prompt.prompt_id}",
            token_ids=tuple(range(length)),
        )
        return request, row, t0_ns + wall_ns

    def rounds(
        self, chance: float | None, length: int, step_ms: float, luck: random.Random
    ) -> list[int]:
        """Tokens per event; the counters gain what the rounds did."""
        assert self.counters is not None
        emitted, left, before = [1], length - 1, self.counters
        at = list(before.accepted_at or ())
        drafts = accepted = trimmed = steps = 0
        while left > 0:
            taken = 0
            if chance is None:
                steps += 1
            else:
                while taken < 7 and luck.random() < chance:
                    at[taken] += 1
                    taken += 1
                drafts, accepted = drafts + 1, accepted + taken
            trimmed += max(0, taken + 1 - left)
            emitted.append(min(taken + 1, left))
            left -= emitted[-1]
        self.counters = replace(
            before,
            drafts=(before.drafts or 0) + drafts,
            draft_tokens=(before.draft_tokens or 0) + 7 * drafts,
            accepted_tokens=(before.accepted_tokens or 0) + accepted,
            accepted_at=tuple(at),
            trimmed_tokens=(before.trimmed_tokens or 0) + trimmed,
            plain_steps=(before.plain_steps or 0) + steps,
            generation_tokens=(before.generation_tokens or 0) + length,
            prompt_tokens=(before.prompt_tokens or 0) + 30,
            requests=(before.requests or 0) + 1,
            draft_s=(before.draft_s or 0) + drafts * step_ms * 0.24 / 1e3,
            verify_s=(before.verify_s or 0) + drafts * step_ms * 0.72 / 1e3,
        )
        return emitted

    def snapshot(self, where: Where, moment: str) -> None:
        snapshot = Snapshot(
            where=where,
            scope="request" if where.request_id else "repetition",
            moment=moment,  # type: ignore[arg-type]
            at_ns=self.now_ns,
            quiet=True,
            settle_s=0.001,
            counters=self.counters,
            error=None,
        )
        self.records.append(self.edit_snapshot(snapshot))
