"""Flags, environment and file set the same settings, in that order."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from actors.settings import Settings, SettingsError
from api.cli.setting_flags import add_setting_flags, flags_of, settings_of


def settings_for(home: Path, *words: str) -> Settings:
    parser = ArgumentParser()
    add_setting_flags(parser)
    return settings_of(parser.parse_args(["--home", str(home), *words]))


def another(name: str) -> Any:
    """A possible value of a setting that is not its default."""
    default = Settings.__struct_defaults__[Settings.__struct_fields__.index(name)]
    choices = get_args(get_type_hints(Settings)[name])
    if choices:
        return next(choice for choice in choices if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return type(default)(default + 1)
    return "torch" if name == "engines" else "/somewhere/else"


NAMES = [name for name in Settings.__struct_fields__ if name != "home"]


@pytest.mark.parametrize("name", NAMES)
def test_flag_goes_before_environment_before_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default, value = getattr(settings_for(tmp_path), name), another(name)
    toml = f'"{value}"' if isinstance(value, str) else str(value).lower()
    (tmp_path / "config.toml").write_text(f"{name} = {toml}\n")
    assert getattr(settings_for(tmp_path), name) == value

    third = "mlx" if name == "engines" else "/from/environment"
    monkeypatch.setenv(f"CUEBOOK_{name.upper()}", str(default) or third)
    assert getattr(settings_for(tmp_path), name) == (default if default != "" else third)

    for flag in flags_of(name):
        opposite = f"--no-{flag.removeprefix('--')}"
        words = [flag if value else opposite] if isinstance(value, bool) else [flag, str(value)]
        assert getattr(settings_for(tmp_path, *words), name) == value


@pytest.mark.parametrize(
    ("flag", "name", "value"), [("--no-offline", "offline", False), ("--batch", "no_batch", False)]
)
def test_the_opposite_of_a_flag_overrules_the_environment(
    flag: str, name: str, value: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"CUEBOOK_{name.upper()}", "true")
    assert getattr(settings_for(tmp_path), name) is True
    assert getattr(settings_for(tmp_path, flag), name) is value


def test_what_cannot_be_is_refused_with_the_value(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="70000"):
        settings_for(tmp_path, "--port", "70000")
    with pytest.raises(SettingsError, match="backoff_base_s"):
        settings_for(tmp_path, "--backoff-base-s", "20")


def test_an_unknown_name_in_the_file_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("api_prot = 1\n")
    with pytest.raises(SettingsError, match=r"api_prot.*api_port"):
        settings_for(tmp_path)
