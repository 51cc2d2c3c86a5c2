"""Both drivers keep the same log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from base_conformance import BaseConformance
from log_conformance import LogConformance
from log_samples import finish, history, write_log
from replication_conformance import ReplicationConformance
from rewind_conformance import RewindConformance

from events.check import check
from events.drivers import STDLIB, ApswDriver, Driver, has_wal_reset_bug
from events.errors import DriverMissing
from events.log import EventLog
from events.reader import LogReader


class TestStdlib(LogConformance, ReplicationConformance, RewindConformance, BaseConformance):
    @pytest.fixture
    def driver(self) -> Driver:
        return STDLIB


class TestApsw(LogConformance, ReplicationConformance, RewindConformance, BaseConformance):
    @pytest.fixture
    def driver(self) -> Driver:
        pytest.importorskip("apsw")
        return ApswDriver()


def test_one_driver_goes_on_with_the_others_log(tmp_path: Path):
    pytest.importorskip("apsw")
    apsw = ApswDriver()
    path = write_log(tmp_path / "log.db", history(), STDLIB)
    log = EventLog.open(path, driver=apsw)
    log.append([finish(20)])
    log.close()
    with LogReader.open(path, driver=STDLIB) as reader:
        assert reader.head() == 11
    assert check(path, driver=STDLIB).ok
    assert check(path, driver=apsw).ok


def test_apsw_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "apsw", None)
    with pytest.raises(DriverMissing, match=r"pip install 'cuebook\[apsw\]'"):
        ApswDriver()


@pytest.mark.parametrize(
    ("version", "bug"),
    [
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.0", True),
        ("3.51.2", True),
        ("3.51.3", False),
        ("3.54.1.0", False),
        ("4.0.0", False),
    ],
)
def test_versions_with_the_wal_reset_bug(version: str, bug: bool):
    assert has_wal_reset_bug(version) is bug
