//! A fact as one line of JSON.
//!
//! Invariant: every line is an object with `kind`; numbers are numbers, and names are those of
//! `docs/formats/`. Ids of 128 bits are texts of 32 digits, because readers in other languages have
//! no such numbers.

use serde_json::{Value, json};
use storage::inspect::Fact;
use storage::wal::RecordName;
use storage::{Founder, WalPosition};

/// The line of a fact, without its line break.
pub(super) fn line(fact: &Fact) -> Value {
    match fact {
        Fact::Identity(identity) => json!({
            "kind": "identity",
            "node_name": identity.node_name,
            "cluster_id": Some(identity.cluster_id).filter(|id| *id != 0).map(id_text),
            "folder_id": id_text(identity.folder_id),
        }),
        Fact::Node(node) => {
            json!({ "kind": "node", "id": node.id, "state": node.state.name(), "start": node.start })
        }
        Fact::Cluster(record) => json!({
            "kind": "cluster",
            "joined_cluster_id": record.joined.map(id_text),
            "clusters_before": record.before.iter().copied().map(id_text).collect::<Vec<_>>(),
            "partitions": record.partitions,
            "nodes": record.founders.iter().map(node_of).collect::<Vec<_>>(),
        }),
        Fact::NoIdentity => json!({ "kind": "no_identity" }),
        Fact::WalFile { name, bytes, header } => json!({
            "kind": "wal_file",
            "name": name,
            "bytes": bytes,
            "file": header.file.0,
            "folder_id": id_text(header.folder_id),
            "first_frame_no": header.first_frame_no,
            "previous_file": header.previous_file.0,
            "previous_end": header.previous_end,
        }),
        Fact::Frame { offset, header } => json!({
            "kind": "frame",
            "offset": offset,
            "frame_no": header.frame_no,
            "bytes": header.bytes,
            "record_count": header.record_count,
            "session": header.session,
        }),
        Fact::Record { record, body_offset, body_bytes } => {
            let mut line = record_name(record);
            line["kind"] = json!("record");
            line["body_offset"] = json!(body_offset);
            line["body_bytes"] = json!(body_bytes);
            line
        }
        Fact::WalFileEnd { end, frames, records, synced, torn } => json!({
            "kind": "wal_file_end",
            "end": end,
            "frame_count": frames,
            "record_count": records,
            "synced": synced,
            "torn": torn,
        }),
        Fact::WalFileUnreadable { name, bytes } => {
            json!({ "kind": "wal_file_without_header", "name": name, "bytes": bytes })
        }
        Fact::DurableNote(at) => json!({ "kind": "durable_note", "at": position(at) }),
        Fact::Extent { id, bytes, run_count, is_unread: _ } => {
            json!({ "kind": "extent", "id": id.0, "bytes": bytes, "run_count": run_count })
        }
        Fact::Run(run) => json!({
            "kind": "run",
            "queue": run.queue,
            "first_seq": run.first_seq,
            "last_seq": run.last_seq,
            "count": run.count,
            "bodies_offset": run.bodies_offset,
            "bodies_bytes": run.bodies_bytes,
            "index_offset": run.index_offset,
        }),
        Fact::Checkpoint { name, group, generation, replay_from, payload_bytes } => json!({
            "kind": "checkpoint",
            "name": name,
            "group": group.0,
            "generation": generation,
            "replay_from": position(replay_from),
            "payload_bytes": payload_bytes,
        }),
        Fact::Unfinished { name, text } => json!({ "kind": "unfinished", "name": name, "text": text }),
        Fact::Unknown { name } => json!({ "kind": "unknown_file", "name": name }),
        Fact::Damaged { name, offset, bytes, text, record } => json!({
            "kind": "damage",
            "name": name,
            "offset": offset,
            "bytes": bytes,
            "text": text,
            "record": record.as_ref().map(record_name),
        }),
    }
}

/// The last line.
pub(super) fn summary(damage_count: u64, unread_extent_count: u64) -> Value {
    json!({ "kind": "summary", "damage_count": damage_count, "unread_extent_count": unread_extent_count })
}

fn record_name(record: &RecordName) -> Value {
    json!({
        "record_kind": record.kind.name(),
        "group": record.group.0,
        "term": record.term,
        "index": record.index,
    })
}

fn node_of(node: &Founder) -> Value {
    json!({ "number": node.number, "folder_id": id_text(node.folder_id), "address": node.address })
}

fn position(at: &WalPosition) -> Value {
    json!({ "file": at.file.0, "offset": at.offset })
}

fn id_text(id: u128) -> String {
    format!("{id:032x}")
}
