"""Settings: three places that agree, their precedence, and a sentence for what can't be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from actors.settings import PREFIX, Settings, SettingsError, load_settings

OTHER: dict[str, object] = {
    "host": "0.0.0.0",
    "api_port": 8080,
    "node_name": "desk",
    "models_dir": "/models",
    "models_dirs": "/a:/b",
    "models_read_only_dirs": "/c",
    "offline": True,
    "no_batch": True,
    "prefill_chunk": 64,
    "threads": 3,
    "cpu_devices": 2,
    "engines": "torch",
    "measure_speed": True,
    "start_timeout_s": 1.5,
    "load_timeout_s": 2.5,
    "load_timeout_s_per_gb": 0.5,
    "warm_up_timeout_s": 3.5,
    "prefill_timeout_s": 4.5,
    "decode_timeout_s": 0.25,
    "max_instance_retries": 2,
    "backoff_base_s": 0.1,
    "backoff_cap_s": 0.3,
    "cluster": "stage",
    "cluster_secret": "a secret of sixteen",
    "cluster_authority": "/etc/cuebook/authority.pem",
    "cluster_certificate": "/etc/cuebook/node.pem",
    "cluster_key": "/etc/cuebook/node.key",
    "cluster_host": "10.0.0.1",
    "cluster_port": 7000,
    "cluster_peers": "10.0.0.2:7000,10.0.0.3:7000",
    "cluster_multicast": False,
    "cluster_nats": "nats://10.0.0.9:4222",
    "connect_timeout_s": 5.5,
    "log_driver": "apsw",
    "log_level": "debug",
}
"""Another value than the default for every setting."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def from_file(home: Path, text: str) -> Settings:
    (home / "config.toml").write_text(text)
    return load_settings({"home": str(home)}, {})


def from_environment(home: Path, **values: object) -> Settings:
    return load_settings({"home": str(home)}, {PREFIX + k.upper(): str(v) for k, v in values.items()})


def toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_every_setting_is_covered_here() -> None:
    assert OTHER.keys() == {*Settings.__struct_fields__} - {"home"}
    assert all(getattr(Settings(), name) != value for name, value in OTHER.items())


def test_file_environment_and_flags_agree(home: Path) -> None:
    wanted = Settings(home=str(home), **OTHER)  # type: ignore[arg-type]
    assert load_settings({"home": str(home), **OTHER}, {}) == wanted
    assert from_environment(home, **OTHER) == wanted
    assert from_file(home, "\n".join(f"{name} = {toml(value)}" for name, value in OTHER.items())) == wanted


def test_flag_before_environment_before_file_before_default(home: Path) -> None:
    (home / "config.toml").write_text("api_port = 1\nprefill_chunk = 1\nthreads = 1")
    environ = {"CUEBOOK_API_PORT": "2", "CUEBOOK_PREFILL_CHUNK": "2"}
    found = load_settings({"home": str(home), "api_port": 3, "threads": None}, environ)
    assert (found.api_port, found.prefill_chunk, found.threads) == (3, 2, 1)
    assert found.decode_timeout_s == 5.0


def test_a_flag_can_switch_off_what_the_file_switches_on(home: Path) -> None:
    (home / "config.toml").write_text("offline = true")
    assert not load_settings({"home": str(home), "offline": False}, {}).offline


@pytest.mark.parametrize(
    ("cluster", "servers", "name"),
    [
        ("nats://one:4222", "nats://one:4222", "cuebook"),
        ("tls://a:b@one:4222/", "tls://a:b@one:4222", "cuebook"),
        ("nats://one,nats://two:4222/desk", "nats://one,nats://two:4222", "desk"),
    ],
)
def test_a_cluster_may_be_given_by_its_servers(home: Path, cluster: str, servers: str, name: str) -> None:
    settings = load_settings({"cluster": cluster}, {"CUEBOOK_HOME": str(home)})
    assert (settings.cluster_nats, settings.cluster) == (servers, name)


def test_servers_are_given_once(home: Path) -> None:
    with pytest.raises(SettingsError, match="both name NATS servers"):
        load_settings({"cluster": "nats://a", "cluster_nats": "nats://b"}, {"CUEBOOK_HOME": str(home)})


def test_an_empty_variable_sets_nothing(home: Path) -> None:
    assert from_environment(home, api_port="") == Settings(home=str(home))


def test_the_file_lies_in_the_home_that_the_environment_names(home: Path) -> None:
    (home / "config.toml").write_text("threads = 7")
    assert load_settings({}, {"CUEBOOK_HOME": str(home)}).threads == 7


def test_without_any_there_is_a_home_of_the_platform() -> None:
    assert load_settings({}, {}).home_path.is_absolute()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("api_prot = 1", "api_prot in {home}/config.toml is no setting. Known: home, host, api_port, "),
        ('api_port = "x"', "api_port in {home}/config.toml can't be 'x': Expected `int`, got `str`."),
        (
            "home = '/x'",
            "{home}/config.toml can't set home, where it lies itself: use --home or CUEBOOK_HOME.",
        ),
        ("a = [", "{home}/config.toml can't be read as TOML: "),
        ("api_port = 65536", "A setting is wrong: api_port must be between 0 and 65535, got 65536."),
        ("cluster_port = -1", "A setting is wrong: cluster_port must be between 0 and 65535, got -1."),
        ("connect_timeout_s = 0", "connect_timeout_s must be above 0 seconds and finite, got 0.0."),
        ("prefill_chunk = -1", "A setting is wrong: prefill_chunk must be 0 or more and finite, got -1."),
        ("cpu_devices = 65", "cpu_devices must be between 1 and 64, got 65."),
        ('engines = "mlx, tort"', "A setting is wrong: engines names tort; known are mlx, torch."),
        ("decode_timeout_s = 0", "decode_timeout_s must be above 0 seconds and finite, got 0.0."),
        ("load_timeout_s = inf", "load_timeout_s must be above 0 seconds and finite, got inf."),
        ("prefill_timeout_s = nan", "prefill_timeout_s must be above 0 seconds and finite, got nan."),
        ("load_timeout_s_per_gb = -1", "load_timeout_s_per_gb must be 0 or more and finite, got -1.0."),
        ("threads = -1", "threads must be 0 or more and finite, got -1."),
        (
            "backoff_base_s = 11",
            "backoff_base_s must be above 0 and at most backoff_cap_s, got 11.0 and 10.0.",
        ),
        ('log_driver = "oracle"', "log_driver in {home}/config.toml can't be 'oracle': Invalid enum value"),
    ],
)
def test_what_is_wrong_in_the_file(home: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        from_file(home, text)
    assert sentence.format(home=home) in str(wrong.value)


def test_what_is_wrong_elsewhere_names_its_place(home: Path) -> None:
    with pytest.raises(SettingsError, match=r"^CUEBOOK_OFFLINE can't be 'perhaps': Expected `bool`"):
        from_environment(home, offline="perhaps")
    with pytest.raises(SettingsError, match=r"^--log-level can't be 'loud': Invalid enum value"):
        load_settings({"home": str(home), "log_level": "loud"}, {})


def test_a_file_that_is_no_text(home: Path) -> None:
    (home / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="can't be read as TOML"):
        load_settings({"home": str(home)}, {})


def test_paths(home: Path) -> None:
    found = Settings(home=str(home), models_dirs="/a:/b:", models_read_only_dirs="~/c")
    assert found.log_path == home / "log.db"
    assert found.projections_path == home / "projections.db"
    assert found.default_models_path == home / "models"
    assert found.writable_model_paths == [Path("/a"), Path("/b")]
    assert found.read_only_model_paths == [Path.home() / "c"]
    assert msgspec.structs.replace(found, models_dir="/m").default_models_path == Path("/m")


def test_the_policy_is_what_decisions_depend_on() -> None:
    policy = Settings(max_instance_retries=1, backoff_base_s=2.0, backoff_cap_s=3.0).policy
    assert (policy.max_instance_retries, policy.backoff_base_s, policy.backoff_cap_s) == (1, 2.0, 3.0)
