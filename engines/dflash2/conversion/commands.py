"""`convert` and `verify`: arguments in, lines and an exit code out."""

import argparse
import sys

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.cache import convert_to
from engines.dflash2.conversion.checkpoint import Origin
from engines.dflash2.conversion.progress import ProgressLines, say
from engines.dflash2.conversion.verify import verify

DIFFERS = 1


def convert_command(options: argparse.Namespace) -> int:
    manifest = convert_to(
        options.source,
        options.destination,
        _origin(options),
        say,
        ProgressLines(sys.stderr),
    )
    print(
        f"{options.destination}: {manifest.num_tensors} tensors, {manifest.num_bytes:,} bytes, "
        f"sha256 {manifest.sha256}"
    )
    return 0


def verify_command(options: argparse.Namespace) -> int:
    checks = verify(options.folder, options.reference, ProgressLines(sys.stderr))
    for check in checks:
        print(f"{check.subject}: {check.problem or 'ok'}")
    return 0 if all(check.problem is None for check in checks) else DIFFERS


def _origin(options: argparse.Namespace) -> Origin | None:
    """What was given, whole or not at all."""
    repository, revision = options.source_repository, options.source_revision
    if (repository is None) != (revision is None):
        raise ModelError("--source-repository and --source-revision go together; give both")
    return None if repository is None else Origin(repository=repository, revision=revision)
