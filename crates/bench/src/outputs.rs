//! Files for machines: JSON lines, HdrHistogram's log, CSV.
//!
//! Invariant: what is written after each interval is whole, so that a run that was cut off leaves
//! everything up to then.

use std::fs::File;
use std::io::Write;

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};

use crate::Error;
use crate::options::{Options, Outputs};
use crate::record::{Begun, Figure, Interval, Line, Recorded};
use crate::run::Observer;
use crate::setup::Found;

/// The files of a run.
pub struct Files {
    json: Option<Target>,
    hdr_log: Option<Target>,
    csv: Option<Target>,
}

struct Target {
    name: String,
    file: File,
    failed: bool,
}

impl Target {
    fn create(name: &Option<String>) -> Result<Option<Target>, Error> {
        let Some(name) = name else { return Ok(None) };
        let file = File::create(name).map_err(|why| Error::machine(format!("writing {name}"), why))?;
        Ok(Some(Target { name: name.clone(), file, failed: false }))
    }

    /// A full disk does not end a run that is going well; it is told once.
    fn write(&mut self, text: &str) {
        if !self.failed && self.file.write_all(text.as_bytes()).is_err() {
            self.failed = true;
            let _ = writeln!(std::io::stderr(), "leveret: writing {} failed; it is incomplete", self.name);
        }
    }
}

impl Files {
    /// Creates the files that were asked for. A report is written at the end: that its file can be
    /// written is known now, before the minutes that it takes.
    pub fn create(outputs: &Outputs) -> Result<Files, Error> {
        outputs.html.iter().chain(&outputs.markdown).try_for_each(|name| reserve(name))?;
        Ok(Files {
            json: Target::create(&outputs.json)?,
            hdr_log: Target::create(&outputs.hdr_log)?,
            csv: Target::create(&outputs.csv)?,
        })
    }

    /// Writes down a figure of the runs before it.
    pub fn figure(&mut self, figure: &Figure) {
        self.line(&Line::Figure(Box::new(figure.clone())));
    }

    fn line(&mut self, line: &Line) {
        if let Some(json) = &mut self.json {
            let text = serde_json::to_string(line).expect("a record is always JSON");
            json.write(&(text + "\n"));
        }
    }
}

impl Observer for Files {
    fn started(&mut self, _options: &Options, _found: &Found, begun: &Begun) {
        self.line(&Line::Begun(Box::new(begun.clone())));
        let seconds =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        if let Some(log) = &mut self.hdr_log {
            log.write(&format!(
                "#[Histogram log format version 1.3]\n#[StartTime: {seconds:.3} (seconds since epoch)]\n\
                 \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n"
            ));
        }
        if let Some(csv) = &mut self.csv {
            csv.write("time (s),published (msg/s),confirmed (msg/s),received (msg/s),confirm p50 (ms),confirm p99 (ms),end to end p50 (ms),end to end p99 (ms),end to end p99.9 (ms)\n");
        }
    }

    fn interval(&mut self, interval: &Interval, confirm: &Histogram<u64>, end_to_end: &Histogram<u64>) {
        self.line(&Line::Interval(Box::new(interval.clone())));
        if let Some(log) = &mut self.hdr_log {
            for (tag, histogram) in [("confirm", confirm), ("end-to-end", end_to_end)] {
                if !histogram.is_empty() {
                    log.write(&hdr_line(tag, interval.at_s, histogram));
                }
            }
        }
        if let Some(csv) = &mut self.csv {
            let (c, e) =
                (interval.confirm.clone().unwrap_or_default(), interval.end_to_end.clone().unwrap_or_default());
            csv.write(&format!(
                "{:.3},{:.0},{:.0},{:.0},{:.3},{:.3},{:.3},{:.3},{:.3}\n",
                interval.at_s,
                interval.published_per_s,
                interval.confirmed_per_s,
                interval.received_per_s,
                c.p50_ms,
                c.p99_ms,
                e.p50_ms,
                e.p99_ms,
                e.p999_ms
            ));
        }
    }

    fn finished(&mut self, run: &Recorded) {
        self.line(&Line::Run(Box::new(run.run.clone())));
    }
}

/// Writes a whole file.
pub fn write(name: &str, text: &str) -> Result<(), Error> {
    std::fs::write(name, text).map_err(|why| Error::machine(format!("writing {name}"), why))
}

/// Makes sure that a file can be written at the end. What is in it stays until then.
fn reserve(name: &str) -> Result<(), Error> {
    let opened = File::options().create(true).append(true).open(name);
    opened.map(drop).map_err(|why| Error::machine(format!("writing {name}"), why))
}

/// A line of HdrHistogram's log: start and length in seconds, the largest value in milliseconds,
/// the histogram in nanoseconds.
fn hdr_line(tag: &str, end_s: f64, histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).expect("writing into memory does not fail");
    let encoded = base64::engine::general_purpose::STANDARD.encode(&bytes);
    let (start, max) = ((end_s - 1.0).max(0.0), crate::latency::millis(histogram.max()));
    format!("Tag={tag},{start:.3},{:.3},{max:.3},{encoded}\n", end_s - start)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn a_report_that_could_not_be_written_is_told_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("none/x.html").display().to_string();
        for outputs in [
            Outputs { html: Some(name.clone()), ..Outputs::default() },
            Outputs { markdown: Some(name.clone()), ..Outputs::default() },
        ] {
            let told = Files::create(&outputs).map(drop).unwrap_err().to_string();
            assert!(told.contains("none/x.html: No such file"), "{told}");
        }
        let old = folder.path().join("x.html");
        std::fs::write(&old, "of the run before").unwrap();
        Files::create(&Outputs { html: Some(old.display().to_string()), ..Outputs::default() }).unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "of the run before", "it stays until there is a new one");
    }

    #[test]
    fn the_hdr_log_is_one_that_hdrhistogram_reads() {
        let mut histogram = crate::latency::histogram();
        [1_000_000, 2_000_000, 50_000_000].iter().for_each(|ns| histogram.saturating_record(*ns));
        let line = hdr_line("confirm", 3.0, &histogram);
        let entry = IntervalLogIterator::new(line.as_bytes()).next().unwrap().unwrap();
        let LogEntry::Interval(entry) = entry else { panic!("not an interval") };
        assert_eq!(entry.tag().unwrap().as_str(), "confirm");
        let bytes = base64::engine::general_purpose::STANDARD.decode(entry.encoded_histogram()).unwrap();
        let read: Histogram<u64> =
            hdrhistogram::serialization::Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        assert_eq!(read, histogram);
    }
}
