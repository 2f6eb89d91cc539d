//! What nodes ask each other as wholes: who looks after one node wants to know what is on another.
//!
//! Invariants: a question ends with its answer, with the link that it went over, or with whoever
//! waits for it, and nothing is left of it afterwards. An answer takes bounded memory on both sides.
//! A node where nobody answers says so at once.

use super::links::Common;
use broker::NodeNumber;
use bytes::{Bytes, BytesMut};
use partition::peer::forward::Forward;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

/// A part of an answer. Between two of them the link carries everything else.
const PART_BYTES: usize = 64 << 10;
/// No answer is longer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AskError {
    /// There is no link to the node, or not any more.
    #[error("the node cannot be reached")]
    Gone,
    /// Nobody answers there: it starts, ends, or is asked too much.
    #[error("the node does not answer questions now")]
    Refused,
    /// The answer would be too long.
    #[error("the node's answer is too long")]
    TooLong,
}

struct Open {
    node: u32,
    parts: Vec<Bytes>,
    bytes: usize,
    asker: oneshot::Sender<Result<Bytes, AskError>>,
}

#[derive(Default)]
struct Table {
    /// Questions are numbered from 1 on.
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Who answers those of others.
    service: Option<mpsc::Sender<Question>>,
}

/// Those of this node that are not answered yet, and who answers those of others.
#[derive(Default)]
pub(super) struct Questions {
    table: Mutex<Table>,
}

impl Questions {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A question is on its way to a node.
    pub(super) fn begin(&self, node: u32, common: Arc<Common>) -> (u64, Asked) {
        let (asker, answer) = oneshot::channel();
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        table.open.insert(number, Open { node, parts: Vec::new(), bytes: 0, asker });
        (number, Asked { number, answer, common })
    }

    /// A part of an answer came.
    pub(super) fn answered(&self, node: u32, number: u64, part: Bytes, is_last: bool, is_refused: bool) {
        let mut table = self.lock();
        // Nobody waits any more, or it was asked of another.
        let Some(open) = table.open.get_mut(&number).filter(|open| open.node == node) else { return };
        open.bytes += part.len();
        // A copy: what came is a slice of all that was read with it.
        open.parts.push(Bytes::copy_from_slice(&part));
        let outcome = match () {
            () if is_refused => Err(AskError::Refused),
            () if open.bytes > ANSWER_BYTES_MAX => Err(AskError::TooLong),
            () if is_last => Ok(()),
            () => return,
        };
        let Some(Open { parts, bytes, asker, .. }) = table.open.remove(&number) else { return };
        drop(table);
        let whole = outcome.map(|()| {
            let mut whole = BytesMut::with_capacity(bytes);
            parts.iter().for_each(|part| whole.extend_from_slice(part));
            whole.freeze()
        });
        // Who does not wait any more does not need it.
        let _ = asker.send(whole);
    }

    /// The link to a node is gone, and with it the answers.
    pub(super) fn lost(&self, node: u32) {
        let mut table = self.lock();
        let gone: Vec<u64> =
            table.open.iter().filter(|(_, open)| open.node == node).map(|(number, _)| *number).collect();
        for open in gone.iter().filter_map(|number| table.open.remove(number)) {
            let _ = open.asker.send(Err(AskError::Gone));
        }
    }

    fn forget(&self, number: u64) {
        self.lock().open.remove(&number);
    }

    /// What others ask from now on.
    pub(super) fn serve(&self, waiting: usize) -> mpsc::Receiver<Question> {
        let (sender, questions) = mpsc::channel(waiting);
        self.lock().service = Some(sender);
        questions
    }

    /// Another node asks. Where nobody answers, or too much is asked, the question is dropped, which
    /// says so.
    pub(super) fn hand_over(&self, question: Question) {
        let service = self.lock().service.clone();
        if let Some(service) = service {
            drop(service.try_send(question));
        }
    }
}

/// A question that is on its way; its answer. Whoever drops it does not wait any more.
pub struct Asked {
    number: u64,
    answer: oneshot::Receiver<Result<Bytes, AskError>>,
    common: Arc<Common>,
}

impl Future for Asked {
    type Output = Result<Bytes, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx).map(|answered| answered.unwrap_or(Err(AskError::Gone)))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.common.questions().forget(self.number);
    }
}

/// What another node asks. One that is dropped is refused.
pub struct Question {
    /// Who asks.
    pub from: NodeNumber,
    /// What.
    pub question: Bytes,
    number: u64,
    epoch: u64,
    /// Until it is answered.
    common: Option<Arc<Common>>,
}

impl Question {
    pub(super) fn new(from: NodeNumber, question: Bytes, (number, epoch): (u64, u64), common: Arc<Common>) -> Question {
        Question { from, question, number, epoch, common: Some(common) }
    }

    /// Answers it. An answer that is too long is refused.
    pub fn answer(mut self, answer: Bytes) {
        if let Some(common) = self.common.take_if(|_| answer.len() <= ANSWER_BYTES_MAX) {
            common.answer(self.from, self.epoch, parts(self.number, answer));
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Some(common) = self.common.take() {
            let refused = Forward::Answer { number: self.number, part: Bytes::new(), is_last: true, is_refused: true };
            common.answer(self.from, self.epoch, [refused].into());
        }
    }
}

/// An answer, as it goes over the link.
fn parts(number: u64, mut answer: Bytes) -> VecDeque<Forward> {
    let mut parts = VecDeque::new();
    loop {
        let part = answer.split_to(PART_BYTES.min(answer.len()));
        let is_last = answer.is_empty();
        parts.push_back(Forward::Answer { number, part, is_last, is_refused: false });
        if is_last {
            return parts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(bytes: usize) -> Vec<(usize, bool)> {
        let answer = Bytes::from(vec![7; bytes]);
        let length = |part| match part {
            Forward::Answer { number: 3, part, is_last, is_refused: false } => (part.len(), is_last),
            other => panic!("{other:?}"),
        };
        parts(3, answer).into_iter().map(length).collect()
    }

    #[test]
    fn an_answer_goes_in_parts_of_which_one_is_the_last() {
        assert_eq!(lengths(0), [(0, true)]);
        assert_eq!(lengths(PART_BYTES), [(PART_BYTES, true)]);
        assert_eq!(lengths(PART_BYTES + 1), [(PART_BYTES, false), (1, true)]);
    }

    #[test]
    fn a_question_ends_with_its_answer_with_its_link_or_with_a_refusal() {
        let questions = Questions::default();
        let ask = |number: u64, node: u32| {
            let (asker, answer) = oneshot::channel();
            questions.lock().open.insert(number, Open { node, parts: Vec::new(), bytes: 0, asker });
            answer
        };
        let mut answers: Vec<_> = (1..=4).map(|number| ask(number, if number == 4 { 8 } else { 7 })).collect();
        questions.answered(7, 1, Bytes::from_static(b"a"), false, false);
        assert!(answers[0].try_recv().is_err(), "it goes on");
        questions.answered(8, 1, Bytes::from_static(b"x"), true, false);
        assert!(answers[0].try_recv().is_err(), "another node has nothing to say about it");
        questions.answered(7, 1, Bytes::from_static(b"b"), true, false);
        assert_eq!(answers[0].try_recv(), Ok(Ok(Bytes::from_static(b"ab"))));
        questions.answered(7, 2, Bytes::new(), true, true);
        assert_eq!(answers[1].try_recv(), Ok(Err(AskError::Refused)));
        questions.lost(7);
        assert_eq!(answers[2].try_recv(), Ok(Err(AskError::Gone)));
        assert!(answers[3].try_recv().is_err(), "that link is up");
        questions.forget(4);
        assert!(questions.lock().open.is_empty());
    }

    #[test]
    fn an_answer_that_does_not_end_is_given_up() {
        let questions = Questions::default();
        let (asker, mut answer) = oneshot::channel();
        questions.lock().open.insert(1, Open { node: 7, parts: Vec::new(), bytes: 0, asker });
        let part = Bytes::from(vec![0; ANSWER_BYTES_MAX / 4]);
        (0..5).for_each(|_| questions.answered(7, 1, part.clone(), false, false));
        assert_eq!(answer.try_recv(), Ok(Err(AskError::TooLong)));
    }
}
