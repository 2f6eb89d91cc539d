//! Clients that speak AMQP with real sessions, over simulated nodes: seeds in all weathers, and
//! deliberate bugs of the host that the same seeds find.
//!
//! A failure names its seed; `cargo run -p sim -- --sessions yes --seed N --trace 2000` with the
//! same nodes and faults shows what happened.

use sim::sessions::Figures;
use sim::{Bug, Faults, Options, Sessions};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Seeds that a bug may take until it shows in the way that is looked for. What shows late is looked for from near a seed on
/// that shows it, as all of these tests run with each change.
const SEEDS_MAX: u64 = 200;

fn run_all(seeds: std::ops::Range<u64>, options: Options) -> Figures {
    let mut total = Figures::default();
    for seed in seeds {
        let mut cluster = Sessions::new(seed, Options { trace: true, ..options });
        match catch_unwind(AssertUnwindSafe(|| cluster.run())) {
            Ok(figures) => total.add(&figures),
            Err(panic) => {
                eprintln!("seed {seed} failed with {options:?}\n{}{}", cluster.trace(200), cluster.describe());
                resume_unwind(panic);
            }
        }
    }
    total
}

fn found(bug: Bug, nodes: u64, checker: &str) {
    found_in(0..SEEDS_MAX, bug, nodes, checker);
}

fn found_in(seeds: std::ops::Range<u64>, bug: Bug, nodes: u64, checker: &str) {
    found_with(seeds, Options { bug: Some(bug), nodes, ..Options::default() }, checker);
}

fn found_with(seeds: std::ops::Range<u64>, options: Options, checker: &str) {
    let mut others = Vec::new();
    for seed in seeds.clone() {
        let mut cluster = Sessions::new(seed, options);
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| cluster.run())) else { continue };
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        if text.contains(checker) {
            return;
        }
        others.push(text.lines().next().unwrap_or_default().to_owned());
    }
    panic!("{:?} was not found by {checker} in seeds {seeds:?}, but by {others:?}", options.bug);
}

#[test]
fn one_node_keeps_what_its_sessions_promise_in_all_weathers() {
    let total = run_all(0..40, Options { nodes: 1, ..Options::default() });
    assert!(
        total.confirmed > 10_000 && total.committed > 1_500,
        "runs in which nothing happens show nothing: {total:?}"
    );
    assert!(total.delivered > 15_000 && total.got > 200 && total.replies > 500, "{total:?}");
    assert!(total.dead_letters > 500 && total.passed_over > 50 && total.alarms > 10, "{total:?}");
    assert!(total.deletes > 100 && total.channel_errors > 100, "queues go, and clients are refused: {total:?}");
    assert!(total.cuts > 30 && total.restarts > 100, "runs in which nothing goes wrong show nothing: {total:?}");
    assert!(total.spread > 50, "partitions are on several shards: {total:?}");
    assert!(total.blocked_writes > 300, "sockets are full: {total:?}");
}

#[test]
fn three_nodes_keep_what_their_sessions_promise_while_leaders_change() {
    let total = run_all(0..15, Options::default());
    assert!(total.confirmed > 3_000 && total.delivered > 4_000 && total.resent > 50, "{total:?}");
    assert!(total.proven > 200 && total.held > 100, "{total:?}");
    assert!(
        total.leaders_moved > 10 && total.restarts > 40,
        "runs in which nothing goes wrong show nothing: {total:?}"
    );
}

/// Messages in a row, which are one from their client's socket to their leader's log, are refused, given back and sent
/// again in parts while leaders change.
#[test]
fn messages_in_a_row_are_kept_as_others_are_on_three_nodes_and_on_one() {
    for (nodes, seeds, least) in [(3, 300..312, 1_000), (1, 300..312, 1_000)] {
        let total = run_all(seeds, Options { nodes, rows: true, ..Options::default() });
        assert!(total.confirmed > 10_000 && total.in_rows > least, "{total:?}");
        assert!(total.restarts > 20 && (nodes == 1 || total.resent > 50 && total.leaders_moved > 10), "{total:?}");
    }
}

#[test]
fn messages_in_a_row_of_which_one_is_mixed_up_are_missed() {
    found_with(
        0..SEEDS_MAX,
        Options { bug: Some(Bug::RowIsMixedUp), nodes: 1, rows: true, ..Options::default() },
        "[duplicate]",
    );
}

/// Whoever asks for the level of the leader alone hears of each publish once, and in order, and what it acked
/// before stays acked.
#[test]
fn leaders_that_confirm_alone_answer_once_and_in_order_while_they_change() {
    let total = run_all(200..212, Options { levels: true, ..Options::default() });
    assert!(total.confirmed > 3_000 && total.resent > 50 && total.proven > 100, "{total:?}");
    assert!(total.leaders_moved > 10 && total.restarts > 40, "{total:?}");
}

#[test]
fn three_nodes_keep_it_while_what_is_on_one_disk_rots() {
    let faults = Faults { rot: true, ..Faults::ALL };
    let total = run_all(100..110, Options { faults, ..Options::default() });
    assert!(total.confirmed > 2_000, "runs in which nothing happens show nothing: {total:?}");
}

/// They join with an empty folder, are forgotten with their disk or without, and some come back with
/// the old one, which nobody takes for a member.
#[test]
fn nodes_come_and_go_while_sessions_work() {
    let total = run_all(0..15, Options { members: true, ..Options::default() });
    assert!(total.joined > 10 && total.forgotten > 5 && total.came_back > 0, "{total:?}");
    assert!(total.confirmed > 3_000 && total.restarts > 40, "{total:?}");
}

#[test]
fn nobody_changes_members_by_a_map_of_the_past() {
    let options = Options { bug: Some(Bug::MapIsOfThePast), members: true, ..Options::default() };
    found_with(0..SEEDS_MAX, options, "[members]");
}

#[test]
fn five_nodes_keep_it_in_partitions_with_members_on_three_of_them() {
    let total = run_all(0..6, Options { nodes: 5, pools: true, ..Options::default() });
    assert!(total.confirmed > 1_000 && total.delivered > 1_200, "{total:?}");
    assert!(total.pooled > 20, "queues lived where not every node is a member: {total:?}");
    assert!(total.restarts > 40, "runs in which nothing goes wrong show nothing: {total:?}");
}

#[test]
fn copies_are_given_and_taken_while_clients_work_and_nothing_is_lost() {
    let total = run_all(0..4, Options { nodes: 5, pools: true, returns: true, ..Options::default() });
    assert!(total.confirmed > 500 && total.moved > 30, "{total:?}");
}

#[test]
fn queues_of_one_node_keep_what_they_promise_and_say_so_while_it_is_away() {
    let options = Options { nodes: 5, pools: true, classic: true, ..Options::default() };
    let total = run_all(0..6, options);
    assert!(total.confirmed > 1_000 && total.delivered > 1_200 && total.restarts > 40, "{total:?}");
    assert!(total.homes_away > 0, "queues were asked for whose node was away: {total:?}");
    found_with(0..SEEDS_MAX, Options { bug: Some(Bug::HomesAreAway), ..options }, "[audit]");
}

#[test]
fn two_runs_from_one_seed_are_the_same_run() {
    let trace = |seed| {
        let mut cluster =
            Sessions::new(seed, Options { trace: true, nodes: 1, faults: Faults::ALL, ..Options::default() });
        cluster.run();
        cluster.trace(usize::MAX)
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}

#[test]
fn a_deletion_whose_asker_is_gone_is_gone_on_with() {
    found(Bug::DeletionIsAbandoned, 1, "[answer]");
}

#[test]
fn what_a_consumer_holds_does_not_grow_too_old_where_its_leader_changes() {
    found(Bug::HoldIsLost, 3, "[held]");
}

#[test]
fn what_a_node_knew_once_is_not_all_there_is_when_it_has_stood_still() {
    found(Bug::LeaseLasts, 3, "[lease]");
}

#[test]
fn what_is_for_a_consumer_is_not_got_past_it() {
    found(Bug::GetOvertakes, 1, "[overtaken]");
}

#[test]
fn a_consumer_without_acks_waits_for_the_acks_of_its_channel() {
    found_in(25..90, Bug::CreditIsForgotten, 1, "a consumer without acks");
}

#[test]
fn a_question_that_nobody_leads_to_answer_is_asked_again() {
    found(Bug::NotLeaderIsSwallowed, 3, "[answer]");
}

#[test]
fn a_time_limit_holds_after_a_restart() {
    found(Bug::RulesAreForgotten, 1, "Some(Empty");
}

#[test]
fn a_channel_of_another_shard_gets_more_once_its_socket_took_what_came() {
    found(Bug::DrainIsForgotten, 1, "[starved]");
}

#[test]
fn what_a_client_held_comes_back_and_what_was_its_own_goes_when_it_is_gone() {
    found(Bug::TeardownIsForgotten, 1, "[ends]");
    found(Bug::TeardownIsForgotten, 1, "[lost]");
    found(Bug::DetachIsForgotten, 1, "[lost]");
}

#[test]
fn what_was_confirmed_too_early_is_missed() {
    found(Bug::ConfirmIsHasty, 1, "[lost]");
}

#[test]
fn publishers_go_on_when_an_alarm_is_over() {
    found(Bug::AlarmStays, 1, "[answer]");
}

#[test]
fn what_dies_is_where_its_queue_says() {
    found(Bug::LetterIsLost, 1, "and is not in d.0");
}

#[test]
fn a_consumer_whose_leader_goes_is_told() {
    // It believes that it is served, and a get on its channel goes past it.
    found(Bug::CancelIsLost, 3, "[overtaken]");
}

#[test]
fn what_a_leader_said_late_that_leads_no_more_is_not_passed_on() {
    let bug = Some(Bug::OldLeaderIsHeard);
    found_with(102..108, Options { nodes: 5, pools: true, returns: true, bug, ..Options::default() }, "[unflagged]");
}

#[test]
fn a_publish_that_is_sent_again_over_another_link_is_taken_in_once() {
    found_in(47..110, Bug::ChannelIsForgotten, 3, "[duplicate]");
}

#[test]
fn an_ack_on_its_way_to_a_leader_that_goes_counts() {
    found(Bug::RepeatIsLost, 3, "[undone]");
}

#[test]
fn who_leads_tells_those_that_have_no_copy() {
    let options = Options { bug: Some(Bug::LeaderIsSilent), nodes: 5, pools: true, ..Options::default() };
    found_with(0..60, options, "does a majority of its nodes run");
}
