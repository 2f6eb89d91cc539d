//! What a consumer holds stays there as long as its client does not settle it: it does not grow too old.
//!
//! Only messages with a time of their own, in queues that nobody deletes or purges: there nothing but an ack and its time
//! ends a message. Invariant: a message is looked for with whom its leader gave it to last.

use super::{Served, Sessions};
use crate::checks::violated;
use crate::schedule::{Micros, SECOND};
use broker::{ConsumerKey, PartitionId, QueueId};
use std::collections::BTreeMap;

/// A new leader waits for the consumers of the one before for half a second once they can know of it, and three at most. What a
/// link that broke, or a machine that stood still, has kept from it is over after this long.
const CALM_AFTER: Micros = 3 * SECOND;

/// A message of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) partition: PartitionId,
    pub(super) queue: QueueId,
    pub(super) seq: u64,
}

#[derive(Debug)]
struct Holding {
    id: u64,
    holder: ConsumerKey,
    /// It came to its connection.
    has_come: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    held: BTreeMap<Place, Holding>,
}

impl Holdings {
    /// A leader gives a message out; to nobody who settles it where there is no holder.
    pub(super) fn given(&mut self, place: Place, id: u64, holder: Option<ConsumerKey>) {
        match holder {
            Some(holder) => drop(self.held.insert(place, Holding { id, holder, has_come: false })),
            None => drop(self.held.remove(&place)),
        }
    }
}

impl Sessions {
    /// A node took a step: what is held is there, as far as it knows.
    pub(super) fn look_at_holdings(&mut self, node: usize) {
        let now = self.schedule.now();
        let Sessions { holdings, served, ledger, nodes, .. } = self;
        holdings.held.retain(|place, holding| {
            let Some(member) = nodes[node].partition(place.partition.0 as usize - 1) else { return true };
            let Some(queue) = member.queues().queue(place.queue) else { return true };
            let key = holding.holder.channel;
            let at = ledger.place_of(key).and_then(|(connection, number)| Some((served.get(&connection)?, number)));
            let holds = at.as_ref().is_some_and(|(Served { amqp, .. }, number)| {
                let runs = amqp.channel_at(*number).map(|id| amqp.unacked_of(id, holding.holder.number));
                runs.into_iter().flatten().any(|(first, count)| (first..first + count).contains(&place.seq))
            });
            ledger.figures.held += u64::from(holds && !holding.has_come);
            holding.has_come |= holds;
            let is_over = queue.next_seq() > place.seq && !queue.runs().is_live(place.seq);
            let is_calm = |node| ledger.stormy_until(node) + CALM_AFTER < now;
            if is_over && at.is_some_and(|(of, _)| holds && is_calm(of.node) && is_calm(node)) {
                let Holding { id, holder, .. } = holding;
                violated("held", &format!("message {id}, which {holder:?} holds, ended at {now}: {place:?}"));
            }
            // It was settled, or what became of it nobody can tell any more.
            !is_over && (holds || !holding.has_come)
        });
    }
}
