"""A VFS for apsw that knows which bytes have reached the disk, so that a power cut can be made of it.

Files live in real files; beside each, a copy holds only what was synced. A cut leaves what a machine would
find after losing power: the synced bytes, and of the sectors written since, any subset.
"""

from __future__ import annotations

import random
from pathlib import Path

import apsw

SECTOR = 512


class Disk:
    """All files of one machine, by path. The power fails just after the ``writes``-th write.

    ``left`` are the files then; each unsynced sector is among them with probability ``kept``.
    """

    def __init__(self, writes: int, kept: float, dice: random.Random) -> None:
        self.synced: dict[str, bytes] = {}
        self.current: dict[str, bytearray] = {}
        self.left: dict[str, bytes] | None = None
        self._writes, self._kept, self._dice = writes, kept, dice

    def wrote(self) -> None:
        """Count a write; at the fatal one, keep what is left."""
        self._writes -= 1
        if self._writes == 0:
            self.left = {path: self._survivor(path) for path in self.synced}

    def _survivor(self, path: str) -> bytes:
        old, new = self.synced[path], bytes(self.current[path])
        out = bytearray(old)
        for start in range(0, len(new), SECTOR):
            sector = new[start : start + SECTOR]
            if sector != old[start : start + SECTOR] and self._dice.random() < self._kept:
                out.extend(bytes(max(0, start + len(sector) - len(out))))
                out[start : start + len(sector)] = sector
        return bytes(out)


class _File(apsw.VFSFile):
    """Writes go through and are remembered as unsynced until the sync."""

    def __init__(self, disk: Disk, path: str, name: object, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk, self._path = disk, path
        disk.current.setdefault(path, bytearray())
        disk.synced.setdefault(path, b"")

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        content = self._disk.current[self._path]
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
        self._disk.wrote()

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        del self._disk.current[self._path][size:]

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._disk.synced[self._path] = bytes(self._disk.current[self._path])


class PowerCutVFS(apsw.VFS):
    """The default VFS, watched. Only the database and its WAL: shared memory does not outlive a machine."""

    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        super().__init__(name, "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        return _File(self._disk, path, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        super().xDelete(name, sync)
        self._disk.current.pop(name, None)
        self._disk.synced.pop(name, None)


def restore(files: dict[str, bytes], home: Path) -> None:
    """Put what is left of the files into another directory."""
    for path, content in files.items():
        (home / Path(path).name).write_bytes(content)
