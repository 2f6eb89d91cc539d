//! Where passwords are hashed and looked at that take long on purpose.
//!
//! Invariant: no shard and no other thread that others wait for hashes by Argon2id. A few threads
//! do, with less right to the processor than the shards have, and what waits for them has a limit.
//! A password that was right before is known again by a digest under a key that only this process
//! has and that it drew at its start: a thousand connections that come back at once cost one hash a
//! user and not a thousand. Only right passwords are remembered, each with the very hash that it
//! was compared with, so that a password that is set anew ends what was known at that moment; and
//! for a time that is set, so that what is in memory is that of users who come.

use broker::topology::{ARGON2_SALT_BYTES, HashAlgorithm, Name, PasswordHash};
use bytes::Bytes;
use hmac::{Hmac, Mac};
use session::{Admitted, PasswordCheck, Verdict};
use sha2::Sha256;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::random;

/// Threads at most. Each takes 19 MiB for a hash of ours, and up to 128 MiB for one that was brought.
const THREADS_MAX: usize = 4;
/// What waits for a thread at most; further logins are refused.
const WAITING_MAX: usize = 16_384;
/// Users whose passwords are known again.
const KNOWN_MAX: usize = 16_384;
/// How much less right to the processor than the other threads of the process they have.
const NICE: i32 = 5;

type Job = Box<dyn FnOnce() + Send>;

/// See the module.
pub(crate) struct Passwords {
    line: Arc<Line>,
    known: Arc<Known>,
    threads_max: usize,
    on_quiet: fn(),
}

/// What waits for a thread.
#[derive(Default)]
struct Line {
    inner: Mutex<Waiting>,
    called: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Of users who logged in from there before, and of whoever asks from inside.
    first: VecDeque<Job>,
    then: VecDeque<Job>,
    /// What is being looked at, or waits for that, and who else wants to know.
    looked_at: HashMap<Digest, Vec<Told>>,
    threads: usize,
    idle: usize,
    is_over: bool,
}

/// Who is told whether a password was right.
type Told = Box<dyn FnOnce(bool) + Send>;

/// Passwords that were right.
struct Known {
    key: [u8; 32],
    /// How long each is known; zero is not at all.
    life: Duration,
    users: Mutex<HashMap<Name, (Digest, Instant)>>,
}

/// Of a hash and its password, under the process's key.
type Digest = [u8; 32];

impl Passwords {
    /// With so many threads at most as half of `processors`, which are started when they are needed.
    /// What was right is known for `life`.
    pub(crate) fn new(processors: usize, life: Duration, on_quiet: fn()) -> Passwords {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&random::secret().to_be_bytes());
        key[16..].copy_from_slice(&random::secret().to_be_bytes());
        let known = Known { key, life, users: Mutex::default() };
        let threads_max = (processors / 2).clamp(1, THREADS_MAX);
        Passwords { line: Arc::default(), known: Arc::new(known), threads_max, on_quiet }
    }

    /// Whether this is the password; if that takes long, `answer` is told on another thread. See
    /// [`session::Host::check_password`] about `admit`.
    pub(crate) fn check(
        &self,
        check: PasswordCheck,
        admit: &mut dyn FnMut() -> Admitted,
        answer: impl FnOnce(bool) + Send + 'static,
    ) -> Verdict {
        let PasswordCheck { user, hash, password } = check;
        if !hash.is_slow() {
            return match (admit(), hash.matches(&password)) {
                (Admitted::No, _) => Verdict::NotAdmitted,
                (_, true) => Verdict::Right,
                (_, false) => Verdict::Wrong,
            };
        }
        let same = self.known.digest(&user, &hash, &password);
        if let Some(others) = self.line.lock().looked_at.get_mut(&same) {
            if others.len() >= WAITING_MAX {
                return Verdict::TooMany;
            }
            others.push(Box::new(answer));
            return Verdict::Later;
        }
        let admitted = admit();
        if admitted == Admitted::No {
            return Verdict::NotAdmitted;
        }
        if password.is_empty() {
            return Verdict::Wrong;
        }
        if self.known.is(&user, &same) {
            return Verdict::Right;
        }
        let (known, line) = (self.known.clone(), self.line.clone());
        let job = move || {
            let is_right = known.finds(&user, &hash, &password);
            let waiting = line.lock().looked_at.remove(&same);
            answer(is_right);
            waiting.into_iter().flatten().for_each(|other| other(is_right));
        };
        if self.push(Box::new(job), admitted == Admitted::Known, Some(same)) {
            Verdict::Later
        } else {
            Verdict::TooMany
        }
    }

    /// Hashes a password by Argon2id and tells `answer` on another thread. False: too many wait.
    pub(crate) fn hash(&self, password: Bytes, answer: impl FnOnce(PasswordHash) + Send + 'static) -> bool {
        self.push(Box::new(move || answer(hashed(HashAlgorithm::Argon2id, &password))), true, None)
    }

    /// Whether this is the password, on this thread, which nobody waits for.
    pub(crate) fn matches_here(&self, user: &Name, hash: &PasswordHash, password: &[u8]) -> bool {
        if hash.is_slow() { self.known.finds(user, hash, password) } else { hash.matches(password) }
    }

    fn push(&self, job: Job, is_first: bool, looks_at: Option<Digest>) -> bool {
        let mut waiting = self.line.lock();
        if waiting.first.len() + waiting.then.len() >= WAITING_MAX {
            return false;
        }
        if let Some(same) = looks_at {
            waiting.looked_at.entry(same).or_default();
        }
        if is_first {
            waiting.first.push_back(job)
        } else {
            waiting.then.push_back(job)
        }
        if waiting.idle == 0 && waiting.threads < self.threads_max {
            let (line, on_quiet) = (self.line.clone(), self.on_quiet);
            let thread = std::thread::Builder::new().name("passwords".into());
            match thread.spawn(move || line.work(on_quiet)) {
                Ok(_) => waiting.threads += 1,
                // Those that there are go on; without any, the next login tries again.
                Err(error) => tracing::error!(%error, "a thread that looks at passwords cannot be started"),
            }
        }
        drop(waiting);
        self.line.called.notify_one();
        true
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.line.lock().is_over = true;
        self.line.called.notify_all();
    }
}

impl Line {
    /// Nothing is ever left half done under this lock.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, on_quiet: fn()) {
        // Of this thread alone. Where it is not allowed, it goes on as it is.
        let _ = rustix::process::setpriority_process(None, NICE);
        let mut waiting = self.lock();
        let mut has_worked = false;
        loop {
            if waiting.is_over {
                return;
            }
            if let Some(job) = waiting.first.pop_front().or_else(|| waiting.then.pop_front()) {
                drop(waiting);
                job();
                has_worked = true;
                waiting = self.lock();
                continue;
            }
            if std::mem::take(&mut has_worked) {
                // What the hashes took goes back.
                drop(waiting);
                on_quiet();
                waiting = self.lock();
                continue;
            }
            waiting.idle += 1;
            waiting = self.called.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            waiting.idle -= 1;
        }
    }
}

impl Known {
    fn mac(&self, user: &Name, hash: &PasswordHash, password: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length will do");
        for part in [&**user, hash.to_bytes()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.update(password);
        mac
    }

    fn digest(&self, user: &Name, hash: &PasswordHash, password: &[u8]) -> Digest {
        self.mac(user, hash, password).finalize().into_bytes().into()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, (Digest, Instant)>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the password of this digest was right before. What is compared are digests under a
    /// key that nobody knows: how long that takes says nothing of the password.
    fn is(&self, user: &Name, digest: &Digest) -> bool {
        self.lock().get(user).is_some_and(|(known, since)| since.elapsed() < self.life && known == digest)
    }

    /// Finds out whether it is right, and remembers it then.
    fn finds(&self, user: &Name, hash: &PasswordHash, password: &[u8]) -> bool {
        let digest = self.digest(user, hash, password);
        // Somebody may have found out meanwhile.
        if self.is(user, &digest) {
            return true;
        }
        let is_right = hash.matches(password);
        if is_right && !self.life.is_zero() {
            let mut users = self.lock();
            users.insert(user.clone(), (digest, Instant::now()));
            if users.len() > KNOWN_MAX {
                let mut moments: Vec<Instant> = users.values().map(|(_, since)| *since).collect();
                let middle = moments.len() / 2;
                let middle = *moments.select_nth_unstable(middle).1;
                users.retain(|_, (_, since)| *since > middle);
            }
        }
        is_right
    }
}

/// Hashes a password with a salt that is drawn here. With Argon2id that takes long.
pub(crate) fn hashed(algorithm: HashAlgorithm, password: &[u8]) -> PasswordHash {
    match algorithm {
        HashAlgorithm::Argon2id => {
            let salt: [u8; ARGON2_SALT_BYTES] = random::secret().to_be_bytes();
            PasswordHash::argon2id(password, salt)
        }
        other => PasswordHash::salted(other, password, random::salt()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Of "correct", and as cheap as can be.
    const CHEAP: &str = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$Q9mLqWybVxlm3nEKpLiL2oKOz5sP3jVILMQEHXckZmA";

    fn passwords(life: Duration) -> Passwords {
        Passwords::new(2, life, || {})
    }

    fn cheap() -> PasswordHash {
        PasswordHash::from_bytes(HashAlgorithm::Argon2id, CHEAP.as_bytes()).expect("it is one")
    }

    fn check(hash: PasswordHash, password: &'static str) -> PasswordCheck {
        PasswordCheck { user: Name::from("ann"), hash, password: Bytes::from_static(password.as_bytes()) }
    }

    /// The verdict, and what came later.
    fn ask(passwords: &Passwords, hash: PasswordHash, password: &'static str) -> (Verdict, Option<bool>) {
        let (sender, told) = mpsc::channel();
        let verdict = passwords.check(check(hash, password), &mut || Admitted::Yes, move |right| {
            let _ = sender.send(right);
        });
        (verdict, (verdict == Verdict::Later).then(|| told.recv().expect("somebody finds out")))
    }

    #[test]
    fn a_quick_hash_is_looked_at_here_and_a_slow_one_elsewhere() {
        let passwords = passwords(Duration::from_secs(60));
        let quick = PasswordHash::new(b"correct", [1; 4]);
        assert_eq!(ask(&passwords, quick.clone(), "correct"), (Verdict::Right, None));
        assert_eq!(ask(&passwords, quick, "wrong"), (Verdict::Wrong, None));
        assert_eq!(ask(&passwords, cheap(), "wrong"), (Verdict::Later, Some(false)));
        assert_eq!(ask(&passwords, cheap(), "correct"), (Verdict::Later, Some(true)));
    }

    #[test]
    fn a_password_that_was_right_is_known_again_and_no_other_is() {
        let passwords = passwords(Duration::from_secs(60));
        assert_eq!(ask(&passwords, cheap(), "correct"), (Verdict::Later, Some(true)));
        assert_eq!(ask(&passwords, cheap(), "correct"), (Verdict::Right, None));
        assert_eq!(ask(&passwords, cheap(), "wrong"), (Verdict::Later, Some(false)));
        assert_eq!(ask(&passwords, cheap(), "correct"), (Verdict::Right, None), "a wrong one changes nothing");
        let mut other = check(cheap(), "correct");
        other.user = Name::from("bob");
        assert_eq!(
            passwords.check(other, &mut || Admitted::Yes, |_| {}),
            Verdict::Later,
            "another user is another's matter"
        );
        let anew = hashed(HashAlgorithm::Argon2id, b"new");
        assert_eq!(ask(&passwords, anew, "correct"), (Verdict::Later, Some(false)), "the password was set anew");
    }

    #[test]
    fn nothing_is_known_where_that_is_not_wanted() {
        let passwords = passwords(Duration::ZERO);
        assert_eq!(ask(&passwords, cheap(), "correct"), (Verdict::Later, Some(true)));
        assert_eq!(ask(&passwords, cheap(), "correct"), (Verdict::Later, Some(true)));
        assert!(passwords.known.lock().is_empty());
    }

    #[test]
    fn what_waits_has_a_limit_and_those_who_are_known_come_first() {
        let passwords = passwords(Duration::ZERO);
        let (hold, held) = mpsc::channel::<()>();
        let (began, has_begun) = mpsc::channel();
        assert!(passwords.push(
            Box::new(move || {
                let _ = (began.send(()), held.recv());
            }),
            true,
            None
        ));
        has_begun.recv().expect("the only thread has it");
        let (sender, order) = mpsc::channel();
        let job = |number: usize| -> Job {
            let sender = sender.clone();
            Box::new(move || {
                let _ = sender.send(number);
            })
        };
        for number in 1..WAITING_MAX {
            assert!(passwords.push(job(number), false, None));
        }
        assert!(passwords.push(job(0), true, None));
        assert!(!passwords.push(job(0), true, None), "no more than that");
        assert_eq!(ask(&passwords, cheap(), "correct"), (Verdict::TooMany, None));
        drop(hold);
        assert_eq!([order.recv(), order.recv()], [Ok(0), Ok(1)]);
    }

    #[test]
    fn the_same_password_at_once_is_one_try_and_another_is_another() {
        let passwords = passwords(Duration::ZERO);
        let (hold, held) = mpsc::channel::<()>();
        let (sender, told) = mpsc::channel();
        let block = move || {
            let _ = held.recv();
        };
        assert!(passwords.push(Box::new(block), true, None));
        let mut tries = 0;
        let mut ask = |password| {
            let sender = sender.clone();
            let mut admit = || {
                tries += 1;
                if tries > 2 { Admitted::No } else { Admitted::Yes }
            };
            passwords.check(check(cheap(), password), &mut admit, move |right| {
                let _ = sender.send(right);
            })
        };
        assert!((0..100).all(|_| ask("correct") == Verdict::Later), "one try");
        assert_eq!([ask("wrong"), ask("wrong"), ask("other")], [Verdict::Later, Verdict::Later, Verdict::NotAdmitted]);
        drop(hold);
        let answers: Vec<bool> = (0..102).map(|_| told.recv().expect("all are answered")).collect();
        assert_eq!(answers.iter().filter(|right| **right).count(), 100);
    }

    #[test]
    fn the_known_are_no_more_than_that_and_the_latest_stay() {
        let passwords = passwords(Duration::from_secs(60));
        for number in 0..=KNOWN_MAX {
            let user = Name::from(format!("user{number}").as_str());
            let digest = (Digest::default(), Instant::now());
            passwords.known.lock().insert(user, digest);
        }
        assert!(passwords.known.finds(&Name::from("ann"), &cheap(), b"correct"));
        assert!(passwords.known.lock().len() <= KNOWN_MAX);
        let digest = passwords.known.digest(&Name::from("ann"), &cheap(), b"correct");
        assert!(passwords.known.is(&Name::from("ann"), &digest));
    }
}
