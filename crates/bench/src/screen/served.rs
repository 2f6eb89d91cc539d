//! The page of a run that goes on, for browsers: `--live ADDRESS`.
//!
//! Invariant: a page is made only when somebody asks for one, and of what was measured by then, so that
//! nobody's load pays for a page that nobody looks at. It is the page of a report; only what a run
//! does not know before its end is said to be unknown.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::live::View;
use crate::Error;
use crate::options::Options;
use crate::record::{Begun, Book, Interval, Recorded, Unended};
use crate::report;
use crate::run::Observer;
use crate::setup::Found;

/// How long a browser may take to ask, and to take its answer.
const ASK_PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a request that are read.
const REQUEST_BYTES_MAX: usize = 8 * 1024;

/// Who has asked within this time before the end still looks, and is waited for to get the last page.
const LOOKS: Duration = Duration::from_secs(5);

/// What is shown.
#[derive(Default)]
struct Shown {
    title: String,
    /// Runs that are over.
    book: Book,
    /// The one that is under way, and its intervals.
    begun: Option<Begun>,
    intervals: Vec<Interval>,
    view: View,
    every_ms: u64,
    is_over: bool,
    asked: Option<Instant>,
    /// Whether somebody has got the page that says that all is over.
    has_last: bool,
}

/// A page that is served as long as this lives.
pub struct Served {
    shown: Arc<Mutex<Shown>>,
}

impl Served {
    /// Serves at an address, `127.0.0.1:8090`, or at a port of this machine alone, `8090`.
    pub fn at(address: &str, title: &str) -> Result<Served, Error> {
        let place = if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") };
        let failed = |why: std::io::Error| Error::machine(format!("--live {address}"), why);
        let listener = TcpListener::bind(&place).map_err(failed)?;
        let place = listener.local_addr().map_err(failed)?;
        let shown = Arc::new(Mutex::new(Shown { title: title.to_owned(), every_ms: 1000, ..Shown::default() }));
        let own = Arc::clone(&shown);
        let serve = move || listener.incoming().flatten().for_each(|stream| drop(answer(stream, &own)));
        std::thread::Builder::new().name("live page".to_owned()).spawn(serve).map_err(failed)?;
        super::say(&format!("live page: http://{place}/"));
        Ok(Served { shown })
    }

    /// One, where an address was given.
    pub fn asked(address: Option<&str>, title: &str) -> Result<Option<Served>, Error> {
        address.map(|address| Served::at(address, title)).transpose()
    }

    /// Nothing comes any more. Whoever looks gets the last page before this returns.
    pub fn end(self) {
        self.lock().is_over = true;
        let began = Instant::now();
        let waits = || {
            let shown = self.lock();
            shown.asked.is_some_and(|asked| asked + LOOKS > began) && !shown.has_last
        };
        while waits() && began.elapsed() < LOOKS {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().expect("nobody panics with this lock")
    }
}

impl Observer for Served {
    fn started(&mut self, options: &Options, found: &Found, begun: &Begun) {
        let mut shown = self.lock();
        shown.begun = Some(begun.clone());
        shown.intervals.clear();
        shown.view = View::of(options, found);
        shown.every_ms = options.interval_secs * 1000;
    }

    fn interval(&mut self, interval: &Interval, _confirm: &Histogram<u64>, _end_to_end: &Histogram<u64>) {
        let mut shown = self.lock();
        shown.view.push(interval);
        shown.intervals.push(interval.clone());
    }

    fn finished(&mut self, run: &Recorded) {
        let mut shown = self.lock();
        shown.begun = None;
        shown.book.runs.push(run.clone());
    }
}

impl Shown {
    /// The page as it is now.
    fn html(&self) -> String {
        let mut book = self.book.clone();
        if let Some(begun) = &self.begun {
            let how = Unended::UnderWay(self.view.told());
            let mut recorded = Recorded::unended(&begun.label, Some(begun), self.intervals.clone(), how);
            recorded.run.backlog_grew = self.view.is_behind();
            book.runs.push(recorded);
        }
        let page = match book.runs.is_empty() {
            true => page::page(&self.title, "<p class=\"first\">The load has not begun yet.</p>\n"),
            false => report::html(&self.title, &book, ""),
        };
        if self.is_over { page } else { page::live(&page, self.every_ms) }
    }
}

/// Answers one request; who asks for anything but the page gets nothing of it.
fn answer(mut stream: TcpStream, shown: &Mutex<Shown>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ASK_PATIENCE))?;
    stream.set_write_timeout(Some(ASK_PATIENCE))?;
    let (mut asked, mut chunk) = (Vec::new(), [0; 1024]);
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") && asked.len() < REQUEST_BYTES_MAX {
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            count => asked.extend_from_slice(&chunk[..count]),
        }
    }
    let is_page = asked.starts_with(b"GET / ");
    let (status, body, is_last) = match is_page {
        true => {
            let mut shown = shown.lock().expect("nobody panics with this lock");
            shown.asked = Some(Instant::now());
            ("200 OK", shown.html(), shown.is_over)
        }
        false => ("404 Not Found", String::new(), false),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    if is_last {
        shown.lock().expect("nobody panics with this lock").has_last = true;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::options::run_of;

    fn get(place: &str, what: &str) -> String {
        let mut stream = TcpStream::connect(place).unwrap();
        stream.write_all(format!("GET {what} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_run_is_on_its_page_while_it_goes_on_and_whoever_looks_gets_its_end() {
        let port = testbed::node::free_port().unwrap();
        let mut served = Served::at(&port.to_string(), "Leveret under load").unwrap();
        let place = format!("127.0.0.1:{port}");
        assert!(get(&place, "/").contains("The load has not begun yet."));
        assert!(get(&place, "/other").starts_with("HTTP/1.1 404"));
        let words = ["--rate", "4000", "--time", "60"].map(str::to_owned);
        let begun = Begun { broker: "Leveret 0.1 (process leveret)".into(), receives: true, ..Begun::default() };
        let found = Found { identity: crate::client::Identity::default(), backlog: 0, tls: None };
        served.started(&run_of(&words).unwrap(), &found, &begun);
        for second in 1..=8u32 {
            let interval = Interval {
                at_s: f64::from(second),
                phase: "load".into(),
                target_per_s: Some(4000.0),
                published_per_s: 4000.0,
                received_per_s: 508.0,
                backlog: Some(3492 * u64::from(second)),
                ..Interval::default()
            };
            let none = crate::latency::histogram();
            served.interval(&interval, &none, &none);
        }
        let page = get(&place, "/");
        for told in [
            "<section class=\"answer bad\"><p class=\"first\">Leveret 0.1 is under way: 8 of 60 s, 52 s left; 4,000 of 4,000 msg/s sent, \
             508 received; backlog 27,936 messages, grows by 3,490 a second, consumers fall behind.</p>",
            "<p class=\"figure bad\"><b>508 msg/s</b>",
            "<b>Backlog: sent and not received</b>",
            "<meta name=\"live\" content=\"1000\">",
        ] {
            assert!(page.contains(told), "{told} is not in\n{page}");
        }
        // The end, which whoever looked gets before the program is gone.
        served.finished(&Recorded::default());
        let looks = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            get(&place, "/")
        });
        let shown = Arc::clone(&served.shown);
        served.end();
        assert!(shown.lock().unwrap().has_last, "it waits for who looked");
        let last = looks.join().unwrap();
        assert!(last.contains("</html>") && !last.contains("name=\"live\""), "nobody is to ask for more: {last}");
    }
}
