//! Answers recorded from RabbitMQ 3.10.8 and compared line by line: `case => answer`.
//!
//! Invariant: a golden file holds what RabbitMQ said and nothing else. Where Leveret says something
//! else on purpose, the test names the case and the reason; a reason that no case needs any more
//! fails the test too.
//!
//! To record anew:
//! `AMQP_URI=… RECORD=tests/tests/wire/goldens cargo test -p clients --test wire golden`.

use clients::broker::is_foreign;
use clients::{Broker, Client, Closed, Scope};

/// After so many closed channels a client takes a new connection: numbers of channels end at 2047.
const CLOSES_MAX: usize = 500;

/// Asks one broker many things, each on an open channel.
pub(crate) struct Asker {
    client: Client,
    channel: u16,
    closes: usize,
}

impl Asker {
    pub(crate) fn new() -> Self {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        Asker { client, channel, closes: 0 }
    }

    /// The broker's answer in words: `ok`, or what was closed with which code and text for which
    /// method. `names` are left out of the text, as they are others in each run.
    pub(crate) fn ask(
        &mut self,
        names: &[(&str, &str)],
        ask: impl FnOnce(&mut Client, u16) -> Result<(), Closed>,
    ) -> String {
        // The client panics when nothing comes for twenty seconds, which is an answer too, if not
        // one to be proud of.
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(&mut self.client, self.channel)));
        match asked {
            Err(_) => {
                *self = Asker::new();
                "nothing".to_owned()
            }
            Ok(Ok(())) => "ok".to_owned(),
            Ok(Err(closed)) => {
                self.closes += 1;
                if closed.scope == Scope::Channel && self.closes < CLOSES_MAX {
                    self.channel = self.client.channel();
                } else {
                    *self = Asker::new();
                }
                words(&closed, names)
            }
        }
    }
}

/// A close in words, without `names`.
pub(crate) fn words(closed: &Closed, names: &[(&str, &str)]) -> String {
    let mut text = closed.text.clone();
    for (name, stands_for) in names {
        text = text.replace(name, stands_for);
    }
    let scope = match closed.scope {
        Scope::Channel => "channel",
        Scope::Connection => "connection",
        Scope::Socket => "socket",
    };
    format!("{scope} {} {:?} {}", closed.code, closed.method, text.replace('\n', "\\n"))
}

/// One way in which Leveret differs, and why.
pub(crate) struct Difference {
    /// Whether it is about this case, and the two answers: RabbitMQ's, then ours.
    pub(crate) is_it: fn(&str, &str, &str) -> bool,
    /// Why, for who reads the table in docs/behaviour.md.
    pub(crate) why: &'static str,
    /// Whether it is here to stay: then some case has to need it.
    pub(crate) lasting: bool,
}

/// Compares `answers` with the golden file, or writes it where the broker is RabbitMQ and `RECORD`
/// says where to.
pub(crate) fn compare(file: &str, golden: &str, answers: &[(String, String)], differences: &[Difference]) {
    if is_foreign() {
        if let Ok(folder) = std::env::var("RECORD") {
            let lines: String = answers.iter().map(|(case, answer)| format!("{case} => {answer}\n")).collect();
            std::fs::write(format!("{folder}/{file}"), lines).unwrap();
        }
        return;
    }
    let recorded: std::collections::BTreeMap<&str, &str> =
        golden.lines().map(|line| line.split_once(" => ").expect("a line has an arrow")).collect();
    assert_eq!(recorded.len(), answers.len(), "the golden file has other cases: record it anew");
    let mut used = vec![false; differences.len()];
    let mut wrong = Vec::new();
    for (case, ours) in answers {
        let theirs = *recorded.get(case.as_str()).unwrap_or_else(|| panic!("{case} is not in {file}"));
        if theirs == ours {
            continue;
        }
        match differences.iter().position(|difference| (difference.is_it)(case, theirs, ours)) {
            Some(at) => used[at] = true,
            None => wrong.push(format!("{case}\n  RabbitMQ: {theirs}\n  Leveret:  {ours}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {} answers differ:\n{}", wrong.len(), answers.len(), wrong.join("\n"));
    let unused: Vec<&str> =
        differences.iter().zip(used).filter(|(d, used)| d.lasting && !used).map(|(d, _)| d.why).collect();
    assert!(unused.is_empty(), "no case differs any more for these reasons: {unused:#?}");
}
