//! A cluster in bad weather, from a seed, and what must hold all the while and afterwards.
//!
//! A failure names its seed: `SEED=n TRACE=1 cargo test -p consensus --test chaos one_seed`. More
//! seeds: `SEEDS=from..limit`.

mod cluster;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cluster::weather::{Chaos, STEPS};

const SEEDS: std::ops::Range<u64> = 0..200;

/// Returns a digest of everything that happened.
fn run(seed: u64) -> (String, usize, usize) {
    let mut chaos = Chaos::new(seed, None);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..STEPS {
            chaos.step();
        }
        chaos.heal();
    }));
    let trace = chaos.cluster.take_trace();
    if let Err(panic) = outcome {
        if std::env::var("TRACE").is_ok() {
            eprintln!("{trace}");
        }
        eprintln!("seed {seed} failed: SEED={seed} TRACE=1 cargo test -p consensus --test chaos one_seed");
        std::panic::resume_unwind(panic);
    }
    (trace, chaos.cluster.checks.committed_count(), chaos.cluster.checks.leaders_count())
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("SEEDS") else { return SEEDS };
    let (from, limit) = range.split_once("..").expect("SEEDS=from..limit");
    from.parse().expect("a number")..limit.parse().expect("a number")
}

#[test]
fn bad_weather_breaks_no_promise_and_good_weather_brings_agreement() {
    let mut committed = 0;
    let mut leaders = 0;
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let (_, entries, terms) = run(seed);
        committed += entries;
        leaders += terms;
    }
    eprintln!("{count} seeds, {committed} entries committed, {leaders} leaders elected");
    assert!(committed as u64 > 10 * count, "runs in which nothing is committed show nothing");
    assert!(leaders as u64 > 2 * count, "runs in which nobody is elected show nothing");
}

#[test]
fn two_runs_from_one_seed_are_the_same_run() {
    for seed in [1, 2, 3] {
        assert_eq!(run(seed).0, run(seed).0);
    }
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn one_seed() {
    let seed = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("a number"));
    run(seed);
}
