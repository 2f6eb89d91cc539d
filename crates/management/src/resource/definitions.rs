//! `/api/definitions`: everything that is declared, out and in.
//!
//! Invariant: what goes out can be taken in again by this broker and by RabbitMQ. Hashes go out and
//! passwords never do. What comes in is understood as a whole before anything changes.

use super::{Cx, parameter, permission, policy, user};
use crate::answer::{Answer, JSON, Refused};
use crate::body::Body;
use crate::json;
use crate::upload;
use amqp::Table;
use broker::topology::{Binding, ExchangeType, Kind, Name, QueueShape, QueueType, Topology};
use broker::{QueueId, VhostId};
use hyper::header::CONTENT_DISPOSITION;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use server::definitions::ImportError;
use server::handle::NodeFacts;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The parts whose entries are each of one virtual host.
const PARTS_OF_VHOST: [&str; 5] = ["parameters", "policies", "queues", "exchanges", "bindings"];

/// GET of everything, or of what is in one virtual host.
pub(super) async fn export(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let exported = Exported::of(&cx.handle().topology(), vhost)?;
    let handle = cx.handle().clone();
    // A long document takes long to write; other requests do not wait with it.
    let text = tokio::task::spawn_blocking(move || exported.write(handle.facts())).await;
    let text = text.map_err(|_| Refused::NoAnswer)?.map_err(|_| Refused::NoAnswer)?;
    let answer = Answer::text(text.into(), JSON);
    // A name to save it under. What could not stand in a header is no name.
    let is_name = |name: &String| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\/;".contains(&byte) || byte == b' ')
    };
    Ok(match cx.call.query("download").filter(is_name) {
        Some(name) => answer.with(CONTENT_DISPOSITION, &format!("attachment; filename=\"{name}\"")),
        None => answer,
    })
}

/// What a document is written of: taken with one look at the topology, as changes wait while somebody looks. What there may be
/// very much of is put in order and into words afterwards.
struct Exported {
    vhosts: BTreeMap<VhostId, Value>,
    bindings: Vec<Binding>,
    exchanges: Vec<ExportedExchange>,
    queues: Vec<(QueueId, VhostId, Name, Arc<QueueShape>)>,
    parameters: Vec<Value>,
    policies: Vec<Value>,
    /// What is of no virtual host alone; `None` in a document of one.
    whole: Option<Whole>,
}

struct ExportedExchange {
    vhost: VhostId,
    name: Name,
    kind: ExchangeType,
    is_durable: bool,
    is_auto_delete: bool,
    is_internal: bool,
    arguments: Table,
}

struct Whole {
    global_parameters: Vec<Value>,
    permissions: Vec<Value>,
    topic_permissions: Vec<Value>,
    users: Vec<Value>,
    vhosts: Vec<Value>,
}

impl Exported {
    fn of(topology: &Topology, vhost: Option<&[u8]>) -> Result<Exported, Refused> {
        // As RabbitMQ says that there is none: 404 is for what comes in.
        let missing = |_| Refused::BadRequest("vhost_not_found".to_owned());
        let only = vhost.map(|name| super::find_vhost(topology, name).map_err(missing)).transpose()?;
        let wanted = |id: VhostId| only.is_none_or(|only| only == id);
        let whole = || Whole {
            global_parameters: parameter::all_global(topology),
            permissions: permission::all(topology, |_, _| true),
            topic_permissions: permission::all_topics(topology, |_, _| true),
            users: topology.users().map(|(name, of)| user::describe(name, of)).collect(),
            vhosts: vhosts(topology),
        };
        Ok(Exported {
            vhosts: topology.vhosts().map(|(id, vhost)| (id, json::text(&vhost.name))).collect(),
            bindings: bindings(topology, wanted),
            exchanges: exchanges(topology, wanted),
            queues: queues(topology, wanted),
            parameters: parameter::all(topology, wanted),
            policies: policy::exported(topology, wanted),
            whole: only.is_none().then(whole),
        })
    }

    /// The text of a document, in the order of its fields. Of bindings, exchanges and queues no values are kept but those of one
    /// entry.
    fn write(mut self, facts: &NodeFacts) -> Result<Vec<u8>, serde_json::Error> {
        self.queues.sort_unstable_by_key(|(id, ..)| *id);
        self.exchanges.sort_unstable_by(|a, b| (a.vhost, &a.name).cmp(&(b.vhost, &b.name)));
        self.bindings.sort_by(|a, b| {
            (a.vhost, &a.source, &a.destination, &a.key).cmp(&(b.vhost, &b.source, &b.destination, &b.key))
        });
        let Exported { vhosts, bindings, exchanges, queues, parameters, policies, whole } = self;
        let entry = |mut entry: Value| {
            if let Some(fields) = entry.as_object_mut().filter(|_| whole.is_none()) {
                fields.remove("vhost");
            }
            entry
        };
        let all = |entries: Vec<Value>| entries.into_iter().map(entry).collect::<Vec<_>>();
        let name_of = |vhost: VhostId| vhosts.get(&vhost).cloned().unwrap_or_default();
        let version = &facts.config.product_version;
        let mut text = Vec::new();
        let mut serializer = serde_json::Serializer::new(&mut text);
        let mut document = serializer.serialize_map(None)?;
        document.serialize_entry("bindings", &each(bindings, |one| entry(binding(name_of(one.vhost), one))))?;
        document.serialize_entry("exchanges", &each(exchanges, |one| entry(exchange(name_of(one.vhost), one))))?;
        if let Some(whole) = &whole {
            document.serialize_entry("global_parameters", &whole.global_parameters)?;
        }
        document.serialize_entry("parameters", &all(parameters))?;
        if let Some(whole) = &whole {
            document.serialize_entry("permissions", &whole.permissions)?;
        }
        document.serialize_entry("policies", &all(policies))?;
        document.serialize_entry("product_name", &facts.config.product)?;
        document.serialize_entry("product_version", version)?;
        let of_queue = each(queues, |(_, vhost, name, shape)| entry(queue(name_of(*vhost), name, shape)));
        document.serialize_entry("queues", &of_queue)?;
        document.serialize_entry("rabbit_version", version)?;
        if whole.is_none() {
            document.serialize_entry("rabbitmq_definition_format", "single_virtual_host")?;
        }
        document.serialize_entry("rabbitmq_version", version)?;
        if let Some(whole) = &whole {
            document.serialize_entry("topic_permissions", &whole.topic_permissions)?;
            document.serialize_entry("users", &whole.users)?;
            document.serialize_entry("vhosts", &whole.vhosts)?;
        }
        document.end()?;
        Ok(text)
    }
}

/// A list of what is said of each of these, an entry at a time.
struct Each<T, F>(Vec<T>, F);

fn each<T, F: Fn(&T) -> Value>(all: Vec<T>, describe: F) -> Each<T, F> {
    Each(all, describe)
}

impl<T, F: Fn(&T) -> Value> Serialize for Each<T, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(&self.1))
    }
}

/// POST of a document; what it does not speak of stays.
pub(super) async fn import(cx: Cx<'_>, vhost: Option<&[u8]>, body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    if let Some(name) = vhost {
        let missing = |_| Refused::Missing("vhost_not_found".to_owned());
        super::find_vhost(&cx.handle().topology(), name).map_err(missing)?;
    }
    let body = upload::file(cx.call.header("content-type"), body.read(cx.caller).await?).await?;
    let (handle, vhost) = (cx.handle().clone(), vhost.map(<[u8]>::to_vec));
    // A long document takes long to read, and every change waits for the disk; other requests do not wait with it.
    let done = tokio::task::spawn_blocking(move || {
        check_values(&body)?;
        let text = match &vhost {
            None => std::str::from_utf8(&body).map(Cow::Borrowed).map_err(|_| not_json())?,
            Some(name) => Cow::Owned(in_vhost(&body, name)?),
        };
        Ok::<_, Refused>(handle.import_definitions(&text))
    });
    match done.await.map_err(|_| Refused::NoAnswer)?? {
        Ok(imported) => {
            let by = cx.caller.name.to_string();
            let (different, left_out) = (imported.different.len(), imported.left_out.len());
            tracing::info!(changes = imported.changes, different, left_out, ?by, "definitions taken in");
            if different + left_out == 0 {
                return Ok(Answer::done());
            }
            Ok(Answer::json(&json!({ "different": imported.different, "left_out": imported.left_out })))
        }
        // Another node may take it in.
        Err(error @ (ImportError::Undecided { .. } | ImportError::Ends { .. })) => {
            Err(Refused::Unavailable(error.to_string()))
        }
        Err(error) => Err(Refused::BadRequest(error.to_string())),
    }
}

fn vhosts(topology: &Topology) -> Vec<Value> {
    topology
        .vhosts()
        .map(|(_, vhost)| {
            let tags: Vec<Value> = vhost.description.tags.iter().map(|tag| json::text(tag)).collect();
            let default = vhost.description.default_queue_type.map_or("classic", QueueType::word);
            json!({
                "name": json::text(&vhost.name),
                "description": vhost.description.text,
                "tags": tags,
                "default_queue_type": default,
                "limits": [],
                "metadata": { "description": vhost.description.text, "tags": tags, "default_queue_type": default },
            })
        })
        .collect()
}

fn queues(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<(QueueId, VhostId, Name, Arc<QueueShape>)> {
    let found = topology.declared_queues().filter(|queue| wanted(queue.vhost) && queue.exclusive.is_none());
    found.map(|queue| (queue.id, queue.vhost, queue.name.clone(), queue.shape.clone())).collect()
}

fn queue(vhost: Value, name: &Name, shape: &QueueShape) -> Value {
    json!({
        "name": json::text(name),
        "vhost": vhost,
        "durable": shape.durable,
        "auto_delete": shape.auto_delete,
        "type": shape.queue_type.word(),
        "arguments": json::table(&shape.arguments),
    })
}

fn exchanges(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<ExportedExchange> {
    let own = |name: &Name| name.is_empty() || name.is_reserved();
    let found = topology.exchanges().filter(|exchange| wanted(exchange.vhost) && !own(&exchange.name));
    let taken = found.map(|exchange| ExportedExchange {
        vhost: exchange.vhost,
        name: exchange.name.clone(),
        kind: exchange.kind,
        is_durable: exchange.durable,
        is_auto_delete: exchange.auto_delete,
        is_internal: exchange.internal,
        arguments: exchange.arguments.clone(),
    });
    taken.collect()
}

fn exchange(vhost: Value, exchange: &ExportedExchange) -> Value {
    json!({
        "name": json::text(&exchange.name),
        "vhost": vhost,
        "type": exchange.kind.word(),
        "durable": exchange.is_durable,
        "auto_delete": exchange.is_auto_delete,
        "internal": exchange.is_internal,
        "arguments": json::table(&exchange.arguments),
    })
}

fn bindings(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<Binding> {
    let is_exclusive = |binding: &Binding| {
        let queue = topology.find_queue(binding.vhost, &binding.destination);
        binding.destination_kind == Kind::Queue && queue.is_some_and(|queue| queue.exclusive.is_some())
    };
    topology.bindings().filter(|binding| wanted(binding.vhost) && !is_exclusive(binding)).collect()
}

fn binding(vhost: Value, binding: &Binding) -> Value {
    json!({
        "source": json::text(&binding.source),
        "vhost": vhost,
        "destination": json::text(&binding.destination),
        "destination_type": binding.destination_kind.word(),
        "routing_key": json::text(&binding.key),
        "arguments": json::table(&binding.arguments),
    })
}

/// So many values a document may have, lists and objects among them. The shortest entries that there are, permissions with
/// empty patterns and bindings of short names, have one for each ten bytes of text: the longest body fits with
/// them too. Each takes memory while the document is understood, which text alone would not bound.
const VALUES_MAX: usize = 2 << 20;

/// Errors: 400 where there are more, or a key comes twice. What is no JSON is told by who reads it.
fn check_values(body: &[u8]) -> Result<(), Refused> {
    match json_once::check_at_most(body, VALUES_MAX) {
        Err(error) if error.is_data() => Err(Refused::BadRequest(json_once::sentence(&error))),
        _ => Ok(()),
    }
}

fn not_json() -> Refused {
    Refused::BadRequest("not_json".to_owned())
}

/// The fields of an object as they were written. Their names differ, as the document was checked.
type RawFields<'a> = BTreeMap<String, &'a RawValue>;

/// A document of one virtual host with that virtual host's name wherever one belongs. It was checked, and is on one line
/// then, as the lines of another text would lead nobody anywhere.
fn in_vhost(body: &[u8], vhost: &[u8]) -> Result<String, Refused> {
    let mut parts: RawFields<'_> = serde_json::from_slice(body).map_err(|_| not_json())?;
    for part in ["users", "vhosts", "permissions", "topic_permissions", "global_parameters"] {
        // What concerns more than one virtual host is not changed through one of them.
        parts.remove(part);
    }
    for part in ["metadata", "limits", "description", "default_queue_type"] {
        // What is said of the virtual host that was exported changes nothing about this one, as in
        // RabbitMQ; limits come as parameters too.
        parts.remove(part);
    }
    let vhost = serde_json::value::to_raw_value(&json::Text(vhost)).map_err(|_| not_json())?;
    let mut text = Vec::with_capacity(body.len() + body.len() / 4);
    for (name, part) in &parts {
        text.push(if text.is_empty() { b'{' } else { b',' });
        text.extend_from_slice(json!(name).to_string().as_bytes());
        text.push(b':');
        match PARTS_OF_VHOST.contains(&name.as_str()) && part.get().starts_with('[') {
            true => put_vhost(&mut text, part, &vhost)?,
            false => text.extend_from_slice(part.get().as_bytes()),
        }
    }
    text.extend_from_slice(if text.is_empty() { b"{}" } else { b"}" });
    // In a text of JSON they stand between values alone.
    text.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    String::from_utf8(text).map_err(|_| not_json())
}

/// Writes a list with this virtual host in each of its objects.
fn put_vhost(text: &mut Vec<u8>, list: &RawValue, vhost: &RawValue) -> Result<(), Refused> {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).map_err(|_| not_json())?;
    text.push(b'[');
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            text.push(b',');
        }
        if !item.get().starts_with('{') {
            text.extend_from_slice(item.get().as_bytes());
            continue;
        }
        let mut fields: RawFields<'_> = serde_json::from_str(item.get()).map_err(|_| not_json())?;
        fields.insert("vhost".to_owned(), vhost);
        serde_json::to_writer(&mut *text, &fields).map_err(|_| not_json())?;
    }
    text.push(b']');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_virtual_host_of_the_path_is_put_into_every_entry_and_nothing_else_changes() {
        let document = "{\"bindings\": [{\"source\": \"x\\n\", \"vhost\": \"other\",\n \"arguments\": {\"a\":\r\n [1.50]}}],\n\
             \"queues\": [{}, 7, []], \"exchanges\": 5, \"users\": [{}], \"metadata\": {}, \"rabbit_version\": \"3\"}";
        let written = in_vhost(document.as_bytes(), b"a\"b").expect("it is JSON");
        assert!(!written.contains(['\n', '\r']), "{written}");
        let read: Value = serde_json::from_str(&written).expect("it is JSON still");
        let expected = json!({
            "bindings": [{ "source": "x\n", "vhost": "a\"b", "arguments": { "a": [1.5] } }],
            "queues": [{ "vhost": "a\"b" }, 7, []],
            "exchanges": 5,
            "rabbit_version": "3",
        });
        assert_eq!(read, expected);
        assert_eq!(in_vhost(b" {} ", b"v"), Ok("{}".to_owned()));
        for never in ["[]", "5", "{", ""] {
            assert_eq!(in_vhost(never.as_bytes(), b"v"), Err(not_json()), "{never}");
        }
    }

    #[test]
    fn a_document_of_the_longest_body_is_taken_and_one_of_nothing_but_brackets_is_not() {
        let longest = 16 << 20;
        let shortest = r#"{"user":"u","vhost":"/","configure":"","write":"","read":""},"#;
        let permissions = shortest.repeat(longest / shortest.len());
        let document = format!(r#"{{"permissions":[{}]}}"#, permissions.trim_end_matches(','));
        check_values(document.as_bytes()).expect("it is of real entries");
        let brackets = format!(r#"{{"queues":[{}[]]}}"#, "[],".repeat(VALUES_MAX));
        assert!(brackets.len() < longest);
        let sentence = format!("there are more than {VALUES_MAX} values in it");
        assert_eq!(check_values(brackets.as_bytes()), Err(Refused::BadRequest(sentence)));
        assert_eq!(check_values(b"{"), Ok(()), "who reads it says where it ends");
    }
}
