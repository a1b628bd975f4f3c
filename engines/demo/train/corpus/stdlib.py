"""Natural code: documented functions of the running Python's standard library.

The answer is the function as written; the question is its first docstring line and its name.
"""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from engines.demo.train.corpus.document import Document, fenced

SKIPPED = (
    "test",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "turtledemo",
    "ensurepip",
)
SIZE_CHARACTERS = range(250, 1000)


def documents() -> list[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Document] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if any(part in SKIPPED for part in name.parts):
            continue
        found += functions(path.read_text(encoding="utf-8", errors="ignore"), str(name))
    return found


def functions(source: str, name: str) -> Iterator[Document]:
    module = name.removesuffix(".py").replace("/", ".")
    try:
        tree = ast.parse(source)
    except SyntaxError:  # lib2to3-like data files with an older grammar
        return
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        doc = ast.get_docstring(node)
        text = ast.get_source_segment(source, node)
        if not doc or not text or len(text) not in SIZE_CHARACTERS or not text.isascii():
            continue
        first = doc.split("\n")[0].rstrip(".")
        yield Document(
            kind="code",
            user=f"Write a function {node.name} from the module {module}: {first}.",
            answer=fenced("python", text),
            source=f"stdlib:{name}:{node.name}",
        )
