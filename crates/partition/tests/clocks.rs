//! Clocks that were ahead, and what a log that was written by one does to what comes later.

#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::Rules;
use bytes::Bytes;
use member::{QUEUE, Rig, configured};
use partition::command::{Command, Disposition};
use partition::message::MessageView;

fn text_of(message: &Bytes) -> String {
    String::from_utf8(MessageView::parse(message).unwrap().body().to_vec()).unwrap()
}

#[test]
fn a_clock_that_was_ahead_puts_off_nothing_that_comes_after_a_restart() {
    let rules = Rules { message_ttl_ms: Some(50), ..Rules::default() };
    for rules in [rules, Rules::default()] {
        let is_timed = rules.message_ttl_ms.is_some();
        let mut rig = configured(Vec::new(), &rules);
        rig.now += 3_600_000;
        rig.publish_synced(1, "of an hour ahead");
        rig.run();
        if !is_timed {
            rig.get().unwrap();
        }
        assert_eq!(rig.out.clocks_ahead, []);
        let mut rig = Rig::new(rig.log, 1 << 20);
        rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
        rig.run();
        let ahead: Vec<u64> = rig.out.clocks_ahead.iter().map(|told| told.ahead_ms / 10_000).collect();
        assert_eq!(ahead, [360], "it is told once");
        if is_timed {
            rig.publish_synced(2, "of today");
        } else {
            let got = rig.get().unwrap();
            rig.decide(&got, Disposition::Ack);
            rig.publish_in(3, "late", 50);
        }
        rig.run();
        for _ in 0..4 {
            rig.pass(60);
        }
        match is_timed {
            true => assert_eq!(rig.stat(), (0, 0, 0), "neither waits until the clock has caught up"),
            false => assert_eq!(text_of(&rig.get().unwrap().message), "late"),
        }
    }
}
