//! `/api/leveret/stop` and `/api/leveret/settings`: for who runs the broker.
//!
//! Invariant: nobody stops a broker over HTTP but who could do it by a signal, on its own machine.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use serde_json::{Value, json};

/// POST: the process ends as by SIGTERM. Asked for twice it ends once.
pub(super) async fn stop(cx: Cx<'_>, body: Body) -> Result<Answer, Refused> {
    let is_operator = cx.caller.is_operator();
    cx.caller.need(is_operator, "Only who has the operator's token stops a node: leveret ctl stop on its machine")?;
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    if cx.call.operator.stops_first() {
        crate::operator::stop_soon();
    }
    Ok(Answer::accepted())
}

/// GET of what the node is configured to be, and who said so.
pub(super) fn settings(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let all = cx.handle().facts().config.all();
    let settings: Vec<Value> = all
        .map(|(setting, value, origin)| {
            json!({ "name": setting.name, "value": value.shown(setting.kind), "origin": origin.to_string() })
        })
        .collect();
    Ok(Answer::json(&Value::from(settings)))
}
