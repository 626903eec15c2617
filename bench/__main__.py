"""`make bench`: which benches run in which order; the long ones run when they are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent
ALWAYS = ("chunker", "index", "items")
BY_NAME = {
    "items --full": "100,000 items as well",
    "peers FOLDER": "other tools; their environments are built in FOLDER",
    "eval QUESTIONS ANSWERS": "answers to be scored, from the home that the environment names",
}


def main(arguments: list[str]) -> int:
    """Run the named bench with its own arguments, or all that take minutes; 0: all went well."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(f"python -m bench: {', '.join(ALWAYS)}\n\nBy name alone:")
        for call, what in BY_NAME.items():
            print(f"python -m bench {call:24}{what}")
        return 0
    if arguments:
        return _run(arguments)
    return max(_run([name]) for name in ALWAYS)


def _run(arguments: list[str]) -> int:
    name, *rest = arguments
    if name not in {*ALWAYS, *(call.split()[0] for call in BY_NAME)}:
        print(f"no bench is called {name}; see python -m bench --help", file=sys.stderr)
        return 2
    print(f"\n== {' '.join(arguments)}", flush=True)
    return subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *rest], cwd=PROJECT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
