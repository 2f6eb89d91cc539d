//! What clients are offered when they connect: capabilities, limits, mechanisms, certificates.

use amqp::{ConnectionConfig, Mechanism, Table, Value};
use rustls::ServerConfig;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

/// What a client without a certificate is offered: EXTERNAL is only for others, as in RabbitMQ.
fn without_certificate(offer: &ConnectionConfig) -> ConnectionConfig {
    let mut offer = offer.clone();
    // Where nothing else may be used, it is offered all the same, and every login without a
    // certificate is refused.
    if offer.mechanisms.iter().any(|mechanism| *mechanism != Mechanism::External) {
        offer.mechanisms.retain(|mechanism| *mechanism != Mechanism::External);
    }
    offer
}

/// The three kinds of clients there are, and what each is offered.
#[derive(Debug)]
pub(crate) struct Offers {
    plain: Arc<ConnectionConfig>,
    /// Who showed a certificate.
    certified: Arc<ConnectionConfig>,
    /// Connections of the node's own, for users who logged in elsewhere.
    own: Arc<ConnectionConfig>,
}

impl Offers {
    pub(super) fn new(offer: &ConnectionConfig) -> Offers {
        Offers {
            plain: Arc::new(without_certificate(offer)),
            certified: Arc::new(offer.clone()),
            own: Arc::new(ConnectionConfig { mechanisms: vec![Mechanism::External], ..offer.clone() }),
        }
    }

    /// What the client of a new connection is offered, in a cluster that may have a name.
    pub(crate) fn of(
        &self,
        is_own: bool,
        has_certificate: bool,
        cluster_name: Option<String>,
    ) -> Arc<ConnectionConfig> {
        let offer = match (is_own, has_certificate) {
            (true, _) => &self.own,
            (false, true) => &self.certified,
            (false, false) => &self.plain,
        };
        let Some(name) = cluster_name.map(|name| Value::LongString(name.into())) else { return offer.clone() };
        let is_name = |key: &[u8]| key == b"cluster_name";
        if offer.server_properties.iter().any(|(key, value)| is_name(key) && *value == name) {
            return offer.clone();
        }
        let mut properties = Table::new();
        for (key, value) in offer.server_properties.iter() {
            properties.push(key.clone(), if is_name(key) { name.clone() } else { value.clone() });
        }
        Arc::new(ConnectionConfig { server_properties: properties, ..ConnectionConfig::clone(offer) })
    }
}

/// The certificates that are shown to clients, and when the first of them ends.
#[derive(Debug, Default)]
pub(crate) struct Certificates {
    used: RwLock<Option<(Arc<ServerConfig>, SystemTime)>>,
}

impl Certificates {
    /// Those to use now.
    pub(crate) fn get(&self) -> Option<Arc<ServerConfig>> {
        let used = self.used.read().unwrap_or_else(PoisonError::into_inner);
        used.as_ref().map(|(config, _)| config.clone())
    }

    /// When the first of them ends.
    pub(crate) fn end(&self) -> Option<SystemTime> {
        self.used.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, end)| *end)
    }

    pub(super) fn put(&self, config: Arc<ServerConfig>, end: SystemTime) {
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = Some((config, end));
    }
}
