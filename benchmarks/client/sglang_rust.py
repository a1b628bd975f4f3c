"""Run SGLang's Rust serving client with the arguments given, without the rest of the package.

The extension is loaded alone: importing `sglang` would ask for what its engine needs.
"""

import importlib.util
import sys
from pathlib import Path
from sysconfig import get_path


def main() -> None:
    (path,) = Path(get_path("platlib"), "sglang/srt/rust_extensions").glob("_bench.*.so")
    spec = importlib.util.spec_from_file_location("_bench", path)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.run_argv(["bench", *sys.argv[1:]])


if __name__ == "__main__":
    main()
