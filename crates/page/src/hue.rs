//! Colours, each of which means the same on every page.
//!
//! Invariant: a colour is a number here and a variable of the style there (`--c0` to `--c7`), so
//! that light, dark and print have their own shades of it. All eight are told apart without red and
//! green (after Okabe and Ito).

use serde::Serialize;

/// One of the eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Hue(u8);

/// How many there are.
const COUNT: usize = 8;

impl Hue {
    /// What was received, and the way from end to end.
    pub const RECEIVED: Hue = Hue(2);
    /// What was confirmed, and the wait for it.
    pub const CONFIRMED: Hue = Hue(6);
    /// What was sent, and the hand-over to the socket.
    pub const SENT: Hue = Hue(5);
    /// What was asked for: not a measurement.
    pub const ASKED: Hue = Hue(7);

    /// The `at`-th of things that have no colour of their own.
    pub fn nth(at: usize) -> Hue {
        Hue((at % COUNT) as u8)
    }

    /// Its variable in the style.
    pub fn css(self) -> String {
        format!("var(--c{})", self.0)
    }
}

/// Colours of brokers that stand side by side: Leveret is blue and RabbitMQ orange wherever they
/// are, others take what is left.
pub fn of_brokers(names: &[&str]) -> Vec<Hue> {
    let known = |name: &str| {
        let name = name.to_lowercase();
        ["leveret", "rabbit"].iter().position(|broker| name.contains(broker)).map(Hue::nth)
    };
    let mut hues: Vec<Option<Hue>> = Vec::new();
    for name in names {
        hues.push(known(name).filter(|hue| !hues.contains(&Some(*hue))));
    }
    for at in 0..hues.len() {
        if hues[at].is_none() {
            let free = (0..COUNT).map(Hue::nth).find(|hue| !hues.contains(&Some(*hue)));
            hues[at] = Some(free.unwrap_or(Hue::nth(at)));
        }
    }
    hues.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_keeps_its_colour_whatever_stands_beside_it() {
        let of = |names: &[&str]| of_brokers(names).iter().map(|hue| hue.0).collect::<Vec<_>>();
        assert_eq!(of(&["Leveret", "RabbitMQ 3.10.8"]), [0, 1]);
        assert_eq!(of(&["RabbitMQ 3.10.8", "RabbitMQ 4.3.6", "leveret"]), [1, 2, 0]);
        assert_eq!(of(&["a", "b", "c"]), [0, 1, 2]);
        assert_eq!(of(&["x"; 9]).len(), 9);
    }
}
