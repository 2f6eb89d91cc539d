//! The binary as a person or a script meets it: help, version, errors, exit codes.
//!
//! Invariant: help is compared as a whole, so that nobody changes what people read without seeing
//! it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the binary with nothing of this process's environment.
fn leveret(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    command.args(words).env_clear().env("COLUMNS", "100");
    command
}

fn run(words: &[&str]) -> Output {
    leveret(words).output().unwrap()
}

/// Standard error of a run that ends with exit code 2 and says nothing else.
fn usage_error(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn assert_golden(name: &str, words: &[&str]) {
    let output = run(words);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let printed = String::from_utf8(output.stdout).unwrap();
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(printed, kept, "renew {name} with: RENEW=1 cargo test -p leveret --test command_line");
}

#[test]
fn help_is_what_the_golden_files_say() {
    assert_golden("help.txt", &["--help"]);
    assert_golden("help-server.txt", &["server", "--help"]);
    assert_golden("help-server-short.txt", &["server", "-h"]);
}

#[test]
fn every_setting_stands_in_the_help_of_the_server_with_its_variable() {
    let help = String::from_utf8(run(&["server", "--help"]).stdout).unwrap();
    for setting in &server::config::SETTINGS {
        assert!(help.contains(&format!("      --{} <", setting.flag_name())), "{}", setting.name);
        assert!(help.contains(&format!("[env: {}]", server::config::variable_name(setting))), "{}", setting.name);
    }
}

#[test]
fn the_version_names_the_package() {
    for words in [&["--version"][..], &["-V"], &["server", "--version"]] {
        let output = run(words);
        let text = String::from_utf8(output.stdout).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert!(text.contains(version) && text.starts_with("leveret") && text.lines().count() == 1, "{text}");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn a_wrong_command_line_is_one_line_that_says_what_to_do() {
    for (words, text) in [
        (&[][..], "say what to do: `leveret server` runs a broker, `leveret --help` tells more"),
        (&["srever"], "unknown command srever; did you mean server?"),
        (&["dance"], "unknown command dance; leveret --help lists all"),
        (&["--data-dir", "x"], "a command goes before its flags: `leveret server --data-dir ...` runs a broker"),
        (&["--config=x", "server"], "a command goes before its flags: `leveret server --config ...` runs a broker"),
        (&["--datadir", "x"], "a command goes before its flags: `leveret server --data-dir ...` runs a broker"),
        (&["--colour"], "unknown flag --colour; --help lists all"),
        // What is a flag of another command is none that was meant here.
        (&["inspect", "--data-dir", "x"], "unknown flag --data-dir; --help lists all"),
        (&["cluster", "join", "--datadir", "x"], "unknown flag --datadir; did you mean --data-dir?"),
        (&["server", "--datadir", "x"], "unknown flag --datadir; did you mean --data-dir?"),
        (&["server", "--wal-file-byte=1"], "unknown flag --wal-file-byte; did you mean --wal-file-bytes?"),
        (&["server", "--port", "5672"], "unknown flag --port; did you mean --amqp?"),
        (&["server", "--confg", "x"], "unknown flag --confg; did you mean --config?"),
        (&["server", "--colour"], "unknown flag --colour; --help lists all"),
        (&["server", "-x"], "-x is not expected here; --help tells more"),
        (&["server", "now"], "now is not expected here; --help tells more"),
        (&["server", "a\nb"], "a\\nb is not expected here; --help tells more"),
        (&["server", "--partitions"], "--partitions needs a value"),
        (&["server", "--config"], "--config needs a value"),
        (&["sizing", "report", "--study", "results.jsonl"], "--study and [RESULTS] contradict each other; give one"),
        (&["server", "--partitions", "1", "--partitions", "2"], "--partitions was given twice; give it once"),
        (
            &["server", "--amqp", "x", "--amqp", "y"],
            "--amqp = x,y is not allowed; it must be at most 16 different addresses of the form 0.0.0.0:5672 or [::]:5672, or \"none\"",
        ),
        (&["server", "--partitions=0"], "--partitions = 0 is not allowed; it must be a whole number from 1 to 512"),
        (
            &["server", "--heartbeat-s", "-1"],
            "--heartbeat-s = -1 is not allowed; it must be a number of seconds from 0 to 65535",
        ),
        (
            &["server", "--config", "/nowhere/leveret.toml"],
            "cannot read the configuration file /nowhere/leveret.toml: there is no such file; give a readable file with --config",
        ),
    ] {
        assert_eq!(usage_error(&mut leveret(words)), format!("leveret: {text}\n"), "{words:?}");
    }
}

#[test]
fn the_environment_is_read_and_every_error_has_its_line() {
    let mut command = leveret(&["server", "--heartbeat-s=x"]);
    let text = usage_error(command.env("LEVERET_PARTITION", "3").env("LEVERET_LOG", "loud"));
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("leveret: --heartbeat-s = x is not allowed"), "{text}");
    assert!(lines[1].starts_with("leveret: LEVERET_LOG = loud is not allowed"), "{text}");
    assert_eq!(lines[2], "leveret: environment: unknown setting LEVERET_PARTITION; did you mean LEVERET_PARTITIONS?");
}

#[test]
fn a_configuration_that_is_wrong_touches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = leveret(&["server", "--data-dir", "data", "--partitions", "0"]);
    usage_error(command.current_dir(folder.path()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = leveret(&["server", "--help"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}

/// Cargo gives what a build script sets to the programs that it runs, as in
/// `cargo run -p leveret -- server`.
#[test]
fn cargo_sets_no_variable_that_the_server_would_take_for_a_setting() {
    let ours: Vec<String> =
        std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("LEVERET_")).collect();
    let strange: Vec<_> = ours.iter().filter(|name| *name != "LEVERET_BIN").collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn a_folder_goes_on_alone_only_for_the_user_that_its_broker_runs_as() {
    let folder = std::env::temp_dir().join(format!("leveret-recover-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("identity"), "not one").unwrap();
    let words = ["cluster", "recover", folder.to_str().unwrap()];
    let told = |words: &[&str]| {
        let output = run(words);
        assert_ne!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let meant = [&words[..], &["--yes"]].concat();
    assert!(!told(&meant).contains("belongs to user"), "it is this one's");
    // Only root can give it to somebody else.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder.join("identity"), Some(65534), None).unwrap();
        let why = told(&meant);
        assert!(why.contains("belongs to user 65534, and you are user 0") && why.contains("sudo -u '#65534'"), "{why}");
        assert!(!told(&words).contains("belongs to user"), "looking changes nothing");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(told(&meant).contains("is not the data folder of a node"));
    // What cannot be looked at is not called missing.
    assert!(told(&["cluster", "recover", "/dev/null"]).contains("cannot read /dev/null"));
}
