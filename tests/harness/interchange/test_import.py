"""What other tools wrote, as they write it: which figures are taken, in which units, and none else.

The files are made by hand after each tool's own writer; the numbers are chosen to be read off.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness import cli
from harness.cli.import_ import NAMES
from harness.errors import ConfigError, ResultsError, UsageError
from harness.interchange import document, tools
from harness.interchange.document import Imported, ImportedRow

VLLM = {
    "date": "20261129-020000",
    "endpoint_type": "openai-chat",
    "backend": "openai-chat",
    "model_id": "qwen3.8-27b",
    "num_prompts": 40,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "duration": 10.0,
    "completed": 39,
    "failed": 1,
    "total_input_tokens": 4000,
    "total_output_tokens": 5000,
    "request_throughput": 3.9,
    "output_throughput": 500.0,
    "mean_ttft_ms": 120.0,
    "median_ttft_ms": 100.0,
    "p99_ttft_ms": 400.0,
    "mean_tpot_ms": 8.0,
    "median_itl_ms": 20.0,
    "spec_decode_acceptance_rate": 60.0,
    "spec_decode_acceptance_length": 2.8,
}


def read(tool: str, path: Path, *found: object, name: str = "result.json") -> Imported:
    """The objects as one file, a line each, through the command's own door."""
    (path / name).write_text("\n".join(json.dumps(item) for item in found), encoding="utf-8")
    return tools.read_files(
        tool, [path / name], column_map=None, imported_at="2026-11-30T00:00:00Z"
    )


def figures(row: ImportedRow) -> Mapping[str, tuple[float, str, str | None]]:
    return {item.name: (item.value, item.unit, item.like) for item in row.figures}


def test_the_command_line_names_every_reader() -> None:
    assert (*tools.TOOLS, tools.CSV) == NAMES


# --- a tool each ----------------------------------------------------------------------------------


def test_vllm_bench_serve(tmp_path: Path) -> None:
    (row,) = read("vllm-bench-serve", tmp_path, VLLM).rows

    assert (row.subject, row.concurrency, row.num_requests, row.num_failed) == (
        *("qwen3.8-27b", 4, 39, 1),
    )
    told = figures(row)
    assert told["output_throughput"] == (500.0, "tok/s", "aggregate_throughput")
    assert told["median_ttft_ms"] == (pytest.approx(0.1), "s", "ttft_p50")
    assert told["median_itl_ms"] == (pytest.approx(0.02), "s", None)  # a step is no token
    assert told["spec_decode_acceptance_rate"] == (pytest.approx(0.6), "1", "acceptance_rate")
    assert "median_tpot_ms" not in told  # the file has none


def test_vllm_appends_a_line_for_each_run(tmp_path: Path) -> None:
    found = read("vllm-bench-serve", tmp_path, VLLM, {**VLLM, "max_concurrency": 8})

    assert [row.concurrency for row in found.rows] == [4, 8]
    assert len({row.protocol_id for row in found.rows}) == 2


def test_a_sweep_is_read_once_without_its_summaries_and_warm_ups(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "SERVE--max-num-seqs=8-BENCH--max_concurrency=4"
    folder.mkdir(parents=True)
    for name, told in (
        ("run=0", VLLM),
        ("run=1", {**VLLM, "output_throughput": 510.0}),
        ("warmup", VLLM),
    ):
        (folder / f"{name}.json").write_text(json.dumps(told))
    (folder / "summary.json").write_text(json.dumps([VLLM, VLLM]))

    found = tools.read_files(
        "vllm-bench-sweep", [tmp_path / "sweep"], column_map=None, imported_at=""
    )

    assert [figures(row)["output_throughput"][0] for row in found.rows] == [500.0, 510.0]
    assert found.rows[0].work.endswith("SERVE--max-num-seqs=8-BENCH--max_concurrency=4/run=0")


def test_llama_bench(tmp_path: Path) -> None:
    told = {"build_number": 11434, "model_type": "qwen3 27B Q8_0", "samples_ts": [1.0, 2.0, 3.0]}
    found = read(
        "llama-bench",
        tmp_path,
        {**told, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 900.0},
        {**told, "n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 17.5},
    )

    assert found.tool_version == "b11434"
    prompt, generated = found.rows
    assert (prompt.work, figures(prompt)) == ("pp512", {"pp": (900.0, "tok/s", "prefill_rate")})
    assert (generated.work, figures(generated)) == (
        "tg128 @ d4096",
        {"tg": (17.5, "tok/s", "decode_rate")},
    )
    assert generated.num_requests == 3


def test_llama_benchy(tmp_path: Path) -> None:
    run = {"concurrency": 4, "prompt_size": 512, "response_size": 128, "context_size": 0}
    report = {
        "version": "0.4.0",
        "model": "qwen3.8-27b",
        "latency_mode": "api",
        "prefix_caching_enabled": False,
        "benchmarks": [
            {
                **run,
                "tg_req_throughput": {"mean": 25.0, "std": 1.0, "values": [24.0, 26.0]},
                "e2e_ttft": {"mean": 80.0, "std": 1.0, "values": [80.0]},
                "pp_throughput": None,
            }
        ],
    }
    found = read("llama-benchy", tmp_path, report)

    (row,) = found.rows
    assert (found.tool_version, row.work, row.concurrency) == ("0.4.0", "pp512 tg128", 4)
    assert figures(row) == {
        "tg_req_throughput": (25.0, "tok/s", "decode_rate_strict"),
        "e2e_ttft": (pytest.approx(0.08), "s", "ttft_p50"),
    }


def told_by(tool: str, version: int) -> Mapping[str, object]:
    """The least that a reader takes as its tool's file."""
    return {
        "llama-bench": {"build_number": version, "n_prompt": 512, "avg_ts": 900.0},
        "llama-benchy": {"version": str(version), "benchmarks": []},
        "guidellm": {"metadata": {"guidellm_version": str(version)}, "benchmarks": []},
        "aiperf": {"aiperf_version": str(version), "request_latency": {}},
    }[tool]


@pytest.mark.parametrize("tool", ["llama-bench", "llama-benchy", "guidellm", "aiperf"])
def test_files_of_several_versions_have_no_version_together(tool: str, tmp_path: Path) -> None:
    alike = read(tool, tmp_path, told_by(tool, 7), told_by(tool, 7))
    unlike = read(tool, tmp_path, told_by(tool, 7), told_by(tool, 8))

    assert str(alike.tool_version).endswith("7")
    assert unlike.tool_version is None


def test_guidellm_takes_what_succeeded_and_no_time_that_its_clock_made_negative(
    tmp_path: Path,
) -> None:
    def summary(mean: float, median: float) -> dict[str, object]:
        told = {"mean": mean, "median": median, "count": 10, "percentiles": {"p99": 2 * median}}
        return {"successful": told, "errored": {**told, "mean": 9e9}}

    benchmark = {
        "config": {"model": "m", "strategy": {"type_": "concurrent", "streams": 8}},
        "metrics": {
            "request_totals": {"successful": 10, "errored": 2, "total": 12},
            "time_to_first_token_ms": summary(-1.7e12, 50.0),
            "output_tokens_per_second": summary(400.0, 390.0),
        },
    }
    (row,) = read("guidellm", tmp_path, {"benchmarks": [benchmark]}).rows

    told = figures(row)
    assert (row.concurrency, row.num_requests, row.num_failed) == (8, 10, 2)
    assert told["time_to_first_token_ms, median"] == (pytest.approx(0.05), "s", "ttft_p50")
    assert told["time_to_first_token_ms, p99"] == (pytest.approx(0.1), "s", "ttft_p99")
    assert "time_to_first_token_ms, mean" not in told
    assert told["output_tokens_per_second, mean"] == (400.0, "tok/s", "aggregate_throughput")


def test_aiperf_is_read_by_its_units(tmp_path: Path) -> None:
    export = {
        "aiperf_version": "0.13.0",
        "time_to_first_token": {"unit": "us", "avg": 120_000.0, "p50": 100_000.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 500.0},
        "request_count": {"unit": "requests", "avg": 48.0},
        "input_config": {
            "endpoint": {"model_names": ["m"], "api_key": "sk-0123456789abcdef"},
            "loadgen": {"concurrency": 16},
        },
    }
    found = read("aiperf", tmp_path, export)

    (row,) = found.rows
    assert (row.subject, row.concurrency, row.num_requests) == ("m", 16, 48)
    assert figures(row)["time_to_first_token, p50"] == (pytest.approx(0.1), "s", "ttft_p50")
    assert "0123456789abcdef" not in document.save(tmp_path, "x", found).read_text()


def test_aiperf_in_a_unit_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    export = {"time_to_first_token": {"unit": "fortnights", "avg": 1.0}}

    with pytest.raises(ResultsError, match="'fortnights', which is none of ms, us"):
        read("aiperf", tmp_path, export)


def test_sglang(tmp_path: Path) -> None:
    line = {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": "inf",
        "max_concurrency": 8,
        "completed": 80,
        "output_throughput": 640.0,
        "median_ttft_ms": 30.0,
        "accept_length": 3.2,
    }
    (row,) = read("sglang-bench-serving", tmp_path, line, name="sglang.jsonl").rows

    told = figures(row)
    assert told["median_ttft_ms"] == (pytest.approx(0.03), "s", "ttft_p50")
    assert told["accept_length"] == (3.2, "tok/step", "acceptance_length")


# --- CSV ------------------------------------------------------------------------------------------

MAP = """
tool: my-script
subject: model
concurrency: c
work: {value: five prompts}
figures:
  tps: {unit: tok/s, like: decode_rate, meaning: tokens over time}
  ttft: {unit: ms, like: ttft_p50, meaning: median}
"""
TABLE = "model,c,tps,ttft\nm,1,40.5,120\nm,4,25,\n"


def from_csv(path: Path, table: str = TABLE, told: str = MAP) -> Imported:
    (path / "table.csv").write_text(table, encoding="utf-8")
    (path / "columns.yaml").write_text(told, encoding="utf-8")
    return tools.read_files(
        "csv", [path / "table.csv"], column_map=path / "columns.yaml", imported_at=""
    )


def test_a_table_is_read_by_its_map_and_an_empty_field_is_no_figure(tmp_path: Path) -> None:
    found = from_csv(tmp_path)

    one, four = found.rows
    assert (found.tool, one.subject, one.work) == ("csv-my-script", "m", "five prompts")
    assert figures(one) == {
        "tps": (40.5, "tok/s", "decode_rate"),
        "ttft": (pytest.approx(0.12), "s", "ttft_p50"),
    }
    assert (four.concurrency, list(figures(four))) == (4, ["tps"])


@pytest.mark.parametrize(
    ("table", "told", "message"),
    [
        (TABLE.replace("40.5", "fast"), MAP, r"table.csv:2: `tps` is 'fast' and no number"),
        (TABLE.replace("40.5", "nan"), MAP, r"table.csv:2: `tps` is 'nan'; leave it empty"),
        (TABLE.replace("model,c", "name,c"), MAP, r"no column 'model'; there are name, c"),
        (TABLE, MAP.replace("tok/s", "tok/min"), r"`tps` needs a `unit`, one of s, ms"),
        (
            TABLE,
            MAP.replace("decode_rate", "speed"),
            r"columns.yaml:7:\d+: `tps` is like 'speed', which is no figure",
        ),
        (
            TABLE,
            MAP.replace("tool:", "tools:"),
            r"columns.yaml:2:1: `tools` is none of tool.*did you mean `tool`",
        ),
    ],
)
def test_what_a_table_or_its_map_gets_wrong_is_named(
    tmp_path: Path, table: str, told: str, message: str
) -> None:
    with pytest.raises((ConfigError, ResultsError), match=message):
        from_csv(tmp_path, table, told)


# --- files ----------------------------------------------------------------------------------------


def test_an_import_is_kept_with_the_hashes_of_its_files_and_what_its_figures_mean(
    tmp_path: Path,
) -> None:
    found = read("vllm-bench-serve", tmp_path, VLLM)
    document.save(tmp_path, "night", found)

    kept = document.load(tmp_path, "night")
    assert kept == found
    assert list(kept.sources) == ["result.json"]
    assert kept.meanings["output_throughput"].startswith("output tokens over the whole duration")
    with pytest.raises(UsageError, match=r"nothing was imported as 'other'.*known: night"):
        document.load(tmp_path, "other")


def test_what_is_no_such_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("hello\n")
    for tool, message in (
        ("vllm-bench-serve", "log.txt: neither JSON nor"),
        ("aiperf", "log.txt: neither JSON nor"),
    ):
        with pytest.raises(ResultsError, match=message):
            tools.read_files(tool, [tmp_path / "log.txt"], column_map=None, imported_at="")
    with pytest.raises(ResultsError, match="no `benchmarks`, so it is no report of guidellm"):
        read("guidellm", tmp_path, {"some": "thing"})


@pytest.mark.parametrize(
    ("tool", "content", "message"),
    [
        ("aiperf", '{"time_to_first_token": NaN}', "`time_to_first_token` is NaN"),
        ("aiperf", '{"request_latency": {}, "input_config": 3}', "`input_config` is 3"),
        (
            "aiperf",
            '{"request_latency": {}, "input_config": {"endpoint": {"model_names": "m"}}}',
            '`model_names` is "m", where a list belongs',
        ),
        ("guidellm", '{"benchmarks": [], "metadata": 0.8}', "`metadata` is 0.8"),
        ("guidellm", '{"benchmarks": [{"metrics": [1]}]}', r"`metrics` is \[1\]"),
        ("guidellm", '{"benchmarks": [NaN]}', "NaN among `benchmarks` is no object"),
        ("llama-benchy", '{"benchmarks": [{"ttfr": 12.5}]}', "`ttfr` is 12.5"),
        ("llama-bench", '{"n_gen": 128, "samples_ts": 44.1}', "`samples_ts` is 44.1"),
    ],
)
def test_a_figure_where_an_object_belongs_is_named(
    tmp_path: Path, tool: str, content: str, message: str
) -> None:
    file = tmp_path / "given.json"
    file.write_text(content)

    with pytest.raises(ResultsError, match=f"given.json: {message}"):
        tools.read_files(tool, [file], column_map=None, imported_at="")


def test_import_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text(json.dumps(VLLM))
    arguments = ("import", "vllm-bench-serve", str(tmp_path / "result.json"))

    assert cli.main([*arguments, "--as", "night", "--results", str(tmp_path)]) == 0

    out = capsys.readouterr().out
    assert "median_ttft_ms" in out
    assert out.endswith(f"{tmp_path / 'imported' / 'night.json'}\n")
    assert cli.main([*arguments, "--as", "night", "--map", "x.yaml"]) == 4
    assert cli.main([*arguments, "--as", "../night", "--results", str(tmp_path)]) == 4


@pytest.mark.parametrize("tool", sorted(tools.TOOLS))
@pytest.mark.parametrize("content", ["", "[]"], ids=["an empty file", "an empty list"])
def test_a_file_without_a_figure_is_refused_and_the_import_of_that_name_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str, content: str
) -> None:
    (tmp_path / "given.json").write_text(content)
    kept = tmp_path / "imported" / "mine.json"
    kept.parent.mkdir()
    kept.write_text("precious")
    words = ["--as", "mine", "--results", str(tmp_path)]

    assert cli.main(["import", tool, str(tmp_path / "given.json"), *words]) == 3

    assert "nothing was imported" in capsys.readouterr().err
    assert kept.read_text() == "precious"
