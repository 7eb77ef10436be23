"""A partition's story in words, out of what its brokers told.

Owns the order and the lines: first what all of it comes to, then each broker's own view, the
leader's first.

1. The newest word wins where brokers differ: the leader of the highest epoch.
2. Nothing is left out for being fine: a line says so.
3. A leader that was not asked is named, and how to ask it.

Leaves out: asking (`explain`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from twisted_broker.cli.explain import Answer
from twisted_broker.replication.explain.reasons import broker_names, duration

_RANK = {"leader": 0, "follower": 1, "offline": 2, "none": 3}
Told = dict[str, Any]


def story(topic: str, partition: int, answers: Sequence[Answer]) -> Iterator[str]:
    """Lines without their ends. Somebody must have told."""
    told = sorted((answer for answer in answers if answer.told is not None), key=_place)
    views = [answer.told for answer in told if answer.told is not None]
    yield _heading(topic, partition, views)
    yield from _whom_to_ask_too(views, answers)
    for answer in told:
        assert answer.told is not None
        yield ""
        yield from _view(answer.address, answer.told)
    for answer in answers:
        if answer.told is None:
            yield ""
            yield (
                f"{f'broker {answer.node}' if answer.node else 'the broker'} at "
                f"{answer.address}: {answer.error}"
            )


def _place(answer: Answer) -> tuple[int, int, int]:
    assert answer.told is not None
    return (
        _RANK.get(answer.told["role"], 9),
        -answer.told.get("leader_epoch", -1),
        answer.told["broker"],
    )


def _heading(topic: str, partition: int, told: list[Told]) -> str:
    leaders = [each for each in told if each["role"] == "leader"]
    if not leaders:
        return f"{topic}-{partition}: {_without_leader(told)}"
    newest = max(leaders, key=lambda each: int(each["leader_epoch"]))
    return (
        f"{topic}-{partition}: broker {newest['broker']} leads at epoch "
        f"{newest['leader_epoch']}; in sync {_list(newest['isr'])} "
        f"of {_list(newest['replicas'])}, at least {newest['minimum_isr']} demanded"
    )


def _whom_to_ask_too(told: list[Told], answers: Sequence[Answer]) -> Iterator[str]:
    """A leader that was not asked: how to.

    One that was, by its id, has a line that says why it does not answer.
    """
    known = _controllers_word(told)
    if known is None or known["leader"] < 0 or any(each["role"] == "leader" for each in told):
        return
    leader = str(known["leader"])
    if leader not in {answer.node for answer in answers}:
        yield (
            f"  ask broker {leader} too: --run-file with its process's run file, or "
            "--status with its HOST:PORT, again for each process"
        )


def _controllers_word(told: list[Told]) -> Told | None:
    """The newest."""
    return max(
        (each["metadata"] for each in told if each["metadata"]),
        key=lambda each: int(each["offset"]),
        default=None,
    )


def _without_leader(told: list[Told]) -> str:
    """Nobody who leads was asked: the newest word of the controller."""
    known = _controllers_word(told)
    if known is None:
        return "its topic is gone, replicas of it are still here"
    in_sync = (
        f"at epoch {known['leader_epoch']}; in sync {_list(known['isr'])} of "
        f"{_list(known['replicas'])}"
    )
    fenced = f"; {broker_names(known['fenced'])} fenced" if known["fenced"] else ""
    if known["leader"] >= 0:
        return (
            f"broker {known['leader']} leads it, and was not asked or does not answer, "
            f"{in_sync}{fenced}"
        )
    return (
        f"nobody leads it, {in_sync}{fenced}; eligible to lead: "
        f"{_list(known['eligible_leader_replicas'])}"
    )


def _list(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers)) or "nobody"


def _at(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _view(address: str, told: Told) -> Iterator[str]:
    yield f"broker {told['broker']} ({address}) {_role(told)}"
    if told["role"] == "none":
        return
    yield (
        f"  log {told['log_start']} to {told['log_end']}, {told['bytes']:,} bytes; high "
        f"watermark {told['high_watermark']}{_stable(told)}"
    )
    if told["role"] == "leader":
        yield from _leads(told)
    elif told["fetching"] is not None:
        yield f"  {told['fetching']['why']}"
    yield from _waiting(told)
    for cut in told["truncations"]:
        yield (
            f"  cut at {_at(cut['at_ms'])} from {cut['from_offset']} to {cut['to_offset']}: "
            f"{cut['why']}"
        )


def _role(told: Told) -> str:
    since = f" since {_at(told['role_since_ms'])}" if told.get("role_since_ms") else ""
    role = told["role"]
    if role == "none":
        return "holds no replica of it"
    if role == "offline":
        return (
            "cannot use its replica: "
            f"{told.get('offline_because') or 'its log directory, or the replica itself, failed'}"
        )
    if role == "leader":
        return f"leads at epoch {told['leader_epoch']}{since}"
    whom = f"broker {told['leader']}" if told["leader"] >= 0 else "nobody (there is no leader)"
    return f"follows {whom} at epoch {told['leader_epoch']}{since}"


def _stable(told: Told) -> str:
    return (
        ""
        if told["last_stable"] == told["high_watermark"]
        else f", last stable offset {told['last_stable']}"
    )


def _leads(told: Told) -> Iterator[str]:
    waits = told["high_watermark_waits"]
    yield (
        "  the high watermark is at the log end"
        if waits is None
        else f"  the high watermark waits: {waits['why']}"
    )
    for each in [] if waits is None else waits["brokers"]:
        yield f"    broker {each['broker']} is at {each['log_end']}, {each['counts_as']}"
    change = told["isr_change"]
    if change is not None:
        word = "joining" if change["kind"] == "expand" else "leaving"
        yield (
            f"  {broker_names(change['brokers'])} {word} the ISR: asked of the controller "
            f"{duration(change['for_ms'])} ago"
        )
    if not told["out_of_sync"]:
        yield "  all replicas are in sync"
    for out in told["out_of_sync"]:
        yield (
            f"  broker {out['broker']} is out of sync since {_at(out['since_ms'])} "
            f"({duration(out['for_ms'])}): {out['why']}"
        )
        for reason in out["holds_back"] or ["it may come back with its next fetch"]:
            yield f"    {reason}"


def _waiting(told: Told) -> Iterator[str]:
    idle = [each["broker"] for each in told["waiting"] if each["broker"] >= 0 and not each["has"]]
    if idle:
        yield f"  {broker_names(idle)} asked for what comes next"
    for each in told["waiting"]:
        if each["broker"] < 0 or each["has"]:
            yield f"  {each['request']} waits: {each['why']}"
    more = told["waiting_count"] - len(told["waiting"])
    if more > 0:
        yield f"  and {more} more requests wait"
