//! Clients and their connections: what they wish, what goes over their sockets, and how both end.

use super::client::Wish;
use super::front::{ConnectionId, Desk};
use super::sockets::Socket;
use super::{AUDITOR, Event, Phase, Served, Sessions};
use crate::bug::Bug;
use crate::schedule::{MS, Micros};
use amqp::Connection;
use bytes::{Bytes, BytesMut};
use session::report::ConnectionNumber;
use session::{Cx, Peer, Session};
use std::cell::RefCell;

/// A connection whose messages wait until its node knows where they go looks again after so long.
const WAITS_LOOK: Micros = 5 * MS;

impl Sessions {
    /// Lets a client do something, or the audit.
    pub(super) fn act(&mut self, client: usize) {
        let now = self.schedule.now();
        self.schedule.after(self.random.between(1, 20) * MS, Event::Client { client });
        if client == AUDITOR {
            if matches!(self.phase, Phase::Begins | Phase::Audits) {
                if self.audit.connection.is_none() && !self.audit.is_done() {
                    self.connect(AUDITOR);
                }
                self.audit.act(&mut self.ledger);
            }
            return self.carry_bytes(client);
        }
        if self.phase == Phase::Begins {
            return;
        }
        match self.clients[client].act(now, &mut self.ledger) {
            Wish::Nothing => {}
            Wish::Connect => self.connect(client),
            Wish::Cut => {
                self.carry_bytes(client);
                self.ledger.figures.cuts += 1;
                let after = self.random.below(3) * MS;
                self.leave(client, after);
            }
        }
        self.carry_bytes(client);
    }

    /// Connects a client to a node that lets clients in.
    pub(super) fn connect(&mut self, client: usize) {
        let is_open = |node: &usize| self.fronts[*node].as_ref().is_some_and(|front| front.is_open);
        let open: Vec<usize> = (0..self.nodes.len()).filter(is_open).collect();
        if open.is_empty() {
            return;
        }
        let node = *self.random.pick(&open);
        let now = self.schedule.now();
        let front = self.fronts[node].as_ref().expect("it is open");
        let connection = front.next();
        let address = "127.0.0.1:5000".parse().expect("an address");
        let (local_address, certificate_user) = (None, None);
        let peer = Peer { address, local_address, is_loopback: true, certificate_user, is_own: false, token: None };
        let mut amqp = Connection::new(self.config.clone(), now / MS);
        amqp.set_blocked(front.is_alarmed.get().then_some("low on memory"));
        let served = Served {
            node,
            shard: self.random.below(front.shards.len() as u64) as usize,
            amqp,
            session: Session::new(peer, ConnectionNumber(connection)),
            input: BytesMut::new(),
            to_server: now,
            to_client: now,
            timer_at: Micros::MAX,
            starved: Vec::new(),
            socket: Socket::new(self.sizes),
        };
        front.shards[served.shard].switch.connection_came(connection);
        self.served.insert(connection, served);
        self.trace.line(now, || format!("client {client} connects to n{} as c{connection}", node + 1));
        match client {
            AUDITOR => self.audit.connected(connection),
            _ => self.clients[client].connected(connection),
        }
        self.carry_bytes(client);
    }

    /// Sends what a client wrote, cut anywhere.
    pub(super) fn carry_bytes(&mut self, client: usize) {
        let (connection, output) = match client {
            AUDITOR => (self.audit.connection, &mut self.audit.output),
            _ => (self.clients[client].connection, &mut self.clients[client].output),
        };
        let Some(connection) = connection else { return };
        let mut bytes = Bytes::from(std::mem::take(output));
        while !bytes.is_empty() {
            let part = match self.random.chance(30) {
                true => bytes.split_to(self.random.between(1, bytes.len() as u64) as usize),
                false => std::mem::take(&mut bytes),
            };
            let after = self.random.between(50, 400);
            let Some(served) = self.served.get_mut(&connection) else { return };
            served.to_server = (self.schedule.now() + after).max(served.to_server + 1);
            self.schedule.at(served.to_server, Event::ToServer { connection, bytes: part });
        }
    }

    pub(super) fn tell_client(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let now = self.schedule.now();
        if self.audit.connection == Some(connection) {
            self.audit.hear(bytes, &mut self.ledger);
            self.audit.act(&mut self.ledger);
            return self.carry_bytes(AUDITOR);
        }
        let Some(client) = self.clients.iter().position(|client| client.connection == Some(connection)) else { return };
        self.ledger.node = self.served.get(&connection).map_or(self.ledger.node, |served| served.node);
        self.clients[client].hear(bytes, now, &mut self.ledger);
        self.carry_bytes(client);
    }

    /// A client's socket goes. Its server hears of it a little later; of what was on its way there
    /// some may be lost.
    pub(super) fn leave(&mut self, client: usize, after: Micros) {
        let connection = match client {
            AUDITOR => self.audit.connection.take(),
            _ => self.clients[client].connection,
        };
        if client != AUDITOR {
            self.clients[client].lost();
        }
        let Some(connection) = connection else { return };
        let now = self.schedule.now();
        self.trace.line(now, || format!("client {client} leaves c{connection}"));
        self.schedule.after(after, Event::Left { connection });
    }

    /// Calls a session, then hands on all that its machine has to say, and writes what there is to
    /// write: as the server's connection does it at each turn.
    pub(super) fn with_session(
        &mut self,
        connection: ConnectionId,
        call: impl FnOnce(&mut Session, &mut Cx<'_, Desk<'_>>),
    ) {
        let now = self.schedule.now();
        let Some(served) = self.served.get_mut(&connection) else { return };
        let (node, shard, ms) = (served.node, served.shard, now / MS);
        let (Some(front), true) = (&self.fronts[node], self.nodes[node].is_up()) else { return };
        let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard, connection };
        call(&mut served.session, &mut Cx { client: &mut served.amqp, host: &desk });
        loop {
            served.session.begin_turn(&mut Cx { client: &mut served.amqp, host: &desk });
            while !served.session.ends_turn()
                && let Some(event) = served.amqp.poll_event()
            {
                served.session.handle_event(event, &mut Cx { client: &mut served.amqp, host: &desk }, ms);
            }
            let bytes = served.input.len() + served.amqp.assembling_bytes();
            served.session.count_unfinished(bytes, &mut Cx { client: &mut served.amqp, host: &desk });
            let before = served.input.len();
            if before > 0 && served.amqp.wants_input() {
                served.amqp.handle_input(&mut served.input, ms);
            }
            if served.session.waits_to_know()
                || !served.session.is_in_the_middle() && !served.amqp.has_events() && served.input.len() == before
            {
                break;
            }
        }
        served.amqp.flush_confirms();
        self.write(connection, now);
        let served = self.served.get_mut(&connection).expect("it was there");
        let front = self.fronts[node].as_ref().expect("it was there");
        let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard, connection };
        if served.has_room() {
            let has_drained = served.session.drained(&desk);
            for consumer in served.starved.drain(..) {
                if let Some(number) = desk.switch().number_of(consumer.channel) {
                    served.session.unstall(consumer, number, !has_drained, &desk);
                }
            }
        }
        let at = served.session.poll_timeout().saturating_mul(MS).max(now);
        let at = match served.session.waits_to_know() {
            true => at.min(now + WAITS_LOOK),
            false => at,
        };
        self.ledger.figures.waits_to_know += u64::from(served.session.waits_to_know());
        if at < served.timer_at {
            served.timer_at = at;
            self.schedule.at(at, Event::Timer { connection });
        }
        if served.amqp.is_finished() {
            desk.switch().connection_left(connection);
            self.schedule.at(served.to_client + 1, Event::Gone { connection });
            self.served.remove(&connection);
        }
        self.carry(node);
    }

    /// A client is gone: its connection ends as on the server.
    pub(super) fn end(&mut self, connection: ConnectionId) {
        if let Some(served) = self.served.get_mut(&connection) {
            if self.options.bug == Some(Bug::TeardownIsForgotten) {
                self.served.remove(&connection);
                return;
            }
            if !served.amqp.is_finished() {
                served.amqp.handle_disconnect();
            }
            self.with_session(connection, |_, _| {});
            let Some(served) = self.served.remove(&connection) else { return };
            let front = self.fronts[served.node].as_ref();
            front.into_iter().for_each(|front| front.shards[served.shard].switch.connection_left(connection));
        }
    }
}
