//! The first words of a connection: protocol header, login, limits, virtual host.
//!
//! Invariant: after it the limits are those that both sides agreed to.

use amqp::wire::frame::PROTOCOL_HEADER;
use amqp::wire::method::Method;
use amqp::{Table, Value};
use bytes::Bytes;

use super::{Client, Limits};
use crate::Error;
use crate::options::Options;
use crate::uri::Uri;

/// Channels that we ask for when the broker does not limit them.
const CHANNEL_MAX: u16 = 2047;

/// What a broker says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `product` of its server properties.
    pub product: String,
    /// `version`.
    pub version: String,
    /// `cluster_name`.
    pub cluster: String,
}

impl Client {
    pub(super) fn shake_hands(&mut self, uri: &Uri, options: &Options) -> Result<(), Error> {
        self.write(&PROTOCOL_HEADER)?;
        let (properties, mechanisms) = match self.receive()? {
            (0, Method::ConnectionStart { server_properties, mechanisms, .. }) => (server_properties, mechanisms),
            (_, other) => return Err(self.unexpected(&other)),
        };
        let mechanism = if options.sasl_external { "EXTERNAL" } else { "PLAIN" };
        if !mechanisms.split(|byte| *byte == b' ').any(|name| name == mechanism.as_bytes()) {
            let text = format!("it offers {}", String::from_utf8_lossy(&mechanisms));
            return Err(Error::Refused { what: format!("a login with {mechanism}"), code: 403, text });
        }
        let (response, who) = match options.sasl_external {
            true => (Bytes::new(), "by certificate".to_owned()),
            false => (Bytes::from(format!("\0{}\0{}", uri.user, uri.password)), format!("of {}", uri.user)),
        };
        self.identity = identity(&properties);
        let start_ok = Method::ConnectionStartOk {
            client_properties: client_properties(),
            mechanism: Bytes::from_static(mechanism.as_bytes()),
            response,
            locale: Bytes::from_static(b"en_US"),
        };
        let what = format!("the login {who}");
        let (channel_max, frame_max, heartbeat) = match self.call(0, start_ok, &what) {
            Ok(Method::ConnectionTune { channel_max, frame_max, heartbeat }) => (channel_max, frame_max, heartbeat),
            Ok(other) => return Err(self.unexpected(&other)),
            // RabbitMQ without the close capability, and brokers that say nothing, just close the
            // socket.
            Err(Error::Unreachable { address, why }) => {
                return Err(Error::Unreachable { address, why: format!("{why}, after {what}") });
            }
            Err(other) => return Err(other),
        };
        self.limits = Limits {
            frame_max: lower(frame_max, options.frame_max),
            channel_max: lower(u32::from(channel_max), u32::from(CHANNEL_MAX)) as u16,
            // 0 from either side takes the other's word, as RabbitMQ's clients do.
            heartbeat_secs: lower(u32::from(heartbeat), u32::from(options.heartbeat_secs)) as u16,
        };
        let Limits { frame_max, channel_max, heartbeat_secs } = self.limits;
        let tune_ok = Method::ConnectionTuneOk { channel_max, frame_max, heartbeat: heartbeat_secs };
        self.send(0, &tune_ok)?;
        let open = Method::ConnectionOpen {
            virtual_host: Bytes::copy_from_slice(uri.vhost.as_bytes()),
            capabilities: Bytes::new(),
            insist: false,
        };
        self.call(0, open, &format!("virtual host {:?}", uri.vhost)).map(|_| ())
    }
}

/// The lower of two limits, where 0 is none.
fn lower(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 { a.max(b) } else { a.min(b) }
}

fn identity(properties: &Table) -> Identity {
    let text = |name| match properties.get(name) {
        Some(Value::LongString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let mut identity = Identity { product: text("product"), version: text("version"), cluster: text("cluster_name") };
    // Leveret calls itself RabbitMQ where clients look, unless its configuration says otherwise;
    // its platform is its own name.
    if let Some(version) = text("platform").strip_prefix("Leveret ") {
        identity.product = "Leveret".to_owned();
        identity.version = version.to_owned();
    }
    identity
}

fn client_properties() -> Table {
    let text = |text: &'static str| Value::LongString(Bytes::from_static(text.as_bytes()));
    let mut capabilities = Table::new();
    for name in [
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
        "exchange_exchange_bindings",
    ] {
        capabilities.push(name, Value::Bool(true));
    }
    let mut properties = Table::new();
    properties.push("product", text("leveret bench"));
    properties.push("version", text(env!("CARGO_PKG_VERSION")));
    properties.push("platform", text("Rust"));
    properties.push("capabilities", Value::Table(capabilities));
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pairs: &[(&'static str, &'static str)]) -> String {
        let mut properties = Table::new();
        pairs
            .iter()
            .for_each(|(name, value)| properties.push(*name, Value::LongString(Bytes::from_static(value.as_bytes()))));
        let identity = identity(&properties);
        format!("{} {}", identity.product, identity.version)
    }

    #[test]
    fn a_broker_that_poses_as_another_is_known_by_its_platform() {
        let posing = [("product", "RabbitMQ"), ("version", "4.0.0"), ("platform", "Leveret 0.1.0")];
        assert_eq!(told(&posing), "Leveret 0.1.0");
        assert_eq!(
            told(&[("product", "RabbitMQ"), ("version", "3.10.8"), ("platform", "Erlang/OTP 25")]),
            "RabbitMQ 3.10.8"
        );
    }
}
