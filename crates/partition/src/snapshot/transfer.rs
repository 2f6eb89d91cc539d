//! The image of a state on its way to a follower, in parts: what a leader offers, and what a
//! follower gathers.
//!
//! Of a queue partition the messages follow the image; of a log whose machine is the caller's the
//! image is all there is. Manifest, frames and their drawing: `snapshot.rs`.
//!
//! Invariants: a part stands where the follower asked for it, and no part is larger than an append
//! message may be; an image is handed on whole and with the checksum of its manifest, or not at
//! all; a transfer in which nothing moves is given up.

use crate::outputs::ImageRefused;
use crate::peer::{PeerFrame, SnapshotKey};
use crate::replica::Replica;
use broker::QueueId;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use consensus::{LogIndex, MANIFEST_BYTES_MAX, NodeId, Position, SnapshotOffer, Term};
use std::collections::BTreeMap;
use storage::checkpoint::CHECKPOINT_BYTES_MAX;
use storage::crc32c;

/// A pull that is not answered is repeated after this many ticks.
pub(crate) const PULL_TICKS: u32 = 2;
/// A transfer in which nothing moves for this many ticks is given up, on either side.
pub(crate) const IDLE_TICKS_MAX: u32 = 30;
/// Largest image: what a checkpoint can hold, since the follower saves it as one. It goes in parts,
/// each asked for once the one before it is here, so its size is a matter of the state's own memory
/// and of nothing else.
pub(crate) const IMAGE_BYTES_MAX: u64 = CHECKPOINT_BYTES_MAX as u64;
/// A follower whose image was too large is looked at again after this many ticks: making it costs
/// as much as sending it.
const REFUSED_TICKS: u32 = 400;

const MANIFEST_BYTES: usize = 13;
const _: () = assert!(MANIFEST_BYTES <= MANIFEST_BYTES_MAX);
/// One answer brings this much of an image, or less where messages are smaller.
const IMAGE_PART_BYTES: usize = 256 << 10;

/// What a leader offers to one follower.
pub(crate) struct Outgoing {
    to: NodeId,
    term: Term,
    position: Position,
    image: Bytes,
    idle_ticks: u32,
    under_way: Option<UnderWay>,
}

/// Messages of a queue that are being read for a follower, or are on their way to it.
struct UnderWay {
    queue: QueueId,
    /// It asked from here on last.
    pulled: u64,
    /// They end before this one.
    past: u64,
}

impl Outgoing {
    fn is(&self, to: NodeId, term: Term, index: LogIndex) -> bool {
        (self.to, self.term, self.position.index) == (to, term, index)
    }
}

/// What a leader offers: at most one image a follower.
#[derive(Default)]
pub(crate) struct OutgoingImages {
    list: Vec<Outgoing>,
    /// Followers whose image was too large, with the ticks until it is made again.
    refused: BTreeMap<NodeId, u32>,
}

impl OutgoingImages {
    /// Whether an image should be made for a follower: not so soon after one that was too large.
    pub(crate) fn may_offer(&self, replica: &mut Replica, to: NodeId) -> bool {
        let may = !self.refused.contains_key(&to);
        if !may {
            replica.group_mut().refuse_snapshot(to);
        }
        may
    }

    /// Offers `to` an image of the state as of `position`, in place of an earlier one. One that is
    /// too large is not offered, and the operator is told: the follower waits until the state is
    /// smaller.
    pub(crate) fn offer(&mut self, replica: &mut Replica, to: NodeId, position: Position, version: u8, image: Bytes) {
        let mut manifest = BytesMut::with_capacity(MANIFEST_BYTES);
        manifest.put_u8(version);
        manifest.put_u64_le(image.len() as u64);
        manifest.put_u32_le(crc32c::crc32c(&image));
        let membership = replica.group().membership();
        let offer = SnapshotOffer { position, membership, manifest: manifest.freeze() };
        self.list.retain(|o| o.to != to);
        let bytes = image.len() as u64;
        if bytes > self.bytes_max() {
            self.refused.insert(to, REFUSED_TICKS);
            let partition = replica.id();
            replica.tell_refused(ImageRefused { partition, to, bytes, bytes_max: self.bytes_max() });
            replica.group_mut().refuse_snapshot(to);
        } else if replica.group_mut().offer_snapshot(to, offer) {
            let term = replica.group().status().term;
            self.list.push(Outgoing { to, term, position, image, idle_ticks: 0, under_way: None });
        } else {
            replica.group_mut().refuse_snapshot(to);
        }
    }

    #[cfg(not(test))]
    fn bytes_max(&self) -> u64 {
        IMAGE_BYTES_MAX
    }

    /// A gigabyte is too much for a test.
    #[cfg(test)]
    fn bytes_max(&self) -> u64 {
        1 << 10
    }

    /// An image of this position that another follower is offered already.
    pub(crate) fn image_at(&self, position: Position) -> Option<Bytes> {
        self.list.iter().find(|o| o.position == position).map(|o| o.image.clone())
    }

    /// Whether a follower is offered this.
    pub(crate) fn offers(&self, replica: &Replica, (to, term, index): (NodeId, Term, LogIndex)) -> bool {
        let leads = replica.is_leader();
        self.list.iter().any(|o| leads && o.is(to, term, index))
    }

    /// A follower asks for messages of a queue from one on: whether they are to be read. Not if it is offered
    /// no such thing, and not if they are on their way behind others that came to it. Who asks for the same
    /// again has waited for it.
    pub(crate) fn is_pulled(
        &mut self,
        replica: &Replica,
        (to, term, index): (NodeId, Term, LogIndex),
        (queue, from): (QueueId, u64),
    ) -> bool {
        let Some(outgoing) = self.find(replica, (to, term, index)) else { return false };
        outgoing.idle_ticks = 0;
        match &mut outgoing.under_way {
            Some(under_way) if under_way.queue == queue && under_way.pulled < from && from < under_way.past => {
                under_way.pulled = from;
                false
            }
            _ => true,
        }
    }

    /// Messages from one on are being read for a follower, up to another one.
    pub(crate) fn are_read(
        &mut self,
        replica: &Replica,
        (to, term, index): (NodeId, Term, LogIndex),
        (queue, pulled, past): (QueueId, u64, u64),
    ) {
        if let Some(outgoing) = self.find(replica, (to, term, index)) {
            outgoing.under_way = Some(UnderWay { queue, pulled, past });
        }
    }

    /// The frame that brings the part of an image from `offset` on.
    pub(crate) fn part(
        &mut self,
        replica: &Replica,
        (to, term, index): (NodeId, Term, LogIndex),
        offset: u64,
    ) -> Option<PeerFrame> {
        let bytes_max = IMAGE_PART_BYTES.min(replica.group().message_bytes_max());
        let outgoing = self.find(replica, (to, term, index))?;
        outgoing.idle_ticks = 0;
        let from = usize::try_from(offset).ok().filter(|o| *o <= outgoing.image.len())?;
        let past = (from + bytes_max).min(outgoing.image.len());
        Some(PeerFrame::ImagePart { snapshot: (term, index), offset, bytes: outgoing.image.slice(from..past) })
    }

    /// A tick went by: what is taken, not wanted any more, or does not move, goes.
    pub(crate) fn tick(&mut self, replica: &mut Replica) {
        self.refused.retain(|_, ticks| {
            *ticks -= 1;
            *ticks > 0
        });
        if self.list.is_empty() {
            return;
        }
        let term = replica.group().status().term;
        let progress = replica.group().progress();
        self.list.retain_mut(|o| {
            o.idle_ticks += 1;
            let follower = progress.iter().find(|p| p.node == o.to);
            let goes_on = o.term == term && follower.is_some_and(|p| p.matched < o.position.index);
            if goes_on && o.idle_ticks >= IDLE_TICKS_MAX {
                replica.group_mut().snapshot_sent(o.to, false);
            }
            goes_on && o.idle_ticks < IDLE_TICKS_MAX
        });
    }

    /// The last entry that a follower has once its snapshot is installed; of all snapshots under
    /// way, the first.
    pub(crate) fn needs(&self) -> Option<LogIndex> {
        self.list.iter().map(|o| o.position.index).min()
    }

    fn find(&mut self, replica: &Replica, (to, term, index): (NodeId, Term, LogIndex)) -> Option<&mut Outgoing> {
        let leads = replica.is_leader();
        self.list.iter_mut().find(|o| leads && o.is(to, term, index))
    }
}

/// An image that a follower gathers.
pub(crate) struct IncomingImage {
    bytes: BytesMut,
    image_bytes: usize,
    crc: u32,
}

/// What became of a part.
pub(crate) enum Taken {
    /// It is not the next one.
    Passed,
    /// More follow.
    Part,
    /// The image is whole.
    Whole(Bytes),
    /// All is here, and it is not what the leader has.
    Damaged,
}

impl IncomingImage {
    /// What a manifest tells of. `None` if it is of a version that this build does not know, or
    /// names more than is lawful.
    pub(crate) fn of(mut manifest: Bytes, version: u8) -> Option<Self> {
        if manifest.len() != MANIFEST_BYTES || manifest.get_u8() != version {
            return None;
        }
        let (image_bytes, crc) = (manifest.get_u64_le(), manifest.get_u32_le());
        let is_lawful = image_bytes <= IMAGE_BYTES_MAX;
        is_lawful.then(|| IncomingImage { bytes: BytesMut::new(), image_bytes: image_bytes as usize, crc })
    }

    /// The frame that asks for the next part.
    pub(crate) fn pull(&self, snapshot: SnapshotKey) -> PeerFrame {
        PeerFrame::PullImage { snapshot, offset: self.bytes.len() as u64 }
    }

    /// A part came. After [`Taken::Whole`] and [`Taken::Damaged`] there is nothing more to take.
    pub(crate) fn take(&mut self, offset: u64, part: &Bytes) -> Taken {
        if offset != self.bytes.len() as u64 || part.len() > self.image_bytes - self.bytes.len() {
            return Taken::Passed;
        }
        self.bytes.put_slice(part);
        if self.bytes.len() < self.image_bytes {
            return Taken::Part;
        }
        let image = std::mem::take(&mut self.bytes).freeze();
        if crc32c::crc32c(&image) == self.crc { Taken::Whole(image) } else { Taken::Damaged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::PartitionId;
    use consensus::{Config, Group, Restored};

    fn leader() -> Replica {
        let group = Group::new(Config::new(NodeId(1), 3, 1), Restored::bootstrap([NodeId(1)])).expect("valid");
        Replica::new(PartitionId(3), NodeId(1), group, (Term(1), None), LogIndex(1), &[])
    }

    #[test]
    fn an_image_that_is_too_large_is_told_and_not_made_again_at_once() {
        let (mut replica, mut images) = (leader(), OutgoingImages::default());
        let (to, position) = (NodeId(2), Position::new(1, 1));
        assert!(images.may_offer(&mut replica, to));
        let large = Bytes::from(vec![0; 2 << 10]);
        images.offer(&mut replica, to, position, 1, large);
        let mut out = crate::outputs::Outputs::default();
        replica.drive(&mut out);
        let told: Vec<String> = out.refused_images.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("2048 bytes") && told[0].contains("1024"), "{told:?}");
        assert!(!images.may_offer(&mut replica, to), "making it would cost as much again");
        assert!(images.may_offer(&mut replica, NodeId(3)), "the others are looked at");
        (0..REFUSED_TICKS).for_each(|_| images.tick(&mut replica));
        assert!(images.may_offer(&mut replica, to), "the state may be smaller by now");
    }
}
