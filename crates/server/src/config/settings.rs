//! The table of settings, and the configuration that is made from it.
//!
//! Invariant: [`SETTINGS`], [`Key`] and the fields of [`Config`] have the same names in the same
//! order, because one macro makes them. Names follow AMQP and RabbitMQ where those have a word
//! (`frame_max`, `channel_max`); otherwise the unit ends the name.
//!
//! Absent on purpose: what the settings may be at most and together, which stands in `bounds.rs`, and what
//! is asked of a [`Config`], in `settings/config.rs`.

mod config;

use std::net::SocketAddr;
use std::path::PathBuf;

use super::bounds::{
    BODY_BYTES_MAX, CONNECTION_BYTES, DESCRIPTORS_RESERVED, FRAME_BYTES_MAX, GIB, KIB, MIB, SHARD_THREADS_MAX, TIB,
    WAL_FILE_BYTES,
};
use super::error::Origin;
use super::levels::{LogFormat, LogLevels};
use super::ratio::Ratio;
use super::setting::{DefaultValue, Kind, Section, Setting};
use super::value::{Field, Value};
use crate::tls::{LoginFrom, VerifyClients};
use broker::topology::{HashAlgorithm, LeaderLocator, Redeclaration};
use session::Stamp;

macro_rules! settings {
    ($($name:ident: $field:ty {
        $section:ident, $kind:expr, $default:expr, $help:literal, elsewhere $elsewhere:expr
    })*) => {
        /// Names one setting. The variants are spelled like the settings, so that one name serves
        /// from the file to the code.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Key { $(#[doc = $help] $name),* }

        /// All settings, in the order of help and documentation.
        pub static SETTINGS: [Setting; SETTING_COUNT] = [$(Setting {
            key: Key::$name,
            name: stringify!($name),
            section: Section::$section,
            kind: $kind,
            default: $default,
            help: $help,
            elsewhere: &$elsewhere,
        }),*];

        const SETTING_COUNT: usize = [$(Key::$name),*].len();

        /// What a node is told about itself. Made by [`load`](super::load()) from file, environment
        /// and flags, or by [`Config::for_machine`] from defaults alone.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $(#[doc = $help] pub $name: $field,)*
            origins: [Origin; SETTING_COUNT],
            /// Sentences about lines of RabbitMQ's file, and variables of OpenTelemetry, that say nothing here.
            pub left_out: Vec<String>,
            /// The files that were read, as they were named.
            pub files: Vec<std::path::PathBuf>,
        }

        impl Config {
            fn from_values(values: [Value; SETTING_COUNT], origins: [Origin; SETTING_COUNT]) -> Config {
                let mut values = values.into_iter();
                Config {
                    $($name: <$field as Field>::from_value(values.next().expect("a value for each row")),)*
                    origins,
                    left_out: Vec::new(),
                    files: Vec::new(),
                }
            }

            /// The present value of a setting.
            pub fn value(&self, key: Key) -> Value {
                match key { $(Key::$name => self.$name.to_value()),* }
            }
        }
    };
}

use DefaultValue::{Fixed, OfMachine};

settings! {
    data_dir: PathBuf {
        Node, Kind::Folder, Fixed("data"),
        "Folder of everything that must survive a restart; made if it is missing. A relative path starts at the working directory. \
         One running node owns it: a second one is refused. Where every user of the machine may write, no new node is founded; one that is \
         there already starts with a warning. Its group may write, as in many containers.",
        elsewhere ["mnesia_base", "mnesia_dir", "RABBITMQ_MNESIA_DIR", "data", "datadir", "store"]
    }
    node_name: String {
        Node, Kind::NodeName { bytes_max: 255 },
        OfMachine {
            says: "the name in the data folder; `leveret@<hostname>` when the folder is new",
            of: |machine| format!("leveret@{}", machine.hostname),
        },
        "Name of this node, shown to clients and operators. A data folder remembers its node, and refuses a different name; \
         leave this unset where hostnames change, as in containers.",
        elsewhere ["nodename", "RABBITMQ_NODENAME", "name", "node"]
    }
    partitions: u32 {
        Node, Kind::count(1, 512), Fixed("16"),
        "How many logs the queues of this node are spread over. It can be raised later, never lowered: a data folder that has more \
         keeps them.",
        elsewhere ["shards", "num_partitions"]
    }
    cluster_peers: Vec<String> {
        Node, Kind::Names { count_max: 9, bytes_max: 255 }, Fixed("none"),
        "All nodes of the cluster, this one too, each as the host:port where the others reach it, without a port at 25672: the same list on every node. Nodes with new \
         data folders found a cluster together once all of them are there; afterwards a majority is enough. Without it the node runs alone.",
        elsewhere ["cluster_formation.classic_config.nodes", "cluster_nodes", "peers", "seeds"]
    }
    cluster_join: Vec<String> {
        Node, Kind::Names { count_max: 1, bytes_max: 255 }, Fixed("none"),
        "Any node of a cluster that is there, as its cluster_address, without a port at 25672: this node, which has an empty data folder, asks it to be taken in. It \
         needs cluster_address and cluster_secret_file, and no cluster_peers. Once it has joined it is not asked again.",
        elsewhere ["join", "join_cluster", "retry_join"]
    }
    cluster_address: Vec<String> {
        Node, Kind::Names { count_max: 1, bytes_max: 255 }, Fixed("none"),
        "Where this node listens for the others, and they reach it, as host:port, without a port at 25672. With cluster_peers it says which of them this node is, \
         where that is not clear: several nodes on one machine, or addresses that the machine does not have itself. With neither those nor \
         cluster_join the node is the first of a cluster, which others may join, also where it ran alone before.",
        elsewhere ["advertise", "advertised_host", "cluster_listen", "inter_node_port"]
    }
    cluster_secret_file: Option<PathBuf> {
        Node, Kind::File, Fixed("none"),
        "A file with the secret of the cluster, 16 to 4096 bytes, the same on every node: who has it is believed to be a node. Read again on SIGHUP.",
        elsewhere ["erlang_cookie", "RABBITMQ_ERLANG_COOKIE", "cookie", "cluster_secret"]
    }
    cluster_secret_file_before: Option<PathBuf> {
        Node, Kind::File, Fixed("none"),
        "A file with the secret that the cluster had before, while it changes: nodes that have only that one are believed too. An empty file stands for none. Read again \
         on SIGHUP.",
        elsewhere ["cluster_secret_before", "cluster_secret_old", "old_cookie"]
    }
    cluster_tls_ca: Option<PathBuf> {
        Node, Kind::File, Fixed("none"),
        "Certificates in PEM of the authorities whose nodes are believed. With cluster_tls_certificate and cluster_tls_key all that nodes \
         say to each other is encrypted (TLS 1.3), and both sides show a certificate that names their host; `leveret cluster certificates` \
         makes all three. Set all of them on all nodes, or none. Read again on SIGHUP.",
        elsewhere ["inter_node_tls", "ssl_dist_optfile", "cluster_ca", "cluster_tls_authority"]
    }
    cluster_tls_certificate: Option<PathBuf> {
        Node, Kind::File, Fixed("none"),
        "This node's certificate for other nodes in PEM, those between it and its authority behind it. It names the host of the node's \
         address in cluster_peers. Read again on SIGHUP.",
        elsewhere ["cluster_tls_cert", "cluster_certificate", "cluster_tls_certfile"]
    }
    cluster_tls_key: Option<PathBuf> {
        Node, Kind::File, Fixed("none"),
        "The key of cluster_tls_certificate in PEM, without a password. Read again on SIGHUP.",
        elsewhere ["cluster_key", "cluster_tls_keyfile"]
    }
    shard_threads: usize {
        Node, Kind::count(1, SHARD_THREADS_MAX),
        OfMachine {
            says: "half of the processors this process may use, at least 1",
            of: |machine| (machine.processors / 2).clamp(1, SHARD_THREADS_MAX as usize).to_string(),
        },
        "Threads that serve connections and queues. More threads serve more connections at once, fewer cost less per message.",
        elsewhere ["threads", "workers", "worker_threads", "schedulers", "shards"]
    }

    amqp: Vec<SocketAddr> {
        Connections, Kind::Addresses { count_min: 0, count_max: 16 },
        OfMachine {
            says: "0.0.0.0:5672 and [::]:5672, without the one whose family this machine does not have",
            of: |machine| match (machine.ipv4, machine.ipv6) {
                (true, true) => "0.0.0.0:5672,[::]:5672".to_owned(),
                (false, true) => "[::]:5672".to_owned(),
                (_, false) => "0.0.0.0:5672".to_owned(),
            },
        },
        "Addresses that serve AMQP 0-9-1; each of them must work. `[::]` serves IPv6 only. Without any, amqps has one.",
        elsewhere ["listeners.tcp", "listeners.tcp.default", "tcp_listeners", "port", "listen", "amqp_port", "bind", "amqp_bind"]
    }
    amqps: Vec<SocketAddr> {
        Connections, Kind::Addresses { count_min: 0, count_max: 16 }, Fixed("none"),
        "Addresses that serve AMQP 0-9-1 over TLS 1.2 and 1.3; usually port 5671. They need tls_certificate and tls_key.",
        elsewhere ["listeners.ssl", "listeners.ssl.default", "ssl_listeners", "amqps_port", "tls_port"]
    }
    proxy_protocol: Vec<SocketAddr> {
        Connections, Kind::Addresses { count_min: 0, count_max: 32 }, Fixed("none"),
        "Those of the addresses in amqp and amqps whose connections all come through a proxy that begins with a PROXY header, version 1 or \
         2. Whoever reaches such an address can claim to be anyone's address: let only the proxy reach it.",
        elsewhere ["proxy_protocol_enabled", "listeners.proxy_protocol"]
    }
    tls_certificate: Option<PathBuf> {
        Connections, Kind::File, Fixed("none"),
        "The server's certificate in PEM, those between it and its root behind it. Read again on SIGHUP.",
        elsewhere ["ssl_options.certfile", "ssl_certfile", "tls_cert", "certificate", "certfile"]
    }
    tls_key: Option<PathBuf> {
        Connections, Kind::File, Fixed("none"),
        "The key of tls_certificate in PEM, without a password. Read again on SIGHUP.",
        elsewhere ["ssl_options.keyfile", "ssl_keyfile", "key", "keyfile"]
    }
    tls_ca: Option<PathBuf> {
        Connections, Kind::File, Fixed("none"),
        "Certificates in PEM of the authorities whose clients are believed; see tls_verify. Read again on SIGHUP.",
        elsewhere ["ssl_options.cacertfile", "ssl_cacertfile", "cacertfile", "ca_file"]
    }
    tls_verify: VerifyClients {
        Connections, Kind::Choice(&["none", "optional", "required"]), Fixed("none"),
        "Whether clients show a certificate of an authority in tls_ca: they are not asked, they may, or they must.",
        elsewhere ["ssl_options.verify", "ssl_options.fail_if_no_peer_cert", "verify_peer", "verify"]
    }
    auth_mechanisms: Vec<String> {
        Connections, Kind::Names { count_max: 5, bytes_max: 16 }, Fixed("PLAIN,AMQPLAIN"),
        "How clients may log in, the preferred way first: PLAIN and AMQPLAIN by password, EXTERNAL by the certificate that a client showed, \
         ANONYMOUS by nothing at all, as anonymous_login_user, RABBIT-CR-DEMO by a password that is asked for, which is a demonstration.",
        elsewhere ["auth_mechanisms.1", "mechanisms", "sasl_mechanisms"]
    }
    anonymous_login_user: String {
        Connections, Kind::Text { bytes_max: 255 }, Fixed("guest"),
        "The user that clients are who log in by ANONYMOUS, which auth_mechanisms has to name. It has to exist; what it may do, and from \
         where, is asked as of any other.",
        elsewhere ["anonymous_user", "default_anonymous_user", "anonymous_login_pass"]
    }
    certificate_login: LoginFrom {
        Connections, Kind::Choice(&["distinguished_name", "common_name"]), Fixed("distinguished_name"),
        "Which part of a certificate is the user's name for EXTERNAL: the whole subject, as `CN=client,O=Example`, or its common name.",
        elsewhere ["ssl_cert_login_from"]
    }
    definitions: Option<PathBuf> {
        Connections, Kind::File, Fixed("none"),
        "A definitions file as RabbitMQ exports it: users, virtual hosts, permissions, policies, limits, exchanges, queues, bindings; or a \
         folder, whose files that end in .json are taken in by the order of their names. Taken in at every start before clients are let in, \
         and again on SIGHUP; a file that is wrong changes nothing.",
        elsewhere ["load_definitions", "definitions.local.path", "management.load_definitions", "definitions.import_backend"]
    }
    definitions_skip_if_unchanged: bool {
        Connections, Kind::Choice(&["false", "true"]), Fixed("false"),
        "Whether definitions that were taken in before are passed over, at a start and on SIGHUP, until their contents change. What was deleted \
         or changed meanwhile then stays so. `leveret ctl import_definitions FILE` takes a file in all the same.",
        elsewhere ["definitions.skip_if_unchanged"]
    }
    loopback_users: Vec<String> {
        Connections, Kind::Names { count_max: 64, bytes_max: 255 }, Fixed("guest"),
        "Users who may log in from this machine only. An empty list (`none` in the environment or as a flag) opens guest, with its \
         well-known password, to everyone who reaches the port.",
        elsewhere ["loopback_users.guest", "guest_only_loopback", "default_user_only_loopback"]
    }
    login_failures_per_address: u32 {
        Connections, Kind::count(0, 60_000), Fixed("60"),
        "How many logins may fail in a minute that come from one address, by AMQP and by HTTP together, a quarter of them with one name; an \
         IPv6 network of 64 bits is one address. Beyond that a login is refused without a look at its password, until time has passed. \
         Where a user logged in before there may be four times as many failures with that name, whatever others do there. 0 is no limit.",
        elsewhere ["login_attempts", "auth_attempts", "max_login_failures"]
    }
    login_failures_per_user: u32 {
        Connections, Kind::count(0, 60_000), Fixed("60"),
        "How many logins may fail in a minute with the name of one user, from all addresses together. It does not hold where the user logged in \
         before, since this start of the broker, nor on this machine: nobody elsewhere can lock the user out there. 0 is no limit.",
        elsewhere ["login_failures_per_name", "account_lockout"]
    }
    password_hashing: HashAlgorithm {
        Connections, Kind::Choice(&["argon2id", "sha256", "sha512"]), Fixed("argon2id"),
        "How a password is hashed that is set here in the clear. RabbitMQ can read the other two and not argon2id, which is what resists \
         guessing by somebody who has the hashes. Hashes that are brought are kept as they are.",
        elsewhere ["password_hashing_module"]
    }
    login_cache_s: u64 {
        Connections, Kind::seconds(0, 86_400), Fixed("3600"),
        "How long a password that was right is known again without the tens of milliseconds that a hash of argon2id takes, by a keyed digest in \
         memory. It ends at once when the password is set anew. 0 has each login pay them.",
        elsewhere ["auth_cache.cache_ttl", "auth_cache"]
    }
    auth_backends: Vec<String> {
        Connections, Kind::Names { count_max: 2, bytes_max: 16 }, Fixed("internal"),
        "Who says who somebody is and what they may do: internal, which are the users of this broker, and oauth2, which are tokens (JWT) of an \
         issuer. A password that has the form of a token is looked at as one, any other as a user's, so their order means nothing.",
        elsewhere ["auth_backends.1", "auth_backends.2", "authn", "authz"]
    }
    oauth2_resource_server_id: Vec<String> {
        Connections, Kind::Names { count_max: 1, bytes_max: 255 }, Fixed("none"),
        "What issuers of tokens call this broker: the audience (aud) that a token has to be for. oauth2 needs it.",
        elsewhere ["auth_oauth2.resource_server_id"]
    }
    oauth2_issuer: Vec<String> {
        Connections, Kind::Names { count_max: 1, bytes_max: 1024 }, Fixed("none"),
        "The https address of the issuer of tokens, whose /.well-known/openid-configuration says where its keys are. Tokens have to be of it (iss).",
        elsewhere ["auth_oauth2.issuer", "openid_issuer"]
    }
    oauth2_jwks_url: Vec<String> {
        Connections, Kind::Names { count_max: 1, bytes_max: 1024 }, Fixed("none"),
        "The https address of the keys that sign tokens, as a JSON web key set, instead of asking the issuer where they are. Who issued a token is \
         then not asked, only who signed it. Keys are fetched at the start, when they are an hour old, and when a token names one that is not known, \
         at most every ten seconds.",
        elsewhere ["auth_oauth2.jwks_url", "auth_oauth2.jwks_uri"]
    }
    oauth2_ca: Option<PathBuf> {
        Connections, Kind::File, Fixed("none"),
        "Certificates in PEM of the authorities that are believed about the issuer; those of this machine without it. Read again on SIGHUP.",
        elsewhere ["auth_oauth2.https.cacertfile"]
    }
    oauth2_signing_keys: Vec<String> {
        Connections, Kind::Names { count_max: 64, bytes_max: 4096 }, Fixed("none"),
        "Further keys that sign tokens, each as ID=FILE: a public key or certificate in PEM, or a JSON web key, which may be a secret of at least 32 \
         bytes (oct) for HS256, HS384 and HS512. Read again on SIGHUP.",
        elsewhere ["auth_oauth2.signing_keys"]
    }
    oauth2_default_key: Vec<String> {
        Connections, Kind::Names { count_max: 1, bytes_max: 255 }, Fixed("none"),
        "The ID of the key that signs tokens which name none (kid). Without it such a token counts only where there is one key.",
        elsewhere ["auth_oauth2.default_key"]
    }
    oauth2_algorithms: Vec<String> {
        Connections, Kind::Names { count_max: 12, bytes_max: 8 }, Fixed("RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,EdDSA"),
        "What tokens may be signed with. A secret in oauth2_signing_keys needs HS256, HS384 or HS512 to be named here.",
        elsewhere ["auth_oauth2.algorithms"]
    }
    oauth2_verify_aud: bool {
        Connections, Kind::Choice(&["false", "true"]), Fixed("true"),
        "Whether a token has to be for this broker (aud). Without that a token for any service of the issuer is taken, if it has the scopes.",
        elsewhere ["auth_oauth2.verify_aud"]
    }
    oauth2_scope_prefix: Vec<String> {
        Connections, Kind::Names { count_max: 1, bytes_max: 255 }, Fixed("{resource_server_id}."),
        "What the scopes for this broker begin with; others count for nothing. With none each of them counts.",
        elsewhere ["auth_oauth2.scope_prefix"]
    }
    oauth2_additional_scopes_key: Vec<String> {
        Connections, Kind::Names { count_max: 16, bytes_max: 255 }, Fixed("none"),
        "Claims that hold scopes beside `scope`; a dot leads into a claim, as in realm_access.roles.",
        elsewhere ["auth_oauth2.additional_scopes_key", "extra_scopes_source"]
    }
    oauth2_preferred_username_claims: Vec<String> {
        Connections, Kind::Names { count_max: 16, bytes_max: 255 }, Fixed("sub,client_id"),
        "The claims that may name the user; the first one that is there does.",
        elsewhere ["auth_oauth2.preferred_username_claims"]
    }
    oauth2_scope_aliases: Vec<String> {
        Connections, Kind::Names { count_max: 256, bytes_max: 4096 }, Fixed("none"),
        "Scopes that stand for others, each as ALIAS=SCOPE SCOPE, those in full with their prefix: `dev=rabbitmq.read:*/* rabbitmq.tag:management`.",
        elsewhere ["auth_oauth2.scope_aliases"]
    }
    oauth2_leeway_s: u64 {
        Connections, Kind::seconds(0, 600), Fixed("10"),
        "How far the issuer's clock and this one may differ: so long a token counts before its beginning (nbf) and after its end (exp).",
        elsewhere ["clock_skew"]
    }
    connections_max: usize {
        Connections, Kind::count(1, 1_000_000),
        OfMachine {
            says: "one for each 32 KiB of memory, at most the descriptor limit less 256, at most 100000",
            of: |machine| {
                let descriptors = machine.descriptors.saturating_sub(DESCRIPTORS_RESERVED);
                (machine.memory_bytes / CONNECTION_BYTES).min(descriptors).clamp(1, 100_000).to_string()
            },
        },
        "Client connections at one time. Further ones are closed at once, with a line in the log.",
        elsewhere ["max_connections", "connection_max", "ranch_connection_max"]
    }
    handshake_timeout_ms: u64 {
        Connections, Kind::milliseconds(100, 600_000), Fixed("10000"),
        "How long a client may take from connecting to connection.open. Then it is disconnected.",
        elsewhere ["handshake_timeout"]
    }
    heartbeat_s: u16 {
        Connections, Kind::seconds(0, 65_535), Fixed("60"),
        "Heartbeat proposed to clients; the client may choose a lower one. After two intervals without a byte the connection is dropped. \
         0 proposes none.",
        elsewhere ["heartbeat", "heartbeat_interval"]
    }
    consumer_timeout_ms: u64 {
        Connections, Kind::milliseconds(0, 315_360_000_000), Fixed("1800000"),
        "How long a consumer may hold a message without settling it. Then it is cancelled and its messages go back to their queue. \
         A queue, a policy or a consumer may say otherwise; 0 is for ever.",
        elsewhere ["consumer_timeout", "delivery_acknowledgement_timeout"]
    }
    stamp_time: Stamp {
        Connections, Kind::Choice(&["none", "fill", "overwrite"]), Fixed("none"),
        "Whether the time at which a message comes in is written into it: into the header `timestamp_in_ms` and the property \
         `timestamp`. Filled where the client wrote nothing there, or written over it.",
        elsewhere ["message_interceptors.incoming.set_header_timestamp.overwrite", "message_timestamp"]
    }
    stamp_node: Stamp {
        Connections, Kind::Choice(&["none", "fill", "overwrite"]), Fixed("none"),
        "Whether the name of the node that a message comes in at is written into it, into the header `x-routed-by`.",
        elsewhere ["message_interceptors.incoming.set_header_routing_node.overwrite"]
    }
    redeclaration: Redeclaration {
        Connections, Kind::Choice(&["strict", "relaxed"]), Fixed("strict"),
        "Whether a quorum queue may be declared again as a classic one, by programs that still do: relaxed lets them, and the queue stays \
         what it is. All else has to be the same.",
        elsewhere ["quorum_queue.property_equivalence.relaxed_checks_on_redeclaration"]
    }
    queue_leader_locator: LeaderLocator {
        Connections, Kind::Choice(&["client-local", "balanced"]), Fixed("client-local"),
        "Which node of a cluster is to lead a new durable queue, where neither its arguments nor a policy say so: the one that its client is \
         connected to, if that leads partitions in which the queue may live, or the one that leads the fewest queues.",
        elsewhere ["queue_master_locator"]
    }
    event_exchange_vhost: Vec<String> {
        Connections, Kind::Names { count_max: 1, bytes_max: 255 }, Fixed("none"),
        "Virtual host whose exchange `amq.rabbitmq.event` is told what happens on this broker: to connections, channels, consumers, queues, \
         exchanges, bindings, users, rights, policies, alarms.",
        elsewhere ["event_exchange.vhost"]
    }
    frame_max: u32 {
        Connections, Kind::Number { unit: super::setting::Unit::Bytes, min: 8 * KIB, max: FRAME_BYTES_MAX, step: 1 }, Fixed("131072"),
        "Largest frame in bytes, header and end included, proposed to clients; the client may choose a lower one.",
        elsewhere ["max_frame_size", "frame_size_max"]
    }
    initial_frame_max: u32 {
        Connections, Kind::Number { unit: super::setting::Unit::Bytes, min: 4 * KIB, max: FRAME_BYTES_MAX, step: 1 }, Fixed("8192"),
        "Largest frame in bytes before a client has logged in. What it logs in with is in one: more is needed for long tokens.",
        elsewhere []
    }
    channel_max: u16 {
        Connections, Kind::count(1, 65_535), Fixed("2047"),
        "Channels on one connection, proposed to clients; the client may choose a lower number.",
        elsewhere ["max_channels", "channels_max"]
    }
    body_bytes_max: u64 {
        Connections, Kind::bytes(KIB, BODY_BYTES_MAX), Fixed("16777216"),
        "Largest message body. A larger one closes its channel with 406.",
        elsewhere ["max_message_size", "message_size_max"]
    }
    capabilities: Vec<String> {
        Connections, Kind::Names { count_max: 9, bytes_max: 64 },
        Fixed("publisher_confirms,exchange_exchange_bindings,basic.nack,consumer_cancel_notify,connection.blocked,consumer_priorities,\
               authentication_failure_close,per_consumer_qos,direct_reply_to"),
        "Capabilities named to clients, some of whom ask for nothing that is not named. Leaving one out takes nothing away from a client \
         that uses it all the same.",
        elsewhere ["server_capabilities", "advertised_capabilities"]
    }
    product: String {
        Connections, Kind::Text { bytes_max: 64 }, Fixed("RabbitMQ"),
        "Product named to clients. Some clients choose their behaviour by it, so the default is the broker they were written for; \
         the platform field always names Leveret.",
        elsewhere ["product.name", "product_name"]
    }
    product_version: String {
        Connections, Kind::Version, Fixed("4.0.0"),
        "Version named to clients, who choose their behaviour by it.",
        elsewhere ["product.version", "version"]
    }

    management: Vec<SocketAddr> {
        Management, Kind::Addresses { count_min: 0, count_max: 16 }, Fixed("127.0.0.1:15672"),
        "Addresses that serve RabbitMQ's management API and metrics for Prometheus over HTTP. The API asks for name and password, metrics \
         ask for nothing: whoever reaches the address reads them. An address that was not asked for and is taken is done without.",
        elsewhere ["management.tcp.port", "management.tcp.ip", "management.listener.port", "management_port", "http_port", "http"]
    }
    prometheus: Vec<SocketAddr> {
        Management, Kind::Addresses { count_min: 0, count_max: 16 }, Fixed("none"),
        "Further addresses that serve metrics for Prometheus and nothing else; usually port 15692, where RabbitMQ's plugin has \
         them. They ask for no password: whoever reaches the address reads them.",
        elsewhere ["prometheus.tcp.port", "prometheus.tcp.ip", "metrics_port", "prometheus_port", "rabbitmq_prometheus"]
    }
    management_tls: Vec<SocketAddr> {
        Management, Kind::Addresses { count_min: 0, count_max: 16 }, Fixed("none"),
        "Addresses that serve the same over HTTPS (TLS 1.2 and 1.3); usually port 15671. Those of the setting management go on without: set \
         it to none, or to this machine's own address, where nobody should send a password in the clear.",
        elsewhere ["management.ssl.port", "management.ssl.ip", "management.listener.ssl", "https", "https_port"]
    }
    management_tls_certificate: Option<PathBuf> {
        Management, Kind::File, Fixed("none"),
        "The certificate of HTTPS in PEM, those between it and its root behind it; tls_certificate and tls_key where neither this nor its \
         key is set. Read again on SIGHUP.",
        elsewhere ["management.ssl.certfile", "management.listener.ssl_opts.certfile", "https_certificate"]
    }
    management_tls_key: Option<PathBuf> {
        Management, Kind::File, Fixed("none"),
        "The key of management_tls_certificate in PEM, without a password. Read again on SIGHUP.",
        elsewhere ["management.ssl.keyfile", "management.listener.ssl_opts.keyfile", "https_key"]
    }
    management_tls_ca: Option<PathBuf> {
        Management, Kind::File, Fixed("none"),
        "Certificates in PEM of the authorities whose clients are believed over HTTPS; see management_tls_verify. Read again on SIGHUP.",
        elsewhere ["management.ssl.cacertfile", "management.listener.ssl_opts.cacertfile"]
    }
    management_tls_verify: VerifyClients {
        Management, Kind::Choice(&["none", "optional", "required"]), Fixed("none"),
        "Whether clients of HTTPS show a certificate of an authority in management_tls_ca. It lets them connect and is no login: that is \
         by name and password all the same.",
        elsewhere ["management.ssl.verify", "management.ssl.fail_if_no_peer_cert"]
    }
    management_hsts_s: u64 {
        Management, Kind::seconds(0, 63_072_000), Fixed("0"),
        "How long browsers that were here by HTTPS use nothing else (Strict-Transport-Security). It holds for all ports of this host, \
         those of other programs too, so 0, which says nothing, is the default.",
        elsewhere ["management.hsts.policy"]
    }

    management_oauth_client_id: Vec<String> {
        Management, Kind::Names { count_max: 1, bytes_max: 255 }, Fixed("none"),
        "The client by which the issuer of tokens knows the page: told by /api/auth, for whoever asks for a token there.",
        elsewhere ["management.oauth_client_id"]
    }

    wal_file_bytes: u64 {
        Storage, Kind::blocks(WAL_FILE_BYTES.0, WAL_FILE_BYTES.1, storage::wal::format::PAGE_BYTES as u64), Fixed("67108864"),
        "Size of one file of the write-ahead log. It must hold at least two bodies of body_bytes_max.",
        elsewhere ["wal_max_size_bytes", "raft.wal_max_size_bytes", "segment_size", "wal_bytes"]
    }
    wal_retained_bytes: u64 {
        Storage, Kind::bytes(0, 16 * TIB), Fixed("1073741824"),
        "How much of the closed log is kept before messages that are still live are copied out of the oldest file. What is consumed \
         sooner is never written a second time.",
        elsewhere ["wal_keep_bytes", "retention_bytes"]
    }
    wal_sync_delay_ms: u64 {
        Storage, Kind::milliseconds(1, 10_000), Fixed("10"),
        "Longest time that bytes of the log stay unsynced. It does not delay confirms: a message that asks for a sync gets one at once.",
        elsewhere ["sync_interval", "fsync_interval", "flush_interval_ms"]
    }
    checkpoint_interval_bytes: u64 {
        Storage, Kind::bytes(MIB, 16 * GIB), Fixed("67108864"),
        "A partition writes a checkpoint after this much log. Less makes restarts read less, more makes checkpoints rarer.",
        elsewhere ["snapshot_interval", "checkpoint_interval"]
    }
    disk_free_min_bytes: u64 {
        Storage, Kind::bytes(8 * MIB, 16 * TIB), Fixed("268435456"),
        "With less free space than this, publishers are blocked and nothing durable is declared, while consumers go on. It must hold four \
         files of the log, which acknowledgements and what was on its way need until there is room again. Messages that can stay in the log \
         are not copied out of it into this room.",
        elsewhere ["disk_free_limit", "disk_free_limit.absolute", "disk_free_limit.relative", "free_disk_min"]
    }

    transient_bytes_max: u64 {
        Memory, Kind::bytes(MIB, 16 * TIB),
        OfMachine {
            says: "two fifths of the memory of the machine or of its control group",
            of: |machine| (machine.memory_bytes / 5 * 2).clamp(MIB, 16 * TIB).to_string(),
        },
        "Memory for messages of transient, exclusive and auto-delete queues, and for what clients have begun and not ended: messages that \
         have not arrived as a whole, transactions, channels, consumers, the histories of x-recent-history exchanges, and the keys of \
         deduplication. When it is full, publishers are blocked until consumers have made room. Half of it at most (connection_bytes_max, \
         where that is more) goes to what was begun, half to keys, an eighth to histories, a sixteenth to frames of publishers that are \
         blocked. Clients may leave a quarter of it unread beside that: beyond, those that read nothing are disconnected.",
        elsewhere ["vm_memory_high_watermark", "vm_memory_high_watermark.absolute", "vm_memory_high_watermark.relative", "memory_max"]
    }
    user_bytes_max: u64 {
        Memory, Kind::bytes(MIB, 16 * TIB),
        OfMachine {
            says: "a tenth of the memory of the machine or of its control group",
            of: |machine| (machine.memory_bytes / 10).clamp(MIB, 16 * TIB).to_string(),
        },
        "Memory that the connections of one user may hold together in messages that have not arrived as a whole, transactions, channels \
         (2 KiB each) and consumers (2.5 KiB each); at least what one connection may hold. A connection that goes beyond it is closed with 506.",
        elsewhere []
    }
    connection_bytes_max: u64 {
        Memory, Kind::bytes(MIB, 16 * GIB), Fixed("67108864"),
        "Memory that one connection may hold in messages that have not arrived as a whole, transactions, channels (2 KiB each) \
         and consumers (2.5 KiB each). A connection that goes beyond it is closed with 506. It must hold one body of body_bytes_max. \
         As much again, and at most a quarter of transient_bytes_max, may wait for it in direct replies that it has not read: further \
         ones are dropped.",
        elsewhere []
    }
    vhost_arguments_bytes_max: u64 {
        Memory, Kind::bytes(64 * KIB, 16 * TIB),
        OfMachine {
            says: "a twentieth of the memory of the machine or of its control group",
            of: |machine| (machine.memory_bytes / 20).clamp(MIB, 16 * TIB).to_string(),
        },
        "What all bindings of one virtual host, and the arguments of its queues and exchanges, may take together, encoded. A binding counts \
         for 64 bytes and its key, to a topic exchange for 32 bytes more a word; each name and value of arguments for 16 bytes more; a \
         selector of JMS six times. In memory they take up to five times that. A bind, or a declare with arguments, that \
         would bring more is refused with 406.",
        elsewhere []
    }
    cache_bytes: u64 {
        Memory, Kind::bytes(MIB, TIB), Fixed("8388608"),
        "Memory for bodies of durable messages that were just published, all threads together, so that a consumer who keeps up causes no \
         read. Older bodies come from the page cache.",
        elsewhere ["cache_size", "entry_cache_bytes"]
    }
    read_ahead_bytes: u64 {
        Memory, Kind::bytes(MIB, TIB), Fixed("67108864"),
        "Memory for durable messages that were read back from the disk and wait until their consumers have room, all threads together. When \
         it is full, queues read a little at a time and keep nothing that they cannot give out at once.",
        elsewhere []
    }
    wal_index_bytes: u64 {
        Memory, Kind::bytes(256 * KIB, TIB), Fixed("3145728"),
        "Memory for the index of messages that lie in the log, all threads together. A backlog of many small messages reaches it before \
         wal_retained_bytes; then the oldest are copied out of the log early.",
        elsewhere ["index_cache_size", "log_index_bytes"]
    }

    unwritten_bytes_max: u64 {
        Memory, Kind::bytes(MIB, GIB), Fixed("2097152"),
        "Memory of one shard thread for what publishers sent and the disk has not taken yet. When it is full, sockets of publishers are not \
         read until the disk has caught up.",
        elsewhere ["credit_flow_default_credit", "flow_control_bytes"]
    }

    log: LogLevels {
        Log, Kind::Levels, Fixed("info"),
        "How much is logged to standard error: a level, and levels for single parts after it, as `info,server=debug`.",
        elsewhere ["log.level", "log_level", "log.console.level", "RUST_LOG", "loglevel", "verbosity"]
    }
    log_format: LogFormat {
        Log, Kind::Choice(LogFormat::NAMES), Fixed("text"),
        "Form of a log line: `text` for people, `json` for programs.",
        elsewhere ["log.console.formatter", "log_formatter", "log.format"]
    }
    otel_endpoint: Vec<String> {
        Traces, Kind::Names { count_max: 1, bytes_max: 1024 }, Fixed("none"),
        "The http or https address that spans of traced messages are sent to, by OTLP over HTTP in JSON, as http://127.0.0.1:4318/v1/traces; without \
         it no message is traced. Where no setting names one, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT does, or OTEL_EXPORTER_OTLP_ENDPOINT with /v1/traces \
         behind it.",
        elsewhere ["otlp_endpoint", "traces_endpoint"]
    }
    otel_sample_ratio: Ratio {
        Traces, Kind::Ratio, Fixed("0"),
        "Which part of the messages that bring no trace along begins one here; the header traceparent is written into those. A message that brings \
         one is traced if its publisher traces it.",
        elsewhere ["otel_traces_sampler_arg"]
    }
    otel_headers: Vec<String> {
        Traces, Kind::Names { count_max: 16, bytes_max: 4096 }, Fixed("none"),
        "Headers of the requests that bring spans, each as NAME=VALUE. Their values are told nowhere. OTEL_EXPORTER_OTLP_HEADERS stands for it where \
         no setting does.",
        elsewhere ["otlp_headers"]
    }
    otel_service_name: String {
        Traces, Kind::Text { bytes_max: 255 }, Fixed("leveret"),
        "What spans call this broker (service.name). OTEL_SERVICE_NAME stands for it where no setting does.",
        elsewhere ["service_name"]
    }
    otel_resource_attributes: Vec<String> {
        Traces, Kind::Names { count_max: 64, bytes_max: 1024 }, Fixed("none"),
        "What else spans say of this broker, each as NAME=VALUE. OTEL_RESOURCE_ATTRIBUTES stands for it where no setting does.",
        elsewhere ["resource_attributes"]
    }
    otel_ca: Option<PathBuf> {
        Traces, Kind::File, Fixed("none"),
        "Certificates in PEM of the authorities that are believed about otel_endpoint; those of this machine without it.",
        elsewhere ["otel_exporter_otlp_certificate"]
    }
}

impl Key {
    /// The row of this setting.
    pub fn setting(self) -> &'static Setting {
        &SETTINGS[self as usize]
    }

    /// The setting of this name, spelled exactly.
    pub fn named(name: &str) -> Option<Key> {
        SETTINGS.iter().find(|setting| setting.name == name).map(|setting| setting.key)
    }
}
