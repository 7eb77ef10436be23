"""Client quotas: which one holds, what is measured, how long a client waits, what bounds it."""

from __future__ import annotations

import math
from itertools import product

import pytest

from twisted_broker.security.quota import client_quota_manager
from twisted_broker.security.quota.client_quota_manager import (
    EXPIRY_MS,
    NO_MUTATION_QUOTA,
    ClientQuotaManager,
    ControllerMutationQuotaManager,
    RequestQuotaManager,
)
from twisted_broker.security.quota.quotas import Entity, Quotas, Table
from twisted_broker.wire.errors import BrokerError, ErrorCode

ABSENT = "absent"


def put(
    manager: ClientQuotaManager,
    bound: float | None,
    user: str | None = ABSENT,
    client_id: str | None = ABSENT,
) -> None:
    """A None name is the default."""
    manager.update(
        bound,
        of_user=user != ABSENT,
        user=user,
        of_client=client_id != ABSENT,
        client_id=client_id,
    )


def limit(manager: ClientQuotaManager, user: str = "u", client_id: str = "c") -> float:
    return manager.limit(manager.tags(user, client_id))


# most specific first: (user, client id, what this user and client id have then)
LEVELS: list[tuple[str | None, str | None, tuple[str, str]]] = [
    ("u", "c", ("u", "c")),
    ("u", None, ("u", "c")),
    ("u", ABSENT, ("u", "")),
    (None, "c", ("u", "c")),
    (None, None, ("u", "c")),
    (None, ABSENT, ("u", "")),
    (ABSENT, "c", ("", "c")),
    (ABSENT, None, ("", "c")),
]


def test_the_most_specific_quota_holds_whatever_others_there_are() -> None:
    """RL 5.3: of user, client id, and both."""
    for chosen in product((False, True), repeat=len(LEVELS)):
        manager = ClientQuotaManager()
        there = [index for index, is_there in enumerate(chosen) if is_there]
        for index in there:
            put(manager, 100 + index, LEVELS[index][0], LEVELS[index][1])
        expected = 100 + there[0] if there else math.inf
        assert limit(manager) == expected, there
        if there:
            assert manager.tags("u", "c") == LEVELS[there[0]][2], there


def test_quotas_of_others_do_not_hold() -> None:
    manager = ClientQuotaManager()
    put(manager, 5, "other")
    put(manager, 6, "other", "c")
    put(manager, 7, ABSENT, "other")
    assert limit(manager) == math.inf
    assert manager.record("u", "c", 1e12, 0) == 0


def test_client_ids_of_one_user_share_its_quota() -> None:
    manager = ClientQuotaManager()
    put(manager, 1000, "u")
    assert manager.record("u", "a", 6000, 0) == 0
    assert manager.record("u", "b", 6000, 0) == 2000
    assert manager.record("v", "b", 6000, 0) == 0
    assert len(manager) == 2


def test_the_wait_is_the_excess_times_the_time_measured() -> None:
    manager = ClientQuotaManager()
    put(manager, 500, ABSENT, "c")
    assert manager.record("u", "c", 5000, 1) == 0
    # 0.5 above 500 in 10.5 s
    assert manager.record("u", "c", 500.0, 501) == round((5500 / 10.5 - 500) / 500 * 10_500)
    for now_ms in range(1001, 20_000, 1000):
        manager.record("u", "c", 0, now_ms)
    assert manager.record("u", "c", 0, 20_001) == 0


def test_taking_back_leaves_nothing_measured() -> None:
    manager = ClientQuotaManager()
    put(manager, 500, ABSENT, "c")
    assert manager.record("u", "c", 1 << 20, 7) > 0
    manager.record_no_throttle("u", "c", -(1 << 20), 7)
    assert manager.record("u", "c", 5000, 7) == 0


def test_a_changed_quota_counts_at_once_and_a_removed_one_ends() -> None:
    manager = ClientQuotaManager()
    put(manager, 500, ABSENT, "c")
    assert manager.record("u", "c", 10_000, 7) == 10_000
    put(manager, 2000, ABSENT, "c")
    assert manager.record("u", "c", 0, 7) == 0
    put(manager, 100, ABSENT, "c")
    assert manager.record("u", "c", 0, 7) == 90_000
    put(manager, None, ABSENT, "c")
    assert not manager.enabled and len(manager) == 0
    put(manager, None, ABSENT, "c")
    assert not manager.enabled


def test_levels_are_enabled_by_the_quotas_that_are_there() -> None:
    manager = ClientQuotaManager()
    seen = []
    for user, client_id in (("u", ABSENT), (ABSENT, "c"), ("u", "c")):
        put(manager, 1, user, client_id)
        seen.append(manager.enabled)
    assert seen == [2, 3, 7]
    put(manager, None, ABSENT, "c")
    assert manager.enabled == 6


def test_sensors_go_after_an_hour_without_use() -> None:
    manager = ClientQuotaManager()
    put(manager, 1, ABSENT, None)
    manager.record("u", "a", 1, 0)
    manager.record("u", "b", 1, 1)
    manager.record("u", "a", 1, 2)
    manager.record("u", "c", 1, EXPIRY_MS + 1)
    assert [tags for tags, _ in manager.newest()] == [("", "c"), ("", "a")]


def test_a_flood_of_client_ids_keeps_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quota_manager, "MOST_SENSORS", 3)
    manager = ClientQuotaManager()
    put(manager, 1, ABSENT, None)
    for number in range(10):
        manager.record("u", "used", 100, number)
        manager.record("u", f"c{number}", 1, number)
    assert len(manager) == 3
    assert manager.record("u", "used", 0, 10) > 0


def test_a_long_client_id_is_kept_short() -> None:
    manager = ClientQuotaManager()
    put(manager, 1, ABSENT, "x" * 30_000)
    put(manager, 10, ABSENT, "x" * 29_999 + "y")
    manager.record("u", "x" * 30_000, 100, 0)
    manager.record("u", "x" * 29_999 + "y", 100, 0)
    found = dict(manager.newest())
    assert len(found) == 2 and {each.bound for each in found.values()} == {1, 10}
    assert max(len(client_id) for _, client_id in found) <= 256


def test_the_most_that_may_be_fetched_at_once() -> None:
    manager = ClientQuotaManager(11, 2000)
    assert manager.most_in_window("u", "c") == math.inf
    put(manager, 100, "u")
    assert manager.most_in_window("u", "c") == 2000
    assert manager.most_in_window("v", "c") == math.inf


def test_time_is_waited_for_one_window_at_most() -> None:
    manager = RequestQuotaManager()
    put(manager, 1, ABSENT, "c")  # one per cent
    assert manager.record("u", "c", 100 * 0.1, 0) == 0
    assert manager.record("u", "c", 100 * 0.01, 0) == 1000
    assert manager.record("u", "d", 100 * 9, 0) == 0


def test_a_bound_that_nobody_may_set_divides_by_nothing() -> None:
    for bound in (0.0, -1.0, math.nan, math.inf):
        quotas = Quotas()
        table: Table = {
            (("user", "u"),): {
                "producer_byte_rate": bound,
                "request_percentage": bound,
                "controller_mutation_rate": bound,
            }
        }
        quotas.apply(table.keys(), {}, table)
        assert 0 <= quotas.produce.record("u", "c", 100, 0) < 2**31
        assert 0 <= quotas.request.record("u", "c", 100, 0) <= 1000
        quota = quotas.controller_mutation.quota_for("u", "c", False, 0)
        quota.record(1, 0)
        quota.record(1, 0)
        assert 0 <= quota.throttle_ms(0) < 2**31


# of mutations


def mutations(rate: float) -> ControllerMutationQuotaManager:
    manager = ControllerMutationQuotaManager()
    put(manager, rate, "u")
    return manager


def test_without_a_quota_mutations_are_not_counted() -> None:
    manager = ControllerMutationQuotaManager()
    assert manager.quota_for("u", "c", True, 0) is NO_MUTATION_QUOTA
    NO_MUTATION_QUOTA.record(1000, 0)
    assert NO_MUTATION_QUOTA.throttle_ms(0) == 0
    manager = mutations(1)
    quota = manager.quota_for("other", "c", True, 0)
    quota.record(1000, 0)
    assert quota.throttle_ms(0) == 0


def test_a_strict_quota_takes_what_begins_with_tokens_and_refuses_the_next() -> None:
    manager = mutations(2)
    quota = manager.quota_for("u", "c", True, 0)
    quota.record(30, 0)  # 22 tokens are there
    assert quota.throttle_ms(0) == 0
    with pytest.raises(BrokerError) as refused:
        quota.record(1, 0)
    assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert quota.throttle_ms(0) == 4000
    # As time passes the rest of the wait is shorter, and what was refused cost nothing.
    assert quota.throttle_ms(1500) == 2500 and quota.throttle_ms(5000) == 0
    manager.quota_for("u", "c", True, 4000).record(1, 4000)


def test_a_permissive_quota_takes_all_and_waits() -> None:
    manager = mutations(2)
    quota = manager.quota_for("u", "c", False, 0)
    quota.record(30, 0)
    quota.record(2, 0)
    assert quota.throttle_ms(0) == 5000


# as the metadata has them


def test_records_reach_the_manager_of_their_key() -> None:
    rates: list[tuple[str | None, float | None]] = []
    quotas = Quotas(on_ip_rate=lambda address, rate: rates.append((address, rate)))
    user_client: Entity = (("client-id", None), ("user", "u"))
    table: dict[Entity, dict[str, float]] = {
        (("user", None),): {"producer_byte_rate": 1, "consumer_byte_rate": 2, "of-the-future": 1},
        user_client: {"request_percentage": 3, "controller_mutation_rate": 4},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 5},
        (("ip", None),): {"connection_creation_rate": 6},
        (("group", "g"),): {"producer_byte_rate": 7},
    }
    quotas.apply(table.keys(), {}, table)
    assert quotas.active
    managers = (quotas.produce, quotas.fetch, quotas.request, quotas.controller_mutation)
    assert [limit(manager) for manager in managers] == [1, 2, 3, 4]
    assert sorted(rates, key=str) == [("10.0.0.1", 5), (None, 6)]
    after = {user_client: {"request_percentage": 9.0}}
    quotas.apply(table.keys(), table, after)
    assert [limit(manager) for manager in managers] == [math.inf, math.inf, 9, math.inf]
    assert rates[2:] == [("10.0.0.1", None), (None, None)]
    quotas.apply(after.keys(), after, {})
    assert not quotas.active


def test_rates_of_addresses_alone_cost_requests_nothing() -> None:
    quotas = Quotas()
    table: Table = {(("ip", "10.0.0.1"),): {"connection_creation_rate": 5}}
    quotas.apply(table.keys(), {}, table)
    assert not quotas.active
