"""Kafka's rate and token bucket beside what Apache Kafka 4.3.1 answers to the same calls."""

from __future__ import annotations

import pytest

from twisted_broker.security.quota.rate import Rate, TokenBucket, rounded

# (samples, window in ms), then every 23rd (rate, elapsed ms, tokens) of a fixed sequence of events,
# as `Rate` and `TokenBucket` of kafka-clients 4.3.1 gave them.
GOLDEN: list[tuple[tuple[int, int], list[tuple[float, int, float]]]] = [
    (
        (11, 1000),
        [
            (55.5, 10000, 7145.0),
            (1996.049, 10125, -8222.5),
            (2985.672, 11237, -22484.7),
            (3053.078, 10607, -38494.6),
            (3042.686, 11081, -52305.3),
            (1818.715, 10922, -61932.5),
            (2849.571, 10849, -76892.6),
            (3165.306, 10901, -96219.2),
            (3308.547, 10261, -115536.7),
            (756.941, 10734, -109900.5),
            (3241.659, 10101, -129362.6),
            (2600.038, 10576, -137253.3),
            (2655.374, 11778, -150648.9),
            (763.011, 10760, -153585.6),
            (3134.606, 10267, -173003.7),
            (3353.395, 11398, -185222.1),
            (2687.433, 11188, -202559.4),
            (233.844, 10631, -200374.9),
        ],
    ),
    (
        (2, 1000),
        [
            (555.0, 1000, 845.0),
            (5005.277, 2653, -14522.5),
            (5693.286, 1415, -28784.7),
            (4527.828, 2228, -44794.6),
            (3440.497, 2252, -58605.3),
            (3434.229, 2121, -74532.5),
            (4287.516, 2299, -89492.6),
            (2270.772, 2046, -108819.2),
            (4069.077, 1853, -128136.7),
            (4133.103, 1157, -135100.5),
            (5047.738, 2807, -154562.6),
            (4173.933, 2179, -162453.3),
            (5576.887, 2120, -175848.9),
            (2983.307, 2576, -185085.6),
            (6438.045, 2066, -204503.7),
            (1913.793, 1972, -216722.1),
            (3004.636, 2804, -234059.4),
            (1524.218, 1631, -244474.9),
        ],
    ),
    (
        (3, 250),
        [
            (1110.0, 500, -30.0),
            (8672.884, 697, -15397.5),
            (3288.571, 700, -29659.7),
            (5317.437, 671, -45669.6),
            (6368.0, 625, -59480.3),
            (0.0, 500, -76282.5),
            (3449.524, 525, -91242.6),
            (3656.489, 655, -110569.2),
            (5579.56, 773, -129886.7),
            (4219.146, 867, -138600.5),
            (6774.39, 656, -158062.6),
            (4139.344, 732, -165953.3),
            (9936.963, 698, -179348.9),
            (1228.739, 682, -189460.6),
            (1871.245, 699, -208878.7),
            (3479.784, 742, -221097.1),
            (2976.0, 500, -238434.4),
            (476.277, 548, -250599.9),
        ],
    ),
]


class Sequence:
    """The generator that made the golden values."""

    def __init__(self) -> None:
        self.seed = 42

    def next(self, below: int) -> int:
        self.seed = (self.seed * 1103515245 + 12345) & 0x7FFFFFFF
        return (self.seed >> 8) % below


@pytest.mark.parametrize(("shape", "expected"), GOLDEN)
def test_the_rate_and_the_bucket_of_kafka(
    shape: tuple[int, int], expected: list[tuple[float, int, float]]
) -> None:
    samples, window_ms = shape
    sequence, now_ms = Sequence(), 1_000_000_000
    rate, bucket = Rate(samples, window_ms), TokenBucket(700, samples, window_ms)
    bucket.record(0, now_ms)
    found = []
    for number in range(400):
        if number % 97 == 96:
            now_ms += samples * window_ms * (1 + sequence.next(3)) - sequence.next(3)
        else:
            now_ms += sequence.next(400)
        value = sequence.next(2000) - (1500 if number % 13 == 12 else 0)
        rate.record(value, now_ms)
        bucket.record(value, now_ms)
        if number % 7 == 3:
            now_ms += sequence.next(1200)
        if number % 23 == 0:
            measured = rate.measure(now_ms)
            found.append((measured, rate.elapsed_ms(now_ms), bucket.measure(now_ms)))
    assert len(found) == len(expected) == 18
    for ours, kafkas in zip(found, expected, strict=True):
        assert ours == pytest.approx(kafkas, abs=0.0006)


def test_a_first_burst_counts_against_all_windows() -> None:
    rate = Rate(11, 1000)
    rate.record(10_000, 5)
    assert rate.measure(5) == 1000
    assert rate.throttle_ms(1000, 5) == 0
    # Kafka's arithmetic: the excess over the bound, times the time that was measured.
    assert rate.throttle_ms(500, 5) == 10_000


def test_nothing_recorded_is_a_rate_of_zero() -> None:
    assert Rate().measure(7) == 0
    assert Rate(1, 1000).elapsed_ms(7) == 1


def test_a_rate_is_forgotten_after_all_its_windows() -> None:
    rate = Rate(3, 100)
    rate.record(30, 0)
    assert rate.measure(299) > 0
    assert rate.measure(300) == 0


def test_what_is_taken_back_leaves_no_rate() -> None:
    rate = Rate()
    rate.record(1 << 20, 0)
    rate.record(-(1 << 20), 3)
    assert rate.measure(3) == 0


def test_a_rate_keeps_a_fixed_number_of_samples() -> None:
    rate = Rate(2, 10)
    for now_ms in range(0, 5000, 7):
        rate.record(1, now_ms)
    assert len(rate._starts) == len(rate._last) == len(rate._values) == 3


def test_a_new_bucket_is_full_and_an_exhausted_one_waits_for_zero() -> None:
    bucket = TokenBucket(5, 100, 1000)
    bucket.record(560, 0)  # KIP-599's example
    assert bucket.measure(0) == -60
    assert bucket.throttle_ms(0) == 12_000
    assert bucket.throttle_ms(12_000) == 0
    assert bucket.measure(1_000_000) == 500


def test_a_bucket_follows_a_change_of_its_rate() -> None:
    bucket = TokenBucket(10, 11, 1000)
    assert bucket.measure(0) == 110
    bucket.rate = 1
    assert bucket.measure(0) == 11
    bucket.record(12, 0)
    bucket.rate = 2
    assert bucket.throttle_ms(0) == 500


def test_a_wait_is_rounded_as_java_does_and_fits_an_int() -> None:
    assert [rounded(each) for each in (0.4, 0.5, 1.5, 2.5)] == [0, 1, 2, 3]
    assert rounded(1e300) == 2**31 - 1
