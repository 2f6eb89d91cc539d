//! Bindings whose arguments are a rule over a message's headers: every message is held against each
//! of them.
//!
//! Invariant: a binding is told from another by its encoded arguments and its destination; those
//! that differ in their routing key only are counted as one. It is found by their hash: arguments
//! may be long and alike, so that to compare them with those of every other binding takes longer
//! than all else that a bind does.

use amqp::Table;
use hashbrown::HashTable;

use super::destination::Destination;
use super::message_headers::MessageHeaders;
use super::{encoding, hash};

/// What the arguments of a binding ask for.
pub(super) trait Rule {
    /// The rule of arguments that were checked when they were bound.
    fn of(arguments: Table) -> Self;

    /// Whether a message with these headers meets it.
    fn selects(&self, headers: &MessageHeaders) -> bool;
}

#[derive(Debug)]
struct Selection<R> {
    rule: R,
    /// The encoded arguments.
    identity: Box<[u8]>,
    /// Of arguments and destination, kept so that a table that grows reads no arguments.
    hash: u64,
    destination: Destination,
    bindings: u32,
}

/// The bindings of one exchange.
#[derive(Debug)]
pub(super) struct Selections<R> {
    all: Vec<Selection<R>>,
    /// Arguments and destination -> place in `all`.
    places: HashTable<u32>,
}

impl<R> Default for Selections<R> {
    fn default() -> Self {
        Selections { all: Vec::new(), places: HashTable::new() }
    }
}

fn hash_of(arguments: &[u8], destination: Destination) -> u64 {
    hash::of_name(destination.number(), arguments)
}

impl<R: Rule> Selections<R> {
    pub(super) fn add(&mut self, arguments: &[u8], destination: Destination) {
        let hash = hash_of(arguments, destination);
        if let Some(at) = self.place(hash, arguments, destination) {
            self.all[at].bindings += 1;
            return;
        }
        let rule = R::of(encoding::table_from(arguments));
        let place = u32::try_from(self.all.len()).expect("the number of bindings is limited");
        self.all.push(Selection { rule, identity: arguments.into(), hash, destination, bindings: 1 });
        let all = &self.all;
        self.places.insert_unique(hash, place, |&at| all[at as usize].hash);
    }

    /// Takes one binding away; it must be there.
    pub(super) fn remove(&mut self, arguments: &[u8], destination: Destination) {
        let hash = hash_of(arguments, destination);
        let at = self.place(hash, arguments, destination).expect("only what was added is removed");
        self.all[at].bindings -= 1;
        if self.all[at].bindings > 0 {
            return;
        }
        self.forget_place(hash, at);
        self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at) {
            // The last one stands here now.
            let last = self.all.len();
            let entry = self.places.find_mut(moved.hash, |&place| place as usize == last);
            *entry.expect("every selection has its place") = at as u32;
        }
    }

    fn forget_place(&mut self, hash: u64, at: usize) {
        let entry = self.places.find_entry(hash, |&place| place as usize == at);
        entry.map_err(|_| ()).expect("every selection has its place").remove();
    }

    /// Calls `visit` with the destination of every rule that is met. Returns how many steps that
    /// took. Where [`MessageHeaders::steps`] are used up it ends early, and what it found is not
    /// all.
    pub(super) fn each(&self, headers: &MessageHeaders, visit: &mut impl FnMut(Destination)) -> usize {
        let before = headers.steps.taken();
        for selection in &self.all {
            if headers.steps.are_used_up() {
                break;
            }
            if selection.rule.selects(headers) {
                visit(selection.destination);
            }
        }
        self.all.len() + headers.steps.taken() - before
    }

    fn place(&self, hash: u64, arguments: &[u8], destination: Destination) -> Option<usize> {
        let is_it = |&at: &u32| {
            let selection = &self.all[at as usize];
            selection.hash == hash && selection.destination == destination && *selection.identity == *arguments
        };
        self.places.find(hash, is_it).map(|&at| at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Selects everything.
    struct Any;

    impl Rule for Any {
        fn of(_: Table) -> Self {
            Any
        }

        fn selects(&self, _: &MessageHeaders) -> bool {
            true
        }
    }

    #[test]
    fn each_is_found_by_arguments_and_destination_wherever_others_went() {
        let arguments = |n: usize| {
            let mut table = Table::new();
            table.push("a", amqp::Value::I64(n as i64));
            encoding::table_bytes(&table)
        };
        let mut selections = Selections::<Any>::default();
        let all: Vec<(usize, usize)> = (0..20).flat_map(|n| (0..3).map(move |to| (n, to))).collect();
        for (n, to) in all.iter().chain(&all) {
            selections.add(&arguments(*n), Destination::queue(*to));
        }
        assert_eq!((selections.all.len(), selections.places.len()), (60, 60), "two of a kind are one");
        for step in 0..60 {
            let (n, to) = all[step * 17 % 60];
            selections.remove(&arguments(n), Destination::queue(to));
            assert_eq!(selections.all.len(), 60 - step, "one of two is left");
            selections.remove(&arguments(n), Destination::queue(to));
            assert_eq!((selections.all.len(), selections.places.len()), (59 - step, 59 - step));
            for (at, selection) in selections.all.iter().enumerate() {
                assert_eq!(selections.place(selection.hash, &selection.identity, selection.destination), Some(at));
            }
        }
    }
}
