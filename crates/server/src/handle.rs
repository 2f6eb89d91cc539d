//! A running node in the hands of its operator: what is asked of it, and changed in it, from
//! outside of its shards.
//!
//! Invariant: nothing here waits on a shard's thread. A look at the shards is a parcel to each of
//! them and one answer from each; a change goes the way of every client's, through the same checks
//! and the same log.

use crate::cluster::{AskError, Asked, Links, Question};
use crate::config::Config;
use crate::definitions::{Fresh, ImportError, Imported};
use crate::engine::{Durations, EngineGauges, SyncTimes, wall_ms};
use crate::listener;
use crate::node::{Alarm, Alarms, Shared, trace_news};
use crate::passwords::hashed;
use crate::patterns;
use crate::random;
use crate::shard::{Arrival, Look, Outsider, Parcel};
pub use crate::shard::{InQueues, ShardStatistics};
use crate::spans::{SpanFigures, Spans};
use crate::topology_log::Answer;
use broker::topology::{
    Actor, Checked, Command, CommandReply, HashAlgorithm, Name, NodeStanding, PasswordHash, QueueDeclare,
    QueueDeclared, Refusal, SALT_BYTES, Token, Topology,
};
use broker::{NodeNumber, PartitionId, QueueId, VhostId};
use bytes::Bytes;
pub use node::{Follower, MemberStanding, Voter};
use partition::{DiskFigures, Reply};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::ServerConfig;
pub use session::is_token;
use session::report::{ConnectionNumber, ConnectionReport};
use session::{Admitted, Asker, Deletion, PasswordCheck, Verdict};
pub use session::{ChannelTraffic, Counted, LoginOver, MessageSizes, QueueTraffic, Traffic};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime};
pub use switch::DeadLettered;
use tokio::sync::{mpsc, oneshot};

/// What stays the same as long as the node runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The node's name.
    pub node_name: String,
    /// The number of the cluster, the same on all nodes and for as long as it is there.
    pub cluster_id: u128,
    /// What it is configured to be.
    pub config: Config,
    /// Where it listens for AMQP, the addresses with TLS last.
    pub amqp: Vec<SocketAddr>,
    /// How many of `amqp`, from the end, have TLS.
    pub tls_count: usize,
    /// When it started, on the wall, in milliseconds since the epoch.
    pub started_ms: u64,
    /// When it started, on the clock.
    pub started: Instant,
}

impl NodeFacts {
    /// What the cluster is called for ever, whatever name it is given.
    pub fn permanent_id(&self) -> String {
        format!("leveret-cluster-id-{:032x}", self.cluster_id)
    }
}

/// What the node counts and measures, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFigures {
    /// Open client connections, those in their handshake included.
    pub connections: u64,
    /// Messages and acks since the start.
    pub traffic: Traffic,
    /// How large published messages were.
    pub message_sizes: MessageSizes,
    /// Queues that came since the start, of those that this node led then.
    pub queues_created: u64,
    /// Queues that went since the start, of those that this node led then.
    pub queues_deleted: u64,
    /// Bytes that messages of transient queues pin.
    pub transient_bytes: u64,
    /// Bytes of messages that have not arrived as a whole, and of transactions.
    pub unfinished_bytes: u64,
    /// Bytes that `x-recent-history` exchanges remember.
    pub history_bytes: u64,
    /// Bytes that queues with deduplication remember keys in.
    pub deduplication_bytes: u64,
    /// Bytes of frames that wait for their channel's turn: of publishers that are blocked, above
    /// all.
    pub waiting_bytes: u64,
    /// Bytes that were proposed and are not yet written.
    pub unwritten_bytes: u64,
    /// Why publishers are blocked, if they are.
    pub alarms: Alarms,
    /// The sum over all selective queues of what was confirmed, or is about to be, and is not
    /// synced.
    pub value_at_risk: u64,
    /// Messages set aside since the start, because their bytes are damaged on the disk.
    pub messages_set_aside: u64,
    /// Partitions that are damaged, and whose queues are unavailable until they are repaired.
    pub partitions_quarantined: u64,
    /// Bytes written to the log since the start.
    pub log_bytes: u64,
    /// Syncs made since the start.
    pub log_syncs: u64,
    /// How long they took.
    pub sync_times: Option<SyncTimes>,
    /// How long writes and syncs of the log took.
    pub log_times: (Durations, Durations),
    /// Bytes free on the disk of the data folder.
    pub disk_free_bytes: Option<u64>,
    /// What became of the spans of traced messages.
    pub spans: SpanFigures,
}

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

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// The name or the password is wrong.
    Wrong,
    /// Too many logins failed: the password was not looked at, and whoever asks is not to know
    /// that.
    NotAdmitted,
    /// So many logins wait for a look at their passwords that this one was not looked at.
    TooMany,
    /// This user may come from this machine only.
    OnlyLoopback,
    /// Users of this broker are not let in, only tokens are.
    OnlyTokens,
    /// A token counts for nothing, for this reason.
    Token(&'static str),
}

/// A node of the cluster, as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number; 0 for a node that is alone and has none.
    pub number: NodeNumber,
    /// Its name; its address until it has said it.
    pub name: String,
    /// Where the other nodes find it.
    pub address: String,
    /// It is this one.
    pub is_own: bool,
    /// It is this one, or there is a link to it.
    pub is_reached: bool,
}

/// How long a leader is looked for, and how often.
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// For so long leaders move to an even spread once somebody asked for that.
const BALANCE_US: u64 = 10_000_000;
/// How often a node that leaves its cluster looks whether it is forgotten.
const LEFT_LOOK_EVERY: Duration = Duration::from_millis(50);
const LEADER_LOOK_EVERY: Duration = Duration::from_millis(100);

struct Inner {
    shared: Arc<Shared>,
    engine: Option<EngineGauges>,
    facts: NodeFacts,
}

/// To whom a certificate is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownTo {
    /// Clients that speak AMQP.
    Clients,
    /// Whoever uses the management API.
    Management,
    /// Other nodes.
    Nodes,
}

/// A certificate of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCertificate {
    /// To whom it is shown.
    pub to: ShownTo,
    /// The file that it is from.
    pub file: PathBuf,
    /// When it ends, or one between it and its authority.
    pub ends: SystemTime,
}

/// See the module. Clones are of the same node.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>, engine: Option<EngineGauges>, facts: NodeFacts) -> Handle {
        Handle { inner: Arc::new(Inner { shared, engine, facts }) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// What stays the same as long as the node runs.
    pub fn facts(&self) -> &NodeFacts {
        &self.inner.facts
    }

    /// All nodes of the cluster, this one too, in the order of their numbers.
    pub fn members(&self) -> Vec<Member> {
        let shared = self.shared();
        let own = shared.leaders.own();
        let linked = shared.links.get().map_or_else(Vec::new, |links| links.linked());
        let mut members: Vec<Member> = self
            .topology()
            .nodes()
            .filter(|(number, node)| *number == own || node.standing != NodeStanding::Gone)
            .map(|(number, node)| Member {
                number,
                name: String::from_utf8_lossy(&node.name).into_owned(),
                address: String::from_utf8_lossy(&node.address).into_owned(),
                is_own: number == own,
                is_reached: number == own || linked.contains(&number),
            })
            .collect();
        let name = self.facts().node_name.clone();
        match members.iter_mut().find(|member| member.is_own) {
            // What it says of itself counts.
            Some(member) => member.name = name,
            None => {
                members.push(Member { number: own, name, address: String::new(), is_own: true, is_reached: true });
            }
        }
        members
    }

    /// Whether this node is one of a cluster.
    pub fn has_peers(&self) -> bool {
        self.shared().leaders.has_peers()
    }

    /// Has partitions that this node leads move to nodes that lead fewer, within the next seconds.
    pub fn balance_leaders(&self) {
        let shared = self.shared();
        shared.leaders.balance_until(shared.elapsed_us() + BALANCE_US);
    }

    /// This node's number.
    pub fn own_node(&self) -> NodeNumber {
        self.shared().leaders.own()
    }

    /// Who leads a partition, as far as this node has heard; it may be a node that cannot be reached.
    pub fn leader(&self, partition: PartitionId) -> Option<NodeNumber> {
        self.shared().leaders.leader(partition)
    }

    /// Asks another node what only it knows. Errors: it cannot be reached.
    pub fn ask(&self, node: NodeNumber, question: Bytes) -> Result<Asked, AskError> {
        self.shared().links.get().ok_or(AskError::Gone)?.ask(node, question)
    }

    /// What other nodes ask of this one from now on, so many at most waiting; `None` on a node that is
    /// alone.
    pub fn serve_questions(&self, waiting: usize) -> Option<mpsc::Receiver<Question>> {
        Some(self.shared().links.get()?.serve_questions(waiting))
    }

    /// The cluster's name: the one that the operator gave it, or that of its first node.
    pub fn cluster_name(&self) -> String {
        self.shared().topology.cluster_name().unwrap_or_else(|| self.facts().node_name.clone())
    }

    /// The topology, to look at. Whoever declares waits as long as it is held: take what is needed
    /// and let go.
    pub fn topology(&self) -> RwLockReadGuard<'_, Topology> {
        self.shared().topology()
    }

    /// Whether somebody may log in with this password from this address; a token says who they are, as
    /// whoever they name. It does not ask what they may do.
    pub async fn check_login(
        &self,
        user: &[u8],
        password: &[u8],
        from: SocketAddr,
    ) -> Result<Option<Arc<Token>>, LoginError> {
        if self.takes_tokens() && is_token(password) {
            return self.check_token(password, from).await.map(Some);
        }
        let login = self.check_user(user, password, from).await;
        self.shared().sessions.logins.count(LoginOver::Http, login.is_ok());
        login.map(|()| None)
    }

    /// Whether tokens are taken.
    pub fn takes_tokens(&self) -> bool {
        self.shared().tokens.is_some()
    }

    /// Whom a token names. Errors: it counts for nothing.
    pub async fn check_token(&self, token: &[u8], from: SocketAddr) -> Result<Arc<Token>, LoginError> {
        let shared = self.shared();
        let (sender, told) = oneshot::channel();
        let is_on_its_way = shared.tokens.as_ref().is_some_and(|tokens| {
            // Who does not wait any more does not need it.
            tokens.look(Bytes::copy_from_slice(token), move |found| drop(sender.send(found)))
        });
        let found = match is_on_its_way {
            true => told.await.unwrap_or(Err("nobody looked at it")).map_err(LoginError::Token),
            false => Err(LoginError::TooMany),
        };
        let login = found.and_then(|token| match self.is_kept_out(&token.user, from) {
            true => Err(LoginError::OnlyLoopback),
            false => Ok(token),
        });
        shared.sessions.logins.count(LoginOver::Http, login.is_ok());
        login
    }

    /// Whether a user logs in from this machine only, and this is another one.
    fn is_kept_out(&self, user: &[u8], from: SocketAddr) -> bool {
        let only_loopback = self.shared().config.loopback_users.iter().any(|other| other.as_bytes() == user);
        only_loopback && !from.ip().to_canonical().is_loopback()
    }

    async fn check_user(&self, user: &[u8], password: &[u8], from: SocketAddr) -> Result<(), LoginError> {
        let shared = self.shared();
        if !shared.config.takes_passwords {
            return Err(LoginError::OnlyTokens);
        }
        let hash = shared.topology().user(user).map(|user| user.password.clone());
        let (exists, mut admitted) = (hash.is_some(), None);
        let mut admit = || {
            admitted = shared.sessions.logins.admit(from.ip(), user, exists, shared.now());
            Admitted::of(admitted.as_ref())
        };
        let (sender, told) = oneshot::channel();
        let verdict = match hash {
            Some(hash) => {
                let check = PasswordCheck { user: Name::new(user), hash, password: Bytes::copy_from_slice(password) };
                shared.passwords.check(check, &mut admit, move |is_right| {
                    // Who does not wait any more does not need it.
                    let _ = sender.send(is_right);
                })
            }
            None if admit() == Admitted::No => Verdict::NotAdmitted,
            None => Verdict::Wrong,
        };
        let verdict = match verdict {
            Verdict::Later if told.await.unwrap_or(false) => Verdict::Right,
            Verdict::Later => Verdict::Wrong,
            found => found,
        };
        match verdict {
            Verdict::NotAdmitted => Err(LoginError::NotAdmitted),
            Verdict::TooMany => Err(LoginError::TooMany),
            Verdict::Wrong | Verdict::Later => Err(LoginError::Wrong),
            Verdict::Right if self.is_kept_out(user, from) => Err(LoginError::OnlyLoopback),
            Verdict::Right => {
                if let Some(admitted) = admitted {
                    shared.sessions.logins.was_right(admitted, shared.now());
                }
                Ok(())
            }
        }
    }

    /// The certificates that this node shows.
    pub fn certificates(&self) -> Vec<ShownCertificate> {
        let (shared, config) = (self.shared(), &self.facts().config);
        let links = shared.links.get().and_then(Links::certificate_end);
        let of = |to, file: Option<PathBuf>, ends: Option<SystemTime>| {
            Some(ShownCertificate { to, file: file?, ends: ends? })
        };
        let to_clients = config.tls_files().map(|files| files.certificate);
        let to_managers = config.management_tls_files().map(|files| files.certificate);
        let all = [
            of(ShownTo::Clients, to_clients, shared.certificates.end()),
            of(ShownTo::Management, to_managers, shared.management_certificates.end()),
            of(ShownTo::Nodes, config.cluster_tls_certificate.clone(), links),
        ];
        all.into_iter().flatten().collect()
    }

    /// What the management API is encrypted with, as it was last read.
    pub fn management_tls(&self) -> Option<Arc<ServerConfig>> {
        self.shared().management_certificates.get()
    }

    /// How many logins were right and how many were wrong since the start, or since they were last
    /// forgotten.
    pub fn logins(&self, over: LoginOver) -> (u64, u64) {
        self.shared().sessions.logins.counted(over)
    }

    /// Counts logins from 0 again.
    pub fn forget_logins(&self) {
        self.shared().sessions.logins.forget_counted();
    }

    /// Whether the queues of this partition are unavailable, as it is damaged here.
    pub fn is_quarantined(&self, partition: PartitionId) -> bool {
        self.shared().config.quarantined.contains(&partition)
    }

    /// What the node counts and measures now.
    pub fn figures(&self) -> NodeFigures {
        let shared = self.shared();
        let mut figures = NodeFigures {
            connections: shared.connections() as u64,
            alarms: shared.alarms.read(),
            ..NodeFigures::default()
        };
        (figures.unfinished_bytes, figures.history_bytes) =
            (shared.unfinished_bytes(), shared.sessions.histories.bytes());
        figures.deduplication_bytes = shared.key_bytes();
        figures.queues_created = shared.queues_created.load(Ordering::Relaxed);
        figures.queues_deleted = shared.queues_deleted.load(Ordering::Relaxed);
        figures.waiting_bytes = shared.sessions.sums.waiting.load(Ordering::Relaxed);
        figures.spans = shared.spans.as_ref().map(Spans::figures).unwrap_or_default();
        for gauge in &shared.gauges {
            figures.transient_bytes += gauge.memory_bytes.load(Ordering::Relaxed);
            figures.unwritten_bytes += gauge.unwritten_bytes.load(Ordering::Relaxed);
            gauge.traffic.add_to(&mut figures.traffic);
            gauge.traffic.add_sizes_to(&mut figures.message_sizes);
        }
        if let Some(engine) = &self.inner.engine {
            figures.value_at_risk = engine.value_at_risk();
            figures.messages_set_aside = engine.messages_set_aside();
            figures.partitions_quarantined = shared.config.quarantined.len() as u64;
            (figures.log_bytes, figures.log_syncs) = engine.log_written();
            figures.sync_times = Some(engine.sync_times());
            figures.log_times = engine.log_times();
            figures.disk_free_bytes = engine.free_bytes();
        }
        figures
    }

    /// Why publishers are blocked, in the words that clients are told.
    pub fn blocked_reason(&self) -> Option<&'static str> {
        self.shared().alarms.blocked_reason()
    }

    /// Begins or ends to tell `amq.rabbitmq.trace` of every message of a virtual host, on all nodes. A
    /// restart forgets it, as in RabbitMQ; of a cluster the restart of all nodes.
    pub fn trace(&self, vhost: VhostId, on: bool) {
        let shared = self.shared();
        let said = shared.traced.set(vhost, on, wall_ms(), &shared.topology());
        shared.tell_nodes(|| vec![trace_news(vhost, said)]);
    }

    /// Whether a virtual host is traced.
    pub fn traces(&self, vhost: VhostId) -> bool {
        self.shared().traced.contains(vhost)
    }

    /// Holds publishers, as an alarm does, or lets them go on. A restart forgets it.
    pub fn hold_publishers(&self, hold: bool) {
        self.shared().set_alarm(Alarm::Operator, hold);
    }

    /// Whether a node is in maintenance mode, as far as this one heard.
    pub fn node_rests(&self, node: NodeNumber) -> bool {
        self.shared().leaders.rests(node)
    }

    /// Has the cluster forget this node, which ends then. Comes back once that is decided.
    ///
    /// - Before: it leads nothing, and the others decide without it, as somebody saw when so many nodes had been
    ///   `forgotten`.
    pub async fn leave(&self, forgotten: u32) -> Result<(), ChangeError> {
        let shared = self.shared();
        shared.leaves.store(true, Ordering::Relaxed);
        let command = self.topology().forgetting(self.own_node(), forgotten);
        let forget = self.change(command);
        // Who decides may end its link to this node before the answer is on its way.
        let is_forgotten = async {
            while !shared.links.get().is_some_and(|links| links.is_forgotten()) {
                tokio::time::sleep(LEFT_LOOK_EVERY).await;
            }
        };
        let left = tokio::select! {
            decided = forget => decided.map(drop),
            () = is_forgotten => Ok(()),
        };
        // What nobody knows may still be decided, and is what was asked for.
        if matches!(left, Err(ref why) if !matches!(why, ChangeError::Undecided(_))) {
            shared.leaves.store(false, Ordering::Relaxed);
        }
        left
    }

    /// Has the node serve no clients and lead nothing from now on, or all of it again. A restart forgets it.
    pub fn rest(&self, on: bool) {
        self.shared().rest(on);
    }

    /// Whether it does.
    pub fn rests(&self) -> bool {
        *self.shared().rests.borrow()
    }

    async fn look<T>(&self, look: impl Fn(oneshot::Sender<Vec<T>>) -> Look) -> Vec<T> {
        let answers: Vec<oneshot::Receiver<Vec<T>>> = self
            .shared()
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (sender, answer) = oneshot::channel();
                mailbox.send(Parcel::Look(look(sender)));
                answer
            })
            .collect();
        let mut all = Vec::new();
        for answer in answers {
            // A shard that drains has nothing to tell any more.
            all.extend(answer.await.unwrap_or_default());
        }
        all
    }

    /// All connections whose virtual host is open, in no order.
    pub async fn connections(&self) -> Vec<ConnectionReport> {
        self.look(Look::Connections).await
    }

    /// What is in the queues, as far as this node knows it.
    pub async fn queue_figures(&self) -> InQueues {
        self.look(Look::Queues).await.into_iter().collect()
    }

    /// What the queues that this node leads have on its disk, or this one alone; one that is missing has nothing there.
    /// Cost: a look at every run of messages, where all are asked for.
    pub async fn disk_figures(&self, only: Option<QueueId>) -> HashMap<QueueId, DiskFigures> {
        let figures = self.look(|answer| Look::Disk(only, answer)).await;
        figures.into_iter().map(|figures| (figures.queue, figures)).collect()
    }

    /// What went through each shard since this was asked for before, and what is in its queues. One
    /// only may ask, or each gets a part of it.
    pub async fn statistics(&self) -> Vec<ShardStatistics> {
        self.look(Look::Statistics).await
    }

    /// How the members of groups stand that this node has, in no order.
    pub async fn member_standings(&self) -> Vec<MemberStanding> {
        self.look(Look::Members).await
    }

    /// Closes a connection with 320 and this text; nothing if it is gone.
    pub fn close_connection(&self, connection: ConnectionNumber, text: &str) {
        for mailbox in &self.shared().mailboxes {
            mailbox.send(Parcel::CloseConnection { connection, text: text.to_owned() });
        }
    }

    /// Makes a replicated change. Done means decided, durable and in force on this node.
    ///
    /// A change with patterns is weighed first, on a thread of its own and one such change at a
    /// time. Errors: what the topology refuses, and a pattern that takes too long.
    pub async fn change(&self, command: Command) -> Result<CommandReply, ChangeError> {
        if !patterns::has_patterns(&command) {
            return self.decide(command).await;
        }
        let turn = self.shared().pattern_turn.lock().await;
        let shared = self.shared().clone();
        let weighed = tokio::task::spawn_blocking(move || shared.weigh(&command).map(|()| command)).await;
        let outcome = self.decide(weighed.map_err(|_| ChangeError::NoAnswer)??).await;
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
        if !self.has_peers() || self.shared().draining.load(Ordering::Acquire) {
            return ChangeError::NoAnswer;
        }
        let missing = self.members().into_iter().filter(|member| !member.is_reached).map(|member| member.name);
        let missing: Vec<String> = missing.collect();
        of_cluster(match missing.is_empty() {
            true => "This node reaches all others.".to_owned(),
            false => format!("This node does not reach {}.", missing.join(", ")),
        })
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

    /// Declares a queue in somebody's name; true if it is new.
    pub async fn declare_queue(&self, actor: Actor<'_>, declare: &QueueDeclare<'_>) -> Result<bool, ChangeError> {
        let mut has_place = true;
        let declared = self.topology().check_queue_declare(actor, declare, |placement| {
            let place = match placement.in_memory {
                true => Some(self.shared().directory.in_memory(0)),
                false => self.shared().place_queue(&placement),
            };
            has_place = place.is_some();
            place.unwrap_or_default()
        })?;
        match declared {
            QueueDeclared::Existing(_) => Ok(false),
            QueueDeclared::Local(command) => self.change_locally(&command).map(|()| true),
            QueueDeclared::Propose(_) if !has_place => Err(ChangeError::InUse("this node has no durable queues")),
            QueueDeclared::Propose(command) => {
                Ok(matches!(self.change(command).await?, CommandReply::Queue { created: true, .. }))
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

    /// A connection of the node's own in the name of `user`, who logged in from `peer` by other
    /// means, perhaps by a token; the other end of it. It speaks AMQP from its first byte, is held to all that any
    /// client is held to, and logs in with EXTERNAL, which names nobody.
    ///
    /// Errors: the node drains or has as many connections as it may, or the system gives no more
    /// sockets.
    pub fn connect_for(&self, user: &[u8], token: Option<Arc<Token>>, peer: SocketAddr) -> io::Result<UnixStream> {
        let shared = self.shared();
        if shared.draining.load(Ordering::Acquire) || shared.connections() >= shared.config.connections_max {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let user = String::from_utf8(user.to_vec()).map_err(io::Error::other)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let shard = listener::fewest(shared, 0);
        shared.gauges[shard].connections.fetch_add(1, Ordering::Relaxed);
        // The shard reads and writes it as any socket; what only TCP has is not asked of it.
        let arrival = Arrival::own(TcpStream::from(own), peer, user, token);
        shared.mailboxes[shard].send(Parcel::Accepted(Box::new(arrival)));
        Ok(UnixStream::from(other))
    }

    /// Takes in definitions. Blocks until every change is decided: not for a task that others wait
    /// for.
    pub fn import_definitions(&self, text: &str) -> Result<Imported, ImportError> {
        self.shared().import_definitions(text, Fresh::Never)
    }

    /// Bits that nobody can guess.
    pub fn secret(&self) -> u128 {
        random::secret()
    }

    /// Hashes a password that is set anew, as the settings say; on another thread where that takes
    /// long. `None`: too much waits for that.
    pub async fn hash_password(&self, password: &[u8]) -> Option<PasswordHash> {
        let shared = self.shared();
        let algorithm = shared.hashing();
        if algorithm != HashAlgorithm::Argon2id {
            return Some(hashed(algorithm, password));
        }
        let (sender, told) = oneshot::channel();
        let is_on_its_way =
            shared.passwords.hash(Bytes::copy_from_slice(password), move |hash| drop(sender.send(hash)));
        if is_on_its_way { told.await.ok() } else { None }
    }

    /// Random bytes for a password's hash.
    pub fn salt(&self) -> [u8; SALT_BYTES] {
        random::salt()
    }
}

/// A user at no connection, who so owns no exclusive queue.
pub fn operator(user: &[u8]) -> Actor<'_> {
    Actor { user, connection: 0, scopes: None }
}
