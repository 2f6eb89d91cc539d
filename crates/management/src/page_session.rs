//! Who is logged in on the page: after one request with a name and a password a browser has a
//! cookie instead of them.
//!
//! Invariant: a cookie counts only with a header that a page of another site cannot send, no script
//! can read it, and it ends: at a logout, when it is not used or has been used for long, when the
//! user is gone or has another password, when the token ends by which it began, and with the process. What a user may do is looked up at
//! each request and never remembered.

use crate::access::Caller;
use crate::answer::Refused;
use broker::topology::{Name, Token};
use hyper::HeaderMap;
use hyper::header::COOKIE;
use server::Handle;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// What the page sends with each request. A page of another site would have to ask first (CORS),
/// and is never answered.
pub(crate) const PAGE_HEADER: &str = "x-leveret-page";
/// How long one lasts, as RabbitMQ's.
const LIFE: Duration = Duration::from_secs(8 * 3600);
/// How long one lasts that is not used. An open page that is looked at uses it every few seconds.
const IDLE: Duration = Duration::from_secs(3600);
/// Most at a time for one user; the oldest makes room.
const OF_A_USER_MAX: usize = 32;

struct Session {
    user: Name,
    by: By,
    begun: Instant,
    used: Instant,
}

/// What somebody has logged in by.
enum By {
    /// The user's password, of which this is the hash: with another one the session ends.
    Password(Vec<u8>),
    /// A token, with which it ends.
    Token(Arc<Token>),
}

impl By {
    fn is_over(&self, handle: &Handle, user: &Name) -> bool {
        match self {
            By::Password(hash) => password_of(handle, user).is_none_or(|now| now != *hash),
            By::Token(token) => token.expires_ms <= wall_ms(),
        }
    }
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.begun) >= LIFE || now.duration_since(self.used) >= IDLE
    }
}

/// All of them.
pub(crate) struct Sessions {
    /// The cookie's name: several brokers of one machine share their cookies, as a port is none.
    cookie: String,
    held: RefCell<HashMap<String, Session>>,
}

impl Sessions {
    pub(crate) fn new(handle: &Handle) -> Sessions {
        let cookie = format!("leveret_session_{:08x}", handle.secret() as u32);
        Sessions { cookie, held: RefCell::default() }
    }

    /// Whether a request is the page's.
    pub(crate) fn is_page(headers: &HeaderMap) -> bool {
        headers.contains_key(PAGE_HEADER)
    }

    /// Begins one for who has just shown who they are. What comes back is the cookie to set.
    pub(crate) fn begin(&self, handle: &Handle, caller: &Caller) -> Result<String, Refused> {
        let user = &caller.name;
        let by = match caller.token() {
            Some(token) => By::Token(token.clone()),
            None => By::Password(password_of(handle, user).ok_or(Refused::Anonymous)?),
        };
        let (mut held, now) = (self.held.borrow_mut(), Instant::now());
        held.retain(|_, session| !session.is_over(now));
        while held.values().filter(|session| session.user == *user).count() >= OF_A_USER_MAX {
            let theirs = held.iter().filter(|(_, session)| session.user == *user);
            let Some(oldest) = theirs.min_by_key(|(_, session)| session.used).map(|(token, _)| token.clone()) else {
                break;
            };
            held.remove(&oldest);
        }
        let token = format!("{:032x}{:032x}", handle.secret(), handle.secret());
        held.insert(token.clone(), Session { user: user.clone(), by, begun: now, used: now });
        Ok(self.set_cookie(&token, LIFE.as_secs()))
    }

    /// Ends the one of a request, if it has one. What comes back takes the cookie away.
    pub(crate) fn end(&self, headers: &HeaderMap) -> String {
        if let Some(token) = self.token(headers) {
            self.held.borrow_mut().remove(token);
        }
        self.set_cookie("", 0)
    }

    /// Who asks, by the cookie. Errors: nobody does.
    pub(crate) fn caller(&self, handle: &Handle, headers: &HeaderMap, from: SocketAddr) -> Result<Caller, Refused> {
        let token = self.token(headers).ok_or(Refused::Anonymous)?;
        let (mut held, now) = (self.held.borrow_mut(), Instant::now());
        let session = held.get_mut(token).ok_or(Refused::Anonymous)?;
        if session.is_over(now) || session.by.is_over(handle, &session.user) {
            held.remove(token);
            return Err(Refused::Anonymous);
        }
        session.used = now;
        match &session.by {
            By::Password(_) => Caller::of_session(handle, &session.user, from),
            By::Token(token) => Ok(Caller::by_token(token.clone())),
        }
    }

    fn token<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let cookies = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie).map(|(_, token)| token)
    }

    fn set_cookie(&self, token: &str, seconds: u64) -> String {
        format!("{}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict", self.cookie)
    }
}

fn wall_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}

fn password_of(handle: &Handle, user: &Name) -> Option<Vec<u8>> {
    handle.topology().user(user).map(|user| user.password.to_bytes().to_vec())
}
