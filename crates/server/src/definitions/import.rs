//! A definitions file taken in by a running node.
//!
//! Invariant: the file is planned as a whole before its first command leaves; each command is
//! decided before the count of changes is told. Whoever waits here is no shard's thread.

use super::hashes::{ClearPasswords, hash_clear};
use super::plan::{Fresh, Planned, plan};
use super::{DEFINITIONS_BYTES_MAX, Imported, WrongDefinitions};
use crate::handle::{ChangeError, FIRST_LEADER_LOOK_EVERY, FIRST_LEADER_TIMEOUT};
use crate::node::{Node, Shared};
use crate::topology_log::Answer;
use broker::PartitionId;
use broker::topology::{Command, CommandReply, Name, Refusal};
use sha2::{Digest as _, Sha256};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a change may take until it is decided where nothing gives it up before, as a cluster does that has no
/// majority; a disk that hangs longer hangs everything.
const DECIDED_WITHIN: Duration = Duration::from_secs(60);
/// Changes on their way at once. Each is given up some time after it was proposed, so that a long file is not proposed as
/// a whole.
const UNDER_WAY_MAX: usize = 1000;

/// Why a definitions file was not taken in, or not as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be read.
    #[error("cannot read it: {0}; the setting definitions names a file, or a folder with files that end in .json")]
    Read(std::io::Error),
    /// It is too large.
    #[error("it has more than {DEFINITIONS_BYTES_MAX} bytes")]
    TooLarge,
    /// One file of a folder was not. Those before it were.
    #[error("{file}: {source}")]
    Within {
        /// The file.
        file: String,
        /// Why.
        source: Box<ImportError>,
    },
    /// It is not what RabbitMQ writes, or asks for what this version has not. Nothing was changed.
    #[error("{0}")]
    Wrong(#[from] WrongDefinitions),
    /// It has queues, and the node has no place for them. Nothing was changed.
    #[error("this node has no durable queues")]
    NoPlace,
    /// A client was faster with a change that goes against the file, or the disk is low. What is counted was done.
    #[error("after {done} changes: {refusal}; {}", what_to_do(refusal))]
    Refused {
        /// How many changes were made.
        done: usize,
        /// What the topology said of the first that was not.
        refusal: Refusal,
    },
    /// Nobody decides about the next change.
    #[error("after {done} changes: {why}")]
    Undecided {
        /// How many changes were made.
        done: usize,
        /// Why, as of any change.
        why: ChangeError,
    },
    /// The node ends, and does not wait for the rest of a long file.
    #[error("after {done} changes: the node ends; take the rest in once it is back, or over another one")]
    Ends {
        /// How many changes were made.
        done: usize,
    },
}

impl ImportError {
    /// Whether the same files are refused every time, so that somebody has to change them.
    pub fn is_lasting(&self) -> bool {
        match self {
            ImportError::Read(_) | ImportError::Wrong(_) | ImportError::TooLarge | ImportError::NoPlace => true,
            ImportError::Within { source, .. } => source.is_lasting(),
            ImportError::Refused { .. } | ImportError::Undecided { .. } | ImportError::Ends { .. } => false,
        }
    }
}

fn what_to_do(refusal: &Refusal) -> &'static str {
    match *refusal == Refusal::low_on_disk() {
        true => "make room, and take the file in again",
        false => "a client changed the same meanwhile, take the file in again",
    }
}

/// When a file is taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before the first client is there. What the file has is taken in while the disk is low, too: without it nobody is let
    /// in who makes room, and the file bounds how much it is.
    Start,
    /// The node serves.
    Serving,
}

/// What became of a file of definitions, or of a folder of them.
#[derive(Debug)]
pub enum FromFiles {
    /// It was taken in.
    Taken(Imported),
    /// It is what was taken in last.
    Known,
    /// There is no file in the folder.
    None,
}

/// How often a file is planned again because somebody deletes its virtual hosts while they are
/// made.
const PLANS_MAX: usize = 8;

/// The global parameter that remembers what was taken in last, as RabbitMQ calls it.
const HASH_PARAMETER: &str = "imported_definition_hash_value";

impl Node {
    /// Takes in the definitions file at `path`, or all `*.json` of that folder by the order of their
    /// names; see the module. What was taken in last is passed over if `skips_known`. Blocks until
    /// every change is decided.
    pub(crate) fn import_definitions_at(
        &self,
        path: &Path,
        skips_known: bool,
        moment: Moment,
    ) -> Result<FromFiles, ImportError> {
        let files = files(path)?;
        if files.is_empty() {
            return Ok(FromFiles::None);
        }
        let texts: Vec<String> = files.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
        let value = hash_of(&texts);
        let shared = self.shared();
        let is_known = shared.topology().global_parameter(HASH_PARAMETER.as_bytes()) == Some(value.as_str());
        if skips_known && is_known {
            return Ok(FromFiles::Known);
        }
        let (mut all, mut fresh) = (Imported::default(), Fresh::IfUntouched);
        for (file, text) in files.iter().zip(&texts) {
            let within = |source| match files.len() {
                1 => source,
                _ => ImportError::Within { file: file.display().to_string(), source: Box::new(source) },
            };
            let imported = shared.import_definitions(text, fresh, moment).map_err(within)?;
            // The next file does not take away the user whom this one may have named.
            fresh = Fresh::Never;
            let Imported { changes, different, left_out } = imported;
            all.changes += changes;
            all.different.extend(different);
            all.left_out.extend(left_out);
        }
        // Behind all that it stands for: a node that ends before takes the files in again.
        if skips_known {
            let mut under_way = UnderWay::new(shared, moment, all.changes);
            under_way.propose(Command::PutGlobalParameter { name: Name::from(HASH_PARAMETER), value })?;
            under_way.wait()?;
        }
        Ok(FromFiles::Taken(all))
    }

    /// Takes in definitions. Blocks until every change is decided.
    pub fn import_definitions(&self, text: &str) -> Result<Imported, ImportError> {
        self.shared().import_definitions(text, Fresh::IfUntouched, Moment::Serving)
    }
}

/// Why no more changes are proposed.
enum Stopped {
    Refused(Refusal),
    Undecided,
    /// The node ends.
    Ends,
}

/// Changes on their way, in the order in which they were proposed, and how many are made.
struct UnderWay<'a> {
    shared: &'a Shared,
    moment: Moment,
    waiting: VecDeque<mpsc::Receiver<Result<CommandReply, Refusal>>>,
    done: usize,
}

impl<'a> UnderWay<'a> {
    fn new(shared: &'a Shared, moment: Moment, done: usize) -> Self {
        UnderWay { shared, moment, waiting: VecDeque::new(), done }
    }

    fn propose(&mut self, command: Command) -> Result<(), ImportError> {
        if self.shared.ends_imports.load(Ordering::Relaxed) {
            return Err(self.stop(Stopped::Ends));
        }
        if self.waiting.len() >= UNDER_WAY_MAX {
            self.wait_for_first()?;
        }
        let (sender, decided) = mpsc::channel();
        let answer = Answer::to_waiter(sender);
        match self.moment {
            Moment::Start => self.shared.log().propose(command, answer),
            Moment::Serving => self.shared.propose(command, answer),
        }
        self.waiting.push_back(decided);
        Ok(())
    }

    fn wait_for_first(&mut self) -> Result<(), ImportError> {
        let Some(decided) = self.waiting.pop_front() else { return Ok(()) };
        // One that is given up is heard of at once.
        match decided.recv_timeout(DECIDED_WITHIN) {
            Ok(Ok(_)) => self.done += 1,
            Ok(Err(refusal)) => return Err(self.stop(Stopped::Refused(refusal))),
            Err(_) => return Err(self.stop(Stopped::Undecided)),
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), ImportError> {
        while !self.waiting.is_empty() {
            self.wait_for_first()?;
        }
        Ok(())
    }

    /// What is to be told, once the changes behind are decided too: they are on their way and count.
    fn stop(&mut self, why: Stopped) -> ImportError {
        let until = Instant::now() + DECIDED_WITHIN;
        for decided in self.waiting.drain(..) {
            let left = until.saturating_duration_since(Instant::now());
            self.done += usize::from(matches!(decided.recv_timeout(left), Ok(Ok(_))));
        }
        let done = self.done;
        match why {
            Stopped::Refused(refusal) => ImportError::Refused { done, refusal },
            Stopped::Undecided => ImportError::Undecided { done, why: self.shared.unanswered(ChangeError::Undecided) },
            Stopped::Ends => ImportError::Ends { done },
        }
    }

    fn refused(&mut self, refusal: Refusal) -> ImportError {
        self.stop(Stopped::Refused(refusal))
    }
}

/// A file itself; of a folder those that end in `.json`, sorted.
fn files(path: &Path) -> Result<Vec<PathBuf>, ImportError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries: Vec<_> = std::fs::read_dir(path).and_then(Iterator::collect).map_err(ImportError::Read)?;
    let paths = entries.iter().map(std::fs::DirEntry::path);
    let mut files: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, ImportError> {
    let file = std::fs::File::open(path).map_err(ImportError::Read)?;
    let mut text = String::new();
    file.take(DEFINITIONS_BYTES_MAX + 1).read_to_string(&mut text).map_err(ImportError::Read)?;
    if text.len() as u64 > DEFINITIONS_BYTES_MAX {
        return Err(ImportError::TooLarge);
    }
    Ok(text)
}

/// What stands for these texts, as JSON.
fn hash_of(texts: &[String]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

impl Shared {
    /// Takes in definitions. Blocks until every change is decided.
    pub(crate) fn import_definitions(&self, text: &str, fresh: Fresh, moment: Moment) -> Result<Imported, ImportError> {
        let Some(clear) = hash_clear(self, text) else { return Err(ImportError::Ends { done: 0 }) };
        // Until all is decided no other change makes the plan of a policy stale.
        let since = Instant::now();
        let mut turn = self.pattern_turn.blocking_lock();
        if turn.is_vain(since) {
            return Err(ImportError::Undecided { done: 0, why: self.unanswered(ChangeError::NotCaughtUp) });
        }
        let outcome = self.take_in(text, fresh, &clear, moment);
        if matches!(outcome, Err(ImportError::Undecided { .. })) {
            turn.give_up();
        }
        outcome
    }

    /// The same by who has the turn of changes with patterns.
    fn take_in(
        &self,
        text: &str,
        fresh: Fresh,
        clear: &ClearPasswords,
        moment: Moment,
    ) -> Result<Imported, ImportError> {
        let shared = self;
        let has_place = Cell::new(true);
        // The log moves what asks for fewer copies to where those are.
        let everywhere = shared.topology().placement_everywhere();
        let mut place = |in_memory: bool| match in_memory {
            true => shared.directory.in_memory(0),
            false => shared.place_queue(&everywhere, None).unwrap_or_else(|| {
                has_place.set(false);
                PartitionId::default()
            }),
        };
        let mut under_way = UnderWay::new(shared, moment, 0);
        let last = shared.last_partition();
        let mut planned = plan(shared.topology_copy(), text, fresh, &mut place, clear)?;
        let is_fresh = planned.is_fresh;
        if !has_place.get() {
            return Err(ImportError::NoPlace);
        }
        // Somebody else may make virtual hosts at this moment: which numbers these get is known
        // when they are there. What is in them is planned by those numbers, so it is planned again
        // then.
        for _ in 0..PLANS_MAX {
            let makes_vhost = |step: &&Planned| matches!(step.command, Command::CreateVhost { .. });
            let made: Vec<Command> = planned.commands.iter().filter(makes_vhost).map(|s| s.command.clone()).collect();
            if made.is_empty() {
                break;
            }
            made.into_iter().try_for_each(|command| under_way.propose(command))?;
            under_way.wait()?;
            let fresh = if is_fresh { Fresh::Yes } else { fresh };
            planned = plan(shared.topology_copy(), text, fresh, &mut place, clear)?;
        }
        for sentence in &planned.different {
            tracing::warn!("definitions: {sentence}; it stays as it is");
        }
        for sentence in &planned.left_out {
            tracing::warn!("definitions, left out: {sentence}");
        }
        let (different, left_out) = (planned.different, planned.left_out);
        for step in planned.commands {
            if matches!(step.command, Command::PutPolicy(_)) {
                // It is matched with what is there once everything before it is.
                under_way.wait()?;
                shared.plan_policy(&step.command).map_err(|refusal| under_way.refused(refusal))?;
            }
            if !step.is_local {
                under_way.propose(step.command)?;
                continue;
            }
            // It may lean on what was proposed before it.
            under_way.wait()?;
            let before = shared.topology.version();
            let applied = shared.change_locally(&step.command);
            applied.outcome.map_err(|refusal| under_way.refused(refusal))?;
            under_way.done += usize::from(shared.topology.version() != before);
        }
        under_way.wait()?;
        let until = Instant::now() + FIRST_LEADER_TIMEOUT;
        while !shared.are_led_behind(last) && Instant::now() < until {
            std::thread::sleep(FIRST_LEADER_LOOK_EVERY);
        }
        Ok(Imported { changes: under_way.done, different, left_out })
    }
}
