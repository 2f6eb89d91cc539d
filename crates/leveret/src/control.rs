//! `leveret ctl`, and what we are when we are started under the name of one of RabbitMQ's tools.

use std::ffi::OsString;
use std::process::ExitCode;

use ctl::Tool;
use server::config::SETTINGS;

use crate::version::VERSION;

/// Runs RabbitMQ's tool of the name that we were started under, if it is one.
pub(crate) fn under_another_name(words: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut words = words.into_iter();
    let tool = Tool::of_program(&words.next()?.to_string_lossy())?;
    // What is no text is no name either, and is refused as such.
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    Some(ExitCode::from(ctl::run(tool, &words, &version_of_rabbitmq())))
}

pub(crate) fn run(words: &[String]) -> ExitCode {
    ExitCode::from(ctl::run(Tool::Leveret, words, &VERSION))
}

/// The version of RabbitMQ that a node shows to clients unless it is told another: scripts that call
/// us by RabbitMQ's names compare it with what they need.
fn version_of_rabbitmq() -> String {
    let setting = SETTINGS.iter().find(|setting| setting.name == "product_version");
    let shown = setting.map_or_else(|| VERSION.clone(), |setting| setting.default_shown().to_string());
    shown.trim_matches('"').to_owned()
}
