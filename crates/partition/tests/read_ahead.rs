//! What queues hold of messages that they read back from the disk: counted, and little where all
//! together have too much.

#![allow(clippy::unwrap_used)]

mod member;

use member::{Rig, texts};
use partition::Tail;
use partition::command::Disposition;

/// A member whose backlog of `count` messages lies in one batch of the log and nowhere in memory.
fn backlog(count: u64, read_bytes_max: usize) -> Rig {
    let mut rig = Rig::new(Vec::new(), 0);
    for seq in 1..=count {
        rig.publish_synced(seq, &format!("{seq:0100}"));
    }
    rig.run();
    let mut rig = Rig::new(rig.log, 0);
    rig.tail = Tail::new(0).with_read_bytes_max(read_bytes_max);
    rig
}

/// Takes one message after the other, acking each. Returns the most that was held while the
/// consumer had no room.
fn take_all(rig: &mut Rig, count: u64) -> usize {
    rig.consume(1, 1, false);
    rig.run();
    let mut most = 0;
    for wanted in 1..=count {
        let delivered = rig.delivered();
        assert_eq!(texts(&delivered), [format!("{wanted:0100}")]);
        most = most.max(rig.tail.read_bytes());
        rig.settle(1, delivered[0].seq, 1, Disposition::Ack);
        rig.run();
    }
    most
}

#[test]
fn what_was_read_is_counted_until_it_is_given_out() {
    let mut rig = backlog(50, 1 << 20);
    assert_eq!(rig.tail.read_bytes(), 0);
    let most = take_all(&mut rig, 50);
    assert!(most > 50 * 100, "the batch stays at hand: {most}");
    assert_eq!(rig.tail.read_bytes(), 0);
    assert_eq!(rig.reads.len(), 1);
}

#[test]
fn where_queues_hold_too_much_nobody_keeps_what_its_consumers_have_no_room_for() {
    let mut rig = backlog(50, 0);
    assert_eq!(take_all(&mut rig, 50), 0);
    assert!(rig.reads.len() >= 50, "it is read again: {}", rig.reads.len());
    assert!(rig.reads.iter().all(|batches| *batches == 1));
}

#[test]
fn a_queue_that_goes_takes_what_it_holds_out_of_the_sum() {
    let mut rig = backlog(50, 1 << 20);
    rig.consume(1, 1, false);
    rig.run();
    assert!(rig.tail.read_bytes() > 0);
    rig.command(partition::command::Command::Delete { queue: member::QUEUE });
    rig.run();
    assert_eq!(rig.tail.read_bytes(), 0);
}
