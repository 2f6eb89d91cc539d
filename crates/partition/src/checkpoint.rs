//! A partition's checkpoint: its state as of one log index, as bytes. Not a format for other
//! members: places are this node's own.
//!
//! ```text
//! head       u8 version=2 | applied u64 | applied term u64 | term u64 | vote u64 (0 none) | membership (u32 length, bytes)
//!            u8 version=3 | life u32, how often the node had left the group before | the same from applied on
//! then, for a queue partition (partition 0 has the topology's own bytes here):
//! time       u64
//! publishers u32 * (channel u64, last u64): those of builds whose channels knew no life of a node
//! extents u32 * (id u32, messages u64, bytes u64)
//! queues u32 * (id u64, next u64, dispatched below u64,
//!               counts u32 * (seq u64, acquired u32, delivery u32), levels, extras,
//!               runs u32 * (first u64, count u32, place, live ranges u32 * (u32 offset, u32 count)))
//! levels   default u8, u32 * (first u64, count u32, level u8): stretches of messages with another level
//! extras   u8 0 | u8 1, timed below u64, aside u32 * (seq u64, u8 0 and reason u64, or u8 1 and until u64),
//!          due u32 * (due u64, seq u64) | u8 2: the same, and keys u32 * (seq u64, until u64, u8 gone, 16 bytes)
//! highest extent u32 (may be absent: written by a build that did not keep it)
//! publishers u32 * (life u64, channel u64, last u64): the others (may be absent likewise)
//! machine version u32 (absent while it is 1)
//! place    u8 0, file u32, offset u32, bytes u32 | u8 1, extent u32, run u32
//! ```
//!
//! Invariant: reading gives back what was written; anything else is refused whole (the file's
//! checksum was checked before, so a mismatch here is another version or a bug). Little-endian
//! throughout.

use crate::entry::Reason;
use crate::machine::{FIRST_MACHINE_VERSION, Queues, TOO_NEW, Versions};
use crate::place::Place;
use crate::publishers::Publisher;
use broker::queue::dedup::Seen;
use broker::queue::levels::Stretch;
use broker::queue::{Aside, CountMap, Counts, DedupKey, Extras, Levels, QueueState, Run};
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use consensus::{LogIndex, Membership, NodeId, Position, Segments, Term};

const VERSION: u8 = 2;
/// Of a member whose node had left the group before.
const VERSION_RETURNED: u8 = 3;
/// What only some queues have, without keys and with them.
const EXTRAS: u8 = 1;
const EXTRAS_WITH_KEYS: u8 = 2;

/// A checkpoint that this build cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint cannot be read at byte {offset}: {what}")]
pub struct CheckpointDamaged {
    /// What does not fit.
    pub what: &'static str,
    /// Where.
    pub offset: usize,
}

/// What every checkpoint begins with: where the log goes on, and who the members are.
#[derive(Clone, Debug)]
pub struct Head {
    /// The last entry in it.
    pub applied: Position,
    /// The term and vote at that time.
    pub vote: (Term, Option<NodeId>),
    /// The members as of `applied`.
    pub membership: Membership,
    /// How often the node had left the group before it became this member of it.
    pub life: u32,
}

impl Head {
    /// The group has this member and no other, in this term, which is above all that were: nobody was voted for.
    pub(crate) fn stand_alone(&mut self, member: NodeId, term: Term) {
        assert!(term > self.vote.0 && term > self.applied.term, "the term is one that was never");
        (self.vote, self.life) = ((term, None), member.life());
        self.membership = Membership::of_voters([member]);
    }

    /// Writes the head of a checkpoint; the state follows.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self.life {
            0 => out.push(VERSION),
            life => {
                out.push(VERSION_RETURNED);
                put32(out, life);
            }
        }
        let (term, vote) = self.vote;
        for word in [self.applied.index.0, self.applied.term.0, term.0, vote.map_or(0, |n| n.0)] {
            put64(out, word);
        }
        let mut members = Segments::new();
        self.membership.encode(&mut members);
        let members = members.to_bytes();
        put32(out, members.len() as u32);
        out.extend_from_slice(&members);
    }

    /// Reads the head of a checkpoint; the rest is the state.
    pub fn decode(bytes: &Bytes) -> Result<(Head, Bytes), CheckpointDamaged> {
        let mut cursor = Cursor { bytes, at: 0 };
        let life = match cursor.u8()? {
            VERSION => 0,
            VERSION_RETURNED => cursor.u32()?,
            _ => return Err(cursor.damaged("a version that this build does not know")),
        };
        if life == 0 && bytes[0] == VERSION_RETURNED {
            return Err(cursor.damaged("a return to a group that was never left"));
        }
        let applied = Position { index: LogIndex(cursor.u64()?), term: Term(cursor.u64()?) };
        let term = Term(cursor.u64()?);
        let vote = Some(cursor.u64()?).filter(|v| *v != 0).map(NodeId);
        let members = cursor.u32()? as usize;
        let members = bytes.slice(cursor.skip(members)?);
        let membership = Membership::decode(&members).map_err(|_| cursor.damaged("no membership"))?;
        let rest = bytes.slice(cursor.at..);
        Ok((Head { applied, vote: (term, vote), membership, life }, rest))
    }
}

/// Appends the state of a queue partition.
pub fn encode_queues(queues: &Queues, out: &mut Vec<u8>) {
    encode_queues_telling(queues, out, |_, _| {});
}

/// The same, and tells how many bytes each queue takes in it.
pub(crate) fn encode_queues_telling(queues: &Queues, out: &mut Vec<u8>, mut tell: impl FnMut(QueueId, u64)) {
    out.reserve(64 + queues.queues.len() * 96);
    put64(out, queues.time_ms);
    let publishers = sorted_publishers(queues);
    let lifeless = publishers.partition_point(|(channel, _)| channel.words().0 == 0);
    put32(out, lifeless as u32);
    for (channel, last) in &publishers[..lifeless] {
        put64(out, channel.number());
        put64(out, *last);
    }
    let extents: Vec<_> = queues.extents().iter().filter(|(_, e)| e.live > 0).collect();
    put32(out, extents.len() as u32);
    for (id, extent) in extents {
        put32(out, *id);
        put64(out, extent.messages);
        put64(out, extent.bytes);
    }
    put32(out, queues.queues.len() as u32);
    for id in queues.queue_ids() {
        let before = out.len();
        put64(out, id.0);
        encode_queue(&queues.queues[&id], out);
        tell(id, (out.len() - before) as u64);
    }
    put32(out, queues.highest_extent());
    put_publishers(&publishers[lifeless..], out);
    if queues.machine_version() > FIRST_MACHINE_VERSION {
        put32(out, queues.machine_version());
    }
}

/// The publishers that are remembered, each with the number of the last publish, in the order of
/// their keys.
pub(crate) fn sorted_publishers(queues: &Queues) -> Vec<(ChannelKey, u64)> {
    let mut publishers: Vec<_> = queues.publishers.iter().map(|(channel, known)| (*channel, known.last())).collect();
    publishers.sort_unstable();
    publishers
}

/// Appends publishers with their lives.
pub(crate) fn put_publishers(publishers: &[(ChannelKey, u64)], out: &mut Vec<u8>) {
    put32(out, publishers.len() as u32);
    for (channel, last) in publishers {
        let (life, number) = channel.words();
        [life, number, *last].into_iter().for_each(|word| put64(out, word));
    }
}

pub(crate) fn put_counts(counts: &CountMap, out: &mut Vec<u8>) {
    put32(out, counts.len() as u32);
    for (seq, counts) in counts.iter() {
        put64(out, seq);
        put32(out, counts.acquired);
        put32(out, counts.delivery);
    }
}

fn encode_queue(state: &QueueState<Place>, out: &mut Vec<u8>) {
    put64(out, state.next_seq());
    put64(out, state.dispatched_below());
    put_counts(state.counts(), out);
    put_levels(state.levels(), out);
    encode_extras(state.extras(), out);
    put32(out, state.runs().len() as u32);
    for run in state.runs().iter() {
        put64(out, run.first);
        put32(out, run.count);
        match run.place {
            Place::Wal { file, offset, bytes } => {
                out.push(0);
                [file, offset, bytes].into_iter().for_each(|w| put32(out, w));
            }
            Place::Extent { id, run } => {
                out.push(1);
                [id, run].into_iter().for_each(|w| put32(out, w));
            }
        }
        let at = out.len();
        put32(out, 0);
        let mut ranges = 0u32;
        for (first, count) in run.live_ranges() {
            put32(out, (first - run.first) as u32);
            put32(out, count as u32);
            ranges += 1;
        }
        out[at..at + 4].copy_from_slice(&ranges.to_le_bytes());
    }
}

/// Reads the state of a queue partition.
pub fn decode_queues(bytes: &Bytes) -> Result<Queues, CheckpointDamaged> {
    decode_queues_by(bytes, Versions::default())
}

/// The same for a machine that knows these versions.
pub(crate) fn decode_queues_by(bytes: &Bytes, versions: Versions) -> Result<Queues, CheckpointDamaged> {
    let mut cursor = Cursor { bytes, at: 0 };
    let mut queues = Queues::new(versions);
    queues.time_ms = cursor.u64()?;
    for _ in 0..cursor.u32()? {
        let (channel, last) = (ChannelKey::from_words(0, cursor.u64()?), cursor.u64()?);
        queues.publishers.insert(channel, Publisher::known_by(last));
    }
    for _ in 0..cursor.u32()? {
        let (id, messages, bytes) = (cursor.u32()?, cursor.u64()?, cursor.u64()?);
        queues.add_extent(id, messages, bytes);
    }
    for _ in 0..cursor.u32()? {
        let id = QueueId(cursor.u64()?);
        let state = decode_queue(&mut cursor)?;
        queues.restore(id, state);
    }
    if cursor.at != bytes.len() {
        queues.raise_highest_extent(cursor.u32()?);
    }
    if cursor.at != bytes.len() {
        queues.remember_publishers(cursor.publishers()?);
    }
    if cursor.at != bytes.len() {
        queues.versions.current = cursor.machine_version(versions)?;
    }
    cursor.end()?;
    Ok(queues)
}

fn decode_queue(cursor: &mut Cursor<'_>) -> Result<QueueState<Place>, CheckpointDamaged> {
    let (next_seq, dispatched_below) = (cursor.u64()?, cursor.u64()?);
    let counts = cursor.counts()?;
    let (default, levels) = cursor.levels()?;
    let extras = decode_extras(cursor)?;
    let mut runs = Vec::new();
    let mut past = 0;
    for _ in 0..cursor.u32()? {
        let (first, count) = (cursor.u64()?, cursor.u32()?);
        let place = match cursor.u8()? {
            0 => Place::Wal { file: cursor.u32()?, offset: cursor.u32()?, bytes: cursor.u32()? },
            1 => Place::Extent { id: cursor.u32()?, run: cursor.u32()? },
            _ => return Err(cursor.damaged("an unknown place")),
        };
        let mut live = Vec::new();
        let mut from = 0;
        for _ in 0..cursor.u32()? {
            let (offset, len) = (cursor.u32()?, cursor.u32()?);
            if len == 0 || offset < from || offset.checked_add(len).is_none_or(|end| end > count) {
                return Err(cursor.damaged("live ranges out of order"));
            }
            from = offset + len;
            live.push((first + u64::from(offset), u64::from(len)));
        }
        if count == 0 || count > broker::queue::runs::RUN_MESSAGES_MAX || first < past {
            return Err(cursor.damaged("runs out of order"));
        }
        past = first + u64::from(count);
        let run = Run::restore(first, count, place, live.into_iter());
        runs.push(run.ok_or_else(|| cursor.damaged("a run without live messages"))?);
    }
    if past > next_seq {
        return Err(cursor.damaged("a run beyond its queue"));
    }
    let mut state = QueueState::restore(next_seq, dispatched_below, runs, counts);
    state.restore_levels(default, &levels);
    state.restore_extras(extras);
    Ok(state)
}

/// Appends the levels of a queue's messages.
pub(crate) fn put_levels(levels: Option<&Levels>, out: &mut Vec<u8>) {
    out.push(levels.map_or(0, Levels::default_level));
    let stretches = levels.map(Levels::stretches).unwrap_or_default();
    put32(out, stretches.len() as u32);
    for (first, count, level) in stretches {
        put64(out, first);
        put32(out, count);
        out.push(level);
    }
}

/// Appends what only some queues have.
pub(crate) fn encode_extras(extras: Option<&Extras>, out: &mut Vec<u8>) {
    let Some(Extras { timed_below, aside, due, keys }) = extras else { return out.push(0) };
    out.push(if keys.is_empty() { EXTRAS } else { EXTRAS_WITH_KEYS });
    put64(out, *timed_below);
    put32(out, aside.len() as u32);
    for (seq, aside) in aside {
        put64(out, *seq);
        let (kind, word) = match aside {
            Aside::Dead(reason) => (0, u64::from(*reason)),
            Aside::Until(ms) => (1, *ms),
        };
        out.push(kind);
        put64(out, word);
    }
    put32(out, due.len() as u32);
    for (due_ms, seq) in due {
        put64(out, *due_ms);
        put64(out, *seq);
    }
    if keys.is_empty() {
        return;
    }
    put32(out, keys.len() as u32);
    for (DedupKey(key), seen) in keys.iter() {
        put64(out, seen.seq);
        put64(out, seen.until_ms);
        out.push(u8::from(seen.is_gone));
        out.extend_from_slice(&key);
    }
}

/// Reads what [`encode_extras`] wrote.
pub(crate) fn decode_extras(cursor: &mut Cursor<'_>) -> Result<Extras, CheckpointDamaged> {
    let mut extras = Extras::default();
    let has_keys = match cursor.u8()? {
        0 => return Ok(extras),
        EXTRAS => false,
        EXTRAS_WITH_KEYS => true,
        _ => return Err(cursor.damaged("something of a queue that this build does not know")),
    };
    extras.timed_below = cursor.u64()?;
    for _ in 0..cursor.u32()? {
        let seq = cursor.u64()?;
        let aside = match (cursor.u8()?, cursor.u64()?) {
            (0, reason) if Reason::from_byte(reason as u8).is_some() => Aside::Dead(reason as u8),
            (1, until_ms) => Aside::Until(until_ms),
            _ => return Err(cursor.damaged("a message aside for an unknown reason")),
        };
        extras.aside.insert(seq, aside);
    }
    for _ in 0..cursor.u32()? {
        extras.due.insert((cursor.u64()?, cursor.u64()?));
    }
    let mut past = 0;
    for _ in 0..if has_keys { cursor.u32()? } else { 0 } {
        let seen = Seen { seq: cursor.u64()?, until_ms: cursor.u64()?, is_gone: cursor.u8()? != 0 };
        if seen.seq < past || seen.seq == u64::MAX {
            return Err(cursor.damaged("keys out of order"));
        }
        past = seen.seq + 1;
        let key = cursor.skip(16)?;
        extras.keys.restore(DedupKey(cursor.bytes[key].try_into().expect("sixteen bytes")), seen);
    }
    Ok(extras)
}

pub(crate) fn put32(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_le_bytes());
}

pub(crate) fn put64(out: &mut Vec<u8>, word: u64) {
    out.extend_from_slice(&word.to_le_bytes());
}

/// Reads what was written, front to back.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a Bytes) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Nothing may be left.
    pub(crate) fn end(&self) -> Result<(), CheckpointDamaged> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.damaged("bytes after the end")) }
    }

    pub(crate) fn damaged(&self, what: &'static str) -> CheckpointDamaged {
        CheckpointDamaged { what, offset: self.at }
    }

    fn skip(&mut self, len: usize) -> Result<std::ops::Range<usize>, CheckpointDamaged> {
        let range = self.at..self.at.saturating_add(len);
        if range.end > self.bytes.len() {
            return Err(self.damaged("cut off"));
        }
        self.at = range.end;
        Ok(range)
    }

    /// What [`put_publishers`] wrote.
    pub(crate) fn publishers(&mut self) -> Result<Vec<(ChannelKey, u64)>, CheckpointDamaged> {
        let count = self.u32()?;
        (0..count).map(|_| Ok((ChannelKey::from_words(self.u64()?, self.u64()?), self.u64()?))).collect()
    }

    /// A machine version above the first, which a state without one implies.
    pub(crate) fn machine_version(&mut self, known: Versions) -> Result<u32, CheckpointDamaged> {
        match self.u32()? {
            0..=FIRST_MACHINE_VERSION => Err(self.damaged("a machine version that goes without saying")),
            version if version > known.newest => Err(self.damaged(TOO_NEW)),
            version => Ok(version),
        }
    }

    /// What [`put_counts`] wrote.
    pub(crate) fn counts(&mut self) -> Result<CountMap, CheckpointDamaged> {
        let mut map = CountMap::default();
        for _ in 0..self.u32()? {
            let (seq, counts) = (self.u64()?, Counts { acquired: self.u32()?, delivery: self.u32()? });
            let past = seq.checked_add(1).ok_or_else(|| self.damaged("a count of a number that no message has"))?;
            map.put(seq, past, counts);
        }
        Ok(map)
    }

    /// What [`put_levels`] wrote: the default level, and stretches of others.
    pub(crate) fn levels(&mut self) -> Result<(u8, Vec<Stretch>), CheckpointDamaged> {
        let default = self.u8()?;
        let (mut stretches, mut past) = (Vec::new(), 1);
        for _ in 0..self.u32()? {
            let (first, count, level) = (self.u64()?, self.u32()?, self.u8()?);
            let end = first.checked_add(count.into()).filter(|_| count > 0 && first >= past);
            past = end.ok_or_else(|| self.damaged("levels out of order"))?;
            stretches.push((first, count, level));
        }
        Ok((default, stretches))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, CheckpointDamaged> {
        Ok(self.bytes[self.skip(1)?][0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CheckpointDamaged> {
        Ok(u32::from_le_bytes(self.bytes[self.skip(4)?].try_into().expect("four bytes")))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, CheckpointDamaged> {
        Ok(u64::from_le_bytes(self.bytes[self.skip(8)?].try_into().expect("eight bytes")))
    }
}
