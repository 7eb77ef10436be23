"""The administrator's acts on replicas: moves between directories, throttles of replication.

Owns `move_replica`, `throttle`, `ease_throttles`, and `add_replica_acts`, which draws the seeds
that have them.

1. A throttle stays on to the end, at a rate with which the time for healing is enough. A liveness
   run has none: how soon a replica is back in its ISR is not bounded then.
2. The draws have a `Random` of their own: a seed without these acts is the run that it was.

Not here: the other acts (`simulation/admin.py`).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from twisted_broker.simulation.run_options import Options
from twisted_broker.wire.messages import configs, log_dirs

if TYPE_CHECKING:
    from twisted_broker.simulation.admin import Admin

_BOTH = ("leader", "follower")
MOVE, THROTTLE = "move a replica between directories", "throttle replication"
_RATES, _EASY_RATE = ("50", "200", "2000"), "5000"
_MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1


def add_replica_acts(options: Options) -> None:
    """Where the administrator does anything at all."""
    random = Random(f"moves and throttles {options.seed} {options.brokers}")
    if not options.acts:
        return
    if options.directories > 1 and random.random() < 0.5:
        options.acts += [MOVE] * 2
        # Half of them last long enough to be cancelled, or to meet a fault.
        options.settings[_MOVE_RATE] = random.choice(("200", "1000", "100000", "100000"))
    if options.brokers > 1 and not options.liveness and random.random() < 0.3:
        options.acts += [THROTTLE] * 2


async def move_replica(admin: Admin, options: Options) -> None:
    """Of a partition, on any broker, to any of its directories: where it is already, too, which
    ends a move.
    """
    topic = admin.random.choice(options.topics)
    number = admin.random.randrange(topic.partitions)
    host, port = admin.random.choice(admin.brokers)
    path = admin.random.choice(("/data", "/data2", "/data3")[: options.directories])
    named = log_dirs.AlterReplicaLogDirTopic(name=topic.name, partitions=[number])
    request = log_dirs.AlterReplicaLogDirsRequest(
        dirs=[log_dirs.AlterReplicaLogDir(path=path, topics=[named])]
    )
    answer = await admin.send((host, port), request, 2)
    code = "no answer" if answer is None else answer.results[0].partitions[0].error_code
    admin.note(f"move {topic.name}-{number} on {host} to {path}: {code}")


async def throttle(admin: Admin, options: Options) -> None:
    """One side or both, of one topic, and the rate; or their end."""
    sides = admin.random.choice((("leader",), ("follower",), _BOTH, _BOTH))
    topic = admin.random.choice(options.topics)
    is_over = admin.random.random() < 0.1
    rate = admin.random.choice(_RATES)
    for side in sides:
        name = f"{side}.replication.throttled"
        await _change(admin, _TOPIC, topic.name, f"{name}.replicas", None if is_over else "*")
        if not is_over:
            await _change(admin, _BROKER, "", f"{name}.rate", rate)


async def ease_throttles(admin: Admin) -> None:
    """Until it is done: nothing fails any more."""
    for side in _BOTH:
        while not await _change(
            admin, _BROKER, "", f"{side}.replication.throttled.rate", _EASY_RATE
        ):
            await admin.pause(1.0)


async def _change(admin: Admin, kind: int, resource: str, name: str, value: str | None) -> bool:
    entry = configs.IncrementalAlterConfigsRequestAlterableConfig(
        name=name, config_operation=_DELETE if value is None else _SET, value=value
    )
    wanted = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=resource, configs=[entry]
    )
    request = configs.IncrementalAlterConfigsRequest(resources=[wanted])
    answer = await admin.send_to_any(request, 1)
    code = "no answer" if answer is None else answer.responses[0].error_code
    admin.note(f"{resource or 'all brokers'} {name}={value}: {code}")
    return answer is not None and not code
