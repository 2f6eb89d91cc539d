//! Bindings whose arguments are a rule over a message's headers: every message is held against each
//! of them.
//!
//! Invariant: a binding is told from another by its encoded arguments and its destination; those
//! that differ in their routing key only are counted as one.

use amqp::Table;

use super::destination::Destination;
use super::encoding;
use super::message_headers::MessageHeaders;

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
    destination: Destination,
    bindings: u32,
}

/// The bindings of one exchange.
#[derive(Debug)]
pub(super) struct Selections<R>(Vec<Selection<R>>);

impl<R> Default for Selections<R> {
    fn default() -> Self {
        Selections(Vec::new())
    }
}

impl<R: Rule> Selections<R> {
    pub(super) fn add(&mut self, arguments: &[u8], destination: Destination) {
        if let Some(at) = self.position(arguments, destination) {
            self.0[at].bindings += 1;
            return;
        }
        let rule = R::of(encoding::table_from(arguments));
        self.0.push(Selection { rule, identity: arguments.into(), destination, bindings: 1 });
    }

    /// Takes one binding away; it must be there.
    pub(super) fn remove(&mut self, arguments: &[u8], destination: Destination) {
        let at = self.position(arguments, destination).expect("only what was added is removed");
        self.0[at].bindings -= 1;
        if self.0[at].bindings == 0 {
            self.0.swap_remove(at);
        }
    }

    /// Calls `visit` with the destination of every rule that is met. Returns how many steps that
    /// took. Where [`MessageHeaders::steps`] are used up it ends early, and what it found is not
    /// all.
    pub(super) fn each(&self, headers: &MessageHeaders, visit: &mut impl FnMut(Destination)) -> usize {
        let before = headers.asked() + headers.steps.taken();
        for selection in &self.0 {
            if headers.steps.are_used_up() {
                break;
            }
            if selection.rule.selects(headers) {
                visit(selection.destination);
            }
        }
        self.0.len() + headers.asked() + headers.steps.taken() - before
    }

    fn position(&self, arguments: &[u8], destination: Destination) -> Option<usize> {
        self.0.iter().position(|s| s.destination == destination && *s.identity == *arguments)
    }
}
