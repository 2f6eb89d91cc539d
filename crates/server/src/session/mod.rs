//! The session of a connection: turns what the AMQP machine says into checks, routes and commands, and what partitions
//! answer into calls on the machine.
//!
//! Invariant: it decides nothing. Whether a request is lawful the topology says, what becomes of a message its partition
//! says, and what goes on the wire the machine says; the session knows who asked whom. A channel has at most one request
//! under way, because the machine holds back what follows it.
//!
//! In reading order: a channel and its consumers ([`channel`]), the road of a publish ([`publish`], with what a message's
//! properties ask for in [`traits`]), requests ([`declare`], [`consume`]), a channel-wide prefetch ([`credit`]), direct
//! reply-to ([`reply_to`]), transactions ([`transaction`]), consumers that hold
//! a message for too long ([`timeouts`]), what the broker writes into messages ([`stamps`]) and tells of them ([`firehose`]), what is
//! told of all this ([`report`]), and of what waits for too long ([`waiting`]).

mod channel;
mod consume;
mod credit;
mod declare;
mod events;
pub(crate) mod facts;
mod firehose;
mod history;
mod publish;
pub(crate) mod random;
mod refusal;
mod reply_to;
mod report;
mod routes;
mod stamps;
mod timeouts;
mod traits;
mod transaction;
mod waiting;
mod work;

pub use publish::SYNC_EXCHANGE;
pub use stamps::{Stamp, Stamps};

use crate::connection::Client;
use crate::occupancy::Place;
use crate::report::ConnectionNumber;
use crate::shard::thread::Local;
use crate::tally::Count;
use crate::unfinished::{Unfinished, counted};
use amqp::{AuthRefused, Authenticate, ChannelError, ChannelId, Closed, Connection, Event, Mechanism, Millis, Request};
use broker::topology::{Actor, Checked, NAME_BYTES_MAX, Outcome, Refusal, RouteTarget};
use broker::{ChannelKey, ConsumerKey, VhostId};
use bytes::Bytes;
use channel::{Channel, Pending, RequestKind};
use partition::{Command, Effect, RequestId};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use transaction::Commit;
use work::Work;

/// How long a refused login waits for its answer: guessing passwords is slow, and nobody else waits.
const LOGIN_REFUSED_DELAY_MS: Millis = 1_000;

/// Bytes of what a client says about itself that go into a log line.
const LOG_TEXT_BYTES_MAX: usize = 128;

const NEVER: Millis = Millis::MAX;

/// What is known of one connection above its frames.
pub(crate) struct Session {
    peer: SocketAddr,
    /// Our end of its socket.
    local_address: Option<SocketAddr>,
    is_loopback: bool,
    certificate_user: Option<Box<str>>,
    user: Bytes,
    vhost: VhostId,
    vhost_name: Bytes,
    /// Where it is counted, from `connection.open` on.
    occupied: Option<Place>,
    /// Names this connection as the owner of exclusive queues.
    connection: u64,
    /// By number. Clients count from 1, so channel `n` is tried at `n - 1` before it is searched.
    channels: Vec<Channel>,
    /// What the client said of itself, encoded: as a table it takes four times as much.
    client_properties: Box<[u8]>,
    /// The shards whose partitions were published to, one bit each.
    published: u64,
    refuse_at: Millis,
    /// When consumers are looked at that may hold a message for too long.
    look_at: Millis,
    /// When requests are looked at that may have waited for too long.
    slow_at: Millis,
    /// Bytes of deliveries from other shards that the socket has not taken yet.
    from_remote: SmallVec<[(ChannelKey, usize, usize); 1]>,
    /// What the transactions of all channels hold.
    transaction_bytes: usize,
    /// Bytes of waiting frames that it has told the others of.
    waiting_told: usize,
    /// What this connection has told the others that it holds.
    unfinished: Unfinished,
    /// Where routes are gathered; empty between uses.
    targets: Vec<RouteTarget>,
    /// How many queues the kept routes of all channels name.
    route_targets: usize,
    /// What was done in this turn.
    work: Work,
    /// A commit that goes on with the next turn.
    committing: Option<Box<Commit>>,
}

/// Who is at the other end of a socket, before AMQP says it.
pub(crate) struct Peer {
    /// Its address; behind a proxy the one that the proxy names.
    pub(crate) address: SocketAddr,
    /// Our end of its socket, if that is known.
    pub(crate) local_address: Option<SocketAddr>,
    /// Whether it is on this machine.
    pub(crate) is_loopback: bool,
    /// The user that its certificate names.
    pub(crate) certificate_user: Option<String>,
}

/// What every step of a session works with.
pub(super) struct Cx<'a> {
    pub(super) amqp: &'a mut Connection,
    pub(super) local: &'a Rc<Local>,
}

impl Session {
    /// The session of a connection that was just accepted.
    pub(crate) fn new(peer: Peer, local: &Local) -> Self {
        Session {
            peer: peer.address,
            local_address: peer.local_address,
            is_loopback: peer.is_loopback,
            certificate_user: peer.certificate_user.map(String::into_boxed_str),
            user: Bytes::new(),
            vhost: VhostId(0),
            vhost_name: Bytes::new(),
            occupied: None,
            // A key that no channel gets is a number that no other connection gets.
            connection: local.keys.borrow_mut().next().0,
            channels: Vec::new(),
            client_properties: Box::default(),
            published: 0,
            refuse_at: NEVER,
            look_at: NEVER,
            slow_at: NEVER,
            from_remote: SmallVec::new(),
            transaction_bytes: 0,
            waiting_told: 0,
            unfinished: Unfinished::default(),
            targets: Vec::new(),
            route_targets: 0,
            work: Work::default(),
            committing: None,
        }
    }

    /// Counts what the client has begun and not ended: `input_bytes` of it are in the machine and before it. True if it is
    /// too much: then the connection was closed, and the machine has more to say.
    #[inline]
    pub(crate) fn count_unfinished(&mut self, input_bytes: usize, amqp: &mut Connection, local: &Local) -> bool {
        let waiting = amqp.waiting_bytes();
        if waiting != 0 || self.waiting_told != 0 {
            self.count_waiting(waiting, amqp, local);
        }
        let standing = if amqp.is_finished() { 0 } else { amqp.standing_bytes() };
        let bytes = counted(input_bytes + self.transaction_bytes) + counted(standing);
        self.unfinished.differs(bytes) && self.tell_unfinished(bytes, amqp, local)
    }

    /// What waits for its turn cannot be given back, but less may come: near the limit of the node each connection is read up to a
    /// little only.
    fn count_waiting(&mut self, bytes: usize, amqp: &mut Connection, local: &Local) {
        let sum = &local.shared.waiting_bytes;
        match bytes >= self.waiting_told {
            true => sum.fetch_add((bytes - self.waiting_told) as u64, Ordering::Relaxed),
            false => sum.fetch_sub((self.waiting_told - bytes) as u64, Ordering::Relaxed),
        };
        self.waiting_told = bytes;
        amqp.set_short(sum.load(Ordering::Relaxed) > local.shared.waiting_bytes_max);
    }

    #[cold]
    fn tell_unfinished(&mut self, bytes: usize, amqp: &mut Connection, local: &Local) -> bool {
        let shared = &local.shared;
        let passed = self.unfinished.tell(bytes, &shared.unfinished_bytes, &shared.unfinished_limits);
        shared.check_memory();
        let Some(limit) = passed.filter(|_| !amqp.is_closing()) else { return false };
        let (user, text) = (log_text(&self.user), limit.text().to_owned());
        tracing::warn!(peer = %self.peer, ?user, bytes, ?limit, "connection holds too much that is not finished");
        let method = amqp::MethodId::BASIC_PUBLISH;
        amqp.connection_error(amqp::ConnectionError { code: amqp::ReplyCode::ResourceError, text, method });
        true
    }

    /// The client's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Who logged in; empty before.
    pub(crate) fn user(&self) -> &[u8] {
        &self.user
    }

    /// The virtual host that is open.
    pub(crate) fn open_vhost(&self) -> Option<VhostId> {
        self.occupied.as_ref().map(|_| self.vhost)
    }

    /// The connection's number on this node.
    pub(crate) fn number(&self) -> ConnectionNumber {
        ConnectionNumber(self.connection)
    }

    /// When [`Session::handle_timeout`] is to be called.
    pub(crate) fn poll_timeout(&self) -> Millis {
        self.refuse_at.min(self.look_at).min(self.slow_at)
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, amqp: &mut Connection, local: &Rc<Local>, now: Millis) {
        if self.look_at <= now {
            self.look_at_consumers(&mut Cx { amqp, local }, now);
        }
        if self.slow_at <= now {
            self.look_at_requests(&mut Cx { amqp, local }, now);
        }
        if self.refuse_at <= now {
            self.refuse_at = NEVER;
            amqp.authenticated(Err(AuthRefused));
        }
    }

    /// Whether a shard that this connection publishes to has as much unwritten as it may.
    #[inline]
    pub(crate) fn waits_for_load(&self, local: &Local) -> bool {
        let mut left = self.published;
        while left != 0 {
            let shard = left.trailing_zeros() as usize;
            if local.shared.is_loaded(shard) {
                return true;
            }
            left &= left - 1;
        }
        false
    }

    /// A turn begins: what is left of the last one comes first.
    pub(crate) fn begin_turn(&mut self, amqp: &mut Connection, local: &Rc<Local>) {
        self.work = Work::default();
        self.go_on_committing(&mut Cx { amqp, local });
    }

    /// Whether the turn has done so much that others are to be served before the next event.
    #[inline]
    pub(crate) fn ends_turn(&self) -> bool {
        self.work.is_enough()
    }

    /// Whether something was begun that the next turn goes on with.
    #[inline]
    pub(crate) fn is_in_the_middle(&self) -> bool {
        self.committing.is_some()
    }

    /// Takes one event of the machine.
    pub(crate) fn handle_event(
        &mut self,
        event: Event,
        amqp: &mut Connection,
        client: &Rc<Client>,
        local: &Rc<Local>,
        now: Millis,
    ) {
        let mut cx = Cx { amqp, local };
        match event {
            Event::Publish(publish) if self.is_live(publish.channel) => self.publish(publish, &mut cx),
            Event::Settle(settle) if self.is_live(settle.channel) => self.settle(&settle, &mut cx),
            Event::Request { channel, request } if self.is_live(channel) => {
                self.request(channel, request, &mut cx, now)
            }
            Event::Publish(_) | Event::Settle(_) | Event::Request { .. } => {}
            Event::ChannelOpened { channel } => {
                let key = local.keys.borrow_mut().next();
                local.register(key, client, channel.number());
                let at = self.place(channel.number()).expect_err("a channel's number is free when it opens");
                self.channels.insert(at, Channel::new(channel, key));
                local.tally.add(Count::ChannelOpened, 1);
                if local.shared.tells_events() {
                    self.tell_channel("channel.created", channel, local);
                }
                self.count_channel(at, &mut cx);
            }
            // The machine names what was outstanding; the partitions know it themselves and requeue it at the detach.
            Event::ChannelClosed { channel, unsettled: _ } => self.end_channel(channel, local),
            Event::Authenticate(authenticate) => self.authenticate(&authenticate, &mut cx, now),
            Event::Open { vhost } => self.open(vhost, &mut cx),
            // Passwords are checked at login only and rights at every operation, so a renewed secret has nothing to refresh.
            Event::UpdateSecret { reason, .. } => {
                let (user, reason) = (log_text(&self.user), log_text(&reason));
                tracing::info!(peer = %self.peer, ?user, ?reason, "secret updated");
                amqp.secret_updated(Ok(()));
            }
            Event::Closed(why) => self.end(&why, local),
        }
    }

    /// Takes one effect for the channel with this key and number.
    #[inline]
    pub(crate) fn handle_effect(
        &mut self,
        channel: (ChannelKey, u16),
        effect: Effect,
        amqp: &mut Connection,
        local: &Rc<Local>,
    ) {
        let (key, number) = channel;
        let Ok(at) = self.place(number) else { return };
        if self.channels[at].key != key {
            return;
        }
        let mut cx = Cx { amqp, local };
        match effect {
            Effect::Deliver(delivery) => self.deliver(at, &delivery, &mut cx),
            Effect::Confirm { first, count, .. } => {
                let confirmed = self.channels[at].confirm(first, count, false, cx.amqp);
                local.tally.add(Count::Confirmed, confirmed);
            }
            Effect::Refuse { first, count, .. } => {
                self.channels[at].confirm(first, count, true, cx.amqp);
            }
            Effect::Reply { request, reply, .. } => self.handle_reply(at, request, reply, &mut cx),
            Effect::Cancelled { consumer, .. } => self.channels[at].cancelled(consumer.number, &mut cx),
            Effect::GrantWanted { consumer, ready, .. } => {
                self.channels[at].grant_wanted(consumer.number, ready, local);
            }
            Effect::GrantReturned { consumer, count } => {
                self.channels[at].grant_returned(consumer.number, count, local);
            }
            Effect::Unused { .. } | Effect::DeadLetter(_) | Effect::Lapsed { .. } => {
                unreachable!("the shard keeps what concerns no channel")
            }
        }
    }

    /// A proposal of the channel with this key and number was decided.
    pub(crate) fn handle_decided(
        &mut self,
        channel: (ChannelKey, u16),
        request: RequestId,
        outcome: Result<Outcome, Refusal>,
        amqp: &mut Connection,
        local: &Rc<Local>,
    ) {
        let (key, number) = channel;
        let Ok(at) = self.place(number) else { return };
        let channel = &self.channels[at];
        let is_awaited = RequestKind::of(request) == RequestKind::Pending(channel.request);
        if channel.key == key && is_awaited && !channel.failed {
            self.decided(at, outcome, &mut Cx { amqp, local });
        }
    }

    /// The window has room: a consumer that was passed over takes part again.
    pub(crate) fn unstall(&mut self, consumer: ConsumerKey, local: &Rc<Local>) {
        let Some(number) = local.number_of(consumer.channel) else { return };
        let Ok(at) = self.place(number) else { return };
        let channel = &self.channels[at];
        if channel.key != consumer.channel {
            return;
        }
        let is_used_up = channel.credit.as_ref().is_some_and(|credit| credit.is_used_up());
        if let Some(found) = channel.consumer(consumer.number).filter(|found| !(found.no_ack && is_used_up)) {
            local.push(found.partition, Command::Stall { queue: found.queue, consumer, stalled: false });
        }
    }

    /// The socket took what other shards had sent: they may send more.
    pub(crate) fn drained(&mut self, local: &Rc<Local>) {
        for (channel, shard, bytes) in self.from_remote.drain(..) {
            local.inbox.borrow_mut().push_parcel(shard, crate::shard::Parcel::Drained { channel, bytes });
        }
    }

    #[inline]
    fn place(&self, number: u16) -> Result<usize, usize> {
        let guess = usize::from(number).wrapping_sub(1);
        match self.channels.get(guess) {
            Some(channel) if channel.id.number() == number => Ok(guess),
            _ => self.channels.binary_search_by_key(&number, |channel| channel.id.number()),
        }
    }

    /// The place of an open channel that the machine spoke of.
    #[inline]
    fn at(&self, channel: ChannelId) -> usize {
        self.place(channel.number()).expect("the machine names only channels that it opened and has not closed")
    }

    /// Whether what comes from a channel still counts.
    #[inline]
    fn is_live(&self, channel: ChannelId) -> bool {
        !self.channels[self.at(channel)].failed
    }

    /// Closes a channel with an error, or the connection if the code is a hard one.
    fn fail(&mut self, at: usize, error: ChannelError, cx: &mut Cx<'_>) {
        let channel = &mut self.channels[at];
        channel.failed = true;
        channel.pending = Pending::None;
        tracing::warn!(peer = %self.peer, channel = channel.id.number(), %error, "channel error");
        cx.amqp.channel_error(channel.id, error);
    }

    fn actor(&self) -> Actor<'_> {
        Actor { user: &self.user, connection: self.connection }
    }

    fn request(&mut self, channel: ChannelId, request: Request, cx: &mut Cx<'_>, now: Millis) {
        let at = self.at(channel);
        self.note_request(at, &request, now);
        self.channels[at].request += 1;
        assert!(matches!(self.channels[at].pending, Pending::None), "a channel has one request under way");
        self.handle_request(at, request, cx);
    }

    fn end_channel(&mut self, channel: ChannelId, local: &Rc<Local>) {
        let gone = self.channels.remove(self.at(channel));
        self.route_targets -= gone.routes.targets();
        self.transaction_bytes -= gone.transaction.as_ref().map_or(0, |transaction| transaction.bytes());
        local.tally.add(Count::ChannelClosed, 1);
        if local.shared.tells_events() {
            gone.consumers.iter().for_each(|consumer| consumer.tell_end(local));
            self.tell_channel("channel.closed", channel, local);
        }
        for partition in gone.partitions {
            local.push(partition, Command::Detach { channel: gone.key });
        }
        self.from_remote.retain(|(key, _, _)| *key != gone.key);
        local.unregister(gone.key);
        if let (true, Some(place)) = (gone.is_counted, &mut self.occupied) {
            place.close_channel();
        }
    }

    /// Counts a channel that was just opened; one too many ends the connection.
    fn count_channel(&mut self, at: usize, cx: &mut Cx<'_>) {
        let Some(place) = &mut self.occupied else { return };
        let topology = cx.local.shared.topology();
        let counted = place.open_channel(|open| topology.check_channel_open(&self.user, open));
        drop(topology);
        self.channels[at].is_counted = counted.is_ok();
        if let Err(refused) = counted {
            tracing::warn!(peer = %self.peer, text = %refused.text, "channel refused");
            cx.amqp.connection_error(refusal::connection_error(refused));
        }
    }

    fn authenticate(&mut self, authenticate: &Authenticate, cx: &mut Cx<'_>, now: Millis) {
        let shared = &cx.local.shared;
        let topology = shared.topology();
        let mut admitted = None;
        let (name, known) = match (authenticate.mechanism, &self.certificate_user) {
            (Mechanism::External, Some(name)) => {
                (Bytes::copy_from_slice(name.as_bytes()), topology.user(name.as_bytes()).is_some())
            }
            (Mechanism::External, None) => (Bytes::new(), false),
            (Mechanism::Anonymous, _) => {
                let name = shared.config.anonymous_user.as_bytes();
                (Bytes::copy_from_slice(name), topology.user(name).is_some())
            }
            _ => {
                let exists = topology.user(&authenticate.user).is_some();
                admitted = shared.logins.admit(self.peer.ip(), &authenticate.user, exists, now);
                let known =
                    admitted.is_some() && topology.authenticate(&authenticate.user, &authenticate.password).is_some();
                (Bytes::copy_from_slice(&authenticate.user), known)
            }
        };
        drop(topology);
        let user = log_text(&name);
        let only_loopback = shared.config.loopback_users.iter().any(|other| other.as_bytes() == &name[..]);
        let reason = match (known, authenticate.mechanism) {
            (false, Mechanism::External) => "no user of the certificate's name",
            (false, Mechanism::Anonymous) => "no user of the name in anonymous_login_user",
            (false, _) if admitted.is_none() => "too many failed logins: the password was not looked at",
            (false, _) => "wrong user or password",
            (true, _) if only_loopback && !self.is_loopback => "this user may only connect via loopback",
            (true, mechanism) => {
                if let Some(admitted) = admitted {
                    admitted.was_right(now);
                }
                let client = client_name(authenticate);
                let mechanism = mechanism.name();
                tracing::info!(peer = %self.peer, ?user, mechanism, ?client, "connection authenticated");
                self.user = name;
                if cx.local.shared.tells_events() {
                    self.tell_login("user.authentication.success", &self.user, authenticate.mechanism, None, cx.local);
                }
                self.client_properties = authenticate.client_properties.encode().into();
                return cx.amqp.authenticated(Ok(()));
            }
        };
        tracing::warn!(peer = %self.peer, ?user, reason, "login refused");
        if shared.tells_events() {
            self.tell_login("user.authentication.failure", &name, authenticate.mechanism, Some(reason), cx.local);
        }
        self.refuse_at = now + LOGIN_REFUSED_DELAY_MS;
    }

    fn open(&mut self, vhost: Bytes, cx: &mut Cx<'_>) {
        let topology = cx.local.shared.topology();
        let known = if vhost.len() > NAME_BYTES_MAX { None } else { topology.vhost(&vhost) };
        let check = |open| topology.open_vhost(&self.user, &vhost, open);
        let opened = cx.local.shared.occupancy.enter(&self.user, known, check);
        drop(topology);
        match opened {
            Ok(place) => {
                self.vhost = place.vhost();
                self.unfinished.belongs_to(place.unfinished_bytes.clone());
                self.occupied = Some(place);
                cx.local.tally.add(Count::ConnectionOpened, 1);
                self.vhost_name = Bytes::copy_from_slice(&vhost);
                let vhost = log_text(&vhost);
                let user = log_text(&self.user);
                tracing::info!(peer = %self.peer, ?user, ?vhost, "connection opened");
                if cx.local.shared.tells_events() {
                    self.tell_connection("connection.created", None, cx.local);
                }
                cx.amqp.opened(Ok(()));
            }
            Err(refused) => {
                tracing::warn!(peer = %self.peer, text = %refused.text, "connection refused");
                cx.amqp.opened(Err(refusal::connection_error(refused)));
            }
        }
    }

    /// The connection is over; its channels are closed already. Its exclusive queues go with it.
    fn end(&mut self, why: &Closed, local: &Rc<Local>) {
        assert!(self.channels.is_empty(), "the machine closes the channels before the connection");
        let reason = reason_text(why);
        if self.occupied.take().is_some() {
            local.tally.add(Count::ConnectionClosed, 1);
            if local.shared.tells_events() {
                self.tell_connection("connection.closed", Some(&reason), local);
            }
        }
        let (user, vhost) = (log_text(&self.user), log_text(&self.vhost_name));
        match why {
            // Health checks open a socket and close it again, every few seconds.
            Closed::Disconnected if self.user.is_empty() => {
                tracing::debug!(peer = %self.peer, reason, "connection closed");
            }
            Closed::ByClient { .. } | Closed::Disconnected | Closed::LoginRefused => {
                tracing::info!(peer = %self.peer, ?user, ?vhost, reason, "connection closed");
            }
            Closed::ByServer(error) if error.code == amqp::ReplyCode::ConnectionForced => {
                tracing::info!(peer = %self.peer, ?user, ?vhost, reason, "connection closed");
            }
            _ => tracing::warn!(peer = %self.peer, ?user, ?vhost, reason, "connection closed"),
        }
        let owned = local.shared.topology().exclusive_queues(self.connection).to_vec();
        for queue in owned {
            let deletion = local.shared.topology().deletion(queue);
            if let Checked::Local(change) = deletion {
                local.change_locally(&change);
            }
        }
    }
}

/// What a client calls itself, if it does.
fn client_name(authenticate: &Authenticate) -> String {
    let table = &authenticate.client_properties;
    let text = |name: &str| match table.get(name) {
        Some(amqp::Value::LongString(bytes)) => Some(log_text(bytes)),
        _ => None,
    };
    text("connection_name").or_else(|| text("product")).unwrap_or_default()
}

fn log_text(bytes: &[u8]) -> String {
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
    }
}
