//! What goes wrong on a node: what a wrong shell makes of commands on their way in and of effects on
//! their way out, and what rots on its disk.

use super::{Input, Node, Said, SessionId, queues};
use crate::bug::Bug;
use crate::random::Random;
use crate::schedule::{MS, Micros};
use broker::PartitionId;
use partition::{Command, Effect};
use storage::extent::{extent_name, list_extents};

/// So many bits of an extent rot at a time, at most.
const ROTTEN_BITS_MAX: u64 = 24;

impl Node {
    /// Bits of one of its extents flip; which that is.
    pub fn rot(&mut self, random: &mut Random) -> Option<String> {
        let extents = list_extents(&*self.disk).ok().filter(|extents| !extents.is_empty())?;
        let name = extent_name(*random.pick(&extents));
        let bytes = self.disk.contents(&name).map_or(0, |contents| contents.len() as u64);
        for _ in 0..bytes.min(random.between(1, ROTTEN_BITS_MAX)) {
            let (at, bit) = (random.below(bytes), random.below(8) as u8);
            self.disk.flip_bit(&name, at, bit);
        }
        Some(name)
    }
}

/// What a wrong shell makes of a command.
pub(super) fn spoil(mut command: Command, bug: Option<Bug>) -> Option<Command> {
    match (&mut command, bug) {
        (Command::Settle { .. }, Some(Bug::AcksAreLost)) => return None,
        (Command::Publish(publish), Some(Bug::CapIsRaised)) => {
            for rule in publish.targets.iter_mut().filter_map(|t| t.selective.as_mut()) {
                rule.cap *= 4;
            }
        }
        (Command::Consume { consumer, .. }, Some(Bug::PrefetchIsDoubled)) => consumer.prefetch *= 2,
        (Command::Publish(publish), Some(Bug::KeysAreMixedUp)) => crate::client::mix_up_key(publish),
        (Command::Publish(publish), Some(Bug::DelayIsShortened)) => publish.delay_ms = publish.delay_ms.div_ceil(4),
        (Command::Publish(publish), Some(Bug::DelayIsForgotten)) => publish.delay_ms = 0,
        (Command::Publish(publish), Some(Bug::DelayIsStretched)) => publish.delay_ms *= 3,
        _ => {}
    }
    Some(command)
}

/// Lets two publishes in a row of one channel change places.
pub(super) fn swap_publishes(commands: &mut [(SessionId, Input)]) {
    let is_publish = |input: &Input| matches!(input, Input::Command(Command::Publish(_)));
    for at in 1..commands.len() {
        let (before, here) = (&commands[at - 1], &commands[at]);
        if before.0 == here.0 && is_publish(&before.1) && is_publish(&here.1) {
            return commands.swap(at - 1, at);
        }
    }
}

/// What a wrong shell makes of effects.
pub(super) fn spoil_effects(said: &mut Vec<(PartitionId, Said, Effect)>, bug: Bug, random: &mut Random) {
    let deliveries: Vec<usize> = (0..said.len()).filter(|i| matches!(said[*i].2, Effect::Deliver(_))).collect();
    match bug {
        Bug::DeliveryIsRepeated if random.chance(5) => {
            let again: Vec<_> = deliveries.iter().take(1).map(|i| said[*i].clone()).collect();
            said.extend(again);
        }
        Bug::CountsAreLost => {
            for at in deliveries {
                if let Effect::Deliver(delivery) = &mut said[at].2 {
                    delivery.counts = broker::queue::Counts::default();
                }
            }
        }
        Bug::FlagIsLost => {
            for at in deliveries {
                if let Effect::Deliver(delivery) = &mut said[at].2 {
                    delivery.redelivered = false;
                }
            }
        }
        Bug::RefusalIsAConfirm => {
            for (_, _, effect) in said.iter_mut() {
                if let Effect::Refuse { channel, first, count } = *effect {
                    *effect = Effect::Confirm { channel, first, count };
                }
            }
        }
        Bug::CancelIsLost => said.retain(|s| !matches!(s.2, Effect::Cancelled { .. })),
        Bug::WaitIsHidden => queues::hide_waits(said),
        Bug::DeliveriesSwap => {
            if let [first, second, ..] = deliveries[..] {
                said.swap(first, second);
            }
        }
        Bug::BodyIsAltered if random.chance(5) => {
            for at in deliveries.into_iter().take(1) {
                if let Effect::Deliver(delivery) = &mut said[at].2 {
                    let mut bytes = delivery.message.to_vec();
                    if let Some(last) = bytes.last_mut() {
                        *last ^= 1;
                    }
                    delivery.message = bytes.into();
                }
            }
        }
        _ => {}
    }
}

/// Lets a delivery come back after some seconds, flagged.
pub(super) fn bring_back(
    said: &mut Vec<(PartitionId, Said, Effect)>,
    kept: &mut Option<(Micros, PartitionId, Effect)>,
    now: Micros,
) {
    let Some(at) = said.iter().position(|s| matches!(s.2, Effect::Deliver(_))) else { return };
    match kept.take() {
        Some(young) if now < young.0 + 2_000 * MS => *kept = Some(young),
        Some((_, _, Effect::Deliver(mut delivery))) => {
            let Effect::Deliver(of) = &said[at].2 else { return };
            if of.queue == delivery.queue {
                delivery.redelivered = true;
                let again = (said[at].0, said[at].1, Effect::Deliver(delivery));
                said.push(again);
            }
        }
        _ => *kept = Some((now, said[at].0, said[at].2.clone())),
    }
}
