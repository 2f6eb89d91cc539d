//! JSON web tokens: whether one counts, whom it names and what they may do. Sans-io: keys, token and
//! time go in, a [`broker::topology::Token`] or a reason comes out.
//!
//! Invariant: nothing of a token is believed before its signature is that of a key which somebody
//! configured, by an algorithm that this key is for. A secret that both sides share signs nothing
//! unless it was configured as one, and `none` is no algorithm.
//!
//! In reading order: a token in its three parts and its signature (`jws`), keys (`key`), what its
//! claims say (`rules`).
//!
//! Source: RFC 7515, 7517, 7518, 7519, 8037; the scopes are those of RabbitMQ's OAuth 2 backend.

mod algorithm;
mod jws;
mod key;
mod rules;

pub use algorithm::Algorithm;
pub use key::{Key, Keys, WrongKey};
pub use rules::{Refused, Rules};
