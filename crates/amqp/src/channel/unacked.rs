//! Deliveries of one channel that wait for their ack: which consumer and which message each
//! delivery tag stands for.
//!
//! ```text
//!   span:  first_tag 41 | consumer 7 | first_seq 1000 | live 1110111...   one bit for each of up to 64 tags
//! ```
//!
//! Invariant: spans are in the order of their tags and never overlap; a span's tags, sequence
//! numbers and bits move together, so tag `first_tag + i` is message `first_seq + i` of `consumer`,
//! outstanding while bit `i` is set. The front span always has a bit set, and fewer than half of
//! the spans behind it have none.
//!
//! A bit per delivery and not a list of ranges: an ack in the middle of a range would have to
//! insert into the list, and a consumer that acks a million deliveries in a random order would make
//! that quadratic. Nothing is inserted here.

use std::collections::{HashMap, VecDeque};

use smallvec::SmallVec;

/// How many deliveries one span can stand for: the bits of its mask.
const SPAN_TAGS_MAX: u64 = 64;

/// Empty spans are swept out when there are more than this and more than half are empty.
const EMPTY_SPANS_KEPT: usize = 16;

/// A run of deliveries to one consumer with consecutive sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The broker's number of the consumer, or of the `basic.get`, that it was delivered to.
    pub consumer: u32,
    /// The sequence number of the first message of the run in its queue.
    pub first_seq: u64,
    /// How many messages the run has.
    pub count: u32,
}

/// One outstanding delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tagged {
    pub(crate) tag: u64,
    pub(crate) consumer: u32,
    pub(crate) seq: u64,
}

/// Runs in the order of their delivery tags.
pub type Deliveries = SmallVec<[Delivered; 2]>;

/// Appends one message to runs, in the last run where it continues it.
pub(crate) fn push_delivered(runs: &mut Deliveries, consumer: u32, seq: u64, count: u32) {
    if let Some(last) = runs.last_mut() {
        let next = last.first_seq.wrapping_add(u64::from(last.count));
        if last.consumer == consumer && next == seq && last.count.checked_add(count).is_some() {
            last.count += count;
            return;
        }
    }
    runs.push(Delivered { consumer, first_seq: seq, count });
}

#[derive(Clone, Copy, Debug)]
struct Span {
    first_tag: u64,
    first_seq: u64,
    consumer: u32,
    /// How many tags the span was given; those are the bits of `live` that may be set.
    tags: u32,
    live: u64,
}

impl Span {
    /// Appends the messages whose bits are set in `bits`, as runs.
    fn collect(&self, mut bits: u64, runs: &mut Deliveries) {
        while bits != 0 {
            let skip = bits.trailing_zeros();
            let count = (bits >> skip).trailing_ones();
            push_delivered(runs, self.consumer, self.first_seq.wrapping_add(u64::from(skip)), count);
            let taken = if count == 64 { u64::MAX } else { ((1 << count) - 1) << skip };
            bits &= !taken;
        }
    }
}

/// The outstanding deliveries of one channel.
#[derive(Debug, Default)]
pub struct Unacked {
    spans: VecDeque<Span>,
    /// Spans without a set bit.
    empty_spans: usize,
    outstanding: u64,
    last_tag: u64,
}

impl Unacked {
    /// How many deliveries wait for their ack.
    pub fn len(&self) -> u64 {
        self.outstanding
    }

    /// Whether nothing waits for its ack.
    pub fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    /// The tag of a delivery that nobody will ack. Tags count all deliveries, also those.
    #[inline]
    pub fn skip_tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }

    /// The tag of a delivery that waits for its ack from now on. The first tag is 1: tag 0 in an
    /// ack means "all".
    #[inline]
    pub fn push(&mut self, consumer: u32, seq: u64) -> u64 {
        self.last_tag += 1;
        let tag = self.last_tag;
        self.outstanding += 1;
        if let Some(last) = self.spans.back_mut() {
            let offset = tag - last.first_tag;
            let continues = offset == u64::from(last.tags) && last.first_seq.wrapping_add(offset) == seq;
            if continues && last.consumer == consumer && offset < SPAN_TAGS_MAX {
                self.empty_spans -= usize::from(last.live == 0);
                last.live |= 1 << offset;
                last.tags += 1;
                return tag;
            }
        }
        self.spans.push_back(Span { first_tag: tag, first_seq: seq, consumer, tags: 1, live: 1 });
        tag
    }

    /// Takes the delivery `tag` out, or with `multiple` all up to and including it; tag 0 with
    /// `multiple` means all.
    ///
    /// - Returns the runs in the order of their tags; `None` when `tag` is not outstanding, which
    ///   costs the channel.
    /// - Cost: constant for the oldest delivery, otherwise logarithmic in the number of spans; with
    ///   `multiple` the number of spans taken.
    pub fn settle(&mut self, tag: u64, multiple: bool) -> Option<Deliveries> {
        if multiple && tag == 0 {
            return Some(self.take_all());
        }
        let (at, bit) = self.find(tag)?;
        let mut runs = Deliveries::new();
        if multiple {
            for _ in 0..at {
                let span = self.spans.pop_front().expect("the span of the tag is behind these");
                self.outstanding -= u64::from(span.live.count_ones());
                self.empty_spans -= usize::from(span.live == 0);
                span.collect(span.live, &mut runs);
            }
            let up_to = u64::MAX >> (63 - bit);
            self.clear(0, up_to, &mut runs);
        } else {
            self.clear(at, 1 << bit, &mut runs);
        }
        self.sweep();
        Some(runs)
    }

    /// As [`settle`](Self::settle), and each delivery with its tag, so that
    /// [`restore`](Self::restore) can undo it. Costs the same, and the number of deliveries taken.
    pub(crate) fn settle_tagged(&mut self, tag: u64, multiple: bool) -> Option<Vec<Tagged>> {
        let tagged = if multiple {
            let last = if tag == 0 { u64::MAX } else { tag };
            self.tagged().take_while(|one| one.tag <= last).collect()
        } else {
            let (at, bit) = self.find(tag)?;
            let span = &self.spans[at];
            vec![Tagged { tag, consumer: span.consumer, seq: span.first_seq.wrapping_add(u64::from(bit)) }]
        };
        self.settle(tag, multiple).map(|_| tagged)
    }

    /// Puts back what [`settle_tagged`](Self::settle_tagged) took. Costs the number of everything
    /// outstanding.
    pub(crate) fn restore(&mut self, mut back: Vec<Tagged>) {
        if back.is_empty() {
            return;
        }
        back.extend(self.tagged());
        back.sort_unstable_by_key(|one| one.tag);
        let last_tag = self.last_tag;
        self.take_all();
        for Tagged { tag, consumer, seq } in back {
            self.last_tag = tag - 1;
            self.push(consumer, seq);
        }
        self.last_tag = last_tag;
    }

    /// The last tag that was given out; 0 before the first.
    pub(crate) fn last_tag(&self) -> u64 {
        self.last_tag
    }

    /// The lowest outstanding tag of a consumer. Costs the number of spans before it.
    pub(crate) fn oldest_of(&self, consumer: u32) -> Option<u64> {
        let span = self.spans.iter().find(|span| span.consumer == consumer && span.live != 0)?;
        Some(span.first_tag + u64::from(span.live.trailing_zeros()))
    }

    /// The same of each consumer that has one. Costs the number of spans.
    pub(crate) fn oldest_of_each(&self) -> HashMap<u32, u64> {
        let mut oldest = HashMap::new();
        for span in self.spans.iter().filter(|span| span.live != 0) {
            oldest.entry(span.consumer).or_insert_with(|| span.first_tag + u64::from(span.live.trailing_zeros()));
        }
        oldest
    }

    /// What a consumer has outstanding, in the order of its tags. Costs the number of spans.
    pub(crate) fn of_consumer(&self, consumer: u32) -> Deliveries {
        let mut runs = Deliveries::new();
        self.spans.iter().filter(|span| span.consumer == consumer).for_each(|span| span.collect(span.live, &mut runs));
        runs
    }

    /// Everything that is outstanding, in the order of the tags.
    fn tagged(&self) -> impl Iterator<Item = Tagged> + '_ {
        self.spans.iter().flat_map(|span| {
            let live = (0..SPAN_TAGS_MAX).filter(|bit| span.live >> bit & 1 == 1);
            live.map(|bit| Tagged {
                tag: span.first_tag + bit,
                consumer: span.consumer,
                seq: span.first_seq.wrapping_add(bit),
            })
        })
    }

    /// Forgets everything and returns it, in the order of the tags. Tags go on counting.
    pub fn take_all(&mut self) -> Deliveries {
        let mut runs = Deliveries::new();
        self.collect(&mut runs);
        self.spans = VecDeque::new();
        self.empty_spans = 0;
        self.outstanding = 0;
        runs
    }

    /// Appends everything that is outstanding, in the order of the tags.
    pub fn collect(&self, runs: &mut Deliveries) {
        self.spans.iter().for_each(|span| span.collect(span.live, runs));
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// Gives unused memory back.
    pub fn trim(&mut self) {
        if self.spans.is_empty() {
            self.spans = VecDeque::new();
        }
    }

    /// The span and the bit of an outstanding tag.
    fn find(&self, tag: u64) -> Option<(usize, u32)> {
        let front = self.spans.front()?;
        let at = if tag.wrapping_sub(front.first_tag) < u64::from(front.tags) {
            0
        } else {
            self.spans.partition_point(|span| span.first_tag <= tag).checked_sub(1)?
        };
        let span = &self.spans[at];
        let offset = tag - span.first_tag;
        let live = offset < SPAN_TAGS_MAX && span.live >> offset & 1 == 1;
        live.then_some((at, offset as u32))
    }

    /// Takes those of a span's deliveries whose bits are in `mask`.
    fn clear(&mut self, at: usize, mask: u64, runs: &mut Deliveries) {
        let span = &mut self.spans[at];
        let bits = span.live & mask;
        span.collect(bits, runs);
        span.live &= !bits;
        self.outstanding -= u64::from(bits.count_ones());
        self.empty_spans += usize::from(bits != 0 && span.live == 0);
    }

    fn sweep(&mut self) {
        while let Some(front) = self.spans.front()
            && front.live == 0
        {
            self.spans.pop_front();
            self.empty_spans -= 1;
        }
        if self.empty_spans > EMPTY_SPANS_KEPT && self.empty_spans > self.spans.len() / 2 {
            self.spans.retain(|span| span.live != 0);
            self.empty_spans = 0;
        }
        if self.spans.is_empty() {
            assert_eq!(self.outstanding, 0, "every outstanding delivery has a span");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn run(consumer: u32, first_seq: u64, count: u32) -> Delivered {
        Delivered { consumer, first_seq, count }
    }

    fn filled(count: u64) -> Unacked {
        let mut unacked = Unacked::default();
        (0..count).for_each(|i| assert_eq!(unacked.push(7, 1000 + i), i + 1));
        unacked
    }

    #[test]
    fn acks_of_consecutive_deliveries_come_back_as_one_run() {
        let mut unacked = filled(200);
        assert_eq!(unacked.settle(150, true).unwrap().as_slice(), [run(7, 1000, 150)]);
        assert_eq!(unacked.settle(0, true).unwrap().as_slice(), [run(7, 1150, 50)]);
        assert!(unacked.is_empty());
        assert!(unacked.settle(0, true).unwrap().is_empty());
    }

    #[test]
    fn a_tag_is_settled_once() {
        let mut unacked = filled(3);
        assert!(unacked.settle(4, false).is_none());
        assert!(unacked.settle(0, false).is_none());
        assert_eq!(unacked.settle(2, false).unwrap().as_slice(), [run(7, 1001, 1)]);
        assert!(unacked.settle(2, false).is_none());
        assert!(unacked.settle(2, true).is_none(), "a multiple ack needs its own tag outstanding too");
        assert_eq!(unacked.settle(3, true).unwrap().as_slice(), [run(7, 1000, 1), run(7, 1002, 1)]);
    }

    #[test]
    fn tags_go_on_after_deliveries_that_need_no_ack() {
        let mut unacked = Unacked::default();
        assert_eq!((unacked.push(1, 5), unacked.skip_tag(), unacked.push(1, 6)), (1, 2, 3));
        assert!(unacked.settle(2, false).is_none());
        assert_eq!(unacked.take_all().as_slice(), [run(1, 5, 2)]);
        assert_eq!(unacked.push(1, 7), 4);
    }

    #[test]
    fn what_was_settled_with_its_tags_can_be_put_back_between_what_came_since() {
        let mut unacked = filled(5);
        let front = unacked.settle_tagged(2, true).unwrap();
        let one = unacked.settle_tagged(4, false).unwrap();
        assert_eq!((front.len(), one.len()), (2, 1));
        assert!(unacked.settle_tagged(4, false).is_none());
        assert_eq!(unacked.push(9, 50), 6);
        unacked.restore(one.into_iter().chain(front).collect());
        assert_eq!(unacked.len(), 6);
        assert_eq!(unacked.settle(4, false).unwrap().as_slice(), [run(7, 1003, 1)]);
        assert_eq!(unacked.push(9, 51), 7);
        let all = [run(7, 1000, 3), run(7, 1004, 1), run(9, 50, 2)];
        assert_eq!(unacked.settle(0, true).unwrap().as_slice(), all);
    }

    #[test]
    fn the_oldest_of_each_consumer_is_found_in_one_look() {
        let mut unacked = Unacked::default();
        (0..200).for_each(|seq| _ = unacked.push(seq as u32 % 3, seq));
        unacked.settle(2, true).unwrap();
        unacked.settle(3, false).unwrap();
        (6..=200).step_by(3).for_each(|tag| drop(unacked.settle(tag, false).unwrap()));
        let oldest = unacked.oldest_of_each();
        assert_eq!(oldest, [(0, 4), (1, 5)].into_iter().collect::<HashMap<u32, u64>>());
        (0..3).for_each(|consumer| assert_eq!(unacked.oldest_of(consumer), oldest.get(&consumer).copied()));
    }

    #[test]
    fn consecutive_deliveries_take_half_a_byte_each() {
        let unacked = filled(100_000);
        assert!(unacked.held_bytes() < 110_000, "{}", unacked.held_bytes());
    }

    #[test]
    fn one_stuck_delivery_holds_no_memory_for_those_behind_it() {
        let mut unacked = filled(1);
        for i in 0..1_000_000 {
            // Two consumers in turn make a span for each delivery, the worst case.
            let tag = unacked.push(i % 2, u64::from(i) * 3);
            unacked.settle(tag, false).unwrap();
        }
        assert_eq!(unacked.len(), 1);
        assert!(unacked.held_bytes() < 8192, "{}", unacked.held_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_order_of_deliveries_and_acks_agrees_with_a_plain_map(
            steps in proptest::collection::vec((0u8..8, 0u32..3, 0u64..400, any::<bool>()), 1..400),
        ) {
            let mut unacked = Unacked::default();
            let mut plain: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
            let mut seqs = [0u64, 1 << 20, 1 << 40];
            for (step, consumer, number, multiple) in steps {
                match step {
                    0..=3 => for _ in 0..=number % 90 {
                        let seq = &mut seqs[consumer as usize];
                        *seq += 1 + u64::from(number % 7 == 0);
                        plain.insert(unacked.push(consumer, *seq), (consumer, *seq));
                    },
                    4 => { unacked.skip_tag(); }
                    5 => {
                        // With its tags, and back again.
                        let before: Vec<Tagged> = unacked.tagged().collect();
                        let last = if number == 0 { u64::MAX } else { number };
                        let expected: Vec<Tagged> = match (number, multiple) {
                            (0, true) => before.clone(),
                            (_, true) => before.iter().copied().filter(|one| one.tag <= last).collect(),
                            (tag, false) => before.iter().copied().filter(|one| one.tag == tag).collect(),
                        };
                        let settled = unacked.settle_tagged(number, multiple);
                        prop_assert_eq!(settled.is_some(), plain.contains_key(&number) || (number == 0 && multiple));
                        if let Some(settled) = settled {
                            prop_assert_eq!(&settled, &expected);
                            unacked.restore(settled);
                        }
                        prop_assert_eq!(unacked.tagged().collect::<Vec<_>>(), before);
                    }
                    _ => {
                        let expected: Option<Vec<u64>> = match (number, multiple) {
                            (0, true) => Some(plain.keys().copied().collect()),
                            (tag, true) if plain.contains_key(&tag) => Some(plain.range(..=tag).map(|(t, _)| *t).collect()),
                            (tag, false) if plain.contains_key(&tag) => Some(vec![tag]),
                            _ => None,
                        };
                        let settled = unacked.settle(number, multiple);
                        prop_assert_eq!(settled.is_some(), expected.is_some());
                        let flat: Vec<(u32, u64)> = settled.iter().flatten()
                            .flat_map(|r| (0..u64::from(r.count)).map(|i| (r.consumer, r.first_seq + i))).collect();
                        let expected: Vec<(u32, u64)> =
                            expected.unwrap_or_default().iter().map(|t| plain.remove(t).unwrap()).collect();
                        prop_assert_eq!(flat, expected);
                    }
                }
                prop_assert_eq!(unacked.len(), plain.len() as u64);
                prop_assert_eq!(unacked.spans.iter().filter(|s| s.live == 0).count(), unacked.empty_spans);
            }
        }
    }
}
