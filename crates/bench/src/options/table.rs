//! Every option: PerfTest's, under its names, and this tool's own.
//!
//! Invariant: an option is here or it is unknown. What PerfTest has and this tool does not do is
//! here with the reason, which is the error that a person gets: nothing is accepted and ignored.

use strsim::levenshtein;

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Flag,
    /// One value.
    Value(&'static str),
    /// A value, and it may be given several times.
    Values(&'static str),
    /// It is PerfTest's and has no meaning here: why. The flag says whether a value follows.
    Refused(bool, &'static str),
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// After two dashes.
    pub long: &'static str,
    /// After one dash; empty when there is none.
    pub short: &'static str,
    /// What follows.
    pub takes: Takes,
    /// One line of help.
    pub help: &'static str,
}

const fn flag(long: &'static str, short: &'static str, help: &'static str) -> Spec {
    Spec { long, short, takes: Takes::Flag, help }
}

const fn value(long: &'static str, short: &'static str, name: &'static str, help: &'static str) -> Spec {
    Spec { long, short, takes: Takes::Value(name), help }
}

const fn values(long: &'static str, short: &'static str, name: &'static str, help: &'static str) -> Spec {
    Spec { long, short, takes: Takes::Values(name), help }
}

const fn refused(long: &'static str, short: &'static str, has_value: bool, why: &'static str) -> Spec {
    Spec { long, short, takes: Takes::Refused(has_value, why), help: why }
}

const STREAM: &str = "streams are measured with stream-perf-test";
const JVM: &str = "it tunes PerfTest's Java threads; here --threads says how many threads make the load";
const OAUTH: &str = "OAuth 2 is not supported by this load generator; put user and password into the URI";
const INSTANCES: &str = "several instances are not synchronized; one process makes the load of many";
const TX: &str = "transactions are not measured; confirms are (--confirm)";

/// PerfTest's options, in its order.
pub const PERFTEST: &[Spec] = &[
    flag("help", "?", "show the options"),
    flag("autoack", "a", "consume without acknowledgements"),
    value("multi-ack-every", "A", "N", "one ack for N messages (default: each its own)"),
    value("auto-delete", "ad", "BOOL", "auto-delete queues (default true; false for --quorum-queue)"),
    value("heartbeat", "b", "SECONDS", "heartbeat to ask for (default 0: what the broker suggests)"),
    refused("body", "B", true, "bodies carry this tool's stamp and cannot be files; --size says how large they are"),
    refused("body-count", "bc", true, "bodies carry this tool's stamp; there are no JSON bodies"),
    refused("body-field-count", "bfc", true, "bodies carry this tool's stamp; there are no JSON bodies"),
    value("confirm", "c", "N", "confirms, at most N messages unconfirmed a producer channel (default: no confirms)"),
    value("pmessages", "C", "N", "messages of each producer channel (default 0: no limit)"),
    value("consumer-args", "ca", "K=V,…", "arguments of basic.consume"),
    value(
        "connection-recovery-interval",
        "cri",
        "SECONDS",
        "wait before connecting again, or a range 3-10 (default 5)",
    ),
    value("consumer-start-delay", "csd", "SECONDS", "start consumers so much later"),
    value("confirm-timeout", "ct", "SECONDS", "a message unconfirmed for longer fails the run (default 30)"),
    refused("consumers-thread-pools", "ctp", true, JVM),
    value("id", "d", "NAME", "name of the run, for the report"),
    value("cmessages", "D", "N", "messages of each consumer channel (default 0: no limit)"),
    flag("disable-connection-recovery", "dcr", "a lost connection ends the run"),
    value("exchange", "e", "NAME", "exchange to publish to (default direct)"),
    flag("exclusive", "E", "server-named exclusive queues"),
    refused("expected-instances", "ei", true, INSTANCES),
    refused("exposed-metrics", "em", true, "there is no metrics endpoint; --json writes every interval"),
    refused("environment-variables", "env", false, "options are not read from environment variables"),
    value(
        "exit-when",
        "ew",
        "empty|idle",
        "end when the queues are empty, or when no consumer got anything for a second",
    ),
    values("flag", "f", "persistent|mandatory", "flags of messages; persistent makes queues durable too"),
    value("uri", "h", "URI", "broker (default amqp://localhost)"),
    value("uris", "H", "URI,…", "brokers, connections are spread over them"),
    refused("heartbeat-sender-threads", "hst", true, JVM),
    value("interval", "i", "SECONDS", "length of a sample (default 1)"),
    refused("instance-sync-namespace", "isn", true, INSTANCES),
    refused("instance-sync-timeout", "ist", true, INSTANCES),
    refused("json-body", "jb", false, "bodies carry this tool's stamp; there are no JSON bodies"),
    value("routing-key", "k", "KEY", "routing key (default: one of this run, or the queue's name with a pattern)"),
    flag("random-routing-key", "K", "another routing key for each message"),
    value("consumer-latency", "L", "MICROSECONDS", "work on each message before its ack"),
    value("leader-locator", "ll", "client-local|balanced", "x-queue-leader-locator of declared queues"),
    refused("ptxsize", "m", true, TX),
    value("framemax", "M", "BYTES", "largest frame to ask for (default 0: the broker's)"),
    refused("max-age", "ma", true, STREAM),
    refused(
        "metrics-format",
        "mf",
        true,
        "the screen has one format; --plain prints lines, --json writes them for machines",
    ),
    refused("metrics-help", "mh", false, "there is no metrics endpoint; --json writes every interval"),
    value("max-length-bytes", "mlb", "BYTES", "x-max-length-bytes of declared queues"),
    value("message-properties", "mp", "K=V,…", "properties of messages; other names become headers"),
    flag("use-millis", "ms", "latency of messages of another process counts too (clocks must agree)"),
    refused("ctxsize", "n", true, TX),
    flag("nack", "na", "nack messages and not ack them"),
    refused("nio-threads", "niot", true, JVM),
    refused("nio-thread-pool", "niotp", true, JVM),
    value("output-file", "o", "FILE", "a line of CSV for each interval"),
    refused("oauth2-grant-type", "o2gr", true, OAUTH),
    refused("oauth2-client-id", "o2id", true, OAUTH),
    refused("oauth2-parameters", "o2p", true, OAUTH),
    refused("oauth2-client-secret", "o2sec", true, OAUTH),
    refused("oauth2-token-endpoint", "o2uri", true, OAUTH),
    flag("predeclared", "p", "exchange and queues are there already: declare nothing"),
    value("publishing-interval", "P", "SECONDS", "a message of each producer every so often"),
    value("polling-interval", "pi", "MILLISECONDS", "wait between two basic.get of --polling (default 0)"),
    flag("polling", "po", "consume with basic.get"),
    value("producer-random-start-delay", "prsd", "SECONDS", "start each producer after up to so long"),
    refused("producer-scheduler-threads", "pst", true, JVM),
    value("qos", "q", "N", "prefetch of each consumer (default 0: no limit)"),
    value("global-qos", "Q", "N", "prefetch of each channel (default 0: no limit)"),
    value("queue-args", "qa", "K=V,…", "arguments of declared queues"),
    value("queue-file", "qf", "FILE", "file with names of queues, one a line"),
    value("queue-pattern", "qp", "PATTERN", "names of queues, such as perf-%d"),
    value("queue-pattern-from", "qpf", "N", "first number of the pattern (default 1)"),
    value("queue-pattern-to", "qpt", "N", "last number of the pattern"),
    flag("quorum-queue", "qq", "durable quorum queues and persistent messages"),
    value("rate", "r", "N", "messages a second of each producer channel, also 10k (default: as fast as it goes)"),
    value("consumer-rate", "R", "N", "messages a second of each consumer channel"),
    value("requeue", "re", "BOOL", "requeue what --nack nacks (default true)"),
    value("routing-key-cache-size", "rkcs", "N", "random routing keys to choose from (default 0: all different)"),
    flag("slow-start", "S", "start a consumer each second"),
    value("size", "s", "BYTES", "size of bodies (default and minimum 12), also 4KiB or 5MB"),
    flag("skip-binding-queues", "sb", "do not bind queues to the exchange"),
    refused("stream-consumer-offset", "sco", true, STREAM),
    flag("sasl-external", "se", "log in by certificate (EXTERNAL), over amqps://"),
    refused("stream-max-segment-size-bytes", "smssb", true, STREAM),
    value(
        "server-name-indication",
        "sni",
        "NAME",
        "name to ask for over amqps://, and to verify (default: the URI's host)",
    ),
    refused("stream-queue", "sq", false, STREAM),
    value("servers-startup-timeout", "sst", "SECONDS", "wait so long for the brokers to come up"),
    value("shutdown-timeout", "st", "SECONDS", "wait so long for connections to close (default 5)"),
    refused("servers-up-limit", "sul", true, "all brokers named must be up; name those that are"),
    value("type", "t", "TYPE", "type of the exchange (default direct)"),
    value("body-content-type", "T", "TYPE", "content type of messages"),
    value("tcp-no-delay", "tnd", "BOOL", "TCP_NODELAY (default true)"),
    value("tcp-receive-buffer-size", "trbs", "BYTES", "SO_RCVBUF"),
    value("tcp-send-buffer-size", "tsbs", "BYTES", "SO_SNDBUF"),
    value("queue", "u", "NAME,…", "names of queues (default: one of the broker's for each consumer)"),
    flag("use-default-ssl-context", "udsc", "over amqps:// believe whom this machine believes (default: anybody)"),
    flag("version", "v", "show the version"),
    refused("verbose", "", false, "single messages are not shown; tap the queue with another client"),
    refused("verbose-full", "", false, "single messages are not shown; tap the queue with another client"),
    values("variable-latency", "vl", "MICROSECONDS:SECONDS", "work on a message that changes over time"),
    values("variable-rate", "vr", "RATE:SECONDS", "a rate that changes over time"),
    values("variable-size", "vs", "BYTES:SECONDS", "a size that changes over time"),
    value("producers", "x", "N", "producers (default 1)"),
    value("producer-channel-count", "X", "N", "channels of each producer (default 1)"),
    value("consumers", "y", "N", "consumers (default 1)"),
    value("consumer-channel-count", "Y", "N", "channels of each consumer (default 1)"),
    value("time", "z", "SECONDS", "end after so long (default: until interrupted)"),
];

/// What PerfTest does not have.
pub const OWN: &[Spec] = &[
    flag(
        "closed-loop",
        "",
        "latency from the moment of sending, and what is late is not caught up (as PerfTest does it)",
    ),
    value("tls-ca", "", "FILE", "over amqps:// believe these authorities, PEM (default: anybody, as PerfTest does)"),
    value("tls-certificate", "", "FILE", "client certificate to show over amqps://, PEM"),
    value("tls-key", "", "FILE", "its key, PEM"),
    value("threads", "", "N", "threads for producers, and as many for consumers (default 1)"),
    value("drain-timeout", "", "SECONDS", "after the end wait so long for what is still queued (default 60)"),
    value("warmup", "", "SECONDS", "leave the first seconds of --time out of the figures (default 0)"),
    value("json", "", "FILE", "a JSON object for each interval, and one for the whole run"),
    value("html", "", "FILE", "a report with charts, one file"),
    value("hdr-log", "", "FILE", "HdrHistogram log of every interval, tags confirm and end-to-end"),
    flag("plain", "", "lines instead of the live view, also on a terminal"),
    flag("quiet", "", "nothing but the verdict"),
    value(
        "broker-pid",
        "",
        "PID,…",
        "processes of the broker (default: who listens on its port, when it is on this machine)",
    ),
    value("broker", "", "COMMAND", "start this broker for the run and stop it after; {port} and {dir} are filled in"),
    value("nodes", "", "N", "start so many nodes of it as one cluster (default broker: this binary's server)"),
    value(
        "limit-cpu",
        "",
        "CORES",
        "start the broker in a cgroup with so many cores (default broker: this binary's server)",
    ),
    value("limit-memory", "", "BYTES", "start the broker in a cgroup with so much memory, such as 512M"),
    value("require-rate", "", "N", "the run fails below so many messages a second, confirmed and consumed"),
    value("require-p99-ms", "", "MS", "the run fails when the 99th percentile end to end is above"),
    value("require-p999-ms", "", "MS", "the run fails when the 99.9th percentile end to end is above"),
];

/// The option with this long name.
pub fn by_long(name: &str) -> Option<&'static Spec> {
    PERFTEST.iter().chain(OWN).find(|spec| spec.long == name)
}

/// The option with this short name.
pub fn by_short(name: &str) -> Option<&'static Spec> {
    PERFTEST.iter().find(|spec| !spec.short.is_empty() && spec.short == name)
}

/// The long name that looks most like `name`, if any comes near.
pub fn nearest(name: &str) -> Option<&'static str> {
    let distance = |spec: &&Spec| levenshtein(name, spec.long);
    let best = PERFTEST.iter().chain(OWN).min_by_key(distance)?;
    (levenshtein(name, best.long) <= 1 + name.len() / 4).then_some(best.long)
}

/// The help that a person learns from: all options, PerfTest's first.
pub fn help() -> String {
    let mut text = String::new();
    let mut section = |title: &str, specs: &[Spec]| {
        text.push_str(title);
        text.push('\n');
        for spec in specs.iter().filter(|spec| !matches!(spec.takes, Takes::Refused(..))) {
            let short = if spec.short.is_empty() { String::new() } else { format!("-{}, ", spec.short) };
            let takes = match spec.takes {
                Takes::Value(name) | Takes::Values(name) => format!(" {name}"),
                _ => String::new(),
            };
            let left = format!("  {short}--{}{takes}", spec.long);
            if left.len() > 42 {
                text.push_str(&format!("{left}\n{:44}{}\n", "", spec.help));
            } else {
                text.push_str(&format!("{left:<44}{}\n", spec.help));
            }
        }
        text.push('\n');
    };
    section("PerfTest's options:", PERFTEST);
    section("More:", OWN);
    let refused: Vec<&str> =
        PERFTEST.iter().filter(|s| matches!(s.takes, Takes::Refused(..))).map(|s| s.long).collect();
    text.push_str("PerfTest's options that are refused, each with its reason: ");
    text.push_str(&refused.join(", "));
    text.push_str(".\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_used_twice() {
        let all = || PERFTEST.iter().chain(OWN);
        let mut longs: Vec<_> = all().map(|spec| spec.long).collect();
        let mut shorts: Vec<_> = all().map(|spec| spec.short).filter(|short| !short.is_empty()).collect();
        for names in [&mut longs, &mut shorts] {
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn a_slip_of_the_finger_finds_its_option() {
        assert_eq!(nearest("producer"), Some("producers"));
        assert_eq!(nearest("multi-ack-ever"), Some("multi-ack-every"));
        assert_eq!(nearest("frobnicate"), None);
    }
}
