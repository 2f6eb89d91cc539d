//! Which column of a history is what.
//!
//! Invariant: what messages do has the same columns wherever it is counted, so that one function
//! tells it of a queue, a channel, a virtual host and the node. Those that change most come first:
//! the mask of a row is a byte then.

use crate::process::Process;
use server::handle::{ChannelTraffic, NodeFigures, QueueTraffic};

pub(crate) const PUBLISH: usize = 0;
pub(crate) const DELIVER: usize = 1;
pub(crate) const ACK: usize = 2;
pub(crate) const READY: usize = 3;
pub(crate) const UNACKED: usize = 4;
pub(crate) const DELIVER_NO_ACK: usize = 5;
pub(crate) const GET: usize = 6;
pub(crate) const GET_NO_ACK: usize = 7;
pub(crate) const GET_EMPTY: usize = 8;
pub(crate) const REDELIVER: usize = 9;
/// Columns of a queue.
pub(crate) const QUEUE_WIDTH: usize = 10;

pub(crate) const CONFIRM: usize = 10;
pub(crate) const RETURN: usize = 11;
pub(crate) const DROP: usize = 12;
/// Columns of a channel.
pub(crate) const CHANNEL_WIDTH: usize = 13;

pub(crate) const RECV_OCT: usize = 13;
pub(crate) const SEND_OCT: usize = 14;
/// Columns of a virtual host.
pub(crate) const VHOST_WIDTH: usize = 15;

pub(crate) const CONNECTION_CREATED: usize = 13;
pub(crate) const CONNECTION_CLOSED: usize = 14;
pub(crate) const CHANNEL_CREATED: usize = 15;
pub(crate) const CHANNEL_CLOSED: usize = 16;
pub(crate) const QUEUE_DECLARED: usize = 17;
pub(crate) const QUEUE_CREATED: usize = 18;
pub(crate) const QUEUE_DELETED: usize = 19;
pub(crate) const MEM_USED: usize = 20;
pub(crate) const FD_USED: usize = 21;
pub(crate) const SOCKETS_USED: usize = 22;
pub(crate) const PROC_USED: usize = 23;
pub(crate) const DISK_FREE: usize = 24;
pub(crate) const LOG_BYTES: usize = 25;
pub(crate) const LOG_SYNCS: usize = 26;
pub(crate) const CONTEXT_SWITCHES: usize = 27;
/// Columns of the node.
pub(crate) const NODE_WIDTH: usize = 28;

pub(crate) const IN: usize = 0;
pub(crate) const OUT: usize = 1;
/// Columns of an exchange.
pub(crate) const EXCHANGE_WIDTH: usize = 2;

pub(crate) const RECEIVED: usize = 0;
pub(crate) const SENT: usize = 1;
/// Columns of a connection.
pub(crate) const BYTES_WIDTH: usize = 2;

/// What came out of a queue, by column.
pub(super) fn of_queue(traffic: &QueueTraffic) -> [(usize, u64); 7] {
    [
        (DELIVER, traffic.delivered),
        (DELIVER_NO_ACK, traffic.delivered_no_ack),
        (GET, traffic.got),
        (GET_NO_ACK, traffic.got_no_ack),
        (GET_EMPTY, traffic.got_empty),
        (REDELIVER, traffic.redelivered),
        (ACK, traffic.acked),
    ]
}

/// What went over a channel, by column.
pub(super) fn of_channel(traffic: &ChannelTraffic) -> impl Iterator<Item = (usize, u64)> {
    let own = [
        (PUBLISH, traffic.published),
        (CONFIRM, traffic.confirmed),
        (RETURN, traffic.returned),
        (DROP, traffic.dropped),
    ];
    of_queue(&traffic.out).into_iter().chain(own)
}

/// What the node counted since its start, by column.
pub(super) fn of_node(figures: &NodeFigures) -> impl Iterator<Item = (usize, u64)> {
    let traffic = &figures.traffic;
    [
        (PUBLISH, traffic.published),
        (CONFIRM, traffic.confirmed),
        (RETURN, traffic.returned),
        (DROP, traffic.dropped),
        (DELIVER, traffic.delivered),
        (DELIVER_NO_ACK, traffic.delivered_no_ack),
        (GET, traffic.got),
        (GET_NO_ACK, traffic.got_no_ack),
        (GET_EMPTY, traffic.got_empty),
        (REDELIVER, traffic.redelivered),
        (ACK, traffic.acked),
        (CONNECTION_CREATED, traffic.connections_opened),
        (CONNECTION_CLOSED, traffic.connections_closed),
        (CHANNEL_CREATED, traffic.channels_opened),
        (CHANNEL_CLOSED, traffic.channels_closed),
        (QUEUE_DECLARED, traffic.queues_declared),
        (QUEUE_CREATED, figures.queues_created),
        (QUEUE_DELETED, figures.queues_deleted),
        (SOCKETS_USED, figures.connections),
        (DISK_FREE, figures.disk_free_bytes.unwrap_or_default()),
        (LOG_BYTES, figures.log_bytes),
        (LOG_SYNCS, figures.log_syncs),
    ]
    .into_iter()
}

/// What the process takes of the machine, by column.
pub(super) fn of_process(process: &Process) -> [(usize, u64); 4] {
    [
        (MEM_USED, process.resident_bytes.unwrap_or_default()),
        (FD_USED, process.open_fds.unwrap_or_default()),
        (PROC_USED, process.threads.unwrap_or_default()),
        (CONTEXT_SWITCHES, process.context_switches.unwrap_or_default()),
    ]
}
