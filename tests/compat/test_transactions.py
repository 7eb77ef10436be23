"""Transactions of stock clients: their documentation's code against one broker."""

from __future__ import annotations

import pytest

from tests.compat import transactional
from tests.compat.cluster_processes import View
from tests.compat.conftest import BrokerProcess

LAST = b"the last one"

each_client = pytest.mark.parametrize("client", transactional.ALL, ids=lambda each: each.name)


@each_client
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    broker: BrokerProcess, topic: str, client: transactional.TransactionalClient
) -> None:
    """By every client, in order; the reader gets past the aborted ones."""
    rounds = [([b"%d-%d" % (n, i) for i in range(4)], n % 3 != 1) for n in range(6)]
    client.produce(broker.bootstrap, topic, topic, [*rounds, ([LAST], True)])
    expected = [value for values, commits in rounds if commits for value in values] + [LAST]
    for reader in transactional.ALL:
        assert reader.read_committed(broker.bootstrap, topic, len(expected)) == expected


@each_client
def test_a_program_that_reads_and_writes_copies_each_record_once(
    broker: BrokerProcess, topic: str, client: transactional.TransactionalClient
) -> None:
    """Its offsets are part of its transactions: a second run of it goes on where the first one
    stopped.
    """
    target = f"{topic}-copy"
    view = View(broker.bootstrap)
    view.create(topic, 3, 1)
    view.create(target, 1, 1)
    values = [b"v%d" % n for n in range(30)]
    for some, expected in ((values[:20], 20), (values[20:], 10)):
        client.produce(broker.bootstrap, f"{topic}-in", topic, [(some, True), ([b"no"], False)])
        how = (broker.bootstrap, f"{topic}-copier", f"{topic}-group", topic, target, expected)
        assert client.copy(*how) == expected
    client.produce(broker.bootstrap, f"{topic}-in", target, [([LAST], True)])
    found = client.read_committed(broker.bootstrap, target, len(values) + 1)
    assert sorted(found[:-1]) == sorted(value.upper() for value in values) and found[-1] == LAST


@each_client
def test_a_second_instance_fences_the_first(
    broker: BrokerProcess, topic: str, client: transactional.TransactionalClient
) -> None:
    """What the first one wrote in its open transaction is aborted."""
    error = client.fence(broker.bootstrap, topic, topic)
    assert error, "the first instance committed"
    assert client.read_committed(broker.bootstrap, topic, 1) == [b"of the second"]
