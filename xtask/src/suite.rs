//! The tests: which there are, what they need, and one line at the end that sums them up.
//!
//! Invariant: the closing line counts every test that ran, and says `ok` only when all of them
//! passed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::lanes::Lane;
use crate::shell;

/// Client libraries of the Python tests, from PyPI. Versions are fixed so that a run today and one
/// in a year agree.
const PYTHON_PACKAGES: &[&str] = &[
    "pytest==8.4.2",
    "pytest-timeout==2.4.0",
    "pika==1.3.2",
    "kombu==5.7.0",
    "amqp==5.4.2",
    "trustme==1.2.1",
    "prometheus-client==0.23.1",
];

/// Client libraries whose own tests are run, by the names that `tests/python/suite.py` has for
/// them.
const PYTHON_SUITES: &[&str] = &["kombu", "py-amqp"];

/// Lines that are repeated of what failed tests said.
const SAID_LINES_MAX: usize = 60;

#[derive(Default)]
struct Totals {
    passed: usize,
    failed: usize,
    ignored: usize,
    broken: Vec<String>,
    /// What tests that failed said: all that is needed where only the end of a log is kept.
    said: Vec<String>,
    /// Whether a test that failed is speaking.
    is_said: bool,
    /// What is to be printed once other programs are done printing.
    held: Option<Vec<String>>,
}

/// Unit tests, properties, scripts and simulation: everything that needs no broker of its own.
pub(crate) fn quick() -> Result<(), String> {
    let started = Instant::now();
    let mut totals = Totals::default();
    crates(&mut totals)?;
    totals.close(started)
}

/// Everything.
pub(crate) fn all() -> Result<(), String> {
    let started = Instant::now();
    let mut totals = Totals::default();
    // Everything is built in one call, the binary before the first test runs: asked for by themselves,
    // the binary and the black-box tests would want other features of shared dependencies, and those and
    // most of our own crates would be built again.
    let binary = target_folder()?.join("debug/leveret");
    let environment = [("LEVERET_BIN", binary.to_string_lossy().into_owned())];
    shell::cargo(&["test", "--locked", "--no-run", "--workspace"], &[])?;
    let mut computing = Lane::Computing.command()?;
    let beside = std::thread::spawn(move || -> Result<Totals, String> {
        let mut totals = Totals { held: Some(Vec::new()), ..Totals::default() };
        totals.run("the tests that compute", &mut computing)?;
        Ok(totals)
    });
    totals.run("the crates' and the black-box tests", Lane::Waiting.command()?.envs(environment.clone()))?;
    match python() {
        Ok(python) => {
            let arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120", "tests/python"];
            totals.run("the Python clients", Command::new(&python).args(arguments).envs(environment.clone()))?;
            for suite in PYTHON_SUITES {
                let arguments = ["tests/python/suite.py", suite];
                let name = format!("{suite}'s own tests");
                totals.run(&name, Command::new(&python).args(arguments).envs(environment.clone()))?;
            }
            // Once more with three nodes, where each connection comes to another one.
            let mut three = Command::new(&python);
            three.args(["tests/python/suite.py", "py-amqp"]).envs(environment.clone()).env("LEVERET_NODES", "3");
            totals.run("py-amqp's own tests on three nodes", &mut three)?;
        }
        Err(why) => totals.broken.push(format!("the Python clients: {why}")),
    }
    totals.join(beside.join().map_err(|_| "the lane of tests that compute ended")??);
    // Who judges a torture has to find what is wrong in one.
    match shell::output("go", &["version"]) {
        Some(_) => {
            totals.run("the torture's judge", Command::new("go").args(["test", "-C", "tests/torture", "./check"]))?
        }
        None => println!("skipped: the torture's judge is written in Go, and there is none here"),
    }
    totals.close(started)
}

/// The matrices: the black-box tests `NAME_matrix`, a file or a folder, each asked for everything
/// and with its table printed. Those that were named, or all there are. They run against our broker
/// or, as `tests/src/broker.rs` says, another one.
pub(crate) fn matrices(named: Vec<String>) -> Result<(), String> {
    let started = Instant::now();
    let folder = shell::root().join("tests/tests");
    let files = std::fs::read_dir(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let mut there: Vec<String> = names
        .filter_map(|name| Some(name.strip_suffix(".rs").unwrap_or(&name).strip_suffix("_matrix")?.to_owned()))
        .collect();
    there.sort_unstable();
    if let Some(unknown) = named.iter().find(|name| !there.contains(name)) {
        return Err(format!("there is no matrix {unknown:?}, but these: {}", there.join(", ")));
    }
    shell::cargo(&["build", "--locked", "--workspace", "--bin", "leveret"], &[])?;
    let mut totals = Totals::default();
    for name in if named.is_empty() { there } else { named } {
        let test = format!("{name}_matrix");
        let arguments =
            ["test", "--locked", "--workspace", "--test", &test, "--", "--nocapture", "--test-threads", "1"];
        totals.run(&format!("the matrix {name}"), Command::new("cargo").args(arguments).env("MATRIX", "whole"))?;
    }
    totals.close(started)
}

fn crates(totals: &mut Totals) -> Result<(), String> {
    let arguments = ["test", "--locked", "--no-fail-fast", "--workspace", "--exclude", "clients"];
    totals.run("the crates' tests", Command::new("cargo").args(arguments))
}

impl Totals {
    /// Runs a test program, shows what it prints and counts its results.
    fn run(&mut self, name: &str, command: &mut Command) -> Result<(), String> {
        self.print(format!("$ {}", format!("{command:?}").replace('"', "")));
        let mut child = command
            .current_dir(shell::root())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{name}: {why}"))?;
        let out = child.stdout.take().expect("it is piped");
        for line in BufReader::new(out).lines() {
            let line = line.map_err(|why| format!("{name}: {why}"))?;
            self.count(&line);
            self.listen(&line);
            self.print(line);
        }
        let status = child.wait().map_err(|why| format!("{name}: {why}"))?;
        if !status.success() {
            self.broken.push(format!("{name}: {status}"));
        }
        Ok(())
    }

    fn print(&mut self, line: String) {
        match &mut self.held {
            Some(held) => held.push(line),
            None => println!("{line}"),
        }
    }

    /// Takes in what ran beside, and prints what it held back.
    fn join(&mut self, beside: Totals) {
        beside.held.into_iter().flatten().for_each(|line| self.print(line));
        self.passed += beside.passed;
        self.failed += beside.failed;
        self.ignored += beside.ignored;
        self.broken.extend(beside.broken);
        self.said.extend(beside.said);
    }

    /// Keeps where and why a test failed, without the stack: of cargo's `---- name stdout ----` on to where `stack backtrace:` or the
    /// list of names begins, and the lines `FAILED file::name - why` of pytest.
    fn listen(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.is_said = true;
        } else if line == "failures:" || line == "stack backtrace:" {
            self.is_said = false;
        }
        let is_kept = self.is_said && !line.is_empty() || line.starts_with("FAILED ");
        if is_kept && self.said.len() < SAID_LINES_MAX {
            self.said.push(line.to_owned());
        }
    }

    /// Counts a line like `test result: ok. 3 passed; 0 failed; ...` of cargo, or
    /// `3 passed, 1 failed in 2.1s` of pytest.
    fn count(&mut self, line: &str) {
        let cargo = line.strip_prefix("test result: ");
        // Pytest's line is short, and what a test printed may have such words anywhere.
        let is_short = line.len() < 120 && line.starts_with(|first: char| first == '=' || first.is_ascii_digit());
        let pytest = is_short && line.contains(" in ") && (line.contains(" passed") || line.contains(" failed"));
        if cargo.is_none() && !pytest {
            return;
        }
        let words: Vec<&str> =
            cargo.unwrap_or(line).split([' ', ';', ',', '.']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[0].parse::<usize>() else { continue };
            match pair[1] {
                "passed" => self.passed += count,
                "failed" | "errors" | "error" => self.failed += count,
                "ignored" | "skipped" => self.ignored += count,
                _ => {}
            }
        }
    }

    fn close(self, started: Instant) -> Result<(), String> {
        let Totals { passed, failed, ignored, broken, said, .. } = self;
        let verdict = if failed == 0 && broken.is_empty() { "ok" } else { "FAILED" };
        let seconds = started.elapsed().as_secs();
        let line = format!(
            "test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; finished in {seconds} s"
        );
        if verdict == "ok" {
            println!("{line}");
            return Ok(());
        }
        Err([broken, said, vec![line]].concat().join("\n"))
    }
}

fn target_folder() -> Result<PathBuf, String> {
    let metadata = shell::output("cargo", &["metadata", "--format-version", "1", "--no-deps", "--locked"]);
    let metadata = metadata.ok_or("cargo metadata failed")?;
    // One string out of a large document: not worth a JSON parser among the dependencies.
    let rest = metadata.split_once(r#""target_directory":""#).ok_or("cargo metadata names no target folder")?.1;
    Ok(rest.split('"').next().unwrap_or_default().into())
}

/// A Python with the client libraries, in a virtual environment under the target folder.
fn python() -> Result<PathBuf, String> {
    let folder = target_folder()?.join("python");
    let python = folder.join("bin/python");
    let stamp = folder.join("installed");
    let wanted = PYTHON_PACKAGES.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let folder = folder.to_string_lossy().into_owned();
    if shell::run("python3", &["-m", "venv", "--clear", &folder]).is_err() {
        // Debian has Python without venv, or none at all.
        shell::run("apt-get", &["install", "-y", "-q", "--no-install-recommends", "python3", "python3-venv"])?;
        shell::run("python3", &["-m", "venv", "--clear", &folder])?;
    }
    let arguments = [&["-m", "pip", "install", "-q", "--disable-pip-version-check"], PYTHON_PACKAGES].concat();
    shell::run(&python.to_string_lossy(), &arguments)?;
    std::fs::write(&stamp, wanted).map_err(|why| format!("{}: {why}", stamp.display()))?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_said_is_repeated_before_the_closing_line() {
        let mut totals = Totals { failed: 1, ..Totals::default() };
        let lines = "\
running 1 test
test it_holds ... FAILED

failures:

---- it_holds stdout ----

thread 'it_holds' panicked at src/lib.rs:7:9:
76 of 76
stack backtrace:
   0: somewhere

failures:
    it_holds

FAILED tests/a.py::test_b - AssertionError: why
";
        lines.lines().for_each(|line| totals.listen(line));
        let said = totals.close(Instant::now()).expect_err("one failed");
        let expected = "---- it_holds stdout ----\nthread 'it_holds' panicked at src/lib.rs:7:9:\n76 of 76\n\
                        FAILED tests/a.py::test_b - AssertionError: why\ntest result: FAILED. 0 passed; 1 failed";
        assert!(said.starts_with(expected), "{said}");
    }

    #[test]
    fn results_of_both_runners_are_counted() {
        let mut totals = Totals::default();
        totals.count("test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.10s");
        totals.count("==== 1 failed, 3 passed, 2 skipped in 4.10s ====");
        totals.count("running 12 tests");
        totals.count("test it_has_9_passed ... ok");
        totals.count(" right: \"69 refused in order, 70 failed\"");
        assert_eq!((totals.passed, totals.failed, totals.ignored), (15, 2, 4));
        assert!(totals.close(Instant::now()).is_err());
    }
}
