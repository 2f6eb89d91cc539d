//! `leveret ctl`, and RabbitMQ's command line tools under their own names: what operators and
//! scripts type, carried out over the management API of a node.
//!
//! In reading order: [`Tool`] is under which name we were started, `options` reads the words, `verb`
//! is the table of what can be asked for and `verbs` does it, a file for each group; `place` finds
//! the node and `api` asks it; `form` shows what came back, `failure` what did not; `admin` is
//! rabbitmqadmin, `top` the live view, [`command`] what completions and manual pages are made of.
//!
//! Invariant: a client and nothing else: it knows the API's paths and the file with the operator's
//! token, and no crate of the broker. Standard output carries what was asked for, standard error
//! what went wrong, and the exit code is RabbitMQ's.

mod admin;
mod api;
mod context;
mod failure;
mod form;
mod help;
mod options;
mod output;
mod password;
mod place;
mod process;
mod run;
mod term;
mod tool;
mod top;
mod tree;
mod trust;
mod verb;
mod verbs;

pub use run::run;
pub use tool::Tool;
pub use tree::command;
