//! Every way in which a channel or the connection ends.
//!
//! Invariant: a channel's end is said once, with what it leaves behind; the connection's end is
//! said once, after those of all its channels. After it nothing of the client's counts except the
//! answer to our close. There may be tens of thousands of channels: each is given up as its end is
//! taken, the last one first, so that whoever takes them may have others served in between.

use bytes::Bytes;

use super::event::{Closed, Event};
use super::heartbeat::Timer;
use super::{Connection, Phase};
use crate::channel::{Channel, ChannelPhase, Channels, PendingFrame, Question};
use crate::reply_code::{ChannelError, ConnectionError, Fault, ReplyCode, wire_text};
use crate::wire::frame::FRAME_METHOD;
use crate::wire::method::Method;

/// What is left to be said of a connection that is over.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Nothing finds them here any more.
    channels: Channels,
    why: Closed,
}

impl Connection {
    /// Closes the connection from the server's side, as an operator or a shutdown does; 320 is the
    /// code for both.
    ///
    /// Waits for the client's answer; `is_finished` tells when that is over. Before the protocol
    /// header came, nothing can be said, and the socket just closes.
    pub fn close(&mut self, code: ReplyCode, text: &str) {
        self.connection_error(ConnectionError::new(code, text));
    }

    /// Closes the connection because of an error.
    pub fn connection_error(&mut self, error: ConnectionError) {
        self.close_connection(error, Phase::Closing);
    }

    /// The socket ended, or broke.
    pub fn handle_disconnect(&mut self) {
        self.end(Closed::Disconnected, Phase::Finished);
        self.finish();
    }

    /// Takes the consequences of a fault on the channel with this number, 0 for the connection
    /// itself.
    pub(crate) fn fail(&mut self, number: u16, fault: Fault) {
        if number == 0 || fault.code.is_hard() || self.phase != Phase::Running {
            let error = ConnectionError { code: fault.code, text: fault.text, method: fault.method };
            self.close_connection(error, Phase::Closing);
        } else {
            self.close_channel(number, &fault);
        }
    }

    /// Bytes make no sense any more: tells why, and listens no longer.
    pub(crate) fn fail_for_good(&mut self, text: String) {
        let error = ConnectionError::new(ReplyCode::FrameError, text);
        if matches!(self.phase, Phase::Closing) {
            // The client was told another error before; this one changes only how long we listen.
            self.finish();
            return;
        }
        self.close_connection(error, Phase::Lingering);
    }

    fn close_connection(&mut self, error: ConnectionError, next: Phase) {
        match self.phase {
            Phase::Closing | Phase::Lingering | Phase::Leaving | Phase::Finished => return,
            // Before the protocol is agreed on there is no way to say anything in it.
            Phase::Header => return self.end(Closed::ByServer(error), Phase::Finished),
            _ => {}
        }
        self.send(0, &connection_close(&error));
        self.end(Closed::ByServer(error), next);
        self.close_unarmed = true;
        self.timers.set(Timer::Close, self.now);
    }

    /// Ends the connection: all channels, then itself. What comes after is only about the bytes on
    /// the way.
    pub(crate) fn end(&mut self, why: Closed, next: Phase) {
        if self.is_over() {
            return;
        }
        self.phase = next;
        let channels = std::mem::take(&mut self.channels);
        self.ending = Some(Box::new(Ending { channels, why }));
        self.timers.clear_all();
        self.stalled = Bytes::new();
        self.close_asked = None;
        self.unflushed = Vec::new();
    }

    /// Says the next thing about the end of the connection.
    #[cold]
    pub(crate) fn go_on_ending(&mut self) {
        while self.events.is_empty()
            && let Some(ending) = &mut self.ending
        {
            match ending.channels.pop() {
                Some(channel) => self.leave(channel, None),
                None => {
                    let ending = self.ending.take();
                    self.events.extend(ending.map(|ending| Event::Closed(ending.why)));
                }
            }
        }
    }

    /// No more waiting: the socket may be closed.
    pub(crate) fn finish(&mut self) {
        assert!(self.channels.len() == 0, "a finished connection has no channels");
        self.phase = Phase::Finished;
        self.timers.clear_all();
    }

    /// Takes the client's `connection.close`. Whoever is told of it answers with
    /// [`left`](Self::left); without that the client has its answer after two seconds.
    pub(crate) fn close_by_client(&mut self, code: u16, text: Bytes) {
        self.end(Closed::ByClient { code, text }, Phase::Leaving);
        self.close_unarmed = true;
        self.timers.set(Timer::Close, self.now);
    }

    /// What belonged to the connection is gone: the client's `connection.close` is answered.
    ///
    /// To be called after [`Closed::ByClient`]. Without effect where the answer was given, or the
    /// socket is gone.
    pub fn left(&mut self) {
        if self.phase == Phase::Leaving {
            self.send(0, &Method::ConnectionCloseOk {});
            self.finish();
        }
    }

    /// Closes a channel with an error and ignores it until the client answers.
    pub(crate) fn close_channel(&mut self, number: u16, fault: &Fault) {
        let Some(channel) = self.channels.by_number(number).filter(|channel| !channel.is_closing()) else { return };
        let mut closing = Channel::new(channel.id);
        closing.phase = ChannelPhase::Closing;
        let old = std::mem::replace(channel, closing);
        // A close of the client's own that waited behind what failed: it crossed ours.
        let is_close = |frame: &PendingFrame| {
            frame.kind == FRAME_METHOD && matches!(Method::decode(&frame.payload), Ok(Method::ChannelClose { .. }))
        };
        let is_crossed = old.pending.iter().any(is_close);
        let Fault { code, text, method } = fault.clone();
        self.leave(old, Some(Box::new(ChannelError { code, text, method })));
        let close = Method::ChannelClose {
            reply_code: fault.code.number(),
            reply_text: wire_text(fault.code, &fault.text).into(),
            class_id: fault.method.class,
            method_id: fault.method.method,
        };
        self.send(number, &close);
        if is_crossed {
            self.send(number, &Method::ChannelCloseOk {});
        }
    }

    /// Answers the client's `channel.close`. The number may be opened again at once.
    pub(crate) fn close_channel_by_client(&mut self, number: u16) {
        if let Some(channel) = self.channels.remove(number) {
            self.leave(channel, None);
        }
        self.send(number, &Method::ChannelCloseOk {});
    }

    /// Says that a channel is closed and takes what it held out of the connection's sums.
    fn leave(&mut self, mut channel: Channel, error: Option<Box<ChannelError>>) {
        self.pending_frames -= channel.pending.len();
        self.pending_bytes -= channel.pending.iter().map(|frame| frame.payload.len()).sum::<usize>();
        self.assembling_bytes -= channel.assembly.held_bytes();
        self.consumers -= channel.consumers.len();
        if matches!(&channel.phase, ChannelPhase::Waiting(waiting) if waiting.question == Question::Get) {
            self.gets.end();
        }
        if !channel.is_closing() {
            let unsettled = channel.unacked.take_all();
            self.events.push_back(Event::ChannelClosed { channel: channel.id, unsettled, error });
        }
    }
}

fn connection_close(error: &ConnectionError) -> Method {
    Method::ConnectionClose {
        reply_code: error.code.number(),
        reply_text: wire_text(error.code, &error.text).into(),
        class_id: error.method.class,
        method_id: error.method.method,
    }
}
