//! Tells the binary which commit it was built from, if that can be known.
//!
//! Invariant: this never fails and runs no program: a tarball, a shallow copy or a container
//! without git builds all the same, and the version is then printed without a commit.

use std::fs;
use std::path::{Path, PathBuf};

/// Where builds without a `.git` folder, as in a container image, may say what they build.
const COMMIT_VARIABLE: &str = "GIT_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMIT_VARIABLE}");
    let commit = std::env::var(COMMIT_VARIABLE).ok().or_else(commit_of_workspace);
    if let Some(commit) = commit.filter(|commit| commit.len() >= 10 && commit.bytes().all(|b| b.is_ascii_hexdigit())) {
        // Cargo passes it on to what it runs, and LEVERET_* are settings: of that name it would
        // refuse `cargo run`.
        println!("cargo::rustc-env=BUILT_FROM={}", &commit[..10]);
    }
}

fn commit_of_workspace() -> Option<String> {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    let git = git_folder(&root.join(".git"))?;
    // A linked work tree keeps its own HEAD; branches are with the others.
    let shared = fs::read_to_string(git.join("commondir")).map_or_else(|_| git.clone(), |path| git.join(path.trim()));
    let head = read_watched(&git.join("HEAD"))?;
    let Some(branch) = head.strip_prefix("ref: ") else { return Some(head) };
    read_watched(&shared.join(branch)).or_else(|| {
        let packed = read_watched(&shared.join("packed-refs"))?;
        packed.lines().find_map(|line| line.strip_suffix(branch)?.split_whitespace().next().map(str::to_owned))
    })
}

/// `.git` is a folder, or a file that says where the folder is.
fn git_folder(dot_git: &Path) -> Option<PathBuf> {
    if dot_git.is_dir() {
        return Some(dot_git.to_owned());
    }
    let pointer = fs::read_to_string(dot_git).ok()?;
    Some(dot_git.parent()?.join(pointer.strip_prefix("gitdir:")?.trim()))
}

/// Reads a file and asks for another build when it changes. A missing file is not watched: cargo
/// would build every time.
fn read_watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}
