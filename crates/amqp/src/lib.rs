//! AMQP 0-9-1 without sockets: the wire, the connection's rules, the channel's rules.

pub mod wire;

pub use wire::table::{Table, Value};
