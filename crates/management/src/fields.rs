//! The fields of a request's body: which of them are known for each path, and how another one is refused.
//!
//! Invariant: a field that is not known is refused before anything changes: a `pasword` would make a user without a
//! password, and whoever sent it would believe otherwise. What an answer shows is known, so what was read can be
//! written back.

use crate::answer::Refused;
use broker::topology::TABLE_DEPTH_MAX;
use bytes::Bytes;
use json_once::NotRead;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// So many values a body may have, lists and objects among them. A body that is long has a long text in it, as a message,
/// and a list of users to delete has as many names.
const VALUES_MAX: usize = 10_000;

/// So much of an unknown name is repeated in the refusal.
const NAME_CHARS_SHOWN: usize = 64;

/// The fields that the body for a path may have.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Those that say something.
    pub(crate) taken: &'static [&'static str],
    /// Those that change nothing: they say again what the path says, or they are what RabbitMQ 3.10 to 4.3 or this
    /// broker shows of the same thing.
    pub(crate) shown: &'static [&'static str],
}

impl Fields {
    /// The fields of a body. An empty one says nothing, which is lawful where every field may be left out. Errors: 400
    /// for what is no JSON object, and as [`Fields::check`].
    pub(crate) fn of(&self, body: &Bytes) -> Result<Map<String, Value>, Refused> {
        let fields = object(body)?;
        self.check(&fields)?;
        Ok(fields)
    }

    /// Errors: 400 for a field that is not known, with the one that was probably meant, or else with all there are.
    pub(crate) fn check(&self, fields: &Map<String, Value>) -> Result<(), Refused> {
        let is_known = |name: &str| self.taken.contains(&name) || self.shown.contains(&name);
        let Some(name) = fields.keys().find(|name| !is_known(name)) else { return Ok(()) };
        // Who says both has mistyped neither, but something else.
        let missing = self.taken.iter().copied().filter(|known| !fields.contains_key(*known));
        let near = server::config::nearest(name, missing);
        let near = near.or_else(|| server::config::nearest(name, self.taken.iter().copied()));
        let hint = match (near, self.taken) {
            (Some(near), _) => format!("did you mean {near}?"),
            (None, []) => "there is none here".to_owned(),
            (None, [only]) => format!("there is {only}"),
            (None, [first @ .., last]) => format!("there are {} and {last}", first.join(", ")),
        };
        Err(Refused::BadRequest(format!("unknown field {}; {hint}", cut(name))))
    }
}

/// A text of a body that may be missing. Errors: 400 for anything else.
pub(crate) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, Refused> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Refused::BadRequest(format!("{name} is no text"))),
    }
}

/// Refuses a field that nests deeper than arguments may: nothing that is kept does, so that it can be read back, and files
/// of definitions have it a few levels further down.
pub(crate) fn check_depth(fields: &Map<String, Value>, name: &str) -> Result<(), Refused> {
    match fields.get(name).is_some_and(|value| json_once::depth(value) > TABLE_DEPTH_MAX) {
        true => Err(Refused::BadRequest(format!("{name} nests more than {TABLE_DEPTH_MAX} lists and objects"))),
        false => Ok(()),
    }
}

/// A name that a client made up, as far as it is told back.
pub(crate) fn cut(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(NAME_CHARS_SHOWN) {
        Some((end, _)) => Cow::Owned(format!("{}...", &name[..end])),
        None => Cow::Borrowed(name),
    }
}

/// A body as an object; an empty one says nothing. Errors: 400 for what is no object, for a key that comes twice, for
/// what nests too deep or has more than [`VALUES_MAX`] values, and for a whole number that would become another one.
fn object(body: &Bytes) -> Result<Map<String, Value>, Refused> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match json_once::read_at_most(body, VALUES_MAX) {
        Ok(Value::Object(fields)) => match json_once::oversized(body) {
            Some(number) => Err(Refused::BadRequest(format!("{}: a whole number has at most 64 bits", cut(number)))),
            None => Ok(fields),
        },
        // RabbitMQ's clients send an empty list where there is nothing to say.
        Ok(Value::Array(items)) if items.is_empty() => Ok(Map::new()),
        Ok(Value::Null) => Ok(Map::new()),
        Err(NotRead::Unfit(sentence)) => Err(Refused::BadRequest(sentence)),
        _ => Err(Refused::BadRequest("not_json".to_owned())),
    }
}

/// Of what the path says all.
pub(crate) const NOTHING: Fields = Fields { taken: &[], shown: &["vhost", "name", "node"] };

pub(crate) const VHOST: Fields = Fields {
    taken: &["description", "tags", "default_queue_type", "defaultqueuetype", "tracing", "protected_from_deletion"],
    shown: &[
        "name",
        // rabbitmqadmin names one in every body.
        "vhost",
        "metadata",
        "cluster_state",
        "messages",
        "messages_details",
        "messages_ready",
        "messages_ready_details",
        "messages_unacknowledged",
        "messages_unacknowledged_details",
        "message_stats",
        "recv_oct",
        "recv_oct_details",
        "send_oct",
        "send_oct_details",
        "recv_cnt",
        "send_cnt",
        "send_pend",
    ],
};

pub(crate) const EXCHANGE: Fields = Fields {
    taken: &["type", "durable", "auto_delete", "internal", "arguments", "node"],
    shown: &["vhost", "name", "policy", "user_who_performed_action", "message_stats", "incoming", "outgoing"],
};

pub(crate) const QUEUE: Fields = Fields {
    taken: &["durable", "auto_delete", "arguments", "queue_type", "type", "node"],
    shown: &[
        "vhost",
        "name",
        "exclusive",
        // Where it is and how it is.
        "state",
        "leader",
        "members",
        "online",
        "slave_nodes",
        "synchronised_slave_nodes",
        "recoverable_slaves",
        "sync_messages",
        "terminated_by",
        "local_state",
        "pid",
        "owner_pid",
        "owner_pid_details",
        "internal",
        "internal_owner",
        "user_who_performed_action",
        "idle_since",
        "policy",
        "operator_policy",
        "effective_policy_definition",
        "delivery_limit",
        "storage_version",
        // What is in it.
        "messages",
        "messages_details",
        "messages_ready",
        "messages_ready_details",
        "messages_unacknowledged",
        "messages_unacknowledged_details",
        "messages_delayed",
        "messages_dlx",
        "messages_persistent",
        "messages_ram",
        "messages_ready_ram",
        "messages_unacknowledged_ram",
        "messages_paged_out",
        "message_bytes",
        "message_bytes_ready",
        "message_bytes_unacknowledged",
        "message_bytes_dlx",
        "message_bytes_persistent",
        "message_bytes_ram",
        "message_bytes_paged_out",
        "head_message_timestamp",
        "disk_reads",
        "disk_writes",
        "backing_queue_status",
        "segments",
        "committed_offset",
        "committed_chunk_id",
        "first_timestamp",
        "readers",
        "memory",
        "open_files",
        "reductions",
        "reductions_details",
        "garbage_collection",
        // Who takes out of it, and how fast.
        "consumers",
        "consumer_capacity",
        "consumer_utilisation",
        "consumer_details",
        "exclusive_consumer_pid",
        "exclusive_consumer_tag",
        "single_active_consumer_pid",
        "single_active_consumer_tag",
        "message_stats",
        "incoming",
        "deliveries",
        // Our own.
        "leveret_joining",
        "leveret_repeats_dropped",
        "leveret_value_at_risk",
        "leveret_value_at_risk_cap",
    ],
};

pub(crate) const BINDING: Fields = Fields {
    taken: &["routing_key", "arguments"],
    shown: &["vhost", "source", "destination", "destination_type", "properties_key"],
};

pub(crate) const PUBLISH: Fields = Fields {
    taken: &["routing_key", "properties", "payload", "payload_encoding"],
    // What rabbitmqadmin calls what the path says.
    shown: &["vhost", "name", "exchange"],
};

/// In `properties` of a message.
pub(crate) const PROPERTIES: Fields = Fields {
    taken: &[
        "content_type",
        "content_encoding",
        "headers",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp",
        "type",
        "user_id",
        "app_id",
        "cluster_id",
    ],
    shown: &[],
};

pub(crate) const GET_MESSAGES: Fields = Fields {
    taken: &["count", "ackmode", "encoding", "truncate", "requeue"],
    // The last is the file that rabbitmqadmin itself writes the payload to.
    shown: &["vhost", "name", "queue", "payload_file"],
};

pub(crate) const MOVE: Fields = Fields { taken: &["to", "count"], shown: &["vhost", "name"] };

pub(crate) const QUEUE_ACTION: Fields = Fields { taken: &["action"], shown: &["vhost", "name"] };

pub(crate) const ADD_MEMBER: Fields = Fields { taken: &["node", "membership"], shown: &["vhost", "name"] };

pub(crate) const DELETE_MEMBER: Fields = Fields { taken: &["node"], shown: &["vhost", "name"] };

pub(crate) const GROW: Fields =
    Fields { taken: &["strategy", "vhost_pattern", "queue_pattern", "membership"], shown: &["node"] };

pub(crate) const USER: Fields = Fields {
    taken: &["password", "password_hash", "hashing_algorithm", "tags", "administrator", "limits", "permissions"],
    shown: &["name", "username", "vhost"],
};

pub(crate) const USERS: Fields = Fields { taken: &["users"], shown: &[] };

/// In `permissions` of a user, and of them alone.
pub(crate) const PERMISSION: Fields =
    Fields { taken: &["configure", "write", "read"], shown: &["vhost", "user", "username"] };

pub(crate) const TOPIC_PERMISSION: Fields =
    Fields { taken: &["exchange", "write", "read"], shown: &["vhost", "user", "username"] };

pub(crate) const POLICY: Fields =
    Fields { taken: &["pattern", "definition", "priority", "apply-to"], shown: &["vhost", "name"] };

pub(crate) const LIMIT: Fields = Fields { taken: &["value"], shown: &["vhost", "user", "name"] };

pub(crate) const PARAMETER: Fields = Fields { taken: &["value"], shown: &["component", "vhost", "name"] };

/// As it is shown, which the client in Go sends back.
pub(crate) const FEATURE_FLAG: Fields = Fields {
    taken: &[],
    shown: &[
        "name",
        "state",
        "stability",
        "require_level",
        "experiment_level",
        "provided_by",
        "depends_on",
        "callbacks",
        "desc",
        "doc_url",
    ],
};

pub(crate) const CLUSTER_NAME: Fields = Fields { taken: &["name"], shown: &[] };

/// What the body for each path may say, by the paths of the OpenAPI document. That of definitions is not here: what
/// RabbitMQ's plug-ins add to them is left out, and told.
pub(crate) const BY_PATH: &[(&str, &Fields)] = &[
    ("cluster-name", &CLUSTER_NAME),
    ("nodes/{node}/publishers/hold", &NOTHING),
    ("nodes/{node}/maintenance", &NOTHING),
    ("leveret/session", &NOTHING),
    ("leveret/queues/{vhost}/{queue}/move", &MOVE),
    ("leveret/stop", &NOTHING),
    ("leveret/nodes/{node}/leave", &NOTHING),
    ("leveret/nodes/{node}/give-away", &NOTHING),
    ("exchanges/{vhost}/{exchange}", &EXCHANGE),
    ("exchanges/{vhost}/{exchange}/publish", &PUBLISH),
    ("queues/{vhost}/{queue}", &QUEUE),
    ("queues/{vhost}/{queue}/get", &GET_MESSAGES),
    ("queues/{vhost}/{queue}/actions", &QUEUE_ACTION),
    ("queues/quorum/{vhost}/{queue}/replicas/add", &ADD_MEMBER),
    ("queues/quorum/{vhost}/{queue}/replicas/delete", &DELETE_MEMBER),
    ("queues/quorum/replicas/on/{node}/grow", &GROW),
    ("bindings/{vhost}/e/{exchange}/q/{queue}", &BINDING),
    ("bindings/{vhost}/e/{source}/e/{destination}", &BINDING),
    ("vhosts/{vhost}", &VHOST),
    ("vhosts/{vhost}/start/{node}", &NOTHING),
    ("users/bulk-delete", &USERS),
    ("users/{user}", &USER),
    ("permissions/{vhost}/{user}", &PERMISSION),
    ("topic-permissions/{vhost}/{user}", &TOPIC_PERMISSION),
    ("policies/{vhost}/{name}", &POLICY),
    ("operator-policies/{vhost}/{name}", &POLICY),
    ("vhost-limits/{vhost}/{name}", &LIMIT),
    ("user-limits/{user}/{name}", &LIMIT),
    ("parameters/{component}/{vhost}/{name}", &PARAMETER),
    ("global-parameters/{name}", &PARAMETER),
    ("feature-flags/{name}/enable", &FEATURE_FLAG),
    ("rebalance/queues", &NOTHING),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn told(fields: &Fields, body: &str) -> String {
        match fields.of(&Bytes::copy_from_slice(body.as_bytes())) {
            Err(Refused::BadRequest(reason)) => reason,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn a_field_that_is_not_known_is_refused_with_the_one_that_was_meant_or_with_all() {
        assert_eq!(told(&USER, r#"{"pasword":"x"}"#), "unknown field pasword; did you mean password?");
        assert_eq!(told(&POLICY, r#"{"apply_to":"all"}"#), "unknown field apply_to; did you mean apply-to?");
        assert_eq!(told(&MOVE, r#"{"colour":1}"#), "unknown field colour; there are to and count");
        assert_eq!(told(&USERS, r#"{"colour":1}"#), "unknown field colour; there is users");
        assert_eq!(told(&NOTHING, r#"{"colour":1}"#), "unknown field colour; there is none here");
        // Both are there, and one of them does nothing.
        let both = r#"{"durable":true,"durabel":false}"#;
        assert_eq!(told(&QUEUE, both), "unknown field durabel; did you mean durable?");
        // What changes nothing is not what was meant.
        assert_eq!(told(&EXCHANGE, r#"{"polici":"p"}"#).find("did you mean"), None);
    }

    #[test]
    fn a_long_name_is_not_sent_back_as_a_whole() {
        let told = told(&MOVE, &format!(r#"{{"{}":1}}"#, "ä".repeat(100_000)));
        assert_eq!(told, format!("unknown field {}...; there are to and count", "ä".repeat(NAME_CHARS_SHOWN)));
    }

    #[test]
    fn what_was_shown_and_nothing_at_all_are_taken() {
        for body in ["", " \n", "{}", "[]", "null", r#"{"name":"q","messages":5,"durable":true}"#] {
            QUEUE.of(&Bytes::copy_from_slice(body.as_bytes())).unwrap_or_else(|why| panic!("{body}: {why:?}"));
        }
        for body in ["5", "[1]", "{", r#""{}""#] {
            assert_eq!(told(&QUEUE, body), "not_json", "{body}");
        }
        let twice = r#"{"durable":true,"arguments":{"x-max-length":1,"x-max-length":2}}"#;
        assert_eq!(told(&QUEUE, twice), r#"the field "x-max-length" comes twice"#);
    }

    #[test]
    fn a_body_of_very_many_values_is_refused_and_one_of_a_long_text_is_not() {
        let lists = |count: usize| format!(r#"{{"arguments":{{"a":[{}[]]}}}}"#, "[],".repeat(count - 1));
        assert_eq!(told(&QUEUE, &lists(VALUES_MAX)), "there are more than 10000 values in it");
        let longest = lists(VALUES_MAX - 3);
        QUEUE.of(&Bytes::from(longest)).expect("the object, the arguments and the list are values too");
        let message = format!(r#"{{"payload":"{}"}}"#, "[],".repeat(1 << 20));
        PUBLISH.of(&Bytes::from(message)).expect("it is one long text");
    }

    #[test]
    fn all_that_rabbitmqadmin_sends_is_taken() {
        // Of 3.10, with its optional fields. It puts a virtual host into each body, whatever the body is for.
        let sent: [(&Fields, &[&str]); 13] = [
            (&EXCHANGE, &["name", "type", "auto_delete", "durable", "internal", "arguments"]),
            (&QUEUE, &["name", "auto_delete", "durable", "arguments", "node", "queue_type"]),
            (&BINDING, &["source", "destination", "destination_type", "routing_key", "arguments"]),
            (&VHOST, &["name", "tracing"]),
            (&USER, &["name", "password", "tags"]),
            (&USER, &["name", "password_hash", "hashing_algorithm", "tags"]),
            (&PERMISSION, &["user", "configure", "write", "read"]),
            (&PARAMETER, &["component", "name", "value"]),
            (&POLICY, &["name", "pattern", "definition", "priority", "apply-to"]),
            (&LIMIT, &["name", "value"]),
            (&PUBLISH, &["routing_key", "payload", "properties", "exchange", "payload_encoding"]),
            (&GET_MESSAGES, &["queue", "count", "ackmode", "encoding", "payload_file"]),
            (&NOTHING, &["name"]),
        ];
        for (fields, names) in sent {
            let body = names.iter().chain(&["vhost"]).map(|name| ((*name).to_owned(), Value::Null)).collect();
            fields.check(&body).unwrap_or_else(|why| panic!("{names:?}: {why:?}"));
        }
    }

    #[test]
    fn no_field_is_both_taken_and_shown_or_stands_twice() {
        for (path, fields) in BY_PATH {
            let mut all: Vec<&str> = fields.taken.iter().chain(fields.shown).copied().collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "{path}");
        }
    }
}
