//! The end of a connection: its exclusive queues go with it.
//!
//! Invariant: they are deleted whatever becomes of the client, and a client that closes its
//! connection has its answer once no node that can be reached knows them any more. Who declares one
//! of their names over another connection then is not refused.

use super::{Client, Cx, Host, Session};
use crate::host::DeleteQueue;
use amqp::Closed;
use broker::ChannelKey;
use broker::topology::Checked;
use partition::RequestId;

/// What a client that closes its connection waits for.
#[derive(Debug)]
pub(crate) struct Farewell {
    /// The connection's own key: its channels are closed, and their keys with them.
    key: ChannelKey,
    /// How many queues are not gone yet.
    queues: usize,
}

impl Session {
    /// Deletes the exclusive queues of a connection that is over.
    pub(crate) fn take_leave(&mut self, why: &Closed, cx: &mut Cx<'_, impl Host>) {
        let host = cx.host;
        let waits = matches!(why, Closed::ByClient { .. });
        let mut key = ChannelKey::NOBODY;
        let mut queues = 0;
        let owned = host.topology().exclusive_queues(self.connection).to_vec();
        for queue in owned {
            let deletion = host.topology().deletion(queue);
            match deletion {
                Checked::Done => {}
                Checked::Local(change) => drop(host.change(&change)),
                // Every node knows it: its shard sees to it that they hear of its end.
                Checked::Propose(_) => {
                    let Some(partition) = host.topology().queue(queue).map(|queue| queue.partition) else { continue };
                    if waits && queues == 0 {
                        key = host.open_channel(OWN_NUMBER);
                    }
                    queues += 1;
                    host.delete_queue(DeleteQueue {
                        queue,
                        partition,
                        if_unused: false,
                        if_empty: false,
                        channel: key,
                        request: RequestId(0),
                        insists: true,
                    });
                }
            }
        }
        if waits && queues > 0 {
            self.farewell = Some(Box::new(Farewell { key, queues }));
        } else if waits {
            cx.client.left();
        }
    }

    /// One of the queues that a farewell waits for is gone.
    pub(crate) fn one_is_gone(&mut self, key: ChannelKey, cx: &mut Cx<'_, impl Host>) {
        let Some(farewell) = self.farewell.as_mut().filter(|farewell| farewell.key == key) else { return };
        farewell.queues -= 1;
        if farewell.queues == 0 {
            self.farewell = None;
            cx.host.close_channel(key);
            cx.client.left();
        }
    }
}

/// The number under which a connection hears of what is no channel's: no client's channel has it.
const OWN_NUMBER: u16 = 0;
