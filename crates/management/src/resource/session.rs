//! `/api/leveret/session`: a login on the page, and its end.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use hyper::header::SET_COOKIE;

/// POST: who named a name and a password gets a cookie for both.
pub(super) async fn begin(cx: Cx<'_>, body: Body) -> Result<Answer, Refused> {
    if cx.caller.is_operator() {
        return Err(Refused::BadRequest("a session is a user's: log in with a name and a password".to_owned()));
    }
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    let cookie = cx.call.sessions.begin(cx.handle(), cx.caller)?;
    Ok(Answer::done().with(SET_COOKIE, &cookie))
}

/// DELETE: the cookie counts no more.
pub(super) fn end(cx: Cx<'_>) -> Result<Answer, Refused> {
    let cookie = cx.call.sessions.end(&cx.call.head.headers);
    Ok(Answer::done().with(SET_COOKIE, &cookie))
}
