//! What goes back: a status, JSON or text, and for a refusal RabbitMQ's `error` and `reason`.

use broker::topology::Refusal;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use server::handle::ChangeError;

/// An answer before it is sent.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    body: Bytes,
    content_type: &'static str,
    headers: Vec<(HeaderName, String)>,
}

/// Why there is no other answer. What a caller may know is in it and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// 404.
    NotFound,
    /// 404, with what is missing.
    Missing(String),
    /// 405, with the methods that there are.
    NotAllowed(&'static [&'static str]),
    /// 401: nobody said who asks.
    Anonymous,
    /// 401: name or password are wrong, or do not count from there.
    LoginFailed(&'static str),
    /// 401, with a reason.
    NotAuthorised(&'static str),
    /// 400: there is no such page, under RabbitMQ's name for why.
    WrongPage(&'static str, String),
    /// 400, with a reason.
    BadRequest(String),
    /// 400, with a reason that RabbitMQ gives as a list.
    Because(Value),
    /// 401, with the reason that AMQP gives.
    Denied(String),
    /// 403: a page of another site asks.
    OtherSite,
    /// 415, 417 or 501: what a header of the request asks for is not done here.
    NotDone(StatusCode, String),
    /// 413.
    TooLarge,
    /// 408: the body did not come in time.
    TooSlow,
    /// 503: the node could not go on with it, and nobody knows how far it came.
    NoAnswer,
    /// 503: what it concerns is not served now.
    Unavailable(String),
}

impl Refused {
    /// The same with what is to be known beside it, where something is not served now.
    pub(crate) fn but(self, more: &str) -> Refused {
        match self {
            Refused::Unavailable(reason) => Refused::Unavailable(format!("{reason}; {more}")),
            other => other,
        }
    }
}

impl Answer {
    fn new(status: StatusCode) -> Answer {
        Answer { status, body: Bytes::new(), content_type: JSON, headers: Vec::new() }
    }

    /// 200 and a JSON document.
    pub(crate) fn json(value: &Value) -> Answer {
        Answer::text(value.to_string().into(), JSON)
    }

    /// 200 and a text of this type.
    pub(crate) fn text(body: Bytes, content_type: &'static str) -> Answer {
        Answer { body, content_type, ..Answer::new(StatusCode::OK) }
    }

    /// 201 for something new, 204 for what was there.
    pub(crate) fn put(is_new: bool) -> Answer {
        Answer::new(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
    }

    /// 201, and where the new thing is.
    pub(crate) fn created_at(path: String) -> Answer {
        Answer { headers: vec![(LOCATION, path)], ..Answer::new(StatusCode::CREATED) }
    }

    /// 204.
    pub(crate) fn done() -> Answer {
        Answer::new(StatusCode::NO_CONTENT)
    }

    /// 202: it is done, or will be.
    pub(crate) fn accepted() -> Answer {
        Answer::new(StatusCode::ACCEPTED)
    }

    /// 302: it is there.
    pub(crate) fn found_at(path: &str) -> Answer {
        Answer { headers: vec![(LOCATION, path.to_owned())], ..Answer::new(StatusCode::FOUND) }
    }

    /// The same as a 202, with what it came to.
    pub(crate) fn accepted_with_body(self) -> Answer {
        Answer { status: StatusCode::ACCEPTED, ..self }
    }

    /// 304: who asks has it.
    pub(crate) fn unchanged() -> Answer {
        Answer::new(StatusCode::NOT_MODIFIED)
    }

    /// The same with a header.
    pub(crate) fn with(mut self, name: HeaderName, value: &str) -> Answer {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// The same without what makes a browser ask for a password: the page does that itself.
    pub(crate) fn without_challenge(mut self) -> Answer {
        self.headers.retain(|(name, _)| *name != WWW_AUTHENTICATE);
        self
    }

    /// A health check that failed.
    pub(crate) fn unhealthy(value: &Value) -> Answer {
        Answer { status: StatusCode::SERVICE_UNAVAILABLE, ..Answer::json(value) }
    }

    /// 503: the node is on its way up. Clients of the API tell it by `booting`.
    pub(crate) fn booting(reason: &str) -> Answer {
        let told = json!({ "error": "service_unavailable", "reason": reason, "booting": true });
        Answer::unhealthy(&told).with(hyper::header::RETRY_AFTER, "2")
    }

    /// The same with a body that `map` made of its own.
    pub(crate) fn map_body(self, map: impl FnOnce(Bytes) -> Bytes) -> Answer {
        Answer { body: map(self.body), ..self }
    }

    /// What another node answered, as it is.
    pub(crate) fn passed_on(status: u16, body: Bytes) -> Answer {
        Answer { body, ..Answer::new(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY)) }
    }

    /// Status and body, for another node that asked.
    pub(crate) fn into_parts(self) -> (u16, Bytes) {
        (self.status.as_u16(), self.body)
    }

    /// The same with a header more.
    pub(crate) fn with_header(mut self, name: &'static str, value: String) -> Answer {
        self.headers.push((HeaderName::from_static(name), value));
        self
    }

    /// The status.
    pub(crate) fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// Why somebody who is known may not have what he asked for, if that is the answer.
    pub(crate) fn reason_of_refusal(&self) -> Option<String> {
        if ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&self.status) {
            return None;
        }
        let told: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        Some(told["reason"].as_str().unwrap_or_default().to_owned())
    }

    /// As hyper sends it. Without `has_body` only the head is sent, which is what HEAD asks for.
    pub(crate) fn into_response(self, has_body: bool) -> Response<Full<Bytes>> {
        let length = self.body.len();
        let body = if has_body { self.body } else { Bytes::new() };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        if length > 0 {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        if !has_body {
            headers.insert(hyper::header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        for (name, value) in self.headers {
            // A path with bytes that no header may have is left out: nothing depends on it.
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

pub(crate) const JSON: &str = "application/json";

impl From<Refused> for Answer {
    fn from(refused: Refused) -> Answer {
        let error = |status, error: &str, reason: &str| Answer {
            status,
            ..Answer::json(&json!({ "error": error, "reason": reason }))
        };
        match refused {
            Refused::NotFound => error(StatusCode::NOT_FOUND, "Object Not Found", "Not Found"),
            Refused::Missing(reason) => error(StatusCode::NOT_FOUND, "not_found", &reason),
            Refused::WrongPage(why, reason) => error(StatusCode::BAD_REQUEST, why, &reason),
            Refused::NotAllowed(methods) => {
                let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", "Method Not Allowed");
                answer.headers.push((ALLOW, methods.join(", ")));
                answer
            }
            // Two spellings, as RabbitMQ has them.
            Refused::Anonymous => challenge(error(StatusCode::UNAUTHORIZED, "not_authorized", "Login failed")),
            Refused::LoginFailed(reason) => challenge(error(StatusCode::UNAUTHORIZED, "not_authorized", reason)),
            Refused::NotAuthorised(reason) => challenge(error(StatusCode::UNAUTHORIZED, "not_authorised", reason)),
            Refused::BadRequest(reason) => error(StatusCode::BAD_REQUEST, "bad_request", &reason),
            Refused::Because(reason) => Answer {
                status: StatusCode::BAD_REQUEST,
                ..Answer::json(&json!({ "error": "bad_request", "reason": reason }))
            },
            Refused::Denied(reason) => challenge(error(StatusCode::UNAUTHORIZED, "not_authorised", &reason)),
            Refused::Unavailable(reason) => error(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", &reason),
            Refused::OtherSite => {
                error(StatusCode::FORBIDDEN, "forbidden", "a page of another site may not change anything here")
            }
            Refused::NotDone(status, reason) => error(status, "not_supported", &reason),
            Refused::TooLarge => error(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "the body is too large"),
            Refused::TooSlow => error(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come in time"),
            Refused::NoAnswer => {
                let reason =
                    "the node could not finish this request: if it changes something, look whether that is done";
                error(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
            }
        }
    }
}

fn challenge(mut answer: Answer) -> Answer {
    answer.headers.push((WWW_AUTHENTICATE, "Basic realm=\"RabbitMQ Management\"".to_owned()));
    answer
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        match refusal.code {
            403 => Refused::NotAuthorised("Access refused."),
            404 => Refused::Missing(sentence(&refusal)),
            _ => Refused::BadRequest(sentence(&refusal)),
        }
    }
}

impl From<ChangeError> for Refused {
    fn from(error: ChangeError) -> Refused {
        match error {
            ChangeError::Refused(refusal) => refusal.into(),
            ChangeError::InUse(text) => Refused::BadRequest(text.to_owned()),
            ChangeError::Unavailable
            | ChangeError::Undecided(_)
            | ChangeError::NotCaughtUp(_)
            | ChangeError::Leaderless(_)
            | ChangeError::NoAnswer => Refused::Unavailable(error.to_string()),
        }
    }
}

/// A refusal without the name of its code, as RabbitMQ's API gives it.
fn sentence(refusal: &Refusal) -> String {
    refusal.text.split_once(" - ").map_or(&*refusal.text, |(_, sentence)| sentence).to_owned()
}
