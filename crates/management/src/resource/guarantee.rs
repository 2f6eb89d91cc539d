//! `/api/leveret/...`: what only this broker tells. What a queue promises now, how long the stages
//! of a message's road take, what is on the disk.
//!
//! Invariant: what a queue promises is told from what its copies have said, and never from what they
//! should have. What nobody knows is null: only the leader of a partition knows how far the copies on
//! other nodes are, and about one queue it is asked.

use super::queue::checked;
use super::{Cx, NOT_THEIRS};
use crate::answer::{Answer, Refused};
use crate::others::Said;
use crate::statistics::STAGE_NAMES;
use crate::{json, listing};
use broker::topology::{DurabilityLevel, Name, Queue, Topology};
use broker::{NodeNumber, PartitionId, QueueId, VhostId};
use partition::{CopyFigures, DiskFigures, PartitionFigures, QueueFigures};
use serde_json::{Map, Value, json};
use server::handle::{InQueues, Member};
use std::collections::HashMap;

/// GET of how long the stages of a message's road took within the last minute.
pub(super) async fn latencies(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.call.statistics.update(cx.handle()).await;
    let store = cx.call.statistics.store();
    let (stages, over_ms) = store.stages().last_minute(store.now_ms());
    let mut told = Map::new();
    for (name, stage) in STAGE_NAMES.iter().zip(&stages) {
        let count = stage.count();
        let mut one = Map::new();
        one.insert("count".to_owned(), count.into());
        one.insert("mean_us".to_owned(), stage.total_us.checked_div(count).into());
        for (name, part) in [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999)] {
            one.insert(name.to_owned(), stage.quantile_us(part).into());
        }
        told.insert((*name).to_owned(), one.into());
    }
    Ok(Answer::json(&json!({ "node": cx.handle().facts().node_name, "over_ms": over_ms, "stages": told })))
}

/// GET of what each queue promises now.
pub(super) async fn queues(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let vhost = vhost.map(|name| cx.visible_vhost(&cx.handle().topology(), name)).transpose()?;
    let found = Found::new(cx, if cx.call.wants("disk") { Disk::All } else { Disk::Unasked }).await;
    let mut queues: Vec<(VhostId, Name, QueueId)> = {
        let topology = cx.handle().topology();
        let seen = |queue: &&Queue| match vhost {
            Some(vhost) => queue.vhost == vhost,
            None => cx.caller.sees(&topology, queue.vhost),
        };
        topology.declared_queues().filter(seen).map(|queue| (queue.vhost, queue.name.clone(), queue.id)).collect()
    };
    queues.sort_unstable();
    let named = listing::by_name(cx.call, queues, |(_, name, _)| name)?;
    let describe = |part: &[(VhostId, Name, QueueId)]| {
        let topology = cx.handle().topology();
        part.iter()
            .filter_map(|(_, _, id)| topology.queue(*id))
            .map(|queue| found.describe(cx, &topology, queue))
            .collect()
    };
    listing::answer_named(cx.call, &named, describe).await
}

/// GET of what one queue promises now.
pub(super) async fn queue(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    cx.visible_vhost(&cx.handle().topology(), vhost)?;
    if let Some(member) = leader_elsewhere(cx, vhost, name)? {
        let gathered = cx.ask(vec![member], "GET", cx.call.head.uri.path()).await;
        // One that leads no more, or does not answer, says nothing of its own.
        let told = gathered.said.first().and_then(Said::json).filter(|told| told["leads"] == true);
        if let Some(told) = told {
            return Ok(Answer::json(&listing::one(cx.call, told)));
        }
    }
    let id = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?.id
    };
    let found = Found::new(cx, Disk::Of(id)).await;
    let topology = cx.handle().topology();
    let vhost = cx.visible_vhost(&topology, vhost)?;
    let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
    cx.caller.need(cx.caller.sees(&topology, vhost), NOT_THEIRS)?;
    Ok(Answer::json(&listing::one(cx.call, found.describe(cx, &topology, queue))))
}

/// The other node that leads a queue, and so knows how far its copies are. Errors: who asks may not look.
fn leader_elsewhere(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Option<Member>, Refused> {
    let leader = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
        cx.handle().leader(queue.partition)
    };
    Ok(cx.others().into_iter().find(|member| Some(member.number) == leader && member.is_reached))
}

/// GET of what partitions have on the disk. The log and its extents are those of a partition; what of it is a queue's
/// is told with the queue.
pub(super) async fn disk(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    let found = Found::new(cx, Disk::Unasked).await;
    let figures = cx.handle().figures();
    let topology = cx.handle().topology();
    let mut queues: HashMap<PartitionId, u64> = HashMap::new();
    topology.declared_queues().for_each(|queue| *queues.entry(queue.partition).or_default() += 1);
    let mut partitions: Vec<&PartitionFigures> = found.partitions.values().collect();
    partitions.sort_unstable_by_key(|partition| partition.partition);
    let describe = |partition: &&PartitionFigures| {
        let (messages, live) = partition.extent_messages;
        json!({
            "partition": partition.partition.0,
            "leads": partition.leads,
            "queues": queues.get(&partition.partition).copied().unwrap_or(0),
            "appended_bytes": partition.appended_bytes,
            "extent_bytes": partition.extent_bytes,
            "extent_messages": messages,
            "extent_messages_live": live,
        })
    };
    let published = figures.message_sizes.sum_bytes;
    let amplification = quotient(figures.log_bytes, published);
    Ok(Answer::json(&json!({
        "node": cx.handle().facts().node_name,
        "log_written_bytes": figures.log_bytes,
        "log_syncs": figures.log_syncs,
        "published_bytes": published,
        "log_bytes_by_published_byte": amplification,
        "partitions": partitions.iter().map(describe).collect::<Vec<_>>(),
    })))
}

/// One by the other, to hundredths.
fn quotient(of: u64, by: u64) -> Option<f64> {
    (by > 0).then(|| (of as f64 / by as f64 * 100.0).round() / 100.0)
}

/// Which queues are asked what they have on the disk.
#[derive(Clone, Copy)]
enum Disk {
    Unasked,
    Of(QueueId),
    All,
}

/// What is known of queues and of their partitions.
struct Found {
    queues: InQueues,
    partitions: HashMap<PartitionId, PartitionFigures>,
    disk: HashMap<QueueId, DiskFigures>,
    /// Bytes that this node wrote to its log for each that is in an entry: heads of records, and what fills a block.
    log_by_entries: f64,
}

/// How far the copies of a partition are.
struct Copies {
    all: usize,
    /// There is none to spare.
    is_unspared: bool,
    /// Copies that have synced all that is committed, on nodes that are heard of; `None` if this node does not know.
    in_sync: Option<usize>,
}

impl Copies {
    fn of(partition: &PartitionFigures) -> Copies {
        let voters = || partition.copies.iter().filter(|copy| !copy.is_learner);
        // What is on the disk of a node that is gone is no help now.
        let is_in_sync =
            |copy: &&CopyFigures| copy.is_heard && copy.synced.is_some_and(|synced| synced >= partition.committed);
        let in_sync = partition.leads.then(|| voters().filter(is_in_sync).count());
        Copies { all: voters().count(), is_unspared: partition.is_unspared, in_sync }
    }

    /// How many have to have something before it is confirmed.
    fn needed(&self) -> usize {
        self.all / 2 + 1
    }
}

impl Found {
    async fn new(cx: Cx<'_>, disk: Disk) -> Found {
        cx.call.statistics.update(cx.handle()).await;
        let queues = cx.handle().queue_figures().await;
        let disk = match disk {
            Disk::Unasked => HashMap::new(),
            Disk::Of(queue) => cx.handle().disk_figures(Some(queue)).await,
            Disk::All => cx.handle().disk_figures(None).await,
        };
        let partitions = cx.call.statistics.store().partitions().clone();
        let appended: u64 = partitions.values().map(|partition| partition.appended_bytes).sum();
        let log_by_entries = cx.handle().figures().log_bytes as f64 / appended.max(1) as f64;
        Found { queues, partitions, disk, log_by_entries }
    }

    fn describe(&self, cx: Cx<'_>, topology: &Topology, queue: &Queue) -> Value {
        let figures = self.queues.of(queue).unwrap_or_else(|| QueueFigures::empty(queue.id));
        let level = match queue.shape.durable {
            true => queue.durability().level(),
            false => DurabilityLevel::Memory,
        };
        let partition = self.partitions.get(&queue.partition).filter(|_| level != DurabilityLevel::Memory);
        let copies = partition.map(Copies::of);
        let name_of = |node: NodeNumber| match topology.nodes().find(|(number, _)| *number == node) {
            Some((_, known)) => json::text(&known.name),
            None => cx.handle().facts().node_name.clone().into(),
        };
        let wanted = topology.members_wanted(queue.partition);
        let member = |copy: &CopyFigures| {
            let is_in_sync = |committed| copy.synced.map(|synced| synced >= committed);
            json!({
                "node": name_of(copy.node),
                "synced_index": copy.synced,
                "in_sync": partition.and_then(|partition| is_in_sync(partition.committed)),
                "heard": copy.is_heard,
                "learner": copy.is_learner,
                "leaving": !wanted.is_empty() && !wanted.contains(&copy.node),
            })
        };
        let is_down = cx.handle().is_quarantined(queue.partition);
        let meant = match level {
            DurabilityLevel::Memory => Vec::new(),
            _ => wanted.clone(),
        };
        let meant = Meant { copies: meant.len(), here: meant.contains(&cx.handle().own_node()) };
        json!({
            "name": json::text(&queue.name),
            "vhost": topology.vhost_of(queue.vhost).map(|vhost| json::text(&vhost.name)),
            "partition": queue.partition.0,
            "durability": level.word(),
            "guarantee": sentence(level, copies.as_ref(), &figures, is_down, meant),
            "copies": copies.as_ref().map(|copies| copies.all).or(Some(meant.copies).filter(|all| *all > 0)),
            "copies_in_sync": copies.as_ref().and_then(|copies| copies.in_sync),
            "copies_needed": copies.as_ref().map(Copies::needed),
            "written_is_synced": partition.filter(|partition| partition.leads).map(|partition| partition.is_unspared),
            "leads": partition.map(|partition| partition.leads),
            "leader": partition.and_then(|partition| partition.leader).map(name_of),
            "term": partition.map(|partition| partition.term),
            "last_index": partition.map(|partition| partition.last),
            "committed_index": partition.map(|partition| partition.committed),
            "synced_index": partition.map(|partition| partition.synced),
            "applied_index": partition.map(|partition| partition.applied),
            "members": partition.map(|partition| partition.copies.iter().map(member).collect::<Vec<_>>()),
            "value_at_risk": figures.value_cap.map(|_| figures.value_at_risk),
            "value_at_risk_cap": figures.value_cap,
            "disk": match level {
                DurabilityLevel::Memory => on_disk(None, 1.0),
                _ if partition.is_some_and(|partition| partition.leads) => {
                    on_disk(Some(self.disk.get(&queue.id).copied().unwrap_or(DiskFigures::empty(queue.id))), self.log_by_entries)
                }
                _ => Value::Null,
            },
        })
    }
}

/// What a queue has on the disk, and what was written for it; `None` for one in memory. The log writes blocks, whose rest
/// belongs to all that was written with it: a queue has its share by bytes.
fn on_disk(figures: Option<DiskFigures>, log_by_entries: f64) -> Value {
    let published = figures.map(|figures| figures.published);
    let figures = figures.unwrap_or(DiskFigures::empty(QueueId(0)));
    let log = (figures.log as f64 * log_by_entries.max(1.0)).round() as u64;
    let written = log + figures.extents + figures.checkpoints;
    json!({
        "live_bytes": figures.live,
        "published_bytes": published,
        "written_bytes": written,
        "log_bytes": log,
        "extent_bytes": figures.extents,
        "checkpoint_bytes": figures.checkpoints,
        "amplification": published.and_then(|published| quotient(written, published)),
    })
}

/// Which nodes are to have a queue.
#[derive(Clone, Copy)]
struct Meant {
    /// How many they are.
    copies: usize,
    /// This node is one of them.
    here: bool,
}

/// What the queue promises now, for people.
fn sentence(
    level: DurabilityLevel,
    copies: Option<&Copies>,
    figures: &QueueFigures,
    is_down: bool,
    meant: Meant,
) -> String {
    if is_down {
        return "unavailable: its partition is damaged on this node and has to be repaired".to_owned();
    }
    if level == DurabilityLevel::Memory {
        return "in the memory of one node: its messages end with the node's process".to_owned();
    }
    let Some(copies) = copies else {
        let count = format!("{} {}", meant.copies, if meant.copies == 1 { "copy" } else { "copies" });
        return match meant.here {
            // It began with its copy just now.
            true => format!("{count}; this node does not know yet how many are in sync"),
            false => {
                format!("this node has no copy of it; {count} on others, and its leader knows how many are in sync")
            }
        };
    };
    let Some(in_sync) = copies.in_sync else {
        return format!("{} copies; its leader knows how many are in sync", copies.all);
    };
    let all = format!("{in_sync} of {} {}", copies.all, if copies.all == 1 { "copy" } else { "copies" });
    let is_alone = copies.all == 1;
    match level {
        DurabilityLevel::Synced => format!("{all} synced to disk; {} before a confirm", copies.needed()),
        DurabilityLevel::LeaderSynced if is_alone => format!("{all} synced to disk; 1 before a confirm"),
        DurabilityLevel::LeaderSynced => {
            format!(
                "{all} synced to disk; the leader's before a confirm, and a change of leaders may take what others lack"
            )
        }
        DurabilityLevel::LeaderWritten if !is_alone => format!(
            "{all} synced to disk; confirmed once the leader has written it, and a power cut there or a change of leaders may \
             take what others lack"
        ),
        DurabilityLevel::Written if copies.is_unspared => {
            format!("{all} synced to disk; {} before a confirm, as there is no copy to spare", copies.needed())
        }
        DurabilityLevel::Selective => match figures.value_cap {
            Some(cap) => {
                format!("{all} synced to disk, but for a value of {} at risk, of at most {cap}", figures.value_at_risk)
            }
            None => format!("{all} synced to disk, but for what is written and not yet synced"),
        },
        _ => format!("{all} synced to disk; confirmed once written, and a power cut may take what is not synced"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(node: u32, synced: Option<u64>) -> CopyFigures {
        CopyFigures { node: NodeNumber(node), synced, is_heard: true, is_learner: false }
    }

    fn partition(leads: bool, copies: Vec<CopyFigures>) -> PartitionFigures {
        PartitionFigures {
            partition: PartitionId(1),
            leads,
            leader: None,
            term: 1,
            last: 12,
            synced: 12,
            committed: 10,
            applied: 10,
            copies,
            is_unspared: false,
            appended_bytes: 0,
            extent_bytes: 0,
            extent_messages: (0, 0),
        }
    }

    #[test]
    fn what_was_written_for_a_queue_is_put_against_what_was_published() {
        let figures = DiskFigures {
            live: 700,
            published: 1_000,
            log: 2_000,
            extents: 500,
            checkpoints: 30,
            ..DiskFigures::empty(QueueId(1))
        };
        let told = on_disk(Some(figures), 1.5);
        let wanted = json!({
            "live_bytes": 700, "published_bytes": 1_000, "written_bytes": 3_530, "log_bytes": 3_000, "extent_bytes": 500,
            "checkpoint_bytes": 30, "amplification": 3.53,
        });
        assert_eq!(told, wanted);
        // Nothing came in yet, and nothing ever comes to a disk.
        let none = |figures| on_disk(figures, 1.5)["amplification"].clone();
        assert_eq!(none(Some(DiskFigures::empty(QueueId(1)))), Value::Null);
        let memory = on_disk(None, 1.5);
        assert_eq!(
            (&memory["live_bytes"], &memory["written_bytes"], &memory["published_bytes"]),
            (&json!(0), &json!(0), &Value::Null)
        );
    }

    #[test]
    fn a_copy_that_is_behind_is_not_counted_and_who_does_not_lead_says_so() {
        let figures = QueueFigures::empty(QueueId(1));
        let three_here = Meant { copies: 3, here: true };
        let said = |level, partition: &PartitionFigures| {
            sentence(level, Some(&Copies::of(partition)), &figures, false, three_here)
        };
        let three = vec![copy(1, Some(12)), copy(2, Some(10)), copy(3, Some(9))];
        assert_eq!(
            said(DurabilityLevel::Synced, &partition(true, three.clone())),
            "2 of 3 copies synced to disk; 2 before a confirm"
        );
        assert_eq!(
            said(DurabilityLevel::LeaderSynced, &partition(true, three.clone())),
            "2 of 3 copies synced to disk; the leader's before a confirm, and a change of leaders may take what others lack"
        );
        let written = |is_unspared| {
            said(DurabilityLevel::Written, &PartitionFigures { is_unspared, ..partition(true, three.clone()) })
        };
        let lasting =
            "2 of 3 copies synced to disk; confirmed once written, and a power cut may take what is not synced";
        assert_eq!(written(false), lasting);
        assert_eq!(written(true), "2 of 3 copies synced to disk; 2 before a confirm, as there is no copy to spare");
        assert_eq!(
            said(DurabilityLevel::Synced, &partition(false, three)),
            "3 copies; its leader knows how many are in sync"
        );
        let none = |meant| sentence(DurabilityLevel::Synced, None, &figures, false, meant);
        assert_eq!(none(three_here), "3 copies; this node does not know yet how many are in sync");
        assert_eq!(
            none(Meant { copies: 1, here: false }),
            "this node has no copy of it; 1 copy on others, and its leader knows how many are in sync"
        );
        // It has all of it, on the disk of a node that is gone.
        let gone = CopyFigures { is_heard: false, ..copy(3, Some(12)) };
        let without = partition(true, vec![copy(1, Some(12)), copy(2, Some(10)), gone]);
        assert_eq!(said(DurabilityLevel::Synced, &without), "2 of 3 copies synced to disk; 2 before a confirm");
        let one = partition(true, vec![copy(1, Some(10))]);
        for level in [DurabilityLevel::Synced, DurabilityLevel::LeaderSynced] {
            assert_eq!(said(level, &one), "1 of 1 copy synced to disk; 1 before a confirm");
        }
        let of_system =
            "1 of 1 copy synced to disk; confirmed once written, and a power cut may take what is not synced";
        assert_eq!(said(DurabilityLevel::LeaderWritten, &one), of_system);
        let risky = QueueFigures { value_at_risk: 40, value_cap: Some(100), ..figures };
        let risk = sentence(DurabilityLevel::Selective, Some(&Copies::of(&one)), &risky, false, three_here);
        assert_eq!(risk, "1 of 1 copy synced to disk, but for a value of 40 at risk, of at most 100");
    }
}
