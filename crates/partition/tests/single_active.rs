//! Queues with a single active consumer: who it is.

#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::{Rules, SingleActive};
use member::{QUEUE, Rig, configured, consumer};
use partition::command::{Command, Disposition, RequestId};

#[test]
fn the_active_consumer_is_told_of_and_is_another_one_once_it_is_gone_and_holds_nothing() {
    let single_active = Some(SingleActive { preempts: true });
    let mut rig = configured(Vec::new(), &Rules { single_active, ..Rules::default() });
    let told = |rig: &Rig| {
        let mut figures = Vec::new();
        rig.partition.survey(&mut figures);
        figures.iter().map(|figures| (figures.consumers, figures.active)).collect::<Vec<_>>()
    };
    rig.publish_synced(1, "a");
    [1, 2].iter().for_each(|number| rig.consume(*number, 10, false));
    rig.run();
    assert_eq!(told(&rig), [(2, Some(consumer(1)))]);
    let held = rig.delivered();
    rig.command(Command::Cancel { queue: QUEUE, consumer: consumer(1), request: RequestId(9) });
    rig.run();
    assert_eq!(told(&rig), [(1, Some(consumer(1)))], "it holds a message still");
    rig.settle(1, held[0].seq, 1, Disposition::Ack);
    rig.run();
    assert_eq!(told(&rig), [(1, Some(consumer(2)))]);
    // Where several get messages nobody is the one.
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.consume(1, 10, false);
    rig.run();
    assert_eq!(told(&rig), [(1, None)]);
}
