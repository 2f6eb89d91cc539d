//! One member of one Raft group: the calls around the library, and the guards against what is known
//! to go wrong in it.
//!
//! Guards, each with the story it prevents:
//!
//! - **Nothing leaves before the vote is synced.** The library sends a leader's messages at once,
//!   trusting that its vote was synced before it won. A sole voter with learners wins by its own
//!   vote in the same breath: its appends would reach the learners, a power cut would take the
//!   vote, and after a restart it would lead the same term again with other entries. While a term
//!   or a vote is unsynced every message waits.
//! - **No campaign over a half-installed snapshot or an unsynced tail** ([`Group::may_campaign`]).
//!   The library reads from the applied entry on, which is compacted until the snapshot is applied,
//!   and stops the process; and a leader's log must be synced when it takes office.
//! - **A rejection of what already matched is stale.** A delayed one would send a probing leader
//!   back below the match, into the compacted part, and to a needless snapshot (raft-rs 555, 557).
//! - **No entries are added to a message already made.** The library's batching looks whether they
//!   follow the entries of that message, and not, if it has none, whether they follow its position:
//!   a probe that is rejected before it went out would leave with entries of other indexes. Appends
//!   are gathered here instead, one broadcast a [`Group::ready`].
//! - **A leader that is removed hands over and steps down.** The library would go on leading
//!   without a place for itself among the followers, and stop the process at the next
//!   acknowledgement.
//! - **A refused vote tells what is committed, whatever its term.** The library ignores a reply of
//!   an older term. A member that has the entry ending a joint change, and does not know it to be
//!   committed, needs the vote of an old voter whose log may be longer and who will never stand
//!   again: only that voter's commit index gets the group moving.
//! - **The buffer of unwritten entries gives its memory back** (raft-rs 589).
//! - **What would end the process is refused** (`guard.rs`): a leader that knows more of this log
//!   than there is, for one.
//! - **The vote of a member that may have forgotten is weighed** (`doubt.rs`, `grants.rs`).
//! - **What is on its way to a follower is bounded in bytes** (`window.rs`); the library counts
//!   messages.
//! - **Membership entries are ours.** They are appended and read without the library's protobuf
//!   parser, and a change that could not be applied is refused before it is in the log. A member
//!   that finds one committed all the same applies neither it nor what follows, and halts.
//!
//! Invariant: whatever the library wants is handed out by [`Group::ready`], once, in order.

use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{self};
use raft::{ProgressTracker, RaftState, RawNode, StateRole};
use slog::o;

use crate::config::{Config, Restored};
use crate::doubt::Doubt;
use crate::election::{ElectionTimer, NEVER_TICKS};
use crate::entry::{Entry, EntryKind};
use crate::guard::{Contradiction, Verdict, look};
use crate::log::LogView;
use crate::membership::{Change, decode_changes, encode_changes};
use crate::message::{Kind, Message};
use crate::position::{LogIndex, NodeId, Position, Term};
use crate::ready::{HardState, Ready, encode_read_context};
use crate::refusal::{Refused, StepError};
use crate::start::StartError;
use crate::window::Windows;

/// The library's buffer of unwritten entries keeps room for this many, about 2 KiB, and gives the
/// rest back when it is empty.
const UNSTABLE_ROOM_MAX: usize = 16;
/// A leader that appended nothing for so many ticks may say less often that it is there.
const QUIET_TICKS: u32 = 20;

mod output;
mod supply;
mod view;

/// One member of one group.
pub struct Group {
    raw: RawNode<LogView>,
    config: Config,
    timer: ElectionTimer,
    /// Whether it led after the last call.
    led: bool,
    /// Entries were appended and not yet sent.
    broadcast_due: bool,
    /// The next tick of a quiet leader brings no heartbeat.
    holds_heartbeat: bool,
    /// The last entry at the last tick, and how many ticks it has been the last.
    last_at_tick: u64,
    quiet_ticks: u32,
    /// Numbers of what must be synced and is not reported yet, ascending.
    unsynced: VecDeque<u64>,
    /// The newest of `unsynced` that changed the term or the vote.
    vote_unsynced: Option<u64>,
    /// The newest number that had to be synced.
    number: u64,
    /// The newest number the library gave out.
    library_number: u64,
    /// Term and vote as last handed out.
    told_vote: (u64, u64),
    /// Membership entries that are handed out and not applied yet.
    changes: VecDeque<(LogIndex, Bytes)>,
    /// The index of a snapshot that is handed out and not applied yet.
    installing: Option<u64>,
    /// What makes it impossible to go on.
    halted: Option<Contradiction>,
    doubt: Doubt,
    windows: Windows,
}

impl Group {
    /// A member that goes on where `restored` ends. A sole voter leads when this returns,
    /// unless it has yet to apply a change of members.
    ///
    /// - Errors: a setting that makes no sense.
    /// - Panics: on a `restored` that contradicts itself, which is a damaged or misread log.
    pub fn new(config: Config, restored: Restored) -> Result<Self, StartError> {
        config.validate()?;
        restored.check()?;
        let doubt = Doubt::new(&restored);
        let hard_state = HardState { commit: restored.committed(), ..restored.hard_state };
        let log = LogView::new(
            RaftState { hard_state: to_raft(hard_state), conf_state: restored.membership.to_raft() },
            restored.compacted,
            &restored.evicted,
            restored.entries,
            restored.applied,
            config.cache_bytes_max,
        );
        let library_config = raft::Config {
            id: config.node.0,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            min_election_tick: NEVER_TICKS,
            max_election_tick: NEVER_TICKS + 1,
            applied: restored.applied.0,
            max_size_per_msg: config.message_bytes_max as u64,
            max_inflight_msgs: config.inflight_messages_max,
            max_uncommitted_size: config.uncommitted_bytes_max as u64,
            max_committed_size_per_ready: config.committed_bytes_max as u64,
            check_quorum: true,
            pre_vote: true,
            // Off: it adds entries to a message already made without asking whether they follow it
            // (see the head).
            batch_append: false,
            skip_bcast_commit: !config.announce_commits,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, o!());
        let raw = RawNode::new(&library_config, log, &logger)
            .expect("the configuration is validated and the log view never fails");
        let timer = ElectionTimer::new(config.seed, config.group, config.node, config.election_ticks);
        let windows = Windows::new(config.inflight_bytes_max, config.message_bytes_max);
        let mut group = Self {
            led: false,
            told_vote: (raw.raft.term, raw.raft.vote),
            raw,
            config,
            timer,
            broadcast_due: false,
            holds_heartbeat: false,
            last_at_tick: 0,
            quiet_ticks: 0,
            unsynced: VecDeque::new(),
            vote_unsynced: None,
            number: 0,
            library_number: 0,
            changes: VecDeque::new(),
            installing: None,
            halted: None,
            doubt,
            windows,
        };
        for change in restored.changes {
            if !group.change_can_apply(&change.data) {
                let what = format!("the change of members at {} cannot be applied", change.position());
                return Err(StartError::Contradictory(what));
            }
            group.change_applies(&change.data);
        }
        if group.raw.raft.prs().is_singleton() {
            group.campaign();
        }
        Ok(group)
    }

    /// Time goes by.
    pub fn tick(&mut self) {
        if self.halted.is_some() {
            return;
        }
        self.count_quiet_tick();
        if std::mem::take(&mut self.holds_heartbeat) && self.is_quiet() {
            // Whether a majority is there is looked at with the next one.
            self.raw.raft.election_elapsed += 1;
        } else {
            self.raw.tick();
        }
        self.windows.tick(self.config.election_ticks);
        self.doubt.tick(self.config.election_ticks);
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Leader
            && raft.promotable()
            && self.timer.is_over(raft.election_elapsed)
            && self.may_campaign()
        {
            self.raw.raft.election_elapsed = 0;
            self.stand();
        }
        self.observe();
    }

    /// The next tick brings no heartbeat of a leader that has appended nothing for twenty ticks, and whose members all have
    /// everything. Of any other leader it does: who lost something is found by it.
    pub fn hold_heartbeat(&mut self) {
        self.holds_heartbeat = true;
    }

    fn count_quiet_tick(&mut self) {
        let last = self.raw.raft.raft_log.last_index();
        let is_same = std::mem::replace(&mut self.last_at_tick, last) == last;
        self.quiet_ticks = if is_same { self.quiet_ticks.saturating_add(1) } else { 0 };
    }

    fn is_quiet(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            && self.quiet_ticks >= QUIET_TICKS
            && raft.prs().iter().all(|(_, member)| member.matched == self.last_at_tick)
    }

    /// Stands for election now. `false` when it must not: it leads already, has no vote, or has yet
    /// to sync or to install what it holds.
    pub fn campaign(&mut self) -> bool {
        let raft = &self.raw.raft;
        let may = raft.state != StateRole::Leader && raft.promotable() && self.may_campaign() && self.halted.is_none();
        if may {
            self.stand();
            self.observe();
        }
        may
    }

    /// Appends a command.
    ///
    /// - Returns the place it takes in the log. It is committed if an entry with that very place
    ///   comes out as committed; if another term stands at the index, it is lost.
    /// - Order: as proposed. It goes to followers and to the disk with the next [`Group::ready`],
    ///   all proposals together.
    /// - Limits: 1 to `entry_bytes_max` bytes; a caller that exceeds them panics.
    /// - Errors: only the leader takes proposals, nothing is passed on.
    pub fn propose(&mut self, data: Bytes) -> Result<Position, Refused> {
        self.propose_summed(data, None)
    }

    /// The same of a command whose checksum somebody may have taken.
    pub fn propose_summed(&mut self, data: Bytes, crc: Option<u32>) -> Result<Position, Refused> {
        assert!(
            !data.is_empty() && data.len() <= self.config.entry_bytes_max,
            "a command of {} bytes, where 1 to {} are lawful",
            data.len(),
            self.config.entry_bytes_max
        );
        self.append(EntryKind::Command, data, crc)
    }

    /// Changes the members, by one simple change or by one joint change of several members. The
    /// leader ends a joint change by itself; follow it through [`Group::membership`].
    ///
    /// - A removed member stays up until a majority of the new voters has applied the end of the
    ///   change: until then they count it as a voter, and may need its answer to elect a leader.
    /// - Returns the place of the entry that begins it.
    pub fn change_membership(&mut self, changes: &[Change]) -> Result<Position, Refused> {
        self.must_lead()?;
        let raft = &self.raw.raft;
        if raft.has_pending_conf() || !raft.prs().conf().to_conf_state().voters_outgoing.is_empty() {
            return Err(Refused::ChangeUnderWay);
        }
        if changes.is_empty() {
            return Err(Refused::BadChange);
        }
        let data = encode_changes(changes);
        let change = decode_changes(&data).map_err(|_| Refused::BadChange)?;
        // A dry run: at apply there is no way to say no.
        if try_change(&mut raft.prs().clone(), &change, raft.raft_log.last_index()).is_err() {
            return Err(Refused::BadChange);
        }
        let position = self.append(EntryKind::Membership, data, None)?;
        self.raw.raft.pending_conf_index = position.index.0;
        Ok(position)
    }

    /// Takes a message from a peer.
    pub fn step(&mut self, message: Message) -> Result<(), StepError> {
        if message.group() != self.config.group || message.to() != self.config.node {
            return Err(StepError::Misrouted { group: message.group(), to: message.to() });
        }
        if self.halted.is_some() {
            return Err(StepError::Halted);
        }
        let from = message.from();
        let kind = message.kind();
        match look(&self.raw.raft, kind, message.raft()) {
            Ok(()) => {}
            Err(Verdict::Senseless(why)) => return Err(StepError::Senseless { from, why }),
            Err(Verdict::Contradicts(contradiction)) => {
                self.halt(contradiction);
                return Err(StepError::Halted);
            }
        }
        // Whoever hands over knows of nobody who forgot; its heir would win with its own vote alone
        // counted as whole.
        if kind == Kind::TimeoutNow && (self.doubt.lasts() || !self.may_campaign()) {
            return Ok(());
        }
        if kind == Kind::AppendReply && self.is_stale_rejection(message.raft()) {
            return Ok(());
        }
        let is_reply_to_candidate = matches!(kind, Kind::VoteReply | Kind::PreVoteReply);
        if is_reply_to_candidate {
            self.learn_commit(message.raft());
        }
        if matches!(kind, Kind::AppendReply | Kind::HeartbeatReply) {
            self.note_reply(kind, message.raft());
        }
        let message = message.into_raft();
        let replies = if is_reply_to_candidate && self.raw.raft.prs().get(from.0).is_some() {
            self.doubt.weigh(message, &self.raw.raft)
        } else {
            vec![message]
        };
        let mut outcome = Ok(());
        for message in replies {
            outcome = outcome.and(self.raw.step(message));
        }
        let raft = &self.raw.raft;
        if matches!(kind, Kind::Append | Kind::Heartbeat | Kind::Snapshot) && raft.leader_id == from.0 {
            self.doubt.hears_leader();
        }
        if raft.prs().get(from.0).is_some_and(|progress| progress.state != raft::ProgressState::Replicate) {
            self.windows.forget(from.0);
        }
        self.observe();
        match outcome {
            Ok(()) => Ok(()),
            Err(raft::Error::StepPeerNotFound) => Err(StepError::NotMember { from }),
            Err(error) => unreachable!("the library refused a {kind:?} from {from}: {error}"),
        }
    }

    /// Collects what is to be done into `out`, which it clears first. `false` when there is
    /// nothing.
    pub fn ready(&mut self, out: &mut Ready) -> bool {
        out.clear();
        if self.halted.is_some() {
            return false;
        }
        if self.broadcast_due {
            self.broadcast_due = false;
            if self.raw.raft.state == StateRole::Leader {
                self.open_windows();
                self.raw.raft.bcast_append();
            }
        }
        let has_wanted = self.raw.store().has_wanted();
        let has_ready = self.raw.has_ready();
        if has_wanted {
            let log = self.raw.mut_store();
            log.take_fetches(&mut out.fetches);
            log.take_snapshots_wanted(&mut out.snapshots_wanted);
        }
        out.number = self.number;
        if has_ready {
            self.take_ready(out);
        }
        has_ready || has_wanted
    }

    /// The write named `number`, and all before it, survives power loss from now on.
    pub fn persisted(&mut self, number: u64) {
        assert!(number <= self.number, "only what was handed out can be persisted");
        while self.unsynced.front().is_some_and(|first| *first <= number) {
            self.unsynced.pop_front();
        }
        self.vote_unsynced = self.vote_unsynced.filter(|vote| *vote > number);
        // What follows up to the next write that must be synced had nothing to sync.
        let covered = self.unsynced.front().map_or(self.library_number, |next| next - 1);
        self.raw.on_persist_ready(covered);
        self.observe();
    }

    /// The state machine contains everything up to `index`. Changes of members up to there take
    /// effect.
    ///
    /// - Order: never backwards. At most what was handed out as committed, or the index of an
    ///   installed snapshot whose write was reported as persisted.
    pub fn applied(&mut self, index: LogIndex) {
        let before = self.raw.raft.raft_log.applied;
        if index.0 == before {
            return;
        }
        assert!(index.0 > before, "the applied index only grows");
        if self.installing.is_some_and(|snapshot| snapshot <= index.0) {
            self.installing = None;
        }
        let last = self.raw.raft.raft_log.last_index();
        while self.changes.front().is_some_and(|(at, _)| *at <= index) {
            let (_, data) = self.changes.pop_front().expect("there is a first change");
            self.change_applies(&data);
        }
        self.raw.advance_apply_to(index.0);
        // Ending a joint change appends an entry and sends nothing.
        self.broadcast_due |= self.raw.raft.raft_log.last_index() > last;
        let everyone_has = self.everyone_has();
        everyone_has.into_iter().for_each(|index| self.windows.everyone_has(index));
        // Who does not lead is asked for none. Should it come to lead, who lags is served from the disk.
        self.raw.mut_store().applied(index.0, everyone_has.unwrap_or(u64::MAX));
        self.observe();
    }

    /// The largest message that carries more than one entry: what else goes to a member is cut to
    /// the same measure.
    pub fn message_bytes_max(&self) -> usize {
        self.config.message_bytes_max
    }

    /// Bounds the memory for bodies of applied entries, from now on.
    pub fn set_cache_bytes_max(&mut self, bytes_max: usize) {
        self.raw.mut_store().set_cache_bytes_max(bytes_max);
    }

    /// Asks what must be applied before a read is linearizable. The answer is a [`ReadState`](crate::ready::ReadState) with
    /// `context`.
    ///
    /// - Any member may ask; the leader answers after it heard from a majority that it still leads.
    ///   The answer may be lost with a message or a leader: ask again, with another context, after
    ///   a while.
    pub fn read_index(&mut self, context: u64) -> Result<(), Refused> {
        let raft = &self.raw.raft;
        if raft.leader_id == 0 {
            return Err(Refused::NotLeader { leader: None });
        }
        if raft.state == StateRole::Leader && !raft.commit_to_current_term() {
            return Err(Refused::NotReady);
        }
        self.raw.read_index(encode_read_context(self.config.node, context).to_vec());
        Ok(())
    }

    /// Hands leadership to `to`, once its log has caught up. Proposals are refused meanwhile. Given
    /// up after an election timeout; see [`crate::Status::leader`].
    pub fn transfer_leadership(&mut self, to: NodeId) -> Result<(), Refused> {
        self.must_lead()?;
        if to == self.config.node {
            return Ok(());
        }
        if !self.membership().is_voter(to) {
            return Err(Refused::NoVoter { node: to });
        }
        self.raw.transfer_leader(to.0);
        Ok(())
    }

    /// Gives up leading, if it leads: it stood still, and may have been voted out meanwhile. Who leads
    /// next is found out as after a silence, and may be the same.
    pub fn resign(&mut self) {
        if self.raw.raft.state == StateRole::Leader {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
            self.observe();
        }
    }

    /// Why this member takes no part in its group any more, if so. It neither votes nor follows,
    /// and its log stays as it is.
    pub fn halted(&self) -> Option<Contradiction> {
        self.halted
    }

    /// Whether this member may have forgotten the end of its log, and has not caught up since. Its
    /// vote does not count among those whose memory is whole.
    pub fn may_have_forgotten(&self) -> bool {
        self.doubt.lasts()
    }

    /// Whether it counts as whole again because no leader was heard of for long, and not because it
    /// has caught up.
    pub fn gave_up_waiting(&self) -> bool {
        self.doubt.gave_up()
    }

    /// This member has everything again that the group's leader had after this member started.
    pub fn caught_up(&mut self) {
        self.doubt.end();
    }

    fn must_lead(&self) -> Result<(), Refused> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(Refused::NotLeader { leader: node(raft.leader_id) });
        }
        match raft.lead_transferee {
            Some(to) => Err(Refused::Transferring { to: NodeId(to) }),
            None => Ok(()),
        }
    }

    /// Appends to the leader's log without the library's proposal message, which would send one
    /// append a proposal and parse membership entries as protobuf.
    fn append(&mut self, kind: EntryKind, data: Bytes, crc: Option<u32>) -> Result<Position, Refused> {
        self.must_lead()?;
        let raft = &mut self.raw.raft;
        let position = Position::new(raft.raft_log.last_index() + 1, raft.term);
        self.windows.note_body(position.index.0, data.len());
        let raft = &mut self.raw.raft;
        let entry = Entry { index: position.index, term: position.term, kind, data, crc };
        if !raft.append_entry(&mut [entry.into_raft()]) {
            return Err(Refused::Backlogged);
        }
        self.broadcast_due = true;
        Ok(position)
    }

    fn stand(&mut self) {
        self.timer.draw();
        self.raw.campaign().expect("a call for a campaign is never refused");
    }

    /// Whether an election may begin here: the whole log is synced, and no snapshot is on its way
    /// into the state machine.
    fn may_campaign(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.installing.is_none() && log.unstable_snapshot().is_none() && log.persisted == log.last_index()
    }

    /// Stops taking part: whatever this member did next could make the loss worse.
    fn halt(&mut self, contradiction: Contradiction) {
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Follower {
            let term = raft.term;
            raft.become_follower(term, 0);
        }
        self.halted = Some(contradiction);
        self.observe();
    }

    /// Takes the commit index from a vote of an older term. Only a refused one names one; none is
    /// not beyond ours.
    fn learn_commit(&mut self, reply: &eraftpb::Message) {
        let raft = &mut self.raw.raft;
        if reply.term >= raft.term || raft.state == StateRole::Leader {
            return;
        }
        // What is committed is so in every term.
        if raft.raft_log.maybe_commit(reply.commit, reply.commit_term) {
            // Among it may be a change of voters: stand again when it is applied.
            let term = raft.term;
            raft.become_follower(term, 0);
        }
    }

    /// Whether the changes of members that are handed out can be applied, one after the other. A
    /// leader tries a change before it proposes it; whoever follows one that did not must not find
    /// out where there is no way to say no.
    fn changes_apply(&self) -> bool {
        let raft = &self.raw.raft;
        let (mut members, last) = (raft.prs().clone(), raft.raft_log.last_index());
        self.changes
            .iter()
            .all(|(_, data)| decode_changes(data).is_ok_and(|change| try_change(&mut members, &change, last).is_ok()))
    }

    /// Whether a change of members can be applied now.
    fn change_can_apply(&self, data: &Bytes) -> bool {
        let raft = &self.raw.raft;
        let mut members = raft.prs().clone();
        decode_changes(data).is_ok_and(|change| try_change(&mut members, &change, raft.raft_log.last_index()).is_ok())
    }

    /// A committed change of members takes effect.
    fn change_applies(&mut self, data: &Bytes) {
        let change = decode_changes(data).expect("a membership entry is read as it was written");
        self.raw.apply_conf_change(&change).expect("a change is tried before it is handed out");
        let raft = &mut self.raw.raft;
        if raft.state == StateRole::Leader && !raft.promotable() {
            self.hand_over();
        }
    }

    /// Steps down as a leader without a vote, and tells the voter with the longest log to stand at
    /// once.
    fn hand_over(&mut self) {
        let raft = &mut self.raw.raft;
        let heir = raft
            .prs()
            .iter()
            .filter(|(id, _)| raft.prs().conf().voters().contains(**id))
            .max_by_key(|(id, progress)| (progress.matched, **id))
            .map(|(id, _)| *id);
        if let Some(heir) = heir {
            raft.send_timeout_now(heir);
        }
        let term = raft.term;
        raft.become_follower(term, 0);
    }

    /// Drops what only a leader keeps, once it leads no more.
    fn observe(&mut self) {
        let leads = self.raw.raft.state == StateRole::Leader;
        if self.led && !leads {
            self.raw.mut_store().forget_wanted();
            self.windows.clear();
        }
        if leads && !self.led {
            // It was elected by members that know at least as much, or by so many that forgot that
            // nobody promises anything.
            self.doubt.end();
            let bodies = self.raw.store().cached_bodies();
            bodies.for_each(|(index, bytes)| self.windows.note_body(index, bytes));
        }
        self.led = leads;
    }
}

/// Makes of the members what a change makes of them.
fn try_change(members: &mut ProgressTracker, change: &eraftpb::ConfChangeV2, last: u64) -> raft::Result<()> {
    let mut changer = raft::Changer::new(members);
    let (configuration, changes) = if change.leave_joint() {
        changer.leave_joint()?
    } else if let Some(auto_leave) = change.enter_joint() {
        changer.enter_joint(auto_leave, &change.changes)?
    } else {
        changer.simple(&change.changes)?
    };
    members.apply_conf(configuration, changes, last);
    Ok(())
}

fn node(id: u64) -> Option<NodeId> {
    (id != 0).then_some(NodeId(id))
}

fn from_raft(hard_state: &eraftpb::HardState) -> HardState {
    HardState { term: Term(hard_state.term), vote: node(hard_state.vote), commit: LogIndex(hard_state.commit) }
}

fn to_raft(hard_state: HardState) -> eraftpb::HardState {
    eraftpb::HardState {
        term: hard_state.term.0,
        vote: hard_state.vote.map_or(0, |node| node.0),
        commit: hard_state.commit.0,
        ..eraftpb::HardState::default()
    }
}
