//! The snapshots of a group as one member has to do with them: which followers need one, and one that the leader offers
//! on its way into this member. Their contents: [`crate::snapshot`].
//!
//! Invariant: the log is cut by a mark, and that is synced, before the snapshot's checkpoint is saved; the group hears
//! that it has the snapshot once that is done, and does nothing else from the cut until then.

use super::Replica;
use super::writes::Write;
use crate::log_index::LogTable;
use crate::outputs::{ImageRefused, Outputs, SyncWish, Ticket, WalWrite};
use bytes::Bytes;
use consensus::{LogIndex, Membership, Message, Position, SnapshotOffer, SnapshotWanted};
use smallvec::SmallVec;
use storage::{GroupId, Record, RecordKind};

/// A follower that needs more files of the log than this gets a snapshot.
const FOLLOWER_LAG_FILES_MAX: u32 = 4;

/// A snapshot on its way into the state.
pub(super) struct Install {
    position: Position,
    membership: Membership,
    ready: u64,
    after_sync: Vec<Message>,
    /// The mark that cuts the log.
    pub(super) ticket: Ticket,
    pub(super) is_synced: bool,
}

impl Replica {
    /// Up to where followers that are heard of have the log, and those that have a snapshot will
    /// have it (`sent`); none if they have it all, or lag too many files behind.
    pub(crate) fn followers_need(&self, current_file: u32, sent: Option<LogIndex>) -> Option<LogIndex> {
        let active = self.group.progress().into_iter().filter(|p| p.is_recently_active).map(|p| p.matched);
        let needed = active.chain(sent).min()?;
        let from = self.table.body(needed.next())?;
        (crate::place::file_u32(from.file) + FOLLOWER_LAG_FILES_MAX >= current_file).then_some(needed)
    }

    /// Followers that need a snapshot.
    pub(crate) fn take_snapshots_wanted(&mut self) -> Vec<SnapshotWanted> {
        std::mem::take(&mut self.wanted)
    }

    /// A follower cannot be sent a snapshot.
    pub(crate) fn tell_refused(&mut self, refused: ImageRefused) {
        self.refused_images.push(refused);
    }

    /// A snapshot that the leader offers. Its contents are fetched before the group hears of it,
    /// which until then goes on with the log it has: a member that can only wait would be missing
    /// at an election.
    pub(crate) fn take_offered(&mut self) -> Option<Message> {
        self.offered.take()
    }

    /// The group takes in an offered snapshot.
    pub(crate) fn step_offered(&mut self, message: Message) {
        // One of an old term is refused; nothing is owed to it.
        let _ = self.group.step(message);
    }

    /// Writes the mark behind which the log begins anew. The group hears of it when the snapshot's
    /// checkpoint is saved.
    pub(super) fn cut(
        &mut self,
        offer: SnapshotOffer,
        ready: u64,
        after_sync: Vec<Message>,
        mut records: Vec<Record>,
        out: &mut Outputs,
    ) {
        let SnapshotOffer { position, membership, .. } = offer;
        assert!(records.iter().all(|r| r.kind == RecordKind::HardState), "entries come behind a snapshot, not with it");
        records.push(Record {
            group: GroupId(self.id.0),
            kind: RecordKind::SnapshotMark,
            term: position.term.0,
            index: position.index.0,
            body: Bytes::new(),
            body_crc: None,
        });
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let term = Some(self.stored_vote.0);
        let (entries, located) = (SmallVec::new(), true);
        self.writes.push_back(Write { ticket, ready: None, after_sync: Vec::new(), term, entries, located });
        self.installing = Some(Install { position, membership, ready, after_sync, ticket, is_synced: false });
        out.wal.push(WalWrite { partition: self.id, ticket, records, sync: SyncWish::Now, report_written: false });
    }

    /// Whether a snapshot is on its way into the state.
    pub(crate) fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    /// Where the snapshot stands that is on its way into the state.
    pub(crate) fn installing(&self) -> Option<Position> {
        self.installing.as_ref().map(|i| i.position)
    }

    /// Once the log is cut on the disk: the members as of the snapshot being installed.
    pub(crate) fn cut_is_synced(&self) -> Option<Membership> {
        self.installing.as_ref().filter(|i| i.is_synced).map(|i| i.membership.clone())
    }

    /// The snapshot's checkpoint is saved: the log goes on behind it.
    pub(crate) fn installed(&mut self, out: &mut Outputs) {
        let install = self.installing.take().expect("a snapshot is being installed");
        self.table = LogTable::new(install.position.index);
        self.committed.clear();
        self.group.persisted(install.ready);
        self.group.applied(install.position.index);
        self.note_members();
        self.appended_bytes = 0;
        self.send(install.after_sync, out);
    }
}
