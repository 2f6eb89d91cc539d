//! `leveret bench campaign`: many runs from one file, unattended, and one page of all of them.
//!
//! Invariant: a run that is over is one file that is whole and on the disk, or it is not there.
//! So a campaign that ended anywhere goes on where it was: what is there, was made by the same
//! words with the same builds and did not fail, is not made again.

mod file;
mod peer;
mod results;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use page::escape;
use page::figures::{self, duration_ms};
use page::table::folded;

use crate::Error;
use crate::command::Ended;
use crate::options::table::Spec;
use crate::record::Book;
use crate::report::{self, Unmeasured};
use crate::run::Context;
use crate::screen::say;
use crate::words::Tool;
use file::{Campaign, Planned, Restart};
use peer::Peer;
use results::Builds;
pub use results::Made;

const TOOL: Tool = Tool {
    name: "campaign",
    usage: "FILE [OPTIONS]",
    own: &[
        Spec::value("out", "FOLDER", "where the results and the page go (default: the file's name without its end)"),
        Spec::value("brokers", "NAME,…", "only these of the file's brokers"),
        Spec::value("seconds", "N", "length of a run, where the file has {seconds} in its lines"),
        Spec::flag("page", "make the page anew of what was measured, by whichever build, and run nothing"),
        Spec::flag("dry-run", "list the runs with the time that they take, and run nothing"),
    ],
    makes_runs: false,
};

/// Seconds that connecting takes, and counting what is left in the queues.
const AROUND_A_RUN_S: f64 = 4.0;

/// Seconds that a command takes to start a broker, and another one to stop it.
const AROUND_A_START_S: f64 = 11.0;

/// Seconds after which the page of a campaign that runs is looked at again by the browser.
const REFRESH_S: u32 = 20;

/// Runs what a file says, or what of it is not done.
pub fn campaign(words: &[String], context: &Context) -> Result<Ended, Error> {
    if words.is_empty() || words.iter().any(|word| word == "--help") {
        say(&TOOL.help(""));
        return Ok(Ended::Met);
    }
    let words = TOOL.read(words)?;
    let [name] = &words.rest[..] else {
        return Err(Error::usage("name one file of a campaign; docs/benchmarking.md says what stands in it"));
    };
    let text = std::fs::read_to_string(name).map_err(|why| Error::usage(format!("{name}: {why}")))?;
    let only = words.text("brokers").map(|names| names.split(',').collect::<Vec<_>>());
    let seconds = words.is_set("seconds").then(|| words.whole("seconds", 1, 1, 86_400)).transpose()?;
    let campaign =
        Campaign::read(&text, only.as_deref(), seconds).map_err(|why| Error::usage(format!("{name}: {why}")))?;
    let out = words.text("out").map_or_else(|| Path::new(name).with_extension(""), PathBuf::from);
    if words.is_set("page") {
        // Brokers need not be there to be asked for their versions.
        let unknown = vec![String::new(); campaign.brokers.len()];
        let planned =
            campaign.planned(&unknown, &context.version).map_err(|why| Error::usage(format!("{name}: {why}")))?;
        return finish(&campaign, &planned, &out, context, Builds::Any);
    }
    let versions = campaign.versions(&context.version)?;
    let planned =
        campaign.planned(&versions, &context.version).map_err(|why| Error::usage(format!("{name}: {why}")))?;
    let is_left = |run: &&Planned| !results::is_done(&out, run);
    let left: Vec<&Planned> = planned.iter().filter(is_left).collect();
    let around = |run: &Planned| AROUND_A_RUN_S + if run.is_first { AROUND_A_START_S } else { 0.0 };
    let seconds = |runs: &[&Planned]| runs.iter().map(|run| run.takes_s + around(run)).sum::<f64>();
    if words.is_set("dry-run") {
        for run in &planned {
            let state = if is_left(&run) { time(run.takes_s) } else { "done".to_owned() };
            say(&format!("{state:>10}  {}: leveret bench {}", run.title(), run.bench));
        }
    }
    let (all, done) = (planned.len(), planned.len() - left.len());
    let others =
        if left.is_empty() { String::new() } else { format!("; the others take about {}", time(seconds(&left))) };
    say(&format!("{}, {done} of them done{others}", figures::counted(all, "run")));
    if words.is_set("dry-run") {
        return Ok(Ended::Met);
    }
    std::fs::create_dir_all(&out).map_err(|why| Error::machine(format!("making {}", out.display()), why))?;
    let _alone = alone(&out)?;
    crate::broker::end_orphans();
    // Nor is another broker measured beside one that a killed campaign left.
    if !left.is_empty() {
        campaign.brokers.iter().for_each(|broker| Peer::end(broker, &out));
    }
    let began = Instant::now();
    let mut standing = None;
    for (at, run) in left.iter().enumerate() {
        if context.interrupted.load(Ordering::Relaxed) {
            break;
        }
        // What was taken so far says how far off the estimate is.
        let expected = seconds(&left[..at]);
        let slower = if at > 0 { began.elapsed().as_secs_f64() / expected } else { 1.0 };
        let rest = time(seconds(&left[at..]) * slower);
        say(&format!("\n==== {} of {all}, {rest} left: {}", done + at + 1, run.title()));
        one(&campaign, run, &mut standing, &out, context)?;
        if at + 1 < left.len() {
            Gathered::of(&planned, &out, Builds::These)?.write(&campaign, &out, false)?;
        }
    }
    drop(standing);
    finish(&campaign, &planned, &out, context, Builds::These)
}

/// Two campaigns in one folder would overwrite each other.
fn alone(out: &Path) -> Result<File, Error> {
    let path = out.join("lock");
    let file = File::create(&path).map_err(|why| Error::machine(format!("writing {}", path.display()), why))?;
    file.try_lock().map_err(|_| {
        Error::usage(format!("another campaign is at work in {}: wait for it, or give another --out", out.display()))
    })?;
    Ok(file)
}

/// The broker that stands, and for which part it was started.
struct Standing<'a> {
    peer: Peer<'a>,
    broker: usize,
    part: usize,
}

/// Makes a run. Only what keeps all others from being made too is an error.
fn one<'a>(
    campaign: &'a Campaign,
    run: &Planned,
    standing: &mut Option<Standing<'a>>,
    out: &'a Path,
    context: &Context,
) -> Result<(), Error> {
    let unfinished = out.join(format!("{}.unfinished", run.file));
    // Where a run leaves its figures is the campaign's affair: who types the command that the page
    // shows makes the same run.
    let mut unsaid = String::new();
    // The one before is gone before the next one starts.
    let kept = standing
        .take()
        .filter(|it| campaign.restart == Restart::Part && (it.broker, it.part) == (run.broker, run.part));
    let peer = match kept {
        Some(it) => Ok(it.peer),
        None => Peer::start(&campaign.brokers[run.broker], out, context),
    };
    let made = peer.and_then(|peer| {
        let tool = matches!(run.words.first().map(String::as_str), Some("scenario" | "durability"));
        let (tool, own) = run.words.split_at(if tool { 1 } else { 0 });
        let about = ["--id".to_owned(), run.made.broker.clone(), "--json".to_owned(), unfinished.display().to_string()];
        let words = [tool, &peer.words()[..], &about, own].concat();
        unsaid = crate::uri::without_passwords(&about);
        let ended = crate::command::bench(&words, &context.with_brokers(Vec::new()))?;
        // Whatever else it came to may have left messages in the queues.
        if ended == Ended::Met {
            *standing = Some(Standing { peer, broker: run.broker, part: run.part });
        }
        Ok(())
    });
    if context.interrupted.load(Ordering::Relaxed) {
        // It is made again, from its start.
        let _ = std::fs::remove_file(&unfinished);
        return Ok(());
    }
    let failed = made.err().map(|why| why.to_string());
    if let Some(why) = &failed {
        say(&format!("this run could not be made: {why}"));
    }
    results::keep(out, run, failed, &unfinished, &unsaid)
}

/// What is there of a campaign.
struct Gathered {
    /// How many runs the file asks for.
    planned: usize,
    book: Book,
    /// Runs that could not be made, with the reason.
    failed: Vec<String>,
    /// Runs that are not there.
    absent: Vec<String>,
}

impl Gathered {
    fn of(planned: &[Planned], out: &Path, builds: Builds) -> Result<Gathered, Error> {
        let mut all =
            Gathered { planned: planned.len(), book: Book::default(), failed: Vec::new(), absent: Vec::new() };
        // What is compared is compared with the file's first broker, whichever ran first.
        let mut shown: Vec<&Planned> = planned.iter().collect();
        shown.sort_by_key(|run| (run.cell, run.broker));
        for run in shown {
            let Some((made, read)) = results::read(out, run, builds)? else {
                all.absent.push(run.title());
                continue;
            };
            all.failed.extend(made.failed.map(|why| format!("{}: {why}", run.title())));
            all.book.runs.extend(read.runs);
            all.book.figures.extend(read.figures);
        }
        Ok(all)
    }

    /// Makes the page anew. While the campaign runs, whoever looks at it sees it grow.
    fn write(&self, campaign: &Campaign, out: &Path, is_over: bool) -> Result<Option<PathBuf>, Error> {
        if self.book.runs.is_empty() {
            return Ok(None);
        }
        let index = out.join("index.html");
        let foreword = foreword(campaign, &self.failed, &self.absent);
        let unmeasured = Unmeasured { planned: self.planned, failed: self.failed.len(), absent: self.absent.len() };
        let mut text = report::of_campaign(&campaign.title, &self.book, &foreword, unmeasured);
        if !is_over {
            text = page::reloaded(&text, REFRESH_S);
        }
        results::write_whole(&index, text.as_bytes())?;
        Ok(Some(index))
    }
}

/// The page, and how it ended.
fn finish(
    campaign: &Campaign,
    planned: &[Planned],
    out: &Path,
    context: &Context,
    builds: Builds,
) -> Result<Ended, Error> {
    let all = Gathered::of(planned, out, builds)?;
    let Gathered { book, failed, absent, .. } = &all;
    if builds == Builds::Any && book.runs.is_empty() {
        return Err(Error::usage(format!("there is no run of this campaign in {}", out.display())));
    }
    let ended = Ended::of(book.runs.iter().map(|recorded| recorded.run.verdict()));
    if let Some(page) = all.write(campaign, out, true)? {
        let runs = figures::counted(book.runs.len(), "run");
        say(&format!("\n{}: {runs}; the page is {}", campaign.title, page.display()));
    }
    failed.iter().for_each(|why| say(&format!("  not made: {why}")));
    if !absent.is_empty() {
        let (runs, are) = (figures::counted(absent.len(), "run"), if absent.len() == 1 { "is" } else { "are" });
        say(&format!("  {runs} {are} left; the same command goes on"));
    }
    Ok(match context.interrupted.load(Ordering::Relaxed) {
        true => Ended::Interrupted,
        false if !failed.is_empty() => Ended::Missed,
        false => ended,
    })
}

/// What stands behind the answer: what is not there, and the method, with the brokers.
fn foreword(campaign: &Campaign, failed: &[String], absent: &[String]) -> String {
    let mut html = String::new();
    if !absent.is_empty() {
        let (runs, titles) = (figures::counted(absent.len(), "run"), escape(&absent.join("; ")));
        html.push_str(&format!("<p class=\"bad\">Not measured yet, {runs}: {titles}.</p>\n"));
    }
    for why in failed {
        html.push_str(&format!("<p class=\"bad\">Could not be measured: {}</p>\n", escape(why)));
    }
    let started = match campaign.restart {
        Restart::Run => "each run on one that was started for it",
        Restart::Part => {
            "each started once for all values of a part and anew behind a run that did not pass \
             (this program's own for each run)"
        }
    };
    let mut method = format!(
        "<p>{}</p>\n<p>The brokers ran in turn, one at a time, {started}, and another one was first each time, so that what \
         the machine does beside it meets all of them alike.</p>\n<ul>\n",
        escape(&campaign.about)
    );
    for broker in &campaign.brokers {
        // Commands of a shell stand as they are typed: what is a line of its own there is one here.
        let command = broker.told();
        let (name, command) = (escape(&broker.name), escape(command.trim()));
        method.push_str(&match command.contains('\n') {
            true => format!("<li>{name}:\n<pre>{command}</pre></li>\n"),
            false => format!("<li>{name}: <code>{command}</code></li>\n"),
        });
    }
    for part in &campaign.parts {
        method.push_str(&format!("<li><b>{}</b>: {}</li>\n", escape(&part.name), escape(&part.about)));
    }
    html + &folded("What was measured, and how", &(method + "</ul>\n"), false)
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => duration_ms(s.round() * 1000.0),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
