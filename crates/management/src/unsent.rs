//! Long answers: who may have one made, and what of them waits to be taken.
//!
//! Invariant: long answers that were made and not sent take no more than [`UNSENT_BYTES_MAX`]
//! together, or are one. When there are too many, the one goes with its connection that has waited
//! longest of whoever holds the most: who reads what was asked for is done long before. One user,
//! or one network of strangers, has one of them made at a time, so that the thread is never one
//! client's.

use broker::topology::Name;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

/// What they may take together.
const UNSENT_BYTES_MAX: usize = 64 << 20;
/// So long it is waited at most until connections that were ended are gone.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// Shorter ones are not counted: each connection has at most a few.
const LONG_BYTES: usize = 32 << 10;

/// Whose answer it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    User(Name),
    Stranger(IpAddr),
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    unsent: RefCell<Vec<Unsent>>,
    /// Those that were ended, until their connections have let go of them.
    ended: RefCell<Vec<sync::Weak<()>>>,
    making: RefCell<HashMap<Owner, sync::Weak<Mutex<()>>>>,
}

#[derive(Debug)]
struct Unsent {
    owner: Owner,
    bytes: usize,
    start: *const u8,
    /// Lives as long as the answer is in memory.
    memory: sync::Weak<()>,
    /// Tell the connections to end that it is for.
    ends: Vec<Weak<Notify>>,
}

/// Bytes that are counted as long as they live.
struct Counted {
    bytes: Bytes,
    _memory: sync::Arc<()>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answers {
    /// Waits until this owner has no other long answer made.
    pub(crate) async fn turn(&self, owner: Owner) -> OwnedMutexGuard<()> {
        let turn = {
            let mut making = self.making.borrow_mut();
            making.retain(|_, turn| turn.strong_count() > 0);
            let turn = making.get(&owner).and_then(sync::Weak::upgrade).unwrap_or_default();
            making.insert(owner, sync::Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }

    /// Waits until the answers that made room for others are gone: their connections are told so, and end when it is
    /// their turn. Whoever made the next answer before would have it in memory beside them, and so would all that ask
    /// at once.
    pub(crate) async fn room(&self) {
        let begin = Instant::now();
        while self.is_room_awaited() && begin.elapsed() < ROOM_WITHIN {
            tokio::task::yield_now().await;
        }
    }

    fn is_room_awaited(&self) -> bool {
        let mut ended = self.ended.borrow_mut();
        ended.retain(|memory| memory.strong_count() > 0);
        !ended.is_empty()
    }

    /// Counts an answer until it is sent. Several connections may be sent the same one, which is
    /// counted once.
    pub(crate) fn count(&self, bytes: Bytes, owner: Owner, end: &Rc<Notify>) -> Bytes {
        if bytes.len() < LONG_BYTES {
            return bytes;
        }
        let mut all = self.unsent.borrow_mut();
        all.retain(|unsent| unsent.memory.strong_count() > 0);
        if let Some(same) = all.iter_mut().find(|unsent| unsent.start == bytes.as_ptr())
            && let Some(memory) = same.memory.upgrade()
        {
            same.ends.retain(|end| end.strong_count() > 0);
            same.ends.push(Rc::downgrade(end));
            return Bytes::from_owner(Counted { bytes, _memory: memory });
        }
        self.ended.borrow_mut().extend(make_room(&mut all, &owner, bytes.len()));
        let memory = sync::Arc::new(());
        let ends = vec![Rc::downgrade(end)];
        let (start, memory_of) = (bytes.as_ptr(), sync::Arc::downgrade(&memory));
        all.push(Unsent { owner, bytes: bytes.len(), start, memory: memory_of, ends });
        Bytes::from_owner(Counted { bytes, _memory: memory })
    }
}

/// Ends what has waited longest of those who have the most, until there is room for so much more of
/// this owner's. Those are told.
fn make_room(all: &mut Vec<Unsent>, owner: &Owner, bytes: usize) -> Vec<sync::Weak<()>> {
    let mut ended = Vec::new();
    while !all.is_empty() && all.iter().map(|unsent| unsent.bytes).sum::<usize>() + bytes > UNSENT_BYTES_MAX {
        let mut sums: HashMap<&Owner, usize> = HashMap::new();
        all.iter().for_each(|unsent| *sums.entry(&unsent.owner).or_default() += unsent.bytes);
        sums.entry(owner).and_modify(|sum| *sum += bytes);
        let most = sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(owner, _)| owner.clone());
        let oldest = all.iter().position(|unsent| Some(&unsent.owner) == most.as_ref()).unwrap_or(0);
        let gone = all.remove(oldest);
        for end in gone.ends {
            if let Some(end) = end.upgrade() {
                tracing::debug!("an answer that was not read made room for another");
                end.notify_one();
            }
        }
        ended.push(gone.memory);
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn is_asked_to_end(end: &Rc<Notify>) -> bool {
        std::pin::pin!(end.notified()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    fn owner(name: &str) -> Owner {
        Owner::User(Name::from(name))
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_asks_next_waits_until_what_made_room_is_gone() {
        let answers = Answers::default();
        let large = || Bytes::from(vec![0; UNSENT_BYTES_MAX - 1]);
        let ends: Vec<Rc<Notify>> = (0..2).map(|_| Rc::default()).collect();
        answers.room().await;
        let first = answers.count(large(), owner("ann"), &ends[0]);
        answers.room().await;
        let second = answers.count(large(), owner("ann"), &ends[1]);
        let mut waits = Box::pin(answers.room());
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(is_asked_to_end(&ends[0]) && poll().is_pending() && poll().is_pending(), "its connection has it still");
        drop(first);
        assert!(poll().is_ready());
        drop(second);
    }

    #[test]
    fn the_oldest_of_who_has_the_most_goes_and_what_was_sent_counts_no_more() {
        let answers = Answers::default();
        let third = || Bytes::from(vec![0; UNSENT_BYTES_MAX / 3]);
        let ends: Vec<Rc<Notify>> = (0..5).map(|_| Rc::default()).collect();
        let ann = answers.count(third(), owner("ann"), &ends[0]);
        let first = answers.count(third(), owner("bob"), &ends[1]);
        let second = answers.count(third(), owner("bob"), &ends[2]);
        assert!(!ends.iter().any(is_asked_to_end));
        let other = answers.count(third(), owner("cid"), &ends[3]);
        assert!(is_asked_to_end(&ends[1]), "the older of the two");
        assert!(!ends.iter().any(is_asked_to_end));
        drop((ann, first, second));
        let last = answers.count(third(), owner("ann"), &ends[4]);
        assert!(!ends.iter().any(is_asked_to_end), "what was read has made room");
        drop((last, other));
    }

    #[test]
    fn one_page_for_many_is_counted_once_and_one_that_is_too_large_is_sent_alone() {
        let answers = Answers::default();
        let ends: Vec<Rc<Notify>> = (0..9).map(|_| Rc::default()).collect();
        let page = Bytes::from(vec![7; UNSENT_BYTES_MAX / 2]);
        let sent: Vec<Bytes> = ends.iter().map(|end| answers.count(page.clone(), owner("ann"), end)).collect();
        assert!(sent.iter().all(|sent| *sent == page) && !ends.iter().any(is_asked_to_end));
        let end: Rc<Notify> = Rc::default();
        let large = answers.count(Bytes::from(vec![0; UNSENT_BYTES_MAX * 2]), owner("bob"), &end);
        assert!(ends.iter().all(is_asked_to_end) && !is_asked_to_end(&end));
        drop((sent, large));
    }

    #[test]
    fn an_owner_has_one_answer_made_at_a_time_and_others_theirs() {
        let answers = Answers::default();
        let mut context = Context::from_waker(Waker::noop());
        let first = std::pin::pin!(answers.turn(owner("ann"))).poll(&mut context);
        let mut second = std::pin::pin!(answers.turn(owner("ann")));
        assert!(first.is_ready() && second.as_mut().poll(&mut context).is_pending());
        assert!(std::pin::pin!(answers.turn(owner("bob"))).poll(&mut context).is_ready());
        drop(first);
        assert!(second.as_mut().poll(&mut context).is_ready());
    }
}
