//! What followers are given that lag behind: entries read from the disk, snapshots, and as much at
//! once as their windows have room for.
//!
//! Invariant: nothing is sent to a follower before its window was set to the room that it has left.

use raft::eraftpb;
use raft::{GetEntriesContext, SnapshotStatus, StateRole};

use super::Group;
use crate::entry::Entry;
use crate::log::{MANIFEST_BYTES_MAX, SnapshotOffer};
use crate::message::Kind;
use crate::position::{LogIndex, NodeId};

impl Group {
    /// Gives up the log up to and including `index`, which a checkpoint contains. Followers that
    /// need it get a snapshot.
    pub fn compact(&mut self, index: LogIndex) {
        self.raw.mut_store().compact(index.0);
    }

    /// Answers a [`Fetch`](crate::Fetch) from `from` with entries in order, as many as are at hand;
    /// none when they could not be read, and they are asked for again later. Each fetch must be
    /// answered.
    pub fn fetched(&mut self, from: LogIndex, entries: Vec<Entry>) {
        for entry in &entries {
            self.windows.note_body(entry.index.0, entry.data.len());
        }
        self.open_windows();
        for waiter in self.raw.mut_store().lend(from, entries) {
            self.raw.on_entries_fetched(waiter);
        }
        self.raw.mut_store().end_loan();
    }

    /// Answers a [`SnapshotWanted`](crate::SnapshotWanted). The offer goes out as a message; report
    /// with [`Group::snapshot_sent`] how the transfer ended. `false` when it is not wanted any
    /// more, or stands too early.
    pub fn offer_snapshot(&mut self, to: NodeId, offer: SnapshotOffer) -> bool {
        assert!(
            offer.manifest.len() <= MANIFEST_BYTES_MAX,
            "a manifest of {} bytes, where {MANIFEST_BYTES_MAX} are lawful",
            offer.manifest.len()
        );
        let raft = &self.raw.raft;
        assert!(offer.position.index.0 <= raft.raft_log.applied, "a snapshot holds what is applied, no more");
        let is_follower = raft.state == StateRole::Leader && raft.prs().get(to.0).is_some();
        if !self.raw.mut_store().offer_snapshot(to, offer) {
            return false;
        }
        if is_follower {
            self.open_windows();
            self.raw.raft.send_append(to.0);
        }
        is_follower
    }

    /// Learns from a snapshot that is offered, and not taken in yet, that this member's log is
    /// committed to its end. It is if its last entry stands before the snapshot and has the same
    /// term: one leader appended both, and leaders only append. `false` if nothing new can be told.
    ///
    /// - Source: Raft paper, leader append-only and log matching.
    pub fn learn_from_offer(&mut self, offer: &SnapshotOffer) -> bool {
        // Who stands for election must not find a change of voters committed under it.
        if self.raw.raft.state != StateRole::Follower {
            return false;
        }
        let log = &mut self.raw.raft.raft_log;
        let last = log.last_index();
        let is_prefix = last < offer.position.index.0 && log.last_term() == offer.position.term.0;
        let is_new = is_prefix && log.committed < last;
        if is_new {
            log.commit_to(last);
        }
        is_new
    }

    /// The entries behind what is applied, committed or not, in order. They are in memory. None
    /// while a snapshot is installed.
    pub fn unapplied(&self) -> Vec<Entry> {
        let log = &self.raw.raft.raft_log;
        let entries = log.slice(log.applied + 1, log.last_index() + 1, None, GetEntriesContext::empty(false));
        entries.unwrap_or_default().into_iter().map(Entry::from_raft).collect()
    }

    /// No snapshot can be made for `to` now. It is wanted again if it is still needed.
    pub fn refuse_snapshot(&mut self, to: NodeId) {
        self.raw.mut_store().forget_snapshot(to);
    }

    /// The transfer of a snapshot to `to` ended: installed, or failed. Until one or the other is
    /// reported, or `to` acknowledges the snapshot itself, it is sent nothing.
    pub fn snapshot_sent(&mut self, to: NodeId, ok: bool) {
        let status = if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to.0, status);
    }

    /// A message to `to` was lost for certain. Sending starts over from what it has acknowledged.
    pub fn report_unreachable(&mut self, to: NodeId) {
        self.raw.report_unreachable(to.0);
    }

    /// Whether `reply` rejects what its sender has acknowledged since.
    pub(super) fn is_stale_rejection(&mut self, reply: &eraftpb::Message) -> bool {
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Leader || reply.term != raft.term || !reply.reject || reply.request_snapshot != 0 {
            return false;
        }
        match raft.mut_prs().get_mut(reply.from) {
            Some(progress) if reply.index <= progress.matched => {
                progress.recent_active = true;
                true
            }
            _ => false,
        }
    }

    /// Sets the room of a follower's window before the library takes an answer of it, which makes
    /// it send.
    pub(super) fn note_reply(&mut self, kind: Kind, reply: &eraftpb::Message) {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || reply.term != raft.term {
            return;
        }
        if kind == Kind::AppendReply && !reply.reject {
            self.windows.acknowledged(reply.from, reply.index);
        }
        self.open_window(reply.from, kind == Kind::HeartbeatReply);
    }

    pub(super) fn open_windows(&mut self) {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return;
        }
        let others: Vec<u64> = raft.prs().iter().map(|(id, _)| *id).filter(|id| *id != raft.id).collect();
        others.into_iter().for_each(|id| self.open_window(id, false));
    }

    fn open_window(&mut self, to: u64, answers_heartbeat: bool) {
        let Some(progress) = self.raw.raft.mut_prs().get_mut(to) else { return };
        if progress.state != raft::ProgressState::Replicate {
            self.windows.forget(to);
        }
        let room = self.windows.room(to, progress.ins.count(), answers_heartbeat);
        progress.ins.set_cap(room.min(self.config.inflight_messages_max));
    }

    /// Up to here every member has the log, so that no one will ask for these bodies, as far as this one leads.
    pub(super) fn everyone_has(&self) -> Option<u64> {
        let raft = &self.raw.raft;
        let has = || raft.prs().iter().map(|(_, progress)| progress.matched).min().unwrap_or(0);
        (raft.state == StateRole::Leader).then(has)
    }
}
