//! Deliberate bugs of the simulated shell: each shows that a checker bites.
//!
//! Invariant: a run without one behaves as the server's shell does; with one, exactly the named
//! thing goes wrong.

use broker::queue::{LevelRule, Rules};

/// What the shell does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Says *synced* without a sync.
    SyncIsALie,
    /// Says *synced* without a sync where nothing but a term and a vote was written.
    VoteIsNotSynced,
    /// After a restart the newest entries of the log are not shown to the partition.
    TailIsForgotten,
    /// A group of whose log a record is damaged is served with what comes before it.
    DamageIsPassedOver,
    /// A checkpoint comes back with another time in it.
    CheckpointIsAltered,
    /// A delivery goes out a second time, later.
    DeliveryIsRepeated,
    /// A delivery goes out a second time, flagged, after seconds.
    DeliveryComesBack,
    /// `redelivered` gets lost.
    FlagIsLost,
    /// Two deliveries in a row change places.
    DeliveriesSwap,
    /// Two publishes of one channel change places.
    PublishesSwap,
    /// One byte of a message is another on its way out.
    BodyIsAltered,
    /// Acks do not reach the partition.
    AcksAreLost,
    /// A read is never answered.
    ReadIsLost,
    /// The partition is told a cap that is too high.
    CapIsRaised,
    /// A consumer is attached with twice its prefetch.
    PrefetchIsDoubled,
    /// The partition is not told that a queue has priorities.
    LevelsAreForgotten,
    /// The partition is not told that a queue has one active consumer at a time.
    ActiveIsForgotten,
    /// The partition is not told the limits of a queue that drops.
    LimitIsForgotten,
    /// The partition is not told the limits of a queue that refuses.
    RefusalIsForgotten,
    /// The partition is told that a queue which refuses takes nothing.
    LimitIsZero,
    /// The partition is not told a queue's time limit.
    TtlIsForgotten,
    /// Scheduled messages wait for a quarter of their time.
    DelayIsShortened,
    /// The partition's clock runs four times as fast as the node's.
    ClockRunsFast,
    /// Deliveries do not say how often a message came back.
    CountsAreLost,
    /// The partition is told a delivery limit that is one too high.
    DeliveryLimitIsRaised,
    /// A dead letter is said to be safe and goes nowhere.
    LetterIsLost,
    /// A dead letter that leaves at most once arrives twice.
    LetterIsDoubled,
    /// The partition is told a time for unused queues that is too short.
    LapseIsHasty,
    /// The partition is not told that a queue takes a key in once.
    KeysAreForgotten,
    /// All messages with a key have the same one.
    KeysAreMixedUp,
    /// Says of every message that another member asks for that it is lost.
    LossIsClaimed,
    /// Never answers another member that asks for a message.
    AskingIsInVain,
    /// Says of an entry that cannot be read that the system refused to.
    LostEntryIsHidden,
    /// Nobody is told that a queue was deleted.
    DeleteIsForgotten,
    /// A node hands on what is for a queue that it knows to be gone, and clients hear of that late.
    GoneIsUnknown,
    /// A delivery of a deleted queue goes out once more.
    DeliveryOutlivesQueue,
    /// A dead letter of a deleted queue leaves once more.
    LetterOutlivesQueue,
    /// Consumers are not told that their queue is gone.
    CancelIsLost,
    /// Extents that are used up stay on the disk.
    SpaceIsKept,
    /// A queue that is created again is not bound again.
    BindingIsForgotten,
    /// The partition is not told that a message is to wait.
    DelayIsForgotten,
    /// The partition is told three times the delay.
    DelayIsStretched,
    /// The partition's clock moves every eight seconds.
    ClockIsCoarse,
    /// A message that waited does not say so.
    WaitIsHidden,
    /// Partitions are told of a new file of the log before anything of it is durable.
    RollIsHasty,
    /// The topology that comes with a snapshot loses a queue.
    SnapshotIsAltered,
    /// The topology that comes from a checkpoint loses a queue.
    StateIsAltered,
    /// A change of the topology is said to be decided when it is appended.
    DecisionIsEarly,
    /// Nobody hears that a change of the topology was decided.
    DecisionIsLost,
    /// A node says that it knows all of the topology without having asked anybody.
    KnowledgeIsAssumed,
    /// A follower that asks for the topology's snapshot is not answered.
    PullsAreLost,
    /// Nothing looks after the log of the topology.
    TopologyIsKept,
    /// After a power cut a node believes that it has forgotten nothing: its vote counts at once.
    LossIsForgotten,
    /// What a client asked for that is gone is begun and not gone on with: the deletion of a queue.
    DeletionIsAbandoned,
    /// A get goes ahead of the consumers that were there before.
    GetOvertakes,
    /// Nobody hears that a consumer without acks is to wait for the acks of its channel.
    CreditIsForgotten,
    /// Every other node counts as away.
    HomesAreAway,
    /// Nobody hears that a partition has no leader here.
    NotLeaderIsSwallowed,
    /// Partitions are not told the rules of queues when a node starts.
    RulesAreForgotten,
    /// Who leads a partition tells nobody: who has no copy of it finds nobody to ask.
    LeaderIsSilent,
    /// A client that is gone is forgotten without the end of its session.
    TeardownIsForgotten,
    /// Partitions do not hear that a channel ended.
    DetachIsForgotten,
    /// A publish is confirmed when it is handed to its partition.
    ConfirmIsHasty,
    /// Of messages that are published as one the last has the body of the first.
    RowIsMixedUp,
    /// What a leader gave out that leads no more is passed on.
    OldLeaderIsHeard,
    /// What a leader was told that is settled does not come to the next one.
    RepeatIsLost,
    /// Nobody hears what a consumer holds that comes to the next leader.
    HoldIsLost,
    /// A node counts what it once knew of the topology as all of it, for ever.
    LeaseLasts,
    /// A partition forgets the channels of a node whose link broke, as if they had ended.
    ChannelIsForgotten,
    /// An alarm that is over holds publishers for ever.
    AlarmStays,
    /// A leader raises its machine to what it knows itself.
    RaiseIsEarly,
    /// A node that is to join founds the groups itself, as its folder is empty.
    JoinerFounds,
    /// A node that lost its disk comes back under its id, over an empty one.
    DiskIsReplaced,
    /// Nobody hears which members groups are to have.
    MapIsUntold,
    /// What a leader refuses its publisher hears as confirmed.
    RefusalIsAConfirm,
    /// A node that starts changes the members of what it leads by a map of the past, and gives a vote
    /// to a learner that never answered.
    MapIsOfThePast,
    /// A node drops what it has of a group as soon as it is taken out, and comes back as the member that it was.
    ReturnIsTheSame,
    /// Nobody hears that a socket took what came from another shard.
    DrainIsForgotten,
    /// What a full disk did not take is given up.
    FullIsForgotten,
    /// A machine that stood still forgets what was to happen meanwhile.
    StallIsForgotten,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 80] = [
        Bug::SyncIsALie,
        Bug::VoteIsNotSynced,
        Bug::TailIsForgotten,
        Bug::DamageIsPassedOver,
        Bug::CheckpointIsAltered,
        Bug::DeliveryIsRepeated,
        Bug::DeliveryComesBack,
        Bug::FlagIsLost,
        Bug::DeliveriesSwap,
        Bug::PublishesSwap,
        Bug::BodyIsAltered,
        Bug::AcksAreLost,
        Bug::ReadIsLost,
        Bug::CapIsRaised,
        Bug::PrefetchIsDoubled,
        Bug::LevelsAreForgotten,
        Bug::ActiveIsForgotten,
        Bug::LimitIsForgotten,
        Bug::RefusalIsForgotten,
        Bug::LimitIsZero,
        Bug::TtlIsForgotten,
        Bug::DelayIsShortened,
        Bug::ClockRunsFast,
        Bug::CountsAreLost,
        Bug::DeliveryLimitIsRaised,
        Bug::LetterIsLost,
        Bug::LetterIsDoubled,
        Bug::LapseIsHasty,
        Bug::KeysAreForgotten,
        Bug::KeysAreMixedUp,
        Bug::LossIsClaimed,
        Bug::AskingIsInVain,
        Bug::LostEntryIsHidden,
        Bug::DeleteIsForgotten,
        Bug::GoneIsUnknown,
        Bug::DeliveryOutlivesQueue,
        Bug::LetterOutlivesQueue,
        Bug::CancelIsLost,
        Bug::SpaceIsKept,
        Bug::BindingIsForgotten,
        Bug::DelayIsForgotten,
        Bug::DelayIsStretched,
        Bug::ClockIsCoarse,
        Bug::WaitIsHidden,
        Bug::RollIsHasty,
        Bug::SnapshotIsAltered,
        Bug::StateIsAltered,
        Bug::DecisionIsEarly,
        Bug::DecisionIsLost,
        Bug::KnowledgeIsAssumed,
        Bug::PullsAreLost,
        Bug::TopologyIsKept,
        Bug::LossIsForgotten,
        Bug::DeletionIsAbandoned,
        Bug::GetOvertakes,
        Bug::CreditIsForgotten,
        Bug::HomesAreAway,
        Bug::NotLeaderIsSwallowed,
        Bug::RulesAreForgotten,
        Bug::LeaderIsSilent,
        Bug::TeardownIsForgotten,
        Bug::DetachIsForgotten,
        Bug::ConfirmIsHasty,
        Bug::RowIsMixedUp,
        Bug::OldLeaderIsHeard,
        Bug::RepeatIsLost,
        Bug::HoldIsLost,
        Bug::LeaseLasts,
        Bug::ChannelIsForgotten,
        Bug::AlarmStays,
        Bug::RaiseIsEarly,
        Bug::JoinerFounds,
        Bug::DiskIsReplaced,
        Bug::MapIsUntold,
        Bug::RefusalIsAConfirm,
        Bug::MapIsOfThePast,
        Bug::ReturnIsTheSame,
        Bug::DrainIsForgotten,
        Bug::FullIsForgotten,
        Bug::StallIsForgotten,
    ];

    /// What a wrong shell makes of the rules that it tells its partitions.
    pub fn spoil_rules(self, rules: &mut Rules) {
        match self {
            Bug::LevelsAreForgotten => rules.levels = LevelRule::None,
            Bug::ActiveIsForgotten => rules.single_active = None,
            Bug::LimitIsForgotten if !rules.overflow.is_reject() => {
                (rules.length_max, rules.length_bytes_max) = (None, None);
            }
            Bug::RefusalIsForgotten if rules.overflow.is_reject() => {
                (rules.length_max, rules.length_bytes_max) = (None, None);
            }
            Bug::LimitIsZero if rules.overflow.is_reject() => rules.length_max = rules.length_max.map(|_| 0),
            Bug::KeysAreForgotten => rules.dedup = None,
            Bug::TtlIsForgotten => rules.message_ttl_ms = None,
            Bug::DeliveryLimitIsRaised => rules.delivery_limit = rules.delivery_limit.map(|limit| limit + 1),
            Bug::LapseIsHasty => rules.expires_ms = rules.expires_ms.map(|ms| ms / 4),
            _ => {}
        }
    }

    /// The bug of this name.
    pub fn named(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
    }
}
