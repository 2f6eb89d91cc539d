//! Consumers that are new to the cluster while those of an earlier leader are still expected: they wait, so that an
//! exclusive consumer stays alone and a single active one stays active whatever node its queue has as leader.

use crate::command::{Command, Effect, Reply};
use crate::commands::refuse;
use broker::{ChannelKey, ConsumerKey};

/// Who waits, in order, with what its channel says of it meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Latecomers(Vec<Command>);

impl Latecomers {
    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has a new consumer wait.
    pub(crate) fn push(&mut self, command: Command) {
        self.0.push(command);
    }

    /// Keeps what is said of a consumer that waits; gives back what is none of that. One that is cancelled waits no
    /// more.
    pub(crate) fn take_in(&mut self, command: Command, effects: &mut Vec<Effect>) -> Option<Command> {
        let about = match &command {
            Command::Stall { consumer, .. } | Command::Grant { consumer, .. } | Command::Cancel { consumer, .. } => {
                *consumer
            }
            _ => return Some(command),
        };
        if !self.0.iter().any(|waiting| consumer_of(waiting) == Some(about)) {
            return Some(command);
        }
        if !matches!(command, Command::Cancel { .. }) {
            self.0.push(command);
            return None;
        }
        let (gone, left) = std::mem::take(&mut self.0).into_iter().partition(|w| consumer_of(w) == Some(about));
        self.0 = left;
        let gone: Vec<Command> = gone;
        gone.into_iter().for_each(|command| refuse(command, Reply::Gone, effects));
        Some(command)
    }

    /// A channel has ended, and with it what it waits for.
    pub(crate) fn forget(&mut self, channel: ChannelKey) {
        self.0.retain(|command| consumer_of(command).is_none_or(|consumer| consumer.channel != channel));
    }

    /// Everything that waits, to be carried out or refused.
    pub(crate) fn take(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.0)
    }
}

fn consumer_of(command: &Command) -> Option<ConsumerKey> {
    match command {
        Command::Consume { consumer, .. } => Some(consumer.key),
        Command::Stall { consumer, .. } | Command::Grant { consumer, .. } => Some(*consumer),
        _ => None,
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

    #[test]
    fn what_is_said_of_one_that_waits_comes_behind_it_and_nothing_else_does() {
        let (mut late, mut effects) = (Latecomers::default(), Vec::new());
        late.push(consume(consumer(1, 1)));
        assert_eq!(late.take_in(stall(consumer(1, 2)), &mut effects), Some(stall(consumer(1, 2))));
        assert_eq!(late.take_in(stall(consumer(1, 1)), &mut effects), None);
        assert_eq!(late.take(), [consume(consumer(1, 1)), stall(consumer(1, 1))]);
        assert!(late.is_empty() && effects.is_empty());
    }

    #[test]
    fn one_that_is_cancelled_or_whose_channel_ends_waits_no_more() {
        let (mut late, mut effects) = (Latecomers::default(), Vec::new());
        for (channel, number) in [(1, 1), (1, 2), (2, 3)] {
            late.push(consume(consumer(channel, number)));
            assert_eq!(late.take_in(stall(consumer(channel, number)), &mut effects), None);
        }
        assert_eq!(late.take_in(cancel(consumer(1, 1)), &mut effects), Some(cancel(consumer(1, 1))));
        let gone = Effect::Reply { channel: ChannelKey(1), request: RequestId(1), reply: Reply::Gone };
        assert_eq!(effects, [gone]);
        late.forget(ChannelKey(1));
        assert_eq!(late.take(), [consume(consumer(2, 3)), stall(consumer(2, 3))]);
    }
}
