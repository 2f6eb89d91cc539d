//! What the patterns of a change cost, found out before the change is proposed.
//!
//! Invariant: this runs on no shard's thread and holds the topology for a slice at a time. A
//! pattern that takes too long is refused here and so is never stored; that of a policy is matched
//! with every name here, and the thread that carries the change out finds the result instead of
//! matching.

use crate::node::Shared;
use broker::VhostId;
use broker::topology::{Command, Name, PolicySurvey, Refusal, TopicPermission, Unplanned};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Time of the processor that one change, or one import of definitions, may take for its patterns.
/// A second is a million names and a usual pattern.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(1);
/// What matching a policy with the names that are there may take of it: all other nodes of a cluster do the same without a plan,
/// and nobody routes there meanwhile. So much, and so much for each name, which is twice what a usual pattern takes.
const MATCH_TIME_MIN: Duration = Duration::from_millis(100);
const MATCH_TIME_A_NAME: Duration = Duration::from_micros(2);
/// The same for one request that filters a list.
pub(crate) const FILTER_TIME_MAX: Duration = Duration::from_millis(100);

/// The turn of the one change under way whose patterns were weighed, or of an import.
#[derive(Debug, Default)]
pub(crate) struct PatternTurn {
    /// When nobody had decided about what had the turn, last.
    given_up: Option<Instant>,
}

impl PatternTurn {
    /// Whether it is vain for who has waited since then to try: nobody decided about what had the turn meanwhile. So a queue
    /// of such changes ends with its first.
    pub(crate) fn is_vain(&self, since: Instant) -> bool {
        self.given_up.is_some_and(|at| at >= since)
    }

    /// Nobody has decided about what has the turn.
    pub(crate) fn give_up(&mut self) {
        self.given_up = Some(Instant::now());
    }
}

/// The time that this thread may still use. It counts what the thread ran and not what it waited,
/// so that a busy machine refuses nothing that an idle one takes.
pub struct Meter {
    until: Duration,
}

impl Meter {
    /// This much from now on.
    pub(crate) fn new(limit: Duration) -> Self {
        Meter { until: used() + limit }
    }

    /// For one change.
    pub(crate) fn of_change() -> Self {
        Meter::new(CHANGE_TIME_MAX)
    }

    /// For a policy that is matched with so many names.
    fn of_names(count: usize) -> Self {
        let for_all = MATCH_TIME_A_NAME.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        Meter::new((MATCH_TIME_MIN + for_all).min(CHANGE_TIME_MAX))
    }

    /// For one request that filters a list.
    pub fn of_filter() -> Self {
        Meter::new(FILTER_TIME_MAX)
    }

    /// Whether there is some left.
    pub fn goes_on(&self) -> bool {
        used() <= self.until
    }
}

/// What this thread has run.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Whether a change brings patterns, or takes one away that things are matched with.
pub(crate) fn has_patterns(command: &Command) -> bool {
    matches!(
        command,
        Command::PutPolicy(_)
            | Command::DeletePolicy { .. }
            | Command::PutPermission { .. }
            | Command::PutTopicPermission { .. }
    )
}

/// Tries the patterns of a change on names made for it. Errors: one takes too long.
pub(crate) fn check_cost(
    name_of: impl Fn(VhostId) -> Option<Name>,
    command: &Command,
    meter: &Meter,
) -> Result<(), Unplanned> {
    let may_go_on = &mut || meter.goes_on();
    match command {
        Command::PutPolicy(put) => put.policy.pattern.check_cost(may_go_on)?,
        Command::PutPermission { permission, .. } => permission.check_cost(may_go_on)?,
        Command::PutTopicPermission { user, vhost, write, read, .. } => {
            // One whose virtual host is gone is refused when it is decided.
            if let Some(vhost) = name_of(*vhost) {
                TopicPermission::new(user, &vhost, write, read)?.check_cost(may_go_on)?;
            }
        }
        _ => {}
    }
    Ok(())
}

impl Shared {
    /// Finds out what the patterns of `command` cost, and leaves the plan for a policy where the
    /// change finds it. To be called by who has the turn ([`Shared::pattern_turn`]), so that no
    /// other change makes the plan stale.
    ///
    /// Errors: a pattern takes too long. Taking a policy away takes the time that it takes.
    pub(crate) fn weigh(&self, command: &Command) -> Result<(), Refusal> {
        let meter = Meter::of_change();
        let is_put = !matches!(command, Command::DeletePolicy { .. });
        check_cost(|vhost| self.topology().vhost_of(vhost).map(|vhost| vhost.name.clone()), command, &meter)?;
        let begun = PolicySurvey::begin(&self.topology(), command);
        let Some(mut survey) = begun else { return Ok(()) };
        while survey.collect(&self.topology()) {}
        let meter = Meter::of_names(survey.names());
        let plan = survey.judge(&mut || !is_put || meter.goes_on())?;
        self.topology.put(|topology| topology.expect_policy(plan));
        Ok(())
    }

    /// As [`Shared::weigh`], of a change that was weighed with the file that it came from.
    pub(crate) fn plan_policy(&self, command: &Command) -> Result<(), Refusal> {
        let begun = PolicySurvey::begin(&self.topology(), command);
        let Some(mut survey) = begun else { return Ok(()) };
        while survey.collect(&self.topology()) {}
        let plan = survey.judge(&mut || true)?;
        self.topology.put(|topology| topology.expect_policy(plan));
        Ok(())
    }
}
