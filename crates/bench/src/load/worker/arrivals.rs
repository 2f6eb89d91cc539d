//! What the broker sends to a thread of load: frames, methods and contents.
//!
//! Invariant: all that came is handled before the socket is looked at again, each message at the
//! time at which it was read.

use std::cmp::Reverse;

use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD};
use amqp::wire::method::Method;
use bytes::Bytes;

use super::{Role, Timer, Worker};
use crate::load::connection::split_frame;
use crate::load::content::Announced;

impl Worker {
    /// Handles whole frames and keeps the rest.
    pub(super) fn take_frames(&mut self, place: usize, input: &[u8]) {
        let now = self.settings.clock.now();
        let mut at = 0;
        while let Some((kind, channel, payload, bytes)) = split_frame(&input[at..]) {
            at += bytes;
            let outcome = match kind {
                FRAME_METHOD => self.on_method(place, channel, payload, now),
                FRAME_HEADER | FRAME_BODY => self.on_content(place, channel, kind, payload, now),
                FRAME_HEARTBEAT => Ok(()),
                _ => Err(format!("a frame of type {kind}")),
            };
            if let Err(why) = outcome {
                return self.lose(place, &why);
            }
            if self.connections[place].link.is_none() {
                return;
            }
        }
        if let Some(link) = &mut self.connections[place].link {
            link.keep(&input[at..]);
        }
        match self.connections[place].role {
            Role::Producers(_) => self.pump(place, now),
            Role::Consumers(_) => self.flush(place),
        }
    }

    fn on_method(&mut self, place: usize, channel: u16, payload: &[u8], now: u64) -> Result<(), String> {
        let connection = &mut self.connections[place];
        let longlong = |at: usize| payload.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        let in_place = usize::from(channel).checked_sub(1);
        match (payload.get(..4), &mut connection.role, in_place) {
            (Some([0, 60, 0, 60]), Role::Consumers(consumers), Some(i)) if i < consumers.len() => {
                let tag_bytes = usize::from(*payload.get(4).ok_or("a cut delivery")?);
                let digits = payload.get(5..5 + tag_bytes).ok_or("a cut delivery")?;
                let queue_at = match digits {
                    // Nearly all: who consumes one queue or a few.
                    [digit @ b'0'..=b'9'] => usize::from(digit - b'0'),
                    _ => std::str::from_utf8(digits)
                        .ok()
                        .and_then(|text| text.parse().ok())
                        .ok_or("a strange consumer tag")?,
                };
                let tag = longlong(5 + tag_bytes).ok_or("a cut delivery")?;
                let redelivered = *payload.get(13 + tag_bytes).ok_or("a cut delivery")? & 1 == 1;
                consumers[i].content.announce(Announced { tag, redelivered, queue_at });
                Ok(())
            }
            (Some([0, 60, 0, 80]), Role::Producers(producers), Some(i)) if i < producers.len() => {
                let multiple = *payload.get(12).ok_or("a cut confirm")? & 1 == 1;
                producers[i].confirmed(longlong(4).ok_or("a cut confirm")?, multiple, &mut self.sample, now);
                Ok(())
            }
            (Some([0, 60, 0, 120]), Role::Producers(producers), Some(i)) if i < producers.len() => {
                let multiple = *payload.get(12).ok_or("a cut nack")? & 1 == 1;
                producers[i].nacked(longlong(4).ok_or("a cut nack")?, multiple, &mut self.sample);
                Ok(())
            }
            _ => {
                let method = Method::decode(&Bytes::copy_from_slice(payload)).map_err(|why| why.to_string())?;
                self.on_rare_method(place, channel, method, now)
            }
        }
    }

    fn on_rare_method(&mut self, place: usize, channel: u16, method: Method, now: u64) -> Result<(), String> {
        let connection = &mut self.connections[place];
        let Some(link) = &mut connection.link else { return Ok(()) };
        let in_place = usize::from(channel).wrapping_sub(1);
        match method {
            Method::BasicReturn { .. } => {
                if let Role::Producers(producers) = &mut connection.role {
                    let producer = producers.get_mut(in_place).ok_or("a return on a strange channel")?;
                    producer.content.announce(Announced { tag: 0, redelivered: false, queue_at: 0 });
                }
            }
            Method::BasicGetOk { delivery_tag, redelivered, .. } => {
                if let Role::Consumers(consumers) = &mut connection.role {
                    let consumer = consumers.get_mut(in_place).ok_or("a message on a strange channel")?;
                    consumer.content.announce(Announced { tag: delivery_tag, redelivered, queue_at: 0 });
                }
            }
            Method::BasicGetEmpty { .. } => {
                if let Role::Consumers(consumers) = &mut connection.role {
                    let consumer = consumers.get_mut(in_place).ok_or("an answer on a strange channel")?;
                    if let Some(again) = consumer.found_nothing(now).filter(|_| !consumer.timer_set) {
                        consumer.timer_set = true;
                        self.timers.push(Reverse((again, place, Timer::Channel(channel))));
                    }
                }
            }
            Method::ConnectionBlocked { reason } => {
                link.blocked_since.get_or_insert(now);
                link.blocked_why = Some(reason);
                self.look_who_is_held_back(now);
            }
            Method::ConnectionUnblocked {} => {
                if let Some(since) = link.blocked_since.take() {
                    self.sample.counts.blocked_ns += now.saturating_sub(since);
                }
                self.look_who_is_held_back(now);
            }
            Method::ChannelClose { reply_code, reply_text, .. } => {
                let text = String::from_utf8_lossy(&reply_text).into_owned();
                self.control.fail(format!("the broker closed a channel: {reply_code} {text}"));
                Method::ChannelCloseOk {}.write(&mut link.output, channel);
            }
            Method::ConnectionClose { reply_code, reply_text, .. } => {
                Method::ConnectionCloseOk {}.write(&mut link.output, 0);
                let text = String::from_utf8_lossy(&reply_text).into_owned();
                // 320 is a broker that stops; anything else is about us and would happen again.
                if reply_code != 320 {
                    self.control.fail(format!("the broker closed a connection: {reply_code} {text}"));
                }
                self.flush(place);
                return Err(format!("the broker closed the connection: {reply_code} {text}"));
            }
            Method::BasicCancel { .. } => {
                return Err("the broker cancelled a consumer: its queue is gone or moved".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    fn on_content(&mut self, place: usize, channel: u16, kind: u8, payload: &[u8], now: u64) -> Result<(), String> {
        let out_of_place = |_| "content out of place".to_owned();
        let connection = &mut self.connections[place];
        let Some(link) = &mut connection.link else { return Ok(()) };
        let in_place = usize::from(channel).wrapping_sub(1);
        match &mut connection.role {
            Role::Consumers(consumers) => {
                let consumer = consumers.get_mut(in_place).ok_or("content on a strange channel")?;
                let mut content = std::mem::take(&mut consumer.content);
                let announced = content.announced();
                let body = match kind {
                    FRAME_HEADER => content.header(payload).map_err(out_of_place)?.then_some(&[][..]),
                    _ => content.body(payload).map_err(out_of_place)?,
                };
                if let Some(body) = body {
                    let tally = (&mut self.sample, &mut self.books);
                    let announced = announced.ok_or("a body that nobody announced")?;
                    let again = consumer.received(announced, body, tally, link, now);
                    if let Some(again) = again.filter(|_| !consumer.timer_set) {
                        consumer.timer_set = true;
                        self.timers.push(Reverse((again, place, Timer::Channel(channel))));
                    }
                    content.finish();
                }
                consumer.content = content;
            }
            Role::Producers(producers) => {
                let producer = producers.get_mut(in_place).ok_or("content on a strange channel")?;
                let mut content = std::mem::take(&mut producer.content);
                let body = match kind {
                    FRAME_HEADER => content.header(payload).map_err(out_of_place)?.then_some(&[][..]),
                    _ => content.body(payload).map_err(out_of_place)?,
                };
                if let Some(body) = body {
                    producer.returned(body, &mut self.sample, now);
                    content.finish();
                }
                producer.content = content;
            }
        }
        Ok(())
    }
}
