"""A bank on three brokers: transactional programs move money while brokers are killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.compat import bank
from tests.compat.cluster_processes import Cluster, View


def run_bank(directory: Path, tellers: int, count: int, kills: int) -> None:
    """The sum holds at each read; in the end each transfer is booked once."""
    cluster = Cluster(directory).start()
    try:
        view = View(cluster.bootstrap)
        view.create(bank.TRANSFERS, 6, 3, min_insync_replicas="2")
        view.create(bank.LEDGER, 1, 3, min_insync_replicas="2")
        view.create(f"{bank.LEDGER}-by-account", 3, 3, min_insync_replicas="2")
        wanted = bank.transfers(count, seed=count)
        staff = [bank.Teller(cluster.bootstrap, number).start() for number in range(tellers)]
        auditor = bank.Auditor(cluster.bootstrap, bank.LEDGER)
        try:
            share = -(-count // (kills + 1))
            for number in range(kills + 1):
                bank.order(cluster.bootstrap, wanted[number * share : (number + 1) * share])
                if number < kills:
                    auditor.look_until(2 * (number * share + share // 3), 60, staff)
                    kill_and_restart(cluster, number % cluster.count + 1, auditor)
                    staff[number % tellers].replace()
            auditor.look_until(2 * count, 120, staff)
            auditor.look(2)
            report = [str(each) for each in staff]
        finally:
            for teller in staff:
                teller.stop()
            print(*staff, sep="\n")
        assert auditor.bookings == 2 * count, (auditor.bookings, report)
        assert auditor.balances == bank.expected(wanted)
        assert all(staff[number % tellers].replaced for number in range(kills))
        assert auditor.looks > 0 and sum(each.aborted for each in staff) > 0
        other = bank.Auditor(cluster.bootstrap, f"{bank.LEDGER}-by-account")
        other.look_until(2 * count, 60)
        other.look(1)
        assert (other.bookings, other.balances) == (2 * count, auditor.balances)
        other.close()
        auditor.close()
    except BaseException:
        print(cluster.log_tail())
        raise
    finally:
        cluster.end()


def kill_and_restart(cluster: Cluster, node_id: int, auditor: bank.Auditor) -> None:
    """The auditor goes on reading while the broker is gone."""
    broker = cluster.brokers[node_id]
    broker.kill()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        auditor.look()
    broker.start()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_sum_holds_while_a_broker_is_killed(tmp_path: Path) -> None:
    run_bank(tmp_path, tellers=4, count=200, kills=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_sum_holds_through_kills(tmp_path: Path) -> None:
    """Ten programs, each broker killed twice."""
    run_bank(tmp_path, tellers=10, count=4000, kills=6)
