"""Every line of the contract is pinned by a test that names it (issue 4; docs/REPLICA_LAYER.md).

Reads the numbered lines of the sections that are built, and the docstrings of all tests. A bullet
of a section without numbers counts as a line: the third of section 9 is `RL 9.3`. A test names
lines as `RL 1.9`, `RL 2.5, 6.6` or `RL 1.3-1.5`; a card of a module names none. What a later issue
builds stands in `LATER` (lines) and `LATER_PARTS` (words of lines), with the reason. Section 3's
lines say much each: `PINNED` names a test for each of their parts. Not here: whether a test pins
what it names (reviewers read that).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTRACT = ROOT / "docs" / "REPLICA_LAYER.md"
SECTIONS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
LATER = {
    (0, 2): "ZooKeeper: a later issue",
    (5, 3): "quotas: a later issue (issue 4 asks for 5.1 and 5.2)",
    **{(7, number): "consumer fetchers: issue 13" for number in range(1, 7)},
}
LATER_PARTS = {
    (1, 1): {
        "one fetcher manager for moves between directories": "directory moves",
        "`controller_epoch`": "ZooKeeper",
    },
    (1, 2): {"With ZooKeeper": "ZooKeeper"},
    (1, 3): {
        "LeaderAndIsr with an older controller epoch": "ZooKeeper",
        "transaction coordinators": "transactions",
    },
    (1, 5): {"when asked": "ZooKeeper's StopReplica; of a metadata delta the log always goes"},
    (1, 8): {"the future local replica": "directory moves", "A follower throttled": "quotas"},
    (1, 9): {"not for a throttled follower": "quotas"},
    (2, 5): {"ZooKeeper: compare-and-set": "ZooKeeper"},
    (3, 5): {"cleaning pauses": "compaction"},
    (3, 6): {"`cleaner-offset-checkpoint`": "compaction"},
    (3, 7): {"compaction (tombstones": "compaction"},
    (3, 8): {"a replica moves between directories": "directory moves"},
    (6, 2): {"not over the follower quota while lagging": "quotas"},
    (6, 4): {"quotas": "quotas"},
    (9, 2): {"compacted: the same last value": "compaction"},
    (9, 4): {"read_committed shows": "transactions"},
}
"""Words of a line that no test holds yet, and which later issue builds them."""
PINNED = {
    (3, 1): {
        "either broker opens the other's directories": "test_a_whole_directory_of_kafka_opens",
        "`.index`, `.timeindex`, `.txnindex`, `.snapshot`": "test_kafkas_dump_tool_reads_our_files",
        "`leader-epoch-checkpoint`, `partition.metadata`": "test_epochs_and_identity",
        "`segment.bytes`": "test_rolls_by_size_and_names_segments_by_offset",
        "`segment.ms`": "test_rolls_by_time_of_records_and_jitter",
        "a full index": "test_rolls_when_an_index_is_full",
        "a relative offset past 2^31-1": "test_rolls_when_a_relative_offset_would_not_fit",
    },
    (3, 2): {
        "magic, length, CRC32C, codec": "test_header_games",
        "CRC32C": "test_every_flipped_bit_is_refused",
        "count = last offset delta + 1": "test_header_games",
        "`max.message.bytes` 1,048,588": "test_size_limit",
        "max timestamp within bounds": "test_timestamp_bounds",
        "no control batch from clients": "test_no_control_batches_from_clients",
        "producer sequence": "test_sequences_follow_each_other",
        "compacted topics (keys are needed)": "test_compacted_topics_need_keys",
        "conversion of magic 0 and 1": "test_message_sets_are_converted_up",
        "recompression (`compression.type`)": "test_recompression",
        "`replog.validate.records=true`": "test_records_are_walked_on_demand_only",
        "rewrites base offset and leader epoch and nothing else": (
            "test_leader_gives_offsets_and_epoch_and_touches_nothing_else"
        ),
        "LogAppendTime rewrites attributes": "test_log_append_time",
        "indexes every `index.interval.bytes`": "test_index_entries_follow_the_interval",
        "updates the epoch cache": "test_follower_keeps_offsets_and_epochs",
        "offsets as they came": "test_follower_keeps_offsets_and_epochs",
        "increasing, continuing the log": "test_follower_refuses_what_does_not_continue",
    },
    (3, 3): {
        "at the log end, or above the reader's bound: empty": "test_read_bounds",
        "OFFSET_OUT_OF_RANGE": "test_read_bounds",
        "Binary search in the sparse index": "test_every_offset_is_found_in_every_state",
        "one segment per read": "test_a_read_stays_in_one_segment",
        "never past the published end": "test_publishing_comes_after_writing",
        "read_committed adds the aborted transactions": (
            "test_a_read_of_committed_data_lists_the_aborted_transactions_in_it"
        ),
        "record bytes are not loaded until they are sent": "test_a_read_loads_no_records",
    },
    (3, 4): {
        "for a follower: log end; for a consumer: high watermark": "test_who_may_see_which_end",
        "-3 max timestamp": "test_offset_of_the_largest_timestamp",
        "-5 latest tiered, -6 earliest pending upload": "test_the_special_offsets",
        "timestamp >= the one requested": "test_offset_by_timestamp",
    },
    (3, 5): {
        "drops segments above, truncates the active one": "test_truncate_to",
        "trims epoch cache": "test_epoch_truncation",
        "producer state": "test_whatever_happens_meanwhile_the_state_is_that_of_the_log",
        "high watermark": "test_after_a_truncation_no_place_is_what_it_was",
        "the recovery-point checkpoint is written at once": "test_a_truncation_is_checkpointed",
        "`truncate_fully_and_start_at`": "test_truncate_below_the_first_segment_and_fully",
    },
    (3, 6): {
        "segments from the recovery point on are scanned": (
            "test_only_segments_from_the_recovery_point_are_scanned"
        ),
        "truncated at the first bad byte": "test_a_bad_segment_in_the_middle_ends_the_log",
        "indexes and producer state rebuilt": "test_state_survives_a_reload",
        "`.kafka_cleanshutdown` and scans nothing": (
            "test_logs_survive_a_clean_stop_without_a_scan"
        ),
        "`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`": (
            "test_checkpoints_are_written_while_running"
        ),
        "`meta.properties`": "test_a_whole_directory_of_kafka_opens",
        "`.lock`": "test_a_directory_in_use_is_refused",
    },
    (3, 7): {
        "Retention by time": "test_by_time",
        "size": "test_by_size",
        "log start": "test_by_log_start_even_on_compacted_topics",
        "never past the high watermark": "test_never_past_the_high_watermark",
        "an expired active segment rolls first": "test_an_expired_active_segment_rolls_first",
        "crash-safe swaps": "test_a_swap_interrupted_anywhere_ends_the_same",
    },
    (3, 8): {
        "new replicas to the least loaded": "test_new_logs_go_to_the_least_loaded_directory",
    },
}
"""Words of a line -> the test whose body is about them; read one by one."""
Line = tuple[int, int]
_NAMED = re.compile(r"RL ((?:\d+\.\d+)(?:(?:, | and |-| to |-RL |, RL )\d+\.\d+)*)")
_RANGE = re.compile(r"(\d+)\.(\d+)(?:(?:-| to |-RL )(\d+)\.(\d+))?")


def contract_lines(text: str, sections: tuple[int, ...] = SECTIONS) -> dict[Line, str]:
    """Each numbered line (or bullet) of `sections`, as one line of text."""
    found: dict[Line, str] = {}
    section = bullet = -1
    for row in text.splitlines():
        if heading := re.match(r"## (\d+)\. ", row):
            section, bullet = int(heading[1]), 0
        elif (line := re.match(r"(\d+|-)\.? (.*)", row)) and section in sections:
            bullet = bullet + 1 if line[1] == "-" else int(line[1])
            found[section, bullet] = line[2]
        elif row.startswith("  ") and (section, bullet) in found:
            found[section, bullet] += " " + row.strip()
    return found


def named_lines(text: str) -> Iterator[Line]:
    """The lines that a docstring names, ranges spelled out."""
    for names in _NAMED.finditer(text):
        for first in _RANGE.finditer(names[1]):
            section, number = int(first[1]), int(first[2])
            last = int(first[4]) if first[4] and int(first[3]) == section else number
            yield from ((section, each) for each in range(number, last + 1))


def docstrings_of_tests(path: Path) -> Iterator[str]:
    """Of test functions, and of the rules and invariants of state machines (methods with a
    docstring).
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and (
            node.name.startswith("test_") or node.decorator_list
        ):
            yield ast.get_docstring(node) or ""


def test_every_line_is_pinned_by_a_test_that_names_it() -> None:
    """Issue 4: the lines that no test names; it must be empty."""
    lines = contract_lines(CONTRACT.read_text())
    named = {
        line
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for doc in docstrings_of_tests(path)
        for line in named_lines(doc)
    }
    missing = [
        f"RL {section}.{number}: {lines[section, number][:80]}"
        for section, number in sorted(lines.keys() - named - LATER.keys())
    ]
    assert missing == []


def test_every_part_of_section_3_has_its_test() -> None:
    """The words stand in the line, the test is there; every built line of the section is here."""
    lines = contract_lines(CONTRACT.read_text())
    tests = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    wrong = [
        (line, words, test)
        for line, parts in PINNED.items()
        for words, test in parts.items()
        if words not in lines[line] or test not in tests
    ]
    assert wrong == []
    assert PINNED.keys() == {line for line in lines if line[0] == 3}


def test_what_is_left_for_later_is_in_the_contract() -> None:
    """An exception for what is not there would hide nothing, or the wrong thing."""
    lines = contract_lines(CONTRACT.read_text())
    assert LATER.keys() <= lines.keys()
    gone = [
        (line, words)
        for line, parts in LATER_PARTS.items()
        for words in parts
        if words not in lines[line]
    ]
    assert gone == []


def test_how_lines_and_names_are_read() -> None:
    """Numbered lines, bullets, lists and ranges."""
    text = "## 1. A\n1. one\n   more\n2. two\n## 2. B\n1. left out\n## 9. C\n- first\n- second\n"
    assert contract_lines(text, (1, 9)) == {
        (1, 1): "one more",
        (1, 2): "two",
        (9, 1): "first",
        (9, 2): "second",
    }
    assert list(named_lines("RL 1.3, 6.6: x; RL 2.1-2.3. RL 4.1 and 4.3, RL 8.")) == [
        (1, 3),
        (6, 6),
        (2, 1),
        (2, 2),
        (2, 3),
        (4, 1),
        (4, 3),
    ]
