//! Verbs of RabbitMQ's tools that have nothing to do here, with what to use instead.
//!
//! Invariant: each is refused with the exit code of an unknown command, so a script learns that
//! nothing was done.

use crate::context::Cx;
use crate::failure::{Failure, USAGE};
use crate::form::Shown;
use crate::options::{Switch, Takes, flag, text as text_option};
use crate::tool::{CTL, DIAGNOSTICS, PLUGINS, QUEUES, Tools};
use crate::verb::{ANY, Section, VERB, Verb};

const fn none(name: &'static str, tools: Tools, instead: &'static str) -> Verb {
    Verb {
        name,
        tools,
        section: Section::Meaningless,
        usage: "[...]",
        about: instead,
        words: (0, ANY),
        // Those that scripts say along with these verbs, so that the sentence is what they read.
        switches: SAID,
        run: refuse,
        ..VERB
    }
}

const SAID: &[Switch] = &[
    flag("offline", "said with some of them"),
    flag("all", "said with some of them"),
    flag("ram", "said with some of them"),
    flag("disc", "said with some of them"),
    text_option("cipher", "said with some of them"),
    text_option("hash", "said with some of them"),
    text_option("iterations", "said with some of them"),
    text_option("format", "said with some of them"),
    text_option("duration", "said with some of them"),
    text_option("pattern", "said with some of them"),
    Switch { name: "number", short: Some('N'), takes: Takes::Text, about: "said with some of them" },
];

const NO_ERLANG: &str =
    "There is no Erlang here to ask or to run code in; status, environment and report tell of the node";
const NO_MIRRORS: &str = "There are no mirrored queues here: a quorum queue is replicated, and synchronises itself";
const ONE_PROCESS: &str = "A node is one process: end it by stop and start it by leveret server";
const NO_RESET: &str = "A node is not reset while it runs: take it out of its cluster (leveret cluster leave) or stop it, and start it with \
                        another or an empty --data-dir";
const NO_FORCE: &str = "A node starts without being forced: leveret server. Where the disks of most nodes are lost, leveret cluster recover \
                        has the cluster go on with one that is left";
const NO_CLUSTERING: &str =
    "A node joins at its start: leveret cluster join HOST:PORT, with an empty --data-dir: docs/clustering.md";
const ON_STDERR: &str =
    "The log goes to standard error, and what started the node keeps it: journalctl -u leveret, or docker logs";
const NO_SECRETS: &str =
    "A configuration has no encrypted values here: keep secrets in files that only the server's user can read";
const IS_A_SETTING: &str =
    "This is a setting, read at the start: leveret server --help lists all, environment those of the node";
const NO_COOKIE: &str = "There is no Erlang cookie: this tool logs in by the token in the data folder's operator.json";
const LISTENERS: &str = "Listeners are not suspended here: take the node out of the load balancer, or hold publishers by set_vm_memory_high_watermark 0";

pub(super) const VERBS: &[Verb] = &[
    none("eval", CTL, NO_ERLANG),
    none("eval_file", CTL, NO_ERLANG),
    none("exec", CTL, NO_ERLANG),
    none("remote_shell", DIAGNOSTICS, NO_ERLANG),
    none("observer", DIAGNOSTICS, "There is no Erlang here to observe: leveret ctl top shows queues and rates live"),
    none("erlang_version", DIAGNOSTICS, NO_ERLANG),
    none("erlang_cookie_hash", DIAGNOSTICS, NO_COOKIE),
    none("erlang_cookie_sources", DIAGNOSTICS, NO_COOKIE),
    none("schema_info", CTL | DIAGNOSTICS, "There is no Mnesia here: export_definitions has what is declared"),
    none("runtime_thread_stats", DIAGNOSTICS, "There are no schedulers here: top -H -p PID shows the threads by name"),
    none("resolver_info", DIAGNOSTICS, "Names are resolved as the machine resolves them: resolve_hostname asks it"),
    none("force_gc", CTL, "There is no garbage to collect: memory that is not needed goes back by itself"),
    none("hipe_compile", CTL, "There is nothing to compile: the binary is native code"),
    none("reclaim_quorum_memory", QUEUES | DIAGNOSTICS, "The log is given free by itself once it is not needed"),
    none("sync_queue", CTL, NO_MIRRORS),
    none("cancel_sync_queue", CTL, NO_MIRRORS),
    none("start_app", CTL, ONE_PROCESS),
    none("stop_app", CTL, ONE_PROCESS),
    none("reset", CTL, NO_RESET),
    none("force_reset", CTL, NO_RESET),
    none("force_boot", CTL, NO_FORCE),
    none("join_cluster", CTL, NO_CLUSTERING),
    none("change_cluster_node_type", CTL, "Every node keeps its data on disk"),
    none(
        "rename_cluster_node",
        CTL,
        "A node keeps its name with its data folder: --node-name names it at the first start",
    ),
    none("update_cluster_nodes", CTL, NO_CLUSTERING),
    none("rotate_logs", CTL, ON_STDERR),
    none("log_tail", DIAGNOSTICS, ON_STDERR),
    none("log_tail_stream", DIAGNOSTICS, ON_STDERR),
    none("set_log_level", CTL, "The log's level is a setting, read at the start: --log info"),
    none("set_disk_free_limit", CTL, IS_A_SETTING),
    none("encode", CTL, NO_SECRETS),
    none("decode", CTL, NO_SECRETS),
    none("encrypt_conf_value", CTL, NO_SECRETS),
    none("decrypt_conf_value", CTL, NO_SECRETS),
    none("list_ciphers", CTL | DIAGNOSTICS, NO_SECRETS),
    none("list_hashes", CTL | DIAGNOSTICS, NO_SECRETS),
    none(
        "cipher_suites",
        DIAGNOSTICS,
        "The suites are those of rustls: openssl s_client -connect HOST:PORT shows what is agreed on",
    ),
    none(
        "certificates",
        DIAGNOSTICS,
        "openssl x509 -text -in FILE shows the certificate that environment names; check_certificate_expiration checks it",
    ),
    none(
        "list_network_interfaces",
        DIAGNOSTICS,
        "ip address lists the machine's interfaces; listeners lists the node's addresses",
    ),
    none(
        "consume_event_stream",
        DIAGNOSTICS,
        "Events are messages: bind a queue to amq.rabbitmq.event, once --event-exchange-vhost is set",
    ),
    none(
        "enable_auth_attempt_source_tracking",
        DIAGNOSTICS,
        "Logins are not counted by source: each refused one is a line in the log",
    ),
    none(
        "disable_auth_attempt_source_tracking",
        DIAGNOSTICS,
        "Logins are not counted by source: each refused one is a line in the log",
    ),
    none("suspend_listeners", CTL, LISTENERS),
    none("resume_listeners", CTL, LISTENERS),
    none("stream_status", QUEUES | DIAGNOSTICS, "Streams come with a later version"),
    none("peek", QUEUES, "rabbitmqadmin get queue=NAME ackmode=ack_requeue_true shows messages and puts them back"),
    none("set", PLUGINS, "Nothing is plugged in here: rabbitmq-plugins list shows what is built in"),
    none("directories", PLUGINS, "Nothing is plugged in here: there are no folders for it"),
];

fn refuse(cx: &Cx<'_>) -> Result<Shown, Failure> {
    Err(Failure::plain(USAGE, format!("\nCommand '{}' has nothing to do here.\n{}.\n", cx.verb.name, cx.verb.about)))
}
