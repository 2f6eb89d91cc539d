//! Where tokens are looked at, and where the keys that sign them come from.
//!
//! ```text
//!   a login ──token──▶ "tokens": signature, claims ──▶ whom it names, or why not
//!                         │ names a key that is not known        ▲ keys
//!                         └──────────▶ "token-keys": asks the issuer over HTTPS
//! ```
//!
//! Invariant: no shard looks at a signature, and nobody whose key is known waits for an issuer. An
//! issuer is asked at most every [`ASK_EVERY`], whatever tokens name: who sends tokens with names of
//! keys that nobody has gets an answer and causes no request. Every token that was taken is answered,
//! once. What an issuer said last counts until it says something else.

mod fetch;

use crate::config::TokenSettings;
use crate::engine::wall_ms;
use broker::topology::Token;
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokens::{Key, Keys, Refused, Rules};

/// Tokens that wait at most; further ones are refused.
const WAITING_MAX: usize = 16_384;
/// Tokens that wait for an issuer's answer at most.
const WAITING_FOR_KEYS_MAX: usize = 1024;
/// How often an issuer is asked at most.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// Keys that are older are asked for again: one that was taken back ends some day.
const KEYS_LIFE: Duration = Duration::from_secs(3600);

/// What is said of a token: whom it names, or why it counts for nothing.
pub(crate) type Told = Result<Arc<Token>, &'static str>;
type Answer = Box<dyn FnOnce(Told) + Send>;

/// Why a node that is to take tokens does not start.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct WrongKeyFile {
    file: PathBuf,
    why: String,
}

/// See the module.
pub(crate) struct Tokens {
    settings: TokenSettings,
    to: Mutex<Sender<Message>>,
    waiting: Arc<AtomicUsize>,
}

enum Message {
    Look {
        token: Bytes,
        answer: Answer,
    },
    /// What an issuer said, or why it said nothing.
    Fetched(Result<fetch::Found, String>),
    /// The keys of files are others now.
    Files(Keys),
    /// Nobody asks any more.
    End,
}

impl Tokens {
    /// Reads the keys of files, and has the issuer asked for the others. Errors: a file is no key, or
    /// a thread cannot be started.
    pub(crate) fn start(settings: TokenSettings) -> Result<Tokens, WrongKeyFile> {
        let own = keys_of_files(&settings)?;
        let (to, messages) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let asks = match &settings.source {
            None => None,
            Some(source) => {
                let (asks, asked) = channel();
                let fetch = fetch::Fetch::new(source.clone(), settings.authorities.clone())?;
                let to = to.clone();
                spawn("token-keys", move || fetch.run(&asked, |found| to.send(Message::Fetched(found)).is_ok()))?;
                Some(asks)
            }
        };
        let looker = Looker {
            rules: settings.rules.clone(),
            published: Keys::default(),
            all: own.clone(),
            own,
            asks,
            asked: None,
            fetched: None,
            waiting: waiting.clone(),
            for_keys: Vec::new(),
        };
        spawn("tokens", move || looker.run(&messages))?;
        Ok(Tokens { settings, to: Mutex::new(to), waiting })
    }

    /// Has a token looked at and `answer` told on another thread. False: too many wait.
    pub(crate) fn look(&self, token: Bytes, answer: impl FnOnce(Told) + Send + 'static) -> bool {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.send(Message::Look { token, answer: Box::new(answer) })
    }

    /// Reads the keys of files again. Errors: a file that is wrong, and those before stay in use.
    pub(crate) fn reload(&self) -> Result<(), WrongKeyFile> {
        let keys = keys_of_files(&self.settings)?;
        self.send(Message::Files(keys));
        Ok(())
    }

    fn send(&self, message: Message) -> bool {
        self.to.lock().unwrap_or_else(PoisonError::into_inner).send(message).is_ok()
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.send(Message::End);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), WrongKeyFile> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(|error| WrongKeyFile { file: name.into(), why: format!("cannot be started: {error}") })
}

fn keys_of_files(settings: &TokenSettings) -> Result<Keys, WrongKeyFile> {
    let mut keys = Keys::default();
    for (id, file) in &settings.files {
        let wrong = |why: String| WrongKeyFile { file: file.clone(), why };
        let contents = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
        let key = Key::from_file(&contents).map_err(|error| wrong(error.to_string()))?;
        let fitting = key.algorithms();
        if !fitting.iter().any(|algorithm| settings.rules.algorithms.contains(algorithm)) {
            // Every token of it would be refused, and the log would say that the token is wrong.
            let names: Vec<&str> = fitting.iter().map(|algorithm| algorithm.name()).collect();
            return Err(wrong(match names.is_empty() {
                true => "its alg is none for a key of its kind".to_owned(),
                false => format!("none of oauth2_algorithms is for such a key: it takes {}", names.join(" or ")),
            }));
        }
        keys.insert(id.clone(), key);
    }
    keys.set_default(settings.default_key.clone());
    Ok(keys)
}

/// The thread that looks.
struct Looker {
    rules: Rules,
    /// Of files.
    own: Keys,
    /// Of the issuer.
    published: Keys,
    /// Both.
    all: Keys,
    /// Where the issuer is asked.
    asks: Option<Sender<()>>,
    /// When it was asked last, and whether it has answered.
    asked: Option<(Instant, bool)>,
    /// When it gave keys last.
    fetched: Option<Instant>,
    waiting: Arc<AtomicUsize>,
    /// Tokens that wait for its answer.
    for_keys: Vec<(Bytes, Answer)>,
}

impl Looker {
    fn run(mut self, messages: &Receiver<Message>) {
        self.ask();
        loop {
            // Keys grow old where nobody logs in, too.
            let message = match messages.recv_timeout(ASK_EVERY) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if self.fetched.is_none_or(|at| at.elapsed() >= KEYS_LIFE) {
                self.ask();
            }
            match message {
                None => {}
                Some(Message::Look { token, answer }) => self.look(token, answer),
                Some(Message::Files(keys)) => {
                    self.own = keys;
                    self.all = self.own.before(&self.published);
                }
                Some(Message::Fetched(found)) => self.take(found),
                Some(Message::End) => return,
            }
        }
    }

    /// Asks the issuer, unless it was asked a moment ago. Whether it is being asked.
    fn ask(&mut self) -> bool {
        let Some(asks) = &self.asks else { return false };
        match self.asked {
            Some((_, false)) => true,
            Some((at, true)) if at.elapsed() < ASK_EVERY => false,
            _ => {
                self.asked = Some((Instant::now(), false));
                asks.send(()).is_ok()
            }
        }
    }

    fn look(&mut self, token: Bytes, answer: Answer) {
        match self.rules.look(&token, &self.all, wall_ms()) {
            Err(Refused::UnknownKey) if self.for_keys.len() < WAITING_FOR_KEYS_MAX && self.ask() => {
                self.for_keys.push((token, answer));
            }
            found => self.answer(found, answer),
        }
    }

    fn answer(&self, found: Result<Token, Refused>, answer: Answer) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        answer(found.map(Arc::new).map_err(Refused::reason));
    }

    fn take(&mut self, found: Result<fetch::Found, String>) {
        if let Some((_, has_answered)) = &mut self.asked {
            *has_answered = true;
        }
        match found {
            Ok(fetch::Found { keys, issuer }) => {
                if keys != self.published || self.fetched.is_none() {
                    tracing::info!(keys = keys.len(), "the keys of the issuer of tokens were read");
                }
                if let Some(issuer) = issuer.filter(|issuer| !self.rules.issuers.contains(issuer)) {
                    self.rules.issuers.push(issuer);
                }
                self.published = keys;
                self.all = self.own.before(&self.published);
                self.fetched = Some(Instant::now());
            }
            Err(why) => tracing::warn!(why, "the issuer of tokens gives no keys: those that are known stay in use"),
        }
        for (token, answer) in std::mem::take(&mut self.for_keys) {
            let found = self.rules.look(&token, &self.all, wall_ms());
            self.answer(found, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::tokens::Algorithm;

    #[test]
    fn a_key_that_no_allowed_algorithm_is_for_is_refused_with_what_would_be() {
        let file = std::env::temp_dir().join(format!("leveret-key-{}.json", std::process::id()));
        let settings = |algorithms: &[Algorithm]| TokenSettings {
            rules: Rules {
                resource_server_id: "rabbitmq".to_owned(),
                verifies_audience: true,
                issuers: Vec::new(),
                scope_prefix: String::new(),
                additional_scopes: Vec::new(),
                username_claims: Vec::new(),
                aliases: std::collections::BTreeMap::new(),
                algorithms: algorithms.to_vec(),
                leeway_s: 0,
            },
            source: None,
            authorities: None,
            files: vec![("own".to_owned(), file.clone())],
            default_key: None,
        };
        let read = |key: &str, algorithms: &[Algorithm]| {
            std::fs::write(&file, key).expect("a temporary file is written");
            keys_of_files(&settings(algorithms)).map(|keys| keys.len()).map_err(|error| error.why)
        };
        let secret = "\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\"";
        let plain = format!(r#"{{"kty":"oct",{secret}}}"#);
        assert_eq!(read(&plain, &[Algorithm::RS256, Algorithm::HS384]), Ok(1));
        let why = "none of oauth2_algorithms is for such a key: it takes HS256 or HS384 or HS512";
        assert_eq!(read(&plain, &[Algorithm::RS256, Algorithm::ES256]), Err(why.to_owned()));
        let wrong = read(&format!(r#"{{"kty":"oct","alg":"RS256",{secret}}}"#), &[Algorithm::RS256, Algorithm::HS256]);
        assert_eq!(wrong, Err("its alg is none for a key of its kind".to_owned()));
        std::fs::remove_file(file).expect("it was written");
    }
}
