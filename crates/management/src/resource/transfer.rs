//! `/api/leveret/queues/VHOST/NAME/move`: messages from the front of a queue into another one.
//!
//! Invariant: a message leaves its queue only when the other one has confirmed it. Whatever ends
//! this in between leaves it where it was, or in both.

use super::Cx;
use super::message::{check_right, need_keys, number, open, refused, said};
use super::queue::checked;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::own_channel::Published;
use amqp::wire::method::Method;
use broker::topology::{Access, Kind};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Most messages of one request.
const COUNT_MAX: u64 = 10_000;
/// After so long a request is answered with what is done; who wants more asks again.
const TIME: Duration = Duration::from_secs(5);
/// How long the whole may take, its wait for its turn included.
const TIMEOUT: Duration = Duration::from_secs(30);

/// POST of `to` and `count`; how many were moved.
pub(super) async fn transfer(cx: Cx<'_>, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    let id = cx.usable_vhost(vhost).map_err(|refused| said(refused, "vhost_not_found"))?;
    if cx.handle().topology().find_queue(id, checked(name)?).is_none() {
        return Err(Refused::Missing("queue_not_found".to_owned()));
    }
    cx.check_before_body(|topology| check_right(cx, topology, id, (Kind::Queue, name), Access::Read)).await?;
    let fields = fields::MOVE.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["to", "count"])?;
    let Value::String(to) = &fields["to"] else { return Err(Refused::BadRequest("to is no text".to_owned())) };
    let count = number(&fields["count"])?;
    if count > COUNT_MAX {
        return Err(Refused::BadRequest(format!("count is at most {COUNT_MAX}")));
    }
    if to.as_bytes() == name {
        return Err(Refused::BadRequest("it is in this queue already".to_owned()));
    }
    if to.len() > broker::topology::NAME_BYTES_MAX || cx.handle().topology().find_queue(id, to.as_bytes()).is_none() {
        return Err(Refused::BadRequest(format!("there is no queue {to} to move messages to")));
    }
    if let Some(reason) = cx.handle().blocked_reason() {
        return Err(Refused::Unavailable(format!("publishers are blocked: {reason}")));
    }
    let moving = async {
        let _turn = cx.call.messages.acquire().await.map_err(|_| Refused::NoAnswer)?;
        let (mut channel, begun, mut moved) = (open(cx, vhost).await?, Instant::now(), 0);
        let mut is_empty = false;
        while moved < count && begun.elapsed() < TIME && !cx.call.asker.is_gone() {
            let Some(got) = channel.get(name).await.map_err(refused)? else {
                is_empty = true;
                break;
            };
            // What is not acknowledged goes back to its place when the channel is dropped.
            let published = channel.publish(b"", to.as_bytes(), &got.properties, &got.body).await;
            let published = published.map_err(|ended| {
                refused(ended)
                    .but("the message that was on its way may be in both queues, those before it are in the other one")
            })?;
            match published {
                Published::Routed => {}
                Published::Unrouted => {
                    return Err(Refused::BadRequest(format!("the queue {to} is gone; {moved} were moved")));
                }
                Published::Rejected => {
                    return Err(Refused::BadRequest(format!("the queue {to} refuses messages; {moved} were moved")));
                }
            }
            let ack = Method::BasicAck { delivery_tag: got.delivery_tag, multiple: false };
            channel.tell(&ack).await.map_err(refused)?;
            moved += 1;
        }
        channel.close().await.map_err(refused)?;
        Ok(Answer::json(&json!({ "moved": moved, "empty": is_empty })))
    };
    let late = "not all was moved in time: what was is in the other queue";
    tokio::time::timeout(TIMEOUT, moving).await.unwrap_or_else(|_| Err(Refused::Unavailable(late.to_owned())))
}
