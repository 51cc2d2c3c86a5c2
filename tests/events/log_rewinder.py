"""A process that rewinds a log to and fro until it is killed: ``log_rewinder.py LOG FORK NUMBER FILE FILE``.

The files hold two histories after the fork, as entries; the log has the first. NUMBER is how often it was
rewound before. Says each number on stdout once the log is rewound.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from events.log import EventLog


def main() -> None:
    log = EventLog.open(Path(sys.argv[1]))
    fork, number = int(sys.argv[2]), int(sys.argv[3])
    histories = [msgspec.msgpack.decode(Path(each).read_bytes(), type=list[bytes]) for each in sys.argv[4:6]]
    os.write(1, b"0\n")
    while True:
        number += 1
        log.rewind(fork, "w", "the other won", histories[number % 2], at=float(number))
        os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main()
