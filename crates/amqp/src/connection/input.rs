//! Input: frames are cut off the buffer, and each is handed to whom it belongs.
//!
//! Invariant: frames are handled in the order in which they came; only those of a channel that
//! waits for its turn wait too, in that channel. A batch of input is frozen once and everything
//! kept from it is a slice of it.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

use super::event::{Event, Publish, RUN_BYTES_MAX, RUN_MESSAGES_MAX};
use super::heartbeat::{TRIM_AFTER_MS, Timer};
use super::{Connection, Phase};
use crate::Millis;
use crate::channel::assembly::{Assembled, Assembly, PublishMethod, cannot_decode, peek_body_size};
use crate::channel::{Channel, ChannelId, ChannelPhase, PendingFrame, Question, Waiting};
use crate::reply_code::{Fault, MethodId, ReplyCode, Snippet};
use crate::wire::DecodeError;
use crate::wire::bodies::Bodies;
use crate::wire::content::CONTENT_HEADER_BYTES;
use crate::wire::frame::{
    FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEADER_BYTES, FRAME_HEARTBEAT, FRAME_METHOD, FrameHeader, Payload,
    complete_prefix,
};
use crate::wire::method::{Method, peek_id};

/// A method frame's payload starts with its class and its method.
const METHOD_ID_BYTES: usize = 4;

/// The class of methods of which some carry passwords and tokens.
const CLASS_CONNECTION: u16 = 10;

/// What is answered here, and not before messages that were published ahead of it have come back.
const BEHIND_RETURNS: [MethodId; 3] = [
    MethodId { class: 20, method: 20 }, // channel.flow
    MethodId { class: 20, method: 40 }, // channel.close
    MethodId { class: 85, method: 10 }, // confirm.select
];

/// Room for so many messages behind the first is made when the second comes.
const RUN_ROOM_MIN: usize = 8;

/// How many bytes of a bad frame its error shows.
const SNIPPET_BYTES: usize = 16;

impl Connection {
    /// Takes every whole frame out of `input` and handles it; what is left is the start of a frame,
    /// or input that cannot be taken yet (see [`wants_input`](Self::wants_input)).
    ///
    /// - Cost: one freeze of the buffer a call, however many frames; a publish costs no allocation.
    pub fn handle_input(&mut self, input: &mut BytesMut, now: Millis) {
        self.now = now;
        if input.len() != self.input_left {
            self.input_count += 1;
            self.heard(now);
            self.excuse_handshake(now);
            self.timers.set(Timer::Trim, now + TRIM_AFTER_MS);
        }
        while self.wants_input() && self.take_input(input) {}
        if matches!(self.phase, Phase::Lingering | Phase::Leaving | Phase::Finished) {
            input.clear();
        }
        self.heartbeat.deaf |= !self.has_room();
        self.input_left = input.len();
    }

    /// Handles the next part of the input; `false` when there is nothing whole left.
    fn take_input(&mut self, input: &mut BytesMut) -> bool {
        match self.phase {
            Phase::Header => {
                let Some(header) = input.first_chunk::<8>().copied() else { return false };
                input.advance(header.len());
                self.handle_protocol_header(header);
                true
            }
            Phase::Lingering | Phase::Leaving | Phase::Finished => false,
            // During the handshake each frame may change the rules for the next.
            Phase::Starting
            | Phase::Securing
            | Phase::Authenticating
            | Phase::Tuning
            | Phase::Tuned
            | Phase::Opening => {
                let first = FrameHeader::read(input).map_or(0, |header| header.frame_bytes());
                let whole = complete_prefix(&input[..first.min(input.len())], self.input_frame_max());
                self.take_frames(input, whole)
            }
            Phase::Running | Phase::Closing => {
                let whole = complete_prefix(input, self.input_frame_max());
                self.take_frames(input, whole)
            }
        }
    }

    fn take_frames(&mut self, input: &mut BytesMut, whole: usize) -> bool {
        if whole > 0 {
            let batch = input.split_to(whole).freeze();
            self.handle_frames(batch);
            return true;
        }
        if let Some(header) = FrameHeader::read(input)
            && header.exceeds(self.input_frame_max())
        {
            let allowed = self.input_frame_max() - 8;
            self.fail_for_good(format!(
                "type {}, all octets = <<>>: {{frame_too_large,{},{allowed}}}",
                header.kind, header.payload_bytes
            ));
        }
        false
    }

    /// Handles the frames of a batch, or keeps the rest of it when a bounded place is full.
    fn handle_frames(&mut self, batch: Bytes) {
        let mut at = 0;
        // The whole publish before these frames, if that is what is before them.
        let mut before = None;
        while at < batch.len() {
            if self.must_stall() {
                self.stalled = batch.slice(at..);
                return;
            }
            if let Some(next) = before.as_ref().and_then(|before| self.take_another(before, &batch, at)) {
                at = next;
                continue;
            }
            let header = FrameHeader::read(&batch[at..]).expect("a batch holds whole frames");
            before = self.take_whole_publish(header, &batch, at);
            if let Some(taken) = &before {
                at = taken.end;
                continue;
            }
            let start = at + FRAME_HEADER_BYTES;
            let end = start + header.payload_bytes as usize;
            at = end + 1;
            if batch[end] != FRAME_END {
                let marker = batch[end];
                let shown = snippet(&batch[start..end], self.phase);
                return self
                    .fail_for_good(format!("type {}, {shown}: {{invalid_frame_end_marker,{marker}}}", header.kind));
            }
            self.handle_frame(header.kind, header.channel, Payload::new(&batch, start, end));
            if matches!(self.phase, Phase::Lingering | Phase::Leaving | Phase::Finished) {
                return;
            }
        }
    }

    /// Takes a publish whose method, header and only body frame lie one behind the other, which
    /// most do; says where it lies. With anything unusual nothing is taken, and the frames go one by one.
    #[inline]
    fn take_whole_publish(&mut self, first: FrameHeader, batch: &Bytes, start: usize) -> Option<Whole> {
        if self.phase != Phase::Running || first.kind != FRAME_METHOD {
            return None;
        }
        let (method, header_at) = whole_frame(batch, start, FRAME_METHOD, first.channel)?;
        if peek_id(&method) != Some(MethodId::BASIC_PUBLISH) || self.blocked.reason.is_some() {
            return None;
        }
        let (header, body_at) = whole_frame(batch, header_at, FRAME_HEADER, first.channel)?;
        let (body, end) = match peek_body_size(&header)? {
            0 => (None, body_at),
            _ => whole_frame(batch, body_at, FRAME_BODY, first.channel).map(|(body, end)| (Some(body), end))?,
        };
        let channel = self.channels.by_number(first.channel)?;
        if !matches!(channel.phase, ChannelPhase::Open) || !matches!(channel.assembly, Assembly::Idle) {
            return None;
        }
        let message = Assembled::read(method, header, body, self.config.body_bytes_max)?;
        let event = publish_event(channel, message);
        self.events.push_back(event);
        self.blocked.publishes = true;
        Some(Whole { channel: first.channel, method: start..header_at, header: header_at..body_at, end })
    }

    /// Takes a publish that differs from the whole one before it in its body alone, as most do of a client that
    /// publishes at speed: it goes with that one. Its frames are compared with that one's and not read. Anything else is
    /// left, and nothing is taken.
    #[inline]
    fn take_another(&mut self, before: &Whole, batch: &Bytes, start: usize) -> Option<usize> {
        let header_at = start + before.method.len();
        let body_at = header_at + before.header.len();
        if batch.get(start..header_at)? != &batch[before.method.clone()] {
            return None;
        }
        let (header, known) = (batch.get(header_at..body_at)?, &batch[before.header.clone()]);
        let (from, until) = BODY_SIZE_IN_HEADER;
        if header[..from] != known[..from] || header[until..] != known[until..] {
            return None;
        }
        let size = u64::from_be_bytes(*header[from..].first_chunk()?);
        let (place, end) = match size {
            0 => (body_at..body_at, body_at),
            _ => {
                let (body, end) = whole_frame(batch, body_at, FRAME_BODY, before.channel)?;
                let place = end - 1 - body.len()..end - 1;
                (place, end)
            }
        };
        if place.len() as u64 != size || size > self.config.body_bytes_max {
            return None;
        }
        let Some(Event::Publish(run)) = self.events.back_mut() else { return None };
        let (messages, bytes) = run.more.as_ref().map_or((0, 0), |more| (more.len(), more.bytes()));
        // Each has its own names and properties wherever it is stored.
        let beside = (messages + 2) * (before.method.len() + before.header.len());
        if messages + 1 >= RUN_MESSAGES_MAX || beside + run.body.len() + bytes + place.len() > RUN_BYTES_MAX {
            return None;
        }
        let channel = self.channels.by_number(before.channel)?;
        match &mut channel.confirms {
            Some(confirms) => _ = confirms.next_publish_seq(),
            None if channel.tx.is_some() => return None,
            None => {}
        }
        // Most are short: nobody is to be made to hold room for what does not come.
        let more = run.more.get_or_insert_with(|| Arc::new(Bodies::new(batch.clone(), RUN_ROOM_MIN)));
        Arc::get_mut(more).expect("nobody has seen it yet").push(place);
        Some(end)
    }

    /// Goes on with what had to wait, now that there may be room.
    pub(crate) fn run_stalled(&mut self) {
        if !self.stalled.is_empty() && !self.must_stall() {
            let batch = std::mem::take(&mut self.stalled);
            self.handle_frames(batch);
        }
        if self.pending_frames == 0
            && self.close_asked.is_some()
            && !self.may_return(None)
            && let Some((code, text)) = self.close_asked.take().map(|asked| *asked)
        {
            self.close_by_client(code, text);
        }
    }

    /// Whether a message that was published, by this channel or by any, and is not taken yet may come back to its client.
    fn may_return(&self, by: Option<u16>) -> bool {
        let may = |event: &Event| match event {
            Event::Publish(publish) => publish.mandatory && by.is_none_or(|number| number == publish.channel.number()),
            _ => false,
        };
        self.events.iter().any(may)
    }

    /// Whether a method of a channel is answered here, while messages that were published ahead of it may come back.
    pub(crate) fn waits_for_returns(&self, number: u16, payload: &[u8]) -> bool {
        peek_id(payload).is_some_and(|id| BEHIND_RETURNS.contains(&id)) && self.may_return(Some(number))
    }

    /// Has a channel wait with a method, ahead of all that it has waiting.
    pub(crate) fn hold_method(&mut self, number: u16, payload: Payload<'_>) -> ChannelId {
        let channel = self.channels.by_number(number).expect("the caller found it");
        channel.phase = ChannelPhase::Held;
        channel.pending.push_front(PendingFrame::new(FRAME_METHOD, payload));
        self.pending_frames += 1;
        self.pending_bytes += payload.len();
        channel.id
    }

    /// Lets channels go on that waited until what they published before was taken.
    #[cold]
    pub(crate) fn release_behind_returns(&mut self) {
        for id in std::mem::take(&mut self.behind_returns) {
            if let Some(channel) = self.channels.open(id)
                && matches!(channel.phase, ChannelPhase::Held)
            {
                channel.phase = ChannelPhase::Open;
                self.drain_channel(id);
            }
        }
    }

    /// Handles one frame of any kind.
    #[inline]
    fn handle_frame(&mut self, kind: u8, number: u16, payload: Payload<'_>) {
        let result = match (self.phase, number) {
            (Phase::Running, 1..) => self.handle_channel_frame(kind, number, payload),
            (Phase::Closing, 0) => {
                self.handle_frame_while_closing(kind, payload);
                Ok(())
            }
            (Phase::Closing, _) => Ok(()),
            (_, 0) => self.handle_connection_frame(kind, payload),
            (phase, _) => Err(unexpected_frame(kind, &payload, phase)),
        };
        if let Err(fault) = result {
            self.fail(number, fault);
        }
    }

    fn handle_connection_frame(&mut self, kind: u8, payload: Payload<'_>) -> Result<(), Fault> {
        match kind {
            FRAME_HEARTBEAT if payload.is_empty() => Ok(()),
            _ => match check_shape(kind, &payload, self.phase) {
                Ok(()) if kind == FRAME_METHOD => self.handle_connection_method(payload),
                Ok(()) => Err(unexpected_frame(kind, &payload, self.phase)),
                Err(fault) => Err(fault),
            },
        }
    }

    fn handle_connection_method(&mut self, payload: Payload<'_>) -> Result<(), Fault> {
        let method = decode_method(payload)?;
        let blame = method.id();
        match (self.phase, method) {
            // It came behind what waits in the channels, and has its turn behind it: a publish that
            // an alarm or a request before it holds up is not thrown away because its client leaves
            // in good order.
            // Nor does it leave before it has heard which of its messages come back.
            (_, Method::ConnectionClose { reply_code, reply_text, .. })
                if self.pending_frames > 0 || self.may_return(None) =>
            {
                self.close_asked = Some(Box::new((reply_code, reply_text)));
                Ok(())
            }
            (_, Method::ConnectionClose { reply_code, reply_text, .. }) => {
                self.close_by_client(reply_code, reply_text);
                Ok(())
            }
            (Phase::Securing, Method::ConnectionSecureOk { response }) => self.handle_secure_ok(&response),
            (Phase::Starting, Method::ConnectionStartOk { client_properties, mechanism, response, .. }) => {
                self.handle_start_ok(client_properties, &mechanism, &response)
            }
            (Phase::Tuning, Method::ConnectionTuneOk { channel_max, frame_max, heartbeat }) => {
                self.handle_tune_ok(channel_max, frame_max, heartbeat, self.now)
            }
            (Phase::Tuned, Method::ConnectionOpen { virtual_host, .. }) => {
                self.handle_open(virtual_host);
                Ok(())
            }
            (Phase::Running, Method::ConnectionUpdateSecret { new_secret, reason }) => {
                self.secrets_asked += 1;
                self.events.push_back(Event::UpdateSecret { new_secret, reason });
                Ok(())
            }
            (phase, _) => {
                let state = match phase {
                    Phase::Starting | Phase::Header => "starting",
                    Phase::Securing | Phase::Authenticating => "securing",
                    Phase::Tuning => "tuning",
                    Phase::Tuned | Phase::Opening => "opening",
                    Phase::Running => "running",
                    Phase::Closing | Phase::Lingering | Phase::Leaving | Phase::Finished => "closing",
                };
                let text = format!("unexpected method in connection state {state}");
                Err(Fault::new(ReplyCode::ChannelError, blame, text))
            }
        }
    }

    /// We sent `connection.close`: nothing counts but the answer, and a close of the client's that
    /// crossed ours.
    fn handle_frame_while_closing(&mut self, kind: u8, payload: Payload<'_>) {
        if kind != FRAME_METHOD {
            return;
        }
        match Method::decode(&payload.to_bytes()) {
            Ok(Method::ConnectionCloseOk {}) => self.finish(),
            Ok(Method::ConnectionClose { .. }) => self.send(0, &Method::ConnectionCloseOk {}),
            _ => {}
        }
    }

    /// A frame of a channel, while the connection runs.
    #[inline]
    fn handle_channel_frame(&mut self, kind: u8, number: u16, payload: Payload<'_>) -> Result<(), Fault> {
        let Some(channel) = self.channels.by_number(number) else {
            return self.handle_frame_without_channel(kind, number, payload);
        };
        match channel.phase {
            ChannelPhase::Open => self.handle_frame_in_turn(kind, number, payload),
            ChannelPhase::Waiting(_) | ChannelPhase::Held => {
                check_shape(kind, &payload, self.phase)?;
                channel.pending.push_back(PendingFrame::new(kind, payload));
                self.pending_frames += 1;
                self.pending_bytes += payload.len();
                Ok(())
            }
            ChannelPhase::Closing => {
                check_shape(kind, &payload, self.phase)?;
                self.handle_frame_of_closing_channel(kind, number, payload);
                Ok(())
            }
        }
    }

    /// A frame of an open channel whose turn it is.
    fn handle_frame_in_turn(&mut self, kind: u8, number: u16, payload: Payload<'_>) -> Result<(), Fault> {
        check_shape(kind, &payload, self.phase)?;
        let blocked = self.blocked.reason.is_some();
        let body_bytes_max = self.config.body_bytes_max;
        let channel = self.channels.by_number(number).expect("the caller found it");
        match kind {
            FRAME_METHOD => {
                channel.assembly.expect_method()?;
                match peek_id(&payload) {
                    Some(MethodId::BASIC_PUBLISH) if blocked => {
                        self.hold_method(number, payload);
                        self.blocked.publishes = true;
                        self.tell_blocked();
                        Ok(())
                    }
                    Some(MethodId::BASIC_GET) if !self.gets.has_room(self.output.answer_bytes()) => {
                        let id = self.hold_method(number, payload);
                        self.gets.hold(id);
                        Ok(())
                    }
                    Some(MethodId::BASIC_PUBLISH) => {
                        let method = PublishMethod::decode(payload)?;
                        channel.assembly = Assembly::Header(method.detach());
                        self.assembling_bytes += channel.assembly.held_bytes();
                        self.blocked.publishes = true;
                        self.check_assembling()
                    }
                    Some(id) if id.class == 60 => self.handle_basic_method(number, id, payload),
                    _ => self.handle_channel_method(number, payload),
                }
            }
            FRAME_HEADER => {
                let before = channel.assembly.held_bytes();
                let result = channel.assembly.header(payload, body_bytes_max);
                let after = channel.assembly.held_bytes();
                self.assembling_bytes = self.assembling_bytes - before + after;
                if let Some(message) = result? {
                    let event = publish_event(channel, message);
                    self.events.push_back(event);
                }
                self.check_assembling()
            }
            FRAME_BODY => {
                let before = channel.assembly.held_bytes();
                let result = channel.assembly.body(payload);
                let after = channel.assembly.held_bytes();
                self.assembling_bytes = self.assembling_bytes - before + after;
                if let Some(message) = result? {
                    let event = publish_event(channel, message);
                    self.events.push_back(event);
                }
                self.check_assembling()
            }
            _ => unreachable!("the frame's shape was checked"),
        }
    }

    /// Refuses what is more than a connection may hold in messages that are not there as a whole.
    fn check_assembling(&self) -> Result<(), Fault> {
        if self.assembling_bytes <= self.config.assembling_bytes_max {
            return Ok(());
        }
        let text = "too many bytes in unfinished messages on this connection";
        Err(Fault::new(ReplyCode::ResourceError, MethodId::BASIC_PUBLISH, text))
    }

    /// A frame for a number that is not open: only `channel.open` is right.
    fn handle_frame_without_channel(&mut self, kind: u8, number: u16, payload: Payload<'_>) -> Result<(), Fault> {
        check_shape(kind, &payload, self.phase)?;
        if kind != FRAME_METHOD {
            let text = "expected method frame, got non method frame instead";
            return Err(Fault::new(ReplyCode::UnexpectedFrame, MethodId::NONE, text));
        }
        let method = decode_method(payload)?;
        let blame = method.id();
        if !matches!(method, Method::ChannelOpen { .. }) {
            return Err(Fault::new(ReplyCode::ChannelError, blame, "expected 'channel.open'"));
        }
        let (count, limit) = (self.channels.len(), usize::from(self.channel_max));
        if limit != 0 && count >= limit {
            let text = format!("number of channels opened ({count}) has reached the negotiated channel_max ({limit})");
            return Err(Fault::new(ReplyCode::NotAllowed, MethodId::NONE, text));
        }
        if limit != 0 && usize::from(number) > limit {
            let text = format!("channel number {number} is higher than the negotiated channel_max ({limit})");
            return Err(Fault::new(ReplyCode::NotAllowed, MethodId::NONE, text));
        }
        self.openings = self.openings.wrapping_add(1);
        let id = ChannelId::new(number, self.openings);
        let mut channel = Channel::new(id);
        channel.phase = ChannelPhase::Waiting(Waiting { question: Question::Open, method: blame, no_wait: false });
        self.channels.insert(channel);
        self.events.push_back(Event::ChannelOpened { channel: id });
        Ok(())
    }

    /// We sent `channel.close`: nothing counts but the answer, and a close of the client's that
    /// crossed ours.
    fn handle_frame_of_closing_channel(&mut self, kind: u8, number: u16, payload: Payload<'_>) {
        if kind != FRAME_METHOD {
            return;
        }
        match Method::decode(&payload.to_bytes()) {
            Ok(Method::ChannelCloseOk {}) => {
                self.channels.remove(number);
            }
            Ok(Method::ChannelClose { .. }) => self.send(number, &Method::ChannelCloseOk {}),
            _ => {}
        }
    }

    /// Lets a channel go on after its answer: first what waited in it, then what waited for room.
    pub(crate) fn resume_channel(&mut self, id: ChannelId) {
        self.drain_channel(id);
        self.run_stalled();
    }

    /// Handles the frames that waited in an open channel, until it waits again. Until then no other
    /// frame of the channel may be handled: it would overtake these.
    pub(crate) fn drain_channel(&mut self, id: ChannelId) {
        while let Some(channel) = self.channels.open(id)
            && matches!(channel.phase, ChannelPhase::Open)
            && let Some(frame) = channel.pending.pop_front()
        {
            self.pending_frames -= 1;
            self.pending_bytes -= frame.payload.len();
            if let Err(fault) = self.handle_frame_in_turn(frame.kind, id.number(), Payload::whole(&frame.payload)) {
                self.fail(id.number(), fault);
            }
        }
    }
}

/// The payload of the frame at `at`, if it is of this kind and channel, and where the next frame
/// starts.
#[inline]
fn whole_frame(batch: &Bytes, at: usize, kind: u8, number: u16) -> Option<(Payload<'_>, usize)> {
    let header = FrameHeader::read(batch.get(at..)?)?;
    if header.kind != kind || header.channel != number {
        return None;
    }
    let start = at + FRAME_HEADER_BYTES;
    let end = start + header.payload_bytes as usize;
    // The frame is whole if it is in the batch at all; only its end octet is still to be looked at.
    (batch.get(end) == Some(&FRAME_END)).then(|| (Payload::new(batch, start, end), end + 1))
}

/// Where a whole publish lies in its batch.
#[derive(Debug)]
struct Whole {
    channel: u16,
    /// Its frames, as a whole.
    method: Range<usize>,
    header: Range<usize>,
    /// Where the next frame starts.
    end: usize,
}

/// Where the size of the body stands in the frame of a content header, and where what is behind it.
const BODY_SIZE_IN_HEADER: (usize, usize) =
    (FRAME_HEADER_BYTES + CONTENT_HEADER_BYTES - 8, FRAME_HEADER_BYTES + CONTENT_HEADER_BYTES);

#[inline]
fn publish_event(channel: &mut Channel, message: Assembled) -> Event {
    let publish_seq = match &mut channel.confirms {
        Some(confirms) => confirms.next_publish_seq(),
        None => channel.tx.as_mut().map_or(0, |tx| tx.next_publish_seq()),
    };
    let Assembled { method, properties, body } = message;
    Event::Publish(Publish {
        channel: channel.id,
        exchange: method.exchange,
        routing_key: method.routing_key,
        mandatory: method.mandatory,
        properties,
        body,
        publish_seq,
        more: None,
    })
}

/// Reads a method, or says what is wrong with it. Its strings lie in memory of their own: names and
/// tags are kept for long, and would each keep a whole read buffer.
pub(crate) fn decode_method(payload: Payload<'_>) -> Result<Method, Fault> {
    Method::decode(&Bytes::copy_from_slice(&payload)).map_err(|error| {
        let blame = peek_id(&payload).filter(|id| Method::ALL.iter().any(|(known, _)| known == id));
        let blame = blame.unwrap_or(MethodId::NONE);
        match error {
            DecodeError::UnknownMethod { class, method } => {
                Fault::new(ReplyCode::CommandInvalid, blame, format!("unknown method {class}.{method}"))
            }
            // RabbitMQ blames no method here.
            DecodeError::MalformedUtf8 => Fault::new(ReplyCode::FrameError, MethodId::NONE, error.to_string()),
            DecodeError::UnknownFieldType(_) | DecodeError::TooDeep | DecodeError::TooManyFields => {
                Fault::new(ReplyCode::SyntaxError, blame, error.to_string())
            }
            // Its fields may be a password or a token.
            _ if blame.class == CLASS_CONNECTION => Fault::new(ReplyCode::FrameError, blame, "cannot decode it"),
            _ => Fault::new(ReplyCode::FrameError, blame, cannot_decode(&payload)),
        }
    })
}

/// Refuses frames that are none, wherever the channel stands: of an unknown type, too short to say
/// what they are, or a heartbeat, which is the connection's.
#[inline]
fn check_shape(kind: u8, payload: &[u8], phase: Phase) -> Result<(), Fault> {
    match kind {
        FRAME_METHOD if payload.len() >= METHOD_ID_BYTES => Ok(()),
        FRAME_HEADER if payload.len() >= CONTENT_HEADER_BYTES => Ok(()),
        FRAME_BODY => Ok(()),
        FRAME_HEARTBEAT if payload.is_empty() => Err(unexpected_frame(kind, payload, phase)),
        _ => Err(unknown_frame(kind, payload, phase)),
    }
}

fn unexpected_frame(kind: u8, payload: &[u8], phase: Phase) -> Fault {
    Fault::new(ReplyCode::UnexpectedFrame, MethodId::NONE, format!("type {kind}, {}", snippet(payload, phase)))
}

fn unknown_frame(kind: u8, payload: &[u8], phase: Phase) -> Fault {
    Fault::new(
        ReplyCode::FrameError,
        MethodId::NONE,
        format!("type {kind}, {}: unknown_frame", snippet(payload, phase)),
    )
}

/// What is shown of a bad frame: to its client, and in the log. Of what may have a password or a token in it nothing.
fn snippet(payload: &[u8], phase: Phase) -> String {
    let class = peek_id(payload).map(|id| id.class);
    let is_of_another = |class| class != CLASS_CONNECTION && Method::ALL.iter().any(|(known, _)| known.class == class);
    let is_shown = match phase {
        Phase::Running => class != Some(CLASS_CONNECTION),
        // A frame of the wrong length may begin anywhere in the words of a login.
        _ => payload.is_empty() || class.is_some_and(is_of_another),
    };
    if !is_shown {
        return format!("{} octets", payload.len());
    }
    match payload.get(..SNIPPET_BYTES + 1) {
        None => format!("all octets = {}", Snippet(payload)),
        Some(_) => format!("first 16 octets = {}", Snippet(&payload[..SNIPPET_BYTES])),
    }
}
