//! Which of the known names somebody may have meant.
//!
//! Invariant: a suggestion is near enough that a person sees why; otherwise there is none.

use super::settings::SETTINGS;

/// Longer names are not compared: the cost is the product of the lengths, and nobody mistypes that
/// much.
const NAME_BYTES_MAX: usize = 64;

/// The setting that somebody may have meant who wrote `name`: one of ours that is nearly spelled
/// so, or the one that another broker calls so.
pub fn nearest_setting(name: &str) -> Option<&'static str> {
    let spelled = |known: &str| known.eq_ignore_ascii_case(name) || known.replace('.', "_").eq_ignore_ascii_case(name);
    let known_elsewhere = || SETTINGS.iter().find(|setting| setting.elsewhere.iter().any(|known| spelled(known)));
    nearest(name, SETTINGS.iter().map(|setting| setting.name)).or_else(|| known_elsewhere().map(|setting| setting.name))
}

/// The known name that differs least from `name`, if it differs by a typing mistake or two: at most
/// a third of its length.
///
/// Case, dashes and underscores do not count.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let wanted = plain(name);
    known
        .into_iter()
        .map(|candidate| (distance(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().min(wanted.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Letters to add, drop, change or swap with their neighbour to get from one word to the other.
fn distance(source: &str, target: &str) -> usize {
    let (source, target): (Vec<char>, Vec<char>) = (source.chars().collect(), target.chars().collect());
    let mut rows = vec![(0..=target.len()).collect::<Vec<usize>>()];
    for i in 1..=source.len() {
        let mut row = vec![i];
        for j in 1..=target.len() {
            let changed = usize::from(source[i - 1] != target[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + changed);
            if i > 1 && j > 1 && source[i - 1] == target[j - 2] && source[i - 2] == target[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[source.len()][target.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let known = ["partitions", "data_dir", "heartbeat_s"];
        assert_eq!(nearest("partition", known), Some("partitions"));
        assert_eq!(nearest("partitoins", known), Some("partitions"));
        assert_eq!(nearest("lgo", ["log"]), Some("log"), "two letters swapped are one mistake");
        assert_eq!(nearest("Data-Dir", known), Some("data_dir"), "case and dashes do not count");
        assert_eq!(nearest("heartbeat", known), Some("heartbeat_s"));
    }

    #[test]
    fn nothing_is_suggested_for_another_word() {
        assert_eq!(nearest("tls_certificate", ["partitions", "data_dir"]), None);
        assert_eq!(nearest("x", ["log"]), None);
        assert_eq!(nearest(&"partitions".repeat(1000), ["partitions"]), None);
    }
}
