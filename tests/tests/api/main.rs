//! The management API from outside, a file for each resource that `crates/management/src/resource` has: what is asked
//! over HTTP holds for clients over AMQP, and the other way round. What each role may ask at each path is the
//! table of `tests/roles/`; what is our own and not in that table is allowed and refused here.
//!
//! With `AMQP_URI` and `MANAGEMENT` the same tests run against RabbitMQ, whose figures about
//! connections come late: what is asked of them is waited for.
#![allow(clippy::unwrap_used)]

mod audit;
mod auth;
mod binding;
mod channel;
mod cluster;
mod connection;
mod definitions;
mod encrypted;
mod events;
mod exchange;
mod guarantee;
mod health;
mod leave;
mod limit;
mod message;
mod node;
mod openapi;
mod operator;
mod page;
mod parameter;
mod permission;
mod policy;
mod queue;
mod rates;
mod requests;
mod session;
mod tls;
mod transfer;
mod user;
mod vhost;
mod whole;
