"""A hot copy of a log."""

from __future__ import annotations

from pathlib import Path

from events.drivers import STDLIB, Driver
from events.schema import open_reading


def backup(source: Path, dest: Path, driver: Driver = STDLIB) -> None:
    """Copy a log, as it is at this moment, to a new file, while its writer goes on.

    ``dest`` appears only when the copy is whole. Raises `FileExistsError`, or what opening a log raises.
    """
    if dest.exists():
        raise FileExistsError(f"{dest} exists: name a new file for the backup.")
    reading = open_reading(source, driver)
    try:
        partial = dest.with_name(dest.name + ".partial")
        partial.unlink(missing_ok=True)
        writing = driver.open(partial, write=True)
        try:
            driver.backup(reading, writing)
        except BaseException:
            partial.unlink()  # it may be what has filled the disk
            raise
        finally:
            writing.close()
        partial.rename(dest)
    finally:
        reading.close()
