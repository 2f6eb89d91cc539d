//! What the settings about traces say together: where spans go, and what they say of this broker.
//!
//! Invariant: what is secret in them is told nowhere. What a variable of OpenTelemetry says that this
//! broker cannot do keeps nobody from starting: such variables are set for all programs of a machine.

use super::environment::Standard;
use super::error::ConfigError;
use super::logins::masked;
use super::settings::{Config, Key};
use super::value::Value;
use session::Sampler;
use std::ffi::OsString;
use std::path::PathBuf;

/// What stands for what is secret.
pub(super) const SECRET: &str = "...";
/// What a collector's address for everything has behind it for traces.
const TRACES_PATH: &str = "/v1/traces";

/// Where spans go.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    /// The whole address.
    pub endpoint: String,
    /// Of which messages spans are made that bring no trace along.
    pub sampler: Sampler,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// What spans call this broker.
    pub service_name: String,
    /// What else they say of it.
    pub attributes: Vec<(String, String)>,
    /// Who is believed about the address; the machine's authorities without it.
    pub authorities: Option<PathBuf>,
}

fn pair(item: &str) -> Option<(String, String)> {
    let (name, value) = item.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

/// Whether it is a header that HTTP can carry.
fn is_header(item: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let fits = |(name, value): (String, String)| {
        name.bytes().all(is_token) && value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    pair(item).is_some_and(fits)
}

fn is_address(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && url.bytes().all(|b| b.is_ascii_graphic()))
}

impl Key {
    /// Whether its values are addresses, in which a login may be.
    pub(super) fn is_address(self) -> bool {
        matches!(self, Key::otel_endpoint | Key::oauth2_issuer | Key::oauth2_jwks_url)
    }
}

impl Config {
    /// What is to be known of traces; `None` where no message is traced.
    pub fn trace_settings(&self) -> Option<TraceSettings> {
        let endpoint = self.otel_endpoint.first()?.clone();
        Some(TraceSettings {
            endpoint,
            sampler: Sampler::new(self.otel_sample_ratio.per_billion()),
            headers: self.otel_headers.iter().filter_map(|item| pair(item)).collect(),
            service_name: self.otel_service_name.clone(),
            attributes: self.otel_resource_attributes.iter().filter_map(|item| pair(item)).collect(),
            authorities: self.otel_ca.clone(),
        })
    }

    /// The value of a setting without what is secret in it.
    pub(super) fn told(&self, key: Key) -> Value {
        match key {
            Key::otel_headers => {
                let name = |item: &String| item.split_once('=').map_or("", |(name, _)| name).to_owned();
                Value::Names(self.otel_headers.iter().map(|item| format!("{}={SECRET}", name(item))).collect())
            }
            _ => match self.value(key) {
                Value::Names(urls) if key.is_address() => Value::Names(urls.iter().map(|url| masked(url)).collect()),
                value => value,
            },
        }
    }

    /// Settings about traces that are each allowed but mean nothing.
    pub(super) fn trace_contradictions(&self) -> Vec<ConfigError> {
        let wrong = |key: Key, rule: &str| {
            let setting = key.setting();
            ConfigError::relation(setting, self.origin(key), self.told(key).shown(setting.kind), rule.to_owned())
        };
        let mut errors = Vec::new();
        for (key, items) in [
            (Key::otel_endpoint, &self.otel_endpoint),
            (Key::otel_headers, &self.otel_headers),
            (Key::otel_resource_attributes, &self.otel_resource_attributes),
        ] {
            if let Err(rule) = check(key, items) {
                errors.push(wrong(key, rule));
            }
        }
        if self.otel_endpoint.is_empty() && self.otel_sample_ratio.per_billion() > 0 {
            errors.push(wrong(Key::otel_sample_ratio, "it means nothing without otel_endpoint"));
        }
        errors
    }
}

/// What the items of a setting have to be beside texts.
fn check(key: Key, items: &[String]) -> Result<(), &'static str> {
    let (is_right, rule): (fn(&str) -> bool, _) = match key {
        Key::otel_endpoint => (is_address, "it begins with http:// or https:// and names a host"),
        Key::otel_headers => (is_header, "each is of the form NAME=VALUE, as HTTP has them"),
        Key::otel_resource_attributes => (|item| pair(item).is_some(), "each is of the form NAME=VALUE"),
        _ => return Ok(()),
    };
    if items.iter().all(|item| is_right(item)) { Ok(()) } else { Err(rule) }
}

/// What OpenTelemetry's own variables say, of those that a broker has a use for, and sentences about
/// what of it is left out.
pub(super) fn standard(variables: &[(OsString, OsString)]) -> (Vec<Standard>, Vec<String>) {
    let of = |name: &str| {
        let found = variables.iter().find(|(known, _)| known == name)?;
        found.1.to_str().map(str::trim).filter(|value| !value.is_empty())
    };
    let is_off = of("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || of("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    if is_off {
        return (Vec::new(), Vec::new());
    }
    let (mut said, mut left_out) = (Vec::new(), Vec::new());
    let both = |name: &str| {
        of(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}")).or_else(|| of(&format!("OTEL_EXPORTER_OTLP_{name}")))
    };
    let endpoint = match (of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), of("OTEL_EXPORTER_OTLP_ENDPOINT")) {
        (Some(own), _) => Some(own.to_owned()),
        (None, Some(base)) => Some(format!("{}{TRACES_PATH}", base.trim_end_matches('/'))),
        (None, None) => None,
    };
    if let Some(endpoint) = endpoint {
        match both("PROTOCOL") {
            Some("grpc") => left_out.push(
                "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, which this broker does not speak: its address is left out, and otel_endpoint \
                 may name one for OTLP over HTTP"
                    .to_owned(),
            ),
            _ => said.push(Standard { key: Key::otel_endpoint, items: vec![endpoint] }),
        }
    }
    if let Some(name) = of("OTEL_SERVICE_NAME") {
        said.push(Standard { key: Key::otel_service_name, items: vec![name.to_owned()] });
    }
    for (key, value) in
        [(Key::otel_headers, both("HEADERS")), (Key::otel_resource_attributes, of("OTEL_RESOURCE_ATTRIBUTES"))]
    {
        let items = value.into_iter().flat_map(|value| value.split(',')).map(str::trim).filter(|item| !item.is_empty());
        let items: Vec<String> = items.map(decoded).collect();
        if !items.is_empty() {
            said.push(Standard { key, items });
        }
    }
    said.retain(|Standard { key, items }| match check(*key, items) {
        Ok(()) => true,
        Err(rule) => {
            left_out.push(format!("what OpenTelemetry's variables say of {} is left out: {rule}", key.setting().name));
            false
        }
    });
    (said, left_out)
}

/// A text in which bytes may stand as `%20`.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}
