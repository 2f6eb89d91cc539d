//! Deliberate bugs of the simulated shell: each shows that a checker bites.
//!
//! Invariant: a run without one behaves as the server's shell does; with one, exactly the named thing goes wrong.

/// What the shell does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Says *synced* without a sync.
    SyncIsALie,
    /// Says *synced* without a sync where nothing but a term and a vote was written.
    VoteIsNotSynced,
    /// After a restart the newest entries of the log are not shown to the partition.
    TailIsForgotten,
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
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 14] = [
        Bug::SyncIsALie,
        Bug::VoteIsNotSynced,
        Bug::TailIsForgotten,
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
    ];

    /// The bug of this name.
    pub fn named(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
    }
}
