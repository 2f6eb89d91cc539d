//! Three nodes speak as one: whichever of them is asked, it answers for all.
#![allow(clippy::unwrap_used)]

mod api;
mod classic;
mod commands;
mod joining;
mod leave;
mod leaving;
mod levels;
mod news;
mod nodes;
