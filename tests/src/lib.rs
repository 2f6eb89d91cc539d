//! What the black-box tests share: a broker to talk to, a small AMQP client that hides nothing, and
//! a ledger of promises.
//!
//! Invariant: nothing here uses a crate of Leveret. A codec shared with the broker would share its
//! mistakes.

pub mod api;
pub mod broker;
pub mod client;
pub mod http;
pub mod ledger;
pub mod load;
pub mod matrix;
pub mod methods;
pub mod nodes;
pub mod threads;
pub mod tools;
pub mod verbs;
pub mod wire;

pub use broker::{Broker, End};
pub use client::{Client, Closed, Delivery, Event, Login, Refused, Scope};
pub use http::Http;
pub use matrix::{Difference, Matrix, Outcome};
pub use nodes::Nodes;
pub use threads::Stopped;
pub use tools::{Told, Tools};
pub use verbs::{ExchangeDeclare, Publish, QueueDeclare};
pub use wire::{Properties, Value};
