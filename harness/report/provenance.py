"""What ran on what, and where everything came from: found rather than declared where both exist."""

from collections.abc import Iterator

from harness.analysis.summary import Summary
from harness.report.tables.sessions import told_machine

SHOWN = 3  # sources of one prompt set


def environment(summary: Summary) -> list[tuple[str, str]]:
    """What ran on what, found rather than declared where both exist."""
    facts: list[tuple[str, str]] = []
    for session in summary.data.sessions:
        machine = session.machine
        facts.append(("machine", told_machine(machine)))
        packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
        facts.append(("system", f"{machine.system}, Python {machine.python}, {packages}"))
        facts.append(
            ("harness", f"{summary.manifest.tool}, {_commit(session.commit, session.dirty)}")
        )
        lateness = session.client_lateness_s
        added = "not calibrated" if lateness is None else f"{lateness * 1e3:.2f} ms (p99)"
        facts.append(("client adds", added))
    facts += [(f"engine of {variant}", said) for variant, said in _engines(summary)]
    for name, identity in summary.manifest.models.items():
        known = [f"{key} {identity[key]}" for key in ("path", "hash", "bytes") if identity.get(key)]
        facts.append((f"model {name}", ", ".join(known)))
    for name, digest in summary.manifest.prompt_sets.items():
        facts.append((f"prompts {name}", f"sha256 {digest[:12]}"))
    return list(dict.fromkeys(facts))


def commits(summary: Summary) -> list[str]:
    found = [session.commit for session in summary.data.sessions if session.commit is not None]
    return list(dict.fromkeys(found))


def _commit(commit: str | None, dirty: bool | None) -> str:
    if commit is None:
        return "no commit known"
    return f"commit {commit[:12]}{' with uncommitted changes' if dirty else ''}"


def _engines(summary: Summary) -> list[tuple[str, str]]:
    found = []
    for boot in summary.data.boots:
        health = boot.health or {}
        facts = [
            f"{key} {health[key]}"
            for key in ("drafter", "depth", "runner", "dtype", "threads", "kv_tokens")
            if health.get(key)
        ]
        said = [f"version {boot.version or 'unknown'}", *facts, *health.get("remarks", ())]
        if boot.error is not None:
            said.append(f"boot {boot.where.boot_id} failed: {boot.error}")
        found.append((boot.variant, ", ".join(said)))
    return list(dict.fromkeys(found))


def sources(summary: Summary) -> list[str]:
    """Prompts, models and engines, each with what it can be found again by."""
    return [*_prompts(summary), *_models(summary), *_builds(summary)]


def _prompts(summary: Summary) -> Iterator[str]:
    manifest = summary.manifest
    for name, digest in {**manifest.prompt_sets, **manifest.warmup_sets}.items():
        told = manifest.prompt_sources.get(name, ())
        said = "; ".join(told[:SHOWN]) if told else "the run does not say where they are from"
        if len(told) > SHOWN:
            said += f"; and {len(told) - SHOWN} more"
        yield f"prompts {name} (sha256 {digest[:12]}): {said}"


def _models(summary: Summary) -> Iterator[str]:
    for name, identity in summary.manifest.models.items():
        published = identity.get("published")
        stands_in = f", in place of the published {published}" if published else ""
        by = f", hash {identity['hash']}" if identity.get("hash") else ""
        yield f"model {name}: {identity.get('path') or name}{by}{stands_in}"


def _builds(summary: Summary) -> Iterator[str]:
    told = {
        f"engine of {boot.variant}: version {boot.version or 'unknown'}, build {boot.build}"
        for boot in summary.data.boots
        if boot.build is not None
    }
    yield from sorted(told)
