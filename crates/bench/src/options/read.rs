//! From words to options. Long and short names as PerfTest (commons-cli) takes them: `--rate 5`,
//! `--rate=5`, `-r 5`, `-qq`.
//!
//! Invariant: every error names the option and the value that is wrong.

use amqp::{Table, Value};
use testbed::used::Usage;

use super::units::Counted;
use super::{
    Asked, BrokerStart, Consuming, ExitWhen, NODES_MAX, Options, Outputs, Producing, Requirement, Topology,
    argument_value,
};
use crate::Error;
use crate::client::{Tls, TlsAsked};
use crate::message::{BODY_BYTES_MAX, BODY_BYTES_MIN, FULL_BYTES_MIN, SHORT_PUBLISHERS_MAX};
use crate::pace::Steps;
use crate::uri::Uri;
use crate::words::Given;

/// Connections of one run: each is a descriptor here and one at the broker.
const CONNECTIONS_MAX: u32 = 20_000;

/// Queues of one run.
const QUEUES_MAX: usize = 100_000;

/// Channels of one connection, as most brokers negotiate.
const CHANNELS_MAX: u16 = 2047;

/// Seconds of a run: ten years, and no sum of nanoseconds overflows.
const TIME_SECS_MAX: u64 = 320_000_000;

/// Threads a side.
const THREADS_MAX: usize = 64;

/// Reads a run's words (without the program's name).
pub fn parse(words: &[String]) -> Result<Asked, Error> {
    let given = Given::of_run(words)?;
    if given.is_set("help") {
        return Ok(Asked::Help);
    }
    if given.is_set("version") {
        return Ok(Asked::Version);
    }
    options(&given, words).map(|options| Asked::Run(Box::new(options)))
}

/// The run that these words ask for; anything else is an error.
pub fn run_of(words: &[String]) -> Result<Options, Error> {
    match parse(words)? {
        Asked::Run(options) => Ok(*options),
        _ => Err(Error::usage("this is no run")),
    }
}

impl Given {
    /// `VALUE:SECONDS`, several times; or one value of another option; or the default.
    fn steps(&self, name: &str, single: &str, default: Option<f64>) -> Result<Option<Steps>, Error> {
        let (texts, counted) = (self.texts(name), Counted::of(single));
        if texts.is_empty() {
            return match self.text(single) {
                None => Ok(default.map(Steps::constant)),
                Some(text) => match counted.number(text) {
                    // PerfTest's own default of a rate, which scripts write out.
                    Some(-1.0) if name == "variable-rate" => Ok(None),
                    Some(number) if number.is_finite() && number >= 0.0 => Ok(Some(Steps::constant(number))),
                    _ => Err(Error::usage(format!("--{single} {text}: a number from 0 on is expected"))),
                },
            };
        }
        if self.is_set(single) {
            return Err(Error::usage(format!("--{single} and --{name} contradict each other; give one")));
        }
        let mut steps = Vec::new();
        for text in texts {
            let parsed = text.split_once(':').and_then(|(value, secs)| {
                let is_whole = |n: &f64| n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(n);
                Some((counted.number(value).filter(is_whole)?, secs.parse::<u64>().ok().filter(|secs| *secs > 0)?))
            });
            steps.push(parsed.ok_or_else(|| {
                Error::usage(format!("--{name} {text}: VALUE:SECONDS is expected, whole numbers, at least a second, and the option once for each"))
            })?);
        }
        Ok(Some(Steps::new(&steps)))
    }

    fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, Error> {
        let mut pairs = Vec::new();
        for item in self.text(name).into_iter().flat_map(|text| text.split(',')) {
            let (key, value) =
                item.split_once('=').ok_or_else(|| Error::usage(format!("--{name}: {item:?} is not KEY=VALUE")))?;
            if key.is_empty() || key.len() > 255 {
                return Err(Error::usage(format!("--{name}: the key of {item:?} has not 1 to 255 bytes")));
            }
            pairs.push((key.to_owned(), value.to_owned()));
        }
        Ok(pairs)
    }

    fn arguments(&self, name: &str) -> Result<Table, Error> {
        let mut table = Table::new();
        for (key, value) in self.pairs(name)? {
            table.push(key, argument_value(&value));
        }
        Ok(table)
    }
}

fn options(given: &Given, words: &[String]) -> Result<Options, Error> {
    let producing = producing(given)?;
    let consuming = consuming(given)?;
    let topology = topology(given, producing.persistent)?;
    let prefetch = u64::from(consuming.prefetch.max(consuming.channel_prefetch));
    if prefetch > 0 && consuming.multi_ack_every > prefetch && !consuming.auto_ack {
        return Err(Error::usage(format!(
            "--multi-ack-every {} with a prefetch of {prefetch}: no ack would ever be sent",
            consuming.multi_ack_every
        )));
    }
    let uris = match (given.text("uri"), given.text("uris")) {
        (Some(_), Some(_)) => return Err(Error::usage("--uri and --uris contradict each other; give one")),
        (None, None) => vec![Uri::parse("amqp://localhost")?],
        (Some(uri), None) => vec![Uri::parse(uri)?],
        (None, Some(uris)) => uris.split(',').map(|uri| Uri::parse(uri.trim())).collect::<Result<_, _>>()?,
    };
    let addressed = ["uri", "uris"].into_iter().find(|name| given.is_set(name));
    let started = ["broker", "nodes", "limit-cpu", "limit-memory"].into_iter().find(|name| given.is_set(name));
    if let (Some(addressed), Some(started)) = (addressed, started) {
        return Err(Error::usage(format!(
            "--{addressed} and --{started} contradict each other: --{started} is about a broker that is started here"
        )));
    }
    let publishers = producing.count * u32::from(producing.channels);
    if producing.size.min() < FULL_BYTES_MIN as f64 && publishers > SHORT_PUBLISHERS_MAX {
        return Err(Error::usage(format!(
            "--size below {FULL_BYTES_MIN} has no room to number more than {SHORT_PUBLISHERS_MAX} producer channels"
        )));
    }
    if producing.count == 0 && consuming.count == 0 {
        return Err(Error::usage("--producers 0 and --consumers 0: nobody would do anything"));
    }
    let exit_when = match given.text("exit-when") {
        None => None,
        Some("empty") => Some(ExitWhen::Empty),
        Some("idle") => Some(ExitWhen::Idle),
        Some(text) => return Err(Error::usage(format!("--exit-when {text}: empty or idle is expected"))),
    };
    Ok(Options {
        label: given.text("id").unwrap_or_default().to_owned(),
        scenario: String::new(),
        words: words.to_vec(),
        producing,
        consuming,
        topology,
        time_secs: match given.number("time", 0u64, 0, TIME_SECS_MAX)? {
            0 => None,
            secs => Some(secs),
        },
        warmup_secs: warmup(given)?,
        interval_secs: given.number("interval", 1, 1, 3600)?,
        exit_when,
        closed_loop: given.is_set("closed-loop"),
        use_millis: given.is_set("use-millis"),
        threads: given.number("threads", 1, 1, THREADS_MAX)?,
        drain_secs: given.number("drain-timeout", 60, 0, 86_400)?,
        heartbeat_secs: given.number("heartbeat", 0, 0, u16::MAX)?,
        frame_max: match given.number("framemax", 0, 0, i32::MAX as u32)? {
            0 => 0,
            bytes if bytes < 4096 => return Err(Error::usage(format!("--framemax {bytes}: AMQP's minimum is 4096"))),
            bytes => bytes,
        },
        recovery_secs: recovery(given)?,
        startup_secs: given.number("servers-startup-timeout", 0, 0, 86_400)?,
        shutdown_secs: given.number("shutdown-timeout", 5, 0, 3600)?,
        no_delay: given.bool("tcp-no-delay", true)?,
        receive_buffer: buffer(given, "tcp-receive-buffer-size")?,
        send_buffer: buffer(given, "tcp-send-buffer-size")?,
        tls: tls(given, &uris)?,
        sasl_external: given.is_set("sasl-external"),
        uris,
        outputs: Outputs {
            json: given.owned("json"),
            html: given.owned("html"),
            markdown: None,
            hdr_log: given.owned("hdr-log"),
            csv: given.owned("output-file"),
            live: given.owned("live"),
            plain: given.is_set("plain"),
            quiet: given.is_set("quiet"),
        },
        requirement: Requirement {
            rate: positive(given, "require-rate")?,
            p99_ms: positive(given, "require-p99-ms")?,
            p999_ms: positive(given, "require-p999-ms")?,
        },
        broker: BrokerStart {
            command: given.owned("broker"),
            cpu: positive(given, "limit-cpu")?,
            memory_bytes: given.text("limit-memory").map(bytes_of).transpose()?,
            nodes: given.is_set("nodes").then(|| given.number("nodes", 1, 1, NODES_MAX)).transpose()?,
        },
        broker_pids: pids(given)?,
        judges_rate: true,
        stages: Vec::new(),
    })
}

/// What amqps URIs need; an option about TLS beside plain ones would be without effect.
fn tls(given: &Given, uris: &[Uri]) -> Result<Option<Tls>, Error> {
    if uris.iter().any(|uri| uri.tls) {
        let owned = |name| given.owned(name);
        return Tls::of(&TlsAsked {
            system_roots: given.is_set("use-default-ssl-context"),
            authorities: owned("tls-ca"),
            certificate: owned("tls-certificate"),
            key: owned("tls-key"),
            name: owned("server-name-indication"),
        })
        .map(Some);
    }
    match ABOUT_TLS.iter().find(|name| given.is_set(name)) {
        Some(name) => Err(Error::usage(format!("--{name} is about TLS, and no URI begins with amqps://"))),
        None => Ok(None),
    }
}

/// Options that mean nothing without TLS.
const ABOUT_TLS: [&str; 6] =
    ["use-default-ssl-context", "sasl-external", "server-name-indication", "tls-ca", "tls-certificate", "tls-key"];

fn producing(given: &Given) -> Result<Producing, Error> {
    let rate = match given.text("publishing-interval") {
        None => match given.steps("variable-rate", "rate", None)? {
            // 0 means no limit where the rate never changes.
            Some(steps) if steps == Steps::constant(0.0) => None,
            steps => steps,
        },
        Some(_) if given.is_set("rate") || given.is_set("variable-rate") => {
            return Err(Error::usage(
                "--publishing-interval and --rate or --variable-rate contradict each other; give one",
            ));
        }
        Some(_) => positive(given, "publishing-interval")?.map(|secs| Steps::constant(1.0 / secs)),
    };
    let size = given.steps("variable-size", "size", Some(BODY_BYTES_MIN as f64))?.expect("there is a default");
    if size.max() > BODY_BYTES_MAX as f64 {
        return Err(Error::usage(format!("a body of {} bytes: at most {BODY_BYTES_MAX} are sent", size.max())));
    }
    let flags = given.texts("flag");
    if let Some(flag) = flags.iter().find(|flag| !["persistent", "mandatory"].contains(&flag.as_str())) {
        return Err(Error::usage(format!("--flag {flag}: persistent or mandatory is expected")));
    }
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let (properties, headers) = properties(given)?;
    let confirm = match given.number("confirm", -1i64, -1, 1 << 30)? {
        -1 => None,
        0 => return Err(Error::usage("--confirm 0: nothing could ever be sent; at least 1 is expected")),
        count => Some(count as u64),
    };
    Ok(Producing {
        count: given.number("producers", 1, 0, CONNECTIONS_MAX)?,
        channels: given.number("producer-channel-count", 1, 1, CHANNELS_MAX)?,
        confirm,
        confirm_timeout_secs: match given.number("confirm-timeout", 30i64, -1, 86_400)? {
            secs if secs <= 0 => TIME_SECS_MAX,
            secs => secs as u64,
        },
        messages: given.number("pmessages", 0, 0, u64::MAX)?,
        rate,
        size,
        persistent: has("persistent") || given.is_set("quorum-queue"),
        mandatory: has("mandatory"),
        random_routing_key: if given.is_set("random-routing-key") {
            Some(given.number("routing-key-cache-size", 0, 0, 1_000_000)?)
        } else if given.is_set("routing-key-cache-size") {
            return Err(Error::usage("--routing-key-cache-size needs --random-routing-key"));
        } else {
            None
        },
        properties,
        headers,
        random_start_delay_secs: given.number("producer-random-start-delay", 0, 0, 3600)?,
    })
}

/// The names that are properties; all others are headers.
const PROPERTIES: [&str; 12] = [
    "contentType",
    "contentEncoding",
    "deliveryMode",
    "priority",
    "correlationId",
    "replyTo",
    "expiration",
    "messageId",
    "timestamp",
    "type",
    "appId",
    "userId",
];

fn properties(given: &Given) -> Result<(Vec<(String, String)>, Table), Error> {
    let (mut properties, mut headers) = (Vec::new(), Table::new());
    for (key, value) in given.pairs("message-properties")? {
        if !PROPERTIES.contains(&key.as_str()) {
            headers.push(key, argument_value(&value));
            continue;
        }
        let is_lawful = match key.as_str() {
            "deliveryMode" | "priority" => value.parse::<u8>().is_ok(),
            "timestamp" => value.parse::<u64>().is_ok(),
            _ => value.len() <= 255,
        };
        if !is_lawful {
            return Err(Error::usage(format!("--message-properties: {value:?} is no value for {key}")));
        }
        properties.push((key, value));
    }
    if let Some(kind) = given.text("body-content-type") {
        properties.push(("contentType".to_owned(), kind.to_owned()));
    }
    Ok((properties, headers))
}

fn consuming(given: &Given) -> Result<Consuming, Error> {
    Ok(Consuming {
        count: given.number("consumers", 1, 0, CONNECTIONS_MAX)?,
        channels: given.number("consumer-channel-count", 1, 1, CHANNELS_MAX)?,
        auto_ack: given.is_set("autoack"),
        multi_ack_every: given.number("multi-ack-every", 0, 0, 1 << 30)?,
        prefetch: given.number("qos", 0, 0, u16::MAX)?,
        channel_prefetch: given.number("global-qos", 0, 0, u16::MAX)?,
        work_us: given.steps("variable-latency", "consumer-latency", Some(0.0))?.expect("there is a default"),
        rate: match given.text("consumer-rate") {
            Some("-1") => None,
            _ => positive(given, "consumer-rate")?,
        },
        messages: given.number("cmessages", 0, 0, u64::MAX)?,
        nack: given.is_set("nack"),
        requeue: given.bool("requeue", true)?,
        polling_ms: match (given.is_set("polling"), given.is_set("polling-interval")) {
            (true, _) => Some(given.number("polling-interval", 0, 0, 3_600_000)?),
            (false, true) => return Err(Error::usage("--polling-interval needs --polling")),
            (false, false) => None,
        },
        arguments: given.arguments("consumer-args")?,
        start_delay_secs: given.number("consumer-start-delay", 0, 0, 86_400)?,
        slow_start: given.is_set("slow-start"),
    })
}

fn topology(given: &Given, persistent: bool) -> Result<Topology, Error> {
    let is_quorum = given.is_set("quorum-queue");
    let mut arguments = given.arguments("queue-args")?;
    if is_quorum {
        if let Some(kind) = arguments.get("x-queue-type").filter(|k| **k != Value::LongString("quorum".into())) {
            return Err(Error::usage(format!("--quorum-queue and x-queue-type {kind:?} contradict each other")));
        }
        if given.is_set("exclusive") {
            return Err(Error::usage("--quorum-queue and --exclusive contradict each other"));
        }
        if arguments.get("x-queue-type").is_none() {
            arguments.push("x-queue-type", Value::LongString("quorum".into()));
        }
    }
    if let Some(locator) = given.text("leader-locator") {
        arguments.push("x-queue-leader-locator", Value::LongString(locator.to_owned().into()));
    }
    if let bytes @ 1.. = given.number("max-length-bytes", 0i64, 0, i64::MAX)? {
        arguments.push("x-max-length-bytes", Value::I64(bytes));
    }
    let (queues, is_pattern) = queues(given)?;
    let exchange = given.text("exchange").unwrap_or("direct").to_owned();
    Ok(Topology {
        exchange_type: given.text("type").unwrap_or("direct").to_owned(),
        exchange,
        queues,
        is_pattern,
        spreads_channels: false,
        routing_key: given.owned("routing-key"),
        predeclared: given.is_set("predeclared"),
        skip_binding: given.is_set("skip-binding-queues"),
        durable: persistent,
        exclusive: given.is_set("exclusive"),
        auto_delete: given.bool("auto-delete", !is_quorum)?,
        arguments,
    })
}

fn queues(given: &Given) -> Result<(Vec<String>, bool), Error> {
    let sources = ["queue", "queue-pattern", "queue-file"].iter().filter(|name| given.is_set(name)).count();
    if sources > 1 {
        return Err(Error::usage("--queue, --queue-pattern and --queue-file contradict each other; give one"));
    }
    if let Some(pattern) = given.text("queue-pattern") {
        let from = given.number("queue-pattern-from", 1u64, 0, u64::MAX / 2)?;
        if !given.is_set("queue-pattern-to") {
            return Err(Error::usage("--queue-pattern needs --queue-pattern-to"));
        }
        let to = given.number("queue-pattern-to", 1u64, 0, u64::MAX / 2)?;
        if to < from || (to - from) as usize >= QUEUES_MAX {
            return Err(Error::usage(format!("--queue-pattern-to {to}: from {from} on, at most {QUEUES_MAX} queues")));
        }
        let names = (from..=to).map(|number| filled(pattern, number)).collect::<Option<Vec<_>>>();
        let names = names.ok_or_else(|| Error::usage(format!("--queue-pattern {pattern}: one %d is expected")))?;
        return Ok((names, true));
    }
    if let Some(name) = ["queue-pattern-from", "queue-pattern-to"].iter().find(|name| given.is_set(name)) {
        return Err(Error::usage(format!("--{name} needs --queue-pattern")));
    }
    let text = match (given.text("queue"), given.text("queue-file")) {
        (Some(text), _) => text.replace(',', "\n"),
        (None, Some(path)) => {
            std::fs::read_to_string(path).map_err(|why| Error::usage(format!("--queue-file {path}: {why}")))?
        }
        (None, None) => String::new(),
    };
    let names: Vec<String> = text.lines().map(|l| l.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    if let Some(name) = names.iter().find(|name| name.len() > 255) {
        return Err(Error::usage(format!("the queue name {name} is longer than 255 bytes")));
    }
    Ok((names, false))
}

/// A pattern with its `%d`, or `%03d`, filled in.
fn filled(pattern: &str, number: u64) -> Option<String> {
    let at = pattern.find('%')?;
    let rest = &pattern[at + 1..];
    let end = rest.find('d')?;
    let digits = &rest[..end];
    let width: usize = if digits.is_empty() { 0 } else { digits.parse().ok().filter(|width| *width <= 20)? };
    Some(format!("{}{number:0width$}{}", &pattern[..at], &rest[end + 1..]))
}

fn recovery(given: &Given) -> Result<Option<(f64, f64)>, Error> {
    if given.is_set("disable-connection-recovery") {
        return Ok(None);
    }
    let text = given.text("connection-recovery-interval").unwrap_or("5");
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.parse::<f64>(), high.parse::<f64>()) {
        (Ok(low), Ok(high)) if low >= 0.0 && high >= low && high <= 86_400.0 => Ok(Some((low, high))),
        _ => Err(Error::usage(format!("--connection-recovery-interval {text}: seconds or a range 3-10 is expected"))),
    }
}

fn positive(given: &Given, name: &str) -> Result<Option<f64>, Error> {
    let Some(text) = given.text(name) else { return Ok(None) };
    match Counted::of(name).number(text) {
        Some(number) if number > 0.0 && number.is_finite() => Ok(Some(number)),
        _ => Err(Error::usage(format!("--{name} {text}: a number above 0 is expected"))),
    }
}

fn buffer(given: &Given, name: &str) -> Result<Option<usize>, Error> {
    Ok(match given.number(name, 0usize, 0, 1 << 30)? {
        0 => None,
        bytes => Some(bytes),
    })
}

fn pids(given: &Given) -> Result<Vec<u32>, Error> {
    let texts = given.text("broker-pid").into_iter().flat_map(|text| text.split(','));
    let pid = |text: &str| {
        let wrong = |why| Error::usage(format!("--broker-pid: {text:?} {why}"));
        let pid = text.trim().parse().map_err(|_| wrong("is no process id"))?;
        // Its figures would be missing without a word.
        Usage::of(&[pid]).map(|_| pid).ok_or_else(|| wrong("is no process on this machine"))
    };
    texts.map(pid).collect()
}

/// `512M`, `1g`, `536870912`.
pub(crate) fn bytes_of(text: &str) -> Result<u64, Error> {
    match Counted::Bytes.number(text) {
        Some(bytes) if (1.0..=u64::MAX as f64 / 2.0).contains(&bytes) => Ok(bytes as u64),
        _ => Err(Error::usage(format!("--limit-memory {text}: bytes, or a number with K, M or G, are expected"))),
    }
}

/// Seconds that are left out at the start. They are a part of the time, so something must be left of
/// it.
fn warmup(given: &Given) -> Result<u64, Error> {
    let warmup = given.number("warmup", 0u64, 0, 86_400)?;
    match given.number("time", 0u64, 0, TIME_SECS_MAX)? {
        time if time > 0 && warmup >= time => Err(Error::usage(format!(
            "--warmup {warmup} and --time {time} contradict each other: the warm-up is a part of the time, and nothing \
             would be measured"
        ))),
        _ => Ok(warmup),
    }
}

#[cfg(test)]
mod tests;
