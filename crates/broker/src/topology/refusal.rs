//! The lawful no: what a client is told when the topology does not do what it asked.
//!
//! Invariant: code, scope and text are those of RabbitMQ 4.3; where Leveret refuses what RabbitMQ
//! would grant, the text says that this version does not support it. No other file of the topology
//! builds a reply code.

use super::name::Name;

/// A reply text is a short string on the wire; a longer one is cut and ends in three dots.
pub const REPLY_TEXT_BYTES_MAX: usize = 255;

/// What the client gets instead: the code and text of `channel.close` or, when `hard`, of
/// `connection.close`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {text}")]
pub struct Refusal {
    /// AMQP's reply code.
    pub code: u16,
    /// The whole reply text as it goes on the wire, name of the code included; at most
    /// `REPLY_TEXT_BYTES_MAX` bytes.
    pub text: String,
    /// Whether it closes the connection; otherwise only the channel.
    pub hard: bool,
}

/// What a text speaks about: RabbitMQ's "queue 'q' in vhost '/'".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A queue.
    Queue,
    /// An exchange.
    Exchange,
}

impl Kind {
    /// The word RabbitMQ uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Queue => "queue",
            Kind::Exchange => "exchange",
        }
    }
}

/// A queue or exchange in its virtual host, as the texts name it.
#[derive(Clone, Copy, Debug)]
pub struct Resource<'a> {
    /// Queue or exchange.
    pub kind: Kind,
    /// Its name.
    pub name: &'a [u8],
    /// The name of its virtual host.
    pub vhost: &'a Name,
}

impl std::fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} '{}' in vhost '{}'", self.kind.word(), String::from_utf8_lossy(self.name), self.vhost)
    }
}

impl Refusal {
    fn new(code: u16, name: &str, hard: bool, explanation: &str) -> Self {
        let mut text = format!("{name} - {explanation}");
        if text.len() > REPLY_TEXT_BYTES_MAX {
            let mut end = REPLY_TEXT_BYTES_MAX - 3;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push_str("...");
        }
        Self { code, text, hard }
    }

    /// Whoever decides about the topology did not say whether it did what was asked.
    pub fn undecided() -> Self {
        Self::new(541, "INTERNAL_ERROR", true, "the change was not decided: does a majority of the nodes run?")
    }

    /// Its node was taken for gone between the question and the answer, and has come back: the queue was not made, as who wanted it
    /// might have gone with the node. Whoever is there still asks again.
    pub fn of_an_earlier_era() -> Self {
        Self::new(541, "INTERNAL_ERROR", true, "this node was taken for gone meanwhile: ask again")
    }

    /// Nothing was to be changed, and whether the answer would be up to date is not known.
    pub fn not_up_to_date() -> Self {
        Self::new(541, "INTERNAL_ERROR", true, "no majority of the nodes could be asked what there is: does one run?")
    }

    /// What is left of the disk is kept for what frees it.
    pub fn low_on_disk() -> Self {
        let explanation =
            "low on disk: nothing durable is declared, bound or set until there is room; consume, purge or delete";
        Self::precondition_failed(explanation)
    }

    pub(super) fn access_refused(explanation: &str) -> Self {
        Self::new(403, "ACCESS_REFUSED", false, explanation)
    }

    pub(super) fn precondition_failed(explanation: &str) -> Self {
        Self::new(406, "PRECONDITION_FAILED", false, explanation)
    }

    pub(super) fn not_allowed(explanation: &str) -> Self {
        Self::new(530, "NOT_ALLOWED", true, explanation)
    }

    pub(super) fn not_found(resource: Resource<'_>) -> Self {
        Self::new(404, "NOT_FOUND", false, &format!("no {resource}"))
    }

    pub(super) fn home_is_away(home: &str, resource: Resource<'_>) -> Self {
        let explanation = format!("home node '{home}' of durable {resource} is down or inaccessible");
        Self::new(404, "NOT_FOUND", false, &explanation)
    }

    pub(super) fn resource_locked(resource: Resource<'_>) -> Self {
        let explanation = format!(
            "cannot obtain exclusive access to locked {resource}. It could be originally declared on another \
             connection or the exclusive property value does not match that of the original declaration."
        );
        Self::new(405, "RESOURCE_LOCKED", false, &explanation)
    }

    pub(super) fn get_beside_single_active(resource: Resource<'_>) -> Self {
        let explanation = format!(
            "cannot obtain access to locked {resource}. basic.get operations are not supported by quorum queues with \
             single active consumer"
        );
        Self::new(405, "RESOURCE_LOCKED", false, &explanation)
    }

    pub(super) fn default_exchange() -> Self {
        Self::access_refused("operation not permitted on the default exchange")
    }

    pub(super) fn reserved_name(kind: Kind, name: &Name) -> Self {
        Self::access_refused(&format!("{} name '{name}' contains reserved prefix 'amq.*'", kind.word()))
    }

    pub(super) fn inequivalent(resource: Resource<'_>, key: &str, received: &str, current: &str) -> Self {
        Self::precondition_failed(&format!(
            "inequivalent arg '{key}' for {resource}: received {received} but current is {current}"
        ))
    }

    pub(super) fn invalid_argument(resource: Resource<'_>, key: &str, reason: &str) -> Self {
        Self::precondition_failed(&format!("invalid arg '{key}' for {resource}: {reason}"))
    }

    /// Leveret's own: a thing that RabbitMQ has and this version has not. Never accepted and
    /// ignored.
    pub(super) fn not_supported_yet(resource: Resource<'_>, key: &str) -> Self {
        Self::invalid_argument(resource, key, "not supported by this version yet")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_character_and_marked() {
        let vhost = Name::from("/");
        let name = "ä".repeat(127);
        let refusal = Refusal::not_found(Resource { kind: Kind::Queue, name: name.as_bytes(), vhost: &vhost });
        assert!(refusal.text.len() <= REPLY_TEXT_BYTES_MAX);
        assert!(refusal.text.ends_with("ä..."));
        assert!(refusal.text.starts_with("NOT_FOUND - no queue 'ä"));
    }
}
