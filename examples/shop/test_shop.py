"""What goes wrong between a shop and its cluster, and what must hold all the same.

    pip install -e '.[test]' && pytest

`naive` is expected to fail where it says so: these tests are how one finds out.
"""

from __future__ import annotations

import threading

import pytest
from shop import Shop, careful, naive

from twisted_broker.testing import Cluster, records

ORDERS = [b"%d" % number for number in range(5)]
INVOICES = sorted(b"invoice of " + order for order in ORDERS)

THREE = pytest.mark.kafka(
    brokers=3,
    topics={"orders": 1, "invoices": 1},
    settings={"min.insync.replicas": 2},
)


def both(fails: bool) -> pytest.MarkDecorator:
    """With either shop; `fails`: the naive one is wrong here."""
    found = pytest.param(naive, id="naive", marks=[pytest.mark.xfail(strict=True)] if fails else [])
    return pytest.mark.parametrize("shop", [found, pytest.param(careful, id="careful")])


def invoices(kafka: Cluster) -> list[bytes | None]:
    found = kafka.topic("invoices").records(isolation="read_committed")
    return sorted((each.value for each in found), key=lambda value: value or b"")


@both(fails=False)
@THREE
def test_each_order_has_its_invoice(kafka: Cluster, shop: Shop) -> None:
    kafka.topic("orders").produce(ORDERS)
    shop(kafka.bootstrap, len(ORDERS))
    assert invoices(kafka) == INVOICES
    assert kafka.group("shop").lag == 0


@both(fails=True)
@THREE
def test_an_invoice_that_is_refused_once_is_written_all_the_same(
    kafka: Cluster, shop: Shop
) -> None:
    kafka.topic("orders").produce(ORDERS)
    kafka.fail("Produce", "MESSAGE_TOO_LARGE", topic="invoices", times=1)
    shop(kafka.bootstrap, len(ORDERS))
    assert invoices(kafka) == INVOICES


@both(fails=True)
@THREE
def test_an_invoice_whose_answer_is_lost_is_written_once(kafka: Cluster, shop: Shop) -> None:
    kafka.topic("orders").produce(ORDERS)
    kafka.lose_answer("Produce", topic="invoices", times=1)
    shop(kafka.bootstrap, len(ORDERS))
    assert invoices(kafka) == INVOICES


@THREE
def test_a_careful_shop_outlives_the_leader_of_its_invoices(kafka: Cluster) -> None:
    kafka.topic("orders").produce(ORDERS[:2])
    shopping = threading.Thread(target=careful, args=(kafka.bootstrap, len(ORDERS)), daemon=True)
    shopping.start()
    kafka.wait_until(records("invoices") >= 2, within="30s")
    with kafka.leader("invoices", 0).killed():
        kafka.clock.advance("10s")
        kafka.topic("orders").produce(ORDERS[2:])
        shopping.join(60)
    assert invoices(kafka) == INVOICES
    kafka.assert_nothing_lost("invoices")
    kafka.assert_order_kept("invoices")
