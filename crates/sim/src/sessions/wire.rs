//! A client's end of a connection, as bytes: what it writes, and what it makes of what it reads.
//!
//! Invariant: a frame is looked at once all of it is there, however it was cut on the way.

use amqp::wire::frame::{
    FRAME_BODY, FRAME_HEADER, FRAME_HEADER_BYTES, FRAME_METHOD, FrameHeader, PROTOCOL_HEADER, write_frame,
};
use amqp::wire::method::Method;
use amqp::{Properties, Table, Value};
use bytes::Bytes;
use std::collections::BTreeMap;

/// What a server said on a channel.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) channel: u16,
    pub(super) method: Method,
    /// Of a method that has content.
    pub(super) properties: Bytes,
    pub(super) body: Bytes,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Wire {
    input: Vec<u8>,
    /// Methods whose content is on its way, with its properties and how much of the body is
    /// missing.
    begun: BTreeMap<u16, (Heard, Option<usize>)>,
}

/// How a connection begins, up to the answer to its login.
pub(super) fn greeting() -> Vec<u8> {
    PROTOCOL_HEADER.to_vec()
}

/// The login.
pub(super) fn start_ok() -> Method {
    let mut capabilities = Table::new();
    capabilities.push("consumer_cancel_notify", Value::Bool(true));
    capabilities.push("basic.nack", Value::Bool(true));
    capabilities.push("publisher_confirms", Value::Bool(true));
    let mut client_properties = Table::new();
    client_properties.push("capabilities", Value::Table(capabilities));
    Method::ConnectionStartOk {
        client_properties,
        mechanism: Bytes::from_static(b"PLAIN"),
        response: Bytes::from_static(b"\0guest\0guest"),
        locale: Bytes::from_static(b"en_US"),
    }
}

/// A publish with its content; a long body goes in two frames.
pub(super) fn publish(to: &mut Vec<u8>, channel: u16, method: &Method, properties: &Properties<'_>, body: &[u8]) {
    method.write(to, channel);
    let mut encoded = Vec::new();
    properties.encode_to(&mut encoded);
    write_frame(to, FRAME_HEADER, channel, |payload| {
        payload.short(60);
        payload.short(0);
        payload.longlong(body.len() as u64);
        payload.raw(&encoded);
    });
    let (first, second) = body.split_at(body.len().min(200));
    for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
        write_frame(to, FRAME_BODY, channel, |payload| payload.raw(part));
    }
}

impl Wire {
    /// Takes what came, whole frames or not.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Heard> {
        self.input.extend_from_slice(bytes);
        let mut heard = Vec::new();
        while let Some(head) = FrameHeader::read(&self.input).filter(|head| head.frame_bytes() <= self.input.len()) {
            let frame = Bytes::from_iter(self.input.drain(..head.frame_bytes()));
            let payload = frame.slice(FRAME_HEADER_BYTES..frame.len() - 1);
            self.frame(head, payload, &mut heard);
        }
        heard
    }

    fn frame(&mut self, head: FrameHeader, payload: Bytes, heard: &mut Vec<Heard>) {
        let channel = head.channel;
        match head.kind {
            FRAME_METHOD => {
                let method = Method::decode(&payload).expect("a server says what its own table can read");
                let has_content = method.has_content();
                let said = Heard { channel, method, properties: Bytes::new(), body: Bytes::new() };
                match has_content {
                    true => drop(self.begun.insert(channel, (said, None))),
                    false => heard.push(said),
                }
            }
            FRAME_HEADER => {
                let (said, left) = self.begun.get_mut(&channel).expect("a header follows its method");
                let size = payload[4..12].try_into().map(u64::from_be_bytes).expect("eight bytes");
                (said.properties, *left) = (payload.slice(12..), Some(size as usize));
            }
            FRAME_BODY => {
                let (said, left) = self.begun.get_mut(&channel).expect("a body follows its method");
                said.body = [&said.body[..], &payload[..]].concat().into();
                *left = left.map(|left| left - payload.len());
            }
            kind => panic!("a frame of kind {kind} without a heartbeat"),
        }
        if self.begun.get(&channel).is_some_and(|(_, left)| *left == Some(0)) {
            heard.extend(self.begun.remove(&channel).map(|(said, _)| said));
        }
    }
}
