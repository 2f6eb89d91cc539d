//! Several runs one after the other, with one screen, one set of files and one report.
//!
//! Invariant: the files hold every run that was made, also when a later one could not be.

use std::io::IsTerminal as _;

use crate::Error;
use crate::broker::Broker;
use crate::command::Ended;
use crate::options::{Asked, BrokerStart, Options, Outputs, parse};
use crate::outputs::Files;
use crate::record::Recorded;
use crate::report;
use crate::run::{Context, Observer, run};
use crate::screen::live::Live;
use crate::screen::{Lines, say};
use crate::uri::without_passwords;
use crate::words::Words;

/// Runs of one tool.
pub struct Series<'a> {
    context: &'a Context,
    files: Files,
    plain: bool,
    title: String,
    html: Option<String>,
    markdown: Option<String>,
    name: String,
    /// What was run so far.
    pub runs: Vec<Recorded>,
}

impl<'a> Series<'a> {
    /// A series that writes where these words say.
    pub fn new(title: &str, words: &Words, context: &'a Context) -> Result<Series<'a>, Error> {
        let owned = |name| words.text(name).map(str::to_owned);
        let outputs = Outputs { json: owned("json"), html: owned("html"), markdown: owned("md"), ..Outputs::default() };
        Ok(Series {
            context,
            files: Files::create(&outputs)?,
            plain: words.is_set("plain") || !std::io::stdout().is_terminal(),
            title: title.to_owned(),
            html: outputs.html,
            markdown: outputs.markdown,
            name: words.text("id").unwrap_or_default().to_owned(),
            runs: Vec::new(),
        })
    }

    /// Whether a signal asked to end.
    pub fn is_interrupted(&self) -> bool {
        self.context.interrupted.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Makes a run from words; `broker` is one that was started for it.
    pub fn run(&mut self, label: &str, words: &[String], broker: Option<&Broker>) -> Result<&mut Recorded, Error> {
        let options = match parse(words)? {
            Asked::Run(options) => *options,
            other => return Err(Error::usage(format!("a run was expected, not {other:?}"))),
        };
        self.run_options(label, options, broker)
    }

    /// Makes a run from options.
    pub fn run_options(
        &mut self,
        label: &str,
        mut options: Options,
        broker: Option<&Broker>,
    ) -> Result<&mut Recorded, Error> {
        options.label = format!("{} {label}", self.name).trim().to_owned();
        let mut pids = Vec::new();
        if let Some(broker) = broker {
            options.uris = vec![broker.uri()];
            options.broker = BrokerStart::default();
            pids = broker.pids();
        }
        let (interrupted, version) = (self.context.interrupted.clone(), self.context.version.clone());
        let context = Context { interrupted, broker_pids: pids, version };
        let mut screen: Box<dyn Observer> = match (!self.plain).then(Live::on_stdout).flatten() {
            Some(live) => Box::new(live),
            None => Box::new(Lines::default()),
        };
        say(&format!("\n== {}: leveret bench {}", options.label, without_passwords(&options.words)));
        options.scenario = match self.title.split_once(": ") {
            Some((name, _)) => format!("{name}: {label}"),
            None => label.to_owned(),
        };
        let recorded = run(&options, &context, &mut [&mut *screen, &mut self.files])?;
        self.runs.push(recorded);
        Ok(self.runs.last_mut().expect("it was pushed above"))
    }

    /// Writes the reports, with more HTML behind the title if there is any, and tells how it ended.
    pub fn finish(self, foreword: &str) -> Result<Ended, Error> {
        if self.runs.is_empty() {
            return Err(Error::usage("nothing was run"));
        }
        let write = |name: &str, text: &str| {
            std::fs::write(name, text).map_err(|why| Error::machine(format!("writing {name}"), why))
        };
        if let Some(name) = &self.html {
            let page = report::html(&self.title, &self.runs).replacen("</h1>\n", &format!("</h1>\n{foreword}"), 1);
            write(name, &page)?;
        }
        if let Some(name) = &self.markdown {
            write(name, &format!("# {}\n\n{}", self.title, report::markdown(&self.runs)))?;
        }
        let missed: Vec<&Recorded> = self.runs.iter().filter(|recorded| !recorded.run.missed.is_empty()).collect();
        say(&format!("\n{}: {} of {} runs passed", self.title, self.runs.len() - missed.len(), self.runs.len()));
        for recorded in &missed {
            say(&format!("  {} FAILED: {}", recorded.run.label, recorded.run.missed.join("; ")));
        }
        Ok(if missed.is_empty() { Ended::Met } else { Ended::Missed })
    }
}

/// The broker that these words ask to start, if they do.
pub fn broker_of(words: &Words) -> Result<Option<Broker>, Error> {
    let wanted = match parse(&words.handed_on())? {
        Asked::Run(options) => options.broker,
        _ => BrokerStart::default(),
    };
    if wanted.is_wanted() { Broker::start(&wanted).map(Some) } else { Ok(None) }
}
