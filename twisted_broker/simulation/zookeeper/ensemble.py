"""The servers of a simulated ZooKeeper: one machine that keeps what was written.

Owns `Ensemble`: the tree, the sessions and their timeouts, the watches; and the names of the
operations (`OPERATIONS`).

1. Calls of a connection are carried out in the order in which they come, and answered so. A call
   that came is carried out, whether or not its answer arrives.
2. A session that was silent for its timeout has ended: its ephemeral nodes are gone, and whoever
   comes back with it hears so. After a pause of the servers themselves every session has its whole
   timeout again.
3. A watch fires once; its message may come later than other answers (`watch_delay_seconds`).
4. `elect` and a fenced write look at `/controller_epoch` and write in one transaction, as the
   `multi` of Kafka's controller does.

Source: ZooKeeper's Programmer's Guide; Kafka 3.9's `KafkaZkClient`. Not here: how servers agree (a
write that was answered is there for ever), ACLs, the wire protocol (messages are JSON).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.protocol import Factory
from twisted.protocols.basic import Int32StringReceiver

from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.memory_zookeeper import MemoryEnsemble
from twisted_broker.simulation.world import SimWorld
from twisted_broker.zookeeper.port import BadVersionError, NodeExistsError, NoNodeError

MACHINE, PORT = "zk", 2181
CONTROLLER, CONTROLLER_EPOCH = "/controller", "/controller_epoch"
_ERRORS = (NoNodeError, NodeExistsError, BadVersionError)
ERRORS = {each.__name__: each for each in _ERRORS}
_TICK_SECONDS = 0.25
WRITES = frozenset({"create", "set", "delete"})


@dataclass
class _Session:
    number: int
    owner: str
    timeout_seconds: float
    heard_at: float
    connection: _Connection | None = None


class _Connection(Int32StringReceiver):
    """One client's."""

    MAX_LENGTH = 1 << 24

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.session: _Session | None = None

    def stringReceived(self, string: bytes) -> None:
        self.ensemble.received(self, json.loads(string))

    def say(self, **message: Any) -> None:
        if self.transport is not None:
            self.sendString(json.dumps(message).encode())  # type: ignore[no-untyped-call]

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]


class _Tree(MemoryEnsemble):
    """With watches of nodes, too: under `=` and their path."""

    def create(
        self, path: str, data: bytes, owner: int = 0, sequence: bool = False
    ) -> tuple[str, Any]:
        made, stat = super().create(path, data, owner, sequence)
        self._fire(f"={made}")
        return made, stat

    def delete(self, path: str) -> None:
        super().delete(path)
        self._fire(f"={path}")

    def set(self, path: str, data: bytes, version: int = -1) -> int:
        written = super().set(path, data, version)
        self._fire(f"={path}")
        return written


class Ensemble:
    """`struck(kind)` is called with what its faults did."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.tree = _Tree()
        self.clock = NodeClock(world.sim, MACHINE)
        self.sessions: dict[int, _Session] = {}
        self.watch_delay_seconds = 0.0
        self.struck: Callable[[str], None] = lambda kind: None
        self._lost_answers: dict[str, int] = {}
        self._ticked_at = 0.0
        factory: Any = Factory()
        factory.noisy = False
        factory.buildProtocol = lambda address: _Connection(self)
        world.network.switch_on(self.clock).listen(MACHINE, PORT, factory)
        self._tick()

    # sessions

    def _tick(self) -> None:
        now = self.world.sim.now
        if now - self._ticked_at > 2 * _TICK_SECONDS:
            for session in self.sessions.values():
                session.heard_at = now
        self._ticked_at = now
        for session in list(self.sessions.values()):
            if now - session.heard_at > session.timeout_seconds:
                self.struck("session timed out")
                self.end(session)
        self.clock.callLater(_TICK_SECONDS, self._tick)

    def end(self, session: _Session) -> None:
        """Its ephemeral nodes go; whoever has it hears so when he comes."""
        self.world.note(MACHINE, f"session {session.number} of {session.owner} ends")
        self.sessions.pop(session.number, None)
        self.tree.end_session(session.number)
        if session.connection is not None:
            session.connection.drop()

    def expire(self, owner: str) -> None:
        """As if this client's session had timed out."""
        for session in list(self.sessions.values()):
            if session.owner == owner:
                self.end(session)

    def lose_answers(self, owner: str, count: int) -> None:
        """The next writes of a client are done, and its connection dies before the answer."""
        self._lost_answers[owner] = count

    def be_orderly(self) -> None:
        """No fault any more."""
        self._lost_answers.clear()
        self.watch_delay_seconds = 0.0

    # messages

    def received(self, connection: _Connection, message: dict[str, Any]) -> None:
        """Of a client."""
        if message["op"] == "session":
            self._opened(connection, message)
            return
        session = connection.session
        if session is None or session.number not in self.sessions:
            connection.drop()
            return
        session.heard_at = self.world.sim.now
        if message["op"] == "close":
            self.end(session)
            return
        answer = self._carried_out(connection, session, message)
        lost = self._lost_answers.get(session.owner, 0)
        if lost and message["op"] in WRITES:
            self._lost_answers[session.owner] = lost - 1
            self.struck("answer of ZooKeeper lost")
            connection.drop()
            return
        connection.say(id=message["id"], **answer)

    def _opened(self, connection: _Connection, message: dict[str, Any]) -> None:
        number = message["number"]
        session = self.sessions.get(number)
        if session is None:
            if number:
                connection.say(expired=True)
                return
            self.tree.sessions += 1
            session = _Session(self.tree.sessions, message["owner"], message["timeout"], 0.0)
            self.sessions[session.number] = session
        if session.connection not in (None, connection):
            session.connection.drop()
        session.heard_at = self.world.sim.now
        session.connection, connection.session = connection, session
        connection.say(session=session.number)

    def _carried_out(
        self, connection: _Connection, session: _Session, message: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            return {"result": OPERATIONS[message["op"]](self, connection, session, message)}
        except _ERRORS as error:
            return {"error": type(error).__name__, "text": str(error)}

    # operations

    def _get(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        node = self.tree.node(asked["path"])
        return node.data.decode(), *node.stat

    def _set(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        self._check_fence(asked)
        return self.tree.set(asked["path"], asked["data"].encode(), asked["version"])

    def _create(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        self._check_fence(asked)
        owner = session.number if asked["ephemeral"] else 0
        path, stat = self.tree.create(
            asked["path"], asked["data"].encode(), owner, asked["sequence"]
        )
        return path, *stat

    def _delete(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        self._check_fence(asked)
        for path in sorted(self.tree.nodes, reverse=True):
            if path.startswith(asked["path"] + "/"):
                self.tree.delete(path)
        self.tree.delete(asked["path"])

    def _children(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        found = self.tree.children(asked["path"])
        self._watch(asked["path"], connection, asked)
        return found

    def _exists(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        self._watch(f"={asked['path']}", connection, asked)
        return asked["path"] in self.tree.nodes

    def _elect(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        """The epoch of the controller, and the version of its node."""
        if CONTROLLER in self.tree.nodes:
            raise NodeExistsError(CONTROLLER)
        if CONTROLLER_EPOCH not in self.tree.nodes:
            self.tree.create(CONTROLLER_EPOCH, b"0")
        epoch = int(self.tree.node(CONTROLLER_EPOCH).data) + 1
        self.tree.create(CONTROLLER, asked["data"].encode(), session.number)
        return epoch, self.tree.set(CONTROLLER_EPOCH, str(epoch).encode())

    def _ping(self, connection: _Connection, session: _Session, asked: dict[str, Any]) -> Any:
        return None

    def _check_fence(self, asked: dict[str, Any]) -> None:
        fence = asked.get("fence", -1)
        if fence >= 0 and fence != self.tree.node(CONTROLLER_EPOCH).version:
            raise BadVersionError(CONTROLLER_EPOCH)

    def _watch(self, key: str, connection: _Connection, asked: dict[str, Any]) -> None:
        watch = asked.get("watch", 0)
        if watch:
            self.tree.watches.setdefault(key, []).append(lambda: self._fired(connection, watch))

    def _fired(self, connection: _Connection, watch: int) -> None:
        if self.watch_delay_seconds:
            self.struck("watch came late")
            seconds = self.world.random.random() * self.watch_delay_seconds
            self.clock.callLater(seconds, connection.say, watch=watch)
        else:
            connection.say(watch=watch)


OPERATIONS: dict[str, Callable[[Ensemble, _Connection, _Session, dict[str, Any]], Any]] = {
    "get": Ensemble._get,
    "set": Ensemble._set,
    "create": Ensemble._create,
    "delete": Ensemble._delete,
    "children": Ensemble._children,
    "exists": Ensemble._exists,
    "elect": Ensemble._elect,
    "ping": Ensemble._ping,
}
