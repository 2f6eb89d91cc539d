//! The end of a connection: its exclusive queues go with it.
//!
//! Invariant: they are deleted whatever becomes of the client, and a client that closes its
//! connection has its answer once no node that can be reached knows them any more. Who declares one
//! of their names over another connection then is not refused.

use super::{Client, Cx, Host, Session};
use crate::host::DeleteQueue;
use amqp::Closed;
use broker::ChannelKey;
use broker::ids::QueueId;
use broker::topology::Checked;
use partition::RequestId;

/// So many queues a connection deletes in a turn: some milliseconds of its shard. It may have tens
/// of thousands.
const QUEUES_A_TURN: usize = 256;

/// What a connection that is over has still to do.
#[derive(Debug)]
pub(crate) struct Farewell {
    /// Those of its queues whose turn has not come. They stay its own until then, so that nobody
    /// else declares their names.
    undeleted: std::vec::IntoIter<QueueId>,
    /// Whether its client waits to hear that they are gone.
    waits: bool,
    /// The connection's own key, if it has one: its channels are closed, and their keys with them.
    key: ChannelKey,
    /// How many of those that every node knows are on their way out and not gone yet.
    queues: usize,
}

impl Farewell {
    /// Whether there are queues whose turn has not come.
    pub(crate) fn is_in_the_middle(&self) -> bool {
        self.undeleted.len() > 0
    }
}

impl Session {
    /// Deletes the exclusive queues of a connection that is over; what is beyond one turn in those
    /// that follow.
    pub(crate) fn take_leave(&mut self, why: &Closed, cx: &mut Cx<'_, impl Host>) {
        let waits = matches!(why, Closed::ByClient { .. });
        let owned: Vec<QueueId> = cx.host.topology().exclusive_queues(self.connection).collect();
        let key = ChannelKey::NOBODY;
        self.farewell = Some(Box::new(Farewell { undeleted: owned.into_iter(), waits, key, queues: 0 }));
        self.go_on_leaving(cx);
    }

    /// Deletes what a turn may of the queues that are left.
    pub(crate) fn go_on_leaving(&mut self, cx: &mut Cx<'_, impl Host>) {
        let host = cx.host;
        let Some(farewell) = &mut self.farewell else { return };
        for queue in farewell.undeleted.by_ref().take(QUEUES_A_TURN) {
            let deletion = host.topology().deletion(queue);
            match deletion {
                Checked::Done => {}
                Checked::Local(change) => drop(host.change(&change)),
                // Every node knows it: its shard sees to it that they hear of its end.
                Checked::Propose(_) => {
                    let Some(partition) = host.topology().queue(queue).map(|queue| queue.partition) else { continue };
                    if farewell.waits && farewell.key == ChannelKey::NOBODY {
                        farewell.key = host.open_channel(OWN_NUMBER);
                    }
                    farewell.queues += 1;
                    host.delete_queue(DeleteQueue {
                        queue,
                        partition,
                        if_unused: false,
                        if_empty: false,
                        channel: farewell.key,
                        request: RequestId(0),
                        insists: true,
                    });
                }
            }
        }
        match farewell.is_in_the_middle() {
            true => self.work.end(),
            false => self.end_farewell(cx),
        }
    }

    /// One of the queues that a farewell waits for is gone.
    pub(crate) fn one_is_gone(&mut self, key: ChannelKey, cx: &mut Cx<'_, impl Host>) {
        let Some(farewell) = self.farewell.as_mut().filter(|farewell| farewell.key == key) else { return };
        farewell.queues -= 1;
        self.end_farewell(cx);
    }

    /// The end of it, if nothing is waited for any more.
    fn end_farewell(&mut self, cx: &mut Cx<'_, impl Host>) {
        let is_done =
            |farewell: &mut Box<Farewell>| !farewell.is_in_the_middle() && (farewell.queues == 0 || !farewell.waits);
        let Some(farewell) = self.farewell.take_if(is_done) else { return };
        if farewell.key != ChannelKey::NOBODY {
            cx.host.close_channel(farewell.key);
        }
        if farewell.waits {
            cx.client.left();
        }
    }
}

/// The number under which a connection hears of what is no channel's: no client's channel has it.
const OWN_NUMBER: u16 = 0;
