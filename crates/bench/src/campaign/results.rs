//! The files of runs that are over.
//!
//! Invariant: a file has its name only once all of it is on the disk. Its first line says what
//! made it.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::file::Planned;
use crate::Error;
use crate::record::{Book, Line, read_lines};

/// What made a run. One that was made by the same is not made again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// Its line.
    pub bench: String,
    /// Its broker's name.
    pub broker: String,
    /// What starts that.
    pub command: String,
    /// Its version.
    pub broker_version: String,
    /// Version and commit of this tool.
    pub tool: String,
    /// Why it could not be made; then it is tried again.
    #[serde(default)]
    pub failed: Option<String>,
}

/// Whose runs are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Builds {
    /// Those of this tool and of the brokers as they are now.
    These,
    /// Those of any build; only the line and what starts the broker must be the same.
    Any,
}

/// Whether it needs not be made again.
pub(super) fn is_done(out: &Path, run: &Planned) -> bool {
    matches!(read(out, run, Builds::These), Ok(Some((made, _))) if made == run.made)
}

/// A run that is there and was made by these words; `None` when there is none. One of another
/// build is none, unless any is meant.
pub(super) fn read(out: &Path, run: &Planned, builds: Builds) -> Result<Option<(Made, Book)>, Error> {
    let path = out.join(&run.file);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    let (first, lines) = text.split_once('\n').unwrap_or((&text, ""));
    let made = match serde_json::from_str(first) {
        Ok(Line::Made(made)) => *made,
        _ => return Err(Error::usage(format!("{}: no run of a campaign; remove it", path.display()))),
    };
    let mut wanted = run.made.clone();
    if builds == Builds::Any {
        wanted.tool.clone_from(&made.tool);
        wanted.broker_version.clone_from(&made.broker_version);
    }
    if (Made { failed: None, ..made.clone() }) != wanted {
        return Ok(None);
    }
    if lines.is_empty() {
        return Ok(Some((made, Book::default())));
    }
    let mut book = read_lines(&path.display().to_string(), lines)?;
    for figure in &mut book.figures {
        let own = figure.title.strip_prefix(&format!("{}: ", run.made.broker)).map(str::to_owned);
        figure.title = own.unwrap_or(std::mem::take(&mut figure.title));
        figure.who.clone_from(&run.made.broker);
    }
    // What was made for a figure keeps its own name.
    for recorded in book.runs.iter_mut().filter(|recorded| !recorded.is_of_figure) {
        let step = recorded.run.scenario.split_once(": ").map(|(_, step)| step);
        recorded.run.scenario = match step {
            Some(step) => format!("{}: {step}", run.scenario),
            None => {
                // As a series names its runs: where they are compared, the broker's name is left.
                recorded.run.label = format!("{} {}", run.made.broker, run.scenario);
                run.scenario.clone()
            }
        };
    }
    Ok(Some((made, book)))
}

/// Keeps the lines that a run wrote, which were made or failed, without the `unsaid` words of their
/// commands.
pub(super) fn keep(
    out: &Path,
    run: &Planned,
    failed: Option<String>,
    unfinished: &Path,
    unsaid: &str,
) -> Result<(), Error> {
    let lines = without(std::fs::read_to_string(unfinished).unwrap_or_default(), unsaid);
    // What a run had written before it failed is kept where it is whole.
    let is_whole = |book: &Book| book.runs.iter().all(|recorded| recorded.run.unended.is_none());
    let lines = if failed.is_some() && !read_lines("", &lines).is_ok_and(|book| is_whole(&book)) {
        String::new()
    } else {
        lines
    };
    let made = Line::Made(Box::new(Made { failed, ..run.made.clone() }));
    let first = serde_json::to_string(&made).expect("a record is always JSON");
    write_whole(&out.join(&run.file), format!("{first}\n{lines}").as_bytes())?;
    let _ = std::fs::remove_file(unfinished);
    Ok(())
}

/// Lines of JSON without these words, wherever their text has them.
fn without(lines: String, unsaid: &str) -> String {
    if unsaid.is_empty() {
        return lines;
    }
    let quoted = serde_json::to_string(&format!("{unsaid} ")).expect("a text is always JSON");
    lines.replace(&quoted[1..quoted.len() - 1], "")
}

/// Writes a file that is there as a whole or not at all, whatever happens in between.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let next = path.with_extension("next");
    let write = || {
        let mut file = File::create(&next)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&next, path)?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(|why: std::io::Error| Error::machine(format!("writing {}", path.display()), why))
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn a_kept_command_has_no_word_of_the_campaign() {
        let unsaid = r#"--id 'a "b"' --json x.unfinished"#;
        let command = format!("leveret bench --uri u {unsaid} --size 1");
        let line = serde_json::to_string(&command).expect("JSON");
        assert_eq!(without(line, unsaid), r#""leveret bench --uri u --size 1""#);
    }
}
