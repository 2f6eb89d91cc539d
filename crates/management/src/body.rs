//! The body of a request, read once it is known that its sender may change what it is about.
//!
//! Invariant: a short body waits for nobody. Long ones take turns, which bounds the memory for
//! them, and administrators have turns of their own: whoever sends slowly holds up neither them nor
//! anybody's short change. The time for a body counts from its first byte to its last, so sending a
//! little now and then renews nothing.

use crate::access::Caller;
use crate::answer::Refused;
use crate::waiting::{Lacking, Request};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Largest body: RabbitMQ's own limit, in powers of two.
const BODY_BYTES_MAX: usize = 16 << 20;
/// A body up to this length needs no turn; all connections together hold 16 MiB of them.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// How long a body may take as a whole, the wait for its turn included.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Long bodies of administrators that are read at one time: definitions are theirs.
const ADMINISTRATOR_TURNS: usize = 4;
/// Long bodies of everybody else.
const OTHER_TURNS: usize = 2;

/// The turns for long bodies.
#[derive(Debug)]
pub(crate) struct Turns {
    administrators: Semaphore,
    others: Semaphore,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        Turns { administrators: Semaphore::new(ADMINISTRATOR_TURNS), others: Semaphore::new(OTHER_TURNS) }
    }
}

/// A body that was not read yet.
#[derive(Debug)]
pub(crate) struct Body {
    /// None where another node asks.
    incoming: Option<Incoming>,
    turns: Rc<Turns>,
    request: Rc<Request>,
}

impl Body {
    pub(crate) fn new(incoming: Option<Incoming>, turns: Rc<Turns>, request: Rc<Request>) -> Body {
        Body { incoming, turns, request }
    }

    /// All of it. The caller's rights were checked before: this is the first that costs memory and
    /// time.
    pub(crate) async fn read(self, caller: &Caller) -> Result<Bytes, Refused> {
        let Body { incoming, turns, request } = self;
        let Some(incoming) = incoming else { return Ok(Bytes::new()) };
        if incoming.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(Refused::TooLarge);
        }
        let turns = if caller.is_administrator() { &turns.administrators } else { &turns.others };
        request.lacks(Lacking::Bytes);
        let collected = tokio::time::timeout(BODY_TIMEOUT, collect(incoming, turns, &request)).await;
        request.is_whole();
        collected.unwrap_or(Err(Refused::TooSlow))
    }
}

async fn collect(mut incoming: Incoming, turns: &Semaphore, request: &Request) -> Result<Bytes, Refused> {
    let mut whole = BytesMut::new();
    let mut turn = None;
    while let Some(frame) = incoming.frame().await {
        // A sender that broke off reads no answer.
        let frame = frame.map_err(|_| Refused::BadRequest("the body is not whole".to_owned()))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = whole.len() + data.len();
        if length > BODY_BYTES_MAX {
            return Err(Refused::TooLarge);
        }
        if length > SHORT_BYTES_MAX && turn.is_none() {
            request.lacks(Lacking::Turn);
            turn = Some(turns.acquire().await.map_err(|_| Refused::NoAnswer)?);
            request.lacks(Lacking::Bytes);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
