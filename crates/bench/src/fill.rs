//! Values that are filled into a line of a scenario or of a campaign, by name or as a sum.
//!
//! Invariant: a name that nobody defined is an error and never an empty place.

use std::collections::BTreeMap;

/// What stands between the parts of a sum.
const SIGNS: [char; 4] = ['+', '*', '/', '<'];

/// Values by name, as text.
pub(crate) type Values = BTreeMap<String, String>;

/// A value of a file as it stands in a line.
pub(crate) fn text_of(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A text with its {names} and {sums} filled in.
pub(crate) fn filled(text: &str, values: &Values) -> Result<String, String> {
    let (mut whole, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once('{') {
        let (sum, after) = behind.split_once('}').ok_or_else(|| format!("a {{ without its }} in: {text}"))?;
        let value = match (values.get(sum), sum) {
            (Some(value), _) => value.clone(),
            (None, "held") => "{held}".to_owned(),
            (None, _) => number(sum, values)?.to_string(),
        };
        whole.push_str(before);
        whole.push_str(&value);
        rest = after;
    }
    Ok(whole + rest)
}

/// The names that stand in a text between { and }, also those of sums.
pub(crate) fn names(text: &str) -> Vec<String> {
    let sums = text.split('{').skip(1).filter_map(|behind| behind.split_once('}'));
    let parts = sums.flat_map(|(sum, _)| sum.split(SIGNS)).map(|name| name.trim().to_owned());
    parts.filter(|name| name.parse::<f64>().is_err()).collect()
}

/// A sum of names and numbers with `+`, `*`, `/` and `<` (at most), from left to right; whole
/// numbers are divided to whole ones.
pub(crate) fn number(sum: &str, values: &Values) -> Result<f64, String> {
    let (mut so_far, mut next) = (0.0_f64, '+');
    if sum.trim().is_empty() || sum.trim_end().ends_with(SIGNS) {
        return Err(format!("{{{sum}}} is no sum of names and numbers"));
    }
    for part in sum.split_inclusive(SIGNS) {
        let name = part.trim_end_matches(SIGNS).trim();
        let value = values.get(name).map_or(name, String::as_str).parse::<f64>().map_err(|_| {
            let known: Vec<&str> = values.keys().map(String::as_str).collect();
            format!("{{{name}}} is no name of it: {}", known.join(", "))
        })?;
        if next == '/' && value == 0.0 {
            return Err(format!("{{{sum}}} divides by nothing"));
        }
        so_far = match next {
            '*' => so_far * value,
            '/' if so_far.fract() == 0.0 && value.fract() == 0.0 => (so_far / value).floor(),
            '/' => so_far / value,
            '<' => so_far.min(value),
            _ => so_far + value,
        };
        next = part.chars().last().unwrap_or('+');
    }
    Ok(so_far)
}
