//! The arguments of `queue.declare` and `basic.consume`: one table each of what RabbitMQ knows and
//! what we honour.
//!
//! Invariant: an argument that RabbitMQ knows is either honoured or refused with 406; only keys
//! unknown to every queue type are stored without a meaning, as RabbitMQ stores them, and stay
//! outside equivalence. An argument that a later version honours changes its `Support` here and
//! gets its field in `settings.rs`, nothing else.

use amqp::{Table, Value};

use super::name::{NAME_BYTES_MAX, Name};
use super::refusal::{Refusal, Resource};
use super::settings::{
    ConsumerSettings, Durability, LeaderLocator, QueueSettings, QueueType, Selective, ValueCap, Wishes,
};
use super::wording::{integer, quoted, same, term, type_name, with_type};

/// Ten years in milliseconds: RabbitMQ's bound for anything that expires.
pub const EXPIRY_MS_MAX: i64 = 315_360_000_000;
/// RabbitMQ's bound for `x-max-priority`.
pub const PRIORITY_MAX: i64 = 255;
/// More members than any cluster has; keeps the number in its field.
pub const GROUP_SIZE_MAX: i64 = 1024;
/// An hour: a longer interval between syncs is a mistake of units.
pub const DURABILITY_INTERVAL_MS_MAX: i64 = 3_600_000;

/// A week: what repeats later than that is no resend.
pub(super) const DEDUPLICATION_WINDOW_MS_MAX: i64 = 604_800_000;

const QUEUE_TYPE: &str = "x-queue-type";
const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";
const DURABILITY: &str = "x-durability";
const VALUE_HEADER: &str = "x-durability-value-header";
const VALUE_CAP: &str = "x-durability-value-cap";
const INTERVAL_MS: &str = "x-durability-interval-ms";
const DEDICATED: &str = "x-dedicated-partition";
const DEDUPLICATION: &str = "x-message-deduplication";
const DEDUPLICATION_WINDOW_MS: &str = "x-deduplication-window-ms";

/// Whether this version does what the argument says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Support {
    Honoured,
    /// Checked as RabbitMQ checks it, then refused.
    NotYet,
}
use Support::{Honoured, NotYet};

/// What values an argument takes, with RabbitMQ's reason where it does not.
#[derive(Clone, Copy)]
enum Rule {
    /// RabbitMQ does not look at it.
    Any,
    /// `x-queue-type`; checked before all others, because it decides which others are known.
    QueueType,
    Integer,
    NonNegative,
    Positive,
    /// Not negative, at most the number.
    AtMost(i64),
    /// Positive, at most the number.
    PositiveAtMost(i64),
    /// Milliseconds, not negative; zero where it says so.
    Expiry {
        zero: bool,
    },
    Bool,
    Text,
    /// A string that a message may have as its exchange or routing key, so at most 255 bytes.
    ShortText,
    /// A string that is a name, so not empty and at most 255 bytes.
    NameText,
    /// A string out of a list; the atom or phrase that RabbitMQ gives as the reason.
    OneOf(&'static [&'static str], Reason),
    /// Makes sense only beside `x-dead-letter-exchange`.
    DeadLetterKey,
    /// 1 or 2.
    Version,
}

#[derive(Clone, Copy)]
enum Reason {
    /// A bare word: `invalid_overflow`.
    Atom(&'static str),
    /// A sentence that ends in the value: "unsupported queue mode 'x'", quotes included.
    Unsupported(&'static str),
}

/// One argument. `classic`, `quorum`: 0 if the type does not know it, else its place in the order
/// in which RabbitMQ compares the arguments of a redeclare, which decides the argument that a
/// refusal names. Twice 0: only streams know it.
struct Argument {
    name: &'static str,
    classic: u8,
    quorum: u8,
    rule: Rule,
    support: Support,
}

const fn row(name: &'static str, [classic, quorum]: [u8; 2], rule: Rule, support: Support) -> Argument {
    Argument { name, classic, quorum, rule, support }
}

const LOCATORS: &[&str] = &["client-local", "balanced", "random", "least-leaders", "min-masters"];
const MASTER_LOCATORS: &[&str] = &["client-local", "random", "min-masters"];
const OVERFLOWS: &[&str] = &["drop-head", "reject-publish", "reject-publish-dlx"];
const STRATEGIES: &[&str] = &["at-most-once", "at-least-once"];
const MODES: &[&str] = &["default", "lazy"];
pub(super) const LEVELS: &[&str] = &["synced", "written", "leader-synced", "leader-written", "selective"];
const RETRIES: &[&str] = &["disabled", "all", "failed", "returned"];

/// Queue arguments, in the order in which RabbitMQ validates them.
#[rustfmt::skip]
const QUEUE_ARGUMENTS: &[Argument] = &[
    row("x-expires",                       [ 1,  4], Rule::Expiry { zero: false }, Honoured),
    row("x-message-ttl",                   [ 2, 15], Rule::Expiry { zero: true }, Honoured),
    row(DEAD_LETTER_EXCHANGE,              [ 3,  1], Rule::ShortText, Honoured),
    row("x-dead-letter-routing-key",       [ 4,  2], Rule::DeadLetterKey, Honoured),
    row("x-dead-letter-strategy",          [ 0,  3], Rule::OneOf(STRATEGIES, Reason::Atom("invalid_dlx_strategy")), Honoured),
    row("x-max-length",                    [ 5,  5], Rule::NonNegative, Honoured),
    row("x-max-length-bytes",              [ 6,  6], Rule::NonNegative, Honoured),
    // Bodies always leave memory here, so a bound on those in memory is kept whatever it is.
    row("x-max-in-memory-length",          [ 0,  7], Rule::NonNegative, Honoured),
    row("x-max-in-memory-bytes",           [ 0,  8], Rule::NonNegative, Honoured),
    row("x-max-priority",                  [ 7,  0], Rule::AtMost(PRIORITY_MAX), Honoured),
    row("x-overflow",                      [ 8,  9], Rule::OneOf(OVERFLOWS, Reason::Atom("invalid_overflow")), Honoured),
    // For the same reason every queue is what RabbitMQ 3 calls lazy.
    row("x-queue-mode",                    [ 9,  0], Rule::OneOf(MODES, Reason::Unsupported("queue mode")), Honoured),
    // RabbitMQ's two file formats; ours is neither, and both numbers promise nothing else.
    row("x-queue-version",                 [10,  0], Rule::Version, Honoured),
    row("x-single-active-consumer",        [11, 10], Rule::Bool, Honoured),
    row("x-consumer-timeout",              [ 0, 18], Rule::NonNegative, Honoured),
    // How long a consumer whose node cannot be reached keeps its messages: on one node there is no
    // such consumer.
    row("x-consumer-disconnected-timeout", [ 0, 17], Rule::NonNegative, Honoured),
    row(QUEUE_TYPE,                        [12, 11], Rule::QueueType, Honoured),
    row("x-quorum-initial-group-size",     [ 0, 12], Rule::PositiveAtMost(GROUP_SIZE_MAX), Honoured),
    // How many members the queue is to have once there are nodes for them: one node is what there
    // is.
    row("x-quorum-target-group-size",      [ 0, 13], Rule::PositiveAtMost(GROUP_SIZE_MAX), Honoured),
    row("x-delivery-limit",                [ 0, 14], Rule::Integer, Honoured),
    row("x-delayed-retry-type",            [ 0, 19], Rule::OneOf(RETRIES, Reason::Atom("invalid_delayed_retry_type")), Honoured),
    row("x-delayed-retry-min",             [ 0, 20], Rule::NonNegative, Honoured),
    row("x-delayed-retry-max",             [ 0, 21], Rule::NonNegative, Honoured),
    row("x-max-age",                       [ 0,  0], Rule::Text, NotYet),
    row("x-stream-max-segment-size-bytes", [ 0,  0], Rule::NonNegative, NotYet),
    row("x-stream-filter-size-bytes",      [ 0,  0], Rule::NonNegative, NotYet),
    row("x-initial-cluster-size",          [ 0,  0], Rule::Positive, NotYet),
    row("x-queue-leader-locator",          [14, 16], Rule::OneOf(LOCATORS, Reason::Atom("invalid_queue_locator_arg")), Honoured),
    row("x-queue-master-locator",          [13,  0], Rule::OneOf(MASTER_LOCATORS, Reason::Atom("invalid_queue_locator_arg")), Honoured),
    // Leveret's own.
    row(DURABILITY,                        [15, 22], Rule::OneOf(LEVELS, Reason::Unsupported("durability")), Honoured),
    row(VALUE_HEADER,                      [16, 23], Rule::NameText, Honoured),
    row(VALUE_CAP,                         [17, 24], Rule::Positive, Honoured),
    row(INTERVAL_MS,                       [18, 25], Rule::PositiveAtMost(DURABILITY_INTERVAL_MS_MAX), Honoured),
    // The first as a community plugin has it.
    row(DEDUPLICATION,                     [19, 26], Rule::Bool, Honoured),
    row(DEDUPLICATION_WINDOW_MS,           [20, 27], Rule::PositiveAtMost(DEDUPLICATION_WINDOW_MS_MAX), Honoured),
    row(DEDICATED,                         [ 0, 28], Rule::Bool, Honoured),
];

/// Consumer arguments. The numbers only say who knows them: consumers have no redeclare.
#[rustfmt::skip]
const CONSUMER_ARGUMENTS: &[Argument] = &[
    row("x-priority",               [1, 1], Rule::Integer, Honoured),
    row("x-consumer-timeout",       [0, 2], Rule::NonNegative, Honoured),
    row("x-stream-offset",          [0, 0], Rule::Any, NotYet),
    row("x-stream-filter",          [0, 0], Rule::Any, NotYet),
    row("x-stream-match-unfiltered",[0, 0], Rule::Any, NotYet),
];

impl Argument {
    fn place(&self, queue_type: QueueType) -> u8 {
        match queue_type {
            QueueType::Classic => self.classic,
            QueueType::Quorum => self.quorum,
        }
    }
}

/// The flags of a declare that decide which arguments make sense; `durable` is false for an
/// exclusive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    pub(super) durable: bool,
    pub(super) exclusive: bool,
    pub(super) auto_delete: bool,
}

/// The queue type that `arguments` name, as RabbitMQ finds it before it has validated anything. No
/// value, an empty one or "undefined" means classic: [`completed`] has put the default in their
/// place where there is another.
pub(super) fn queue_type(resource: Resource<'_>, arguments: &Table) -> Result<QueueType, Refusal> {
    let refuse = |reason: &str| Err(Refusal::invalid_argument(resource, QUEUE_TYPE, reason));
    match arguments.get(QUEUE_TYPE) {
        None => Ok(QueueType::Classic),
        Some(Value::LongString(word)) => match &word[..] {
            b"" | b"undefined" | b"classic" => Ok(QueueType::Classic),
            b"quorum" => Ok(QueueType::Quorum),
            b"stream" => refuse("queue type 'stream' is not supported by this version yet"),
            _ => refuse(&format!("\"unsupported queue type {}\"", quoted(arguments.get(QUEUE_TYPE).expect("matched")))),
        },
        Some(other) => refuse(&format!("{{unacceptable_type,{}}}", type_name(other))),
    }
}

/// How a declare speaks of the queue's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeAsked {
    /// Not at all: the default holds where the queue's flags go with it.
    Silent,
    /// With no value, an empty one or "undefined": the default holds whatever the flags are.
    Default,
    /// By name, lawful or not.
    Named,
}

/// See [`TypeAsked`].
pub(super) fn type_asked(arguments: &Table) -> TypeAsked {
    match arguments.get(QUEUE_TYPE) {
        None => TypeAsked::Silent,
        Some(Value::LongString(word)) if word.is_empty() || &word[..] == b"undefined" => TypeAsked::Default,
        Some(_) => TypeAsked::Named,
    }
}

/// `arguments` as they are stored and compared: with the queue type spelled out, and then sorted,
/// if the declare left it to the default.
pub(super) fn completed(arguments: &Table, default: QueueType) -> Table {
    if type_asked(arguments) == TypeAsked::Named {
        return arguments.clone();
    }
    with_type_of(arguments, default)
}

/// `arguments` with this queue type spelled out, whatever they ask for, and then sorted.
pub(super) fn with_type_of(arguments: &Table, queue_type: QueueType) -> Table {
    let others = arguments.iter().filter(|(name, _)| &name[..] != QUEUE_TYPE.as_bytes());
    let mut fields: Vec<(bytes::Bytes, Value)> = others.map(|(n, v)| (n.clone(), v.clone())).collect();
    let word = bytes::Bytes::from_static(queue_type.word().as_bytes());
    fields.push((bytes::Bytes::from_static(QUEUE_TYPE.as_bytes()), Value::LongString(word)));
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    let mut table = Table::new();
    for (name, value) in fields {
        table.push(name, value);
    }
    table
}

/// Validates a declare in RabbitMQ's order and says what it means.
///
/// Errors: 406 that names the argument or property; first RabbitMQ's own refusals, then those of
/// this version.
pub(super) fn settings(
    resource: Resource<'_>,
    queue_type: QueueType,
    flags: Flags,
    arguments: &Table,
) -> Result<QueueSettings, Refusal> {
    if let Some(value) = arguments.get(DEAD_LETTER_EXCHANGE).filter(|v| !matches!(v, Value::LongString(_))) {
        return Err(wrong_name_type(resource, DEAD_LETTER_EXCHANGE, value));
    }
    check_values_and_keys(resource, QUEUE_ARGUMENTS, queue_type, arguments)?;
    if queue_type == QueueType::Quorum {
        let broken =
            [(flags.auto_delete, "auto-delete"), (flags.exclusive, "exclusive-owner"), (!flags.durable, "non-durable")];
        if let Some((_, property)) = broken.iter().find(|(broken, _)| *broken) {
            return Err(Refusal::precondition_failed(&format!("invalid property '{property}' for {resource}")));
        }
    }
    check_support(resource, QUEUE_ARGUMENTS, queue_type, arguments)?;
    let wishes = Wishes::read(arguments, "x-");
    if wishes.deduplication_window_ms.is_some() && wishes.deduplicates != Some(true) {
        let reason = "makes sense only with 'x-message-deduplication' = true";
        return Err(Refusal::invalid_argument(resource, DEDUPLICATION_WINDOW_MS, reason));
    }
    Ok(QueueSettings {
        durability: durability(resource, flags, arguments)?,
        initial_group_size: number(arguments, "x-quorum-initial-group-size")
            .map(|n| u32::try_from(n).expect("the rule bounds it")),
        is_dedicated: matches!(arguments.get(DEDICATED), Some(Value::Bool(true))),
        leader_locator: leader_locator(arguments),
        wishes,
    })
}

/// Validates the arguments of `basic.consume` on a queue of this type, and says what they mean.
/// Errors: 406 that names the argument.
pub(super) fn check_consume(
    resource: Resource<'_>,
    queue_type: QueueType,
    arguments: &Table,
) -> Result<ConsumerSettings, Refusal> {
    check_values_and_keys(resource, CONSUMER_ARGUMENTS, queue_type, arguments)?;
    check_support(resource, CONSUMER_ARGUMENTS, queue_type, arguments)?;
    let priority = number(arguments, "x-priority").unwrap_or(0);
    let timeout_ms = number(arguments, "x-consumer-timeout").and_then(|ms| u64::try_from(ms).ok());
    Ok(ConsumerSettings { priority: priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32, timeout_ms })
}

/// Compares a redeclare with what exists, over the arguments that the queue's type knows, in
/// RabbitMQ's order.
///
/// Errors: 406 that names the first argument that differs.
pub(super) fn check_equivalent(
    resource: Resource<'_>,
    queue_type: QueueType,
    current: &Table,
    received: &Table,
) -> Result<(), Refusal> {
    let mut known: Vec<&Argument> = QUEUE_ARGUMENTS.iter().filter(|a| a.place(queue_type) != 0).collect();
    known.sort_by_key(|a| a.place(queue_type));
    for argument in known {
        let (old, new) = (current.get(argument.name), received.get(argument.name));
        if argument.name == QUEUE_TYPE && is_classic_or_absent(old) && is_classic_or_absent(new) {
            continue;
        }
        check_same(resource, argument.name, old, new)?;
    }
    Ok(())
}

/// Compares one argument of a redeclare; used for exchanges too.
pub(super) fn check_same(
    resource: Resource<'_>,
    key: &str,
    current: Option<&Value>,
    received: Option<&Value>,
) -> Result<(), Refusal> {
    match (current, received) {
        (None, None) => Ok(()),
        (Some(old), Some(new)) if same(old, new) => Ok(()),
        (Some(old), Some(new)) => Err(Refusal::inequivalent(resource, key, &quoted(new), &quoted(old))),
        (old, new) => Err(Refusal::inequivalent(resource, key, &with_type(new), &with_type(old))),
    }
}

/// RabbitMQ's refusal of an argument that should hold the name of an exchange and holds another
/// type.
pub(super) fn wrong_name_type(resource: Resource<'_>, key: &str, value: &Value) -> Refusal {
    Refusal::precondition_failed(&format!("invalid type '{}' for arg '{key}' in {resource}", type_name(value)))
}

fn is_classic_or_absent(value: Option<&Value>) -> bool {
    value.is_none_or(|v| matches!(v, Value::LongString(word) if &word[..] == b"classic"))
}

fn check_values_and_keys(
    resource: Resource<'_>,
    rows: &[Argument],
    queue_type: QueueType,
    arguments: &Table,
) -> Result<(), Refusal> {
    for row in rows.iter().filter(|row| row.place(queue_type) != 0) {
        if let Some(value) = arguments.get(row.name) {
            row.rule
                .check(value, arguments)
                .map_err(|reason| Refusal::invalid_argument(resource, row.name, &reason))?;
        }
    }
    for (name, _) in arguments.iter() {
        if find(rows, name).is_some_and(|row| row.place(queue_type) == 0) {
            return Err(Refusal::precondition_failed(&format!(
                "invalid arg '{}' for {resource} of queue type {}",
                String::from_utf8_lossy(name),
                queue_type.module()
            )));
        }
    }
    Ok(())
}

fn check_support(
    resource: Resource<'_>,
    rows: &[Argument],
    queue_type: QueueType,
    arguments: &Table,
) -> Result<(), Refusal> {
    let refused = arguments
        .iter()
        .filter_map(|(name, _)| find(rows, name))
        .find(|row| row.place(queue_type) != 0 && row.support == NotYet);
    refused.map_or(Ok(()), |row| Err(Refusal::not_supported_yet(resource, row.name)))
}

/// Whether this version does what the queue argument `name` says; policies go by the same table.
pub(super) fn is_honoured(name: &str) -> bool {
    find(QUEUE_ARGUMENTS, name.as_bytes()).is_some_and(|row| row.support == Honoured)
}

fn find<'a>(rows: &'a [Argument], name: &[u8]) -> Option<&'a Argument> {
    rows.iter().find(|row| row.name.as_bytes() == name)
}

impl Rule {
    /// The reason why `value` is not lawful, as RabbitMQ words it.
    fn check(self, value: &Value, arguments: &Table) -> Result<(), String> {
        match self {
            Rule::Any | Rule::QueueType => Ok(()),
            Rule::Integer => whole(value).map(|_| ()),
            Rule::NonNegative => non_negative(value).map(|_| ()),
            Rule::Positive => positive(value).map(|_| ()),
            Rule::AtMost(limit) => non_negative(value).and_then(|n| at_most(n, limit, "max_value_exceeded")),
            Rule::PositiveAtMost(limit) => positive(value).and_then(|n| at_most(n, limit, "value_too_large")),
            Rule::Expiry { zero } => match whole(value)? {
                0 if !zero => Err("{value_zero,0}".to_owned()),
                n if n < 0 => Err(format!("{{value_negative,{n}}}")),
                n => at_most(n, EXPIRY_MS_MAX, "value_too_large"),
            },
            Rule::Bool => match value {
                Value::Bool(_) => Ok(()),
                other => Err(unacceptable(other)),
            },
            Rule::Text => text(value).map(|_| ()),
            Rule::ShortText => short_text(value),
            Rule::NameText => match text(value)? {
                b"" => Err("invalid_header_name".to_owned()),
                name if name.len() > NAME_BYTES_MAX => Err("invalid_header_name".to_owned()),
                _ => Ok(()),
            },
            Rule::OneOf(words, reason) => {
                let word = text(value)?;
                if words.iter().any(|w| w.as_bytes() == word) {
                    return Ok(());
                }
                Err(match reason {
                    Reason::Atom(atom) => atom.to_owned(),
                    Reason::Unsupported(noun) => format!("\"unsupported {noun} {}\"", quoted(value)),
                })
            }
            Rule::DeadLetterKey => match short_text(value) {
                Err(reason) => Err(reason),
                Ok(()) if arguments.get(DEAD_LETTER_EXCHANGE).is_none() => {
                    Err("routing_key_but_no_dlx_defined".to_owned())
                }
                Ok(()) => Ok(()),
            },
            Rule::Version => match non_negative(value)? {
                1 | 2 => Ok(()),
                _ => Err(format!("\"unsupported queue version '{}'\"", term(value))),
            },
        }
    }
}

fn whole(value: &Value) -> Result<i64, String> {
    integer(value).ok_or_else(|| format!("\"expected integer, got {}\"", type_name(value)))
}

fn non_negative(value: &Value) -> Result<i64, String> {
    let n = whole(value)?;
    if n < 0 { Err(format!("{{value_negative,{n}}}")) } else { Ok(n) }
}

fn positive(value: &Value) -> Result<i64, String> {
    let n = non_negative(value)?;
    if n == 0 { Err("{value_zero,0}".to_owned()) } else { Ok(n) }
}

fn at_most(n: i64, limit: i64, reason: &str) -> Result<(), String> {
    if n > limit { Err(format!("{{{reason},{n}}}")) } else { Ok(()) }
}

fn text(value: &Value) -> Result<&[u8], String> {
    match value {
        Value::LongString(bytes) => Ok(bytes),
        other => Err(unacceptable(other)),
    }
}

fn short_text(value: &Value) -> Result<(), String> {
    match text(value)?.len() {
        length if length > NAME_BYTES_MAX => Err(format!("a text of at most {NAME_BYTES_MAX} bytes")),
        _ => Ok(()),
    }
}

fn unacceptable(value: &Value) -> String {
    format!("{{unacceptable_type,{}}}", type_name(value))
}

fn number(arguments: &Table, key: &str) -> Option<i64> {
    arguments.get(key).map(|v| integer(v).expect("the rule of this argument asks for an integer"))
}

fn leader_locator(arguments: &Table) -> Option<LeaderLocator> {
    let value = arguments.get("x-queue-leader-locator").or_else(|| arguments.get("x-queue-master-locator"));
    value.and_then(LeaderLocator::of)
}

/// Reads the four durability arguments together; each alone has passed its rule.
fn durability(resource: Resource<'_>, flags: Flags, arguments: &Table) -> Result<Durability, Refusal> {
    let refuse = |key: &str, reason: &str| Err(Refusal::invalid_argument(resource, key, reason));
    if !flags.durable {
        let given = [DURABILITY, VALUE_HEADER, VALUE_CAP, INTERVAL_MS].into_iter().find(|k| arguments.get(k).is_some());
        return match given {
            Some(key) => refuse(key, "only a durable queue has a durability level"),
            None => Ok(Durability::Memory),
        };
    }
    let level = match arguments.get(DURABILITY) {
        Some(Value::LongString(word)) => Durability::of_word(word, || selective(resource, arguments))?
            .expect("the rule of the argument lists the words"),
        _ => Durability::Synced,
    };
    if matches!(level, Durability::Selective(_)) {
        return Ok(level);
    }
    let stray = [VALUE_HEADER, VALUE_CAP, INTERVAL_MS].into_iter().find(|k| arguments.get(k).is_some());
    stray.map_or(Ok(level), |key| refuse(key, "makes sense only with 'x-durability' = 'selective'"))
}

fn selective(resource: Resource<'_>, arguments: &Table) -> Result<Selective, Refusal> {
    let refuse = |key: &str, reason: &str| Err(Refusal::invalid_argument(resource, key, reason));
    let value = match (arguments.get(VALUE_HEADER), number(arguments, VALUE_CAP)) {
        (Some(Value::LongString(header)), Some(cap)) => Some(ValueCap {
            header: Name::new(header),
            cap: u64::try_from(cap).expect("the rule asks for a positive one"),
        }),
        (Some(_), None) => return refuse(VALUE_HEADER, "needs 'x-durability-value-cap' beside it"),
        (None, Some(_)) => return refuse(VALUE_CAP, "needs 'x-durability-value-header' beside it"),
        (None, None) => None,
        (Some(_), Some(_)) => unreachable!("the rule of the header's name asks for a string"),
    };
    let interval_ms = number(arguments, INTERVAL_MS).map(|n| u32::try_from(n).expect("the rule bounds it"));
    if value.is_none() && interval_ms.is_none() {
        return refuse(
            DURABILITY,
            "'selective' needs a bound: 'x-durability-value-header' with 'x-durability-value-cap', or \
             'x-durability-interval-ms'",
        );
    }
    Ok(Selective { value, interval_ms })
}
