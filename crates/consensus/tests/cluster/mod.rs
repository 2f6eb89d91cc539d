//! A cluster on one thread for tests: members, their disks, and the messages between them, each
//! moved by hand.
//!
//! Invariant: nothing moves by itself. A message arrives when it is delivered, a write survives
//! when it is synced, time goes by when a member ticks; so a script says exactly what happened, and
//! a seed says it again.

// Each test uses a part of this, and a module of a test has no one to be public to.
#![allow(dead_code, unreachable_pub)]

pub mod checks;
pub mod disk;
pub mod random;
pub mod weather;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use bytes::Bytes;
use consensus::{
    Change, Config, Entry, EntryKind, Group, LogIndex, Message, NodeId, Position, Ready, Refused, Restored, Role,
    Segments, SnapshotOffer, Status,
};

use checks::Checks;
use disk::{Disk, Write};

/// The commands a member has applied, in order: its whole state, and the content of its snapshots.
pub type State = Vec<(Position, Bytes)>;

/// A fault of the cluster itself, to see that each check bites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// What must wait for the disk is sent at once.
    SendBeforeSync,
    /// The disk of n1 says that it synced a vote, and forgets it with the power.
    ForgetVote,
    /// n2 hands on every tenth committed entry twice.
    ApplyTwice,
    /// n2 changes what it is told to append.
    ChangeEntry,
    /// The disk of each member loses the last entry that it said was synced.
    LoseSynced,
    /// Snapshots lack the last command.
    CutSnapshot,
    /// n2 hears nothing, in good weather too.
    Deaf,
}

/// One member and what belongs to it.
pub struct Member {
    /// `None` while it is down.
    pub group: Option<Group>,
    pub disk: Disk,
    pub state: State,
    /// Messages that wait for a write to be synced.
    pub held: VecDeque<(u64, Vec<Message>)>,
    pub reads: Vec<(u64, LogIndex)>,
    /// Starts so far.
    pub incarnation: u64,
}

/// Members and the messages between them.
pub struct Cluster {
    pub members: BTreeMap<NodeId, Member>,
    pub network: Vec<Message>,
    /// Copies of messages that will arrive again.
    pub kept: Vec<Message>,
    pub checks: Checks,
    pub seed: u64,
    pub config: Box<dyn Fn(Config) -> Config>,
    pub bug: Option<Bug>,
    ready: Ready,
    trace: String,
}

pub const GROUP: u32 = 7;

impl Cluster {
    /// A new group of the voters 1 to `count`.
    pub fn new(count: u64, seed: u64, config: impl Fn(Config) -> Config + 'static) -> Self {
        let mut cluster = Self {
            members: BTreeMap::new(),
            network: Vec::new(),
            kept: Vec::new(),
            checks: Checks::default(),
            seed,
            config: Box::new(config),
            bug: None,
            ready: Ready::new(),
            trace: String::new(),
        };
        let voters: Vec<NodeId> = (1..=count).map(NodeId).collect();
        for &node in &voters {
            cluster.add(node, Restored::bootstrap(voters.iter().copied()));
        }
        cluster
    }

    /// A member that knows nothing, to be added by a change of members.
    pub fn add_joining(&mut self, node: NodeId) {
        self.add(node, Restored::joining());
    }

    fn add(&mut self, node: NodeId, restored: Restored) {
        let disk = Disk::new(&restored);
        let member =
            Member { group: None, disk, state: Vec::new(), held: VecDeque::new(), reads: Vec::new(), incarnation: 0 };
        self.members.insert(node, member);
        self.start(node, restored);
    }

    fn start(&mut self, node: NodeId, restored: Restored) {
        let incarnation = self.members[&node].incarnation;
        let config = (self.config)(Config::new(node, GROUP, self.seed.wrapping_add(incarnation << 32)));
        let group = Group::new(config, restored).expect("a valid configuration");
        self.member(node).group = Some(group);
        self.settle(node);
    }

    pub fn member(&mut self, node: NodeId) -> &mut Member {
        self.members.get_mut(&node).expect("a member of the cluster")
    }

    pub fn is_up(&self, node: NodeId) -> bool {
        self.members[&node].group.is_some()
    }

    pub fn status(&self, node: NodeId) -> Option<Status> {
        self.members[&node].group.as_ref().map(Group::status)
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.members.keys().copied().collect()
    }

    /// The leader of the highest term among those who are up.
    pub fn leader(&self) -> Option<NodeId> {
        let leads = |node: &NodeId| self.status(*node).filter(|status| status.role == Role::Leader);
        self.nodes().into_iter().filter(|node| leads(node).is_some()).max_by_key(|node| leads(node).map(|s| s.term))
    }

    /// Calls `f` on a member that is up, then collects what it wants.
    pub fn with<T>(&mut self, node: NodeId, f: impl FnOnce(&mut Group) -> T) -> Option<T> {
        let outcome = f(self.member(node).group.as_mut()?);
        self.settle(node);
        Some(outcome)
    }

    pub fn propose(&mut self, node: NodeId, data: impl Into<Bytes>) -> Option<Result<Position, Refused>> {
        let data = data.into();
        self.with(node, |group| group.propose(data))
    }

    pub fn change(&mut self, node: NodeId, changes: &[Change]) -> Option<Result<Position, Refused>> {
        self.with(node, |group| group.change_membership(changes))
    }

    /// Syncs everything a member has written.
    pub fn sync(&mut self, node: NodeId) {
        self.sync_up_to(node, usize::MAX);
    }

    /// Syncs the first `count` writes of a member.
    pub fn sync_up_to(&mut self, node: NodeId, count: usize) {
        if !self.is_up(node) {
            return;
        }
        let mut number = None;
        let mut installed = None;
        for _ in 0..count {
            let member = self.members.get_mut(&node).expect("a member of the cluster");
            let Some(write) = member.disk.pending.pop_front() else { break };
            if write.must_sync {
                number = Some(write.number);
            }
            if let Some(snapshot) = &write.snapshot {
                installed = Some(snapshot.clone());
            }
            let appended = write.append.clone();
            member.disk.make_durable(write);
            let base = appended.first().map(|first| member.disk.synced_term_at(LogIndex(first.index.0 - 1)));
            self.checks.appended(base, &appended);
        }
        let Some(number) = number else { return };
        let end = self.member(node).disk.end();
        self.say(node, format!("synced {end}"));
        let member = self.member(node);
        let mut released = Vec::new();
        while member.held.front().is_some_and(|(held, _)| *held <= number) {
            released.extend(member.held.pop_front().expect("there is a first").1);
        }
        for message in released {
            self.send(message);
        }
        if let Some(snapshot) = installed {
            let state = decode_state(&snapshot.manifest);
            self.checks.installed(node, snapshot.position, &state);
            let member = self.member(node);
            member.state = state;
            let group = member.group.as_mut().expect("it is up");
            group.persisted(number);
            group.applied(snapshot.position.index);
            if !member.disk.is_installing() {
                assert_eq!(group.membership(), snapshot.membership, "the members are those of the snapshot");
            }
        } else {
            self.member(node).group.as_mut().expect("it is up").persisted(number);
        }
        self.settle(node);
    }

    /// Delivers the message at `at` of the network.
    pub fn deliver_at(&mut self, at: usize) {
        let message = self.network.remove(at);
        self.deliver(message);
    }

    pub fn deliver(&mut self, message: Message) {
        // Through its bytes, so that nothing depends on what only memory holds.
        let mut out = Segments::new();
        message.encode(&mut out);
        let mut bytes = out.to_bytes();
        let decoded = Message::decode(&mut bytes).expect("what was encoded");
        assert_eq!(decoded, message, "a message survives the wire");
        assert!(bytes.is_empty());
        let to = message.to();
        if self.bug == Some(Bug::Deaf) && to == NodeId(2) {
            return;
        }
        if self.members.contains_key(&to) {
            // Refused messages are lawful: a removed member may still talk.
            let _ = self.with(to, |group| group.step(decoded));
        }
    }

    /// Delivers what is on its way, once, but not what is sent in reply.
    pub fn deliver_all(&mut self) {
        for message in std::mem::take(&mut self.network) {
            self.deliver(message);
        }
    }

    /// Syncs and delivers until nothing moves.
    pub fn run(&mut self) {
        for _ in 0..1000 {
            for node in self.nodes() {
                self.sync(node);
            }
            if self.network.is_empty() && self.members.values().all(|member| !member.disk.is_behind()) {
                return;
            }
            self.deliver_all();
        }
        panic!("the cluster never comes to rest (seed {})", self.seed);
    }

    /// A member loses power: of its unsynced writes the first `kept` survive.
    pub fn crash(&mut self, node: NodeId, kept: usize) {
        let bug = self.bug;
        let member = self.member(node);
        member.group = None;
        member.held.clear();
        member.disk.crash(kept);
        match bug {
            Some(Bug::ForgetVote) if node == NodeId(1) => member.disk.forget_vote(),
            Some(Bug::LoseSynced) => member.disk.lose_last(),
            _ => {}
        }
        let end = member.disk.end();
        self.say(node, format!("crashed, keeps {end}"));
    }

    /// A member comes back with what its disk has. With `replay` it applies what is provably
    /// committed before it starts.
    pub fn restart(&mut self, node: NodeId, replay: bool) {
        if self.is_up(node) {
            return;
        }
        let member = self.member(node);
        member.incarnation += 1;
        let (restored, state) = member.disk.restore(replay);
        member.state = state;
        self.start(node, restored);
    }

    /// Writes a checkpoint of what is applied and gives up the log before it, but for `behind`
    /// entries.
    pub fn checkpoint(&mut self, node: NodeId, behind: u64) {
        let member = self.member(node);
        let Some(group) = member.group.as_mut() else { return };
        if member.disk.is_installing() {
            return;
        }
        let applied = group.status().applied;
        member.disk.checkpoint(applied, group.membership(), member.state.clone());
        let compacted = member.disk.compact(LogIndex(applied.0.saturating_sub(behind)));
        group.compact(compacted);
        self.settle(node);
    }

    /// What was traced since the last call.
    pub fn take_trace(&mut self) -> String {
        std::mem::take(&mut self.trace)
    }

    pub fn say(&mut self, node: NodeId, what: impl AsRef<str>) {
        writeln!(self.trace, "{node} {}", what.as_ref()).expect("writing to a string");
    }

    fn send(&mut self, message: Message) {
        self.checks.sent(&message);
        writeln!(self.trace, "{message}").expect("writing to a string");
        self.network.push(message);
    }

    /// Takes what a member wants until it wants nothing more: writes wait for a sync, committed
    /// entries are applied.
    fn settle(&mut self, node: NodeId) {
        let mut ready = std::mem::take(&mut self.ready);
        loop {
            self.check_leader(node);
            let Some(group) = self.member(node).group.as_mut() else { break };
            if !group.ready(&mut ready) {
                break;
            }
            self.handle(node, &mut ready);
        }
        self.ready = ready;
    }

    fn check_leader(&mut self, node: NodeId) {
        let Some(group) = &self.members[&node].group else { return };
        let status = group.status();
        // Before its vote is synced a sole voter leads in silence, and may lose the term again with
        // the power.
        if status.role == Role::Leader && self.members[&node].disk.synced_term() == status.term {
            let disk = &self.members[&node].disk;
            self.checks.leads(node, status.term, || disk.log_as_written());
        }
        if status.role == Role::Leader && status.commit > status.applied {
            let position = Position { index: status.commit, term: self.members[&node].disk.term_at(status.commit) };
            let synced = |node: &NodeId| self.members.get(node).is_some_and(|member| member.disk.has_synced(position));
            self.checks.leader_commits(status.term, position, &group.membership(), synced);
        }
    }

    fn handle(&mut self, node: NodeId, ready: &mut Ready) {
        let status = self.status(node).expect("it is up");
        if ready.role_changed {
            let leader = status.leader.map_or("nobody".to_owned(), |leader| leader.to_string());
            self.say(node, format!("{} term={} leader={leader}", status.role, status.term));
        }
        if self.bug == Some(Bug::ChangeEntry) && node == NodeId(2) {
            for entry in ready.append.iter_mut().filter(|entry| entry.kind == EntryKind::Command) {
                entry.data = Bytes::from_static(b"changed");
            }
        }
        for entry in &ready.append {
            let what = match entry.kind {
                EntryKind::Command => String::from_utf8_lossy(&entry.data[..entry.data.len().min(24)]).into_owned(),
                EntryKind::Membership => "members".to_owned(),
                EntryKind::Empty => "-".to_owned(),
            };
            self.say(node, format!("append {} {what}", entry.position()));
        }
        self.member(node).disk.write(Write {
            number: ready.number,
            must_sync: ready.must_sync,
            append: ready.append.clone(),
            hard_state: ready.hard_state,
            snapshot: ready.snapshot.clone(),
        });
        if status.role != Role::Leader {
            // What a leader has appended and neither sent nor synced may be lost, and its place
            // taken again in the same term: a sole voter wins that term again.
            let base = self.members[&node].disk.term_before(ready.append.first());
            self.checks.appended(base, &ready.append);
        }
        for message in ready.messages.drain(..) {
            self.send(message);
        }
        if self.bug == Some(Bug::SendBeforeSync) {
            for message in ready.messages_after_sync.drain(..) {
                self.send(message);
            }
        }
        if !ready.messages_after_sync.is_empty() {
            let messages: Vec<Message> = ready.messages_after_sync.drain(..).collect();
            self.member(node).held.push_back((ready.number, messages));
        }
        for read in &ready.read_states {
            self.say(node, format!("may read {} at {}", read.context, read.index));
            self.member(node).reads.push((read.context, read.index));
        }
        if self.bug == Some(Bug::ApplyTwice) && node == NodeId(2) {
            let again = ready.committed.iter().position(|entry| entry.index.0.is_multiple_of(10));
            if let Some(at) = again {
                ready.committed.insert(at, ready.committed[at].clone());
            }
        }
        self.apply(node, &ready.committed);
        for fetch in ready.fetches.drain(..) {
            self.say(node, format!("fetch from={} limit={}", fetch.from, fetch.limit));
            let entries = self.members[&node].disk.fetch(fetch);
            self.member(node).group.as_mut().expect("it is up").fetched(fetch.from, entries);
        }
        for wanted in ready.snapshots_wanted.drain(..) {
            self.say(node, format!("snapshot wanted to={} min={}", wanted.to, wanted.index_min));
            let offer = self.snapshot(node);
            assert!(offer.position.index >= wanted.index_min, "what is applied is beyond what is compacted");
            self.member(node).group.as_mut().expect("it is up").offer_snapshot(wanted.to, offer);
        }
    }

    fn apply(&mut self, node: NodeId, committed: &[Entry]) {
        let Some(last) = committed.last() else { return };
        self.say(node, format!("commit {}", last.position()));
        for entry in committed {
            self.checks.committed(node, entry);
            if entry.kind == EntryKind::Command {
                let applied = (entry.position(), entry.data.clone());
                self.members.get_mut(&node).expect("a member").state.push(applied);
            }
        }
        let group = self.member(node).group.as_mut().expect("it is up");
        group.applied(last.index);
        if committed.iter().any(|entry| entry.kind == EntryKind::Membership) {
            let membership = group.membership();
            let list = |nodes: &[NodeId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let mut text = format!("members voters={}", list(&membership.voters));
            if !membership.learners.is_empty() {
                write!(text, " learners={}", list(&membership.learners)).expect("writing to a string");
            }
            if membership.is_joint() {
                write!(text, " outgoing={}", list(&membership.voters_outgoing)).expect("writing to a string");
            }
            self.say(node, text);
        }
    }

    fn snapshot(&self, node: NodeId) -> SnapshotOffer {
        let member = &self.members[&node];
        let group = member.group.as_ref().expect("it is up");
        let index = group.status().applied;
        SnapshotOffer {
            position: Position { index, term: member.disk.term_at(index) },
            membership: group.membership(),
            manifest: match member.state.split_last() {
                Some((_, rest)) if self.bug == Some(Bug::CutSnapshot) => encode_state(rest),
                _ => encode_state(&member.state),
            },
        }
    }
}

pub fn encode_state(state: &[(Position, Bytes)]) -> Bytes {
    let mut out = Segments::new();
    out.put_varint(state.len() as u64);
    for (position, data) in state {
        out.put_slice(&position.index.0.to_be_bytes());
        out.put_slice(&position.term.0.to_be_bytes());
        out.put_slice(&(data.len() as u64).to_be_bytes());
        out.put_slice(data);
    }
    out.to_bytes()
}

pub fn decode_state(bytes: &Bytes) -> State {
    // The count is a varint: skip it, what follows is self-delimiting.
    let mut at = bytes.iter().position(|byte| byte & 0x80 == 0).expect("a varint ends") + 1;
    let number = |at: &mut usize| {
        *at += 8;
        u64::from_be_bytes(bytes[*at - 8..*at].try_into().expect("eight bytes"))
    };
    let mut state = Vec::new();
    while at < bytes.len() {
        let position = Position::new(number(&mut at), number(&mut at));
        let length = number(&mut at) as usize;
        state.push((position, bytes.slice(at..at + length)));
        at += length;
    }
    state
}
