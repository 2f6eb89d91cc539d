//! Several runs one after the other, with one screen, one set of files and one report.
//!
//! Invariant: the files hold every run that was made, also when a later one could not be, with
//! everything that the series found out about it: a report from the files says what the report of
//! the series says.

use hdrhistogram::Histogram;

use crate::Error;
use crate::broker::Broker;
use crate::command::Ended;
use crate::options::{BrokerStart, Options, Outputs, run_of};
use crate::outputs::{Files, write};
use crate::record::{Begun, Book, Figure, Interval, Recorded};
use crate::report;
use crate::run::{Context, Observer, run};
use crate::screen::served::Served;
use crate::screen::{chosen, say};
use crate::setup::Found;
use crate::uri::without_passwords;
use crate::words::Given;

/// Runs of one tool.
pub struct Series<'a> {
    context: &'a Context,
    files: Files,
    plain: bool,
    title: String,
    html: Option<String>,
    markdown: Option<String>,
    name: String,
    command: String,
    book: Book,
    /// The last run is over and still being judged.
    is_unwritten: bool,
    served: Option<Served>,
}

/// Hands on everything about a run but its end: it is written down once it was judged.
struct Unjudged<'a>(&'a mut Files);

impl Observer for Unjudged<'_> {
    fn started(&mut self, options: &Options, found: &Found, begun: &Begun) {
        self.0.started(options, found, begun);
    }

    fn interval(&mut self, interval: &Interval, confirm: &Histogram<u64>, end_to_end: &Histogram<u64>) {
        self.0.interval(interval, confirm, end_to_end);
    }
}

impl<'a> Series<'a> {
    /// A series that writes where these words say.
    pub fn new(title: &str, words: &Given, context: &'a Context) -> Result<Series<'a>, Error> {
        let [json, html, markdown] = ["json", "html", "md"].map(|name| words.owned(name));
        let outputs = Outputs { json, html, markdown, ..Outputs::default() };
        Ok(Series {
            context,
            files: Files::create(&outputs)?,
            plain: words.is_set("plain"),
            title: title.to_owned(),
            html: outputs.html,
            markdown: outputs.markdown,
            name: words.text("id").unwrap_or_default().to_owned(),
            command: words.command.clone(),
            book: Book::default(),
            is_unwritten: false,
            served: Served::asked(words.text("live"), title)?,
        })
    }

    /// Who asks to end, and which build this is.
    pub fn context(&self) -> &'a Context {
        self.context
    }

    /// Makes a run; `broker` is one that was started for it.
    pub fn run_options(
        &mut self,
        label: &str,
        mut options: Options,
        broker: Option<&Broker>,
    ) -> Result<&mut Recorded, Error> {
        self.write_down();
        self.context.go_on()?;
        options.label = format!("{} {label}", self.name).trim().to_owned();
        let mut pids = Vec::new();
        if let Some(broker) = broker {
            options.uris = broker.uris();
            options.broker = BrokerStart::default();
            pids = broker.pids();
        }
        let context = self.context.with_brokers(pids);
        let mut screen = chosen(self.plain, false);
        let mut files = Unjudged(&mut self.files);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut *screen, &mut files];
        observers.extend(self.served.as_mut().map(|served| served as &mut dyn Observer));
        say(&format!("\n== {}: leveret bench {}", options.label, without_passwords(&options.words)));
        options.scenario = match self.title.split_once(": ") {
            Some((name, _)) => format!("{name}: {label}"),
            None => label.to_owned(),
        };
        let mut recorded = run(&options, &context, &mut observers)?;
        recorded.run.made_by.clone_from(&self.command);
        self.book.runs.push(recorded);
        self.is_unwritten = true;
        Ok(self.last())
    }

    /// The last run; until the next one begins, more can be said of it.
    pub fn last(&mut self) -> &mut Recorded {
        self.book.runs.last_mut().expect("a run was made before it is asked for")
    }

    /// Adds a figure of the runs so far.
    pub fn figure(&mut self, mut figure: Figure) {
        self.write_down();
        figure.who.clone_from(&self.name);
        self.files.figure(&figure);
        self.book.enter_figure(figure);
    }

    fn write_down(&mut self) {
        if std::mem::take(&mut self.is_unwritten)
            && let Some(recorded) = self.book.runs.last()
        {
            self.files.finished(recorded);
        }
    }

    /// Writes the reports, with more HTML behind the title if there is any, and tells how it ended.
    /// `ran` is what came of the runs; those before an interruption are kept.
    pub fn finish(mut self, ran: Result<(), Error>, foreword: &str) -> Result<Ended, Error> {
        self.write_down();
        let runs = &self.book.runs;
        let is_cut = matches!(ran, Err(Error::Interrupted));
        match ran {
            Err(Error::Interrupted) if !runs.is_empty() => {}
            other => other?,
        }
        if runs.is_empty() {
            return Err(Error::usage("nothing was run"));
        }
        if let Some(name) = &self.html {
            let page = report::html(&self.title, &self.book, foreword);
            write(name, &page)?;
        }
        if let Some(name) = &self.markdown {
            write(name, &format!("# {}\n\n{}", self.title, report::markdown(&self.book)))?;
        }
        self.served.take().into_iter().for_each(Served::end);
        let missed: Vec<&Recorded> = runs.iter().filter(|recorded| !recorded.run.missed.is_empty()).collect();
        let (passed, all) = (runs.len() - missed.len(), page::figures::counted(runs.len(), "run"));
        say(&format!("\n{}: {passed} of {all} passed", self.title));
        for recorded in &missed {
            let (run, word) = (&recorded.run, recorded.run.verdict().word());
            say(&format!("  {} {word}: {}", run.label, run.missed.join("; ")));
        }
        if is_cut {
            say("  interrupted: what was to be run after this was not");
        }
        Ok(match Ended::of(runs.iter().map(|recorded| recorded.run.verdict())) {
            Ended::Met | Ended::NotHeld if self.context.go_on().is_err() => Ended::Interrupted,
            ended => ended,
        })
    }
}

impl Drop for Series<'_> {
    /// When the next run could not be made, the last one is written all the same.
    fn drop(&mut self) {
        self.write_down();
    }
}

/// The broker that these words ask to start, if they do, or if one is needed.
pub fn broker_of(words: &Given, is_needed: bool) -> Result<Option<Broker>, Error> {
    let wanted = run_of(&words.handed_on(""))?.broker;
    (is_needed || wanted.is_wanted()).then(|| Broker::start(&wanted)).transpose()
}
