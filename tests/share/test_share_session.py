"""Share sessions: epochs, bounds, connections (GN 3.30-3.36, 6.13)."""

import pytest

from twisted_broker.share.share_session import SessionKey, ShareSession, ShareSessionCache
from twisted_broker.wire.errors import BrokerError, ErrorCode

A, B, C = (b"t" * 16, 0), (b"t" * 16, 1), (b"u" * 16, 0)
ONE, TWO, OTHER = SessionKey("g", "m1"), SessionKey("g", "m2"), SessionKey("h", "m1")


def code_of(call, *args):
    with pytest.raises(BrokerError) as raised:
        call(*args)
    return raised.value.code


def test_each_request_raises_the_epoch_and_others_change_nothing():
    session = ShareSession(ONE, [A], "c")
    session.next_epoch(1)
    for epoch in (0, 1, 3, -1):
        assert code_of(session.next_epoch, epoch) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session.next_epoch(2)
    assert session.epoch == 3


def test_behind_the_last_epoch_comes_the_first():
    session = ShareSession(ONE, [A], "c")
    session.epoch = 2**31 - 1
    session.next_epoch(2**31 - 1)
    assert session.epoch == 1


def test_no_session_is_an_error():
    assert code_of(ShareSessionCache(2).get, ONE) == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_there_are_no_more_than_allowed_and_an_old_one_makes_room_for_its_own():
    cache = ShareSessionCache(2)
    cache.open(ONE, [A], "c1")
    cache.open(TWO, [A, B], "c2")
    assert code_of(cache.open, OTHER, [A], "c3") == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert cache.open(ONE, [C], "c1").epoch == 1
    assert (len(cache), cache.partitions, cache.members_of("g")) == (2, 3, 2)
    cache.remove(TWO)
    cache.open(OTHER, [A], "c3")
    assert (cache.members_of("g"), cache.members_of("h")) == (1, 1)


def test_a_session_that_is_opened_anew_over_another_connection_leaves_the_first():
    cache = ShareSessionCache(2)
    cache.open(ONE, [A], "c1")
    cache.open(ONE, [A], "c2")
    assert cache.of_connection("c1") == []
    assert cache.of_connection("c2") == [ONE]


def test_a_connection_may_carry_several():
    cache = ShareSessionCache(5)
    for key in (TWO, ONE):
        cache.open(key, [A], "c")
    assert cache.of_connection("c") == [ONE, TWO]
    cache.remove(ONE)
    assert cache.of_connection("c") == [TWO]


def test_all_are_gone_when_share_groups_are_not_served_any_more():
    cache = ShareSessionCache(5)
    cache.open(ONE, [A], "c")
    cache.clear()
    assert (len(cache), cache.members_of("g"), cache.of_connection("c")) == (0, 0, [])


def test_the_partitions_are_rotated_by_the_epoch():
    session = ShareSession(ONE, [A, B, C], "c")
    assert session.rotated(0) == [A, B, C]
    assert session.rotated(4) == [B, C, A]
    assert ShareSession(ONE, [], "c").rotated(3) == []


def test_an_answer_names_what_has_records_an_error_or_must_be_updated():
    session = ShareSession(ONE, [A, B], "c")
    session.partitions[B] = True
    assert not session.must_show(A, has_records=False, has_error=False)
    assert session.must_show(B, has_records=False, has_error=False)
    assert not session.must_show(B, has_records=False, has_error=False)
    assert session.must_show(A, has_records=False, has_error=True)
    assert session.must_show(A, has_records=False, has_error=False)
    assert session.must_show(A, has_records=True, has_error=False)
    assert list(session.partitions) == [B, A]
    assert session.must_show(C, has_records=False, has_error=False)
