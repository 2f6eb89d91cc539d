//! Prints the report of the study: `cargo run -p sizing --example show`.
//!
//! Invariant: it shows what `leveret sizing report --study` shows.
#![allow(clippy::print_stdout)]

fn main() -> Result<(), String> {
    let told = |mistake: sizing::input::Mistake| mistake.to_string();
    let (results, prices) = (sizing::study::results().map_err(told)?, sizing::study::prices().map_err(told)?);
    let published = sizing::study::published().map_err(told)?;
    let requirement = sizing::requirement::Requirement::stated(&Default::default(), results.header.requirement)?;
    let report = sizing::report::report(&results, Some(&prices), Some(&published), &requirement)?;
    print!("{}", report.text());
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(&path, report.html()).map_err(|why| format!("{path}: {why}"))?;
    }
    Ok(())
}
