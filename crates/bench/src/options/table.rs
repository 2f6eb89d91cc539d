//! Every option: PerfTest's, under its names, and this tool's own.
//!
//! Invariant: an option is in `perftest.txt` or in `more.txt`, or it is unknown. What PerfTest has and
//! this tool does not do is there with the reason, which is the error that a person gets: nothing is
//! accepted and ignored.

use std::sync::LazyLock;

use strsim::levenshtein;

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Flag,
    /// One value.
    Value(&'static str),
    /// A value, and it may be given several times.
    Values(&'static str),
    /// It is PerfTest's and has no meaning here.
    Refused,
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// After two dashes.
    pub long: &'static str,
    /// After one dash; empty when there is none.
    pub short: &'static str,
    /// What follows.
    pub takes: Takes,
    /// One line of help, or why it is refused.
    pub help: &'static str,
}

impl Spec {
    /// An option without a value and without a short name.
    pub const fn flag(long: &'static str, help: &'static str) -> Spec {
        Spec { long, short: "", takes: Takes::Flag, help }
    }

    /// An option with a value and without a short name.
    pub const fn value(long: &'static str, takes: &'static str, help: &'static str) -> Spec {
        Spec { long, short: "", takes: Takes::Value(takes), help }
    }

    /// A line of a table.
    fn read(line: &'static str) -> Spec {
        let mut cells = line.splitn(4, " | ").map(str::trim);
        let mut cell = || cells.next().expect("a line of the tables has four cells");
        let (long, short, takes, help) = (cell(), cell(), cell(), cell());
        let takes = match (takes, takes.strip_prefix('*')) {
            ("", _) => Takes::Flag,
            (_, Some(value)) => Takes::Values(value),
            ("!", None) => Takes::Refused,
            (value, None) => Takes::Value(value),
        };
        Spec { long, short, takes, help }
    }
}

fn read(table: &'static str) -> Vec<Spec> {
    table.lines().filter(|line| !line.starts_with('#')).map(Spec::read).collect()
}

static PERFTEST: LazyLock<Vec<Spec>> = LazyLock::new(|| read(include_str!("perftest.txt")));
static MORE: LazyLock<Vec<Spec>> = LazyLock::new(|| read(include_str!("more.txt")));

/// All of them, PerfTest's first.
pub fn all() -> impl Iterator<Item = &'static Spec> {
    PERFTEST.iter().chain(MORE.iter())
}

/// The option with this long name.
pub fn by_long(name: &str) -> Option<&'static Spec> {
    all().find(|spec| spec.long == name)
}

/// The long name among `known` that looks most like `name`, if any comes near.
pub fn nearest(known: &[&'static Spec], name: &str) -> Option<&'static str> {
    let best = known.iter().min_by_key(|spec| levenshtein(name, spec.long))?;
    (levenshtein(name, best.long) <= 1 + name.len() / 4).then_some(best.long)
}

/// The help that a person learns from: all options, PerfTest's first.
pub fn help() -> String {
    let refused: Vec<&str> = PERFTEST.iter().filter(|s| s.takes == Takes::Refused).map(|s| s.long).collect();
    format!(
        "PerfTest's options:\n{}\nMore:\n{}\nPerfTest's options that are refused, each with its reason: {}.\n",
        lines(PERFTEST.iter()),
        lines(MORE.iter()),
        refused.join(", ")
    )
}

/// A line of help for each, or two where its name is long.
pub fn lines<'a>(specs: impl Iterator<Item = &'a Spec>) -> String {
    let told = |spec: &Spec| {
        let short = if spec.short.is_empty() { String::new() } else { format!("-{}, ", spec.short) };
        let takes = match spec.takes {
            Takes::Value(name) | Takes::Values(name) => format!(" {name}"),
            Takes::Flag | Takes::Refused => String::new(),
        };
        let left = format!("  {short}--{}{takes}", spec.long);
        match left.chars().count() > 42 {
            true => format!("{left}\n{:44}{}\n", "", spec.help),
            false => format!("{left:<44}{}\n", spec.help),
        }
    };
    specs.filter(|spec| spec.takes != Takes::Refused).map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_used_twice_and_no_option_runs_into_its_help() {
        let mut longs: Vec<_> = all().map(|spec| spec.long).collect();
        let mut shorts: Vec<_> = all().map(|spec| spec.short).filter(|short| !short.is_empty()).collect();
        for names in [&mut longs, &mut shorts] {
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
        assert!(all().all(|spec| !spec.help.is_empty() && !spec.long.contains(' ')));
        for line in lines(all()).lines().filter(|line| line.trim_start().starts_with('-') && line.len() > 46) {
            let (left, right) = line.trim_start().split_once("  ").expect("two blanks part the columns");
            assert!(left.starts_with('-') && !right.trim_start().is_empty(), "{line}");
        }
    }

    #[test]
    fn a_slip_of_the_finger_finds_its_option() {
        let known: Vec<_> = all().collect();
        assert_eq!(nearest(&known, "producer"), Some("producers"));
        assert_eq!(nearest(&known, "multi-ack-ever"), Some("multi-ack-every"));
        assert_eq!(nearest(&known, "frobnicate"), None);
    }
}
