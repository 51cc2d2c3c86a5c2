"""The settings as flags: made from `actors.settings.Settings`, so that file, environment and flags agree."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from actors.settings import PREFIX, Settings, load_settings

SETTING_HELP: dict[str, str] = {
    "home": "directory of all data: log, tables, models, log files, config.toml",
    "host": "address that the HTTP API listens on; others than loopback let other machines in",
    "api_port": "port of the HTTP API; 0 takes a free one",
    "node_name": "name that people know this node by; the host's name where empty",
    "models_dir": "where models are stored; HOME/models where empty",
    "models_dirs": "more directories for models, separated by ':', used in order while they have room",
    "models_read_only_dirs": "directories of models, searched first and never written, separated by ':'",
    "cluster": "name of the cluster to join, or nats://host:4222/NAME; empty: this node stays alone",
    "cluster_secret": "secret that all nodes of the cluster share; without one only loopback is used",
    "cluster_authority": "certificate of the cluster's authority in PEM, instead of a secret",
    "cluster_certificate": "this node's certificate in PEM, signed by the authority; it names the node's id",
    "cluster_key": "the key of this node's certificate in PEM, without a password",
    "cluster_host": "address for the other nodes; empty: all, or loopback where there is no secret",
    "cluster_port": "TCP port for the other nodes; the beacons that find them always use UDP port 52416",
    "cluster_peers": "nodes to begin with where multicast doesn't reach, as host or host:port with ','",
    "cluster_multicast": "find nodes of the same network by multicast",
    "cluster_nats": "NATS servers with JetStream that carry and order the cluster, as nats://host:4222,...",
    "offline": "fetch nothing from the network: only models that are here already can run",
    "no_batch": "compute one request at a time in each instance",
    "prefill_chunk": "prompt tokens computed between two decode steps of the running streams",
    "threads": "CPU threads of each runner; 0 takes one for each CPU",
    "cpu_devices": "devices to divide the CPU into; each takes a rank of a model that is split",
    "engines": "engines that may be used, separated by ','; all that pass their self-test where empty",
    "measure_speed": "measure a single engine too, so that placement can tell whether more nodes are faster",
    "start_timeout_s": "seconds that a runner process may take to come up",
    "connect_timeout_s": "seconds that the ranks of a group may take to meet",
    "load_timeout_s": "seconds without progress while a model loads, before the runner is given up",
    "load_timeout_s_per_gb": "seconds added to load_timeout_s for each GB of weights",
    "warm_up_timeout_s": "seconds that a model's first forward pass may take",
    "prefill_timeout_s": "seconds that one chunk of a prompt may take",
    "decode_timeout_s": "seconds that one decode step may take",
    "max_instance_retries": "failed attempts in a row after which an instance is left failed",
    "backoff_base_s": "seconds before the first retry; doubles with each one",
    "backoff_cap_s": "longest wait before a retry, in seconds",
    "log_driver": "SQLite library that writes the log; apsw brings a newer one",
    "log_level": "least severe messages that go to the log files",
}
"""What each setting means. `docs/settings.md` says more; a test compares the two with the struct."""

ALIASES = {"api_port": ["--port"]}

CLIENT_SETTINGS = ("home", "host", "api_port")
"""The settings that matter to a command which only talks to a node."""


def add_setting_flags(parser: ArgumentParser, names: tuple[str, ...] = Settings.__struct_fields__) -> None:
    """Give a parser the flags of these settings. A flag that isn't given leaves the setting alone."""
    group = parser.add_argument_group(
        "settings", f"Each can also be set as {PREFIX}<NAME> in the environment, or in HOME/config.toml."
    )
    hints = get_type_hints(Settings)
    for name in names:
        _add_flag(group, name, hints[name])


def flags_of(name: str) -> list[str]:
    """The flags that set a setting, such as ``--api-port`` and ``--port``."""
    return [f"--{name.replace('_', '-')}", *ALIASES.get(name, [])]


def settings_of(args: Namespace) -> Settings:
    """The settings in force for a command line. Raises `SettingsError`."""
    given = vars(args)
    return load_settings({name: given.get(name) for name in Settings.__struct_fields__})


def _add_flag(group: Any, name: str, kind: Any) -> None:
    flags, text = flags_of(name), SETTING_HELP[name]
    default = Settings.__struct_defaults__[Settings.__struct_fields__.index(name)]
    if kind is bool:
        group.add_argument(*flags, dest=name, action="store_const", const=True, help=text)
        undo = f"the opposite of {flags[0]}"
        group.add_argument(_opposite(flags[0]), dest=name, action="store_const", const=False, help=undo)
        return
    if default != "":
        text += f" (default: {default})"
    if get_origin(kind) is Literal:
        group.add_argument(*flags, dest=name, choices=get_args(kind), help=text)
    else:
        group.add_argument(*flags, dest=name, type=kind, metavar=_METAVARS.get(name, _KIND[kind]), help=text)


_METAVARS = {
    "home": "DIR",
    "models_dir": "DIR",
    "models_dirs": "DIRS",
    "models_read_only_dirs": "DIRS",
    "cluster_authority": "FILE",
    "cluster_certificate": "FILE",
    "cluster_key": "FILE",
}
_KIND: dict[type, str] = {int: "N", float: "SECONDS", str: "NAME"}


def _opposite(flag: str) -> str:
    return flag.replace("--no-", "--", 1) if flag.startswith("--no-") else flag.replace("--", "--no-", 1)
