//! A turn of one connection on its shard: what its session sees of the node, and where that leaves
//! what it wants done.
//!
//! Invariant: nothing is decided here. Each call is one call of the shard or of what the shards
//! share.

use crate::connection::Client;
use crate::engine::wall_ms;
use crate::random;
use crate::shard::{Here, Local, Parcel};
use crate::spans::Spans;
use crate::topology_log::Answer;
use ::node::Stage;
use amqp::{Millis, Table};
use broker::topology::{Applied, BrokerEvent, Command as Change, Placement, Topology};
use broker::{ChannelKey, NodeNumber, PartitionId, VhostId};
use bytes::Bytes;
use partition::{Command, RequestId};
use session::{
    Admitted, Asker, Common, Count, DeleteQueue, Deletion, Host, PasswordCheck, Sampler, Span, TopologyKnown, Verdict,
};
use std::ops::Deref;
use std::rc::Rc;
use switch::Emission;

/// See the module.
pub(crate) struct Turn<'a> {
    pub(crate) local: &'a Rc<Local>,
    pub(crate) client: &'a Rc<Client>,
}

impl Host for Turn<'_> {
    type Client = amqp::Connection;

    #[inline]
    fn common(&self) -> &Common {
        &self.local.shared.sessions
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.local.shared.topology()
    }

    #[inline]
    fn routes_version(&self) -> u64 {
        // Neither ever falls, so the sum differs where either does.
        self.local.shared.topology.version() + self.local.switch.reach_changes()
    }

    fn reaches(&self, node: NodeNumber) -> bool {
        self.local.switch.reaches(node)
    }

    fn now(&self) -> Millis {
        self.local.now()
    }

    fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    fn random(&self) -> u128 {
        random::secret()
    }

    fn check_password(&self, check: PasswordCheck, admit: &mut dyn FnMut() -> Admitted) -> Verdict {
        let (mailbox, seat) = (self.local.shared.mailboxes[self.local.index].clone(), self.client.seat);
        self.local
            .shared
            .passwords
            .check(check, admit, move |is_right| mailbox.send(Parcel::Password { seat, is_right }))
    }

    fn check_token(&self, token: Bytes) -> bool {
        let (mailbox, seat) = (self.local.shared.mailboxes[self.local.index].clone(), self.client.seat);
        let Some(tokens) = &self.local.shared.tokens else { return false };
        tokens.look(token, move |told| mailbox.send(Parcel::Token { seat, told }))
    }

    fn dice(&self) -> u64 {
        random::dice()
    }

    fn shard(&self) -> usize {
        self.local.index
    }

    fn shard_of(&self, partition: PartitionId) -> Option<usize> {
        self.local.switch.shard_of(partition)
    }

    fn is_remote(&self, partition: PartitionId) -> bool {
        self.local.switch.is_remote(partition)
    }

    #[inline]
    fn is_outdated(&self, partition: PartitionId, term: u64) -> bool {
        self.local.switch.is_outdated(partition, term)
    }

    fn transient_partition(&self) -> PartitionId {
        self.local.switch.in_memory()
    }

    fn place_queue(&self, placement: &Placement) -> Option<PartitionId> {
        self.local.shared.place_queue(placement, None)
    }

    fn sync_partition(&self) -> PartitionId {
        self.local.shared.sync_partition()
    }

    #[inline]
    fn is_tracing(&self) -> bool {
        self.local.shared.traced.is_any()
    }

    fn traces(&self, vhost: VhostId) -> bool {
        self.local.shared.traced.contains(vhost)
    }

    fn sampler(&self) -> Option<Sampler> {
        self.local.shared.spans.as_ref().map(Spans::sampler)
    }

    fn end_span(&self, span: Box<Span>) {
        if let Some(spans) = &self.local.shared.spans {
            spans.end(span);
        }
    }

    fn drop_span(&self) {
        self.local.shared.spans.iter().for_each(Spans::drop_one);
    }

    fn watch(&self, partition: PartitionId, span: Box<Span>) {
        if self.local.switch.leads(partition) {
            self.local.watch(partition, span);
        }
    }

    fn check_memory(&self) {
        self.local.shared.check_memory();
    }

    #[inline]
    fn push(&self, partition: PartitionId, command: Command) {
        self.local.switch.push(partition, command);
    }

    fn change(&self, change: &Change) -> Applied {
        self.local.switch.change_locally(change, &Here(self.local))
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        let mailbox = self.local.shared.mailboxes[self.local.index].clone();
        self.local.shared.propose(change, Answer::new(mailbox, channel, request));
    }

    #[inline]
    fn topology_known(&self, now: Millis) -> TopologyKnown {
        self.local.shared.lease.at(now)
    }

    fn has_peers(&self) -> bool {
        self.local.shared.config.has_peers
    }

    fn catch_up(&self, channel: ChannelKey, request: RequestId) {
        let mailbox = self.local.shared.mailboxes[self.local.index].clone();
        self.local.shared.log().catch_up(Answer::new(mailbox, channel, request));
    }

    fn delete_queue(&self, delete: DeleteQueue) {
        let DeleteQueue { queue, partition, if_unused, if_empty, channel, request, insists } = delete;
        let asker = match channel {
            ChannelKey::NOBODY => Asker::Nobody,
            channel => Asker::Channel { channel, request },
        };
        let deletion = Deletion { queue, partition, if_unused, if_empty, asker, insists };
        self.local.switch.delete_queue(deletion, &Here(self.local));
    }

    fn open_channel(&self, number: u16) -> ChannelKey {
        self.local.switch.open_channel(self.client.clone(), &self.client.keys, number)
    }

    fn close_channel(&self, channel: ChannelKey) {
        self.local.switch.close_channel(channel);
    }

    fn note_holder(&self, partition: PartitionId) {
        self.local.switch.note_holder(partition);
    }

    fn drained(&self, partition: PartitionId, channel: ChannelKey, bytes: usize) {
        self.local.switch.drained(partition, channel, bytes);
    }

    #[inline]
    fn count(&self, what: Count, count: u64) {
        self.local.tally.add(what, count);
    }

    fn elapsed_us(&self) -> u64 {
        self.local.shared.elapsed_us()
    }

    fn note_routed(&self, begin_us: u64) {
        let now_us = self.local.shared.elapsed_us();
        self.local.stages.note(Stage::Route, now_us.saturating_sub(begin_us));
        self.local.queued_us.set(now_us);
    }

    fn note_confirmed(&self, begin_us: u64) {
        let took_us = self.local.shared.elapsed_us().saturating_sub(begin_us);
        self.local.stages.note(Stage::Confirm, took_us);
    }

    #[inline]
    fn count_size(&self, bytes: usize) {
        self.local.tally.add_size(bytes);
    }

    #[inline]
    fn ledger(&self) -> &session::Ledger {
        &self.local.ledger
    }

    fn tell(&self, event: BrokerEvent) {
        self.local.shared.tell(event);
    }

    fn emit(&self, vhost: VhostId, exchange: &'static str, key: &[u8], headers: &Table, body: Bytes) {
        let emission = Emission { vhost, exchange, key, headers, body };
        self.local.switch.emit(emission, &Here(self.local));
    }
}
