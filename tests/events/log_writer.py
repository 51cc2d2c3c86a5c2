"""A process that writes a log until it is killed: ``log_writer.py LOG FIRST``.

Appends batches of decisions, numbered from FIRST, and says each number on stdout once it is committed.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from log_samples import finish, reading, refuse

from events.log import EventLog
from events.record import Draft


def numbered(n: int) -> Draft:
    """The decision with this number: an observation, a refusal, or two events."""
    return (reading, refuse, finish, finish)[n % 4](n)


def main() -> None:
    log = EventLog.open(Path(sys.argv[1]))
    n, dice = int(sys.argv[2]), random.Random(int(sys.argv[2]))
    os.write(1, b"0\n")
    while True:
        batch = [numbered(n + i) for i in range(dice.choice([1, 1, 3, 20, 200]))]
        log.append(batch)
        n += len(batch)
        os.write(1, f"{n}\n".encode())


if __name__ == "__main__":
    main()
