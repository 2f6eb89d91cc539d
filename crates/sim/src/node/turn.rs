//! A node's turn: what came in goes to the shard, what its partitions leave goes to the disk, the
//! others and the clients.
//!
//! Invariant: clients hear a partition in the order of its steps; a publish behind a refused one of
//! its stream is not taken in.

use super::spoil::{bring_back, spoil, spoil_effects, swap_publishes};
use super::topology::Vacancy;
use super::{
    EPOCH_MS, Happening, Input, Node, Running, Said, Session, SessionId, Sockets, StepOutput, TOPOLOGY, TURN_BYTES_MAX,
    Thread, files, queues,
};
use crate::bug::Bug;
use crate::checks::violated;
use crate::random::Random;
use crate::schedule::MS;
use broker::{ConsumerKey, NodeNumber, PartitionId};
use consensus::{LogIndex, NodeId, Term};
use node::{Beginning, Edge, KnownQueue, Now, Task, WrittenBy};
use partition::outputs::{Fate, ReadPurpose};
use partition::{Command, Effect, Outlets, QueuePartition};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use storage::RecordKind;
use switch::Directory;

/// What a turn says, on its way to the clients.
struct Mouth<'a> {
    random: &'a mut Random,
    full: u64,
    gives_up: &'a [bool],
    now_ms: u64,
    latest_ms: u64,
    sessions: &'a mut BTreeMap<SessionId, Session>,
    senders: &'a mut Vec<VecDeque<Option<SessionId>>>,
    stalled: &'a mut BTreeSet<(Option<usize>, ConsumerKey)>,
    sockets: &'a mut dyn Sockets,
    shard: usize,
    said: Vec<(PartitionId, Said, Effect)>,
    repaired: u64,
    repaired_before: u64,
    /// The partition whose turn it is: its number among those of queues and its place on its shard;
    /// what it had applied, whether it led, in which term.
    number: Option<usize>,
    place: usize,
    before: (LogIndex, bool, Term),
    partitions: &'a [PartitionId],
    directory: &'a Directory,
    /// Of each the members that its group is to have.
    wanted: &'a [Vec<NodeId>],
    /// How often the node has left each.
    left: &'a [u32],
    /// How the node begins where it has nothing yet.
    vacancies: BTreeMap<PartitionId, Vacancy>,
}

impl Outlets for Mouth<'_> {
    fn room(&mut self, consumer: ConsumerKey) -> usize {
        let room = match self.sockets.room(self.shard, consumer) {
            Some(room) => room,
            None if self.number.is_some() && self.random.chance(self.full) => 0,
            None => usize::MAX,
        };
        if room == 0 {
            self.stalled.insert((self.number, consumer));
        }
        room
    }
}

impl Mouth<'_> {
    /// Whether a refusal in one of the partition's streams is final.
    fn gives_up(&self) -> bool {
        self.number.and_then(|number| self.gives_up.get(number)).copied().unwrap_or(true)
    }
}

impl Edge for Mouth<'_> {
    fn members_wanted(&mut self, partition: PartitionId, _: &[NodeNumber]) -> Vec<NodeId> {
        let number = self.partitions.iter().position(|known| *known == partition);
        number.map_or_else(Vec::new, |number| self.wanted[number].clone())
    }

    fn is_to_leave(&mut self, partition: PartitionId, member: NodeId) -> bool {
        let number = self.partitions.iter().position(|known| *known == partition);
        number.is_some_and(|number| member.life() < self.left[number])
    }

    fn beginning(&mut self, partition: PartitionId) -> Beginning {
        self.vacancies.get(&partition).map_or(Beginning::NotKnown, |vacancy| vacancy.beginning.clone())
    }

    fn queues_of(&mut self, partition: PartitionId) -> Vec<KnownQueue> {
        self.vacancies.remove(&partition).map_or_else(Vec::new, |vacancy| vacancy.queues)
    }

    fn begin(&mut self, id: PartitionId, queues: Option<&QueuePartition>) {
        self.number = self.partitions.iter().position(|partition| *partition == id);
        self.place = self.directory.find(id).map_or(0, |(_, place)| place);
        if queues.is_none() {
            // Who has no member here answers whatever comes, for whom it may be.
            self.senders[self.place].clear();
        }
        if let Some(partition) = queues {
            let term = partition.replica().group().status().term;
            self.before = (partition.applied(), partition.is_leading(), term);
            self.repaired_before = partition.messages_repaired();
        }
    }

    fn admits(&mut self, _: PartitionId, command: &Command, effects: &[Effect]) -> bool {
        break_streams(effects, self.gives_up(), self.sessions);
        match self.senders[self.place].pop_front() {
            Some(Some(session)) => {
                let is_publish = matches!(command, Command::Publish(_));
                self.sessions.get(&session).is_some_and(|session| !(is_publish && session.broken))
            }
            _ => true,
        }
    }

    fn take_effects(&mut self, id: PartitionId, queues: Option<&QueuePartition>, effects: &mut Vec<Effect>) {
        let (now_ms, latest_ms) = (self.now_ms, self.latest_ms);
        self.sockets.settle(self.shard);
        break_streams(effects, self.gives_up(), self.sessions);
        let said = match queues {
            Some(partition) => {
                self.repaired += partition.messages_repaired() - self.repaired_before;
                let (applied_before, led_before, term_before) = self.before;
                let term = partition.replica().group().status().term;
                let leads = partition.is_leading();
                let serves = led_before && leads && term_before == term;
                let applied = partition.applied();
                Said { term, applied, applied_before, led_before, leads, serves, now_ms, latest_ms }
            }
            None => {
                let (term, applied) = (Term(0), LogIndex(0));
                let applied_before = applied;
                let serves = id.is_in_memory() || id == TOPOLOGY;
                Said { term, applied, applied_before, led_before: serves, leads: serves, serves, now_ms, latest_ms }
            }
        };
        self.said.extend(effects.drain(..).map(|effect| (id, said, effect)));
    }
}

impl Node {
    /// A shard's turn: everything that came in, partition by partition.
    pub(super) fn turn(&mut self, shard: usize, sockets: &mut dyn Sockets, out: &mut StepOutput) {
        let now_ms = self.wall_ms();
        let bug = self.settings.bug;
        let (own_can, all_can) = (self.can(), self.all_can);
        let told_ms = match bug {
            Some(Bug::ClockRunsFast) => now_ms + 3 * (now_ms - EPOCH_MS),
            Some(Bug::ClockIsCoarse) => now_ms - now_ms % 8_000,
            _ => now_ms,
        };
        self.look_for_returns();
        let r = self.running.as_mut().expect("only a node that is up is asked");
        r.latest_ms = r.latest_ms.max(now_ms);
        let thread = &mut r.threads[shard];
        thread.turn_due = false;
        let mut commands = thread.take_commands();
        if bug == Some(Bug::PublishesSwap) {
            swap_publishes(&mut commands);
        }
        if !thread.commands.is_empty() {
            thread.turn_due = true;
            out.later.push((20, Happening::Turn(shard)));
        }
        let ended = r.hand_out(commands);
        let raised = if bug == Some(Bug::RaiseIsEarly) { own_can } else { all_can };
        let vacancies = match self.settings.pools {
            true if self.knows_map => r.vacancies(self.id, &self.settings.partitions),
            false if self.settings.returns => self.returns.clone(),
            _ => BTreeMap::new(),
        };
        let Running { threads, sessions, stalled, directory, .. } = r;
        let Thread { shard: here, waits, senders, .. } = &mut threads[shard];
        for place in 1..here.len() {
            let Some(member) = here.queues_mut(place) else { continue };
            // Goes out with its next step.
            member.partition_mut().raise_version(raised);
        }
        let mut mouth = Mouth {
            random: &mut self.random,
            full: self.full_outlets,
            gives_up: &self.settings.gives_up,
            now_ms,
            latest_ms: r.latest_ms,
            sessions,
            senders,
            stalled,
            sockets,
            shard,
            said: Vec::new(),
            repaired: 0,
            repaired_before: 0,
            number: None,
            place: 0,
            before: (LogIndex(0), false, Term(0)),
            partitions: &self.settings.partitions,
            directory,
            wanted: &self.wanted,
            left: &self.left,
            vacancies,
        };
        here.step(Now { ms: self.now / MS, wall_ms: told_ms }, waits, &mut mouth);
        out.repaired += mouth.repaired;
        let said = mouth.said;
        ended.into_iter().for_each(|session| r.end_session(session));
        r.topology_said(out);
        self.carry_out(shard, said, out);
    }

    /// Sends out what the partitions of a shard left.
    fn carry_out(&mut self, shard: usize, mut said: Vec<(PartitionId, Said, Effect)>, out: &mut StepOutput) {
        let (bug, has_rot) = (self.settings.bug, self.settings.has_rot);
        let slowness = self.disk_slowness;
        let r = self.running.as_mut().expect("only a node that is up is asked");
        let share = r.threads[shard].shard.share();
        for write in &share.out.wal {
            for record in write.records.iter().filter(|record| record.kind == RecordKind::Entry) {
                let entry = (write.partition, Term(record.term), LogIndex(record.index), record.body.clone());
                out.appended.push(entry);
            }
        }
        let load = std::mem::take(&mut share.load);
        r.threads[shard].load = load;
        let share = r.threads[shard].shard.share();
        let is_left = !share.out.wal.is_empty()
            && r.queue.put(&mut share.out.wal, load, files::time(self.now)) == WrittenBy::Shard;
        share.needs.drain(..).for_each(|(partition, file)| r.queue.needs(partition, file));
        // It asks them itself: see `Happening::Forgot`.
        share.whole.clear();
        out.frames.append(&mut share.out.frames);
        out.forwards.append(&mut share.forwards);
        for read in share.out.reads.drain(..) {
            let is_lost = match bug {
                Some(Bug::ReadIsLost) => matches!(read.purpose, ReadPurpose::Messages { .. }),
                Some(Bug::AskingIsInVain) => matches!(read.purpose, ReadPurpose::Repair { .. }),
                _ => false,
            };
            if is_lost {
                continue;
            }
            r.reading += 1;
            out.later.push((self.random.between(20, 400) * slowness, Happening::Read(read)));
        }
        for damage in share.out.damage.drain(..) {
            assert!(has_rot, "nothing is damaged here: {damage}");
            if damage.fate != Fate::Asked {
                violated("set aside", &format!("the others have them: {damage}"));
            }
        }
        if let Some(halted) = share.out.halted.pop() {
            violated("halted", &format!("{}: {halted}", self.id));
        }
        share.out.clocks_ahead.clear();
        for lost in share.out.lost_entries.drain(..) {
            assert!(has_rot, "nothing is damaged here: {lost}");
            out.lost_entries += 1;
        }
        let jobs = std::mem::take(&mut share.out.jobs);
        if let Some(bug) = bug {
            spoil_effects(&mut said, bug, &mut self.random);
            match bug {
                Bug::DeliveryComesBack => bring_back(&mut said, &mut r.kept, self.now),
                Bug::DeliveryOutlivesQueue | Bug::LetterOutlivesQueue => {
                    queues::outlive(&mut said, r, (bug, self.now), &self.known);
                }
                _ => {}
            }
        }
        out.effects.append(&mut said);
        let mut again = false;
        if self.settings.turnover && bug != Some(Bug::DeleteIsForgotten) {
            again = r.delete_orphans(&self.known);
        }
        r.note_serving(&mut out.resets);
        // Whoever was told that its connection is full hears that there is room again.
        for (at, key) in std::mem::take(&mut r.stalled) {
            if r.sessions.is_empty() {
                // Clients speak through sessions, which are told.
                out.passed_over.push((shard, key));
                continue;
            }
            let (Some(session), Some(queue)) = (r.channels.get(&key.channel), r.consumed.get(&key)) else { continue };
            if r.sessions.get(session).is_some_and(|s| Some(s.partition) == at) {
                let command = Command::Stall { queue: *queue, consumer: key, stalled: false };
                r.threads[shard].commands.push_back((*session, Input::Command(command)));
            }
        }
        for (index, thread) in r.threads.iter_mut().enumerate() {
            if (!thread.commands.is_empty() || again) && !std::mem::replace(&mut thread.turn_due, true) {
                out.later.push((self.random.between(500, 5_000), Happening::Turn(index)));
            }
        }
        let thread = &mut r.threads[shard];
        let next = thread.shard.poll_timeout();
        if let Some(at) = next.filter(|at| thread.due_at.is_none_or(|due| *at < due)) {
            thread.due_at = Some(at);
            out.later.push(((at * MS).saturating_sub(self.now).max(1), Happening::Due(shard)));
        }
        jobs.into_iter().for_each(|job| self.task(Task::Job(job), out));
        if is_left {
            // What others leave meanwhile it writes, too.
            let busy_max = if self.shards > 1 { 400 } else { 20 };
            out.later.push((self.random.between(1, busy_max), Happening::Commit(shard)));
        }
        self.rouse(out);
    }
}

impl Thread {
    /// Commands for one turn: all that came, up to some bytes.
    fn take_commands(&mut self) -> Vec<(SessionId, Input)> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some((_, command)) = self.commands.front() {
            if let Input::Command(Command::Publish(publish)) = command {
                bytes += publish.body_bytes() + 128;
                if bytes > TURN_BYTES_MAX && !taken.is_empty() {
                    break;
                }
            }
            taken.extend(self.commands.pop_front());
        }
        taken
    }
}

impl Running {
    /// Hands commands to their partitions; those who sent the last of theirs are named.
    fn hand_out(&mut self, commands: Vec<(SessionId, Input)>) -> Vec<SessionId> {
        let mut ended = Vec::new();
        for (session, input) in commands {
            let Some(known) = self.sessions.get(&session) else { continue };
            let (partition, channel) = (known.partition, known.channel);
            let command = match input {
                Input::Command(command) => command,
                Input::ChannelEnds => {
                    ended.push(session);
                    Command::Detach { channel }
                }
                Input::SessionEnds => {
                    ended.push(session);
                    continue;
                }
            };
            if let Command::Consume { queue, consumer, .. } = &command {
                self.consumed.insert(consumer.key, *queue);
            }
            if let Some(command) = spoil(command, self.bug) {
                self.send(self.places[partition], Some(session), command);
            }
        }
        ended
    }

    fn end_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        if self.channels.get(&session.channel) == Some(&id) {
            self.channels.remove(&session.channel);
        }
    }

    /// Closes the sessions of partitions that stopped leading, or lead anew: their channels attach
    /// again where the leader is.
    fn note_serving(&mut self, resets: &mut Vec<SessionId>) {
        for at in 0..self.serving.len() {
            let leading = self.queues(at).filter(|partition| partition.is_leading());
            let now = leading.map(|partition| partition.replica().group().status().term);
            let before = std::mem::replace(&mut self.serving[at], now);
            if before.is_none() || before == now {
                continue;
            }
            let gone: Vec<_> = self.sessions.iter().filter(|(_, s)| s.partition == at).map(|(id, _)| *id).collect();
            gone.iter().for_each(|id| self.end_session(*id));
            resets.extend(gone);
        }
    }
}

/// A refused publish breaks its channel's stream: what follows it there must not be taken in before
/// it, or the log would take the refused one for a repeat when it comes again. Not so where it does
/// not come again. A client that came back while the node was paused has two sessions here, and its
/// stream breaks in both.
fn break_streams(effects: &[Effect], gives_up: bool, sessions: &mut BTreeMap<SessionId, Session>) {
    for effect in effects.iter().filter(|_| !gives_up) {
        if let Effect::Refuse { channel, .. } | Effect::Returned { channel, .. } = effect {
            sessions.values_mut().filter(|session| session.channel == *channel).for_each(|s| s.broken = true);
        }
    }
}
