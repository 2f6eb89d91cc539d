//! Every method of AMQP 0-9-1 with RabbitMQ's extensions, both directions, as one table.
//!
//! Invariant: the table at the end is the only place that knows a method's number and fields.
//! Reading what was written gives the same method, and a payload with anything missing or left over
//! is no method at all.
//!
//! The methods that run once a message (`basic.publish`, `basic.ack`, `basic.deliver`) are also
//! read and written by hand where speed asks for it; tests hold both against this table.

use bytes::Bytes;

use super::frame::{FRAME_METHOD, write_frame};
use super::primitives::{DecodeError, Reader, Writer};
use super::table::Table;
use crate::reply_code::MethodId;

macro_rules! rust_type {
    (bit) => {
        bool
    };
    (octet) => {
        u8
    };
    (short) => {
        u16
    };
    (long) => {
        u32
    };
    (longlong) => {
        u64
    };
    (shortstr) => {
        Bytes
    };
    (name) => {
        Bytes
    };
    (longstr) => {
        Bytes
    };
    (table) => {
        Table
    };
}

macro_rules! read_field {
    ($reader:ident, table) => {
        Table::read(&mut $reader)?
    };
    ($reader:ident, $kind:ident) => {
        $reader.$kind()?
    };
}

macro_rules! write_field {
    ($writer:ident, bit, $value:ident) => {
        $writer.bit(*$value)
    };
    ($writer:ident, octet, $value:ident) => {
        $writer.octet(*$value)
    };
    ($writer:ident, short, $value:ident) => {
        $writer.short(*$value)
    };
    ($writer:ident, long, $value:ident) => {
        $writer.long(*$value)
    };
    ($writer:ident, longlong, $value:ident) => {
        $writer.longlong(*$value)
    };
    ($writer:ident, shortstr, $value:ident) => {
        $writer.shortstr($value)
    };
    ($writer:ident, name, $value:ident) => {
        $writer.shortstr($value)
    };
    ($writer:ident, longstr, $value:ident) => {
        $writer.longstr($value)
    };
    ($writer:ident, table, $value:ident) => {
        $value.write($writer)
    };
}

macro_rules! methods {
    ($($name:ident $class:literal $number:literal $text:literal { $($field:ident: $kind:ident),* })*) => {
        /// One method with its fields, named as in the specification. Strings are slices of the
        /// buffer they came in.
        #[allow(missing_docs, reason = "the specification is the documentation of each field")]
        #[derive(Clone, Debug, PartialEq)]
        pub enum Method {
            $($name { $($field: rust_type!($kind)),* },)*
        }

        impl Method {
            /// Every method's number and name, in the order of the table.
            pub const ALL: &[(MethodId, &str)] = &[$((MethodId::new($class, $number), $text)),*];

            /// The class and method numbers.
            pub fn id(&self) -> MethodId {
                match self { $(Self::$name { .. } => MethodId::new($class, $number),)* }
            }

            /// The name in the specification, such as `basic.publish`.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => $text,)* }
            }

            /// Reads a method frame's payload: the two numbers, then exactly the method's fields.
            pub fn decode(payload: &Bytes) -> Result<Method, DecodeError> {
                let mut reader = Reader::new(payload);
                let (class, method) = (reader.short()?, reader.short()?);
                let decoded = match (class, method) {
                    $(($class, $number) => Method::$name { $($field: read_field!(reader, $kind)),* },)*
                    _ => return Err(DecodeError::UnknownMethod { class, method }),
                };
                reader.finish()?;
                Ok(decoded)
            }

            fn write_fields(&self, writer: &mut Writer<'_>) {
                match self {
                    $(Self::$name { $($field),* } => { $(write_field!(writer, $kind, $field);)* })*
                }
            }
        }
    };
}

impl Method {
    /// Whether a content header and a body follow.
    pub fn has_content(&self) -> bool {
        matches!(
            self,
            Self::BasicPublish { .. } | Self::BasicReturn { .. } | Self::BasicDeliver { .. } | Self::BasicGetOk { .. }
        )
    }

    /// Appends the whole method frame.
    pub fn write(&self, target: &mut Vec<u8>, channel: u16) {
        write_frame(target, FRAME_METHOD, channel, |writer| {
            let id = self.id();
            writer.short(id.class);
            writer.short(id.method);
            self.write_fields(writer);
        });
    }
}

/// The number at the start of a method frame's payload.
#[inline]
pub fn peek_id(payload: &[u8]) -> Option<MethodId> {
    let numbers = payload.first_chunk::<4>()?;
    Some(MethodId::new(u16::from_be_bytes([numbers[0], numbers[1]]), u16::from_be_bytes([numbers[2], numbers[3]])))
}

methods! {
    ConnectionStart 10 10 "connection.start"
        { version_major: octet, version_minor: octet, server_properties: table, mechanisms: longstr, locales: longstr }
    ConnectionStartOk 10 11 "connection.start-ok"
        { client_properties: table, mechanism: name, response: longstr, locale: name }
    ConnectionSecure 10 20 "connection.secure" { challenge: longstr }
    ConnectionSecureOk 10 21 "connection.secure-ok" { response: longstr }
    ConnectionTune 10 30 "connection.tune" { channel_max: short, frame_max: long, heartbeat: short }
    ConnectionTuneOk 10 31 "connection.tune-ok" { channel_max: short, frame_max: long, heartbeat: short }
    ConnectionOpen 10 40 "connection.open" { virtual_host: name, capabilities: shortstr, insist: bit }
    ConnectionOpenOk 10 41 "connection.open-ok" { known_hosts: shortstr }
    ConnectionClose 10 50 "connection.close"
        { reply_code: short, reply_text: shortstr, class_id: short, method_id: short }
    ConnectionCloseOk 10 51 "connection.close-ok" {}
    ConnectionBlocked 10 60 "connection.blocked" { reason: shortstr }
    ConnectionUnblocked 10 61 "connection.unblocked" {}
    ConnectionUpdateSecret 10 70 "connection.update-secret" { new_secret: longstr, reason: shortstr }
    ConnectionUpdateSecretOk 10 71 "connection.update-secret-ok" {}

    ChannelOpen 20 10 "channel.open" { out_of_band: shortstr }
    ChannelOpenOk 20 11 "channel.open-ok" { channel_id: longstr }
    ChannelFlow 20 20 "channel.flow" { active: bit }
    ChannelFlowOk 20 21 "channel.flow-ok" { active: bit }
    ChannelClose 20 40 "channel.close" { reply_code: short, reply_text: shortstr, class_id: short, method_id: short }
    ChannelCloseOk 20 41 "channel.close-ok" {}

    AccessRequest 30 10 "access.request"
        { realm: shortstr, exclusive: bit, passive: bit, active: bit, write: bit, read: bit }
    AccessRequestOk 30 11 "access.request-ok" { ticket: short }

    ExchangeDeclare 40 10 "exchange.declare"
        { ticket: short, exchange: name, kind: name, passive: bit, durable: bit, auto_delete: bit, internal: bit,
          no_wait: bit, arguments: table }
    ExchangeDeclareOk 40 11 "exchange.declare-ok" {}
    ExchangeDelete 40 20 "exchange.delete" { ticket: short, exchange: name, if_unused: bit, no_wait: bit }
    ExchangeDeleteOk 40 21 "exchange.delete-ok" {}
    ExchangeBind 40 30 "exchange.bind"
        { ticket: short, destination: name, source: name, routing_key: shortstr, no_wait: bit, arguments: table }
    ExchangeBindOk 40 31 "exchange.bind-ok" {}
    ExchangeUnbind 40 40 "exchange.unbind"
        { ticket: short, destination: name, source: name, routing_key: shortstr, no_wait: bit, arguments: table }
    ExchangeUnbindOk 40 51 "exchange.unbind-ok" {}

    QueueDeclare 50 10 "queue.declare"
        { ticket: short, queue: name, passive: bit, durable: bit, exclusive: bit, auto_delete: bit, no_wait: bit,
          arguments: table }
    QueueDeclareOk 50 11 "queue.declare-ok" { queue: shortstr, message_count: long, consumer_count: long }
    QueueBind 50 20 "queue.bind"
        { ticket: short, queue: name, exchange: name, routing_key: shortstr, no_wait: bit, arguments: table }
    QueueBindOk 50 21 "queue.bind-ok" {}
    QueuePurge 50 30 "queue.purge" { ticket: short, queue: name, no_wait: bit }
    QueuePurgeOk 50 31 "queue.purge-ok" { message_count: long }
    QueueDelete 50 40 "queue.delete" { ticket: short, queue: name, if_unused: bit, if_empty: bit, no_wait: bit }
    QueueDeleteOk 50 41 "queue.delete-ok" { message_count: long }
    QueueUnbind 50 50 "queue.unbind"
        { ticket: short, queue: name, exchange: name, routing_key: shortstr, arguments: table }
    QueueUnbindOk 50 51 "queue.unbind-ok" {}

    BasicQos 60 10 "basic.qos" { prefetch_size: long, prefetch_count: short, global: bit }
    BasicQosOk 60 11 "basic.qos-ok" {}
    BasicConsume 60 20 "basic.consume"
        { ticket: short, queue: name, consumer_tag: name, no_local: bit, no_ack: bit, exclusive: bit, no_wait: bit,
          arguments: table }
    BasicConsumeOk 60 21 "basic.consume-ok" { consumer_tag: shortstr }
    BasicCancel 60 30 "basic.cancel" { consumer_tag: name, no_wait: bit }
    BasicCancelOk 60 31 "basic.cancel-ok" { consumer_tag: name }
    BasicPublish 60 40 "basic.publish"
        { ticket: short, exchange: shortstr, routing_key: shortstr, mandatory: bit, immediate: bit }
    BasicReturn 60 50 "basic.return"
        { reply_code: short, reply_text: shortstr, exchange: shortstr, routing_key: shortstr }
    BasicDeliver 60 60 "basic.deliver"
        { consumer_tag: shortstr, delivery_tag: longlong, redelivered: bit, exchange: shortstr, routing_key: shortstr }
    BasicGet 60 70 "basic.get" { ticket: short, queue: name, no_ack: bit }
    BasicGetOk 60 71 "basic.get-ok"
        { delivery_tag: longlong, redelivered: bit, exchange: shortstr, routing_key: shortstr, message_count: long }
    BasicGetEmpty 60 72 "basic.get-empty" { cluster_id: shortstr }
    BasicAck 60 80 "basic.ack" { delivery_tag: longlong, multiple: bit }
    BasicReject 60 90 "basic.reject" { delivery_tag: longlong, requeue: bit }
    BasicRecoverAsync 60 100 "basic.recover-async" { requeue: bit }
    BasicRecover 60 110 "basic.recover" { requeue: bit }
    BasicRecoverOk 60 111 "basic.recover-ok" {}
    BasicNack 60 120 "basic.nack" { delivery_tag: longlong, multiple: bit, requeue: bit }

    ConfirmSelect 85 10 "confirm.select" { no_wait: bit }
    ConfirmSelectOk 85 11 "confirm.select-ok" {}

    TxSelect 90 10 "tx.select" {}
    TxSelectOk 90 11 "tx.select-ok" {}
    TxCommit 90 20 "tx.commit" {}
    TxCommitOk 90 21 "tx.commit-ok" {}
    TxRollback 90 30 "tx.rollback" {}
    TxRollbackOk 90 31 "tx.rollback-ok" {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn golden(method: Method, bytes: &[u8]) {
        let mut written = Vec::new();
        method.write(&mut written, 1);
        assert_eq!(written, bytes, "{}", method.name());
        let payload = Bytes::copy_from_slice(&bytes[7..bytes.len() - 1]);
        assert_eq!(Method::decode(&payload).unwrap(), method);
    }

    #[test]
    fn methods_have_their_golden_bytes() {
        golden(
            Method::QueueDeclare {
                ticket: 0,
                queue: Bytes::from_static(b"q"),
                passive: false,
                durable: true,
                exclusive: false,
                auto_delete: true,
                no_wait: false,
                arguments: Table::new(),
            },
            b"\x01\0\x01\0\0\0\x0d\0\x32\0\x0a\0\0\x01q\x0a\0\0\0\0\xce",
        );
        golden(
            Method::BasicNack { delivery_tag: 258, multiple: true, requeue: true },
            b"\x01\0\x01\0\0\0\x0d\0\x3c\0\x78\0\0\0\0\0\0\x01\x02\x03\xce",
        );
        golden(Method::BasicQosOk {}, b"\x01\0\x01\0\0\0\x04\0\x3c\0\x0b\xce");
        golden(
            Method::ConnectionTune { channel_max: 2047, frame_max: 131072, heartbeat: 60 },
            b"\x01\0\x01\0\0\0\x0c\0\x0a\0\x1e\x07\xff\0\x02\0\0\0\x3c\xce",
        );
    }

    #[test]
    fn no_number_is_used_twice() {
        let mut ids: Vec<_> = Method::ALL.iter().map(|(id, _)| (id.class, id.method)).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), Method::ALL.len());
    }

    #[test]
    fn missing_and_left_over_bytes_are_refused() {
        let ack = Bytes::from_static(b"\0\x3c\0\x50\0\0\0\0\0\0\0\x01\0\0");
        assert_eq!(Method::decode(&ack), Err(DecodeError::TrailingBytes));
        Method::decode(&ack.slice(..13)).unwrap();
        for cut in 0..13 {
            assert_eq!(Method::decode(&ack.slice(..cut)), Err(DecodeError::Truncated), "cut at {cut}");
        }
        let unknown = Bytes::from_static(b"\0\x3c\0\x51");
        assert_eq!(Method::decode(&unknown), Err(DecodeError::UnknownMethod { class: 60, method: 81 }));
    }
}
