"""The steps of a scenario on machines, network and disks, and the passing of time.

Owns the lines that start, kill, pause and separate. Not here: the facts that must hold then
(`facts`).
"""

from __future__ import annotations

from errno import EIO

from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.scenario.language import Vocabulary
from twisted_broker.simulation.scenario.world import ScenarioWorld


def settings_of(text: str) -> dict[str, str]:
    """`name=value name=value`."""
    return dict(each.split("=", 1) for each in text.split())


def numbers_of(text: str) -> list[int]:
    """`1 2 3` as a list."""
    return [int(each) for each in text.split()]


def _machine(name: str) -> str:
    return name if name == "client" else f"n{int(name)}"


def register(words: Vocabulary) -> None:
    """All lines of this module."""
    words.register("brokers <count> [on racks <racks..>] [with <settings..>]")(brokers)
    words.register("kill <broker>")(kill)
    words.register("power off <broker>")(power_off)
    words.register("stop <broker>")(stop)
    words.register("start <broker>")(start)
    words.register("pause <broker>")(pause)
    words.register("resume <broker>")(resume)
    words.register("cut <broker> from <others..>")(block)
    words.register("nothing gets from <source> to <target>")(one_way)
    words.register("heal")(heal)
    words.register("disk of <broker> stalls")(disk_stalls)
    words.register("disk of <broker> goes on")(disk_goes_on)
    words.register("disk of <broker> fails in <path>")(disk_fails)
    words.register("everything on <broker> is synced")(synced)
    words.register("wait <seconds> s")(wait)


def brokers(world: ScenarioWorld, count: str, racks: str = "", settings: str = "") -> None:
    """Machines 1..count start; 1 is the controller, too. Settings are the brokers' own."""
    own = {number: {"broker.rack": rack} for number, rack in enumerate(racks.split(), 1)}
    world.build(int(count), settings_of(settings), own)


def kill(world: ScenarioWorld, broker: str) -> None:
    """The process is gone at once (kill -9); its files stay as they are."""
    world.node(int(broker)).kill()


def power_off(world: ScenarioWorld, broker: str) -> None:
    """The machine stops; everything that was not synced is lost."""
    node = world.node(int(broker))
    node.lose_power()
    node.disk, node.lost_power = node.disk.after_power_loss(keep=0.0), False


def stop(world: ScenarioWorld, broker: str) -> None:
    """The process is sent SIGTERM and is waited for: a controlled shutdown."""
    node = world.node(int(broker))
    node.stop()
    world.until(lambda: not node.is_up, f"broker {broker} has left")


def start(world: ScenarioWorld, broker: str) -> None:
    """A new process on the machine's disk; soon it serves."""
    world.node(int(broker)).start()


def pause(world: ScenarioWorld, broker: str) -> None:
    """The process is paused (SIGSTOP)."""
    world.node(int(broker)).pause()


def resume(world: ScenarioWorld, broker: str) -> None:
    """A paused process goes on; what fell due meanwhile runs now."""
    world.node(int(broker)).resume()


def block(world: ScenarioWorld, broker: str, others: str) -> None:
    """Nothing gets through between a broker and others (numbers, or `client`), either way."""
    for other in others.split():
        world.cluster.network.block(_machine(broker), _machine(other))
        world.cluster.network.block(_machine(other), _machine(broker))


def one_way(world: ScenarioWorld, source: str, target: str) -> None:
    """What source sends to target is held back; the other way stays open."""
    world.cluster.network.block(_machine(source), _machine(target))


def heal(world: ScenarioWorld) -> None:
    """All ways are open; what was held back goes on."""
    world.cluster.network.heal()


def disk_stalls(world: ScenarioWorld, broker: str) -> None:
    """Work on the disk does not end any more; appends and reads of cached files go on meanwhile."""
    world.node(int(broker)).stall_disk()


def disk_goes_on(world: ScenarioWorld, broker: str) -> None:
    """Work on the disk ends again."""
    world.node(int(broker)).resume_disk()


def disk_fails(world: ScenarioWorld, broker: str, path: str) -> None:
    """From now on every operation on files under this path fails with EIO."""
    world.node(int(broker)).disk.faults.append(Fault(EIO, "", path))


def synced(world: ScenarioWorld, broker: str) -> None:
    """All that was written on this machine survives a loss of power."""
    world.node(int(broker)).disk.sync_all()


def wait(world: ScenarioWorld, seconds: str) -> None:
    """Time passes."""
    world.run(float(seconds))
