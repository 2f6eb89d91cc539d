//! What channels of this shard published to partitions that another node may come to lead, kept until it is
//! answered: what a leader that went has not answered is sent again to the next one.
//!
//! ```text
//!   published ──▶ sent, to the leader of one term ──▶ confirmed or refused: forgotten
//!        ▲                  │ it gives it back, or its link is gone
//!        └── in order, ◀── left
//!            ahead of what follows
//! ```
//!
//! A leader takes a publish whose number it has for a repeat, and confirms it once what it repeats is safe.
//! Invariants: what is sent of a partition was sent to one leader in one term; whoever turns to another one
//! first waits until the one before has answered for all of it. A publish is answered to its channel once
//! for each partition: by whoever knows what became of it. Bodies are the slices that came, never copies.
//! Absent on purpose: what wants no confirm, and what goes to more queues than one batch of the log may
//! name, which the next leader could not tell from a new one.

use broker::{ChannelKey, NodeNumber, PartitionId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::Publish;
use partition::entry::TARGETS_MAX;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// How long a leader that gave something back is not asked again.
const ENDED_US: u64 = 300_000;

/// Who leads, and in which term, by its low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Office {
    pub(crate) leader: NodeNumber,
    pub(crate) term: u32,
}

/// A publish that is not answered, or several in a row. One that was, ahead of others, has no contents any more.
#[derive(Debug)]
struct Kept {
    /// The number of the first.
    seq: u64,
    publish: Option<Publish>,
    /// It is to be sent again.
    is_left: bool,
}

/// What a publish weighs while it is kept.
fn bytes_of(publish: &Publish) -> u64 {
    publish.body_bytes() as u64 + publish.count() * size_of::<Kept>() as u64
}

/// One partition's.
#[derive(Debug)]
struct Stream {
    /// Whom it was sent to.
    office: Office,
    /// This leader gave something back, at this time last: mostly it leads no more in that term.
    ended: Option<(Office, u64)>,
    /// How many its leader has not answered, and how many are to be sent again.
    sent: u64,
    left: u64,
    /// By channel, in the order of their numbers.
    channels: HashMap<ChannelKey, VecDeque<Kept>, FixedState>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Publishes {
    streams: HashMap<PartitionId, Stream, FixedState>,
    bytes: u64,
}

/// Runs of numbers in a row, each as the first and how many.
pub(crate) type Runs = SmallVec<[(u64, u64); 1]>;

/// Parts what is kept as one and lies on both sides of a number.
fn cut(list: &mut VecDeque<Kept>, seq: u64) {
    let at = list.partition_point(|kept| kept.seq < seq);
    let Some(Kept { seq: first, publish: Some(publish), is_left }) = at.checked_sub(1).map(|before| &mut list[before])
    else {
        return;
    };
    if publish.count() > seq - *first {
        let (rest, is_left) = (publish.split_off(seq - *first), *is_left);
        list.insert(at, Kept { seq, publish: Some(rest), is_left });
    }
}

/// Those with numbers in a range that have no answer.
fn within(list: &mut VecDeque<Kept>, (first, count): (u64, u64)) -> impl Iterator<Item = &mut Kept> {
    let past = first.saturating_add(count);
    cut(list, first);
    cut(list, past);
    let from = list.partition_point(|kept| kept.seq < first);
    list.range_mut(from..).take_while(move |kept| kept.seq < past).filter(|kept| kept.publish.is_some())
}

impl Publishes {
    /// A publish goes to a leader now: it gets the leader's term, and is kept.
    pub(crate) fn keep(&mut self, partition: PartitionId, office: Office, publish: &mut Publish) {
        publish.term = office.term;
        let made = || Stream { office, ended: None, sent: 0, left: 0, channels: HashMap::default() };
        let stream = self.streams.entry(partition).or_insert_with(made);
        assert!(stream.sent == 0 || stream.office == office, "the leader before has answered for all of it");
        stream.office = office;
        stream.sent += publish.count();
        let list = stream.channels.entry(publish.channel).or_default();
        let seq = publish.publish_seq;
        let past = |last: &Kept| last.seq + last.publish.as_ref().map_or(1, Publish::count);
        assert!(list.back().is_none_or(|last| past(last) <= seq), "a channel numbers its publishes upwards");
        self.bytes += bytes_of(publish);
        list.push_back(Kept { seq, publish: Some(publish.clone()), is_left: false });
    }

    /// What is kept weighs so much.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The numbers of what a channel published and has no answer, of each partition.
    pub(crate) fn unanswered_of(&self, channel: ChannelKey) -> impl Iterator<Item = u64> {
        let kept = self.streams.values().filter_map(move |stream| stream.channels.get(&channel)).flatten();
        kept.filter(|kept| kept.publish.is_some()).map(|kept| kept.seq)
    }

    /// Whether a leader has not answered for all that was sent to it.
    pub(crate) fn has_sent(&self, partition: PartitionId) -> bool {
        self.streams.get(&partition).is_some_and(|stream| stream.sent > 0)
    }

    /// The same of one that is on this node.
    pub(crate) fn has_sent_to(&self, partition: PartitionId, node: NodeNumber) -> bool {
        self.streams.get(&partition).is_some_and(|stream| stream.sent > 0 && stream.office.leader == node)
    }

    /// Whether something is to be sent again.
    pub(crate) fn has_left(&self, partition: PartitionId) -> bool {
        self.streams.get(&partition).is_some_and(|stream| stream.left > 0)
    }

    /// Whether something was sent to somebody else than this leader, or to it in another term, and is not
    /// answered, or is to be sent again: nothing may overtake it.
    #[inline]
    pub(crate) fn is_elsewhere(&self, partition: PartitionId, office: Office) -> bool {
        let is_elsewhere = |stream: &Stream| stream.left > 0 || stream.sent > 0 && stream.office != office;
        self.streams.get(&partition).is_some_and(is_elsewhere)
    }

    /// Whether this leader has just said that it does not lead in that term. One that was elected, and has not taken its
    /// office, says so too where as much waits for that as may: it is asked again after [`ENDED_US`].
    pub(crate) fn has_ended(&self, partition: PartitionId, office: Office, now_us: u64) -> bool {
        let ended = self.streams.get(&partition).and_then(|stream| stream.ended);
        ended.is_some_and(|(ended, at_us)| ended == office && now_us < at_us + ENDED_US)
    }

    /// A leader answered some of a channel's publishes. Gives those of them that had no answer yet: the
    /// channel is to hear of these.
    pub(crate) fn answered(&mut self, partition: PartitionId, channel: ChannelKey, range: (u64, u64)) -> Runs {
        let mut runs = Runs::new();
        let Some(stream) = self.streams.get_mut(&partition) else { return runs };
        let Some(list) = stream.channels.get_mut(&channel) else { return runs };
        for kept in within(list, range) {
            let publish = kept.publish.take().expect("it has no answer");
            let answered = publish.count();
            self.bytes -= bytes_of(&publish);
            *(if kept.is_left { &mut stream.left } else { &mut stream.sent }) -= answered;
            match runs.last_mut() {
                Some((first, count)) if *first + *count == kept.seq => *count += answered,
                _ => runs.push((kept.seq, answered)),
            }
        }
        while list.front().is_some_and(|kept| kept.publish.is_none()) {
            list.pop_front();
        }
        runs
    }

    /// The leader of this term gave some back: they are to be sent again. What was sent since that
    /// leader's term has its own answer.
    pub(crate) fn returned(
        &mut self,
        partition: PartitionId,
        channel: ChannelKey,
        range: (u64, u64),
        (term, now_us): (u32, u64),
    ) {
        let Some(stream) = self.streams.get_mut(&partition).filter(|stream| stream.office.term == term) else { return };
        stream.ended = Some((stream.office, now_us));
        let Some(list) = stream.channels.get_mut(&channel) else { return };
        for kept in within(list, range).filter(|kept| !kept.is_left) {
            kept.is_left = true;
            let count = kept.publish.as_ref().map_or(0, Publish::count);
            stream.sent -= count;
            stream.left += count;
        }
    }

    /// The link to a node is gone: what it has not answered is to be sent again. Gives the partitions of
    /// which there is something, lowest first.
    pub(crate) fn lost(&mut self, node: NodeNumber) -> Vec<PartitionId> {
        let mut lost = Vec::new();
        let of_node = |stream: &Stream| stream.office.leader == node && stream.sent > 0;
        for (partition, stream) in self.streams.iter_mut().filter(|(_, stream)| of_node(stream)) {
            let kept = stream.channels.values_mut().flatten().filter(|kept| kept.publish.is_some());
            kept.for_each(|kept| kept.is_left = true);
            stream.left += std::mem::take(&mut stream.sent);
            lost.push(*partition);
        }
        lost.sort_unstable();
        lost
    }

    /// Takes out what is to be sent again, in order, once the leader before has answered for everything.
    pub(crate) fn take_left(&mut self, partition: PartitionId) -> Vec<Publish> {
        let Some(stream) = self.streams.get_mut(&partition).filter(|stream| stream.left > 0) else { return Vec::new() };
        assert!(stream.sent == 0, "nothing is sent again past what was sent");
        stream.left = 0;
        let mut channels: Vec<_> = stream.channels.iter_mut().collect();
        channels.sort_unstable_by_key(|(channel, _)| **channel);
        let left = channels.into_iter().flat_map(|(_, list)| list.drain(..).filter_map(|kept| kept.publish));
        let left: Vec<Publish> = left.collect();
        self.bytes -= left.iter().map(bytes_of).sum::<u64>();
        left
    }

    /// A channel has ended: nobody waits for its answers. Whether something of it had none.
    pub(crate) fn detach(&mut self, partition: PartitionId, channel: ChannelKey) -> bool {
        let mut is_owed = false;
        let Some(stream) = self.streams.get_mut(&partition) else { return is_owed };
        for kept in stream.channels.remove(&channel).into_iter().flatten() {
            let Some(publish) = &kept.publish else { continue };
            is_owed = true;
            self.bytes -= bytes_of(publish);
            *(if kept.is_left { &mut stream.left } else { &mut stream.sent }) -= publish.count();
        }
        is_owed
    }
}

/// Whether the next leader can tell a publish that comes again from a new one: one batch of the log has all
/// of it.
pub(crate) fn may_come_again(publish: &Publish) -> bool {
    publish.targets.len() <= TARGETS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use partition::Message;

    const P: PartitionId = PartitionId(3);
    const A: ChannelKey = ChannelKey(7);
    const B: ChannelKey = ChannelKey(8);

    fn office(leader: u32, term: u32) -> Office {
        Office { leader: NodeNumber(leader), term }
    }

    fn publish(channel: ChannelKey, publish_seq: u64) -> Publish {
        let empty = Bytes::new();
        let body = Bytes::from_static(b"body");
        let message = Message { exchange: empty.clone(), routing_key: empty.clone(), properties: empty, body };
        Publish { channel, publish_seq, term: 0, targets: SmallVec::new(), delay_ms: 0, message, more: None }
    }

    /// Several in a row, kept as one.
    fn run_of(channel: ChannelKey, first: u64, count: usize) -> Publish {
        let more = amqp::Bodies::copied(std::iter::repeat_n(&b"body"[..], count - 1));
        Publish { more: Some(more.into()), ..publish(channel, first) }
    }

    fn sent(office: Office, seqs: impl IntoIterator<Item = u64>) -> Publishes {
        let mut publishes = Publishes::default();
        seqs.into_iter().for_each(|seq| publishes.keep(P, office, &mut publish(A, seq)));
        publishes
    }

    fn left(publishes: &mut Publishes) -> Vec<(ChannelKey, u64)> {
        publishes.take_left(P).iter().map(|publish| (publish.channel, publish.publish_seq)).collect()
    }

    fn runs(of: &[(u64, u64)]) -> Runs {
        of.iter().copied().collect()
    }

    #[test]
    fn a_publish_is_answered_once_and_nothing_is_left_of_it() {
        let mut publishes = sent(office(1, 5), [1, 2, 3, 5]);
        assert_eq!(publishes.answered(P, A, (2, 1)), runs(&[(2, 1)]), "a refusal overtakes");
        assert_eq!(publishes.answered(P, A, (1, 5)), runs(&[(1, 1), (3, 1), (5, 1)]), "what had no answer yet");
        assert!(publishes.answered(P, A, (1, 9)).is_empty());
        assert!(
            publishes.answered(P, B, (1, 1)).is_empty() && publishes.answered(PartitionId(4), A, (1, 1)).is_empty()
        );
        assert_eq!((publishes.bytes(), publishes.has_sent(P), publishes.has_left(P)), (0, false, false));
    }

    #[test]
    fn what_a_leader_gives_back_is_left_in_order_once_it_has_answered_for_the_rest() {
        let mut publishes = sent(office(1, 5), 1..=4);
        publishes.keep(P, office(1, 5), &mut publish(B, 9));
        publishes.returned(P, A, (3, 2), (5, 0));
        assert!(publishes.has_ended(P, office(1, 5), 0) && !publishes.has_ended(P, office(1, 6), 0));
        assert!(publishes.has_sent(P) && publishes.has_left(P));
        publishes.returned(P, A, (1, 1), (5, 0));
        publishes.returned(P, A, (1, 1), (5, 0));
        assert_eq!(publishes.answered(P, A, (2, 1)), runs(&[(2, 1)]));
        publishes.returned(P, B, (9, 1), (5, 0));
        assert_eq!(left(&mut publishes), [(A, 1), (A, 3), (A, 4), (B, 9)]);
        assert_eq!((publishes.bytes(), publishes.has_sent(P), publishes.has_left(P)), (0, false, false));
        assert!(publishes.answered(P, A, (1, 9)).is_empty(), "it is on its way to the next leader");
    }

    /// It was elected and had as much waiting for its office as may; it takes the office in the same term.
    #[test]
    fn a_leader_that_gave_something_back_is_asked_again_after_a_while() {
        let mut publishes = sent(office(1, 5), [1]);
        publishes.returned(P, A, (1, 1), (5, 1_000));
        let has_ended = |publishes: &Publishes, now_us| publishes.has_ended(P, office(1, 5), now_us);
        assert!(has_ended(&publishes, 1_000 + ENDED_US - 1) && !has_ended(&publishes, 1_000 + ENDED_US));
        let mut again = publishes.take_left(P).remove(0);
        publishes.keep(P, office(1, 5), &mut again);
        publishes.returned(P, A, (1, 1), (5, 500_000));
        assert!(has_ended(&publishes, 500_000), "it says so once more");
    }

    #[test]
    fn what_was_sent_again_is_not_given_back_by_the_leader_before() {
        let mut publishes = sent(office(1, 5), [1]);
        publishes.returned(P, A, (1, 1), (5, 0));
        let mut again = publishes.take_left(P).remove(0);
        publishes.keep(P, office(2, 6), &mut again);
        assert_eq!(again.term, 6);
        publishes.returned(P, A, (1, 1), (5, 0));
        assert!(!publishes.has_left(P) && publishes.has_sent(P));
        assert_eq!(publishes.answered(P, A, (1, 1)), runs(&[(1, 1)]));
    }

    #[test]
    fn a_link_that_breaks_leaves_what_its_node_has_not_answered() {
        let mut publishes = sent(office(1, 5), 1..=3);
        publishes.answered(P, A, (1, 1));
        publishes.keep(PartitionId(4), office(2, 9), &mut publish(A, 4));
        assert!(publishes.lost(NodeNumber(3)).is_empty());
        assert_eq!(publishes.lost(NodeNumber(1)), [P]);
        assert!(publishes.is_elsewhere(P, office(1, 5)), "it goes there again before anything else does");
        assert!(!publishes.has_ended(P, office(1, 5), 0), "it may lead on");
        assert_eq!(left(&mut publishes), [(A, 2), (A, 3)]);
        assert!(publishes.has_sent(PartitionId(4)));
    }

    #[test]
    fn what_is_under_way_to_one_leader_keeps_what_follows_from_another() {
        let publishes = sent(office(1, 5), [1]);
        assert!(!publishes.is_elsewhere(P, office(1, 5)));
        assert!(publishes.is_elsewhere(P, office(2, 6)) && publishes.is_elsewhere(P, office(1, 6)));
        assert!(!publishes.is_elsewhere(PartitionId(4), office(2, 6)));
    }

    #[test]
    fn what_was_published_as_one_is_answered_given_back_and_sent_again_in_parts() {
        let singles = sent(office(1, 5), 1..=20).bytes();
        let mut publishes = Publishes::default();
        publishes.keep(P, office(1, 5), &mut run_of(A, 1, 10));
        publishes.keep(P, office(1, 5), &mut run_of(A, 11, 10));
        assert_eq!(publishes.bytes(), singles, "it weighs as much as each by itself");
        assert_eq!(publishes.answered(P, A, (4, 2)), runs(&[(4, 2)]), "in the middle of one");
        assert_eq!(publishes.answered(P, A, (3, 10)), runs(&[(3, 1), (6, 7)]), "over the end of one");
        publishes.returned(P, A, (18, 9), (5, 0));
        assert_eq!(publishes.answered(P, A, (1, 1)), runs(&[(1, 1)]));
        assert!(publishes.has_sent(P) && publishes.has_left(P));
        publishes.returned(P, A, (1, 17), (5, 0));
        assert!(!publishes.has_sent(P));
        let left: Vec<_> = publishes.take_left(P).iter().map(|of| (of.publish_seq, of.count(), of.term)).collect();
        assert_eq!(left, [(2, 1, 5), (13, 5, 5), (18, 3, 5)]);
        assert_eq!((publishes.bytes(), publishes.has_left(P)), (0, false));
    }

    #[test]
    fn part_of_what_was_published_as_one_goes_with_its_link_or_its_channel() {
        let mut publishes = Publishes::default();
        publishes.keep(P, office(1, 5), &mut run_of(A, 1, 10));
        assert_eq!(publishes.answered(P, A, (1, 3)), runs(&[(1, 3)]));
        assert_eq!(publishes.lost(NodeNumber(1)), [P]);
        let left: Vec<_> = publishes.take_left(P).iter().map(|of| (of.publish_seq, of.count())).collect();
        assert_eq!((left, publishes.bytes()), (vec![(4, 7)], 0));
        publishes.keep(P, office(2, 6), &mut run_of(A, 20, 5));
        publishes.answered(P, A, (22, 1));
        assert!(publishes.detach(P, A));
        assert_eq!((publishes.bytes(), publishes.has_sent(P)), (0, false));
    }

    #[test]
    fn nothing_is_kept_of_a_channel_that_ended() {
        let mut publishes = sent(office(1, 5), 1..=3);
        publishes.keep(P, office(1, 5), &mut publish(B, 9));
        publishes.answered(P, A, (2, 1));
        publishes.returned(P, A, (3, 1), (5, 0));
        assert!(publishes.detach(P, A));
        assert!(publishes.has_sent(P) && !publishes.has_left(P));
        assert_eq!(publishes.answered(P, B, (9, 1)), runs(&[(9, 1)]));
        assert_eq!((publishes.bytes(), publishes.has_sent(P)), (0, false));
        assert!(!publishes.detach(P, B), "all of it was answered");
    }
}
