//! The headers of one message, to be looked up by name for many bindings.
//!
//! Invariant: a lookup finds what a scan of the table finds. Few lookups in few headers are scans,
//! without an allocation. Once scanning has cost more than sorting would, the names are put in
//! order, so that thousands of bindings cost each message the logarithm of its headers and not
//! their number: whoever may bind and publish could stop the node otherwise.

use std::cell::{Cell, OnceCell};

use amqp::{Table, Value};

/// Tables of at most this many fields are scanned, however often: a scan of so few is as fast as a
/// search.
const SCANNED_ALWAYS: usize = 8;
/// So many headers may be passed in scans of one message before its names are put in order.
const SCANNED_MAX: usize = 2048;

/// So many steps may the selectors and the arguments of headers bindings on the way of one message
/// take together, some nanoseconds each.
pub(super) const SELECTION_STEPS_MAX: usize = 1 << 20;
/// So many bytes of two texts are compared in a step.
pub(super) const TEXT_BYTES_A_STEP: usize = 64;

/// What the selectors and the arguments of headers bindings on the way of one message did so far,
/// all exchanges and bindings together.
#[derive(Debug, Default)]
pub(super) struct Steps(Cell<usize>);

impl Steps {
    /// Counts more of them; false once they are too many, and then whoever asked gives up.
    pub(super) fn take(&self, steps: usize) -> bool {
        self.0.set(self.0.get().saturating_add(steps));
        !self.are_used_up()
    }

    pub(super) fn taken(&self) -> usize {
        self.0.get()
    }

    pub(super) fn are_used_up(&self) -> bool {
        self.0.get() > SELECTION_STEPS_MAX
    }
}

#[derive(Debug, Default)]
pub(super) struct MessageHeaders {
    table: Option<Table>,
    scanned: Cell<usize>,
    pub(super) steps: Steps,
    /// Places in the table, by name, those of one name in their order.
    by_name: OnceCell<Box<[u32]>>,
}

impl MessageHeaders {
    pub(super) fn new(table: Option<Table>) -> Self {
        MessageHeaders { table, ..Self::default() }
    }

    /// How many headers there are.
    pub(super) fn count(&self) -> usize {
        self.table.as_ref().map_or(0, Table::len)
    }

    /// To look a header up takes so many comparisons. Few headers are as quick as one.
    pub(super) fn lookup_steps(&self) -> usize {
        let count = self.count();
        if count <= SCANNED_ALWAYS { 1 } else { 1 + count.ilog2() as usize }
    }

    /// The first header of this name.
    pub(super) fn first(&self, name: &[u8]) -> Option<&Value> {
        let table = self.table.as_ref()?;
        let Some(by_name) = self.ordered(table) else {
            return table.iter().find(|(n, _)| **n == *name).map(|(_, value)| value);
        };
        let at = by_name.partition_point(|at| name_at(table, *at) < name);
        named(table, *by_name.get(at)?, name)
    }

    /// The last header of this name.
    pub(super) fn last(&self, name: &[u8]) -> Option<&Value> {
        let table = self.table.as_ref()?;
        let Some(by_name) = self.ordered(table) else {
            return table.iter().filter(|(n, _)| **n == *name).last().map(|(_, value)| value);
        };
        let behind = by_name.partition_point(|at| name_at(table, *at) <= name);
        named(table, *by_name.get(behind.checked_sub(1)?)?, name)
    }

    /// The order of names, if this lookup is to use it; a scan is counted.
    fn ordered(&self, table: &Table) -> Option<&[u32]> {
        if table.len() <= SCANNED_ALWAYS {
            return None;
        }
        let scanned = self.scanned.get();
        if scanned + table.len() <= SCANNED_MAX {
            self.scanned.set(scanned + table.len());
            return None;
        }
        Some(self.by_name.get_or_init(|| {
            let mut order: Box<[u32]> = (0..u32::try_from(table.len()).unwrap_or(u32::MAX)).collect();
            order.sort_unstable_by_key(|at| (name_at(table, *at), *at));
            order
        }))
    }
}

fn name_at(table: &Table, at: u32) -> &[u8] {
    table.at(at as usize).map_or(b"", |(name, _)| name)
}

fn named<'a>(table: &'a Table, at: u32, name: &[u8]) -> Option<&'a Value> {
    table.at(at as usize).filter(|(n, _)| **n == *name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(count: usize) -> MessageHeaders {
        let mut table = Table::new();
        // Each name twice, in an order that is not that of the names.
        for i in 0..count {
            table.push(format!("h{}", i * 7919 % (count / 2)), Value::I64(i as i64));
        }
        MessageHeaders::new(Some(table))
    }

    #[test]
    fn many_lookups_pass_no_more_headers_than_a_few_scans_do() {
        let headers = headers(5000);
        for i in 0..100_000 {
            assert!(headers.last(format!("h{}", i % 2500).as_bytes()).is_some());
        }
        assert!(headers.scanned.get() <= SCANNED_MAX, "{} headers were passed", headers.scanned.get());
        assert!(headers.by_name.get().is_some());
    }

    #[test]
    fn few_headers_are_never_put_in_order() {
        let headers = headers(SCANNED_ALWAYS);
        (0..10_000).for_each(|_| assert!(headers.first(b"h1").is_some()));
        assert!(headers.by_name.get().is_none());
    }

    #[test]
    fn a_search_finds_what_a_scan_finds() {
        for count in [10, 64, 1000] {
            let headers = headers(count);
            let table = headers.table.clone().expect("there are some");
            let asked: Vec<String> =
                (0..count).map(|i| format!("h{i}")).chain(["".into(), "a".into(), "z".into()]).collect();
            for _ in 0..3 {
                for name in &asked {
                    let all: Vec<&Value> =
                        table.iter().filter(|(n, _)| **n == *name.as_bytes()).map(|(_, v)| v).collect();
                    assert_eq!(headers.first(name.as_bytes()), all.first().copied(), "{name}");
                    assert_eq!(headers.last(name.as_bytes()), all.last().copied(), "{name}");
                }
            }
        }
        assert_eq!(MessageHeaders::new(None).first(b"a"), None);
    }
}
