//! The road of a change to the topology: proposed here, decided by the metadata partition, answered
//! later.
//!
//! Invariant: whoever answers has applied the command to the node's topology and carried out its
//! effects before, so that a queue which was declared takes messages by the time its client hears
//! of it.

use crate::node::Shared;
use crate::shard::Mailbox;
use broker::topology::{Applied, Command, CommandReply, Home, Refusal, Topology};
use broker::{ChannelKey, NodeNumber};
use node::Knowledge;
use partition::RequestId;
use std::sync::{Arc, Weak, mpsc};
use tokio::sync::oneshot;

/// So many queues that end with their node are named in the log.
const ENDED_NAMED_MAX: usize = 5;

/// Where the answer to a proposal goes. A channel whose proposal is dropped undecided hears that
/// too.
pub struct Answer(Option<To>);

enum To {
    Channel { mailbox: Mailbox, channel: ChannelKey, request: RequestId },
    Waiter(mpsc::Sender<Result<CommandReply, Refusal>>),
    Task(oneshot::Sender<Result<CommandReply, Refusal>>),
}

impl Answer {
    pub(crate) fn new(mailbox: Mailbox, channel: ChannelKey, request: RequestId) -> Self {
        Answer(Some(To::Channel { mailbox, channel, request }))
    }

    /// The answer goes to a thread that waits for it.
    pub(crate) fn to_waiter(waiter: mpsc::Sender<Result<CommandReply, Refusal>>) -> Self {
        Answer(Some(To::Waiter(waiter)))
    }

    /// The answer goes to a task that waits for it.
    pub(crate) fn to_task(task: oneshot::Sender<Result<CommandReply, Refusal>>) -> Self {
        Answer(Some(To::Task(task)))
    }

    /// Tells who asked that nothing stands in its way.
    pub(crate) fn done(self) {
        self.send(Applied { outcome: Ok(CommandReply::Done), effects: Vec::new() });
    }

    /// Tells the proposer what became of its command.
    pub fn send(mut self, applied: Applied) {
        match self.0.take() {
            Some(To::Channel { mailbox, channel, request }) => {
                mailbox.cross(switch::Parcel::Decided { channel, request, outcome: applied.outcome });
            }
            // Who does not wait any more does not need it.
            Some(To::Waiter(waiter)) => drop(waiter.send(applied.outcome)),
            Some(To::Task(task)) => drop(task.send(applied.outcome)),
            None => {}
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Waiters and tasks see their sender go.
        if let Some(To::Channel { mailbox, channel, request }) = self.0.take() {
            mailbox.cross(switch::Parcel::Decided { channel, request, outcome: Err(Refusal::undecided()) });
        }
    }
}

/// What decides about replicated changes.
pub trait TopologyLog: Send + Sync {
    /// Proposes `command`. Returns at once; `answer` is sent when it was decided, applied through
    /// [`Changes::apply`] and carried out. A log that is dropped leaves its proposers without an
    /// answer.
    fn propose(&self, command: Command, answer: Answer);

    /// Asks for nothing but to know. Returns at once; `answer` is sent, as done, when all that was
    /// decided before this call is applied here, or as [`TopologyLog::propose`] says where nobody
    /// finds that out.
    fn catch_up(&self, answer: Answer);
}

/// A node's topology, as seen by who applies decided commands to it.
#[derive(Clone)]
pub struct Changes {
    shared: Weak<Shared>,
}

impl Changes {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Changes { shared: Arc::downgrade(shared) }
    }

    /// Looks at the topology; `None` when the node is gone.
    pub(crate) fn with_topology<T>(&self, look: impl FnOnce(&Topology) -> T) -> Option<T> {
        Some(look(&self.shared.upgrade()?.topology()))
    }

    /// Who is to lead the topology's group instead of this node, if that is to lead nothing.
    pub(crate) fn heir(&self) -> Option<NodeNumber> {
        let shared = self.shared.upgrade()?;
        let leaders = &shared.leaders;
        if !leaders.rests(leaders.own()) {
            return None;
        }
        let linked = shared.links.get()?.linked();
        linked.into_iter().find(|node| !leaders.rests(*node))
    }

    /// So much of it is known to be all.
    pub(crate) fn known(&self, knowledge: Knowledge) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lease.note(knowledge);
        }
    }

    /// Whether somebody has asked since the last look whether it is all.
    pub(crate) fn was_knowledge_used(&self) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.lease.take_used())
    }

    /// The replicated part of the topology, for a checkpoint; empty when the node is gone.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        self.shared.upgrade().map(|shared| shared.topology().encode_snapshot().to_vec()).unwrap_or_default()
    }

    /// Takes over the replicated part of a snapshot, and has the node's partitions carry out what
    /// follows.
    ///
    /// - Panics: on bytes that [`Topology::decode_snapshot`] refuses; who is sent them looks
    ///   before.
    pub(crate) fn install(&self, snapshot: &[u8]) {
        let Some(shared) = self.shared.upgrade() else { return };
        let effects = shared.install_topology(snapshot).expect("it was looked at before it was taken");
        shared.carry_out(&effects);
    }

    /// Applies a decided command and has the node's partitions carry out what follows. `is_own`: it
    /// was wanted on this node, which tells of it. `None` when the node is gone.
    ///
    /// - Order: to be called in the order of the log, by one caller at a time.
    pub fn apply(&self, command: &Command, is_own: bool) -> Option<Applied> {
        let shared = self.shared.upgrade()?;
        if let (Command::EndHome(home), true) = (command, is_own) {
            tell_end(&shared.topology(), home);
        }
        let applied = shared.change_topology(command, Topology::apply, is_own, &*shared);
        shared.carry_out(&applied.effects);
        Some(applied)
    }
}

/// The log says what goes with a node: nobody deleted it.
fn tell_end(topology: &Topology, home: &Home) {
    let mut names = String::new();
    let mut count = 0;
    for queue in topology.at_home(home) {
        count += 1;
        if count <= ENDED_NAMED_MAX {
            names += if count > 1 { ", " } else { "" };
            names += &queue.name.to_string();
        }
    }
    if count > 0 {
        let more = if count > ENDED_NAMED_MAX { ", ..." } else { "" };
        let node = topology.shown_node(home.node);
        let queues = if count == 1 { "queue is" } else { "queues are" };
        tracing::info!("{count} exclusive or transient {queues} gone with the memory of {node}: {names}{more}");
    }
}

/// A log that decides at once and remembers nothing: for a node without durable queues, and for
/// tests.
pub struct MemoryLog {
    changes: Changes,
}

impl MemoryLog {
    /// The log of this node.
    pub fn new(changes: Changes) -> Self {
        MemoryLog { changes }
    }
}

impl TopologyLog for MemoryLog {
    fn propose(&self, command: Command, answer: Answer) {
        if let Some(applied) = self.changes.apply(&command, true) {
            answer.send(applied);
        }
    }

    fn catch_up(&self, answer: Answer) {
        answer.done();
    }
}
