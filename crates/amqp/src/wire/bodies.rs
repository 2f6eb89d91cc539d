//! The bodies of messages that came one behind the other, where they lie in the input.
//!
//! Who publishes at speed sends one message after another to the same exchange, with the same routing key and the
//! same properties: only the bodies differ. So many are one event and one command, and what is done for each of
//! them is to note where its body lies.
//!
//! Invariant: each place lies within the batch.

use bytes::Bytes;
use std::ops::Range;

/// Bodies in one batch of input, in the order in which they came. None of them is a copy; all of them keep the batch.
#[derive(Clone, Default)]
pub struct Bodies {
    batch: Bytes,
    /// Where each begins, and its bytes.
    places: Vec<(u32, u32)>,
    /// So many of the first were taken out.
    taken: usize,
    /// Bytes of all of them.
    bytes: usize,
}

impl Bodies {
    /// None yet, of this batch, with room for so many.
    pub fn new(batch: Bytes, room: usize) -> Bodies {
        assert!(u32::try_from(batch.len()).is_ok(), "a batch is no longer than what is read at once");
        Bodies { batch, places: Vec::with_capacity(room), taken: 0, bytes: 0 }
    }

    /// Bodies that lie anywhere: they are copied into one batch.
    pub fn copied<'a>(bodies: impl IntoIterator<Item = &'a [u8]>) -> Bodies {
        let bodies: Vec<&[u8]> = bodies.into_iter().collect();
        let mut all = Bodies::new(bodies.concat().into(), bodies.len());
        for body in bodies {
            all.push(all.bytes..all.bytes + body.len());
        }
        all
    }

    /// Adds the body at this place of the batch.
    #[inline]
    pub fn push(&mut self, place: Range<usize>) {
        assert!(place.start <= place.end && place.end <= self.batch.len(), "a body lies within its batch");
        let bytes = place.end - place.start;
        self.bytes += bytes;
        self.places.push((place.start as u32, bytes as u32));
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.places.len() - self.taken
    }

    #[inline]
    fn places(&self) -> &[(u32, u32)] {
        &self.places[self.taken..]
    }

    /// Takes the first out.
    pub fn take_first(&mut self) -> Option<Bytes> {
        let first = (!self.is_empty()).then(|| self.get(0))?;
        self.taken += 1;
        self.bytes -= first.len();
        Some(first)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places().is_empty()
    }

    /// Bytes of all of them.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Each of them, to look at.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.places().iter().map(|(at, bytes)| &self.batch[*at as usize..][..*bytes as usize])
    }

    /// Each of them, to keep.
    pub fn iter_bytes(&self) -> impl ExactSizeIterator<Item = Bytes> {
        (0..self.len()).map(|number| self.get(number))
    }

    /// One of them, to keep.
    pub fn get(&self, number: usize) -> Bytes {
        let (at, bytes) = self.places()[number];
        self.batch.slice(at as usize..at as usize + bytes as usize)
    }

    /// Some of them.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Bodies {
        let places = self.places()[range].to_vec();
        let bytes = places.iter().map(|(_, bytes)| *bytes as usize).sum();
        Bodies { batch: self.batch.clone(), places, taken: 0, bytes }
    }
}

/// By what they say, wherever they lie.
impl PartialEq for Bodies {
    fn eq(&self, other: &Bodies) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Bodies {}

impl std::fmt::Debug for Bodies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bodies of {} bytes", self.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_found_where_they_lie_and_parts_of_them_too() {
        let batch = Bytes::from_static(b"..one.twoo...three");
        let mut bodies = Bodies::new(batch.clone(), 0);
        [2..5, 6..10, 11..11, 13..18].into_iter().for_each(|place| bodies.push(place));
        let all: [&[u8]; 4] = [b"one", b"twoo", b"", b"three"];
        assert_eq!(bodies.iter().collect::<Vec<_>>(), all);
        assert_eq!((bodies.len(), bodies.bytes(), bodies.is_empty()), (4, 12, false));
        assert_eq!(bodies.get(1).as_ptr(), batch[6..].as_ptr(), "nothing is copied");
        let part = bodies.part(1..3);
        assert_eq!((part.iter().collect::<Vec<_>>(), part.bytes()), (all[1..3].to_vec(), 4));
        assert_eq!(Bodies::copied(all), bodies);
        let mut left = bodies.clone();
        assert_eq!(left.take_first().as_deref(), Some(all[0]));
        assert_eq!((left.len(), left.bytes(), left.get(0)), (3, 9, Bytes::from_static(all[1])));
        assert_eq!((left.part(0..2), left.clone()), (bodies.part(1..3), bodies.part(1..4)));
        assert!((1..4).all(|number| left.take_first().as_deref() == Some(all[number])) && left.take_first().is_none());
        assert_ne!(Bodies::copied(all[1..].iter().copied()), bodies);
    }
}
