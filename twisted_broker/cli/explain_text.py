"""The text of `replog explain`, out of the answers of several brokers.

Owns the order and the lines: first a summary, then the state of each broker's replica, the leader's
first.

Of a group its state first, then each member with what it has and what it waits for.

1. When several brokers say that they lead, the one with the highest leader epoch counts.
2. What is in order has a line, too.
3. A leader that was not queried is named, with the option that queries it.

Source: our own. Not here: the queries (`cli/explain.py`), the reasons
(`replication/explain`, `coordinator/group_explanation.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from twisted_broker.cli.explain import Answer
from twisted_broker.replication.explain.reasons import broker_names, duration

_RANK = {"leader": 0, "follower": 1, "offline": 2, "none": 3}
State = dict[str, Any]


def explain_lines(topic: str, partition: int, answers: Sequence[Answer]) -> Iterator[str]:
    """Lines without their ends. At least one answer must have a state."""
    answered = sorted((answer for answer in answers if answer.state is not None), key=_sort_key)
    views = [answer.state for answer in answered if answer.state is not None]
    yield _heading(topic, partition, views)
    yield from _leader_not_queried(views, answers)
    for each in views:
        if "no_active_controller" in each:
            yield f"  no controller elects one now: {each['no_active_controller']}"
    for answer in answered:
        assert answer.state is not None
        yield ""
        yield from _replica_lines(answer.address, answer.state)
    for answer in answers:
        if answer.state is None:
            yield ""
            yield (
                f"{f'broker {answer.node}' if answer.node else 'the broker'} at "
                f"{answer.address}: {answer.error}"
            )


def explain_group_lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Lines without their ends, out of the answers that have a state: its coordinator's, in a
    change of coordinators perhaps another's, and those of brokers with share partitions of it.
    """
    known = [(answer, answer.state) for answer in answers if answer.state is not None]
    for answer, group in known:
        if "state" in group:
            yield from _coordinated_lines(group, answer)
    for answer, group in known:
        for share in group.get("share_partitions", ()):
            yield ""
            yield from _share_partition_lines(share, answer.node)


def _coordinated_lines(group: State, answer: Answer) -> Iterator[str]:
    at = (
        f"generation {group['generation']}"
        if "generation" in group
        else f"epoch {group['epoch']}, target of epoch {group['assignment_epoch']}"
    )
    yield (
        f"{group['group']}: a {group['kind']} group, {group['state']}, {at}; members "
        f"{len(group['members'])}; coordinator broker {answer.node} ({answer.address})"
    )
    yield from (f"  {why}" for why in group["why"])
    for member in group["members"]:
        yield ""
        yield from _member_lines(member)


def _share_partition_lines(share: State, node: str) -> Iterator[str]:
    text = f"{share['topic']}-{share['partition']} at its leader, broker {node}"
    if "locked" in share:
        text += (
            f": begins at {share['start_offset']}, given out up to {share['end_offset']}, "
            f"{share['locked']} offsets locked"
        )
    yield text
    yield from (f"  {why}" for why in share["why"])


def _member_lines(member: State) -> Iterator[str]:
    text = f"member {member['member']}"
    if member.get("instance"):
        text += f", instance {member['instance']}"
    if "client" in member:
        text += f" ({member['client']} at {member['host'].lstrip('/')}), {member['protocol']}"
    if "epoch" in member:
        text += f", at epoch {member['epoch']}"
    yield text
    for name, what in (("tasks", "has"), ("tasks_to_give_up", "is to give up")):
        if member.get(name):
            roles = (f"{role} {', '.join(tasks)}" for role, tasks in member[name].items())
            yield f"  {what}: {'; '.join(roles)}"
    for name, what in (("assigned", "has"), ("to_give_up", "is to give up")):
        if member.get(name):
            topics = (f"{topic} {_list(numbers)}" for topic, numbers in member[name].items())
            yield f"  {what}: {'; '.join(topics)}"
    yield from (f"  {why}" for why in member.get("why", ()))


def _sort_key(answer: Answer) -> tuple[int, int, int]:
    assert answer.state is not None
    return (
        _RANK.get(answer.state["role"], 9),
        -answer.state.get("leader_epoch", -1),
        answer.state["broker"],
    )


def _heading(topic: str, partition: int, state: list[State]) -> str:
    leaders = [each for each in state if each["role"] == "leader"]
    if not leaders:
        return f"{topic}-{partition}: {_heading_without_leader(state)}"
    newest = max(leaders, key=lambda each: int(each["leader_epoch"]))
    return (
        f"{topic}-{partition}: broker {newest['broker']} leads at epoch "
        f"{newest['leader_epoch']}; in sync {_list(newest['isr'])} "
        f"of {_list(newest['replicas'])}, min.insync.replicas {newest['minimum_isr']}"
    )


def _leader_not_queried(state: list[State], answers: Sequence[Answer]) -> Iterator[str]:
    """The option that queries the leader, when it was not queried.

    A leader that was queried by its id and did not answer has a line of its own.
    """
    known = _newest_metadata(state)
    if known is None or known["leader"] < 0 or any(each["role"] == "leader" for each in state):
        return
    leader = str(known["leader"])
    if leader not in {answer.node for answer in answers}:
        yield (
            f"  query broker {leader} too, when it runs: add --run-file with its run file, or "
            "--status with its HOST:PORT (repeat the option for each process)"
        )


def _newest_metadata(state: list[State]) -> State | None:
    """The newest."""
    return max(
        (each["metadata"] for each in state if each["metadata"]),
        key=lambda each: int(each["offset"]),
        default=None,
    )


def _heading_without_leader(state: list[State]) -> str:
    """No leader answered: what the newest metadata says."""
    known = _newest_metadata(state)
    if known is None:
        return "its topic is deleted, but its replicas are not deleted yet"
    in_sync = (
        f"at epoch {known['leader_epoch']}; in sync {_list(known['isr'])} of "
        f"{_list(known['replicas'])}"
    )
    fenced = f"; {broker_names(known['fenced'])} fenced" if known["fenced"] else ""
    if known["leader"] >= 0:
        return (
            f"broker {known['leader']} leads it, but was not queried or does not answer, "
            f"{in_sync}{fenced}"
        )
    return (
        f"it has no leader, {in_sync}{fenced}; eligible to lead: "
        f"{_list(known['eligible_leader_replicas'])}"
    )


def _list(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _replica_lines(address: str, state: State) -> Iterator[str]:
    yield f"broker {state['broker']} ({address}) {_role(state)}"
    if state["role"] == "none":
        return
    yield (
        f"  log {state['log_start']} to {state['log_end']}, {state['bytes']:,} bytes; high "
        f"watermark {state['high_watermark']}{_last_stable(state)}"
    )
    # Brokers of before have no such field.
    stable = state.get("last_stable_waits")
    if stable is not None:
        yield f"  the last stable offset waits: {stable['why']}"
    if state["role"] == "leader":
        yield from _leader_lines(state)
    elif state["fetching"] is not None:
        yield f"  {state['fetching']['why']}"
    # Not from an older broker.
    if state.get("moving") is not None:
        yield f"  {state['moving']['why']}"
    if state.get("cleaning") is not None:
        yield f"  compaction: {state['cleaning']['why']}"
    yield from _waiting_lines(state)
    for truncation in state["truncations"]:
        yield (
            f"  truncated at {_time(truncation['at_ms'])} from {truncation['from_offset']} "
            f"to {truncation['to_offset']}: "
            f"{truncation['why']}"
        )


def _role(state: State) -> str:
    since = f" since {_time(state['role_since_ms'])}" if state.get("role_since_ms") else ""
    role = state["role"]
    if role == "none":
        return "holds no replica of it"
    if role == "offline":
        return (
            "cannot use its replica: "
            f"{state.get('offline_because') or 'its log directory, or the replica itself, failed'}"
        )
    if role == "leader":
        return f"leads at epoch {state['leader_epoch']}{since}"
    whom = f"broker {state['leader']}" if state["leader"] >= 0 else "nobody (there is no leader)"
    return f"follows {whom} at epoch {state['leader_epoch']}{since}"


def _last_stable(state: State) -> str:
    return (
        ""
        if state["last_stable"] == state["high_watermark"]
        else f", last stable offset {state['last_stable']}"
    )


def _leader_lines(state: State) -> Iterator[str]:
    waits = state["high_watermark_waits"]
    yield (
        "  the high watermark is at the log end"
        if waits is None
        else f"  the high watermark waits: {waits['why']}"
    )
    for each in [] if waits is None else waits["brokers"]:
        yield f"    broker {each['broker']} is at {each['log_end']}, {each['counts_as']}"
    change = state["isr_change"]
    if change is not None:
        word = "joining" if change["kind"] == "expand" else "leaving"
        yield (
            f"  {broker_names(change['brokers'])} {word} the ISR: requested from the controller "
            f"{duration(change['for_ms'])} ago"
        )
    if not state["out_of_sync"]:
        yield "  all replicas are in sync"
    for out in state["out_of_sync"]:
        yield (
            f"  broker {out['broker']} is out of sync since {_time(out['since_ms'])} "
            f"({duration(out['for_ms'])}): {out['why']}"
        )
        for reason in out["holds_back"] or ["it may join with its next fetch"]:
            yield f"    {reason}"


def _waiting_lines(state: State) -> Iterator[str]:
    idle = [each["broker"] for each in state["waiting"] if each["broker"] >= 0 and not each["has"]]
    if idle:
        yield f"  {broker_names(idle)} fetched up to the log end; waiting for new records"
    for each in state["waiting"]:
        if each["broker"] < 0 or each["has"]:
            yield f"  {each['request']} waits: {each['why']}"
    more = state["waiting_count"] - len(state["waiting"])
    if more > 0:
        yield f"  and {more} more requests wait"
