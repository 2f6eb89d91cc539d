//! Logins over HTTP, and passwords that are set there.
//!
//! Invariant: each login is counted once, and held to the same limits as those of AMQP. Nothing slow is done
//! on the caller's thread: who looks at a password or a token tells what was found.

use super::Handle;
use crate::passwords::hashed;
use crate::random;
use broker::topology::{HashAlgorithm, Name, PasswordHash, SALT_BYTES, Token};
use bytes::Bytes;
use session::{Admitted, LoginOver, PasswordCheck, Verdict, is_token};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// The name or the password is wrong.
    Wrong,
    /// Too many logins failed: the password was not looked at, and whoever asks is not to know
    /// that.
    NotAdmitted,
    /// So many logins wait for a look at their passwords that this one was not looked at.
    TooMany,
    /// This user may come from this machine only.
    OnlyLoopback,
    /// Users of this broker are not let in, only tokens are.
    OnlyTokens,
    /// A token counts for nothing, for this reason.
    Token(&'static str),
}

impl Handle {
    /// Whether somebody may log in with this password from this address; a token says who they are, as
    /// whoever they name. It does not ask what they may do.
    pub async fn check_login(
        &self,
        user: &[u8],
        password: &[u8],
        from: SocketAddr,
    ) -> Result<Option<Arc<Token>>, LoginError> {
        if self.takes_tokens() && is_token(password) {
            return self.check_token(password, from).await.map(Some);
        }
        let login = self.check_user(user, password, from).await;
        self.shared().sessions.logins.count(LoginOver::Http, login.is_ok());
        login.map(|()| None)
    }

    /// Whether tokens are taken.
    pub fn takes_tokens(&self) -> bool {
        self.shared().tokens.is_some()
    }

    /// Whom a token names. Errors: it counts for nothing.
    pub async fn check_token(&self, token: &[u8], from: SocketAddr) -> Result<Arc<Token>, LoginError> {
        let shared = self.shared();
        let (sender, told) = oneshot::channel();
        let is_on_its_way = shared.tokens.as_ref().is_some_and(|tokens| {
            // Who does not wait any more does not need it.
            tokens.look(Bytes::copy_from_slice(token), move |found| drop(sender.send(found)))
        });
        let found = match is_on_its_way {
            true => told.await.unwrap_or(Err("nobody looked at it")).map_err(LoginError::Token),
            false => Err(LoginError::TooMany),
        };
        let login = found.and_then(|token| match self.is_kept_out(&token.user, from) {
            true => Err(LoginError::OnlyLoopback),
            false => Ok(token),
        });
        shared.sessions.logins.count(LoginOver::Http, login.is_ok());
        login
    }

    /// Whether a user logs in from this machine only, and this is another one.
    fn is_kept_out(&self, user: &[u8], from: SocketAddr) -> bool {
        let only_loopback = self.shared().config.loopback_users.iter().any(|other| other.as_bytes() == user);
        only_loopback && !from.ip().to_canonical().is_loopback()
    }

    async fn check_user(&self, user: &[u8], password: &[u8], from: SocketAddr) -> Result<(), LoginError> {
        let shared = self.shared();
        if !shared.config.takes_passwords {
            return Err(LoginError::OnlyTokens);
        }
        let hash = shared.topology().user(user).map(|user| user.password.clone());
        let (exists, mut admitted) = (hash.is_some(), None);
        let mut admit = || {
            admitted = shared.sessions.logins.admit(from.ip(), user, exists, shared.now());
            Admitted::of(admitted.as_ref())
        };
        let (sender, told) = oneshot::channel();
        let verdict = match hash {
            Some(hash) => {
                let check = PasswordCheck { user: Name::new(user), hash, password: Bytes::copy_from_slice(password) };
                shared.passwords.check(check, &mut admit, move |is_right| {
                    // Who does not wait any more does not need it.
                    let _ = sender.send(is_right);
                })
            }
            None if admit() == Admitted::No => Verdict::NotAdmitted,
            None => Verdict::Wrong,
        };
        let verdict = match verdict {
            Verdict::Later if told.await.unwrap_or(false) => Verdict::Right,
            Verdict::Later => Verdict::Wrong,
            found => found,
        };
        match verdict {
            Verdict::NotAdmitted => Err(LoginError::NotAdmitted),
            Verdict::TooMany => Err(LoginError::TooMany),
            Verdict::Wrong | Verdict::Later => Err(LoginError::Wrong),
            Verdict::Right if self.is_kept_out(user, from) => Err(LoginError::OnlyLoopback),
            Verdict::Right => {
                if let Some(admitted) = admitted {
                    shared.sessions.logins.was_right(admitted, shared.now());
                }
                Ok(())
            }
        }
    }

    /// How many logins were right and how many were wrong since the start, or since they were last
    /// forgotten.
    pub fn logins(&self, over: LoginOver) -> (u64, u64) {
        self.shared().sessions.logins.counted(over)
    }

    /// Counts logins from 0 again.
    pub fn forget_logins(&self) {
        self.shared().sessions.logins.forget_counted();
    }

    /// Hashes a password that is set anew, as the settings say; on another thread where that takes
    /// long. `None`: too much waits for that.
    pub async fn hash_password(&self, password: &[u8]) -> Option<PasswordHash> {
        let shared = self.shared();
        let algorithm = shared.hashing();
        if algorithm != HashAlgorithm::Argon2id {
            return Some(hashed(algorithm, password));
        }
        let (sender, told) = oneshot::channel();
        let is_on_its_way =
            shared.passwords.hash(Bytes::copy_from_slice(password), move |hash| drop(sender.send(hash)));
        if is_on_its_way { told.await.ok() } else { None }
    }

    /// Random bytes for a password's hash.
    pub fn salt(&self) -> [u8; SALT_BYTES] {
        random::salt()
    }
}
