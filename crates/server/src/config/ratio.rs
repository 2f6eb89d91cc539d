//! A part of a whole, as a decimal number from 0 to 1.
//!
//! Invariant: what is read is printed again as the same number, to nine digits.

use std::fmt;
use std::str::FromStr;

/// Digits behind the point that count.
const DIGITS: usize = 9;
/// A whole.
const ONE: u32 = 1_000_000_000;

/// See the module; in thousand-millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ratio(u32);

impl Ratio {
    /// It of a thousand million.
    pub fn per_billion(self) -> u32 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = ();

    fn from_str(text: &str) -> Result<Ratio, ()> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || part.len() > DIGITS {
            return Err(());
        }
        let whole = whole.parse::<u32>().ok().filter(|whole| *whole <= 1).ok_or(())?;
        let part: u32 = format!("{part:0<DIGITS$}").parse().map_err(|_| ())?;
        Some(Ratio(whole * ONE + part)).filter(|ratio| ratio.0 <= ONE).ok_or(())
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:0>DIGITS$}", self.0 % ONE);
        match part.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / ONE),
            part => write!(f, "{}.{part}", self.0 / ONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_printed_again_and_what_is_no_part_of_a_whole_is_refused() {
        for (text, per_billion) in
            [("0", 0), ("1", ONE), ("0.5", 500_000_000), ("0.000000001", 1), ("0.01", 10_000_000)]
        {
            let ratio: Ratio = text.parse().expect(text);
            assert_eq!((ratio.per_billion(), ratio.to_string().as_str()), (per_billion, text));
        }
        assert_eq!("1.0".parse(), Ok(Ratio(ONE)));
        for wrong in ["", ".", "1.", ".5", "-0.1", "1.1", "2", "1e-3", "0.0000000001", "0,5", "half", "+1", "0.5 "] {
            assert_eq!(wrong.parse::<Ratio>(), Err(()), "{wrong}");
        }
    }
}
