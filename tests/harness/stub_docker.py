"""A docker for tests, put on the PATH: it runs a container's command as a process of this machine.

It takes the words that the harness uses and refuses others. As with a daemon, a container is no
child that dies with `docker run`, stays until it is removed, and is found by its labels. Images are
those of $STUB_DOCKER/images.json (name: what `image inspect` tells); a container is a file in
$STUB_DOCKER/containers. Inside, `python` is this interpreter, paths below a mount are those here,
and 0.0.0.0 is the loopback.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["STUB_DOCKER"])
VALUED = ("--name", "--label", "--publish", "--mount", "--env", "--pull", "--gpus", "--ipc")


def fail(message, code=1):
    print(message, file=sys.stderr)
    sys.exit(code)


def containers():
    return {path.stem: json.loads(path.read_text()) for path in (HOME / "containers").glob("*")}


def keep(container):
    (HOME / "containers" / f"{container['name']}.json").write_text(json.dumps(container))


def one(name):
    return containers().get(name) or fail(f"Error: No such container: {name}")


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


# --- commands -------------------------------------------------------------------------------------


def image(words):
    assert words[0] == "inspect"
    known = json.loads((HOME / "images.json").read_text())
    if words[1] not in known:
        fail(f"Error response from daemon: No such image: {words[1]}")
    print(json.dumps([known[words[1]]]))


def run(words):
    options, words = parsed(words)
    (name,) = options["--name"]
    (published,) = options["--publish"]
    address, port, _ = published.split(":")
    with socket.socket() as probe:
        if probe.connect_ex((address, int(port))) == 0:
            fail(f"docker: Bind for {address}:{port} failed: port is already allocated.", 125)
    asked, *command = words
    mounts = [dict(part.split("=") for part in m.split(",") if "=" in m) for m in mounted(options)]
    server = subprocess.Popen(
        [seen(word, mounts) for word in command],
        env={
            k: os.environ[k] for k in ("PATH", "PYTHONPATH", *options["--env"]) if k in os.environ
        },
        start_new_session=True,
    )
    labels, options = options["--label"], {k: v for k, v in options.items() if v}
    keep({"name": name, "image": asked, "pid": server.pid, "labels": labels, "options": options})
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    sys.exit(server.wait() % 256)


def parsed(words):
    options = {name: [] for name in VALUED}
    while words[0].startswith("--"):
        if words[0] not in options:
            fail(f"unknown flag: {words[0]}", 125)
        options[words[0]].append(words[1])
        words = words[2:]
    return options, words


def mounted(options):
    return [mount.removesuffix(",readonly") for mount in options["--mount"]]


def seen(word, mounts):
    for mount in mounts:
        if word.startswith(mount["target"]):
            word = word.replace(mount["target"], mount["source"], 1)
    return {"python": sys.executable, "0.0.0.0": "127.0.0.1"}.get(word, word)


def inspect(words):
    assert words[:2] == ["--format", "{{.State.Pid}}"]
    pid = one(words[2])["pid"]
    print(pid if lives(pid) else 0)


def ps(words):
    assert words[:2] == ["--all", "--quiet"]
    wanted = {word.removeprefix("label=") for word in words[3::2]}
    for name, container in containers().items():
        if wanted <= set(container["labels"]):
            print(name)


def stop(words):
    assert words[0] == "-t"
    pid = one(words[2])["pid"]
    if not lives(pid):
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + int(words[1])
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    if lives(pid):
        os.kill(pid, signal.SIGKILL)


def rm(words):
    assert words[0] == "--force"
    if lives(one(words[1])["pid"]):
        os.kill(one(words[1])["pid"], signal.SIGKILL)
    (HOME / "containers" / f"{words[1]}.json").unlink()


COMMANDS = {each.__name__: each for each in (image, run, inspect, ps, stop, rm)}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](sys.argv[2:])
