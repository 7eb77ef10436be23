"""Damage of the controller's own metadata, and the operator who does what the node's line says.

Owns `damage_metadata` (`faults/base.py` says what a fault is), and `DAMAGES`, its kinds.

1. It strikes when a broker's log holds all that is committed: what no log holds is lost with the
   only controller, which `replog metadata recover` says, and no quorum of one can mend.
2. An older copy is older than what the node noted beside its logs with its last checkpoint of high
   watermarks: one that is younger is known to the other brokers only. Of a controller that is no
   broker, it is older than what is durable of each broker's own log.
3. A node whose metadata is damaged does not start, or starts with all that was committed: what
   else it does breaks a rule of `simulation/checks/committed_state.py`. A controller without a log
   of its own that is older, or gone, cannot know; its brokers end instead, and it is `suspect`
   until it was rebuilt: what it decides is not the cluster's.
4. The operator acts on a line that names the remedy, and does that: `read_source`, `most_advanced`
   and `recover` of the product, on the brokers' logs as they were when the controller ended. A
   node that refuses what was rebuilt so is a fault of the program.

Not here: a broker's log (`faults/storage.py`), errors of the disk (`faults/disk.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from twisted_broker.cluster.metadata_check import MetadataDamage, read_applied
from twisted_broker.cluster.metadata_recovery import (
    CannotRecover,
    Source,
    Target,
    most_advanced,
    read_source,
    recover,
)
from twisted_broker.cluster.observer_log import ObserverLog
from twisted_broker.cluster.quorum_state import NAME as QUORUM_STATE
from twisted_broker.log.checkpoints import HIGH_WATERMARK, LEADER_EPOCH
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.log.meta_properties import NAME as META_PROPERTIES
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.faults.base import FaultInjector
from twisted_broker.simulation.node import CLUSTER_ID, SimNode
from twisted_broker.topic_names import METADATA_DIRECTORY

_LOG_DIRECTORY = "/data"
_METADATA = f"{_LOG_DIRECTORY}/{METADATA_DIRECTORY}"
_RESCUED = "/rescued"
_CONTROLLER = "n1"
_REMEDY = "`replog metadata recover"
_LOOK_SECONDS, _LOOKS = 0.02, 500
# Old enough that each broker synced what it copied meanwhile, and noted how far it applied it.
_AGE_SECONDS = 14.0
_ATTEND_SECONDS, _CALM_LOOKS = 0.5, 10

_FLIPS: dict[str, Callable[[str], bool]] = {
    "log": lambda path: path.startswith(_METADATA) and path.endswith(".log"),
    "snapshot": lambda path: path.startswith(_METADATA) and path.endswith(".checkpoint"),
    "quorum-state": lambda path: path == f"{_METADATA}/{QUORUM_STATE}",
    "mark": lambda path: path == f"{_METADATA}/{HIGH_WATERMARK}",
    "leader epochs": lambda path: path == f"{_METADATA}/{LEADER_EPOCH}",
    "meta.properties": lambda path: path == f"{_LOG_DIRECTORY}/{META_PROPERTIES}",
}
_LOST, _OLDER = "directory lost", "older copy"
DAMAGES = (*(f"flip in {name}" for name in _FLIPS), _LOST, _OLDER)
"""What `struck` is called with, behind `metadata: `."""


def damage_metadata(injector: FaultInjector, node: SimNode) -> None:
    """The controller dies, and until it is back its metadata has changed."""
    is_alone = _is_alone(injector.cluster.nodes[_CONTROLLER])
    # What a controller without logs cannot know by itself is the rarer setting.
    kind = injector.random.choice((*DAMAGES, *(_LOST, _OLDER) * (4 * is_alone)))
    rescue = _Rescue(injector, kind)
    if kind == _OLDER:
        older = rescue.backup()
        if older:
            injector.clock.callLater(_AGE_SECONDS, rescue.strike_when_copied, _LOOKS, older)
    else:
        rescue.strike_when_copied(_LOOKS)


class _Rescue:
    """One damage, and what is done about it."""

    def __init__(self, injector: FaultInjector, kind: str) -> None:
        self._injector, self._kind = injector, kind
        self._node = injector.cluster.nodes[_CONTROLLER]
        self._is_alone = _is_alone(self._node)
        self._calm, self._rebuilt = 0, False
        # Processes that ran when the metadata was rebuilt: an answer of the false controller may
        # still reach them, and the operator starts them again.
        self._older_processes: dict[str, int] = {}
        self._to_start: set[str] = set()
        self._end = self._older_end = 0

    # the damage

    def backup(self) -> dict[str, bytes]:
        """A copy of the metadata directory as it is now; nothing while no controller runs."""
        disk, broker = self._node.disk, self._node.broker
        if broker is None or broker.parts.controller is None:
            return {}
        self._older_end = broker.parts.controller.log.end_offset
        return {path: disk.content(path) for path in disk.nodes if path.startswith(f"{_METADATA}/")}

    def strike_when_copied(self, looks: int, older: dict[str, bytes] | None = None) -> None:
        injector = self._injector
        if injector.ended or injector.held or injector.rescues:
            return
        if not self._is_copied() or (older is not None and not self._is_known_to_be_older()):
            if looks:
                injector.clock.callLater(_LOOK_SECONDS, self.strike_when_copied, looks - 1, older)
            return
        for node in injector.cluster.nodes.values():
            node.refusals.clear()
        copies = self._copies()
        self._node.kill()
        if not self._damage(older or {}):
            injector.restart(self._node)
            return
        if self._node.disk.is_directory(_RESCUED):  # of a damage that needed none of it
            self._node.disk.lose(_RESCUED)
        for path, content in copies.items():
            self._node.disk.put(path, content)
        injector.rescues.append(self._kind)
        injector.note(f"metadata of {self._node.name}: {self._kind}")
        injector.struck(f"metadata: {self._kind}")
        injector.schedule(lambda: injector.restart(self._node))
        injector.clock.callLater(_ATTEND_SECONDS, self._attend)

    def _is_copied(self) -> bool:
        """Whether a broker's log holds all that is committed."""
        broker = self._node.broker
        controller = None if broker is None else broker.parts.controller
        if controller is None or controller.epoch < 0 or controller.uncommitted:
            return False
        if self._node.clock.paused or self._node.stopping:
            return False
        self._end = controller.committed.offset + 1
        return any(
            log is not None and log.failed is None and log.end_offset >= self._end
            for log in map(_log_of, self._others())
        )

    def _is_known_to_be_older(self) -> bool:
        """Whether the backup contradicts what the node noted beside its own logs, now and then;
        without these, whether it contradicts every broker: what it applied, and what is durable in
        its own log. One that is behind could not know an older controller, nor one whose log is
        not written any more, once it is started again.
        """
        if not self._is_alone:
            directories = self._node.settings["log.dirs"].split(",")
            try:
                return read_applied(self._node.disk, directories).end_offset > self._older_end
            except OSError:
                return False  # the node's own fault, for now
        return all(map(self._knows_more, self._others()))

    def _knows_more(self, node: SimNode) -> bool:
        """Whether this broker would refuse the backup, now and after a restart or a loss of
        power.
        """
        log = _log_of(node)
        if node.broker is None or node.broker.broker_server is None or log is None:
            return False
        applied = node.broker.broker_server.observer.image.offset + 1
        # Up to `known_end` the durable end may be that of a damaged log whose place this one took:
        # a number, which the older controller's log reaches after a while.
        known = max(self._older_end, log.known_end.end_offset)
        is_written = log.failed is None and log._durable_end > known
        return applied >= self._end and is_written

    def _others(self) -> list[SimNode]:
        return [each for each in self._injector.cluster.nodes.values() if each is not self._node]

    def _copies(self) -> dict[str, bytes]:
        """What an operator saves of the brokers' directories: path on the controller's machine ->
        content.
        """
        return {
            f"{_RESCUED}/{node.name}/{path.removeprefix(_LOG_DIRECTORY + '/')}": node.disk.content(
                path
            )
            for node in self._others()
            if not node.lost_power
            for path in node.disk.nodes
            if path.startswith(f"{_METADATA}/") or path == f"{_LOG_DIRECTORY}/{META_PROPERTIES}"
        }

    def _damage(self, older: dict[str, bytes]) -> bool:
        """Whether there was anything to damage."""
        node, disk, random = self._node, self._node.disk, self._injector.random
        if self._kind == _OLDER:
            disk.lose(_METADATA)
            for path, content in older.items():
                disk.put(path, content)
            node.suspect = self._is_alone
            if node.suspect:
                self._injector.hold(self._kind)
            return True
        if self._kind == _LOST:
            disk.lose(_LOG_DIRECTORY if self._is_alone else _METADATA)
            if self._is_alone:
                node.suspect, node.cluster_id = True, None
            return True
        fits = _FLIPS[self._kind.removeprefix("flip in ")]
        paths = [path for path in sorted(disk.nodes) if fits(path) and disk.nodes[path].data]
        if not paths:
            return False
        path = random.choice(paths)
        mark = f"{_METADATA}/{HIGH_WATERMARK}"
        if path.endswith(".log") and disk.exists(mark) and not node.lost_power:
            # It is synced every few seconds: a loss of power meanwhile takes what says that the
            # flipped bit was in a batch that was synced, and no promise is made then.
            disk.put(mark, disk.content(mark))
        position = random.randrange(len(disk.nodes[path].data))
        disk.flip_bit(path, position, random.randrange(8))
        self._injector.note(f"a bit of {path} at byte {position} flips")
        # Whatever it decides until a broker refuses it is lost with it.
        node.suspect = _is_of_another_cluster(disk, _LOG_DIRECTORY)
        return True

    # the operator

    def _attend(self) -> None:
        """Looks after the nodes until all went well for a while."""
        node, nodes = self._node, self._injector.cluster.nodes.values()
        said = [(each.name, *refusal) for each in nodes for refusal in each.refusals]
        for each in nodes:
            each.refusals.clear()
        remedies = [each for each in said if _REMEDY in each[2]]
        own = [each for each in said if each[0] == node.name]
        broker = node.broker
        if self._rebuilt:
            remedies = [each for each in remedies if not self._is_of_before(*each[:2])]
            self._start_again()
        if remedies and self._rebuilt:
            self._injector.cluster.bug("{0} refuses the rebuilt metadata: {2}".format(*remedies[0]))
            return
        if remedies:
            self._calm, self._rebuilt = 0, self._rebuild(remedies[0][0], remedies[0][2])
        elif own and not node.is_up and META_PROPERTIES in self._kind:
            self._begin_anew()
        elif broker is not None and broker.parts.controller is not None and not node.suspect:
            self._calm += broker.parts.controller.epoch >= 0
        if self._calm < _CALM_LOOKS or self._to_start:
            self._injector.clock.callLater(_ATTEND_SECONDS, self._attend)
        else:
            self._injector.rescues.clear()

    def _is_of_before(self, name: str, incarnation: int) -> bool:
        """Whether a refusal is of a process that ran before the metadata was rebuilt."""
        if self._older_processes.get(name) != incarnation:
            return False
        if self._injector.cluster.nodes[name].incarnation == incarnation:
            self._to_start.add(name)
        return True

    def _start_again(self) -> None:
        nodes = self._injector.cluster.nodes
        for name in sorted(name for name in self._to_start if not nodes[name].is_up):
            self._to_start.remove(name)
            nodes[name].start()

    def _rebuild(self, name: str, why: str) -> bool:
        """`replog metadata recover`, from the brokers' logs; whether it was done."""
        node, injector = self._node, self._injector
        if "\n" in why:
            injector.cluster.bug(f"{name} refuses with more than one line: {why}")
        if node.is_up:
            node.kill()
        disk = node.at_rest()
        disk.capacity_bytes = None
        try:
            source = most_advanced(self._sources(disk))
            if source.end_offset < self._end:
                raise CannotRecover(f"{source.path} ends at {source.end_offset}, not {self._end}")
            target = Target(_LOG_DIRECTORY, move_aside=True)
            done = recover(disk, source, target, node.clock.wall_ms(), injector.random.randbytes)
        except (CannotRecover, CheckpointError, LogDirMismatch, MetadataDamage) as error:
            injector.cluster.bug(f"the metadata cannot be rebuilt: {error}")
            return False
        disk.lose(_RESCUED)
        self._empty_what_it_formatted(disk)
        injector.note(f"{name} said {why!r}; {done.directory} is rebuilt from {source.path}")
        injector.by_hand("metadata rebuilt")
        injector.counted(
            "refused by the controller" if name == node.name else "refused by a broker"
        )
        node.suspect = False
        injector.release()
        for each in injector.cluster.nodes.values():
            if each.is_up:
                self._older_processes[each.name] = each.incarnation
            else:
                each.start()
        return True

    def _empty_what_it_formatted(self, disk: SimDisk) -> None:
        """A controller that had lost all of its directories founded a cluster, and formatted the
        others for that one too: it refuses them now, and the line says to change log.dirs.
        """
        for path in self._node.settings["log.dirs"].split(",")[1:]:
            if _is_of_another_cluster(disk, path):
                disk.lose(path)
                self._injector.by_hand("directory of another cluster emptied")

    def _sources(self, disk: SimDisk) -> list[Source]:
        """Those that can be used. CannotRecover when there are none."""
        found = []
        for name in disk.listdir(_RESCUED):
            try:
                found.append(read_source(disk, posixpath.join(_RESCUED, name)))
            except (CannotRecover, CheckpointError):
                continue
        if not found:
            raise CannotRecover("no log can be used")
        return found

    def _begin_anew(self) -> None:
        """`meta.properties` goes; another node's says which cluster it is: `--cluster-id`."""
        disk = self._node.at_rest()
        if disk.exists(f"{_LOG_DIRECTORY}/{META_PROPERTIES}"):
            disk.remove(f"{_LOG_DIRECTORY}/{META_PROPERTIES}")
            self._injector.by_hand("meta.properties removed")
        self._node.cluster_id, self._node.suspect = CLUSTER_ID, False
        self._node.start()


def _is_of_another_cluster(disk: SimDisk, path: str) -> bool:
    """Whether this directory has another cluster's id: that of a cluster founded by mistake, or one
    that a flipped bit made.
    """
    try:
        found = read_meta_properties(disk, path)
    except (CheckpointError, OSError):
        return False
    return found is not None and found.cluster_id not in (None, CLUSTER_ID)


def _is_alone(controller: SimNode) -> bool:
    """Whether no broker runs in its process: no log beside its metadata could contradict that."""
    return controller.settings.get("process.roles") == "controller"


def _log_of(node: SimNode) -> ObserverLog | None:
    server = None if node.broker is None else node.broker.broker_server
    return None if server is None else server.own_log
