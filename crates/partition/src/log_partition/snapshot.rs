//! Bringing a follower up to date that needs more of the log than there is: it is sent the
//! machine's state.
//!
//! ```text
//! leader                                                follower
//! wants to send what is cut: the machine's state, once for all who stand at that index
//!   ── Raft's snapshot message (position, manifest) ──▶ kept aside: the group goes on voting meanwhile
//!   ◀── pull from byte n ── / ── bytes ──▶              until it is whole and can be read
//!                                                       the message is stepped: the log is cut by a mark, synced;
//!                                                       a checkpoint at its position is saved; the machine takes it
//!   ◀── Raft's answer ──                                over; only now it counts
//! ```
//!
//! Manifest and frames are those of a queue partition's image (`crate::snapshot`), with a version
//! of their own.
//!
//! Invariants: a crash at any write leaves the old state with the log behind it, or the new one;
//! what cannot be read here takes the place of nothing. Memory: one state at the leader, however
//! many followers want it, and one at the follower.

use super::{LogPartition, Machine};
use crate::checkpoint::Head;
use crate::outputs::Outputs;
use crate::peer::SnapshotKey;
use crate::snapshot::transfer::{IDLE_TICKS_MAX, IncomingImage, OutgoingImages, PULL_TICKS, Taken};
use bytes::Bytes;
use consensus::{LogIndex, Message, NodeId, Position};

/// The version of a manifest: of how the state travels. The state says itself of which version it
/// is.
const MANIFEST_VERSION: u8 = 1;

/// What a follower fetches.
struct Incoming {
    message: Message,
    position: Position,
    gathered: IncomingImage,
    /// All of it.
    state: Option<Bytes>,
    idle_ticks: u32,
    /// Ticks until the pull under way is repeated; 0 sends one now.
    pull_in: u32,
}

/// A state that is here and handed to the group; it counts once its checkpoint is saved.
struct Installing {
    state: Bytes,
    position: Position,
    /// The log behind it begins in this file, or a later one.
    file: u32,
    is_saving: bool,
}

/// All transfers of one such partition.
#[derive(Default)]
pub(super) struct Snapshots {
    outgoing: OutgoingImages,
    incoming: Option<Incoming>,
    installing: Option<Installing>,
    installed: u64,
}

impl Snapshots {
    /// Whether a snapshot is on its way into the state.
    pub(super) fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    /// Whether the checkpoint of a snapshot is being saved.
    pub(super) fn is_saving(&self) -> bool {
        self.installing.as_ref().is_some_and(|i| i.is_saving)
    }

    /// The WAL file from which on the log is needed, if a snapshot is being installed.
    pub(super) fn needs_file(&self) -> Option<u32> {
        self.installing.as_ref().map(|i| i.file)
    }

    /// The last entry that a follower has once its snapshot is installed; of all snapshots under
    /// way, the first.
    pub(super) fn needs(&self) -> Option<LogIndex> {
        self.outgoing.needs()
    }
}

impl LogPartition {
    /// How many snapshots this member has installed since it started.
    pub fn snapshots_installed(&self) -> u64 {
        self.snapshots.installed
    }

    /// A follower asks for more of the state.
    pub(super) fn state_pulled(&mut self, from: NodeId, (term, index): SnapshotKey, offset: u64, out: &mut Outputs) {
        let part = self.snapshots.outgoing.part(&self.replica, (from, term, index), offset);
        out.frames.extend(part.map(|part| (from, self.replica.id(), part)));
    }

    /// A part of it came. What belongs to no transfer is dropped.
    pub(super) fn take_part(&mut self, (term, index): SnapshotKey, offset: u64, part: &Bytes, machine: &impl Machine) {
        let is_it = |i: &&mut Incoming| i.message.term() == term && i.position.index == index && i.state.is_none();
        let Some(incoming) = self.snapshots.incoming.as_mut().filter(is_it) else { return };
        let state = match incoming.gathered.take(offset, part) {
            Taken::Passed => return,
            Taken::Part => {
                (incoming.idle_ticks, incoming.pull_in) = (0, 0);
                return;
            }
            Taken::Whole(state) => Some(state).filter(|state| machine.can_read(state)),
            Taken::Damaged => None,
        };
        // What cannot be read is forgotten: the leader offers again, later. A newer build must not
        // lead while older ones follow.
        match state {
            Some(state) => incoming.state = Some(state),
            None => self.snapshots.incoming = None,
        }
    }

    /// A tick went by: transfers in which nothing moves are repeated, then given up.
    pub(super) fn snapshot_tick(&mut self) {
        self.snapshots.outgoing.tick(&mut self.replica);
        if let Some(incoming) = &mut self.snapshots.incoming {
            incoming.pull_in = incoming.pull_in.saturating_sub(1);
            incoming.idle_ticks += 1;
            if incoming.idle_ticks >= IDLE_TICKS_MAX {
                self.snapshots.incoming = None;
            }
        }
    }

    /// Takes every transfer as far as it goes now; true if the group has something to say of it.
    /// All that was committed is applied.
    pub(super) fn snapshot_turn(&mut self, machine: &impl Machine, out: &mut Outputs) -> bool {
        let wanted = self.replica.take_snapshots_wanted();
        for to in wanted.iter().map(|wanted| wanted.to) {
            if !self.snapshots.outgoing.may_offer(&mut self.replica, to) {
                continue;
            }
            let position = self.applied;
            let made = self.snapshots.outgoing.image_at(position);
            let image = made.unwrap_or_else(|| Bytes::from(machine.snapshot()));
            self.snapshots.outgoing.offer(&mut self.replica, to, position, MANIFEST_VERSION, image);
        }
        let offered = self.replica.take_offered();
        let mut is_told = !wanted.is_empty() || offered.is_some();
        if let Some(message) = offered {
            self.begin(message);
        }
        let Some(incoming) = &mut self.snapshots.incoming else { return is_told };
        if incoming.state.is_some() {
            self.hand_to_group(out);
            is_told = true;
        } else if incoming.pull_in == 0 {
            incoming.pull_in = PULL_TICKS;
            let pull = incoming.gathered.pull((incoming.message.term(), incoming.position.index));
            out.frames.push((incoming.message.from(), self.replica.id(), pull));
        }
        is_told
    }

    /// Raft's message came: if it is needed, fetching begins, and the group gets it when that is
    /// done.
    fn begin(&mut self, message: Message) {
        let Some(offer) = message.snapshot() else { return };
        let (status, position) = (self.replica.group().status(), offer.position);
        let has_it =
            position.index <= status.commit || self.replica.table().term(position.index) == Some(position.term);
        if has_it || message.term() < status.term || self.snapshots.is_installing() {
            // The group answers what is old by itself.
            return self.replica.step_offered(message);
        }
        let is_same = |i: &Incoming| i.position == position && i.message.term() == message.term();
        if self.snapshots.incoming.as_ref().is_some_and(is_same) {
            return;
        }
        self.snapshots.incoming = IncomingImage::of(offer.manifest, MANIFEST_VERSION).map(|gathered| Incoming {
            message,
            position,
            gathered,
            state: None,
            idle_ticks: 0,
            pull_in: 0,
        });
    }

    /// Everything is here: the group takes the snapshot, unless it has gone on meanwhile.
    fn hand_to_group(&mut self, out: &mut Outputs) {
        if self.replica.is_installing() {
            return;
        }
        let Some(Incoming { message, position, state: Some(state), .. }) = self.snapshots.incoming.take() else {
            return;
        };
        self.replica.step_offered(message);
        self.replica.drive(out);
        if self.replica.installing() == Some(position) {
            let file = self.current_file.file;
            self.snapshots.installing = Some(Installing { state, position, file, is_saving: false });
        }
    }

    /// Saves the checkpoint of a snapshot once the log is cut.
    pub(super) fn save_installing(&mut self, out: &mut Outputs) {
        let Some(installing) = self.snapshots.installing.as_mut().filter(|i| !i.is_saving && self.saving.is_none())
        else {
            return;
        };
        let Some(membership) = self.replica.cut_is_synced() else { return };
        installing.is_saving = true;
        let (state, file) = (installing.state.clone(), installing.file);
        let (vote, life) = (self.replica.stored_vote(), self.replica.node().life());
        let head = Head { applied: installing.position, vote, membership, life };
        self.save(&head, &state, file, out);
    }

    /// Its checkpoint is saved: the snapshot counts.
    pub(super) fn install(&mut self, machine: &mut impl Machine, out: &mut Outputs) {
        let Installing { state, position, .. } = self.snapshots.installing.take().expect("its checkpoint was saved");
        assert!(position.index > self.applied.index, "a snapshot never takes back what is applied");
        let within = self.proposed.partition_point(|p| p.index <= position.index);
        self.proposed.drain(..within).for_each(|gone| machine.lost(gone.token));
        machine.install(&state);
        self.applied = position;
        self.applied_since = false;
        self.snapshots.installed += 1;
        self.replica.installed(out);
    }
}
