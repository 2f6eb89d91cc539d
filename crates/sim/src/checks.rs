//! What must hold in every run: checked at every step, by an observer that sees all nodes and is
//! told everything.
//!
//! - [`raft`]: one leader a term, logs match, a leader has everything committed, what is committed
//!   never changes, members are equal at equal index.
//! - [`messages`]: a model of the queues, made from the committed log by rules of its own;
//!   [`fate`]: of one message.
//! - [`topology`]: the group that decides what exists, with its own state.
//! - `leaders`: what a leader confirmed and the majority did not have by then.
//! - [`consumers`]: one consumer at a time, where a queue asks for that; [`ends`]: queues that were
//!   deleted.
//! - here: what clients are told. A confirm holds at its level, the value at risk keeps its cap,
//!   deliveries are of what was published, in order, once without a flag, never of what is settled.
//!
//! Invariant: a checker that finds something panics with its name in brackets; a canary looks for
//! that name.

pub mod consumers;
pub mod ends;
pub mod fate;
mod figures;
mod leaders;
pub mod messages;
pub mod raft;
mod saying;
pub mod topology;

use crate::node::{Restored, View};
use crate::registry::name_of;
use crate::schedule::Micros;
use broker::queue::{DedupKey, Rules};
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{LogIndex, NodeId, Term};
use consumers::Holdings;
use ends::Ends;
pub use figures::Figures;
use messages::{Found, Model};
use partition::machine::Queues;
use partition::{Delivery, QueuePartition};
use raft::Group;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A member as one of a set.
fn bit(node: NodeId) -> u64 {
    1 << node.number()
}

/// Ends the run: a checker found something.
#[track_caller]
pub fn violated(checker: &str, what: &str) -> ! {
    panic!("[{checker}] {what}")
}

/// What a publisher asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// No confirm.
    Nothing,
    /// Confirm once the leader has written it.
    LeaderWritten,
    /// Confirm once the leader has synced it.
    LeaderSynced,
    /// Confirm once written.
    Written,
    /// Confirm once synced.
    Synced,
    /// Written, as long as the value at risk of its queues stays within their caps.
    Selective {
        /// What it adds.
        value: u64,
    },
}

/// A message that a client published, perhaps several times.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its partition, by number.
    pub group: usize,
    /// Who published it.
    pub channel: ChannelKey,
    /// Its publish number; 0 without confirms.
    pub seq: u64,
    /// Counts the publishes of its publisher, confirms or not.
    pub number: u64,
    /// Where it goes.
    pub targets: Vec<QueueId>,
    /// How long it is to wait before it comes in; 0 is not at all.
    pub delay_ms: u64,
    /// By what queues may know it again.
    pub key: Option<DedupKey>,
    /// What its partition had committed before it was published.
    pub since: u64,
    /// What was asked for.
    pub asked: Asked,
    /// Its body.
    pub body: Bytes,
    /// A partition said that it is safe.
    pub confirmed: bool,
    /// It is in the committed log.
    pub committed: bool,
    /// Members that may have forgotten it, a bit each: they lost power since it was published and
    /// before it was committed, or had not caught up by then with what they lost before.
    pub forgotten_by: u64,
    /// How many members were a majority when it was confirmed and not committed, where those were fewer than founders.
    pub majority: Option<u32>,
    /// The leader that confirmed it, where it was not committed by then.
    pub confirmed_by: Option<NodeId>,
    /// It was confirmed by its leader alone, and another one came to lead without it, or the same one that
    /// had lost power before it was synced.
    pub is_superseded: bool,
    /// Its queues had one with its key, so that it was confirmed and dropped.
    pub repeats: bool,
    /// What it repeats, where that was not committed by then.
    pub originals: Vec<u64>,
    /// It asked an exchange to let it wait.
    pub waited_ms: Option<u32>,
    /// Its queues were gone or going, so that it was confirmed and dropped.
    pub is_nowhere: bool,
}

/// What is known of the queues before the run.
#[derive(Debug, Default)]
pub struct Expected {
    /// Caps of selective queues.
    pub caps: BTreeMap<QueueId, u64>,
    /// What queues ask for, if they ask for anything.
    pub rules: BTreeMap<QueueId, Arc<Rules>>,
    /// Where the dead letters of a queue go.
    pub graves: BTreeMap<QueueId, QueueId>,
    /// Of each partition whether its publishers take a refusal for an answer.
    pub gives_up: Vec<bool>,
    /// Of queues that refuse what is too much: most messages that nobody was given yet.
    pub undelivered_max: BTreeMap<QueueId, u64>,
    /// How far the clocks of two nodes may be apart, milliseconds.
    pub slack_ms: u64,
    /// How late a scheduled message may be taken out of its queue, where nothing goes wrong.
    pub late_ms_max: Option<u64>,
}

impl Expected {
    /// Whether a message for `target` may come to stand in `queue`.
    fn leads_to(&self, target: QueueId, queue: QueueId) -> bool {
        target == queue || self.grave_of(target) == Some(name_of(queue))
    }

    /// What a queue asks for.
    fn rules_of(&self, queue: QueueId) -> Option<&Arc<Rules>> {
        self.rules.get(&name_of(queue))
    }

    /// The name of the queue that takes a queue's dead letters.
    fn grave_of(&self, queue: QueueId) -> Option<QueueId> {
        self.graves.get(&name_of(queue)).copied()
    }

    /// Whether a queue takes dead letters.
    fn is_grave(&self, queue: QueueId) -> bool {
        self.graves.values().any(|grave| *grave == name_of(queue))
    }
}

/// All checkers and what they know.
pub struct Checks {
    groups: Vec<Group<Queues>>,
    /// The topology's group, where it runs.
    pub topology: topology::Decisions,
    models: Vec<Model>,
    published: Vec<Published>,
    by_number: BTreeMap<(ChannelKey, u64), u64>,
    expected: Arc<Expected>,
    /// How many messages were published to a queue.
    aimed: BTreeMap<QueueId, u64>,
    /// Dead letters that left, by queue and number.
    letters: BTreeSet<(QueueId, u64)>,
    /// The same, by the queue that they go to and the message: how many left, and how many arrived.
    awaited: BTreeMap<(QueueId, u64), (u64, u64)>,
    /// Who holds what where only one consumer may.
    holdings: Holdings,
    /// Queues that were deleted.
    pub ends: Ends,
    /// When a queue was used last, as far as that is seen.
    used_ms: BTreeMap<QueueId, u64>,
    /// Confirmed as written and not committed.
    at_risk: BTreeSet<u64>,
    /// Not committed, and not known to be lost.
    open: BTreeSet<u64>,
    /// Of each partition the members that may have forgotten the end of their logs, a bit each.
    forgetful: Vec<u64>,
    /// Members that counted as whole again without having caught up: partition and node.
    gave_up: BTreeSet<(usize, NodeId)>,
    /// Of each partition the nodes whose majority decides, a bit each, by what was applied.
    voters: Vec<u64>,
    /// How many founders are a majority. Where members change there is one more at times, which
    /// makes it no smaller, and for a moment one or two fewer where they come back.
    majority: u32,
    /// Given out without the flag: queue and message.
    unflagged: BTreeSet<(QueueId, u64)>,
    /// The last number given out without the flag, by queue, level and term.
    order: BTreeMap<(QueueId, u8, Term), u64>,
    /// Settles that clients asked for.
    settle_asked: BTreeSet<(QueueId, u64)>,
    /// Figures of the run.
    pub figures: Figures,
}

impl Checks {
    /// Checkers for these partitions.
    pub fn new(partitions: &[PartitionId], members: usize, expected: Expected) -> Self {
        let expected = Arc::new(expected);
        Checks {
            groups: partitions.iter().map(|_| Group::default()).collect(),
            topology: topology::Decisions::default(),
            models: partitions.iter().map(|_| Model::new(&expected)).collect(),
            published: Vec::new(),
            by_number: BTreeMap::new(),
            expected,
            aimed: BTreeMap::new(),
            letters: BTreeSet::new(),
            awaited: BTreeMap::new(),
            holdings: Holdings::default(),
            ends: Ends::default(),
            used_ms: BTreeMap::new(),
            at_risk: BTreeSet::new(),
            open: BTreeSet::new(),
            forgetful: vec![0; partitions.len()],
            gave_up: BTreeSet::new(),
            voters: vec![(1..=members as u64).fold(0, |all, node| all | bit(NodeId(node))); partitions.len()],
            majority: members as u32 / 2 + 1,
            unflagged: BTreeSet::new(),
            order: BTreeMap::new(),
            settle_asked: BTreeSet::new(),
            figures: Figures::default(),
        }
    }

    /// A client is about to publish this; the number of the message comes back, and stands in its
    /// body.
    pub fn publish(&mut self, mut published: Published) -> u64 {
        let id = self.published.len() as u64;
        published.since = self.models[published.group].applied();
        published.forgotten_by = self.forgetful[published.group];
        self.open.insert(id);
        if published.seq != 0 {
            self.by_number.insert((published.channel, published.seq), id);
        }
        for queue in &published.targets {
            *self.aimed.entry(*queue).or_default() += 1;
        }
        self.published.push(published);
        self.figures.published += 1;
        id
    }

    /// The number that the next message gets.
    pub fn next_id(&self) -> u64 {
        self.published.len() as u64
    }

    /// A message by its number.
    pub fn message(&self, id: u64) -> &Published {
        &self.published[id as usize]
    }

    /// A client settles these, or gives them back, which is no end.
    pub fn settle_asked(&mut self, queue: QueueId, holder: ConsumerKey, seqs: std::ops::Range<u64>, is_end: bool) {
        self.holdings.released(queue, holder, seqs.clone());
        if is_end {
            self.settle_asked.extend(seqs.map(|seq| (queue, seq)));
        }
    }

    /// A client ends its channel.
    pub fn channel_ended(&mut self, channel: ChannelKey) {
        self.holdings.ended(channel);
    }

    /// A node came up with what its disk holds.
    pub fn started(&mut self, node: NodeId, restored: Vec<Option<Restored>>) {
        self.figures.starts += 1;
        if let Some(Some((applied, entries))) = restored.get(self.groups.len()) {
            self.topology.started(node, *applied, entries.clone());
        }
        let found = self.groups.iter_mut().zip(restored).filter_map(|(group, restored)| Some((group, restored?)));
        for (group, (applied, entries)) in found {
            self.figures.checkpoints_used += u64::from(applied > LogIndex(1));
            group.started(node, applied, entries);
        }
    }

    /// A node begins as another member of a group that it had left.
    pub fn began_again(&mut self, node: NodeId, group: usize) {
        self.figures.returned += 1;
        self.groups[group].started(node, LogIndex(0), Vec::new());
    }

    /// A node is down.
    pub fn stopped(&mut self, node: NodeId) {
        self.groups.iter_mut().for_each(|g| g.stopped(node));
        self.topology.stopped(node);
    }

    /// Power is cut on a node: what it had written and not synced may be gone.
    pub fn power_cut(&mut self, node: NodeId) {
        self.figures.power_cuts += 1;
        self.lost_unsynced(node);
    }

    /// A node may have forgotten what it had written and not synced: after a failed sync as after a
    /// power cut.
    pub fn lost_unsynced(&mut self, node: NodeId) {
        (0..self.forgetful.len()).for_each(|group| self.forgets(group, bit(node)));
    }

    /// Who has a vote in a group from now on.
    pub fn members_are<'a>(&mut self, group: usize, voters: impl Iterator<Item = &'a NodeId>) {
        self.voters[group] = voters.fold(0, |all, node| all | bit(*node));
    }

    fn forgets(&mut self, group: usize, members: u64) {
        let members = members & self.voters[group];
        self.forgetful[group] |= members;
        for id in &self.open {
            let published = &mut self.published[*id as usize];
            if published.group == group {
                published.forgotten_by |= members;
            }
        }
    }

    /// Whether so many members may have forgotten a message that a confirm as *written* promised
    /// nothing about it.
    fn is_at_mercy(&self, id: u64) -> bool {
        let published = &self.published[id as usize];
        published.forgotten_by.count_ones() >= published.majority.unwrap_or(self.majority)
    }

    /// How a member's memory stands, as it says itself.
    fn observe_memory(&mut self, node: NodeId, group: usize, view: &View) {
        if self.voters[group] & bit(node) == 0 {
            self.forgetful[group] &= !bit(node);
            return;
        }
        let was = self.forgetful[group] & bit(node) != 0;
        match view.may_have_forgotten {
            true if !was => self.forgets(group, bit(node)),
            false if was => {
                self.forgetful[group] &= !bit(node);
                self.figures.caught_up += u64::from(self.majority > 1);
            }
            _ => {}
        }
        if !view.gave_up_waiting {
            self.gave_up.remove(&(group, node));
        } else if self.gave_up.insert((group, node)) {
            // Those that could not be reached for so long count as lost too.
            self.figures.gave_up_waiting += 1;
            let forgetful = self.forgetful[group];
            self.forgets(group, u64::MAX);
            self.forgetful[group] = forgetful;
        }
    }

    /// An entry was appended to a node's log.
    pub fn appended(&mut self, node: NodeId, group: usize, term: Term, index: LogIndex, body: Bytes) {
        self.groups[group].appended(node, index, term, body);
    }

    /// A node took a step: how its partition stands now.
    pub fn observe(&mut self, node: NodeId, group: usize, view: View, partition: &QueuePartition) {
        self.observe_memory(node, group, &view);
        if self.groups[group].observe_role(node, &view) {
            self.figures.leaders += 1;
            self.observe_leader(node, group);
        }
        let (raft, model) = (&mut self.groups[group], &mut self.models[group]);
        let mut found = Vec::new();
        self.figures.committed += raft.observe_applied(
            node,
            &view,
            || partition.queues().state_hash(),
            &mut self.figures.snapshots,
            &mut |index, body| {
                model.commit(index.0, body, &self.published, &self.settle_asked, &self.ends, &mut found);
            },
        );
        let is_news = !found.is_empty();
        for found in found {
            match found {
                Found::Committed(id) => {
                    self.published[id as usize].committed = true;
                    self.at_risk.remove(&id);
                    self.open.remove(&id);
                }
                Found::Delivered { queue, id, redelivered } => self.flag(queue, id, redelivered),
                Found::Ended { queue, seq, id, by_rule } => {
                    self.figures.ended_by_rule += u64::from(by_rule);
                    self.check_dead_lettered(queue, seq, id);
                }
                Found::DeadLettered { queue, id } => {
                    self.figures.dead_lettered += 1;
                    let (left, arrived) = self.awaited.entry((name_of(queue), id)).or_default();
                    *arrived += 1;
                    if *arrived > *left {
                        let what = format!("message {id} came to queue {} more often than it left for it", queue.0);
                        violated("dead letter", &what);
                    }
                }
            }
        }
        if is_news {
            self.settle_repeats(group);
        }
    }

    /// A message ended: at least once, it is where its dead letter goes by now.
    fn check_dead_lettered(&self, queue: QueueId, seq: u64, id: u64) {
        let rule = self.expected.rules_of(queue).and_then(|rules| rules.dead_letter.as_ref());
        let Some(grave) = self.expected.grave_of(queue).filter(|_| rule.is_some_and(|r| r.at_least_once)) else {
            return;
        };
        let is_lost = self.awaited.get(&(grave, id)).is_none_or(|(_, arrived)| *arrived == 0);
        if is_lost && !self.ends.excuses_letter(grave, id) {
            let what = format!("message {seq} of queue {} ended, and is not in queue {}", queue.0, grave.0);
            violated("dead letter", &what);
        }
    }

    fn flag(&mut self, queue: QueueId, id: u64, redelivered: bool) {
        // Of one message several dead letters may come to one queue.
        let is_grave = self.expected.is_grave(queue);
        let is_second = !redelivered && !self.unflagged.insert((queue, id));
        if is_second && !is_grave && !self.is_at_mercy(id) {
            violated("duplicate", &format!("message {id} went out of queue {} twice without redelivered", queue.0));
        }
    }

    /// At the end: confirmed means present, and nothing is left behind.
    pub fn finish(&mut self, now: Micros) {
        for (id, published) in self.published.iter().enumerate() {
            let is_gone = published.targets.iter().all(|queue| self.ends.excuses(*queue));
            if published.confirmed && !published.committed && !published.repeats && !published.is_nowhere && !is_gone {
                if !self.is_at_mercy(id as u64) && !published.is_superseded {
                    let what = format!(
                        "message {id} was confirmed ({:?}) and is gone, and only members {:b} can have forgotten it",
                        published.asked, published.forgotten_by
                    );
                    violated("lost", &what);
                }
                self.figures.lost_with_power += u64::from(!published.is_superseded);
            }
        }
        for model in &self.models {
            if let Some((queue, seq, id)) = model.first_live() {
                let queue = queue.0;
                violated("liveness", &format!("message {seq} (id {id}) of queue {queue} is still there at {now}"));
            }
        }
    }

    /// A message goes through an exchange: it leads where a plain reading of its bindings says.
    pub fn routed(&self, key: &broker::topology::Name, to: &[QueueId], meant: &[QueueId]) {
        if to != meant {
            violated("route", &format!("a message with the key {key:?} goes to {to:?}, and {meant:?} was meant"));
        }
    }

    /// The topology has deleted a queue: what was confirmed for it alone, and is not in the log,
    /// need not come there.
    pub fn deleted(&mut self, queue: QueueId) {
        self.figures.deleted += 1;
        self.ends.deleted(queue);
        let is_gone = |id: &u64| self.published[*id as usize].targets.iter().all(|q| self.ends.excuses(*q));
        let gone: Vec<u64> = self.at_risk.iter().copied().filter(is_gone).collect();
        for id in gone {
            self.at_risk.remove(&id);
            self.published[id as usize].is_nowhere = true;
        }
    }

    /// A message that an exchange let wait says so: its delay stands there below zero.
    fn check_wait(&mut self, delivery: &Delivery, id: u64) {
        let Some(ms) = self.published[id as usize].waited_ms else { return };
        if self.expected.is_grave(delivery.queue) {
            // Its letter has headers of its own.
            return;
        }
        self.figures.waited += 1;
        let found = delay_header(&delivery.message).map(|(_, ms)| ms);
        if found.map(i64::from) != Some(-i64::from(ms)) {
            let (queue, seq) = (delivery.queue.0, delivery.seq);
            violated("schedule", &format!("message {seq} of queue {queue} waited for {ms} ms and says {found:?}"));
        }
    }

    /// Whether everything that is committed is settled.
    pub fn is_drained(&self) -> bool {
        self.models.iter().all(|m| m.live() == 0)
    }

    /// Whether everything that was confirmed is committed, or was lost with the power.
    pub fn is_safe(&self) -> bool {
        self.at_risk.is_empty()
    }

    /// What was confirmed as written and is neither committed nor known to be lost.
    pub fn unsafe_ids(&self) -> Vec<u64> {
        self.at_risk.iter().copied().collect()
    }

    /// Messages committed and not settled.
    pub fn live(&self) -> u64 {
        self.models.iter().map(Model::live).sum()
    }

    /// The last committed entry of a partition, as far as a member has applied it.
    pub fn committed(&self, group: usize) -> LogIndex {
        self.groups[group].committed()
    }
}

/// Where in a stored message the delay of one that waited stands, in 32 bits, and which.
pub fn delay_header(message: &[u8]) -> Option<(usize, i32)> {
    const FIELD: &[u8] = b"\x07x-delayI";
    let at = message.windows(FIELD.len()).position(|bytes| bytes == FIELD)? + FIELD.len();
    Some((at, i32::from_be_bytes(message.get(at..at + 4)?.try_into().ok()?)))
}

/// The number of a message, as its body begins with it.
pub fn id_of(body: &[u8]) -> Option<u64> {
    body.get(..8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
}

/// A body for message `id`, of at least 16 bytes: every byte follows from the number.
pub fn body_of(id: u64, bytes: usize) -> Bytes {
    let mut body = Vec::with_capacity(bytes.max(16));
    body.extend_from_slice(&id.to_le_bytes());
    let mut random = crate::random::Random::new(id);
    while body.len() < bytes.max(16) {
        body.extend_from_slice(&random.next().to_le_bytes());
    }
    body.truncate(bytes.max(16));
    body.into()
}
