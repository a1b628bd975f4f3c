"""The examples for Kubernetes and Slurm: held against KubeRay's schema, and run with stand-ins."""

import gzip
import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

PROJECT = Path(__file__).parents[3]
EXAMPLES = PROJECT / "configs" / "cluster"
SCHEMA = Path(__file__).parent / "vendored" / "kuberay-1.7.0-raycluster-v1.json.gz"

# --- Kubernetes -----------------------------------------------------------------------------------


def closed(schema: Any) -> Any:
    """Refuses what it does not know: a cluster only drops unknown fields, so a slip goes unseen."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        inner["additionalProperties"] = False
    return inner


@pytest.fixture(scope="module")
def schema() -> Any:
    found = closed(json.loads(gzip.decompress(SCHEMA.read_bytes())))
    # the API server's own, which a resource's schema leaves to it
    found["properties"]["metadata"] = {"type": "object"}
    return found


@pytest.fixture
def example() -> Any:
    return yaml.safe_load((EXAMPLES / "raycluster.yaml").read_text())


def test_the_example_is_what_kuberay_takes(schema: Any, example: Any) -> None:
    jsonschema.validate(example, schema)
    assert example["apiVersion"] == "ray.io/v1"


def test_a_misspelt_field_is_seen(schema: Any, example: Any) -> None:
    example["spec"]["workerGroupSpecs"][0]["replica"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(example, schema)


def test_the_head_offers_nothing_and_each_worker_one_box(example: Any) -> None:
    assert example["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (group,) = example["spec"]["workerGroupSpecs"]
    written = group["rayStartParams"]["resources"]
    # KubeRay writes it into a shell's command line as it stands
    words = subprocess.run(
        ["bash", "-c", f"printf %s {written}"], capture_output=True, text=True, check=True
    )
    assert json.loads(words.stdout) == {"box": 1}


# --- Slurm ----------------------------------------------------------------------------------------

STANDINS = {
    "scontrol": "echo node1; echo node2",
    "srun": """
        while [[ $1 == --* ]]; do options+=" $1"; shift; done
        echo "srun$options | $*" >>"$LOG"
        exec "$@"
    """,
    "ray": """
        echo "ray $*" >>"$LOG"
        [[ $1 == status ]] || exec sleep 30
    """,
    "dflashbench": """
        trap 'echo stopped >>"$LOG"; exit 130' TERM
        echo "dflashbench $*" >>"$LOG"
        for _ in $(seq "${STEPS:-5}"); do sleep 0.1; done
        exit "${CODE:-0}"
    """,
}


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """The script in a checkout whose programs are stand-ins that write down their calls."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    for name, body in STANDINS.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (programs / name).chmod(0o755)

    def start(**more: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "LOG": str(tmp_path / "log"),
            "SLURM_JOB_NODELIST": "node[1-2]",
            **more,
        }
        return subprocess.Popen(
            [EXAMPLES / "slurm.sh", "run", "m.yaml"],
            cwd=tmp_path,
            env=environment,
            start_new_session=True,  # its sleeping stand-ins end with it
        )

    return start


def ended(process: subprocess.Popen[bytes]) -> int:
    code = process.wait(20.0)
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    return code


def test_slurm_starts_a_head_the_others_and_the_run(job: Any, tmp_path: Path) -> None:
    assert ended(job()) == 0
    log = (tmp_path / "log").read_text()
    assert 'ray start --head --port=6379 --resources={"box": 1}' in log
    assert "--nodes=1 --ntasks=1 --exclude=node1 | ray start --address=node1:6379" in log
    assert "dflashbench run m.yaml --on ray --address node1:6379" in log


def test_slurm_passes_on_how_the_run_ended(job: Any) -> None:
    assert ended(job(CODE="3")) == 3


def test_slurm_stops_the_run_in_good_order_when_its_time_is_up(job: Any, tmp_path: Path) -> None:
    process = job(STEPS="100")
    log = tmp_path / "log"
    end = time.monotonic() + 10.0
    while "dflashbench" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 130
    assert "stopped" in log.read_text()
