//! The links of a node to all others of its cluster, as its shards see them: what is for another
//! node is put into its outbox, what comes goes to the mailboxes of the shards.
//!
//! A thread of their own has connections come about and introduce themselves; a link that is up goes
//! to the shard that has its socket from then on (decision 0019).
//!
//! Invariants: there is one link between two nodes at a time, which the node with the higher number
//! makes. Shards hear that a link is up before anything comes over it, and that it is gone before
//! the next one is up; what a shard sends over a link that it does not know to be gone is dropped.

mod thread;

use super::encryption::LinkTls;
use super::known::Known;
use super::link::{self, Incoming, LinkOut};
use super::outboxes::Outboxes;
use super::peers::Peers;
use super::questions::{AskError, Asked, Question, Questions};
use super::secret::Secrets;
use super::succession;
use crate::engine::EngineGauges;
use crate::node::Shared;
use crate::random;
use crate::shard::{Mailbox, Parcel};
use broker::{NodeLife, NodeNumber, PartitionId};
use bytes::Bytes;
use node::NodeId;
use partition::PeerFrame;
use partition::peer::forward::Forward;
use partition::peer::news_form::News;
use partition::peer::packet::Frame;
use rustls::Connection;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use storage::ClusterRecord;
use switch::{Directory, Frames, LinkUp};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};

/// How soon a link is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The same of a node that was forgotten.
const GONE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked for nodes that came or were forgotten.
/// Why a node has no links that takes no part in its cluster any more.
const HALTED: &str = "this node is HALTED and takes no part in its cluster";
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Others hear at most this often what sessions take.
const TELL_EVERY: Duration = Duration::from_millis(2);
/// What groups say to a node that does not keep up is dropped beyond so many bytes: they say it
/// again.
const GROUP_BYTES_MAX: usize = 64 << 20;
/// Room for so much for one shard is kept for the next read of a link.
const PARCELS_KEPT: usize = 64;

/// What waits for one other node.
#[derive(Default)]
struct Waiting {
    /// Of the link that is up; 0 while there is none.
    epoch: u64,
    frames: Vec<(PartitionId, Frame)>,
    bytes: usize,
    /// Parts of answers, which go one by one between everything else.
    answers: VecDeque<Forward>,
}

/// The way to one other node.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    /// It is about to be told who leads without the node.
    tells_leaders: AtomicBool,
    pub(super) wake: Notify,
    /// The node was forgotten: its link ends.
    cut: Notify,
}

impl Waiting {
    fn tell(&mut self, news: Vec<News>) {
        self.frames.extend(news.into_iter().map(|news| (PartitionId(0), Frame::Forward(Forward::News(news)))));
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all that waits, and one part of an answer if `with_answer`; its memory is that of `empty`
    /// afterwards.
    pub(super) fn take(&self, empty: &mut Vec<(PartitionId, Frame)>, with_answer: bool) {
        let mut waiting = self.lock();
        waiting.bytes = 0;
        std::mem::swap(&mut waiting.frames, empty);
        if with_answer && let Some(part) = waiting.answers.pop_front() {
            empty.push((PartitionId(0), Frame::Forward(part)));
        }
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.lock().answers.is_empty()
    }

    #[cfg(test)]
    pub(super) fn put(&self, frame: (PartitionId, Frame)) {
        self.lock().frames.push(frame);
    }
}

/// What the threads of a node share of it.
pub(super) struct Common {
    own: NodeLife,
    address: String,
    peers: Vec<String>,
    secrets: Arc<Secrets>,
    tls: Option<Arc<LinkTls>>,
    known: Known,
    directory: Directory,
    mailboxes: Vec<Mailbox>,
    outboxes: Outboxes,
    questions: Questions,
    /// What this node tells others of itself, and who hears what they tell.
    shared: Weak<Shared>,
    /// There is something to tell.
    untold: Notify,
    /// Another node said that this one was forgotten.
    is_forgotten: AtomicBool,
    /// Says when this node takes no part in its cluster any more.
    engine: OnceLock<EngineGauges>,
    /// A node of a cluster that goes on from this one's said so: the other nodes were given up.
    left_behind: Mutex<Option<String>>,
    ends: AtomicBool,
    end: Notify,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Links {
    common: Arc<Common>,
}

/// What links begin with.
pub(super) struct LinksParts {
    pub(super) peers: Peers,
    pub(super) secrets: Arc<Secrets>,
    pub(super) tls: Option<Arc<LinkTls>>,
    pub(super) cluster: u128,
    pub(super) folder: u128,
    pub(super) record: ClusterRecord,
    pub(super) own: NodeLife,
    pub(super) shared: Weak<Shared>,
}

impl Links {
    /// Starts the thread that has the links.
    pub(super) fn start(
        parts: LinksParts,
        directory: Directory,
        mailboxes: Vec<Mailbox>,
    ) -> std::io::Result<(Links, JoinHandle<()>)> {
        let LinksParts { peers, secrets, tls, cluster, folder, record, own, shared } = parts;
        let others = record.founders.iter().map(|founder| founder.number).filter(move |number| *number != own.node);
        let common = Arc::new(Common {
            outboxes: Outboxes::new(others),
            known: Known::new(own.node, (cluster, folder), record.clone(), shared.clone()),
            own,
            address: peers.own,
            peers: peers.all,
            secrets,
            tls,
            directory,
            mailboxes,
            questions: Questions::default(),
            shared,
            untold: Notify::new(),
            is_forgotten: AtomicBool::new(false),
            engine: OnceLock::new(),
            left_behind: Mutex::default(),
            ends: AtomicBool::new(false),
            end: Notify::new(),
        });
        let (links, listener) = (Links { common: common.clone() }, peers.listener);
        let thread =
            std::thread::Builder::new().name("links".to_owned()).spawn(move || thread::run(common, listener))?;
        Ok((links, thread))
    }

    /// The links end.
    pub(super) fn stop(&self) {
        self.common.ends.store(true, Ordering::Release);
        self.common.end.notify_one();
    }

    /// From now on it is looked whether this node takes part in its cluster; see [`Common::is_halted`].
    pub(super) fn watch(&self, engine: &EngineGauges) {
        let _ = self.common.engine.set(engine.clone());
    }

    /// Whether this node was forgotten by its cluster: another one says so, or its own topology does.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.common.is_forgotten.load(Ordering::Acquire) || self.common.known.is_gone(self.common.own.node)
    }

    /// What a node said whose cluster goes on from this one's, without this node.
    pub(crate) fn left_behind(&self) -> Option<String> {
        self.common.left_behind.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When the certificate ends that this node shows to others.
    pub(crate) fn certificate_end(&self) -> Option<SystemTime> {
        self.common.tls.as_ref().map(|tls| tls.end())
    }

    /// The nodes that are linked with this one now.
    pub(crate) fn linked(&self) -> Vec<NodeNumber> {
        let up = self.common.outboxes.iter().filter(|(_, outbox)| outbox.lock().epoch != 0);
        up.map(|(number, _)| NodeNumber(number)).collect()
    }

    /// Tells all nodes that are linked.
    pub(crate) fn tell(&self, news: impl Fn() -> Vec<News>) {
        for (node, outbox) in self.common.outboxes.iter() {
            let mut waiting = outbox.lock();
            if waiting.epoch != 0 {
                waiting.tell(news());
                drop(waiting);
                self.common.rouse(node, outbox);
            }
        }
    }

    /// Has the thread of the links tell others what sessions take, soon.
    pub(super) fn tell_taken_soon(&self) {
        self.common.untold.notify_one();
    }

    /// Asks another node; the answer is to be waited for. Errors: there is no link.
    pub(crate) fn ask(&self, node: NodeNumber, question: Bytes) -> Result<Asked, AskError> {
        let common = &self.common;
        let outbox = common.outboxes.get(node.0).ok_or(AskError::Gone)?;
        // Under one lock with what notes that the link is gone, so that no question is forgotten.
        let mut waiting = outbox.lock();
        if waiting.epoch == 0 {
            return Err(AskError::Gone);
        }
        let (number, asked) = common.questions.begin(node.0, common.clone());
        waiting.frames.push((PartitionId(0), Frame::Forward(Forward::Ask { number, question })));
        drop(waiting);
        common.rouse(node.0, outbox);
        Ok(asked)
    }

    /// The topology refused a node that wants to join.
    pub(super) fn newcomer_refused(&self, folder: u128, why: String) {
        self.common.known.newcomer_refused(folder, why);
    }

    /// What other nodes ask from now on, so many at most waiting to be taken.
    pub(crate) fn serve_questions(&self, waiting: usize) -> tokio::sync::mpsc::Receiver<Question> {
        self.common.questions.serve(waiting)
    }

    /// Sends what a group says to one of its members.
    /// A link that `shard` itself has it writes afterwards ([`LinkOut::flush`]).
    pub(crate) fn send_group(&self, shard: usize, frames: impl Iterator<Item = (NodeId, PartitionId, PeerFrame)>) {
        for (to, partition, frame) in frames {
            let to = to.number();
            let Some(outbox) = self.common.outboxes.get(to) else { continue };
            let mut waiting = outbox.lock();
            if waiting.epoch != 0 && waiting.bytes < GROUP_BYTES_MAX {
                waiting.bytes += weight(&frame);
                waiting.frames.push((partition, Frame::Group(frame)));
                drop(waiting);
                self.common.wake(to, shard, outbox);
            }
        }
    }

    /// Sends what a shard has for another node over a link that is up as far as it knows.
    /// A link that `shard` itself has it writes afterwards.
    pub(crate) fn send(&self, shard: usize, link: LinkUp, frames: &mut Frames) {
        let Some(outbox) = self.common.outboxes.get(link.peer.node) else { return };
        let mut waiting = outbox.lock();
        if waiting.epoch == link.epoch {
            waiting.frames.extend(frames.drain(..).map(|(partition, forward)| (partition, Frame::Forward(forward))));
            drop(waiting);
            self.common.wake(link.peer.node, shard, outbox);
        }
    }
}

/// A connection whose sides know each other, on its way to the shard that has the link.
pub(crate) struct LinkArrival {
    stream: std::net::TcpStream,
    /// What encrypts over it, where nodes do.
    session: Option<Box<Connection>>,
    up: LinkUp,
    address: String,
    common: Arc<Common>,
    /// Dropped when the link is gone.
    gone: oneshot::Sender<()>,
}

/// What came over a link, by the shard that it is for.
struct Sorted(Vec<OfShard>);

/// What is for one shard.
#[derive(Default)]
struct OfShard {
    parcels: Vec<Parcel>,
    frames: Frames,
    /// Of the messages in `frames`.
    bytes: u64,
}

impl Sorted {
    fn new(shards: usize) -> Sorted {
        Sorted(std::iter::repeat_with(OfShard::default).take(shards).collect())
    }
}

impl LinkArrival {
    /// Has the link on this shard from now on; `links` are those that it has. To be called on the
    /// shard's thread.
    pub(crate) fn begin(self, links: &Rc<RefCell<Vec<Rc<LinkOut>>>>) {
        let LinkArrival { stream, session, up, address, common, gone } = self;
        let node = up.peer.node;
        let outbox = common.outboxes.get(node).expect("it was made for the link").clone();
        tracing::info!(node = %common.known.shown(node), %address, "linked with another node");
        if let Some(shared) = common.shared.upgrade() {
            // Read under the lock under which changes are told, so that the last word is true.
            let mut waiting = outbox.lock();
            if waiting.epoch == up.epoch {
                waiting.tell(shared.all_news());
            }
        }
        common.mailboxes.iter().for_each(|mailbox| mailbox.cross(switch::Parcel::LinkUp(up)));
        let links = links.clone();
        tokio::task::spawn_local(async move {
            let why = match TcpStream::from_std(stream) {
                Ok(stream) => {
                    let ends = (NodeId(node.into()), NodeId(common.own.node.into()));
                    let (out, reader) = link::link(stream, session, outbox.clone(), ends);
                    let out = Rc::new(out);
                    links.borrow_mut().push(out.clone());
                    let mut sorted = Sorted::new(common.mailboxes.len());
                    let why = tokio::select! {
                        why = out.run(reader, |incoming| common.deliver(up.peer, incoming, &mut sorted)) => why,
                        () = outbox.cut.notified() => match common.is_halted() {
                            true => HALTED.to_owned(),
                            false => "it was forgotten".to_owned(),
                        },
                    };
                    links.borrow_mut().retain(|known| !Rc::ptr_eq(known, &out));
                    why
                }
                Err(error) => error.to_string(),
            };
            tracing::warn!(node = %common.known.shown(node), %address, "the link to another node is gone: {why}");
            {
                let mut waiting = outbox.lock();
                (waiting.epoch, waiting.frames, waiting.bytes) = (0, Vec::new(), 0);
                waiting.answers = VecDeque::new();
                common.questions.lost(node);
            }
            let down = NodeNumber(node);
            if let Some(shared) = common.shared.upgrade() {
                shared.unhear(down);
            }
            common.mailboxes.iter().for_each(|mailbox| mailbox.cross(switch::Parcel::LinkDown(down)));
            drop(gone);
            if !outbox.tells_leaders.swap(true, Ordering::Relaxed) {
                succession::tell(common.shared.clone(), down).await;
                outbox.tells_leaders.store(false, Ordering::Relaxed);
            }
        });
    }
}

/// About what a frame of a group takes in memory.
fn weight(frame: &PeerFrame) -> usize {
    match frame {
        PeerFrame::Raft(message) => message.body_bytes() + 64,
        PeerFrame::ImagePart { bytes, .. } => bytes.len(),
        PeerFrame::MessagesPart { messages, .. } => messages.iter().map(|(_, message)| message.len()).sum(),
        PeerFrame::HaveMissing(_, messages) => messages.iter().flat_map(|(_, message)| message).map(|m| m.len()).sum(),
        _ => 64,
    }
}

impl Common {
    /// Looks for links to the nodes that came, and ends those to nodes that were forgotten. The node with
    /// the higher number makes the link; one that was forgotten is called to hear of it.
    fn look_at_nodes(self: &Arc<Self>, called: &mut BTreeSet<u32>) {
        let is_halted = self.is_halted();
        for number in self.known.others() {
            let is_gone = self.known.is_gone(number);
            if (is_gone || is_halted) && self.outboxes.get(number).is_some_and(|outbox| outbox.lock().epoch != 0) {
                self.outboxes.get(number).iter().for_each(|outbox| outbox.cut.notify_one());
            }
            if (number < self.own.node || is_gone) && called.insert(number) {
                tokio::task::spawn_local(thread::connect(self.clone(), number));
            }
        }
    }

    /// Whether this node takes no part in the topology's group any more. Then it has no links, as if it did not run: the
    /// others would have it lead queues, of which it says nothing to anybody, as it knows of none that came since.
    fn is_halted(&self) -> bool {
        self.engine.get().is_some_and(|engine| engine.halted().is_some())
    }

    /// The shard that has the link to a node.
    fn shard_of(&self, node: u32) -> usize {
        node as usize % self.mailboxes.len()
    }

    /// `shard` has put something into an outbox: the link's own task writes it, unless the shard
    /// has the link itself and is about to.
    fn wake(&self, node: u32, shard: usize, outbox: &Outbox) {
        if self.shard_of(node) != shard {
            self.rouse(node, outbox);
        }
    }

    /// Has the link's own task write what is in its outbox.
    fn rouse(&self, node: u32, outbox: &Outbox) {
        outbox.wake.notify_one();
        self.mailboxes[self.shard_of(node)].rouse();
    }

    /// A link comes up; none if another one is.
    fn raise(&self, outbox: &Outbox) -> Option<u64> {
        let mut waiting = outbox.lock();
        if waiting.epoch != 0 {
            return None;
        }
        let epoch = random::dice() | 1;
        (waiting.epoch, waiting.bytes) = (epoch, 0);
        waiting.frames.clear();
        Some(epoch)
    }

    /// Another node asks something.
    fn asked(self: &Arc<Self>, node: u32, number: u64, question: Bytes) {
        let Some(outbox) = self.outboxes.get(node) else { return };
        let epoch = outbox.lock().epoch;
        let question = Question::new(NodeNumber(node), question, (number, epoch), self.clone());
        self.questions.hand_over(question);
    }

    /// Answers what another node asked, if the link is the one that it was asked over.
    pub(super) fn answer(&self, node: NodeNumber, epoch: u64, parts: VecDeque<Forward>) {
        let Some(outbox) = self.outboxes.get(node.0) else { return };
        let mut waiting = outbox.lock();
        if waiting.epoch == epoch {
            waiting.answers.extend(parts);
            drop(waiting);
            self.rouse(node.0, outbox);
        }
    }

    pub(super) fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Hands what came to the shards that it is for.
    fn deliver(self: &Arc<Self>, from: NodeLife, incoming: &mut Incoming, sorted: &mut Sorted) {
        for (partition, frame) in incoming.drain(..) {
            match frame {
                Frame::Group(frame) => {
                    if let Some((shard, _)) = self.directory.find(partition) {
                        let parcel = switch::Parcel::Frame(partition, NodeId(from.node.into()), frame);
                        sorted.0[shard].parcels.push(Parcel::Crossing(parcel));
                    }
                }
                Frame::Forward(Forward::News(news)) => {
                    if let Some(shared) = self.shared.upgrade() {
                        shared.hear(NodeNumber(from.node), news);
                    }
                }
                Frame::Forward(Forward::Ask { number, question }) => self.asked(from.node, number, question),
                Frame::Forward(Forward::Answer { number, part, is_last, is_refused }) => {
                    self.questions.answered(from.node, number, part, is_last, is_refused);
                }
                Frame::Forward(forward) => {
                    if let Some(shard) = switch::shard_for(self.own, partition, &forward, &self.directory) {
                        sorted.0[shard].bytes += message_bytes(&forward);
                        sorted.0[shard].frames.push((partition, forward));
                    }
                }
            }
        }
        for (mailbox, OfShard { frames, parcels, bytes }) in self.mailboxes.iter().zip(&mut sorted.0) {
            if !frames.is_empty() {
                let forwards = switch::Parcel::Forwards(NodeNumber(from.node), std::mem::take(frames));
                parcels.push(Parcel::Crossing(forwards));
            }
            mailbox.send_all(parcels.drain(..), std::mem::take(bytes));
            parcels.shrink_to(PARCELS_KEPT);
        }
    }
}

fn message_bytes(forward: &Forward) -> u64 {
    match forward {
        Forward::Command(partition::Command::Publish(publish)) => publish.message.body.len() as u64,
        _ => 0,
    }
}
