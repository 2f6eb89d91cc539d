//! What readers do with what they hold, and what else they ask for.

use super::{Client, Now, Part, REPLY_TIMEOUT, Reader, Wish, question};
use broker::{ConsumerKey, QueueId};
use partition::Command;
use partition::command::Disposition;

impl Client {
    pub(super) fn read(&mut self, n: &mut Now<'_>) {
        let (channel, group_queues) = (self.channel, self.queues.clone());
        let Part::Reader(r) = &mut self.part else { return };
        if n.now > self.heard + REPLY_TIMEOUT {
            // Nothing was heard for long: is anybody there?
            self.heard = n.now;
            if self.random.chance(50) {
                return self.close(true, n);
            }
        }
        let ask = |r: &mut Reader, queue: QueueId| {
            r.next_request += 1;
            question(queue, r.next_request)
        };
        if n.draining && (r.gets || r.granted_only || r.no_ack) {
            (r.gets, r.granted_only, r.no_ack) = (false, false, false);
            return self.close(true, n);
        }
        while let Some((queue, holder, seq, _)) = r.held.front().copied().filter(|h| h.3 <= n.now) {
            // What follows in a row goes with it, as an ack of several does.
            let mut count = 0;
            while r.held.front().is_some_and(|h| (h.0, h.1, h.2) == (queue, holder, seq + count)) {
                r.held.pop_front();
                count += 1;
            }
            let outcome = match self.random.below(100) {
                _ if n.draining || !r.unruly => Disposition::Ack,
                0..70 => Disposition::Ack,
                70..82 => Disposition::Nack,
                82..92 => Disposition::Reject,
                _ => Disposition::Discard,
            };
            let is_end = matches!(outcome, Disposition::Ack | Disposition::Discard);
            n.checks.settle_asked(queue, holder, seq..seq + count, is_end);
            n.wishes.push(Wish::Send(Command::Settle { queue, holder, first: seq, count, outcome }));
        }
        if !r.held.is_empty() && r.held.iter().all(|h| h.3 > n.now) && self.random.chance(20) {
            // Settled out of order at times.
            let at = self.random.below(r.held.len() as u64) as usize;
            let (queue, holder, seq, _) = r.held.remove(at).expect("it is there");
            n.checks.settle_asked(queue, holder, seq..seq + 1, true);
            let outcome = Disposition::Ack;
            n.wishes.push(Wish::Send(Command::Settle { queue, holder, first: seq, count: 1, outcome }));
        }
        if !r.gets || n.draining {
            for queue in std::mem::take(&mut r.new_queues) {
                self.consume(queue, n);
            }
        }
        let Part::Reader(r) = &mut self.part else { return };
        if group_queues.is_empty() {
            return;
        }
        if r.gets && r.held.len() < 8 {
            let queue = self.random.pick(&group_queues).id;
            let (no_ack, request) = (r.no_ack, ask(r, queue));
            n.wishes.push(Wish::Send(Command::Get { queue, channel, no_ack, request }));
        }
        if n.draining {
            let queue = self.random.pick(&group_queues).id;
            let request = ask(r, queue);
            n.wishes.push(Wish::Send(Command::Stat { queue, channel, request }));
            return;
        }
        if !r.unruly {
            return;
        }
        match self.random.below(2_000) {
            0..3 => {
                let queue = self.random.pick(&group_queues).id;
                let request = ask(r, queue);
                n.wishes.push(Wish::Send(Command::Purge { queue, channel, request }));
            }
            3..20 => {
                let queue = self.random.pick(&group_queues).id;
                let request = ask(r, queue);
                n.wishes.push(Wish::Send(Command::Stat { queue, channel, request }));
            }
            20..30 => {
                let request = ask(r, QueueId(0));
                n.wishes.push(Wish::Send(Command::Sync { channel, request }));
            }
            30..40 => {
                let Some((&number, &(queue, _))) = r.consumers.first_key_value() else { return };
                let request = ask(r, queue);
                r.consumers.remove(&number);
                let consumer = ConsumerKey { channel, number };
                n.wishes.push(Wish::Send(Command::Cancel { queue, consumer, request }));
                self.consume(queue, n);
            }
            40..52 => self.close(true, n),
            _ => {}
        }
    }
}

impl Reader {
    pub(super) fn forget(&mut self) {
        self.held.clear();
        self.consumers.clear();
        self.asked.clear();
        self.new_queues.clear();
    }
}
