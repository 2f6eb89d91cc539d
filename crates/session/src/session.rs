//! One connection above its frames: logging in, its channels, and the way from an event or an
//! effect to the file that knows what to do.
//!
//! Invariant: an effect reaches its channel only by the key that the channel was opened with; what
//! comes late for another of the same number meets nobody.

mod login;

use login::Login;

use crate::channel::{Channel, Pending, RequestKind};
use crate::client::Client;
use crate::continuation::Continuation;
use crate::farewell::Farewell;
use crate::history::Replay;
use crate::host::{Host, TopologyKnown};
use crate::occupancy::Place;
use crate::probe::Probe;
use crate::refusal;
use crate::report::ConnectionNumber;
use crate::spans::Spans;
use crate::tally::Count;
use crate::unfinished::{Sums, Unfinished, counted};
use crate::work::Work;
use amqp::{AuthRefused, ChannelError, ChannelId, Closed, Event, Millis, Request};
use broker::topology::{CommandReply, Refusal, RouteTarget, Token};
use broker::{ChannelKey, ConsumerKey, PartitionId, VhostId};
use bytes::Bytes;
use core::net::SocketAddr;
use partition::{Command, Effect, ReplyRoom, RequestId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of what a client says about itself that go into a log line.
const LOG_TEXT_BYTES_MAX: usize = 128;

pub(crate) const NEVER: Millis = Millis::MAX;

/// What is known of one connection above its frames.
pub struct Session {
    pub(crate) peer: SocketAddr,
    /// Our end of its socket.
    pub(crate) local_address: Option<SocketAddr>,
    pub(crate) is_loopback: bool,
    pub(crate) certificate_user: Option<Box<str>>,
    pub(crate) is_own: bool,
    /// What it was let in by, where that was no password.
    pub(crate) token: Option<Arc<Token>>,
    /// Another one is looked at elsewhere, to take its place.
    pub(crate) renews: bool,
    pub(crate) user: Bytes,
    pub(crate) vhost: VhostId,
    pub(crate) vhost_name: Bytes,
    /// Where it is counted, from `connection.open` on.
    pub(crate) occupied: Option<Place>,
    /// Names this connection as the owner of exclusive queues.
    pub(crate) connection: u64,
    /// By number. Clients count from 1, so channel `n` is tried at `n - 1` before it is searched. What moves when one
    /// comes or goes in the middle is a pointer for each behind it.
    #[expect(clippy::vec_box, reason = "tens of thousands of them may have to move")]
    pub(crate) channels: Vec<Box<Channel>>,
    /// What the client said of itself, encoded: as a table it takes four times as much.
    pub(crate) client_properties: Box<[u8]>,
    /// The shards whose partitions were published to, one bit each.
    pub(crate) published: u64,
    pub(crate) refuse_at: Millis,
    /// When consumers are looked at that may hold a message for too long.
    pub(crate) look_at: Millis,
    /// When requests are looked at that may have waited for too long.
    pub(crate) slow_at: Millis,
    /// When partitions are asked again that nobody led.
    pub(crate) ask_at: Millis,
    /// How much the client had said when this node last began to make sure that it knew all.
    pub(crate) caught_up_at: u64,
    /// When it is looked whether the token has come to its end.
    pub(crate) expires_at: Millis,
    /// Messages wait until this node knows where they go.
    pub(crate) waits_to_know: bool,
    /// This node does not know all of the topology, and nobody says so: what it knows no way for is refused.
    pub(crate) routes_blindly: bool,
    /// Bytes of deliveries from other shards that the socket has not taken yet.
    pub(crate) from_remote: SmallVec<[(ChannelKey, PartitionId, usize); 1]>,
    /// What the transactions of all channels hold.
    pub(crate) transaction_bytes: usize,
    /// Bytes of waiting frames that it has told the others of.
    pub(crate) waiting_told: usize,
    /// What this connection has told the others that it holds.
    pub(crate) unfinished: Unfinished,
    /// What waits for it of direct replies; absent until it asks for some.
    pub(crate) reply_room: Option<Arc<ReplyRoom>>,
    /// Where routes are gathered; empty between uses.
    pub(crate) targets: Vec<RouteTarget>,
    /// How many queues the kept routes of all channels name.
    pub(crate) route_targets: usize,
    /// What was done in this turn.
    pub(crate) work: Work,
    /// How long publishes take.
    pub(crate) probe: Probe,
    /// When this turn began, in microseconds since the node started, where messages are traced.
    pub(crate) turn_us: u64,
    /// Traced messages on their way; absent until there is one.
    pub(crate) spans: Option<Box<Spans>>,
    /// A login whose password is looked at elsewhere.
    login: Option<Box<Login>>,
    /// What goes on with the next turn.
    pub(crate) continuation: Option<Box<Continuation>>,
    /// Histories on their way to new bindings; likewise.
    pub(crate) replays: VecDeque<Replay>,
    /// What the answer to the client's `connection.close` waits for.
    pub(crate) farewell: Option<Box<Farewell>>,
}

/// Who is at the other end of a socket, before AMQP says it.
pub struct Peer {
    /// Its address; behind a proxy the one that the proxy names.
    pub address: SocketAddr,
    /// Our end of its socket, if that is known.
    pub local_address: Option<SocketAddr>,
    /// Whether it is on this machine.
    pub is_loopback: bool,
    /// The user that its certificate names.
    pub certificate_user: Option<String>,
    /// Whether the node itself is there, for a user who logged in elsewhere and whom
    /// `certificate_user` names.
    pub is_own: bool,
    /// What that user has shown elsewhere, where it was a token.
    pub token: Option<Arc<Token>>,
}

/// What every step of a session works with.
pub struct Cx<'a, H: Host> {
    /// The client's side.
    pub client: &'a mut H::Client,
    /// The node's side.
    pub host: &'a H,
}

impl Session {
    /// The session of a connection that was just accepted, with a number that no other connection
    /// gets.
    pub fn new(peer: Peer, number: ConnectionNumber) -> Self {
        Session {
            peer: peer.address,
            local_address: peer.local_address,
            is_loopback: peer.is_loopback,
            certificate_user: peer.certificate_user.map(String::into_boxed_str),
            is_own: peer.is_own,
            token: peer.token.filter(|_| peer.is_own),
            renews: false,
            user: Bytes::new(),
            vhost: VhostId(0),
            vhost_name: Bytes::new(),
            occupied: None,
            connection: number.0,
            channels: Vec::new(),
            client_properties: Box::default(),
            published: 0,
            refuse_at: NEVER,
            look_at: NEVER,
            slow_at: NEVER,
            ask_at: NEVER,
            caught_up_at: 0,
            expires_at: NEVER,
            waits_to_know: false,
            routes_blindly: false,
            from_remote: SmallVec::new(),
            transaction_bytes: 0,
            waiting_told: 0,
            unfinished: Unfinished::default(),
            reply_room: None,
            targets: Vec::new(),
            route_targets: 0,
            work: Work::default(),
            probe: Probe::default(),
            turn_us: 0,
            spans: None,
            login: None,
            continuation: None,
            replays: VecDeque::new(),
            farewell: None,
        }
    }

    /// Counts what the client has begun and not ended: `input_bytes` of it are in the machine and
    /// before it. True if it is too much: then the connection was closed, and the machine has more
    /// to say.
    #[inline]
    pub fn count_unfinished(&mut self, input_bytes: usize, cx: &mut Cx<'_, impl Host>) -> bool {
        let waiting = cx.client.waiting_bytes();
        if waiting != 0 || self.waiting_told != 0 {
            self.count_waiting(waiting, cx);
        }
        let standing = if cx.client.is_finished() { 0 } else { cx.client.standing_bytes() };
        let bytes = counted(input_bytes + self.transaction_bytes) + counted(standing);
        self.unfinished.differs(bytes) && self.tell_unfinished(bytes, cx)
    }

    /// What waits for its turn cannot be given back, but less may come: near the limit of the node
    /// each connection is read up to a little only.
    fn count_waiting(&mut self, bytes: usize, cx: &mut Cx<'_, impl Host>) {
        let Sums { waiting, waiting_max, .. } = &cx.host.common().sums;
        match bytes >= self.waiting_told {
            true => waiting.fetch_add((bytes - self.waiting_told) as u64, Ordering::Relaxed),
            false => waiting.fetch_sub((self.waiting_told - bytes) as u64, Ordering::Relaxed),
        };
        self.waiting_told = bytes;
        cx.client.set_short(waiting.load(Ordering::Relaxed) > *waiting_max);
    }

    #[cold]
    fn tell_unfinished(&mut self, bytes: usize, cx: &mut Cx<'_, impl Host>) -> bool {
        let Sums { unfinished, limits, .. } = &cx.host.common().sums;
        let passed = self.unfinished.tell(bytes, unfinished, limits);
        cx.host.check_memory();
        let Some(limit) = passed.filter(|_| !cx.client.is_closing()) else { return false };
        let (user, text) = (log_text(&self.user), limit.text().to_owned());
        tracing::warn!(peer = %self.peer, user = &*user, bytes, ?limit, "connection holds too much that is not finished");
        let method = amqp::MethodId::BASIC_PUBLISH;
        cx.client.connection_error(amqp::ConnectionError { code: amqp::ReplyCode::ResourceError, text, method });
        true
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Who logged in; empty before.
    pub fn user(&self) -> &[u8] {
        &self.user
    }

    /// The virtual host that is open.
    pub fn open_vhost(&self) -> Option<VhostId> {
        self.occupied.as_ref().map(|_| self.vhost)
    }

    /// The connection's number on this node.
    pub fn number(&self) -> ConnectionNumber {
        ConnectionNumber(self.connection)
    }

    /// When [`Session::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Millis {
        self.refuse_at.min(self.look_at).min(self.slow_at).min(self.ask_at).min(self.expires_at)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, cx: &mut Cx<'_, impl Host>, now: Millis) {
        if self.look_at <= now {
            self.look_at_consumers(cx, now);
        }
        if self.slow_at <= now {
            self.look_at_requests(cx, now);
        }
        if self.ask_at <= now {
            self.ask_again(cx);
        }
        if self.expires_at <= now {
            self.look_at_token(cx, now);
        }
        if self.refuse_at <= now {
            self.refuse_at = NEVER;
            cx.client.authenticated(Err(AuthRefused));
        }
    }

    /// Whether a shard that this connection publishes to has as much unwritten as it may.
    #[inline]
    pub fn waits_for_load(&self, is_loaded: impl Fn(usize) -> bool) -> bool {
        let mut left = self.published;
        while left != 0 {
            let shard = left.trailing_zeros() as usize;
            if is_loaded(shard) {
                return true;
            }
            left &= left - 1;
        }
        false
    }

    /// A turn begins, with what is left of the last one. So many connections have more to do than one turn, this one
    /// among them or not: together they do about as much as one alone does, before others are served.
    pub fn begin_turn_among(&mut self, busy: usize, cx: &mut Cx<'_, impl Host>) {
        self.work = Work::among(busy);
        self.waits_to_know = false;
        self.probe.begin_turn();
        if cx.host.is_tracing() {
            self.turn_us = cx.host.elapsed_us();
        }
        self.go_on(cx);
        if !self.replays.is_empty() {
            self.go_on_replaying(cx);
        }
        if self.farewell.as_ref().is_some_and(|farewell| farewell.is_in_the_middle()) {
            self.go_on_leaving(cx);
        }
    }

    /// The turn of a connection that is alone.
    pub fn begin_turn(&mut self, cx: &mut Cx<'_, impl Host>) {
        self.begin_turn_among(1, cx);
    }

    /// Whether the turn ended at a message because this node does not know yet where it goes.
    #[inline]
    pub fn waits_to_know(&self) -> bool {
        self.waits_to_know
    }

    /// Whether messages that had come by `now` may be routed. If not, the turn ends, and the next one looks again.
    #[inline]
    pub(crate) fn may_route(&mut self, now: Millis, cx: &Cx<'_, impl Host>) -> bool {
        match cx.host.topology_known(now) {
            TopologyKnown::All => {
                self.routes_blindly = false;
                true
            }
            known => self.may_route_blindly(known, cx),
        }
    }

    /// Who has left hears of nothing any more, and what it sent counts.
    #[cold]
    fn may_route_blindly(&mut self, known: TopologyKnown, cx: &Cx<'_, impl Host>) -> bool {
        self.routes_blindly = known == TopologyKnown::Vain;
        self.waits_to_know = known == TopologyKnown::NotYet && !cx.client.is_finished();
        if self.waits_to_know {
            self.work.end();
        }
        !self.waits_to_know
    }

    /// Whether the turn has done so much that others are to be served before the next event.
    #[inline]
    pub fn ends_turn(&self) -> bool {
        self.work.is_enough()
    }

    /// What the last turn cost, in queues that a message was handed to, where that is many times what it might: the next
    /// one has to wait until others were served.
    pub fn overdraft(&self) -> Option<usize> {
        self.work.overdraft()
    }

    /// Whether something was begun that the next turn goes on with.
    #[inline]
    pub fn is_in_the_middle(&self) -> bool {
        self.continuation.is_some()
            || !self.replays.is_empty()
            || self.farewell.as_ref().is_some_and(|farewell| farewell.is_in_the_middle())
    }

    /// Takes one event of the machine.
    pub fn handle_event(&mut self, event: Event, cx: &mut Cx<'_, impl Host>, now: Millis) {
        match event {
            Event::Publish(publish) if self.is_live(publish.channel) => match self.may_route(now, cx) {
                true => self.publish(publish, cx),
                false => cx.client.put_back(publish),
            },
            Event::Settle(settle) if self.is_live(settle.channel) => self.settle(settle, cx),
            Event::Request { channel, request } if self.is_live(channel) => self.request(channel, request, cx, now),
            Event::Publish(_) | Event::Settle(_) | Event::Request { .. } => {}
            Event::ChannelOpened { channel } => {
                let key = cx.host.open_channel(channel.number());
                let at = self.place(channel.number()).expect_err("a channel's number is free when it opens");
                self.channels.insert(at, Box::new(Channel::new(channel, key)));
                self.work.channel(self.channels.len() - at, 0);
                cx.host.count(Count::ChannelOpened, 1);
                if cx.host.common().settings.tells_events {
                    self.tell_channel("channel.created", channel, cx.host);
                }
                if self.count_channel(at, cx) {
                    cx.client.reply(channel, amqp::Reply::Done);
                }
            }
            // The machine names what was outstanding; the partitions know it themselves and requeue
            // it at the detach.
            Event::ChannelClosed { channel, unsettled: _, error } => {
                // One that was found here is told already.
                if let Some(error) = error.filter(|_| self.is_live(channel)) {
                    tracing::warn!(peer = %self.peer, channel = channel.number(), %error, "channel error");
                }
                match cx.client.is_closing() {
                    true => self.abandon_all_unread(cx),
                    false => self.abandon_unread(self.channels[self.at(channel)].key, false, cx),
                }
                self.end_channel(channel, cx.host);
            }
            Event::Authenticate(authenticate) => self.authenticate(authenticate, cx, now),
            Event::Open { vhost } => self.open(vhost, cx, now),
            Event::UpdateSecret { new_secret, reason } => self.update_secret(new_secret, &reason, cx),
            Event::Closed(why) => self.end(&why, cx),
        }
    }

    /// Takes one effect for the channel with this key and number.
    #[inline]
    pub fn handle_effect(&mut self, channel: (ChannelKey, u16), effect: Effect, cx: &mut Cx<'_, impl Host>) {
        let (key, number) = channel;
        let Ok(at) = self.place(number) else { return self.one_is_gone(key, cx) };
        if self.channels[at].key != key {
            return;
        }
        match effect {
            Effect::Deliver(delivery) => self.deliver(at, &delivery, cx),
            Effect::Confirm { first, count, .. } => {
                self.channels[at].confirm(first, count, false, cx.client).count(cx.host);
                let awaits = |seq| self.channels[at].awaits(seq);
                if let Some(begin_us) = self.probe.answered(key, first, count, awaits) {
                    cx.host.note_confirmed(begin_us);
                }
                if self.spans.is_some() {
                    self.publish_spans_answered(at, first, count, false, cx.host);
                }
            }
            // What is returned here nobody keeps: it is not told to another leader.
            Effect::Refuse { first, count, .. } | Effect::Returned { first, count, .. } => {
                self.probe.answered(key, first, count, |_| false);
                self.channels[at].confirm(first, count, true, cx.client).count(cx.host);
                if self.spans.is_some() {
                    self.publish_spans_answered(at, first, count, true, cx.host);
                }
            }
            Effect::Reply { request, reply, .. } => self.handle_reply(at, request, reply, cx),
            Effect::Cancelled { consumer, .. } => self.cancelled(at, consumer.number, cx),
            Effect::RepliesDropped { .. } => self.replies_dropped(at),
            Effect::GrantWanted { consumer, ready, .. } => {
                self.channels[at].grant_wanted(consumer.number, ready, cx.host);
            }
            Effect::GrantReturned { consumer, count } => {
                self.channels[at].grant_returned(consumer.number, count, cx.host);
            }
            Effect::Unused { .. } | Effect::DeadLetter(_) | Effect::Lapsed { .. } | Effect::Parted { .. } => {
                unreachable!("the shard keeps what concerns no channel")
            }
        }
    }

    /// A proposal of the channel with this key and number was decided.
    pub fn handle_decided(
        &mut self,
        channel: (ChannelKey, u16),
        request: RequestId,
        outcome: Result<CommandReply, Refusal>,
        cx: &mut Cx<'_, impl Host>,
    ) {
        let (key, number) = channel;
        let Ok(at) = self.place(number) else { return };
        let channel = &self.channels[at];
        let is_awaited = RequestKind::of(request) == RequestKind::Pending(channel.request);
        if channel.key == key && is_awaited && !channel.failed {
            self.decided(at, outcome, cx);
        }
    }

    /// The window has room: a consumer of the channel with this number that was passed over takes
    /// part again. `is_all_drained`: nothing of what another shard sent had to be written before that, so whatever counts
    /// there is not on its way. What a client leaves when it cancels is told to who leads by then, and no
    /// consumer is to wait for it for ever.
    pub fn unstall(&mut self, consumer: ConsumerKey, number: u16, is_all_drained: bool, host: &impl Host) {
        let Ok(at) = self.place(number) else { return };
        let channel = &self.channels[at];
        if channel.key != consumer.channel {
            return;
        }
        let is_used_up = channel.credit.as_ref().is_some_and(|credit| credit.is_used_up());
        if let Some(found) = channel.consumer(consumer.number).filter(|found| !(found.no_ack && is_used_up)) {
            if is_all_drained && found.is_remote {
                host.drained(found.partition, consumer.channel, usize::MAX);
            }
            host.push(found.partition, Command::Stall { queue: found.queue, consumer, stalled: false });
        }
    }

    /// The socket took what other shards and nodes had sent: they may send more. False if there was nothing.
    pub fn drained(&mut self, host: &impl Host) -> bool {
        let is_any = !self.from_remote.is_empty();
        for (channel, partition, bytes) in self.from_remote.drain(..) {
            host.drained(partition, channel, bytes);
        }
        is_any
    }

    #[inline]
    pub(crate) fn place(&self, number: u16) -> Result<usize, usize> {
        let guess = usize::from(number).wrapping_sub(1);
        match self.channels.get(guess) {
            Some(channel) if channel.id.number() == number => Ok(guess),
            _ => self.channels.binary_search_by_key(&number, |channel| channel.id.number()),
        }
    }

    /// The place of an open channel that the machine spoke of.
    #[inline]
    pub(crate) fn at(&self, channel: ChannelId) -> usize {
        self.place(channel.number()).expect("the machine names only channels that it opened and has not closed")
    }

    /// Whether what comes from a channel still counts.
    #[inline]
    fn is_live(&self, channel: ChannelId) -> bool {
        !self.channels[self.at(channel)].failed
    }

    /// Closes a channel with an error, or the connection if the code is a hard one.
    pub(crate) fn fail(&mut self, at: usize, error: ChannelError, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        channel.failed = true;
        channel.pending = Pending::None;
        tracing::warn!(peer = %self.peer, channel = channel.id.number(), %error, "channel error");
        let id = channel.id;
        self.tell_refused(at, &error);
        cx.client.channel_error(id, error);
    }

    fn request(&mut self, channel: ChannelId, request: Request, cx: &mut Cx<'_, impl Host>, now: Millis) {
        let at = self.at(channel);
        self.note_request(at, &request, now);
        self.work.request(&request);
        self.channels[at].request += 1;
        assert!(matches!(self.channels[at].pending, Pending::None), "a channel has one request under way");
        self.handle_request(at, request, cx);
    }

    /// What other shards sent a channel does not count there any more, and counts here as answers: they may send it to
    /// the next channel, which a client that reads nothing must not have without end. Where the channel stays
    /// (`is_there`), they are told.
    pub(crate) fn abandon_unread(&mut self, channel: ChannelKey, is_there: bool, cx: &mut Cx<'_, impl Host>) {
        self.work.look(self.from_remote.len());
        let mut bytes = 0;
        self.from_remote.retain(|(key, partition, sent)| {
            if *key == channel {
                bytes += *sent;
                if is_there {
                    cx.host.drained(*partition, channel, *sent);
                }
            }
            *key != channel
        });
        if bytes > 0 {
            cx.client.abandon_deliveries(bytes);
        }
    }

    /// The same for all channels, which end one after the other.
    fn abandon_all_unread(&mut self, cx: &mut Cx<'_, impl Host>) {
        if !self.from_remote.is_empty() {
            cx.client.abandon_deliveries(self.from_remote.drain(..).map(|(_, _, sent)| sent).sum());
        }
    }

    fn end_channel(&mut self, channel: ChannelId, host: &impl Host) {
        let at = self.at(channel);
        let mut gone = self.channels.remove(at);
        self.work.channel(self.channels.len() - at, gone.consumers.places() + gone.partitions.len());
        gone.take_counts(self.vhost, host.ledger());
        self.probe.forget(gone.key);
        self.spans_of_channel_end(gone.key, host);
        host.ledger().make_room(|| host.topology());
        self.route_targets -= gone.routes.targets();
        self.transaction_bytes -= gone.transaction.as_ref().map_or(0, |transaction| transaction.bytes());
        host.count(Count::ChannelClosed, 1);
        if host.common().settings.tells_events {
            gone.consumers.iter().for_each(|consumer| consumer.tell_end(host));
            self.tell_channel("channel.closed", channel, host);
        }
        for partition in gone.partitions {
            host.push(partition, Command::Detach { channel: gone.key });
        }
        host.close_channel(gone.key);
        if let (true, Some(place)) = (gone.is_counted, &mut self.occupied) {
            place.close_channel();
        }
    }

    /// Counts a channel that is to be opened. One too many ends the connection, and false comes back, as it does for those
    /// behind it.
    fn count_channel(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) -> bool {
        if cx.client.is_closing() {
            return false;
        }
        let Some(place) = &mut self.occupied else { return true };
        let topology = cx.host.topology();
        let counted = place.open_channel(|open| topology.check_channel_open(&self.user, open));
        drop(topology);
        self.channels[at].is_counted = counted.is_ok();
        if let Err(refused) = counted {
            tracing::warn!(peer = %self.peer, text = %refused.text, "channel refused");
            cx.client.connection_error(refusal::connection_error(refused));
        }
        self.channels[at].is_counted
    }

    /// The connection is over; its channels are closed already. Its exclusive queues go with it.
    fn end(&mut self, why: &Closed, cx: &mut Cx<'_, impl Host>) {
        let host = cx.host;
        assert!(self.channels.is_empty(), "the machine closes the channels before the connection");
        let reason = reason_text(why);
        if self.occupied.take().is_some() {
            host.count(Count::ConnectionClosed, 1);
            if host.common().settings.tells_events {
                self.tell_connection("connection.closed", Some(&reason), host);
            }
        }
        let (user, vhost) = (log_text(&self.user), log_text(&self.vhost_name));
        match why {
            // Health checks open a socket and close it again, every few seconds.
            Closed::Disconnected if self.user.is_empty() => {
                tracing::debug!(peer = %self.peer, reason, "connection closed");
            }
            Closed::ByClient { .. } | Closed::Disconnected | Closed::LoginRefused => {
                tracing::info!(peer = %self.peer, user = &*user, vhost = &*vhost, reason, "connection closed");
            }
            Closed::ByServer(error) if error.code == amqp::ReplyCode::ConnectionForced => {
                tracing::info!(peer = %self.peer, user = &*user, vhost = &*vhost, reason, "connection closed");
            }
            _ => tracing::warn!(peer = %self.peer, user = &*user, vhost = &*vhost, reason, "connection closed"),
        }
        self.take_leave(why, cx);
    }
}

pub(crate) fn log_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LOG_TEXT_BYTES_MAX)]).into_owned()
}

fn reason_text(why: &Closed) -> String {
    match why {
        Closed::ByClient { code, text } => format!("closed by the client: {code} {:?}", log_text(text)),
        Closed::ByServer(error) => format!("closed by the server: {} {error}", error.code.number()),
        Closed::WrongProtocol(header) => format!("unknown protocol: {:?}", header.escape_ascii().to_string()),
        Closed::LoginRefused => "login refused".to_owned(),
        Closed::HandshakeTimeout => "handshake not finished in time".to_owned(),
        Closed::HeartbeatTimeout => "no heartbeat from the client for two intervals".to_owned(),
        Closed::Disconnected => "socket closed without connection.close".to_owned(),
        Closed::ClosedUnread => {
            "closed by the client while it was held back, and not read since: what it sent last is given up".to_owned()
        }
    }
}
