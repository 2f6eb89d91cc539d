//! `leveret cluster recover DIR`: a cluster whose other nodes are lost for good goes on with one that is left.
//!
//! Invariant: without `--yes` nothing on the disk changes, and what is printed is what would be done; it is the same
//! code. A folder that a broker has open is refused.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use server::engine::{AloneReport, RoomShort, go_on_alone};
use storage::data_folder::{IDENTITY_NAME, repair_identity};
use storage::wal::WAL_FOLDER;
use storage::{DataFolder, Disk, DryDisk, RealDisk, StorageError};

use crate::exit::{self, Exit};

/// Which node goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recover {
    folder: PathBuf,
    is_meant: bool,
}

pub(crate) fn command() -> Command {
    let folder = Arg::new("folder")
        .value_name("DIR")
        .required(true)
        .value_parser(ValueParser::path_buf())
        .help("The data folder of the node that is to go on, which does not run");
    let yes = Arg::new("yes")
        .long("yes")
        .action(ArgAction::SetTrue)
        .help("Do it: all other nodes are given up for ever. Without it this only says what would be done");
    Command::new("recover")
        .about("Go on with one node of a cluster that has lost the disks of most others for good")
        .long_about(ABOUT)
        .after_long_help(AFTER_HELP)
        .arg(folder)
        .arg(yes)
}

/// What was asked for.
pub(crate) fn asked(mut matches: ArgMatches) -> Recover {
    let folder = matches.remove_one("folder").expect("clap requires it");
    Recover { folder, is_meant: matches.get_flag("yes") }
}

/// Has the node go on, or says what that would come to.
pub(crate) fn run(asked: &Recover) -> Exit {
    let folder = asked.folder.display();
    let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    let identity = match std::fs::metadata(asked.folder.join(IDENTITY_NAME)) {
        // Where there is a log it was lost, and its owner was that of the folder.
        Err(error) if is_gone(&error) && asked.folder.join(WAL_FOLDER).is_dir() => std::fs::metadata(&asked.folder),
        found => found,
    };
    let owner = match identity {
        Ok(identity) => identity.uid(),
        Err(error) if is_gone(&error) => {
            exit::say(&format!("{folder} is not the data folder of a node: it has no file {IDENTITY_NAME}"));
            return Exit::Unreadable;
        }
        Err(error) => {
            exit::say(&format!("cannot read {folder}: {error}"));
            return Exit::Unreadable;
        }
    };
    let own = rustix::process::geteuid().as_raw();
    if asked.is_meant && owner != own {
        exit::say(&format!(
            "{folder} belongs to user {owner}, and you are user {own}: the broker could not open what you write. Run this as that user \
             (`sudo -u '#{owner}' leveret cluster recover ...`); nothing was changed"
        ));
        return Exit::Unreadable;
    }
    let disk = match RealDisk::existing(&asked.folder) {
        Ok(disk) => Arc::new(disk),
        Err(error) => {
            exit::say(&format!("cannot open {folder}: {error}"));
            return Exit::Unreadable;
        }
    };
    let report = match asked.is_meant {
        true => on(disk),
        false => on(Arc::new(DryDisk::new(disk))),
    };
    match report {
        Ok(report) => {
            let is_whole = report.damage.is_empty() && report.room_short.is_none();
            let is_done = report.is_alone() || (asked.is_meant && is_whole);
            let end = if is_done { Exit::Done } else { Exit::Failed };
            exit::print_and_end(&told(&report, &folder.to_string(), asked.is_meant), end)
        }
        Err((error, exit)) => {
            exit::say(&error);
            exit
        }
    }
}

fn on<D: Disk>(disk: Arc<D>) -> Result<AloneReport, (String, Exit)> {
    // The folder stays locked as long as this value.
    let folder = DataFolder::open_as_it_is(disk.clone(), std::process::id()).map_err(|error| {
        let exit = if matches!(error, StorageError::Locked { .. }) { Exit::Unreadable } else { Exit::Failed };
        let is_lost = error.is_damage() || matches!(error, StorageError::IdentityGone { .. });
        (if is_lost { what_helps(disk, &error) } else { error.to_string() }, exit)
    })?;
    go_on_alone(&folder).map_err(|error| (error.to_string(), Exit::Failed))
}

/// What to do about a file that says whose folder it is: a repair is only named where it does it.
fn what_helps<D: Disk>(disk: Arc<D>, error: &StorageError) -> String {
    let folder = disk.describe();
    match repair_identity(&Arc::new(DryDisk::new(disk)), None, 1, |name| Ok(format!("damaged/{name}"))) {
        Ok(Some(repaired)) => {
            let damage = repaired.damage.join(", ");
            format!(
                "{damage}: run `leveret repair {folder}`, which makes it anew, and then this again; nothing was changed"
            )
        }
        Err(lost @ StorageError::NotMadeAnew { .. }) => lost.to_string(),
        Ok(None) | Err(_) => error.to_string(),
    }
}

fn told(report: &AloneReport, folder: &str, is_meant: bool) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes all text");
    let AloneReport { own: (number, name), clusters: (before, after), .. } = report;
    match *before {
        0 => line(format_args!("node {number} ({name}) of a cluster whose number nothing says any more")),
        before => line(format_args!("node {number} ({name}) of cluster {before:032x}")),
    }
    if !report.damage.is_empty() {
        report.damage.iter().for_each(|damage| line(format_args!("damaged: {damage}")));
        match is_meant {
            true => line(format_args!(
                "nothing was changed, but that no broker opens this folder any more: it is damaged and has to be repaired first, by `leveret \
                 repair {folder}` (which says with --dry-run what that gives up). Then run this again"
            )),
            false => line(format_args!(
                "nothing was changed. The folder is damaged: with --yes no broker opens it any more, `leveret repair {folder}` repairs it \
                 then, and this has to be run with --yes once more"
            )),
        }
        return text;
    }
    if report.is_alone() && report.room_short.is_none() {
        line(format_args!(
            "it is the only node of its cluster already: nothing is to be done, and nothing was changed"
        ));
        return text;
    }
    if let Some(what) = &report.lost_file {
        line(format_args!(
            "the file `cluster` {what}: what is declared says that the node is one of several, and the file is made anew"
        ));
    }
    if report.was_begun {
        line(format_args!("an earlier try had not come to its end: this takes its steps again"));
    }
    for node in &report.given_up {
        line(format_args!("given up for ever: node {} ({}) at {}", node.number, node.name, node.address));
    }
    line(format_args!(
        "what this node has; of several nodes that are left the one with the higher term has more, and with equal terms the one with the \
         higher index"
    ));
    for copy in &report.copies {
        let what = if copy.partition == 0 { "what is declared".to_owned() } else { messages(copy.messages) };
        let votes =
            if copy.votes { "" } else { ", NOT A VOTER: messages may be missing, and settled ones may come back" };
        let (term, index) = (copy.last.term.0, copy.last.index.0);
        line(format_args!("  partition {:<4} term {term:<6} index {index:<10} {what}{votes}", copy.partition));
    }
    report.empty.iter().for_each(|queue| line(format_args!("begins EMPTY, as this node has no copy of it: {queue}")));
    report.adopted.iter().for_each(|messages| line(format_args!("kept: {messages}")));
    line(format_args!(
        "{} kept. What a majority of the nodes that are given up confirmed without this one is lost; messages that were settled there may \
         come back",
        match report.messages {
            1 => "1 message is".to_owned(),
            count => format!("{count} messages are"),
        }
    ));
    if let Some(RoomShort { needed, free }) = report.room_short {
        line(format_args!(
            "nothing was changed: it needs {} MiB of room on the disk of {folder}, and {} MiB are free. Make room outside of this folder, and run this \
             again",
            needed.div_ceil(MIB),
            free / MIB
        ));
        return text;
    }
    match is_meant {
        true => line(format_args!(
            "done: the cluster is {after:032x}, and this node its only one. Start it with the settings that it had; others join it with empty \
             data folders (`leveret cluster join`), those that were given up too. Never start one of those over its old folder"
        )),
        false => line(format_args!(
            "nothing was changed. If none of the nodes that would be given up can ever come back, run it with --yes"
        )),
    }
    text
}

const MIB: u64 = 1 << 20;

fn messages(count: u64) -> String {
    if count == 1 { "1 message".to_owned() } else { format!("{count} messages") }
}

const ABOUT: &str = "\
Go on with one node of a cluster that has lost the disks of most others for good.

A cluster that has lost the majority of its nodes decides nothing any more. Where those come back, it goes on by itself: start them, and do \
not use this. Where their disks are lost, this makes of the data folder of one node that is left a cluster of that node alone, with \
everything that it has: what is declared, and of each queue of which it has a copy all messages of its log, also those of which it had not \
heard yet that they are confirmed. Queues of which it has no copy are there and empty. It says all of that first, and does it with --yes.

The other nodes are given up for ever. Their numbers are not given out again, and a node that comes back with its old data folder is \
refused: the cluster went on as another one. Whoever started two of them again would have two brokers with the same queues.";

const AFTER_HELP: &str = "\
Examples:
  leveret cluster recover data
      Which nodes would be given up, what this one has of each partition, which queues would begin empty. Changes nothing. With
      several nodes that are left, run it on each, and choose the one that has more.
  leveret cluster recover data --yes
      Does it. Copy the folder first if there is room. Killed in the middle, it is run again: no broker opens the folder before.
  leveret server --data-dir data --cluster-address 10.0.0.3:27671 --cluster-secret-file secret
      Starts the node as before: the settings that it had still hold.
  leveret cluster join 10.0.0.3:27671 --data-dir empty --cluster-address 10.0.0.4:27671 --cluster-secret-file secret
      Another one joins it; with three, queues have as many copies as before.

Exit codes: 0 done, or nothing is to be done, also where standard output cannot be written (the outcome is on standard error then); \
1 not done: without --yes, or as it says; 2 wrong command line; 3 not a data folder, or \
one that a running node uses.";
