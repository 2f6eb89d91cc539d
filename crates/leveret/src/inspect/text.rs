//! Facts as tables for people.
//!
//! Invariant: printed while facts arrive, so columns have fixed widths; a value wider than its
//! column pushes the rest of its line, never cuts anything. Damage starts its line with `DAMAGED`,
//! wherever it is found.

use std::io::{self, Write};

use super::InLog;
use storage::inspect::Fact;
use storage::wal::RecordName;
use storage::{Founder, WalPosition};

/// Which table is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Wal,
    Extents,
    Checkpoints,
}

/// Writes facts as tables.
pub(super) struct Tables {
    open: Option<Table>,
    with_records: bool,
    /// A log file is one row, which its end completes.
    wal_file: Option<WalRow>,
    damage_count: u64,
    counts: [u64; 3],
}

/// The beginning of a row of the log.
struct WalRow {
    name: String,
    bytes: u64,
    number: u64,
}

impl Tables {
    /// With records, frames and records have lines of their own between a file's first line and its
    /// last.
    pub(super) fn new(with_records: bool) -> Tables {
        Tables { open: None, with_records, wal_file: None, damage_count: 0, counts: [0; 3] }
    }

    /// Writes the line or lines of a fact.
    pub(super) fn write(&mut self, fact: &Fact, out: &mut impl Write) -> io::Result<()> {
        match fact {
            Fact::Identity(identity) => {
                writeln!(out, "node      {}", visible(&identity.node_name))?;
                // One that joined others has its cluster's number in another file.
                if identity.cluster_id != 0 {
                    writeln!(out, "cluster   {:032x}", identity.cluster_id)?;
                }
                writeln!(out, "folder    {:032x}", identity.folder_id)
            }
            Fact::Node(node) => {
                let id = if node.id == 0 { "none yet".to_owned() } else { node.id.to_string() };
                writeln!(out, "number    {id} in its cluster, {}, start {}", node.state.name(), node.start)
            }
            Fact::Cluster(record) => {
                if let Some(cluster) = record.joined {
                    writeln!(out, "cluster   {cluster:032x}")?;
                }
                for before in &record.before {
                    writeln!(out, "before    {before:032x}, whose other nodes were given up")?;
                }
                let node = |node: &Founder| format!("{} at {}", node.number, visible(&node.address));
                let nodes: Vec<String> = record.founders.iter().map(node).collect();
                let when = match record.joined {
                    None => "when it was founded",
                    Some(_) if record.before.is_empty() => "when it joined",
                    Some(_) => "when it joined or went on alone",
                };
                writeln!(out, "its nodes {when}: {}", nodes.join(", "))
            }
            Fact::NoIdentity => {
                self.damage_count += 1;
                writeln!(out, "DAMAGED identity: the file is missing, so nobody can tell whose folder this is")
            }
            Fact::DurableNote(at) => writeln!(out, "log was durable up to {} when that was last noted", place(at)),
            Fact::WalFile { name, bytes, header } => {
                self.end_row(out)?;
                self.open(Table::Wal, out)?;
                self.counts[Table::Wal as usize] += 1;
                let row = WalRow { name: visible(name), bytes: *bytes, number: header.file.0 };
                if row.number == 0 {
                    writeln!(out, "{:<20} {:>8} {:>12}  spare, ready to be used", row.name, "-", row.bytes)
                } else if self.with_records {
                    writeln!(out, "{:<20} {:>8} {:>12}", row.name, row.number, row.bytes)?;
                    self.wal_file = Some(row);
                    Ok(())
                } else {
                    self.wal_file = Some(row);
                    Ok(())
                }
            }
            Fact::Frame { offset, header } => writeln!(
                out,
                "  frame {} at {offset}: {} bytes, records {}, session {}",
                header.frame_no, header.bytes, header.record_count, header.session
            ),
            Fact::Record { record, body_offset, body_bytes } => {
                writeln!(out, "    {}, {body_bytes} bytes at {body_offset}", record_text(record))
            }
            Fact::WalFileEnd { end, frames, records, synced, torn } => {
                let row = self.wal_file.take();
                let torn = if *torn { "  something unfinished after its end" } else { "" };
                let counts = format!("{frames:>10} {records:>10} {end:>12} {synced:>12}{torn}");
                match row.filter(|_| !self.with_records) {
                    Some(row) => writeln!(out, "{:<20} {:>8} {:>12} {counts}", row.name, row.number, row.bytes),
                    None => writeln!(out, "{:<20} {:>8} {:>12} {counts}", "  its end", "", ""),
                }
            }
            Fact::WalFileUnreadable { name, bytes } => {
                self.open(Table::Wal, out)?;
                let note = "no readable header: a spare in the making, or reuse cut short by a crash";
                writeln!(out, "{:<20} {:>8} {bytes:>12}  {note}", visible(name), "-")
            }
            Fact::Extent { id, bytes, run_count, is_unread: _ } => {
                self.open(Table::Extents, out)?;
                self.counts[Table::Extents as usize] += 1;
                writeln!(out, "extent {}: {bytes} bytes, runs {run_count}", id.0)
            }
            Fact::Run(run) => writeln!(
                out,
                "{:>20} {:>14} {:>14} {:>10} {:>12} {:>12}",
                run.queue, run.first_seq, run.last_seq, run.count, run.bodies_bytes, run.bodies_offset
            ),
            Fact::Checkpoint { name, group, generation, replay_from, payload_bytes } => {
                self.open(Table::Checkpoints, out)?;
                self.counts[Table::Checkpoints as usize] += 1;
                let (name, replay_from) = (visible(name), place(replay_from));
                writeln!(out, "{name:<28} {:>6} {generation:>10} {payload_bytes:>12}  {replay_from}", group.0)
            }
            Fact::Unknown { name } => writeln!(out, "{}: no part of this version makes such a file", visible(name)),
            Fact::Unfinished { name, text } => {
                writeln!(out, "unfinished {}: nothing needs it ({})", visible(name), visible(text))
            }
            Fact::Damaged { name, offset, bytes, text, record } => {
                self.damage_count += 1;
                let length = if *bytes > 0 { format!(", {bytes} bytes") } else { String::new() };
                let record = record.as_ref().map_or_else(String::new, |record| format!(" ({})", record_text(record)));
                writeln!(out, "DAMAGED {} at byte {offset}{length}: {}{record}", visible(name), visible(text))
            }
        }
    }

    /// Writes the last lines. What was not read is named there: nobody is to take it for whole.
    /// `in_log`: no state was saved yet, and this is what the log has.
    pub(super) fn write_end(&mut self, unread: u64, in_log: Option<&InLog>, out: &mut impl Write) -> io::Result<()> {
        self.end_row(out)?;
        let [wal, extents, checkpoints] = self.counts;
        writeln!(out)?;
        if let Some(groups) = in_log {
            writeln!(out, "no state was saved yet: all that is in this folder is in the log (--records lists it):")?;
            for (group, (count, last)) in groups {
                let whose = if *group == 0 { "what is declared".to_owned() } else { format!("partition {group}") };
                let entries = if *count == 1 { "entry" } else { "entries" };
                writeln!(out, "  {whose}: {count} {entries}, the last with index {last}")?;
            }
        }
        write!(out, "log files {wal}, extents {extents}, checkpoints {checkpoints}; ")?;
        match self.damage_count {
            0 if unread > 0 => write!(out, "no damage found in what was read")?,
            0 => write!(out, "no damage found")?,
            count => write!(out, "damaged places {count}")?,
        }
        match unread {
            0 => writeln!(out),
            count => writeln!(out, "; not read: the messages of {count} extents, as --quick asks for"),
        }
    }

    /// Writes the row of a log file that could not be read to its end; the damage has a line of its
    /// own.
    fn end_row(&mut self, out: &mut impl Write) -> io::Result<()> {
        match self.wal_file.take().filter(|_| !self.with_records) {
            Some(row) => writeln!(out, "{:<20} {:>8} {:>12}  not readable to its end", row.name, row.number, row.bytes),
            None => Ok(()),
        }
    }

    fn open(&mut self, table: Table, out: &mut impl Write) -> io::Result<()> {
        if self.open == Some(table) {
            return Ok(());
        }
        self.end_row(out)?;
        self.open = Some(table);
        match table {
            Table::Wal => writeln!(
                out,
                "\nlog\n{:<20} {:>8} {:>12} {:>10} {:>10} {:>12} {:>12}",
                "file", "number", "bytes", "frames", "records", "end", "synced"
            ),
            Table::Extents => writeln!(
                out,
                "\nextents\n{:>20} {:>14} {:>14} {:>10} {:>12} {:>12}",
                "queue", "first", "last", "messages", "bytes", "at"
            ),
            Table::Checkpoints => writeln!(
                out,
                "\ncheckpoints\n{:<28} {:>6} {:>10} {:>12}  log is needed from",
                "file", "group", "generation", "bytes"
            ),
        }
    }
}

/// `entry 17@2 of group 3`
fn record_text(record: &RecordName) -> String {
    format!("{} {}@{} of group {}", record.kind.name(), record.index, record.term, record.group.0)
}

fn place(at: &WalPosition) -> String {
    if *at == WalPosition::START {
        return "its beginning".to_owned();
    }
    format!("file {} byte {}", at.file.0, at.offset)
}

/// Names and texts that come from a damaged disk, without control characters.
fn visible(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}
