"""The one settings object. File, environment and flags set the same names and agree.

Precedence: a flag, then ``CUEBOOK_<NAME>``, then ``config.toml`` in the home directory, then the default.
`docs/settings.md` describes each; a test fails when one is missing there.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import platformdirs

from engines.registry import ENGINES
from events.values import Policy

PREFIX = "CUEBOOK_"
CLUSTER_ON_NATS = "cuebook"
"""Name of a cluster that is given by NATS servers alone."""
_NATS_SCHEMES = ("nats://", "tls://")


class SettingsError(Exception):
    """A setting that is unknown or has an impossible value; the message says where and what to do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. Times are seconds; directories are separated by ``:``."""

    home: str = ""
    host: str = "127.0.0.1"
    api_port: int = 52415
    node_name: str = ""
    models_dir: str = ""
    models_dirs: str = ""
    models_read_only_dirs: str = ""
    cluster: str = ""
    cluster_secret: str = ""
    cluster_authority: str = ""
    cluster_certificate: str = ""
    cluster_key: str = ""
    cluster_host: str = ""
    cluster_port: int = 52416
    cluster_peers: str = ""
    cluster_multicast: bool = True
    cluster_nats: str = ""
    offline: bool = False
    no_batch: bool = False
    prefill_chunk: int = 0
    threads: int = 0
    cpu_devices: int = 1
    engines: str = ""
    measure_speed: bool = False
    start_timeout_s: float = 400.0
    connect_timeout_s: float = 60.0
    load_timeout_s: float = 300.0
    load_timeout_s_per_gb: float = 1.0
    warm_up_timeout_s: float = 300.0
    prefill_timeout_s: float = 60.0
    decode_timeout_s: float = 5.0
    max_instance_retries: int = 10
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 10.0
    log_driver: Literal["sqlite3", "apsw"] = "sqlite3"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        """Refuse what can't work, before anything starts."""
        for name in ("api_port", "cluster_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ValueError(f"{name} must be between 0 and 65535, got {getattr(self, name)}")
        for phase in ("start", "connect", "load", "warm_up", "prefill", "decode"):
            seconds = getattr(self, f"{phase}_timeout_s")
            if not 0 < seconds < math.inf:
                raise ValueError(f"{phase}_timeout_s must be above 0 seconds and finite, got {seconds}")
        for name in ("load_timeout_s_per_gb", "max_instance_retries", "threads", "prefill_chunk"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more and finite, got {getattr(self, name)}")
        if not 1 <= self.cpu_devices <= 64:
            raise ValueError(f"cpu_devices must be between 1 and 64, got {self.cpu_devices}")
        if unknown := sorted(set(self.engine_names) - set(ENGINES)):
            raise ValueError(f"engines names {', '.join(unknown)}; known are {', '.join(ENGINES)}")
        if not 0 < self.backoff_base_s <= self.backoff_cap_s < math.inf:
            raise ValueError(
                f"backoff_base_s must be above 0 and at most backoff_cap_s, got {self.backoff_base_s} "
                f"and {self.backoff_cap_s}"
            )

    @property
    def policy(self) -> Policy:
        """The settings that decisions depend on; they are recorded with the commands."""
        return Policy(
            max_instance_retries=self.max_instance_retries,
            backoff_base_s=self.backoff_base_s,
            backoff_cap_s=self.backoff_cap_s,
        )

    @property
    def engine_names(self) -> list[str]:
        """The engines that this node may use."""
        return [name.strip() for name in self.engines.split(",") if name.strip()] or list(ENGINES)

    @property
    def home_path(self) -> Path:
        """The directory of all data."""
        return Path(self.home).expanduser()

    @property
    def node_id_path(self) -> Path:
        """Where the id of this node is kept."""
        return self.home_path / "node_id"

    @property
    def log_path(self) -> Path:
        """The log, ``log.db``."""
        return self.home_path / "log.db"

    @property
    def projections_path(self) -> Path:
        """The tables for people, ``projections.db``."""
        return self.home_path / "projections.db"

    @property
    def default_models_path(self) -> Path:
        """Where models go when no other writable directory is named."""
        return Path(self.models_dir).expanduser() if self.models_dir else self.home_path / "models"

    @property
    def writable_model_paths(self) -> list[Path]:
        """The additional writable model directories."""
        return _paths(self.models_dirs)

    @property
    def read_only_model_paths(self) -> list[Path]:
        """The model directories that are searched first and never written."""
        return _paths(self.models_read_only_dirs)


def load_settings(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """The settings in force. ``flags`` holds those that were given. Raises `SettingsError`."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    env = _from_environment(environ)
    home = str(given.get("home") or env.get("home") or _default_home())
    path = Path(home).expanduser() / "config.toml"
    file = _from_file(path)
    _check_types(file, lambda name: f"{name} in {path}")
    _check_types(env, lambda name: PREFIX + name.upper())
    _check_types(given, lambda name: f"--{name.replace('_', '-')}")
    merged = _on_nats({**file, **env, **given, "home": home})
    try:
        return msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"A setting is wrong: {error}.") from error


def _on_nats(merged: dict[str, object]) -> dict[str, object]:
    """``cluster`` may be NATS servers with the name as their path: ``nats://host:4222,nats://other/name``."""
    cluster = str(merged.get("cluster", ""))
    if not cluster.startswith(_NATS_SCHEMES):
        return merged
    if merged.get("cluster_nats"):
        raise SettingsError(
            f"cluster {cluster} and cluster_nats {merged['cluster_nats']} both name NATS servers: "
            "give them once, or set cluster to the cluster's name."
        )
    servers, _, last = cluster.rpartition("://")
    host, _, name = last.partition("/")
    return {**merged, "cluster_nats": f"{servers}://{host}", "cluster": name or CLUSTER_ON_NATS}


def _check_types(found: Mapping[str, object], place: Callable[[str], str]) -> None:
    """Raises `SettingsError` with the place of a value that is not of its setting's type."""
    types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    for name, value in found.items():
        if name not in types:
            raise SettingsError(f"{place(name)} is no setting. Known: {', '.join(types)}.")
        try:
            msgspec.convert(value, types[name], strict=False)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{place(name)} can't be {value!r}: {error}.") from error


def _default_home() -> str:
    return platformdirs.user_data_dir("cuebook", appauthor=False)


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in Settings.__struct_fields__:
        value = environ.get(PREFIX + name.upper())
        if value is not None and value != "":
            found[name] = value
    return found


def _from_file(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} can't be read as TOML: {error}.") from error
    if "home" in table:
        raise SettingsError(f"{path} can't set home, where it lies itself: use --home or {PREFIX}HOME.")
    return table


def _paths(joined: str) -> list[Path]:
    return [Path(part).expanduser() for part in joined.split(os.pathsep) if part]
