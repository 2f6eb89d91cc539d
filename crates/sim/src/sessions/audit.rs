//! Who prepares a run, and looks in the end: one connection, one channel, one thing after the
//! other.
//!
//! Invariant: it goes on as soon as it is answered, and an answer that it does not expect ends the
//! run.

use super::client::declare_fleeting;
use super::front::ConnectionId;
use super::ledger::{Fate, Ledger, Out, To};
use super::wire::{self, Heard, Wire};
use crate::checks::violated;
use amqp::wire::method::Method;
use amqp::{Properties, Table};
use bytes::Bytes;
use std::collections::VecDeque;

/// Something to do.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// To ask, and to be answered by anything but an error.
    Ask(Method),
    /// To take and end all that a queue holds.
    Drain(String),
    /// To look whether a queue that came and went takes a message, confirms it, and gives it back.
    Probe(u64, String),
    /// To look whether a queue is gone.
    Absent(String),
    /// To look whether a queue is empty, or will be.
    Empty(String),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Audit {
    pub(super) connection: Option<ConnectionId>,
    wire: Wire,
    pub(super) output: Vec<u8>,
    is_open: bool,
    waits: bool,
    tasks: VecDeque<Task>,
    /// The message of the probe that is under way, and the publishes so far.
    probe: Option<(u64, bool)>,
    published: u64,
}

impl Audit {
    /// To be done over a new connection.
    pub(super) fn new(tasks: Vec<Task>) -> Audit {
        Audit { tasks: tasks.into(), ..Audit::default() }
    }

    pub(super) fn connected(&mut self, connection: ConnectionId) {
        self.connection = Some(connection);
        self.output = wire::greeting();
        self.waits = true;
    }

    pub(super) fn is_done(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn describe(&self) -> String {
        format!("{:?} at {:?}, waits {}, of {} tasks", self.probe, self.tasks.front(), self.waits, self.tasks.len())
    }

    /// Asks the next thing, if it waits for no answer.
    pub(super) fn act(&mut self, ledger: &mut Ledger) {
        if self.waits || self.connection.is_none() {
            return;
        }
        let Some(task) = self.tasks.front() else { return };
        self.waits = true;
        let method = match task {
            Task::Ask(method) => method.clone(),
            Task::Drain(queue) => get(queue),
            Task::Probe(number, queue) => match self.probe {
                None => declare_fleeting(*number, ledger.has_classic),
                Some((_, false)) => {
                    let queue = Bytes::copy_from_slice(queue.as_bytes());
                    let to = To::Queue(String::from_utf8_lossy(&queue).into_owned());
                    let id = ledger.publish(0, to, false);
                    self.probe = Some((id, true));
                    self.published += 1;
                    let (exchange, ticket) = (Bytes::new(), 0);
                    let publish = Method::BasicPublish {
                        ticket,
                        exchange,
                        routing_key: queue,
                        mandatory: false,
                        immediate: false,
                    };
                    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
                    return wire::publish(&mut self.output, 1, &publish, &properties, &id.to_be_bytes());
                }
                Some((_, true)) => get(queue),
            },
            Task::Absent(queue) | Task::Empty(queue) => passive(queue),
        };
        method.write(&mut self.output, 1);
    }

    pub(super) fn hear(&mut self, bytes: &[u8], ledger: &mut Ledger) {
        for heard in self.wire.take(bytes) {
            self.hear_one(heard, ledger);
        }
    }

    fn hear_one(&mut self, heard: Heard, ledger: &mut Ledger) {
        let Heard { channel, method, body, .. } = heard;
        match &method {
            Method::ConnectionStart { .. } => return wire::start_ok().write(&mut self.output, 0),
            Method::ConnectionTune { .. } => {
                Method::ConnectionTuneOk { channel_max: 8, frame_max: 8_192, heartbeat: 0 }.write(&mut self.output, 0);
                let (virtual_host, capabilities) = (Bytes::from_static(b"/"), Bytes::new());
                return Method::ConnectionOpen { virtual_host, capabilities, insist: false }.write(&mut self.output, 0);
            }
            Method::ConnectionOpenOk { .. } => return self.open(),
            Method::ChannelOpenOk { .. } => return,
            Method::ConfirmSelectOk {} => {
                (self.is_open, self.waits) = (true, false);
                return;
            }
            _ => {}
        }
        if channel == 0 {
            violated("connection", &format!("the audit is told {method:?}"));
        }
        self.waits = false;
        let task = self.tasks.front().cloned();
        let is_over = match (&task, &method) {
            (Some(Task::Absent(_)), Method::ChannelClose { reply_code: 404, .. }) => {
                Method::ChannelCloseOk {}.write(&mut self.output, 1);
                self.open();
                true
            }
            (Some(Task::Absent(queue)), _) => violated("ends", &format!("{queue} is still there: {method:?}")),
            (Some(task), Method::ChannelClose { .. }) => violated("audit", &format!("{task:?}: {method:?}")),
            (Some(Task::Ask(_)), _) => true,
            (Some(Task::Drain(queue)), Method::BasicGetOk { delivery_tag, redelivered, .. }) => {
                let id = ledger.came(&Out {
                    body: &body,
                    queue,
                    redelivered: *redelivered,
                    consumer: None,
                    needs_ack: true,
                });
                ledger.ended(id, queue);
                Method::BasicAck { delivery_tag: *delivery_tag, multiple: false }.write(&mut self.output, 1);
                false
            }
            (Some(Task::Drain(_)), Method::BasicGetEmpty { .. }) => true,
            (Some(Task::Probe(..)), Method::QueueDeclareOk { .. }) => {
                self.probe = Some((0, false));
                false
            }
            (Some(Task::Probe(..)), Method::BasicAck { .. }) => {
                let (id, _) = self.probe.expect("it was published");
                ledger.message(id).fate = Fate::Confirmed;
                false
            }
            (Some(Task::Probe(_, queue)), Method::BasicGetOk { delivery_tag, redelivered, .. }) => {
                let id = ledger.came(&Out {
                    body: &body,
                    queue,
                    redelivered: *redelivered,
                    consumer: None,
                    needs_ack: true,
                });
                Method::BasicAck { delivery_tag: *delivery_tag, multiple: false }.write(&mut self.output, 1);
                let is_over = self.probe.is_some_and(|(own, _)| own == id);
                if is_over {
                    self.probe = None;
                }
                is_over
            }
            (Some(Task::Probe(_, queue)), Method::BasicGetEmpty { .. }) => {
                violated("swallowed", &format!("{queue} confirmed a message and has it not"));
            }
            (Some(Task::Empty(_)), Method::QueueDeclareOk { message_count, .. }) => *message_count == 0,
            other => violated("audit", &format!("{other:?}")),
        };
        if is_over {
            self.tasks.pop_front();
        }
    }

    fn open(&mut self) {
        self.waits = true;
        Method::ChannelOpen { out_of_band: Bytes::new() }.write(&mut self.output, 1);
        Method::ConfirmSelect { no_wait: false }.write(&mut self.output, 1);
    }
}

fn get(queue: &str) -> Method {
    Method::BasicGet { ticket: 0, queue: Bytes::copy_from_slice(queue.as_bytes()), no_ack: false }
}

fn passive(queue: &str) -> Method {
    Method::QueueDeclare {
        ticket: 0,
        queue: Bytes::copy_from_slice(queue.as_bytes()),
        passive: true,
        durable: false,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::new(),
    }
}
