//! From the settings of a cluster to a node of it that has caught up with the others.
//!
//! Invariant: clients are let in once the node has all that was decided about the topology before it
//! started: it has something decided itself, and waits until that is applied here.

use super::encryption::LinkTls;
use super::formation::{FormationError, form};
use super::handshake::Newcomer;
use super::joining::{Answered, Joining};
use super::links::{Links, LinksParts};
use super::peers::{Peers, PeersError};
use super::secret::Secrets;
use crate::config::{Config, folder_holder};
use crate::engine::{EngineGauges, OpenError, found_alone, refuse_without_cluster_file};
use crate::node::{Node, tell_taken_by};
use crate::run::{Asks, RunError};
use crate::startup::Startup;
use crate::topology_log::Answer;
use broker::topology::{
    ClusterNode, Command as Change, CommandReply, MACHINE_VERSION, MachineVersions, PartitionStage, Refusal, Topology,
};
use broker::{NodeLife, NodeNumber};
use node::Announcing;
use partition::machine::MACHINE_VERSION as QUEUES_MACHINE_VERSION;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::data_folder::ToldOfItself;
use storage::{ClusterRecord, DataFolder, Founder, NodeState, RealDisk};

/// What stands for the cluster's number in the folder of a node that joined: its file has it.
const NOT_KNOWN: u128 = 0;
/// Why a node of a cluster does not begin one of its own.
const NOT_ALONE: &str = "the data folder is that of a node that founded a cluster with others: start it with the cluster_peers with which \
                         it did";
/// Why a node alone does not come to others.
const ALONE: &str = "the data folder is that of a node that runs alone: start it with cluster_address and cluster_secret_file and \
                     without cluster_peers and cluster_join, and let others with empty folders join it";
/// Why a folder founds nothing.
const BEGUN_TO_JOIN: &str = "the data folder was begun for a node that comes to others: start it with cluster_join or cluster_peers, as \
                             before, or use an empty folder";
/// Why a node with an address for others does not start.
const NO_SECRET: &str = "cluster_address is set and cluster_secret_file is not: with both the node runs as the first of a cluster, which others \
                         join; without both it runs alone";
/// Why a node with a secret does not start.
const NO_ADDRESS: &str = "cluster_secret_file is set and cluster_address is not: with both the node runs as the first of a cluster, which others \
                          join; without both it runs alone. One that joins others or founds a cluster with them has cluster_join or \
                          cluster_peers too";
/// The same where only what was is set.
const ONLY_BEFORE: &str = "cluster_secret_file_before is set and cluster_secret_file is not: it names what the secret was before, and the other \
                           one what it is from now on";
/// How often whoever waits looks whether the process is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long clients wait outside for leaders that could be elected, and how often it is looked.
const LEADERS_PATIENCE: Duration = Duration::from_secs(5);
const LEADERS_LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the log says what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// A node whose cluster went on as another one ends if its own has not let it in by then: where a majority of that
/// lives, it was not it that was lost, and the word of whoever went on without it ends nothing.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(5);

/// Where a node listens for others if its address names no port: RabbitMQ's port for that.
const PORT: u16 = 25_672;

/// The address of a node, as host:port.
pub fn with_port(address: &str) -> String {
    let colons = address.matches(':').count();
    match address.strip_prefix('[') {
        Some(rest) if rest.ends_with(']') => format!("{address}:{PORT}"),
        None if colons == 0 => format!("{address}:{PORT}"),
        None if colons > 1 => format!("[{address}]:{PORT}"),
        _ => address.to_owned(),
    }
}

/// How a node comes to its cluster.
enum Beginning {
    /// It founds it with others.
    Founds,
    /// It asks a node of it.
    Joins { via: String },
    /// It ran alone, or is the first one: others may join it.
    Alone,
}

/// A cluster as the settings have it.
pub(crate) struct Cluster {
    beginning: Beginning,
    peers: Peers,
    secrets: Arc<Secrets>,
    tls: Option<Arc<LinkTls>>,
}

/// A node of a founded cluster, before it runs.
pub(crate) struct Founded {
    cluster: Cluster,
    id: u128,
    folder: u128,
    record: ClusterRecord,
}

/// A running node of a cluster.
pub(crate) struct Member {
    links: Links,
    thread: JoinHandle<()>,
    secrets: Arc<Secrets>,
    tls: Option<Arc<LinkTls>>,
    record: ClusterRecord,
    number: NodeNumber,
    /// Where the others reach it now.
    address: String,
}

/// Why a node does not wait for its cluster any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The process is to end.
    Asked,
    /// The cluster has forgotten it.
    Forgotten,
    /// The cluster went on as another one, without it; what to do.
    LeftBehind(String),
}

/// The nodes that a node on its way up does not reach.
struct Missing {
    names: Vec<String>,
    of: usize,
}

impl Missing {
    fn sentence(&self) -> String {
        let Missing { names, of } = self;
        match names.is_empty() {
            true => format!("it waits until a majority of the {of} nodes of its cluster has decided that it is back"),
            false => {
                format!(
                    "it waits for a majority of the {of} nodes of its cluster, and does not reach {}",
                    names.join(", ")
                )
            }
        }
    }
}

/// The same of a node whose word and the cluster's cannot both be true; `why` says what to do.
fn sentence_of_halted(why: &str) -> String {
    format!("it is HALTED and does not come up, however long somebody waits: {why}")
}

impl Cluster {
    /// The cluster that is set, if one is. Errors: one line that says what to do.
    pub(crate) fn of(config: &Config) -> Result<Option<Cluster>, RunError> {
        let wrong = |why: &str| Err(RunError::Cluster(why.to_owned()));
        let peers: Vec<String> = config.cluster_peers.iter().map(|peer| with_port(peer)).collect();
        let join = config.cluster_join.first().map(|via| with_port(via));
        let own = config.cluster_address.first().map(|own| with_port(own));
        let own = own.as_deref();
        if config.cluster_secret_file.is_none() && config.cluster_secret_file_before.is_some() {
            return wrong(ONLY_BEFORE);
        }
        if peers.is_empty() && join.is_none() && (own.is_none() || config.cluster_secret_file.is_none()) {
            return match (own, &config.cluster_secret_file) {
                (Some(_), None) => wrong(NO_SECRET),
                (None, Some(_)) => wrong(NO_ADDRESS),
                _ => Ok(None),
            };
        }
        let Some(files) = config.cluster_secret_files() else {
            let what = if join.is_some() { "cluster_join" } else { "cluster_peers" };
            return Err(RunError::Cluster(format!(
                "{what} needs cluster_secret_file: what nodes say to each other is for nobody else"
            )));
        };
        let secrets = Arc::new(Secrets::load(files).map_err(RunError::Cluster)?);
        let (beginning, peers) = match (join, own) {
            (Some(_), _) if !peers.is_empty() => {
                return wrong(
                    "cluster_peers is for nodes that found a cluster together, cluster_join for one that comes later: set one of them",
                );
            }
            (Some(_), None) => {
                return wrong("cluster_join needs cluster_address: where the other nodes reach this one, as host:port");
            }
            (Some(via), Some(own)) => (Beginning::Joins { via }, Peers::joined(own)),
            (None, Some(own)) if peers.is_empty() => (Beginning::Alone, Peers::joined(own)),
            (None, own) => (Beginning::Founds, Peers::new(&peers, own)),
        };
        let peers = peers.map_err(|error| {
            // A second process with the settings of the first.
            let holder = folder_holder(config).filter(|_| error.is_of_a_taken_address());
            match (holder, &error) {
                (Some(held), _) => OpenError::Storage(held).into(),
                (None, PeersError::List(_)) => RunError::Cluster(error.to_string()),
                (None, PeersError::Listen { .. }) => RunError::Nodes(error.to_string()),
            }
        })?;
        let tls = config.cluster_tls_files().map(LinkTls::load).transpose()?.map(Arc::new);
        Ok(Some(Cluster { beginning, peers, secrets, tls }))
    }

    /// The cluster's number, by which its folders know it: that of the founders, with the secret with which
    /// they founded it. A node that joins does not know it yet, and one that began alone has it in its folder.
    pub(crate) fn id(&self, config: &Config) -> Option<u128> {
        match self.beginning {
            Beginning::Founds => Some(self.number_in(&config.data_dir).unwrap_or_else(|| self.number_of_founders())),
            Beginning::Joins { .. } => Some(NOT_KNOWN),
            Beginning::Alone => None,
        }
    }

    /// The same where the folder is that of a founder, and these are those that founded it: their secret may be
    /// another one since. One that went on alone for good (`leveret cluster recover`) knows itself only, and starts with the
    /// settings that it had. What is damaged there is told by who opens the folder.
    fn number_in(&self, data_folder: &Path) -> Option<u128> {
        let disk = RealDisk::existing(data_folder).ok()?;
        let Ok(Some(told)) = ToldOfItself::read(&disk) else {
            return Some(ToldOfItself::identity_of_member(&disk).ok()??.cluster_id);
        };
        let mut founders: Vec<&String> = told.record.founders.iter().map(|founder| &founder.address).collect();
        founders.sort();
        let has_founded = match told.record.joined {
            None => founders.into_iter().eq(&self.peers.all),
            Some(_) => told.record.before.contains(&told.identity.cluster_id),
        };
        has_founded.then_some(told.identity.cluster_id)
    }

    /// The number that they begin with.
    fn number_of_founders(&self) -> u128 {
        let words: Vec<&[u8]> = self.peers.all.iter().map(|peer| peer.as_bytes()).collect();
        let number = self.secrets.now().number_of(&words);
        u128::from_le_bytes(number[..16].try_into().expect("a hash has more"))
    }

    /// Founds the cluster with the others, or joins it, if that was not done before. Blocks until it
    /// is, or says why that is not waited for any more.
    pub(crate) fn found(
        self,
        folder: &mut DataFolder<RealDisk>,
        config: &Config,
        ends: &AtomicBool,
        startup: &Startup,
    ) -> Result<Result<Founded, Stopped>, RunError> {
        let folder_id = folder.identity().folder_id;
        let wrong = |why: &str| RunError::Cluster(why.to_owned());
        let known = folder.cluster_record().map_err(OpenError::Storage)?;
        let state = folder.node().state;
        let record = match (known, &self.beginning) {
            // Only who founded it with others needs their list, which its number is made of.
            (Some(record), Beginning::Alone) if record.joined.is_none() => return Err(wrong(NOT_ALONE)),
            (Some(record), _) => record,
            (None, Beginning::Founds | Beginning::Joins { .. }) if state != NodeState::Joining => {
                refuse_without_cluster_file(folder)?;
                return Err(wrong(ALONE));
            }
            (None, Beginning::Founds) => {
                let store = |record: &ClusterRecord| folder.store_cluster_record(record);
                let id = self.number_of_founders();
                let asked = (ends, startup);
                let shown = (&self.secrets.now(), self.tls.clone());
                match form(&self.peers, shown, (id, folder_id), config.partitions, store, asked) {
                    Ok(record) => record,
                    Err(FormationError::Ended { is_known }) => {
                        give_up(folder, is_known || !folder.was_founded());
                        return Ok(Err(Stopped::Asked));
                    }
                    Err(error @ FormationError::NotNamed { .. }) => {
                        // It was founded with others, for good.
                        give_up(folder, false);
                        return Err(wrong(&error.to_string()));
                    }
                    Err(error) => return Err(RunError::Nodes(error.to_string())),
                }
            }
            (None, Beginning::Joins { via }) => match self.join(via, folder, (ends, startup))? {
                Ok(record) => record,
                Err(stopped) => return Ok(Err(stopped)),
            },
            (None, Beginning::Alone) if state == NodeState::Joining => return Err(wrong(BEGUN_TO_JOIN)),
            (None, Beginning::Alone) => {
                refuse_without_cluster_file(folder)?;
                self.begin_alone(folder, config)?
            }
        };
        node::found_among_others(folder, &record)?;
        let id = record.joined.unwrap_or(folder.identity().cluster_id);
        Ok(Ok(Founded { cluster: self, id, folder: folder_id, record }))
    }

    /// Asks a node of the cluster for a number, and waits until there is one.
    fn join(
        &self,
        via: &str,
        folder: &DataFolder<RealDisk>,
        asked: (&AtomicBool, &Startup),
    ) -> Result<Result<ClusterRecord, Stopped>, RunError> {
        let newcomer = Newcomer {
            name: folder.identity().node_name.clone(),
            topology: MACHINE_VERSION,
            queues: QUEUES_MACHINE_VERSION,
        };
        let (address, secrets, tls) = (self.peers.own.as_str(), &*self.secrets, self.tls.clone());
        let joining = Joining { via, address, secrets, tls, folder: folder.identity().folder_id, newcomer };
        Ok(match joining.join(asked).map_err(RunError::Thread)? {
            Answered::Joined(record) => Ok(record),
            Answered::Forgotten => {
                give_up(folder, false);
                Err(Stopped::Forgotten)
            }
            Answered::Ended { is_known } => {
                give_up(folder, is_known || !folder.was_founded());
                Err(Stopped::Asked)
            }
        })
    }

    /// A node that is alone is the first of a cluster from now on. A new folder founds its groups as
    /// that of a node alone does.
    fn begin_alone(&self, folder: &mut DataFolder<RealDisk>, config: &Config) -> Result<ClusterRecord, RunError> {
        if folder.node().state == NodeState::Founding {
            found_alone(folder, config.partitions, u32::try_from(config.wal_file_bytes).unwrap_or(u32::MAX))?;
        }
        let founder = Founder {
            number: folder.node().id,
            folder_id: folder.identity().folder_id,
            address: self.peers.own.clone(),
        };
        let joined = Some(folder.identity().cluster_id);
        Ok(ClusterRecord { joined, partitions: config.partitions, founders: vec![founder], before: Vec::new() })
    }
}

/// No cluster takes the node in: its folder is as empty as it was before, unless another node may count on
/// it.
fn give_up(folder: &DataFolder<RealDisk>, is_known: bool) {
    if is_known {
        return;
    }
    if let Err(error) = folder.abandon() {
        tracing::warn!(%error, "what the data folder began with could not be taken away");
    }
}

impl Founded {
    /// The cluster's number, which all its nodes know.
    pub(crate) fn id(&self) -> u128 {
        self.id
    }

    /// Starts the links of a node.
    pub(crate) fn start(self, own: NodeLife, node: &Node) -> std::io::Result<Member> {
        let Founded { cluster: Cluster { peers, secrets, tls, .. }, id, folder, record } = self;
        let shared = node.shared();
        let address = peers.own.clone();
        let parts = LinksParts {
            peers,
            secrets: secrets.clone(),
            tls: tls.clone(),
            cluster: id,
            folder,
            record: record.clone(),
            own,
            shared: Arc::downgrade(shared),
        };
        let (links, thread) = Links::start(parts, shared.directory.clone(), shared.mailboxes.clone())?;
        assert!(shared.links.set(links.clone()).is_ok(), "links are started once");
        let teller = links.clone();
        tell_taken_by(shared, move || teller.tell_taken_soon());
        Ok(Member { links, thread, secrets, tls, record, number: NodeNumber(own.node), address })
    }
}

impl Member {
    /// Whether the cluster has forgotten this node, which is none of it any more.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.links.is_forgotten()
    }

    /// Has the topology know this node, and waits until all that was decided before is known here.
    /// Blocks. Errors: why that is not waited for any more.
    pub(crate) fn catch_up(
        &self,
        (node, engine): (&Node, &EngineGauges),
        config: &Config,
        startup: &Startup,
        asks: Asks<'_>,
    ) -> Result<(), Stopped> {
        self.links.watch(engine);
        let (begin, name) = (Instant::now(), startup.node_name());
        let mut tell_at = begin + TELL_EVERY;
        let can = MachineVersions { topology: MACHINE_VERSION, queues: QUEUES_MACHINE_VERSION };
        let (record, partitions) = (self.record.clone(), config.partitions);
        let mut announcing = Announcing::new(self.number, (name, &self.address), can, record, partitions);
        loop {
            let next = announcing.next(&node.shared().topology());
            let Some(change) = next else { break };
            if let Err(refusal) = self.decide((node, engine), change, (asks, startup), (begin, &mut tell_at))? {
                tracing::debug!(%refusal, "the topology refuses what a node has to say");
            }
        }
        tracing::info!(
            node = name,
            number = self.number.0,
            linked = %self.linked_names(node),
            ms = begin.elapsed().as_millis() as u64,
            "caught up with the cluster"
        );
        self.await_leaders(node, startup, asks);
        Ok(())
    }

    /// Waits until the groups of queues of which a majority is there have leaders, for a while: a client that comes before
    /// finds its queues down, and whoever restarts nodes one after the other goes on with the next. Blocks.
    fn await_leaders(&self, node: &Node, startup: &Startup, asks: Asks<'_>) {
        let begin = Instant::now();
        loop {
            let linked = self.links.linked();
            let count = self.leaderless(node, &linked);
            let is_over =
                begin.elapsed() >= LEADERS_PATIENCE || asks.ends.load(Ordering::Relaxed) || self.is_forgotten();
            if count == 0 || is_over {
                if count > 0 {
                    tracing::warn!(groups = count, "clients are let in, though groups of queues have no leader yet");
                }
                return;
            }
            startup.note(format!("it waits until {count} of its groups of queues have elected leaders"));
            std::thread::sleep(LEADERS_LOOK_EVERY);
        }
    }

    /// How many groups of queues have no leader, though a majority of their members is linked with this node.
    fn leaderless(&self, node: &Node, linked: &[NodeNumber]) -> usize {
        let topology = node.shared().topology();
        let is_there = |member: &&NodeNumber| **member == self.number || linked.contains(*member);
        let leaderless = topology.partitions().filter(|(id, put)| {
            put.stage == PartitionStage::Serving
                && node.shared().leaders.leader(*id).is_none()
                && topology.is_missed(*id)
                && put.members.iter().filter(is_there).count() > put.members.len() / 2
        });
        leaderless.count()
    }

    /// Has a change decided, however long that takes.
    fn decide(
        &self,
        (node, engine): (&Node, &EngineGauges),
        change: Change,
        (asks, startup): (Asks<'_>, &Startup),
        (begin, tell_at): (Instant, &mut Instant),
    ) -> Result<Result<CommandReply, Refusal>, Stopped> {
        loop {
            let (sender, decided) = mpsc::channel();
            node.shared().log().propose(change.clone(), Answer::to_waiter(sender));
            loop {
                match decided.recv_timeout(LOOK_EVERY) {
                    Ok(outcome) => return Ok(outcome),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if asks.ends.load(Ordering::Relaxed) {
                    return Err(Stopped::Asked);
                }
                if self.is_forgotten() {
                    return Err(Stopped::Forgotten);
                }
                if let Some(why) = self.links.left_behind().filter(|_| begin.elapsed() >= LEFT_BEHIND_AFTER) {
                    return Err(Stopped::LeftBehind(why));
                }
                // It may be for want of a right one that nobody is linked.
                if asks.reload.swap(false, Ordering::Relaxed) {
                    self.reload_credentials();
                }
                let waits_for = match engine.halted() {
                    Some(why) => sentence_of_halted(why),
                    None => self.missing(&node.shared().topology()).sentence(),
                };
                if Instant::now() >= *tell_at {
                    *tell_at = Instant::now() + TELL_EVERY;
                    match engine.halted() {
                        Some(_) => tracing::error!("{waits_for}"),
                        None => tracing::info!("{waits_for}"),
                    }
                }
                startup.note(waits_for);
            }
        }
    }

    /// The nodes that this one is linked with, as they are called.
    fn linked_names(&self, node: &Node) -> String {
        let topology = node.shared().topology();
        let names: Vec<String> = self.links.linked().into_iter().map(|node| topology.shown_node(node)).collect();
        names.join(", ")
    }

    /// Which nodes of the cluster are not linked with this one, as far as it knows them.
    fn missing(&self, topology: &Topology) -> Missing {
        let linked = self.links.linked();
        // Those that were forgotten stay in the record.
        let known: Vec<(NodeNumber, String)> = match topology.nodes().count() >= self.record.founders.len() {
            true => {
                let shown = |node: &ClusterNode| {
                    let shown = if node.name.is_empty() { &node.address } else { &node.name };
                    shown.to_string()
                };
                topology.present_nodes().map(|(number, node)| (number, shown(node))).collect()
            }
            // The topology does not have them yet.
            false => self.record.founders.iter().map(|f| (NodeNumber(f.number), f.address.clone())).collect(),
        };
        let of = known.len();
        let is_missing = |number: &NodeNumber| *number != self.number && !linked.contains(number);
        let names = known.into_iter().filter(|(number, _)| is_missing(number)).map(|(_, name)| name).collect();
        Missing { names, of }
    }

    /// Reads the secret and the certificates that nodes show each other again, for links to come.
    pub(crate) fn reload_credentials(&self) {
        self.secrets.reload_and_tell();
        self.tls.iter().for_each(|tls| tls.reload_and_tell());
    }

    /// Ends the links.
    pub(crate) fn stop(self) {
        self.links.stop();
        if self.thread.join().is_err() {
            tracing::error!("the thread of the links panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Machine;

    #[test]
    fn who_asks_a_node_that_waits_hears_for_whom() {
        let missing = |names: &[&str]| Missing { names: names.iter().map(|n| (*n).to_owned()).collect(), of: 3 };
        let says = missing(&["leveret@n2", "leveret@n3"]).sentence();
        assert_eq!(
            says,
            "it waits for a majority of the 3 nodes of its cluster, and does not reach leveret@n2, leveret@n3"
        );
        assert!(missing(&[]).sentence().contains("has decided that it is back"));
        assert_eq!(
            sentence_of_halted("this node takes no further part in partition 0: stop it"),
            "it is HALTED and does not come up, however long somebody waits: this node takes no further part in partition 0: stop it"
        );
    }

    #[test]
    fn an_address_without_a_port_is_at_the_port_for_other_nodes() {
        let of = |address: &str| with_port(address);
        assert_eq!((of("n1"), of("10.0.0.1")), ("n1:25672".to_owned(), "10.0.0.1:25672".to_owned()));
        assert_eq!((of("n1:7000"), of("[fe80::1]:7000")), ("n1:7000".to_owned(), "[fe80::1]:7000".to_owned()));
        assert_eq!((of("[fe80::1]"), of("fe80::1")), ("[fe80::1]:25672".to_owned(), "[fe80::1]:25672".to_owned()));
        assert_eq!(of("n1:"), "n1:", "a port was meant");
    }

    #[test]
    fn half_of_what_the_first_node_needs_is_refused_with_what_the_other_half_is() {
        let machine = Machine::detect();
        let refused = |address: &[&str], secret: Option<&str>| {
            let mut config = Config::for_machine(&machine);
            config.cluster_address = address.iter().map(|one| (*one).to_owned()).collect();
            config.cluster_secret_file = secret.map(Into::into);
            Cluster::of(&config).err().map(|why| why.to_string()).unwrap_or_default()
        };
        let no_secret = refused(&["host1:7000"], None);
        assert!(no_secret.contains("cluster_secret_file is not: with both"), "{no_secret}");
        let mut config = Config::for_machine(&machine);
        config.cluster_secret_file_before = Some("/secret".into());
        let only_before = Cluster::of(&config).err().map(|why| why.to_string()).unwrap_or_default();
        assert!(only_before.contains("cluster_secret_file is not: it names"), "{only_before}");
        let no_address = refused(&[], Some("/secret"));
        assert!(no_address.contains("cluster_address is not: with both"), "{no_address}");
        assert_eq!(refused(&[], None), "");
    }
}
