"""python -m inbox prepare | receive FILE | report | relay URL | receiver PORT"""

from __future__ import annotations

import sys
from pathlib import Path

from . import app, receiver, relay
from .database import prepare


def main(arguments: list[str]) -> int:
    match arguments:
        case ["prepare"]:
            prepare()
        case ["receive", file]:
            prepare()
            with Path(file).open(encoding="utf-8") as lines:
                receipt = app.receive(line for line in lines if line.strip())
            print(f"{receipt.stored} deliveries stored, {receipt.known} were known already")
        case ["report"]:
            print(f"{'REPOSITORY':<40}  {'DELIVERIES':>10}  {'KINDS':>5}  {'MOST OF ONE':>11}")
            for repository, deliveries, kinds, most in app.report():
                print(f"{repository:<40}  {deliveries:>10}  {kinds:>5}  {most:>11}")
        case ["relay", url]:
            relay.run(url)
        case ["receiver", port]:
            receiver.run(int(port))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


sys.exit(main(sys.argv[1:]))
