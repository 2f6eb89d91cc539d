//! Figures of levels, and what is said of them.

use super::*;

#[test]
fn a_rate_that_was_not_held_says_why() {
    let mut run = Run { published_per_s: 100_000.0, ..Run::default() };
    run.machine.cores = 2;
    let told = |run: &Run| why_not_held(run, 200_000.0).unwrap_or_default();
    assert_eq!(told(&run), "the broker is not on this machine, so what held it back was not seen");
    (run.cost.broker_cores, run.cost.machine) = (Some(1.5), Some(0.97));
    run.cost.publishing_us_per_message = Some(4.0);
    assert_eq!(
        told(&run),
        "the machine's cores (97 % in use, by the load and others too) (broker 1.50 and load 0.40 of 2 cores, load average before: 0.0)"
    );
    (run.cost.broker_cores, run.cost.machine, run.cost.disk_busy) = (Some(0.2), Some(0.3), Some(0.93));
    assert!(told(&run).starts_with("the disk's syncs (it had something to do 93 % of the time) (broker 0.20"));
    assert_eq!(why_not_held(&run, 100_000.0), None);
    // What was sent and not confirmed was not held either.
    run.confirmed_per_s = Some(50_000.0);
    assert!(why_not_held(&run, 100_000.0).is_some());
}

#[test]
fn curves_that_one_reason_held_back_share_a_sentence() {
    let curve = |name: &str, why: Option<&str>| Measured {
        name: name.to_owned(),
        latency: Latency::default(),
        held: 139_999.0,
        asked: 140_000.0,
        why: why.map(str::to_owned),
    };
    let measured = vec![curve("synced", Some("the disk")), curve("async", Some("the disk")), curve("other", None)];
    let figure = drawn(&FIGURES[2], measured, vec!["Replicated: one node.".to_owned()]);
    let told = ["Replicated: one node.", "synced, async: measured at 140,000 msg/s, not 200,000: the disk."];
    assert_eq!(figure.notes, told);
    assert_eq!(
        (figure.title.as_str(), figure.curves.len()),
        ("Figure 3: 1 KB, up to 200,000 msg/s: what each policy costs", 3)
    );
}

#[test]
fn rates_are_rounded_to_what_can_be_said_aloud() {
    assert_eq!(round_down(87_654.0), 87_000.0);
    assert_eq!(round_down(150.0), 150.0);
    let run = Run { published_per_s: 90_000.0, confirmed_per_s: Some(80_000.0), ..Run::default() };
    assert_eq!((lower(&run, 200_000.0), lower(&run, 60_000.0)), (60_000.0, 45_000.0));
}
