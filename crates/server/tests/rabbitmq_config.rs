//! RabbitMQ's `rabbitmq.conf`: which settings its keys become, what is left out, what is refused.
#![allow(clippy::unwrap_used, missing_docs)]

use server::config::{Config, Key, KeySource, Level, Machine, Origin, Sources, load};
use server::tls::VerifyClients;
use std::path::PathBuf;

fn machine() -> Machine {
    Machine {
        processors: 8,
        memory_bytes: 4 << 30,
        descriptors: 20_000,
        ipv4: true,
        ipv6: true,
        hostname: "hare".to_owned(),
    }
}

struct Said {
    folder: tempfile::TempDir,
    sources: Sources,
}

fn said(text: &str) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rabbitmq.conf");
    std::fs::write(&path, text).unwrap();
    Said { folder, sources: Sources { rabbitmq_config: Some(path), ..Sources::default() } }
}

impl Said {
    fn config(&self) -> Config {
        load(&self.sources, &machine()).unwrap()
    }

    fn short(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }

    fn errors(&self) -> Vec<String> {
        load(&self.sources, &machine()).unwrap_err().iter().map(|error| self.short(&error.to_string())).collect()
    }

    fn left_out(&self) -> Vec<String> {
        self.config().left_out.iter().map(|sentence| self.short(sentence)).collect()
    }
}

#[test]
fn keys_that_mean_something_here_become_settings() {
    let said = said(
        "# a node of ours\n\
         listeners.tcp.default = 5673\n\
         listeners.tcp.local = 127.0.0.1:5674   # beside it\n\
         listeners.ssl.1 = 5671\n\
         ssl_options.cacertfile = /etc/rabbitmq/ca.pem\n\
         ssl_options.certfile = '/etc/rabbitmq/server#1.pem'\n\
         ssl_options.keyfile = /etc/rabbitmq/server.key\n\
         ssl_options.verify = verify_peer\n\
         ssl_options.fail_if_no_peer_cert = true\n\
         loopback_users.guest = false\n\
         loopback_users.ann = true\n\
         auth_mechanisms.2 = EXTERNAL\n\
         auth_mechanisms.1 = PLAIN\n\
         auth_backends.1 = internal\n\
         ssl_cert_login_from = common_name\n\
         heartbeat = 30\n\
         frame_max = 65536\n\
         channel_max = 256\n\
         max_message_size = 1048576\n\
         handshake_timeout = 20000\n\
         consumer_timeout = undefined\n\
         disk_free_limit.absolute = 2GB\n\
         management.tcp.port = 15673\n\
         management.tcp.ip = 127.0.0.1\n\
         management.ssl.port = 15671\n\
         management.ssl.certfile = /etc/rabbitmq/https.pem\n\
         management.ssl.keyfile = /etc/rabbitmq/https.key\n\
         load_definitions = /etc/rabbitmq/definitions.json\n\
         definitions.skip_if_unchanged = true\n\
         log.console = true\n\
         log.file.level = error\n\
         log.console.level = warning\n\
         log.console.formatter = json\n\
         proxy_protocol = false\n\
         prometheus.tcp.port = 15693\n\
         prometheus.tcp.ip = 127.0.0.1\n\
         prometheus.return_per_object_metrics = true\n",
    );
    let config = said.config();
    let shown = |key: Key| config.value(key).shown(key.setting().kind);
    let amqp: Vec<String> = config.amqp.iter().map(ToString::to_string).collect();
    assert_eq!(amqp, ["0.0.0.0:5673", "[::]:5673", "127.0.0.1:5674"]);
    assert_eq!(config.amqps.len(), 2);
    assert_eq!(config.tls_certificate, Some(PathBuf::from("/etc/rabbitmq/server#1.pem")));
    assert_eq!(config.tls_verify, VerifyClients::Required);
    assert_eq!(
        (config.loopback_users.as_slice(), config.auth_mechanisms.as_slice()),
        (&["ann".to_owned()][..], &["PLAIN".to_owned(), "EXTERNAL".to_owned()][..])
    );
    assert_eq!((config.heartbeat_s, config.frame_max, config.channel_max), (30, 65_536, 256));
    assert_eq!((config.body_bytes_max, config.handshake_timeout_ms, config.consumer_timeout_ms), (1 << 20, 20_000, 0));
    assert_eq!(config.disk_free_min_bytes, 2_000_000_000);
    assert_eq!(config.management, ["127.0.0.1:15673".parse().unwrap()]);
    assert_eq!(config.management_tls.len(), 2);
    assert_eq!(config.prometheus, ["127.0.0.1:15693".parse().unwrap()]);
    assert_eq!(config.definitions, Some(PathBuf::from("/etc/rabbitmq/definitions.json")));
    assert!(config.definitions_skip_if_unchanged);
    assert_eq!(config.log.everything, Level::Warn, "the one log says what the more talkative of theirs would");
    assert_eq!(shown(Key::log_format), "\"json\"");
    assert!(matches!(config.origin(Key::heartbeat_s), Origin::File { line: 16, .. }));
    assert_eq!(
        said.left_out(),
        [
            "rabbitmq.conf line 30: log.console is left out: the log goes to standard error; log and log_format are its settings",
            "rabbitmq.conf line 31: log.file.level is left out: there is one log here, of the level that lets the most through",
            "rabbitmq.conf line 37: prometheus.return_per_object_metrics is left out: /metrics has sums; series of each queue, which alerts may look at, are under /metrics/per-object"
        ]
    );
}

/// A durable classic queue has one copy, and nobody is to believe otherwise.
#[test]
fn who_has_mirrors_is_pointed_to_quorum_queues() {
    let told = said("mirroring_sync_batch_size = 4096\nmirroring_sync_max_throughput = 10MB\n").left_out();
    assert_eq!(told.len(), 2);
    for sentence in told {
        assert!(
            sentence.contains("a classic queue of a cluster has one copy, on one node; declare quorum queues"),
            "{sentence}"
        );
    }
}

#[test]
fn what_has_no_meaning_here_is_told_with_its_line() {
    let said = said(
        "vm_memory_high_watermark.relative = 0.6\n\
         disk_free_limit.absolute = 50MB\n\
         cluster_partition_handling = pause_minority\n\
         mqtt.listeners.tcp.default = 1883\n\
         tcp_listen_options.backlog = 128\n",
    );
    let told = said.left_out();
    assert_eq!(told.len(), 5, "{told:?}");
    for (number, (line, key)) in told
        .iter()
        .zip([
            "vm_memory_high_watermark.relative",
            "disk_free_limit.absolute",
            "cluster_partition_handling",
            "mqtt.listeners.tcp.default",
            "tcp_listen_options.backlog",
        ])
        .enumerate()
    {
        assert!(line.starts_with(&format!("rabbitmq.conf line {}: {key} is left out: ", number + 1)), "{line}");
    }
    assert!(said.config().is_default(Key::disk_free_min_bytes));
}

#[test]
fn what_would_be_open_or_lost_is_an_error_with_its_line() {
    for (text, says) in [
        ("default_pass = secret", "line 1: default_pass: put the user into a definitions file"),
        ("auth_backends.1 = ldap", "line 1: auth_backends.1: there is no ldap"),
        ("ssl_options.password = x", "line 1: ssl_options.password: keys with a password are not read"),
        ("hartbeat = 5", "line 1: hartbeat: it is not known; did you mean heartbeat?"),
        ("heartbeat = soon", "line 1: heartbeat: soon is not allowed: here it must be a number of seconds"),
        ("listeners.tcp.default = nowhere", "line 1: listeners.tcp.default: \"nowhere\" is neither a port"),
        ("\n[{rabbit, []}].", "rabbitmq.conf: it is Erlang"),
        ("heartbeat 5", "line 1: heartbeat 5: it is not of the form key = value"),
        ("management.ssl.certfile = encrypted:abc", "encrypted values are not read"),
        ("log.console.level = loud", "\"loud\" is no level"),
        ("max_message_size = 134217728", "max_message_size: 134217728 is not allowed"),
    ] {
        let errors = said(text).errors();
        assert!(errors.len() == 1 && errors[0].contains(says), "{text}: {errors:?}");
        assert!(!errors[0].contains("secret"), "a password is not told: {errors:?}");
    }
}

#[test]
fn our_own_file_goes_before_theirs_and_a_folder_is_read_in_order() {
    let mut said = said("heartbeat = 30\nchannel_max = 256\n");
    std::fs::write(said.folder.path().join("90-more.conf"), "heartbeat = 20\n").unwrap();
    std::fs::write(said.folder.path().join("advanced.config"), "[].\n").unwrap();
    let own = said.folder.path().join("leveret.toml");
    std::fs::write(&own, "channel_max = 128\n").unwrap();
    said.sources.config_file = Some(own);
    let config = said.config();
    assert_eq!((config.heartbeat_s, config.channel_max), (30, 128));
    assert!(said.left_out()[0].starts_with("advanced.config is not read: it is Erlang"));
    // `rabbitmq.conf` comes behind `90-more.conf`, and the last one counts.
    said.sources.rabbitmq_config = Some(said.folder.path().to_owned());
    assert_eq!(said.config().heartbeat_s, 30);
    std::fs::write(said.folder.path().join("z.conf"), "heartbeat = 10\n").unwrap();
    assert_eq!(said.config().heartbeat_s, 10);
}

#[test]
fn what_is_said_of_tokens_becomes_settings() {
    let said = said(
        "auth_backends.2 = rabbit_auth_backend_internal\n\
         auth_backends.1 = oauth2\n\
         auth_oauth2.resource_server_id = rabbitmq\n\
         auth_oauth2.issuer = https://idp.example/realms/prod\n\
         auth_oauth2.https.cacertfile = /etc/rabbitmq/idp.pem\n\
         auth_oauth2.https.peer_verification = verify_peer\n\
         auth_oauth2.https.hostname_verification = wildcard\n\
         auth_oauth2.signing_keys.id1 = /etc/rabbitmq/1.pem\n\
         auth_oauth2.signing_keys.id2 = /etc/rabbitmq/2.pem\n\
         auth_oauth2.default_key = id1\n\
         auth_oauth2.verify_aud = false\n\
         auth_oauth2.scope_prefix = api://\n\
         auth_oauth2.additional_scopes_key = roles realm_access.roles\n\
         auth_oauth2.preferred_username_claims.1 = user_name\n\
         auth_oauth2.preferred_username_claims.2 = email\n\
         auth_oauth2.algorithms.1 = RS256\n\
         auth_oauth2.scope_aliases.admin = api://tag:administrator api://read:*/*\n\
         auth_oauth2.scope_aliases.1.alias = urn:dev.team\n\
         auth_oauth2.scope_aliases.1.scope = api://write:*/*\n\
         management.oauth_client_id = page\n\
         management.oauth_enabled = true\n",
    );
    let config = said.config();
    assert_eq!(config.auth_backends, ["oauth2", "internal"]);
    let settings = config.token_settings().unwrap();
    let rules = settings.rules;
    assert_eq!((rules.resource_server_id.as_str(), rules.verifies_audience), ("rabbitmq", false));
    assert_eq!(settings.source, Some(KeySource::Issuer("https://idp.example/realms/prod".to_owned())));
    assert_eq!(settings.authorities, Some(PathBuf::from("/etc/rabbitmq/idp.pem")));
    assert_eq!(settings.files[1], ("id2".to_owned(), PathBuf::from("/etc/rabbitmq/2.pem")));
    assert_eq!(settings.default_key.as_deref(), Some("id1"));
    assert_eq!(rules.scope_prefix, "api://");
    assert_eq!(rules.additional_scopes, ["roles", "realm_access.roles"]);
    assert_eq!(rules.username_claims, ["user_name", "email"]);
    assert_eq!(rules.algorithms.len(), 1);
    assert_eq!(rules.aliases["admin"], ["api://tag:administrator", "api://read:*/*"]);
    assert_eq!(rules.aliases["urn:dev.team"], ["api://write:*/*"]);
    assert_eq!(config.management_oauth_client_id, ["page"]);
    let left_out = said.left_out();
    assert!(left_out.len() == 1 && left_out[0].contains("line 21: management.oauth_enabled"), "{left_out:?}");
}

#[test]
fn what_would_let_in_others_by_tokens_is_an_error() {
    let rest = "auth_backends.1 = oauth2\nauth_oauth2.resource_server_id = rabbitmq\nauth_oauth2.jwks_url = https://idp/keys\n";
    assert_eq!(said(rest).config().token_settings().unwrap().rules.scope_prefix, "rabbitmq.");
    let none = said(&format!("{rest}auth_oauth2.scope_prefix =\n"));
    assert_eq!(none.config().token_settings().unwrap().rules.scope_prefix, "");
    for (line, says) in [
        ("auth_oauth2.https.peer_verification = verify_none", "the issuer's certificate is always looked at"),
        ("auth_oauth2.https.hostname_verification = none", "has to name its host"),
        ("auth_oauth2.resource_servers.1.id = other", "there is one resource server"),
        ("auth_oauth2.oauth_providers.1.issuer = https://other", "there is one issuer"),
        ("auth_oauth2.scope_pattern_syntax = regexpr", "not regular expressions"),
        ("auth_oauth2.resource_server_type = rabbitmq", "rich authorization requests are not read"),
        ("auth_oauth2.scope_aliases.1.alias = x", "needs both alias and scope"),
        ("auth_oauth2.jwks_url = http://idp/keys", "it begins with https://"),
        ("auth_oauth2.algorithms.1 = none", "RS256"),
        ("auth_oauth2.verify_audience = true", "it is not known"),
        ("auth_backends.2.authn = internal", "who says who somebody is says what they may do as well"),
    ] {
        let errors = said(&format!("{rest}{line}\n")).errors();
        assert!(errors.len() == 1 && errors[0].contains(says), "{line}: {errors:?}");
    }
    for (text, says) in [
        ("auth_backends.1 = oauth2\n", "oauth2 needs oauth2_resource_server_id"),
        ("auth_oauth2.issuer = https://idp\n", "it means nothing without oauth2 in auth_backends"),
    ] {
        assert!(said(text).errors().iter().any(|error| error.contains(says)), "{text}: {:?}", said(text).errors());
    }
}
