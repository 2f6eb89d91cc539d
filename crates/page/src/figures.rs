//! Numbers for people: one format on every page.
//!
//! Invariant: a measured figure has three digits that mean something, a count has all of its
//! digits, thousands stand apart by a comma. `three` in `assets/page.js` writes what [`three`]
//! writes.

/// A measured figure: `0.0532`, `5.32`, `53.2`, `532`, `53,200`.
pub fn three(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if size < 0.000_000_5 {
        return "0".to_owned();
    }
    // Rounded first: 9.999 is 10.0 and not 10.00.
    let rounded: f64 = format!("{size:.2e}").parse().unwrap_or(size);
    let sign = if value < 0.0 { "-" } else { "" };
    match rounded {
        size if size >= 100.0 => format!("{sign}{}", apart(&format!("{size:.0}"))),
        size => {
            let decimals = (2 - size.log10().floor() as i32).clamp(1, 6) as usize;
            format!("{sign}{size:.decimals$}")
        }
    }
}

/// A count, to the last one: `12,684`.
pub fn count(value: u64) -> String {
    apart(&value.to_string())
}

/// So many things, by the word for one: `1 run`, `12,684 runs`.
pub fn counted(value: usize, one: &str) -> String {
    format!("{} {one}{}", count(value as u64), if value == 1 { "" } else { "s" })
}

/// What somebody set, or counted: all of its digits where it is whole, `23,842`; else as a measured
/// figure.
pub fn exact(value: f64) -> String {
    if value.fract() == 0.0 && (0.0..1e15).contains(&value) { count(value as u64) } else { three(value) }
}

/// Bytes: `532 B`, `5.32 kB`, `1.25 GB`.
pub fn bytes(value: f64) -> String {
    scaled(value, &[(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")])
}

/// A time that is known in milliseconds: `53.2 us`, `4.32 ms`, `1.27 s`.
pub fn duration_ms(ms: f64) -> String {
    scaled(ms, &[(1e-3, "us"), (1.0, "ms"), (1e3, "s")])
}

/// Below this a ratio is easier read the other way round.
const SMALL_RATIO: f64 = 0.8;

/// How many times: `1.84×`, and where it is clearly less than once `1/37.6`.
pub fn ratio(value: f64) -> String {
    if value > 0.0 && value < SMALL_RATIO { format!("1/{}", three(1.0 / value)) } else { format!("{}×", three(value)) }
}

/// A text whose whole numbers stand as they do everywhere on a page: `1000 B` is `1,000 B`. What has
/// anything else before or behind it is a name.
pub fn numbers_apart(text: &str) -> String {
    let word = |word: &str| {
        let bare = word.trim_end_matches([',', ';', ':', '.', ')']);
        let is_number = bare.len() > 3 && !bare.starts_with('0') && bare.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { apart(bare) + &word[bare.len()..] } else { word.to_owned() }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = units.iter().rev().find(|(unit, _)| value.abs() >= unit * 0.9995).or(units.first());
    let (unit, name) = fits.copied().unwrap_or((1.0, ""));
    let value = value / unit;
    match value.fract() == 0.0 && value.abs() < 1000.0 {
        true => format!("{value:.0} {name}"),
        false => format!("{} {name}", three(value)),
    }
}

fn apart(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_figure_has_three_digits_and_a_count_all_of_them() {
        let told =
            [0.0, 0.000_12, 0.0532, 0.5, 5.324, 9.999, 53.25, 99.96, 532.4, 999.7, 5_324.0, 14_949.0, 1_234_567.0];
        let texts: Vec<String> = told.iter().map(|value| three(*value)).collect();
        let expected = [
            "0",
            "0.000120",
            "0.0532",
            "0.500",
            "5.32",
            "10.0",
            "53.2",
            "100",
            "532",
            "1,000",
            "5,320",
            "14,900",
            "1,230,000",
        ];
        assert_eq!(texts, expected);
        assert_eq!((three(-14.2), three(f64::NAN)), ("-14.2".to_owned(), "–".to_owned()));
        let told = [30_000.0, 23_842.0, 420.0, 23_842.6, 0.5].map(exact);
        assert_eq!(told, ["30,000", "23,842", "420", "23,800", "0.500"]);
        assert_eq!((count(0), count(999), count(12_684)), ("0".to_owned(), "999".to_owned(), "12,684".to_owned()));
    }

    #[test]
    fn a_ratio_below_one_is_told_the_other_way_round() {
        assert_eq!([37.6, 1.0, 0.97, 0.5, 0.0266].map(ratio), ["37.6×", "1.00×", "0.970×", "1/2.00", "1/37.6"]);
    }

    #[test]
    fn units_grow_with_their_figures() {
        let of = |bytes_of: f64| bytes(bytes_of);
        assert_eq!(
            [of(12.0), of(5_320.0), of(999_900.0), of(1.25e9)],
            ["12 B", "5.32 kB", "1.00 MB", "1.25 GB"].map(str::to_owned)
        );
        let of = duration_ms;
        assert_eq!(
            [of(0.0532), of(4.321), of(1274.0), of(2000.0)],
            ["53.2 us", "4.32 ms", "1.27 s", "2 s"].map(str::to_owned)
        );
    }
}
