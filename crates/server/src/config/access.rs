//! Settings about who comes in and about other nodes: how clients may log in, and which settings are each
//! allowed but not together.
//!
//! Invariant: what is wrong is told at the start, by the setting's name.

use super::error::ConfigError;
use super::settings::{Config, Key};
use crate::tls::VerifyClients;

impl Config {
    /// `auth_mechanisms`, as the AMQP machine knows them.
    pub fn mechanisms(&self) -> Vec<amqp::Mechanism> {
        self.auth_mechanisms.iter().filter_map(|name| mechanism(name)).collect()
    }

    /// Of those about other nodes.
    pub(super) fn cluster_contradictions(&self) -> Vec<ConfigError> {
        let files = [
            (Key::cluster_tls_ca, &self.cluster_tls_ca),
            (Key::cluster_tls_certificate, &self.cluster_tls_certificate),
            (Key::cluster_tls_key, &self.cluster_tls_key),
        ];
        let missing = files.iter().find(|(_, file)| file.is_none()).map(|(key, _)| key.setting().name);
        let found = files.iter().find(|(_, file)| file.is_some()).map(|(key, _)| *key);
        let (Some(missing), Some(key)) = (missing, found) else { return Vec::new() };
        let setting = key.setting();
        let rule = format!("it needs {missing}, which is not set: nodes encrypt with all three or none");
        vec![ConfigError::relation(setting, self.origin(key), self.value(key).shown(setting.kind), rule)]
    }

    /// Of those about who comes in.
    pub(super) fn access_contradictions(&self) -> Vec<ConfigError> {
        let wrong = |key: Key, rule: String| {
            let setting = key.setting();
            ConfigError::relation(setting, self.origin(key), self.value(key).shown(setting.kind), rule)
        };
        let mut errors = Vec::new();
        for (key, file) in [(Key::tls_certificate, &self.tls_certificate), (Key::tls_key, &self.tls_key)] {
            if !self.amqps.is_empty() && file.is_none() {
                errors.push(wrong(Key::amqps, format!("it needs {}, which is not set", key.setting().name)));
            }
        }
        if self.tls_verify != VerifyClients::Never && self.tls_ca.is_none() {
            errors.push(wrong(Key::tls_verify, "it needs tls_ca, which is not set".to_owned()));
        }
        if !self.management_tls.is_empty() && self.management_tls_files().is_none() {
            let rule = "it needs management_tls_certificate and management_tls_key, or tls_certificate and tls_key";
            errors.push(wrong(Key::management_tls, rule.to_owned()));
        }
        if self.management_tls_verify != VerifyClients::Never && self.management_tls_ca.is_none() {
            errors.push(wrong(Key::management_tls_verify, "it needs management_tls_ca, which is not set".to_owned()));
        }
        let both = self.management_tls.iter().find(|address| self.management.contains(address) && address.port() != 0);
        if let Some(twice) = both {
            let rule = format!("{twice} is in management already; one port speaks one of the two");
            errors.push(wrong(Key::management_tls, rule));
        }
        if let Some(twice) = self.amqps.iter().find(|address| self.amqp.contains(address) && address.port() != 0) {
            errors.push(wrong(Key::amqps, format!("{twice} is in amqp already; one port speaks one of the two")));
        }
        if let Some(other) = self.proxy_protocol.iter().find(|a| !self.amqp.contains(a) && !self.amqps.contains(a)) {
            errors.push(wrong(Key::proxy_protocol, format!("{other} is in neither amqp nor amqps")));
        }
        if self.amqp.is_empty() && self.amqps.is_empty() {
            errors.push(wrong(Key::amqp, "without it amqps needs an address".to_owned()));
        }
        let known = amqp::ConnectionConfig::CAPABILITIES;
        if self.capabilities.iter().any(|name| !known.contains(&name.as_str())) {
            errors.push(wrong(Key::capabilities, format!("some of {} are expected", known.join(", "))));
        }
        let unknown = self.auth_mechanisms.iter().find(|name| mechanism(name).is_none());
        if unknown.is_some() || self.auth_mechanisms.is_empty() {
            errors.push(wrong(
                Key::auth_mechanisms,
                "one or more of PLAIN, AMQPLAIN, EXTERNAL, ANONYMOUS and RABBIT-CR-DEMO are expected".to_owned(),
            ));
        }
        if self.auth_mechanisms.iter().any(|name| name == "EXTERNAL") && self.tls_verify == VerifyClients::Never {
            let rule = "EXTERNAL needs tls_verify to be optional or required".to_owned();
            errors.push(wrong(Key::auth_mechanisms, rule));
        }
        errors
    }
}

fn mechanism(name: &str) -> Option<amqp::Mechanism> {
    use amqp::Mechanism::{AmqPlain, Anonymous, CrDemo, External, Plain};
    [Plain, AmqPlain, External, Anonymous, CrDemo].into_iter().find(|mechanism| mechanism.name() == name)
}
