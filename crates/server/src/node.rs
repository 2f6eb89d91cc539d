//! A node: its shard threads and its listeners; what a process starts, watches and drains. What its
//! threads share stands in `node/shared.rs`.

mod alarms;
mod config;
mod memory;
mod news;
mod offers;
mod shared;
mod topology_lease;
mod topology_view;
mod traced;

pub use alarms::{Alarm, Alarms};
pub use config::{FRAME_MAX_LIMIT, NodeConfig, StartError};
pub(crate) use news::{tell_taken_by, trace_news};
pub(crate) use shared::Shared;
pub use topology_view::Look;

use crate::acceptor;
use crate::drain::{self, DrainStep};
use crate::engine::{Decided, ShardDisk};
use crate::listener::{self, Door};
use crate::shard::thread::{self, Parts};
use crate::shard::{Mailbox, Parcel};
use crate::spans::Spans;
use crate::tls::{self, Loaded, TlsError, TlsFiles};
use crate::tokens::{Tokens, WrongKeyFile};
use crate::topology_log::{Answer, Changes, MemoryLog, TopologyLog};
use amqp::{Millis, Table};
use broker::PartitionId;
use broker::topology::{Command as Change, DeclareExchange, ExchangeType, Topology};
use node::{Member, Partition, Share};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use switch::EVENT_EXCHANGE;

/// How long clients have to answer `connection.close` when the node drains.
pub const DRAIN_TIMEOUT_MS: Millis = 5_000;

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    /// Reserved, and not listened on yet.
    listeners: Mutex<Vec<(TcpListener, Door)>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Makes the durable partitions of a shard, on its thread.
pub type MakePartitions = Arc<dyn Fn(usize) -> ShardParts + Send + Sync>;

/// What a shard begins with.
pub struct ShardParts {
    /// Its durable partitions, in the order of [`NodeConfig::placement`].
    pub(crate) members: Vec<(PartitionId, Member<Decided>)>,
    pub(crate) share: Share,
    pub(crate) disk: Option<ShardDisk>,
}

impl ShardParts {
    /// A shard that writes nothing, with these partitions of the caller's own.
    pub fn without_log(partitions: Vec<(PartitionId, Box<dyn Partition>)>) -> ShardParts {
        let members = partitions.into_iter().map(|(id, partition)| (id, Member::Other(partition))).collect();
        ShardParts { members, share: Share::without_log(), disk: None }
    }
}

/// Wakes a partition from another thread: the disk or a peer has news for it.
#[derive(Clone)]
pub struct PartitionWaker {
    mailbox: Mailbox,
    partition: PartitionId,
}

impl PartitionWaker {
    /// Has the partition stepped soon, with or without commands.
    pub fn wake(&self) {
        self.mailbox.cross(switch::Parcel::Wake(self.partition));
    }
}

/// What a node's makers of partitions and logs may hold on to: it exists before the first thread
/// starts.
#[derive(Clone)]
pub struct Wiring {
    shared: Arc<Shared>,
}

impl Wiring {
    /// Applies decided commands to the node's topology.
    pub fn changes(&self) -> Changes {
        Changes::new(&self.shared)
    }

    /// Wakes `partition`; `None` if it does not run on this node.
    pub fn waker(&self, partition: PartitionId) -> Option<PartitionWaker> {
        let (shard, _) = self.shared.directory.find(partition)?;
        Some(PartitionWaker { mailbox: self.shared.mailboxes[shard].clone(), partition })
    }

    /// The mailbox of the shard that `partition` runs on.
    pub(crate) fn mailbox(&self, partition: PartitionId) -> Option<Mailbox> {
        let (shard, _) = self.shared.directory.find(partition)?;
        Some(self.shared.mailboxes[shard].clone())
    }

    /// The mailboxes of all shards, in order.
    pub(crate) fn mailboxes(&self) -> Vec<Mailbox> {
        self.shared.mailboxes.clone()
    }

    /// Milliseconds on the clock that partitions are stepped with.
    pub fn now(&self) -> Millis {
        self.shared.now()
    }
}

impl Node {
    /// Starts a node without durable queues.
    pub fn start_transient(config: NodeConfig) -> Result<Node, StartError> {
        Node::start(config, Topology::new(), |wiring| {
            let log: Arc<dyn TopologyLog> = Arc::new(MemoryLog::new(wiring.changes()));
            (log, Arc::new(|_| ShardParts::without_log(Vec::new())))
        })
    }

    /// Starts a node: listens, makes its partitions, serves.
    ///
    /// See [`Node::prepare`], after which this listens.
    pub fn start(
        config: NodeConfig,
        topology: Topology,
        make: impl FnOnce(Wiring) -> (Arc<dyn TopologyLog>, MakePartitions),
    ) -> Result<Node, StartError> {
        let node = Node::prepare(config, topology, make)?;
        node.listen()?;
        Ok(node)
    }

    /// Starts a node that serves its partitions and has its addresses; who connects is refused until
    /// [`Node::listen`].
    ///
    /// `make` is called once, before any thread starts, and gives the log that decides about the
    /// topology and the maker of each shard's durable partitions. Errors leave nothing running.
    pub fn prepare(
        config: NodeConfig,
        topology: Topology,
        make: impl FnOnce(Wiring) -> (Arc<dyn TopologyLog>, MakePartitions),
    ) -> Result<Node, StartError> {
        config.check()?;
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        let all = config.listen.iter().map(|a| (a, false)).chain(config.listen_tls.iter().map(|a| (a, true)));
        for (address, tls) in all {
            let setting = if tls { "amqps" } else { "amqp" };
            let failed = |source| StartError::Listen { setting, address: *address, source };
            let listener: TcpListener = listener::reserve(*address).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push((listener, Door { proxy: config.proxied.contains(address), tls }));
        }
        let shards = config.shards;
        let tokens = config.tokens.clone().map(Tokens::start).transpose()?;
        let start = Instant::now();
        let spans = config.traces.clone().map(|traces| Spans::start(traces, &config.node_name, start)).transpose()?;
        let shared = Arc::new(Shared::new(config, topology, (tokens, spans), start));
        let (log, make_partitions) = make(Wiring { shared: shared.clone() });
        shared.set_log(log);
        let node = Node { shared, addresses, listeners: Mutex::new(listeners), threads: Mutex::new(Vec::new()) };
        for index in 0..shards {
            let parts = Parts { index, shared: node.shared.clone(), make_partitions: make_partitions.clone() };
            let thread = std::thread::Builder::new().name(format!("shard-{index}")).spawn(move || thread::run(parts));
            match thread {
                Ok(thread) => node.lock_threads().push(thread),
                Err(source) => {
                    node.drain();
                    return Err(StartError::Thread { source });
                }
            }
        }
        Ok(node)
    }

    /// Makes the event exchange, if there is to be one and it is not there. Blocks until that is decided. Errors: its
    /// virtual host is not there, or nobody decides.
    pub(crate) fn make_event_exchange(&self) -> Result<(), StartError> {
        let Some(name) = &self.shared.config.event_vhost else { return Ok(()) };
        let config = |why: &str| StartError::Config { what: format!("event_exchange_vhost = {name:?}: {why}") };
        let vhost = self.shared.topology().vhost(name.as_bytes());
        let vhost = vhost.ok_or_else(|| config("there is no such virtual host; name one that is there, or none"))?;
        let is_made = self.shared.topology().find_exchange(vhost, EVENT_EXCHANGE.as_bytes()).is_some_and(|known| {
            known.kind == ExchangeType::Topic && known.durable && known.internal && !known.auto_delete
        });
        if is_made {
            return Ok(());
        }
        let declare = DeclareExchange {
            vhost,
            name: EVENT_EXCHANGE.into(),
            kind: ExchangeType::Topic,
            durable: true,
            auto_delete: false,
            internal: true,
            arguments: Table::new(),
            is_shared: false,
        };
        let (sender, decided) = mpsc::channel();
        self.shared.log().propose(Change::DeclareExchange(declare), Answer::to_waiter(sender));
        match decided.recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(refusal)) => Err(config(&refusal.to_string())),
            Err(_) => Err(StartError::Undecided { what: format!("the exchange of event_exchange_vhost = {name:?}") }),
        }
    }

    /// Takes connections from now on. Errors: somebody else listens there since, or a thread cannot be
    /// started; the node is drained then.
    pub fn listen(&self) -> Result<(), StartError> {
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        for ((listener, door), address) in listeners.iter().zip(&self.addresses) {
            if let Err(source) = listener::listen(listener) {
                self.drain();
                let setting = if door.tls { "amqps" } else { "amqp" };
                return Err(StartError::Listen { setting, address: *address, source });
            }
        }
        let (open, doors): (Vec<_>, Vec<_>) = listeners.into_iter().partition(|(_, door)| door.is_open());
        open.into_iter().for_each(|(listener, _)| self.shared.mailboxes[0].send(Parcel::Listen(listener)));
        if doors.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("acceptor".to_owned());
        match thread.spawn(move || acceptor::run(doors, &shared)) {
            Ok(thread) => self.lock_threads().push(thread),
            Err(source) => {
                self.drain();
                return Err(StartError::Thread { source });
            }
        }
        Ok(())
    }

    /// Uses these certificates for connections to come; those that are open keep theirs. Errors:
    /// the file that is wrong, and what was used before stays in use. One that does not count is used all the same, with a
    /// warning.
    pub fn use_tls(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let Loaded { config, ends, chain } = tls::load(files)?;
        tls::warn_of_dates(&files.certificate, &chain, tls::CLIENTS);
        self.shared.certificates.put(config, ends);
        Ok(())
    }

    /// The same for the management API over HTTPS.
    pub fn use_management_tls(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let Loaded { config, ends, chain } = tls::load_for_http(files)?;
        tls::warn_of_dates(&files.certificate, &chain, tls::BROWSERS);
        self.shared.management_certificates.put(config, ends);
        Ok(())
    }

    /// Reads the keys of tokens in files again; `None` where no tokens are taken. Errors: the file
    /// that is wrong, and what was used before stays in use.
    pub(crate) fn reload_tokens(&self) -> Option<Result<(), WrongKeyFile>> {
        self.shared.tokens.as_ref().map(Tokens::reload)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The addresses that are listened on, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Raises or ends an alarm: while one is on, publishers are blocked and consumers go on.
    pub fn set_alarm(&self, alarm: Alarm, on: bool) {
        self.shared.set_alarm(alarm, on);
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Bytes that messages of transient queues pin.
    pub fn transient_bytes(&self) -> u64 {
        self.shared.gauges.iter().map(|g| g.memory_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Ends the node gracefully: no new connections, `connection.close` with 320 to all there are,
    /// what they were owed is written; what they set in motion comes to rest; then the threads end.
    /// Blocks until that is done, at most a little more than [`DRAIN_TIMEOUT_MS`] for the clients,
    /// and as long again where something does not come to rest.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.shared.door_closes.notify_one();
        let threads = std::mem::take(&mut *self.lock_threads());
        // Where the start failed not all shards have a thread; beside theirs there is that of the
        // acceptor.
        let mailboxes = &self.shared.mailboxes[..threads.len().min(self.shared.mailboxes.len())];
        let until = self.shared.now() + DRAIN_TIMEOUT_MS;
        drain::clients(mailboxes, until, Duration::from_millis(DRAIN_TIMEOUT_MS));
        let links = self.shared.links.get();
        drain::rest(mailboxes, || {
            self.shared.leaders.has_peers() && links.is_none_or(|links| links.linked().is_empty())
        });
        mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::Drain(DrainStep::End)));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a shard thread panicked");
            }
        }
        if let Some(spans) = &self.shared.spans {
            spans.stop();
        }
        // A peer's kernel may need a moment to take what was written last; closing sockets do not
        // lose it.
        std::thread::sleep(Duration::from_millis(1));
    }

    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
