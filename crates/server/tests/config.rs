//! What a person meets who configures a node: precedence, every error text, the names in file,
//! environment and flags, the documentation.
//!
//! Invariant: the texts here are whole, so that a change of a text is seen as one.
#![allow(clippy::unwrap_used, missing_docs)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use server::config::{
    Config, DefaultValue, Key, Kind, Level, LogFormat, Machine, Origin, SETTINGS, Sources, load, markdown,
    variable_name,
};

fn machine() -> Machine {
    Machine {
        processors: 8,
        memory_bytes: 1 << 30,
        descriptors: 20_000,
        ipv4: true,
        ipv6: true,
        hostname: "hare".to_owned(),
    }
}

/// Sources of one test; the file lies in a folder of its own.
#[derive(Default)]
struct Said {
    sources: Sources,
    folder: Option<tempfile::TempDir>,
}

impl Said {
    fn file(mut self, text: &str) -> Said {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leveret.toml");
        std::fs::write(&path, text).unwrap();
        self.sources.config_file = Some(path);
        self.folder = Some(folder);
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Said {
        self.sources.environment.push((OsString::from(name), OsString::from(value)));
        self
    }

    fn flag(mut self, key: Key, value: &str) -> Said {
        self.sources.flags.push((key, value.to_owned()));
        self
    }

    fn config(&self) -> Config {
        load(&self.sources, &machine()).unwrap()
    }

    /// The errors, with the folder's name taken out.
    fn errors(&self) -> Vec<String> {
        let errors = load(&self.sources, &machine()).unwrap_err();
        let folder = self.folder.as_ref().map(|folder| format!("{}/", folder.path().display()));
        errors
            .iter()
            .map(|error| folder.iter().fold(error.to_string(), |text, folder| text.replace(folder, "")))
            .collect()
    }

    fn error(&self) -> String {
        let errors = self.errors();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].clone()
    }
}

fn said() -> Said {
    Said::default()
}

#[test]
fn defaults_come_from_the_table_and_the_machine() {
    let config = Config::for_machine(&machine());
    assert_eq!(config.data_dir, PathBuf::from("data"));
    assert_eq!(config.node_name, "leveret@hare");
    assert_eq!(config.shard_threads, 4);
    assert_eq!(config.amqp, ["0.0.0.0:5672".parse().unwrap(), "[::]:5672".parse().unwrap()]);
    assert_eq!(config.loopback_users, ["guest"]);
    assert_eq!(config.connections_max, 19_744, "the descriptor limit less 256");
    assert_eq!(config.transient_bytes_max, (1 << 30) / 5 * 2);
    assert_eq!((config.frame_max, config.channel_max, config.heartbeat_s), (131_072, 2047, 60));
    assert_eq!(config.wal_file_bytes, 64 << 20);
    assert_eq!(config.log.everything, Level::Info);
    assert_eq!(config.log_format, LogFormat::Text);
    assert!(SETTINGS.iter().all(|setting| config.is_default(setting.key)));
}

#[test]
fn defaults_are_allowed_values_on_the_smallest_and_the_largest_machine() {
    for (processors, memory_bytes, descriptors) in [(1, 0, 0), (1, 64 << 20, 64), (4096, u64::MAX, u64::MAX)] {
        let config = Config::for_machine(&Machine {
            processors,
            memory_bytes,
            descriptors,
            ipv4: false,
            ipv6: false,
            hostname: "a".repeat(64),
        });
        assert!(config.shard_threads >= 1 && config.connections_max >= 1);
    }
}

#[test]
fn the_default_listens_on_the_families_that_the_machine_has() {
    let listens = |ipv4, ipv6| {
        let config = Config::for_machine(&Machine { ipv4, ipv6, ..machine() });
        config.amqp.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(listens(true, true), ["0.0.0.0:5672", "[::]:5672"]);
    assert_eq!(listens(true, false), ["0.0.0.0:5672"]);
    assert_eq!(listens(false, true), ["[::]:5672"]);
}

/// Every setting with a value that is not its default: as in the file, and as in the environment or
/// a flag.
const OTHERS: [(Key, &str, &str); 89] = [
    (Key::data_dir, r#""/var/lib/leveret""#, "/var/lib/leveret"),
    (Key::node_name, r#""leveret@a""#, "leveret@a"),
    (Key::partitions, "32", "32"),
    (Key::shard_threads, "3", "3"),
    (Key::amqp, r#"["0.0.0.0:5672", "[::1]:5673"]"#, "0.0.0.0:5672, [::1]:5673"),
    (Key::amqps, r#"["127.0.0.1:5671"]"#, "127.0.0.1:5671"),
    (Key::proxy_protocol, r#"["0.0.0.0:5672"]"#, "0.0.0.0:5672"),
    (Key::tls_certificate, r#""server.pem""#, "server.pem"),
    (Key::tls_key, r#""key.pem""#, "key.pem"),
    (Key::tls_ca, r#""ca.pem""#, "ca.pem"),
    (Key::tls_verify, r#""required""#, "required"),
    (Key::auth_mechanisms, r#"["AMQPLAIN"]"#, "AMQPLAIN"),
    (Key::anonymous_login_user, r#""nobody""#, "nobody"),
    (Key::certificate_login, r#""common_name""#, "common_name"),
    (Key::stamp_time, r#""fill""#, "fill"),
    (Key::stamp_node, r#""overwrite""#, "overwrite"),
    (Key::redeclaration, r#""relaxed""#, "relaxed"),
    (Key::queue_leader_locator, r#""balanced""#, "balanced"),
    (Key::event_exchange_vhost, r#"["/"]"#, "/"),
    (Key::definitions, r#""definitions.json""#, "definitions.json"),
    (Key::loopback_users, "[]", "none"),
    (Key::login_failures_per_address, "0", "0"),
    (Key::login_failures_per_user, "100", "100"),
    (Key::password_hashing, r#""sha256""#, "sha256"),
    (Key::login_cache_s, "0", "0"),
    (Key::auth_backends, r#"["oauth2", "internal"]"#, "oauth2,internal"),
    (Key::oauth2_resource_server_id, r#"["broker"]"#, "broker"),
    (Key::oauth2_issuer, r#"["https://idp/prod"]"#, "https://idp/prod"),
    (Key::oauth2_jwks_url, r#"["https://idp/prod/keys"]"#, "https://idp/prod/keys"),
    (Key::oauth2_ca, r#""idp.pem""#, "idp.pem"),
    (Key::oauth2_signing_keys, r#"["a=a.pem", "b=b.json"]"#, "a=a.pem,b=b.json"),
    (Key::oauth2_default_key, r#"["a"]"#, "a"),
    (Key::oauth2_algorithms, r#"["ES256"]"#, "ES256"),
    (Key::oauth2_verify_aud, r#""false""#, "false"),
    (Key::oauth2_scope_prefix, "[]", "none"),
    (Key::oauth2_additional_scopes_key, r#"["roles", "realm.roles"]"#, "roles,realm.roles"),
    (Key::oauth2_preferred_username_claims, r#"["email"]"#, "email"),
    (
        Key::oauth2_scope_aliases,
        r#"["dev=broker.read:*/* broker.tag:management"]"#,
        "dev=broker.read:*/* broker.tag:management",
    ),
    (Key::oauth2_leeway_s, "0", "0"),
    (Key::management_oauth_client_id, r#"["page"]"#, "page"),
    (Key::connections_max, "100", "100"),
    (Key::handshake_timeout_ms, "5000", "5000"),
    (Key::heartbeat_s, "0", "0"),
    (Key::consumer_timeout_ms, "0", "0"),
    (Key::frame_max, "65536", "64KiB"),
    (Key::initial_frame_max, "32768", "32KiB"),
    (Key::channel_max, "128", "128"),
    (Key::body_bytes_max, r#""8 MiB""#, "8388608"),
    (Key::capabilities, r#"["basic.nack"]"#, "basic.nack"),
    (Key::product, r#""Leveret""#, "Leveret"),
    (Key::product_version, r#""4.3.5""#, "4.3.5"),
    (Key::management, r#"["0.0.0.0:15672"]"#, "0.0.0.0:15672"),
    (Key::cluster_peers, r#"["127.0.0.1:5680", "127.0.0.1:5681"]"#, "127.0.0.1:5680, 127.0.0.1:5681"),
    (Key::cluster_join, r#"["127.0.0.1:5680"]"#, "127.0.0.1:5680"),
    (Key::cluster_address, r#"["127.0.0.1:5681"]"#, "127.0.0.1:5681"),
    (Key::cluster_secret_file, r#""secret""#, "secret"),
    (Key::cluster_secret_file_before, r#""secret-before""#, "secret-before"),
    (Key::cluster_tls_ca, r#""nodes-ca.pem""#, "nodes-ca.pem"),
    (Key::cluster_tls_certificate, r#""node.pem""#, "node.pem"),
    (Key::cluster_tls_key, r#""node.key""#, "node.key"),
    (Key::management_tls, r#"["127.0.0.1:15671"]"#, "127.0.0.1:15671"),
    (Key::management_tls_certificate, r#""https.pem""#, "https.pem"),
    (Key::management_tls_key, r#""https.key""#, "https.key"),
    (Key::management_tls_ca, r#""https-ca.pem""#, "https-ca.pem"),
    (Key::management_tls_verify, r#""optional""#, "optional"),
    (Key::management_hsts_s, "60", "60"),
    (Key::prometheus, r#"["127.0.0.1:15692"]"#, "127.0.0.1:15692"),
    (Key::definitions_skip_if_unchanged, r#""true""#, "true"),
    (Key::wal_file_bytes, r#""32MiB""#, "33_554_432"),
    (Key::wal_retained_bytes, "0", "0"),
    (Key::wal_sync_delay_ms, "100", "100"),
    (Key::checkpoint_interval_bytes, r#""1GB""#, "1000 MB"),
    (Key::disk_free_min_bytes, "0x1000_0001", "268435457"),
    (Key::transient_bytes_max, r#""1 TiB""#, "1024 gib"),
    (Key::user_bytes_max, r#""1 GiB""#, "1024 MiB"),
    (Key::vhost_arguments_bytes_max, r#""1 GiB""#, "1024 MiB"),
    (Key::connection_bytes_max, r#""32 MiB""#, "32mib"),
    (Key::cache_bytes, r#""64 MiB""#, "64mib"),
    (Key::read_ahead_bytes, r#""16 MiB""#, "16mib"),
    (Key::wal_index_bytes, r#""6 MiB""#, "6mib"),
    (Key::unwritten_bytes_max, "1_048_576", "1MiB"),
    (Key::log, r#""warn,server=debug""#, "warn,server=debug"),
    (Key::log_format, r#""json""#, "json"),
    (Key::otel_endpoint, r#"["http://collector"]"#, "http://collector"),
    (Key::otel_sample_ratio, "0.5", "0.50"),
    (Key::otel_headers, r#"["a=b"]"#, "a=b"),
    (Key::otel_service_name, r#""orders""#, "orders"),
    (Key::otel_resource_attributes, r#"["zone=a", "k=v"]"#, "zone=a,k=v"),
    (Key::otel_ca, r#""collector.pem""#, "collector.pem"),
];

#[test]
fn every_setting_can_be_given_in_the_file_the_environment_and_as_a_flag() {
    let listed = |key| OTHERS.iter().any(|(other, ..)| *other == key);
    assert!(SETTINGS.iter().all(|setting| listed(setting.key)), "every setting has an example here");
    for (key, in_file, as_text) in OTHERS {
        let (setting, default) = (key.setting(), Config::for_machine(&machine()).value(key));
        // Some settings are nothing without others.
        let files = |keys: &[Key]| keys.iter().map(|key| (*key, "needed.pem")).collect::<Vec<_>>();
        let needed = match setting.name.split_once('_') {
            Some(("cluster", "tls_ca" | "tls_certificate" | "tls_key")) => {
                files(&[Key::cluster_tls_ca, Key::cluster_tls_certificate, Key::cluster_tls_key])
            }
            Some(("auth", "backends") | ("oauth2", _)) => vec![
                (Key::auth_backends, "oauth2"),
                (Key::oauth2_resource_server_id, "needed"),
                (Key::oauth2_jwks_url, "https://needed"),
            ],
            Some(("otel", _)) => vec![(Key::otel_endpoint, "http://needed")],
            _ => files(&[Key::tls_certificate, Key::tls_key, Key::tls_ca, Key::management_tls_ca]),
        };
        let needed: Vec<_> = needed.into_iter().filter(|(needed, _)| *needed != key).collect();
        let said = || needed.iter().fold(said(), |said, (needed, value)| said.flag(*needed, value));
        let from_file = said().file(&format!("# a comment\n{} = {in_file}\n", setting.name)).config();
        let from_variable = said().variable(&variable_name(setting), as_text).config();
        let from_flag = said().flag(key, as_text).config();
        assert_ne!(from_file.value(key), default, "{} has another value than its default", setting.name);
        assert_eq!(from_file.value(key), from_variable.value(key), "{}", setting.name);
        assert_eq!(from_file.value(key), from_flag.value(key), "{}", setting.name);
        assert!(matches!(from_file.origin(key), Origin::File { line: 2, .. }), "{}", setting.name);
        assert_eq!((from_variable.origin(key), from_flag.origin(key)), (&Origin::Environment, &Origin::Flag));
    }
}

#[test]
fn a_full_file_comes_back_as_it_was_written() {
    let mut first = said();
    for (key, _, as_text) in &OTHERS {
        first = first.flag(*key, as_text);
    }
    let first = first.config();
    let lines = SETTINGS
        .iter()
        .map(|setting| format!("{} = {}\n", setting.name, first.value(setting.key).as_toml(setting.kind)));
    let second = said().file(&lines.collect::<String>()).config();
    for setting in &SETTINGS {
        assert_eq!(first.value(setting.key), second.value(setting.key), "{}", setting.name);
    }
}

#[test]
fn texts_with_quotes_and_other_scripts_come_back_from_a_file() {
    let path = "/tmp/a \"b\" \\ c\u{7}ü";
    let config = said().flag(Key::data_dir, path).config();
    let line = format!("data_dir = {}", config.value(Key::data_dir).as_toml(Kind::Folder));
    assert_eq!(said().file(&line).config().data_dir, Path::new(path));
}

#[test]
fn a_flag_goes_before_the_environment_before_the_file_before_the_default() {
    let name = variable_name(Key::partitions.setting());
    let by = |file: bool, variable: bool, flag: bool| {
        let mut said = said();
        if file {
            said = said.file("partitions = 2");
        }
        if variable {
            said = said.variable(&name, "3");
        }
        if flag {
            said = said.flag(Key::partitions, "4");
        }
        said.config().partitions
    };
    assert_eq!(by(false, false, false), 16);
    assert_eq!(by(true, false, false), 2);
    assert_eq!(by(true, true, false), 3);
    assert_eq!(by(true, false, true), 4);
    assert_eq!(by(false, true, true), 4);
    assert_eq!(by(true, true, true), 4);
}

#[test]
fn the_environment_can_name_the_file_and_the_flag_goes_before_it() {
    let from_variable = said().file("partitions = 2");
    let path = from_variable.sources.config_file.clone().unwrap();
    let mut only_variable = said().variable("LEVERET_CONFIG", path.to_str().unwrap());
    assert_eq!(only_variable.config().partitions, 2);
    let other = said().file("partitions = 5");
    only_variable.sources.config_file = other.sources.config_file.clone();
    assert_eq!(only_variable.config().partitions, 5);
}

#[test]
fn what_was_chosen_is_told_with_its_origin() {
    let config = said().file("\npartitions = 2").variable("LEVERET_HEARTBEAT_S", "9").config();
    let chosen: Vec<_> = config.chosen().map(|(setting, value, _)| (setting.name, value.shown(setting.kind))).collect();
    assert_eq!(chosen, [("partitions", "2".to_owned()), ("heartbeat_s", "9".to_owned())]);
}

#[test]
fn a_list_flag_may_come_several_times() {
    let config = said().flag(Key::amqp, "127.0.0.1:1,127.0.0.1:2").flag(Key::amqp, "[::1]:3").config();
    assert_eq!(config.amqp.len(), 3);
}

#[test]
fn a_wrong_value_says_what_is_allowed_in_the_words_of_its_source() {
    for (key, found, text) in [
        (Key::data_dir, "", r#"--data-dir = "" is not allowed; it must be the path of a folder"#),
        (
            Key::node_name,
            "a b",
            "--node-name = a b is not allowed; it must be 1 to 255 letters, digits or any of _ - . @",
        ),
        (Key::partitions, "513", "--partitions = 513 is not allowed; it must be a whole number from 1 to 512"),
        (Key::partitions, "many", "--partitions = many is not allowed; it must be a whole number from 1 to 512"),
        (Key::partitions, "1 KiB", "--partitions = 1 KiB is not allowed; it must be a whole number from 1 to 512"),
        (
            Key::partitions,
            "99999999999999999999",
            "--partitions = 99999999999999999999 is not allowed; it must be a whole number from 1 to 512",
        ),
        (
            Key::amqp,
            "5672",
            "--amqp = 5672 is not allowed; it must be at most 16 different addresses of the form 0.0.0.0:5672 or [::]:5672, or \"none\"",
        ),
        (Key::amqp, "none", "--amqp = [] is not allowed; without it amqps needs an address"),
        (
            Key::amqp,
            "0.0.0.0:1,0.0.0.0:1",
            "--amqp = 0.0.0.0:1,0.0.0.0:1 is not allowed; it must be at most 16 different addresses of the form 0.0.0.0:5672 or [::]:5672, or \"none\"",
        ),
        (
            Key::loopback_users,
            "",
            "--loopback-users = \"\" is not allowed; it must be at most 64 different names of 1 to 255 bytes, or \"none\"",
        ),
        (Key::heartbeat_s, "-1", "--heartbeat-s = -1 is not allowed; it must be a number of seconds from 0 to 65535"),
        (
            Key::handshake_timeout_ms,
            "10s",
            "--handshake-timeout-ms = 10s is not allowed; it must be a number of milliseconds from 100 to 600000",
        ),
        (Key::frame_max, "4096", "--frame-max = 4096 is not allowed; it must be a number of bytes from 8 KiB to 1 MiB"),
        (
            Key::wal_file_bytes,
            "5000000",
            "--wal-file-bytes = 5000000 is not allowed; it must be a number of bytes from 4 MiB to 1 GiB, a multiple of 4 KiB",
        ),
        (
            Key::cache_bytes,
            "16777216 TiB",
            "--cache-bytes = 16777216 TiB is not allowed; it must be a number of bytes from 1 MiB to 1 TiB",
        ),
        (
            Key::product,
            "Rabbit\u{1b}[31mMQ",
            "--product = Rabbit\\u{1b}[31mMQ is not allowed; it must be 1 to 64 printable ASCII characters",
        ),
        (
            Key::product_version,
            "4.0",
            "--product-version = 4.0 is not allowed; it must be three numbers with dots, as 4.0.0",
        ),
        (
            Key::log,
            "loud",
            "--log = loud is not allowed; it must be error, warn, info, debug, trace or off, then levels of single parts (audit, leveret, management, node, server, session, switch), as info,server=debug",
        ),
        (
            Key::log,
            "info,debug",
            "--log = info,debug is not allowed; it must be error, warn, info, debug, trace or off, then levels of single parts (audit, leveret, management, node, server, session, switch), as info,server=debug",
        ),
        (Key::log_format, "xml", "--log-format = xml is not allowed; it must be text or json"),
    ] {
        assert_eq!(said().flag(key, found).error(), text);
    }
    assert_eq!(
        said().variable("LEVERET_PARTITIONS", "0").error(),
        "LEVERET_PARTITIONS = 0 is not allowed; it must be a whole number from 1 to 512"
    );
    assert_eq!(
        said().file("\n\npartitions = 0").error(),
        "leveret.toml line 3: partitions = 0 is not allowed; it must be a whole number from 1 to 512"
    );
}

#[test]
fn a_value_of_another_type_is_an_error_of_the_file() {
    let tail = "is not allowed; it must be a whole number from 1 to 512";
    for (written, shown) in [
        ("\"16\"", "\"16\""),
        ("1.5", "1.5"),
        ("true", "true"),
        ("[16]", "a list of other things than texts"),
        ("[\"16\"]", "[\"16\"]"),
        ("-1", "-1"),
        ("99999999999999999999999999999999999999999999", "99999999999999999999999999999999999999999999"),
        ("2026-11-21", "\"2026-11-21\""),
        ("{ count = 16 }", "a table"),
    ] {
        let found = said().file(&format!("partitions = {written}")).error();
        assert_eq!(found, format!("leveret.toml line 1: partitions = {shown} {tail}"));
    }
    assert_eq!(
        said().file("data_dir = 5").error(),
        "leveret.toml line 1: data_dir = 5 is not allowed; it must be the path of a folder"
    );
    assert_eq!(
        said().file("amqp = 5672").error(),
        "leveret.toml line 1: amqp = 5672 is not allowed; it must be at most 16 different addresses of the form 0.0.0.0:5672 or [::]:5672, or \"none\""
    );
    assert_eq!(said().file("amqp = \"127.0.0.1:1\"").config().amqp.len(), 1, "a list of one may be written as a text");
}

#[test]
fn an_unknown_name_is_an_error_that_suggests_the_near_one() {
    assert_eq!(
        said().file("# first\nwal_file_byte = 1\n").error(),
        "leveret.toml line 2: unknown setting wal_file_byte; did you mean wal_file_bytes?"
    );
    assert_eq!(
        said().file("shoe_size = \"a\"").error(),
        "leveret.toml line 1: unknown setting shoe_size; leveret server --help lists all settings"
    );
    assert_eq!(
        said().file("[storage]\nextents = 1").error(),
        "leveret.toml line 1: unknown setting storage.extents; settings stand at the top level of the file, without tables and dots"
    );
    assert_eq!(
        said().variable("LEVERET_DATADIR", "/x").error(),
        "environment: unknown setting LEVERET_DATADIR; did you mean LEVERET_DATA_DIR?"
    );
    assert_eq!(
        said().variable("LEVERET_CONFG", "/x").error(),
        "environment: unknown setting LEVERET_CONFG; did you mean LEVERET_CONFIG?"
    );
    assert_eq!(
        said().variable("LEVERET_COLOUR", "red").error(),
        "environment: unknown setting LEVERET_COLOUR; leveret server --help lists all settings"
    );
    assert_eq!(
        said().variable("LEVERET_data_dir", "/x").error(),
        "environment: unknown setting LEVERET_data_dir; did you mean LEVERET_DATA_DIR?"
    );
}

#[test]
fn the_name_another_broker_has_for_a_setting_leads_to_ours() {
    assert_eq!(
        said().file("listeners.tcp.default = 5672").error(),
        "leveret.toml line 1: unknown setting listeners.tcp.default; did you mean amqp?"
    );
    assert_eq!(
        said().file("disk_free_limit.absolute = \"50MB\"").error(),
        "leveret.toml line 1: unknown setting disk_free_limit.absolute; did you mean disk_free_min_bytes?"
    );
    assert_eq!(
        said().variable("LEVERET_VM_MEMORY_HIGH_WATERMARK", "0.4").error(),
        "environment: unknown setting LEVERET_VM_MEMORY_HIGH_WATERMARK; did you mean LEVERET_TRANSIENT_BYTES_MAX?"
    );
}

#[test]
fn variables_of_services_and_of_others_are_left_alone() {
    let config = said()
        .variable("LEVERET_SERVICE_HOST", "10.0.0.1")
        .variable("LEVERET_PORT", "tcp://10.0.0.1:5672")
        .variable("LEVERET_PORT_5672_TCP_ADDR", "10.0.0.1")
        .variable("LEVERET_BIN", "/usr/bin/leveret")
        .variable("PARTITIONS", "999")
        .variable("RABBITMQ_NODENAME", "rabbit@x")
        .config();
    assert_eq!(config.chosen().count(), 0);
    assert_eq!(
        said().variable("LEVERET_PORT", "5672").error(),
        "environment: unknown setting LEVERET_PORT; did you mean LEVERET_AMQP?",
        "somebody believes in this one"
    );
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text_is_an_error() {
    use std::os::unix::ffi::OsStringExt as _;
    let mut said = said();
    said.sources.environment.push((OsString::from("LEVERET_PARTITIONS"), OsString::from_vec(vec![0xff, 0xfe])));
    assert_eq!(
        said.error(),
        "LEVERET_PARTITIONS = text that is not UTF-8 is not allowed; it must be a whole number from 1 to 512"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| {
        let sources = Sources { config_file: Some(folder.path().join(name)), ..Sources::default() };
        let text = load(&sources, &machine()).unwrap_err()[0].to_string();
        text.replace(&folder.path().join("").display().to_string(), "")
    };
    let after = "give a readable file with --config";
    assert_eq!(
        read("gone.toml"),
        format!("cannot read the configuration file gone.toml: there is no such file; {after}")
    );
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(read("folder"), format!("cannot read the configuration file folder: it is a folder; {after}"));
    std::fs::write(folder.path().join("binary"), [0xff, 0xfe, 0]).unwrap();
    assert_eq!(read("binary"), format!("cannot read the configuration file binary: it is not UTF-8 text; {after}"));
    std::fs::write(folder.path().join("large"), "#".repeat(300 * 1024)).unwrap();
    assert_eq!(read("large"), format!("cannot read the configuration file large: it is larger than 256 KiB; {after}"));
}

#[test]
fn a_file_that_is_not_toml_is_an_error_with_its_place() {
    assert_eq!(
        said().file("partitions = 4\npartitions = 5\n").error(),
        "leveret.toml line 2 column 1: not valid TOML: duplicate key"
    );
    let text = said().file("partitions = 4\nnode_name = leveret@a\n").error();
    assert!(text.starts_with("leveret.toml line 2 column 13: not valid TOML: "), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn all_errors_are_told_at_once_in_the_order_of_the_sources() {
    let errors =
        said().file("zzz = 1\npartitions = 0\n").variable("LEVERET_LOG", "loud").flag(Key::heartbeat_s, "x").errors();
    let starts = ["leveret.toml line 1: unknown", "leveret.toml line 2: partitions", "LEVERET_LOG", "--heartbeat-s"];
    assert_eq!(errors.len(), starts.len(), "{errors:?}");
    for (error, start) in errors.iter().zip(starts) {
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn a_wrong_value_is_an_error_also_where_a_flag_goes_before_it() {
    let error = said().file("partitions = 0").flag(Key::partitions, "4").error();
    assert!(error.starts_with("leveret.toml line 1: partitions = 0"), "{error}");
}

#[test]
fn settings_that_contradict_each_other_are_an_error_that_names_both() {
    assert_eq!(
        said().file("wal_file_bytes = \"16 MiB\"").flag(Key::body_bytes_max, "16MiB").error(),
        "--body-bytes-max = 16 MiB is not allowed; with wal_file_bytes = 16 MiB it may be at most 8 MiB"
    );
    assert_eq!(
        said().file("wal_file_bytes = \"16 MiB\"").error(),
        "leveret.toml line 1: wal_file_bytes = 16 MiB is not allowed; with body_bytes_max = 16 MiB it must be at least 32 MiB"
    );
    assert_eq!(
        said().variable("LEVERET_DISK_FREE_MIN_BYTES", "50MB").error(),
        "LEVERET_DISK_FREE_MIN_BYTES = 50000000 is not allowed; with wal_file_bytes = 64 MiB it must be at least 256 MiB"
    );
    assert_eq!(
        said().flag(Key::wal_file_bytes, "256MiB").error(),
        "--wal-file-bytes = 256 MiB is not allowed; with disk_free_min_bytes = 256 MiB it may be at most 64 MiB"
    );
    said().flag(Key::wal_file_bytes, "256MiB").flag(Key::disk_free_min_bytes, "1GiB").config();
}

#[test]
fn settings_of_access_that_need_others_say_which() {
    assert_eq!(
        said().flag(Key::amqps, "127.0.0.1:5671").flag(Key::tls_key, "k").error(),
        "--amqps = [\"127.0.0.1:5671\"] is not allowed; it needs tls_certificate, which is not set"
    );
    assert_eq!(
        said().flag(Key::tls_verify, "required").error(),
        "--tls-verify = \"required\" is not allowed; it needs tls_ca, which is not set"
    );
    assert_eq!(
        said().flag(Key::auth_mechanisms, "PLAIN,EXTERNAL").error(),
        "--auth-mechanisms = [\"PLAIN\", \"EXTERNAL\"] is not allowed; EXTERNAL needs tls_verify to be optional or required"
    );
    assert_eq!(
        said().flag(Key::auth_mechanisms, "ROT13").error(),
        "--auth-mechanisms = [\"ROT13\"] is not allowed; one or more of PLAIN, AMQPLAIN, EXTERNAL, ANONYMOUS and RABBIT-CR-DEMO are expected"
    );
    let refused = said().flag(Key::capabilities, "basic.nack,telepathy").error();
    assert!(refused.contains("some of publisher_confirms, ") && refused.contains("are expected"), "{refused}");
    assert_eq!(
        said().flag(Key::proxy_protocol, "127.0.0.1:9").error(),
        "--proxy-protocol = [\"127.0.0.1:9\"] is not allowed; 127.0.0.1:9 is in neither amqp nor amqps"
    );
}

#[test]
fn an_error_stays_on_one_line_whatever_it_quotes() {
    let evil = format!("a\n2026 ERROR forged\r\u{1b}[31m{}", "x".repeat(1000));
    for text in
        [said().variable("LEVERET_PARTITIONS", &evil).error(), said().variable(&format!("LEVERET_{evil}"), "1").error()]
    {
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(text.len() < 300, "{text:?}");
    }
}

#[test]
fn names_of_settings_follow_the_rules() {
    for setting in &SETTINGS {
        assert_eq!(Key::named(setting.name), Some(setting.key));
        assert_eq!(setting.key.setting().name, setting.name);
        assert!(setting.help.ends_with('.'), "{} has full sentences", setting.name);
        assert!(!setting.elsewhere.contains(&setting.name), "{} is our own name", setting.name);
        if let Kind::Number { unit, min, max, .. } = setting.kind {
            assert!(min < max, "{}", setting.name);
            let protocol_word = ["frame_max", "initial_frame_max", "channel_max"].contains(&setting.name);
            let ending = match unit {
                server::config::Unit::Count => "",
                server::config::Unit::Bytes => "bytes",
                server::config::Unit::Milliseconds => "_ms",
                server::config::Unit::Seconds => "_s",
            };
            let named = setting.name.ends_with(ending) || setting.name.ends_with(&format!("{ending}_max"));
            assert!(named || protocol_word, "{} ends with its unit", setting.name);
        }
        if let DefaultValue::OfMachine { says, .. } = setting.default {
            assert!(!says.is_empty());
        }
    }
}

#[test]
fn the_ends_of_every_range_fit_the_field() {
    for setting in &SETTINGS {
        let Kind::Number { min, max, step, .. } = setting.kind else { continue };
        for (number, is_allowed) in
            [(Some(min), true), (Some(max), true), (min.checked_sub(1), false), (max.checked_add(step), false)]
        {
            let Some(number) = number else { continue };
            let given = said().flag(setting.key, &number.to_string());
            // What another setting forbids still fits: only the range is looked at here.
            let refused = load(&given.sources, &machine())
                .err()
                .is_some_and(|errors| errors[0].to_string().contains("it must be a "));
            assert_eq!(!refused, is_allowed, "{} = {number}", setting.name);
        }
    }
}

#[test]
fn the_documentation_is_made_from_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let made = markdown();
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "docs/configuration.md is not what the table says; renew it with: RENEW=1 cargo test -p server --test config"
    );
}
