//! From file, environment and flags to one configuration.
//!
//! Invariant: a flag goes before the environment, the environment before the file, the file before
//! OpenTelemetry's variables, those before the default; and a wrong value is an error also where another source would have gone before it,
//! because it says something that somebody believes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::environment::{self, CONFIG_VARIABLE, RABBITMQ_CONFIG_VARIABLE};
use super::error::{ConfigError, Origin};
use super::file;
use super::machine::Machine;
use super::rabbitmq;
use super::settings::{Config, Key, SETTINGS};
use super::value::{Given, Value};

/// Where to look when a name is not near any of ours.
pub(super) const LISTED: &str = "leveret server --help lists all settings";

/// Everything that says what a setting is.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, as given by the flag `--config`; else the variable `LEVERET_CONFIG` may name one.
    pub config_file: Option<PathBuf>,
    /// A file in RabbitMQ's form, or a folder of such, as given by the flag `--rabbitmq-config`; else the
    /// variable `LEVERET_RABBITMQ_CONFIG` may name one.
    pub rabbitmq_config: Option<PathBuf>,
    /// All variables of the environment, ours and others.
    pub environment: Vec<(OsString, OsString)>,
    /// The flags that were given, in order; a list may come several times.
    pub flags: Vec<(Key, String)>,
}

/// Makes the configuration.
///
/// - Precedence: flag, environment, file, RabbitMQ's file, OpenTelemetry's variables, default.
/// - Errors: all that are wrong, file first, each of them one line; never empty. Settings that
///   contradict each other are only looked for when each is right by itself.
/// - Cost: reads one small file.
pub fn load(sources: &Sources, machine: &Machine) -> Result<Config, Vec<ConfigError>> {
    let mut said = Vec::new();
    let mut errors = Vec::new();
    let mut left_out = Vec::new();
    let mut files = Vec::new();
    environment::read_standard(&sources.environment, &mut said, &mut left_out);
    if let Some(path) = named(sources, &sources.rabbitmq_config, RABBITMQ_CONFIG_VARIABLE) {
        let read = rabbitmq::read(&path, machine);
        said.extend(read.said);
        errors.extend(read.errors);
        left_out.extend(read.left_out);
        files.extend(read.files);
    }
    if let Some(path) = named(sources, &sources.config_file, CONFIG_VARIABLE) {
        file::read(&path, &mut said, &mut errors);
        files.push(path);
    }
    environment::read(&sources.environment, &mut said, &mut errors);
    read_flags(&sources.flags, &mut said, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut config = Config::for_machine(machine).with(said);
    config.left_out = left_out;
    config.files = files;
    match config.contradictions() {
        errors if errors.is_empty() => Ok(config),
        errors => Err(errors),
    }
}

fn named(sources: &Sources, flag: &Option<PathBuf>, variable: &str) -> Option<PathBuf> {
    flag.clone().or_else(|| {
        let variable = sources.environment.iter().find(|(name, _)| name == variable);
        variable.map(|(_, value)| Path::new(value).to_owned())
    })
}

fn read_flags(flags: &[(Key, String)], said: &mut Vec<(Key, Value, Origin)>, errors: &mut Vec<ConfigError>) {
    for setting in &SETTINGS {
        let texts: Vec<&str> =
            flags.iter().filter(|(key, _)| *key == setting.key).map(|(_, text)| text.as_str()).collect();
        if texts.is_empty() {
            continue;
        }
        // Only lists come several times; the parser of the command line refuses others.
        let given = Given::Plain(texts.join(","));
        match Value::check(setting.kind, &given) {
            Some(value) => said.push((setting.key, value, Origin::Flag)),
            None => errors.push(ConfigError::value(setting, &Origin::Flag, given.shown())),
        }
    }
}
