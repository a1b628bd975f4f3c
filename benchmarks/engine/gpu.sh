#!/usr/bin/env bash
# The engine on one Hopper-class card (80 GB or more) in the true shapes of Qwen3.8-27B and its DFlash 2 drafter, with
# random weights, in at most 8 minutes: benchmarks/engine/gpu.sh [FOLDER]. Figures are appended to FOLDER/gpu.jsonl
# (build/engine by default) and shown with their goals. Needs PyTorch's CUDA build in the interpreter that PYTHON names
# (.venv/bin/python by default) and downloads nothing. REHEARSE=1 does the same at small size on a CPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-build/engine}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$folder"
timeout --kill-after=10 480 "$python" -m benchmarks.engine.gpu --raw "$folder/gpu.jsonl" ${REHEARSE:+--small}
