"""Which blocks go together, by hand."""

from harness.cluster.placement import Part, fits, parts_of
from harness.plan import make_plan
from harness.records import (
    Drafter,
    Engine,
    Matrix,
    Model,
    Prompt,
    PromptSet,
    Sampling,
    Schedule,
    Variant,
    Workload,
)

PROMPT = Prompt(prompt_id="p1", kind="prose", messages=(), source="", licence="")
WORKLOAD = Workload(
    kind="generate",
    prompts=PromptSet(name="one", prompts=(PROMPT,), sha256="1"),
    warmup=None,
    repetitions=1,
    max_tokens=8,
)
TARGET = Model(name="demo", path="demo")


def engine(**resources: float) -> Engine:
    return Engine(
        name="dflash2", adapter="dflash2", kind="process", command=("serve",), resources=resources
    )


def variants(engine: Engine, suffix: str = "") -> tuple[Variant, ...]:
    drafter = Drafter(method="dflash2", k=7)
    return (
        Variant(name=f"A{suffix}", engine=engine, target=TARGET),
        Variant(name=f"B{suffix}", engine=engine, target=TARGET, drafter=drafter),
    )


def parts(*rows: Variant, boots: int, order: str = "abba") -> list[tuple[str, str]]:
    """Each part's resources and the variants of its blocks, in running order."""
    matrix = Matrix(
        name="m",
        path="m.yaml",
        purpose="measurement",
        variants=rows,
        workloads=(WORKLOAD,),
        sampling=Sampling(),
        schedule=Schedule(order=order, boots=boots),  # type: ignore[arg-type]
    )
    found = parts_of(matrix, make_plan(matrix))
    return [
        (
            " ".join(f"{name}={amount:g}" for name, amount in part.resources),
            " ".join(block.variant for block in part.blocks),
        )
        for part in found
    ]


def test_a_there_and_back_stays_on_one_machine_and_the_next_may_go_to_another() -> None:
    box = engine(box=1)
    assert parts(*variants(box), boots=2) == [("box=1", "A B B A")]
    assert parts(*variants(box), boots=4) == [("box=1", "A B B A"), ("box=1", "A B B A")]


def test_in_listed_order_every_round_of_boots_is_a_part() -> None:
    box = engine(box=1)
    assert parts(*variants(box), boots=3, order="listed") == [("box=1", "A B")] * 3


def test_variants_of_other_resources_are_parts_of_their_own() -> None:
    rows = (*variants(engine(gb10=1)), *variants(engine(h200=2), " there"))
    assert parts(*rows, boots=2) == [
        ("gb10=1", "A B B A"),
        ("h200=2", "A there B there B there A there"),
    ]


def test_servers_that_run_already_are_asked_by_one_machine() -> None:
    server = Engine(name="vllm", adapter="vllm", kind="attach", url="http://10.0.0.1:8000")
    ((resources, order),) = parts(*variants(server), boots=2)
    assert resources == ""
    assert sorted(set(order.split())) == ["A", "B"]


def test_a_machine_fits_that_offers_enough_of_everything() -> None:
    part = Part(part_id="p1", resources=(("gb10", 1.0), ("licence", 2.0)), blocks=())
    assert fits(part, {"gb10": 1.0, "licence": 4.0, "CPU": 8.0})
    assert not fits(part, {"gb10": 1.0, "licence": 1.0})
    assert not fits(part, {"CPU": 8.0})
    assert fits(Part(part_id="p2", resources=(), blocks=()), {})
