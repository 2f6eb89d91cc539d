//! Each check bites: a cluster with a fault of its own is caught, by the check that is there for
//! it.

mod cluster;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cluster::Bug;
use cluster::weather::{Chaos, STEPS};

const SEEDS: std::ops::Range<u64> = 0..200;

/// How a run with `bug` fails, if it does.
fn failure(seed: u64, bug: Bug) -> Option<String> {
    let mut chaos = Chaos::new(seed, Some(bug));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..STEPS {
            chaos.step();
        }
        chaos.heal();
    }));
    let panic = outcome.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).expect("a panic says why"))
}

#[test]
fn every_check_catches_the_fault_it_is_there_for() {
    // Some hundred runs fail here, and none of them is of interest by itself.
    std::panic::set_hook(Box::new(|_| {}));
    let expected = [
        (Bug::SendBeforeSync, "synced copies of"),
        (Bug::ForgetVote, "votes twice in term"),
        (Bug::ApplyTwice, "applies"),
        (Bug::ChangeEntry, "means two things"),
        (Bug::LoseSynced, "without the committed entry"),
        (Bug::CutSnapshot, "that is not the committed log"),
        (Bug::Deaf, "no agreement after"),
    ];
    let mut missed = Vec::new();
    for (bug, sentence) in expected {
        let mut others = Vec::new();
        let is_caught = SEEDS.filter_map(|seed| failure(seed, bug)).any(|text| {
            let is_it = text.contains(sentence);
            if !is_it {
                others.push(text.lines().next().unwrap_or_default().to_owned());
            }
            is_it
        });
        if !is_caught {
            others.sort();
            others.dedup();
            missed.push(format!("{bug:?}: nobody says {sentence:?}, but {others:?}"));
        }
    }
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "{missed:#?}");
}
