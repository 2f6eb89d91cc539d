//! Which consumer of a queue with a single active consumer is the active one.
//!
//! The queue's leader alone knows that, by the consumer's key; the node that has its connection alone knows its tag. So
//! a node that another one asks describes such a consumer with its key, and who answers a client puts in what the
//! leaders say. Nodes that are asked ask nobody, as two that waited for each other would hold up both.
//!
//! ```text
//! GET /api/leveret/active     {"led": [key], "here": [[key, tag]]}     the latter with ?tags=true
//! key                         [queue, life of the node, number of the channel, number of the consumer]
//! ```
//!
//! Invariant: all consumers of an answer are told by one look at each leader, so at most one of a queue is active in it.
//! What no leader says is not told.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::json;
use crate::others::Said;
use broker::topology::Queue;
use broker::{ChannelKey, ConsumerKey, NodeNumber, QueueId};
use serde_json::{Value, json};
use server::handle::InQueues;
use server::report::ConnectionReport;
use std::collections::HashMap;

/// In what goes to another node: the key of a consumer that is described, or of a queue's active one. No client sees it.
pub(super) const KEY: &str = "leveret_consumer";

/// A queue and one of its consumers.
type Words = (u64, u64, u64, u32);

/// A key as it goes to another node.
pub(super) fn words(queue: QueueId, consumer: ConsumerKey) -> Words {
    let (life, number) = consumer.channel.words();
    (queue.0, life, number, consumer.number)
}

fn key_of((queue, life, number, consumer): Words) -> (QueueId, ConsumerKey) {
    (QueueId(queue), ConsumerKey { channel: ChannelKey::from_words(life, number), number: consumer })
}

/// Takes a key out of a description.
fn take_key(described: &mut Value) -> Option<(QueueId, ConsumerKey)> {
    let words = described.as_object_mut()?.remove(KEY)?;
    serde_json::from_value(words).ok().map(key_of)
}

/// The active consumers of queues, as their leaders say it.
#[derive(Default)]
pub(super) struct Active(HashMap<QueueId, ConsumerKey>);

impl Active {
    /// Of queues that this node leads.
    pub(super) fn own(figures: &InQueues) -> Active {
        Active(figures.all().filter_map(|found| Some((found.queue, found.active?))).collect())
    }

    /// What a leader says in its description of a queue counts from now on.
    pub(super) fn take(&mut self, described: &mut Value) {
        self.0.extend(take_key(described));
    }

    /// Says of each consumer in a list whether it is the active one, where that is a question and known.
    pub(super) fn tell_all(&self, described: &mut Value) {
        described.as_array_mut().into_iter().flatten().for_each(|one| self.tell(one));
    }

    /// The same of one.
    pub(super) fn tell(&self, described: &mut Value) {
        let Some((queue, consumer)) = take_key(described) else { return };
        let Some(active) = self.0.get(&queue) else { return };
        let is_active = *active == consumer;
        described["active"] = is_active.into();
        described["activity_status"] = if is_active { "single_active" } else { "waiting" }.into();
    }
}

/// The tag of the active one in a list of a queue's consumers; `null` where there is none.
pub(super) fn tag_in(consumers: &Value) -> Value {
    let mut consumers = consumers.as_array().into_iter().flatten();
    consumers
        .find(|one| one["activity_status"] == "single_active")
        .map_or(Value::Null, |one| one["consumer_tag"].clone())
}

/// Whether another node describes consumers of which their leaders have to be asked.
pub(super) fn is_open_in(said: &Said) -> bool {
    String::from_utf8_lossy(&said.body).contains(KEY)
}

/// The active consumers of all queues, but for those of nodes that gave no answer already.
pub(super) async fn of_all(cx: Cx<'_>, missing: &[String]) -> Active {
    let (mut active, said) = ask(cx, missing, "/api/leveret/active").await;
    active.0.extend(said.iter().filter_map(Said::json).flat_map(|mut said| keys(&mut said["led"])));
    active
}

async fn ask(cx: Cx<'_>, missing: &[String], target: &str) -> (Active, Vec<Said>) {
    let others = cx.others().into_iter().filter(|member| !missing.contains(&member.name)).collect();
    let (figures, gathered) = tokio::join!(cx.handle().queue_figures(), cx.ask(others, "GET", target));
    (Active::own(&figures), gathered.said)
}

fn keys(said: &mut Value) -> Vec<(QueueId, ConsumerKey)> {
    let words: Vec<Words> = serde_json::from_value(said.take()).unwrap_or_default();
    words.into_iter().map(key_of).collect()
}

/// The tags of active consumers, of those of `queues` of which a node says who that is: `null` where it is nobody. Nodes
/// that gave no answer already are not asked.
pub(super) async fn tags(
    cx: Cx<'_>,
    queues: Vec<(QueueId, Option<NodeNumber>)>,
    missing: &[String],
) -> HashMap<QueueId, Value> {
    if queues.is_empty() {
        return HashMap::new();
    }
    let (own, connections) = (cx.handle().own_node(), cx.handle().connections().await);
    let (mut active, said) = ask(cx, missing, "/api/leveret/active?tags=true").await;
    let mut tags: HashMap<ConsumerKey, Value> = of_single(cx, &connections).into_iter().collect();
    let mut known = vec![own];
    for one in &said {
        let Some(mut found) = one.json() else { continue };
        known.push(one.node);
        active.0.extend(keys(&mut found["led"]));
        let here: Vec<(Words, Value)> = serde_json::from_value(found["here"].take()).unwrap_or_default();
        tags.extend(here.into_iter().map(|(words, tag)| (key_of(words).1, tag)));
    }
    let told = queues.into_iter().filter(|(_, leader)| leader.is_some_and(|leader| known.contains(&leader)));
    let tag_of = |queue| active.0.get(&queue).and_then(|key| tags.get(key)).cloned().unwrap_or_default();
    told.map(|(queue, _)| (queue, tag_of(queue))).collect()
}

/// Keys and tags of the consumers of this node that want to be the active ones.
fn of_single(cx: Cx<'_>, connections: &[ConnectionReport]) -> Vec<(ConsumerKey, Value)> {
    let topology = cx.handle().topology();
    let consumers = connections.iter().flat_map(|report| &report.channels).flat_map(|channel| &channel.consumers);
    let single = consumers.filter(|one| topology.queue(one.queue).is_some_and(has_single));
    single.map(|one| (one.key, json::text(&one.tag))).collect()
}

/// Whether one consumer of a queue at a time gets messages.
pub(super) fn has_single(queue: &Queue) -> bool {
    queue.rules.single_active.is_some()
}

/// For another node: see the module.
pub(super) async fn own(cx: Cx<'_>) -> Result<Answer, Refused> {
    let figures = cx.handle().queue_figures().await;
    let led: Vec<Words> = Active::own(&figures).0.into_iter().map(|(queue, key)| words(queue, key)).collect();
    let mut answer = json!({ "led": led });
    if cx.call.flag("tags") {
        let connections = cx.handle().connections().await;
        let here = of_single(cx, &connections).into_iter().map(|(key, tag)| (words(QueueId(0), key), tag));
        answer["here"] = json!(here.collect::<Vec<_>>());
    }
    Ok(Answer::json(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_is_the_active_one_or_waits_as_its_leader_says_and_what_is_not_known_is_not_told() {
        let key = |number| ConsumerKey { channel: ChannelKey::from_words(u64::MAX, 7), number };
        let of = |queue, number| json!({ KEY: words(QueueId(queue), key(number)), "consumer_tag": number });
        let mut active = Active::default();
        active.take(&mut json!({ KEY: words(QueueId(u64::MAX), key(2)) }));
        let mut list = json!([of(u64::MAX, 1), of(u64::MAX, 2), of(5, 2), { "consumer_tag": 4, "active": true }]);
        active.tell_all(&mut list);
        let expected = json!([
            { "consumer_tag": 1, "active": false, "activity_status": "waiting" },
            { "consumer_tag": 2, "active": true, "activity_status": "single_active" },
            { "consumer_tag": 2 },
            { "consumer_tag": 4, "active": true },
        ]);
        assert_eq!(list, expected);
        assert_eq!((tag_in(&list), tag_in(&json!([]))), (json!(2), Value::Null));
    }
}
