"""What the scripts here share: the program, its run files, and what it writes."""

import json
import os
import subprocess
import sys


def build():
    """The program, built with cargo."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = ["cargo", "build", "--release", "--message-format", "json"]
    messages = subprocess.run(command, check=True, cwd=here, stdout=subprocess.PIPE, text=True).stdout
    found = [json.loads(line) for line in messages.splitlines()]
    return next(
        message["executable"]
        for message in found
        if message.get("target", {}).get("name") == "firebrick" and message.get("executable")
    )


def quoted(path):
    """A path as a run file names it, whatever folder it is used from."""
    return json.dumps(os.path.abspath(path), ensure_ascii=False)


def run(program, *arguments):
    """Runs it to its end: what it printed."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def metrics(output, kind):
    """The lines of `metrics.jsonl` of a kind: `train` or `valid`."""
    with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if line["kind"] == kind]
