//! Who holds what against a plain model, where consumers come with messages of an earlier leader: of each message what
//! this leader gave out, what its holder came with, what is ready and what has ended.
#![allow(clippy::unwrap_used)]

use broker::queue::{Consumer, Dispatch};
use broker::{ChannelKey, ConsumerKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MESSAGES: u64 = 12;
const PREFETCH: u32 = 4;

fn key(channel: u128, number: u32) -> ConsumerKey {
    ConsumerKey { channel: ChannelKey(channel), number }
}

/// Those that come and go; two are of one channel.
fn keys() -> [ConsumerKey; 4] {
    [key(1, 1), key(1, 2), key(2, 1), key(3, 1)]
}

fn consumer(key: ConsumerKey, prefetch: u32) -> Consumer {
    Consumer { key, prefetch, no_ack: false, exclusive: false, priority: 0, granted_only: false }
}

#[derive(Clone, Debug)]
enum Step {
    Attach(usize),
    Cancel(usize),
    /// The channel of a consumer ends, or the link to its node does.
    Detach(usize),
    /// Whoever's turn it is gets what is next.
    Deliver(u8),
    /// A consumer says that it has messages of an earlier leader.
    Hold(usize, u64),
    /// It settles messages for good, or who is not known any more does.
    Ack(Option<usize>, u64, u64),
    /// It gives one back.
    Return(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let of = 0..keys().len();
    prop_oneof![
        6 => of.clone().prop_map(Step::Attach),
        1 => of.clone().prop_map(Step::Cancel),
        2 => of.clone().prop_map(Step::Detach),
        4 => (1u8..4).prop_map(Step::Deliver),
        8 => (of.clone(), 1..=MESSAGES).prop_map(|(of, seq)| Step::Hold(of, seq)),
        4 => (prop::option::of(of.clone()), 1..=MESSAGES, 1u64..4)
            .prop_map(|(of, first, count)| Step::Ack(of, first, count)),
        3 => (of, 1..=MESSAGES).prop_map(|(of, seq)| Step::Return(of, seq)),
    ]
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    Held { by: ConsumerKey, is_brought: bool },
    Ended,
}

/// A queue, and what is to be true of it.
struct Queue {
    dispatch: Dispatch,
    places: BTreeMap<u64, Place>,
    /// Consumers that are attached, each with what counts against its prefetch and is not its own here, and how often
    /// its client has it.
    attached: BTreeMap<ConsumerKey, BTreeMap<u64, u64>>,
    /// Those that are cancelled, and their channels not gone.
    cancelled: BTreeSet<ConsumerKey>,
}

impl Queue {
    fn new() -> Queue {
        let places = (1..=MESSAGES).map(|seq| (seq, Place::Ready)).collect();
        let dispatch = Dispatch::new(1, MESSAGES + 1, MESSAGES);
        Queue { dispatch, places, attached: BTreeMap::new(), cancelled: BTreeSet::new() }
    }

    fn held_by(&self, key: ConsumerKey) -> Vec<u64> {
        let held = self.places.iter().filter(|(_, place)| matches!(place, Place::Held { by, .. } if *by == key));
        held.map(|(seq, _)| *seq).collect()
    }

    /// How many more messages a consumer takes: none if it said before it came that it holds more than its prefetch.
    fn room(&self, key: ConsumerKey) -> u64 {
        let Some(foreign) = self.attached.get(&key) else { return 0 };
        let has = self.held_by(key).len() as u64 + foreign.values().sum::<u64>();
        u64::from(PREFETCH).saturating_sub(has)
    }

    /// A client has a message that is not its consumer's own here.
    fn add_foreign(&mut self, key: ConsumerKey, seq: u64) {
        if let Some(foreign) = self.attached.get_mut(&key) {
            *foreign.entry(seq).or_default() += 1;
        }
    }

    /// It settles it.
    fn settle_foreign(&mut self, key: ConsumerKey, seq: u64) {
        if let Some(foreign) = self.attached.get_mut(&key) {
            foreign.entry(seq).and_modify(|times| *times -= u64::from(*times > 0));
        }
    }

    fn run(&mut self, step: &Step) {
        let live: BTreeSet<u64> =
            self.places.iter().filter(|(_, place)| **place != Place::Ended).map(|(seq, _)| *seq).collect();
        let next_live = |from: u64| live.range(from..).next().copied();
        match *step {
            Step::Attach(of) => {
                let key = keys()[of];
                // A key is used once, or again when its channel comes back.
                if !self.cancelled.contains(&key) && !self.attached.contains_key(&key) {
                    self.dispatch.attach(consumer(key, PREFETCH)).unwrap();
                    self.attached.insert(key, BTreeMap::new());
                }
            }
            Step::Cancel(of) => {
                let was_there = self.attached.remove(&keys()[of]).is_some();
                assert_eq!(self.dispatch.cancel(keys()[of]), was_there);
                self.cancelled.extend(was_there.then_some(keys()[of]));
            }
            Step::Detach(of) => {
                let channel = keys()[of].channel;
                let back: Vec<u64> = self.dispatch.detach(channel, None).seqs().collect();
                let mut expected = Vec::new();
                for (seq, place) in &mut self.places {
                    if matches!(place, Place::Held { by, .. } if by.channel == channel) {
                        *place = Place::Ready;
                        expected.push(*seq);
                    }
                }
                assert_eq!(back, expected);
                self.attached.retain(|key, _| key.channel != channel);
                self.cancelled.retain(|key| key.channel != channel);
            }
            Step::Deliver(count) => {
                for _ in 0..count {
                    let Some(key) = self.dispatch.next_consumer().map(|consumer| consumer.key) else { break };
                    let Some(head) = self.dispatch.head(None, next_live) else { break };
                    let place = self.places.get_mut(&head.seq).unwrap();
                    assert_eq!(*place, Place::Ready, "{}", head.seq);
                    *place = Place::Held { by: key, is_brought: false };
                    self.dispatch.assign(head, 1, None);
                }
            }
            Step::Hold(of, seq) => {
                let key = keys()[of];
                if self.attached.contains_key(&key) && self.room(key) == 0 {
                    return;
                }
                self.dispatch.hold(key, seq, 1, None, next_live);
                match self.places.get_mut(&seq) {
                    // Who is not attached has it all the same, and nothing counts against it.
                    Some(place) if *place == Place::Ready => *place = Place::Held { by: key, is_brought: true },
                    // Also what it holds itself: its client has it once more.
                    _ => self.add_foreign(key, seq),
                }
            }
            Step::Ack(of, first, count) => {
                let key = of.map_or(ConsumerKey::get(ChannelKey::NOBODY), |of| keys()[of]);
                let (mut taken, mut expected) = (Vec::new(), BTreeSet::new());
                self.dispatch.release(key, first, count, &mut taken);
                self.dispatch.claim_brought(first, count, &mut taken);
                self.dispatch.claim(first, count, None, next_live, &mut taken);
                for seq in first..first + count {
                    let before = self.places.get(&seq).copied();
                    match before {
                        Some(Place::Held { by, .. }) if by == key => {}
                        _ => self.settle_foreign(key, seq),
                    }
                    match before {
                        None | Some(Place::Ended) => continue,
                        // What this leader gave to somebody else stays with it.
                        Some(Place::Held { by, is_brought: false }) if by != key => continue,
                        // The client of who came with it has it still.
                        Some(Place::Held { by, .. }) if by != key => self.add_foreign(by, seq),
                        _ => {}
                    }
                    self.places.insert(seq, Place::Ended);
                    expected.insert(seq);
                }
                let all: Vec<u64> = taken.iter().flat_map(|(first, count)| *first..first + count).collect();
                assert_eq!(all.len(), expected.len(), "each ends once");
                assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected);
            }
            Step::Return(of, seq) => {
                let (key, mut taken) = (keys()[of], Vec::new());
                self.dispatch.release(key, seq, 1, &mut taken);
                let is_own = self.held_by(key).contains(&seq);
                assert_eq!(taken, if is_own { vec![(seq, 1)] } else { vec![] });
                if is_own {
                    self.dispatch.put_back(seq, 1, None);
                    self.places.insert(seq, Place::Ready);
                } else {
                    self.settle_foreign(key, seq);
                }
            }
        }
    }

    fn check(&self, after: &Step) {
        let count = |is_it: fn(&Place) -> bool| self.places.values().filter(|place| is_it(place)).count() as u64;
        assert_eq!(self.dispatch.ready(), count(|place| *place == Place::Ready), "after {after:?}");
        assert_eq!(self.dispatch.held(), count(|place| matches!(place, Place::Held { .. })), "after {after:?}");
        for (seq, place) in &self.places {
            assert_eq!(self.dispatch.is_there(*seq, None), *place != Place::Ended, "{seq} after {after:?}");
        }
        let room: u64 = self.attached.keys().map(|key| self.room(*key)).sum();
        assert_eq!(self.dispatch.free_credit(), room, "after {after:?}");
    }
}

proptest! {
    #[test]
    fn a_message_has_one_holder_and_ends_by_any_hand_that_an_earlier_leader_gave_it(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut queue = Queue::new();
        for step in &steps {
            queue.run(step);
            queue.check(step);
        }
    }
}

/// A leader gave a message to one consumer, whose link broke, and then to another one. The first one is first at the
/// next leader.
#[test]
fn of_a_message_in_two_hands_whichever_ack_comes_first_ends_it() {
    let (first, second) = (key(1, 1), key(2, 1));
    for acks in [[first, second], [second, first], [ConsumerKey::get(ChannelKey::NOBODY), first]] {
        let mut dispatch = Dispatch::new(1, 3, 2);
        for key in [first, second] {
            dispatch.attach(consumer(key, 1)).unwrap();
            dispatch.hold(key, 1, 1, None, Some);
        }
        assert_eq!((dispatch.held(), dispatch.ready(), dispatch.free_credit()), (1, 1, 0), "both clients have it");
        let mut taken = Vec::new();
        dispatch.release(acks[0], 1, 1, &mut taken);
        dispatch.claim_brought(1, 1, &mut taken);
        assert_eq!((std::mem::take(&mut taken), dispatch.held()), (vec![(1, 1)], 0));
        let has_settled = u64::from(acks[0] != key(0, 0));
        assert_eq!(dispatch.free_credit(), has_settled, "who has not settled it has no room");
        // The other one may say what it likes of it.
        dispatch.release(acks[1], 1, 1, &mut taken);
        dispatch.claim_brought(1, 1, &mut taken);
        assert_eq!((taken, dispatch.ready()), (vec![], 1));
    }
}

#[test]
fn what_a_cancelled_consumer_came_with_ends_by_another_ones_ack_and_what_came_back_is_nobodys() {
    let (first, second) = (key(1, 1), key(2, 1));
    let mut dispatch = Dispatch::new(1, 4, 3);
    dispatch.attach(consumer(first, 2)).unwrap();
    dispatch.hold(first, 1, 2, None, Some);
    let mut taken = Vec::new();
    // It gave one back, and got it again from this leader.
    dispatch.release(first, 1, 1, &mut taken);
    dispatch.put_back(1, 1, None);
    let head = dispatch.head(None, Some).unwrap();
    dispatch.assign(head, 1, None);
    dispatch.cancel(first);
    let mut claimed = Vec::new();
    dispatch.release(second, 1, 2, &mut claimed);
    dispatch.claim_brought(1, u64::MAX, &mut claimed);
    assert_eq!((taken, claimed), (vec![(1, 1)], vec![(2, 1)]), "what this leader gave out stays in hand");
    assert!(dispatch.is_held(1) && !dispatch.is_held(2));
    assert!(dispatch.detach(first.channel, None).seqs().eq([1]));
}

/// An earlier leader gave a consumer a message, and the next one had given it to another before the consumer came with
/// it. The other one gives it back, and the consumer gets it while its client still has it: it has it twice.
#[test]
fn a_client_that_has_a_message_twice_has_room_for_each_once_it_settles_each() {
    let (first, second) = (key(1, 1), key(2, 1));
    let mut dispatch = Dispatch::new(1, 2, 1);
    dispatch.attach(consumer(second, 1)).unwrap();
    dispatch.hold(second, 1, 1, None, Some);
    dispatch.attach(consumer(first, 2)).unwrap();
    dispatch.hold(first, 1, 1, None, Some);
    assert_eq!(dispatch.free_credit(), 1);
    let mut taken = Vec::new();
    dispatch.release(second, 1, 1, &mut taken);
    dispatch.cancel(second);
    dispatch.put_back(1, 1, None);
    let head = dispatch.head(None, Some).unwrap();
    dispatch.assign(head, 1, None);
    assert_eq!((dispatch.held(), dispatch.free_credit()), (1, 0), "its client has it twice");
    taken.clear();
    dispatch.release(first, 1, 1, &mut taken);
    assert_eq!(
        (std::mem::take(&mut taken), dispatch.free_credit()),
        (vec![(1, 1)], 1),
        "it ends, and one place is free"
    );
    dispatch.release(first, 1, 1, &mut taken);
    assert_eq!((taken, dispatch.free_credit()), (vec![], 2));

    // So does one that comes with a message twice.
    let mut dispatch = Dispatch::new(1, 2, 1);
    dispatch.attach(consumer(first, 3)).unwrap();
    (0..3).for_each(|_| dispatch.hold(first, 1, 1, None, Some));
    for free in 0..=3 {
        assert_eq!((dispatch.free_credit(), dispatch.held()), (free, u64::from(free == 0)));
        dispatch.release(first, 1, 1, &mut Vec::new());
    }
}
