//! The socket of a connection is read: whether it may be, how much at a time, and what came of it.
//!
//! Invariant: the socket is read at most once a turn, and not while the client leaves unread what it asked
//! for, or while a shard that it publishes to has as much unwritten as it may.

use super::{Client, Inner};
use crate::shard::Local;
use amqp::Millis;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// The first read of a quiet connection.
pub(super) const READ_BYTES_MIN: usize = 4 << 10;
/// A read of a busy one: two of RabbitMQ's largest frames.
const READ_BYTES_MAX: usize = 256 << 10;
/// After a read of so much the sockets of others are looked at before the next one. A shard that always has a task to run
/// does that seldom.
const MUCH_BYTES: usize = 64 << 10;
/// All read buffers of a shard together, as far as they are above the minimum.
const READ_BYTES_TOTAL: usize = 16 << 20;
/// Room for this part of a read is enough for one.
const ROOM_PART: usize = 4;
/// After so many reads that took less than that part, the next buffer is half as large.
const SMALL_READS: u8 = 16;
/// What a client may have asked for and not read (confirms, replies, returns) beyond its window
/// before its requests are not read any more.
const REPLIES_BYTES_MAX: usize = 64 << 10;

impl Inner {
    /// Reads the socket once, if it may be read and has something, and handles what came. True if
    /// there may be more.
    pub(super) fn read(&mut self, client: &Rc<Client>, cx: &mut Context<'_>, local: &Rc<Local>) -> bool {
        if self.is_yielding {
            if self.is_broken && !self.amqp.is_finished() {
                // Nobody hears of what waits any more; what was read still counts.
                self.amqp.handle_disconnect();
            }
            if self.yields_to_others(local) {
                self.was_paused = true;
                return false;
            }
            self.take_turn(client, local, local.now());
            self.was_paused = true;
            return !self.is_yielding;
        }
        if !self.may_read(client, local, false) {
            self.was_paused = true;
            return false;
        }
        // Before the look: where there is nothing, the socket wakes this task, which would go on waking itself else.
        if std::mem::take(&mut self.was_paused) {
            self.amqp.resume_reading(local.now());
        }
        match self.stream.poll_read_ready(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                self.disconnect(Some(&error));
                return false;
            }
        }
        // The rest of a frame that has begun comes in one read. What was read before is held by who has it in hand, so new
        // room is memory that no cache has: a read goes on in the room that is left while it is enough for most.
        let (mut room, missing) = (self.input.capacity() - self.input.len(), self.amqp.missing_input(&self.input));
        if room < (self.read_bytes / ROOM_PART).max(missing) {
            self.input.reserve(self.read_bytes.max(missing));
            room = self.input.capacity() - self.input.len();
        }
        let result = self.stream.poll_read(&mut self.input, cx);
        let count = match result {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => {
                self.disconnect(None);
                return false;
            }
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(error)) => {
                self.disconnect(Some(&error));
                return false;
            }
        };
        // Not before it was read: what this node knows at that time is what the client may count on.
        let now = local.now();
        self.adapt(count, room, local);
        self.has_read_much = count >= MUCH_BYTES;
        self.last_read = now;
        self.received_bytes += count as u64;
        self.take_input(now);
        self.take_turn(client, local, now);
        if !self.may_read(client, local, true) {
            self.was_paused = true;
            return false;
        }
        // After a short read this asks the kernel nothing; it only has the task called at the next
        // bytes.
        count == room || self.stream.poll_read_ready(cx).is_ready()
    }

    /// Whether the socket is to be read now, or once more. Who is held up by the load is told when it has gone.
    fn may_read(&mut self, client: &Rc<Client>, local: &Rc<Local>, has_read: bool) -> bool {
        if self.is_yielding || self.is_deaf || !self.amqp.wants_input() || self.is_flooded(local) {
            return false;
        }
        if self.waits_for_load(local) {
            local.pause(client, has_read);
            // The gauge may have fallen before this connection was in the list of those to be told.
            return !self.waits_for_load(local);
        }
        true
    }

    /// Whether what is left of a turn waits for the load: it may be a message for thousands of queues, or a history of
    /// megabytes for each of hundreds of bindings, which would fill the memory in front of the log. Or for this node to know
    /// where messages go. A client that has left brings nothing more.
    pub(super) fn yields_to_others(&self, local: &Local) -> bool {
        self.is_yielding
            && !self.amqp.is_finished()
            && (self.waits_for_load(local)
                || self.session.waits_to_know()
                    && local.shared.lease.is_awaited_at(local.now(), || local.shared.ask_lease()))
    }

    /// Whether a shard that the client publishes to has as much unwritten as it may.
    fn waits_for_load(&self, local: &Local) -> bool {
        self.session.waits_for_load(|shard| local.is_loaded_for(shard))
    }

    /// Whether the client leaves unread what it asked for.
    ///
    /// Deliveries do not count: the window bounds them, and a client may well write for long before
    /// it reads again. Not reading its acks and publishes meanwhile would have both sides wait for
    /// each other.
    pub(super) fn is_flooded(&mut self, local: &Local) -> bool {
        !self.is_leaving && self.amqp.output().answer_bytes() > local.window() + REPLIES_BYTES_MAX
    }

    pub(super) fn take_input(&mut self, now: Millis) {
        self.amqp.handle_input(&mut self.input, now);
        self.input_blocked = !self.amqp.wants_input();
    }

    /// Chooses the size of the next read by the size of this one, for which there was so much room.
    fn adapt(&mut self, count: usize, room: usize, local: &Local) {
        if count >= self.read_bytes {
            let connections = local.shared.gauges[local.index].connections.load(Ordering::Relaxed).max(1);
            let limit = (READ_BYTES_TOTAL / connections).clamp(READ_BYTES_MIN * 2, READ_BYTES_MAX);
            self.read_bytes = (self.read_bytes * 2).min(limit);
            self.small_reads = 0;
        } else if count < room.min(self.read_bytes / ROOM_PART) && self.read_bytes > READ_BYTES_MIN {
            self.small_reads += 1;
            if self.small_reads >= SMALL_READS {
                self.read_bytes /= 2;
                self.small_reads = 0;
            }
        } else {
            self.small_reads = 0;
        }
    }

    /// Whether the task has something to read that it did not look at because it was not allowed
    /// to.
    pub(super) fn wants_task(&mut self, local: &Rc<Local>) -> bool {
        self.was_paused
            && !self.is_yielding
            && !self.is_deaf
            && self.amqp.wants_input()
            && !self.is_flooded(local)
            && !self.waits_for_load(local)
    }
}
