//! Settings from the environment: `LEVERET_` and the setting's name in capitals.
//!
//! Invariant: every variable with our prefix is a setting, `LEVERET_CONFIG`, `LEVERET_RABBITMQ_CONFIG`, `LEVERET_BIN` of our
//! own tests, or one that an orchestrator makes for a service of our name; anything else is an
//! error, because a variable that nobody reads is a setting that somebody believes in. Variables of
//! OpenTelemetry are set for all programs of a machine, so they give way to everything else.

use std::ffi::OsString;

use super::error::{ConfigError, Origin, one_line};
use super::load::LISTED;
use super::setting::Setting;
use super::settings::Key;
use super::suggest::{nearest, nearest_setting};
use super::value::{Given, Value};

const PREFIX: &str = "LEVERET_";
/// Tells our own tests and benchmarks which binary to start; they hand their environment on to it.
const BINARY_VARIABLE: &str = "LEVERET_BIN";
/// Names the configuration file; the flag `--config` goes before it.
pub(super) const CONFIG_VARIABLE: &str = "LEVERET_CONFIG";
/// Names one in RabbitMQ's form; the flag `--rabbitmq-config` goes before it.
pub(super) const RABBITMQ_CONFIG_VARIABLE: &str = "LEVERET_RABBITMQ_CONFIG";

/// The environment variable of a setting.
pub fn variable_name(setting: &Setting) -> String {
    format!("{PREFIX}{}", setting.name.to_ascii_uppercase())
}

/// What a variable that is not ours says of a setting.
pub(super) struct Standard {
    /// The setting.
    pub(super) key: Key,
    /// Its value, or its items.
    pub(super) items: Vec<String>,
}

/// What OpenTelemetry's variables say; sentences about what of it is left out.
pub(super) fn read_standard(
    variables: &[(OsString, OsString)],
    said: &mut Vec<(Key, Value, Origin)>,
    left_out: &mut Vec<String>,
) {
    let (standard, mut sentences) = super::traces::standard(variables);
    left_out.append(&mut sentences);
    for Standard { key, items } in standard {
        let setting = key.setting();
        let given = if setting.is_list() { Given::List(items) } else { Given::Text(items.concat()) };
        match Value::check(setting.kind, &given) {
            Some(value) => said.push((key, value, Origin::Environment)),
            None => left_out.push(format!(
                "what OpenTelemetry's variables say of {} is left out: {} is expected",
                setting.name,
                setting.kind.allowed()
            )),
        }
    }
}

/// All settings among these variables, in the order given.
pub(super) fn read(
    variables: &[(OsString, OsString)],
    said: &mut Vec<(Key, Value, Origin)>,
    errors: &mut Vec<ConfigError>,
) {
    for (name, value) in variables {
        let name = name.to_string_lossy();
        let Some(short) = name.strip_prefix(PREFIX) else { continue };
        if name == CONFIG_VARIABLE
            || name == RABBITMQ_CONFIG_VARIABLE
            || name == BINARY_VARIABLE
            || is_service_link(short, &value.to_string_lossy())
        {
            continue;
        }
        let lower = short.to_ascii_lowercase();
        let Some(key) = Key::named(&lower).filter(|_| short == short.to_ascii_uppercase()) else {
            errors.push(unknown(&name, &lower));
            continue;
        };
        let setting = key.setting();
        let given = match value.to_str() {
            Some(text) => Given::Plain(text.to_owned()),
            None => Given::Other("text that is not UTF-8".to_owned()),
        };
        match Value::check(setting.kind, &given) {
            Some(value) => said.push((key, value, Origin::Environment)),
            None => errors.push(ConfigError::value(setting, &Origin::Environment, given.shown())),
        }
    }
}

fn unknown(name: &str, lower: &str) -> ConfigError {
    let near = nearest(lower, ["config", "rabbitmq_config"]).or_else(|| nearest_setting(lower));
    let advice =
        near.map_or_else(|| LISTED.to_owned(), |near| format!("did you mean {PREFIX}{}?", near.to_ascii_uppercase()));
    ConfigError::Unknown { place: "environment".to_owned(), name: one_line(name), advice }
}

/// Kubernetes and Docker tell each container about the services around it: one that is called
/// `leveret` or `leveret-ui` arrives here as `LEVERET_SERVICE_HOST`,
/// `LEVERET_UI_SERVICE_PORT_HTTP`, `LEVERET_PORT=tcp://10.0.0.1:5672` or
/// `LEVERET_PORT_5672_TCP_ADDR`.
fn is_service_link(short: &str, value: &str) -> bool {
    let words: Vec<&str> = short.split('_').collect();
    let has = |pair: [&str; 2]| words.windows(2).any(|window| window == pair);
    let port_link = words.windows(3).any(|window| {
        window[0] == "PORT" && window[1].parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].contains(&window[2])
    });
    let is_url = words.last() == Some(&"PORT") && value.contains("://");
    has(["SERVICE", "HOST"]) || has(["SERVICE", "PORT"]) || port_link || is_url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_service_links_are_told_from_settings() {
        for (name, value) in [
            ("SERVICE_HOST", "10.0.0.1"),
            ("SERVICE_PORT", "5672"),
            ("SERVICE_PORT_AMQP", "5672"),
            ("UI_SERVICE_HOST", "10.0.0.2"),
            ("PORT", "tcp://10.0.0.1:5672"),
            ("PORT_5672_TCP", "tcp://10.0.0.1:5672"),
            ("PORT_5672_TCP_ADDR", "10.0.0.1"),
        ] {
            assert!(is_service_link(name, value), "{name}={value}");
        }
        for (name, value) in [("PORT", "5672"), ("PORTS_MAX", "1"), ("SERVICE", "x"), ("AMQP", "0.0.0.0:5672")] {
            assert!(!is_service_link(name, value), "{name}={value}");
        }
    }
}
