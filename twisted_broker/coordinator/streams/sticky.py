"""The assignor `sticky`: tasks stay where they are, as far as members stay evenly loaded.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `assign_tasks`.

1. An active task returns to its last member, else to one that had it as standby, while that has
   room; the rest goes to the process with the fewest tasks for each of its members.
2. Standbys, for tasks with a changelog: to a process that does not have the task; where there are
   too few processes there are fewer standbys.
3. Racks, tags and warm-ups are not used in 4.3.
4. Members count in the order of their ids, where Kafka's is that of a hash map: so equal groups get
   equal targets.

Source: Apache Kafka 4.3.1 `StickyTaskAssignor`, `ProcessState`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from twisted_broker.coordinator.streams.configure import ConfiguredSubtopology
from twisted_broker.coordinator.streams.tasks import NO_TASKS, Task, Tasks

# A step of about a millisecond (`turns.py`, invariant 4). To look at a member costs an eighth of
# what a task does.
TASKS_PER_STEP, MEMBERS_OF_A_TASK = 200, 8


@dataclass(frozen=True, slots=True)
class AssignorMember:
    """`target`: its present tasks."""

    member_id: str
    process_id: str
    target: Tasks = NO_TASKS


def assign_tasks(
    members: Iterable[AssignorMember],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    standby_replicas: int,
) -> Generator[None, None, dict[str, Tasks]]:
    """The target of every member, in steps."""
    return (yield from _Assignment(members, subtopologies, standby_replicas).assigned())


class _Quota:
    """How many tasks a member may have: of those left, its share. Who reaches it takes its tasks
    out of the count.
    """

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.each = -(-tasks // members) if members else 0

    def given(self, tasks: int) -> None:
        """A member has that many now."""
        if tasks == self.each:
            self._members -= 1
            self._tasks -= tasks
            self.each = -(-self._tasks // self._members) if self._members else 0


@dataclass(slots=True, eq=False)
class _Member:
    member_id: str
    process: _Process
    order: int
    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.active) + len(self.standby)


@dataclass(slots=True, eq=False)
class _Process:
    order: int
    members: list[_Member] = field(default_factory=list)
    tasks: set[Task] = field(default_factory=set)

    @property
    def load(self) -> float:
        return len(self.tasks) / len(self.members)

    @property
    def rank(self) -> tuple[float, int]:
        return self.load, self.order

    def least_loaded(self) -> _Member:
        return min(self.members, key=lambda each: (each.count, each.order))


class _Assignment:
    def __init__(
        self,
        members: Iterable[AssignorMember],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        standby_replicas: int,
    ) -> None:
        self._standby_replicas = standby_replicas
        self._work = 0
        self._active_tasks = list(_tasks(subtopologies, stateful_only=False))
        self._stateful_tasks = list(_tasks(subtopologies, stateful_only=True))
        self._processes: dict[str, _Process] = {}
        self._members: dict[str, _Member] = {}
        self._was_active: dict[Task, _Member] = {}
        self._were_standby: dict[Task, list[_Member]] = {}
        for order, spec in enumerate(sorted(members, key=lambda each: each.member_id)):
            self._add(spec, order)
        count, actives = len(self._members), len(self._active_tasks)
        self._active_quota = _Quota(actives, count)
        self._quota = _Quota(actives + len(self._stateful_tasks) * standby_replicas, count)

    def _add(self, spec: AssignorMember, order: int) -> None:
        process = self._processes.setdefault(spec.process_id, _Process(order))
        member = _Member(spec.member_id, process, order)
        process.members.append(member)
        self._members[spec.member_id] = member
        for task in spec.target.active:
            self._was_active[task] = member
        for task in spec.target.standby:
            self._were_standby.setdefault(task, []).append(member)

    def assigned(self) -> Generator[None, None, dict[str, Tasks]]:
        if self._members:
            yield from self._assign_active()
            if self._standby_replicas:
                yield from self._assign_standby()
        return {
            member_id: Tasks(frozenset(each.active), frozenset(each.standby))
            for member_id, each in self._members.items()
        }

    # active tasks
    def _assign_active(self) -> Generator[None, None, None]:
        left = sorted(self._active_tasks, key=_by_number)
        for last in (self._was_active.get, self._last_standby):
            rest = []
            for task in left:
                member = last(task)
                if member is not None and member.count < self._active_quota.each:
                    self._give_active(member, task)
                else:
                    rest.append(task)
                if self._is_step_over():
                    yield
            left = rest
        heap = [(each.rank, each) for each in self._processes.values()]
        heapify(heap)
        for task in sorted(left):
            process = heap[0][1]
            self._give_active(process.least_loaded(), task)
            heapreplace(heap, (process.rank, process))
            if self._is_step_over(len(process.members)):
                yield

    def _last_standby(self, task: Task) -> _Member | None:
        return _least_loaded(self._were_standby.get(task, ()))

    def _give_active(self, member: _Member, task: Task) -> None:
        member.active.add(task)
        member.process.tasks.add(task)
        self._active_quota.given(member.count)
        self._quota.given(member.count)

    # standby tasks
    def _assign_standby(self) -> Generator[None, None, None]:
        left: list[tuple[Task, int]] = []
        for task in sorted(self._stateful_tasks, key=_by_number, reverse=True):
            for done in range(self._standby_replicas):
                member = self._last_holder(task)
                if member is None:
                    left.append((task, self._standby_replicas - done))
                    break
                self._give_standby(member, task)
            if self._is_step_over():
                yield
        heap = [(each.rank, each) for each in self._processes.values()]
        heapify(heap)
        for task, replicas in sorted(left, reverse=True):
            for _ in range(replicas):
                if not self._give_standby_to_any(heap, task):
                    break
            if self._is_step_over(len(self._members) // len(heap)):
                yield

    def _is_step_over(self, members: int = 0) -> bool:
        """Another task is done, for which so many members were looked at."""
        self._work += 1 + members // MEMBERS_OF_A_TASK
        if self._work < TASKS_PER_STEP:
            return False
        self._work = 0
        return True

    def _last_holder(self, task: Task) -> _Member | None:
        """The last one that had it, as active or standby, and may have it as standby now."""
        was_active = self._was_active.get(task)
        if was_active is not None and self._has_room(was_active, task):
            return was_active
        member = _least_loaded(self._were_standby.get(task, ()), task)
        return member if member is not None and self._has_room(member, task) else None

    def _has_room(self, member: _Member, task: Task) -> bool:
        return task not in member.process.tasks and member.count < self._quota.each

    def _give_standby_to_any(
        self, heap: list[tuple[tuple[float, int], _Process]], task: Task
    ) -> bool:
        passed = []
        found = False
        while heap and not found:
            entry = heappop(heap)
            process = entry[1]
            found = task not in process.tasks
            if found:
                self._give_standby(process.least_loaded(), task)
            passed.append((process.rank, process))
        for each in passed:
            heappush(heap, each)
        return found

    def _give_standby(self, member: _Member, task: Task) -> None:
        member.standby.add(task)
        member.process.tasks.add(task)
        self._quota.given(member.count)


def _least_loaded(members: Iterable[_Member], task: Task | None = None) -> _Member | None:
    """Of members that had the task as standby. A later one counts only where both its process and
    itself have less to do. With `task`: only one whose process does not have it.
    """
    found: _Member | None = None
    is_free = False
    for member in members:
        if found is None:
            found, is_free = member, task is None or task not in member.process.tasks
        elif (
            (task is None or task not in member.process.tasks)
            and member.process.load < found.process.load
            and member.count < found.count
        ):
            found = member
    # As Kafka: the first one's process decides, whichever was found.
    return found if is_free else None


def _by_number(task: Task) -> tuple[int, str]:
    return task[1], task[0]


def _tasks(
    subtopologies: Mapping[str, ConfiguredSubtopology], stateful_only: bool
) -> Iterator[Task]:
    for subtopology_id, each in subtopologies.items():
        if each.is_stateful or not stateful_only:
            for number in range(each.tasks):
                yield subtopology_id, number
