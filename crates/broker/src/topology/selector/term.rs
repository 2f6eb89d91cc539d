//! Reads the text of an Erlang term: as much of it as selectors are made of.
//!
//! Invariant: what is read is the whole text, and no deeper than [`SELECTOR_DEPTH_MAX`].

use bytes::Bytes;

use super::SELECTOR_DEPTH_MAX;

/// A term.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    Atom(Vec<u8>),
    Text(Bytes),
    Integer(i64),
    Float(f64),
    List(Vec<Term>),
    Tuple(Vec<Term>),
}

/// The term of a text; the full stop behind it may be missing.
pub(super) fn parse(text: &[u8]) -> Option<Term> {
    let mut scanner = Scanner { rest: text };
    let term = scanner.term(SELECTOR_DEPTH_MAX)?;
    scanner.skip_blanks();
    if let Some(rest) = scanner.rest.strip_prefix(b".") {
        scanner.rest = rest;
        scanner.skip_blanks();
    }
    scanner.rest.is_empty().then_some(term)
}

struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    /// Takes what comes next, if it is this.
    fn takes(&mut self, what: &[u8]) -> bool {
        self.skip_blanks();
        let rest = self.rest.strip_prefix(what);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn term(&mut self, depth: usize) -> Option<Term> {
        let depth = depth.checked_sub(1)?;
        if self.takes(b"{") {
            return self.terms(b"}", depth).map(Term::Tuple);
        }
        if self.takes(b"[") {
            return self.terms(b"]", depth).map(Term::List);
        }
        if self.takes(b"<<") {
            let text = if self.takes(b"\"") { self.quoted(b'"')? } else { Vec::new() };
            return self.takes(b">>").then_some(Term::Text(text.into()));
        }
        if self.takes(b"'") {
            return self.quoted(b'\'').map(Term::Atom);
        }
        match self.rest.first()? {
            b'a'..=b'z' => {
                let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'@');
                Some(Term::Atom(self.take_while(is_of_word).to_vec()))
            }
            _ => self.number(),
        }
    }

    /// Terms between commas, up to the bracket that ends them.
    fn terms(&mut self, end: &[u8], depth: usize) -> Option<Vec<Term>> {
        let mut terms = Vec::new();
        if self.takes(end) {
            return Some(terms);
        }
        loop {
            terms.push(self.term(depth)?);
            if self.takes(end) {
                return Some(terms);
            }
            if !self.takes(b",") {
                return None;
            }
        }
    }

    /// What is between quotes, the first of which is gone.
    fn quoted(&mut self, quote: u8) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                _ if byte == quote => return Some(text),
                b'\\' => text.push(self.escaped()?),
                _ => text.push(byte),
            }
        }
    }

    /// What a backslash, which is gone, makes of what comes behind it.
    fn escaped(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        if byte.is_ascii_digit() {
            let is_octal = |byte: &&u8| matches!(**byte, b'0'..=b'7');
            let digits = self.rest.iter().take(3).take_while(is_octal).count();
            let (octal, rest) = self.rest.split_at(digits);
            self.rest = rest;
            return u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok();
        }
        self.rest = rest;
        Some(match byte {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'e' => 0x1b,
            b's' => b' ',
            b'd' => 0x7f,
            // By number: nobody sends these.
            b'x' | b'^' => return None,
            _ => byte,
        })
    }

    fn take_while(&mut self, is_wanted: impl Fn(&u8) -> bool) -> &[u8] {
        let count = self.rest.iter().take_while(|byte| is_wanted(byte)).count();
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    fn number(&mut self) -> Option<Term> {
        let is_negative = self.takes(b"-");
        if !is_negative {
            self.takes(b"+");
        }
        self.skip_blanks();
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (whole, rest) = self.rest.split_at(digits);
        let fraction = rest.strip_prefix(b".").map_or(0, |rest| rest.iter().take_while(|b| b.is_ascii_digit()).count());
        if fraction == 0 {
            self.rest = rest;
            let digits = std::str::from_utf8(whole).ok()?;
            return if is_negative { format!("-{digits}") } else { digits.to_owned() }.parse().ok().map(Term::Integer);
        }
        let mut length = digits + 1 + fraction;
        if let Some(exponent) = self.rest[length..].strip_prefix(b"e").or(self.rest[length..].strip_prefix(b"E")) {
            let sign = usize::from(matches!(exponent.first(), Some(b'-' | b'+')));
            length += 1 + sign + exponent[sign..].iter().take_while(|b| b.is_ascii_digit()).count();
        }
        let (number, rest) = self.rest.split_at(length);
        self.rest = rest;
        let number: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
        Some(Term::Float(if is_negative { -number } else { number }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> Term {
        Term::Text(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn terms_are_read_as_erlang_writes_them() {
        for (written, read) in [
            ("abc", Term::Atom(b"abc".to_vec())),
            ("'no t'.", Term::Atom(b"no t".to_vec())),
            (" -12 .", Term::Integer(-12)),
            ("+7", Term::Integer(7)),
            ("1.5", Term::Float(1.5)),
            ("-1.0E-3.", Term::Float(-0.001)),
            ("2.0e+2", Term::Float(200.0)),
            ("<<\"a\\\"b\\\\c\\101\">>.", text("a\"b\\cA")),
            ("<<>>", text("")),
            ("[]", Term::List(vec![])),
            (
                "{a, [1,\n2.0]}.",
                Term::Tuple(vec![Term::Atom(b"a".to_vec()), Term::List(vec![Term::Integer(1), Term::Float(2.0)])]),
            ),
        ] {
            assert_eq!(parse(written.as_bytes()), Some(read), "{written}");
        }
        for written in
            ["", ".", "Variable", "{a", "{a,}", "<<\"a\">", "'a", "1 2", "99999999999999999999", "\"string\""]
        {
            assert_eq!(parse(written.as_bytes()), None, "{written}");
        }
    }

    #[test]
    fn nesting_has_an_end() {
        let nested = |depth: usize| format!("{}1{}.", "{'not',".repeat(depth), "}".repeat(depth));
        assert!(parse(nested(SELECTOR_DEPTH_MAX - 1).as_bytes()).is_some());
        assert!(parse(nested(SELECTOR_DEPTH_MAX).as_bytes()).is_none());
        assert!(parse("{".repeat(1 << 20).as_bytes()).is_none());
    }
}
