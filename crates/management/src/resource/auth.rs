//! `/api/auth`: how one logs in here, how many logins there were, and what a password's hash is.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::listing;
use base64::Engine as _;
use broker::topology::PasswordHash;
use serde_json::{Value, json};
use server::Handle;
use server::handle::LoginOver;

/// GET: whether tokens are taken, and by which client an issuer knows the page. Earlier releases of
/// RabbitMQ call OAuth 2 by the name of a server for it.
pub(super) fn ways(handle: &Handle) -> Result<Answer, Refused> {
    let config = &handle.facts().config;
    let mut ways = json!({
        "oauth_enabled": handle.takes_tokens(),
        "enable_uaa": false,
        "uaa_client_id": "",
        "uaa_location": "",
    });
    if handle.takes_tokens() {
        ways["oauth_client_id"] = config.management_oauth_client_id.first().map(String::as_str).unwrap_or("").into();
        ways["oauth_provider_url"] = config.oauth2_issuer.first().map(String::as_str).unwrap_or("").into();
        ways["oauth_resource_id"] = config.oauth2_resource_server_id.first().map(String::as_str).unwrap_or("").into();
        ways["oauth_disable_basic_auth"] = (!config.takes_passwords()).into();
    }
    Ok(Answer::json(&ways))
}

/// GET of how many logins there were, by protocol; one without any is not in it.
pub(super) fn attempts(cx: Cx<'_>, node: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.need_node(node)?;
    let over = [("amqp091", LoginOver::Amqp), ("http", LoginOver::Http)];
    let counted = over.map(|(name, over)| (name, cx.handle().logins(over)));
    let items =
        counted.into_iter().filter(|(_, (right, wrong))| right + wrong > 0).map(|(protocol, (right, wrong))| {
            json!({
                "protocol": protocol,
                "auth_attempts": right + wrong,
                "auth_attempts_failed": wrong,
                "auth_attempts_succeeded": right,
            })
        });
    Ok(Answer::json(&listing::list(cx.call, items.collect())?))
}

/// GET of how many there were by address and name, which is not counted: RabbitMQ does so only
/// where it is told to.
pub(super) fn attempts_by_source(cx: Cx<'_>, node: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.need_node(node)?;
    Ok(Answer::json(&Value::Array(Vec::new())))
}

/// DELETE: they are counted from 0 again.
pub(super) fn forget_attempts(cx: Cx<'_>, node: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.need_node(node)?;
    cx.handle().forget_logins();
    Ok(Answer::done())
}

/// GET of the hash of a password, for definitions.
pub(super) fn hash_password(cx: Cx<'_>, password: &[u8]) -> Result<Answer, Refused> {
    let hash = PasswordHash::new(password, cx.handle().salt());
    Ok(Answer::json(&json!({ "ok": base64::engine::general_purpose::STANDARD.encode(hash.to_bytes()) })))
}
