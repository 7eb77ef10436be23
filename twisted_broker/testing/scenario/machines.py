"""What stories do to machines, wires and disks, and with time.

Owns the lines that start, kill, pause and cut off. Leaves out: what must be true then
(`scenario_facts`).
"""

from __future__ import annotations

from errno import EIO

from twisted_broker.testing.scenario.language import Vocabulary
from twisted_broker.testing.scenario.stage import Stage
from twisted_broker.testing.sim.disk_faults import Fault


def settings_of(text: str) -> dict[str, str]:
    """`name=value name=value`."""
    return dict(each.split("=", 1) for each in text.split())


def numbers_of(text: str) -> list[int]:
    return [int(each) for each in text.split()]


def _machine(name: str) -> str:
    return name if name == "client" else f"n{int(name)}"


def teach(words: Vocabulary) -> None:
    """All lines of this module."""
    words.teach("brokers <count> [on racks <racks..>] [with <settings..>]")(brokers)
    words.teach("kill <broker>")(kill)
    words.teach("power off <broker>")(power_off)
    words.teach("stop <broker>")(stop)
    words.teach("start <broker>")(start)
    words.teach("pause <broker>")(pause)
    words.teach("resume <broker>")(resume)
    words.teach("cut <broker> from <others..>")(cut)
    words.teach("nothing gets from <source> to <target>")(one_way)
    words.teach("heal")(heal)
    words.teach("disk of <broker> stalls")(disk_stalls)
    words.teach("disk of <broker> goes on")(disk_goes_on)
    words.teach("disk of <broker> fails in <path>")(disk_fails)
    words.teach("everything on <broker> is synced")(synced)
    words.teach("wait <seconds> s")(wait)


def brokers(stage: Stage, count: str, racks: str = "", settings: str = "") -> None:
    """Machines 1..count start; 1 is the controller, too. Settings are the brokers' own."""
    own = {number: {"broker.rack": rack} for number, rack in enumerate(racks.split(), 1)}
    stage.build(int(count), settings_of(settings), own)


def kill(stage: Stage, broker: str) -> None:
    """The process is gone at once (kill -9); its files stay as they are."""
    stage.node(int(broker)).kill()


def power_off(stage: Stage, broker: str) -> None:
    """The machine stops; everything that was not synced is lost."""
    node = stage.node(int(broker))
    node.lose_power()
    node.disk, node.lost_power = node.disk.after_power_loss(keep=0.0), False


def stop(stage: Stage, broker: str) -> None:
    """The process is asked to leave (SIGTERM) and is waited for: a controlled shutdown."""
    node = stage.node(int(broker))
    node.stop()
    stage.until(lambda: not node.is_up, f"broker {broker} has left")


def start(stage: Stage, broker: str) -> None:
    """A new process on the machine's disk; soon it serves."""
    stage.node(int(broker)).start()


def pause(stage: Stage, broker: str) -> None:
    """The process stands still (SIGSTOP)."""
    stage.node(int(broker)).pause()


def resume(stage: Stage, broker: str) -> None:
    """A paused process goes on; what fell due meanwhile runs now."""
    stage.node(int(broker)).go_on()


def cut(stage: Stage, broker: str, others: str) -> None:
    """Nothing gets through between a broker and others (numbers, or `client`), either way."""
    for other in others.split():
        stage.cluster.network.block(_machine(broker), _machine(other))
        stage.cluster.network.block(_machine(other), _machine(broker))


def one_way(stage: Stage, source: str, target: str) -> None:
    """What source sends to target is held back; the other way stays open."""
    stage.cluster.network.block(_machine(source), _machine(target))


def heal(stage: Stage) -> None:
    """All ways are open; what was held back goes on."""
    stage.cluster.network.heal()


def disk_stalls(stage: Stage, broker: str) -> None:
    """Work on the disk does not end any more; appends and reads of cached files go on meanwhile."""
    stage.node(int(broker)).stall_disk()


def disk_goes_on(stage: Stage, broker: str) -> None:
    """Work on the disk ends again."""
    stage.node(int(broker)).resume_disk()


def disk_fails(stage: Stage, broker: str, path: str) -> None:
    """From now on every operation on files under this path fails with EIO."""
    stage.node(int(broker)).disk.faults.append(Fault(EIO, "", path))


def synced(stage: Stage, broker: str) -> None:
    """All that was written on this machine survives a loss of power."""
    stage.node(int(broker)).disk.sync_all()


def wait(stage: Stage, seconds: str) -> None:
    """Time passes."""
    stage.run(float(seconds))
