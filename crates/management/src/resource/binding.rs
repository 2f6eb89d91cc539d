//! `/api/bindings` and the lists of them under queues and exchanges: what leads where; bind and
//! unbind.
//!
//! Invariant: a binding's `properties_key` names it among those between its two ends: the routing
//! key, and behind a tilde what stands for its arguments, if it has any.

use super::Cx;
use super::exchange::from_path;
use super::queue::checked;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::{json, listing};
use amqp::Table;
use broker::VhostId;
use broker::topology::{Access, Binding, Kind, Name, Topology};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

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
pub(super) async fn list(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let found = {
        let topology = cx.handle().topology();
        let vhost = vhost.map(|name| cx.visible_vhost(&topology, name)).transpose()?;
        let sees = |id: VhostId| vhost.map_or_else(|| cx.caller.sees(&topology, id), |wanted| wanted == id);
        let of_queues = topology.declared_queues().filter(|queue| sees(queue.vhost));
        let all = topology.bindings().filter(|binding| sees(binding.vhost));
        let all = all.chain(of_queues.map(|queue| of_default_exchange(queue.vhost, &queue.name)));
        Found::among(all, listing::page(cx.call), &topology)?
    };
    found.show(cx).await
}

/// GET of those at one end.
pub(super) async fn at(cx: Cx<'_>, vhost: &[u8], end: End<'_>) -> Result<Answer, Refused> {
    let found = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        Found::among(find(&topology, vhost, end)?, listing::page(cx.call), &topology)?
    };
    found.show(cx).await
}

/// GET of one.
pub(super) fn get(cx: Cx<'_>, vhost: &[u8], end: End<'_>, key: &[u8]) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    let vhost = cx.visible_vhost(&topology, vhost)?;
    let found = find(&topology, vhost, end)?.find(|binding| is_called(binding, key));
    let found = found.ok_or(Refused::NotFound)?;
    let name = topology.vhost_of(found.vhost).map(|vhost| &vhost.name);
    Ok(Answer::json(&listing::one(cx.call, describe(&found, name))))
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
    let (source, of_path) = (Name::new(checked(from_path(source))?), destination);
    let destination = Name::new(checked(destination)?);
    let ends = |topology: &Topology| {
        let actor = cx.caller.actor();
        topology.check_right(actor, vhost, (kind, &destination), Access::Write)?;
        topology.check_right(actor, vhost, (Kind::Exchange, &source), Access::Read)?;
        let (source, destination) = (source.clone(), destination.clone());
        let (key, arguments) = (Name::from(""), Table::new());
        let bare = Binding { vhost, source, destination_kind: kind, destination, key, arguments };
        match topology.check_bind(actor, bare) {
            Err(refusal) if refusal.code == 404 => Err(refusal.into()),
            // What else is said of it depends on its key and arguments.
            _ => Ok(()),
        }
    };
    cx.check_before_body(ends).await?;
    let fields = fields::BINDING.of(&body.read(cx.caller).await?)?;
    let key = match fields.get("routing_key") {
        None | Some(Value::Null) => Name::from(""),
        Some(Value::String(key)) if key.len() <= broker::topology::NAME_BYTES_MAX => Name::from(key.as_str()),
        Some(_) => return Err(Refused::BadRequest("routing_key is no text of at most 255 bytes".to_owned())),
    };
    let arguments = fields.get("arguments").cloned().unwrap_or_else(|| json!({}));
    let arguments = json::to_table(&arguments).map_err(|why| why.of("arguments"))?;
    let binding = Binding { vhost, source, destination_kind: kind, destination, key, arguments };
    // Relative to where it was asked for, as RabbitMQ says it.
    let key = properties_key(&binding);
    let place = format!("{}/{}", percent_encode(of_path, KEPT), percent_encode(key.as_bytes(), KEPT));
    cx.handle().catch_up().await?;
    let checked = cx.handle().topology().check_bind(cx.caller.actor(), binding)?;
    cx.handle().carry_out(checked).await?;
    Ok(Answer::created_at(place))
}

/// DELETE of one.
pub(super) async fn delete(cx: Cx<'_>, vhost: &[u8], end: End<'_>, key: &[u8]) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    cx.handle().catch_up().await?;
    let checked = {
        let topology = cx.handle().topology();
        let found = find(&topology, vhost, end)?.find(|binding| is_called(binding, key));
        topology.check_unbind(cx.caller.actor(), found.ok_or(Refused::NotFound)?)?
    };
    cx.handle().carry_out(checked).await?;
    Ok(Answer::done())
}

/// So many bindings are shown at most. All of a million would hold up the one thread that all
/// requests share for ten seconds, and take hundreds of megabytes; of some thousand a queue has its
/// own list.
const SHOWN_MAX: usize = 100_000;

/// What a list shows: the first of all that there are, in order, and which of them.
struct Found {
    first: Vec<Binding>,
    total: usize,
    vhosts: BTreeMap<VhostId, Name>,
}

impl Found {
    /// Those of a page, or all. Memory is for twice those that may be shown, however many there
    /// are. Errors: 400 that says how to ask for fewer.
    fn among(
        all: impl Iterator<Item = Binding>,
        page: Option<std::ops::Range<usize>>,
        topology: &Topology,
    ) -> Result<Self, Refused> {
        let (first, total) = first_of(all, page, SHOWN_MAX)?;
        let named = |id: VhostId| topology.vhost_of(id).map(|vhost| (id, vhost.name.clone()));
        let vhosts = first.iter().map(|binding| binding.vhost).collect::<BTreeSet<_>>();
        Ok(Found { first, total, vhosts: vhosts.into_iter().filter_map(named).collect() })
    }

    /// The topology is not held meanwhile: those who change it would wait, and with them everybody
    /// on their threads.
    async fn show(self, cx: Cx<'_>) -> Result<Answer, Refused> {
        let described = |at: &usize| match self.first.get(*at) {
            Some(binding) => describe(binding, self.vhosts.get(&binding.vhost)),
            // It is on no page that is shown.
            None => Value::Null,
        };
        let places: Vec<usize> = (0..self.total).collect();
        listing::answer(cx.call, &places, |part| part.iter().map(described).collect()).await
    }
}

/// The first bindings in order, up to the end of `page`, or all of them; and how many there are.
fn first_of(
    all: impl Iterator<Item = Binding>,
    page: Option<std::ops::Range<usize>>,
    shown_max: usize,
) -> Result<(Vec<Binding>, usize), Refused> {
    fn order(a: &Binding, b: &Binding) -> std::cmp::Ordering {
        fn of(binding: &Binding) -> (VhostId, &Name, &Name, &Name) {
            (binding.vhost, &binding.source, &binding.destination, &binding.key)
        }
        of(a).cmp(&of(b))
    }
    let too_many = |what: &str| Err(Refused::BadRequest(format!("{what} {shown_max} bindings: {TOO_MANY}")));
    let most = page.as_ref().map_or(shown_max, |page| page.end.min(shown_max));
    let (mut first, mut total) = (Vec::new(), 0);
    for binding in all {
        first.push(binding);
        total += 1;
        if first.len() > 2 * most {
            if page.is_none() {
                return too_many("there are more than");
            }
            first.select_nth_unstable_by(most, order);
            first.truncate(most);
        }
    }
    match &page {
        None if total > shown_max => return too_many("there are more than"),
        Some(page) if page.start < total && page.end > shown_max => return too_many("the page lies behind the first"),
        _ => {}
    }
    first.sort_by(order);
    first.truncate(most);
    Ok((first, total))
}

/// What to do where a list is too long.
const TOO_MANY: &str = "ask for pages (page, page_size), or for those of one virtual host, exchange or queue";

/// The bindings at an end. Errors: 404 if the end itself is not there.
fn find<'t>(
    topology: &'t Topology,
    vhost: VhostId,
    end: End<'_>,
) -> Result<Box<dyn Iterator<Item = Binding> + 't>, Refused> {
    let need = |kind: Kind, name: &[u8]| -> Result<Name, Refused> {
        let name = checked(if kind == Kind::Exchange { from_path(name) } else { name })?;
        let is_there = match kind {
            Kind::Queue => topology.find_queue(vhost, name).is_some(),
            Kind::Exchange => topology.find_exchange(vhost, name).is_some(),
        };
        if is_there { Ok(Name::new(name)) } else { Err(Refused::NotFound) }
    };
    let all = || topology.bindings().filter(move |binding| binding.vhost == vhost);
    fn leads_to(binding: &Binding, kind: Kind, name: &Name) -> bool {
        binding.destination_kind == kind && binding.destination == *name
    }
    Ok(match end {
        End::Queue(name) => {
            let queue = need(Kind::Queue, name)?;
            let own = of_default_exchange(vhost, &queue);
            Box::new(all().filter(move |binding| leads_to(binding, Kind::Queue, &queue)).chain([own]))
        }
        End::Source(name) => {
            let exchange = need(Kind::Exchange, name)?;
            match exchange.is_empty() {
                true => {
                    let queues = topology.declared_queues().filter(move |queue| queue.vhost == vhost);
                    Box::new(queues.map(move |queue| of_default_exchange(vhost, &queue.name)))
                }
                false => Box::new(all().filter(move |binding| binding.source == exchange)),
            }
        }
        End::Destination(name) => {
            let exchange = need(Kind::Exchange, name)?;
            Box::new(all().filter(move |binding| leads_to(binding, Kind::Exchange, &exchange)))
        }
        End::Between(source, kind, destination) => {
            let (source, destination) = (need(Kind::Exchange, source)?, need(kind, destination)?);
            match source.is_empty() {
                true if kind == Kind::Queue => Box::new(std::iter::once(of_default_exchange(vhost, &destination))),
                _ => Box::new(all().filter(move |b| b.source == source && leads_to(b, kind, &destination))),
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

/// Whether a path names this binding; its parts come decoded once, and some clients encode only
/// once.
fn is_called(binding: &Binding, key: &[u8]) -> bool {
    let name = properties_key(binding);
    name.as_bytes() == key || (binding.arguments.is_empty() && *binding.key == *key && !key.is_empty())
}

fn describe(binding: &Binding, vhost: Option<&Name>) -> Value {
    json!({
        "source": json::text(&binding.source),
        "vhost": vhost.map(|name| json::text(name)),
        "destination": json::text(&binding.destination),
        "destination_type": binding.destination_kind.word(),
        "routing_key": json::text(&binding.key),
        "arguments": json::table(&binding.arguments),
        "properties_key": properties_key(binding),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bindings(count: usize) -> impl Iterator<Item = Binding> {
        // In no order, as the topology has them.
        (0..count)
            .map(move |n| of_default_exchange(VhostId(0), &Name::new(format!("{:06}", n * 7_919 % count).as_bytes())))
    }

    fn names(found: &[Binding]) -> Vec<String> {
        found.iter().map(|binding| String::from_utf8_lossy(&binding.key).into_owned()).collect()
    }

    #[test]
    fn a_page_of_many_bindings_is_found_among_the_first_of_them() {
        let (found, total) = first_of(bindings(10_000), Some(10..20), 100).expect("within what is shown");
        assert_eq!((found.len(), total), (20, 10_000));
        assert!(found.capacity() <= 100, "room for {} of them", found.capacity());
        let wanted: Vec<String> = (0..20).map(|n| format!("{n:06}")).collect();
        assert_eq!(names(&found), wanted);
        let (found, total) = first_of(bindings(15), Some(10..20), 100).expect("a last page");
        assert_eq!((found.len(), total), (15, 15));
        let (found, total) = first_of(bindings(100), None, 100).expect("all of them");
        assert_eq!((found.len(), total), (100, 100));
    }

    #[test]
    fn more_bindings_than_are_shown_are_refused_with_what_to_do() {
        let told = |page, count| match first_of(bindings(count), page, 100) {
            Err(Refused::BadRequest(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert!(told(None, 101).contains("ask for pages"));
        assert!(told(None, 10_000).contains("more than 100 bindings"));
        assert!(told(Some(95..105), 10_000).contains("the page lies behind"));
    }
}
