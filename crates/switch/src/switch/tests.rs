//! A shard's switch among other shards and nodes, with surroundings that note what they are told.

use super::*;
use crate::parcel::Parcel;
use crate::roads::LinkUp;
use broker::topology::DeclareQueue;
use node::Waiting;
use partition::command::Disposition;
use session::{Asker, Deletion};

mod letters;

/// Nobody asks from outside.
#[derive(Debug)]
struct NoOutsider;

impl Outsider for NoOutsider {
    fn answer(self, _: Result<Reply, Refusal>) {}
}

/// Stands where a shard of the server does.
struct Stand {
    topology: RefCell<Topology>,
    mailed: RefCell<Vec<(usize, Parcel<NoOutsider>)>>,
    /// What channels heard.
    heard: RefCell<Vec<Effect>>,
    /// Whose leaders sessions were to tell what they hold.
    unheld: RefCell<Vec<PartitionId>>,
    is_loaded: Cell<bool>,
    elapsed_us: Cell<u64>,
}

impl Surroundings for Stand {
    type Connection = ();
    type Outsider = NoOutsider;

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.topology.borrow()
    }

    fn event_vhost(&self) -> Option<VhostId> {
        None
    }

    fn apply_local(&self, _: &Change, _: &impl Tell) -> Applied {
        unreachable!("nothing here is this node's alone")
    }

    fn propose(&self, _: Change, _: ChannelKey, _: RequestId) {
        unreachable!("no partition lets a queue go")
    }

    fn vhost_deleted(&self, _: VhostId, _: &Name) {}

    fn user_deleted(&self, _: &Name) {}

    fn mail(&self, shard: usize, parcel: Parcel<NoOutsider>) {
        self.mailed.borrow_mut().push((shard, parcel));
    }

    fn room(&self, (): &(), _: ConsumerKey) -> usize {
        0
    }

    fn settle_room(&self, (): &()) {}

    fn starve(&self, (): &(), _: ConsumerKey) {}

    fn hold_again(&self, partitions: &[PartitionId]) {
        self.unheld.borrow_mut().extend_from_slice(partitions);
    }

    fn hear(&self, (): &(), _: (ChannelKey, u16), effect: Effect, more: &mut dyn FnMut() -> Option<Effect>) {
        self.heard.borrow_mut().push(effect);
        self.heard.borrow_mut().extend(std::iter::from_fn(more));
    }

    fn hear_decided(&self, (): &(), _: (ChannelKey, u16), _: RequestId, _: Result<CommandReply, Refusal>) {}

    fn passes(&self, _: PartitionId, _: &Command) {}

    fn is_loaded(&self) -> bool {
        self.is_loaded.get()
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn dice(&self) -> u64 {
        0
    }

    fn elapsed_us(&self) -> u64 {
        self.elapsed_us.get()
    }
}

const P: PartitionId = PartitionId(1);
/// Another one of the same shard.
const Q: PartitionId = PartitionId(2);
const OWN: NodeLife = NodeLife { node: 2, start: 1 };
const OTHER: NodeLife = NodeLife { node: 1, start: 1 };

/// Two shards of node 2, linked with node 1. The first has the partition.
fn shards() -> ([Switch<(), NoOutsider>; 2], Leaders, Stand) {
    let leaders = Leaders::among_others(NodeNumber(OWN.node), Q);
    let directory = Directory::new(2, &[(P, 0), (Q, 0)]).among_others(NodeNumber(OWN.node));
    let stand = Stand {
        topology: RefCell::new(Topology::new()),
        mailed: RefCell::default(),
        heard: RefCell::default(),
        unheld: RefCell::default(),
        is_loaded: Cell::new(false),
        elapsed_us: Cell::new(0),
    };
    let shards = [0, 1].map(|index| Switch::new(OWN, index, directory.clone(), leaders.clone(), 3));
    for switch in &shards {
        switch.take(Parcel::LinkUp(LinkUp { peer: OTHER, epoch: 1 }), &stand);
    }
    (shards, leaders, stand)
}

/// What goes to the other node.
fn sent(switch: &Switch<(), NoOutsider>) -> Vec<Forward> {
    let mut sent = Vec::new();
    switch.inbox().borrow_mut().post_away(|_, frames| sent.extend(frames.drain(..).map(|(_, forward)| forward)));
    sent
}

/// What the first partition is told.
fn told(switch: &Switch<(), NoOutsider>) -> Vec<Command> {
    told_at(switch, 1)
}

/// What that in this place is told.
fn told_at(switch: &Switch<(), NoOutsider>, place: usize) -> Vec<Command> {
    let (mut due, mut waiting) = (Vec::new(), Waiting::default());
    let mut inbox = switch.inbox().borrow_mut();
    inbox.waits().take_due(&mut due);
    inbox.waits().swap(place, &mut waiting);
    waiting.commands
}

/// Asks for the end of a queue from a channel.
fn deletion(channel: ChannelKey) -> Deletion<NoOutsider> {
    let asker = Asker::Channel { channel, request: RequestId(3) };
    Deletion { queue: QueueId(1), partition: P, if_unused: true, if_empty: false, asker, insists: false }
}

#[test]
fn a_node_that_comes_hears_who_leads_what_and_turns_there_until_its_own_copy_does() {
    let ([at, _], leaders, stand) = shards();
    // A partition that every node is to have, so nobody is a stranger to it for long.
    at.leading.borrow_mut().push((P, 7));
    at.take(Parcel::LinkDown(NodeNumber(OTHER.node)), &stand);
    at.take(Parcel::LinkUp(LinkUp { peer: OTHER, epoch: 2 }), &stand);
    let [Forward::Leads { term: 7, leads: true }] = sent(&at)[..] else { panic!("it is not told") };
    // The other way round: this node has a copy that has heard of nobody.
    assert_eq!(leaders.leader(P), None);
    let frames = [(P, Forward::Leads { term: 7, leads: true })];
    at.take(Parcel::Forwards(NodeNumber(OTHER.node), frames.into()), &stand);
    let channel = at.open_channel((), &Cell::default(), 1);
    at.push(P, Command::Get { queue: QueueId(1), channel, no_ack: true, request: RequestId(3) });
    let [Forward::Command(Command::Get { .. })] = sent(&at)[..] else { panic!("nobody is asked") };
}

#[test]
fn a_delete_goes_to_another_node_from_the_shard_to_which_that_answers() {
    let ([at, of_channel], leaders, stand) = shards();
    let channel = of_channel.open_channel((), &Cell::default(), 1);
    // The partition's shard was to decide, and hears of another leader before it does.
    leaders.note(P, Some(NodeNumber(OTHER.node)), 5);
    at.take(Parcel::Delete(Box::new(deletion(channel))), &stand);
    assert!(sent(&at).is_empty(), "its answer would find nobody who waits for it");
    let mailed = stand.mailed.take();
    let [(1, Parcel::Effect(_, Effect::Reply { reply: Reply::NotLeader, request, .. }))] = mailed[..] else {
        panic!("{mailed:?}")
    };
    assert_eq!(request, RequestId(3));
    // The channel asks again, and hears.
    of_channel.delete_queue(deletion(channel), &stand);
    let [Forward::Delete { queue: QueueId(1), request, .. }] = sent(&of_channel)[..] else { panic!("nothing is sent") };
    let mut answer = Effect::Reply { channel, request, reply: Reply::Counted(0) };
    let mut inbox = of_channel.inbox().borrow_mut();
    assert!(inbox.roads.road(NodeNumber(OTHER.node)).expect("it is up").answered(PartitionId(0), &mut answer));
}

#[test]
fn an_ack_waits_for_its_queue_where_a_node_has_not_heard_of_it_and_the_mark_behind_it_too() {
    let ([at, _], _, stand) = shards();
    let holder = ConsumerKey::get(ChannelKey::NOBODY);
    let ack = Command::Settle { queue: QueueId(1), holder, first: 5, count: 1, outcome: Disposition::Ack };
    let mark = Command::Mark { channel: ChannelKey::of(OTHER, 0), request: RequestId(1) };
    let frames = [&ack, &mark].map(|command| (P, Forward::Command(command.clone())));
    assert_eq!(stand.topology.borrow().next_queue(), QueueId(1));
    at.take(Parcel::Forwards(NodeNumber(OTHER.node), frames.into()), &stand);
    assert!(told(&at).is_empty(), "the member would drop the ack, and say that the mark is reached");
    let declared = stand.topology.borrow_mut().apply(&Change::DeclareQueue(DeclareQueue {
        vhost: VhostId(0),
        name: Name::from("q"),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments: amqp::Table::new(),
        partition: P,
        home: None,
    }));
    assert!(declared.outcome.is_ok());
    at.resume_roads(&stand);
    assert!(told(&at).is_empty(), "the mail that tells its partition of the queue is not taken out");
    at.look_at_queues(&stand);
    at.resume_roads(&stand);
    assert_eq!(told(&at), [ack, mark]);
}

#[test]
fn whoever_leads_next_is_told_what_is_held_here_without_a_consumer() {
    let ([at, _], leaders, stand) = shards();
    let memory = PartitionId::in_memory(NodeNumber(OTHER.node), 0);
    leaders.note(P, Some(NodeNumber(OTHER.node)), 5);
    [P, memory].into_iter().for_each(|partition| at.note_holder(partition));
    let unheld = || {
        at.resume_roads(&stand);
        stand.unheld.take()
    };
    assert_eq!(unheld(), [], "they know what they gave out");
    leaders.note(P, Some(NodeNumber(OWN.node)), 6);
    assert_eq!(unheld(), [P]);
    leaders.note(Q, Some(NodeNumber(OWN.node)), 6);
    assert_eq!(unheld(), [], "nobody holds anything of it");
    at.take(Parcel::LinkDown(NodeNumber(OTHER.node)), &stand);
    assert_eq!(unheld(), [], "nobody is there to be told");
    at.take(Parcel::LinkUp(LinkUp { peer: OTHER, epoch: 2 }), &stand);
    assert_eq!(unheld(), [memory], "it gave back what it could not say to anybody");
}

#[test]
fn answers_to_publishes_that_nobody_made_are_not_passed_on() {
    let ([at, _], _, stand) = shards();
    let channel = at.open_channel((), &Cell::default(), 1);
    let count = 1 << 61;
    let answers = [
        Effect::Confirm { channel, first: 1, count },
        Effect::Refuse { channel, first: 1, count },
        Effect::Returned { channel, first: 1, count, term: 1 },
    ];
    // The one that is led in terms, one that no node has, and those in the memory of either.
    let memory = [OWN, OTHER].map(|life| PartitionId::in_memory(NodeNumber(life.node), 0));
    for partition in [P, PartitionId(P.0 + 1), memory[0], memory[1]] {
        let frames = answers.iter().map(|answer| (partition, Forward::Effect(answer.clone())));
        at.take(Parcel::Forwards(NodeNumber(OTHER.node), frames.collect()), &stand);
        assert_eq!(stand.heard.take(), [], "{partition:?}");
    }
}
