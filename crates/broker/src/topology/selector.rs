//! The rule of an `x-jms-topic` exchange: a binding selects messages by an expression over their
//! headers.
//!
//! RabbitMQ's client for JMS compiles the selector, which JMS writes in a dialect of SQL, and sends
//! it as the text of an Erlang term in the binding's argument `rjms_erlang_selector`. The routing
//! key plays no part, and a binding without the argument selects nothing. Three values, as in SQL:
//! what a header that is not there is compared with is unknown, and only what is true is selected.
//!
//! ```text
//!   term  = 'atom' | atom | <<"text">> | number | [term, ...] | {term, ...}          with a full stop behind it
//!   value = {'ident', <<"header">>} | <<"text">> | number | true | false
//!   expr  = value | {'not', expr} | {'and' | 'or', expr, expr} | {'is_null' | 'not_null', value}
//!         | {'=' | '<>' | '<' | '<=' | '>' | '>=' | '+' | '-' | '*' | '/', expr, expr} | {'+' | '-', expr}
//!         | {'in' | 'not_in', expr, [value, ...]} | {'like' | 'not_like', value, <<"a%b_">>, no_escape | <<"\">>}
//!         | {'between' | 'not_between', expr, {'range', expr, expr}}
//! ```
//!
//! Invariants: an expression that cannot be evaluated is refused when it is bound; evaluating one
//! recurs no deeper than [`SELECTOR_DEPTH_MAX`], and takes what it costs from the steps of its
//! message, which all selectors on the way share. Source: RabbitMQ's guide on JMS, the names in the
//! terms of its plugin rabbitmq_jms_topic_exchange.

use std::cmp::Ordering;

use amqp::{Table, Value};
use bytes::Bytes;

use super::message_headers::{MessageHeaders, TEXT_BYTES_A_STEP};
use super::refusal::Refusal;
use super::selections::{Rule, Selections};
use super::wording::integer;

mod like;
mod term;

use like::{PATTERN_BYTES_MAX, Pattern};
use term::Term;

/// The binding's argument.
const SELECTOR: &str = "rjms_erlang_selector";
/// How deep terms and expressions may be nested. A chain of as many `OR` is as deep; people write
/// some tens.
pub const SELECTOR_DEPTH_MAX: usize = 512;

/// The longest selector that can be bound, and the most values and operators in one.
const SELECTOR_BYTES_MAX: usize = 64 << 10;
/// See [`SELECTOR_BYTES_MAX`].
const SELECTOR_TERMS_MAX: usize = 4096;
/// To look a header up costs as much as so many comparisons.
const LOOKUP_STEPS: usize = 4;

/// Refuses a selector that cannot be read, or is too large: 406. RabbitMQ takes it, and selects
/// nothing.
///
/// Only what is bound anew is looked at: a selector that an earlier version took still holds.
pub(super) fn check(arguments: &Table) -> Result<(), Refusal> {
    match arguments.get(SELECTOR) {
        None => Ok(()),
        Some(Value::LongString(text)) => {
            if text.len() > SELECTOR_BYTES_MAX {
                let text = format!("'{SELECTOR}' has more than {SELECTOR_BYTES_MAX} bytes");
                return Err(Refusal::precondition_failed(&text));
            }
            let term = term::parse(text);
            if term.as_ref().is_some_and(|term| count(term) > SELECTOR_TERMS_MAX) {
                let text = format!("'{SELECTOR}' has more than {SELECTOR_TERMS_MAX} values and operators");
                return Err(Refusal::precondition_failed(&text));
            }
            if term.as_ref().is_some_and(has_long_pattern) {
                let text = format!("a pattern of 'like' in '{SELECTOR}' has more than {PATTERN_BYTES_MAX} bytes");
                return Err(Refusal::precondition_failed(&text));
            }
            if term.as_ref().and_then(expression).is_some() {
                return Ok(());
            }
            let text = String::from_utf8_lossy(text);
            Err(Refusal::precondition_failed(&format!("cannot parse selector '{text}'")))
        }
        Some(_) => Err(Refusal::precondition_failed(&format!("'{SELECTOR}' is no string"))),
    }
}

/// The values and operators of a selector.
fn count(term: &Term) -> usize {
    match term {
        Term::Tuple(parts) => 1 + parts.iter().filter(|part| !matches!(part, Term::Atom(_))).map(count).sum::<usize>(),
        Term::List(items) => items.iter().map(count).sum(),
        _ => 1,
    }
}

fn has_long_pattern(term: &Term) -> bool {
    match term {
        Term::Tuple(parts) => {
            let is_long = match &parts[..] {
                [Term::Atom(name), _, Term::Text(pattern), _] => {
                    matches!(&name[..], b"like" | b"not_like") && pattern.len() > PATTERN_BYTES_MAX
                }
                _ => false,
            };
            is_long || parts.iter().any(has_long_pattern)
        }
        Term::List(items) => items.iter().any(has_long_pattern),
        _ => false,
    }
}

/// What the arguments of a binding ask for; without a selector, nothing.
#[derive(Debug)]
pub(super) struct SelectorRule(Option<Expression>);

/// The bindings of one exchange.
pub(super) type SelectorTable = Selections<SelectorRule>;

impl Rule for SelectorRule {
    fn of(arguments: Table) -> Self {
        SelectorRule(match arguments.get(SELECTOR) {
            Some(Value::LongString(text)) => parse(text),
            _ => None,
        })
    }

    fn selects(&self, headers: &MessageHeaders) -> bool {
        self.0.as_ref().is_some_and(|expression| expression.evaluate(headers) == Known::Bool(true))
    }
}

/// A selector, ready to be evaluated.
#[derive(Debug)]
enum Expression {
    Constant(Constant),
    Header(Bytes),
    Not(Box<Expression>),
    Minus(Box<Expression>),
    IsNull(Box<Expression>),
    Both(Box<Expression>, Box<Expression>),
    Either(Box<Expression>, Box<Expression>),
    Compare(Comparison, Box<Expression>, Box<Expression>),
    Calculate(Calculation, Box<Expression>, Box<Expression>),
    In(Box<Expression>, Vec<Constant>),
    Like(Box<Expression>, Pattern),
    Between(Box<Expression>, Box<Expression>, Box<Expression>),
}

#[derive(Clone, Debug, PartialEq)]
enum Constant {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Bytes),
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal,
    Different,
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Clone, Copy, Debug)]
enum Calculation {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// What an expression comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known<'a> {
    Nothing,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(&'a [u8]),
}

fn parse(text: &[u8]) -> Option<Expression> {
    expression(&term::parse(text)?)
}

fn expression(of: &Term) -> Option<Expression> {
    let Term::Tuple(parts) = of else { return Some(Expression::Constant(constant(of)?)) };
    let (Term::Atom(name), operands) = parts.split_first()? else { return None };
    let boxed = |term: &Term| expression(term).map(Box::new);
    let not = |found: Expression| Expression::Not(Box::new(found));
    Some(match (&name[..], operands) {
        (b"ident", [Term::Text(header)]) => Expression::Header(header.clone()),
        (b"not", [a]) => Expression::Not(boxed(a)?),
        (b"-", [a]) => Expression::Minus(boxed(a)?),
        (b"+", [a]) => expression(a)?,
        (b"is_null", [a]) => Expression::IsNull(boxed(a)?),
        (b"not_null", [a]) => not(Expression::IsNull(boxed(a)?)),
        (b"and", [a, b]) => Expression::Both(boxed(a)?, boxed(b)?),
        (b"or", [a, b]) => Expression::Either(boxed(a)?, boxed(b)?),
        (b"in", [a, Term::List(all)]) => Expression::In(boxed(a)?, all.iter().map(constant).collect::<Option<_>>()?),
        (b"not_in", [a, Term::List(all)]) => {
            not(Expression::In(boxed(a)?, all.iter().map(constant).collect::<Option<_>>()?))
        }
        (b"like", [a, Term::Text(pattern), escape]) => Expression::Like(boxed(a)?, Pattern::of(pattern, escape)?),
        (b"not_like", [a, Term::Text(pattern), escape]) => {
            not(Expression::Like(boxed(a)?, Pattern::of(pattern, escape)?))
        }
        (b"between" | b"not_between", [a, Term::Tuple(range)]) => {
            let [Term::Atom(word), low, high] = &range[..] else { return None };
            let between = (**word == *b"range").then_some(Expression::Between(boxed(a)?, boxed(low)?, boxed(high)?))?;
            if name[0] == b'n' { not(between) } else { between }
        }
        (name, [a, b]) => match (comparison(name), calculation(name)) {
            (Some(how), _) => Expression::Compare(how, boxed(a)?, boxed(b)?),
            (_, Some(how)) => Expression::Calculate(how, boxed(a)?, boxed(b)?),
            _ => return None,
        },
        _ => return None,
    })
}

fn constant(of: &Term) -> Option<Constant> {
    Some(match of {
        Term::Atom(word) if **word == *b"true" => Constant::Bool(true),
        Term::Atom(word) if **word == *b"false" => Constant::Bool(false),
        Term::Integer(number) => Constant::Integer(*number),
        Term::Float(number) => Constant::Float(*number),
        Term::Text(text) => Constant::Text(text.clone()),
        _ => return None,
    })
}

fn comparison(name: &[u8]) -> Option<Comparison> {
    Some(match name {
        b"=" => Comparison::Equal,
        b"<>" => Comparison::Different,
        b"<" => Comparison::Less,
        b"<=" => Comparison::AtMost,
        b">" => Comparison::More,
        b">=" => Comparison::AtLeast,
        _ => return None,
    })
}

fn calculation(name: &[u8]) -> Option<Calculation> {
    Some(match name {
        b"+" => Calculation::Add,
        b"-" => Calculation::Subtract,
        b"*" => Calculation::Multiply,
        b"/" => Calculation::Divide,
        _ => return None,
    })
}

impl Expression {
    /// Nothing where the steps of the message are used up, and then nobody asks what that means.
    fn evaluate<'a>(&'a self, headers: &'a MessageHeaders) -> Known<'a> {
        let steps = &headers.steps;
        if !steps.take(1) {
            return Known::Nothing;
        }
        match self {
            Expression::Constant(constant) => constant.known(),
            Expression::Header(name) => {
                steps.take(LOOKUP_STEPS);
                header(headers, name)
            }
            Expression::Not(of) => match of.evaluate(headers) {
                Known::Bool(is) => Known::Bool(!is),
                _ => Known::Nothing,
            },
            Expression::Minus(of) => match of.evaluate(headers) {
                Known::Integer(number) => number.checked_neg().map_or(Known::Nothing, Known::Integer),
                Known::Float(number) => Known::Float(-number),
                _ => Known::Nothing,
            },
            Expression::IsNull(of) => Known::Bool(of.evaluate(headers) == Known::Nothing),
            Expression::Both(a, b) => match (a.evaluate(headers), b.evaluate(headers)) {
                (Known::Bool(false), _) | (_, Known::Bool(false)) => Known::Bool(false),
                (Known::Bool(true), Known::Bool(true)) => Known::Bool(true),
                _ => Known::Nothing,
            },
            Expression::Either(a, b) => match (a.evaluate(headers), b.evaluate(headers)) {
                (Known::Bool(true), _) | (_, Known::Bool(true)) => Known::Bool(true),
                (Known::Bool(false), Known::Bool(false)) => Known::Bool(false),
                _ => Known::Nothing,
            },
            Expression::Compare(how, a, b) => {
                let (a, b) = (a.evaluate(headers), b.evaluate(headers));
                steps.take(comparison_steps(a).min(comparison_steps(b)));
                compare(*how, a, b)
            }
            Expression::Calculate(how, a, b) => calculate(*how, a.evaluate(headers), b.evaluate(headers)),
            Expression::In(of, all) => match of.evaluate(headers) {
                Known::Nothing => Known::Nothing,
                found if !steps.take(all.len().saturating_mul(1 + comparison_steps(found))) => Known::Nothing,
                // Exactly one of them: a whole number is no float here, as in RabbitMQ.
                found => Known::Bool(all.iter().any(|one| one.known() == found)),
            },
            Expression::Like(of, pattern) => match of.evaluate(headers) {
                Known::Text(text) => Known::Bool(pattern.meets(text, steps)),
                _ => Known::Nothing,
            },
            Expression::Between(of, low, high) => {
                let [of, low, high] = [of, low, high].map(|e| e.evaluate(headers));
                steps.take(2 * comparison_steps(of));
                match (order(low, of), order(of, high)) {
                    (Some(low), Some(high)) => Known::Bool(low.is_le() && high.is_le()),
                    _ => Known::Nothing,
                }
            }
        }
    }
}

/// What it costs to compare a value with another, beside the step of whoever compares.
fn comparison_steps(known: Known<'_>) -> usize {
    match known {
        Known::Text(text) => text.len() / TEXT_BYTES_A_STEP,
        _ => 0,
    }
}

impl Constant {
    fn known(&self) -> Known<'_> {
        match self {
            Constant::Bool(is) => Known::Bool(*is),
            Constant::Integer(number) => Known::Integer(*number),
            Constant::Float(number) => Known::Float(*number),
            Constant::Text(text) => Known::Text(text),
        }
    }
}

/// A header that is neither text nor number nor truth is as good as none. Of two with one name the
/// first counts.
fn header<'a>(headers: &'a MessageHeaders, name: &[u8]) -> Known<'a> {
    match headers.first(name) {
        Some(Value::LongString(text)) => Known::Text(text),
        Some(Value::Bool(is)) => Known::Bool(*is),
        Some(Value::F32(number)) => Known::Float(f64::from(*number)),
        Some(Value::F64(number)) => Known::Float(*number),
        Some(value) => integer(value).map_or(Known::Nothing, Known::Integer),
        None => Known::Nothing,
    }
}

/// Numbers by their value; what is of different kinds in Erlang's order of kinds, as RabbitMQ
/// compares it.
fn order(a: Known<'_>, b: Known<'_>) -> Option<Ordering> {
    let rank = |known: Known<'_>| match known {
        Known::Nothing => None,
        Known::Integer(_) | Known::Float(_) => Some(0),
        Known::Bool(_) => Some(1),
        Known::Text(_) => Some(2),
    };
    match (a, b) {
        (Known::Integer(a), Known::Integer(b)) => Some(a.cmp(&b)),
        (Known::Bool(a), Known::Bool(b)) => Some(a.cmp(&b)),
        (Known::Text(a), Known::Text(b)) => Some(a.cmp(b)),
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => a.partial_cmp(&b),
            _ => Some(rank(a)?.cmp(&rank(b)?)),
        },
    }
}

fn number(known: Known<'_>) -> Option<f64> {
    match known {
        Known::Integer(number) => Some(number as f64),
        Known::Float(number) => Some(number),
        _ => None,
    }
}

fn compare<'a>(how: Comparison, a: Known<'_>, b: Known<'_>) -> Known<'a> {
    let Some(order) = order(a, b) else { return Known::Nothing };
    Known::Bool(match how {
        Comparison::Equal => order.is_eq(),
        Comparison::Different => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::AtMost => order.is_le(),
        Comparison::More => order.is_gt(),
        Comparison::AtLeast => order.is_ge(),
    })
}

/// Whole numbers stay whole but for a division, as in RabbitMQ; one that gets too long is unknown.
fn calculate<'a>(how: Calculation, a: Known<'_>, b: Known<'_>) -> Known<'a> {
    if let (Known::Integer(a), Known::Integer(b)) = (a, b) {
        let whole = match how {
            Calculation::Add => Some(a.checked_add(b)),
            Calculation::Subtract => Some(a.checked_sub(b)),
            Calculation::Multiply => Some(a.checked_mul(b)),
            Calculation::Divide => None,
        };
        if let Some(whole) = whole {
            return whole.map_or(Known::Nothing, Known::Integer);
        }
    }
    let Some((a, b)) = number(a).zip(number(b)) else { return Known::Nothing };
    Known::Float(match how {
        Calculation::Add => a + b,
        Calculation::Subtract => a - b,
        Calculation::Multiply => a * b,
        Calculation::Divide => a / b,
    })
}

#[cfg(test)]
mod tests;
