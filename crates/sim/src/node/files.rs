//! The threads of a node that touch its disk, in virtual time: the log's, the reader's, that of
//! upkeep; and the shard, when it writes the log itself. What they do is the node's; how long they
//! take, and who is busy meanwhile, is said here.
//!
//! Invariants: each thread does one thing at a time; whoever has taken a batch holds the log until
//! it is written and synced; any error but a full disk stops the node.

use super::{Happening, Node, PowerLoss, Running, StepOutput, TOPOLOGY, is_vote_only};
use crate::bug::Bug;
use crate::schedule::{MS, Micros};
use broker::PartitionId;
use node::{Batch, Completion, Listener, Task, UpkeepFailed};
use partition::outputs::{Job, Read, ReadFailed, ReadPurpose, Ticket};
use partition::place::file_u32;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::StorageError;
use storage::disk::Crash;

/// How long to wait before a write is tried again on a full disk.
const FULL_RETRY: Micros = 100 * MS;

/// Who has taken a batch of the log and is not done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    /// The log's thread.
    Thread,
    /// A shard, which stands still for it.
    Shard(usize),
}

/// What partitions are told, and whether they waited for it.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<PartitionId, (Vec<Completion>, bool)>);

impl Listener for Told {
    fn tell(&mut self, partition: PartitionId, completion: Completion, is_awaited: bool) {
        let (completions, was_awaited) = self.0.entry(partition).or_default();
        completions.push(completion);
        *was_awaited |= is_awaited;
    }
}

pub(super) fn time(now: Micros) -> Duration {
    Duration::from_micros(now)
}

impl Node {
    /// The log's thread looks what there is to do, unless somebody holds the log: who does looks
    /// when it is done.
    pub(super) fn look_at_log(&mut self, out: &mut StepOutput) {
        let (now, slowness) = (self.now, self.disk_slowness);
        let takes = self.random.between(10, 80) * slowness;
        let r = self.up();
        if r.author.is_some() {
            return;
        }
        if let Some(until) = r.queue.rest(time(now)) {
            if let Some(until) = until {
                let after = u64::try_from(until.as_micros()).expect("a run is short") - now;
                out.later.push((after, Happening::LogDue));
            }
            return;
        }
        let (is_sync_due, mut needs) = (r.writer.is_sync_due(time(now)), Vec::new());
        r.queue.take_for_thread(time(now), is_sync_due, &mut r.batch, &mut needs);
        r.writer.release(&mut needs);
        r.author = Some(Author::Thread);
        out.later.push((takes, Happening::Write));
    }

    /// Something changed that may concern the log's thread.
    pub(super) fn rouse(&mut self, out: &mut StepOutput) {
        let after = self.random.between(5, 30);
        if self.up().queue.rouse() {
            out.later.push((after, Happening::LogDue));
        }
    }

    /// A shard has told everybody what its turn brought: it writes what was left to it, with what
    /// others left meanwhile, or leaves it to the thread.
    pub(super) fn commit(&mut self, shard: usize, out: &mut StepOutput) {
        let takes = self.random.between(10, 80) * self.disk_slowness;
        let r = self.up();
        if r.author.is_some() {
            r.queue.want_thread(None);
        } else if let Some(batch) = r.queue.take_for_shard(r.threads[shard].load, r.writer.unsynced_bytes()) {
            (r.batch, r.author) = (batch, Some(Author::Shard(shard)));
            out.later.push((takes, Happening::Write));
            return;
        }
        self.rouse(out);
    }

    /// Whoever holds the log writes what it has taken: one write, and a sync behind it if one of
    /// them asked.
    pub(super) fn write(&mut self, out: &mut StepOutput) {
        let (now, bug) = (self.now, self.settings.bug);
        let r = self.up();
        let author = r.author.expect("who writes has taken something");
        let lies = lies(&mut r.batch, bug);
        let is_sync_awaited = r.batch.is_sync_awaited;

        match r.writer.write(&mut r.batch, time(now), &mut r.told) {
            Ok(()) => {}
            Err(error) if error.is_full() && bug == Some(Bug::FullIsForgotten) => {
                r.batch = Batch::default();
                return self.wrote(out);
            }
            Err(error) if error.is_full() && author != Author::Thread => {
                let batch = std::mem::take(&mut r.batch);
                r.author = None;
                r.queue.want_thread(Some(batch));
                // It found the log held, or sleeps.
                let _ = r.queue.rouse();
                return self.look_at_log(out);
            }
            Err(error) if error.is_full() => {
                let mut needs = Vec::new();
                r.queue.take_needs(&mut needs);
                r.writer.release(&mut needs);
                out.later.push((FULL_RETRY, Happening::Write));
                return;
            }
            Err(error) => return self.fail("the log could not be written", &error, out),
        }
        lies.into_iter().for_each(|(partition, ticket)| r.told.tell(partition, Completion::Synced(ticket), true));
        r.hurry_roll();
        if self.power_loss == PowerLoss::AfterWrite {
            self.power_loss = PowerLoss::AtSync;
        }
        self.spread(out);
        let is_lie = bug == Some(Bug::SyncIsALie);
        let is_due = author == Author::Thread && self.up().writer.is_sync_due(time(now));
        if (is_sync_awaited || is_due) && !is_lie {
            let (fastest, slowest) = self.up().sync_takes;
            let took = self.random.between(fastest, slowest) * self.disk_slowness;
            self.up().writer.gauges().sync_times.note(Duration::from_micros(took));
            out.later.push((took, Happening::Sync));
        } else {
            self.wrote(out);
        }
    }

    pub(super) fn sync(&mut self, out: &mut StepOutput) {
        if self.power_loss == PowerLoss::AtSync {
            self.disk.crash(Crash::Power);
        }
        let r = self.up();
        if let Err(error) = r.writer.sync(&mut r.told) {
            return self.fail("the log could not be synced", &error, out);
        }
        r.hurry_roll();
        self.spread(out);
        self.wrote(out);
    }

    /// Whoever held the log is done with it.
    fn wrote(&mut self, out: &mut StepOutput) {
        let now = time(self.now);
        let is_lie = self.settings.bug == Some(Bug::SyncIsALie);
        let r = self.up();
        let author = r.author.take().expect("somebody wrote");
        let due = r.writer.due().filter(|_| !is_lie);
        match author {
            Author::Thread => {
                let noted = r.writer.note(now, false);
                if noted.is_err() && self.disk.down().is_some() {
                    out.stopped = Some("crashed while it noted the durable end".to_owned());
                    return;
                }
                let r = self.up();
                let due = r.writer.due().filter(|_| !is_lie);
                r.queue.thread_wrote(due);
                self.look_at_log(out);
            }
            Author::Shard(shard) => {
                let (batch, is_sync_due) = (std::mem::take(&mut r.batch), r.writer.is_sync_due(now) && !is_lie);
                r.queue.shard_wrote(batch, due, is_sync_due);
                // The thread found the log held, or sleeps.
                let _ = r.queue.rouse();
                self.look_at_log(out);
                self.want_turn(shard, out);
            }
        }
    }

    /// Hands what was told to who waits for it, and has spare files made.
    pub(super) fn spread(&mut self, out: &mut StepOutput) {
        let r = self.running.as_mut().expect("only a node that is up is asked");
        let mut woken = BTreeSet::new();
        for (partition, (mut told, is_awaited)) in std::mem::take(&mut r.told.0) {
            let (list, last) = (&r.lists[&partition], told.pop().expect("something was told"));
            told.into_iter().for_each(|completion| list.put(completion));
            if !is_awaited {
                list.put(last);
            } else if list.put_awaited(last) {
                let (shard, place) = r.directory.find(partition).expect("a partition of this node");
                r.threads[shard].waits.borrow_mut().wake(place);
                woken.insert(shard);
            }
        }
        if self.up().writer.take_wants_spares() {
            self.task(Task::PrepareSpares, out);
        }
        woken.into_iter().for_each(|shard| self.want_turn(shard, out));
    }

    pub(super) fn read(&mut self, read: Read, out: &mut StepOutput) {
        let bug = self.settings.bug;
        let partition = read.partition;
        let r = self.up();
        r.reading -= 1;
        let is_repair = matches!(read.purpose, ReadPurpose::Repair { .. });
        let is_entry = matches!(read.purpose, ReadPurpose::Entries { .. });
        // Given up because its messages moved: the partition knows where they are now, and says so
        // if they should be there.
        let mut completion = r.reader.read(read);
        if let Completion::Read(_, found) = &mut completion {
            match (bug, found.as_ref()) {
                (Some(Bug::LossIsClaimed), _) if is_repair => {
                    *found = Err(ReadFailed::Damaged("so it says".to_owned()));
                }
                (Some(Bug::LostEntryIsHidden), Err(ReadFailed::Damaged(why))) if is_entry => {
                    *found = Err(ReadFailed::Refused(why.clone()));
                }
                _ => {}
            }
        }
        r.told.tell(partition, completion, true);
        self.spread(out);
    }

    /// Something for the thread of upkeep.
    pub(super) fn task(&mut self, task: Task, out: &mut StepOutput) {
        let takes = self.random.between(500, 20_000) * self.disk_slowness;
        match (self.settings.bug, &task) {
            (Some(Bug::SpaceIsKept), Task::Job(Job::DropExtent { .. })) => return,
            (Some(Bug::TopologyIsKept), Task::Job(Job::SaveCheckpoint { partition: TOPOLOGY, .. })) => return,
            _ => {}
        }
        let r = self.up();
        r.tasks.push_back(task);
        if !std::mem::replace(&mut r.is_upkeep_due, true) {
            out.later.push((takes, Happening::Upkeep));
        }
    }

    /// The thread of upkeep does its next task, or a slice of what it has begun.
    pub(super) fn upkeep(&mut self, out: &mut StepOutput) {
        let now = self.now;
        let takes = self.random.between(500, 20_000) * self.disk_slowness;
        let slice = self.random.between(1, 5) * MS;
        let r = self.up();
        let task = r.tasks.pop_front();
        let is_idle = task.is_none();
        let begun = task.map_or(Ok(()), |task| r.upkeep.begin(task, time(now), &mut r.told));
        if let Err(UpkeepFailed { what, error }) = begun.and_then(|()| r.upkeep.go_on(is_idle, time(now), &mut r.told))
        {
            return self.fail(what, &error, out);
        }
        let patience = r.upkeep.patience(time(now));
        r.is_upkeep_due = true;
        match patience {
            _ if !r.tasks.is_empty() => out.later.push((takes, Happening::Upkeep)),
            Some(patience) => {
                let after = u64::try_from(patience.as_micros()).expect("a run is short");
                // A task that comes meanwhile does not wait for that.
                r.is_upkeep_due = after == 0;
                out.later.push((after.max(slice), Happening::Upkeep));
            }
            None => r.is_upkeep_due = false,
        }
        self.spread(out);
    }

    /// The server ends at once on an error like this; so does the node.
    fn fail(&mut self, what: &str, error: &StorageError, out: &mut StepOutput) {
        out.stopped = Some(format!("{what}: {error}"));
    }
}

/// The writes of a batch that a wrong shell says to be synced as soon as they are written.
fn lies(batch: &mut Batch, bug: Option<Bug>) -> Vec<(PartitionId, Ticket)> {
    let is_lie = |write: &partition::outputs::WalWrite| match bug {
        Some(Bug::SyncIsALie) => true,
        Some(Bug::VoteIsNotSynced) => is_vote_only(&write.records),
        _ => false,
    };
    let lies: Vec<_> = batch.writes.iter().filter(|w| is_lie(w)).map(|w| (w.partition, w.ticket)).collect();
    if !lies.is_empty() && lies.len() == batch.writes.len() {
        batch.is_sync_awaited = false;
    }
    lies
}

impl Running {
    /// A wrong shell tells partitions of a new file before anything of it is durable.
    fn hurry_roll(&mut self) {
        if self.bug != Some(Bug::RollIsHasty) {
            return;
        }
        let file = file_u32(self.writer.wal().position().file);
        if self.writer.gauges().durable_file.swap(file, Ordering::Relaxed) != file {
            for partition in self.lists.keys() {
                self.told.tell(*partition, Completion::Rolled, true);
            }
        }
    }
}
