//! Writes of the log that wait, and who waits for them.

use partition::outputs::{SyncWish, WalWrite};
use std::time::Duration;

/// Writes that wait, in order.
#[derive(Debug, Default)]
pub struct Batch {
    /// The writes.
    pub writes: Vec<WalWrite>,
    /// Bytes of the bodies.
    pub bytes: usize,
    /// Somebody waits for the write alone.
    pub is_write_awaited: bool,
    /// Somebody waits for the sync behind it.
    pub is_sync_awaited: bool,
    /// When what nobody waits for has to be synced.
    pub due: Option<Duration>,
}

impl Batch {
    /// Adds writes; `writes` is empty afterwards and keeps some room. Nothing waits longer than
    /// `delay_max` for its sync.
    pub fn add(&mut self, writes: &mut Vec<WalWrite>, now: Duration, delay_max: Duration) {
        for write in &writes[..] {
            self.bytes += write.records.iter().map(|r| r.body.len()).sum::<usize>();
            match write.sync {
                SyncWish::Now => self.is_sync_awaited = true,
                SyncWish::Within(ms) => {
                    let due = now + Duration::from_millis(ms.into()).min(delay_max);
                    self.due = Some(self.due.map_or(due, |at| at.min(due)));
                    self.is_write_awaited |= write.report_written;
                }
            }
        }
        if self.writes.is_empty() {
            std::mem::swap(&mut self.writes, writes);
        } else {
            self.writes.append(writes);
        }
    }

    /// Puts what could not be written back before what came meanwhile.
    pub fn put_back(&mut self, mut first: Batch) {
        first.writes.append(&mut self.writes);
        self.writes = first.writes;
        self.bytes += first.bytes;
        self.is_write_awaited |= first.is_write_awaited;
        self.is_sync_awaited |= first.is_sync_awaited;
        self.due = self.due.into_iter().chain(first.due).min();
    }

    /// Somebody waits for it.
    pub fn is_awaited(&self) -> bool {
        self.is_write_awaited || self.is_sync_awaited
    }

    /// Empty again; its memory is kept.
    pub(crate) fn clear(&mut self) {
        let mut writes = std::mem::take(&mut self.writes);
        writes.clear();
        *self = Batch { writes, ..Batch::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::PartitionId;
    use partition::outputs::Ticket;

    #[test]
    fn what_could_not_be_written_goes_before_what_came_meanwhile() {
        let write = |ticket| WalWrite {
            partition: PartitionId(1),
            ticket: Ticket(ticket),
            records: Vec::new(),
            sync: SyncWish::Within(5),
            report_written: ticket == 1,
        };
        let (mut first, mut later) = (Batch::default(), Batch::default());
        let delay_max = Duration::from_millis(10);
        first.add(&mut vec![write(1), write(2)], Duration::ZERO, delay_max);
        later.add(&mut vec![write(3)], Duration::from_secs(1), delay_max);
        let due = first.due;
        later.put_back(first);
        assert_eq!(later.writes.iter().map(|w| w.ticket.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(later.is_write_awaited && !later.is_sync_awaited && later.due == due);
    }
}
