//! AMQP 0-9-1 frame by frame: what a client may rely on, and what it gets when it breaks a rule.
//!
//! Invariant: each test runs against Leveret, and against RabbitMQ 3.10.8 with `AMQP_URI` set;
//! where the two differ on purpose the test says so with `is_foreign()` and gives the reason.
#![allow(clippy::unwrap_used)]

mod bodies;
mod connection;
mod consume;
mod consumers;
mod declare;
mod dedup;
mod exceptions;
mod exchanges;
mod golden;
mod handshakes;
mod headers;
mod held;
mod honest;
mod hostile;
mod life;
mod mandatory;
mod prefetch;
mod priorities;
mod publish;
mod refusals;
mod replies;
mod requeue;
mod routing;
mod settle;
mod setup;
mod timeouts;
mod tls;
mod transactions;
mod unread;
