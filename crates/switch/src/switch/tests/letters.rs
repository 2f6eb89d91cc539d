//! Dead letters of a shard: how many a turn sends, when none leave, and what is dropped.

use super::*;
use broker::topology::{Binding, DeclareExchange, ExchangeType, Kind};
use bytes::Bytes;
use partition::entry::Reason;
use partition::message::{Stamp, store};
use partition::{DeadLetter, Message};

const SOURCE: QueueId = QueueId(1);

/// A queue whose dead-letter exchange is bound to so many others.
fn declare(stand: &Stand, targets: usize) {
    let change = |change: Change| assert!(stand.topology.borrow_mut().apply(&change).outcome.is_ok());
    let (vhost, exchange) = (VhostId(0), Name::from("dlx"));
    change(Change::DeclareExchange(DeclareExchange {
        vhost,
        name: exchange.clone(),
        kind: ExchangeType::Fanout,
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: amqp::Table::new(),
        is_shared: false,
    }));
    let mut arguments = amqp::Table::new();
    arguments.push("x-dead-letter-exchange", amqp::Value::LongString(Bytes::from_static(b"dlx")));
    change(queue("source", P, arguments));
    (0..targets).for_each(|target| declare_target(stand, &format!("target {target}"), P));
}

fn queue(name: &str, partition: PartitionId, arguments: amqp::Table) -> Change {
    Change::DeclareQueue(DeclareQueue {
        vhost: VhostId(0),
        name: Name::from(name),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments,
        partition,
        home: None,
    })
}

/// One of the others.
fn declare_target(stand: &Stand, name: &str, partition: PartitionId) {
    let binding = Change::Bind(Binding {
        vhost: VhostId(0),
        source: Name::from("dlx"),
        destination_kind: Kind::Queue,
        destination: Name::from(name),
        key: Name::from(""),
        arguments: amqp::Table::new(),
    });
    for change in [queue(name, partition, amqp::Table::new()), binding] {
        assert!(stand.topology.borrow_mut().apply(&change).outcome.is_ok());
    }
}

fn letter(seq: u64, reason: Reason, body: &Bytes) -> Effect {
    let (none, properties) = (Bytes::new(), Bytes::from_static(&[0, 0]));
    let message = Message { exchange: none.clone(), routing_key: none, properties, body: body.clone() };
    let mut stored = Vec::new();
    store(&message, 0, Stamp::None, &mut stored);
    Effect::DeadLetter(Box::new(DeadLetter { queue: SOURCE, seq, reason, message: stored.into(), wants_answer: false }))
}

fn give_up(switch: &Switch<(), NoOutsider>, letters: impl Iterator<Item = Effect>, stand: &Stand) {
    switch.deliver(letters.peekable(), Some(P), stand);
}

/// What one turn sends: letters, and copies of them in queues.
fn turn(switch: &Switch<(), NoOutsider>, stand: &Stand) -> (usize, usize) {
    switch.inbox().borrow_mut().start_step(std::task::Waker::noop());
    switch.send_dead_letters(stand);
    let targets = |command: Command| match command {
        Command::Publish(publish) => publish.targets.len(),
        other => panic!("{other:?}"),
    };
    let sent: Vec<usize> = told(switch).into_iter().map(targets).collect();
    (sent.len(), sent.iter().sum())
}

/// The same to another node.
fn turn_away(switch: &Switch<(), NoOutsider>, stand: &Stand) -> usize {
    switch.inbox().borrow_mut().start_step(std::task::Waker::noop());
    switch.send_dead_letters(stand);
    sent(switch).len()
}

#[test]
fn a_turn_sends_few_letters_where_each_goes_to_many_queues_and_comes_again_for_the_rest() {
    let ([at, _], leaders, stand) = shards();
    leaders.note(P, Some(NodeNumber(OWN.node)), 5);
    declare(&stand, 100);
    let body = Bytes::from_static(b"x");
    give_up(&at, (1..=30).map(|seq| letter(seq, Reason::MaxLength, &body)), &stand);
    assert_eq!(turn(&at, &stand), (11, 1_100), "a thousand copies, and no letter by halves");
    assert!(at.inbox().borrow().is_woken(), "nothing else calls for the next turn");
    assert_eq!([(); 3].map(|()| turn(&at, &stand)), [(11, 1_100), (8, 800), (0, 0)]);
}

#[test]
fn a_turn_sends_few_letters_where_each_is_large() {
    let ([at, _], leaders, stand) = shards();
    leaders.note(P, Some(NodeNumber(OWN.node)), 5);
    declare(&stand, 1);
    let body = Bytes::from(vec![0; 300_000]);
    give_up(&at, (1..=10).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    assert_eq!([(); 4].map(|()| turn(&at, &stand).0), [4, 4, 2, 0]);
}

#[test]
fn letters_wait_where_publishers_would_have_to() {
    let ([at, _], leaders, stand) = shards();
    leaders.note(P, Some(NodeNumber(OWN.node)), 5);
    declare(&stand, 1);
    let body = Bytes::from_static(b"x");
    stand.is_loaded.set(true);
    give_up(&at, (1..=10).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    assert_eq!(turn(&at, &stand), (0, 0));
    assert!(at.has_dead_letters() && at.is_busy(), "a node that ends waits for them");
    assert!(!at.inbox().borrow().is_woken(), "the log wakes the shard, or a timer");
    stand.is_loaded.set(false);
    assert_eq!(turn(&at, &stand), (10, 10));
    assert!(!at.has_dead_letters());
    // A queue without a majority may hold up publishers for long: letters for others trickle.
    stand.is_loaded.set(true);
    give_up(&at, (1..=2000).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    let turn_at = |us| {
        stand.elapsed_us.set(us);
        turn(&at, &stand).0
    };
    assert_eq!([99_999, 100_000, 100_001, 200_000, 300_000].map(turn_at), [0, 1024, 0, 976, 0]);
}

#[test]
fn letters_of_what_is_too_much_are_dropped_beyond_what_may_wait_and_counted() {
    let ([at, _], leaders, stand) = shards();
    leaders.note(P, Some(NodeNumber(OWN.node)), 5);
    declare(&stand, 1);
    let body = Bytes::from(vec![0; 1 << 20]);
    give_up(&at, (1..=40).map(|seq| letter(seq, Reason::MaxLength, &body)), &stand);
    let dropped = |switch: &Switch<(), NoOutsider>| switch.dead_lettered().counts[0][2];
    // Half of 64 MiB is this shard's.
    assert_eq!(dropped(&at), [0, 0, 8, 0]);
    give_up(&at, (41..=50).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    assert_eq!(dropped(&at), [0, 0, 8, 0], "consumers rejected those");
    let sent: usize = (0..100).map(|_| turn(&at, &stand).0).sum();
    assert_eq!(sent, 42);
    assert_eq!(at.dead_lettered().counts[0][0], [10, 0, 32, 0]);
}

#[test]
fn a_letter_that_nobody_waits_for_goes_to_the_next_leader_once_the_one_before_is_lost() {
    let ([at, _], leaders, stand) = shards();
    leaders.note(P, Some(NodeNumber(OTHER.node)), 5);
    declare(&stand, 1);
    let body = Bytes::from_static(b"x");
    give_up(&at, (1..=2).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    at.inbox().borrow_mut().start_step(std::task::Waker::noop());
    at.send_dead_letters(&stand);
    let of_publish = |publish: &Publish| (publish.channel, publish.publish_seq, publish.term);
    let own = at.own_key();
    let there: Vec<_> = sent(&at)
        .iter()
        .map(|forward| match forward {
            Forward::Command(Command::Publish(publish)) => of_publish(publish),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(there, [(own, 1, 5), (own, 2, 5)]);
    assert!(!at.has_dead_letters() && at.has_letters_on_their_way(), "a node that ends waits for them");
    // It has one of them, which comes back with the other: the next leader knows it by its number.
    at.take(Parcel::LinkDown(NodeNumber(OTHER.node)), &stand);
    leaders.note(P, Some(NodeNumber(OWN.node)), 6);
    at.resume_roads(&stand);
    let here: Vec<_> = told(&at)
        .iter()
        .filter_map(|command| match command {
            Command::Publish(publish) => Some(of_publish(publish)),
            _ => None,
        })
        .collect();
    assert_eq!(here, [(own, 1, 6), (own, 2, 6)]);
    at.deliver([Effect::Confirm { channel: own, first: 1, count: 2 }].into_iter().peekable(), Some(P), &stand);
    assert!(!at.has_letters_on_their_way());
}

#[test]
fn a_node_that_ends_does_not_wait_for_letters_that_their_queue_has() {
    let ([at, _], leaders, stand) = shards();
    leaders.note(P, Some(NodeNumber(OTHER.node)), 5);
    declare(&stand, 1);
    let body = Bytes::from_static(b"x");
    let awaited = |effect| match effect {
        Effect::DeadLetter(letter) => Effect::DeadLetter(Box::new(DeadLetter { wants_answer: true, ..*letter })),
        other => other,
    };
    give_up(&at, [awaited(letter(1, Reason::Discarded, &body))].into_iter(), &stand);
    assert_eq!(turn_away(&at, &stand), 1);
    assert!(!at.has_letters_on_their_way());
    give_up(&at, [letter(2, Reason::Discarded, &body)].into_iter(), &stand);
    assert_eq!(turn_away(&at, &stand), 1);
    assert!(at.has_letters_on_their_way());
}

#[test]
fn letters_that_nobody_waits_for_are_not_kept_beyond_their_part_of_what_may_be() {
    let ([at, _], leaders, stand) = shards();
    leaders.note(P, Some(NodeNumber(OWN.node)), 5);
    declare(&stand, 1);
    let body = Bytes::from(vec![0; 1 << 20]);
    give_up(&at, (1..=40).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    let mut numbers = Vec::new();
    while at.has_dead_letters() {
        at.inbox().borrow_mut().start_step(std::task::Waker::noop());
        at.send_dead_letters(&stand);
        numbers.extend(told(&at).into_iter().map(|command| match command {
            Command::Publish(publish) => publish.publish_seq,
            other => panic!("{other:?}"),
        }));
    }
    // 16 MiB, and as no partition answers no more.
    assert_eq!(numbers, [(1..=16).collect(), vec![0; 24]].concat());
    assert!(!at.inbox().borrow().is_full(), "publishers go on");
}

/// Sends some letters to another node, which goes, and nobody else comes to lead.
fn without_a_leader(at: &Switch<(), NoOutsider>, leaders: &Leaders, stand: &Stand, body: &Bytes) {
    leaders.note(P, Some(NodeNumber(OTHER.node)), 5);
    give_up(at, (1..=2).map(|seq| letter(seq, Reason::Discarded, body)), stand);
    assert_eq!(publishes_away(at, stand), 2);
    at.take(Parcel::LinkDown(NodeNumber(OTHER.node)), stand);
    leaders.note(P, None, 5);
    at.resume_roads(stand);
}

/// How many letters leave for another node in so many turns that time does not matter.
fn publishes_away(at: &Switch<(), NoOutsider>, stand: &Stand) -> usize {
    let mut all = 0;
    for _ in 0..100 {
        stand.elapsed_us.set(stand.elapsed_us.get() + 100_000);
        at.inbox().borrow_mut().start_step(std::task::Waker::noop());
        at.send_dead_letters(stand);
        let is_publish = |forward: &&Forward| matches!(forward, Forward::Command(Command::Publish(_)));
        all += sent(at).iter().filter(is_publish).count();
    }
    all
}

/// The numbers of what a partition of this node is told, now that it leads.
fn publishes_here(at: &Switch<(), NoOutsider>, stand: &Stand) -> Vec<u64> {
    let mut numbers = Vec::new();
    for _ in 0..100 {
        at.resume_roads(stand);
        at.inbox().borrow_mut().start_step(std::task::Waker::noop());
        at.send_dead_letters(stand);
        numbers.extend(told(at).into_iter().filter_map(|command| match command {
            Command::Publish(publish) => Some(publish.publish_seq),
            _ => None,
        }));
    }
    numbers
}

#[test]
fn letters_that_nobody_takes_stay_where_they_are_and_publishers_go_on() {
    let ([at, _], leaders, stand) = shards();
    declare(&stand, 1);
    let body = Bytes::from(vec![0; 1 << 20]);
    without_a_leader(&at, &leaders, &stand, &body);
    give_up(&at, (3..=12).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    assert_eq!(publishes_away(&at, &stand), 0);
    assert!(at.has_dead_letters() && !at.inbox().borrow().is_full());
    assert!(!at.inbox().borrow().is_woken(), "a timer has the shard look");
    // Whoever leads next gets all of them, in order.
    leaders.note(P, Some(NodeNumber(OWN.node)), 6);
    assert_eq!(publishes_here(&at, &stand), (1..=12).collect::<Vec<_>>());
    assert!(!at.has_dead_letters());
}

#[test]
fn letters_leave_beside_whatever_else_is_on_its_way_to_a_node() {
    let ([at, _], leaders, stand) = shards();
    declare(&stand, 1);
    leaders.note(P, Some(NodeNumber(OTHER.node)), 5);
    let body = Bytes::from(vec![0; 1 << 20]);
    give_up(&at, (1..=12).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    assert_eq!(publishes_away(&at, &stand), 12, "it has handled none of them");
}

#[test]
fn more_letters_than_may_stay_for_nobody_leave() {
    let ([at, _], leaders, stand) = shards();
    declare(&stand, 1);
    let body = Bytes::from(vec![0; 1 << 20]);
    without_a_leader(&at, &leaders, &stand, &body);
    give_up(&at, (3..=82).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    publishes_away(&at, &stand);
    // Twice the half of 64 MiB that is this shard's.
    assert_eq!(at.outgoing.borrow().len(), 64);
}

#[test]
fn letters_that_nobody_came_to_lead_for_are_counted_as_given_up_but_those_that_their_queue_has() {
    let ([at, _], leaders, stand) = shards();
    declare(&stand, 1);
    let body = Bytes::from(vec![0; 1 << 10]);
    without_a_leader(&at, &leaders, &stand, &body);
    let Effect::DeadLetter(mut kept) = letter(3, Reason::Discarded, &body) else { panic!("it is one") };
    kept.wants_answer = true;
    give_up(&at, [Effect::DeadLetter(kept)].into_iter(), &stand);
    assert_eq!(at.dead_lettered().given_up, 0);
    publishes_away(&at, &stand);
    at.resume_roads(&stand);
    assert_eq!(at.dead_lettered().given_up, 2, "they were on their way when their leader went");
    assert!(!at.has_letters_on_their_way());
}

#[test]
fn a_letter_that_somebody_can_take_now_does_not_wait_for_its_other_queues() {
    let ([at, _], leaders, stand) = shards();
    declare(&stand, 1);
    let body = Bytes::from(vec![0; 3 << 20]);
    without_a_leader(&at, &leaders, &stand, &body);
    give_up(&at, (3..=5).map(|seq| letter(seq, Reason::Discarded, &body)), &stand);
    assert_eq!(publishes_away(&at, &stand), 0);
    assert!(at.has_dead_letters(), "nobody takes these");
    // The others of it are on their way beside it.
    leaders.note(Q, Some(NodeNumber(OWN.node)), 5);
    declare_target(&stand, "healthy", Q);
    let mut healthy = 0;
    for _ in 0..10 {
        stand.elapsed_us.set(stand.elapsed_us.get() + 100_000);
        at.inbox().borrow_mut().start_step(std::task::Waker::noop());
        at.send_dead_letters(&stand);
        healthy += told_at(&at, 2).len();
    }
    assert!(!at.has_dead_letters());
    assert_eq!(healthy, 3, "each went to the queue that somebody leads");
}
