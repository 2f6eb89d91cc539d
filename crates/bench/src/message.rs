//! What each message carries: who sent it, as which one, when it was due, and a checksum over all
//! of it.
//!
//! ```text
//!   from 32 bytes on:   0      4           8          16       24       28       32
//!                       | run  | publisher | sequence | due ns | length | crc32c | filling ...
//!
//!   12 to 31 bytes:     0           2          6               10      12
//!                       | publisher | sequence | due us, low 32 | check | filling ...
//! ```
//!
//! Invariant: a body that [`read`] accepts is one that [`write()`] made, of this length, unchanged.
//! Numbers are in network order. The short form has no room for the run, so its check is salted
//! with it: a message of another run looks damaged there, and only the depth of the queue at the
//! start tells the two apart.

use crc32c::{crc32c, crc32c_append, crc32c_combine};

/// The smallest body; PerfTest's minimum too.
pub const BODY_BYTES_MIN: usize = 12;

/// From this size on a body carries everything.
pub const FULL_BYTES_MIN: usize = 32;

/// The largest body that is sent: RabbitMQ 4's limit for a message.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Publishers that the short form can number.
pub const SHORT_PUBLISHERS_MAX: u32 = 1 << 16;

/// Who sent a message, as which one, and when it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The run it belongs to.
    pub run: u32,
    /// The publisher, counted over the run from 0.
    pub publisher: u32,
    /// The publisher's how many-th message, from 0.
    pub sequence: u64,
    /// When it was to be sent, nanoseconds since the epoch.
    pub due_ns: u64,
}

/// Writes the stamp into `body`, whose filling stays as it is. A body below [`BODY_BYTES_MIN`] is
/// the caller's bug.
#[inline]
pub fn write(body: &mut [u8], stamp: &Stamp) {
    assert!(body.len() >= BODY_BYTES_MIN, "a body has room for its stamp");
    if body.len() < FULL_BYTES_MIN {
        body[0..2].copy_from_slice(&(stamp.publisher as u16).to_be_bytes());
        body[2..6].copy_from_slice(&(stamp.sequence as u32).to_be_bytes());
        body[6..10].copy_from_slice(&((stamp.due_ns / 1000) as u32).to_be_bytes());
        let check = short_check(body, stamp.run);
        body[10..12].copy_from_slice(&check.to_be_bytes());
        return;
    }
    write_full(body, stamp);
    let check = full_check(body);
    body[28..32].copy_from_slice(&check.to_be_bytes());
}

/// All of the long form but its checksum.
#[inline]
fn write_full(body: &mut [u8], stamp: &Stamp) {
    let length = body.len() as u32;
    body[0..4].copy_from_slice(&stamp.run.to_be_bytes());
    body[4..8].copy_from_slice(&stamp.publisher.to_be_bytes());
    body[8..16].copy_from_slice(&stamp.sequence.to_be_bytes());
    body[16..24].copy_from_slice(&stamp.due_ns.to_be_bytes());
    body[24..28].copy_from_slice(&length.to_be_bytes());
}

/// The filling of all bodies of a run, which never changes: its part in their checksums is reckoned
/// once for each size, and a message costs the checksum of its stamp alone.
#[derive(Debug)]
pub struct Filling {
    bytes: Vec<u8>,
    known: Vec<Tail>,
}

/// What the filling of one size does to a checksum.
#[derive(Debug)]
struct Tail {
    body_bytes: usize,
    /// Its own checksum.
    check: u32,
    /// What becomes of the checksum before it, byte by byte: checksums are linear, so that the four
    /// parts are put together by exclusive or.
    shift: Box<[[u32; 256]; 4]>,
}

impl Filling {
    /// Bytes that do not compress to nothing, the same in every run, for bodies of these sizes.
    pub fn new(sizes: impl Iterator<Item = usize>) -> Filling {
        let sizes: Vec<usize> = sizes.map(|size| size.max(BODY_BYTES_MIN)).collect();
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let bytes: Vec<u8> =
            std::iter::repeat_with(next).take(sizes.iter().copied().max().unwrap_or(BODY_BYTES_MIN)).collect();
        let full = sizes.into_iter().filter(|size| *size >= FULL_BYTES_MIN);
        let known = full.map(|size| Tail::of(size, &bytes[32..size])).collect();
        Filling { bytes, known }
    }

    /// The filling of a body of this size, with room for its stamp.
    pub fn of(&self, size: usize) -> &[u8] {
        &self.bytes[..size]
    }

    /// As [`write()`] does, into a body that is filled by [`Filling::of`].
    #[inline]
    pub fn write(&self, body: &mut [u8], stamp: &Stamp) {
        let Some(tail) = self.known.iter().find(|tail| tail.body_bytes == body.len()) else {
            return write(body, stamp);
        };
        write_full(body, stamp);
        let check = tail.check_behind(&body[..28]);
        body[28..32].copy_from_slice(&check.to_be_bytes());
    }

    /// As [`read`] does. A body that has this filling is compared with it, which is quicker than a
    /// checksum; any other one is read as a whole.
    #[inline]
    pub fn read(&self, body: &[u8], run: u32, now_ns: u64) -> Option<Stamp> {
        match self.known.iter().find(|tail| tail.body_bytes == body.len()) {
            Some(tail) if body[32..] == self.bytes[32..body.len()] => {
                let check = u32::from_be_bytes(body[28..32].try_into().ok()?);
                (check == tail.check_behind(&body[..28])).then(|| stamp_of(body)).flatten()
            }
            _ => read(body, run, now_ns),
        }
    }
}

#[repr(align(8))]
struct Aligned([u8; 32]);

impl Tail {
    /// The checksum of a body that begins like this and goes on with the filling.
    #[inline]
    fn check_behind(&self, head: &[u8]) -> u32 {
        // Eight bytes at a time, which wants them to stand at a multiple of eight.
        let mut aligned = Aligned([0; 32]);
        aligned.0[..head.len()].copy_from_slice(head);
        let [a, b, c, d] = crc32c(&aligned.0[..head.len()]).to_le_bytes().map(usize::from);
        self.shift[0][a] ^ self.shift[1][b] ^ self.shift[2][c] ^ self.shift[3][d] ^ self.check
    }

    fn of(body_bytes: usize, tail: &[u8]) -> Tail {
        let bits: Vec<u32> = (0..32).map(|bit| crc32c_combine(1 << bit, 0, tail.len())).collect();
        let mut shift = Box::new([[0; 256]; 4]);
        for (at, of_byte) in shift.iter_mut().enumerate() {
            for (value, sum) in of_byte.iter_mut().enumerate() {
                let set = (0..8).filter(|bit| value >> bit & 1 == 1);
                *sum = set.fold(0, |sum, bit| sum ^ bits[8 * at + bit]);
            }
        }
        Tail { body_bytes, check: crc32c(tail), shift }
    }
}

/// Reads the stamp of a body that arrived at `now_ns`, in a run numbered `run`. `None` when the
/// body is not what was sent.
#[inline]
pub fn read(body: &[u8], run: u32, now_ns: u64) -> Option<Stamp> {
    if body.len() < BODY_BYTES_MIN {
        return None;
    }
    if body.len() < FULL_BYTES_MIN {
        let check = u16::from_be_bytes([body[10], body[11]]);
        if check != short_check(body, run) {
            return None;
        }
        let publisher = u32::from(u16::from_be_bytes([body[0], body[1]]));
        let sequence = u64::from(u32::from_be_bytes(body[2..6].try_into().ok()?));
        let due_low = u32::from_be_bytes(body[6..10].try_into().ok()?);
        // The time that has these low bits and is nearest to now: 36 minutes to either side.
        let now_us = now_ns / 1000;
        let late = (now_us as u32).wrapping_sub(due_low) as i32;
        let due_ns = now_us.wrapping_sub_signed(i64::from(late)) * 1000;
        return Some(Stamp { run, publisher, sequence, due_ns });
    }
    let check = u32::from_be_bytes(body[28..32].try_into().ok()?);
    (check == full_check(body)).then(|| stamp_of(body)).flatten()
}

/// The stamp of a body whose checksum is right; `None` where it says another length.
#[inline]
fn stamp_of(body: &[u8]) -> Option<Stamp> {
    let long = |at: usize| Some(u32::from_be_bytes(body[at..at + 4].try_into().ok()?));
    let longlong = |at: usize| Some(u64::from_be_bytes(body[at..at + 8].try_into().ok()?));
    if long(24)? as usize != body.len() {
        return None;
    }
    Some(Stamp { run: long(0)?, publisher: long(4)?, sequence: longlong(8)?, due_ns: longlong(16)? })
}

/// Whether a body that [`read`] refused looks like one of ours all the same: its length is where
/// ours have it.
pub fn is_stamped(body: &[u8]) -> bool {
    body.len() >= FULL_BYTES_MIN && body[24..28] == (body.len() as u32).to_be_bytes()
}

#[inline]
fn full_check(body: &[u8]) -> u32 {
    crc32c_append(crc32c(&body[..28]), &body[32..])
}

#[inline]
fn short_check(body: &[u8], run: u32) -> u16 {
    let check = crc32c_append(crc32c_append(run, &body[..10]), &body[12..]);
    (check ^ check >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_795_000_000_123_456_789;

    proptest! {
        #[test]
        fn what_is_written_is_read_and_any_flipped_bit_is_seen(
            length in BODY_BYTES_MIN..200, sequence in 0u64..1 << 32, publisher in 0u32..1 << 16, late in 0u64..2_000_000_000, bit in 0usize..1600
        ) {
            let due_ns = (NOW - late) / 1000 * 1000;
            let stamp = Stamp { run: 77, publisher, sequence, due_ns };
            let mut body = vec![0xA5; length];
            write(&mut body, &stamp);
            prop_assert_eq!(read(&body, 77, NOW), Some(stamp));
            let bit = bit % (length * 8);
            body[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(read(&body, 77, NOW), None);
        }
    }

    proptest! {
        #[test]
        fn what_a_known_filling_reads_is_what_is_read_without_it(
            size in BODY_BYTES_MIN..1200, known in prop::bool::ANY, bit in 0usize..9600, flips in prop::bool::ANY
        ) {
            let own = Filling::new(std::iter::once(size));
            let filling = if known { Filling::new(std::iter::once(size)) } else { Filling::new(std::iter::once(size + 1)) };
            let stamp = Stamp { run: 7, publisher: 3, sequence: 9, due_ns: NOW / 1000 * 1000 };
            let mut body = own.of(size).to_vec();
            own.write(&mut body, &stamp);
            if flips {
                let bit = bit % (size * 8);
                body[bit / 8] ^= 1 << (bit % 8);
            }
            prop_assert_eq!(filling.read(&body, 7, NOW), read(&body, 7, NOW));
            prop_assert_eq!(filling.read(&body, 7, NOW).is_some(), !flips);
        }

        #[test]
        fn a_checksum_over_a_known_filling_is_the_one_over_the_whole_body(
            size in BODY_BYTES_MIN..3000, other in BODY_BYTES_MIN..3000, sequence in 0u64..1 << 32, publisher in 0u32..1 << 16
        ) {
            let filling = Filling::new([other, size].into_iter());
            let stamp = Stamp { run: 7, publisher, sequence, due_ns: NOW };
            let (mut one, mut two) = (filling.of(size).to_vec(), filling.of(size).to_vec());
            write(&mut one, &stamp);
            filling.write(&mut two, &stamp);
            prop_assert_eq!(one, two);
        }
    }

    #[test]
    fn a_body_that_was_cut_or_grew_is_damaged() {
        let mut body = vec![0; 100];
        write(&mut body, &Stamp { run: 1, publisher: 2, sequence: 3, due_ns: 4 });
        assert!(read(&body[..99], 1, NOW).is_none());
        body.push(0);
        assert!(read(&body, 1, NOW).is_none());
    }

    #[test]
    fn a_full_body_says_which_run_it_is_of_and_a_short_one_only_whether_it_is_ours() {
        let stamp = Stamp { run: 9, publisher: 2, sequence: 3, due_ns: NOW / 1000 * 1000 };
        let mut body = vec![0; FULL_BYTES_MIN];
        write(&mut body, &stamp);
        assert_eq!(read(&body, 1, NOW), Some(stamp));
        let mut body = vec![0; BODY_BYTES_MIN];
        write(&mut body, &stamp);
        assert_eq!(read(&body, 1, NOW), None);
    }
}
