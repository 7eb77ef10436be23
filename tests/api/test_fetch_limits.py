"""How much one answer may carry, version by version, and whom a follower serves (RL 1.8, 2.7)."""

from __future__ import annotations

import pytest

from tests.api.data_plane import Api
from tests.api.test_fetch import OTHER, OTHER_ID, got, parts
from tests.replication.fixtures import Fixture, batch, registration
from twisted_broker.wire.errors import ErrorCode

VALUE = b"x" * 1000
SIZE = len(batch(value=VALUE))
BOTH = (("t", 0, 0), ("other", 0, 0))


def filled(**settings: str) -> Api:
    """`t` and `other`, each with three batches of a kilobyte."""
    fixture = Fixture(**settings)
    fixture.topic()
    fixture.topic("other", None, OTHER_ID)
    for _ in range(3):
        fixture.produce(value=VALUE)
        fixture.produce(tp=OTHER, value=VALUE)
    return Api(fixture)


def sizes(api: Api, *asked: tuple, **options: object) -> list[int]:
    return [
        len(partition.records or b"") for partition in parts(got(api, *(asked or BOTH), **options))
    ]


@pytest.mark.parametrize(
    ("version", "max_bytes", "expected"),
    [
        (4, 1, [SIZE, 0]),
        (4, SIZE, [SIZE, 0]),
        (4, 2 * SIZE + 1, [2 * SIZE + 1, 0]),
        (4, 4 * SIZE, [3 * SIZE, SIZE]),
        (11, 10 * SIZE, [3 * SIZE, 3 * SIZE]),
        (18, 4 * SIZE, [3 * SIZE, SIZE]),
    ],
)
def test_the_response_limit_is_filled_in_the_order_of_the_request(
    version: int, max_bytes: int, expected: list[int]
) -> None:
    """RL 1.8: version >= 3: the first non-empty partition may exceed it by one whole batch; the
    next gets what is left, never a cut first batch.
    """
    assert sizes(filled(), version=version, max_bytes=max_bytes) == expected


def test_an_empty_first_partition_leaves_its_right_to_the_next() -> None:
    """RL 1.8: it is the first one that has records which may exceed the limit."""
    assert sizes(filled(), ("t", 0, 3), ("other", 0, 0), version=11, max_bytes=1) == [0, SIZE]


@pytest.mark.parametrize(
    ("version", "expected"), [(4, [SIZE, 0]), (11, [SIZE, 0]), (18, [SIZE, 0])]
)
def test_fetch_max_bytes_bounds_every_answer(version: int, expected: list[int]) -> None:
    """RL 1.8: min(request, `fetch.max.bytes`)."""
    assert sizes(filled(fetch_max_bytes="1024"), version=version, max_bytes=1 << 30) == expected


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_have_no_limit_for_the_answer(version: int) -> None:
    """RL 1.8: version <= 2: each partition has its own hard limit, and only that: the second is
    as full as the first.
    """
    api = filled()
    limit = {"partition_max_bytes": SIZE - 100}
    first, second = sizes(api, ("t", 0, 0, limit), ("other", 0, 0, limit), version=version)
    assert first == second and 0 < first <= SIZE - 100


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, "NOT_LEADER_OR_FOLLOWER"), (10, "NOT_LEADER_OR_FOLLOWER"), (11, "NONE"), (18, "NONE")],
)
def test_a_follower_serves_consumers_from_version_11_on(version: int, code: str) -> None:
    """RL 2.7, 1.8: older consumers, and followers, must go to the leader."""
    api = filled()
    api.fixture.topic(states={0: registration(2, (1, 2), None, 1, 1)})
    (partition,) = parts(got(api, ("t", 0, 0), version=version))
    assert partition.error_code == ErrorCode[code]
    (partition,) = parts(got(api, ("t", 0, 0), version=version, replica=2))
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("bound", ["request", "setting"])
def test_min_bytes_is_never_above_what_an_answer_may_carry(bound: str) -> None:
    """RL 1.8: who asks for more than may be sent is answered with what may be sent, at once."""
    api = filled(fetch_max_bytes="1024") if bound == "setting" else filled()
    most = 1 << 30 if bound == "setting" else SIZE
    assert sizes(api, version=11, max_bytes=most, min_bytes=1 << 20, max_wait_ms=500) == [SIZE, 0]
