//! The task of a connection: it reads and writes when its socket says so, and closes it at the end.
//!
//! Invariant: it goes behind all others that are ready: nobody is starved by one busy socket. A connection
//! ends once, when both ends of its socket are closed or nobody waits any more.

use super::reading::READ_BYTES_MIN;
use super::{Client, Inner};
use crate::shard::Local;
use crate::turn::Turn;
use bytes::BytesMut;
use session::Cx;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::AsyncReadExt;

/// The task of one connection: woken when its socket can be read, or written after it was full.
pub(crate) struct ConnectionTask {
    client: Rc<Client>,
    local: Rc<Local>,
    /// Our end is closed; what still comes is thrown away until the client closes its end.
    is_closing: bool,
}

impl ConnectionTask {
    /// The task of `client`.
    pub(crate) fn new(client: Rc<Client>, local: Rc<Local>) -> Self {
        ConnectionTask { client, local, is_closing: false }
    }

    /// Closes our end, then waits for the client's. True when both are closed, or waiting is over.
    fn poll_close(&mut self, inner: &mut Inner, cx: &mut Context<'_>) -> bool {
        if !self.is_closing {
            self.is_closing = true;
            inner.stream.say_end();
            if rustix::net::shutdown(inner.stream.socket(), rustix::net::Shutdown::Write).is_err() {
                return true;
            }
        }
        // Closing a socket with unread bytes resets the connection, and the client may lose our
        // last frames.
        while !inner.is_deaf && !inner.is_broken {
            inner.input.clear();
            inner.input.reserve(READ_BYTES_MIN);
            match pin!(inner.stream.socket_mut().read_buf(&mut inner.input)).poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => inner.is_deaf = true,
            }
        }
        true
    }
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (client, local) = (self.client.clone(), self.local.clone());
        *client.waker.borrow_mut() = Some(cx.waker().clone());
        let inner = &mut *client.inner.borrow_mut();
        if std::mem::take(&mut inner.has_read_much) {
            let next = pin!(tokio::task::yield_now()).poll(cx);
            debug_assert!(next.is_pending(), "it wakes this task behind the others, and a look at their sockets");
            return Poll::Pending;
        }
        let mut has_more = false;
        if !inner.is_over() {
            has_more = inner.read(&client, cx, &local);
        }
        // The partitions answer first, so that one write carries all; but if nobody was asked,
        // nobody will call.
        if local.is_woken() && !inner.is_full && !inner.is_over() {
            local.flush_later(&client);
        } else {
            let now = local.now();
            if inner.is_full {
                // What the socket takes now frees memory and window, and it is the step that passes
                // this on.
                local.wake();
            }
            loop {
                inner.write(now);
                if !inner.is_full || inner.stream.socket().poll_write_ready(cx).is_pending() {
                    break;
                }
            }
            inner.feed_starved(&client, &local);
            if !inner.is_yielding {
                inner.take_turn(&client, &local, now);
            }
            inner.arm(&client, &local, now);
        }
        client.set_busy(has_more || inner.is_yielding || inner.has_read_much || client.is_paused.get(), &local);
        if inner.is_over() {
            let inner_ref = &mut *inner;
            if self.poll_close(inner_ref, cx) {
                inner.hear_the_end(&client, &local);
                client.set_busy(inner.is_yielding, &local);
                if inner.is_yielding {
                    // What goes with it may be much: others have their turns in between.
                    inner.yield_to_others(&local, cx);
                    return Poll::Pending;
                }
                inner.end(&client, &local);
                local.release(&client);
                return Poll::Ready(());
            }
            let now = local.now();
            inner.arm(&client, &local, now);
            return Poll::Pending;
        }
        if inner.yields_to_others(&local) {
            local.turns.leave(&mut inner.place);
            local.pause(&client, true);
            // That may have passed before this connection was in the list of those to be told.
            if !inner.yields_to_others(&local) {
                cx.waker().wake_by_ref();
            }
        } else if inner.is_yielding {
            inner.yield_to_others(&local, cx);
        } else if has_more || inner.wants_task(&local) {
            // Behind the step task and the other connections: nobody is starved by one busy socket.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Inner {
    /// Has the task run behind all others and a look at their sockets, which a busy shard takes seldom.
    fn yield_to_others(&self, local: &Local, cx: &mut Context<'_>) {
        let looks = self.place.is_taken().then(|| local.turns.behind_a_look(cx.waker()));
        let waker = looks.as_ref().unwrap_or(cx.waker());
        let next = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(waker));
        debug_assert!(next.is_pending(), "it wakes this task behind the others");
    }

    /// Whatever the machine has not said yet is heard, so that channels are given up.
    fn hear_the_end(&mut self, client: &Rc<Client>, local: &Rc<Local>) {
        if !self.amqp.is_finished() {
            self.amqp.handle_disconnect();
        }
        self.take_turn(client, local, local.now());
    }

    /// The last thing.
    fn end(&mut self, client: &Rc<Client>, local: &Rc<Local>) {
        local.turns.leave(&mut self.place);
        local.switch.connection_left(self.session.number().0);
        self.input = BytesMut::new();
        self.untaken.note(0, local.now(), &local.shared.untaken);
        self.session.spans_of_connection_end(&Turn { local, client });
        self.session.count_unfinished(0, &mut Cx { client: &mut self.amqp, host: &Turn { local, client } });
    }
}
