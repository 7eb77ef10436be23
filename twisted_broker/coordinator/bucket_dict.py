"""A dictionary that never grows, shrinks or is copied in one long step.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `BucketDict`, for what may be a million: a plain dict of them takes a tenth of a second to
grow, and 30 ms to copy its keys.

1. Keys are spread over plain dicts by their hash; one more of these is there for every `EACH` keys.
   An insertion splits one of them at most (linear hashing), so it moves some `2 * EACH` keys.
2. `parts` names each key that is there from its beginning to its end once, and none twice, whatever
   is inserted and removed between two parts; a key that comes meanwhile may be among them or not.
   A part is a copy, of some `2 * EACH` keys unless very many came meanwhile.
3. While there are `EACH` keys or fewer, order is as a dict's. Beyond that it differs from process
   to process, as does `hash` of a text (so that no client can choose keys that share a bucket):
   nothing that is decided may depend on it.
4. What is empty again takes no memory to speak of: a bucket is cleared with its last key.

Source: our own; W. Litwin, "Linear hashing", 1980. Not here: what is kept (`coordinator_shard.py`,
`coordinator_loader.py`, `group_offsets.py`, `transaction/transaction_state_manager.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from itertools import chain
from typing import TypeVar

EACH = 1000
# A dict's place for a key is the lowest bits of its hash: the keys of a bucket must differ there.
SHIFT = 24
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")


class BucketDict(MutableMapping[K, V]):
    """Keys are texts, or tuples that hold one: an integer's hash has nothing above `SHIFT`."""

    __slots__ = ("_buckets", "_count", "_mask")

    def __init__(self) -> None:
        self._buckets: list[dict[K, V]] = [{}]
        self._mask = self._count = 0

    def _bucket(self, key: K) -> dict[K, V]:
        place = (hash(key) >> SHIFT) & self._mask
        if place >= len(self._buckets):  # no such bucket yet: its keys are not split off
            place &= self._mask >> 1
        return self._buckets[place]

    # as a dict
    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return key in self._bucket(key)  # type: ignore[arg-type]

    def __getitem__(self, key: K) -> V:
        return self._bucket(key)[key]

    # A mapping's own `get` catches KeyError, which costs ten times as much.
    def get(self, key: K, default: D | None = None) -> V | D | None:  # type: ignore[override]
        buckets = self._buckets
        place = (hash(key) >> SHIFT) & self._mask  # as in `_bucket`, without its call
        if place >= len(buckets):
            place &= self._mask >> 1
        return buckets[place].get(key, default)

    def __setitem__(self, key: K, value: V) -> None:
        bucket = self._bucket(key)
        before = len(bucket)
        bucket[key] = value
        if len(bucket) > before:
            self._count += 1
            if self._count > EACH * len(self._buckets):
                self._split()

    def __delitem__(self, key: K) -> None:
        bucket = self._bucket(key)
        del bucket[key]
        self._count -= 1
        if not bucket:
            bucket.clear()  # a dict keeps the memory of what was removed one by one

    def popitem(self) -> tuple[K, V]:
        """Any of them, the last one while they are few; raises KeyError when there is none.
        Nobody may be in the middle of `parts`.
        """
        buckets = self._buckets
        while not buckets[-1] and len(buckets) > 1:
            # The reverse of a split: keys of the removed bucket are looked for where they came
            # from.
            buckets.pop()
            if len(buckets) <= self._mask + 1 >> 1:
                self._mask >>= 1
        item = buckets[-1].popitem()
        self._count -= 1
        if not buckets[-1]:
            buckets[-1].clear()
        return item

    def __iter__(self) -> Iterator[K]:
        """Nothing may be inserted or removed meanwhile."""
        return chain.from_iterable(self._buckets)

    def each_value(self) -> Iterator[V]:
        """As `values`, which looks up key after key. Nothing may be inserted or removed."""
        return chain.from_iterable(bucket.values() for bucket in self._buckets)

    def take_over(self, items: dict[K, V]) -> None:
        """Takes all of `items` into an empty dictionary: a quarter of what inserting them costs."""
        count = max(1, -(-len(items) // EACH))
        self._mask = (1 << (count - 1).bit_length()) - 1
        self._buckets = [{} for _ in range(count)]
        for key, value in items.items():
            self._bucket(key)[key] = value
        self._count = len(items)

    # in steps
    def parts(self) -> Iterator[list[K]]:
        """All keys, a bucket at a time; see invariant 2."""
        begun_with = len(self._buckets)
        for place in range(begun_with):
            # What was split off from it since the beginning comes with it, and only with it.
            found = list(self._buckets[place]) if place < len(self._buckets) else []
            for later in range(begun_with, len(self._buckets)):
                if self._origin(later, begun_with) == place:
                    found += self._buckets[later]
            yield found

    @staticmethod
    def _origin(place: int, count: int) -> int:
        """Which of the first `count` buckets the keys of a later one were in."""
        while place >= count:
            place -= 1 << place.bit_length() - 1
        return place

    def _split(self) -> None:
        buckets = self._buckets
        if len(buckets) > self._mask:
            self._mask = self._mask << 1 | 1
        place, new = len(buckets) & self._mask >> 1, len(buckets)
        stays: dict[K, V] = {}
        goes: dict[K, V] = {}
        for key, value in buckets[place].items():
            (goes if (hash(key) >> SHIFT) & self._mask == new else stays)[key] = value
        buckets[place] = stays
        buckets.append(goes)
