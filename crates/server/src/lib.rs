//! Placeholder: the crate `server` is laid in the next commits.

pub mod config;
