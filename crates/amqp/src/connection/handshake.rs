//! From the first byte to an open connection.
//!
//! ```text
//!   client                    server                      broker
//!   AMQP 0 0 9 1        ->
//!                       <-    start
//!   start-ok            ->                 Authenticate ->
//!                       <-    tune          authenticated()          (RABBIT-CR-DEMO: secure and secure-ok come before Authenticate)
//!   tune-ok, open       ->                         Open ->
//!                       <-    open-ok              opened()
//! ```
//!
//! Invariant: the client may only lower what the server offers, and nothing large is taken from it
//! before `tune-ok`.

use bytes::Bytes;

use super::answer::AuthRefused;
use super::config::Mechanism;
use super::credentials::{CHALLENGE, read_challenge_response, read_response, unknown_mechanism};
use super::event::{Authenticate, Closed, Event};
use super::heartbeat::Timer;
use super::{ClientCapabilities, Connection, Phase};
use crate::Millis;
use crate::reply_code::{ConnectionError, Fault, MethodId, ReplyCode};
use crate::wire::frame::{FRAME_BYTES_MIN, PROTOCOL_HEADER, PROTOCOL_HEADER_0_9};
use crate::wire::method::Method;
use crate::wire::table::{Table, Value};

/// The method that RabbitMQ blames for every limit that was not respected.
const CONNECTION_TUNE: MethodId = MethodId::new(10, 30);

impl Connection {
    /// The first eight bytes.
    pub(crate) fn handle_protocol_header(&mut self, header: [u8; 8]) {
        if header != PROTOCOL_HEADER && header != PROTOCOL_HEADER_0_9 {
            self.end(Closed::WrongProtocol(header), Phase::Finished);
            self.output.small().extend_from_slice(&PROTOCOL_HEADER);
            return;
        }
        let names: Vec<&str> = self.config.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
        let start = Method::ConnectionStart {
            version_major: 0,
            version_minor: 9,
            server_properties: self.config.server_properties.clone(),
            mechanisms: names.join(" ").into(),
            locales: Bytes::from_static(b"en_US"),
        };
        self.send(0, &start);
        self.phase = Phase::Starting;
    }

    pub(crate) fn handle_start_ok(
        &mut self,
        client_properties: Table,
        mechanism: &Bytes,
        response: &Bytes,
    ) -> Result<(), Fault> {
        let blame = MethodId::new(10, 11);
        self.client = capabilities(&client_properties);
        let offered = self.config.mechanisms.iter().find(|m| m.name().as_bytes() == &mechanism[..]);
        let Some(&mechanism) = offered else {
            return Err(Fault::new(ReplyCode::CommandInvalid, blame, unknown_mechanism(mechanism)));
        };
        let credentials =
            read_response(mechanism, response).map_err(|text| Fault::new(ReplyCode::SyntaxError, blame, text))?;
        self.mechanism = Some(mechanism);
        let authenticate = Box::new(Authenticate {
            mechanism,
            user: credentials.user,
            password: credentials.password,
            client_properties,
        });
        if mechanism == Mechanism::CrDemo {
            self.phase = Phase::Securing;
            self.securing = Some(authenticate);
            self.send(0, &Method::ConnectionSecure { challenge: Bytes::from_static(CHALLENGE) });
        } else {
            self.authenticate(authenticate);
        }
        Ok(())
    }

    /// The answer to a challenge.
    pub(crate) fn handle_secure_ok(&mut self, response: &Bytes) -> Result<(), Fault> {
        let mut authenticate = self.securing.take().expect("a challenge was sent");
        authenticate.password = read_challenge_response(response)
            .map_err(|text| Fault::new(ReplyCode::SyntaxError, MethodId::new(10, 21), text))?;
        self.authenticate(authenticate);
        Ok(())
    }

    fn authenticate(&mut self, authenticate: Box<Authenticate>) {
        self.phase = Phase::Authenticating;
        self.events.push_back(Event::Authenticate(authenticate));
    }

    /// The broker's answer to [`Event::Authenticate`].
    ///
    /// A refused client is told so only if it said that it understands; otherwise the socket just
    /// closes.
    pub fn authenticated(&mut self, result: Result<(), AuthRefused>) {
        if self.phase != Phase::Authenticating {
            return;
        }
        match result {
            Ok(()) => {
                let tune = Method::ConnectionTune {
                    channel_max: self.config.channel_max,
                    frame_max: self.config.frame_max,
                    heartbeat: self.config.heartbeat_s,
                };
                self.send(0, &tune);
                self.phase = Phase::Tuning;
                self.run_stalled();
            }
            Err(AuthRefused) if self.client.authentication_failure_close => {
                let mechanism = self.mechanism.map_or("", Mechanism::name);
                let text = format!(
                    "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
                );
                let error = ConnectionError::new(ReplyCode::AccessRefused, text);
                self.refuse_login(&error);
            }
            Err(AuthRefused) => self.end(Closed::LoginRefused, Phase::Finished),
        }
    }

    fn refuse_login(&mut self, error: &ConnectionError) {
        let close = Method::ConnectionClose {
            reply_code: error.code.number(),
            reply_text: crate::reply_code::wire_text(error.code, &error.text).into(),
            class_id: 0,
            method_id: 0,
        };
        self.send(0, &close);
        self.end(Closed::LoginRefused, Phase::Closing);
        self.close_unarmed = true;
        self.timers.set(Timer::Close, self.now);
    }

    pub(crate) fn handle_tune_ok(
        &mut self,
        channel_max: u16,
        frame_max: u32,
        heartbeat_s: u16,
        now: Millis,
    ) -> Result<(), Fault> {
        negotiate("frame_max", FRAME_BYTES_MIN, self.config.frame_max, frame_max)?;
        negotiate("channel_max", 1, u32::from(self.config.channel_max), u32::from(channel_max))?;
        self.frame_max = frame_max;
        self.channel_max = channel_max;
        self.heartbeat.interval_ms = u64::from(heartbeat_s) * 1000;
        if heartbeat_s != 0 {
            self.heard(now);
            self.heartbeat.written_at = now;
            self.timers.set(Timer::Heartbeat, now + self.heartbeat.half_ms());
        }
        self.phase = Phase::Tuned;
        Ok(())
    }

    pub(crate) fn handle_open(&mut self, vhost: Bytes) {
        self.phase = Phase::Opening;
        self.events.push_back(Event::Open { vhost });
    }

    /// The broker's answer to [`Event::Open`]. An error without a method is blamed on
    /// `connection.open`.
    pub fn opened(&mut self, result: Result<(), ConnectionError>) {
        if self.phase != Phase::Opening {
            return;
        }
        match result {
            Ok(()) => {
                self.send(0, &Method::ConnectionOpenOk { known_hosts: Bytes::new() });
                self.phase = Phase::Running;
                self.timers.clear(Timer::Handshake);
                self.run_stalled();
            }
            Err(error) if error.method == MethodId::NONE => {
                self.connection_error(error.on(MethodId::CONNECTION_OPEN));
            }
            Err(error) => self.connection_error(error),
        }
    }
}

fn capabilities(client_properties: &Table) -> ClientCapabilities {
    let Some(Value::Table(table)) = client_properties.get("capabilities") else {
        return ClientCapabilities::default();
    };
    let has = |name: &str| table.get(name) == Some(&Value::Bool(true));
    ClientCapabilities {
        authentication_failure_close: has("authentication_failure_close"),
        connection_blocked: has("connection.blocked"),
        consumer_cancel_notify: has("consumer_cancel_notify"),
    }
}

/// Checks one limit of `tune-ok`: not below `min`, not above the server's, and without a limit only
/// where the server has none.
fn negotiate(field: &str, min: u32, server: u32, client: u32) -> Result<(), Fault> {
    let (comparison, bound, allowed) = if client != 0 && client < min {
        ("lower", "minimum", min)
    } else if server != 0 && (client == 0 || client > server) {
        ("higher", "maximum", server)
    } else {
        return Ok(());
    };
    let detail = if field == "channel_max" && client == 0 { " (no limit)" } else { "" };
    let text =
        format!("negotiated {field} = {client}{detail} is {comparison} than the {bound} allowed value ({allowed})");
    Err(Fault::new(ReplyCode::NotAllowed, CONNECTION_TUNE, text))
}
