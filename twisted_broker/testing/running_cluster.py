"""The brokers of a test's cluster, in the process and the reactor of the caller.

Owns `RunningCluster`: their settings, start and stop, together and one by one, and what is done to
their machines, links and disks.

1. Topics have as many replicas as there are brokers, three at most, unless a setting says
   otherwise.
2. It is ready when every broker serves clients and the topics are there.
3. Each broker is a machine of its own; several have a controller beside them, node 100, which is
   one, too. One alone is its controller.
4. Machines talk in memory, clients by TCP. Brokers talk by TCP as well where a setting names the
   listener between them, or an authorizer: then who they are counts.
5. A call returns when what it says holds on every machine that runs, or raises what is missing. A
   machine that is frozen, fenced or stale does not count.
6. A machine whose process ended keeps its files, also in memory, and its port.

Ring 2. Source: our own. Not here: what is asked of it (`cluster_calls.py`), what a machine is
(`machine.py`).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.api.context import ListenerName
from twisted_broker.api.dispatch import Dispatcher
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.local_cluster import LocalCluster
from twisted_broker.net.listeners import parse_endpoints
from twisted_broker.security.security_protocol import PROTOCOL_MAP, SecurityProtocol
from twisted_broker.server.kafka_server import STARTING_ERRORS, KafkaServer
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.start_checks import StartError
from twisted_broker.tap import (
    IN_MEMORY,
    MEMORY,
    Options,
)
from twisted_broker.testing.admin_calls import AdminCalls
from twisted_broker.testing.changes import Changes, changes
from twisted_broker.testing.cluster_calls import CallFailed, ClusterCalls
from twisted_broker.testing.condition_values import ConditionValues, out_of_isr, unsettled
from twisted_broker.testing.evidence import Evidence
from twisted_broker.testing.faulty_dispatcher import FaultyDispatcher
from twisted_broker.testing.group_members import GroupMembers
from twisted_broker.testing.handed_out import Raised, handed_out
from twisted_broker.testing.handles import CONTROLLER_NODE
from twisted_broker.testing.held_metadata import HeldMetadata
from twisted_broker.testing.in_force import STRIKES, InForce
from twisted_broker.testing.live_network import CLIENTS
from twisted_broker.testing.live_world import LiveWorld, World
from twisted_broker.testing.machine import Machine
from twisted_broker.testing.request_rules import RequestRules
from twisted_broker.testing.skew import Skews
from twisted_broker.testing.wakes import Wakes

_MOST_REPLICAS = 3
_PERIOD_SECONDS = 0.005
_CLIENT_PORT, _CONTROLLER_PORT, _BROKER_PORT = 9092, 9093, 9094
_BETWEEN_BROKERS, _TEST = "INTERNAL", "test"
_MOST_STEPPED, _STOP_SECONDS = 600.0, 30.0
_OF_OTHERS = (
    "authorizer.class.name",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
)
_logger = Logger(namespace="replog.testing")


class _Broker(KafkaServer):
    """One whose clients' requests may be struck."""

    def __init__(self, of_clients: tuple[RequestRules, GroupMembers], *arguments: Any) -> None:
        self._of_clients = of_clients
        super().__init__(*arguments)

    def make_dispatcher(self, name: ListenerName) -> Dispatcher:
        if name.is_controller or name.name == _BETWEEN_BROKERS:
            return super().make_dispatcher(name)
        return FaultyDispatcher(*self._of_clients, self.parts, name)


class _Brokers(LocalCluster):
    """`machines`: by node; `of_clients`: faults of their requests, and
    members of groups. `on_failure(reason)`: they cannot start;
    `on_end(broker, reason)`: one cannot go on.
    """

    def __init__(
        self,
        machines: Mapping[int, Machine],
        of_clients: tuple[RequestRules, GroupMembers],
        on_failure: Callable[[str], None],
        on_end: Callable[[KafkaServer, str], None],
        configs: list[BrokerConfig],
        outside: Runtime,
        **more: Any,
    ) -> None:
        # What belongs to no machine waits by the clock outside.
        super().__init__(configs, lambda config: outside, **more)
        self._machines, self._of_clients = machines, of_clients
        self._on_failure, self._on_end = on_failure, on_end

    def _make(self, config: BrokerConfig, runtime: Runtime) -> KafkaServer:
        broker = self._process(config, len(self.brokers))
        self.brokers.append(broker)
        return broker

    def _process(self, config: BrokerConfig, index: int) -> KafkaServer:
        runtime = self._machines[config.node_id].switch_on()
        fail = partial(self._fail_one, index)
        return _Broker(self._of_clients, config, runtime, self._cluster_id, self._descriptors, fail)

    def _fail(self, reason: str) -> None:
        self._on_failure(reason)

    def _fail_one(self, index: int, reason: str) -> None:
        if self._is_ready:
            self._on_end(self.brokers[index], reason)
        else:
            self._fail(reason)

    def runs(self, broker: KafkaServer) -> bool:
        return broker not in self._ended

    def leave(self, broker: KafkaServer) -> None:
        """Begins to stop it in order."""
        self._ended[broker] = ensureDeferred(self._stop_broker(broker))

    def left(self, broker: KafkaServer) -> Deferred[None]:
        """Fires when it has stopped, as that ends."""
        done: Deferred[None] = Deferred()
        self._ended[broker].chainDeferred(done)
        return done

    def forget(self, broker: KafkaServer) -> None:
        """Its process ended without a word."""
        self._ended[broker] = succeed(None)
        self._status_ports.pop(broker, None)

    def come_back(self, broker: KafkaServer) -> tuple[KafkaServer, Deferred[None]]:
        """Another process in its place, and its start, which fails with one of STARTING_ERRORS."""
        index = self.brokers.index(broker)
        config = BrokerConfig({**broker.config.static, "listeners": _bound(broker)})
        again = self.brokers[index] = self._process(config, index)
        return again, ensureDeferred(self._start_one(again))

    def take_back(self, again: KafkaServer, broker: KafkaServer) -> None:
        """It did not start: the one before it knows its ports, for the next attempt."""
        self.forget(again)
        del self._ended[again]
        self.brokers[self.brokers.index(again)] = broker


def _bound(broker: KafkaServer) -> str:
    """Its listeners, on the ports that it had."""
    ports = {each.name: each.port for each in broker.listeners}
    given = parse_endpoints("listeners", broker.config.names("listeners"))
    return ",".join(str(each._replace(port=ports[each.name])) for each in given)


def machine_name(node: int) -> str:
    """On the network."""
    return "controller" if node == CONTROLLER_NODE else f"broker-{node}"


def node_title(node: int) -> str:
    """For people."""
    return "the controller" if node == CONTROLLER_NODE else f"broker {node}"


def _with_controller(configs: list[BrokerConfig]) -> list[BrokerConfig]:
    """With one more, the first: the controller that was node 1's."""
    first = dict(configs[0].static)
    names = {each.upper() for each in configs[0].names("controller.listener.names")}
    listeners = parse_endpoints("listeners", configs[0].names("listeners"))
    controller = first | {
        "node.id": str(CONTROLLER_NODE),
        "process.roles": "controller",
        "listeners": ",".join(str(each) for each in listeners if each.name in names),
        "replog.status.port": "-1",
    }
    for name in ("advertised.listeners", "broker.id", "inter.broker.listener.name"):
        controller.pop(name, None)
    for name in ("log.dirs", "metadata.log.dir"):
        if name in first:
            homes = [posixpath.dirname(each) for each in first[name].split(",")]
            controller[name] = ",".join(posixpath.join(home, "controller") for home in homes)
    first["process.roles"] = "broker"
    first["listeners"] = ",".join(str(each) for each in listeners if each.name not in names)
    return [BrokerConfig(controller), BrokerConfig(first), *configs[1:]]


def _with_own_listener(settings: dict[str, str]) -> dict[str, str]:
    """With one more, by which brokers talk, unless these settings say by which they do."""
    own = f"{_BETWEEN_BROKERS}://127.0.0.1:0"
    listeners = [settings.get("listeners", "PLAINTEXT://127.0.0.1:0"), own]
    protocols = [settings[PROTOCOL_MAP], f"{_BETWEEN_BROKERS}:PLAINTEXT"]
    found = settings | {
        "inter.broker.listener.name": _BETWEEN_BROKERS,
        "listeners": ",".join(listeners),
        PROTOCOL_MAP: ",".join(protocols),
    }
    if "advertised.listeners" in settings:
        found["advertised.listeners"] += f",{own}"
    return found


def _on_its_machine(config: BrokerConfig, clients_are_inside: bool) -> BrokerConfig:
    """Its listeners are on the network in memory; the clients' where those are inside, too."""
    values = dict(config.static)
    host = machine_name(config.node_id)
    ports = {each.upper(): _CONTROLLER_PORT for each in config.names("controller.listener.names")}
    ports[_BETWEEN_BROKERS] = _BROKER_PORT
    if clients_are_inside:
        ports["PLAINTEXT"] = _CLIENT_PORT
    for setting in ("listeners", "advertised.listeners"):
        if setting in values:
            values[setting] = ",".join(
                str(each._replace(host=host, port=ports[each.name]) if each.name in ports else each)
                for each in parse_endpoints(setting, config.names(setting))
            )
    return BrokerConfig(values)


class RunningCluster:
    """`brokers` of them; `settings` of Kafka, for all; `data`: their directory, None for memory;
    `topics`: names, and how many partitions of each; `make_world`: of the first broker's settings;
    `seed`: of the chances of what is struck, None: another one each time. Raises StartError.
    """

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        data: str | None = None,
        topics: Mapping[str, int] | None = None,
        make_world: Callable[[BrokerConfig], World] | None = None,
        seed: int | None = None,
    ) -> None:
        options = Options()
        options.most_controllers = 1  # on a machine of its own
        replicas = str(min(brokers, _MOST_REPLICAS))
        options.settings = {
            "default.replication.factor": replicas,
            # A controlled shutdown ends with a heartbeat: Kafka's 2 s would be a test's, too.
            "broker.heartbeat.interval.ms": "200",
            # Kafka's own default, and the controller's, which a secured listener ends.
            PROTOCOL_MAP: ",".join(
                [*(f"{each.name}:{each.name}" for each in SecurityProtocol), "CONTROLLER:PLAINTEXT"]
            ),
            **(settings or {}),
        }
        if not options.settings.keys() & set(_OF_OTHERS):
            options.settings = _with_own_listener(options.settings)
        arguments = ["--brokers", str(brokers), "--data", data or MEMORY]
        if "listeners" not in (settings or {}):  # which say it themselves
            arguments += ["--port", "0"]
        try:
            options.parseOptions(arguments)
        except SystemExit as error:
            raise StartError(str(error).removeprefix("replog: ")) from None
        self._topics, self._data = dict(topics or {}), data
        self._handed_out: dict[str, Any] | None = None
        self._is_struck = False
        self._stale: dict[int, HeldMetadata] = {}
        self._fenced: set[int] = set()
        self._page: Any = None
        self._ready: Deferred[None] = Deferred()
        self._failed = ""
        self._running: list[KafkaServer] = []
        configs = options.broker_configs
        world = (make_world or partial(LiveWorld, seed=seed))(configs[0])
        self._reactor, self._outside = world.reactor, world.outside
        self._clock, self._network = world.clock, world.network
        self._wakes = Wakes(self._reactor, self._outside.clock)
        self._clock.ran = self._ran
        configs = [
            _on_its_machine(each, world.clients_are_inside)
            for each in (configs if brokers == 1 else _with_controller(configs))
        ]
        self._configs = configs
        if not self._has_own_listener:
            self._wakes.period = _PERIOD_SECONDS
        self._rules, self._members = RequestRules(seed or 0), GroupMembers()
        self._in_force = InForce(node_title, self._rules.is_over)
        self._skews = Skews(lambda: self._clock.ahead_ms, self._clock.outside_ms)
        self._machines = {
            each.node_id: world.machine(machine_name(each.node_id), data is not None)
            for each in configs
        }
        self._service = _Brokers(
            self._machines,
            (self._rules, self._members),
            self._fail,
            self._cannot_go_on,
            configs,
            world.outside,
            reactor=world.reactor,
            descriptors=world.descriptors,
            when_ready=partial(self._ready.callback, None),
        )
        self._calls: ClusterCalls | None = None

    def _fail(self, reason: str) -> None:
        self._failed = reason
        if not self._ready.called:
            self._ready.errback(StartError(reason))

    def _ran(self, clock: NodeClock) -> None:
        """A machine did something. What the test's own calls do is no reason to look again."""
        if clock.name in self._network.names:
            self._wakes.wake()

    def _cannot_go_on(self, broker: KafkaServer, reason: str) -> None:
        # Not within the call that found the failure: it may be in the middle of a log.
        self._reactor.callLater(0, self._end_failed, broker, reason)

    def _end_failed(self, broker: KafkaServer, reason: str) -> None:
        if self._service.runs(broker):
            name = node_title(broker.config.node_id)
            _logger.critical("{name} stops: {reason}", name=name, reason=reason)
            self._ended_by_disk.add(broker.config.node_id)
            ensureDeferred(self.kill(broker.config.node_id))

    async def start(self) -> None:
        """Ends when it serves clients and has its topics. Raises StartError."""
        self._ended_by_disk: set[int] = set()
        self._service.startService()
        await self._ready
        self._note_running()
        self.ids = sorted(each.config.node_id for each in self._running)
        self._calls = self._own_calls()
        self._changes = Changes(self._calls, self._running, self._members)
        self._admin = AdminCalls(self._calls)
        self._evidence = Evidence(self._calls, self._network.trace)
        for name, partitions in self._topics.items():
            await self._calls.make_topic(name, partitions)

    def _own_calls(self) -> ClusterCalls:
        """Past the links and listeners of clients, where the brokers have one of their own."""
        requests = self._network.trace.count
        runtime = replace(self._outside, wall_ms=self._client_ms)
        if not self._has_own_listener:
            return ClusterCalls(self._running, runtime, requests)
        runtime.network = self._network.switch_on(NodeClock(self._clock, _TEST))
        return ClusterCalls(self._running, runtime, requests, _BETWEEN_BROKERS)

    def _client_ms(self) -> int:
        """Of a client's calendar: as outside, unless that of the machines stands."""
        fixed = self._clock.fixed_ms
        return self._outside.wall_ms() if fixed is None else fixed

    @property
    def _has_own_listener(self) -> bool:
        return any(
            each.static.get("inter.broker.listener.name") == _BETWEEN_BROKERS
            for each in self._configs
        )

    @property
    def calls(self) -> ClusterCalls:
        """Raises CallFailed once it cannot go on."""
        assert self._calls is not None, "start comes first"
        if self._failed:
            raise CallFailed(f"the cluster stopped: {self._failed}")
        return self._calls

    def _note_running(self) -> None:
        self._running[:] = [
            each
            for each in self._service.brokers
            if "broker" in each.roles
            and self._service.runs(each)
            and not self._machine(each).is_frozen
            and each.config.node_id not in self._fenced | self._stale.keys()
        ]
        self._wakes.wake()

    def _machine(self, broker: KafkaServer) -> Machine:
        return self._machines[broker.config.node_id]

    async def stop(self) -> None:
        """In order: files are closed as after a clean shutdown, and nothing is left behind."""
        if self._calls is not None:
            self._calls.close()
        for held in self._stale.values():
            held.let_go()
        for machine in self._machines.values():
            machine.heal_disk()
            if machine.is_frozen:
                machine.thaw()
        ways = [*self._network.blocked, *self._network.delays, *self._network.rates]
        self._network.heal_ways(ways)
        with suppress(CallFailed, TimeoutError):
            first = self._service.brokers[0]
            if not self._service.runs(first):  # a controlled shutdown asks the controller
                await self.restart_broker(first.config.node_id, _STOP_SECONDS)
            await self._until_done(
                self._service.stopService(), _STOP_SECONDS, "the cluster has not stopped"
            )
        for machine in self._machines.values():
            if machine.is_on:
                await machine.off()
            await machine.power_is_back()
            await machine.close()
        self._clock.stop()
        self._skews.close()
        network: Any = self._outside.network
        await network.close()

    # copies of the process

    def check_can_sleep(self) -> None:
        """Raises CallFailed: as it is now, it cannot be copied."""
        assert self._calls is not None, "start comes first"
        if self._data is not None:
            raise CallFailed("with data= the files are the system's, which a snapshot cannot keep")
        if not self._has_own_listener:
            raise CallFailed(
                "brokers talk by TCP here, as a setting of listeners or authorizers wants it: what "
                "is on its way between them cannot be copied"
            )
        for node, machine in self._machines.items():
            if not machine.is_on or machine.is_frozen:
                what = "is frozen" if machine.is_frozen else "does not run"
                raise CallFailed(
                    f"{node_title(node)} {what}: a snapshot is taken of a whole cluster"
                )
        if self._stale:
            raise CallFailed(
                f"broker {next(iter(self._stale))} is stale: a snapshot is taken of a whole cluster"
            )
        if self._network.blocked:
            one, other = sorted(self._network.blocked)[0]
            raise CallFailed(
                f"the link of {one} and {other} is cut: a snapshot is taken of a whole cluster"
            )

    async def is_left(self) -> bool:
        """No client can come back: each that came has closed its connections by itself, and nothing
        was struck that one may be waiting to see healed.
        """
        network = self._network
        return not (self._is_struck or network.tcp or network.ended_clients)

    def client_descriptors(self) -> list[int]:
        """Of the connections of clients."""
        return self._network.descriptors()

    @property
    def sockets(self) -> dict[str, int]:
        """Descriptors of the ports for clients, by address."""
        return {name: at for each in self._machines.values() for name, at in each.sockets.items()}

    def handed_out(self) -> dict[str, Any]:
        """What is not to be handed out again."""
        return {**handed_out(self._service.brokers, self._handed_out), "is_struck": True}

    def reset_clients(self) -> None:
        """Their connections, all of them."""
        self._network.reset_clients()

    def slept(self, seconds: float, sockets: Mapping[str, int]) -> None:
        """In a fork that was asleep: goes on from there, with these sockets."""
        self._clock.slept(seconds)
        for machine in self._machines.values():
            machine.take_sockets(sockets)
            machine.random.seed()
        for descriptor in sockets.values():
            os.close(descriptor)

    async def wake_up(self, words: dict[str, Any], within: float = 30.0) -> None:
        """Serves clients again, with none of the numbers that were handed out meanwhile. Raises
        CallFailed, TimeoutError.
        """
        self._is_struck = words.pop("is_struck", False)
        self._handed_out = words
        for machine in self._machines.values():
            machine.let_in(False)
        self._network.reset_clients()
        await self._until(lambda: "clients are connected" if self._network.tcp else "", within)
        controller = self._service.brokers[0]
        until = partial(self._until, within=within)
        await Raised(self._running, controller, words, until, self.calls).apply()
        for machine in self._machines.values():
            machine.let_in(True)

    async def save(self, directory: str) -> None:
        """Writes the files of all machines there, as `data` has them. Raises CallFailed."""
        if os.path.isdir(directory) and os.listdir(directory):
            raise CallFailed(f"{directory} is not empty: name a directory that is new")
        try:
            for machine in self._machines.values():
                directories, files = machine.files()
                _write(directory, directories, files)
        except ValueError:
            raise CallFailed(f"with data= the files are there: {self._data}") from None
        except OSError as error:
            raise CallFailed(f"the cluster is not saved: {error}") from None

    # machines

    def _broker(self, node: int) -> KafkaServer:
        """Raises CallFailed."""
        for each in self._service.brokers:
            if each.config.node_id == node:
                return each
        raise CallFailed(f"there is no broker {node}: there are {', '.join(map(str, self.ids))}")

    def _process(self, node: int) -> KafkaServer:
        """One that runs. Raises CallFailed."""
        broker = self._broker(node)
        if not self._service.runs(broker):
            raise CallFailed(f"{node_title(node)} does not run")
        return broker

    async def kill(self, node: int) -> None:
        """Its process is gone. Nothing for one that does not run. Raises CallFailed."""
        broker = self._broker(node)
        if self._machine(broker).is_on:  # also in the middle of its stop
            self._service.forget(broker)
            await self._machine(broker).off()
            self._note_running()

    async def crash(self, node: int, lose_unsynced: bool, torn: bool) -> None:
        """Its machine has no power any more. Raises CallFailed."""
        broker = self._process(node)
        if torn and not lose_unsynced:
            raise CallFailed("what is not lost is not torn: lose_unsynced=True goes with torn=True")
        if lose_unsynced:
            self._machine(broker).check_can_lose()
        self._service.forget(broker)
        self._machine(broker).lose_power(0.5 if torn else 0.0 if lose_unsynced else 1.0)
        self._note_running()

    async def freeze(self, node: int) -> None:
        """Nothing of it runs until `thaw`. Raises CallFailed."""
        self._machine(self._process(node)).freeze()
        self._note_running()

    async def thaw(self, node: int, within: float = 30.0) -> None:
        """It goes on; ends when it is in the ISRs again, as a restart. Raises CallFailed,
        TimeoutError.
        """
        machine = self._machine(self._process(node))
        if machine.is_frozen:
            machine.thaw()
            self._note_running()
            await self._until(partial(self._lacks_of_back, node), within)

    async def go_stale(self, node: int, within: float = 30.0) -> None:
        """It does not follow the metadata any more, until `catch_up`. Raises CallFailed,
        TimeoutError.
        """
        broker = self._process(node)
        if "broker" not in broker.roles:
            raise CallFailed("the controller writes the metadata: it cannot be stale")
        if node not in self._stale:
            assert broker.broker_server is not None
            self._stale[node] = held = HeldMetadata(broker.broker_server.observer)
            self._note_running()
            await self._until(lambda: "" if held.is_held else f"broker {node} follows", within)

    async def catch_up(self, node: int, within: float = 30.0) -> None:
        """It follows the metadata again; ends when it knows what the others know. Raises
        TimeoutError.
        """
        held = self._stale.pop(node, None)
        if held is not None:
            held.let_go()
            self._note_running()
            await self._until(lambda: unsettled(self._running), within)

    async def fence(self, node: int, within: float = 30.0) -> None:
        """The controller hears nothing of it, nor it of the controller, and its session is over.
        Raises CallFailed, TimeoutError.
        """
        broker, controller = self._process(node), self._service.brokers[0]
        if broker is controller:
            raise CallFailed(f"{node_title(node)} is the controller: nobody fences it")
        if not self._service.runs(controller) or controller.parts.controller is None:
            raise CallFailed("the controller does not run: nobody fences a broker")
        await self.cut_link(node, controller.config.node_id, one_way=False)
        self._fenced.add(node)
        self._note_running()
        known = _image_of(controller).brokers[node]
        session = controller.parts.controller.sessions.session_of(known)
        if session is not None:
            session.contact_ms -= controller.parts.controller.sessions.timeout_ms
        controller.parts.controller.tick()
        await self._until(partial(self._lacks_of_gone, node), within)

    async def unfence(self, node: int, within: float = 30.0) -> None:
        """The controller hears of it again; ends when it is in the ISRs, as a restart. Raises
        TimeoutError.
        """
        if node in self._fenced:
            self._fenced.discard(node)
            await self.heal_link(node, self._service.brokers[0].config.node_id)
            self._note_running()
            await self._until(partial(self._lacks_of_back, node), within)

    async def stop_broker(self, node: int, within: float = 30.0) -> None:
        """In order: what it led is led by others, where they can. Nothing for one that is stopped.
        Raises CallFailed, TimeoutError.
        """
        broker = self._broker(node)
        if not self._machine(broker).is_on:
            return
        if self._machine(broker).is_frozen:
            raise CallFailed(f"{node_title(node)} is frozen: thaw it, or kill it")
        if self._service.runs(broker):
            if broker in self._running:
                self._running.remove(broker)
            if not self._service.runs(self._service.brokers[0]):
                broker.skip_controlled_shutdown()
            self._service.leave(broker)
        # It may be in the middle of a stop that took too long.
        left = self._service.left(broker)
        await self._until_done(left, within, f"{node_title(node)} has not stopped")
        await self._machine(broker).off()
        await self._until(partial(self._lacks_of_gone, node), within)

    def _lacks_of_gone(self, node: int) -> str:
        for each in self._running:
            known = _image(each).brokers.get(node)
            if known is not None and not known.fenced:
                return f"broker {each.config.node_id} takes broker {node} for running"
        return unsettled(self._running)

    async def restart_broker(self, node: int, within: float = 30.0) -> None:
        """Stops it, where it runs, and starts it with its id, port and files; ends when it is in
        the ISRs again, where there is a leader that can take it. Raises CallFailed, TimeoutError.
        """
        await self.stop_broker(node, within)
        broker = self._broker(node)
        machine = self._machine(broker)
        await machine.power_is_back()
        machine.let_ports_go()
        self._ended_by_disk.discard(node)
        self._stale.pop(node, None)
        again, started = self._service.come_back(broker)
        try:
            await self._until_done(started, within, f"{node_title(node)} has not started")
        except BaseException as error:
            self._service.take_back(again, broker)
            await machine.off()
            if isinstance(error, STARTING_ERRORS):
                raise CallFailed(f"{node_title(node)} does not start again: {error}") from None
            raise
        self._note_running()
        await self._until(partial(self._lacks_of_back, node), within)

    def _lacks_of_back(self, node: int) -> str:
        if node not in self.ids:
            return unsettled(self._running)
        server = self._broker(node).broker_server
        assert server is not None
        epoch = server.lifecycle.broker_epoch
        running = {each.config.node_id for each in self._running}
        for each in self._running:
            known = _image(each).brokers.get(node)
            if known is None or known.fenced or known.epoch != epoch:
                return f"broker {each.config.node_id} does not know that broker {node} runs"
            out = out_of_isr(_image(each), node, running)
            if out is not None:
                return f"broker {node} is not in the ISR of {out}"
        return unsettled(self._running)

    # links

    def _names(self, one: int | str, other: int | str) -> tuple[str, str]:
        """Of the two ends of a link. Raises CallFailed."""
        names = [CLIENTS if each == CLIENTS else self._name(each) for each in (one, other)]
        if names[0] == names[1]:
            raise CallFailed(f"a link has two ends, not {names[0]} twice")
        if CLIENTS not in names and not self._has_own_listener:
            raise CallFailed(
                "brokers talk by TCP here, as a setting of listeners or authorizers wants it: only "
                "links of clients can be struck"
            )
        return names[0], names[1]

    def _name(self, node: int | str) -> str:
        if isinstance(node, str) and node in self._network.names:
            return node
        if node not in self._machines:
            known = ", ".join(map(str, sorted(self._machines)))
            raise CallFailed(f"there is no machine {node!r}: there are {known}, and {CLIENTS!r}")
        return machine_name(int(node))

    async def cut_link(
        self, one: int | str, other: int | str, one_way: bool, on_heal: str = "deliver"
    ) -> None:
        """What is sent over it is held; `one_way`: only what goes from `one` to the other;
        `on_heal`: "deliver" it then, or "reset" its connections. Raises CallFailed.
        """
        ends = self._names(one, other)
        ways = [ends] if one_way else [ends, ends[::-1]]
        self._decide_held(ways, on_heal)
        for way in ways:
            self._network.block(*way)

    def _decide_held(self, ways: list[tuple[str, str]], on_heal: str) -> None:
        if on_heal not in ("deliver", "reset"):
            raise CallFailed(f'on_heal is "deliver" or "reset", not {on_heal!r}')
        known = self._network.dead_after_cut
        (known.update if on_heal == "reset" else known.difference_update)(ways)

    async def delay_link(
        self, one: int | str, other: int | str, seconds: float, jitter: float = 0.0
    ) -> None:
        """In each direction; each piece up to `jitter` more, their order stays."""
        network, ends = self._network, self._names(one, other)
        for way in (ends, ends[::-1]):
            network.delays[way] = seconds
            network.jitters.pop(way, None)
            if jitter:
                network.jitters[way] = jitter

    async def narrow_link(self, one: int | str, other: int | str, bytes_per_second: float) -> None:
        """In each direction, of each connection."""
        ends = self._names(one, other)
        if bytes_per_second <= 0:
            raise CallFailed(f"a link has more than {bytes_per_second} bytes a second: cut it")
        self._network.rates[ends] = self._network.rates[ends[::-1]] = bytes_per_second

    async def heal_link(self, one: int | str, other: int | str, on_heal: str | None = None) -> None:
        """As new; what it held arrives, or as `on_heal` says. Raises CallFailed."""
        ends = self._names(one, other)
        ways = [ends, ends[::-1]]
        if on_heal is not None:
            self._decide_held(ways, on_heal)
        self._network.heal_ways(ways)

    async def drop_connections(self, one: int | str, other: int | str) -> None:
        """They are reset, at both ends; new ones can be made."""
        self._network.drop(*self._names(one, other))

    # disks

    async def strike_disk(self, node: int, verb: str, **how: Any) -> None:
        """Raises CallFailed."""
        try:
            getattr(self._machine(self._broker(node)), f"{verb}_disk")(**how)
        except ValueError as error:
            raise CallFailed(str(error)) from None

    async def heal_disk(self, node: int, within: float = 30.0) -> None:
        """As new; a broker that ended because of it is started again. Raises CallFailed,
        TimeoutError.
        """
        self._machine(self._broker(node)).heal_disk()
        if node in self._ended_by_disk:
            await self.restart_broker(node, within)

    # requests

    async def strike_requests(self, action: str, api: Any = None, **how: Any) -> int:
        """The number of the fault. Raises CallFailed."""
        if how.get("broker") is not None:
            self._broker(how["broker"])
        try:
            return self._rules.add(action, api, **how)
        except ValueError as error:
            raise CallFailed(str(error)) from None

    async def lift_fault(self, number: int) -> None:
        """It strikes no more."""
        self._rules.lift(number)

    async def hits(self, number: int) -> int:
        """How many requests a fault struck."""
        return self._rules.hits(number)

    async def wait_for_hits(self, number: int, count: int, within: float = 30.0) -> None:
        """Ends when it struck so many. Raises TimeoutError."""
        rules = self._rules
        await self._until(
            lambda: (
                ""
                if rules.hits(number) >= count
                else f"the fault struck {rules.hits(number)} requests, not {count}"
            ),
            within,
        )

    async def heal(self) -> list[str]:
        """All that is struck, the last first; what it was, a sentence each. Raises CallFailed,
        TimeoutError.
        """
        found: list[str] = []
        while (healing := self._in_force.next_healing()) is not None:
            texts, name, arguments = healing
            found.extend(texts)
            await self.call(name, dict(arguments))
        return found

    # time

    async def advance(self, seconds: float, members: str | list[str] = "alive") -> list[str]:
        """Moves the time of all machines on; what came of it, a sentence each. Raises
        CallFailed.
        """
        if not seconds >= 0:
            raise CallFailed(f"time goes on, not back by {-seconds:g} s")
        if isinstance(members, str) and members not in ("alive", "silent"):
            raise CallFailed(
                f'members are "alive", "silent", or a list of silent ones: {members!r}'
            )
        silent = None if members == "silent" else frozenset(() if members == "alive" else members)
        before = await self._changes.seen()
        self._note_skews()
        self._clock.move_calendar(max(0.0, seconds - _MOST_STEPPED))
        await self._clock.advance(min(seconds, _MOST_STEPPED), partial(self._members.beat, silent))
        return changes(before, await self._changes.seen())

    def _note_skews(self) -> None:
        self._skews.note(each for each in self._service.brokers if "broker" in each.roles)

    async def calendar(self, how: str, at_ms: int | None = None) -> None:
        """It stands, or runs. Raises CallFailed."""
        if how not in ("fix", "run") or (how == "run" and at_ms is not None):
            raise CallFailed('a calendar is set to "fix", at a time or where it is, or to "run"')
        self._note_skews()
        if how == "fix":
            self._clock.fix(at_ms)
        else:
            self._clock.fixed_ms = None

    async def skew_clock(self, node: int, ms: int) -> None:
        """The calendar of one machine is ahead of the others'. Raises CallFailed."""
        self._machine(self._broker(node)).skew_ms = ms

    async def state(self, version: int = 0, of: str = "") -> dict[str, Any]:
        """What the page shows, or what of it has changed since that version."""
        if self._page is None:
            from twisted_broker.testing.page_state import PageState

            self._page = PageState(self._machines, self._network)
        wall_ms = self._outside.wall_ms() + self._clock.ahead_ms
        found: dict[str, Any] = self._page.since(self._service.brokers, version, of, wall_ms)
        return found

    # waiting

    async def wait_until(self, condition: dict[str, Any], within: float = 30.0) -> None:
        """Ends when it holds at every broker that runs. Raises CallFailed, TimeoutError."""
        try:
            await ConditionValues(self.calls, self._running, self._wakes).wait(condition, within)
        except (TypeError, ValueError) as error:
            raise CallFailed(f"no condition: {error}") from None

    async def _until(self, lacks: Callable[[], str], within: float) -> None:
        lack = ""

        async def look() -> bool:
            nonlocal lack
            lack = lacks()
            return not lack

        if not await self._wakes.until(look, within):
            raise TimeoutError(f"{lack} after {within:g} s")

    async def _until_done(self, work: Deferred[None], within: float, lack: str) -> None:
        """Raises what it raises; TimeoutError."""
        found: list[Any] = []
        work.addBoth(found.append).addBoth(lambda _: self._wakes.wake())
        await self._until(lambda: "" if found else lack, within)
        if isinstance(found[0], Failure):
            found[0].raiseException()

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """`line`: that of the test, of a call that strikes. Raises CallFailed, TimeoutError, which
        says what is in force.
        """
        line = arguments.pop("line", "")
        self._is_struck |= name in STRIKES
        try:
            result = await self._called(name, arguments)
        except TimeoutError as error:
            raise TimeoutError("; ".join([str(error), *self._in_force.texts()])) from None
        self._in_force.called(name, arguments, result, line)
        return result

    async def _called(self, name: str, arguments: dict[str, Any]) -> Any:
        own: Callable[..., Awaitable[Any]] | None = _OWN.get(name)
        if own is not None:
            return await own(self, **arguments)
        calls = self.calls
        for each in (self._evidence, self._admin):
            if hasattr(each, name):
                return await getattr(each, name)(**arguments)
        return await getattr(calls, name)(**arguments)


_OWN: dict[str, Callable[..., Awaitable[Any]]] = {
    each.__name__: each
    for each in (
        RunningCluster.advance,
        RunningCluster.calendar,
        RunningCluster.catch_up,
        RunningCluster.crash,
        RunningCluster.cut_link,
        RunningCluster.delay_link,
        RunningCluster.drop_connections,
        RunningCluster.fence,
        RunningCluster.freeze,
        RunningCluster.go_stale,
        RunningCluster.heal,
        RunningCluster.heal_disk,
        RunningCluster.heal_link,
        RunningCluster.hits,
        RunningCluster.is_left,
        RunningCluster.kill,
        RunningCluster.lift_fault,
        RunningCluster.narrow_link,
        RunningCluster.restart_broker,
        RunningCluster.save,
        RunningCluster.skew_clock,
        RunningCluster.state,
        RunningCluster.stop_broker,
        RunningCluster.strike_disk,
        RunningCluster.strike_requests,
        RunningCluster.thaw,
        RunningCluster.unfence,
        RunningCluster.wait_for_hits,
        RunningCluster.wait_until,
    )
}


def _image_of(controller: KafkaServer) -> Any:
    assert controller.parts.controller is not None
    return controller.parts.controller.decided


def _image(broker: KafkaServer) -> Any:
    assert broker.broker_server is not None
    return broker.broker_server.observer.image


def _write(home: str, directories: Iterable[str], files: Mapping[str, bytes]) -> None:
    """Raises OSError."""
    for path in directories:
        os.makedirs(home + path.removeprefix(IN_MEMORY), exist_ok=True)
    for path, content in files.items():
        with open(home + path.removeprefix(IN_MEMORY), "wb") as file:
            file.write(content)
