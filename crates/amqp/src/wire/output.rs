//! What is to be written to the socket: small things copied into one buffer, large bodies spliced
//! in as they are.
//!
//! ```text
//!   small:    [ method header ][ method header .... method ]
//!   splices:                  ^ body A                     ^ body B       at stream positions of `small`
//!   written:  method header, body A, method header .... method, body B
//! ```
//!
//! Invariant: `small[head..]` and the splices, each at its position, are the bytes still to write,
//! in order. A body is never copied when it is [`SPLICE_BYTES_MIN`] or more; below that a copy is
//! cheaper than another slice for the kernel to look at and a reference count to touch.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::wire::frame::Payload;

/// The smallest body that is spliced and not copied.
///
/// Measured, writing to a loopback socket included: at 2 KiB a copy and two more slices cost the
/// same (200 ns), at 4 KiB the splice is a tenth cheaper, and it needs no memory.
pub const SPLICE_BYTES_MIN: usize = 4 * 1024;

/// A buffer above this size goes back to the allocator as soon as it is empty: it was a burst.
pub const OUTPUT_KEEP_BYTES_MAX: usize = 256 * 1024;

/// Room for a burst as long as the last one is made at once up to here.
const BURST_BYTES_MAX: usize = 2 << 20;

/// Written bytes in front of the unwritten ones are squeezed out when they are at least this many
/// and at least half.
const SQUEEZE_BYTES_MIN: usize = 64 * 1024;

/// The rest of a body that is no longer than this is copied where a socket takes no more for now.
const REST_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug)]
struct Splice {
    /// The number of small bytes, since the output began, that go before these.
    position: u64,
    bytes: Bytes,
    /// How many bytes in front of these are written and still held: all that came with them is, as long as one of them is.
    written: usize,
}

/// The bytes to write, in order.
#[derive(Debug, Default)]
pub struct Output {
    small: Vec<u8>,
    /// How long `small` was when a burst was given back: the next one may be as long.
    burst: usize,
    /// How many bytes of `small` are written.
    head: usize,
    /// The stream position of `small[0]`: small bytes that were squeezed out.
    base: u64,
    splices: VecDeque<Splice>,
    spliced_bytes: usize,
    /// All bytes ever written.
    written: u64,
    /// Bytes of deliveries among those to write, or more: what is written may have been something
    /// else.
    delivered: usize,
}

impl Output {
    /// How many bytes are to be written.
    pub fn len(&self) -> usize {
        self.small.len() - self.head + self.spliced_bytes
    }

    /// How many of the bytes to write are answers to what the client itself sent: at least so many,
    /// and short by no more than there were deliveries when one was put in last.
    pub fn answer_bytes(&self) -> usize {
        self.len().saturating_sub(self.delivered)
    }

    /// What was put in since the output had `before` bytes is a delivery.
    #[inline]
    pub(crate) fn note_delivery(&mut self, before: usize) {
        self.delivered += self.len() - before;
    }

    /// So many bytes of deliveries, or about that, are what the client itself asked for: it has left the channel that they
    /// are for.
    pub(crate) fn abandon_deliveries(&mut self, bytes: usize) {
        self.delivered = self.delivered.saturating_sub(bytes);
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Fills `slices` with the next bytes to write, for one vectored write, and returns how many
    /// slices were filled.
    pub fn chunks<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let mut from = self.head;
        for splice in &self.splices {
            if filled == slices.len() {
                return filled;
            }
            let until = (splice.position - self.base) as usize;
            if until > from {
                slices[filled] = IoSlice::new(&self.small[from..until]);
                filled += 1;
                from = until;
                if filled == slices.len() {
                    return filled;
                }
            }
            slices[filled] = IoSlice::new(&splice.bytes);
            filled += 1;
        }
        if filled < slices.len() && from < self.small.len() {
            slices[filled] = IoSlice::new(&self.small[from..]);
            filled += 1;
        }
        filled
    }

    /// Takes `count` bytes off the front: they are written. More than [`len`](Self::len) is the
    /// caller's bug.
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len(), "more bytes written than there were");
        self.written += count as u64;
        while count > 0 {
            let until = match self.splices.front() {
                Some(splice) => (splice.position - self.base) as usize,
                None => self.small.len(),
            };
            let small = count.min(until - self.head);
            self.head += small;
            count -= small;
            if count == 0 {
                break;
            }
            let splice = self.splices.front_mut().expect("bytes are left, so a splice follows");
            let part = count.min(splice.bytes.len());
            splice.bytes.advance(part);
            splice.written += part;
            self.spliced_bytes -= part;
            count -= part;
            if splice.bytes.is_empty() {
                self.splices.pop_front();
            }
        }
        self.delivered = self.delivered.min(self.len());
        if self.is_empty() {
            self.base += self.small.len() as u64;
            self.head = 0;
            let burst = self.small.len().min(BURST_BYTES_MAX);
            self.small.clear();
            if self.small.capacity() > OUTPUT_KEEP_BYTES_MAX {
                self.trim();
                self.burst = burst;
            }
        } else if self.head >= SQUEEZE_BYTES_MIN && self.head >= self.small.len() / 2 {
            self.small.drain(..self.head);
            self.base += self.head as u64;
            self.head = 0;
        }
    }

    /// Gives the memory of an empty output back; does nothing while there is something to write.
    pub fn trim(&mut self) {
        if self.is_empty() {
            self.small = Vec::new();
            self.burst = 0;
            self.splices = VecDeque::new();
        }
    }

    /// How many bytes are to be written, and were written and are held all the same, as they came with those.
    pub fn pinned_bytes(&self) -> usize {
        self.len() + self.splices.front().map_or(0, |splice| splice.written)
    }

    /// The socket takes no more: the rest of a body of which nearly all is written is copied, so that the whole of it goes. With
    /// `is_stuck` that is enough of which half is written. A long one is not copied while somebody else holds it.
    pub fn let_go(&mut self, is_stuck: bool) {
        let Some(Splice { bytes, written, .. }) = self.splices.front_mut() else { return };
        let is_worth_it = *written > if is_stuck { bytes.len() } else { 4 * bytes.len() };
        if is_worth_it && (bytes.len() <= REST_BYTES_MAX || bytes.is_unique()) {
            (*bytes, *written) = (Bytes::copy_from_slice(bytes), 0);
        }
    }

    /// Bytes of memory held, bodies not counted.
    pub fn held_bytes(&self) -> usize {
        self.small.capacity() + self.splices.capacity() * size_of::<Splice>()
    }

    /// Makes room for `bytes` more small bytes, and for as long a burst as the last one was: what grows is copied.
    #[inline]
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if self.small.capacity() - self.small.len() < bytes {
            self.grow(bytes);
        }
    }

    #[cold]
    fn grow(&mut self, bytes: usize) {
        self.small.reserve(bytes.max(self.burst.saturating_sub(self.small.len())));
    }

    /// The buffer that small things are appended to.
    #[inline]
    pub(crate) fn small(&mut self) -> &mut Vec<u8> {
        &mut self.small
    }

    /// Appends a body: copied when it is small, spliced when it is large.
    #[inline]
    pub(crate) fn push_body(&mut self, body: Payload<'_>) {
        if body.len() < SPLICE_BYTES_MIN {
            self.small.extend_from_slice(&body);
        } else {
            let position = self.base + self.small.len() as u64;
            self.spliced_bytes += body.len();
            self.splices.push_back(Splice { position, bytes: body.to_bytes(), written: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let filled = output.chunks(&mut slices);
        slices[..filled].iter().flat_map(|s| s.to_vec()).collect()
    }

    fn sample() -> (Output, Vec<u8>) {
        let mut output = Output::default();
        let large = |byte| Bytes::from(vec![byte; SPLICE_BYTES_MIN]);
        output.small().extend_from_slice(b"one");
        output.push_body((&large(1)).into());
        output.push_body((&large(2)).into());
        output.small().extend_from_slice(b"two");
        output.push_body((&Bytes::from_static(b"small")).into());
        output.push_body((&large(3)).into());
        let expected =
            [&b"one"[..], &[1; SPLICE_BYTES_MIN], &[2; SPLICE_BYTES_MIN], b"twosmall", &[3; SPLICE_BYTES_MIN]].concat();
        (output, expected)
    }

    #[test]
    fn splices_stay_at_their_place() {
        let (output, expected) = sample();
        assert_eq!(everything(&output), expected);
        assert_eq!(output.len(), expected.len());
    }

    #[test]
    fn the_rest_of_a_body_is_copied_where_little_of_it_is_left_or_nobody_else_has_it() {
        let long = REST_BYTES_MAX * 10;
        for (written, is_stuck, is_shared, is_let_go) in [
            (10, true, false, false),
            (long - REST_BYTES_MAX, false, true, true),
            (long - REST_BYTES_MAX - 1, false, true, false),
            (long - REST_BYTES_MAX - 1, false, false, true),
            (long * 4 / 5, false, false, false),
            (long * 4 / 5, true, false, true),
            (long * 4 / 5, true, true, false),
        ] {
            let (mut output, body) = (Output::default(), Bytes::from((0..long).map(|n| n as u8).collect::<Vec<u8>>()));
            output.push_body((&body).into());
            output.small().extend_from_slice(b"behind");
            let expected = [&body[written..], b"behind"].concat();
            let kept = is_shared.then_some(body);
            output.advance(written);
            output.let_go(is_stuck);
            let case = format!("{written} {is_stuck} {is_shared}");
            assert_eq!(output.pinned_bytes() - output.len(), if is_let_go { 0 } else { written }, "{case}");
            assert_eq!(everything(&output), expected, "{case}");
            output.advance(long - written);
            assert_eq!((everything(&output), output.pinned_bytes()), (b"behind".to_vec(), 6), "{case}");
            drop(kept);
        }
    }

    #[test]
    fn any_write_size_leaves_the_rest_in_order() {
        for step in [1, 2, 7, 4096, SPLICE_BYTES_MIN, SPLICE_BYTES_MIN + 3, 50_000] {
            let (mut output, expected) = sample();
            let mut written = 0;
            while written < expected.len() {
                let part = step.min(output.len());
                output.advance(part);
                written += part;
                // What is appended in between goes to the end.
                assert_eq!(everything(&output), expected[written..], "step {step}, written {written}");
            }
            assert!(output.is_empty());
            output.small().extend_from_slice(b"more");
            output.push_body((&Bytes::from(vec![9; SPLICE_BYTES_MIN])).into());
            assert_eq!(everything(&output), [&b"more"[..], &[9; SPLICE_BYTES_MIN]].concat());
        }
    }

    #[test]
    fn squeezing_moves_no_splice() {
        let mut output = Output::default();
        output.small().extend_from_slice(&[1; 2 * SQUEEZE_BYTES_MIN]);
        output.push_body((&Bytes::from(vec![2; SPLICE_BYTES_MIN])).into());
        output.small().extend_from_slice(b"end");
        output.advance(SQUEEZE_BYTES_MIN + 1);
        let rest = [&[1; SQUEEZE_BYTES_MIN - 1][..], &[2; SPLICE_BYTES_MIN], b"end"].concat();
        assert_eq!(everything(&output), rest);
        output.push_body((&Bytes::from(vec![3; SPLICE_BYTES_MIN])).into());
        output.advance(SQUEEZE_BYTES_MIN);
        assert_eq!(everything(&output), [&rest[SQUEEZE_BYTES_MIN..], &[3; SPLICE_BYTES_MIN]].concat());
    }

    #[test]
    fn fewer_slices_than_chunks_give_the_first_ones() {
        let (output, expected) = sample();
        for count in 1..5 {
            let mut slices = vec![IoSlice::new(&[]); count];
            let filled = output.chunks(&mut slices);
            assert_eq!(filled, count);
            let bytes: Vec<u8> = slices.iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(bytes, expected[..bytes.len()]);
        }
    }

    #[test]
    fn a_burst_as_long_as_the_one_before_grows_once() {
        let burst = |output: &mut Output| {
            let mut growths = 0;
            while output.len() < 4 * OUTPUT_KEEP_BYTES_MAX {
                let before = output.held_bytes();
                output.reserve(1_000);
                growths += usize::from(output.held_bytes() != before);
                output.small().extend_from_slice(&[7; 1_000]);
            }
            output.advance(output.len());
            growths
        };
        let mut output = Output::default();
        assert!(burst(&mut output) > 5);
        assert_eq!(burst(&mut output), 1);
        output.trim();
        assert!(burst(&mut output) > 5, "nothing is expected of one that was quiet");
    }

    #[test]
    fn a_burst_gives_its_memory_back_and_a_slow_reader_holds_no_written_bytes() {
        let mut output = Output::default();
        output.small().extend_from_slice(&vec![0; OUTPUT_KEEP_BYTES_MAX + 1]);
        output.advance(OUTPUT_KEEP_BYTES_MAX + 1);
        assert_eq!(output.held_bytes(), 0);

        let mut output = Output::default();
        for _ in 0..1000 {
            output.small().extend_from_slice(&[7; 10_000]);
            output.advance(output.len() - 5);
        }
        assert!(output.held_bytes() < 4 * SQUEEZE_BYTES_MIN, "{}", output.held_bytes());
        assert_eq!(output.len(), 5);
    }
}
