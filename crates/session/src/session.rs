//! One connection above its frames: logging in, its channels, and the way from an event or an
//! effect to the file that knows what to do.
//!
//! Invariant: an effect reaches its channel only by the key that the channel was opened with; what
//! comes late for another of the same number meets nobody.

use crate::channel::{Channel, Pending, RequestKind};
use crate::client::Client;
use crate::farewell::Farewell;
use crate::history::Replay;
use crate::host::{Admitted, Host, PasswordCheck, Verdict};
use crate::logins::{LoginOver, Try};
use crate::occupancy::Place;
use crate::probe::Probe;
use crate::refusal;
use crate::report::ConnectionNumber;
use crate::spans::Spans;
use crate::tally::Count;
use crate::token::{self, is_token};
use crate::transaction::Commit;
use crate::unfinished::{Sums, Unfinished, counted};
use crate::work::Work;
use amqp::{AuthRefused, Authenticate, ChannelError, ChannelId, Closed, Event, Mechanism, Millis, Request};
use broker::topology::{CommandReply, NAME_BYTES_MAX, Name, Refusal, RouteTarget, Token};
use broker::{ChannelKey, ConsumerKey, PartitionId, VhostId};
use bytes::Bytes;
use core::net::SocketAddr;
use partition::{Command, Effect, RequestId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long a refused login waits for its answer: guessing passwords is slow, and nobody else
/// waits.
const LOGIN_REFUSED_DELAY_MS: Millis = 1_000;

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
    /// By number. Clients count from 1, so channel `n` is tried at `n - 1` before it is searched.
    pub(crate) channels: Vec<Channel>,
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
    /// Bytes of deliveries from other shards that the socket has not taken yet.
    pub(crate) from_remote: SmallVec<[(ChannelKey, PartitionId, usize); 1]>,
    /// What the transactions of all channels hold.
    pub(crate) transaction_bytes: usize,
    /// Bytes of waiting frames that it has told the others of.
    pub(crate) waiting_told: usize,
    /// What this connection has told the others that it holds.
    pub(crate) unfinished: Unfinished,
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
    /// A commit that goes on with the next turn.
    pub(crate) committing: Option<Box<Commit>>,
    /// Histories on their way to new bindings; likewise.
    pub(crate) replays: VecDeque<Replay>,
    /// What the answer to the client's `connection.close` waits for.
    pub(crate) farewell: Option<Box<Farewell>>,
}

/// A login that is not decided.
struct Login {
    authenticate: Box<Authenticate>,
    /// Who it is, or wants to be.
    name: Bytes,
    admitted: Option<Try>,
    begun: Millis,
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
            from_remote: SmallVec::new(),
            transaction_bytes: 0,
            waiting_told: 0,
            unfinished: Unfinished::default(),
            targets: Vec::new(),
            route_targets: 0,
            work: Work::default(),
            probe: Probe::default(),
            turn_us: 0,
            spans: None,
            login: None,
            committing: None,
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

    /// A turn begins: what is left of the last one comes first.
    pub fn begin_turn(&mut self, cx: &mut Cx<'_, impl Host>) {
        self.work = Work::default();
        self.probe.begin_turn();
        if cx.host.is_tracing() {
            self.turn_us = cx.host.elapsed_us();
        }
        self.go_on_committing(cx);
        if !self.replays.is_empty() {
            self.go_on_replaying(cx);
        }
        if self.farewell.as_ref().is_some_and(|farewell| farewell.is_in_the_middle()) {
            self.go_on_leaving(cx);
        }
    }

    /// Whether the turn has done so much that others are to be served before the next event.
    #[inline]
    pub fn ends_turn(&self) -> bool {
        self.work.is_enough()
    }

    /// Whether something was begun that the next turn goes on with.
    #[inline]
    pub fn is_in_the_middle(&self) -> bool {
        self.committing.is_some()
            || !self.replays.is_empty()
            || self.farewell.as_ref().is_some_and(|farewell| farewell.is_in_the_middle())
    }

    /// Takes one event of the machine.
    pub fn handle_event(&mut self, event: Event, cx: &mut Cx<'_, impl Host>, now: Millis) {
        match event {
            Event::Publish(publish) if self.is_live(publish.channel) => self.publish(publish, cx),
            Event::Settle(settle) if self.is_live(settle.channel) => self.settle(&settle, cx),
            Event::Request { channel, request } if self.is_live(channel) => self.request(channel, request, cx, now),
            Event::Publish(_) | Event::Settle(_) | Event::Request { .. } => {}
            Event::ChannelOpened { channel } => {
                let key = cx.host.open_channel(channel.number());
                let at = self.place(channel.number()).expect_err("a channel's number is free when it opens");
                self.channels.insert(at, Channel::new(channel, key));
                cx.host.count(Count::ChannelOpened, 1);
                if cx.host.common().settings.tells_events {
                    self.tell_channel("channel.created", channel, cx.host);
                }
                self.count_channel(at, cx);
            }
            // The machine names what was outstanding; the partitions know it themselves and requeue
            // it at the detach.
            Event::ChannelClosed { channel, unsettled: _, error } => {
                // One that was found here is told already.
                if let Some(error) = error.filter(|_| self.is_live(channel)) {
                    tracing::warn!(peer = %self.peer, channel = channel.number(), %error, "channel error");
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
                let confirmed = self.channels[at].confirm(first, count, false, cx.client);
                cx.host.count(Count::Confirmed, confirmed);
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
                self.channels[at].confirm(first, count, true, cx.client);
                if self.spans.is_some() {
                    self.publish_spans_answered(at, first, count, true, cx.host);
                }
            }
            Effect::Reply { request, reply, .. } => self.handle_reply(at, request, reply, cx),
            Effect::Cancelled { consumer, .. } => self.cancelled(at, consumer.number, cx),
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
    /// part again.
    pub fn unstall(&mut self, consumer: ConsumerKey, number: u16, host: &impl Host) {
        let Ok(at) = self.place(number) else { return };
        let channel = &self.channels[at];
        if channel.key != consumer.channel {
            return;
        }
        let is_used_up = channel.credit.as_ref().is_some_and(|credit| credit.is_used_up());
        if let Some(found) = channel.consumer(consumer.number).filter(|found| !(found.no_ack && is_used_up)) {
            host.push(found.partition, Command::Stall { queue: found.queue, consumer, stalled: false });
        }
    }

    /// The socket took what other shards and nodes had sent: they may send more.
    pub fn drained(&mut self, host: &impl Host) {
        for (channel, partition, bytes) in self.from_remote.drain(..) {
            host.drained(partition, channel, bytes);
        }
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
        self.channels[at].request += 1;
        assert!(matches!(self.channels[at].pending, Pending::None), "a channel has one request under way");
        self.handle_request(at, request, cx);
    }

    fn end_channel(&mut self, channel: ChannelId, host: &impl Host) {
        let mut gone = self.channels.remove(self.at(channel));
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
        self.from_remote.retain(|(key, _, _)| *key != gone.key);
        host.close_channel(gone.key);
        if let (true, Some(place)) = (gone.is_counted, &mut self.occupied) {
            place.close_channel();
        }
    }

    /// Counts a channel that was just opened; one too many ends the connection.
    fn count_channel(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let Some(place) = &mut self.occupied else { return };
        let topology = cx.host.topology();
        let counted = place.open_channel(|open| topology.check_channel_open(&self.user, open));
        drop(topology);
        self.channels[at].is_counted = counted.is_ok();
        if let Err(refused) = counted {
            tracing::warn!(peer = %self.peer, text = %refused.text, "channel refused");
            cx.client.connection_error(refusal::connection_error(refused));
        }
    }

    fn authenticate(&mut self, authenticate: Box<Authenticate>, cx: &mut Cx<'_, impl Host>, now: Millis) {
        let topology = cx.host.topology();
        let common = cx.host.common();
        let user_of = |name: &[u8]| (Bytes::copy_from_slice(name), topology.user(name).is_some());
        let mut hash = None;
        let (name, exists) = match (authenticate.mechanism, &self.certificate_user) {
            // Whom the node has let in by a token, and who is no user.
            (Mechanism::External, Some(name)) if self.token.is_some() => {
                (Bytes::copy_from_slice(name.as_bytes()), true)
            }
            (Mechanism::External, Some(name)) => user_of(name.as_bytes()),
            (Mechanism::External, None) => (Bytes::new(), false),
            (Mechanism::Anonymous, _) => user_of(common.settings.anonymous_user.as_bytes()),
            _ => {
                hash = topology.user(&authenticate.user).map(|user| user.password.clone());
                user_of(&authenticate.user)
            }
        };
        drop(topology);
        let (mechanism, password) = (authenticate.mechanism, authenticate.password.clone());
        let mut admitted = None;
        let mut admit = || {
            admitted = common.logins.admit(self.peer.ip(), &name, exists, now);
            Admitted::of(admitted.as_ref())
        };
        let takes_passwords = common.settings.takes_passwords || self.is_own;
        let is_by_password = !matches!(mechanism, Mechanism::External | Mechanism::Anonymous);
        let is_token = common.settings.takes_tokens && is_by_password && is_token(&password);
        let verdict = match (mechanism, hash) {
            // Nobody guesses a signature, so a wrong one takes nothing from who else is at the address.
            _ if is_token => match cx.host.check_token(password) {
                true => Verdict::Later,
                false => Verdict::TooMany,
            },
            _ if !takes_passwords => Verdict::Wrong,
            (Mechanism::External | Mechanism::Anonymous, _) if exists => Verdict::Right,
            (Mechanism::External | Mechanism::Anonymous, _) => Verdict::Wrong,
            (_, None) if admit() == Admitted::No => Verdict::NotAdmitted,
            (_, None) => Verdict::Wrong,
            (_, Some(hash)) => {
                cx.host.check_password(PasswordCheck { user: Name::new(&name), hash, password }, &mut admit)
            }
        };
        self.login = Some(Box::new(Login { authenticate, name, admitted, begun: now }));
        let outcome = match verdict {
            Verdict::Right => Ok(()),
            Verdict::Wrong if !takes_passwords => Err("auth_backends takes tokens only"),
            Verdict::Wrong => Err(match mechanism {
                Mechanism::External => "no user of the certificate's name",
                Mechanism::Anonymous => "no user of the name in anonymous_login_user",
                _ => "wrong user or password",
            }),
            Verdict::NotAdmitted => Err("too many failed logins: the password was not looked at"),
            Verdict::TooMany => Err("too many logins at once: the password was not looked at"),
            Verdict::Later => return,
        };
        self.end_login(outcome, cx, now);
    }

    /// Whether the password was right that was looked at elsewhere.
    pub fn handle_password(&mut self, is_right: bool, cx: &mut Cx<'_, impl Host>, now: Millis) {
        self.end_login(if is_right { Ok(()) } else { Err("wrong user or password") }, cx, now);
    }

    pub(crate) fn end_login(&mut self, outcome: Result<(), &'static str>, cx: &mut Cx<'_, impl Host>, now: Millis) {
        // A client that left meanwhile waits for nothing.
        let Some(login) = self.login.take().filter(|_| !cx.client.is_finished()) else { return };
        let Login { authenticate, name, admitted, begun } = *login;
        let user = log_text(&name);
        let common = cx.host.common();
        let only_loopback = common.settings.loopback_users.iter().any(|other| other.as_bytes() == &name[..]);
        let reason = match outcome {
            Err(reason) => reason,
            Ok(()) if only_loopback && !self.is_loopback => "this user may only connect via loopback",
            Ok(()) => {
                if let Some(admitted) = admitted {
                    common.logins.was_right(admitted, now);
                }
                let client = client_name(&authenticate);
                let mechanism = authenticate.mechanism.name();
                self.count_login(true, cx);
                let token_lasts_s = self.token_lasts_s(cx);
                tracing::info!(peer = %self.peer, user = &*user, mechanism, token_lasts_s, ?client, "connection authenticated");
                self.user = name;
                if common.settings.tells_events {
                    self.tell_login("user.authentication.success", &self.user, authenticate.mechanism, None, cx.host);
                }
                self.client_properties = authenticate.client_properties.encode().into();
                return cx.client.authenticated(Ok(()));
            }
        };
        self.token = None;
        self.count_login(false, cx);
        tracing::warn!(peer = %self.peer, user = &*user, reason, "login refused");
        if common.settings.tells_events {
            self.tell_login("user.authentication.failure", &name, authenticate.mechanism, Some(reason), cx.host);
        }
        // From when it came: how long somebody looked at the password says nothing then.
        self.refuse_at = begun + LOGIN_REFUSED_DELAY_MS;
    }

    /// Who logs in is whom a token names.
    pub(crate) fn take_token(&mut self, token: Arc<Token>) {
        if let Some(login) = &mut self.login {
            login.name = Bytes::copy_from_slice(&token.user);
            self.token = Some(token);
        }
    }

    fn count_login(&self, was_right: bool, cx: &Cx<'_, impl Host>) {
        // What the node itself opens was counted where its user logged in.
        if !self.is_own {
            cx.host.common().logins.count(LoginOver::Amqp, was_right);
        }
    }

    fn open(&mut self, vhost: Bytes, cx: &mut Cx<'_, impl Host>, now: Millis) {
        if self.is_token_over(cx) {
            return cx.client.opened(Err(token::over()));
        }
        let topology = cx.host.topology();
        let known = if vhost.len() > NAME_BYTES_MAX { None } else { topology.vhost(&vhost) };
        let check = |open| topology.open_vhost(self.actor(), &vhost, open);
        let opened = cx.host.common().occupancy.enter(&self.user, known, check);
        drop(topology);
        match opened {
            Ok(place) => {
                self.vhost = place.vhost();
                self.unfinished.belongs_to(place.unfinished_bytes.clone());
                self.occupied = Some(place);
                cx.host.count(Count::ConnectionOpened, 1);
                self.vhost_name = Bytes::copy_from_slice(&vhost);
                let vhost = log_text(&vhost);
                let user = log_text(&self.user);
                tracing::info!(peer = %self.peer, user = &*user, vhost = &*vhost, "connection opened");
                if cx.host.common().settings.tells_events {
                    self.tell_connection("connection.created", None, cx.host);
                }
                self.watch_token(cx, now);
                cx.client.opened(Ok(()));
            }
            Err(refused) => {
                tracing::warn!(peer = %self.peer, text = %refused.text, "connection refused");
                self.tell_not_opened(&vhost, &refused);
                cx.client.opened(Err(refusal::connection_error(refused)));
            }
        }
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

/// What a client calls itself, if it does.
fn client_name(authenticate: &Authenticate) -> String {
    let table = &authenticate.client_properties;
    let text = |name: &str| match table.get(name) {
        Some(amqp::Value::LongString(bytes)) => Some(log_text(bytes)),
        _ => None,
    };
    text("connection_name").or_else(|| text("product")).unwrap_or_default()
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
