//! Scripts: what a client and its partitions do, and what a session makes of it. Nothing runs but
//! the session.

mod leaders;
mod limits;
mod old_knowledge;
mod requests;
mod script;
mod spans;
mod tokens;
mod transactions;
