//! What goes where, as sessions and other nodes see it.

use super::*;
use broker::{ConsumerKey, NodeNumber};
use node::Waiting;
use partition::command::Disposition;
use partition::{Publish, Reply};

#[test]
fn commands_stay_in_order_and_leave_the_shard_only_at_the_end_of_the_step() {
    let directory = Directory::new(2, &[(PartitionId(1), 1)]);
    let mut inbox = Inbox::<()>::new(0, ChannelKey(1), directory, Leaders::alone(broker::NodeNumber(1)), 1);
    for queue in 1..4 {
        inbox.push(PartitionId::in_memory(broker::NodeNumber(0), 0), Command::Delete { queue: QueueId(queue) });
    }
    inbox.push(PartitionId(1), Command::Delete { queue: QueueId(4) });
    inbox.push(PartitionId(7), Command::Delete { queue: QueueId(5) });
    let (mut due, mut waiting) = (Vec::new(), Waiting::default());
    inbox.waits().take_due(&mut due);
    assert_eq!(due, [0]);
    inbox.waits().swap(0, &mut waiting);
    let queues: Vec<u64> =
        waiting.commands.iter().map(|c| if let Command::Delete { queue } = c { queue.0 } else { 0 }).collect();
    assert_eq!(queues, [1, 2, 3]);
    let mut sent = Vec::new();
    inbox.post(|shard, parcels, _| sent.push((shard, std::mem::take(parcels))));
    assert!(matches!(&sent[..], [(1, parcels)] if matches!(parcels[..], [Parcel::Command(PartitionId(1), _)])));
    inbox.post(|_, _, _| panic!("nothing is sent twice"));
}

#[test]
fn a_publish_for_a_log_of_this_shard_begins_a_round_until_its_members_had_their_turn() {
    let directory = Directory::new(2, &[(P, 0), (PartitionId(2), 1)]);
    let mut inbox = Inbox::<()>::new(0, ChannelKey(1), directory, Leaders::alone(NodeNumber(0)), 2);
    inbox.push(PartitionId(2), publish(1));
    inbox.push(P, ack(1));
    inbox.push(PartitionId::in_memory(NodeNumber(0), 0), publish(1));
    assert!(!inbox.has_publish(), "none of these needs a write of this shard");
    inbox.push(P, publish(1));
    assert!(inbox.has_publish());
    inbox.end_turn();
    assert!(!inbox.has_publish());
    let another = NodeLife { node: 2, start: 1 };
    inbox.receive_forward(P, another, Forward::Command(ack(1)));
    assert!(!inbox.has_publish());
    inbox.receive_forward(P, another, Forward::Command(publish(1)));
    assert!(inbox.has_publish(), "it came from another node");
}

const P: PartitionId = PartitionId(1);

/// A shard of node 2, linked with nodes 1 and 3, in whose memory nothing is.
fn among_others() -> (Inbox<()>, Leaders) {
    let leaders = Leaders::among_others(NodeNumber(2), P);
    let directory = Directory::new(1, &[(P, 0)]).among_others(NodeNumber(2));
    let mut inbox = Inbox::<()>::new(0, ChannelKey(1), directory, leaders.clone(), 2);
    for node in [1, 3] {
        inbox.roads.open(LinkUp { peer: NodeLife { node, start: 1 }, epoch: node.into() });
    }
    (inbox, leaders)
}

fn ack(first: u64) -> Command {
    let holder = ConsumerKey { channel: ChannelKey(7), number: 1 };
    Command::Settle { queue: QueueId(1), holder, first, count: 1, outcome: Disposition::Ack }
}

fn stat() -> Command {
    Command::Stat { queue: QueueId(1), channel: ChannelKey(7), request: RequestId(1) }
}

/// What is sent: to which node, and what.
fn sent(inbox: &mut Inbox<()>) -> Vec<(u32, String)> {
    let mut sent = Vec::new();
    inbox.post_away(|link, frames| {
        sent.extend(frames.iter().map(|(_, forward)| {
            let text = match forward {
                Forward::Command(Command::Settle { first, count, .. }) => format!("ack {count} from {first}"),
                Forward::Command(Command::Mark { .. }) => "mark".to_owned(),
                Forward::Command(Command::Stat { .. }) => "stat".to_owned(),
                Forward::Command(Command::Publish(publish)) => {
                    format!("publish {} in term {}", publish.publish_seq, publish.term)
                }
                other => format!("{other:?}"),
            };
            (link.peer.node, text)
        }));
    });
    sent
}

fn said(lines: &[(u32, &str)]) -> Vec<(u32, String)> {
    lines.iter().map(|(node, text)| (*node, (*text).to_owned())).collect()
}

#[test]
fn the_next_leader_hears_what_was_settled_before_anything_else() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    inbox.push(P, ack(1));
    inbox.push(P, ack(2));
    inbox.push(P, stat());
    assert_eq!(sent(&mut inbox), said(&[(1, "ack 1 from 1"), (1, "mark"), (1, "ack 1 from 2"), (1, "stat")]));
    inbox.roads.close(NodeNumber(1));
    inbox.push(P, ack(3));
    assert_eq!(sent(&mut inbox), said(&[]), "nobody can be reached");
    assert!(inbox.waits_for_leader());
    leaders.note(P, Some(NodeNumber(3)), 6);
    inbox.push(P, stat());
    assert_eq!(
        sent(&mut inbox),
        said(&[(3, "ack 1 from 1"), (3, "ack 1 from 2"), (3, "ack 1 from 3"), (3, "stat")]),
        "its mark is not answered"
    );
    inbox.mark_answered(RequestId(1 << 63 | 1), false);
    inbox.roads.now_us = crate::settles::AGAIN_US;
    inbox.settle_again();
    assert_eq!(sent(&mut inbox), said(&[(3, "ack 1 from 1"), (3, "ack 1 from 2"), (3, "ack 1 from 3"), (3, "mark")]));
    inbox.mark_answered(RequestId(1 << 63 | 2), true);
    inbox.settle_again();
    assert!(sent(&mut inbox).is_empty() && !inbox.waits_for_leader(), "all of it is applied");
}

#[test]
fn the_partition_of_the_topology_is_asked_here_whoever_leads_it() {
    let directory = Directory::new(1, &[(TOPOLOGY, 0), (P, 0)]).among_others(NodeNumber(2));
    let leaders = Leaders::among_others(NodeNumber(2), P);
    let mut inbox = Inbox::<()>::new(0, ChannelKey(1), directory, leaders, 3);
    for command in
        [Command::Sync { channel: ChannelKey(7), request: RequestId(1) }, Command::Detach { channel: ChannelKey(7) }]
    {
        inbox.push(TOPOLOGY, command);
        let (mut due, mut waiting) = (Vec::new(), Waiting::default());
        inbox.waits().take_due(&mut due);
        assert_eq!(due.len(), 1, "it is not held until somebody leads");
        inbox.waits().swap(due[0], &mut waiting);
        assert_eq!((waiting.commands.len(), sent(&mut inbox)), (1, said(&[])));
    }
}

#[test]
fn who_leads_again_in_a_later_term_is_told_by_itself() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(3)), 5);
    inbox.push(P, ack(1));
    assert_eq!(sent(&mut inbox), said(&[(3, "ack 1 from 1"), (3, "mark")]));
    inbox.settle_again();
    assert_eq!(sent(&mut inbox), said(&[]));
    leaders.note(P, Some(NodeNumber(3)), 7);
    inbox.settle_again();
    assert_eq!(sent(&mut inbox), said(&[(3, "ack 1 from 1")]));
    leaders.note(P, Some(NodeNumber(2)), 8);
    inbox.settle_again();
    // Node 3 may still have something to answer: it is asked how far it has come.
    assert_eq!(sent(&mut inbox).len(), 1);
    assert!(inbox.waits_for_leader() && inbox.roads.has_waiting());
    inbox.roads.close(NodeNumber(3));
    assert!(inbox.roads.take_turned(&leaders).is_empty());
    inbox.settle_again();
    let (mut due, mut waiting) = (Vec::new(), Waiting::default());
    inbox.waits().take_due(&mut due);
    inbox.waits().swap(1, &mut waiting);
    let [Command::Settle { first: 1, count: 1, .. }] = waiting.commands[..] else { panic!("{:?}", waiting.commands) };
    assert_eq!(due, [1], "this node leads now");
}

#[test]
fn what_waits_for_a_leader_calls_for_a_step_by_itself() {
    for (command, what) in [(stat(), "a request"), (ack(1), "an ack")] {
        let (mut inbox, leaders) = among_others();
        inbox.start_step(Waker::noop());
        inbox.push(P, command.clone());
        assert!(inbox.waits_for_leader() && inbox.is_woken(), "{what} that nobody can be told");
        inbox.start_step(Waker::noop());
        inbox.roads.take_turned(&leaders);
        inbox.settle_again();
        assert!(!inbox.is_woken(), "{what} that waits on needs no step at once");

        let (mut inbox, leaders) = among_others();
        leaders.note(P, Some(NodeNumber(3)), 5);
        inbox.push(P, stat());
        sent(&mut inbox);
        leaders.note(P, Some(NodeNumber(2)), 6);
        inbox.start_step(Waker::noop());
        inbox.push(P, command);
        assert!(inbox.roads.has_waiting() && inbox.is_woken(), "{what} behind the leader before");
        assert_eq!(sent(&mut inbox).len(), 1, "which is asked how far it has come");
    }
}

const CHANNEL: ChannelKey = ChannelKey(7);

fn publish(publish_seq: u64) -> Command {
    let empty = bytes::Bytes::new();
    let message =
        Message { exchange: empty.clone(), routing_key: empty.clone(), properties: empty.clone(), body: empty };
    let targets = smallvec::SmallVec::new();
    Command::Publish(Publish { channel: CHANNEL, publish_seq, term: 0, targets, delay_ms: 0, message, more: None })
}

fn confirm(first: u64, count: u64) -> Effect {
    Effect::Confirm { channel: CHANNEL, first, count }
}

fn returned(first: u64, count: u64, term: u32) -> Effect {
    Effect::Returned { channel: CHANNEL, first, count, term }
}

#[test]
fn a_channel_hears_nothing_that_its_partition_says_of_a_link_that_broke() {
    let (mut inbox, _) = among_others();
    let guest = ChannelKey::of(NodeLife { node: 3, start: 1 }, 5);
    let consumer = ConsumerKey { channel: guest, number: 1 };
    let says = [
        // It comes again, and so does what was confirmed in vain before it.
        Effect::Confirm { channel: guest, first: 4, count: 1 },
        // The consumer has asked again, under the same number.
        Effect::Reply { channel: guest, request: RequestId(4), reply: Reply::Consuming },
        Effect::Cancelled { consumer, queue: QueueId(1) },
    ];
    let all = says.len();
    let answer = |inbox: &mut Inbox<()>| {
        for effect in &says {
            inbox.roads.effect_of(P, guest, effect.clone());
        }
        sent(inbox).len()
    };
    let Command::Publish(again) = publish(3) else { unreachable!() };
    let published = Command::Publish(Publish { channel: guest, ..again });
    for epoch in [4, 5] {
        inbox.roads.road(NodeNumber(3)).expect("there is one").note_guest(P, &published);
        inbox.roads.close(NodeNumber(3));
        inbox.roads.open(LinkUp { peer: NodeLife { node: 3, start: 1 }, epoch });
    }
    assert_eq!(answer(&mut inbox), 0, "it has not heard yet that the link broke");
    inbox.roads.parted(P, guest);
    assert_eq!(answer(&mut inbox), 0, "the link broke twice");
    inbox.roads.parted(P, guest);
    assert_eq!(answer(&mut inbox), all);
}

/// Several in a row, pushed as one.
fn run(publish_seq: u64, count: usize) -> Command {
    let Command::Publish(first) = publish(publish_seq) else { unreachable!() };
    let more = amqp::Bodies::copied(std::iter::repeat_n(&b"body"[..], count - 1));
    Command::Publish(Publish { more: Some(more.into()), ..first })
}

#[test]
fn to_another_node_each_message_goes_by_itself_and_comes_back_as_what_is_left_of_one() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    inbox.push(P, run(1, 3));
    assert_eq!(
        sent(&mut inbox),
        said(&[(1, "publish 1 in term 5"), (1, "publish 2 in term 5"), (1, "publish 3 in term 5")])
    );
    assert_eq!(heard(&mut inbox, confirm(1, 1)), [confirm(1, 1)]);
    assert!(heard(&mut inbox, returned(2, 2, 5)).is_empty());
    leaders.note(P, Some(NodeNumber(2)), 6);
    step(&mut inbox, &leaders);
    inbox.roads.road(NodeNumber(1)).expect("it is up").sent.answer_all();
    assert_eq!(step(&mut inbox, &leaders), 0);
    assert_eq!(here(&mut inbox), [(2, 6)], "both that are left, for this node's member");
    assert_eq!(heard(&mut inbox, confirm(2, 2)), [confirm(2, 2)]);
    assert_eq!(inbox.roads.publishes.bytes(), 0);
}

#[test]
fn what_waits_for_this_shard_weighs_the_same_as_one_and_apart() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(2)), 5);
    inbox.push(P, run(1, 4));
    let as_one = inbox.waiting_bytes(0);
    inbox.end_turn();
    let Command::Publish(publish) = run(5, 4) else { unreachable!() };
    publish.apart().for_each(|publish| inbox.push(P, Command::Publish(publish)));
    assert_eq!(as_one, inbox.waiting_bytes(0));
}

/// What the channel is to hear.
fn heard(inbox: &mut Inbox<()>, effect: Effect) -> Vec<Effect> {
    let mut heard = Vec::new();
    inbox.hear(P, effect, |effect| heard.push(effect));
    heard
}

/// A step begins; how many are given up in it.
fn step(inbox: &mut Inbox<()>, leaders: &Leaders) -> usize {
    inbox.start_step(Waker::noop());
    let turned = inbox.roads.take_turned(leaders);
    let (given_up, on): (Vec<_>, Vec<_>) = turned.into_iter().partition(|(.., is_given_up)| *is_given_up);
    on.into_iter().for_each(|(partition, command, _)| inbox.push(partition, command));
    given_up.len()
}

/// The numbers and terms of the publishes that wait for this node's member.
fn here(inbox: &mut Inbox<()>) -> Vec<(u64, u32)> {
    let (mut due, mut waiting) = (Vec::new(), Waiting::default());
    inbox.waits().take_due(&mut due);
    inbox.waits().swap(1, &mut waiting);
    let number = |command: &Command| match command {
        Command::Publish(publish) => Some((publish.publish_seq, publish.term)),
        _ => None,
    };
    waiting.commands.iter().filter_map(number).collect()
}

#[test]
fn what_a_leader_gives_back_goes_to_the_next_one_ahead_of_what_follows() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    (1..=3).for_each(|seq| inbox.push(P, publish(seq)));
    assert_eq!(
        sent(&mut inbox),
        said(&[(1, "publish 1 in term 5"), (1, "publish 2 in term 5"), (1, "publish 3 in term 5")])
    );
    assert_eq!(heard(&mut inbox, confirm(1, 1)), [confirm(1, 1)]);
    inbox.start_step(Waker::noop());
    assert_eq!(heard(&mut inbox, returned(2, 2, 5)), [], "the channel hears nothing of it");
    assert!(inbox.is_woken(), "nothing else may call for a step");
    inbox.push(P, publish(4));
    assert_eq!(step(&mut inbox, &leaders), 0);
    assert_eq!(sent(&mut inbox), said(&[]), "that leader leads no more, whatever is known here");
    assert!(inbox.waits_for_leader(), "another shard may hear of the next one");
    leaders.note(P, Some(NodeNumber(3)), 6);
    assert_eq!(step(&mut inbox, &leaders), 0);
    // The one before is asked whether it has handled everything.
    let mark = sent(&mut inbox);
    assert!(matches!(&mark[..], [(1, ping)] if ping.starts_with("Ping")), "{mark:?}");
    inbox.roads.road(NodeNumber(1)).expect("it is up").sent.answer_all();
    inbox.push(P, publish(5));
    assert_eq!(step(&mut inbox, &leaders), 0);
    let again = ["publish 2 in term 6", "publish 3 in term 6", "publish 4 in term 6", "publish 5 in term 6"];
    assert_eq!(sent(&mut inbox), said(&again.map(|text| (3, text))));
    assert_eq!(heard(&mut inbox, confirm(2, 4)), [confirm(2, 4)]);
    assert_eq!(heard(&mut inbox, confirm(2, 4)), [], "a second time");
    assert!(!inbox.waits_for_leader() && !inbox.roads.has_waiting());
}

/// Who is elected and has as much waiting for the office as may gives back what comes then, and takes the office in that term.
#[test]
fn what_a_leader_gives_back_goes_to_it_again_where_it_is_the_next_one_itself() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    (1..=2).for_each(|seq| inbox.push(P, publish(seq)));
    sent(&mut inbox);
    assert_eq!(heard(&mut inbox, returned(2, 1, 5)), []);
    inbox.push(P, publish(3));
    assert_eq!(step(&mut inbox, &leaders), 0);
    assert_eq!(heard(&mut inbox, confirm(1, 1)), [confirm(1, 1)]);
    inbox.roads.road(NodeNumber(1)).expect("it is up").sent.answer_all();
    assert_eq!(step(&mut inbox, &leaders), 0);
    assert_eq!(sent(&mut inbox), said(&[]), "it has just said that it does not lead");
    assert!(inbox.waits_for_leader(), "a timer has the shard look");
    inbox.roads.now_us += 300_000;
    assert_eq!(step(&mut inbox, &leaders), 0, "nobody is refused anything");
    assert_eq!(step(&mut inbox, &leaders), 0);
    assert_eq!(sent(&mut inbox), said(&[(1, "publish 2 in term 5"), (1, "publish 3 in term 5")]));
    assert_eq!(heard(&mut inbox, confirm(2, 2)), [confirm(2, 2)]);
    assert!(!inbox.waits_for_leader() && !inbox.roads.has_waiting());
}

#[test]
fn what_a_link_took_with_it_goes_over_the_next_one_or_to_the_next_leader() {
    for next in [1, 3] {
        let (mut inbox, leaders) = among_others();
        leaders.note(P, Some(NodeNumber(1)), 5);
        (1..=2).for_each(|seq| inbox.push(P, publish(seq)));
        sent(&mut inbox);
        assert_eq!(inbox.roads.close(NodeNumber(1)), (vec![], vec![]), "nobody is refused anything");
        inbox.push(P, publish(3));
        step(&mut inbox, &leaders);
        step(&mut inbox, &leaders);
        assert_eq!(sent(&mut inbox), said(&[]), "nobody can be reached");
        assert!(inbox.waits_for_leader());
        let term = match next {
            1 => {
                inbox.roads.open(LinkUp { peer: NodeLife { node: 1, start: 1 }, epoch: 9 });
                5
            }
            next => {
                leaders.note(P, Some(NodeNumber(next)), 6);
                6
            }
        };
        step(&mut inbox, &leaders);
        let again = (1..=3).map(|seq| (next, format!("publish {seq} in term {term}")));
        assert_eq!(sent(&mut inbox), again.collect::<Vec<_>>());
    }
}

#[test]
fn this_node_s_leader_gives_back_too_and_takes_in_what_others_gave_back() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(2)), 5);
    (1..=2).for_each(|seq| inbox.push(P, publish(seq)));
    assert_eq!(here(&mut inbox), [(1, 5), (2, 5)]);
    leaders.note(P, Some(NodeNumber(2)), 7);
    inbox.push(P, publish(3));
    step(&mut inbox, &leaders);
    assert_eq!(here(&mut inbox), [], "it has not answered for all that it was sent in its term before");
    heard(&mut inbox, returned(1, 2, 5));
    step(&mut inbox, &leaders);
    assert_eq!(here(&mut inbox), [(1, 7), (2, 7), (3, 7)]);
}

#[test]
fn what_finds_no_leader_for_long_is_given_up_with_what_a_leader_gave_back() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    (1..=2).for_each(|seq| inbox.push(P, publish(seq)));
    sent(&mut inbox);
    heard(&mut inbox, returned(1, 2, 5));
    leaders.note(P, None, 6);
    inbox.push(P, publish(3));
    assert_eq!(step(&mut inbox, &leaders), 0);
    inbox.roads.now_us += crate::turning::LEADERLESS_US - 1;
    assert_eq!(step(&mut inbox, &leaders), 0);
    inbox.roads.now_us += 1;
    assert_eq!(step(&mut inbox, &leaders), 3);
    assert!(!inbox.waits_for_leader() && !inbox.roads.has_waiting() && !inbox.is_full());
}

#[test]
fn a_publish_to_the_memory_of_a_node_that_cannot_be_reached_waits_for_the_node_or_the_end_of_its_queue() {
    let (mut inbox, leaders) = among_others();
    let memory = PartitionId::in_memory(NodeNumber(3), 0);
    inbox.push(memory, publish(1));
    assert_eq!(sent(&mut inbox), said(&[(3, "publish 1 in term 0")]));
    let (unanswered, _) = inbox.roads.close(NodeNumber(3));
    assert!(matches!(unanswered[..], [Effect::Refuse { first: 1, .. }]), "nobody knows whether it came");
    inbox.push(memory, publish(2));
    inbox.push(memory, stat());
    assert!(
        matches!(inbox.take_given_up()[..], [Effect::Reply { reply: Reply::NotLeader, .. }]),
        "it may be asked again"
    );
    assert!(inbox.waits_for_leader(), "the shard has to look by itself");
    assert_eq!(step(&mut inbox, &leaders), 0);
    inbox.roads.open(LinkUp { peer: NodeLife { node: 3, start: 1 }, epoch: 7 });
    inbox.push(memory, publish(3));
    assert_eq!(step(&mut inbox, &leaders), 0);
    assert_eq!(sent(&mut inbox), said(&[(3, "publish 2 in term 0"), (3, "publish 3 in term 0")]));
    inbox.roads.close(NodeNumber(3));
    inbox.push(memory, publish(4));
    let gone = inbox.roads.turning.take_gone(|_| true);
    assert!(matches!(&gone[..], [(at, Publish { publish_seq: 4, .. })] if *at == memory));
    inbox.push(memory, publish(5));
    inbox.roads.now_us += crate::turning::LEADERLESS_US;
    assert_eq!(step(&mut inbox, &leaders), 1, "nobody declares it gone beside a minority");
    assert!(!inbox.waits_for_leader() && !inbox.roads.has_waiting());
}

#[test]
fn a_channel_that_ended_is_told_nothing_and_its_publishes_hold_up_nobody() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    inbox.push(P, publish(1));
    inbox.push(P, Command::Detach { channel: CHANNEL });
    sent(&mut inbox);
    assert_eq!(heard(&mut inbox, confirm(1, 1)), []);
    leaders.note(P, Some(NodeNumber(2)), 6);
    here(&mut inbox);
    inbox.roads.road(NodeNumber(1)).expect("it is up").sent.answer_all();
    inbox.push(P, stat());
    step(&mut inbox, &leaders);
    assert!(!inbox.roads.has_waiting());
}

#[test]
fn what_wants_no_confirm_is_for_the_leader_of_one_term_too() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    inbox.push(P, publish(0));
    assert_eq!(sent(&mut inbox), said(&[(1, "publish 0 in term 5")]));
    leaders.note(P, Some(NodeNumber(2)), 6);
    inbox.roads.close(NodeNumber(1));
    step(&mut inbox, &leaders);
    inbox.push(P, publish(0));
    assert_eq!(here(&mut inbox), [(0, 6)], "should this node lead again in term 8, it comes too late");
}

#[test]
fn requests_are_answered_by_who_leads_no_more_as_before() {
    let (mut inbox, _) = among_others();
    let reply = Effect::Reply { channel: CHANNEL, request: RequestId(4), reply: Reply::NotLeader };
    assert_eq!(heard(&mut inbox, reply.clone()), [reply]);
}

#[test]
fn what_is_asked_of_a_shard_that_a_node_has_no_more_is_answered() {
    let (mut inbox, _) = among_others();
    let channel = ChannelKey::of(NodeLife { node: 1, start: 1 }, 5);
    let asks = Command::Stat { queue: QueueId(1), channel, request: RequestId(1) };
    let [gone, there] = [1, 0].map(|shard| PartitionId::in_memory(NodeNumber(2), shard));
    let of = |partition| {
        crate::shard_for(NodeLife { node: 2, start: 1 }, partition, &Forward::Command(asks.clone()), &inbox.directory)
    };
    assert_eq!((of(gone), of(there), of(PartitionId::in_memory(NodeNumber(1), 1))), (Some(0), Some(0), None));
    inbox.refuse_lost(gone, &asks);
    let sent = sent(&mut inbox);
    assert!(matches!(&sent[..], [(1, text)] if text.contains("NotLeader")), "{sent:?}");
}

#[test]
fn once_the_leader_before_has_handled_all_nothing_waits_for_it() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    inbox.push(P, stat());
    sent(&mut inbox);
    inbox.roads.road(NodeNumber(1)).expect("it is up").sent.answer_all();
    leaders.note(P, Some(NodeNumber(2)), 6);
    (1..=3).for_each(|seq| inbox.push(P, publish(seq)));
    assert_eq!(here(&mut inbox), [(1, 6), (2, 6), (3, 6)]);
    assert!(!inbox.roads.has_waiting() && sent(&mut inbox).is_empty());
}

#[test]
fn what_waits_to_be_sent_again_is_dropped_with_its_channel_and_so_is_what_came_behind_it() {
    for is_returned in [true, false] {
        let (mut inbox, leaders) = among_others();
        leaders.note(P, Some(NodeNumber(1)), 5);
        inbox.push(P, publish(1));
        sent(&mut inbox);
        if is_returned {
            heard(&mut inbox, returned(1, 1, 5));
        }
        leaders.note(P, Some(NodeNumber(2)), 6);
        inbox.push(P, publish(2));
        step(&mut inbox, &leaders);
        inbox.push(P, Command::Detach { channel: CHANNEL });
        inbox.roads.road(NodeNumber(1)).expect("it is up").sent.answer_all();
        here(&mut inbox);
        step(&mut inbox, &leaders);
        step(&mut inbox, &leaders);
        assert_eq!(here(&mut inbox), [], "1 may be lost, or would come in twice: 2 would come without it");
        assert!(!inbox.roads.has_waiting() && !inbox.is_full());
    }
}

#[test]
fn what_was_never_sent_goes_on_its_way_without_its_channel_where_all_before_it_was_answered() {
    let (mut inbox, leaders) = among_others();
    leaders.note(P, Some(NodeNumber(1)), 5);
    inbox.push(P, publish(1));
    inbox.push(P, stat());
    sent(&mut inbox);
    heard(&mut inbox, confirm(1, 1));
    leaders.note(P, Some(NodeNumber(2)), 6);
    inbox.push(P, publish(2));
    inbox.push(P, Command::Detach { channel: CHANNEL });
    inbox.roads.road(NodeNumber(1)).expect("it is up").sent.answer_all();
    step(&mut inbox, &leaders);
    assert_eq!(here(&mut inbox), [(2, 6)]);
}
