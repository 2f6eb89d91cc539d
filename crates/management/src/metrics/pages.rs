//! The pages of metrics that are made: nobody is asked for a password, so nobody may have more than one of them made at a
//! time, nor all together.
//!
//! Invariant: of the pages that tell things one by one, which may be very long, one is in the making in the whole process,
//! or the last one is kept. That is given for [`PAGE_AGE`] to all who ask for the same, and no other one is begun until it
//! is over. So memory is for one of them beside those that wait to be read, which `unsent` bounds, and the thread that
//! answers everybody gathers the figures for one of them a second at most. A page that is begun is finished, whoever
//! listens, as its memory is in use until then. Pages of sums are made one after another.

use super::encode;
use super::scrape::Scrape;
use super::view::View;
use crate::answer::Refused;
use crate::call::Call;
use crate::permits;
use crate::unsent::Owner;
use bytes::Bytes;
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

/// How long a page is given to others who ask: a page of many queues takes long to make.
const PAGE_AGE: Duration = Duration::from_secs(1);
/// Shorter pages are made for each who asks.
const LONG_BYTES: usize = 256 << 10;
/// About how long a page of sums is.
const SUMS_BYTES: usize = 32 << 10;
/// How long a turn is waited for. Prometheus gives up then, unless it is told otherwise.
const TURN_WITHIN: Duration = Duration::from_secs(10);

/// What is said to who waited for longer.
pub(super) const LATE: &str = "others have pages of metrics made";

/// What a page tells, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) view: View,
    pub(super) is_plain: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// The long page that was made last, if that was a moment ago.
    newest: RefCell<Option<(Page, Bytes)>>,
    /// How long that was: a page of the same is about as long.
    bytes: RefCell<Option<(Page, usize)>>,
    /// Tells who waits that there is another one.
    made: Notify,
    /// Held while a page is made that tells things one by one, and while it is kept.
    making: Arc<Mutex<()>>,
    /// The same of sums, which are not kept.
    adding: Mutex<()>,
}

/// The turns of a page: that of its asker among pages and lists, and that of all pages.
type Turn = (OwnedMutexGuard<()>, OwnedMutexGuard<()>);

impl Pages {
    /// The text of a page; `None` where others have theirs made for too long.
    pub(super) async fn text_of(self: &Rc<Self>, call: &Call<'_>, page: Page) -> Result<Option<Bytes>, Refused> {
        if !page.view.is_each() {
            let _turn = self.adding.lock().await;
            let scrape = Scrape::new(call, page.view).await;
            return encode(scrape, page.is_plain, Some(SUMS_BYTES)).ok_or(Refused::NoAnswer).map(Some);
        }
        let owner = Owner::Stranger(permits::network(call.peer.ip()));
        let turn = async {
            let of_owner = call.answers.turn(owner).await;
            (of_owner, self.making.clone().lock_owned().await)
        };
        match tokio::time::timeout(TURN_WITHIN, self.kept_or(&page, turn)).await {
            Err(_) => Ok(None),
            Ok(Ok(text)) => Ok(Some(text)),
            Ok(Err(turn)) => {
                call.answers.room().await;
                let scrape = Scrape::new(call, page.view.clone()).await;
                // A task of its own, which goes on with its turn where the client hangs up.
                let making = tokio::task::spawn_local(self.clone().make(page, scrape, turn));
                making.await.ok().flatten().ok_or(Refused::NoAnswer).map(Some)
            }
        }
    }

    /// The page if it is kept, or is made by another meanwhile; as an error the turn to make it.
    async fn kept_or<T>(&self, page: &Page, turn: impl Future<Output = T>) -> Result<Bytes, T> {
        let mut turn = pin!(turn);
        loop {
            let kept = self.newest.borrow().as_ref().filter(|(kept, _)| kept == page).map(|(_, text)| text.clone());
            if let Some(text) = kept {
                return Ok(text);
            }
            tokio::select! {
                biased;
                turn = turn.as_mut() => return Err(turn),
                () = self.made.notified() => {}
            }
        }
    }

    /// Makes a page, and keeps it for a moment if it is long.
    async fn make(self: Rc<Self>, page: Page, scrape: Scrape, turn: Turn) -> Option<Bytes> {
        let last = self.bytes.borrow().as_ref().filter(|(last, _)| *last == page).map(|(_, bytes)| *bytes);
        let is_plain = page.is_plain;
        // Others have this thread meanwhile.
        let text = tokio::task::spawn_blocking(move || encode(scrape, is_plain, last)).await.ok().flatten()?;
        self.keep(page, &text, turn);
        Some(text)
    }

    fn keep<T: 'static>(self: Rc<Self>, page: Page, text: &Bytes, turn: T) {
        if text.len() < LONG_BYTES {
            return;
        }
        *self.bytes.borrow_mut() = Some((page.clone(), text.len()));
        *self.newest.borrow_mut() = Some((page, text.clone()));
        self.made.notify_waiters();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(PAGE_AGE).await;
            *self.newest.borrow_mut() = None;
            drop(turn);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn page(is_plain: bool) -> Page {
        Page { view: View::Each, is_plain }
    }

    fn long() -> Bytes {
        Bytes::from(vec![b'x'; LONG_BYTES])
    }

    async fn taken(pages: &Pages, page: &Page) -> Result<Bytes, OwnedMutexGuard<()>> {
        pages.kept_or(page, pages.making.clone().lock_owned()).await
    }

    #[tokio::test(flavor = "local")]
    async fn a_long_page_is_given_to_all_who_wait_for_it_and_others_are_begun_a_second_later() {
        let pages = Rc::new(Pages::default());
        let turn = taken(&pages, &page(false)).await.expect_err("there is none");
        let other = page(true);
        let asked = page(false);
        let (mut same, mut next) = (pin!(taken(&pages, &asked)), pin!(taken(&pages, &other)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(same.as_mut().poll(&mut context).is_pending() && next.as_mut().poll(&mut context).is_pending());
        pages.clone().keep(page(false), &long(), turn);
        assert!(matches!(same.as_mut().poll(&mut context), Poll::Ready(Ok(text)) if text == long()));
        assert!(next.as_mut().poll(&mut context).is_pending(), "the last one is still there");
        tokio::time::sleep(PAGE_AGE / 2).await;
        assert!(taken(&pages, &page(false)).await.is_ok() && next.as_mut().poll(&mut context).is_pending());
        tokio::time::sleep(PAGE_AGE * 2).await;
        assert!(matches!(next.as_mut().poll(&mut context), Poll::Ready(Err(_))) && pages.newest.borrow().is_none());
    }

    #[tokio::test(flavor = "local")]
    async fn a_short_page_is_made_for_each_who_asks_one_after_another() {
        let pages = Rc::new(Pages::default());
        let turn = taken(&pages, &page(false)).await.expect_err("there is none");
        let asked = page(false);
        let mut next = pin!(taken(&pages, &asked));
        let mut context = Context::from_waker(Waker::noop());
        assert!(next.as_mut().poll(&mut context).is_pending());
        pages.clone().keep(page(false), &Bytes::from_static(b"x"), turn);
        assert!(matches!(next.as_mut().poll(&mut context), Poll::Ready(Err(_))));
    }
}
