//! What the library has ready: entries to write, messages to send, what is committed.

use super::{Group, UNSTABLE_ROOM_MAX, from_raft};
use crate::entry::{Entry, EntryKind};
use crate::guard::Contradiction;
use crate::log::SnapshotOffer;
use crate::message::Message;
use crate::position::LogIndex;
use crate::ready::{ReadState, Ready, decode_read_context};
use raft::eraftpb::MessageType;

impl Group {
    pub(super) fn take_ready(&mut self, out: &mut Ready) {
        let mut ready = self.raw.ready();
        self.library_number = ready.number();
        if !ready.snapshot().is_empty() {
            let snapshot = SnapshotOffer::from_raft(ready.snapshot().clone());
            self.raw.mut_store().restore(snapshot.position);
            self.installing = Some(snapshot.position.index.0);
            self.changes.clear();
            out.snapshot = Some(snapshot);
        }
        let entries = ready.take_entries();
        out.append.extend(entries.iter().cloned().map(Entry::from_raft));
        self.raw.mut_store().append(entries.into_iter());
        if let Some(hard_state) = ready.hs() {
            out.hard_state = Some(from_raft(hard_state));
            let vote = (hard_state.term, hard_state.vote);
            if vote != self.told_vote {
                self.told_vote = vote;
                self.vote_unsynced = Some(self.library_number);
            }
        }
        out.must_sync = ready.must_sync();
        if out.must_sync {
            self.number = self.library_number;
            self.unsynced.push_back(self.number);
            out.number = self.number;
        }
        out.role_changed = ready.ss().is_some();
        self.take_messages(&mut ready, out);
        for entry in ready.take_committed_entries() {
            let entry = Entry::from_raft(entry);
            if entry.kind == EntryKind::Membership {
                self.changes.push_back((entry.index, entry.data.clone()));
                if !self.changes_apply() {
                    // It is not applied, and nothing behind it, so that the next start finds it
                    // again.
                    self.changes.pop_back();
                    self.halt(Contradiction::ChangeOfNothing { index: entry.index, term: entry.term });
                    break;
                }
            }
            out.committed.push(entry);
        }
        for state in ready.take_read_states() {
            let (asker, context) = decode_read_context(&state.request_ctx.into())
                .expect("questions are asked here and their form is checked at the door");
            assert!(asker == self.config.node, "an answer goes to who asked");
            out.read_states.push(ReadState { context, index: LogIndex(state.index) });
        }
        self.raw.advance_append_async(ready);
        self.shrink_unstable();
        if self.unsynced.is_empty() {
            // Nothing to sync here nor before: the library need not wait for a report that would
            // never come.
            self.raw.on_persist_ready(self.library_number);
        }
    }

    pub(super) fn take_messages(&mut self, ready: &mut raft::Ready, out: &mut Ready) {
        let group = self.config.group;
        let vote_is_synced = self.vote_unsynced.is_none();
        let mut sent = ready.take_messages();
        let mut persisted = ready.take_persisted_messages();
        for message in sent.iter().filter(|m| m.msg_type == MessageType::MsgAppend) {
            if let Some(last) = message.entries.last() {
                let bytes = message.entries.iter().map(|entry| entry.data.len()).sum();
                self.windows.sent(message.to, last.index, bytes);
            }
        }
        self.doubt.mark(sent.iter_mut().chain(&mut persisted));
        let at_once = if vote_is_synced { &mut out.messages } else { &mut out.messages_after_sync };
        at_once.extend(sent.into_iter().map(|message| Message::new(group, message)));
        for message in persisted {
            // A heartbeat's answer vouches for the term and for nothing in the log: a slow disk
            // must not look like a dead member.
            let may_go =
                self.unsynced.is_empty() || (vote_is_synced && message.msg_type == MessageType::MsgHeartbeatResponse);
            let messages = if may_go { &mut out.messages } else { &mut out.messages_after_sync };
            messages.push(Message::new(group, message));
        }
    }

    pub(super) fn shrink_unstable(&mut self) {
        let unstable = &mut self.raw.raft.raft_log.unstable.entries;
        if unstable.is_empty() && unstable.capacity() > UNSTABLE_ROOM_MAX {
            unstable.shrink_to(UNSTABLE_ROOM_MAX);
        }
    }
}
