"""A run: rounds of faults under load, healing after each, and the verdict over all that the clients
were told.

1. A seed says which kinds come in which order, who their victims are, and how long they hold. When
   things happen is the machine's.
2. A round is over when every partition is led and in sync everywhere, every producer has been
   acknowledged something that it sent after the healing, and every consumer has come past where the
   log ended then.
3. The verdict: no anomaly, a fresh reader finds it all, the replicas are equal, byte for byte, up
   to their ends, and no turn of a reactor was too long (`slow_turns.py`).
4. A group's member may stay away for good, whoever the broker is: confluent-kafka's when all
   brokers die during a rebalance (librdkafka issue 4884 and its kin), kafka-python's (3.0.12) as it
   joins on a busy machine, under Apache Kafka 4.3.1 as well. One that does is replaced after
   `_HANGING_SECONDS`, and counted.
5. With transactions one transactional program dies in each round, and its successor takes its
   transactional id over; after each round what was read so far is judged. One that is stuck in a
   call of its library is replaced and counted, too: under a stuck coordinator its successor would
   be stuck as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from tests.faults.asking import READ_COMMITTED, ends
from tests.faults.client_processes import LIBRARIES, Client, ClientProcesses
from tests.faults.cluster import BROKERS, Cluster, ways
from tests.faults.kinds import KINDS, Scene
from tests.faults.node import PATIENCE_SECONDS
from tests.faults.relay import CLIENTS, Relays
from tests.faults.security import PLAINTEXT
from tests.faults.slow_turns import slow_turns, too_slow
from tests.faults.summary import Summary, plan
from twisted_broker.cli.verify import PARTITION
from twisted_broker.cli.verify_replicas import Replica, verify_replicas
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.anomalies import counts, find_anomalies

TOPIC, COPIES, PARTITIONS = "records", "copies", 3
_HANGING_SECONDS = 60
_MAY_HANG = ("confluent-kafka", "kafka-python")
_SHOWN = 5


class Run:
    """One seed.

    `tell` gets a line per round; `directory` holds everything, and is the caller's to remove.
    """

    def __init__(
        self,
        seed: int,
        rounds: int,
        directory: Path,
        combined: bool = False,
        kinds: Sequence[str] = (),
        acks: str = "all",
        tell: Callable[[str], object] = print,
        security: str = PLAINTEXT,
        transactions: bool = False,
        is_quorum: bool = False,
    ) -> None:
        self.seed, self.directory, self.combined, self.acks, self.tell = (
            seed,
            directory,
            combined,
            acks,
            tell,
        )
        self.security, self.transactions, self.is_quorum = security, transactions, is_quorum
        self.plan = plan(seed, rounds, kinds)
        self.summary = Summary()

    def run(self) -> Summary:
        """Never raises for what the brokers did: that is in the summary."""
        with (
            Relays() as relays,
            Cluster(
                self.directory,
                relays,
                self.combined,
                security=self.security,
                is_quorum=self.is_quorum,
            ) as self.cluster,
        ):
            self.cluster.create_topic(TOPIC, PARTITIONS)
            if self.transactions:
                self.cluster.create_topic(COPIES, PARTITIONS)
            with ClientProcesses(
                self.directory / "clients",
                self.cluster.bootstrap,
                TOPIC,
                PARTITIONS,
                self.acks,
                self.cluster.authority,
                COPIES if self.transactions else "",
            ) as self.client_processes:
                healthy = (
                    self._is_fine("the beginning", self._begin)
                    and self._rounds()
                    and self._is_fine("the end", self._read_all)
                )
                self._judge(healthy)
                self._judge_turns()
                if healthy and self._is_fine("the stop", self.cluster.stop_all):
                    self._compare()
        return self.summary

    def log_tail(self) -> str:
        """What nodes and clients said last."""
        return f"{self.cluster.log_tail()}\n{self.client_processes.log_tail()}"

    def _begin(self) -> None:
        """All get on; and the relays know brokers, controller and clients by name: else a fault
        would cut nothing.
        """
        self._await_writers()
        self._await_readers()
        controller = self.cluster.controller.name
        kinds = [
            ways(controller, *(set(BROKERS) - {controller})),
            ways("1", "2", "3"),
            ways(CLIENTS, *BROKERS),
        ]
        used = self.cluster.relays.used
        self.cluster.until(
            lambda: all(used() & set(kind) for kind in kinds),
            lambda: f"ways of each kind are used: {sorted(used())}",
        )

    def _rounds(self) -> bool:
        return all(
            self._is_fine(f"round {number}, {name}", partial(self._round, number, name))
            for number, name in enumerate(self.plan, 1)
        )

    def _round(self, number: int, name: str) -> None:
        scene = Scene(self.cluster, Random(f"{self.seed} {number}"), TOPIC)
        if self.transactions:
            self.tell(f"round {number} {self.client_processes.crash(scene.random)} dies")
        began = time.monotonic()
        detail = KINDS[name](scene)
        held = time.monotonic() - began
        healed = self._heal()
        self.summary.rounds += 1
        self.summary.moves += scene.moves
        moved = "".join(f", others led after {seconds:.2f} s" for _, seconds in scene.moves)
        self.tell(
            f"round {number} {name} {detail}{moved}, held {held:.1f} s, {healed}; "
            f"{self.client_processes.history.acknowledged:,} acknowledged"
        )
        if self.transactions:
            found = find_anomalies(self.client_processes.history, ended=False)
            if found:
                raise AssertionError(f"{len(found)} anomalies, {found[0]}")

    def _is_fine(self, what: str, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:
            self.summary.problems.append(f"{what}: {error or repr(error)}")
            self.tell(f"FAILED in {what}: {error!r}")
            return False
        return True

    def _heal(self) -> str:
        """Until all is well again; says how long each part of it took."""
        began = time.monotonic()
        self.cluster.heal()
        self.cluster.until(
            lambda: not self.cluster.sick(), lambda: f"all led and in sync: {self.cluster.sick()}"
        )
        in_sync = time.monotonic() - began
        self._await_writers()
        written = time.monotonic() - began
        self._await_readers()
        return (
            f"in sync after {in_sync:.1f}, written {written:.1f}, read "
            f"{time.monotonic() - began:.1f} s"
        )

    def _await_writers(self) -> None:
        """Every producer is acknowledged something that it sends from now on."""
        now_ns = time.monotonic_ns()
        self._await_all(
            lambda: self.client_processes.silent(now_ns), "acknowledgements for {names}"
        )

    def _await_readers(self) -> None:
        """Every consumer comes to where the log ends now; with transactions, past everything that
        is acknowledged by now: markers are no records.
        """
        upto: dict[TopicPartition, int] = {}
        if self.transactions:
            upto |= self.client_processes.history.written
        else:
            self.cluster.until(
                lambda: upto.update(ends(self.cluster.addresses, TOPIC)) or True,
                "the ends of partitions",
            )
        self._await_all(lambda: self.client_processes.behind(upto), f"{{names}} at {upto}")

    def _await_all(self, late: Callable[[], list[Client]], what: str) -> None:
        """Until nobody is late. Those that may hang are replaced, once."""

        def names() -> str:
            return what.replace("{names}", ", ".join(each.job.name for each in late()))

        try:
            self.cluster.until(lambda: not late(), names, _HANGING_SECONDS)
        except TimeoutError:
            for client in late():
                if client.job.transactional_id or client.job.group.startswith(_MAY_HANG):
                    self.client_processes.replace(
                        client, f"did not come back within {_HANGING_SECONDS} s"
                    )
            self.cluster.until(lambda: not late(), names)

    def _read_all(self) -> None:
        """Producers stop; every consumer, and one that begins now, read to the end."""
        self.client_processes.stop("produce", PATIENCE_SECONDS)
        if self.transactions:
            self._end_transactions()
        library = Random(f"last {self.seed}").choice(LIBRARIES)
        self.client_processes.start("consume", library, f"{library}-last-reader")
        self._await_readers()
        self.client_processes.stop("consume", PATIENCE_SECONDS)

    def _end_transactions(self) -> None:
        """Writers end, copiers pass on what is there and end; then no transaction is open."""
        self.client_processes.stop("transact", PATIENCE_SECONDS)
        self._await_readers()
        self.cluster.until(
            lambda: not self.client_processes.uncopied(),
            lambda: f"{self.client_processes.uncopied()} values are passed on",
            look=1.0,
        )
        self.client_processes.stop("copy", PATIENCE_SECONDS)
        self.cluster.until(
            lambda: not any(self._is_open(topic) for topic in (TOPIC, COPIES)),
            "no transaction is open",
        )

    def _is_open(self, topic: str) -> bool:
        """Whether read_committed sees less than is there."""
        addresses = self.cluster.addresses
        return ends(addresses, topic, READ_COMMITTED) != ends(addresses, topic)

    def _judge(self, read_all: bool) -> None:
        self.client_processes.read()
        history = self.client_processes.history
        found = find_anomalies(history, ended=read_all)
        self.summary.anomalies = counts(found)
        for name in self.summary.anomalies:
            self.summary.problems += [
                str(each) for each in [each for each in found if each.name == name][:_SHOWN]
            ]
        self.summary.acknowledged = history.acknowledged
        self.summary.polled = sum(
            len(records) for poll in history.polls for records in poll.records.values()
        )
        self.summary.replaced = self.client_processes.replaced

    def _judge_turns(self) -> None:
        """What SIGSTOP took does not count, so only what the processor worked does."""
        self.summary.problems += [
            f"node {node.name}: a turn of the reactor of {each}"
            for node in self.cluster.nodes.values()
            for each in too_slow(slow_turns(node.log), is_idle=False)[:_SHOWN]
        ]

    def _compare(self) -> None:
        """The replicas, as they lie on disk: up to the high watermark, and that no log goes on
        beyond it.
        """
        directories = [Path(broker.data) for broker in self.cluster.brokers]
        self.summary.problems += [
            str(each) for each in verify_replicas(directories).findings[:_SHOWN]
        ]
        names = sorted(
            entry.name
            for entry in directories[0].iterdir()
            if PARTITION.fullmatch(entry.name) and entry.name != "__cluster_metadata-0"
        )
        for name in names:
            found = [Replica(directory / name, 0, 0).end for directory in directories]
            if len(set(found)) > 1:
                self.summary.problems.append(f"the replicas of {name} end at {found}")
