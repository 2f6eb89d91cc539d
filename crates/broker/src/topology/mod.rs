//! Who exists on this broker and where a message goes: virtual hosts, users and their rights,
//! policies, exchanges, queues (as records), bindings; and the map of the cluster: nodes, pools,
//! partitions.
//!
//! Invariant: the replicated part changes only by `apply`, and is a function of the commands
//! applied; what lives on this node only changes by `apply_local`, and is in no log, no snapshot
//! and no replicated decision. Reads never change anything, so any number of threads may route at a
//! time.
//!
//! A request takes three steps: `check_*` answers at once what needs no change and refuses what is
//! not lawful; otherwise it gives a `Command`, which goes through the log to `apply` or straight to
//! `apply_local`; both validate again, for the state may have moved. Absent on purpose: messages,
//! consumers, conditions on them (`if-empty`, `if-unused` of a queue), who leads, what time it is.

mod administer;
mod alone;
mod apply;
mod arguments;
mod binding;
mod broker_event;
mod check;
mod cluster;
mod command;
mod copies;
mod dedicated;
mod destination;
mod encoding;
mod exchange;
mod exchange_type;
mod hash;
mod headers;
mod home;
mod joining;
mod message_facts;
mod message_headers;
mod name;
mod one_node;
mod password;
mod pattern;
mod pattern_weight;
mod pcre;
mod policy;
mod policy_plan;
mod pools;
mod queue;
mod records;
mod refusal;
mod route;
mod scopes;
mod selections;
mod selector;
mod settings;
mod snapshot;
mod spread;
mod topic;
mod user;
mod vhost;
mod wording;

use std::collections::BTreeMap;

pub use apply::{Applied, CommandReply, Effect};
pub use arguments::{DURABILITY_INTERVAL_MS_MAX, EXPIRY_MS_MAX, GROUP_SIZE_MAX, PRIORITY_MAX};
pub use binding::BINDINGS_MAX;
pub use broker_event::{BrokerEvent, Foresight};
pub use check::{Actor, Checked, ExchangeDeclare, OpenConnections, QueueDeclare, QueueDeclared};
pub use cluster::{
    ClusterMember, ClusterNode, FIRST_MACHINE_VERSION, FIRST_POOL, MACHINE_VERSION, MachineVersions, NODES_EVER_MAX,
    NodeStanding, PARTITIONS_EVER_MAX, POOLS_MAX, PartitionPool, PartitionStage, PoolPartition, SoleNode,
};
pub use command::{
    Binding, COMMAND_VERSION, Command, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Home, PutPolicy,
    Unbind,
};
pub use copies::CopyChange;
pub use dedicated::DEDICATED_PARTITIONS_MAX;
pub use encoding::{Malformed, TABLE_DEPTH_MAX};
pub use exchange::{EXCHANGES_MAX, Exchange};
pub use exchange_type::{BINDING_WEIGHT_MAX, ExchangeType, HISTORY_LENGTH_DEFAULT, HISTORY_LENGTH_MAX, HashOn};
pub use joining::{NODES_MAX, Newcomer, NodeChange};
pub use message_facts::{HistoryId, MessageFacts, NoFacts, RouteRequest, stable_hash};
pub use name::{NAME_BYTES_MAX, Name};
pub use password::{ARGON2_SALT_BYTES, HASH_BYTES_MAX, HashAlgorithm, PasswordHash, SALT_BYTES};
pub use pattern::{PATTERN_BYTES_MAX, Pattern, STEPS_MAX, TooManySteps, WrongPattern};
pub use policy::{
    ApplyTo, HeldPolicies, POLICIES_MAX, Policy, Unrecognised, WrongDefinition, check_definition, check_keys,
    is_unsupported_key, policy_keys, unrecognised,
};
pub use policy_plan::{PolicyPlan, PolicySurvey, Unplanned};
pub use pools::{GROUP_SIZE_DEFAULT, POOL_PARTITIONS, POOL_PARTITIONS_OF_ALL, PlacedPartition, Placement};
pub use queue::{QUEUES_MAX, Queue, QueueShape, REPLY_PREFIX, RouteTarget};
pub use refusal::{Kind, REPLY_TEXT_BYTES_MAX, Refusal, Resource};
pub use route::{NoRoute, STEPS_OF_A_TARGET};
pub use scopes::{SCOPES_MAX, Scopes, Token};
pub use selector::SELECTOR_DEPTH_MAX;
pub use settings::{
    ConsumerSettings, Durability, DurabilityLevel, LeaderLocator, QueueSettings, QueueType, Selective, ValueCap,
    Wishes, effective,
};
pub use snapshot::SNAPSHOT_VERSION;
pub use topic::TOPIC_HASH_WILDCARDS_MAX;
pub use user::{Access, OPERATOR, OPERATORS_NAME, Permission, TAGS_MAX, TopicPermission, User, UserLimits};
use vhost::BytesByVhost;
pub use vhost::{VHOST_DESCRIPTION_BYTES_MAX, VHOST_TAGS_MAX, Vhost, VhostDescription, VhostLimits};
pub use wording::type_name;

use crate::ids::{NodeNumber, PartitionId, QueueId, VhostId};

/// Virtual hosts of one broker.
pub const VHOSTS_MAX: usize = 1 << 16;
/// Virtual hosts that one broker may ever have: each that was deleted leaves a place of eight
/// bytes.
pub const VHOSTS_EVER_MAX: usize = 1 << 22;
/// Encoded bytes of the arguments of one declare or binding; no frame of RabbitMQ's default size
/// carries more.
pub const ARGUMENTS_BYTES_MAX: usize = 128 * 1024;

/// Global parameters of one broker.
pub const GLOBAL_PARAMETERS_MAX: usize = 1024;
/// Bytes of the value of one.
pub const GLOBAL_PARAMETER_BYTES_MAX: usize = 64 * 1024;

/// See the module.
#[derive(Debug)]
pub struct Topology {
    version: u64,
    /// By `VhostId`; those that were deleted leave their places empty.
    vhosts: Vec<Option<Box<Vhost>>>,
    vhost_ids: BTreeMap<Name, VhostId>,
    users: BTreeMap<Name, User>,
    /// What operators and tools keep here, as JSON; the broker itself reads its name and tags from
    /// them.
    global_parameters: BTreeMap<Name, String>,
    exchanges: exchange::Exchanges,
    queues: queue::Queues,
    bindings: binding::Bindings,
    /// What the arguments of bindings take.
    binding_bytes: BytesByVhost,
    /// What arguments of queues, exchanges and bindings may take in one virtual host: this node's
    /// choice, as `redeclaration` is.
    argument_bytes_max: u64,
    /// The next replicated queue's id; replicated itself.
    queue_next: u64,
    /// The next id, without its bit, of a queue of this node only.
    local_queue_next: u64,
    /// How a redeclare is held against what exists: this node's choice, no part of what is
    /// replicated.
    redeclaration: Redeclaration,
    /// Grows with every change of a policy; of this process, as `version` is.
    policies_version: u64,
    /// Nodes, pools and partitions; replicated.
    cluster: cluster::Cluster,
    /// The version of the state machine that commands are carried out by; replicated.
    machine_version: u32,
    /// How often what lived in the memory of a node has ended; 0 where a node is not named.
    /// Replicated.
    eras: BTreeMap<NodeNumber, u64>,
    /// This node in a cluster, where every node knows what the others have in memory: of this
    /// process, as `redeclaration` is.
    own_home: Option<NodeNumber>,
    /// Whom the next change of a policy leaves with what, worked out before: see `policy_plan.rs`.
    policy_plan: Option<PolicyPlan>,
}

/// How the type of a queue that is declared again is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redeclaration {
    /// It has to be the same.
    #[default]
    Strict,
    /// A quorum queue may be declared again as a classic one, for programs that still do; it stays
    /// what it is.
    Relaxed,
}

impl Default for Topology {
    fn default() -> Self {
        Self::new()
    }
}

impl Topology {
    /// What a fresh broker has: virtual host `/` with its predeclared exchanges, and user `guest`
    /// (password `guest`, tag `administrator`) who may do everything in it. That guest may only
    /// come from loopback is the server's rule.
    pub fn new() -> Self {
        let mut topology = Self::empty();
        let slash = topology.create_vhost(&Name::from("/"));
        assert!(slash.is_ok(), "the first virtual host is within every limit");
        // A fixed salt: the password is no secret, and every member must start from the same bytes.
        let mut guest = User::new(PasswordHash::new(b"guest", *b"hare"), vec![Name::from("administrator")]);
        guest.permissions.insert(VhostId(0), Permission::everything());
        topology.users.insert(Name::from("guest"), guest);
        topology
    }

    fn empty() -> Self {
        Self {
            version: 1,
            vhosts: Vec::new(),
            vhost_ids: BTreeMap::new(),
            users: BTreeMap::new(),
            global_parameters: BTreeMap::new(),
            exchanges: exchange::Exchanges::default(),
            queues: queue::Queues::default(),
            bindings: binding::Bindings::default(),
            queue_next: 1,
            local_queue_next: 1,
            binding_bytes: BytesByVhost::default(),
            argument_bytes_max: u64::MAX,
            redeclaration: Redeclaration::Strict,
            policies_version: 0,
            policy_plan: None,
            eras: BTreeMap::new(),
            own_home: None,
            cluster: cluster::Cluster::default(),
            machine_version: FIRST_MACHINE_VERSION,
        }
    }

    /// The global parameters, by name; their values are JSON.
    pub fn global_parameters(&self) -> impl Iterator<Item = (&Name, &str)> {
        self.global_parameters.iter().map(|(name, value)| (name, value.as_str()))
    }

    /// The value of a global parameter, whose name has at most 255 bytes: JSON.
    pub fn global_parameter(&self, name: &[u8]) -> Option<&str> {
        self.global_parameters.get(&Name::new(name)).map(String::as_str)
    }

    /// Whether nothing was ever declared: there is what a fresh broker has, whatever nodes and
    /// partitions it has.
    pub fn is_untouched(&self) -> bool {
        let (cluster, machine_version, eras) = (self.cluster.clone(), self.machine_version, self.eras.clone());
        let fresh = Topology { cluster, machine_version, eras, ..Topology::new() };
        self.encode_snapshot() == fresh.encode_snapshot()
    }

    /// Chooses how a redeclare is compared from now on.
    pub fn set_redeclaration(&mut self, redeclaration: Redeclaration) {
        self.redeclaration = redeclaration;
    }

    /// Chooses how many bytes the arguments of all queues, exchanges and bindings of a virtual host
    /// may take together. It holds for what clients ask for from now on; what was decided stays.
    pub fn set_argument_bytes_max(&mut self, bytes: u64) {
        self.argument_bytes_max = bytes;
    }

    /// How many they take.
    pub fn argument_bytes(&self, vhost: VhostId) -> u64 {
        self.queues.argument_bytes.of(vhost) + self.exchanges.argument_bytes.of(vhost) + self.binding_bytes.of(vhost)
    }

    /// A durable queue of the default type in virtual host `/` for messages of which nobody knows
    /// any more where they belong: a repair found them under this id. Its name says so; ids up to
    /// it are not given out again.
    ///
    /// `false` if the id is taken, or a queue of that name is there.
    pub fn adopt_queue(&mut self, id: QueueId, partition: PartitionId) -> bool {
        let name = Name::new(format!("recovered.{}.{}", partition.0, id.0).as_bytes());
        let (vhost, arguments) = (VhostId(0), amqp::Table::new());
        let declare = DeclareQueue {
            vhost,
            name: name.clone(),
            durable: true,
            exclusive: None,
            auto_delete: false,
            arguments,
            partition,
            home: None,
        };
        if id.is_local() || self.queue(id).is_some() || self.find_queue(vhost, &name).is_some() {
            return false;
        }
        let Ok(shape) = self.queue_shape(&declare) else { return false };
        let shape = self.queues.share(shape);
        let held = self.policies_matching(vhost, &name, shape.queue_type);
        let rules = self.rules_under(vhost, &held, &shape);
        let incoming = Vec::new();
        self.adopt_partition(partition);
        self.queues.insert(Queue {
            id,
            vhost,
            name,
            partition,
            exclusive: None,
            home: None,
            held,
            rules,
            shape,
            incoming,
        });
        self.pass_over_queue_ids(id);
        true
    }

    /// Ids up to this one are not given out again.
    pub fn pass_over_queue_ids(&mut self, last: QueueId) {
        self.queue_next = self.queue_next.max(last.0 + 1);
        self.version += 1;
    }

    /// Grows with every change, replicated or not; whatever was read at a version holds while it
    /// stays the same. A number of this node's process: it is not replicated and not in snapshots.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The virtual host of this name. `open_vhost` asks for the right to use it too.
    pub fn vhost(&self, name: &[u8]) -> Option<VhostId> {
        self.vhost_ids.get(&Name::new(name)).copied()
    }

    /// The virtual hosts in the order of their ids.
    pub fn vhosts(&self) -> impl Iterator<Item = (VhostId, &Vhost)> {
        (0..).map(VhostId).zip(&self.vhosts).filter_map(|(id, vhost)| Some((id, vhost.as_deref()?)))
    }

    /// The queue of this name.
    pub fn find_queue(&self, vhost: VhostId, name: &[u8]) -> Option<&Queue> {
        self.queues.find(vhost, name).map(|at| &self.queues[at])
    }

    /// Durable queues of which this topology knows, or knew, have smaller numbers.
    pub fn next_queue(&self) -> QueueId {
        QueueId(self.queue_next)
    }

    /// The queue of this id.
    pub fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.find_id(id).map(|at| &self.queues[at])
    }

    /// All queues, in no order that means anything.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter().map(|(_, queue)| queue)
    }

    /// The queues that somebody declared, in no order that means anything: those that carry direct
    /// replies are left out.
    pub fn declared_queues(&self) -> impl Iterator<Item = &Queue> {
        self.queues().filter(|queue| !queue.is_of_replies())
    }

    /// The exclusive queues of a connection by id, which is the order of their declares among those
    /// that this node alone knows, and among those that all know: what goes when it closes.
    pub fn exclusive_queues(&self, connection: u64) -> impl Iterator<Item = QueueId> {
        self.queues.owned_by(connection)
    }

    /// The exchange of this name.
    pub fn find_exchange(&self, vhost: VhostId, name: &[u8]) -> Option<&Exchange> {
        self.exchanges.find(vhost, name).map(|at| &self.exchanges[at])
    }

    /// All exchanges, in no order that means anything.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.exchanges.iter().map(|(_, exchange)| exchange)
    }

    /// All bindings but those of the default exchange, in no order that means anything.
    pub fn bindings(&self) -> impl Iterator<Item = Binding> {
        self.bindings.iter().map(|binding| self.binding_by_names(binding))
    }

    /// How many bindings there are, those of the default exchange not counted.
    pub fn binding_count(&self) -> usize {
        self.bindings.len()
    }

    /// The user of this name: what is asked of a login whose proof is a certificate, and what
    /// limits go by.
    pub fn user(&self, name: &[u8]) -> Option<&User> {
        if name.len() > NAME_BYTES_MAX { None } else { self.users.get(&Name::new(name)) }
    }

    /// The users in the order of their names.
    pub fn users(&self) -> impl Iterator<Item = (&Name, &User)> {
        self.users.iter()
    }

    /// The virtual host of this id, if it is there.
    pub fn vhost_of(&self, id: VhostId) -> Option<&Vhost> {
        self.vhosts.get(id.0 as usize)?.as_deref()
    }

    /// Whether a user has one of RabbitMQ's tags.
    pub fn has_tag(&self, user: &[u8], tag: &[u8]) -> bool {
        user.len() <= NAME_BYTES_MAX
            && self.users.get(&Name::new(user)).is_some_and(|user| user.tags.iter().any(|t| **t == *tag))
    }

    /// The name of a virtual host. Errors: 530 for one that is not there.
    fn vhost_name(&self, vhost: VhostId) -> Result<&Name, Refusal> {
        let found = self.vhost_of(vhost);
        found.map(|vhost| &vhost.name).ok_or_else(|| Refusal::not_allowed("vhost not found"))
    }

    fn binding_by_names(&self, binding: &binding::Binding) -> Binding {
        let source = &self.exchanges[binding.source as usize];
        let (destination_kind, destination) = match binding.destination.place() {
            destination::Place::Queue(at) => (Kind::Queue, self.queues[at].name.clone()),
            destination::Place::Exchange(at) => (Kind::Exchange, self.exchanges[at].name.clone()),
        };
        Binding {
            vhost: source.vhost,
            source: source.name.clone(),
            destination_kind,
            destination,
            key: binding.key.clone(),
            arguments: encoding::table_from(&binding.arguments),
        }
    }
}
