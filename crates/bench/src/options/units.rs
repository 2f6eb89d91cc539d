//! Numbers with a unit: `1k` messages a second, bodies of `5MB`.
//!
//! Invariant: a unit that is not known makes no number.

/// What a number counts, which says what its units mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Messages a second: k and m are thousands and millions.
    Rate,
    /// Bytes, with the units of RabbitMQ's configuration: kB, MB and GB are decimal, k, KiB, M,
    /// MiB, G and GiB are binary.
    Bytes,
    /// Something without a unit.
    Plain,
}

impl Counted {
    /// What the option of this name counts.
    pub(crate) fn of(option: &str) -> Counted {
        match option {
            "size" => Counted::Bytes,
            "rate" | "consumer-rate" | "require-rate" | "max-rate" => Counted::Rate,
            _ => Counted::Plain,
        }
    }

    /// The number that a text says.
    pub(crate) fn number(self, text: &str) -> Option<f64> {
        if let Ok(number) = text.parse() {
            return Some(number);
        }
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match (self, text[digits.len()..].to_ascii_lowercase().as_str()) {
            (Counted::Rate, "k") | (Counted::Bytes, "kb") => 1e3,
            (Counted::Rate, "m") | (Counted::Bytes, "mb") => 1e6,
            (Counted::Bytes, "gb") => 1e9,
            (Counted::Bytes, "b") => 1.0,
            (Counted::Bytes, "k" | "ki" | "kib") => f64::from(1 << 10),
            (Counted::Bytes, "m" | "mi" | "mib") => f64::from(1 << 20),
            (Counted::Bytes, "g" | "gi" | "gib") => f64::from(1 << 30),
            _ => return None,
        };
        digits.parse::<f64>().ok().map(|number| number * factor)
    }
}

/// Messages a second: `24000`, `24k`.
///
/// - Errors: the text is no such number.
pub fn rate(text: &str) -> Result<f64, String> {
    Counted::Rate.number(text).ok_or_else(|| format!("`{text}` is no rate: a number such as 24000, or 24k"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::options::{Options, run_of};
    use crate::pace::Steps;
    use crate::words::words_of;

    fn read(line: &str) -> Result<Options, String> {
        run_of(&words_of(line)).map_err(|why| why.to_string())
    }

    #[test]
    fn rates_and_sizes_may_have_units() {
        let rate = |text: &str| read(&format!("--rate {text}")).unwrap().producing.rate;
        assert_eq!(rate("1k"), Some(Steps::constant(1000.0)));
        assert_eq!(rate("1.5K"), Some(Steps::constant(1500.0)));
        assert_eq!(read("--consumer-rate 2k").unwrap().consuming.rate, Some(2000.0));
        assert_eq!(read("--rate 2k --require-rate 1.9k").unwrap().requirement.rate, Some(1900.0));
        let size = |text: &str| read(&format!("--size {text}")).unwrap().producing.size;
        assert_eq!((size("5MB"), size("4KiB")), (Steps::constant(5e6), Steps::constant(4096.0)));
        let stepped = read("--variable-rate 2k:5 --variable-size 1kB:5").unwrap().producing;
        assert_eq!((stepped.rate.unwrap().max(), stepped.size.max()), (2000.0, 1000.0));
        for wrong in ["--rate 1x", "--rate 5MB", "--size 5X", "--rate -1k", "--size k", "--variable-rate 1.5:5"] {
            assert!(read(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
    }
}
