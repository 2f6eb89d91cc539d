//! From options to who does what: each connection, each channel, which queue, which routing key.
//!
//! Invariant: a plan is complete before the first connection is made, except for names that the
//! broker chooses. Producers and consumers are dealt out over a pattern's queues in turn, as
//! PerfTest does it; with a plain list each consumer consumes from all.

use crate::options::{Options, Topology};

/// A queue by its place in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u32);

/// One producer channel.
#[derive(Clone, Debug, PartialEq)]
pub struct ProducerPlan {
    /// Counted over the run, from 0.
    pub publisher: u32,
    /// Its fixed routing key.
    pub routing_key: String,
}

/// One consumer channel.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerPlan {
    /// Counted over the run, from 0.
    pub consumer: u32,
    /// What it consumes from.
    pub queues: Vec<QueueId>,
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq)]
pub enum ConnectionPlan {
    /// Its channels publish.
    Producer(Vec<ProducerPlan>),
    /// Its channels consume.
    Consumer(Vec<ConsumerPlan>),
}

/// A queue and how it is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuePlan {
    /// Its name; empty until the broker has chosen one.
    pub name: String,
    /// The key that it is bound with.
    pub routing_key: String,
}

/// Which queues a publisher's message reaches, as far as this tool can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those whose binding key is the message's routing key.
    SameKey,
    /// All of them.
    All,
    /// The exchange decides in a way that is not followed here; what is missing cannot be told.
    Unknown,
}

/// The whole plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Queues, by [`QueueId`].
    pub queues: Vec<QueuePlan>,
    /// Connections, consumers first.
    pub connections: Vec<ConnectionPlan>,
    /// Where messages go.
    pub reach: Reach,
}

impl Plan {
    /// Plans a run; `run` makes its names its own.
    pub fn of(options: &Options, run: u32) -> Plan {
        let topology = &options.topology;
        let own_key = topology.routing_key.clone().unwrap_or_else(|| format!("leveret-bench-{run:08x}"));
        let queues = queues(options, &own_key);
        let consumers = consumers(options, queues.len());
        let producers = producers(options, &queues, &own_key);
        Plan { reach: reach(options), connections: consumers.chain(producers).collect(), queues }
    }

    /// The queues that messages with this routing key reach; `None` when that cannot be told.
    pub fn reached(&self, routing_key: &str) -> Option<Vec<QueueId>> {
        let ids = (0..self.queues.len() as u32).map(QueueId);
        match self.reach {
            Reach::All => Some(ids.collect()),
            Reach::SameKey => Some(ids.filter(|id| self.queues[id.0 as usize].routing_key == routing_key).collect()),
            Reach::Unknown => None,
        }
    }
}

fn queues(options: &Options, own_key: &str) -> Vec<QueuePlan> {
    let topology = &options.topology;
    let plan = |name: &str, routing_key: &str| QueuePlan { name: name.to_owned(), routing_key: routing_key.to_owned() };
    if topology.queues.is_empty() {
        return (0..options.consuming.count).map(|_| plan("", own_key)).collect();
    }
    let names = topology.queues.iter();
    match (topology.exchange.is_empty(), topology.is_pattern, &topology.routing_key) {
        // The default exchange routes by the queue's name; so does a pattern, unless a key was
        // given.
        (true, _, _) | (_, true, None) => names.map(|name| plan(name, name)).collect(),
        _ => names.map(|name| plan(name, own_key)).collect(),
    }
}

fn consumers(options: &Options, queue_count: usize) -> impl Iterator<Item = ConnectionPlan> {
    let topology: &Topology = &options.topology;
    let deals_out = topology.is_pattern || topology.queues.is_empty();
    let channels = u32::from(options.consuming.channels);
    (0..options.consuming.count).map(move |connection| {
        let queues = match deals_out {
            true => vec![QueueId(connection % queue_count.max(1) as u32)],
            false => (0..queue_count as u32).map(QueueId).collect(),
        };
        let of = |channel| ConsumerPlan { consumer: connection * channels + channel, queues: queues.clone() };
        ConnectionPlan::Consumer((0..channels).map(of).collect())
    })
}

fn producers(options: &Options, queues: &[QueuePlan], own_key: &str) -> impl Iterator<Item = ConnectionPlan> {
    let channels = u32::from(options.producing.channels);
    (0..options.producing.count).map(move |connection| {
        let of = |channel| {
            let publisher = connection * channels + channel;
            let turn = if options.topology.spreads_channels { publisher } else { connection };
            let queue = queues.get(turn as usize % queues.len().max(1));
            let routing_key = queue.map_or(own_key, |queue| queue.routing_key.as_str()).to_owned();
            ProducerPlan { publisher, routing_key }
        };
        ConnectionPlan::Producer((0..channels).map(of).collect())
    })
}

fn reach(options: &Options) -> Reach {
    let topology = &options.topology;
    // A binding that somebody else made, or a key that changes, may lead anywhere.
    if topology.predeclared && !topology.exchange.is_empty() || topology.skip_binding {
        return Reach::Unknown;
    }
    match (topology.exchange.as_str(), topology.exchange_type.as_str()) {
        _ if options.producing.random_routing_key.is_some() && topology.exchange_type != "fanout" => Reach::Unknown,
        ("", _) | (_, "direct") => Reach::SameKey,
        (_, "fanout") => Reach::All,
        // The key of a run holds no wildcard, so a topic exchange compares it like a direct one.
        (_, "topic") if topology.routing_key.as_ref().is_none_or(|key| !key.contains(['*', '#'])) => Reach::SameKey,
        _ => Reach::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::options::run_of;
    use crate::words::words_of;

    fn plan(line: &str) -> Plan {
        Plan::of(&run_of(&words_of(line)).unwrap(), 7)
    }

    #[test]
    fn a_pattern_is_dealt_out_in_turn() {
        let plan = plan("-x 4 -y 3 --queue-pattern q-%d --queue-pattern-to 2");
        let keys: Vec<&str> = plan
            .connections
            .iter()
            .filter_map(|c| match c {
                ConnectionPlan::Producer(channels) => Some(channels[0].routing_key.as_str()),
                ConnectionPlan::Consumer(_) => None,
            })
            .collect();
        assert_eq!(keys, ["q-1", "q-2", "q-1", "q-2"]);
        let queues: Vec<&[QueueId]> = plan
            .connections
            .iter()
            .filter_map(|c| match c {
                ConnectionPlan::Consumer(channels) => Some(&channels[0].queues[..]),
                ConnectionPlan::Producer(_) => None,
            })
            .collect();
        assert_eq!(queues, [[QueueId(0)], [QueueId(1)], [QueueId(0)]]);
        assert_eq!(plan.reached("q-2"), Some(vec![QueueId(1)]));
    }

    #[test]
    fn a_list_is_consumed_by_everybody_and_reached_by_one_key() {
        let plan = plan("-x 1 -y 2 -u a,b");
        assert_eq!(plan.reached("leveret-bench-00000007"), Some(vec![QueueId(0), QueueId(1)]));
        assert!(matches!(&plan.connections[1], ConnectionPlan::Consumer(c) if c[0].queues.len() == 2));
    }

    #[test]
    fn without_names_each_consumer_has_its_own_queue_and_gets_every_message() {
        let plan = plan("-x 1 -y 2");
        assert_eq!(plan.queues.len(), 2);
        assert_eq!(plan.reached("leveret-bench-00000007").unwrap().len(), 2);
    }

    #[test]
    fn what_cannot_be_followed_is_said_to_be_unknown() {
        assert_eq!(plan("-u q --random-routing-key").reach, Reach::Unknown);
        assert_eq!(plan("-u q -t fanout -e f --random-routing-key").reach, Reach::All);
        assert_eq!(plan("-u q -t headers -e h").reach, Reach::Unknown);
        assert_eq!(plan("-u q -p").reach, Reach::Unknown);
    }
}
