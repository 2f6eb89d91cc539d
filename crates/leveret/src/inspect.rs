//! `leveret inspect DIR`: what is in a data folder, and what is damaged in it.
//!
//! Invariant: reads only, takes no lock, prints while it reads (so that a large folder costs no
//! memory), and says of every damaged place the file and the offset. The exit code tells a script
//! whether there was one.

mod export;
mod json;
mod text;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use storage::inspect::{Depth, Fact, inspect};
use storage::wal::{RecordKind, RecordName};
use storage::{Disk as _, RealDisk};

use crate::exit::{self, Exit};

/// What to print of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspection {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// Which parts to list; damage and the identity are always told.
    pub(crate) parts: Vec<Part>,
    /// One JSON object a line instead of tables.
    pub(crate) json: bool,
    /// How deep to look.
    pub(crate) depth: Depth,
    /// The messages of the extents, and nothing else.
    pub(crate) exports: bool,
}

/// The parts of a folder that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The write-ahead log.
    Wal,
    /// Messages that outlived it.
    Extents,
    /// Where partitions start again.
    Checkpoints,
}

impl Part {
    /// All of them, in the order in which they are printed.
    pub(crate) const ALL: [(&'static str, Part); 3] =
        [("wal", Part::Wal), ("extents", Part::Extents), ("checkpoints", Part::Checkpoints)];

    /// The part that a fact is about. Identity and damage are about the folder as a whole.
    fn of(fact: &Fact) -> Option<Part> {
        match fact {
            Fact::WalFile { .. }
            | Fact::Frame { .. }
            | Fact::Record { .. }
            | Fact::WalFileEnd { .. }
            | Fact::WalFileUnreadable { .. }
            | Fact::DurableNote(_) => Some(Part::Wal),
            Fact::Extent { .. } | Fact::Run(_) => Some(Part::Extents),
            Fact::Checkpoint { .. } => Some(Part::Checkpoints),
            Fact::Identity(_)
            | Fact::Node(_)
            | Fact::Cluster(_)
            | Fact::NoIdentity
            | Fact::Unknown { .. }
            | Fact::Unfinished { .. }
            | Fact::Damaged { .. } => None,
        }
    }
}

/// Prints the folder. Done without damage, Failed with damage, Unreadable when it is no data folder
/// or cannot be read at all.
pub(crate) fn run(inspection: &Inspection) -> Exit {
    let folder = inspection.folder.display();
    let disk = match RealDisk::existing(&inspection.folder) {
        Ok(disk) => disk,
        Err(error) => {
            exit::say(&format!("cannot inspect {folder}: {}; give the data folder of a node", reason(&error)));
            return Exit::Unreadable;
        }
    };
    match disk.list("") {
        // What the storage would only report as missing parts is told here in one line: most likely
        // the path is wrong.
        Ok(names) if !names.iter().any(|name| PARTS_OF_A_FOLDER.contains(&name.as_str())) => {
            exit::say(&format!("{folder} is not a leveret data folder; give the data folder of a node"));
            return Exit::Unreadable;
        }
        Ok(_) => {}
        Err(error) => {
            exit::say(&format!("cannot inspect {folder}: {}; run as the user of the node", reason(&error)));
            return Exit::Unreadable;
        }
    }
    if inspection.exports {
        return export::run(&disk);
    }
    let mut printer = Printer::new(inspection);
    inspect(&disk, inspection.depth, &server::engine::needs_of, &mut |fact| printer.show(&fact));
    let in_log = printer.tells_of_the_log_alone().then(|| in_log(&disk));
    printer.end(in_log)
}

/// What the records of the log are: by group how many entries it has, and the index of the last one.
type InLog = BTreeMap<u32, (u64, u64)>;

/// Reads the log once more, for a folder in which no state was saved yet: that one is small.
fn in_log(disk: &RealDisk) -> InLog {
    let mut groups = InLog::new();
    let depth = Depth { records: true, contents: false, messages: false };
    inspect(disk, depth, &server::engine::needs_of, &mut |fact| {
        if let Fact::Record { record: RecordName { group, kind: RecordKind::Entry, index, .. }, .. } = fact {
            let (count, last) = groups.entry(group.0).or_default();
            *count += 1;
            *last = index;
        }
    });
    groups
}

/// One of these is in every data folder that is not empty.
const PARTS_OF_A_FOLDER: [&str; 4] = ["identity", "wal/", "extents/", "checkpoints/"];

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such folder".to_owned(),
        io::ErrorKind::NotADirectory => "it is not a folder".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// Writes facts in the form that was asked for, and counts the damage.
struct Printer<'a> {
    inspection: &'a Inspection,
    out: BufWriter<io::StdoutLock<'static>>,
    text: text::Tables,
    damage_count: u64,
    unread_count: u64,
    /// Saved states, and files of the log that hold something.
    state_count: u64,
    log_count: u64,
    failed: Option<io::Error>,
}

impl<'a> Printer<'a> {
    fn new(inspection: &'a Inspection) -> Printer<'a> {
        let text = text::Tables::new(inspection.depth.records);
        Printer {
            inspection,
            out: BufWriter::new(io::stdout().lock()),
            text,
            damage_count: 0,
            unread_count: 0,
            state_count: 0,
            log_count: 0,
            failed: None,
        }
    }

    fn show(&mut self, fact: &Fact) {
        if let Fact::Damaged { .. } | Fact::NoIdentity = fact {
            self.damage_count += 1;
        }
        self.state_count += u64::from(matches!(fact, Fact::Checkpoint { .. }));
        self.log_count += u64::from(matches!(fact, Fact::WalFileEnd { records: 1.., .. }));
        self.unread_count += u64::from(matches!(fact, Fact::Extent { is_unread: true, .. }));
        let is_wanted = Part::of(fact).is_none_or(|part| self.inspection.parts.contains(&part));
        // Once nobody reads, only the count goes on: it is the exit code.
        if !is_wanted || self.failed.is_some() {
            return;
        }
        let written = match self.inspection.json {
            true => writeln!(self.out, "{}", json::line(fact)),
            false => self.text.write(fact, &mut self.out),
        };
        self.failed = written.err();
    }

    /// Whether nothing was saved yet of what is in the log.
    fn is_in_log_alone(&self) -> bool {
        self.state_count == 0 && self.log_count > 0 && self.damage_count == 0
    }

    /// Whether it says so in words, with what the log has.
    fn tells_of_the_log_alone(&self) -> bool {
        self.is_in_log_alone() && !self.inspection.json
    }

    /// `in_log`: what is in the log, where nothing else is in the folder.
    fn end(mut self, in_log: Option<InLog>) -> Exit {
        let written = match self.inspection.json {
            true => writeln!(self.out, "{}", json::summary(self.damage_count, self.unread_count)),
            false => self.text.write_end(self.unread_count, in_log.as_ref(), &mut self.out),
        };
        ended(self.failed.or(written.and_then(|()| self.out.flush()).err()), self.damage_count)
    }
}

/// A reader who has seen enough is no error.
fn ended(failed: Option<io::Error>, damage_count: u64) -> Exit {
    match failed {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            exit::say(&format!("cannot write to standard output: {error}"));
            Exit::Failed
        }
        _ if damage_count > 0 => Exit::Failed,
        _ => Exit::Done,
    }
}
