//! The rule of a headers exchange: which messages a binding's arguments select.
//!
//! Invariant: matching reads the message's headers and the binding's arguments and nothing else.
//! Fields whose name starts with `x-` count only under the `-with-x` modes, and `x-match` itself
//! never does. What a rule looks up and compares it takes from the steps of its message, so that
//! thousands of bindings with thousands of arguments hold nobody up; see [`super::message_headers::Steps`].

use amqp::{Table, Value};

use super::message_headers::{MessageHeaders, TEXT_BYTES_A_STEP};
use super::refusal::Refusal;
use super::selections::{Rule, Selections};
use super::wording::{same, same_number, term, type_name};

const X_MATCH: &str = "x-match";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mode {
    any: bool,
    with_x: bool,
}

/// What the arguments of a binding ask for.
#[derive(Debug)]
pub(super) struct HeadersRule {
    is_any: bool,
    /// Those that count.
    fields: Table,
}

/// The bindings of one headers exchange.
pub(super) type HeadersTable = Selections<HeadersRule>;

/// Refuses a bad `x-match`: 406 with RabbitMQ's text.
pub(super) fn check(arguments: &Table) -> Result<(), Refusal> {
    match arguments.get(X_MATCH) {
        None => Ok(()),
        Some(value @ Value::LongString(word)) => match &word[..] {
            b"all" | b"any" | b"all-with-x" | b"any-with-x" => Ok(()),
            _ => Err(Refusal::precondition_failed(&format!(
                "Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x",
                term(value)
            ))),
        },
        Some(other) => Err(Refusal::precondition_failed(&format!(
            "Invalid x-match field type {} (value {}); expected longstr",
            type_name(other),
            term(other)
        ))),
    }
}

fn mode(arguments: &Table) -> Mode {
    match arguments.get(X_MATCH) {
        Some(Value::LongString(word)) => Mode { any: word.starts_with(b"any"), with_x: word.ends_with(b"-with-x") },
        _ => Mode { any: false, with_x: false },
    }
}

impl Mode {
    fn counts(self, name: &[u8]) -> bool {
        if self.with_x { name != X_MATCH.as_bytes() } else { !name.starts_with(b"x-") }
    }
}

impl Rule for HeadersRule {
    fn of(mut arguments: Table) -> Self {
        let mode = mode(&arguments);
        arguments.retain_names(|name| mode.counts(name));
        HeadersRule { is_any: mode.any, fields: arguments }
    }

    fn selects(&self, headers: &MessageHeaders) -> bool {
        let (steps, lookup_steps) = (&headers.steps, headers.lookup_steps());
        if self.fields.is_empty() {
            steps.take(1);
        }
        for (name, wanted) in self.fields.iter() {
            if !steps.take(lookup_steps) {
                return false;
            }
            // A header that comes twice counts as its last value, as in RabbitMQ 4.
            let is_met = headers
                .last(name)
                .is_some_and(|given| steps.take(comparison_steps(wanted, given)) && meets(wanted, given));
            if is_met == self.is_any {
                return is_met;
            }
        }
        !self.is_any
    }
}

/// What it costs to compare two values, beside the step of whoever compares.
fn comparison_steps(wanted: &Value, given: &Value) -> usize {
    match (wanted, given) {
        (Value::LongString(a) | Value::ByteArray(a), Value::LongString(b) | Value::ByteArray(b)) => {
            a.len().min(b.len()) / TEXT_BYTES_A_STEP
        }
        (Value::Array(_), Value::Array(_)) | (Value::Table(_), Value::Table(_)) => value_steps(wanted),
        _ => 0,
    }
}

/// What it costs to read all of a value.
fn value_steps(value: &Value) -> usize {
    match value {
        Value::LongString(bytes) | Value::ByteArray(bytes) => 1 + bytes.len() / TEXT_BYTES_A_STEP,
        Value::Array(items) => 1 + items.iter().map(value_steps).sum::<usize>(),
        Value::Table(table) => 1 + table.iter().map(|(_, value)| 1 + value_steps(value)).sum::<usize>(),
        _ => 1,
    }
}

/// A binding's void field asks only that the header is there. Numbers are compared by value,
/// whatever their types.
fn meets(wanted: &Value, given: &Value) -> bool {
    matches!(wanted, Value::Void) || same(wanted, given) || same_number(wanted, given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::destination::Destination;
    use crate::topology::encoding;
    use bytes::Bytes;

    fn table(fields: &[(&'static str, Value)]) -> Table {
        let mut table = Table::new();
        for (name, value) in fields {
            table.push(*name, value.clone());
        }
        table
    }

    fn text(word: &'static str) -> Value {
        Value::LongString(Bytes::from_static(word.as_bytes()))
    }

    fn selects(arguments: &[(&'static str, Value)], headers: &[(&'static str, Value)]) -> bool {
        let mut exchange = HeadersTable::default();
        exchange.add(&encoding::table_bytes(&table(arguments)), Destination::queue(0));
        let mut found = false;
        exchange.each(&MessageHeaders::new(Some(table(headers))), &mut |_| found = true);
        found
    }

    #[test]
    fn all_is_the_default_and_asks_for_every_field() {
        let asked = [("a", Value::I32(1)), ("b", text("x"))];
        assert!(selects(&asked, &[("b", text("x")), ("a", Value::I64(1)), ("c", Value::Void)]));
        assert!(!selects(&asked, &[("a", Value::I32(1))]));
        assert!(!selects(&asked, &[("a", Value::I32(1)), ("b", text("y"))]));
        assert!(selects(&[], &[]), "nothing asked is always met");
    }

    #[test]
    fn any_asks_for_one_field_and_nothing_asked_is_never_met() {
        let asked = [("x-match", text("any")), ("a", Value::I32(1)), ("b", text("x"))];
        assert!(selects(&asked, &[("b", text("x"))]));
        assert!(!selects(&asked, &[("a", Value::I32(2))]));
        assert!(!selects(&[("x-match", text("any"))], &[("x-match", text("any"))]));
    }

    #[test]
    fn fields_of_the_x_space_count_only_with_x() {
        let with = |mode: &'static str| [("x-match", text(mode)), ("x-a", Value::I32(1))];
        assert!(selects(&with("all"), &[]));
        assert!(!selects(&with("any"), &[("x-a", Value::I32(1))]));
        assert!(!selects(&with("all-with-x"), &[]));
        assert!(selects(&with("all-with-x"), &[("x-a", Value::I32(1))]));
        assert!(selects(&with("any-with-x"), &[("x-a", Value::I32(1))]));
        assert!(!selects(&with("any-with-x"), &[("x-match", text("any-with-x"))]));
    }

    #[test]
    fn whole_numbers_and_floats_of_one_value_match() {
        for one in [Value::I8(1), Value::U32(1), Value::I64(1), Value::Timestamp(1), Value::F32(1.0), Value::F64(1.0)] {
            assert!(selects(&[("a", Value::F64(1.0))], &[("a", one.clone())]), "{one:?}");
            assert!(selects(&[("a", Value::I32(1))], &[("a", one.clone())]), "{one:?}");
            assert!(!selects(&[("a", Value::F64(1.5))], &[("a", one.clone())]), "{one:?}");
            assert!(!selects(&[("a", text("1"))], &[("a", one.clone())]), "{one:?}");
        }
        let odd = (1 << 53) + 1;
        assert!(!selects(&[("a", Value::I64(odd))], &[("a", Value::F64(odd as f64))]), "no float has this value");
        assert!(!selects(&[("a", Value::I32(0))], &[("a", Value::F64(f64::NAN))]));
    }

    #[test]
    fn void_asks_for_presence_and_the_last_of_two_headers_counts() {
        assert!(selects(&[("a", Value::Void)], &[("a", text("anything"))]));
        assert!(!selects(&[("a", Value::Void)], &[("b", text("anything"))]));
        assert!(selects(&[("a", text("2"))], &[("a", text("1")), ("a", text("2"))]));
        assert!(!selects(&[("a", text("1"))], &[("a", text("1")), ("a", text("2"))]));
    }
}
