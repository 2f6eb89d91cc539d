//! From measurements and prices to an answer: which cluster holds the load, what does it cost, and
//! how sure is that.
//!
//! Reading order: what comes in (`input`, `prices`, `results`, `requirement`), what follows from it
//! (`outcome`, `board`, `published`, `check`, `recommend`, `model`, `latency`, `predict`), how it
//! is shown (`report`, `html`), and how measurements are made (`run`). Invariant:
//! everything outside of `run` is arithmetic on values already read. It knows no broker, no clock
//! and no socket, so the same files give the same report, byte for byte.

pub mod answer;
pub mod board;
pub mod check;
mod doubt;
pub mod html;
pub use page::figures;
pub mod input;
pub mod latency;
pub mod model;
pub mod outcome;
pub mod predict;
pub mod prices;
pub mod published;
mod reason;
pub mod recommend;
pub mod report;
pub mod requirement;
pub mod results;
pub mod run;
pub mod study;
