//! Every setting of a node: one table, from which the file, the environment, the flags, the help
//! and the documentation all come.
//!
//! Invariant: a setting exists in [`SETTINGS`] or it does not exist. The field in [`Config`], its
//! TOML key, its `LEVERET_*` variable, its flag, its help text and its line in
//! `docs/configuration.md` are all made from the same row, so they cannot disagree; and a value is
//! in a [`Config`] only after its row has checked it.
//!
//! Absent on purpose: command-line parsing (the binary builds its flags from [`SETTINGS`]) and what
//! a setting does (the rooms that use it).

mod access;
mod bounds;
mod data_folder;
mod document;
mod environment;
mod error;
mod file;
mod levels;
mod load;
mod logins;
mod machine;
mod rabbitmq;
mod rabbitmq_left_out;
mod rabbitmq_oauth2;
mod ratio;
mod setting;
mod settings;
mod suggest;
mod tokens;
mod traces;
mod value;

pub use bounds::DESCRIPTORS_RESERVED;
pub use data_folder::{folder_holder, open_data_folder};
pub use document::markdown;
pub use environment::variable_name;
pub use error::{ConfigError, Origin};
pub use file::CONFIG_FILE_BYTES_MAX;
pub use levels::{LOG_TARGETS_MAX, Level, LogFormat, LogLevels};
pub use load::{Sources, load};
pub(crate) use logins::{masked, masked_within};
pub use machine::Machine;
pub use ratio::Ratio;
pub use setting::{DefaultValue, Kind, Section, Setting, Unit};
pub use settings::{Config, Key, SETTINGS};
pub use suggest::{nearest, nearest_setting};
pub use tokens::{KeySource, TokenSettings};
pub use traces::TraceSettings;
pub use value::Value;
