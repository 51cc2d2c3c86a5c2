"""Certificates in the settings: what is no good is refused before anything starts, in a sentence."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from support.authority import PEM, Authority

from actors import node
from actors.membership import id_of, mesh_settings
from actors.net.certificates import Certificates
from actors.net.interfaces import Interface
from actors.node import Node
from actors.refusal import StartFailed
from actors.settings import Settings

Wrong = Callable[[Certificates, Path], Certificates]


def settings_with(home: Path, files: Certificates, **more: Any) -> Settings:
    given: dict[str, Any] = {
        "cluster_authority": str(files.authority),
        "cluster_certificate": str(files.certificate),
        "cluster_key": str(files.key),
    }
    return Settings(home=str(home), cluster="stage", **(given | more))


def refusal(settings: Settings) -> str:
    """What a start is refused with. Nothing is left behind that a better start would stumble over."""
    with pytest.raises(StartFailed) as failed:
        Node(settings).start()
    assert not settings.log_path.exists()
    return str(failed.value)


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Authority(tmp_path, "ours").sign("desk")


def test_paths_become_the_mesh_s_certificates(tmp_path: Path, files: Certificates) -> None:
    settings = settings_with(tmp_path, files)
    assert mesh_settings(settings).certificates == files
    assert mesh_settings(Settings(cluster="stage")).certificates is None


def test_a_new_node_takes_its_id_from_its_certificate(tmp_path: Path, files: Certificates) -> None:
    settings = settings_with(tmp_path, files)
    assert id_of(settings) == "desk"
    assert not (tmp_path / "node_id").exists()
    assert node.node_id(settings) == "desk"
    assert (tmp_path / "node_id").read_text() == "desk\n"


def test_a_node_keeps_its_id_and_needs_a_certificate_for_it(tmp_path: Path, files: Certificates) -> None:
    (tmp_path / "node_id").write_text("node-1\n")
    said = refusal(settings_with(tmp_path, files))
    assert f"{files.certificate} is for desk; this node has the id node-1, which must be" in said
    (tmp_path / "node_id").write_text("desk\n")
    assert id_of(settings_with(tmp_path, files)) == "desk"


def test_a_name_that_cannot_be_an_id(tmp_path: Path) -> None:
    said = refusal(settings_with(tmp_path, Authority(tmp_path, "ours").sign("my desk")))
    assert "is for my desk; none can be a node's id" in said
    assert not (tmp_path / "node_id").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"cluster_key": ""}, "belong together: set cluster_key as well."),
        ({"cluster_key": "", "cluster_authority": ""}, "set cluster_authority and cluster_key as well."),
        (
            {"cluster_secret": "a secret of good length"},
            "cluster_secret and cluster_authority and cluster_certificate and cluster_key are both set",
        ),
    ],
)
def test_settings_that_contradict_each_other(
    tmp_path: Path, files: Certificates, more: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(settings_with(tmp_path, files, **more))


def missing(files: Certificates, _: Path) -> Certificates:
    files.key.unlink()
    return files


def a_directory(files: Certificates, where: Path) -> Certificates:
    return msgspec.structs.replace(files, authority=where)


def no_pem(files: Certificates, _: Path) -> Certificates:
    files.certificate.write_bytes(b"\x30\x82")
    return files


def damaged(files: Certificates, _: Path) -> Certificates:
    files.authority.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return files


def swapped(files: Certificates, _: Path) -> Certificates:
    return msgspec.structs.replace(files, certificate=files.key, key=files.certificate)


def another_key(files: Certificates, where: Path) -> Certificates:
    return msgspec.structs.replace(files, key=Authority(where, "theirs").sign("desk").key)


def another_authority(files: Certificates, where: Path) -> Certificates:
    return msgspec.structs.replace(files, authority=Authority(where, "theirs").file)


def with_a_password(files: Certificates, _: Path) -> Certificates:
    key = load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(key.private_bytes(PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"words")))
    return files


def expired(_: Certificates, where: Path) -> Certificates:
    return Authority(where, "old").sign("desk", until=datetime.timedelta(hours=-1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (missing, "desk.key, this node's key, can't be read: No such file or directory."),
        (a_directory, "the authority's certificate, can't be read: Is a directory."),
        (no_pem, "desk.pem, this node's certificate, is none in PEM."),
        (damaged, "authority.pem can't be used: "),
        (swapped, "desk.key, this node's certificate, is none in PEM."),
        (another_key, "can't be used: the key belongs to another certificate."),
        (another_authority, "authority.pem: unable to get local issuer certificate."),
        (with_a_password, "desk.key, this node's key, has a password: give one without."),
        (expired, "authority.pem: certificate has expired."),
    ],
)
def test_files_that_no_node_would_accept(
    tmp_path: Path, files: Certificates, make: Wrong, sentence: str
) -> None:
    said = refusal(settings_with(tmp_path / "home", make(files, tmp_path)))
    assert sentence in said


def test_without_a_cluster_and_on_nats_nobody_asks_for_a_certificate(tmp_path: Path) -> None:
    assert id_of(Settings(home=str(tmp_path), cluster_key="/nowhere")).startswith("node-")
    nats = Settings(
        home=str(tmp_path), cluster="stage", cluster_nats="nats://127.0.0.1:1", cluster_key="/nowhere"
    )
    with pytest.raises(StartFailed, match="cluster_key can't be set with cluster_nats"):
        Node(nats).start()


def test_other_nodes_ranks_find_this_machine(
    tmp_path: Path, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    eth0 = Interface("eth0", 2, "10.0.0.1", 2)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(node, "interfaces", lambda: [eth0])
    made = Node(settings_with(tmp_path, files))
    made.node_id = "desk"
    assert made._identity().host == "10.0.0.1"  # pyright: ignore[reportPrivateUsage]
