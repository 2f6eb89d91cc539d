//! The results file while a run writes it.
//!
//! Invariant: a line is written whole and synced before the next trial begins, so what a killed run
//! has measured is there, and going on begins behind the last whole line.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::plan::Plan;
use crate::input::Document;
use crate::results::{FORMAT, Header, Record, Results, Tolerance};

/// An open results file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Everything in it.
    pub results: Results,
}

impl Journal {
    /// Begins the file of a plan, or goes on with it.
    pub fn open(path: &Path, plan: &Plan, note: Option<String>) -> Result<Journal, String> {
        let told = |why: std::io::Error| format!("{}: {why}", path.display());
        let is_there = std::fs::metadata(path).is_ok_and(|about| about.len() > 0);
        if !is_there {
            let file = File::create(path).map_err(told)?;
            let header =
                Header { source: None, plan: Some(plan.fingerprint()), requirement: Some(plan.requirement), note };
            let results = Results { file: path.display().to_string(), header: header.clone(), ..Results::default() };
            let mut journal = Journal { path: path.to_owned(), file, results };
            journal.write(&Record::Header { format: FORMAT.to_owned(), header })?;
            return Ok(journal);
        }
        let document = Document::open(path).map_err(|mistake| mistake.to_string())?;
        // A run that was killed in the very first line has measured nothing.
        if !document.text.contains('\n') {
            std::fs::remove_file(path).map_err(told)?;
            return Journal::open(path, plan, note);
        }
        let results = Results::read(&document, Tolerance::Partial).map_err(|mistake| mistake.to_string())?;
        match &results.header.plan {
            Some(made) if *made == plan.fingerprint() => {}
            Some(_) => {
                return Err(format!(
                    "{}:1: plan: this file was begun with another plan; name a new file",
                    path.display()
                ));
            }
            None => return Err(format!("{}:1: plan: is missing: this file was not written by a run", path.display())),
        }
        let mut file = OpenOptions::new().write(true).open(path).map_err(told)?;
        file.set_len(results.whole_bytes as u64).map_err(told)?;
        file.seek(SeekFrom::End(0)).map_err(told)?;
        Ok(Journal { path: path.to_owned(), file, results })
    }

    /// Writes a line and syncs it.
    pub fn write(&mut self, record: &Record) -> Result<(), String> {
        let told = |why: std::io::Error| format!("{}: {why}", self.path.display());
        self.file.write_all(record.line().as_bytes()).map_err(told)?;
        self.file.sync_data().map_err(told)?;
        match record {
            Record::Cluster(known) => self.results.configurations.push(known.clone()),
            Record::Step(step) => self.results.steps.push(step.clone()),
            Record::Skipped(skipped) => self.results.skipped.push(skipped.clone()),
            Record::End => self.results.is_complete = true,
            Record::Header { .. } | Record::Summary(_) | Record::Adverse(_) => {}
        }
        Ok(())
    }
}
