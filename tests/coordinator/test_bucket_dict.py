"""`BucketDict` is a dict, whose every step is small and whose keys come in parts."""

from __future__ import annotations

from random import Random

import pytest

from twisted_broker.coordinator import bucket_dict
from twisted_broker.coordinator.bucket_dict import BucketDict


def sizes(held: BucketDict[str, int]) -> list[int]:
    return [len(bucket) for bucket in held._buckets]


@pytest.mark.parametrize("seed", range(10))
def test_it_holds_what_a_dict_holds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is inserted, replaced, removed one by one and taken out, in any order."""
    monkeypatch.setattr(bucket_dict, "EACH", 3)
    random = Random(seed)
    held: BucketDict[str, int] = BucketDict()
    plain: dict[str, int] = {}
    for number in range(2000):
        key, kind = f"k{random.randrange(150)}", random.random()
        if kind < 0.6:
            held[key] = plain[key] = number
        elif kind < 0.8:
            assert held.pop(key, None) == plain.pop(key, None)
        elif kind < 0.95 or not plain:
            assert held.get(key, -1) == plain.get(key, -1) and (key in held) is (key in plain)
        else:
            for _ in range(random.randrange(len(plain)) + 1):
                key, value = held.popitem()
                assert plain.pop(key) == value
        assert len(held) == len(plain)
    assert dict(held.items()) == plain and sorted(held) == sorted(plain)
    assert sorted(key for part in held.parts() for key in part) == sorted(plain)


def test_no_step_moves_many_keys() -> None:
    """An insertion splits one bucket, and no bucket is much larger than `EACH` keys."""
    held: BucketDict[str, int] = BucketDict()
    most = 0
    for number in range(20 * bucket_dict.EACH):
        buckets = len(held._buckets)
        held[f"group-{number}"] = number
        assert len(held._buckets) <= buckets + 1
        most = max(most, *sizes(held)) if len(held._buckets) > buckets else most
    assert len(held._buckets) == 20 and most < 3 * bucket_dict.EACH
    assert max(map(len, held.parts())) < 3 * bucket_dict.EACH


def test_few_keep_their_order() -> None:
    held: BucketDict[str, int] = BucketDict()
    names = [f"g{number}" for number in range(bucket_dict.EACH)]
    for number, name in enumerate(names):
        held[name] = number
    assert list(held) == names == next(held.parts())
    assert held.popitem() == (names[-1], bucket_dict.EACH - 1)


@pytest.mark.parametrize("seed", range(10))
def test_who_stays_is_in_one_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While others come and go between two parts, so many that buckets split under the walk; who
    comes or goes meanwhile is named once at most.
    """
    monkeypatch.setattr(bucket_dict, "EACH", 4)
    random = Random(seed)
    held: BucketDict[str, int] = BucketDict()
    stay = [f"stay{number}" for number in range(random.choice([3, 30, 100]))]
    other = [f"other{number}" for number in range(400)]
    for name in stay + other[:50]:
        held[name] = 1
    named: list[str] = []
    for part in held.parts():
        named += part
        for _ in range(random.randrange(40)):
            name = random.choice(other)
            if not held.pop(name, None):
                held[name] = 1
    assert len(named) == len(set(named)) and set(stay) <= set(named)


def test_what_is_empty_again_takes_no_memory() -> None:
    """A dict keeps its table when keys are removed one by one."""
    held: BucketDict[str, int] = BucketDict()
    names = [f"group-{number}" for number in range(5 * bucket_dict.EACH)]
    for name in names:
        held[name] = 1
    for name in names:
        del held[name]
    assert not held and sum(bucket.__sizeof__() for bucket in held._buckets) <= 5 * 64
    with pytest.raises(KeyError):
        held.popitem()
    assert len(held._buckets) == 1


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 25, 200])
def test_what_is_taken_over_is_as_if_it_had_been_inserted(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on growing and shrinking."""
    monkeypatch.setattr(bucket_dict, "EACH", 3)
    items = {f"k{number}": number for number in range(count)}
    held: BucketDict[str, int] = BucketDict()
    held.take_over(items)
    inserted: BucketDict[str, int] = BucketDict()
    for key, value in items.items():
        inserted[key] = value
    assert held._buckets == inserted._buckets and held._mask == inserted._mask
    assert sorted(held.each_value()) == sorted(items.values()) and len(held) == count
    for number in range(count, 2 * count):
        held[f"k{number}"] = number
    assert sorted(held) == sorted(f"k{number}" for number in range(2 * count))
    while held:
        key, value = held.popitem()
        assert key == f"k{value}"
