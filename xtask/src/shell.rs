//! Running other programs: what is run is shown first, and what fails is named.
//!
//! Invariant: every command runs in the project's root, whatever folder the chore was called from.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The project's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

/// Runs cargo with more environment.
pub(crate) fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    println!("$ cargo {}", arguments.join(" "));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).envs(environment.iter().copied());
    succeed(&mut command)
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    println!("$ {program} {}", arguments.join(" "));
    succeed(Command::new(program).args(arguments))
}

/// What a program prints; `None` when it is missing or fails.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let out = Command::new(program).args(arguments).current_dir(root()).stderr(Stdio::null()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.current_dir(root()).status().map_err(|why| format!("{name}: {why}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}")) }
}
