//! The words of a command line, as RabbitMQ's tools read them: options may stand anywhere, a long
//! one takes its value behind `=` or in the next word, `--no-NAME` takes a flag back, and `--` ends
//! them.
//!
//! Invariant: an option that is not known to the verb is told and never passed over.

/// An option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    pub(crate) name: &'static str,
    pub(crate) short: Option<char>,
    pub(crate) takes: Takes,
    pub(crate) about: &'static str,
}

/// What stands behind an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    Text,
    Number,
    /// A number, and only behind `=`.
    MaybeNumber,
}

pub(crate) const fn flag(name: &'static str, about: &'static str) -> Switch {
    Switch { name, short: None, takes: Takes::Nothing, about }
}

pub(crate) const fn text(name: &'static str, about: &'static str) -> Switch {
    Switch { name, short: None, takes: Takes::Text, about }
}

pub(crate) const fn number(name: &'static str, about: &'static str) -> Switch {
    Switch { name, short: None, takes: Takes::Number, about }
}

pub(crate) const fn short(letter: char, switch: Switch) -> Switch {
    Switch { short: Some(letter), ..switch }
}

/// Those of every verb.
pub(crate) const EVERYWHERE: &[Switch] = &[
    short('?', flag("help", "what the command does")),
    short('n', text("node", "the node by its name, where more than one has its folder here")),
    short('p', text("vhost", "the virtual host; / without it")),
    short('q', flag("quiet", "nothing but the result")),
    short('s', flag("silent", "nothing but the result, and no line of column names")),
    short('t', number("timeout", "give up after so many seconds")),
    short('l', flag("longnames", "names of nodes are whole names here, with it and without")),
    text("formatter", "table, pretty_table, json, csv or erlang"),
    flag("no-table-headers", "no line of column names"),
    flag("table-headers", "the line of column names again"),
    Switch {
        name: "watch",
        short: None,
        takes: Takes::MaybeNumber,
        about: "show it again every 2 seconds, or --watch=SECONDS, until interrupted",
    },
    text("data-dir", "the node's data folder; LEVERET_DATA_DIR, ./data and /var/lib/leveret without it"),
    text("url", "the management API of a node that is not here, with --username and --password"),
    text("username", "log in as this user and not by the operator's token"),
    text("password", "that user's password; asked for without it"),
    text(
        "ssl-ca-cert-file",
        "believe the authorities in this file of PEM, where --url is https; those of this machine without it",
    ),
    text("ssl-cert-file", "show this certificate, where the node asks for one"),
    text("ssl-key-file", "its key; in the same file without it"),
    flag("ssl-insecure", "believe whatever answers"),
];

/// What was written, once read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The words that are no options, the verb not among them.
    pub(crate) words: Vec<String>,
    said: Vec<(&'static str, String)>,
    /// Options that are not known, or without the value that they take.
    pub(crate) wrong: Vec<(String, String)>,
}

impl Options {
    /// Whether a flag was given.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.said.iter().any(|(said, _)| *said == name)
    }

    /// An option's value; the last one counts.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.said.iter().rev().find(|(said, _)| *said == name).map(|(_, value)| value.as_str())
    }

    /// A number; it was checked to be one.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

/// The first word that is no option, as far as the options of every verb tell, and where it is.
pub(crate) fn find_verb(words: &[String]) -> Option<(usize, &str)> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if !is_option(word) {
            return Some((at, word));
        }
        let takes_next = !word.contains('=') && matches!(takes(word), Some(Takes::Text | Takes::Number));
        at += if takes_next { 2 } else { 1 };
    }
    None
}

fn takes(word: &str) -> Option<Takes> {
    let switch = match word.strip_prefix("--") {
        Some(name) => EVERYWHERE.iter().find(|switch| switch.name == name),
        None => EVERYWHERE.iter().find(|switch| switch.short == word.chars().nth(1)),
    };
    switch.map(|switch| switch.takes)
}

/// A negative number is a word.
fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word.parse::<f64>().is_err()
}

/// Reads the words behind (and before) a verb that knows these options besides those of every verb.
pub(crate) fn read(words: &[String], own: &[Switch]) -> Options {
    let mut options = Options::default();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            options.words.extend(words.cloned());
            break;
        }
        if !is_option(word) {
            options.words.push(word.clone());
            continue;
        }
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        let known = || own.iter().chain(EVERYWHERE);
        let (switch, is_taken_back) = match name.strip_prefix("--") {
            Some(long) => match known().find(|switch| switch.name == long) {
                Some(switch) => (Some(switch), false),
                None => {
                    let flag = long.strip_prefix("no-").and_then(|flag| known().find(|switch| switch.name == flag));
                    (flag.filter(|switch| switch.takes == Takes::Nothing), true)
                }
            },
            None => {
                let mut letters = name.chars().skip(1);
                let letter = letters.next();
                let switch = known().find(|switch| switch.short.is_some() && switch.short == letter);
                (switch.filter(|_| letters.next().is_none()), false)
            }
        };
        let Some(switch) = switch else {
            options.wrong.push((name.to_owned(), inline.unwrap_or_default().to_owned()));
            continue;
        };
        let value = match switch.takes {
            Takes::Nothing => match inline {
                None | Some("true") => String::new(),
                Some(other) => {
                    options.wrong.push((name.to_owned(), other.to_owned()));
                    continue;
                }
            },
            Takes::MaybeNumber => inline.unwrap_or_default().to_owned(),
            Takes::Text | Takes::Number => {
                let next = || words.next_if(|next| !is_option(next)).cloned();
                match inline.map(str::to_owned).or_else(next) {
                    Some(value) => value,
                    None => {
                        options.wrong.push((name.to_owned(), String::new()));
                        continue;
                    }
                }
            }
        };
        let is_number = value.parse::<u64>().is_ok();
        let is_right = match switch.takes {
            Takes::Number => is_number,
            Takes::MaybeNumber => value.is_empty() || is_number,
            _ => true,
        };
        if !is_right {
            options.wrong.push((name.to_owned(), value));
        } else if is_taken_back {
            options.said.retain(|(said, _)| *said != switch.name);
        } else {
            options.said.push((switch.name, value));
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_stand_before_and_behind_the_verb() {
        let line = words("-n a@b --quiet list_queues -p v --timeout=5 name messages");
        assert_eq!(find_verb(&line), Some((3, "list_queues")));
        let read = read(&[&line[..3], &line[4..]].concat(), &[]);
        assert_eq!(read.words, ["name", "messages"]);
        assert_eq!((read.text("node"), read.text("vhost"), read.number("timeout")), (Some("a@b"), Some("v"), Some(5)));
        assert!(read.flag("quiet") && !read.flag("silent") && read.wrong.is_empty());
    }

    #[test]
    fn what_is_not_known_or_has_no_value_is_told() {
        let own = [text("apply-to", "")];
        let read = |line: &str| super::read(&words(line), &own);
        assert_eq!(read("--nosuch").wrong, [("--nosuch".to_owned(), String::new())]);
        assert_eq!(read("-t abc").wrong, [("-t".to_owned(), "abc".to_owned())]);
        assert_eq!(read("--vhost").wrong, [("--vhost".to_owned(), String::new())]);
        assert_eq!(read("--vhost --quiet").wrong, [("--vhost".to_owned(), String::new())]);
        assert_eq!(read("-qs").wrong, [("-qs".to_owned(), String::new())]);
        assert_eq!(read("--quiet=maybe").wrong, [("--quiet".to_owned(), "maybe".to_owned())]);
        assert_eq!(read("--apply-to queues").text("apply-to"), Some("queues"));
    }

    #[test]
    fn words_that_begin_with_a_dash_come_behind_two() {
        let read = read(&words("-p v -- -a --b"), &[]);
        assert_eq!(read.words, ["-a", "--b"]);
        assert_eq!(super::read(&words("-5"), &[]).words, ["-5"]);
    }

    #[test]
    fn a_flag_can_be_taken_back_and_watch_takes_no_word() {
        assert!(!read(&words("--quiet --no-quiet"), &[]).flag("quiet"));
        let read = read(&words("--watch list"), &[]);
        assert!(read.flag("watch") && read.words == ["list"]);
        assert_eq!(super::read(&words("--watch=5"), &[]).number("watch"), Some(5));
    }
}
