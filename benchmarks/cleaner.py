"""`python -m benchmarks.cleaner`: one round of the log cleaner over a log on the disk.

Processor time, so that other programs on the machine do not count; what the broker's process has of
a round is the taking of its segments alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from time import process_time

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.cleaner.cleaning import CleaningResult, clean
from twisted_broker.log.cleaner.selection import log_to_clean, plan_for
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log_config import LogConfig
from twisted_broker.wire.compression import NONE, ZSTD
from twisted_broker.wire.records import BatchBuilder
from twisted_broker.wire.schema import run_whole

NOW_MS = 1_700_000_000_000
BATCH = 200
VALUE_BYTES = 90
SLOTS = 5_000_000


def filled(directory: str, records: int, keys: int, codec: int) -> Log:
    """A compacted log; neighbouring records have keys that are far apart."""
    config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1 << 24)
    log = load_log(
        OpenFiles(OsFileSystem(), 16),
        f"{directory}/cleaned-0",
        TopicPartition("cleaned", 0),
        None,
        config,
        wall_ms=NOW_MS,
    )
    for start in range(0, records, BATCH):
        builder = BatchBuilder(codec=codec)
        for number in range(start, min(start + BATCH, records)):
            value = b"%d" % number + b"x" * VALUE_BYTES
            builder.append(NOW_MS, b"key-%d" % (number * 7919 % keys), value)
        log.append_as_leader(builder.build(), 0, NOW_MS)
    log.set_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    return log


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row for each kind of log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    records = parser.parse_args(arguments).records
    print("| log | records left | s | records/s | MB/s |\n|---|--:|--:|--:|--:|")
    for name, keys, codec in (
        ("few keys", 1000, NONE),
        ("as many keys as half the records", records // 2, NONE),
        ("few keys, zstd", 1000, ZSTD),
    ):
        with tempfile.TemporaryDirectory() as directory:
            log = filled(directory, records, keys, codec)
            plan = run_whole(plan_for(log_to_clean(log, None, NOW_MS), NOW_MS, SLOTS, 0.9))
            began = process_time()
            *_, result = clean(log.pool.files, plan)
            seconds = process_time() - began
            assert isinstance(result, CleaningResult)
            print(
                f"| {name} | {result.records_kept:,} | {seconds:.2f} | "
                f"{result.records_read / seconds:,.0f} | {result.bytes_read / seconds / 1e6:.1f} |"
            )
            log.close()


if __name__ == "__main__":
    main()
