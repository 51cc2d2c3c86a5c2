"""The pure parts of the transports: bytes, queues, addresses, sentences."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.transports import peer

from actors.net.addresses import REFUSED_PAUSE_S, AddressBook, sharable
from actors.net.auth import Mode, Side, security
from actors.net.beacon import Beacon, decode_beacon, encode_beacon
from actors.net.greeting import (
    PROTOCOL,
    Address,
    Challenge,
    Myself,
    Refused,
    Terms,
    objection,
    pack,
    tag_of,
    unpack,
)
from actors.net.interfaces import Interface, with_scope
from actors.net.mesh_settings import MeshSettings
from actors.net.outbox import Outbox
from actors.net.refusals import AGAIN_S, MAX_TOLD, Refusals
from actors.net.seeds import Seeds, parse_seed
from actors.net.transport import TransportError
from actors.net.wire import (
    FRAME_BYTES,
    Assembler,
    FrameKind,
    MalformedFrame,
    Record,
    RecordKind,
    encode,
    frame,
)

records = st.builds(
    Record,
    st.sampled_from(RecordKind),
    st.integers(0, 2**32 - 1),
    st.text(max_size=20),
    st.binary(max_size=50) | st.integers(0, 200_000).map(bytes),
)


def through(sent: list[Record], outbox: Outbox) -> list[Record]:
    for record in sent:
        assert outbox.put(encode(*record))
    assembler, came = Assembler(), list[Record]()
    while (ready := outbox.next_frame()) is not None:
        assert len(ready) <= FRAME_BYTES + 1
        came += assembler.feed(ready[0], ready[1:])
    return came


@given(st.lists(records, max_size=12))
def test_records_pass_whole_and_in_order(sent: list[Record]) -> None:
    assert through(sent, Outbox(lambda: None)) == sent


@given(st.binary(max_size=200), st.sampled_from([FrameKind.RECORDS, FrameKind.PART, FrameKind.LAST, 77]))
def test_foreign_bytes_are_malformed_or_harmless(data: bytes, kind: int) -> None:
    try:
        list(Assembler().feed(kind, data))
    except MalformedFrame:
        return


def test_a_cut_record_is_malformed() -> None:
    whole = encode(RecordKind.MESSAGE, 0, "log", b"x" * 100)
    with pytest.raises(MalformedFrame, match="ends 10 bytes after its frame"):
        list(Assembler().feed(FrameKind.RECORDS, whole[:-10]))


def test_a_heart_beat_passes_between_the_parts_of_a_large_record() -> None:
    outbox = Outbox(lambda: None)
    outbox.put(encode(RecordKind.MESSAGE, 0, "log", bytes(3 * FRAME_BYTES)))
    first = outbox.next_frame()
    outbox.put_first(frame(FrameKind.BEAT, b"now"))
    assert outbox.next_frame() == frame(FrameKind.BEAT, b"now")
    second = outbox.next_frame()
    assert first
    assert second
    assert (first[0], second[0]) == (FrameKind.PART, FrameKind.PART)


def test_an_outbox_wakes_once_and_overflows_once() -> None:
    woken: list[int] = []
    outbox = Outbox(lambda: woken.append(1), max_messages=3, max_bytes=1_000)
    assert outbox.put(b"1" * 5_000)  # one always finds room
    assert not outbox.put(b"2")
    assert outbox.overflowed
    assert len(woken) == 2
    assert not outbox.put(b"3")
    assert len(woken) == 2
    outbox = Outbox(lambda: woken.append(1), max_messages=3)
    assert [outbox.put(b"%d" % n) for n in range(4)] == [True, True, True, False]


def test_the_last_frame_is_last() -> None:
    outbox = Outbox(lambda: None)
    outbox.put(encode(RecordKind.MESSAGE, 0, "log", b"1"))
    outbox.put_last(frame(FrameKind.BYE))
    assert not outbox.put(b"more")
    first = outbox.next_frame()
    assert first
    assert first[0] == FrameKind.RECORDS
    assert outbox.next_frame() == frame(FrameKind.BYE)
    assert outbox.next_frame() is None
    assert outbox.empty


@given(st.text(min_size=1, max_size=16), st.integers(1, 65535))
def test_beacons_come_back(node_id: str, port: int) -> None:
    beacon = Beacon(tag_of("a cluster"), node_id, port)
    assert decode_beacon(encode_beacon(beacon)) == beacon


@given(st.binary(max_size=100) | st.binary(max_size=60).map(lambda tail: b"CUEBOOK1" + tail))
def test_no_datagram_hurts(data: bytes) -> None:
    decode_beacon(data)


def address(node_id: str, host: str = "10.0.0.1") -> Address:
    return Address(node_id, host, 1)


def test_the_smaller_id_dials_once_at_a_time() -> None:
    book = AddressBook("b", Random(1))
    for node_id in ("a", "b", "c", "d"):
        book.heard(address(node_id), announced=True, now=0)
    assert book.due(0, {"d"}) == ["c"]
    assert book.due(0, {"d"}) == []


def test_pauses_grow_and_an_announcement_ends_them_unless_refused() -> None:
    book = AddressBook("a", Random(1))
    book.heard(address("b"), announced=True, now=0)
    now, pauses = 0.0, list[float]()
    for _ in range(10):
        assert book.due(now, ()) == ["b"]
        book.failed("b", now)
        begun = now
        while not book.due(now, ()):
            now += 0.01
        pauses.append(now - begun)
        book.failed("b", now)
        book.heard(address("b"), announced=True, now=now)
    assert pauses[0] < 0.7 < pauses[-1] <= 7.6
    assert book.due(now, ()) == ["b"]
    book.failed("b", now, refused=True)
    book.heard(address("b"), announced=True, now=now)
    assert book.due(now + REFUSED_PAUSE_S - 1, ()) == []
    assert book.due(now + REFUSED_PAUSE_S, ()) == ["b"]


def test_the_newest_announced_place_comes_first_and_ipv4_before_ipv6() -> None:
    book = AddressBook("a", Random(1))
    book.heard(address("b", "fe80::1%eth0"), announced=True, now=0)
    book.heard(address("b", "10.0.0.1"), announced=True, now=0)
    book.heard(address("b", "10.0.0.2"), announced=True, now=1)
    book.heard(address("b", "10.0.0.3"), announced=False, now=2)
    assert [host for host, _ in book.places("b")] == ["10.0.0.2", "10.0.0.1", "10.0.0.3", "fe80::1%eth0"]


def test_who_is_somewhere_displaces_who_was() -> None:
    book = AddressBook("a", Random(1))
    book.heard(address("old"), announced=True, now=0)
    book.displaced("new", ("10.0.0.1", 1))
    assert book.due(1, ()) == []


def test_a_refused_node_that_moves_is_dialled_at_once() -> None:
    book = AddressBook("a", Random(1))
    book.heard(address("b", "10.0.0.1"), announced=True, now=0)
    assert book.due(0, ()) == ["b"]
    book.failed("b", 0, refused=True)
    book.heard(address("b", "10.0.0.1"), announced=True, now=1)
    assert book.due(1, ()) == []
    book.heard(address("b", "10.0.0.2"), announced=True, now=2)
    assert book.due(2, ()) == ["b"]
    book.heard(address("b", "10.0.0.3"), announced=True, now=3)
    book.failed("b", 3, refused=True)
    assert book.due(10, ()) == ["b"]


def test_addresses_that_mean_nothing_elsewhere_are_not_shared() -> None:
    known = [address("b", "10.0.0.1"), address("c", "127.0.0.1"), address("d", "fe80::1%eth0")]
    assert [a.node_id for a in sharable(known, "10.0.0.9")] == ["b"]
    assert [a.node_id for a in sharable(known, "127.0.0.1")] == ["b", "c"]


def test_a_caller_over_an_interface_that_has_just_gone_has_an_address() -> None:
    assert with_scope(("fe80::1", 5, 0, 2**31 - 1)) == f"fe80::1%{2**31 - 1}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host", ("host", 9)),
        ("host:1", ("host", 1)),
        ("10.0.0.1:22", ("10.0.0.1", 22)),
        ("[fe80::1%eth0]:7", ("fe80::1%eth0", 7)),
        ("fe80::1", ("fe80::1", 9)),
        ("::1", ("::1", 9)),
        (" node_1.lan. ", ("node_1.lan.", 9)),
    ],
)
def test_seeds_are_read(text: str, place: tuple[str, int]) -> None:
    assert parse_seed(text, 9) == place


@pytest.mark.parametrize(
    "text",
    ["", ":1", "host:port", "host:0", "host:70000", "host:²", "a b", "a..b", "a/b", "http://a:1", "1:2:3"],
)
def test_a_wrong_seed_is_told(text: str) -> None:
    with pytest.raises(TransportError, match="is no address; write host"):
        parse_seed(text, 9)


def test_a_seed_is_asked_until_its_node_is_linked() -> None:
    seeds = Seeds([("h", 1), ("h", 1)], Random(1))
    (seed,) = seeds.due(0, ())
    assert seeds.due(0, ()) == []
    seeds.asked(seed, "b", 0)
    assert seeds.due(60, {"b"}) == []
    assert seeds.due(60, ()) == [seed]
    seeds.is_me(seed)
    assert seeds.due(120, ()) == []


TERMS = Terms(peer("a"), "process a", "ours", Mode.SECRET)


def challenge(**fields: object) -> Challenge:
    known: dict[str, object] = {
        "protocol": PROTOCOL,
        "process": "process b",
        "cluster": tag_of("ours"),
        "mode": Mode.SECRET,
        "peer": peer("b"),
        "nonce": b"",
    }
    return Challenge(**(known | fields))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"protocol": 2}, "speaks protocol 2, this node 1"),
        ({"cluster": tag_of("theirs")}, "belongs to another cluster than 'ours'"),
        ({"peer": peer("b", version="0.2.0")}, "runs version 0.2.0, this node 0.1.0"),
        ({"mode": Mode.OPEN}, "is secured by open, this node by secret"),
        ({"peer": peer("a")}, "has this node's own id"),
    ],
)
def test_objections(fields: dict[str, object], sentence: str) -> None:
    assert sentence in (objection(TERMS, challenge(**fields), set()) or "")
    assert objection(TERMS, challenge(), set()) is None


def test_a_node_knows_itself() -> None:
    with pytest.raises(Myself):
        objection(TERMS, challenge(process="process a", peer=peer("a")), set())


@given(st.binary(max_size=100))
def test_no_greeting_hurts(data: bytes) -> None:
    try:
        assert pack(unpack(data))
    except Refused:
        return


def test_a_proof_is_of_one_side_one_talk_one_connection_one_secret() -> None:
    own = security("ours", "a secret of good length")
    proof = own.prove(Side.DIALER, (b"hello", b"challenge"), b"fingerprint")
    assert own.accepts(proof, Side.DIALER, (b"hello", b"challenge"), b"fingerprint")
    assert not own.accepts(proof, Side.ACCEPTOR, (b"hello", b"challenge"), b"fingerprint")
    assert not own.accepts(proof, Side.DIALER, (b"helloc", b"hallenge"), b"fingerprint")
    assert not own.accepts(proof, Side.DIALER, (b"hello", b"challenge"), b"another")
    other = security("ours", "a secret of good lengtH")
    assert not other.accepts(proof, Side.DIALER, (b"hello", b"challenge"), b"fingerprint")
    elsewhere = security("theirs", "a secret of good length")
    assert not elsewhere.accepts(proof, Side.DIALER, (b"hello", b"challenge"), b"fingerprint")


def test_a_refusal_is_told_once_in_ten_minutes() -> None:
    told: list[tuple[str, str]] = []
    now = [0.0]
    refusals = Refusals(lambda host, why: told.append((host, why)), lambda: now[0])
    for _ in range(3):
        refusals.tell("h", "it is wrong.")
    refusals.tell("h", "we are wrong.", by_peer=True)
    assert told == [("h", "No link: it is wrong."), ("h", "There this node is refused: we are wrong.")]
    now[0] = AGAIN_S
    refusals.tell("h", "it is wrong.")
    assert len(told) == 3


def test_what_a_stranger_says_does_nothing_to_a_terminal() -> None:
    told: list[str] = []
    Refusals(lambda host, why: told.append(why)).tell("h", "node \x1b[2J\n(é) is wrong.")
    assert told == ["No link: node ?[2J?(é) is wrong."]


def test_a_stranger_who_makes_up_refusals_fills_no_log() -> None:
    told: list[str] = []
    now = [0.0]
    refusals = Refusals(lambda host, why: told.append(why), lambda: now[0])
    for number in range(5_000):
        refusals.tell("h", f"node {number} belongs to another cluster.")
    assert len(told) == MAX_TOLD
    now[0] = AGAIN_S
    refusals.tell("h", "it is wrong.")
    assert told[MAX_TOLD:] == ["No link: it is wrong."]


def test_beacons_go_where_the_mesh_listens() -> None:
    lo, eth = Interface("lo", 1, "127.0.0.1", 2), Interface("eth0", 2, "10.0.0.1", 2)  # pyright: ignore[reportArgumentType]
    secret = "a secret of good length"
    assert MeshSettings().announced_on([lo, eth]) == [lo]
    assert MeshSettings(secret=secret).announced_on([lo, eth]) == [eth]
    assert MeshSettings(secret=secret).announced_on([lo]) == [lo]
    assert MeshSettings(secret=secret, bind="10.0.0.1").announced_on([lo, eth]) == [eth]
    assert MeshSettings(secret=secret, bind="127.0.0.1").announced_on([lo, eth]) == [lo]
    assert MeshSettings(secret=secret, multicast=False).announced_on([lo, eth]) == []
