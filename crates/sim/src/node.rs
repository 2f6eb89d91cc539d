//! One node: partitions over a faulty disk, and a shell that carries out what they want as the
//! server's threads do.
//!
//! ```text
//! inbox ──turn──▶ partitions ──WalWrite──▶ log: append ▸ written ▸ sync ▸ synced ─────────┐
//!   ▲               │  │ └──Read──▶ reader thread ────────────────────────────────────────┤
//!   │               │  └──Job──▶ upkeep thread: extents, checkpoints ─────────────────────┤
//!   └───────────────┴──────────────── completions ◀───────────────────────────────────────┘
//! ```
//!
//! Invariants: each thread does one thing at a time and takes virtual time for it; a disk operation
//! happens at one moment, so a crash falls before it, in its middle, or after it; what was reported
//! to a partition had been done by then, and an answer of an earlier life of the node never
//! arrives. A node that a fault hits stops as the server does: at once.

use crate::bug::Bug;
use crate::random::Random;
use crate::schedule::{MS, Micros};
use broker::{ChannelKey, ConsumerKey, NodeLife, PartitionId, QueueId};
use consensus::{Change, Membership, NodeId, Refused, Role, Term};
use node::{
    Batch, Completions, EndingMember, Load, LogQueue, LogWriter, Millis, QueueMember, Reader, Shard, Task, Upkeep,
    Waits,
};
use partition::machine::FIRST_MACHINE_VERSION;
use partition::peer::forward::Forward;
use partition::{Command, Effect, PeerFrame, QueuePartition};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use storage::{ClusterRecord, DataFolder, FaultyDisk, Life, Record, RecordKind, StorageError};
use switch::Directory;

mod files;
mod output;
mod queues;
mod spoil;
mod start;
mod topology;
mod turn;

pub use output::{Happening, NoSockets, Said, Sockets, StepOutput, View};
pub use queues::Known;
pub use start::Restored;
pub(crate) use topology::CLASSIC_EVERYWHERE;
pub use topology::TOPOLOGY;

/// Bytes of publishes that one turn takes in: an entry must fit into the small log files of a
/// simulation.
const TURN_BYTES_MAX: usize = 48 << 10;
/// Closed log files are kept up to this many bytes before live messages are copied out of them.
const RETAINED_BYTES_MAX: u64 = 1 << 20;
/// A small budget for an index of the log: about fifty batches a partition.
const INDEX_BYTES: u64 = 4 << 10;
/// The node's setting for how long anything stays unsynced.
const SYNC_DELAY_MAX: Micros = 10 * MS;
/// How often the node notes what may be forgotten.
const FORGOT_EVERY: Micros = 150 * MS;
/// Wall clock of the cluster at the start of a run, milliseconds.
pub(crate) const EPOCH_MS: u64 = 1_700_000_000_000;

/// One connection of a client to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// What never changes while a cluster runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Those who found every partition's group. Another node is a member of none at first.
    pub members: Vec<NodeId>,
    /// Partitions, the same on every node.
    pub partitions: Vec<PartitionId>,
    /// Where all choices come from.
    pub seed: u64,
    /// Size of log files.
    pub file_bytes: u32,
    /// Memory for the newest entries.
    pub tail_bytes: usize,
    /// Small limits in consensus, so that a short run meets them.
    pub tight: bool,
    /// Whether extents and checkpoints are made.
    pub upkeep: bool,
    /// What the shell does wrong.
    pub bug: Option<Bug>,
    /// Queues come and go.
    pub turnover: bool,
    /// The topology's group has a member on every node.
    pub declares: bool,
    /// Nodes are upgraded, each with its first restart; see `node/start.rs`.
    pub upgrades: bool,
    /// Extents may rot.
    pub has_rot: bool,
    /// What a node wants decided goes to whoever leads the topology's group.
    pub forwards: bool,
    /// It is a cluster of one, and starts as the server does then.
    pub alone: bool,
    /// It is a node of a cluster, and starts as the server does then, by its record.
    pub by_record: bool,
    /// Partitions whose publishers take a refusal for an answer: what follows one may be taken in.
    pub gives_up: Vec<bool>,
    /// Only the first partition is founded with the nodes: the others come to be by the topology, with
    /// members on three of them.
    pub pools: bool,
    /// One of these pools has partitions on one node each.
    pub classic: bool,
    /// Who left a group may come back to it.
    pub returns: bool,
}

/// What came on a client's connection.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all are commands.
enum Input {
    Command(Command),
    /// The connection ended, and the channel with it.
    ChannelEnds,
    /// The connection ended; the channel goes on elsewhere.
    SessionEnds,
}

#[derive(Debug)]
struct Session {
    partition: usize,
    channel: ChannelKey,
    /// A publish was refused: those behind it must not overtake it.
    broken: bool,
}

/// One of a node's shards: partitions that take their turns together, and what waits for them.
struct Thread {
    shard: Shard<topology::Decided>,
    waits: RefCell<Waits>,
    /// Whose commands wait, in their order, by place; nobody's are the node's own.
    senders: Vec<VecDeque<Option<SessionId>>>,
    commands: VecDeque<(SessionId, Input)>,
    turn_due: bool,
    /// What its last turn was busy with.
    load: Load,
    /// When a partition wants a turn.
    due_at: Option<Millis>,
}

/// A node that is up.
struct Running {
    folder: DataFolder<FaultyDisk>,
    folder_life: Life,
    queue: LogQueue,
    writer: LogWriter<FaultyDisk>,
    /// Who holds the log, and what it has taken.
    author: Option<files::Author>,
    batch: Batch,
    /// What was said and is not yet where it belongs.
    told: files::Told,
    /// The fastest and the slowest sync of its disk.
    sync_takes: (Micros, Micros),
    reader: Reader<FaultyDisk>,
    upkeep: Upkeep<FaultyDisk>,
    tasks: VecDeque<Task>,
    is_upkeep_due: bool,
    threads: Vec<Thread>,
    directory: Directory,
    /// The shard of each partition of queues, by its number, and its place there.
    places: Vec<(usize, usize)>,
    lists: BTreeMap<PartitionId, Completions>,
    /// The terms in which partitions took commands last, to notice a change.
    serving: Vec<Option<Term>>,
    /// Partitions of which something in the log is damaged.
    quarantined: BTreeSet<PartitionId>,
    bug: Option<Bug>,
    reading: u32,
    sessions: BTreeMap<SessionId, Session>,
    channels: BTreeMap<ChannelKey, SessionId>,
    /// Consumers that were passed over, each with the number of its partition, if that is one of
    /// queues on the disk.
    stalled: BTreeSet<(Option<usize>, ConsumerKey)>,
    consumed: BTreeMap<ConsumerKey, QueueId>,
    /// A delivery that a wrong shell sends once more, and since when.
    kept: Option<(Micros, PartitionId, Effect)>,
    /// The latest that its clock showed.
    latest_ms: u64,
}

/// How far a loss of power has come that waits for its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// None is to come.
    None,
    /// It comes after the next write of the log,
    AfterWrite,
    /// in the sync of that.
    AtSync,
}

/// One node.
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its disk.
    pub disk: Arc<FaultyDisk>,
    /// The number of its present start, where clients speak through sessions.
    pub start_number: u32,
    /// Over how many shards its partitions are spread from its next start on.
    pub shards: usize,
    /// With whom it founded the cluster, or what it was told when it joined.
    pub record: Option<ClusterRecord>,
    /// Its lives so far; what was meant for an earlier one must not reach it.
    pub life: u32,
    /// The newest machine version that every member has said to know, each at its last start.
    pub all_can: u32,
    /// What this node said at its last start.
    pub said_can: u32,
    /// The boots of its machine.
    pub boot: u32,
    /// It does nothing until then: a stalled machine.
    pub paused_until: Micros,
    /// Its disk takes this many times as long.
    pub disk_slowness: u64,
    /// How far its clock is off, milliseconds.
    pub clock_ms: i64,
    /// A fault waits for one of its next disk operations.
    pub has_faults: bool,
    /// Its power goes at a moment of its own log.
    pub power_loss: PowerLoss,
    /// Percent of asks whether a connection has room that find none.
    pub full_outlets: u64,
    settings: Settings,
    /// Queues of each partition, as far as this node has heard.
    known: Vec<Known>,
    /// Of each partition the members that its group is to have, as far as this node has heard; nobody
    /// says at first.
    pub(crate) wanted: Vec<Vec<NodeId>>,
    /// How often this node has left each partition, as far as it has heard.
    pub(crate) left: Vec<u32>,
    /// What it has heard is not of the past: it may begin as a member of something.
    pub(crate) knows_map: bool,
    /// Of partitions to which it comes back by a map, how.
    returns: BTreeMap<PartitionId, topology::Vacancy>,
    random: Random,
    running: Option<Running>,
    now: Micros,
}

impl Node {
    /// A node with an empty disk, down.
    pub fn new(id: NodeId, settings: Settings, mut random: Random) -> Node {
        let disk = Arc::new(FaultyDisk::new(random.next()));
        Node {
            id,
            disk,
            start_number: 0,
            shards: 1,
            record: None,
            life: 0,
            all_can: FIRST_MACHINE_VERSION,
            said_can: FIRST_MACHINE_VERSION,
            boot: 0,
            paused_until: 0,
            disk_slowness: 1,
            clock_ms: 0,
            has_faults: false,
            power_loss: PowerLoss::None,
            full_outlets: 0,
            known: vec![Known::new(); settings.partitions.len()],
            wanted: vec![Vec::new(); settings.partitions.len()],
            left: vec![0; settings.partitions.len()],
            knows_map: !settings.returns || !settings.pools,
            returns: BTreeMap::new(),
            settings,
            random,
            running: None,
            now: 0,
        }
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// The process is gone; what it had on the disk is the disk's matter. Sessions that it had are
    /// told.
    pub fn stop(&mut self) -> Vec<SessionId> {
        self.life += 1;
        self.knows_map = !self.settings.returns || !self.settings.pools;
        self.running.take().map(|r| r.sessions.into_keys().collect()).unwrap_or_default()
    }

    /// How a partition stands, if the node is up.
    pub fn view(&self, partition: usize) -> Option<View> {
        let p = self.running.as_ref()?.queues(partition)?;
        let status = p.replica().group().status();
        Some(View {
            term: status.term,
            leads: status.role == Role::Leader,
            serves: p.is_leading(),
            leader: status.leader,
            applied: p.applied(),
            compacted: status.compacted.index,
            last: status.last.index,
            may_have_forgotten: p.replica().may_have_forgotten(),
            gave_up_waiting: p.replica().group().gave_up_waiting(),
        })
    }

    /// A partition itself, for looking at its state.
    pub fn partition(&self, partition: usize) -> Option<&QueuePartition> {
        self.running.as_ref()?.queues(partition)
    }

    /// The partitions that are quarantined here.
    pub fn quarantined(&self) -> Vec<PartitionId> {
        self.running.iter().flat_map(|r| r.quarantined.iter().copied()).collect()
    }

    /// Hands leadership to another member, if it leads.
    pub fn transfer(&mut self, partition: usize, to: NodeId) {
        if let Some(r) = &mut self.running {
            // Refused where it does not lead, or hands it over already.
            let Some(member) = r.queues_mut(partition) else { return };
            let _ = member.partition_mut().replica_mut().group_mut().transfer_leadership(to);
        }
    }

    /// The members of a partition's group, as this node has them.
    pub fn membership(&self, partition: usize) -> Option<Membership> {
        Some(self.partition(partition)?.replica().group().membership())
    }

    /// Begins a change of the members of a partition's group, as its leader.
    pub fn change_members(
        &mut self,
        partition: usize,
        changes: &[Change],
        out: &mut StepOutput,
    ) -> Result<(), Refused> {
        let r = self.up();
        let at = r.places[partition];
        let member = r.queues_mut(partition).expect("who leads is no damaged group");
        member.partition_mut().replica_mut().group_mut().change_membership(changes)?;
        self.wake(at, out);
        Ok(())
    }

    /// Ends this node's part in a partition's group; false if it has none, or has begun to.
    pub fn end_group(&mut self, partition: usize, out: &mut StepOutput) -> bool {
        let Some(r) = self.running.as_mut().filter(|r| r.queues(partition).is_some()) else { return false };
        let at = r.places[partition];
        r.threads[at.0].shard.end(at.1);
        self.wake(at, out);
        true
    }

    /// Whether nothing is left here of a group that this node left.
    pub fn has_left(&self, partition: usize) -> bool {
        let Some(r) = &self.running else { return false };
        let (shard, place) = r.places[partition];
        let has_place = self.settings.returns && r.queues(partition).is_none();
        let is_quarantined = r.quarantined.contains(&self.settings.partitions[partition]);
        r.threads[shard].shard.ending(place).map_or(has_place && !is_quarantined, EndingMember::is_over)
    }

    /// The disk is gone, with everything that was on it. Only with a wrong shell does the node come
    /// back, over another one.
    pub fn lose_disk(&mut self) {
        self.disk = Arc::new(FaultyDisk::new(self.random.next()));
    }

    /// One line about how it stands.
    pub fn describe(&self) -> String {
        let Some(r) = &self.running else { return format!("{}: down", self.id) };
        let mut text = format!("{}:", self.id);
        for (_, p) in r.all_queues() {
            let s = p.replica().group().status();
            text += &format!(
                " p{} {} term {} last {} persisted {} commit {} applied {} compacted {} forgetful {} as {} leaves {} of {:?} | {:?}",
                p.id().0,
                s.role,
                s.term.0,
                s.last,
                s.persisted.0,
                s.commit.0,
                p.applied().0,
                s.compacted,
                p.replica().may_have_forgotten(),
                p.replica().node(),
                p.replica().is_leaving(),
                p.replica().group().membership(),
                p.replica().group().progress(),
            );
        }
        if let Some(view) = self.topology_view() {
            text += &format!(" topology {view:?}");
        }
        text + &format!(" log {:?} held by {:?} reading {} tasks {}", r.queue, r.author, r.reading, r.tasks.len())
    }

    /// A frame of another node arrives.
    pub fn receive(&mut self, from: NodeId, partition: PartitionId, frame: PeerFrame, out: &mut StepOutput) {
        let is_lost = partition == TOPOLOGY && matches!(frame, PeerFrame::PullImage { .. });
        if self.settings.bug != Some(Bug::PullsAreLost) || !is_lost {
            self.put(partition, out, |waits, place| waits.receive(place, from, frame));
        }
    }

    /// What another node wants of a group itself arrives.
    pub(crate) fn receive_forward(
        &mut self,
        partition: PartitionId,
        from: NodeLife,
        forward: Forward,
        out: &mut StepOutput,
    ) {
        self.put(partition, out, |waits, place| waits.receive_forward(place, from, forward));
    }

    /// Whether a shard waits for its own sync.
    pub(crate) fn stands_still(&self, shard: usize) -> bool {
        self.running.as_ref().is_some_and(|running| running.author == Some(files::Author::Shard(shard)))
    }

    /// Where each partition runs, while the node is up.
    pub(crate) fn directory(&self) -> Option<&Directory> {
        self.running.as_ref().map(|running| &running.directory)
    }

    /// A client connects; false if nobody listens.
    pub fn open(&mut self, session: SessionId, partition: usize, channel: ChannelKey) -> bool {
        let Some(r) = &mut self.running else { return false };
        r.sessions.insert(session, Session { partition, channel, broken: false });
        r.channels.insert(channel, session);
        true
    }

    /// A command of a client arrives.
    pub fn command(&mut self, session: SessionId, command: Command, out: &mut StepOutput) {
        let Some(command) = self.look_up(session, command, out) else { return };
        self.input(session, Input::Command(command), out);
    }

    /// Something comes for a partition, whether from here or elsewhere. Lost if the node is down.
    pub fn enqueue(&mut self, partition: usize, command: Command, out: &mut StepOutput) {
        self.enqueue_for(self.settings.partitions[partition], command, out);
    }

    /// The same, by the partition's name, which may be what a shard has in memory.
    pub fn enqueue_for(&mut self, partition: PartitionId, command: Command, out: &mut StepOutput) {
        let Some(r) = &mut self.running else { return };
        let Some(at) = r.directory.find(partition) else { return };
        r.send(at, None, command);
        self.want_turn(at.0, out);
    }

    /// The topology has this queue from now on.
    pub fn declare(&mut self, partition: PartitionId, queue: QueueId, out: &mut StepOutput) {
        self.put(partition, out, |waits, place| waits.declare(place, queue));
    }

    /// A client's connection ends, and its channel with it if `ended`.
    pub fn close(&mut self, session: SessionId, ended: bool, out: &mut StepOutput) {
        self.input(session, if ended { Input::ChannelEnds } else { Input::SessionEnds }, out);
    }

    /// Something came on a connection, for the shard of its partition; from one that is gone it is
    /// for nobody.
    fn input(&mut self, session: SessionId, input: Input, out: &mut StepOutput) {
        let Some(r) = &mut self.running else { return };
        let Some(of) = r.sessions.get(&session) else { return };
        let (shard, _) = r.places[of.partition];
        r.threads[shard].commands.push_back((session, input));
        self.want_turn(shard, out);
    }

    /// Puts something where a partition finds it in its next turn; nothing where it does not run.
    fn put(&mut self, partition: PartitionId, out: &mut StepOutput, put: impl FnOnce(&mut Waits, usize)) {
        let Some(r) = &self.running else { return };
        let Some((shard, place)) = r.directory.find(partition) else { return };
        put(&mut r.threads[shard].waits.borrow_mut(), place);
        self.want_turn(shard, out);
    }

    fn wake(&mut self, (shard, place): (usize, usize), out: &mut StepOutput) {
        self.up().threads[shard].waits.borrow_mut().wake(place);
        self.want_turn(shard, out);
    }

    /// The client that has this channel here.
    pub fn session_of(&self, channel: ChannelKey) -> Option<SessionId> {
        self.running.as_ref()?.channels.get(&channel).copied()
    }

    /// Something that was to happen happens.
    pub fn happen(&mut self, now: Micros, happening: Happening, sockets: &mut dyn Sockets, out: &mut StepOutput) {
        self.now = now;
        if self.running.is_none() {
            return;
        }
        if now < self.paused_until && self.settings.bug == Some(Bug::StallIsForgotten) {
            return;
        }
        if now < self.paused_until {
            let jitter = self.random.below(100);
            out.later.push((self.paused_until - now + jitter, happening));
            return;
        }
        match happening {
            // It stands still: whoever it waits for calls it.
            Happening::Turn(shard) if self.stands_still(shard) => self.up().threads[shard].turn_due = false,
            Happening::Turn(shard) => self.turn(shard, sockets, out),
            Happening::Commit(shard) => self.commit(shard, out),
            Happening::LogDue => self.look_at_log(out),
            Happening::Write => self.write(out),
            Happening::Sync => self.sync(out),
            Happening::Read(read) => self.read(read, out),
            Happening::Upkeep => self.upkeep(out),
            Happening::Due(shard) => {
                let thread = &mut self.up().threads[shard];
                if thread.due_at.take_if(|at| *at <= now / MS).is_some() {
                    self.want_turn(shard, out);
                }
            }
            Happening::Forgot => {
                out.later.push((FORGOT_EVERY, Happening::Forgot));
                match self.up().note_forgot() {
                    Err(error) if !error.is_full() => {
                        out.stopped = Some(format!("what is forgotten could not be noted: {error}"));
                    }
                    _ => (0..self.up().threads.len()).for_each(|shard| self.want_turn(shard, out)),
                }
            }
        }
    }

    fn up(&mut self) -> &mut Running {
        self.running.as_mut().expect("only a node that is up is asked")
    }

    fn want_turn(&mut self, shard: usize, out: &mut StepOutput) {
        let after = self.random.between(2, 60);
        if !std::mem::replace(&mut self.up().threads[shard].turn_due, true) {
            out.later.push((after, Happening::Turn(shard)));
        }
    }

    fn wall_ms(&self) -> u64 {
        (EPOCH_MS + self.now / MS).saturating_add_signed(self.clock_ms)
    }
}

impl Running {
    /// Notes which partitions have not caught up since the end of the log was in doubt.
    fn note_forgot(&mut self) -> Result<(), StorageError> {
        let in_doubt = self.all_queues().filter(|(_, p)| p.replica().may_have_forgotten()).map(|(_, p)| p.id().0);
        // Who is quarantined has not caught up.
        let still = self.quarantined.iter().map(|id| id.0).filter(|id| self.folder_life.forgot().contains(*id));
        let in_doubt = in_doubt.chain(still).collect();
        self.folder_life.note_forgot(&**self.folder.disk(), &in_doubt)
    }

    /// A partition of queues, unless it is quarantined.
    fn queues(&self, partition: usize) -> Option<&QueuePartition> {
        let (shard, place) = self.places[partition];
        Some(self.threads[shard].shard.queues(place)?.partition())
    }

    /// The same, with what its shard knows of it.
    fn queues_mut(&mut self, partition: usize) -> Option<&mut QueueMember> {
        let (shard, place) = self.places[partition];
        self.threads[shard].shard.queues_mut(place)
    }

    /// All that are not quarantined, by their numbers.
    fn all_queues(&self) -> impl Iterator<Item = (usize, &QueuePartition)> {
        (0..self.serving.len()).filter_map(|at| Some((at, self.queues(at)?)))
    }

    /// Puts a command where its partition finds it.
    fn send(&mut self, (shard, place): (usize, usize), sender: Option<SessionId>, command: Command) {
        let thread = &mut self.threads[shard];
        thread.senders[place].push_back(sender);
        thread.waits.borrow_mut().push(place, command);
    }
}

/// Whether a write holds a term or a vote and nothing else.
fn is_vote_only(records: &[Record]) -> bool {
    !records.is_empty() && records.iter().all(|r| r.kind == RecordKind::HardState)
}
