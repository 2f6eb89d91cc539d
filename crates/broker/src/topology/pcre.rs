//! The text of a pattern as people write it for RabbitMQ, in the words of the machine that searches.
//!
//! Invariant: what comes out means here what PCRE means by what went in, or nothing comes out. The
//! two differ where it matters who may do what: in a class the machine reads `&&`, `--`, `~~` and
//! another `[` as operations on sets; it takes `(?R)` for a flag, `\h` for a digit and `\<` for the
//! beginning of a word; and it has recursion and verbs, whose cost nobody can foresee. So a class is
//! written anew from the bytes that are in it, an escape from the byte that it stands for, and what
//! is not known here is refused.
//!
//! Patterns are bytes, as they are to RabbitMQ: in a class a letter beyond ASCII is its bytes.

use std::fmt::Write as _;

/// The pattern for the machine. Errors: what in it is not taken.
pub(super) fn translate(text: &str) -> Result<String, String> {
    let refers = refers(text);
    let mut walk = Walk {
        text,
        at: 0,
        depth: 0,
        spaced: false,
        refers,
        names: Vec::new(),
        out: String::with_capacity(text.len() + 16),
    };
    while let Some(byte) = walk.peek(0) {
        match byte {
            b'\\' => walk.escape()?,
            b'[' => walk.class()?,
            b'(' => walk.open()?,
            b'{' => walk.brace(),
            b'}' | b']' => walk.literal(byte),
            b'#' if walk.spaced => return Err("a comment: leave it out".into()),
            _ => {
                walk.depth -= usize::from(byte == b')' && walk.depth > 0);
                walk.copy(1);
            }
        }
    }
    Ok(walk.out)
}

/// Whether anything may refer to what a group has found. Where nothing does, groups remember nothing: each that does costs
/// memory in every place of a search, which made megabytes of a pattern of hundreds of groups.
fn refers(text: &str) -> bool {
    let is_reference = |two: &[u8]| two[0] == b'\\' && matches!(two[1], b'1'..=b'9' | b'g' | b'k');
    text.as_bytes().windows(2).any(is_reference) || text.contains("(?(") || text.contains("(?P=")
}

/// What may stand behind `(?` and changes nothing about what follows.
const GROUPS: [&str; 6] = [":", "=", "!", ">", "<=", "<!"];
const RECURSION: &str = "recursion, which is not supported";

struct Walk<'a> {
    text: &'a str,
    at: usize,
    /// Groups that are open.
    depth: usize,
    /// White space may mean nothing from here on: the flag `x`.
    spaced: bool,
    /// See [`refers`].
    refers: bool,
    /// Of groups, so far.
    names: Vec<&'a str>,
    out: String,
}

impl Walk<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    /// What is not read yet.
    fn rest(&self) -> &[u8] {
        &self.text.as_bytes()[self.at..]
    }

    /// So many bytes, and what belongs to the last letter of them, as they are.
    fn copy(&mut self, bytes: usize) {
        let mut end = self.at + bytes;
        while !self.text.is_char_boundary(end) {
            end += 1;
        }
        self.out.push_str(&self.text[self.at..end]);
        self.at = end;
    }

    /// One byte of the pattern, which stands for itself.
    fn literal(&mut self, byte: u8) {
        self.push(byte);
        self.at += 1;
    }

    fn push(&mut self, byte: u8) {
        write!(self.out, "\\x{byte:02X}").expect("a text takes what is written to it");
    }

    /// `{2,3}` is a repeat; any other brace is itself.
    fn brace(&mut self) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let (inside, end) = match self.rest().iter().position(|byte| *byte == b'}') {
            Some(end) => (&self.rest()[1..end], end),
            None => return self.literal(b'{'),
        };
        let mut parts = inside.splitn(2, |byte| *byte == b',');
        let first = parts.next().is_some_and(|first| !first.is_empty() && first.iter().all(is_digit));
        if first && parts.next().is_none_or(|second| second.iter().all(is_digit)) {
            self.copy(end + 1);
        } else {
            self.literal(b'{');
        }
    }

    /// In the place of `bytes` of the text, which open a group that nobody refers to.
    fn open_without_memory(&mut self, bytes: usize) {
        self.out.push_str("(?:");
        self.at += bytes;
    }

    fn open(&mut self) -> Result<(), String> {
        let next = self.peek(1);
        if next == Some(b'*') {
            return Err("a verb, which is not supported".into());
        }
        if self.spaced && next.is_some_and(|byte| byte.is_ascii_whitespace()) {
            return Err("white space behind '(': leave it out".into());
        }
        if next != Some(b'?') {
            self.depth += 1;
            match self.refers {
                true => self.copy(1),
                false => self.open_without_memory(1),
            }
            return Ok(());
        }
        let behind = &self.text[self.at + 2..];
        if let Some(group) = GROUPS.iter().find(|group| behind.starts_with(**group)) {
            self.depth += 1;
            self.copy(2 + group.len());
            return Ok(());
        }
        if behind.starts_with('#') {
            return Err("a comment: leave it out".into());
        }
        if let Some(condition) = behind.strip_prefix('(') {
            return self.condition(condition);
        }
        for (begin, end) in [("P<", '>'), ("<", '>'), ("'", '\'')] {
            if let Some(name) = behind.strip_prefix(begin) {
                let length = name_before(name, end)?;
                if self.names.contains(&&name[..length]) {
                    return Err("two groups of one name".into());
                }
                self.names.push(&name[..length]);
                self.depth += 1;
                let bytes = 2 + begin.len() + length + 1;
                match self.refers {
                    true => self.copy(bytes),
                    false => self.open_without_memory(bytes),
                }
                return Ok(());
            }
        }
        if let Some(name) = behind.strip_prefix("P=") {
            let name = name_before(name, ')')?;
            self.copy(4 + name + 1);
            return Ok(());
        }
        let is_of_recursion = |byte: u8| matches!(byte, b'R' | b'&' | b'+' | b'0'..=b'9');
        let first = behind.as_bytes().first().copied().unwrap_or_default();
        let second = behind.as_bytes().get(1).copied().unwrap_or_default();
        if is_of_recursion(first) || behind.starts_with("P>") || first == b'-' && second.is_ascii_digit() {
            return Err(RECURSION.into());
        }
        self.flags(behind)
    }

    /// `(?i)` and `(?i:`.
    fn flags(&mut self, behind: &str) -> Result<(), String> {
        let end = behind.bytes().position(|byte| !matches!(byte, b'i' | b'm' | b's' | b'x' | b'U' | b'-'));
        let last = end.and_then(|end| behind.as_bytes().get(end)).copied();
        let (Some(end), Some(last @ (b')' | b':'))) = (end, last) else {
            let shown: String = behind.chars().take(8).collect();
            return Err(format!("'(?{shown}', which is not supported"));
        };
        if last == b')' && self.depth > 0 {
            return Err("a flag that holds for the rest of a group: write it as (?i:...)".into());
        }
        let on = behind[..end].split('-').next().unwrap_or_default();
        self.spaced |= on.contains('x');
        self.depth += usize::from(last == b':');
        self.copy(2 + end + 1);
        Ok(())
    }

    /// `(?(1)`, `(?(<name>)` and `(?(?=`; other conditions ask for recursion.
    fn condition(&mut self, condition: &str) -> Result<(), String> {
        self.depth += 1;
        if GROUPS[1..].iter().any(|group| *group != ">" && condition.starts_with(&format!("?{group}"))) {
            // The assertion comes next.
            self.copy(2);
            return Ok(());
        }
        let digits = condition.bytes().take_while(u8::is_ascii_digit).count();
        let end = match condition.as_bytes() {
            [b'<', ..] => 1 + name_before(&condition[1..], '>')? + 1,
            [b'\'', ..] => 1 + name_before(&condition[1..], '\'')? + 1,
            _ => digits,
        };
        if end == 0 || condition.as_bytes().get(end) != Some(&b')') {
            return Err("a condition that is neither a group's number, (?(1)..), nor its name, (?(<name>)..)".into());
        }
        self.copy(3 + end + 1);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        let Some(byte) = self.peek(1) else { return Err("a '\\' at its end".into()) };
        match byte {
            b'1'..=b'9' if self.peek(2).is_some_and(|next| next.is_ascii_digit()) => {
                return Err(format!(
                    "'\\{}{}': write \\g{{10}}, or a byte as \\x0A",
                    byte as char,
                    self.rest()[2] as char
                ));
            }
            b'1'..=b'9'
            | b'd'
            | b'D'
            | b'w'
            | b'W'
            | b's'
            | b'S'
            | b'b'
            | b'B'
            | b'A'
            | b'z'
            | b'Z'
            | b'G'
            | b'K'
            | b'R' => self.copy(2),
            b'N' | b'h' | b'H' | b'v' | b'V' => {
                let set = Set::of_escape(byte).unwrap_or_else(|| Set::of(|byte| byte != b'\n'));
                set.write(false, &mut self.out);
                self.at += 2;
            }
            b'g' => self.reference()?,
            b'k' => {
                let behind = &self.text[self.at + 2..];
                let ends = [('<', '>'), ('\'', '\''), ('{', '}')];
                let found = ends.iter().find_map(|(begin, end)| Some((behind.strip_prefix(*begin)?, *end)));
                let Some((name, end)) = found else { return Err("'\\k' without a name".into()) };
                let bytes = name_before(name, end)?;
                write!(self.out, "\\k<{}>", &name[..bytes]).expect("a text takes what is written to it");
                self.at += 3 + bytes + 1;
            }
            b'Q' => {
                self.at += 2;
                let end = self.text[self.at..].find("\\E").map_or(self.text.len(), |end| self.at + end);
                while self.at < end {
                    match self.rest()[0] {
                        byte if byte.is_ascii() => self.literal(byte),
                        _ => self.copy(1),
                    }
                }
                self.at = self.text.len().min(end + 2);
            }
            b'E' => self.at += 2,
            _ if byte.is_ascii() => {
                let (byte, bytes) = one_byte(self.rest())?;
                self.push(byte);
                self.at += bytes;
            }
            _ => {
                self.at += 1;
                self.copy(1);
            }
        }
        Ok(())
    }

    /// `\g1`, `\g{1}`, `\g{-1}` and `\g{name}`: back references. With other brackets it is recursion.
    fn reference(&mut self) -> Result<(), String> {
        let behind = &self.text[self.at + 2..];
        let (target, bytes) = match behind.strip_prefix('{') {
            Some(inside) => match inside.split_once('}') {
                Some((target, _)) => (target, target.len() + 2),
                None => return Err("'\\g{' without a '}'".into()),
            },
            None if behind.starts_with(['<', '\'']) => return Err(RECURSION.into()),
            None => {
                let sign = usize::from(behind.starts_with('-'));
                let digits = behind[sign..].bytes().take_while(u8::is_ascii_digit).count();
                (&behind[..sign + digits], sign + digits)
            }
        };
        let number = target.strip_prefix('-').unwrap_or(target);
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            name_before(&format!("{target}>"), '>')?;
        }
        write!(self.out, "\\k<{target}>").expect("a text takes what is written to it");
        self.at += 2 + bytes;
        Ok(())
    }

    fn class(&mut self) -> Result<(), String> {
        if posix(self.rest())?.is_some() {
            return Err("a class like [:alpha:] outside of [...]".into());
        }
        self.at += 1;
        let negated = self.peek(0) == Some(b'^');
        self.at += usize::from(negated);
        let (mut set, mut is_first) = (Set::default(), true);
        loop {
            match self.peek(0) {
                None => return Err("a '[' without its ']'".into()),
                Some(b']') if !is_first => break,
                Some(_) => {}
            }
            is_first = false;
            let first = match self.item()? {
                Item::Set(more) => {
                    set.add_all(&more);
                    continue;
                }
                Item::Byte(byte) => byte,
            };
            let is_range = self.peek(0) == Some(b'-') && self.peek(1).is_some_and(|next| next != b']');
            if !is_range {
                set.add(first, first);
                continue;
            }
            self.at += 1;
            match self.item()? {
                Item::Byte(last) if last < first => return Err("a range whose end is before its beginning".into()),
                Item::Byte(last) => set.add(first, last),
                Item::Set(_) => return Err("a range whose end is no letter".into()),
            }
        }
        self.at += 1;
        set.write(negated, &mut self.out);
        Ok(())
    }

    /// What comes next in a class.
    fn item(&mut self) -> Result<Item, String> {
        let byte = self.peek(0).ok_or("a '[' without its ']'")?;
        if byte == b'[' {
            if let Some((set, bytes)) = posix(self.rest())? {
                self.at += bytes;
                return Ok(Item::Set(set));
            }
        } else if byte == b'\\' {
            let escaped = self.peek(1).ok_or("a '\\' at its end")?;
            if let Some(set) = Set::of_escape(escaped) {
                self.at += 2;
                return Ok(Item::Set(set));
            }
            let (byte, bytes) = match escaped {
                b'b' => (0x08, 2),
                _ => one_byte(self.rest())?,
            };
            self.at += bytes;
            return Ok(Item::Byte(byte));
        }
        self.at += 1;
        Ok(Item::Byte(byte))
    }
}

#[allow(clippy::large_enum_variant, reason = "few, and gone once the pattern is written")]
enum Item {
    Byte(u8),
    Set(Set),
}

/// The byte that the escape at the beginning stands for, and how long the escape is.
fn one_byte(rest: &[u8]) -> Result<(u8, usize), String> {
    let number = |from: usize, most: usize, radix: u32| {
        let digits = rest[from..].iter().take(most).take_while(|byte| char::from(**byte).is_digit(radix)).count();
        let text = std::str::from_utf8(&rest[from..from + digits]).unwrap_or_default();
        (u32::from_str_radix(text, radix).unwrap_or(0), digits)
    };
    let beyond = || "a letter's number that is no byte".to_owned();
    match rest[1] {
        b'n' => Ok((b'\n', 2)),
        b'r' => Ok((b'\r', 2)),
        b't' => Ok((b'\t', 2)),
        b'f' => Ok((0x0c, 2)),
        b'a' => Ok((0x07, 2)),
        b'e' => Ok((0x1b, 2)),
        b'x' if rest.get(2) == Some(&b'{') => {
            let (value, digits) = number(3, 8, 16);
            if digits == 0 || rest.get(3 + digits) != Some(&b'}') {
                return Err("'\\x{' without a number and a '}'".into());
            }
            Ok((u8::try_from(value).map_err(|_| beyond())?, 3 + digits + 1))
        }
        b'x' => {
            let (value, digits) = number(2, 2, 16);
            Ok((u8::try_from(value).map_err(|_| beyond())?, 2 + digits))
        }
        b'0'..=b'7' => {
            let (value, digits) = number(1, 3, 8);
            Ok((u8::try_from(value).map_err(|_| beyond())?, 1 + digits))
        }
        b'c' => match rest.get(2) {
            Some(letter) if letter.is_ascii_graphic() => Ok((letter.to_ascii_uppercase() ^ 0x40, 3)),
            _ => Err("'\\c' without a letter".into()),
        },
        byte if byte.is_ascii_alphanumeric() => Err(format!("'\\{}', which is not supported", byte as char)),
        byte => Ok((byte, 2)),
    }
}

/// How long the name at the beginning is. Errors: it is none, or does not end there.
fn name_before(text: &str, end: char) -> Result<usize, String> {
    let bytes = text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    let begins = text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if bytes == 0 || !begins || !text[bytes..].starts_with(end) {
        return Err("a group's name that is none".into());
    }
    Ok(bytes)
}

/// The class like `[:alpha:]` at the beginning, and how long it is. Errors: there is no such class.
fn posix(rest: &[u8]) -> Result<Option<(Set, usize)>, String> {
    let Some(kind @ (b':' | b'.' | b'=')) = rest.get(1).copied() else { return Ok(None) };
    // As PCRE looks for the end: at the first `]` there is either the end or no such class.
    let end = (2..rest.len()).find(|at| rest[*at] == b']' || rest[*at] == kind && rest.get(*at + 1) == Some(&b']'));
    let Some(end) = end.filter(|end| rest[*end] == kind) else { return Ok(None) };
    let shown = String::from_utf8_lossy(&rest[..end + 2]);
    let wrong = || format!("'{shown}', which is no class");
    if kind != b':' {
        return Err(wrong());
    }
    let name = &rest[2..end];
    let (negated, name) = name.strip_prefix(b"^").map_or((false, name), |name| (true, name));
    let holds: fn(u8) -> bool = match name {
        b"alnum" => |byte| byte.is_ascii_alphanumeric(),
        b"alpha" => |byte| byte.is_ascii_alphabetic(),
        b"ascii" => |byte| byte.is_ascii(),
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => |byte| byte.is_ascii_control(),
        b"digit" => |byte| byte.is_ascii_digit(),
        b"graph" => |byte| byte.is_ascii_graphic(),
        b"lower" => |byte| byte.is_ascii_lowercase(),
        b"print" => |byte| byte.is_ascii_graphic() || byte == b' ',
        b"punct" => |byte| byte.is_ascii_punctuation(),
        b"space" => is_space,
        b"upper" => |byte| byte.is_ascii_uppercase(),
        b"word" => is_of_word,
        b"xdigit" => |byte| byte.is_ascii_hexdigit(),
        _ => return Err(wrong()),
    };
    Ok(Some((Set::of(|byte| holds(byte) != negated), end + 2)))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Bytes of which one is to come.
struct Set([bool; 256]);

impl Default for Set {
    fn default() -> Self {
        Set([false; 256])
    }
}

impl Set {
    fn of(holds: impl Fn(u8) -> bool) -> Self {
        let mut set = Set::default();
        (0..=u8::MAX).filter(|byte| holds(*byte)).for_each(|byte| set.add(byte, byte));
        set
    }

    /// The set of `\d` and its like, with and without a class around it.
    fn of_escape(letter: u8) -> Option<Self> {
        let holds: fn(u8) -> bool = match letter.to_ascii_lowercase() {
            b'd' => |byte| byte.is_ascii_digit(),
            b'w' => is_of_word,
            b's' => is_space,
            b'h' => |byte| matches!(byte, b'\t' | b' ' | 0xa0),
            b'v' => |byte| matches!(byte, b'\n'..=b'\r' | 0x85),
            _ => return None,
        };
        Some(Set::of(|byte| holds(byte) != letter.is_ascii_uppercase()))
    }

    /// From `first` to `last`, both included.
    fn add(&mut self, first: u8, last: u8) {
        self.0[usize::from(first)..=usize::from(last)].fill(true);
    }

    fn add_all(&mut self, other: &Set) {
        self.0.iter_mut().zip(other.0).for_each(|(here, there)| *here |= there);
    }

    /// As a class for the machine.
    fn write(&self, negated: bool, out: &mut String) {
        out.push_str(if negated { "[^" } else { "[" });
        let mut from = 0;
        while let Some(first) = (from..256).find(|at| self.0[*at]) {
            let last = (first..256).find(|at| !self.0[*at]).unwrap_or(256) - 1;
            write!(out, "\\x{first:02X}").expect("a text takes what is written to it");
            if last > first {
                write!(out, "-\\x{last:02X}").expect("a text takes what is written to it");
            }
            from = last + 1;
        }
        out.push(']');
    }
}

#[cfg(test)]
mod tests;
