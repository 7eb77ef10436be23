"""Each part of each line of docs/REPLICA_LAYER.md, with the test whose body is about it.

Owns `PINNED`, the table that `test_contract.py` checks.

1. The words stand in the line. A test is named by its function, a scenario by its file; each names
   the line itself, as `RL 1.9`.
2. Every line is here.

Not here: whether a test would fail without the behaviour. Whoever puts a name in reads its body
first, and for a new test plants the mistake once and sees it red.
"""

from __future__ import annotations

Line = tuple[int, int]

_SEEDS = "test_a_hundred_seeds"
PINNED: dict[Line, dict[str, str | tuple[str, ...]]] = {
    (0, 1): {
        "arrive as records": (
            "test_roles_and_settings_come_as_records_and_isr_changes_leave_as_alter_partition"
        ),
        "ISR changes leave as AlterPartition": (
            "test_roles_and_settings_come_as_records_and_isr_changes_leave_as_alter_partition"
        ),
    },
    (0, 2): {
        "roles arrive as LeaderAndIsr, StopReplica and": "test_a_leader_and_a_follower",
        "ISR changes are conditional writes": (
            "test_a_follower_joins_by_a_conditional_write",
            "test_a_recorded_zookeeper_seed_notices_it",
        ),
    },
    (1, 1): {
        "`controller_epoch`": "test_a_new_controller_is_noted",
        "`isr-change-propagation`": (
            "test_changes_are_announced_once_nothing_changed_for_5_seconds"
        ),
        "one replica fetcher manager": "test_shutdown_ends_all_fetching",
        "one fetcher manager for moves between directories": (
            "test_one_move_at_a_time_in_the_order_of_names"
        ),
        "purgatories named Produce, Fetch and DeleteRecords": (
            "test_the_purgatories_take_their_settings"
        ),
        "`isr-expiration` every `replica.lag.time.max.ms` / 2": (
            "test_each_task_runs_at_its_interval_from_the_first_role_change_on"
        ),
        "(setting 30,000)": "test_defaults_are_kafkas",
        "`highwatermark-checkpoint` every": (
            "test_each_task_runs_at_its_interval_from_the_first_role_change_on"
        ),
        "starts with the first role change": (
            "test_each_task_runs_at_its_interval_from_the_first_role_change_on"
        ),
    },
    (1, 2): {
        "collected changes go out at once as one AlterPartition": (
            "test_what_is_proposed_in_one_turn_goes_in_one_request"
        ),
        "when none is in flight": "test_one_request_is_in_flight_and_the_rest_goes_together",
        "again after a good answer": "test_the_next_request_leaves_at_once_after_a_good_answer",
        "after an error they are sent again 50 ms later": (
            "test_an_error_of_the_whole_is_tried_again_with_what_is_still_wanted",
            "test_what_an_error_left_is_tried_50_ms_later",
        ),
        "answers are per partition": "test_each_partition_has_its_own_answer",
        "every 2,500 ms the changed partitions are published": (
            "test_changes_are_announced_once_nothing_changed_for_5_seconds"
        ),
        "the last publication is more than 60,000 ms old": (
            "test_steady_changes_are_announced_after_a_minute"
        ),
    },
    (1, 3): {
        "LeaderAndIsr with an older controller epoch": ("test_an_older_controller_changes_nothing"),
        "a stale leader epoch answers STALE_CONTROLLER_EPOCH": "test_a_stale_leader_epoch",
        "a partition not assigned here UNKNOWN_TOPIC_OR_PARTITION": (
            "test_a_partition_that_is_not_assigned_here"
        ),
        "an offline directory KAFKA_STORAGE_ERROR": "test_an_offline_directory",
        "another topic id INCONSISTENT_TOPIC_ID": "test_a_log_belongs_to_one_topic_id",
        "split into leaders-to-be and followers-to-be": "test_observers_hear_of_leadership",
        "restart only where the leader epoch rose": (
            "test_only_a_new_leader_epoch_restarts_fetching"
        ),
        "idle fetchers shut down": "test_another_leader_another_fetcher_and_idle_ones_end",
        "learn what they gained or lost": "test_observers_hear_of_leadership",
        "transaction coordinators": ("test_the_coordinator_moves_in_the_middle_of_a_transaction"),
    },
    (1, 4): {
        "remove the partitions from fetchers first, then `Partition.make_leader`": (
            "test_a_partition_that_will_be_led_leaves_its_fetcher_first"
        ),
        "is reported": (
            "test_a_leader_that_is_not_alive_is_reported_and_the_high_watermark_checkpointed"
        ),
        "its replica is created": (
            "test_a_leader_that_cannot_be_reached_is_not_fetched_but_the_replica_is_there"
        ),
        "its high watermark is checkpointed": (
            "test_a_leader_that_is_not_alive_is_reported_and_the_high_watermark_checkpointed"
        ),
        "whose leader epoch is new: remove from fetchers": (
            "test_without_a_leader_that_is_known_the_old_one_is_left"
        ),
        "mark for truncation (6.3)": "test_how_a_partition_begins",
        "complete all that is delayed on them": (
            "test_becoming_follower_completes_parked_produces_and_fetches"
        ),
        "unless shutting down": (
            "test_shutdown_ends_all_fetching",
            "test_a_broker_that_leaves_stops_following_what_it_is_not_in_sync_with",
        ),
        "at the initial offset": "test_where_fetching_begins",
    },
    (1, 5): {
        "remove from fetchers": "test_what_is_deleted_or_moved_away_is_fetched_no_more",
        "drop the partition": "test_a_replica_that_was_removed_from_here",
        "when asked": "test_stop_replica",
        "delete its log": "test_a_removed_partition_completes_what_waits",
        "renamed `-delete`": "test_deletion_renames_at_once_and_removes_later",
        "`file.delete.delay.ms`": "test_deletion_renames_at_once_and_removes_later",
        "complete what was delayed on it": "test_a_removed_partition_completes_what_waits",
    },
    (1, 6): {
        "acks other than -1, 0, 1": "test_acks_other_than_minus_one_zero_one",
        "refuse clients with INVALID_TOPIC_EXCEPTION": (
            "test_internal_topics_take_records_from_coordinators_only"
        ),
        "`__admin_client`": "test_the_client_id_opens_no_door",
        "Errors are per partition and the others go on": "test_errors_are_per_partition",
        "NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION": "test_errors_are_per_partition",
        "KAFKA_STORAGE_ERROR": "test_whatever_meets_the_failure_takes_the_disks_partitions_offline",
        "MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_TIMESTAMP": (
            "test_a_refused_append_writes_nothing_and_leaves_the_others_alone"
        ),
        "INVALID_RECORD, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH": (
            "test_a_refused_append_writes_nothing_and_leaves_the_others_alone"
        ),
        "NOT_ENOUGH_REPLICAS (acks=-1": (
            "test_not_enough_replicas_writes_nothing_but_only_for_acks_all",
            "min_isr_refuses.txt",
        ),
        "acks=0 with an error closes the connection": "test_acks_0",
    },
    (1, 7): {
        "only when acks=-1": (
            "test_acks_0_waits_for_nothing",
            "test_without_the_setting_acks_1_waits_for_nothing",
        ),
        "there are records": "test_no_delayed_produce_alone_or_without_need",
        "at least one partition's append succeeded": (
            "test_no_delayed_produce_alone_or_without_need"
        ),
        "it had an error": "test_at_timeout_the_rest_times_out",
        "it is gone (UNKNOWN_TOPIC_OR_PARTITION)": (
            "test_a_removed_partition_completes_what_waits",
            "delayed_produce_topic_deleted.txt",
        ),
        "led elsewhere (NOT_LEADER_OR_FOLLOWER)": (
            "test_becoming_follower_completes_parked_produces_and_fetches",
            "delayed_produce_leadership_lost.txt",
        ),
        "the high watermark >= last appended offset + 1": (
            "test_a_produce_waits_for_the_high_watermark_not_for_the_log_end",
            "delayed_produce_waits_for_the_isr.txt",
        ),
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND": (
            "test_enough_replicas_reached",
            "test_the_isr_that_falls_below_the_minimum_while_a_produce_waits",
        ),
        "At `timeout_ms` the rest answer REQUEST_TIMED_OUT": (
            "test_at_timeout_the_rest_times_out",
            "delayed_produce_time_is_up.txt",
        ),
    },
    (1, 8): {
        "the future local replica": (
            "test_a_follower_moves_as_well_and_goes_on_following",
            "test_replica_ids_that_nobody_may_use",
        ),
        "a follower (reads to the log end": "test_a_follower_reads_to_the_log_end_and_counts",
        "leader only": "test_a_follower_serves_consumers_from_version_11_on",
        "-1 a consumer (to the high watermark": (
            "test_who_is_no_follower_reads_to_the_high_watermark"
        ),
        "last stable offset when read_committed": (
            "test_read_committed_stops_at_the_last_stable_offset"
        ),
        "-2, the old debugging consumer": "test_who_is_no_follower_reads_to_the_high_watermark",
        "a request with a lower id is refused": "test_replica_ids_that_nobody_may_use",
        "one snapshot taken before the read": "test_watermarks_are_those_before_the_read",
        "`max_wait_ms` <= 0, nothing is requested, `min_bytes` are there, something failed": (
            "test_answers_at_once"
        ),
        "epoch diverges": "test_a_diverging_epoch_is_answered_at_once",
        "another replica is preferred": "test_a_consumer_is_sent_to_its_own_rack",
        "hard limits per partition and none for the response": (
            "test_old_versions_have_no_limit_for_the_answer"
        ),
        "an oversized first batch is truncated": "test_hard_limits_cut_what_does_not_fit",
        "min(request, `fetch.max.bytes` 55 MiB)": (
            "test_fetch_max_bytes_bounds_every_answer",
            "test_defaults_are_kafkas",
        ),
        "filled in the order of the request": (
            "test_the_response_limit_is_filled_in_the_order_of_the_request"
        ),
        "the first non-empty partition may exceed it by one whole batch": (
            "test_an_empty_first_partition_leaves_its_right_to_the_next"
        ),
        "A follower throttled by the leader's quota reads empty": (
            "test_a_throttled_follower_reads_empty",
            "test_a_replica_in_sync_is_not_throttled",
            "throttled_leader.txt",
        ),
    },
    (1, 9): {
        "(A) this broker no longer leads": (
            "test_case_a_led_elsewhere",
            "delayed_fetch_a_leadership_lost.txt",
        ),
        "or may no longer serve it": "test_case_a_a_follower_may_go_on_serving",
        "(B) the replica is gone": (
            "test_case_b_the_replica_is_gone",
            "delayed_fetch_b_replica_gone.txt",
        ),
        "(C) the partition is unknown": (
            "test_case_c_unknown",
            "delayed_fetch_c_unknown_partition.txt",
        ),
        "(D) its directory is offline": (
            "test_case_d_offline",
            "delayed_fetch_d_directory_offline.txt",
        ),
        "(E) the leader epoch is fenced": (
            "test_case_e_fenced",
            "delayed_fetch_e_epoch_fenced.txt",
        ),
        "beyond the end offset (truncated)": (
            "test_case_f_truncated",
            "delayed_fetch_f_truncated.txt",
        ),
        "on an older segment (rolled": ("test_case_f_rolled", "delayed_fetch_f_rolled.txt"),
        "not for a throttled follower": "test_a_segment_that_rolls_answers_no_throttled_follower",
        "the bytes between fetch and end offset": (
            "test_case_g_enough_bytes",
            "delayed_fetch_g_enough_bytes.txt",
            "test_throttled_bytes_are_not_available",
        ),
        "at most its limit": "test_case_g_counts_at_most_the_partitions_limit",
        "(H) the leader's end offset for `last_fetched_epoch` diverges": (
            "test_case_h_diverging",
            "delayed_fetch_h_diverging.txt",
        ),
        "or cannot be told": "test_case_h_is_not_known",
        "Equal offsets never satisfy F": "test_case_f_never_at_equal_offsets",
        "that of the reader's isolation": "test_case_g_takes_the_readers_end",
        "Time-out apart": (
            "test_at_its_time_a_fetch_is_answered_empty",
            "delayed_fetch_g_time_is_up.txt",
        ),
        "Completion reads anew with the same limits": (
            "test_the_second_read_has_the_limits_of_the_first"
        ),
        "does not count the follower's progress again": (
            "test_what_wakes_a_followers_fetch_does_not_count_its_progress_again"
        ),
    },
    (1, 10): {
        "After a follower's read (not when it diverges)": (
            "test_a_diverging_read_counts_for_nothing"
        ),
        "caught up now": "test_caught_up_now_and_caught_up_then",
        "caught up at that fetch's time": "test_caught_up_now_and_caught_up_then",
        "maybe expand the ISR": "test_expand",
        "maybe advance the high watermark": "test_it_is_the_least_log_end_of_the_isr",
        "check the delayed operations": (
            "test_a_produce_waits_for_the_high_watermark_not_for_the_log_end"
        ),
        "A replica id not assigned": "test_a_replica_that_is_not_assigned",
    },
    (1, 11): {
        "`min.insync.replicas`": ("test_min_isr_acts_while_running", "min_isr_lowered.txt"),
        "`unclean.leader.election.enable`": (
            "test_the_setting_acts_at_once",
            "unclean_election_turned_on.txt",
        ),
        "..": ("test_topic_settings_act_while_running", "test_settings_act_while_running"),
    },
    (1, 12): {
        "one `replication-offset-checkpoint` per log directory": "test_one_file_per_directory",
        "for leaders and followers alike": "test_high_watermarks_are_checkpointed",
        "version 0, count": "test_offset_checkpoints",
        "written aside, synced, renamed, directory synced": (
            "test_replacing_survives_a_crash_at_any_operation"
        ),
        "A created replica starts from it, clamped": (
            "test_a_created_replica_starts_from_the_checkpoint_clamped_to_its_end",
            "test_start_clamps",
            "restart_from_the_checkpoint.txt",
        ),
        "takes only its own partitions offline": (
            "test_whatever_meets_the_failure_takes_the_disks_partitions_offline",
            "directory_lost_by_the_leader.txt",
        ),
        "and is reported": "test_a_failed_directory_is_reported_at_once",
    },
    (1, 13): {
        "Metrics under Kafka's names, per topic and in total": (
            "test_every_name_of_the_contract_is_shown"
        ),
        "MessagesIn, BytesIn": "test_appends_count_messages_bytes_and_requests",
        "BytesOut": (
            "test_reads_of_consumers_and_followers_count_apart",
            "test_what_is_read_and_given_back_is_not_counted",
        ),
        "BytesRejected": "test_failures_and_rejected_bytes",
        "(counted before any check)": "test_requests_for_what_is_not_here_count_in_total",
        "FailedProduceRequests": "test_failures_and_rejected_bytes",
        "FailedFetchRequests (unexpected errors only)": (
            "test_only_reads_that_fail_unexpectedly_count_as_failed"
        ),
        "ReplicationBytesIn/Out, ReassignmentBytesIn/Out": (
            "test_reads_of_consumers_and_followers_count_apart",
            "test_what_a_fetcher_brings_is_counted_as_replication",
        ),
        "LeaderCount, PartitionCount, UnderReplicatedPartitions": (
            "test_partitions_are_counted_by_their_state"
        ),
        "IsrShrinks, IsrExpands": (
            "test_isr_expansion_and_shrinking_go_to_the_controller",
            "test_a_follower_that_left_is_seen_in_the_numbers",
        ),
        "FailedIsrUpdates": "test_refused_isr_changes_are_counted",
        "MaxLag": "test_the_largest_lag",
        "MinFetchRate": "test_rates_are_between_two_scrapes",
        "FailedPartitionsCount; per fetcher requests, bytes, lag per partition": (
            "test_fetchers_show_lag_requests_and_failures"
        ),
        "PurgatorySize and NumDelayedOperations": "test_what_waits_is_counted_by_purgatory",
        "throttle, response": "test_every_name_of_the_contract_is_shown",
        "request time split in queue, local, remote": (
            "test_requests_are_counted_and_timed",
            "test_what_waits_behind_others_is_queued_and_what_is_answered_early_waits_to_leave",
        ),
    },
    (1, 14): {
        "leader check; minimum ISR; log append": (
            "test_leadership_is_checked_before_the_minimum_isr_and_that_before_the_records"
        ),
        "maybe advance the high watermark": "test_alone_the_high_watermark_follows_the_log_end",
        "if it moved, check all operations": "test_what_an_append_makes_happen",
        "else only the delayed fetches": (
            "test_what_an_append_makes_happen",
            "test_a_waiting_fetch_is_answered_the_moment_data_arrives",
        ),
    },
    (2, 1): {
        "controller epoch": "test_a_leader_and_a_follower",
        "min(`min.insync.replicas`, assigned replicas)": (
            "test_the_minimum_isr_is_never_above_the_replicas"
        ),
        "State: leader, leader epoch, leader epoch start offset, ISR, assigned replicas": (
            "test_state_that_a_role_brings"
        ),
        "`make_follower` empties the ISR, clears the start offset": "test_make_follower",
        "says whether the leader epoch is new": "test_make_follower",
    },
    (2, 2): {
        "Offset metadata = offset, segment base, position, or unknown": (
            "test_a_place_is_looked_up_once_and_only_where_it_is_not_known"
        ),
        "keeps the high watermark as a bare offset; `make_leader` looks it up in full": (
            "test_a_follower_keeps_a_bare_offset_and_a_leader_looks_it_up"
        ),
        "takes ISR and epochs": "test_state_that_a_role_brings",
        "resets remote states": "test_make_leader_resets_what_it_knew_of_followers",
        "writes epoch and start offset to the epoch cache": (
            "test_make_leader_writes_the_epoch_and_its_start"
        ),
    },
    (2, 3): {
        "the minimum log end over the ISR": "test_it_is_the_least_log_end_of_the_isr",
        "(the pending larger one while a change is in flight)": (
            "test_expand",
            "isr_expansion_waits_for_the_controller.txt",
        ),
        "over eligible replicas caught up": (
            "test_a_follower_outside_the_isr_but_caught_up_holds_it_back",
            "test_a_fenced_follower_outside_the_isr_does_not_hold_it_back",
            "silent_replica_outside_the_isr.txt",
        ),
        "only forward": "test_it_is_the_least_log_end_of_the_isr",
        "to the same offset on a newer segment": (
            "test_at_the_same_offset_it_moves_to_the_newer_segment"
        ),
        "it stays while the ISR is below": "test_it_stays_below_the_minimum_isr",
    },
    (2, 4): {
        "whose log end >= the high watermark": "test_no_expansion_below_the_high_watermark",
        ">= the leader epoch's start": (
            "test_no_expansion_below_the_epochs_start",
            "isr_expansion_waits_for_the_epochs_start.txt",
        ),
        "on a live broker": "test_no_expansion_of_an_ineligible_replica",
        "caught up longer ago than": ("test_shrink", "isr_shrinks_and_expands.txt"),
        "never one whose log end equals the leader's": (
            "test_a_follower_at_the_leaders_end_never_leaves",
            "follower_at_the_end_stays.txt",
        ),
        "never to empty": "test_it_never_shrinks_to_empty",
    },
    (2, 5): {
        "ZooKeeper: compare-and-set": "test_a_follower_joins_by_a_conditional_write",
        "a lost race changes": ("test_a_lost_race_changes_nothing_until_the_controllers_next_word"),
        "record it for 1.2": "test_a_follower_joins_by_a_conditional_write",
        "one in flight per partition": "test_one_change_in_flight",
        "(v2, v3; topic ids, broker epochs)": (
            "test_the_proposal_names_broker_epochs",
            "test_what_is_proposed_in_one_turn_goes_in_one_request",
            "test_the_isr_shrinks_and_expands",
        ),
        'high watermark and "enough replicas" use the union': (
            "test_expand",
            "test_shrink",
            "test_before_an_append_the_committed_isr_counts_while_it_grows",
        ),
        "the check before an append the committed ISR": (
            "test_before_an_append_the_committed_isr_counts_while_it_grows"
        ),
        "INELIGIBLE_REPLICA and OPERATION_NOT_ATTEMPTED revert": "test_refusals_that_revert",
        "wait for the controller's next record": (
            "test_refusals_that_wait_for_the_controllers_word",
            "isr_race_controller_was_faster.txt",
        ),
        "others are retried": "test_other_refusals_are_sent_again",
        "keep ISR and partition epoch": "test_expand",
        "mark the rate": "test_isr_expansion_and_shrinking_go_to_the_controller",
        "maybe advance the high watermark, check the delayed operations": (
            "test_a_confirmed_shrink_answers_parked_produces"
        ),
    },
    (2, 6): {
        "older: FENCED_LEADER_EPOCH; newer: UNKNOWN_LEADER_EPOCH": (
            "test_leader_epoch_of_a_request",
            "test_leader_epochs",
            "test_epochs_are_checked_before_leadership",
        ),
    },
    (2, 7): {
        "Consumers (fetch v11+) may read from a follower": (
            "test_a_follower_serves_consumers_from_version_11_on"
        ),
        "chosen by rack": (
            "test_a_consumer_is_sent_to_its_own_rack",
            "test_only_members_that_live_and_hold_the_offset_are_named",
            "reading_from_a_follower_by_rack.txt",
        ),
        "above its high watermark up to its end is empty": (
            "test_a_follower_shows_what_is_below_its_high_watermark",
            "reading_above_a_followers_high_watermark.txt",
        ),
        "beyond is OFFSET_OUT_OF_RANGE": "test_a_follower_shows_what_is_below_its_high_watermark",
        "OFFSET_NOT_AVAILABLE (v5+)": (
            "test_a_new_leader_does_not_know_the_end_yet",
            "offset_not_available.txt",
        ),
    },
    (2, 8): {
        "moves the log start offset": (
            "test_a_fetch_below_the_new_log_start_is_answered",
            "test_log_start",
        ),
        "waits in its purgatory until all live replicas moved": (
            "test_delete_records_waits_for_live_followers",
            "test_delete_records_does_not_wait_for_who_died_meanwhile",
            "delete_records_waits_for_all.txt",
        ),
        "followers learn it in fetch answers": "test_the_log_start_follows_the_leaders",
    },
    (3, 1): {
        "either broker opens the other's directories": (
            "test_a_whole_directory_of_kafka_opens",
            "test_kafka_opens_our_directory_and_gives_it_back",
        ),
        "`.index`, `.timeindex`, `.txnindex`, `.snapshot`": (
            "test_every_index_entry_of_kafka_is_found_again",
            "test_kafkas_dump_tool_reads_our_files",
        ),
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
        "-2 earliest": "test_the_special_offsets",
        "-3 max timestamp": (
            "test_offset_of_the_largest_timestamp",
            "test_the_largest_timestamp_is_shown_only_when_it_may_be_read",
        ),
        "-4 earliest local": "test_the_special_offsets",
        "-5 latest tiered, -6 earliest pending upload": "test_the_special_offsets",
        "timestamp >= the one requested": ("test_offset_by_timestamp", "test_by_timestamp"),
    },
    (3, 5): {
        "drops segments above, truncates the active one": "test_truncate_to",
        "trims epoch cache": ("test_truncate_to", "epochs_are_truncated_with_the_log.txt"),
        "producer state": "test_whatever_happens_meanwhile_the_state_is_that_of_the_log",
        "high watermark": "test_after_a_truncation_no_place_is_what_it_was",
        "a cleaning round under way comes to nothing": "test_a_log_that_was_truncated_meanwhile",
        "the recovery-point checkpoint is written at once": "test_a_truncation_is_checkpointed",
        "`truncate_fully_and_start_at`": "test_truncate_below_the_first_segment_and_fully",
    },
    (3, 6): {
        "segments from the recovery point on are scanned": (
            "test_only_segments_from_the_recovery_point_are_scanned",
            "test_what_a_start_reads_of_records",
        ),
        "truncated at the first bad byte": "test_a_bad_segment_in_the_middle_ends_the_log",
        "indexes and": (
            "test_a_missing_index_is_made_anew_even_after_a_clean_stop",
            "test_a_reloaded_index_says_the_same",
            "test_aborted_transactions_are_rebuilt_as_kafka_wrote_them",
        ),
        "producer state rebuilt": "test_state_survives_a_reload",
        "`.kafka_cleanshutdown` and scans nothing": (
            "test_logs_survive_a_clean_stop_without_a_scan",
            "test_what_a_start_reads_of_records",
        ),
        "`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`": (
            "test_checkpoints_are_written_while_running"
        ),
        "`cleaner-offset-checkpoint`": ("test_a_dirty_log_is_cleaned_and_the_checkpoint_follows"),
        "`meta.properties`": "test_a_new_directory_is_formatted_once",
        "`.lock`": "test_a_directory_in_use_is_refused",
    },
    (3, 7): {
        "Retention by time": "test_by_time",
        "size": "test_by_size",
        "log start": "test_by_log_start_even_on_compacted_topics",
        "never past the high watermark": (
            "test_never_past_the_high_watermark",
            "retention_stops_at_the_high_watermark.txt",
        ),
        "an expired active segment rolls first": "test_an_expired_active_segment_rolls_first",
        "compaction (tombstones": "test_a_tombstone_goes_when_its_horizon_is_over",
        "dirty ratio, lags": (
            "test_a_log_that_is_clean_enough_waits",
            "test_what_may_not_be_cleaned",
        ),
        "transaction markers)": "test_records_of_an_aborted_transaction_go_and_its_marker_waits",
        "crash-safe swaps": (
            "test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one",
            "test_a_swap_interrupted_anywhere_ends_the_same",
        ),
    },
    (3, 8): {
        "new replicas to the least loaded": "test_new_logs_go_to_the_least_loaded_directory",
        "a replica moves between directories while it serves": (
            "test_a_copy_takes_the_logs_place_and_the_old_one_is_deleted",
            "test_it_serves_while_it_moves",
            "test_after_each_operation_one_consistent_state_is_found",
        ),
    },
    (4, 1): {
        "Operations wait under keys": "test_completes_once_by_condition",
        "complete exactly once, by condition": "test_completes_once_by_condition",
        "by time": "test_completes_once_by_time",
        "completed ones leave the lists when their number passes": (
            "test_completed_ones_are_purged_past_the_interval"
        ),
        "(1,000; DeleteRecords 1)": (
            "test_defaults_are_kafkas",
            "test_the_purgatories_take_their_settings",
        ),
    },
    (4, 2): {
        "Adding and cancelling a timeout is O(1) at 100,000 waiting": (
            "test_cost_does_not_grow_with_the_number_waiting"
        ),
        "100,000 waiting fetches take under 200 MB": "test_memory_of_waiting_fetches",
    },
    (4, 3): {
        "Try, watch": "test_complete_at_once_does_not_wait",
        "under every key": "test_completes_once_by_condition",
        "try again: no event in between is lost": "test_tried_again_after_watching",
        "never re-enters the code that caused it": (
            "test_completing_never_re_enters_the_look",
            "test_effects_run_in_order_and_to_the_end",
        ),
    },
    (5, 1): {
        "Follower fetch: ClusterAction": (
            "test_a_followers_fetch_asks_for_the_cluster_alone",
            "test_followers_need_cluster_action",
        ),
        "consumer: Read": "test_a_consumers_fetch_asks_for_each_topic_then_reads",
        "produce: Write (TransactionalId": (
            "test_a_produce_asks_for_the_transactional_id_then_for_each_topic_then_appends"
        ),
        "IdempotentWrite": "test_a_producer_id_needs_idempotent_write",
        "Authorisation before existence": (
            "test_a_produce_without_permission_learns_nothing",
            "test_a_fetch_without_permission_learns_nothing",
        ),
        "then UNKNOWN_TOPIC_OR_PARTITION": "test_what_does_not_exist_is_refused_without_a_read",
        "carries -1 for the watermarks and no records; the others are served": (
            "test_errors_carry_minus_one"
        ),
        "with none left the replica manager is not touched": (
            "test_with_nothing_left_nothing_is_read"
        ),
    },
    (5, 2): {
        "full, incremental, sessionless": "test_sessionless_and_full",
        "`forgotten_topics`": "test_forgotten_topics",
        "only partitions with data, errors or moved watermarks": (
            "test_only_what_changed_is_shown",
            "test_an_incremental_answer_holds_what_changed",
        ),
        "FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH": "test_session_errors",
        "1,000": "test_defaults_are_kafkas",
        "evicted after 120 s": "test_a_stale_session_makes_room",
        "or by size, followers' sessions kept over consumers'": "test_size_and_followers",
    },
    (5, 3): {
        "byte rates and request time by user and client id": (
            "test_the_most_specific_quota_holds_whatever_others_there_are",
            "test_a_producer_over_its_rate_waits_after_its_answer",
            "test_a_fetch_beyond_the_quota_is_empty_and_costs_nothing",
            "test_time_of_the_thread_is_waited_for",
        ),
        "leader and follower replication quotas": (
            "test_the_mean_of_the_windows_is_bounded",
            "test_the_settings_reach_both_quotas",
            "throttled_follower.txt",
            "throttled_leader.txt",
        ),
        "for throttled replicas only": (
            "test_which_replicas_are_throttled",
            "test_a_throttled_follower_reads_empty",
            "test_a_replica_that_is_not_throttled_is_fetched",
        ),
    },
    (6, 1): {
        "abs(31 * hash(topic) + partition)": "test_the_number_is_javas",
        "abs of the smallest being 0": "test_the_smallest_number_counts_as_0",
        "per leader broker": "test_the_number_of_fetchers_per_leader",
        "Adding groups by (broker, fetcher)": "test_partitions_are_grouped_by_leader_and_number",
        "reuses one whose endpoint is equal, replaces it otherwise": (
            "test_a_leader_at_another_address_gets_another_fetcher"
        ),
        "already there at the same epoch keeps its state": (
            "test_added_again_under_the_same_epoch_it_keeps_its_state"
        ),
        "adding wakes a waiting fetcher": "test_adding_wakes_a_waiting_fetcher",
        "idle ones shut down": "test_idle_fetchers_shut_down",
    },
    (6, 2): {
        "fetch offset, lag, leader epoch, delay until, Truncating or Fetching": (
            "test_how_a_partition_begins",
            "test_what_a_round_asks_and_does",
        ),
        "maybe truncate all that are Truncating": "test_a_round_truncates_first_and_fetches_then",
        "not delayed": "test_what_is_delayed_is_not_truncated_either",
        "maybe fetch all that are ready": (
            "test_whatever_happens_all_that_are_ready_are_asked",
            "test_a_delay_ends_by_itself",
        ),
        "not over the follower quota while lagging": (
            "test_a_throttled_follower_leaves_lagging_replicas_out",
            "test_a_follower_in_sync_is_fetched_whatever_the_rate",
        ),
        "wait `replica.fetch.backoff.ms` (1,000)": (
            "test_nothing_to_ask_waits_for_the_backoff",
            "test_a_broken_connection_stops_its_own_fetcher_and_no_other",
            "test_defaults_are_kafkas",
        ),
        "or until something is added": "test_adding_wakes_a_waiting_fetcher",
        "The request carries replica id and epoch, current leader epoch, last fetched epoch": (
            "test_what_a_fetch_says"
        ),
        "`replica.fetch.wait.max.ms` 500": "test_the_limits_are_settings",
        "`replica.fetch.max.bytes` 1 MiB": "test_the_limits_are_settings",
        "One connection per fetcher, client id": "test_the_number_of_fetchers_per_leader",
        "one fetch session": "test_one_session_of_incremental_fetches",
        "back to a full fetch on a session error": (
            "test_an_error_of_the_session_leads_back_to_a_full_fetch"
        ),
        "Partitions rotate": "test_partitions_take_turns",
    },
    (6, 3): {
        "OffsetForLeaderEpoch for the epoch of the own last entry": (
            "test_a_round_truncates_first_and_fetches_then",
            "truncation_by_offset_for_leader_epoch.txt",
        ),
        "min(leader's end of that epoch, own end of it)": "test_where_to_truncate",
        "stepping down through epochs until both agree": (
            "test_kip_279_epochs_that_the_other_does_not_know_are_stepped_through",
            "kip_279_fast_leader_changes.txt",
        ),
        "an undefined end offset means the high watermark": "test_where_to_truncate",
        "the diverging epoch comes in the fetch answer": (
            "test_divergence",
            "truncation_by_the_fetch_answer.txt",
        ),
        "only while the leader epoch is the one requested": (
            "test_an_answer_about_an_epoch_counts_under_the_epoch_asked"
        ),
        "Without epochs truncate to the high watermark": (
            "test_without_epochs_truncation_goes_to_the_high_watermark"
        ),
        "is logged as a warning": "test_a_truncation_below_the_high_watermark_is_a_warning",
    },
    (6, 4): {
        "still here, ready and at the offset requested": (
            "test_an_answer_of_yesterday_counts_for_nothing",
            "test_an_answer_in_flight_of_what_changed_meanwhile_is_dropped",
        ),
        "append offset = log end": "test_records_for_another_place_fail_the_partition",
        "follower high watermark = min(own end, leader's)": (
            "test_the_high_watermark_never_passes_the_own_end"
        ),
        "Order": "test_the_watermarks_of_one_answer_are_taken_in_their_order",
        "quotas": "test_what_a_throttled_follower_fetches_counts",
        "what is refused next was sent, too": "test_what_a_follower_refuses_counts",
        "metrics": "test_what_a_fetcher_brings_is_counted_as_replication",
        "Next offset = last + 1; lag = max(0, leader's high watermark - next)": (
            "test_after_an_append"
        ),
    },
    (6, 5): {
        "if it is below the own end: truncate to it": (
            "test_a_follower_above_the_leaders_end_is_truncated",
            "follower_above_the_leaders_end.txt",
        ),
        "with a warning": "test_an_unclean_truncation_is_a_warning",
        "`replog.refuse.unclean.truncation` stops the partition": (
            "test_unclean_truncation_can_be_refused"
        ),
        "truncate fully and start there": (
            "test_beyond_us_starts_the_leader_we_start_there",
            "follower_below_the_leaders_start.txt",
        ),
        "next = max(leader's start, own end)": (
            "test_within_the_leaders_range_we_go_on_at_our_end",
            "test_where_to_go_on_when_out_of_range",
        ),
        "FENCED_LEADER_EPOCH at the current epoch": (
            "test_fenced_fails_a_partition_only_at_its_current_epoch",
            "test_fenced_partitions_are_one_line_a_round",
        ),
        "delayed by the backoff": "test_an_error_of_one_partition_delays_that_one",
        "logged unless": "test_an_error_of_one_partition_delays_that_one",
        "storage error: failed": (
            "test_a_storage_error_fails_the_partition_and_takes_the_directory_offline"
        ),
        "delays that fetcher's partitions only": (
            "test_a_broken_connection_stops_its_own_fetcher_and_no_other"
        ),
    },
    (6, 6): {
        "recovery point = min(own, base of the truncated segment)": (
            "test_recovery_point_after_a_truncation"
        ),
        "written at once": "test_a_truncation_is_checkpointed",
        "Crash between truncation and checkpoint": (
            "test_a_recovery_point_above_the_log_end_proves_nothing"
        ),
        "never above the high watermark": (
            "test_a_log_that_grew_past_an_old_recovery_point_is_checked"
        ),
        "Nor above the base of the active segment": (
            "test_what_changed_with_a_roll_does_not_come_back"
        ),
        "At start the high watermark = min(checkpoint, log end)": "test_start_clamps",
    },
    (6, 7): {
        "leaves offsets out (holes), or brings a marker that a cleaner has emptied": (
            "test_a_hidden_end_of_what_is_open_from_before"
        ),
        "copied before this process loaded the log": "test_a_restart_forgets_when_it_was_copied",
        "from another leader": "test_what_another_leader_sent_is_doubted",
        "longer than `delete.retention.ms` / 4 ago": (
            "test_what_was_copied_lately_is_not_doubted",
            "test_a_log_that_is_copied_slowly",
        ),
        "not in the ISR, nor eligible": (
            "test_who_may_be_elected_takes_it_as_it_is",
            "test_what_a_transactions_end_was_missed_in_is_copied_again",
        ),
        "a copy in another directory": (
            "test_a_copy_that_missed_a_transactions_end_is_copied_again",
            "test_a_copy_has_no_more_than_its_log",
        ),
        "truncate to where it begins": "test_what_a_transactions_end_was_missed_in_is_copied_again",
    },
    (7, 1): {
        "serves replicas": "test_one_base_serves_replicas_and_consumers",
        "directory moves": "test_a_copy_takes_the_logs_place_and_the_old_one_is_deleted",
        "and consumers": "test_one_base_serves_replicas_and_consumers",
        "(`FetchTarget`) takes a partition's data": "test_one_base_serves_replicas_and_consumers",
        "replicas also truncate": "test_a_consumer_truncates_nothing",
    },
    (7, 2): {
        "sleeps until a partition has no leader": (
            "test_the_leader_finder_sleeps_until_a_partition_has_no_leader"
        ),
        "queries brokers in shuffled order": "test_brokers_are_tried_in_turn_until_one_answers",
        "adds found ones to fetchers at their fetched offset": (
            "test_the_leader_finder_sleeps_until_a_partition_has_no_leader"
        ),
        "shuts idle fetchers down": "test_a_leader_that_moves_is_followed",
        "pauses `refresh.leader.backoff.ms` (200)": (
            "test_brokers_are_tried_in_turn_until_one_answers"
        ),
        "failures come back to it": "test_a_leader_that_moves_is_followed",
    },
    (7, 3): {
        "replica -1, `fetch.wait.max.ms` 100": "test_a_consumers_request",
        "`fetch.min.bytes` 1, `fetch.message.max.bytes` 1 MiB": "test_a_consumers_request",
        "`num.consumer.fetchers` 1": "test_a_consumers_request",
        "fetched and consumed offset": "test_a_chunk_for_another_offset_is_an_error",
        "a bounded queue of chunks": "test_a_full_queue_pauses_its_partition_only",
        "(`queued.max.message.chunks` 2)": "test_a_consumers_request",
        "a chunk whose offset is not the fetched one is an error": (
            "test_a_chunk_for_another_offset_is_an_error"
        ),
        "out of range resets both by `auto.offset.reset`": (
            "test_out_of_range_resets_both_offsets",
            "test_without_a_reset_it_is_an_error",
        ),
    },
    (7, 4): {
        "hands records out in order with topic, partition, offset, decoders": (
            "test_records_come_in_order_with_all_that_they_have"
        ),
        "skips what is below the consumed offset": (
            "test_what_is_below_the_consumed_offset_is_skipped"
        ),
        "consumed moves only when a record is handed out": (
            "test_what_is_below_the_consumed_offset_is_skipped"
        ),
        "`consumer.timeout.ms` -1 waits, else raises": (
            "test_a_timeout_is_raised_and_the_stream_goes_on"
        ),
    },
    (7, 5): {
        "one thread id = one queue = one stream": "test_one_thread_id_is_one_queue_is_one_stream",
        "both offsets start at the committed one": (
            "test_one_stream_reads_all_from_the_committed_offsets"
        ),
        "rebalance on membership change": "test_members_share_and_hand_over",
        "by range or round robin": (
            "test_range_gives_stretches_of_each_topic",
            "test_round_robin_goes_over_all_partitions",
        ),
        "after fetchers stopped and offsets were committed": "test_members_share_and_hand_over",
    },
    (7, 6): {
        "fetch": "test_fetch",
        "offsets before a time": "test_offsets_before_a_time",
        "topic metadata": "test_topic_metadata",
        "commit and fetch of offsets": "test_commit_and_fetch_of_offsets",
    },
    (8, 1): {
        "same record types and versions": (
            "test_kafkas_records_decode_and_encode_to_the_same_bytes"
        ),
        "readable by Kafka's dump tool": (
            "test_kafkas_dump_tool_reads_log_and_snapshot",
            "test_kafkas_batches_are_built_again_byte_by_byte",
        ),
        "with snapshots": "test_a_snapshot_replaces_the_log_before_it",
        "to an immutable image": "test_the_image_follows_a_naive_model_batch_by_batch",
        "serves Fetch and FetchSnapshot of that log": (
            "test_each_request_of_a_node_is_served_on_that_listener"
        ),
        "(Envelope)": "test_each_request_of_a_node_is_served_on_that_listener",
        "on a real controller listener even with one node": (
            "test_a_controller_listener_serves_what_nodes_ask"
        ),
        "fsynced (group commit)": "test_what_comes_during_a_sync_shares_the_next_one",
        "before it is applied, answered or served below the high watermark": (
            "test_nothing_is_applied_answered_or_served_before_it_is_durable",
            "test_what_is_not_durable_is_not_served",
        ),
        "`quorum-state` is fsynced before": (
            "test_an_epoch_is_durable_before_it_is_used",
            "test_an_epoch_that_was_begun_is_never_led_again",
        ),
        "with a LeaderChange record": "test_a_restart_replays_the_log_and_leads_a_new_epoch",
        "NoOp every 500 ms": "test_an_idle_log_gets_an_empty_record_every_500_ms",
        "A restart replays the log: nothing is lost": (
            "test_a_restart_replays_the_log_and_leads_a_new_epoch"
        ),
        "every broker gets a full session": (
            "test_after_a_restart_every_broker_has_a_full_session"
        ),
        "answers at once when the observer's high watermark is behind (KIP-1166)": (
            "test_an_observer_whose_high_watermark_is_behind_is_answered_at_once"
        ),
        "replica fetchers leave that field's default": "test_what_a_fetch_says",
        "finalises metadata.version 30": (
            "test_the_first_records_of_a_cluster",
            "test_a_new_cluster_says_its_levels",
        ),
        "the ranges claimed are what works": "test_a_new_cluster_says_its_levels",
    },
    (8, 2): {
        "(CurrentLeader in the error)": (
            "test_another_epoch_learns_the_leader_and_its_address",
            "test_the_image_arrives_without_any_wait",
        ),
        "up to its high watermark": "test_nothing_above_the_high_watermark_is_applied",
        "registers (incarnation, listeners, feature ranges, log directories": (
            "test_what_a_broker_says_when_it_registers"
        ),
        "previous broker epoch from the clean-shutdown file": ("test_the_registration_carries_it"),
        "gets its broker epoch, is unfenced after it caught up": (
            "test_a_broker_registers_and_is_unfenced_once_it_has_caught_up"
        ),
        "heartbeats every 2 s": "test_heartbeats_keep_the_session",
        "(session 9 s)": (
            "test_a_silent_broker_is_fenced_after_its_session",
            "test_defaults_are_kafkas",
        ),
        "requests a controlled shutdown and stops when it leads nothing": (
            "test_a_controlled_shutdown_moves_leaders_and_waits_for_the_others",
            "test_a_controlled_shutdown_over_the_network",
            "controlled_shutdown.txt",
        ),
        "`replog.controlled.shutdown.timeout.ms` (10 s": (
            "test_a_silent_controller_gets_the_whole_time"
        ),
        "`controller.quorum.fetch.timeout.ms` when every controller's address refuses": (
            "test_a_dead_controller_is_not_waited_for"
        ),
        "at once at a second stop signal": "test_a_second_signal_skips_the_wait",
        "takes the node out of the ISR": (
            "test_an_unclean_stop_takes_the_node_out_of_isr_and_elr",
            "elr_forgets_after_an_unclean_stop.txt",
        ),
    },
    (8, 3): {
        "first unfenced assigned replica in the ISR": (
            "test_the_next_replica_in_the_isr_leads_when_the_leader_goes"
        ),
        "none: no leader": (
            "test_without_elr_the_last_member_stays_in_the_isr",
            "unclean_election_off.txt",
        ),
        "any unfenced one when `unclean.leader.election.enable`, recorded as recovering": (
            "test_an_unclean_election_needs_the_setting_and_is_recorded",
            "unclean_election_on.txt",
        ),
        "grows when the leader changes": (
            "test_the_next_replica_in_the_isr_leads_when_the_leader_goes"
        ),
        "a reassignment drops a replica": "test_a_removed_follower_raises_the_leader_epoch_too",
        "an ISR change raises only the partition epoch": (
            "test_a_follower_that_goes_changes_the_partition_epoch_only"
        ),
        "at 10 % imbalance": "test_ten_per_cent_are_tolerated",
        "every 300 s": "test_after_300_s_those_who_are_in_sync_lead_again",
        "Eligible leader replicas (KIP-966)": (
            "test_below_the_minimum_isr_who_leaves_stays_eligible",
            "test_an_eligible_replica_leads_alone_and_cleanly",
            "elr_keeps_candidates.txt",
        ),
    },
    (8, 4): {
        "not the leader, fenced leader epoch, stale partition epoch": (
            "test_changes_that_are_refused"
        ),
        "fenced or shutting down member": "test_fenced_and_leaving_members_are_ineligible",
        "stale broker epoch of a member": "test_changes_that_are_refused",
        "stale broker epoch of the sender": "test_the_sender_must_be_registered_under_this_epoch",
        "The same state again is OK": "test_the_same_state_again_is_granted_and_writes_nothing",
        "raises the partition epoch": "test_a_refused_expansion_is_not_granted_later",
        "does not count for the ISR (KIP-903)": (
            "test_an_older_broker_epoch_is_refused",
            "test_no_expansion_of_an_ineligible_replica",
            "broker_epochs.txt",
        ),
    },
    (8, 5): {
        "created, grown, deleted": "test_grown_under_load_nothing_is_lost",
        "reassigned under load": (
            "test_moved_under_load_with_deaths_nothing_is_lost",
            "reassignment.txt",
        ),
    },
    (8, 6): {
        "nothing is negotiated": "test_versions_follow_from_the_metadata_version",
        "follow from the finalised": (
            "test_versions_follow_from_the_metadata_version",
            "test_each_request_carries_the_broker_epoch_and_version_of_its_moment",
        ),
    },
    (9, 1): {
        "in the log of every later leader": (_SEEDS, "test_what_is_acknowledged_is_committed"),
        "unless every replica that held it lost unsynced data": (
            "test_a_lost_record_is_one_unless_an_election_was_unclean"
        ),
    },
    (9, 2): {
        "all ISR members hold the same bytes": (
            _SEEDS,
            "test_a_difference_counts_above_the_log_start",
        ),
        "compacted: the same last value per key": (
            _SEEDS,
            "test_the_last_value_of_each_key_stays",
            "test_offsets_and_contents_stay_what_they_were",
        ),
        "the same bytes above": "test_replicas_are_compared_from_the_cleaned_offset_on",
        "never goes back": (_SEEDS, "test_a_mark_that_was_seen_does_not_go_back"),
    },
    (9, 3): {
        "At most one leader per leader epoch": (_SEEDS, "test_one_leader_leads_in_an_epoch"),
        "epochs only grow": (_SEEDS, "test_epochs_grow_and_the_leader_is_in_its_isr"),
        "the leader is in its ISR, or there is none": (
            _SEEDS,
            "test_epochs_grow_and_the_leader_is_in_its_isr",
        ),
    },
    (9, 4): {
        "no gap": (_SEEDS, "test_a_consumer_sees_committed_records_without_a_gap"),
        "no reordering": (_SEEDS, "test_a_consumer_sees_committed_records_without_a_gap"),
        "no duplicate": (_SEEDS, "test_only_an_idempotent_producers_record_must_be_there_once"),
        "read_committed shows no record of an aborted transaction": (
            _SEEDS,
            "test_read_committed_shows_nothing_that_may_not_be_committed",
        ),
        "and no part of one": (
            _SEEDS,
            "test_a_transaction_is_there_as_a_whole_or_not_at_all",
        ),
    },
    (9, 5): {
        "every replica is back in the ISR and the bytes are equal": (
            _SEEDS,
            "test_replicas_that_differ_at_the_end_are_found",
        ),
        "Safety seeds": _SEEDS,
    },
}
"""Words of a line -> the tests whose bodies are about them."""
