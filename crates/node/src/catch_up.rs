//! Who waits until this node has carried out all of the topology's log that was decided when they
//! asked, and with it every node that can be reached: what they are told here they are to find there.
//!
//! Invariants: nobody hears so by what this node believes: the leader was asked after they had asked,
//! and heard from a majority that it still leads before it answered. What this node itself wanted decided
//! before they asked is decided then, too: it may have been on its way to a leader that died, and the next
//! one knows nothing of it. One question is under way at a
//! time, for all who had asked by then; who asks meanwhile is in the next one. After [`GIVE_UP_MS`]
//! whoever waits hears that nobody knows.

use crate::Millis;
use crate::proposals::GIVE_UP_MS;
use crate::topology_member::Proposer;
use broker::NodeLife;
use consensus::{LogIndex, Term};
use partition::LogPartition;

/// A question that was not answered is asked again after so long: a frame or a leader may be lost.
const AGAIN_MS: Millis = 300;

/// See the module.
#[derive(Debug)]
pub(crate) struct CatchUps {
    waiting: Vec<Waiting>,
    asked: Option<Asked>,
    /// The number of the last question. It begins with that of the node's start, so that an answer
    /// to an earlier life is none to this one.
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    token: u64,
    /// So many changes this node wanted before.
    behind: u64,
    give_up_at: Millis,
}

#[derive(Debug)]
struct Asked {
    who: Vec<Waiting>,
    /// The number of the first question on their behalf: an answer to any later one does as well.
    first: u64,
    /// When the last one went out, and to the leader of which term.
    sent: Option<(Term, Millis)>,
    /// What has to be carried out here.
    index: Option<LogIndex>,
}

impl CatchUps {
    pub(crate) fn new(life: NodeLife) -> CatchUps {
        CatchUps { waiting: Vec::new(), asked: None, last: u64::from(life.start) << 32 }
    }

    /// Somebody asks, `behind` so many changes that this node wanted.
    pub(crate) fn add(&mut self, now: Millis, token: u64, behind: u64) {
        self.waiting.push(Waiting { token, behind, give_up_at: now + GIVE_UP_MS });
    }

    /// Asks the leader what is to be asked now. What it takes leaves with the next
    /// [`LogPartition::flush`].
    pub(crate) fn ask(&mut self, now: Millis, log: &mut LogPartition) {
        if self.asked.is_none() && !self.waiting.is_empty() {
            let who = std::mem::take(&mut self.waiting);
            self.asked = Some(Asked { who, first: self.last + 1, sent: None, index: None });
        }
        let term = log.replica().group().status().term;
        let is_under_way = |(sent, at): (Term, Millis)| sent == term && now < at + AGAIN_MS;
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.index.is_none()) else { return };
        if asked.sent.is_some_and(is_under_way) {
            return;
        }
        if log.read_index(self.last + 1) {
            self.last += 1;
            asked.sent = Some((term, now));
        }
    }

    /// Takes the answers that came, and tells who waited for what is carried out `everywhere` now; of the changes that
    /// this node wanted it is `known` of so many what became of them. True if there is more to ask.
    pub(crate) fn hear(
        &mut self,
        now: Millis,
        (known, everywhere): (u64, LogIndex),
        log: &mut LogPartition,
        machine: &mut impl Proposer,
    ) -> bool {
        let states = log.take_read_states();
        if let Some(asked) = &mut self.asked {
            let own = states.into_iter().filter(|state| (asked.first..=self.last).contains(&state.context));
            asked.index = asked.index.or(own.map(|state| state.index).min());
            if asked.index.is_some_and(|index| index <= everywhere) {
                let done = asked.who.extract_if(.., |waiting| waiting.behind <= known);
                done.for_each(|waiting| machine.caught_up(waiting.token));
            }
            forget_late(&mut asked.who, now, machine);
        }
        forget_late(&mut self.waiting, now, machine);
        self.asked.take_if(|asked| asked.who.is_empty());
        self.asked.is_none() && !self.waiting.is_empty()
    }
}

fn forget_late(who: &mut Vec<Waiting>, now: Millis, machine: &mut impl Proposer) {
    who.retain(|waiting| {
        let is_late = waiting.give_up_at <= now;
        if is_late {
            machine.lost(waiting.token);
        }
        !is_late
    });
}
