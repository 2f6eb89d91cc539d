//! The command line tools under RabbitMQ's names: what they print, and their exit codes, held
//! against what rabbitmqctl, rabbitmq-diagnostics, rabbitmq-queues, rabbitmq-plugins and
//! rabbitmqadmin of version 3.10.8 printed and ended with.
#![allow(clippy::unwrap_used)]

mod access;
mod admin;
mod definitions;
mod forms;
mod health;
mod leave;
mod lifetime;
mod listings;
mod meaningless;
mod parameters;
mod policies;
mod replicas;
mod token;
mod top;
mod users;
mod vhosts;

use clients::broker::is_foreign;
use clients::{Broker, Http, Tools};

/// A broker of our own with its API, and the tools in its data folder; nothing when the broker is
/// not ours, as the tools are.
fn begin(arguments: &[&str]) -> Option<(Broker, Http, Tools)> {
    let (broker, http) = Broker::managed(arguments).filter(|_| !is_foreign())?;
    let tools = Tools::of(&broker);
    Some((broker, http, tools))
}
