//! A server from its configuration to its end: folder, partitions, node, alarms, drain.
//!
//! Invariant: nothing is listened on before all that was ever confirmed is there again, and the
//! process ends only after what it wrote is synced.

use crate::cluster::{Cluster, Founded, Member, Stopped};
use crate::config::{Config, open_data_folder};
use crate::definitions::{FromFiles, ImportError, Imported, Moment};
use crate::engine::{self, Engine, EngineConfig, EngineGauges, OpenError};
use crate::handle::{Handle, NodeFacts};
use crate::node::{Alarm, Node, NodeConfig, ShardParts, StartError};
use crate::startup::{Attendant, Startup};
use crate::tls::{self, TlsError};
use amqp::{ConnectionConfig, Table, Value};
use session::LoginLimits;
use session::Stamps;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Why a node of a cluster does not start alone.
const NOT_ALONE: &str = "the data folder is that of a node of a cluster: start it with cluster_peers (or cluster_join, or cluster_address alone) \
                         and cluster_secret_file as before";
/// How long the answer to who has the node leave its cluster may take to go out before the end begins.
const LEAVE_ANSWER_FIRST: Duration = Duration::from_millis(300);
/// How often free space is looked at, beside at each new file of the log.
const DISK_LOOK_EVERY: Duration = Duration::from_millis(500);
/// And with less than [`DISK_NEAR_LIMITS`] times the limit left: a quick disk takes a gigabyte in a
/// second, and what is below the limit is for acknowledgements.
const DISK_LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(50);
const DISK_NEAR_LIMITS: u64 = 4;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The data folder cannot be served.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The data folder of a node among others is damaged.
    #[error(
        "the data folder is damaged ({0}), and other nodes have what this one lost: leave it stopped, the cluster serves without it as long \
         as a majority of its nodes runs. The damaged bytes back from this node's own disk make it whole; an older copy of the folder does \
         not, and must not be used, as it has forgotten what this node promised the others. Where they are gone, have another node forget this \
         one (`leveret ctl forget_cluster_node`) and start one with an empty folder and cluster_join in its stead"
    )]
    Member(String),
    /// The node does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The certificates cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The definitions file is not taken in.
    #[error("definitions {}: {source}", path.display())]
    Definitions {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ImportError,
    },
    /// The cluster goes on without this node for good.
    #[error(
        "this node has been forgotten: start it with an empty data folder and cluster_join, and it joins anew. It left the cluster (`leveret \
         cluster leave`), or another node removed it (`leveret ctl forget_cluster_node`) while it did not answer, and the others go on without \
         it: clients here could lose what they are told. Unless it left by itself, keep the old folder until you know that nothing in it is \
         missed: what this node had and a majority of the others did not is nowhere else"
    )]
    Forgotten,
    /// What is set, the data folder and the cluster do not go together.
    #[error("{0}")]
    Cluster(String),
    /// The other nodes cannot be listened for, or looked for.
    #[error("{0}")]
    Nodes(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}; the process may have too many, or too little memory")]
    Thread(std::io::Error),
}

impl RunError {
    /// Whether every later start ends as this one did, unless somebody changes something first. What
    /// may pass by itself (a port that is taken) is not among them.
    pub fn is_lasting(&self) -> bool {
        match self {
            RunError::Member(_) | RunError::Forgotten | RunError::Cluster(_) | RunError::Tls(_) => true,
            RunError::Open(error) => error.is_lasting(),
            RunError::Start(error) => matches!(error, StartError::Config { .. }),
            RunError::Definitions { source, .. } => source.is_lasting(),
            RunError::Nodes(_) | RunError::Thread(_) => false,
        }
    }
}

impl Stopped {
    /// How the process ends.
    fn outcome(self) -> Result<(), RunError> {
        match self {
            Stopped::Asked => Ok(()),
            Stopped::Forgotten => Err(RunError::Forgotten),
            Stopped::LeftBehind(why) => Err(RunError::Cluster(why)),
        }
    }
}

/// What an operator asks of a running server; each is set from outside, and taken back within half
/// a second.
#[derive(Clone, Copy)]
pub struct Asks<'a> {
    /// To log its gauges.
    pub report: &'a AtomicBool,
    /// To read certificates and definitions again.
    pub reload: &'a AtomicBool,
    /// To end, where nothing is served yet.
    pub ends: &'a AtomicBool,
}

/// Serves until `shutdown` is ready, then drains and ends. Blocks. `on_quiet` is called on threads
/// that were busy and are not any more, for an allocator that wants to give memory back. `attendant`
/// looks after the node beside its clients.
pub fn run(
    config: &Config,
    shutdown: impl Future<Output = ()> + Send,
    on_quiet: fn(),
    asks: Asks<'_>,
    mut attendant: impl Attendant,
) -> Result<(), RunError> {
    let begin = Instant::now();
    // Before the folder is touched, and others are waited for.
    tls::check(config)?;
    let cluster = Cluster::of(config)?;
    let mut folder = open_data_folder(config, cluster.as_ref().and_then(|cluster| cluster.id(config)))
        .map_err(OpenError::Storage)?;
    let node_name = folder.identity().node_name.clone();
    let startup = Arc::new(Startup::new(&node_name));
    attendant.begin(&startup);
    let links = match cluster {
        Some(cluster) => match cluster.found(&mut folder, config, asks.ends, &startup)? {
            Ok(founded) => Some(founded),
            Err(stopped) => return stopped.outcome(),
        },
        None if folder.cluster_record().map_err(OpenError::Storage)?.is_some() => {
            return Err(RunError::Cluster(NOT_ALONE.to_owned()));
        }
        None => None,
    };
    if folder.was_short() {
        tracing::warn!("the disk is full: the room that is kept for a start was given back to it");
    }
    // A folder that was made to join others does not have it.
    let cluster_id = links.as_ref().map_or(folder.identity().cluster_id, Founded::id);
    startup.note("it reads its data folder".to_owned());
    let mut opened = engine::open(
        folder,
        EngineConfig {
            partitions: config.partitions,
            has_peers: links.is_some(),
            shards: config.shard_threads,
            wal_file_bytes: u32::try_from(config.wal_file_bytes).unwrap_or(u32::MAX),
            wal_retained_bytes: config.wal_retained_bytes,
            cache_bytes: usize::try_from(config.cache_bytes).unwrap_or(usize::MAX),
            read_ahead_bytes: usize::try_from(config.read_ahead_bytes).unwrap_or(usize::MAX),
            wal_index_bytes: config.wal_index_bytes,
            wal_sync_delay_ms: config.wal_sync_delay_ms,
            checkpoint_interval_bytes: config.checkpoint_interval_bytes,
            disk_free_min_bytes: config.disk_free_min_bytes,
            on_quiet,
        },
    )
    .map_err(|error| match links.is_some() && error.is_damage() {
        true => RunError::Member(error.cause()),
        false => RunError::Open(error),
    })?;
    // What a member of a group has read of its log counts once the others have said up to where it
    // is decided: what is carried out by now would be told as far too little.
    let backlog = links.is_none().then(|| opened.backlog());
    tracing::info!(
        node = %node_name,
        messages = backlog.map(|(messages, _)| messages),
        queues_with_messages = backlog.map(|(_, queues)| queues),
        queues = backlog.map(|_| opened.brought.topology.queues().count()),
        log_bytes_read = opened.brought.report.body_bytes,
        ms = begin.elapsed().as_millis() as u64,
        "data folder opened"
    );
    // What was read to come back is not needed any more, and this thread does nothing else for
    // long.
    on_quiet();
    let node_config = NodeConfig {
        listen: config.amqp.clone(),
        listen_tls: config.amqps.clone(),
        proxied: config.proxy_protocol.clone(),
        login_from: config.certificate_login,
        shards: config.shard_threads,
        life: opened.brought.life,
        placement: opened.placement(),
        has_peers: links.is_some(),
        quarantined: opened.quarantined().collect(),
        amqp: connection_config(config, &node_name),
        loopback_users: config.loopback_users.clone(),
        login_limits: LoginLimits {
            per_address: config.login_failures_per_address,
            per_user: config.login_failures_per_user,
        },
        password_hashing: config.password_hashing,
        leader_locator: config.queue_leader_locator,
        known_passwords_s: config.login_cache_s,
        anonymous_user: config.anonymous_login_user.clone(),
        takes_passwords: config.takes_passwords(),
        tokens: config.token_settings(),
        traces: config.trace_settings(),
        connections_max: config.connections_max,
        transient_bytes_max: config.transient_bytes_max,
        user_bytes_max: config.user_bytes_max,
        unwritten_bytes_max: config.unwritten_bytes_max,
        consumer_timeout_ms: config.consumer_timeout_ms,
        node_name: node_name.clone(),
        event_vhost: config.event_exchange_vhost.first().cloned(),
        stamps: Stamps::new(config.stamp_time, config.stamp_node),
        on_quiet,
    };
    let life = opened.brought.life;
    let mut topology = std::mem::take(&mut opened.brought.topology);
    topology.set_redeclaration(config.redeclaration);
    topology.set_argument_bytes_max(config.vhost_arguments_bytes_max);
    let mut engine = None;
    let mut failed = None;
    let node = Node::prepare(node_config, topology, |wiring| match opened.start(&wiring) {
        Ok((started, log, make)) => {
            engine = Some(started);
            (log, make)
        }
        Err(error) => {
            failed = Some(error);
            let log: Arc<dyn crate::topology_log::TopologyLog> =
                Arc::new(crate::topology_log::MemoryLog::new(wiring.changes()));
            (log, Arc::new(|_| ShardParts::without_log(Vec::new())))
        }
    })?;
    if let Some(error) = failed {
        node.drain();
        return Err(RunError::Thread(error));
    }
    let engine = engine.expect("it was started, or the start failed");
    let peers = links.map(|parts| parts.start(life, &node)).transpose().map_err(RunError::Thread)?;
    let caught_up =
        peers.as_ref().map_or(Ok(()), |peers| peers.catch_up((&node, engine.gauges()), config, &startup, asks));
    if let Err(stopped) = caught_up {
        end(&node, peers, engine);
        return stopped.outcome();
    }
    node.shared().leaders.know_members();
    // Publishers have to be blocked before the first of them is there.
    startup.note("it reads its certificates and definitions".to_owned());
    let mut room = Room::default();
    room.look(config, &node, engine.gauges());
    if let Err(error) = let_in(config, &node, || attendant.hold()) {
        end(&node, peers, engine);
        return Err(error);
    }
    let addresses = node.addresses();
    for (at, address) in addresses.iter().enumerate() {
        let over = if at + config.amqps.len() >= addresses.len() { " over TLS" } else { "" };
        tracing::info!(%address, ms = begin.elapsed().as_millis() as u64, "ready: AMQP 0-9-1{over}");
    }
    let facts = NodeFacts {
        node_name,
        cluster_id,
        config: config.clone(),
        amqp: node.addresses().to_vec(),
        tls_count: config.amqps.len(),
        started_ms: engine::wall_ms(),
        started: begin,
    };
    let attending = attendant.attend(Handle::new(node.shared().clone(), Some(engine.gauges().clone()), facts));
    let ended = watch(config, (&node, peers.as_ref()), engine.gauges(), room, shutdown, asks);
    let has_left = ended.is_err() && node.shared().leaves.load(Ordering::Relaxed);
    match (has_left, ended.is_err()) {
        // What to do is the last word.
        (false, true) => tracing::warn!("the cluster has forgotten this node, which ends"),
        (true, true) => std::thread::sleep(LEAVE_ANSWER_FIRST),
        _ => {}
    }
    drop(attending);
    tracing::info!(connections = node.connections(), "draining: no new connections, clients are told to go");
    end(&node, peers, engine);
    if has_left {
        tracing::info!(
            data_dir = %config.data_dir.display(),
            "this node has left its cluster, which goes on without it. Its data folder is of no more use: started over it again it is refused, \
             and over an empty one with cluster_join it comes back as a new node"
        );
        return Ok(());
    }
    ended
}

fn end(node: &Node, peers: Option<Member>, engine: Engine) {
    node.drain();
    peers.into_iter().for_each(Member::stop);
    engine.stop();
}

/// What has to be there before the first client is: certificates and definitions. Then `ready` is called,
/// and the node listens.
fn let_in(config: &Config, node: &Node, ready: impl FnOnce()) -> Result<(), RunError> {
    if let Some(files) = config.tls_files() {
        node.use_tls(&files)?;
    }
    if let Some(files) = config.management_tls_files() {
        node.use_management_tls(&files)?;
    }
    if let Some(path) = &config.definitions {
        let skips = config.definitions_skip_if_unchanged;
        import(path, skips, node, Moment::Start)
            .map_err(|source| RunError::Definitions { path: path.clone(), source })?;
    }
    node.make_event_exchange()?;
    ready();
    node.listen()?;
    Ok(())
}

/// Takes in definitions; those that were taken in before not again, if `skips_known`.
fn import(path: &Path, skips_known: bool, node: &Node, moment: Moment) -> Result<(), ImportError> {
    let begin = Instant::now();
    match node.import_definitions_at(path, skips_known, moment)? {
        FromFiles::Taken(Imported { changes, different, left_out }) => {
            let ms = begin.elapsed().as_millis() as u64;
            let (different, left_out) = (different.len(), left_out.len());
            tracing::info!(path = %path.display(), changes, different, left_out, ms, "definitions taken in");
        }
        FromFiles::Known => tracing::info!(
            path = %path.display(),
            "definitions are those that were taken in before: passed over, as definitions_skip_if_unchanged says. `leveret ctl \
             import_definitions` takes a file in all the same"
        ),
        FromFiles::None => tracing::warn!(
            path = %path.display(),
            "the folder of definitions has no file that ends in .json: nothing is taken in. What should be mounted there may be missing"
        ),
    }
    Ok(())
}

/// Certificates and definitions are read again. What is wrong is told, and what was there before
/// stays.
fn reload(config: &Config, node: &Node, peers: Option<&Member>) {
    peers.into_iter().for_each(Member::reload_credentials);
    if let Some(files) = config.tls_files() {
        match node.use_tls(&files) {
            Ok(()) => tracing::info!("certificates read again; open connections keep theirs"),
            Err(error) => tracing::error!("certificates not changed, those before stay in use: {error}"),
        }
    }
    if let Some(files) = config.management_tls_files() {
        match node.use_management_tls(&files) {
            Ok(()) => tracing::info!("certificates of the management API read again"),
            Err(error) => tracing::error!("certificates of the management API not changed: {error}"),
        }
    }
    match node.reload_tokens() {
        None => {}
        Some(Ok(())) => tracing::info!("keys of tokens read again"),
        Some(Err(error)) => tracing::error!("keys of tokens not changed: {error}"),
    }
    if let Some(path) = &config.definitions
        && let Err(error) = import(path, config.definitions_skip_if_unchanged, node, Moment::Serving)
    {
        tracing::error!("definitions {}: {error}", path.display());
    }
}

/// What was seen of the room on the disk.
#[derive(Default)]
struct Room {
    is_low: bool,
    /// What the next start may need is kept.
    is_reserved: bool,
}

impl Room {
    /// Looks again: publishers are blocked while the disk is low. Returns the bytes that are free.
    fn look(&mut self, config: &Config, node: &Node, engine: &EngineGauges) -> u64 {
        let free = engine.free_bytes().unwrap_or(u64::MAX);
        // Ends a tenth above where it began, so that it does not flutter.
        let limit = config.disk_free_min_bytes + if self.is_low { config.disk_free_min_bytes / 10 } else { 0 };
        let is_low = free < limit || engine.is_disk_full();
        if is_low != self.is_low {
            self.is_low = is_low;
            if is_low {
                // A checkpoint may need it before it is over.
                self.is_reserved = false;
                tracing::warn!(free_bytes = free, limit_bytes = config.disk_free_min_bytes, "the disk is low");
            }
            node.set_alarm(Alarm::Disk, is_low);
        }
        if !is_low && !self.is_reserved {
            self.is_reserved = engine.keep_reserve();
        }
        free
    }
}

/// What the watch wakes for before its time.
enum Wake {
    End,
    Look,
}

/// Until `shutdown` is ready: looks after the disk, and does what its operator asks for. Errors: the node
/// has to end without being told to.
fn watch(
    config: &Config,
    (node, peers): (&Node, Option<&Member>),
    engine: &EngineGauges,
    mut room: Room,
    shutdown: impl Future<Output = ()> + Send,
    asks: Asks<'_>,
) -> Result<(), RunError> {
    let (sender, receiver) = channel();
    let (asks_reload, reloads) = sync_channel(1);
    let over = Notify::new();
    let over = &over;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async {
                    let mut shutdown = pin!(shutdown);
                    loop {
                        tokio::select! {
                            () = &mut shutdown => return,
                            () = over.notified() => return,
                            () = engine.log_has_grown() => {}
                        }
                        let _ = sender.send(Wake::Look);
                    }
                }),
                Err(error) => tracing::error!(%error, "no runtime to wait for a signal with: ending"),
            }
            // The receiver waits for this.
            let _ = sender.send(Wake::End);
        });
        // A long file of definitions takes long, and nothing here waits for it.
        scope.spawn(move || reloads.iter().for_each(|()| reload(config, node, peers)));
        // Its thread ends when this does.
        let asks_reload = asks_reload;
        let mut pause = DISK_LOOK_CLOSELY_EVERY;
        let ends = || node.shared().ends_imports.store(true, Ordering::Relaxed);
        loop {
            match receiver.recv_timeout(pause) {
                Ok(Wake::End) | Err(RecvTimeoutError::Disconnected) => {
                    ends();
                    return Ok(());
                }
                Ok(Wake::Look) | Err(RecvTimeoutError::Timeout) => {}
            }
            if peers.is_some_and(Member::is_forgotten) {
                ends();
                over.notify_one();
                return Err(RunError::Forgotten);
            }
            let free = room.look(config, node, engine);
            // Asked again while one waits for its turn, that one is enough.
            if asks.reload.swap(false, Ordering::Relaxed) {
                let _ = asks_reload.try_send(());
            }
            if asks.report.swap(false, Ordering::Relaxed) {
                log_gauges(node, engine, free);
            }
            let is_near = free < config.disk_free_min_bytes.saturating_mul(DISK_NEAR_LIMITS);
            pause = if is_near { DISK_LOOK_CLOSELY_EVERY } else { DISK_LOOK_EVERY };
        }
    })
}

/// One line with what the node knows of itself.
fn log_gauges(node: &Node, engine: &EngineGauges, free_bytes: u64) {
    let (log_bytes, syncs) = engine.log_written();
    tracing::info!(
        value_at_risk = engine.value_at_risk(),
        messages_set_aside = engine.messages_set_aside(),
        connections = node.connections(),
        transient_bytes = node.transient_bytes(),
        log_bytes_written = log_bytes,
        log_syncs = syncs,
        disk_free_bytes = free_bytes,
        "gauges"
    );
}

fn connection_config(config: &Config, node_name: &str) -> ConnectionConfig {
    let text = |s: &str| Value::LongString(bytes::Bytes::copy_from_slice(s.as_bytes()));
    let mut properties = Table::new();
    let mut capabilities = Table::new();
    for name in &config.capabilities {
        capabilities.push(bytes::Bytes::copy_from_slice(name.as_bytes()), Value::Bool(true));
    }
    properties.push("capabilities", Value::Table(capabilities));
    properties.push("cluster_name", text(node_name));
    properties.push("copyright", text("The Leveret authors"));
    properties.push("information", text("Leveret, a message broker that speaks AMQP 0-9-1"));
    properties.push("platform", text(concat!("Leveret ", env!("CARGO_PKG_VERSION"))));
    properties.push("product", text(&config.product));
    properties.push("version", text(&config.product_version));
    // A body of the largest size fits beside its header and a frame that stops in the middle,
    // whatever the settings are.
    let one_message = config.body_bytes_max.saturating_add(2 * u64::from(config.frame_max));
    let assembling_bytes_max = config.connection_bytes_max.max(one_message);
    ConnectionConfig {
        server_properties: properties,
        mechanisms: config.mechanisms(),
        frame_max: config.frame_max,
        initial_frame_max: config.initial_frame_max,
        channel_max: config.channel_max,
        heartbeat_s: config.heartbeat_s,
        body_bytes_max: config.body_bytes_max,
        assembling_bytes_max: usize::try_from(assembling_bytes_max).unwrap_or(usize::MAX),
        handshake_timeout_ms: config.handshake_timeout_ms,
        ..ConnectionConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::StorageError;

    #[test]
    fn what_no_later_start_mends_is_told_from_what_one_may() {
        let of = |error: StorageError| RunError::Open(OpenError::Storage(error)).is_lasting();
        let folder = || "data".to_owned();
        assert!(RunError::Forgotten.is_lasting() && RunError::Cluster(NOT_ALONE.to_owned()).is_lasting());
        assert!(RunError::Member("gone".to_owned()).is_lasting() && RunError::Open(OpenError::LogGone).is_lasting());
        assert!(RunError::Open(OpenError::Joining).is_lasting());
        let file = tls::PemFile::new("tls_key", "server.key");
        assert!(RunError::Tls(TlsError { file, what: "it is gone".to_owned() }).is_lasting());
        assert!(of(StorageError::OtherCluster { folder: folder(), found: 1, wanted: 2 }));
        assert!(of(StorageError::NotADataFolder { folder: folder(), found: "mail".to_owned() }));
        assert!(of(StorageError::NodeFileGone { folder: folder() }));
        // Another process ends, room comes back, a port is free again.
        assert!(!of(StorageError::Locked { folder: folder(), pid: "1".to_owned() }));
        assert!(!of(StorageError::Full { file: folder(), free_bytes: 0 }));
        assert!(!RunError::Nodes("the address is in use".to_owned()).is_lasting());
    }
}
