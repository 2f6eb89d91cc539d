//! `/api/bindings` and the lists of them under queues and exchanges: what leads where; bind and unbind.
//!
//! Invariant: a binding's `properties_key` names it among those between its two ends: the routing key, and behind a tilde what
//! stands for its arguments, if it has any.

use super::Cx;
use super::exchange::from_path;
use super::queue::checked;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::call::object;
use crate::{json, listing};
use amqp::Table;
use broker::VhostId;
use broker::topology::{Binding, Kind, Name, Topology};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde_json::{Value, json};
use server::handle::operator;

/// What a path segment keeps as it is.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// One end of a binding, as a path names it.
#[derive(Clone, Copy)]
pub(super) enum End<'a> {
    /// Bindings to this queue.
    Queue(&'a [u8]),
    /// Bindings from this exchange.
    Source(&'a [u8]),
    /// Bindings to this exchange.
    Destination(&'a [u8]),
    /// Bindings from the first to the second.
    Between(&'a [u8], Kind, &'a [u8]),
}

/// GET of all, or of those in a virtual host.
pub(super) fn list(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    let vhost = vhost.map(|name| cx.visible_vhost(&topology, name)).transpose()?;
    let sees = |id: VhostId| vhost.map_or_else(|| cx.caller.sees(&topology, id), |wanted| wanted == id);
    let mut all: Vec<Binding> = topology.bindings().filter(|binding| sees(binding.vhost)).collect();
    all.extend(topology.queues().filter(|queue| sees(queue.vhost)).map(|q| of_default_exchange(q.vhost, &q.name)));
    show(cx, &topology, all)
}

/// GET of those at one end.
pub(super) fn at(cx: Cx<'_>, vhost: &[u8], end: End<'_>) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    let vhost = cx.visible_vhost(&topology, vhost)?;
    let all = find(&topology, vhost, end)?;
    show(cx, &topology, all)
}

/// GET of one.
pub(super) fn get(cx: Cx<'_>, vhost: &[u8], end: End<'_>, key: &[u8]) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    let vhost = cx.visible_vhost(&topology, vhost)?;
    let found = find(&topology, vhost, end)?.into_iter().find(|binding| is_called(binding, key));
    let found = found.ok_or(Refused::NotFound)?;
    Ok(Answer::json(&listing::one(cx.call, describe(&topology, &found))))
}

/// POST: a binding in the caller's name.
pub(super) async fn post(
    cx: Cx<'_>,
    vhost: &[u8],
    source: &[u8],
    kind: Kind,
    destination: &[u8],
    body: Body,
) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let fields = object(&body.read(cx.caller).await?)?;
    let key = match fields.get("routing_key") {
        None | Some(Value::Null) => Name::from(""),
        Some(Value::String(key)) if key.len() <= broker::topology::NAME_BYTES_MAX => Name::from(key.as_str()),
        Some(_) => return Err(Refused::BadRequest("routing_key is no text of at most 255 bytes".to_owned())),
    };
    let arguments = fields.get("arguments").cloned().unwrap_or_else(|| json!({}));
    let arguments =
        json::to_table(&arguments).ok_or_else(|| Refused::BadRequest("arguments is no object".to_owned()))?;
    let binding = Binding {
        vhost,
        source: Name::new(checked(from_path(source))?),
        destination_kind: kind,
        destination: Name::new(checked(destination)?),
        key,
        arguments,
    };
    // Relative to where it was asked for, as RabbitMQ says it.
    let key = properties_key(&binding);
    let place = format!("{}/{}", percent_encode(destination, KEPT), percent_encode(key.as_bytes(), KEPT));
    let checked = cx.handle().topology().check_bind(operator(&cx.caller.name), binding)?;
    cx.handle().carry_out(checked).await?;
    Ok(Answer::created_at(place))
}

/// DELETE of one.
pub(super) async fn delete(cx: Cx<'_>, vhost: &[u8], end: End<'_>, key: &[u8]) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let checked = {
        let topology = cx.handle().topology();
        let found = find(&topology, vhost, end)?.into_iter().find(|binding| is_called(binding, key));
        topology.check_unbind(operator(&cx.caller.name), found.ok_or(Refused::NotFound)?)?
    };
    cx.handle().carry_out(checked).await?;
    Ok(Answer::done())
}

fn show(cx: Cx<'_>, topology: &Topology, mut all: Vec<Binding>) -> Result<Answer, Refused> {
    all.sort_by(|a, b| {
        let of = |b: &Binding| (b.vhost, b.source.clone(), b.destination.clone(), b.key.clone());
        of(a).cmp(&of(b))
    });
    let items = all.iter().map(|binding| describe(topology, binding)).collect();
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// The bindings at an end. Errors: 404 if the end itself is not there.
fn find(topology: &Topology, vhost: VhostId, end: End<'_>) -> Result<Vec<Binding>, Refused> {
    let need = |kind: Kind, name: &[u8]| -> Result<Name, Refused> {
        let name = checked(if kind == Kind::Exchange { from_path(name) } else { name })?;
        let is_there = match kind {
            Kind::Queue => topology.find_queue(vhost, name).is_some(),
            Kind::Exchange => topology.find_exchange(vhost, name).is_some(),
        };
        if is_there { Ok(Name::new(name)) } else { Err(Refused::NotFound) }
    };
    let all = || topology.bindings().filter(move |binding| binding.vhost == vhost);
    let leads_to =
        |binding: &Binding, kind: Kind, name: &Name| binding.destination_kind == kind && binding.destination == *name;
    Ok(match end {
        End::Queue(name) => {
            let queue = need(Kind::Queue, name)?;
            let mut found: Vec<Binding> = all().filter(|binding| leads_to(binding, Kind::Queue, &queue)).collect();
            found.push(of_default_exchange(vhost, &queue));
            found
        }
        End::Source(name) => {
            let exchange = need(Kind::Exchange, name)?;
            match exchange.is_empty() {
                true => {
                    let queues = topology.queues().filter(|queue| queue.vhost == vhost);
                    queues.map(|queue| of_default_exchange(vhost, &queue.name)).collect()
                }
                false => all().filter(|binding| binding.source == exchange).collect(),
            }
        }
        End::Destination(name) => {
            let exchange = need(Kind::Exchange, name)?;
            all().filter(|binding| leads_to(binding, Kind::Exchange, &exchange)).collect()
        }
        End::Between(source, kind, destination) => {
            let (source, destination) = (need(Kind::Exchange, source)?, need(kind, destination)?);
            match source.is_empty() {
                true if kind == Kind::Queue => vec![of_default_exchange(vhost, &destination)],
                _ => all().filter(|b| b.source == source && leads_to(b, kind, &destination)).collect(),
            }
        }
    })
}

/// Every queue is bound to the default exchange by its name.
fn of_default_exchange(vhost: VhostId, queue: &Name) -> Binding {
    Binding {
        vhost,
        source: Name::from(""),
        destination_kind: Kind::Queue,
        destination: queue.clone(),
        key: queue.clone(),
        arguments: Table::new(),
    }
}

/// What names a binding between its ends.
fn properties_key(binding: &Binding) -> String {
    let key = percent_encode(&binding.key, KEPT).to_string();
    match (binding.arguments.is_empty(), key.is_empty()) {
        (true, true) => "~".to_owned(),
        (true, false) => key,
        (false, _) => format!("{key}~{:016x}", broker::topology::stable_hash(&binding.arguments.encode())),
    }
}

/// Whether a path names this binding; its parts come decoded once, and some clients encode only once.
fn is_called(binding: &Binding, key: &[u8]) -> bool {
    let name = properties_key(binding);
    name.as_bytes() == key || (binding.arguments.is_empty() && *binding.key == *key && !key.is_empty())
}

fn describe(topology: &Topology, binding: &Binding) -> Value {
    json!({
        "source": json::text(&binding.source),
        "vhost": topology.vhost_of(binding.vhost).map(|vhost| json::text(&vhost.name)),
        "destination": json::text(&binding.destination),
        "destination_type": binding.destination_kind.word(),
        "routing_key": json::text(&binding.key),
        "arguments": json::table(&binding.arguments),
        "properties_key": properties_key(binding),
    })
}
