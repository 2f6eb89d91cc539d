//! How much happened in a run, or in many.

/// How much happened: a run in which nothing happens shows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Messages published, repetitions not counted.
    pub published: u64,
    /// Confirms given.
    pub confirmed: u64,
    /// Messages delivered, with repetitions.
    pub delivered: u64,
    /// Of these, with the flag.
    pub redelivered: u64,
    /// Entries committed.
    pub committed: u64,
    /// Runs in which the machine was raised.
    pub raised: u64,
    /// Leaders elected.
    pub leaders: u64,
    /// Nodes started, the first time included.
    pub starts: u64,
    /// Of the crashes, by loss of power.
    pub power_cuts: u64,
    /// Snapshots installed.
    pub snapshots: u64,
    /// Confirmed at *written*, and lost where a majority lost its power, or forgot, before it was
    /// synced anywhere that counts.
    pub lost_with_power: u64,
    /// Confirmed by a leader alone before they were committed.
    pub by_leaders: u64,
    /// Of these, lost with a change of leaders, or with the leader's power.
    pub superseded: u64,
    /// Times that a member counted as whole again after a power cut because it heard of no leader
    /// for long.
    pub gave_up_waiting: u64,
    /// Times that a member caught up with what it may have forgotten.
    pub caught_up: u64,
    /// Checkpoints that nodes started from.
    pub checkpoints_used: u64,
    /// Dead letters, with repetitions.
    pub dead_letters: u64,
    /// Messages that ended by a rule of their queue.
    pub ended_by_rule: u64,
    /// Dead letters that arrived.
    pub dead_lettered: u64,
    /// Publishes that a full queue refused.
    pub refused: u64,
    /// Times that a queue was said to be unused for long.
    pub lapsed: u64,
    /// Publishes that were confirmed and dropped, as their queues had one with their key.
    pub repeats: u64,
    /// Messages that rotted, and were fetched from another member and written anew.
    pub repaired: u64,
    /// Groups that were quarantined at a start.
    pub quarantined: u64,
    /// Entries that rotted in a leader's log before a follower had them.
    pub lost_entries: u64,
    /// Queues deleted.
    pub deleted: u64,
    /// Publishes that were confirmed and dropped, as their queues were gone or going.
    pub nowhere: u64,
    /// Messages given out that an exchange had let wait.
    pub waited: u64,
    /// Changes of members that a leader took up.
    pub members_changed: u64,
    /// Nodes that came back to a group, as another member of it.
    pub returned: u64,
    /// Groups that ended on a node which had left them.
    pub groups_ended: u64,
    /// Disks that were lost for good.
    pub disks_lost: u64,
    /// Changes of the topology that were decided, as their proposers heard.
    pub decided: u64,
    /// Changes of the topology whose proposers heard that they would hear nothing.
    pub undecided: u64,
    /// Who heard that a node knew all that was decided.
    pub knew_all: u64,
    /// Snapshots of the topology that were installed.
    pub topology_snapshots: u64,
}

impl Figures {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Figures) {
        let Figures {
            published,
            confirmed,
            delivered,
            redelivered,
            committed,
            raised,
            leaders,
            starts,
            power_cuts,
            snapshots,
            lost_with_power,
            by_leaders,
            superseded,
            gave_up_waiting,
            caught_up,
            checkpoints_used,
            dead_letters,
            ended_by_rule,
            dead_lettered,
            refused,
            lapsed,
            repeats,
            repaired,
            lost_entries,
            quarantined,
            deleted,
            nowhere,
            waited,
            members_changed,
            returned,
            groups_ended,
            disks_lost,
            decided,
            undecided,
            knew_all,
            topology_snapshots,
        } = other;
        self.published += published;
        self.confirmed += confirmed;
        self.delivered += delivered;
        self.redelivered += redelivered;
        self.committed += committed;
        self.raised += raised;
        self.leaders += leaders;
        self.starts += starts;
        self.power_cuts += power_cuts;
        self.snapshots += snapshots;
        self.lost_with_power += lost_with_power;
        self.by_leaders += by_leaders;
        self.superseded += superseded;
        self.gave_up_waiting += gave_up_waiting;
        self.caught_up += caught_up;
        self.checkpoints_used += checkpoints_used;
        self.dead_letters += dead_letters;
        self.ended_by_rule += ended_by_rule;
        self.dead_lettered += dead_lettered;
        self.refused += refused;
        self.lapsed += lapsed;
        self.repeats += repeats;
        self.repaired += repaired;
        self.lost_entries += lost_entries;
        self.quarantined += quarantined;
        self.deleted += deleted;
        self.nowhere += nowhere;
        self.waited += waited;
        self.members_changed += members_changed;
        self.returned += returned;
        self.groups_ended += groups_ended;
        self.disks_lost += disks_lost;
        self.decided += decided;
        self.undecided += undecided;
        self.knew_all += knew_all;
        self.topology_snapshots += topology_snapshots;
    }
}
