//! The other nodes of the cluster: what is asked of them, and what they are answered.
//!
//! A question is a request to the API of the other node, without a body, in the name of who asks; it
//! is answered with what is on that node alone. So whatever describes an object does so on the node
//! that has it, and any node answers for all.
//!
//! ```text
//! question   {"method", "target": path and query, "user": base64, "tags": [base64], "operator": bool, "scopes": [text] of a token,
//!             "peer",             "reason": of who closes a connection}
//! answer     3 digits of the status, then the body
//! ```
//!
//! Invariant: nobody waits longer than [`PATIENCE`] for a node, and what is missing for want of an
//! answer is told: in the list of nodes that did not give one.

use crate::access::Caller;
use crate::answer::{Answer, Refused};
use crate::resource::Cx;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use broker::NodeNumber;
use broker::topology::{Name, Scopes};
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use server::handle::Member;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a node has for its answer. One that hangs loses its link before that.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// What names the nodes that are missing in an answer.
pub(crate) const MISSING_HEADER: &str = "leveret-missing-nodes";

/// A request as it comes from another node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) caller: Caller,
    pub(crate) peer: SocketAddr,
    pub(crate) reason: Option<String>,
}

impl Request {
    fn encode(&self) -> Bytes {
        let tags: Vec<String> = self.caller.tags().iter().map(|tag| STANDARD.encode(&**tag)).collect();
        let document = json!({
            "method": self.method,
            "target": self.target,
            "user": STANDARD.encode(&*self.caller.name),
            "tags": tags,
            "operator": self.caller.is_operator(),
            "scopes": self.caller.token().map(|token| token.scopes.texts().collect::<Vec<String>>()),
            "peer": self.peer.to_string(),
            "reason": self.reason,
        });
        document.to_string().into()
    }

    /// Reads a question; `None` if it is none that this build knows.
    pub(crate) fn decode(question: &[u8]) -> Option<Request> {
        let document: Value = serde_json::from_slice(question).ok()?;
        let name = |value: &Value| Some(Name::new(&STANDARD.decode(value.as_str()?).ok()?));
        let tags = document["tags"].as_array()?.iter().map(name).collect::<Option<Vec<Name>>>()?;
        let scopes = document["scopes"].as_array().map(|scopes| scopes.iter().filter_map(Value::as_str));
        let scopes = scopes.map(|scopes| Scopes::parse(scopes, &|_| None));
        Some(Request {
            method: document["method"].as_str()?.to_owned(),
            target: document["target"].as_str()?.to_owned(),
            caller: Caller::known_elsewhere(name(&document["user"])?, tags, document["operator"].as_bool()?, scopes),
            peer: document["peer"].as_str()?.parse().unwrap_or(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)),
            reason: document["reason"].as_str().map(str::to_owned),
        })
    }
}

/// What another node said.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) node: NodeNumber,
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Said {
    fn decode(node: NodeNumber, mut answer: Bytes) -> Option<Said> {
        if answer.len() < 3 {
            return None;
        }
        let digits = answer.split_to(3);
        let status = std::str::from_utf8(&digits).ok()?.parse().ok()?;
        Some(Said { node, status, body: answer })
    }

    /// The body, if all went well.
    pub(crate) fn json(&self) -> Option<Value> {
        if self.status == 200 { serde_json::from_slice(&self.body).ok() } else { None }
    }

    /// The items of a list, if all went well.
    fn rows(&self) -> Option<Vec<Box<RawValue>>> {
        if self.status == 200 { serde_json::from_slice(&self.body).ok() } else { None }
    }

    /// The same to whoever asked here.
    pub(crate) fn pass_on(self) -> Answer {
        Answer::passed_on(self.status, self.body)
    }
}

/// An answer as it goes to the node that asked.
pub(crate) fn encode_answer(answer: Answer) -> Bytes {
    let (status, body) = answer.into_parts();
    let mut bytes = Vec::with_capacity(3 + body.len());
    bytes.extend_from_slice(format!("{status:03}").as_bytes());
    bytes.extend_from_slice(&body);
    bytes.into()
}

/// What several nodes said, and which of them said nothing.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// In the order of their numbers.
    pub(crate) said: Vec<Said>,
    /// Names of nodes that are missing.
    pub(crate) missing: Vec<String>,
}

/// One item of a list: of this node, or as another described it.
#[derive(Debug)]
pub(crate) enum Row<'a, T> {
    Own(&'a T),
    Other(Box<RawValue>),
}

impl<T> Row<'_, T> {
    /// The item, which `describe` makes of this node's if it is still there.
    pub(crate) fn described(&self, describe: impl FnOnce(&T) -> Option<Value>) -> Option<Value> {
        match self {
            Row::Own(own) => describe(own),
            Row::Other(text) => serde_json::from_str(text.get()).ok(),
        }
    }
}

impl Gathered {
    /// A list of all nodes' items, whichever of them is asked in the same order.
    pub(crate) fn rows<'a, T>(&self, own_node: NodeNumber, own: &'a [T]) -> Vec<Row<'a, T>> {
        let rows_of = |said: &Said| said.rows().unwrap_or_default().into_iter().map(Row::Other);
        let before = self.said.iter().filter(|said| said.node < own_node).flat_map(rows_of);
        let mut rows: Vec<Row<'a, T>> = before.collect();
        rows.extend(own.iter().map(Row::Own));
        rows.extend(self.said.iter().filter(|said| said.node > own_node).flat_map(rows_of));
        rows
    }

    /// Says in the answer what is missing in it.
    pub(crate) fn told(&self, answer: Answer) -> Answer {
        if self.missing.is_empty() { answer } else { answer.with_header(MISSING_HEADER, self.missing.join(", ")) }
    }
}

impl Cx<'_> {
    /// The other nodes of the cluster; none where another node asks, as that asks them itself.
    pub(crate) fn others(&self) -> Vec<Member> {
        if self.is_asked || !self.handle().has_peers() {
            return Vec::new();
        }
        self.handle().members().into_iter().filter(|member| !member.is_own).collect()
    }

    /// The node of this name, if it is another of the cluster.
    pub(crate) fn other_named(&self, name: &[u8]) -> Option<Member> {
        self.others().into_iter().find(|member| member.name.as_bytes() == name)
    }

    /// Asks other nodes the same with this method and target, all at once.
    pub(crate) async fn ask(&self, members: Vec<Member>, method: &str, target: &str) -> Gathered {
        let mut asks = JoinSet::new();
        let mut gathered = Gathered::default();
        let reason = self.call.header("x-reason").map(|reason| String::from_utf8_lossy(reason).into_owned());
        let request = Request {
            method: method.to_owned(),
            target: target.to_owned(),
            caller: self.caller.clone(),
            peer: self.call.peer,
            reason,
        };
        let question = request.encode();
        for Member { number, name, .. } in members {
            match self.handle().ask(number, question.clone()) {
                Ok(asked) => drop(asks.spawn(async move {
                    let answer = tokio::time::timeout(PATIENCE, asked).await.ok().and_then(Result::ok);
                    (name, answer.and_then(|answer| Said::decode(number, answer)))
                })),
                Err(_) => gathered.missing.push(name),
            }
        }
        while let Some(asked) = asks.join_next().await {
            match asked {
                Ok((_, Some(said))) => gathered.said.push(said),
                Ok((name, None)) => gathered.missing.push(name),
                Err(error) => tracing::error!(%error, "what another node said was not heard"),
            }
        }
        gathered.said.sort_unstable_by_key(|said| said.node);
        gathered.missing.sort_unstable();
        gathered
    }

    /// What is on the other nodes of what this request asks for, without its paging and sorting.
    pub(crate) async fn gather(&self) -> Gathered {
        self.gather_with(None).await
    }

    /// The same, with a column that is needed here, whichever the client wants.
    pub(crate) async fn gather_with(&self, needed: Option<&str>) -> Gathered {
        let mut target = self.call.head.uri.path().to_owned();
        let decides = |name: &str| self.call.query(name).is_some_and(|value| !value.is_empty());
        if !decides("name")
            && !decides("sort")
            && let Some(columns) = self.call.raw_query("columns").filter(|columns| !columns.is_empty())
        {
            target += &format!("?columns={columns}");
            needed.iter().for_each(|column| target += &format!(",{column}"));
        }
        self.ask(self.others(), "GET", &self.same_statistics(&target)).await
    }

    /// A target with the rates and histories that this request asks for.
    pub(crate) fn same_statistics(&self, target: &str) -> String {
        let mut target = target.to_owned();
        for part in self.call.head.uri.query().unwrap_or_default().split('&') {
            let name = part.split('=').next().unwrap_or_default();
            if name.ends_with("_age") || name.ends_with("_incr") || name == "disable_stats" {
                target.push(if target.contains('?') { '&' } else { '?' });
                target += part;
            }
        }
        target
    }

    /// The first other node's answer to this very request that is not that there is no such thing.
    pub(crate) async fn elsewhere(&self) -> Result<Answer, Refused> {
        let target = self.call.head.uri.path_and_query().map_or("", |target| target.as_str());
        let gathered = self.ask(self.others(), self.call.head.method.as_str(), target).await;
        let found = gathered.said.iter().find(|said| said.status != 404).cloned();
        match found {
            Some(said) => Ok(said.pass_on()),
            None => Err(Refused::NotFound),
        }
    }

    /// Another node's answer to this very request. Errors: it does not give one.
    pub(crate) async fn pass_to(&self, member: Member) -> Result<Answer, Refused> {
        let target = self.call.head.uri.path_and_query().map_or("", |target| target.as_str());
        let name = member.name.clone();
        let gathered = self.ask(vec![member], self.call.head.method.as_str(), target).await;
        let said = gathered.said.into_iter().next();
        said.map(Said::pass_on).ok_or_else(|| Refused::Unavailable(format!("node {name} does not answer")))
    }
}
