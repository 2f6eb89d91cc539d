//! What is asked about, one file for each, and the table from paths and methods to them.
//!
//! Invariant: every answer is given to a caller who was identified, but how one logs in, and each
//! resource asks itself what that caller may see.

mod active;
mod auth;
mod binding;
mod channel;
mod cluster;
mod connection;
mod copies;
mod definitions;
mod exchange;
mod give_away;
mod guarantee;
mod health;
mod late;
mod leave;
mod leaving;
mod limit;
mod message;
mod node;
mod openapi;
mod operator;
mod parameter;
mod permission;
mod policy;
mod queue;
mod row;
mod session;
mod transfer;
mod user;
mod vhost;
mod whole;

use crate::access::Caller;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::call::Call;
use crate::fields;
use crate::page_session::Sessions;
use crate::statistics::Ranges;
use crate::unsent::Owner;
use binding::End;
use broker::VhostId;
use broker::topology::{Kind, Topology};
pub(crate) use connection::name as connection_name;
pub(crate) use message::AT_A_TIME as MESSAGES_AT_A_TIME;
pub(crate) use node::memory_parts;
use permission::Of;
use server::Handle;

/// What every resource works with.
#[derive(Clone, Copy)]
pub(crate) struct Cx<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) caller: &'a Caller,
    /// Another node asks for what is on this one alone, and not for what is in the cluster.
    pub(crate) is_asked: bool,
}

impl Cx<'_> {
    pub(crate) fn handle(&self) -> &Handle {
        self.call.handle
    }

    /// The rates that the query asks for, with counts of this moment; `None` where it wants no
    /// statistics. Errors: what is wrong with the query.
    async fn rates(&self) -> Result<Option<Ranges>, Refused> {
        if self.call.flag("disable_stats") {
            return Ok(None);
        }
        let ranges = Ranges::of(self.call)?;
        self.call.statistics.update(self.handle()).await;
        Ok(Some(ranges))
    }

    /// Errors: 404 unless this is the node's name.
    fn need_node(&self, name: &[u8]) -> Result<(), Refused> {
        if name == self.handle().facts().node_name.as_bytes() { Ok(()) } else { Err(Refused::NotFound) }
    }

    /// Checks what is to be refused before a body is read. What was decided through another node may not be known here yet,
    /// so a refusal counts once this node has caught up.
    async fn check_before_body(&self, check: impl Fn(&Topology) -> Result<(), Refused>) -> Result<(), Refused> {
        if check(&self.handle().topology()).is_ok() {
            return Ok(());
        }
        self.handle().catch_up().await?;
        check(&self.handle().topology())
    }

    /// The virtual host of this name, if the caller may look at what is declared in it. Errors:
    /// 404, and 401 where it is not theirs.
    fn visible_vhost(&self, topology: &Topology, name: &[u8]) -> Result<VhostId, Refused> {
        let vhost = find_vhost(topology, name)?;
        self.caller.need(self.caller.sees(topology, vhost), NOT_THEIRS)?;
        Ok(vhost)
    }

    /// The virtual host of this name, if the caller may look at it as a whole. Errors: as
    /// `visible_vhost`.
    fn monitored_vhost(&self, topology: &Topology, name: &[u8]) -> Result<VhostId, Refused> {
        let vhost = find_vhost(topology, name)?;
        self.caller.need(self.caller.monitors(topology, vhost), NOT_THEIRS)?;
        Ok(vhost)
    }
}

const NOT_THEIRS: &str = "User not authorised to access virtual host";

fn find_vhost(topology: &Topology, name: &[u8]) -> Result<VhostId, Refused> {
    let known = if name.len() > broker::topology::NAME_BYTES_MAX { None } else { topology.vhost(name) };
    known.ok_or(Refused::NotFound)
}

/// Chooses by method; another one is answered with those that there are.
macro_rules! on {
    ($method:expr; $($name:literal => $answer:expr),+ $(,)?) => {
        match $method {
            $($name => $answer,)+
            _ => Err(Refused::NotAllowed(&[$($name),+])),
        }
    };
}

/// Tells the log who changed what. A body is not told: it may hold a password.
fn tell_audit(cx: Cx<'_>, answer: &Answer) {
    let (user, call) = (String::from_utf8_lossy(&cx.caller.name), cx.call);
    let (method, path) = (call.head.method.as_str(), call.head.uri.path());
    tracing::info!(target: "audit", user = &*user, peer = %call.peer, change = %format_args!("{method} {path}"), status = answer.status(), "audit");
}

/// Tells the log who was refused what for want of a right.
fn tell_refused(cx: Cx<'_>, refused: &Refused) {
    let reason = match refused {
        Refused::NotAuthorised(reason) => reason,
        Refused::Denied(reason) => reason.as_str(),
        _ => return,
    };
    tell_refusal(cx, reason);
}

fn tell_refusal(cx: Cx<'_>, reason: &str) {
    let (user, call) = (String::from_utf8_lossy(&cx.caller.name), cx.call);
    let (method, path) = (call.head.method.as_str(), call.head.uri.path());
    tracing::info!(target: "audit", user = &*user, peer = %call.peer, refused = %format_args!("{method} {path}"), reason, "audit");
}

/// The answer to a request for the API. `body` is read only where one belongs, and by whom its
/// sender's rights were checked.
pub(crate) async fn answer(call: &Call<'_>, body: Body) -> Result<Answer, Refused> {
    let parts = call.parts().ok_or(Refused::NotFound)?;
    // Before the password: a page elsewhere must not even learn whether it was a right one.
    if !["GET", "HEAD"].contains(&call.head.method.as_str()) && call.is_of_another_site() {
        return Err(Refused::OtherSite);
    }
    if call.has_broken_escape() {
        return Err(Refused::BadRequest(
            "the path has a % without two hexadecimal digits; a % itself is %25".to_owned(),
        ));
    }
    // Whoever wants to log in asks how.
    if parts == [b"auth"] && ["GET", "HEAD"].contains(&call.head.method.as_str()) {
        return auth::ways(call.handle);
    }
    let is_login = parts == [&b"leveret"[..], b"session"] && call.head.method == hyper::Method::POST;
    let caller = match Sessions::is_page(&call.head.headers) && !is_login {
        // A password that the browser itself knows would be somebody else's who was here before.
        true => call.sessions.caller(call.handle, &call.head.headers, call.peer)?,
        false => Caller::identify(call.handle, call.header("authorization"), call.peer, call.operator.token()).await?,
    };
    call.permit.is_of(&caller.name);
    *call.asking.request.user.borrow_mut() = Some(caller.name.clone());
    let cx = Cx { call, caller: &caller, is_asked: false };
    let method = match call.head.method.as_str() {
        "HEAD" => "GET",
        other => other,
    };
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let _turn = match is_long(&parts) && method == "GET" {
        true => {
            let turn = call.answers.turn(Owner::User(caller.name.clone())).await;
            // The runtime looks at the sockets before it goes on: those who have just come with something short are not
            // behind all long answers whose requests are read.
            tokio::task::yield_now().await;
            Some(turn)
        }
        false => None,
    };
    call.answers.room().await;
    // What is made has a name that every answer and every export can tell.
    if method == "PUT" && parts.iter().any(|part| std::str::from_utf8(part).is_err()) {
        return Err(Refused::BadRequest("what is made over HTTP has a name in UTF-8".to_owned()));
    }
    let answer = dispatch(cx, method, &parts, body).await.inspect_err(|refused| tell_refused(cx, refused))?;
    // A message is no change of the broker; who gives its copies away asks again and again, and tells itself when it changes something.
    let is_told_elsewhere = matches!(
        parts[..],
        [b"exchanges", _, _, b"publish"] | [b"queues", _, _, b"get"] | [b"leveret", b"nodes", _, b"give-away"]
    );
    match answer.reason_of_refusal() {
        // Another node refused it.
        Some(reason) => tell_refusal(cx, &reason),
        None if method != "GET" && !is_told_elsewhere => tell_audit(cx, &answer),
        None => {}
    }
    Ok(answer)
}

/// The answer to a request of another node, in the name of somebody whom that let in.
pub(crate) async fn answer_node(call: &Call<'_>, caller: &Caller, body: Body) -> Result<Answer, Refused> {
    let parts = call.parts().ok_or(Refused::NotFound)?;
    *call.asking.request.user.borrow_mut() = Some(caller.name.clone());
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let cx = Cx { call, caller, is_asked: true };
    match parts[..] {
        [b"leveret", b"active"] => active::own(cx).await,
        [b"leveret", b"figures"] => queue::own_figures(cx).await,
        [b"leveret", b"members"] => whole::own_members(cx).await,
        [b"leveret", b"rows"] => queue::own_rows(cx).await,
        _ => dispatch(cx, call.head.method.as_str(), &parts, body).await,
    }
}

/// The name of a node, where a request is about one.
fn node_of<'a>(parts: &[&'a [u8]]) -> Option<&'a [u8]> {
    match parts {
        [b"nodes", name, ..]
        | [b"auth", b"attempts", name, ..]
        | [b"healthchecks", b"node", name]
        | [b"leveret", b"nodes", name, b"leave" | b"give-away"]
        | [b"reset", name] => Some(name),
        _ => None,
    }
}

async fn dispatch(cx: Cx<'_>, method: &str, parts: &[&[u8]], body: Body) -> Result<Answer, Refused> {
    if let Some(member) = node_of(parts).and_then(|name| cx.other_named(name)) {
        return match (parts, method) {
            ([b"nodes", _], "GET") => node::other(cx, member).await,
            ([b"nodes", _, b"memory", ..], "GET") => node::other_memory(cx, member).await,
            // The body stays here.
            ([b"nodes", _, b"publishers", b"hold"] | [b"nodes", _, b"maintenance"], "PUT") => {
                cx.caller.need_administrator()?;
                fields::NOTHING.of(&body.read(cx.caller).await?)?;
                cx.pass_to(member).await
            }
            _ => cx.pass_to(member).await,
        };
    }
    match parts {
        [b"whoami"] => on!(method; "GET" => node::whoami(cx)),
        [b"openapi.json"] => on!(method; "GET" => openapi::document(cx)),
        [b"overview"] => on!(method; "GET" => node::overview(cx).await),
        [b"leveret", b"session"] => on!(method;
            "POST" => session::begin(cx, body).await,
            "DELETE" => session::end(cx)),
        [b"leveret", b"queues", vhost, name, b"move"] => {
            on!(method; "POST" => transfer::transfer(cx, vhost, name, body).await)
        }
        [b"leveret", b"latencies"] => on!(method; "GET" => guarantee::latencies(cx).await),
        [b"leveret", b"disk"] => on!(method; "GET" => guarantee::disk(cx).await),
        [b"leveret", b"queues"] => on!(method; "GET" => guarantee::queues(cx, None).await),
        [b"leveret", b"queues", vhost] => on!(method; "GET" => guarantee::queues(cx, Some(vhost)).await),
        [b"leveret", b"queues", vhost, name] => on!(method; "GET" => guarantee::queue(cx, vhost, name).await),
        [b"leveret", b"cluster"] => on!(method; "GET" => whole::get(cx).await),
        [b"leveret", b"nodes", node] => on!(method; "DELETE" => cluster::forget(cx, node).await),
        [b"leveret", b"nodes", node, b"leave"] => on!(method;
            "GET" => leave::could_leave(cx, node).await,
            "POST" => leave::leave(cx, node, body).await),
        [b"leveret", b"nodes", node, b"give-away"] => on!(method; "POST" => give_away::step(cx, node, body).await),
        [b"leveret", b"settings"] => on!(method; "GET" => operator::settings(cx)),
        [b"leveret", b"stop"] => on!(method; "POST" => operator::stop(cx, body).await),
        [b"leveret", b"waiting"] => on!(method; "GET" => channel::waiting(cx).await),
        [b"auth"] => on!(method; "GET" => auth::ways(cx.handle())),
        [b"auth", b"attempts", node] => on!(method;
            "GET" => auth::attempts(cx, node),
            "DELETE" => auth::forget_attempts(cx, node)),
        [b"auth", b"attempts", node, b"source"] => on!(method;
            "GET" => auth::attempts_by_source(cx, node),
            "DELETE" => auth::forget_attempts(cx, node)),
        [b"auth", b"hash_password", password] => on!(method; "GET" => auth::hash_password(cx, password)),
        [b"cluster-name"] => on!(method;
            "GET" => parameter::cluster_name(cx),
            "PUT" => parameter::put_cluster_name(cx, body).await),
        [b"nodes", name, b"memory"] => on!(method; "GET" => node::memory(cx, name, false)),
        [b"nodes", name, b"memory", b"relative"] => on!(method; "GET" => node::memory(cx, name, true)),
        [b"nodes", name, b"memory", b"ets"]
        | [b"nodes", name, b"memory", b"ets", _]
        | [b"nodes", name, b"memory", b"ets", _, b"relative"] => on!(method; "GET" => node::memory_of_tables(cx, name)),
        [b"nodes"] => on!(method; "GET" => node::nodes(cx).await),
        [b"nodes", name] => on!(method; "GET" => node::node(cx, name).await),
        [b"nodes", name, b"publishers", b"hold"] => on!(method;
            "PUT" => node::hold_publishers(cx, name, true, body).await,
            "DELETE" => node::hold_publishers(cx, name, false, body).await),
        [b"nodes", name, b"maintenance"] => on!(method;
            "PUT" => node::rest(cx, name, true, body).await,
            "DELETE" => node::rest(cx, name, false, body).await),
        [b"connections" | b"channels" | b"consumers", ..] => sockets(cx, method, parts).await,
        [b"vhosts", vhost, b"connections"] => on!(method; "GET" => connection::list(cx, Some(vhost), None).await),
        [b"vhosts", vhost, b"channels"] => on!(method; "GET" => channel::list(cx, Some(vhost)).await),
        [b"exchanges" | b"queues" | b"bindings", ..] => routing(cx, method, parts, body).await,
        [b"healthchecks", b"node"] => on!(method; "GET" => health::node(cx, None).await),
        [b"healthchecks", b"node", name] => on!(method; "GET" => health::node(cx, Some(name)).await),
        [b"aliveness-test", vhost] => on!(method; "GET" => health::aliveness(cx, vhost).await),
        [b"health", b"checks", check, rest @ ..] => on!(method; "GET" => checked(cx, check, rest).await),
        [b"definitions" | b"all-configuration"] => on!(method;
            "GET" => definitions::export(cx, None).await,
            "POST" => definitions::import(cx, None, body).await),
        [b"definitions", vhost] => on!(method;
            "GET" => definitions::export(cx, Some(vhost)).await,
            "POST" => definitions::import(cx, Some(vhost), body).await),
        [b"rebalance", b"queues"] => on!(method; "POST" => cluster::rebalance(cx, body).await),
        [
            b"feature-flags"
            | b"deprecated-features"
            | b"rebalance"
            | b"reset"
            | b"extensions"
            | b"version"
            | b"shovels"
            | b"federation-links"
            | b"stream"
            | b"traces"
            | b"trace-files",
            ..,
        ]
        | [b"vhosts", _, b"start", _] => cluster_wide(cx, method, parts, body).await,
        _ => administration(cx, method, parts, body).await,
    }
}

/// What is about the cluster, and what is not there yet.
async fn cluster_wide(cx: Cx<'_>, method: &str, parts: &[&[u8]], body: Body) -> Result<Answer, Refused> {
    match parts {
        [b"feature-flags"] => on!(method; "GET" => cluster::feature_flags(cx)),
        [b"feature-flags", name, b"enable"] => on!(method; "PUT" => cluster::enable_feature_flag(cx, name, body).await),
        [b"deprecated-features"] => on!(method; "GET" => cluster::deprecated_features(cx, false)),
        [b"deprecated-features", b"used"] => on!(method; "GET" => cluster::deprecated_features(cx, true)),
        [b"reset"] => on!(method; "DELETE" => cluster::reset(cx, None)),
        [b"reset", node] => on!(method; "DELETE" => cluster::reset(cx, Some(node))),
        [b"extensions"] => on!(method; "GET" => cluster::extensions()),
        [b"version"] => on!(method; "GET" => cluster::version(cx)),
        [b"vhosts", vhost, b"start", node] => on!(method; "POST" => cluster::start_vhost(cx, vhost, node, body).await),
        [b"shovels", ..] => cluster::comes_later("shovels come"),
        [b"federation-links", ..] => cluster::comes_later("federation comes"),
        [b"stream", ..] => cluster::comes_later("streams come"),
        [b"traces" | b"trace-files", ..] => cluster::untraced(),
        _ => Err(Refused::NotFound),
    }
}

/// Whether the answer may be long where much is declared or many are connected.
fn is_long(parts: &[&[u8]]) -> bool {
    match parts {
        [b"queues" | b"exchanges" | b"bindings", rest @ ..] => rest.len() != 2,
        [b"connections" | b"channels" | b"consumers" | b"definitions" | b"all-configuration" | b"permissions", ..] => {
            true
        }
        [b"vhosts"] | [b"vhosts", _, _] | [b"users"] => true,
        [b"global-parameters"] | [b"parameters" | b"policies" | b"operator-policies", ..] => true,
        [b"topic-permissions" | b"user-limits" | b"vhost-limits", ..] => true,
        [b"leveret", b"queues"] | [b"leveret", b"queues", _] => true,
        _ => false,
    }
}

/// Who is connected and what for.
async fn sockets(cx: Cx<'_>, method: &str, parts: &[&[u8]]) -> Result<Answer, Refused> {
    match parts {
        [b"connections"] => on!(method; "GET" => connection::list(cx, None, None).await),
        [b"connections", b"username", user] => on!(method;
            "GET" => connection::list(cx, None, Some(user)).await,
            "DELETE" => connection::close_of_user(cx, user).await),
        [b"connections", name] => on!(method;
            "GET" => connection::get(cx, name).await,
            "DELETE" => connection::close(cx, name).await),
        [b"connections", name, b"channels"] => on!(method; "GET" => channel::of_connection(cx, name).await),
        [b"channels"] => on!(method; "GET" => channel::list(cx, None).await),
        [b"channels", name] => on!(method; "GET" => channel::get(cx, name).await),
        [b"consumers"] => on!(method; "GET" => channel::consumers(cx, None).await),
        [b"consumers", vhost] => on!(method; "GET" => channel::consumers(cx, Some(vhost)).await),
        _ => Err(Refused::NotFound),
    }
}

/// What messages go through.
async fn routing(cx: Cx<'_>, method: &str, parts: &[&[u8]], body: Body) -> Result<Answer, Refused> {
    match parts {
        [b"exchanges"] => on!(method; "GET" => exchange::list(cx, None).await),
        [b"exchanges", vhost] => on!(method; "GET" => exchange::list(cx, Some(vhost)).await),
        [b"exchanges", vhost, name] => on!(method;
            "GET" => exchange::get(cx, vhost, name).await,
            "PUT" => exchange::put(cx, vhost, name, body).await,
            "DELETE" => exchange::delete(cx, vhost, name).await),
        [b"exchanges", vhost, name, b"publish"] => {
            on!(method; "POST" => message::publish(cx, vhost, name, body).await)
        }
        [b"exchanges", vhost, name, b"bindings", b"source"] => {
            on!(method; "GET" => binding::at(cx, vhost, End::Source(name)).await)
        }
        [b"exchanges", vhost, name, b"bindings", b"destination"] => {
            on!(method; "GET" => binding::at(cx, vhost, End::Destination(name)).await)
        }
        [b"queues", b"quorum", vhost, name, b"status"] => {
            on!(method; "GET" => copies::quorum_status(cx, vhost, name).await)
        }
        [b"queues", b"quorum", vhost, name, b"replicas", b"add"] => {
            on!(method; "POST" => copies::change_member(cx, vhost, name, true, body).await)
        }
        [b"queues", b"quorum", vhost, name, b"replicas", b"delete"] => {
            on!(method; "DELETE" => copies::change_member(cx, vhost, name, false, body).await)
        }
        [b"queues", b"quorum", b"replicas", b"on", node, b"grow"] => {
            on!(method; "POST" => copies::grow(cx, node, body).await)
        }
        [b"queues", b"quorum", b"replicas", b"on", node, b"shrink"] => {
            on!(method; "DELETE" => copies::shrink(cx, node).await)
        }
        [b"queues", vhost, name, b"actions"] => {
            on!(method; "POST" => cluster::queue_action(cx, vhost, name, body).await)
        }
        // A virtual host of that name is at `queues/detailed` no more than in RabbitMQ.
        [b"queues", b"detailed"] => on!(method; "GET" => queue::list(cx, None).await),
        [b"queues"] => on!(method; "GET" => queue::list(cx, None).await),
        [b"queues", vhost] => on!(method; "GET" => queue::list(cx, Some(vhost)).await),
        [b"queues", vhost, name] => on!(method;
            "GET" => queue::get(cx, vhost, name).await,
            "PUT" => queue::put(cx, vhost, name, body).await,
            "DELETE" => queue::delete(cx, vhost, name).await),
        [b"queues", vhost, name, b"get"] => on!(method; "POST" => message::get(cx, vhost, name, body).await),
        [b"queues", vhost, name, b"contents"] => on!(method; "DELETE" => queue::purge(cx, vhost, name).await),
        [b"queues", vhost, name, b"bindings"] => on!(method; "GET" => binding::at(cx, vhost, End::Queue(name)).await),
        [b"bindings"] => on!(method; "GET" => binding::list(cx, None).await),
        [b"bindings", vhost] => on!(method; "GET" => binding::list(cx, Some(vhost)).await),
        [b"bindings", vhost, b"e", source, kind @ (b"q" | b"e"), destination, rest @ ..] => {
            let kind = if **kind == *b"q" { Kind::Queue } else { Kind::Exchange };
            let end = End::Between(source, kind, destination);
            match rest {
                [] => on!(method;
                    "GET" => binding::at(cx, vhost, end).await,
                    "POST" => binding::post(cx, vhost, source, kind, destination, body).await),
                [key] => on!(method;
                    "GET" => binding::get(cx, vhost, end, key),
                    "DELETE" => binding::delete(cx, vhost, end, key).await),
                _ => Err(Refused::NotFound),
            }
        }
        _ => Err(Refused::NotFound),
    }
}

/// Who may do what, and how much.
async fn administration(cx: Cx<'_>, method: &str, parts: &[&[u8]], body: Body) -> Result<Answer, Refused> {
    match parts {
        [b"vhosts"] => on!(method; "GET" => vhost::list(cx).await),
        [b"vhosts", name] => on!(method;
            "GET" => vhost::get(cx, name).await,
            "PUT" => vhost::put(cx, name, body).await,
            "DELETE" => vhost::delete(cx, name).await),
        [b"vhosts", vhost, b"permissions"] => {
            on!(method; "GET" => permission::list(cx, Of { vhost: Some(vhost), user: None }))
        }
        [b"vhosts", vhost, b"topic-permissions"] => {
            on!(method; "GET" => permission::list_topics(cx, Of { vhost: Some(vhost), user: None }))
        }
        [b"users"] => on!(method; "GET" => user::list(cx, false)),
        [b"users", b"without-permissions"] => on!(method; "GET" => user::list(cx, true)),
        [b"users", b"bulk-delete"] => on!(method; "POST" => user::bulk_delete(cx, body).await),
        [b"users", name] => on!(method;
            "GET" => user::get(cx, name),
            "PUT" => user::put(cx, name, body).await,
            "DELETE" => user::delete(cx, name).await),
        [b"users", name, b"permissions"] => {
            on!(method; "GET" => permission::list(cx, Of { vhost: None, user: Some(name) }))
        }
        [b"users", name, b"topic-permissions"] => {
            on!(method; "GET" => permission::list_topics(cx, Of { vhost: None, user: Some(name) }))
        }
        [b"permissions"] => on!(method; "GET" => permission::list(cx, Of::default())),
        [b"permissions", vhost, user] => on!(method;
            "GET" => permission::get(cx, vhost, user),
            "PUT" => permission::put(cx, vhost, user, body).await,
            "DELETE" => permission::delete(cx, vhost, user).await),
        [b"topic-permissions"] => on!(method; "GET" => permission::list_topics(cx, Of::default())),
        [b"topic-permissions", vhost, user] => on!(method;
            "GET" => permission::get_topics(cx, vhost, user),
            "PUT" => permission::put_topic(cx, vhost, user, body).await,
            "DELETE" => permission::delete_topic(cx, vhost, user, None).await),
        [b"topic-permissions", vhost, user, exchange] => {
            on!(method; "DELETE" => permission::delete_topic(cx, vhost, user, Some(exchange)).await)
        }
        [kind @ (b"policies" | b"operator-policies"), rest @ ..] => {
            let operator = **kind == *b"operator-policies";
            match rest {
                [] => on!(method; "GET" => policy::list(cx, operator, None)),
                [vhost] => on!(method; "GET" => policy::list(cx, operator, Some(vhost))),
                [vhost, name] => on!(method;
                    "GET" => policy::get(cx, operator, vhost, name),
                    "PUT" => policy::put(cx, operator, vhost, name, body).await,
                    "DELETE" => policy::delete(cx, operator, vhost, name).await),
                _ => Err(Refused::NotFound),
            }
        }
        [b"vhost-limits"] => on!(method; "GET" => limit::vhosts(cx, None)),
        [b"vhost-limits", vhost] => on!(method; "GET" => limit::vhosts(cx, Some(vhost))),
        [b"vhost-limits", vhost, name] => on!(method;
            "PUT" => limit::put_vhost(cx, vhost, name, body).await,
            "DELETE" => limit::delete_vhost(cx, vhost, name).await),
        [b"user-limits"] => on!(method; "GET" => limit::users(cx, None)),
        [b"user-limits", user] => on!(method; "GET" => limit::users(cx, Some(user))),
        [b"user-limits", user, name] => on!(method;
            "PUT" => limit::put_user(cx, user, name, body).await,
            "DELETE" => limit::delete_user(cx, user, name).await),
        [b"parameters"] => on!(method; "GET" => parameter::list(cx, None, None)),
        [b"parameters", component] => on!(method; "GET" => parameter::list(cx, Some(component), None)),
        [b"parameters", component, vhost] => on!(method; "GET" => parameter::list(cx, Some(component), Some(vhost))),
        [b"parameters", component, vhost, name] => on!(method;
            "GET" => parameter::get(cx, component, vhost, name),
            "PUT" => parameter::put(cx, component, vhost, name, body).await,
            "DELETE" => parameter::delete(cx, component, vhost, name).await),
        [b"global-parameters"] => on!(method; "GET" => parameter::list_global(cx)),
        [b"global-parameters", name] => on!(method;
            "GET" => parameter::get_global(cx, name),
            "PUT" => parameter::put_global(cx, name, body).await,
            "DELETE" => parameter::delete_global(cx, name).await),
        _ => Err(Refused::NotFound),
    }
}

/// Health checks.
async fn checked(cx: Cx<'_>, check: &[u8], rest: &[&[u8]]) -> Result<Answer, Refused> {
    match (check, rest) {
        (b"alarms", []) => health::alarms(cx).await,
        (b"local-alarms", []) => health::local_alarms(cx),
        (b"port-listener", [port]) => health::port(cx, port),
        (b"protocol-listener", [protocol]) => health::protocol(cx, protocol),
        (b"virtual-hosts", []) => health::virtual_hosts(cx).await,
        (b"certificate-expiration", [within, unit]) => health::certificates(cx, within, unit),
        (b"below-node-connection-limit", []) => health::connection_limit(cx),
        (b"node-is-quorum-critical", []) => health::quorum_critical(cx).await,
        (b"node-is-mirror-sync-critical", []) => health::one_node(cx),
        (b"ready-to-serve-clients", []) => health::ready(cx).await,
        (b"is-in-service", []) => health::in_service(cx).await,
        (b"metadata-store", [b"initialized"] | [b"initialized", b"with-data"]) => health::one_node(cx),
        (b"quorum-queues-without-elected-leaders", [b"all-vhosts"]) => health::leaderless(cx, None, None),
        (b"quorum-queues-without-elected-leaders", [b"vhost", vhost]) => health::leaderless(cx, Some(vhost), None),
        (b"quorum-queues-without-elected-leaders", [b"all-vhosts", b"pattern", pattern]) => {
            health::leaderless(cx, None, Some(pattern))
        }
        (b"quorum-queues-without-elected-leaders", [b"vhost", vhost, b"pattern", pattern]) => {
            health::leaderless(cx, Some(vhost), Some(pattern))
        }
        _ => Err(Refused::NotFound),
    }
}
