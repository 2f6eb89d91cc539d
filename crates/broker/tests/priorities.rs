//! A queue with priorities against a plain model: what goes out next, whatever comes in, comes
//! back, ends or is purged.
#![allow(clippy::unwrap_used)]

use broker::queue::levels::Levels;
use broker::queue::{Consumer, Dispatch, LevelRule, QueueState};
use broker::{ChannelKey, ConsumerKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const CHANNEL: ChannelKey = ChannelKey(9);
const KEY: ConsumerKey = ConsumerKey { channel: CHANNEL, number: 1 };

#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<Option<u8>>),
    Deliver(u8),
    Ack(u8),
    Return(u8),
    /// Its consumer says that it has one of an earlier leader, wherever it stands.
    Hold(u8),
    /// One is taken out for good, wherever it stands.
    Drop(u8),
    /// The same, if it came back.
    DropReturned(u8),
    /// The leader changes: what is held is ready again, what is known is what was replicated.
    Restart,
    /// The channel ends.
    Detach,
    Purge,
}

fn step() -> impl Strategy<Value = Step> {
    let priority = prop_oneof![3 => Just(None), 4 => (0u8..7).prop_map(Some), 1 => Just(Some(200))];
    prop_oneof![
        4 => prop::collection::vec(priority, 1..12).prop_map(Step::Publish),
        2 => prop::collection::vec(Just(None), 1..4).prop_map(Step::Publish),
        6 => (1u8..9).prop_map(Step::Deliver),
        4 => any::<u8>().prop_map(Step::Ack),
        3 => any::<u8>().prop_map(Step::Return),
        3 => any::<u8>().prop_map(Step::Hold),
        2 => any::<u8>().prop_map(Step::Drop),
        2 => any::<u8>().prop_map(Step::DropReturned),
        1 => Just(Step::Restart),
        1 => Just(Step::Detach),
        1 => Just(Step::Purge),
    ]
}

/// What is ready in the order in which it goes out.
#[derive(Default)]
struct Model {
    fresh: BTreeSet<(std::cmp::Reverse<u8>, u64)>,
    /// Before all others, in the order of return; classic queues have none.
    returned: Vec<u64>,
}

struct Queue {
    rule: LevelRule,
    state: QueueState<()>,
    dispatch: Dispatch,
    model: Model,
    levels: BTreeMap<u64, u8>,
    held: Vec<u64>,
    /// Ready again under this leader.
    back: BTreeSet<u64>,
}

impl Queue {
    fn new(rule: LevelRule) -> Queue {
        let (state, dispatch) = (QueueState::default(), Dispatch::new(1, 1, 0));
        let mut queue = Queue {
            rule,
            state,
            dispatch,
            model: Model::default(),
            levels: BTreeMap::new(),
            held: Vec::new(),
            back: BTreeSet::new(),
        };
        queue.attach();
        queue
    }

    fn attach(&mut self) {
        let consumer =
            Consumer { key: KEY, prefetch: 0, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        self.dispatch.attach(consumer).unwrap();
    }

    fn returned_first(&self) -> bool {
        self.rule == LevelRule::Strict
    }

    fn ready(&mut self, seq: u64, came_back: bool) {
        if came_back {
            self.back.insert(seq);
        }
        // Without levels everything has its old place.
        if came_back && self.returned_first() && self.state.levels().is_some() {
            self.model.returned.push(seq);
        } else {
            self.model.fresh.insert((std::cmp::Reverse(self.levels[&seq]), seq));
        }
    }

    fn expected(&self) -> Option<u64> {
        self.model.returned.first().copied().or_else(|| self.model.fresh.first().map(|(_, seq)| *seq))
    }

    /// Some live message.
    fn live(&self, which: u8) -> Option<u64> {
        let ranges = self.state.runs().iter().flat_map(|run| run.live_ranges());
        let live: Vec<u64> = ranges.flat_map(|(first, count)| first..first + count).collect();
        live.get(usize::from(which) % live.len().max(1)).copied()
    }

    fn forget(&mut self, seq: u64) {
        self.back.remove(&seq);
        self.model.returned.retain(|s| *s != seq);
        self.model.fresh.retain(|(_, s)| *s != seq);
    }

    fn follow(&mut self) {
        self.dispatch.follow_levels(self.state.levels());
        if self.state.levels().is_none() {
            for seq in std::mem::take(&mut self.model.returned) {
                self.model.fresh.insert((std::cmp::Reverse(self.levels[&seq]), seq));
            }
        }
    }

    fn settle(&mut self, seq: u64) {
        self.state.settle(seq, 1, &mut |_| {});
        let is_kept = self.state.levels().is_some();
        assert!(!is_kept || self.state.runs().live() > 0, "levels go with the last message");
        self.follow();
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Publish(priorities) => {
                let first = self.state.publish(priorities.len() as u32, ());
                for (seq, priority) in (first..).zip(&priorities) {
                    self.levels.insert(seq, self.rule.level(*priority));
                }
                self.state.note_priorities(first, self.rule, priorities.iter().copied());
                match self.state.levels() {
                    Some(levels) => self.dispatch.add_ready_by_level(
                        priorities.len() as u64,
                        levels,
                        self.rule == LevelRule::Strict,
                    ),
                    None => self.dispatch.add_ready(priorities.len() as u64),
                }
                (first..self.state.next_seq()).for_each(|seq| self.ready(seq, false));
            }
            Step::Deliver(count) => {
                for _ in 0..count {
                    let Some(head) = self.head() else { break };
                    self.dispatch.assign(head, 1, self.state.levels());
                    self.forget(head.seq);
                    self.held.push(head.seq);
                    assert!(self.dispatch.cursor() > head.seq, "{} was handed out", head.seq);
                }
            }
            Step::Ack(which) if !self.held.is_empty() => {
                let seq = self.held.remove(usize::from(which) % self.held.len());
                self.dispatch.release(KEY, seq, 1, &mut Vec::new());
                self.settle(seq);
            }
            Step::Return(which) if !self.held.is_empty() => {
                let seq = self.held.remove(usize::from(which) % self.held.len());
                self.dispatch.release(KEY, seq, 1, &mut Vec::new());
                self.dispatch.put_back(seq, 1, self.state.levels());
                self.ready(seq, true);
            }
            Step::Ack(_) | Step::Return(_) => {}
            Step::Hold(which) => {
                let Some(seq) = self.live(which).filter(|seq| !self.held.contains(seq)) else { return };
                let next_live = |from| self.state.runs().next_live(from).map(|n| n.0);
                self.dispatch.hold(KEY, seq, 1, self.state.levels(), next_live);
                self.forget(seq);
                self.held.push(seq);
            }
            Step::Drop(which) => {
                let Some(seq) = self.live(which) else { return };
                let was_ready = self.dispatch.drop_ready(seq, self.state.levels());
                assert_eq!(was_ready, !self.held.contains(&seq), "{seq}");
                if was_ready {
                    self.forget(seq);
                    self.settle(seq);
                }
            }
            Step::DropReturned(which) => {
                let Some(seq) = self.live(which) else { return };
                let was_there = self.dispatch.drop_returned(seq, self.state.levels());
                assert!(was_there || !self.back.contains(&seq), "{seq} came back");
                assert!(!was_there || !self.held.contains(&seq), "{seq} is held");
                if was_there {
                    self.forget(seq);
                    self.settle(seq);
                }
            }
            Step::Detach => {
                let back: Vec<u64> = self.dispatch.detach(CHANNEL, self.state.levels()).seqs().collect();
                self.held.sort_unstable();
                assert_eq!(back, std::mem::take(&mut self.held));
                back.into_iter().for_each(|seq| self.ready(seq, true));
                self.attach();
            }
            Step::Restart => {
                let live = self.state.runs().live();
                let first = self.state.runs().next_live(0).map_or(self.state.next_seq(), |n| n.0);
                let seqs: Vec<u64> =
                    self.state.runs().iter().flat_map(|run| run.live_ranges()).flat_map(|(f, c)| f..f + c).collect();
                self.dispatch = match self.state.levels() {
                    Some(levels) => Dispatch::with_levels(
                        self.state.next_seq(),
                        levels,
                        self.returned_first(),
                        seqs.iter().copied(),
                    ),
                    None => Dispatch::new(first, self.state.next_seq(), live),
                };
                self.attach();
                self.held.clear();
                self.back.clear();
                self.model = Model::default();
                seqs.into_iter().for_each(|seq| self.ready(seq, false));
            }
            Step::Purge => {
                let next_live = |from| self.state.runs().next_live(from).map(|n| n.0);
                let all: Vec<u64> = self.dispatch.purge(self.state.levels(), next_live).seqs().collect();
                all.iter().for_each(|seq| assert!(!self.held.contains(seq), "held messages stay"));
                all.into_iter().for_each(|seq| self.settle(seq));
                self.model = Model::default();
                self.back.clear();
            }
        }
    }

    fn head(&self) -> Option<broker::queue::dispatch::Head> {
        self.dispatch.head(self.state.levels(), |from| self.state.runs().next_live(from).map(|n| n.0))
    }
}

proptest! {
    #[test]
    fn the_highest_level_goes_first_and_in_its_order(
        steps in prop::collection::vec(step(), 1..60),
        strict in any::<bool>(),
    ) {
        let mut queue = Queue::new(if strict { LevelRule::Strict } else { LevelRule::UpTo(5) });
        for step in steps {
            let had_levels = queue.state.levels().is_some();
            queue.run(step.clone());
            if strict && !had_levels && queue.state.levels().is_some() {
                // What had come back before the first priority goes first from now on, as nothing
                // else is older.
                let mut heads = Vec::new();
                while let Some(head) = queue.head().filter(|head| head.returned) {
                    queue.dispatch.assign(head, 1, queue.state.levels());
                    queue.forget(head.seq);
                    heads.push(head.seq);
                }
                for seq in heads {
                    queue.dispatch.release(KEY, seq, 1, &mut Vec::new());
                    queue.dispatch.put_back(seq, 1, queue.state.levels());
                    queue.ready(seq, true);
                }
            }
            prop_assert_eq!(queue.head().map(|head| head.seq), queue.expected(), "after {:?}", step);
            let ready = (queue.model.fresh.len() + queue.model.returned.len()) as u64;
            prop_assert_eq!(queue.dispatch.ready(), ready, "after {:?}", step);
            prop_assert_eq!(queue.dispatch.held(), queue.held.len() as u64);
        }
    }
}

#[test]
fn what_is_purged_of_mixed_priorities_is_few_ranges_however_many_there_are() {
    let mut levels = Levels::new(1);
    levels.note(1, &(0..10_000u64).map(|number| (number % 3) as u8).collect::<Vec<_>>());
    let mut dispatch = Dispatch::with_levels(10_001, &levels, false, 1..10_001);
    // The highest level goes out first: 3 and 6 are held, 3 comes back, and 10 has ended.
    for seq in [3, 6] {
        let head = dispatch.head(Some(&levels), Some).unwrap();
        assert_eq!(head.seq, seq);
        dispatch.drop_head(head, Some(&levels));
    }
    dispatch.put_back(3, 1, Some(&levels));
    let purged = dispatch.purge(Some(&levels), |from| Some(if from == 10 { 11 } else { from }));
    assert_eq!(purged.iter().collect::<Vec<_>>(), [(1, 5), (7, 3), (11, 9_990)]);
    assert_eq!(dispatch.ready(), 0);
}
