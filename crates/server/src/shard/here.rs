//! What a shard's switch sees of its thread.
//!
//! Invariant: nothing is decided here. A connection that heard something is in the list of those to be
//! written after the step.

use super::{Local, Outsider};
use crate::connection::Client;
use crate::engine::wall_ms;
use crate::random;
use crate::topology_log::Answer;
use broker::topology::{Applied, Command as Change, CommandReply, Name, Refusal, Topology};
use broker::{ChannelKey, ConsumerKey, PartitionId, VhostId};
use partition::{Command, Effect, RequestId};
use session::Span;
use std::ops::Deref;
use std::rc::Rc;
use switch::{Follower, Surroundings, Switch, Tell};

/// What a shard's switch sees of its thread.
pub(crate) struct Here<'a>(pub(crate) &'a Rc<Local>);

impl Surroundings for Here<'_> {
    type Connection = Rc<Client>;
    type Outsider = Outsider;

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.0.shared.topology()
    }

    fn event_vhost(&self) -> Option<VhostId> {
        let name = self.0.shared.config.event_vhost.as_deref()?;
        self.0.shared.topology().vhost(name.as_bytes())
    }

    fn apply_local(&self, change: &Change, tell: &impl Tell) -> Applied {
        self.0.shared.change_topology(change, Topology::apply_local, true, tell)
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        let mailbox = self.0.shared.mailboxes[self.0.index].clone();
        self.0.shared.log().propose(change, Answer::new(mailbox, channel, request));
    }

    fn vhost_deleted(&self, vhost: VhostId, name: &Name) {
        Follower::vhost_deleted(&*self.0.shared, vhost, name);
    }

    fn user_deleted(&self, name: &Name) {
        Follower::user_deleted(&*self.0.shared, name);
    }

    fn mail(&self, shard: usize, parcel: switch::Parcel<Outsider>) {
        self.0.shared.mailboxes[shard].cross(parcel);
    }

    fn room(&self, client: &Rc<Client>, consumer: ConsumerKey) -> usize {
        let portion = client.reserve(consumer, self.0.window());
        if portion == 0 {
            self.0.flush_later(client);
        }
        portion
    }

    fn settle_room(&self, client: &Rc<Client>) {
        client.settle_reserved();
    }

    fn starve(&self, client: &Rc<Client>, consumer: ConsumerKey) {
        client.starve_remote(consumer);
        self.0.flush_later(client);
    }

    fn hold_again(&self, partitions: &[PartitionId]) {
        let clients: Vec<Rc<Client>> = self.0.clients.borrow().iter().map(|(_, client)| client.clone()).collect();
        clients.iter().for_each(|client| client.hold_again(partitions, self.0));
    }

    fn hear(
        &self,
        client: &Rc<Client>,
        channel: (ChannelKey, u16),
        first: Effect,
        next: &mut dyn FnMut() -> Option<Effect>,
    ) {
        client.handle_effects(channel, first, next, self.0);
        self.0.flush_later(client);
    }

    fn hear_decided(
        &self,
        client: &Rc<Client>,
        channel: (ChannelKey, u16),
        request: RequestId,
        outcome: Result<CommandReply, Refusal>,
    ) {
        client.handle_decided(channel, request, outcome, self.0);
        self.0.flush_later(client);
    }

    #[inline]
    fn passes(&self, partition: PartitionId, command: &Command) {
        if self.0.shared.spans.is_none() {
            return;
        }
        let Command::Publish(publish) = command else { return };
        // What the shards themselves publish is no client's, and nobody's publish span.
        let is_of_shard = publish.publish_seq != 0 && Switch::<Rc<Client>, Outsider>::is_of_shard(publish.channel);
        if let Some(span) = Span::of_stored(publish, random::dice, self.0.shared.elapsed_us()).filter(|_| !is_of_shard)
        {
            self.0.watch(partition, span);
        }
    }

    fn is_loaded(&self) -> bool {
        self.0.shared.is_loaded(self.0.index, 0)
    }

    fn is_any_loaded(&self) -> bool {
        let shared = &self.0.shared;
        (0..shared.gauges.len()).any(|shard| shared.is_loaded(shard, 0))
    }

    fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    fn dice(&self) -> u64 {
        random::dice()
    }

    fn elapsed_us(&self) -> u64 {
        self.0.shared.elapsed_us()
    }
}
