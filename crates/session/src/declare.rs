//! Requests about queues, exchanges and bindings.
//!
//! Invariant: what concerns this node only is changed at once; what is replicated is proposed, and
//! answered when it was decided. What changes nothing is answered by what this node knows, so where
//! other nodes decide too it first makes sure that it knows all: it may have lost them
//! ([`Session::catches_up`]). A queue is deleted by the shard that it lives on, which finishes
//! what it began whoever waits for it.

use super::SYNC_EXCHANGE;
use super::asking::Found;
use super::audit::BindingChange;
use super::channel::{Channel, Pending};
use super::refusal::channel_error;
use super::{Client, Cx, Host, Session, names};
use crate::tally::Count;
use amqp::{ChannelError, Reply, ReplyCode, Request, Table};
use broker::topology::{
    Binding, Checked, Command as Change, CommandReply, ExchangeDeclare, Kind, Name, Placement, QueueDeclare,
    QueueDeclared, Refusal,
};
use broker::{PartitionId, QueueId};
use bytes::Bytes;

/// A `queue.declare` as it came.
#[derive(Clone, Debug)]
pub(super) struct Declare {
    pub(super) queue: Bytes,
    pub(super) durable: bool,
    pub(super) exclusive: bool,
    pub(super) auto_delete: bool,
    pub(super) arguments: Table,
}

/// The sync barrier is always there, and nobody's to change.
fn reserved() -> ChannelError {
    let text = format!("exchange '{}' is the broker's own", String::from_utf8_lossy(SYNC_EXCHANGE));
    ChannelError::new(ReplyCode::AccessRefused, text)
}

/// Whether what the topology says may answer a request: that there is no such queue, at least.
fn is_about_topology(request: &Request) -> bool {
    matches!(
        request,
        Request::ExchangeDeclare { .. }
            | Request::ExchangeDelete { .. }
            | Request::ExchangeBind { .. }
            | Request::ExchangeUnbind { .. }
            | Request::QueueDeclare { .. }
            | Request::QueueBind { .. }
            | Request::QueueUnbind { .. }
            | Request::QueueDelete { .. }
            | Request::QueuePurge { .. }
            | Request::Consume { .. }
            | Request::Get { .. }
    )
}

impl Session {
    /// Takes the one request of a channel.
    pub(super) fn handle_request(&mut self, at: usize, request: Request, cx: &mut Cx<'_, impl Host>) {
        self.channels[at].repeat = None;
        if self.is_about_replies(at, &request, cx) {
            return;
        }
        let may_be_old = is_about_topology(&request)
            && cx.host.has_peers()
            // What was asked before the client's words came, and answered, is as good for all of them.
            && cx.client.input_count() > self.caught_up_at;
        self.channels[at].repeat = may_be_old.then(|| Box::new(request.clone()));
        self.carry_out(at, request, cx);
    }

    /// Whether the request has to wait until this node knows all that was decided by now: by what it
    /// knows there is nothing to decide. It is looked at anew then.
    pub(super) fn catches_up(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) -> bool {
        let channel = &mut self.channels[at];
        let Some(request) = channel.repeat.take() else { return false };
        channel.pending = Pending::CatchUp { request, input: cx.client.input_count() };
        cx.host.catch_up(channel.key, channel.request_id());
        true
    }

    fn carry_out(&mut self, at: usize, request: Request, cx: &mut Cx<'_, impl Host>) {
        match request {
            Request::ExchangeDeclare { exchange, passive, .. } if exchange == SYNC_EXCHANGE => match passive {
                true => cx.client.reply(self.channels[at].id, Reply::Done),
                false => self.fail(at, reserved(), cx),
            },
            Request::ExchangeDelete { exchange, .. } if exchange == SYNC_EXCHANGE => self.fail(at, reserved(), cx),
            Request::QueueDeclare { queue, passive: true, .. } => self.declare_passive(at, &queue, cx),
            Request::QueueDeclare { queue, durable, exclusive, auto_delete, arguments, passive: false } => {
                self.declare(at, Declare { queue, durable, exclusive, auto_delete, arguments }, cx);
            }
            Request::QueueDelete { queue, if_unused, if_empty } => self.delete(at, &queue, if_unused, if_empty, cx),
            Request::QueuePurge { queue } => self.purge(at, queue, cx),
            Request::QueueBind { queue, exchange, routing_key, arguments } => {
                let binding = self.binding(&exchange, Kind::Queue, &queue, &routing_key, arguments);
                self.bind(at, "queue.bind", binding, cx);
            }
            Request::QueueUnbind { queue, exchange, routing_key, arguments } => {
                let binding = self.binding(&exchange, Kind::Queue, &queue, &routing_key, arguments);
                self.unbind(at, "queue.unbind", binding, cx);
            }
            Request::ExchangeBind { destination, source, routing_key, arguments } => {
                let binding = self.binding(&source, Kind::Exchange, &destination, &routing_key, arguments);
                self.bind(at, "exchange.bind", binding, cx);
            }
            Request::ExchangeUnbind { destination, source, routing_key, arguments } => {
                let binding = self.binding(&source, Kind::Exchange, &destination, &routing_key, arguments);
                self.unbind(at, "exchange.unbind", binding, cx);
            }
            Request::ExchangeDeclare { exchange, passive: true, .. } => {
                let found = cx.host.topology().check_exchange_passive(self.vhost, &exchange);
                self.change(at, found.map(|()| Checked::Done), Pending::None, cx);
            }
            Request::ExchangeDeclare { exchange, kind, durable, auto_delete, internal, arguments, passive: false } => {
                let declare = ExchangeDeclare {
                    vhost: self.vhost,
                    name: &exchange,
                    kind: &kind,
                    durable,
                    auto_delete,
                    internal,
                    arguments: &arguments,
                };
                let checked = cx.host.topology().check_exchange_declare(self.actor(), &declare);
                let name = Bytes::copy_from_slice(&Name::stripped(&exchange));
                self.change(at, checked, Pending::Exchange { method: "exchange.declare", name }, cx);
            }
            Request::ExchangeDelete { exchange, if_unused } => {
                let topology = cx.host.topology();
                let checked = topology.check_exchange_delete(self.actor(), self.vhost, &exchange, if_unused);
                drop(topology);
                self.change(at, checked, Pending::Exchange { method: "exchange.delete", name: exchange }, cx);
            }
            Request::Qos { prefetch_count, global } => {
                let channel = &mut self.channels[at];
                match global {
                    true => channel.set_credit(prefetch_count, cx.host),
                    false => channel.prefetch = prefetch_count,
                }
                cx.client.reply(channel.id, Reply::Done);
            }
            Request::Consume { queue, consumer_tag, no_ack, exclusive, arguments, no_local: _ } => {
                self.consume(at, queue, consumer_tag, no_ack, exclusive, &arguments, cx);
            }
            Request::Cancel { consumer_tag } => self.cancel(at, &consumer_tag, cx),
            Request::Get { queue, no_ack } => self.get(at, queue, no_ack, cx),
            Request::Recover { unsettled } => {
                self.begin(at, Vec::new(), vec![(partition::Disposition::Nack, unsettled)], cx);
            }
            Request::TxSelect => self.tx_select(at, cx),
            Request::TxCommit { settles } => self.tx_commit(at, settles, cx),
            Request::TxRollback => self.tx_rollback(at, cx),
        }
    }

    fn binding(&self, source: &[u8], kind: Kind, destination: &[u8], key: &[u8], arguments: Table) -> Binding {
        Binding {
            vhost: self.vhost,
            source: Name::new(source),
            destination_kind: kind,
            destination: Name::new(destination),
            key: Name::new(key),
            arguments,
        }
    }

    /// Answers a request that asked for a queue which is gone since, in the topology's words: once this node knows
    /// of no other one of that name.
    pub(super) fn refuse_gone(&mut self, at: usize, name: &[u8], cx: &mut Cx<'_, impl Host>) {
        if self.catches_up(at, cx) {
            return;
        }
        let (name, vhost) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&self.vhost_name));
        let text = format!("no queue '{name}' in vhost '{vhost}'");
        self.fail(at, ChannelError::new(ReplyCode::NotFound, text), cx);
    }

    /// Proposes a replicated change; the answer comes as [`Session::decided`].
    fn propose(channel: &Channel, change: Change, cx: &Cx<'_, impl Host>) {
        cx.host.propose(change, channel.key, channel.request_id());
    }

    fn bind(&mut self, at: usize, method: &'static str, binding: Binding, cx: &mut Cx<'_, impl Host>) {
        let checked = cx.host.topology().check_bind(self.actor(), binding.clone());
        let history = self.history_of(&binding, cx);
        self.change(at, checked, Pending::Binding(Box::new(BindingChange { method, binding, history })), cx);
    }

    fn unbind(&mut self, at: usize, method: &'static str, binding: Binding, cx: &mut Cx<'_, impl Host>) {
        let checked = cx.host.topology().check_unbind(self.actor(), binding.clone());
        self.change(at, checked, Pending::Binding(Box::new(BindingChange { method, binding, history: None })), cx);
    }

    /// Does what a request about an exchange or a binding needs.
    fn change(&mut self, at: usize, checked: Result<Checked, Refusal>, pending: Pending, cx: &mut Cx<'_, impl Host>) {
        match checked {
            Err(_) | Ok(Checked::Done) if self.catches_up(at, cx) => {}
            Err(refusal) => self.fail(at, channel_error(refusal), cx),
            Ok(Checked::Done) => cx.client.reply(self.channels[at].id, Reply::Done),
            Ok(Checked::Local(change)) => {
                let applied = cx.host.change(&change);
                self.channels[at].pending = pending;
                self.decided(at, applied.outcome, cx);
            }
            Ok(Checked::Propose(change)) => {
                self.channels[at].pending = pending;
                Self::propose(&self.channels[at], change, cx);
            }
        }
    }

    fn declare_passive(&mut self, at: usize, name: &Bytes, cx: &mut Cx<'_, impl Host>) {
        let topology = cx.host.topology();
        let found = topology.check_queue_passive(self.actor(), self.vhost, name);
        let found = found.map(|queue| Found {
            queue: queue.id,
            partition: queue.partition,
            name: Bytes::copy_from_slice(&queue.name),
        });
        drop(topology);
        match found {
            _ if self.catches_up(at, cx) => {}
            Ok(of) => self.wait_for(at, Pending::Stat { of, declare: None }, cx),
            Err(refusal) => self.fail(at, channel_error(refusal), cx),
        }
    }

    fn declare(&mut self, at: usize, declare: Declare, cx: &mut Cx<'_, impl Host>) {
        let declare = Box::new(declare);
        let server_named = declare.queue.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        let name = match server_named {
            true => Bytes::from(names::name("amq.gen-", cx.host.random())),
            false => declare.queue.clone(),
        };
        let wanted = QueueDeclare {
            vhost: self.vhost,
            name: &name,
            server_named,
            durable: declare.durable,
            exclusive: declare.exclusive,
            auto_delete: declare.auto_delete,
            arguments: &declare.arguments,
        };
        let host = cx.host;
        let mut has_place = true;
        let place = |placement: Placement| match placement.in_memory {
            true => host.transient_partition(),
            false => host.place_queue(&placement).unwrap_or_else(|| {
                has_place = false;
                PartitionId::default()
            }),
        };
        let declared = host.topology().check_queue_declare(self.actor(), &wanted, place);
        let name = Bytes::copy_from_slice(&Name::stripped(&name));
        match declared {
            Err(_) | Ok(QueueDeclared::Existing(_)) if self.catches_up(at, cx) => {}
            Err(refusal) => self.fail(at, channel_error(refusal), cx),
            Ok(QueueDeclared::Existing(id)) => {
                cx.host.count(Count::QueueDeclared, 1);
                self.stat_by_id(at, id, name, declare, cx);
            }
            Ok(QueueDeclared::Local(change)) => {
                let applied = cx.host.change(&change);
                self.channels[at].pending = Pending::NewQueue { name, declare };
                self.decided(at, applied.outcome, cx);
            }
            Ok(QueueDeclared::Propose(_)) if !has_place => {
                let text = "this node has no durable queues";
                self.fail(at, ChannelError::new(ReplyCode::NotImplemented, text), cx);
            }
            Ok(QueueDeclared::Propose(change)) => {
                self.channels[at].pending = Pending::NewQueue { name, declare };
                Self::propose(&self.channels[at], change, cx);
            }
        }
    }

    /// Asks for the counts of a queue that was declared, and was there.
    fn stat_by_id(&mut self, at: usize, id: QueueId, name: Bytes, declare: Box<Declare>, cx: &mut Cx<'_, impl Host>) {
        let partition = cx.host.topology().queue(id).map(|queue| queue.partition);
        match partition {
            Some(partition) => {
                let of = Found { queue: id, partition, name };
                self.wait_for(at, Pending::Stat { of, declare: Some(declare) }, cx);
            }
            None => self.declare(at, *declare, cx),
        }
    }

    /// The queue went while its declaration was on its way, as one does that expires: it is declared anew, once its end
    /// is decided.
    pub(super) fn declared_is_gone(&mut self, at: usize, of: Found, declare: Box<Declare>, cx: &mut Cx<'_, impl Host>) {
        if cx.host.topology().queue(of.queue).is_some() {
            self.channels[at].pending = Pending::Stat { of, declare: Some(declare) };
            return self.wait_for_leader(at, cx);
        }
        self.declare(at, *declare, cx);
    }

    fn delete(&mut self, at: usize, name: &Bytes, if_unused: bool, if_empty: bool, cx: &mut Cx<'_, impl Host>) {
        let topology = cx.host.topology();
        let checked = topology.check_queue_delete(self.actor(), self.vhost, name);
        let stripped = Name::stripped(name);
        let found = topology.find_queue(self.vhost, &stripped);
        let is_exclusive = found.is_some_and(|queue| queue.exclusive.is_some());
        let found = found.map(|queue| (queue.id, queue.partition));
        drop(topology);
        let (queue, partition) = match (checked, found) {
            (Err(_) | Ok(Checked::Done), _) | (_, None) if self.catches_up(at, cx) => return,
            (Err(refusal), _) => return self.fail(at, channel_error(refusal), cx),
            (Ok(Checked::Done), _) | (Ok(_), None) => {
                return cx.client.reply(self.channels[at].id, Reply::QueueDeleted { message_count: 0 });
            }
            (Ok(_), Some(found)) => found,
        };
        let of = Found { queue, partition, name: Bytes::copy_from_slice(&stripped) };
        self.wait_for(at, Pending::Delete { of, if_unused, if_empty, is_exclusive, cancelled: Vec::new() }, cx);
    }

    fn purge(&mut self, at: usize, name: Bytes, cx: &mut Cx<'_, impl Host>) {
        let topology = cx.host.topology();
        let found = topology.check_read(self.actor(), self.vhost, &name).map(|queue| (queue.id, queue.partition));
        drop(topology);
        match found {
            Err(_) if self.catches_up(at, cx) => {}
            Err(refusal) => self.fail(at, channel_error(refusal), cx),
            Ok((queue, partition)) => self.wait_for(at, Pending::Purge(Found { queue, partition, name }), cx),
        }
    }

    /// A change that the channel waits for was decided.
    pub(super) fn decided(&mut self, at: usize, outcome: Result<CommandReply, Refusal>, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let pending = std::mem::take(&mut channel.pending);
        match (pending, outcome) {
            (Pending::CatchUp { request, input }, Ok(_)) => {
                self.caught_up_at = self.caught_up_at.max(input);
                self.carry_out(at, *request, cx);
            }
            (Pending::CatchUp { .. }, Err(refusal)) if refusal == Refusal::undecided() => {
                self.fail(at, channel_error(Refusal::not_up_to_date()), cx);
            }
            (Pending::NewQueue { name, .. }, Ok(CommandReply::Queue { id: queue, created: true })) => {
                let id = channel.id;
                // A queue of one connection is nobody else's business, and comes and goes by the
                // thousand.
                if cx.host.topology().queue(queue).is_none_or(|queue| queue.exclusive.is_none()) {
                    self.tell_audit("queue.declare", &name, None);
                }
                cx.host.count(Count::QueueDeclared, 1);
                let reply = Reply::QueueDeclared { queue: name, message_count: 0, consumer_count: 0 };
                cx.client.reply(id, reply);
            }
            (Pending::NewQueue { name, declare }, Ok(CommandReply::Queue { id, created: false })) => {
                cx.host.count(Count::QueueDeclared, 1);
                self.stat_by_id(at, id, name, declare, cx);
            }
            (Pending::Replies { tag, name }, Ok(CommandReply::Queue { id, .. })) => {
                self.attach_replies(at, tag, (id, name), cx);
            }
            // The node stood still, and others took it for gone. By now it knows that, and its clients are here.
            (Pending::NewQueue { declare, .. }, Err(refusal)) if refusal == Refusal::of_an_earlier_era() => {
                self.declare(at, *declare, cx);
            }
            (Pending::Replies { tag, .. }, Err(refusal)) if refusal == Refusal::of_an_earlier_era() => {
                self.consume_replies(at, tag, true, cx);
            }
            (Pending::Exchange { method, name }, Ok(_)) => {
                self.tell_audit(method, &name, None);
                cx.client.reply(self.channels[at].id, Reply::Done);
            }
            (Pending::Binding(change), Ok(_)) => self.binding_changed(at, *change, cx),
            // Whatever it was, it was not done.
            (_, Err(refusal)) => self.fail(at, channel_error(refusal), cx),
            (pending, outcome) => panic!("{outcome:?} does not answer {pending:?}"),
        }
    }
}
