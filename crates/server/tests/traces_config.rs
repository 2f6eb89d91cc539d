//! Settings about traces: what they become, what OpenTelemetry's own variables add, and what is told
//! of them.
#![allow(clippy::unwrap_used, missing_docs)]

use server::config::{Config, Key, KeySource, Machine, Origin, Sources, TraceSettings, load};
use session::Sampler;
use std::ffi::OsString;

fn machine() -> Machine {
    Machine {
        processors: 2,
        memory_bytes: 1 << 30,
        descriptors: 20_000,
        ipv4: true,
        ipv6: false,
        hostname: "hare".to_owned(),
    }
}

fn loaded(file: &str, variables: &[(&str, &str)], flags: &[(Key, &str)]) -> Result<Config, Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leveret.toml");
    std::fs::write(&path, file).unwrap();
    let environment = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
    let flags = flags.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    let sources = Sources { config_file: Some(path), environment, flags, ..Sources::default() };
    load(&sources, &machine()).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn told_by(variables: &[(&str, &str)]) -> (Option<TraceSettings>, Vec<String>) {
    let config = loaded("", variables, &[]).unwrap();
    (config.trace_settings(), config.left_out)
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

#[test]
fn nothing_is_traced_unless_somebody_says_where_spans_go() {
    assert_eq!(told_by(&[]), (None, Vec::new()));
    let settings = loaded("otel_endpoint = \"https://c/v1/traces\"", &[], &[]).unwrap().trace_settings().unwrap();
    assert_eq!((settings.sampler, settings.service_name.as_str()), (Sampler::default(), "leveret"));
}

#[test]
fn a_ratio_may_be_written_in_every_way_that_a_number_may() {
    let endpoint = "otel_endpoint = \"http://c\"\n";
    for file in ["otel_sample_ratio = 0.25", "otel_sample_ratio = \"0.25\""] {
        let settings = loaded(&format!("{endpoint}{file}"), &[], &[]).unwrap().trace_settings().unwrap();
        assert_eq!(settings.sampler, Sampler::new(250_000_000), "{file}");
    }
    let config = loaded(&format!("{endpoint}otel_sample_ratio = 1"), &[], &[]).unwrap();
    assert_eq!(config.trace_settings().unwrap().sampler, Sampler::new(Sampler::ONE));
    let errors = loaded(endpoint, &[("LEVERET_OTEL_SAMPLE_RATIO", "1.5")], &[]).unwrap_err();
    assert_eq!(
        errors,
        [
            "LEVERET_OTEL_SAMPLE_RATIO = 1.5 is not allowed; it must be a number from 0 to 1 with at most 9 digits behind \
          the point, as 0.01"
        ]
    );
}

#[test]
fn variables_of_opentelemetry_count_where_nothing_else_does() {
    let (settings, left_out) = told_by(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%3Db, x=1"),
        ("OTEL_SERVICE_NAME", "orders"),
        ("OTEL_RESOURCE_ATTRIBUTES", "zone=a%20b,k8s.pod.name=p"),
    ]);
    let settings = settings.unwrap();
    assert_eq!(settings.endpoint, "http://collector:4318/v1/traces");
    assert_eq!(settings.headers, pairs(&[("api-key", "a=b"), ("x", "1")]));
    assert_eq!((settings.service_name.as_str(), left_out.len()), ("orders", 0));
    assert_eq!(settings.attributes, pairs(&[("zone", "a b"), ("k8s.pod.name", "p")]));
    let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/here");
    assert_eq!(told_by(&[ENDPOINT, own]).0.unwrap().endpoint, "http://traces/here", "as it is");
    let file = "otel_endpoint = \"http://mine/v1/traces\"\notel_service_name = \"mine\"";
    let config = loaded(file, &[ENDPOINT, ("OTEL_SERVICE_NAME", "orders")], &[]).unwrap();
    let settings = config.trace_settings().unwrap();
    assert_eq!((settings.endpoint.as_str(), settings.service_name.as_str()), ("http://mine/v1/traces", "mine"));
    assert!(matches!(config.origin(Key::otel_endpoint), Origin::File { .. }));
    assert_eq!(loaded("otel_endpoint = \"none\"", &[ENDPOINT], &[]).unwrap().trace_settings(), None);
}

#[test]
fn what_those_variables_say_that_means_nothing_here_keeps_nobody_from_starting() {
    assert_eq!(told_by(&[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]), (None, Vec::new()));
    assert_eq!(told_by(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]), (None, Vec::new()));
    let wrong = [
        [ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"), ("A", "")],
        [("OTEL_EXPORTER_OTLP_HEADERS", "no pair"), ("A", "")],
        [("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"), ("A", "")],
        [("OTEL_RESOURCE_ATTRIBUTES", "=nameless"), ("A", "")],
    ];
    for variables in wrong {
        let (settings, left_out) = told_by(&variables);
        assert_eq!((settings, left_out.len()), (None, 1), "{variables:?}: {left_out:?}");
        assert!(left_out[0].contains("left out") && !left_out[0].contains("no pair"), "{left_out:?}");
    }
    assert!(told_by(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).0.is_some());
    assert_eq!(told_by(&[("OTEL_EXPORTER_OTLP_ENDPOINT", ""), ("OTEL_SERVICE_NAME", " ")]), (None, Vec::new()));
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    for (file, rule) in [
        ("otel_endpoint = \"collector:4317\"", "it begins with http:// or https:// and names a host"),
        ("otel_endpoint = \"http:///v1\"", "it begins with http:// or https:// and names a host"),
        ("otel_headers = [\"nothing\"]", "each is of the form NAME=VALUE, as HTTP has them"),
        ("otel_headers = [\"a b=sesame\"]", "each is of the form NAME=VALUE, as HTTP has them"),
        ("otel_resource_attributes = [\"zone\"]", "each is of the form NAME=VALUE"),
        ("otel_sample_ratio = 0.1", "it means nothing without otel_endpoint"),
    ] {
        let errors = loaded(file, &[], &[]).unwrap_err();
        assert!(errors.len() == 1 && errors[0].contains(rule) && !errors[0].contains("sesame"), "{file}: {errors:?}");
    }
}

#[test]
fn what_headers_say_is_told_nowhere() {
    let config = loaded("otel_headers = [\"authorization=Bearer sesame\"]", &[], &[]).unwrap();
    let told: Vec<String> = config.chosen().map(|(setting, value, _)| value.shown(setting.kind)).collect();
    assert_eq!(told, ["[\"authorization=...\"]"]);
    assert!(config.all().all(|(setting, value, _)| !value.as_toml(setting.kind).contains("sesame")));
    let wrong = loaded("otel_headers = [\"a=sesame\", \"a=sesame\"]", &[], &[]).unwrap_err();
    assert!(!wrong[0].contains("sesame"), "{wrong:?}");
}

#[test]
fn a_login_in_an_address_is_used_and_told_nowhere() {
    let file = "auth_backends = [\"oauth2\"]\noauth2_resource_server_id = \"hare\"\n\
                oauth2_jwks_url = \"https://u:SECRET@host/x\"\noauth2_issuer = \"https://u:SECRET@issuer\"\n\
                otel_endpoint = \"http://u:SECRET@host/x\"\n";
    let config = loaded(file, &[], &[]).unwrap();
    assert_eq!(config.trace_settings().unwrap().endpoint, "http://u:SECRET@host/x");
    assert_eq!(config.token_settings().unwrap().source, Some(KeySource::Keys("https://u:SECRET@host/x".to_owned())));
    let shown = |all: Vec<String>| {
        assert!(all.iter().all(|value| !value.contains("SECRET")), "{all:?}");
        assert!(
            all.contains(&"[\"https://***@host/x\"]".to_owned()) && all.contains(&"[\"http://***@host/x\"]".to_owned()),
            "{all:?}"
        );
    };
    shown(config.all().map(|(setting, value, _)| value.shown(setting.kind)).collect());
    shown(config.chosen().map(|(setting, value, _)| value.shown(setting.kind)).collect());
    // One that is wrong, too.
    for wrong in [
        "oauth2_jwks_url = \"http://u:SECRET@host/x\"",
        "oauth2_jwks_url = \"https://u:SECRET@host/x\"",
        "otel_endpoint = \"ftp://u:SECRET@host/x\"",
    ] {
        let errors = loaded(wrong, &[], &[]).unwrap_err().join("\n");
        assert!(errors.contains("://***@host/x") && !errors.contains("SECRET"), "{errors}");
    }
}
