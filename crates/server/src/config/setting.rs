//! One row of the table of settings: what a setting is called, what it may be, what it is when
//! nobody says, and what to tell people.
//!
//! Invariant: a row is complete by itself. Whoever prints or checks a setting needs the row and
//! nothing else.

use super::machine::Machine;
use super::settings::Key;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Which one it is.
    pub key: Key,
    /// Its name in the file; the variable and the flag are made from it.
    pub name: &'static str,
    /// Where it stands in help and documentation.
    pub section: Section,
    /// What it may be.
    pub kind: Kind,
    /// What it is when nobody says.
    pub default: DefaultValue,
    /// One or more full sentences; the first is enough to know whether this is the setting one
    /// looks for.
    pub help: &'static str,
    /// What other brokers call it, so that somebody who types that name is told ours. Never
    /// accepted.
    pub elsewhere: &'static [&'static str],
}

impl Setting {
    /// The flag of the binary, without its dashes: `wal-file-bytes`.
    pub fn flag_name(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The default for people: the rule in words where it depends on the machine, large numbers of
    /// bytes in units.
    pub fn default_shown(&self) -> String {
        match (self.default, self.kind) {
            (DefaultValue::OfMachine { says, .. }, _) => says.to_owned(),
            (DefaultValue::Fixed(text), Kind::Number { unit: Unit::Bytes, .. }) => {
                text.parse().map_or_else(|_| text.to_owned(), bytes_text)
            }
            (DefaultValue::Fixed(text), _) => text.to_owned(),
        }
    }

    /// Whether several values may be given, as a list in the file and with commas elsewhere.
    pub fn is_list(&self) -> bool {
        matches!(self.kind, Kind::Addresses { .. } | Kind::Names { .. })
    }
}

/// Groups of settings, in the order in which a reader wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Who this node is and where it keeps its files.
    Node,
    /// Who may connect and on what terms.
    Connections,
    /// Who may look after the node.
    Management,
    /// What goes to the disk, and when.
    Storage,
    /// What may be used of the machine.
    Memory,
    /// What operators read.
    Log,
    /// What is told of traced messages, and to whom.
    Traces,
}

impl Section {
    /// All of them, in order.
    pub const ALL: [Section; 7] = [
        Section::Node,
        Section::Connections,
        Section::Management,
        Section::Storage,
        Section::Memory,
        Section::Log,
        Section::Traces,
    ];

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Section::Node => "Node",
            Section::Connections => "Connections",
            Section::Management => "Management",
            Section::Storage => "Storage",
            Section::Memory => "Memory",
            Section::Log => "Log",
            Section::Traces => "Traces",
        }
    }
}

/// What a number counts. The unit is also the end of the setting's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes; texts may use `KiB`, `MiB`, `GiB`, `TiB` and `kB`, `MB`, `GB`, `TB`.
    Bytes,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
}

/// What a setting may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number from `min` to `max`, a multiple of `step`.
    Number {
        /// What it counts.
        unit: Unit,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
        /// It is a multiple of this.
        step: u64,
    },
    /// A folder.
    Folder,
    /// A file, or none.
    File,
    /// Addresses to listen on.
    Addresses {
        /// At least this many: 0 or 1.
        count_min: usize,
        /// At most this many.
        count_max: usize,
    },
    /// Names, perhaps none.
    Names {
        /// At most this many.
        count_max: usize,
        /// Each at most this long.
        bytes_max: usize,
    },
    /// A node's name: letters, digits and `_ - . @`.
    NodeName {
        /// At most this long.
        bytes_max: usize,
    },
    /// Printable text without line breaks.
    Text {
        /// At most this long.
        bytes_max: usize,
    },
    /// A version such as `4.0.0`.
    Version,
    /// A level, perhaps with levels of single targets.
    Levels,
    /// A part of a whole, from 0 to 1.
    Ratio,
    /// One of a few words.
    Choice(&'static [&'static str]),
}

impl Kind {
    /// A count of things.
    pub const fn count(min: u64, max: u64) -> Kind {
        Kind::Number { unit: Unit::Count, min, max, step: 1 }
    }

    /// A number of bytes.
    pub const fn bytes(min: u64, max: u64) -> Kind {
        Kind::Number { unit: Unit::Bytes, min, max, step: 1 }
    }

    /// A number of bytes that is a multiple of `step`.
    pub const fn blocks(min: u64, max: u64, step: u64) -> Kind {
        assert!(
            step > 0 && min.is_multiple_of(step) && max.is_multiple_of(step),
            "the ends of the range are allowed values"
        );
        Kind::Number { unit: Unit::Bytes, min, max, step }
    }

    /// A time in milliseconds.
    pub const fn milliseconds(min: u64, max: u64) -> Kind {
        Kind::Number { unit: Unit::Milliseconds, min, max, step: 1 }
    }

    /// A time in seconds.
    pub const fn seconds(min: u64, max: u64) -> Kind {
        Kind::Number { unit: Unit::Seconds, min, max, step: 1 }
    }

    /// What stands for the value in help: `--partitions <COUNT>`.
    pub fn placeholder(self) -> String {
        match self {
            Kind::Number { unit: Unit::Count, .. } => "COUNT".to_owned(),
            Kind::Number { unit: Unit::Bytes, .. } => "BYTES".to_owned(),
            Kind::Number { unit: Unit::Milliseconds, .. } => "MS".to_owned(),
            Kind::Number { unit: Unit::Seconds, .. } => "S".to_owned(),
            Kind::Folder => "DIR".to_owned(),
            Kind::File => "FILE".to_owned(),
            Kind::Addresses { .. } => "ADDR:PORT".to_owned(),
            Kind::Names { .. } => "NAMES".to_owned(),
            Kind::NodeName { .. } => "NAME".to_owned(),
            Kind::Text { .. } => "TEXT".to_owned(),
            Kind::Version => "VERSION".to_owned(),
            Kind::Levels => "LEVEL".to_owned(),
            Kind::Ratio => "RATIO".to_owned(),
            Kind::Choice(words) => words.join("|"),
        }
    }

    /// What is allowed, as the end of a sentence that began with what was found.
    pub fn allowed(self) -> String {
        match self {
            Kind::Number { unit, min, max, step } => {
                let what = match unit {
                    Unit::Count => "a whole number",
                    Unit::Bytes => "a number of bytes",
                    Unit::Milliseconds => "a number of milliseconds",
                    Unit::Seconds => "a number of seconds",
                };
                let range = match unit {
                    Unit::Bytes => format!("from {} to {}", bytes_text(min), bytes_text(max)),
                    _ => format!("from {min} to {max}"),
                };
                match step {
                    1 => format!("{what} {range}"),
                    _ => format!("{what} {range}, a multiple of {}", bytes_text(step)),
                }
            }
            Kind::Folder => "the path of a folder".to_owned(),
            Kind::File => "the path of a file, or \"none\"".to_owned(),
            Kind::Addresses { count_min: 0, count_max } => {
                format!("at most {count_max} different addresses of the form 0.0.0.0:5672 or [::]:5672, or \"none\"")
            }
            Kind::Addresses { count_max, .. } => {
                format!("1 to {count_max} different addresses of the form 0.0.0.0:5672 or [::]:5672")
            }
            Kind::Names { count_max, bytes_max } => {
                format!("at most {count_max} different names of 1 to {bytes_max} bytes, or \"none\"")
            }
            Kind::NodeName { bytes_max } => format!("1 to {bytes_max} letters, digits or any of _ - . @"),
            Kind::Text { bytes_max } => format!("1 to {bytes_max} printable ASCII characters"),
            Kind::Version => "three numbers with dots, as 4.0.0".to_owned(),
            Kind::Levels => {
                "error, warn, info, debug, trace or off, then levels of single parts (audit, leveret, management, node, server, session, switch), as info,server=debug".to_owned()
            }
            Kind::Ratio => "a number from 0 to 1 with at most 9 digits behind the point, as 0.01".to_owned(),
            Kind::Choice(words) => words.join(" or "),
        }
    }
}

/// What a setting is when nobody says.
#[derive(Clone, Copy, Debug)]
pub enum DefaultValue {
    /// Always the same.
    Fixed(&'static str),
    /// Taken from the machine.
    OfMachine {
        /// The rule in words, for people.
        says: &'static str,
        /// The rule. Its result is checked like any other value.
        of: fn(&Machine) -> String,
    },
}

/// Bytes as people write them: the largest unit that leaves a whole number.
pub(super) fn bytes_text(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (bits, unit) in UNITS {
        if bytes >= 1 << bits && bytes.trailing_zeros() >= bits {
            return format!("{} {unit}", bytes >> bits);
        }
    }
    format!("{bytes}")
}
