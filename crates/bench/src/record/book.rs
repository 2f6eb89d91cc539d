//! A file of lines: runs with their intervals, and what several runs say together.
//!
//! Invariant: of a run that was cut off, what is whole is read, and nothing is claimed of the rest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Begun, HeldBack, Interval, Latency, Run, Unended, add_reason, mean};

/// A curve of a figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What was waited for.
    pub name: String,
    /// Messages a second that were sent while it was measured.
    pub held_per_s: f64,
    /// How long it took.
    pub latency: Latency,
}

/// What several runs say together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Whose it is; empty where the page is about one broker only.
    #[serde(default)]
    pub who: String,
    /// Its heading.
    pub title: String,
    /// What was measured, in the order in which it is shown.
    pub curves: Vec<Curve>,
    /// Sentences on what the figure does not show, and why.
    pub notes: Vec<String>,
    /// What was to be shown, in words, and whether it was; absent where nothing was.
    pub shown: Option<(String, bool)>,
}

/// A line of a JSON file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    /// A run begins, by which one is known that is cut off.
    Begun(Box<Begun>),
    /// An interval.
    Interval(Box<Interval>),
    /// The end of a run: all intervals before it, back to the run before, are its own.
    Run(Box<Run>),
    /// A figure of the runs before it.
    Figure(Box<Figure>),
    /// What of a campaign the lines behind it are; nothing to a report.
    Made(Box<crate::campaign::Made>),
}

/// A run with its intervals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// The whole.
    pub run: Run,
    /// Its parts.
    pub intervals: Vec<Interval>,
    /// It was made for a figure, and is compared with nothing by itself. One of them may have been a
    /// rate that was tried and not held.
    pub is_of_figure: bool,
}

impl Recorded {
    /// What the intervals of a run say that has no end. Without a beginning, which older files do not
    /// have, it is called `name`.
    pub fn unended(name: &str, begun: Option<&Begun>, intervals: Vec<Interval>, how: Unended) -> Recorded {
        let mut run = begun.map_or_else(|| Run { label: name.to_owned(), ..Run::default() }, Begun::run);
        let load: Vec<Interval> = intervals.iter().filter(|i| i.phase != "drain").cloned().collect();
        let is_any = |of: fn(&Interval) -> f64| intervals.iter().any(|i| of(i) > 0.0);
        let confirms = begun.map_or(is_any(|i| i.confirmed_per_s), |begun| begun.confirms);
        let receives = begun.map_or(is_any(|i| i.received_per_s), |begun| begun.receives);
        run.seconds = load.last().map_or(0.0, |i| i.at_s);
        run.target_per_s = mean(&load, |i| i.target_per_s);
        run.published_per_s = mean(&load, |i| Some(i.published_per_s)).unwrap_or(0.0);
        run.confirmed_per_s = mean(&load, |i| confirms.then_some(i.confirmed_per_s));
        run.received_per_s = mean(&load, |i| receives.then_some(i.received_per_s));
        run.cost.broker_rss_bytes_max = intervals.iter().filter_map(|i| Some(i.broker?.rss_bytes)).max();
        if let Some(cores) = mean(&load, |i| Some(i.broker?.cpu_cores)) {
            let sent = Some(run.published_per_s).filter(|rate| *rate > 0.0);
            run.cost.enter_broker(cores, sent, run.received_per_s);
        }
        run.connections_lost = intervals.iter().map(|i| i.connections_lost).sum();
        let held_back_s: f64 = intervals.iter().map(|i| i.held_back_s).sum();
        if held_back_s > 0.0 {
            let mut reasons = Vec::new();
            intervals.iter().flat_map(|i| &i.held_back_why).for_each(|why| add_reason(&mut reasons, why.clone()));
            run.held_back = Some(HeldBack { seconds: held_back_s, times: 1, reasons });
        }
        if how == Unended::Cut {
            let seconds = intervals.last().map_or(0.0, |i| i.at_s);
            run.was_interrupted = true;
            run.missed = vec![format!("it was cut off after {seconds} s, without its summary")];
            run.notes.push(
                "what became of its messages and its percentiles were not written down; its intervals were".to_owned(),
            );
        }
        run.unended = Some(how);
        Recorded { run, intervals, is_of_figure: false }
    }
}

/// What a file of lines, or several, say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Book {
    /// The runs, in their order.
    pub runs: Vec<Recorded>,
    /// The figures, in theirs.
    pub figures: Vec<Figure>,
}

impl Book {
    /// Adds a figure: it is of the runs so far.
    pub fn enter_figure(&mut self, figure: Figure) {
        self.runs.iter_mut().for_each(|recorded| recorded.is_of_figure = true);
        self.figures.push(figure);
    }
}

/// Reads a file of lines; an error names the line, or says that it is no such file. Of a run that was cut off
/// its whole lines are read.
pub fn read_lines(name: &str, text: &str) -> Result<Book, crate::Error> {
    let (mut book, mut begun, mut intervals, mut is_known) = (Book::default(), None, Vec::new(), false);
    let no_result = || {
        crate::Error::usage(format!(
            "{name} is no result file of `leveret bench`: --json FILE makes one of a run, of `scenario` and of `durability`"
        ))
    };
    for (at, line) in text.split_inclusive('\n').enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let read = serde_json::from_str(line);
        is_known |= read.is_ok();
        match read {
            Ok(Line::Begun(next)) => {
                book.cut(name, begun.replace(next), std::mem::take(&mut intervals));
            }
            Ok(Line::Interval(interval)) => intervals.push(*interval),
            Ok(Line::Run(mut run)) => {
                crate::verdict::judge(&mut run);
                let intervals = std::mem::take(&mut intervals);
                begun = None;
                book.runs.push(Recorded { run: *run, intervals, ..Recorded::default() });
            }
            Ok(Line::Figure(figure)) => book.enter_figure(*figure),
            Ok(Line::Made(_)) => {}
            // Each line is written in one go: without its end the writer was stopped in it.
            Err(_) if !line.ends_with('\n') => {}
            Err(_) if !is_known => return Err(no_result()),
            Err(why) => return Err(crate::Error::usage(format!("{name}, line {}: {why}", at + 1))),
        }
    }
    book.cut(name, begun, intervals);
    match book.runs.is_empty() {
        true if is_known => Err(crate::Error::usage(format!("{name}: there is no run in it"))),
        true => Err(no_result()),
        false => Ok(book),
    }
}

impl Book {
    /// Several files as one. Who has runs or figures of the same name in two of them is told apart by the
    /// names of the files, or by a number where those are called alike too.
    pub fn of_files(files: Vec<(String, Book)>) -> Book {
        let mut seen: BTreeMap<[String; 3], Vec<usize>> = BTreeMap::new();
        let of_run =
            |run: &Run| [run.name_and_step().0.to_owned(), run.scenario.clone(), format!("{:?}", run.target_per_s)];
        let of_figure = |figure: &Figure| [figure.who.clone(), figure.title.clone(), "figure".to_owned()];
        for (at, (_, book)) in files.iter().enumerate() {
            let keys = book.runs.iter().map(|recorded| of_run(&recorded.run)).chain(book.figures.iter().map(of_figure));
            keys.for_each(|key| seen.entry(key).or_default().push(at));
        }
        let alike: BTreeSet<String> =
            seen.into_iter().filter(|(_, at)| at.first() != at.last()).map(|([name, ..], _)| name).collect();
        let names: BTreeSet<String> = files.iter().map(|(file, _)| file.clone()).collect();
        let is_by_file = names.len() == files.len();
        let mut all = Book::default();
        for (at, (file, mut book)) in files.into_iter().enumerate() {
            let apart = |name: &str| match is_by_file {
                _ if !alike.contains(name) => name.to_owned(),
                true if name.is_empty() => file.clone(),
                true => format!("{name} ({file})"),
                false => format!("{name} ({})", at + 1).trim().to_owned(),
            };
            for run in book.runs.iter_mut().map(|recorded| &mut recorded.run) {
                let (name, step) = run.name_and_step();
                run.label = format!("{} {step}", apart(name)).trim().to_owned();
            }
            book.figures.iter_mut().for_each(|figure| figure.who = apart(&figure.who));
            all.runs.append(&mut book.runs);
            all.figures.append(&mut book.figures);
        }
        all
    }

    /// Adds a run that has no end, if one was begun and anything was measured of it.
    fn cut(&mut self, name: &str, begun: Option<Box<Begun>>, intervals: Vec<Interval>) {
        if !intervals.is_empty() {
            self.runs.push(Recorded::unended(name, begun.as_deref(), intervals, Unended::Cut));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Verdict;
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written_and_what_is_broken_is_named() {
        let interval = Line::Interval(Box::new(Interval { at_s: 1.0, ..Interval::default() }));
        let run = Line::Run(Box::new(Run { label: "x".into(), ..Run::default() }));
        let text = |lines: &[&Line]| lines.iter().map(|l| serde_json::to_string(l).unwrap() + "\n").collect::<String>();
        let figure = Line::Figure(Box::new(Figure { title: "1".into(), ..Figure::default() }));
        let book = read_lines("f", &text(&[&interval, &run, &figure, &interval, &interval, &run])).unwrap();
        let told = |r: &Recorded| (r.intervals.len(), r.is_of_figure);
        assert_eq!(book.runs.iter().map(told).collect::<Vec<_>>(), [(1, true), (2, false)]);
        assert_eq!(book.figures.iter().map(|figure| figure.title.as_str()).collect::<Vec<_>>(), ["1"]);
        let broken = |text: &str| read_lines("f", text).unwrap_err().to_string();
        assert!(broken(&(text(&[&run]) + "{}\n")).starts_with("f, line 2: "));
        for other in ["", "title = 1\n", "{}", "{}\n"] {
            assert!(broken(other).starts_with("f is no result file of `leveret bench`: --json FILE "), "{other}");
        }
    }

    #[test]
    fn runs_that_two_files_call_alike_are_told_apart_by_their_files_or_by_numbers() {
        let book = |names: &[(&str, &str, f64)]| {
            let run = |&(label, scenario, target): &(&str, &str, f64)| Recorded {
                run: Run {
                    label: label.into(),
                    scenario: scenario.into(),
                    target_per_s: Some(target),
                    ..Run::default()
                },
                ..Recorded::default()
            };
            let figure = Figure { who: names[0].0.into(), title: "1".into(), ..Figure::default() };
            Book { runs: names.iter().map(run).collect(), figures: vec![figure] }
        };
        let names = |files: &[(&str, &Book)]| {
            let files = files.iter().map(|&(file, book)| (file.to_owned(), book.clone())).collect();
            let all = Book::of_files(files);
            let runs = all.runs.into_iter().map(|recorded| recorded.run.label);
            (runs.collect::<Vec<_>>(), all.figures.into_iter().map(|figure| figure.who).collect::<Vec<_>>())
        };
        let one = book(&[("Leveret", "", 10.0)]);
        assert_eq!(names(&[("a", &one), ("b", &one)]).0, ["Leveret (a)", "Leveret (b)"]);
        assert_eq!(names(&[("a", &one), ("a", &one)]).1, ["Leveret (1)", "Leveret (2)"]);
        assert_eq!(names(&[("a", &one)]).0, ["Leveret"]);
        let others = [book(&[("Leveret", "", 20.0)]), book(&[("RabbitMQ", "", 10.0)])];
        assert_eq!(names(&[("a", &one), ("b", &others[1])]).0, ["Leveret", "RabbitMQ"]);
        // Two rates are two workloads; the figures are of one title.
        assert_eq!(names(&[("a", &one), ("b", &others[0])]).1, ["Leveret (a)", "Leveret (b)"]);
        let steps = book(&[("Leveret size 10", "s1: size 10", 1.0), ("Leveret size 20", "s1: size 20", 1.0)]);
        let mut unnamed = book(&[("size 10", "s1: size 10", 1.0)]);
        let (told, _) = names(&[("a", &steps), ("b", &steps)]);
        assert_eq!(told[..2], ["Leveret (a) size 10", "Leveret (a) size 20"], "as they are grouped");
        unnamed.figures.clear();
        assert_eq!(names(&[("a", &unnamed), ("b", &unnamed)]).0, ["a size 10", "b size 10"]);
    }

    #[test]
    fn of_a_run_that_was_cut_at_any_byte_what_is_whole_is_read_and_said_to_be_cut() {
        let begun = Begun { label: "x".into(), receives: true, ..Begun::default() };
        let interval = |at: u32, received| Interval {
            at_s: f64::from(at),
            phase: "load".into(),
            published_per_s: 100.0,
            received_per_s: received,
            ..Interval::default()
        };
        let lines = [
            Line::Begun(Box::new(begun)),
            Line::Interval(Box::new(interval(1, 100.0))),
            Line::Interval(Box::new(interval(2, 50.0))),
            Line::Run(Box::default()),
        ];
        let ends: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        let whole = ends.concat();
        for cut in 1..whole.len() - 1 {
            let text = &whole[..cut];
            let intervals = match cut {
                cut if cut >= ends[..3].concat().len() - 1 => 2,
                cut if cut >= ends[..2].concat().len() - 1 => 1,
                _ => 0,
            };
            let read = read_lines("f", text);
            assert_eq!(read.is_ok(), intervals > 0, "{text}");
            let Ok(book) = read else { continue };
            let [Recorded { run, intervals: found, .. }] = &book.runs[..] else { panic!("{text}") };
            assert_eq!((found.len(), run.label.as_str(), run.verdict()), (intervals, "x", Verdict::Interrupted));
            assert_eq!(run.missed, [format!("it was cut off after {intervals} s, without its summary")]);
            assert_eq!(run.received_per_s, Some(if intervals == 2 { 75.0 } else { 100.0 }));
            assert_eq!((run.confirmed_per_s, run.books()), (None, None), "nothing is claimed of its messages");
        }
        assert!(read_lines("f", &whole).unwrap().runs[0].run.books().is_some());
        // What stands between whole lines is no cut, and neither is a run behind one that was cut.
        assert!(read_lines("f", &whole.replacen("100.0,", "100.0;", 1)).is_err());
        let again = read_lines("f", &(ends[..2].concat() + &whole)).unwrap();
        assert_eq!(again.runs.iter().map(|r| r.intervals.len()).collect::<Vec<_>>(), [1, 2]);
        let older = read_lines("f", &ends[1]).unwrap();
        assert_eq!((older.runs[0].run.label.as_str(), older.runs[0].run.received_per_s), ("f", Some(100.0)));
    }
}
