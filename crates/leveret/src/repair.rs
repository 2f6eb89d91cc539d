//! `leveret repair DIR`: going on with a data folder that is damaged.
//!
//! Invariant: with `--dry-run` nothing on the disk changes, and what is printed is what a repair
//! would do; it is the same code. A folder that a broker has open is refused.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use server::engine::{ClusterFile, OpenError, Others, RepairReport, Uncounted, make_cluster_file, next_aside, repair};
use storage::data_folder::{ALONE_FILE, IDENTITY_NAME, repair_identity};
use storage::wal::WAL_FOLDER;
use storage::{DataFolder, Disk, DryDisk, FolderIdentity, RealDisk, StorageError};

use crate::exit::{self, Exit};

/// What to repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    folder: PathBuf,
    is_trial: bool,
    node_name: Option<String>,
    /// The data folder of another node of its cluster.
    cluster_of: Option<PathBuf>,
}

pub(crate) fn command() -> Command {
    let folder = Arg::new("folder")
        .value_name("DIR")
        .required(true)
        .value_parser(ValueParser::path_buf())
        .help("The data folder of a node that does not run");
    let dry_run = Arg::new("dry-run")
        .long("dry-run")
        .action(ArgAction::SetTrue)
        .help("Say what would be given up and kept, and change nothing");
    let node_name = Arg::new("node-name")
        .long("node-name")
        .value_name("NAME")
        .help("What the node is called, if nothing in the folder says so any more");
    let cluster_of = Arg::new("cluster-of")
        .long("cluster-of")
        .value_name("DIR")
        .value_parser(ValueParser::path_buf())
        .help("The data folder of another node of the cluster, which does not run: a lost file `cluster` is made anew by it");
    Command::new("repair")
        .about("Go on with a damaged data folder, without what is damaged in it")
        .long_about(ABOUT)
        .after_long_help(AFTER_HELP)
        .arg(folder)
        .arg(dry_run)
        .arg(node_name)
        .arg(cluster_of)
}

/// What was asked for.
pub(crate) fn asked(mut matches: ArgMatches) -> Repair {
    let folder = matches.remove_one("folder").expect("clap requires it");
    Repair {
        folder,
        is_trial: matches.get_flag("dry-run"),
        node_name: matches.remove_one("node-name"),
        cluster_of: matches.remove_one("cluster-of"),
    }
}

/// Repairs, or says what a repair would do.
pub(crate) fn run(asked: &Repair) -> Exit {
    let folder = asked.folder.display();
    if !asked.folder.join(IDENTITY_NAME).is_file() && !asked.folder.join(WAL_FOLDER).is_dir() {
        exit::say(&format!("{folder} is not a leveret data folder: it has neither {IDENTITY_NAME} nor {WAL_FOLDER}"));
        return Exit::Unreadable;
    }
    let disk = match RealDisk::create(&asked.folder) {
        Ok(disk) => Arc::new(disk),
        Err(error) => {
            exit::say(&format!("cannot open {folder}: {error}"));
            return Exit::Unreadable;
        }
    };
    let other = match asked.cluster_of.as_ref().map(|other| (other, RealDisk::existing(other))) {
        Some((other, Err(error))) => {
            exit::say(&format!("cannot open {}: {error}", other.display()));
            return Exit::Unreadable;
        }
        Some((_, Ok(disk))) => Some(Arc::new(disk)),
        None => None,
    };
    // Tried first in any case: opening a sound folder for writing would tidy it up, and it is to
    // stay as it is.
    let name = asked.node_name.as_deref();
    let report = match on(Arc::new(DryDisk::new(disk.clone())), name, other.as_ref()) {
        Ok((tried, _)) if !asked.is_trial && !tried.found.is_empty() => on(disk, name, other.as_ref()),
        tried => tried,
    };
    match report {
        Ok((report, next)) => {
            let text = told(&report, asked.is_trial, next);
            match asked.is_trial && !report.found.is_empty() {
                true => exit::print_and_end(&text, Exit::Failed),
                false => exit::print_and_end(&text, Exit::Done),
            }
        }
        Err((error, exit)) => {
            exit::say(&error);
            exit
        }
    }
}

/// Why nothing was repaired. A folder that a running node holds is not looked into at all.
fn stopped(error: StorageError) -> (String, Exit) {
    let exit = if matches!(error, StorageError::Locked { .. }) { Exit::Unreadable } else { Exit::Failed };
    (error.to_string(), exit)
}

/// What comes after a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The broker may start.
    Start,
    /// The same, and only what says whose folder it is was repaired: of all else the other nodes have copies, and a
    /// start looks at it.
    StartAmongOthers,
    /// The folder is on its way to being that of a node alone.
    Recover,
}

fn on<D: Disk>(
    disk: Arc<D>,
    node_name: Option<&str>,
    other: Option<&Arc<RealDisk>>,
) -> Result<(RepairReport, Next), (String, Exit)> {
    // The folder stays locked as long as this value.
    // Nobody starts a node more often than once a second.
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let unused_start = u32::try_from(now_s).unwrap_or(u32::MAX / 2);
    let restored = repair_identity(&disk, node_name, unused_start, |name| next_aside(&*disk, name)).map_err(stopped)?;
    if let Some(restored) = restored {
        let is_going_alone = disk.list("").is_ok_and(|names| names.iter().any(|name| name == ALONE_FILE));
        let (others, next) = match is_going_alone {
            true => (Others::GivenUp, Next::Recover),
            false if restored.is_of_cluster => (Others::None, Next::StartAmongOthers),
            false => (Others::None, Next::Start),
        };
        let mut report = match next {
            Next::StartAmongOthers => RepairReport::default(),
            _ => {
                let repaired = repair(&disk, restored.identity.folder_id, restored.node, others);
                repaired.map_err(|error| (error.to_string(), Exit::Failed))?
            }
        };
        report.found.splice(0..0, restored.damage);
        report.changed.splice(0..0, restored.changed);
        report.aside.extend(restored.aside);
        return Ok((report, next));
    }
    let open = |name: &str| {
        let nobody = FolderIdentity { node_name: name.to_owned(), cluster_id: 0, folder_id: 0 };
        DataFolder::open(disk.clone(), nobody, std::process::id())
    };
    // Whoever's folder it is, this is about its files.
    let folder = match open("repair") {
        Err(StorageError::OtherNode { found, .. }) => open(&found),
        opened => opened,
    };
    // Of one whose other nodes are given up nobody else has anything.
    let (folder, others, next) = match folder {
        Err(StorageError::GoingAlone { .. }) => {
            (DataFolder::open_as_it_is(disk.clone(), std::process::id()), Others::GivenUp, Next::Recover)
        }
        opened => (opened, Others::None, Next::Start),
    };
    let folder = folder.map_err(stopped)?;
    let failed = |error: OpenError| (error.to_string(), Exit::Failed);
    if next == Next::Start
        && let ClusterFile::MadeAnew { found, changed, aside } = make_cluster_file(&folder, other).map_err(failed)?
    {
        let aside = aside.map(|name| ("cluster".to_owned(), name)).into_iter().collect();
        let report = RepairReport { found: vec![found], changed: vec![changed], aside, ..RepairReport::default() };
        return Ok((report, Next::StartAmongOthers));
    }
    let is_of_cluster = next == Next::Start && folder.cluster_record().map_err(stopped)?.is_some();
    let others = if is_of_cluster { Others::Serve } else { others };
    let repaired = repair(folder.disk(), folder.identity().folder_id, folder.node(), others);
    Ok((repaired.map_err(failed)?, next))
}

fn told(report: &RepairReport, is_trial: bool, next: Next) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes all text");
    if report.found.is_empty() {
        let to_do = if next == Next::Recover { format!("; {RECOVER_AGAIN}") } else { String::new() };
        line(format_args!("nothing is damaged; {} there, and nothing was changed{to_do}", are(report.messages)));
        return text;
    }
    report.found.iter().for_each(|found| line(format_args!("damaged: {found}")));
    report.given_up.iter().for_each(|lost| line(format_args!("given up: {lost}")));
    report.changed.iter().for_each(|changed| line(format_args!("changed: {changed}")));
    report.aside.iter().for_each(|(from, to)| line(format_args!("kept aside: {from} as {to}")));
    if next == Next::StartAmongOthers {
        line(format_args!(
            "{}; the log and the states are looked at by a start, or by `leveret cluster recover` where the other nodes are lost for good",
            if is_trial {
                "this was a trial, nothing was changed: a repair makes it so"
            } else {
                "repaired; the broker may start"
            }
        ));
        return text;
    }
    let lost = lost_in_words(report);
    match is_trial {
        true => line(format_args!(
            "this was a trial, nothing was changed: after a repair {} there, and it gives up {lost}",
            are(report.messages)
        )),
        false => {
            let next = if next == Next::Recover { RECOVER_AGAIN } else { "the broker may start" };
            line(format_args!("repaired: {} there; {lost} were given up; {next}", are(report.messages)))
        }
    }
    text
}

const RECOVER_AGAIN: &str = "run `leveret cluster recover` with --yes again, before which no broker starts";

/// `1 message is`, `2 messages are`.
fn are(count: u64) -> String {
    if count == 1 { "1 message is".to_owned() } else { format!("{count} messages are") }
}

/// How many messages are gone. What nobody can count is never passed over.
fn lost_in_words(report: &RepairReport) -> String {
    match (report.messages_lost, report.uncounted) {
        (0, Uncounted::Nothing) => "none".to_owned(),
        (known, Uncounted::Nothing) => format!("{known} that are known by number"),
        (0, more) => format!("{more} that nobody can count"),
        (known, more) => format!("{known} that are known by number and {more} that nobody can count"),
    }
}

const ABOUT: &str = "\
Go on with a damaged data folder, without what is damaged in it.

A broker does not serve a partition whose log or state is damaged, nor start where it cannot tell whose the damage is: confirmed messages \
may be missing. Restore what is damaged from a copy if there is one. If there is none, this keeps everything that is intact and says what it \
gives up: messages by queue and number, entries of the log by partition and index, with an estimate of the messages that were in them. In \
the log what was written together is damaged together: messages that one turn of the broker took from one publisher. Damaged states and extents are \
kept in the folder `damaged` inside the data folder, files of the log where they are. Nothing intact is given up: where it cannot be told whether a message was settled, it comes back, flagged as redelivered; messages of queues that nobody knows any more come into queues \
called recovered.PARTITION.NUMBER. One thing needs a hand: where both saved states of a partition are lost, its messages in extents are kept \
aside as files, since nothing says which of them were settled; `leveret inspect DIR --export` prints them. The file `identity` is made anew from what is left of it and from the log, and so is the file `node`.

Of a folder of a cluster the other nodes have what this one lost, so a damaged one is left as it is: only `identity` and `node` are repaired \
there, where a checksum or the file `cluster` proves what they were, and a lost `cluster` by the folder of another node. Where the others are lost for good, `leveret cluster recover` comes first.";

const AFTER_HELP: &str = "\
Examples:
  leveret repair data --dry-run
      What is damaged and what a repair would give up. Changes nothing.
  leveret repair data
      Does it. The broker must not run; copy the folder first if there is room.
  leveret repair data --cluster-of other
      The file `cluster` of data is gone or damaged: makes it anew by the folder of another node of the cluster, of which nothing is
      changed. Both are stopped.

Exit codes: 0 repaired, or nothing is damaged, also where standard output cannot be written (its last line is on standard error then); \
1 --dry-run found damage, or the repair failed; 2 wrong command line; 3 not a data folder, or one that a running node uses.";
