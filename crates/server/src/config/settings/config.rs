//! A configuration: a value for each setting, and who said it.
//!
//! Invariant: a value that nobody said is the default of its row, held to the same rules as what people
//! write.

use super::{Config, Key, SETTINGS};
use crate::cluster::{LinkFiles, SecretFiles};
use crate::config::error::Origin;
use crate::config::machine::Machine;
use crate::config::setting::{DefaultValue, Setting};
use crate::config::value::{Given, Value};
use crate::tls::{PemFile, TlsFiles};

impl Config {
    /// All defaults on this machine.
    pub fn for_machine(machine: &Machine) -> Config {
        let values = SETTINGS.each_ref().map(|setting| default_value(setting, machine));
        Config::from_values(values, SETTINGS.each_ref().map(|_| Origin::Default))
    }

    /// Who said what a setting is.
    pub fn origin(&self, key: Key) -> &Origin {
        &self.origins[key as usize]
    }

    /// Whether nobody said what a setting is. Then a default that the machine cannot do (IPv6) may
    /// be left out, and a default name gives way to the one in the data folder.
    pub fn is_default(&self, key: Key) -> bool {
        *self.origin(key) == Origin::Default
    }

    /// Every setting with its value and who said so, the default included; for people, so without what
    /// is secret.
    pub fn all(&self) -> impl Iterator<Item = (&'static Setting, Value, &Origin)> {
        SETTINGS.iter().zip(&self.origins).map(|(setting, origin)| (setting, self.told(setting.key), origin))
    }

    /// The settings that somebody has said, for the log of a start.
    pub fn chosen(&self) -> impl Iterator<Item = (&'static Setting, Value, &Origin)> {
        SETTINGS
            .iter()
            .zip(&self.origins)
            .filter(|(_, origin)| **origin != Origin::Default)
            .map(|(setting, origin)| (setting, self.told(setting.key), origin))
    }

    /// Replaces single values. Relations between settings are not looked at: see
    /// [`Config::contradictions`].
    pub(in crate::config) fn with(self, said: Vec<(Key, Value, Origin)>) -> Config {
        let mut values = SETTINGS.each_ref().map(|setting| self.value(setting.key));
        let mut origins = self.origins;
        for (key, value, origin) in said {
            values[key as usize] = value;
            origins[key as usize] = origin;
        }
        Config::from_values(values, origins)
    }

    /// The files that TLS needs; `None` without `amqps`.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.pem(Key::tls_certificate)?, self.pem(Key::tls_key)?);
        let files = TlsFiles { certificate, key, authorities: self.pem(Key::tls_ca), verify: self.tls_verify };
        (!self.amqps.is_empty()).then_some(files)
    }

    /// The files that the management API needs for HTTPS; `None` without `management_tls`.
    pub fn management_tls_files(&self) -> Option<TlsFiles> {
        let (certificate, key) = match (&self.management_tls_certificate, &self.management_tls_key) {
            (None, None) => (self.pem(Key::tls_certificate)?, self.pem(Key::tls_key)?),
            _ => (self.pem(Key::management_tls_certificate)?, self.pem(Key::management_tls_key)?),
        };
        let (authorities, verify) = (self.pem(Key::management_tls_ca), self.management_tls_verify);
        (!self.management_tls.is_empty()).then_some(TlsFiles { certificate, key, authorities, verify })
    }

    /// The files that links between nodes need; `None` where nothing is encrypted between them.
    pub fn cluster_tls_files(&self) -> Option<LinkFiles> {
        Some(LinkFiles {
            authorities: self.pem(Key::cluster_tls_ca)?,
            certificate: self.pem(Key::cluster_tls_certificate)?,
            key: self.pem(Key::cluster_tls_key)?,
        })
    }

    /// The files of the cluster's secrets, if there is a cluster.
    pub(crate) fn cluster_secret_files(&self) -> Option<SecretFiles> {
        Some(SecretFiles { now: self.cluster_secret_file.clone()?, before: self.cluster_secret_file_before.clone() })
    }

    /// The files of certificates that somebody has set, whether something uses them or not.
    pub(crate) fn certificate_files(&self) -> impl Iterator<Item = PemFile> {
        let all = [
            Key::tls_certificate,
            Key::tls_ca,
            Key::management_tls_certificate,
            Key::management_tls_ca,
            Key::cluster_tls_certificate,
            Key::cluster_tls_ca,
            Key::oauth2_ca,
            Key::otel_ca,
        ];
        all.into_iter().filter_map(|key| self.pem(key))
    }

    /// The same of keys.
    pub(crate) fn key_files(&self) -> impl Iterator<Item = PemFile> {
        [Key::tls_key, Key::management_tls_key, Key::cluster_tls_key].into_iter().filter_map(|key| self.pem(key))
    }

    /// The file that a setting names.
    fn pem(&self, key: Key) -> Option<PemFile> {
        match self.value(key) {
            Value::File(path) => Some(PemFile::new(key.setting().name, path?)),
            _ => None,
        }
    }
}

/// The default of a row, held to the same rules as what people write.
fn default_value(setting: &Setting, machine: &Machine) -> Value {
    let text = match setting.default {
        DefaultValue::Fixed(text) => text.to_owned(),
        DefaultValue::OfMachine { of, .. } => of(machine),
    };
    let value = Value::check(setting.kind, &Given::Plain(text.clone()));
    value.unwrap_or_else(|| panic!("the default {text:?} of {} must be an allowed value", setting.name))
}
