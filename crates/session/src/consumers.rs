//! The consumers of a channel, found by number and by tag.
//!
//! Invariant: they are in the order of their numbers, which is the order in which they came. What one
//! of them costs to find, to add or to take away does not grow with how many there are: a client
//! cancels tens of thousands one after the other, from whichever end.

use super::channel::{Consumer, State};
use amqp::ConsumerTag;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// Up to so many are looked through for a tag, and places that are free are kept.
const FEW: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Consumers {
    /// By number. One that is gone keeps its place until half of them are.
    slots: Vec<Consumer>,
    gone: usize,
    /// Numbers of those that may be cancelled; made when somebody asks for one of many.
    #[allow(clippy::box_collection)] // Most channels have none, and channels are many.
    by_tag: Option<Box<BTreeMap<ConsumerTag, u32>>>,
}

fn is_on(consumer: &Consumer) -> bool {
    matches!(consumer.state, State::Starting | State::Active)
}

impl Consumers {
    /// Adds one whose number is above all others; its place.
    pub(super) fn push(&mut self, consumer: Consumer) -> usize {
        if let Some(by_tag) = &mut self.by_tag
            && is_on(&consumer)
        {
            by_tag.insert(consumer.tag.clone(), consumer.number);
        }
        self.slots.push(consumer);
        self.slots.len() - 1
    }

    /// The place of a number, valid until one is taken away.
    #[inline]
    pub(super) fn place_of(&self, number: u32) -> Option<usize> {
        // Most channels have one consumer, or never had more than they have.
        let guess = (number as usize).wrapping_sub(1);
        let place = match self.slots.get(guess) {
            Some(consumer) if consumer.number == number => guess,
            _ => self.slots.binary_search_by_key(&number, |consumer| consumer.number).ok()?,
        };
        (self.slots[place].state != State::Gone).then_some(place)
    }

    /// The place of the consumer of this tag that gets messages, or is about to.
    pub(super) fn place_of_tag(&mut self, tag: &ConsumerTag) -> Option<usize> {
        if self.slots.len() <= FEW {
            return self.slots.iter().position(|consumer| is_on(consumer) && consumer.tag == *tag);
        }
        let slots = &self.slots;
        let by_tag = self.by_tag.get_or_insert_with(|| {
            let on = slots.iter().filter(|consumer| is_on(consumer));
            Box::new(on.map(|consumer| (consumer.tag.clone(), consumer.number)).collect())
        });
        let number = *by_tag.get(tag)?;
        self.place_of(number).filter(|place| is_on(&self.slots[*place]))
    }

    /// Takes one away.
    pub(super) fn remove(&mut self, place: usize) {
        let consumer = &mut self.slots[place];
        consumer.state = State::Gone;
        (consumer.aging, consumer.told) = (None, None);
        let (tag, number) = (std::mem::take(&mut consumer.tag), consumer.number);
        if let Some(by_tag) = &mut self.by_tag
            && by_tag.get(&tag) == Some(&number)
        {
            by_tag.remove(&tag);
        }
        self.gone += 1;
        while self.slots.pop_if(|last| last.state == State::Gone).is_some() {
            self.gone -= 1;
        }
        if self.gone * 2 > self.slots.len() {
            self.slots.retain(|consumer| consumer.state != State::Gone);
            self.gone = 0;
        }
        if self.slots.len() <= FEW {
            self.by_tag = None;
        }
    }

    /// One more than the last place.
    pub(super) fn places(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Consumer> {
        self.slots.iter().filter(|consumer| consumer.state != State::Gone)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Consumer> {
        self.slots.iter_mut().filter(|consumer| consumer.state != State::Gone)
    }

    /// The first place of which this is true.
    pub(super) fn position(&self, is_it: impl Fn(&Consumer) -> bool) -> Option<usize> {
        self.slots.iter().position(|consumer| consumer.state != State::Gone && is_it(consumer))
    }
}

impl Index<usize> for Consumers {
    type Output = Consumer;

    #[inline]
    fn index(&self, place: usize) -> &Consumer {
        &self.slots[place]
    }
}

impl IndexMut<usize> for Consumers {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut Consumer {
        &mut self.slots[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::{PartitionId, QueueId};
    use bytes::Bytes;

    fn tag(number: u32) -> ConsumerTag {
        ConsumerTag::new(Bytes::from(format!("tag {number}")))
    }

    fn consumer(number: u32, tag: ConsumerTag) -> Consumer {
        Consumer { state: State::Active, tag, ..Consumer::getter(number, QueueId(1), PartitionId(1)) }
    }

    fn many(count: u32) -> Consumers {
        let mut consumers = Consumers::default();
        (1..=count).for_each(|number| _ = consumers.push(consumer(number, tag(number))));
        consumers
    }

    #[test]
    fn whatever_the_order_in_which_they_go_each_is_found_until_it_does() {
        let orders: [fn(u32) -> u32; 3] = [|step| step + 1, |step| 500 - step, |step| step * 7 % 500 + 1];
        for count in [10, 500] {
            for order in orders {
                let mut consumers = many(count);
                let mut left: Vec<u32> = (1..=count).collect();
                for step in 0..500 {
                    let number = order(step);
                    if number > count {
                        continue;
                    }
                    let place = consumers.place_of_tag(&tag(number)).expect("it was not taken away yet");
                    assert_eq!(consumers[place].number, number);
                    consumers.remove(place);
                    left.retain(|known| *known != number);
                    assert_eq!((consumers.place_of_tag(&tag(number)), consumers.place_of(number)), (None, None));
                    assert!(consumers.iter().map(|consumer| consumer.number).eq(left.iter().copied()));
                    assert!(consumers.places() <= 2 * left.len(), "room is given back: {}", consumers.places());
                    if let Some(other) = left.get(step as usize % left.len().max(1)) {
                        assert_eq!(consumers.place_of(*other).map(|place| consumers[place].number), Some(*other));
                    }
                }
                assert_eq!((left.len(), consumers.iter_mut().count(), consumers.places()), (0, 0, 0));
            }
        }
    }

    #[test]
    fn a_tag_is_that_of_the_newest_consumer_that_has_it() {
        for count in [3, 100] {
            let mut consumers = many(count);
            assert_eq!(consumers.place_of_tag(&tag(2)), Some(1));
            // It was cancelled and holds messages; another one came under its tag.
            consumers[1].state = State::Cancelled;
            assert_eq!(consumers.place_of_tag(&tag(2)), None);
            let newest = consumers.push(consumer(count + 1, tag(2)));
            assert_eq!(consumers.place_of_tag(&tag(2)), Some(newest));
            consumers.remove(1);
            let newest = consumers.place_of(count + 1);
            assert_eq!(consumers.place_of_tag(&tag(2)), newest);
            assert_eq!(consumers.position(|consumer| consumer.tag == tag(2)), newest);
        }
    }
}
