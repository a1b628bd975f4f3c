"""A night's course: what it is held against, when it joins the baseline, and who is told."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import cli
from harness.compare import baselines
from harness.compare.rules import NIGHTS_NEEDED, Rules
from harness.errors import ResultsError
from harness.nightly import Outcome, call_hook, follow, make_room, nightly
from harness.records import Request
from harness.run import commands
from harness.store import RunFolder
from tests.harness import synthetic
from tests.harness.cases.from_records import timed_out


class Machine:
    """Measures a small matrix in no time; `number` is the night, and its luck."""

    def __init__(self, path: Path) -> None:
        self.results = path / "results"
        self.reports = path / "reports"
        self.number = 0

    def measure(
        self,
        slowness: float = 1.0,
        edit: Callable[[Request], Request] = lambda request: request,
    ) -> RunFolder:
        self.number += 1
        plain = synthetic.Behaviour(draft_ms=0.0, verify_ms=11.0 * slowness, per_stream_ms=1.0)
        return synthetic.write_run(
            self.results / f"night-{self.number}",
            synthetic.matrix(boots=2, levels=(), drafters=(), repetitions=1),
            behaviours={"plain": plain},
            edit=edit,
            seed=self.number,
            run_id=f"202611{self.number:02}-020000-nightly",
        )

    def report(self, folder: RunFolder, *_: object) -> Path:
        """A page that took no time either."""
        page = self.reports / folder.manifest.run_id / "RESULTS.md"
        page.parent.mkdir(parents=True)
        page.write_text("how it went\n")
        return page

    def night(self, measure: Callable[[], RunFolder], *, fill: bool = True) -> Outcome:
        return nightly(
            measure,
            self.report,
            baseline="main",
            results_dir=self.results,
            rules=Rules(),
            fill=fill,
            by="nightly",
        )

    def num_stored(self) -> int:
        if "main" not in baselines.names(self.results):
            return 0
        return len(baselines.load(self.results, "main").members)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_first_night_has_nothing_to_be_held_against_and_is_no_success(
    machine: Machine,
) -> None:
    outcome = machine.night(machine.measure)

    assert outcome.exit_code == 3
    assert outcome.headline == "not comparable: there was no baseline yet"
    assert outcome.kept_as == "main"
    assert outcome.report.is_file()


def test_a_baseline_fills_up_to_five_nights_and_no_further(machine: Machine) -> None:
    outcomes = [machine.night(machine.measure) for _ in range(NIGHTS_NEEDED + 2)]

    assert machine.num_stored() == NIGHTS_NEEDED
    assert [outcome.kept_as for outcome in outcomes] == ["main"] * NIGHTS_NEEDED + [None, None]
    assert outcomes[-1].comparison is not None
    assert len(outcomes[-1].comparison.nights) == NIGHTS_NEEDED
    assert outcomes[-1].exit_code == 0


def test_a_night_that_regressed_does_not_join(machine: Machine) -> None:
    machine.night(machine.measure)
    outcome = machine.night(lambda: machine.measure(slowness=2.0))

    assert outcome.exit_code == 1
    assert outcome.kept_as is None
    assert machine.num_stored() == 1


def test_an_invalid_night_does_not_join(machine: Machine) -> None:
    def half_fail(request: Request) -> Request:
        return timed_out(request) if request.index % 2 else request

    outcome = machine.night(lambda: machine.measure(edit=half_fail))

    assert outcome.exit_code == 3
    assert machine.num_stored() == 0


def test_a_baseline_that_cannot_be_read_is_told_before_the_night_is_measured(
    machine: Machine,
) -> None:
    machine.night(machine.measure)
    (stored,) = (machine.results / "baselines" / "main").glob("*.json")
    stored.write_bytes(stored.read_bytes()[:200])

    with pytest.raises(ResultsError, match="restore it, or set the baseline again"):
        machine.night(lambda: pytest.fail("measured"))


def test_without_being_asked_nothing_joins(machine: Machine) -> None:
    machine.night(machine.measure, fill=False)

    assert machine.num_stored() == 0


def test_a_step_is_told_in_the_night_that_makes_it_certain_and_remembered(
    machine: Machine,
) -> None:
    """Seven nights, then each step takes a fifth longer; no baseline looks on."""
    for _ in range(7):
        assert machine.night(machine.measure, fill=False).steps == ()
    first, second, third = (
        machine.night(lambda: machine.measure(slowness=1.2), fill=False) for _ in range(3)
    )

    assert first.steps == ()
    (step,) = second.new_steps
    assert (step.variant, step.metric, step.run_id) == ("plain", "decode_rate", first.run_id)
    assert step.change == pytest.approx(1 / 1.2 - 1, abs=0.02)
    assert "step: plain, generate, decode rate: -1" in second.headline
    assert third.steps == second.steps
    assert third.new_steps == ()


# --- what follows ---------------------------------------------------------------------------------


def test_a_step_that_fails_is_told_and_ends_what_follows(machine: Machine) -> None:
    """What could not be published must not be removed."""
    machine.night(machine.measure)
    outcome = machine.night(machine.measure)
    assert outcome.exit_code in (0, 2)
    done: list[str] = []

    def fail(_: Outcome) -> None:
        raise ResultsError("site: no room")

    followed = follow(
        outcome,
        ("first", lambda _: done.append("first")),
        ("publishing", fail),
        ("retention", lambda _: done.append("retention")),
    )

    assert done == ["first"]
    assert followed.failures == ("publishing failed: site: no room",)
    assert followed.headline.endswith("publishing failed: site: no room")
    assert followed.exit_code == (outcome.exit_code or 3)
    assert followed.is_news


def test_old_nights_make_room_and_those_of_the_baseline_stay(machine: Machine) -> None:
    """Seven nights, of which the first five are the baseline; then two more, and one is kept."""
    for _ in range(NIGHTS_NEEDED + 2):
        outcome = machine.night(machine.measure)
    for folder in sorted(machine.results.glob("night-*/2026*")):
        folder.rename(machine.results / folder.name)

    make_room(outcome, results_dir=machine.results, reports_dir=machine.reports, keep=1)

    kept = sorted(path.name[6:8] for path in machine.results.glob("2026*"))
    assert kept == ["01", "02", "03", "04", "05", "07"]


def test_a_night_is_published_and_old_ones_make_room_from_the_command_line(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[Path] = []
    monkeypatch.setattr("harness.publish.site.publish", lambda site, **_: published.append(site))
    monkeypatch.setattr(commands, "run_matrix", lambda *_, **__: machine.measure())
    monkeypatch.setattr("harness.report.build.build", machine.report)
    site = tmp_path / "site"

    assert from_the_command_line(machine, "--publish", str(site), "--keep-raw", "30") == 3
    assert published == [site]
    assert from_the_command_line(machine, "--keep-raw", "none") == 4


# --- who is told ----------------------------------------------------------------------------------


def test_the_hook_gets_the_comparison_and_the_headline(machine: Machine, tmp_path: Path) -> None:
    machine.night(machine.measure)
    outcome = machine.night(lambda: machine.measure(slowness=2.0))
    told = tmp_path / "told"

    assert call_hook(f'(echo "$DFLASHBENCH_EXIT_CODE"; cat) > {told}', outcome) is None

    first, _, rest = told.read_text(encoding="utf-8").partition("\n")
    assert first == "1"
    assert json.loads(rest)["word"] == "regressed"


def test_a_hook_that_fails_is_told(machine: Machine) -> None:
    assert call_hook("exit 7", machine.night(machine.measure)) == "ended with 7"


def from_the_command_line(machine: Machine, *arguments: str) -> int:
    return cli.main(
        [
            *("nightly", "configs/matrices/quickstart.yaml", "--baseline", "main"),
            *("--results", str(machine.results), "--reports", str(machine.reports)),
            *arguments,
        ]
    )


@pytest.fixture
def _measured_in_no_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "run_matrix", lambda *_, **__: machine.measure())
    monkeypatch.setattr("harness.report.build.build", machine.report)


@pytest.mark.usefixtures("_measured_in_no_time")
def test_nights_from_the_command_line(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    hook = ("--notify", f'echo "$DFLASHBENCH_HEADLINE" >> {told}')

    assert from_the_command_line(machine, "--fill-baseline", *hook) == 3
    assert from_the_command_line(machine, "--fill-baseline", *hook) in (0, 2)
    out = capsys.readouterr().out
    assert out.count("the night is part of baseline main now") == 2
    assert "against baseline main, 1 night" in out
    assert told.read_text().startswith("not comparable: there was no baseline yet\n")


@pytest.mark.usefixtures("_measured_in_no_time")
def test_what_was_asked_wrongly_is_refused_before_anything_is_measured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("precious")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    assert from_the_command_line(machine, "--threshold", "110%") == 4
    assert from_the_command_line(machine, "--step-summary") == 4
    assert from_the_command_line(machine, "--publish", str(tmp_path / "taken")) == 4
    assert machine.number == 0


def test_a_night_that_could_not_be_had_is_told_too(machine: Machine, tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = cli.main(
        [
            *("nightly", str(tmp_path / "nowhere.yaml"), "--baseline", "main"),
            *("--results", str(machine.results), "--reports", str(machine.reports)),
            *("--notify", f'echo "$DFLASHBENCH_EXIT_CODE $DFLASHBENCH_HEADLINE" > {told}'),
        ]
    )

    assert code == 4
    assert told.read_text().startswith("4 no night: ")
    assert "nowhere.yaml" in told.read_text()
