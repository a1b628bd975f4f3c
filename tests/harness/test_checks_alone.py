"""Every check has facts that it fires on while all others are silent: none hides behind another."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from harness import checks
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.records import (
    AcceleratorSample,
    Container,
    LikelyToken,
    MachineSample,
    Request,
    RequestError,
    Snapshot,
)

from . import synthetic

Views: TypeAlias = Mapping[str, CellView]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Views:
    """Of a good run: three repetitions in two boots, one at a time and in waves of two."""
    folder = synthetic.write_run(
        tmp_path_factory.mktemp("results"), synthetic.matrix(levels=(2,), boots=2)
    )
    return {f"{v.cell.variant} {v.cell.load}": v for v in dataset.load(folder).views}


def drafted(views: Views) -> CellView:
    return views["DFlash2 single"]


def plain(views: Views) -> CellView:
    return views["plain single"]


def wave(views: Views) -> CellView:
    return views["plain wave"]


# --- facts that are changed -----------------------------------------------------------------------


def cell(view: CellView, **changes: Any) -> CellView:
    return replace(view, cell=replace(view.cell, **changes))


def requests(view: CellView, **changes: Any) -> CellView:
    return each_request(view, lambda request: replace(request, **changes))


def each_request(view: CellView, edit: Callable[[Request], Request]) -> CellView:
    return replace(view, requests=tuple(map(edit, view.requests)))


def flagged(flag: str) -> Callable[[Views], CellView]:
    return lambda views: requests(drafted(views), flags=(flag,))


def reference(view: CellView, edit: Callable[[CellView], CellView]) -> CellView:
    assert view.reference is not None
    return replace(view, reference=edit(view.reference))


def ends(view: CellView, **changes: Any) -> CellView:
    return replace(view, ends=tuple(replace(end, **changes) for end in view.ends))


def boots(view: CellView, **changes: Any) -> CellView:
    return replace(view, boots=tuple(replace(boot, **changes) for boot in view.boots))


def told(view: CellView, **facts: Any) -> CellView:
    """What the engine says of itself, beside what it said."""
    return replace(
        view,
        boots=tuple(replace(boot, health={**(boot.health or {}), **facts}) for boot in view.boots),
    )


def asked(view: CellView, **settings: Any) -> CellView:
    """Settings that the reference had, too."""
    asked_alone = boots(view, wanted=settings)
    return reference(asked_alone, lambda other: boots(other, wanted=settings))


def counted(view: CellView, **readings: tuple[Any, Any]) -> CellView:
    """Name = (before, after) of every scope."""

    def edit(snapshot: Snapshot) -> Snapshot:
        assert snapshot.counters is not None
        at = 0 if snapshot.moment == "before" else 1
        changes = {name: pair[at] for name, pair in readings.items()}
        return replace(snapshot, counters=replace(snapshot.counters, **changes))

    return replace(view, snapshots=tuple(map(edit, view.snapshots)))


def gained(view: CellView, name: str, count: int) -> CellView:
    """So many more in every scope."""

    def edit(snapshot: Snapshot) -> Snapshot:
        assert snapshot.counters is not None
        more = count if snapshot.moment == "after" else 0
        value = getattr(snapshot.counters, name) + more
        return replace(snapshot, counters=replace(snapshot.counters, **{name: value}))

    return replace(view, snapshots=tuple(map(edit, view.snapshots)))


def rounds(view: CellView, drafts: int, accepted_at: tuple[int, ...]) -> CellView:
    """What the drafter did in every scope, by an engine that counts no plain steps."""
    none = (0,) * len(accepted_at)
    return counted(
        view,
        drafts=(0, drafts),
        draft_tokens=(0, 7 * drafts),
        accepted_tokens=(0, sum(accepted_at)),
        accepted_at=(none, accepted_at),
        plain_steps=(None, None),
    )


def files(view: CellView, **of_models: Mapping[str, Any]) -> CellView:
    """`target` and `drafter`: what is known of their files."""
    names = {"target": view.cell.target, "drafter": view.cell.drafter_model}
    models = {
        str(names[part]): {"path": f"models/{part}", "hash": "d" * 12, **known}
        for part, known in of_models.items()
    }
    return replace(view, models=models)


TARGET = {"hidden_size": 320, "vocab_size": 2048, "num_hidden_layers": 10}
DRAFTER = {"architectures": ["DFlash2DraftModel"], "dflash_config": {"block_size": 8}}


def timed(view: CellView, wall_s: Callable[[Request], float]) -> CellView:
    return each_request(view, lambda request: replace(request, wall_s=wall_s(request)))


def last_boot_longer(view: CellView) -> CellView:
    last = view.boot_ids[-1]
    return timed(view, lambda request: 1.1 if request.where.boot_id == last else 1.0)


def one_repetition_failed(view: CellView) -> CellView:
    """Of every prompt as many, so that the mix stays even."""
    error = RequestError(kind="timeout", message="nothing came for 30 s")

    def edit(request: Request) -> Request:
        if request.where.repetition != 0:
            return request
        return replace(request, status="failed", error=error, wall_s=None, output_tokens=None)

    return each_request(view, edit)


def one_more(view: CellView) -> CellView:
    """A request of one prompt beside the even mix."""
    first, end = view.requests[0], view.ends[0]
    assert replace(first.where, request_id=None) == end.where
    longer = replace(end, num_requests=end.num_requests + 1)
    return replace(
        view, requests=(*view.requests, first), ends=(longer, *view.ends[1:]), snapshots=()
    )


def cold_first_request(view: CellView) -> CellView:
    first = view.requests[0]
    return timed(view, lambda request: 1.6 if request == first else 1.0)


def second_session(view: CellView) -> CellView:
    return replace(
        view,
        boots=tuple(
            replace(boot, where=replace(boot.where, session_id="s2")) for boot in view.boots
        ),
    )


def slowed_by_heat(view: CellView) -> CellView:
    accelerator = AcceleratorSample(
        clock_mhz=900.0,
        power_w=300.0,
        temperature_c=94.0,
        memory_used_bytes=None,
        slowed_by=("temperature (hardware)",),
    )
    second = MachineSample(
        where=view.boots[0].where,
        at="2026-11-29T12:00:01Z",
        host_cpu_share=0.1,
        memory_available_bytes=None,
        client_rss_bytes=None,
        engine_rss_bytes=None,
        accelerators=(accelerator,),
    )
    return replace(view, machine=(second,))


def above_the_roof(view: CellView) -> CellView:
    """A step reads 1 GB; a token in 11 ms makes 91 GB/s, of 10."""
    weights = {"bytes": {"layers": 10**9}, "head": {}}
    read = files(view, target={"config": TARGET, "weights": weights})
    return replace(read, device={"memory_bandwidth_GBps": 10.0})


def on_patched_vllm(view: CellView) -> CellView:
    """0.27.1 with DFlash 2 laid over it, and a target whose head is quantised."""
    container = Container(
        program="docker",
        name="vllm",
        image="vllm@sha256:" + "1" * 64,
        image_id="sha256:" + "1" * 64,
        repo_digests=(),
        options=(),
        mounts={},
        overlaid={"/vllm/config/speculative.py": "2" * 64},
    )
    on_vllm = boots(view, version="0.27.1", container=container, health={"runner": "V2"})
    head = {"lm_head.weight": "U8", "lm_head.weight_scale": "F8_E4M3"}
    return files(
        cell(on_vllm, adapter="vllm", drafter="dflash"),
        target={"config": TARGET, "weights": {"bytes": {}, "head": head}},
        drafter={"config": DRAFTER},
    )


def other_template(view: CellView) -> CellView:
    named = reference(view, lambda other: cell(other, target="demo-gguf"))
    models = {
        view.cell.target: {"path": "a", "template": {"sha256": "1" * 64, "can_think": False}},
        "demo-gguf": {"path": "b", "template": {"sha256": "2" * 64, "can_think": False}},
    }
    return reference(replace(named, models=models), lambda other: replace(other, models=models))


def lost_tail(view: CellView) -> CellView:
    """The engine's counters tell of a request that is no longer there."""
    return replace(view, requests=view.requests[:-1])


def rendered_by_two_templates(view: CellView) -> CellView:
    """Alike in all boots, and one prompt of another hash for the reference."""
    alike = dict.fromkeys(view.prompt_kinds, "1" * 64)
    other = {**alike, next(iter(alike)): "2" * 64}
    ours = boots(view, rendered={view.cell.prompt_set: alike})
    return reference(ours, lambda its: boots(its, rendered={view.cell.prompt_set: other}))


def accepted_too_much(view: CellView) -> CellView:
    """Of one output the token is less likely than the target's own by 2 nats."""
    (own, *others), reference = view.requests, view.reference
    assert reference is not None
    (first, *_) = (each for each in reference.requests if each.prompt_id == own.prompt_id)
    odds = [
        LikelyToken(token_id=synthetic.REFERENCE_TOKEN, logprob=-0.2),
        LikelyToken(token_id=synthetic.OWN_TOKEN, logprob=-2.2),
    ]
    told = synthetic.rescore(own, first, odds)
    return replace(
        view,
        requests=(replace(own, text_sha256="another"), *others),
        rescores={str(own.where.request_id): told},
    )


def without_its_head(view: CellView) -> CellView:
    by_mtp = told(cell(view, drafter="mtp", drafter_model=None), drafter="mtp")
    return files(by_mtp, target={"config": TARGET})


ALONE: Mapping[str, Callable[[Views], CellView]] = {
    "available": lambda views: replace(drafted(views), unfinished=("block b4: it died.",)),
    "records_whole": lambda views: lost_tail(drafted(views)),
    "speculation_active": lambda views: rounds(drafted(views), 0, (0,) * 7),
    "all_rejected": lambda views: rounds(drafted(views), 20, (0,) * 7),
    "al_within_k_plus_1": lambda views: counted(
        cell(drafted(views), k=1), draft_tokens=(None, None)
    ),
    "drafted_depth": lambda views: cell(drafted(views), k=8),
    "draft_coverage": lambda views: gained(
        gained(drafted(views), "plain_steps", 1000), "trimmed_tokens", 1000
    ),
    "saturated": lambda views: rounds(drafted(views), 10, (10,) * 7),
    "token_identity": lambda views: gained(plain(views), "plain_steps", 1),
    "positions_add_up": lambda views: counted(
        drafted(views), accepted_at=((0,) * 7, (1, *(0,) * 6))
    ),
    "counter_reset": lambda views: counted(plain(views), process_start_s=(1.0, 2.0)),
    "counter_foreign_label": lambda views: counted(
        plain(views), labels=(("demo",), ("demo", "other"))
    ),
    "foreign_traffic": lambda views: gained(plain(views), "requests", 1),
    "failed_share": lambda views: one_repetition_failed(drafted(views)),
    "lengths_equal": lambda views: reference(
        drafted(views), lambda other: requests(other, output_tokens=100)
    ),
    "prompt_rendered_equal": lambda views: reference(
        drafted(views), lambda other: requests(other, prompt_tokens=31)
    ),
    "template_equal": lambda views: other_template(drafted(views)),
    "rendered_alike": lambda views: rendered_by_two_templates(drafted(views)),
    "lossless": lambda views: accepted_too_much(drafted(views)),
    "loops": lambda views: requests(drafted(views), distinct_4gram_share=0.2),
    "short_outputs": lambda views: requests(replace(plain(views), snapshots=()), output_tokens=63),
    "buffered_stream": flagged("buffered_stream"),
    "impossible_rate": lambda views: cell(drafted(views), rate_ceiling_tok_per_s=1.0),
    "unterminated_final_event": flagged("unterminated_final_event"),
    "possible_cap": flagged("possible_cap"),
    "over_cap": flagged("over_cap"),
    "after_failure": flagged("after_failure"),
    "reconnected": flagged("reconnected"),
    "cache_state": lambda views: requests(drafted(views), cached_tokens=29),
    "balanced_mix": lambda views: one_more(wave(views)),
    "in_flight_is_c": lambda views: ends(wave(views), in_flight_max=1),
    "warmed_up": lambda views: replace(drafted(views), warmups=()),
    "client_late": lambda views: requests(drafted(views), send_lateness_s=1.0),
    "client_busy": lambda views: ends(drafted(views), cpu_share=0.9),
    "speculator_kind": lambda views: told(drafted(views), drafter="dflash"),
    "checkpoint_complete": lambda views: files(
        drafted(views),
        target={"config": TARGET, "weights": {"bytes": {}, "missing": ["model.safetensors"]}},
    ),
    "checkpoint_format": lambda views: files(
        drafted(views), target={"config": {"format": "gguf", **TARGET}}
    ),
    "drafter_known": lambda views: told(cell(drafted(views), drafter="medusa"), drafter=None),
    "mtp_head": lambda views: without_its_head(drafted(views)),
    "drafter_geometry": lambda views: files(
        drafted(views),
        target={"config": TARGET},
        drafter={"config": {**DRAFTER, "hidden_size": 512}},
    ),
    "drafter_differs": lambda views: files(
        drafted(views), drafter={"config": DRAFTER, "published": "somebody/else"}
    ),
    "lm_head_plain": lambda views: on_patched_vllm(drafted(views)),
    "k_le_block": lambda views: told(drafted(views), block=6),
    "synthetic_acceptance": lambda views: boots(drafted(views), wanted={"spec_synth_len": 4}),
    "flags_diff": lambda views: told(asked(drafted(views), kv_len=4096), kv_len=2048),
    "confounded": lambda views: boots(drafted(views), environment={"OMP_NUM_THREADS": "1"}),
    "unequal_depth": lambda views: reference(drafted(views), lambda other: cell(other, k=3)),
    "build_known": lambda views: boots(drafted(views), version=None),
    "slots_ge_c": lambda views: told(wave(views), max_concurrent_requests=1),
    "context_asked": lambda views: asked(drafted(views), kv_len=192),
    "kv_fits": lambda views: told(drafted(views), kv_tokens=221),
    "preemptions": lambda views: counted(drafted(views), preemptions=(0, 1)),
    "context_fits": lambda views: requests(drafted(views), finish_reason="length"),
    "thinking_off": lambda views: requests(
        cell(drafted(views), sampling=replace(drafted(views).cell.sampling, thinking=False)),
        ttfa_s=None,
    ),
    "thinking_said": lambda views: files(
        drafted(views), target={"template": {"sha256": "1" * 64, "can_think": True}}
    ),
    "cold_in_measured": lambda views: cold_first_request(drafted(views)),
    "scatter": lambda views: timed(
        drafted(views), lambda request: 1.0 + 0.06 * (request.where.repetition or 0)
    ),
    "suspended": lambda views: ends(drafted(views), suspended_s=30.0),
    "throttled": lambda views: slowed_by_heat(drafted(views)),
    "roof": lambda views: above_the_roof(plain(views)),
    "drift": lambda views: last_boot_longer(drafted(views)),
    "control": lambda views: replace(drafted(views), controls=(last_boot_longer(plain(views)),)),
    "within_one_boot": lambda views: drafted(views).of_boot(drafted(views).boot_ids[0]),
    "split_session": lambda views: second_session(drafted(views)),
}


@pytest.mark.parametrize("check", checks.CHECKS)
def test_a_check_fires_alone_on_the_facts_that_are_its_own(views: Views, check: str) -> None:
    found = {verdict.check for verdict in checks.judge(ALONE[check](views)) if verdict.message}

    assert found == {check}


def test_every_check_has_facts_and_no_facts_are_of_a_check_that_is_gone() -> None:
    assert set(ALONE) == set(checks.CHECKS)


def test_no_check_fires_on_the_run_that_all_of_these_are_made_of(views: Views) -> None:
    assert not [
        verdict for view in views.values() for verdict in checks.judge(view) if verdict.message
    ]
