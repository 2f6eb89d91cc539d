//! Pages of figures: one HTML file that answers first, then draws, then tells all; for `bench` and
//! `sizing`.
//!
//! Invariant: a page is one file that asks no network (its own policy forbids it), all text from
//! outside passes [`escape`], and the same data gives the same bytes.

pub mod bars;
pub mod chart;
pub mod figures;
pub mod hue;
pub mod reason;
pub mod sheet;
pub mod table;
pub mod tile;

pub use sheet::{live, page, reloaded};

/// Text that may hold anything, for HTML and SVG.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}
