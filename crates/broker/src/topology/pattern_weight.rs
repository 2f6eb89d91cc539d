//! How much work the pattern of a policy may make, read from its text.
//!
//! Invariant: the weight of a text is the same on every node and in every version of the machine that searches. It is an upper
//! bound in proportion to the places that a search may be in at once, so that weights add up: a name of n bytes takes at most
//! n times the sum of all weights in steps, whatever the name is.

/// A place of a pattern that may hold for many bytes or in many ways: a class, a group, a repeat, an anchor, a branch. A plain
/// byte weighs 1: what searches finds a run of them at once.
const OPERATOR: u64 = 8;

/// What the patterns of all policies of a virtual host may weigh together, and those of its operator policies: thousands as people
/// write them. A declare is matched with all of them while nobody else may change anything.
pub(super) const POLICIES_WEIGHT_MAX: u64 = 1 << 17;

/// The weight of a pattern.
pub(super) fn weight_of(text: &str) -> u64 {
    let mut reader = Reader { text: text.as_bytes(), at: 0 };
    // The sum of what stands in each group that is open, the text as a whole first.
    let mut open: Vec<u64> = vec![0];
    // The last item of the innermost group, which a repeat behind it repeats.
    let mut last = 0;
    while let Some(byte) = reader.take() {
        let item = match byte {
            b'(' => {
                reader.skip_group_kind();
                open.push(0);
                last = 0;
                continue;
            }
            b')' if open.len() > 1 => open.pop().unwrap_or(0).saturating_add(OPERATOR),
            b'*' | b'+' | b'?' => {
                add(&mut open, OPERATOR);
                continue;
            }
            b'{' => match reader.take_repeat() {
                Some(times) => {
                    let more = last_times(last, times).saturating_add(OPERATOR);
                    add(&mut open, more);
                    last = last.saturating_add(more);
                    continue;
                }
                None => 1,
            },
            b'|' => {
                add(&mut open, OPERATOR);
                last = 0;
                continue;
            }
            b'[' => {
                reader.skip_class();
                OPERATOR
            }
            b'.' | b'^' | b'$' => OPERATOR,
            b'\\' => reader.take_escape(),
            _ => 1,
        };
        add(&mut open, item);
        last = item;
    }
    open.into_iter().fold(0, u64::saturating_add)
}

/// What is added to an item that is there once when it is there `times` times.
fn last_times(item: u64, times: u64) -> u64 {
    item.saturating_mul(times.saturating_sub(1))
}

fn add(open: &mut [u64], weight: u64) {
    if let Some(sum) = open.last_mut() {
        *sum = sum.saturating_add(weight);
    }
}

/// The text, and how far it was read.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Behind `(`: passes over `?:`, `?=`, `?<name>` and what else is no repeat.
    fn skip_group_kind(&mut self) {
        if self.peek() == Some(b'?') {
            self.at += 1;
        }
    }

    /// Behind `{`: how often at most, if it is a repeat, which is then passed over; without an upper end the lower one, as what
    /// repeats without end stays in one place.
    fn take_repeat(&mut self) -> Option<u64> {
        let rest = &self.text[self.at..];
        let end = rest.iter().position(|byte| *byte == b'}')?;
        let (inside, mut numbers) = (std::str::from_utf8(&rest[..end]).ok()?, [None, None]);
        for (at, number) in inside.splitn(2, ',').enumerate() {
            if !number.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            numbers[at] = (!number.is_empty()).then(|| number.parse().unwrap_or(u64::MAX));
        }
        self.at += end + 1;
        Some(numbers[1].or(numbers[0]).unwrap_or(1).max(1))
    }

    /// Behind `[`.
    fn skip_class(&mut self) {
        if self.peek() == Some(b'^') {
            self.at += 1;
        }
        // The first one is a letter of the class.
        if self.peek() == Some(b']') {
            self.at += 1;
        }
        while let Some(byte) = self.take() {
            match byte {
                b']' => return,
                b'\\' => self.at += 1,
                b'[' if self.peek() == Some(b':') => {
                    let rest = &self.text[self.at..];
                    self.at += rest.windows(2).position(|two| two == b":]").map_or(0, |at| at + 2);
                }
                _ => {}
            }
        }
    }

    /// Behind a backslash: its weight, and the braces that belong to it are passed over.
    fn take_escape(&mut self) -> u64 {
        let Some(letter) = self.take() else { return 1 };
        if b"xopPNgk".contains(&letter) && self.peek() == Some(b'{') {
            let rest = &self.text[self.at..];
            self.at += rest.iter().position(|byte| *byte == b'}').map_or(0, |at| at + 1);
        }
        // `\.` and the like are plain bytes.
        if letter.is_ascii_alphanumeric() { OPERATOR } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_bytes_weigh_little_and_what_can_be_in_many_places_weighs_much() {
        for (text, weight) in [
            ("", 0),
            ("orders", 6),
            (r"^orders\.v2$", 8 + 9 + 8),
            (".*", 16),
            ("[]a-z]x", 9),
            ("[[:alpha:]]x", 9),
            ("a{3}", 3 + 8),
            ("a{2,5}b", 5 + 8 + 1),
            ("a{4,}", 4 + 8),
            ("a{b}", 4),
            (r"\x{41}{2}", 16 + 8),
            ("(a|b)?", (1 + 8 + 1 + 8) + 8),
            ("(ab){3}", 3 * (2 + 8) + 8),
            ("((ab){3}){2}", 2 * (3 * (2 + 8) + 8 + 8) + 8),
            ("(?=a)b", 2 + 8 + 1),
            ("[0-9a-f]{8}", 64 + 8),
        ] {
            assert_eq!(weight_of(text), weight, "{text}");
        }
    }

    #[test]
    fn no_text_is_read_beyond_its_end_and_no_count_overflows() {
        for text in ["[", "[^", "[\\", "\\", "(", ")", "{", "{9", "a{", "\\x{", "[[:", "(?"] {
            weight_of(text);
        }
        let nested = format!("{}a{}", "(".repeat(20), "{4294967295})".repeat(20));
        assert_eq!(weight_of(&nested), u64::MAX);
    }

    #[test]
    fn thousands_of_usual_policies_have_room() {
        let usual = [r"^team-a\.orders\.v2$", "^ha-", r"^(?!amq\.).*", r".*\.dlq$", r"^(orders|invoices)\.[a-z]{2}$"];
        let all: u64 = usual.iter().map(|text| weight_of(text)).sum();
        assert!(all / 5 * 2_000 <= POLICIES_WEIGHT_MAX, "{all}");
        assert!(weight_of(&"(a|b)?".repeat(600)) * 10 > POLICIES_WEIGHT_MAX, "and few of those that take long");
    }
}
