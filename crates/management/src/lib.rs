//! RabbitMQ's management API and metrics for Prometheus over HTTP, as far as this broker can answer
//! them honestly.
//!
//! In reading order: [`Management`] listens and serves on a thread of its own, off the road of
//! messages, and `boot` answers until then; `call` is one request, `fields` what its body may say, `framing` how long it is, `permits` says who keeps a connection, `waiting` who waits for
//! an answer, `unsent` and `patience` what becomes of one that is not read, `site` and `access` who
//! may ask, `others` what other nodes are asked, `map` which of them has what, `last_known` what was in queues that nobody leads just now, `quorum` whether that is led and keeps up, `operator` how who runs this machine shows it, `resource` has one file for each thing that is asked about, `listing` pages and sorts,
//! `answer` is what goes back; `ui` is the page and `page_session` who is logged in on it;
//! `statistics` keeps rates and histories; `metrics` is the other half. `stored` shows a message to who reads a
//! data folder.
//!
//! Invariant: paths, fields, codes and reasons are RabbitMQ's; what is not there is answered 404 or
//! 405 and never made up. Nothing here decides a rule: a change is checked by the topology in the
//! name of who asks, and made through its log.

mod access;
mod answer;
mod body;
mod boot;
mod call;
mod encryption;
mod fields;
mod framing;
mod json;
mod last_known;
mod listener;
mod listing;
mod map;
mod metrics;
mod operator;
mod others;
mod own_channel;
mod page_session;
mod patience;
mod permits;
mod process;
mod quorum;
mod resource;
mod site;
mod statistics;
mod stored;
mod take_back;
mod ui;
mod unsent;
mod upload;
mod waiting;

pub use listener::{Listening, Management};
pub use stored::stored_message;
