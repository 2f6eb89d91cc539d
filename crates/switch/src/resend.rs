//! What becomes of commands that wait for a leader, and of publishes that are to be sent again.
//!
//! Before the first of them goes out, the leader is asked with [`Command::Resume`] for each of their
//! channels. Its answer stands behind its answers to all that came to it before, over this link or
//! one that is gone. So what is sent again meets nothing of the same channel that was still on its
//! way, and an answer that comes belongs to what was sent last. The log drops what it has already.

use crate::leaders::Leaders;
use crate::roads::Roads;
use crate::turning::On;
use broker::{ChannelKey, NodeNumber, PartitionId};
use partition::{Command, Disposition, Effect, Publish};

/// Something to be done for a partition, in order.
#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // Nearly all are commands.
pub(crate) enum Step {
    /// Goes to this node's member of its group.
    Send(NodeNumber, Command),
    /// Is handed in as if it came now.
    Push(Command),
    /// Nobody led in time: it goes to this node's member, which refuses it.
    GiveUp(Command),
    /// A channel hears this.
    Tell(Effect),
}

impl Roads {
    /// Goes on with what waits, as far as it can.
    pub(crate) fn advance(&mut self, leaders: &Leaders) -> Vec<(PartitionId, Step)> {
        let mut steps = Vec::new();
        if self.turning.is_empty() {
            return steps;
        }
        for partition in self.turning.partitions() {
            while let Some(on) = self.advance_one(partition, leaders, &mut steps) {
                self.turning.turn_to(partition, on);
            }
        }
        steps
    }

    /// What a partition waits for next; nothing if it waits on, or waits no more.
    fn advance_one(
        &mut self,
        partition: PartitionId,
        leaders: &Leaders,
        steps: &mut Vec<(PartitionId, Step)>,
    ) -> Option<On> {
        let (on, is_late) = self.turning.on(partition, self.now_us)?;
        let mut step = |step| steps.push((partition, step));
        match on {
            On::Before { from, mark } => {
                let is_handled = mark.is_none_or(|mark| self.road(from).is_none_or(|road| road.has_handled(mark)));
                let is_answered = self.unconfirmed.is_sent_to(partition).is_none();
                (is_handled && is_answered).then_some(On::Leader)
            }
            On::Leader | On::Resume { .. } if is_late => {
                // Their messages come again, flagged.
                let _ = self.unsettled.take(partition);
                self.unconfirmed.give_up(partition).into_iter().for_each(|effect| step(Step::Tell(effect)));
                for command in self.turning.release(partition) {
                    step(match command {
                        Command::Publish(Publish { channel, publish_seq: first @ 1.., .. }) => {
                            Step::Tell(Effect::Refuse { channel, first, count: 1 })
                        }
                        command => Step::GiveUp(command),
                    });
                }
                None
            }
            On::Leader => {
                let leader = leaders.leader(partition).filter(|leader| self.is_reached(*leader, leaders.own()))?;
                if self.turning.is_left_alone(partition, leader, self.now_us) {
                    return None;
                }
                let channels = self.unconfirmed.lost_channels(partition);
                if channels.is_empty() {
                    self.let_go(partition).for_each(|command| step(Step::Push(command)));
                    return None;
                }
                let (number, left) = (self.turning.next_attempt(), channels.len());
                for channel in channels {
                    step(Step::Send(leader, Command::Resume { channel, number }));
                }
                self.turning.turn_to(partition, On::Resume { to: leader, number, left });
                None
            }
            On::Resume { to, left, .. } => {
                if !self.is_reached(to, leaders.own()) {
                    return Some(On::Leader);
                }
                if left > 0 {
                    return None;
                }
                let again = self.unconfirmed.resend(partition, to);
                again.into_iter().for_each(|publish| step(Step::Send(to, Command::Publish(publish))));
                self.let_go(partition).for_each(|command| step(Step::Push(command)));
                None
            }
        }
    }

    /// Nothing waits for a partition any more: what channels were done with under the leader before,
    /// and what came since. What ends a message there was given out by that leader.
    fn let_go(&mut self, partition: PartitionId) -> impl Iterator<Item = Command> + use<> {
        let since = self.turning.release(partition).into_iter().map(|command| match command {
            Command::Settle {
                queue,
                holder,
                first,
                count,
                outcome: outcome @ (Disposition::Ack | Disposition::Discard),
            } => Command::SettleAgain { queue, holder, first, count, outcome },
            command => command,
        });
        self.unsettled.take(partition).chain(since)
    }

    /// A node sent publishes back: they are sent again once it has answered for all that it has.
    pub(crate) fn send_again(&mut self, from: NodeNumber, partition: PartitionId, publishes: (ChannelKey, u64, u64)) {
        if self.unconfirmed.send_again(from, partition, publishes) {
            self.turning.bounced(partition, from, self.now_us);
        }
    }
}
