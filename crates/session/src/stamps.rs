//! What the broker writes into every message that comes in, where settings ask for it: the time,
//! and which node took it.
//!
//! Invariant: nothing else of a message changes, and without the settings nobody looks at it.
//! Source: RabbitMQ's guide on message interceptors; names and types are RabbitMQ's.

use amqp::wire::headers::{self, Headers};
use amqp::{Properties, Value};
use bytes::Bytes;

const TIME_HEADER: &str = "timestamp_in_ms";
const NODE_HEADER: &str = "x-routed-by";

/// Whether something is written into messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamp {
    /// No.
    #[default]
    None,
    /// Where the client wrote nothing there.
    Fill,
    /// Over what the client wrote there.
    Overwrite,
}

/// What is written into every message that comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// The time: in the header `timestamp_in_ms`, in milliseconds since the epoch, and in the
    /// property `timestamp`, in seconds.
    pub time: Stamp,
    /// This node's name, in the header `x-routed-by`.
    pub node: Stamp,
}

impl Stamps {
    /// What is to be written, if anything is.
    pub fn new(time: Stamp, node: Stamp) -> Option<Stamps> {
        (time != Stamp::None || node != Stamp::None).then_some(Stamps { time, node })
    }

    /// The properties of a message that came at `now_ms` to the node of this name.
    pub(crate) fn stamped(&self, properties: &[u8], node_name: &str, now_ms: u64) -> Bytes {
        let parsed = Properties::parse(properties).expect("the machine checks the properties of every message");
        let fields = Headers::new(parsed.headers.unwrap_or_default());
        let writes = |stamp: Stamp, is_there: bool| match stamp {
            Stamp::None => false,
            Stamp::Fill => !is_there,
            Stamp::Overwrite => true,
        };
        let mut set: Vec<(&str, Value)> = Vec::new();
        if writes(self.time, fields.get(TIME_HEADER.as_bytes()).is_some()) {
            set.push((TIME_HEADER, Value::I64(i64::try_from(now_ms).unwrap_or(i64::MAX))));
        }
        if writes(self.node, fields.get(NODE_HEADER.as_bytes()).is_some()) {
            set.push((NODE_HEADER, Value::LongString(Bytes::copy_from_slice(node_name.as_bytes()))));
        }
        let rewritten = headers::rewrite(properties, &set, &[]).expect("they were parsed above");
        if !writes(self.time, parsed.timestamp.is_some()) {
            return rewritten.into();
        }
        let parsed = Properties::parse(&rewritten).expect("they were written a line above");
        let mut out = Vec::with_capacity(rewritten.len() + 8);
        Properties { timestamp: Some(now_ms / 1000), ..parsed }.encode_to(&mut out);
        out.into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use amqp::Table;

    fn told(properties: &[u8]) -> (Option<u64>, Option<Table>) {
        let parsed = Properties::parse(properties).unwrap();
        (parsed.timestamp, parsed.headers_table())
    }

    #[test]
    fn a_stamp_fills_what_is_empty_or_writes_over_it() {
        let mut bare = Vec::new();
        Properties { content_type: Some(b"text/plain"), ..Properties::default() }.encode_to(&mut bare);
        let fill = Stamps::new(Stamp::Fill, Stamp::Fill).unwrap();
        let once = fill.stamped(&bare, "a", 5_000);
        let (time, headers) = told(&once);
        let headers = headers.unwrap();
        assert_eq!((time, headers.get("timestamp_in_ms")), (Some(5), Some(&Value::I64(5_000))));
        assert_eq!(headers.get("x-routed-by"), Some(&Value::LongString("a".into())));
        assert_eq!(Properties::parse(&once).unwrap().content_type, Some(&b"text/plain"[..]));
        assert_eq!(fill.stamped(&once, "b", 9_000), once, "what is there stays");
        let over = Stamps::new(Stamp::Overwrite, Stamp::None).unwrap();
        let (time, headers) = told(&over.stamped(&once, "b", 9_000));
        let headers = headers.unwrap();
        assert_eq!((time, headers.get("timestamp_in_ms")), (Some(9), Some(&Value::I64(9_000))));
        assert_eq!(headers.get("x-routed-by"), Some(&Value::LongString("a".into())), "nobody asked for that");
        assert_eq!(Stamps::new(Stamp::None, Stamp::None), None);
    }
}
