//! Consumers that are new to the cluster while those of an earlier leader are still expected: they wait, so that an
//! exclusive consumer stays alone and a single active one stays active whatever node its queue has as leader.

use crate::command::{Command, Effect, Reply};
use crate::commands::refuse;
use crate::partition::{Context, QueuePartition};
use broker::{ChannelKey, ConsumerKey};
use std::collections::BTreeMap;

/// Who waits, in the order of coming, with what its channel says of it meanwhile. However many wait, one more costs about
/// the same.
#[derive(Debug, Default)]
pub(crate) struct Latecomers {
    waiting: BTreeMap<ConsumerKey, (u64, Vec<Command>)>,
    came: u64,
}

impl Latecomers {
    /// Whether nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has a new consumer wait.
    fn push(&mut self, consumer: ConsumerKey, consume: Command) {
        self.came += 1;
        self.waiting.insert(consumer, (self.came, vec![consume]));
    }

    /// Keeps what is said of a consumer that waits; gives back what is none of that. One that is cancelled waits no
    /// more.
    fn take_in(&mut self, command: Command, effects: &mut Vec<Effect>) -> Option<Command> {
        match &command {
            Command::Stall { consumer, .. } | Command::Grant { consumer, .. } => match self.waiting.get_mut(consumer) {
                Some((_, said)) => {
                    said.push(command);
                    None
                }
                None => Some(command),
            },
            Command::Cancel { consumer, .. } => {
                let gone = self.waiting.remove(consumer).into_iter().flat_map(|(_, said)| said);
                gone.for_each(|said| refuse(said, Reply::Gone, effects));
                Some(command)
            }
            _ => Some(command),
        }
    }

    /// A channel has ended, and with it what it waits for.
    pub(crate) fn forget(&mut self, channel: ChannelKey) {
        let all = ConsumerKey { channel, number: 0 }..=ConsumerKey { channel, number: u32::MAX };
        while let Some(consumer) = self.waiting.range(all.clone()).next().map(|(consumer, _)| *consumer) {
            self.waiting.remove(&consumer);
        }
    }

    /// Everything that waits, to be carried out or refused.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Command> + use<> {
        let mut all: Vec<(u64, Vec<Command>)> = std::mem::take(&mut self.waiting).into_values().collect();
        all.sort_unstable_by_key(|(came, _)| *came);
        all.into_iter().flat_map(|(_, said)| said)
    }
}

impl QueuePartition {
    /// Keeps a new consumer while those of an earlier leader are expected, and what is said of it; gives back anything
    /// else.
    #[cold]
    pub(crate) fn has_to_wait(&mut self, command: Command, cx: &mut Context<'_>) -> Option<Command> {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        match &command {
            Command::Consume { again: false, consumer, .. } if leader.awaits_holders => {
                leader.latecomers.push(consumer.key, command);
                None
            }
            _ => leader.latecomers.take_in(command, &mut cx.out.effects),
        }
    }

    /// Everybody who may have something of an earlier leader had time to come: new consumers have their turn.
    pub(crate) fn admit_latecomers(&mut self, cx: &mut Context<'_>) {
        let Some(leader) = self.leader.as_deref_mut() else { return };
        for command in leader.latecomers.take() {
            self.carry_out(command, cx);
            self.propose_if_full(cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::RequestId;
    use broker::QueueId;
    use broker::queue::Consumer;

    fn consumer(channel: u64, number: u32) -> ConsumerKey {
        ConsumerKey { channel: ChannelKey(channel.into()), number }
    }

    fn consume(key: ConsumerKey) -> Command {
        let consumer = Consumer { key, prefetch: 1, no_ack: true, exclusive: true, priority: 0, granted_only: false };
        Command::Consume { queue: QueueId(1), consumer, again: false, request: RequestId(key.number.into()) }
    }

    fn stall(consumer: ConsumerKey) -> Command {
        Command::Stall { queue: QueueId(1), consumer, stalled: true }
    }

    fn cancel(consumer: ConsumerKey) -> Command {
        Command::Cancel { queue: QueueId(1), consumer, request: RequestId(9) }
    }

    fn taken(late: &mut Latecomers) -> Vec<Command> {
        late.take().collect()
    }

    #[test]
    fn what_is_said_of_one_that_waits_comes_behind_it_and_nothing_else_does() {
        let (mut late, mut effects) = (Latecomers::default(), Vec::new());
        // Who came first is first, whatever its number.
        for key in [consumer(2, 1), consumer(1, 1)] {
            late.push(key, consume(key));
        }
        assert_eq!(late.take_in(stall(consumer(1, 2)), &mut effects), Some(stall(consumer(1, 2))));
        assert_eq!(late.take_in(stall(consumer(1, 1)), &mut effects), None);
        let all = [consume(consumer(2, 1)), consume(consumer(1, 1)), stall(consumer(1, 1))];
        assert_eq!(taken(&mut late), all);
        assert!(late.is_empty() && effects.is_empty());
    }

    #[test]
    fn one_that_is_cancelled_or_whose_channel_ends_waits_no_more() {
        let (mut late, mut effects) = (Latecomers::default(), Vec::new());
        for key in [consumer(1, 1), consumer(1, 2), consumer(2, 3)] {
            late.push(key, consume(key));
            assert_eq!(late.take_in(stall(key), &mut effects), None);
        }
        assert_eq!(late.take_in(cancel(consumer(1, 1)), &mut effects), Some(cancel(consumer(1, 1))));
        let gone = Effect::Reply { channel: ChannelKey(1), request: RequestId(1), reply: Reply::Gone };
        assert_eq!(effects, [gone]);
        late.forget(ChannelKey(1));
        assert_eq!(taken(&mut late), [consume(consumer(2, 3)), stall(consumer(2, 3))]);
    }
}
