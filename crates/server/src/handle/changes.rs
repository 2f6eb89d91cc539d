//! Changes that the operator makes, and what came of them.
//!
//! Invariant: a change goes the way of every client's, and done means decided, durable and in force on this
//! node. Where nobody knows whether it is done, that is the answer.

use super::Handle;
use crate::node::Shared;
use crate::patterns;
use crate::shard::Outsider;
use crate::topology_log::Answer;
use broker::topology::{Actor, Checked, Command, CommandReply, NodeStanding, QueueDeclare, QueueDeclared, Refusal};
use broker::{NodeNumber, PartitionId, QueueId};
use partition::Reply;
use session::{Asker, Deletion};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a leader is looked for, and how often.
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// What was declared is answered once a partition that came with it is led, or after this long.
pub(crate) const FIRST_LEADER_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const FIRST_LEADER_LOOK_EVERY: Duration = Duration::from_millis(5);
const LEADER_LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The topology refuses it.
    #[error("{0}")]
    Refused(Refusal),
    /// Something has to be unused or empty, and is not.
    #[error("{0}")]
    InUse(&'static str),
    /// The queue's partition is quarantined.
    #[error("the queue is unavailable: its partition is damaged on this node and has to be repaired")]
    Unavailable,
    /// The node drains, or its log does not answer.
    #[error(
        "the node is ending, or what should do it does not answer any more: nobody knows whether it is done; look once the node is back"
    )]
    NoAnswer,
    /// The cluster decided nothing about it in time.
    #[error(
        "no majority of the cluster has decided about it: nobody knows whether it is made, or will be once a majority is there; look then, \
         and do it again if it is not. {0}"
    )]
    Undecided(String),
    /// The same of a question.
    #[error(
        "no majority of the cluster has said that this node knows all that is decided, so nothing was changed. {0}"
    )]
    NotCaughtUp(String),
    /// Nobody came to lead the partition of a queue.
    #[error("nobody leads the queue now, so nobody has done it. {0}")]
    Leaderless(String),
}

impl From<Refusal> for ChangeError {
    fn from(refusal: Refusal) -> Self {
        ChangeError::Refused(refusal)
    }
}

impl Shared {
    /// Why there is no answer: of a node of a cluster with the nodes that it does not reach.
    pub(crate) fn unanswered(&self, of_cluster: fn(String) -> ChangeError) -> ChangeError {
        if !self.leaders.has_peers() || self.draining.load(Ordering::Acquire) {
            return ChangeError::NoAnswer;
        }
        let own = self.leaders.own();
        let linked = self.links.get().map_or_else(Vec::new, |links| links.linked());
        let topology = self.topology();
        let others = topology.nodes().filter(|(number, node)| *number != own && node.standing != NodeStanding::Gone);
        let missing = others.filter(|(number, _)| !linked.contains(number));
        let missing: Vec<String> = missing.map(|(_, node)| String::from_utf8_lossy(&node.name).into_owned()).collect();
        of_cluster(match missing.is_empty() {
            true => "This node reaches all others.".to_owned(),
            false => format!("This node does not reach {}.", missing.join(", ")),
        })
    }
}

impl Handle {
    /// Makes a replicated change. Done means decided, durable and in force on this node.
    ///
    /// A change with patterns is weighed first, on a thread of its own and one such change at a
    /// time. Errors: what the topology refuses, and a pattern that takes too long.
    pub async fn change(&self, command: Command) -> Result<CommandReply, ChangeError> {
        if !patterns::has_patterns(&command) {
            return self.decide(command).await;
        }
        let since = Instant::now();
        let mut turn = self.shared().pattern_turn.lock().await;
        if turn.is_vain(since) {
            return Err(self.unanswered(ChangeError::NotCaughtUp));
        }
        let shared = self.shared().clone();
        let weighed = tokio::task::spawn_blocking(move || shared.weigh(&command).map(|()| command)).await;
        let outcome = self.decide(weighed.map_err(|_| ChangeError::NoAnswer)??).await;
        if matches!(outcome, Err(ChangeError::Undecided(_) | ChangeError::NoAnswer)) {
            turn.give_up();
        }
        drop(turn);
        outcome
    }

    async fn decide(&self, command: Command) -> Result<CommandReply, ChangeError> {
        let (sender, decided) = oneshot::channel();
        self.shared().propose(command, Answer::to_task(sender));
        Ok(decided.await.map_err(|_| self.unanswered(ChangeError::Undecided))??)
    }

    /// Why there is no answer: of a node of a cluster with the nodes that it does not reach.
    fn unanswered(&self, of_cluster: fn(String) -> ChangeError) -> ChangeError {
        self.shared().unanswered(of_cluster)
    }

    /// What is to be said of a queue that lives on one node, if that is away.
    pub fn home_is_away(&self, queue: QueueId) -> Option<Refusal> {
        let linked = self.shared().links.get().map_or_else(Vec::new, |links| links.linked());
        let own = self.shared().leaders.own();
        let is_reached = |node| !self.has_peers() || node == own || linked.contains(&node);
        let topology = self.topology();
        topology.check_home(topology.queue(queue)?, is_reached).err()
    }

    /// Waits until this node knows all that was decided by now, so that what it then says of the
    /// topology is no old news. Errors: no majority was found.
    pub async fn catch_up(&self) -> Result<(), ChangeError> {
        if !self.shared().config.has_peers {
            return Ok(());
        }
        let (sender, told) = oneshot::channel();
        self.shared().log().catch_up(Answer::to_task(sender));
        told.await.map_err(|_| self.unanswered(ChangeError::NotCaughtUp))??;
        Ok(())
    }

    /// Makes a change that was checked before.
    pub async fn carry_out(&self, checked: Checked) -> Result<(), ChangeError> {
        match checked {
            Checked::Done => Ok(()),
            Checked::Propose(command) => self.change(command).await.map(|_| ()),
            Checked::Local(command) => self.change_locally(&command),
        }
    }

    fn change_locally(&self, command: &Command) -> Result<(), ChangeError> {
        let applied = self.shared().change_locally(command);
        Ok(applied.outcome.map(|_| ())?)
    }

    /// Declares a queue in somebody's name, a new one on the node `at` if it says which; true if it is new.
    pub async fn declare_queue(
        &self,
        actor: Actor<'_>,
        declare: &QueueDeclare<'_>,
        at: Option<NodeNumber>,
    ) -> Result<bool, ChangeError> {
        let mut has_place = true;
        let declared = self.topology().check_queue_declare(actor, declare, |placement| {
            let place = match placement.in_memory {
                true => Some(self.shared().directory.in_memory(0)),
                false => self.shared().place_queue(&placement, at),
            };
            has_place = place.is_some();
            place.unwrap_or_default()
        })?;
        match declared {
            QueueDeclared::Existing(queue) => match self.home_is_away(queue) {
                Some(refusal) => Err(refusal.into()),
                None => Ok(false),
            },
            QueueDeclared::Local(command) => self.change_locally(&command).map(|()| true),
            QueueDeclared::Propose(_) if !has_place => Err(ChangeError::InUse("this node has no durable queues")),
            QueueDeclared::Propose(command) => {
                let last = self.shared().last_partition();
                let is_new = matches!(self.change(command).await?, CommandReply::Queue { created: true, .. });
                let until = tokio::time::Instant::now() + FIRST_LEADER_TIMEOUT;
                while is_new && !self.shared().are_led_behind(last) && tokio::time::Instant::now() < until {
                    tokio::time::sleep(FIRST_LEADER_LOOK_EVERY).await;
                }
                Ok(is_new)
            }
        }
    }

    /// Has whoever leads a partition do something, and waits for the answer. While nobody is known to
    /// lead it, or it changes hands, it is asked again.
    async fn ask_leader(
        &self,
        partition: PartitionId,
        parcel: impl Fn(Outsider) -> switch::Parcel<Outsider>,
    ) -> Result<Reply, ChangeError> {
        let shared = self.shared();
        // What other nodes have every shard has a road to.
        let shard = shared.directory.find(partition).map_or(0, |(shard, _)| shard);
        let until = tokio::time::Instant::now() + LEADER_TIMEOUT;
        loop {
            let (sender, answer) = oneshot::channel();
            shared.mailboxes[shard].cross(parcel(Outsider(sender)));
            let reply = answer.await.map_err(|_| ChangeError::NoAnswer)??;
            let waits = reply == Reply::NotLeader && shared.leaders.has_peers();
            if !waits || tokio::time::Instant::now() >= until {
                return Ok(reply);
            }
            tokio::time::sleep(LEADER_LOOK_EVERY).await;
        }
    }

    /// Drops what is ready in a queue; how many that was.
    pub async fn purge(&self, queue: QueueId, partition: PartitionId) -> Result<u64, ChangeError> {
        if let Some(refusal) = self.home_is_away(queue) {
            return Err(refusal.into());
        }
        let purge = |outsider| switch::Parcel::Purge(partition, queue, outsider);
        match self.ask_leader(partition, purge).await? {
            Reply::Counted(count) => Ok(count),
            Reply::NotLeader => Err(self.unanswered(ChangeError::Leaderless)),
            Reply::Unavailable => Err(ChangeError::Unavailable),
            // It went meanwhile, with what was in it.
            _ => Ok(0),
        }
    }

    /// Deletes a queue, on its conditions. It is lawful: who asks has checked that. Once asked for,
    /// the deletion is finished whether or not its answer is waited for.
    pub async fn delete_queue(
        &self,
        queue: QueueId,
        partition: PartitionId,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<(), ChangeError> {
        let is_away = self.home_is_away(queue).is_some();
        if is_away && if_empty {
            // Nobody can say that it has no messages.
            return Err(ChangeError::InUse("not empty"));
        }
        // Whose node is away has no consumers that it knows.
        let if_unused = if_unused && !is_away;
        let delete = |outsider| {
            let asker = Asker::Outsider(outsider);
            switch::Parcel::Delete(Box::new(Deletion { queue, partition, if_unused, if_empty, asker, insists: false }))
        };
        match self.ask_leader(partition, delete).await? {
            Reply::DeleteRefused { in_use: true } => Err(ChangeError::InUse("in use")),
            Reply::DeleteRefused { in_use: false } => Err(ChangeError::InUse("not empty")),
            Reply::NotLeader => Err(self.unanswered(ChangeError::Leaderless)),
            Reply::Unavailable => Err(ChangeError::Unavailable),
            _ => Ok(()),
        }
    }
}
