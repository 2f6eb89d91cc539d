//! The bytes of AMQP 0-9-1.

pub mod table;
