//! What the nodes of a cluster know and nobody else, and how it changes.
//!
//! Invariant: a secret is shown nowhere; who has none of those that count is no node.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// A secret has at least so many bytes.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 4096;
/// So much white space may stand behind it.
const SPACE_BYTES_MAX: u64 = 64;
/// The settings that name the files.
const NOW: &str = "cluster_secret_file";
const BEFORE: &str = "cluster_secret_file_before";

/// What all nodes of a cluster know and nobody else.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// These bytes.
    #[cfg(test)]
    pub(super) fn of(bytes: &[u8]) -> Secret {
        Secret(bytes.to_vec())
    }

    /// Reads it from the file that `setting` names, without the end of its line, and says where others than
    /// this user may read or change the file. Errors: one line that says what to do.
    ///
    /// A pipe or a device would be waited for, or be read, without an end: only a regular file is
    /// taken.
    fn read(setting: &str, path: &Path) -> Result<(Secret, Option<String>), String> {
        let file = path.display();
        let help =
            format!("make one with `(umask 077; head -c 32 /dev/urandom | base64 > {file})` and copy it to all nodes");
        let wrong = |error: io::Error| format!("{setting} {file}: {error}");
        // Without waiting: to open a pipe waits for somebody who writes.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(path).map_err(wrong)?;
        let facts = opened.metadata().map_err(wrong)?;
        if !facts.is_file() {
            return Err(format!("{setting} {file} is no regular file: {help}"));
        }
        let mut bytes = Vec::new();
        opened.take(SECRET_BYTES_MAX as u64 + SPACE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(wrong)?;
        let secret = bytes.trim_ascii_end();
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            let count = match secret.len() {
                short @ ..SECRET_BYTES_MIN => format!("{short} bytes"),
                _ => format!("more than {SECRET_BYTES_MAX} bytes"),
            };
            return Err(format!(
                "{setting} {file} has {count}: a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}; {help}"
            ));
        }
        let open_to = open_to(&facts, rustix::process::geteuid().as_raw());
        let warning = open_to.map(|who| {
            let mode = facts.mode() & 0o777;
            format!(
                "{setting} {file} has mode {mode:o} and belongs to user {}: {who}, and who has the secret is \
                 believed to be a node; let only the broker's user have it: `chown` it to that user, and `chmod 600 {file}`",
                facts.uid()
            )
        });
        Ok((Secret(secret.to_vec()), warning))
    }

    /// A number that only holders of the secret can make of these words.
    pub(super) fn number_of(&self, words: &[&[u8]]) -> [u8; 32] {
        self.mac(words).finalize().into_bytes().into()
    }

    pub(super) fn mac(&self, words: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        for word in words {
            mac.update(&(word.len() as u64).to_le_bytes());
            mac.update(word);
        }
        mac
    }
}

/// The files of a cluster's secrets.
#[derive(Clone, Debug)]
pub(crate) struct SecretFiles {
    /// That of the cluster.
    pub(crate) now: PathBuf,
    /// That of the secret which it had before, while it changes. An empty one stands for none.
    pub(crate) before: Option<PathBuf>,
}

/// The secrets that count on this node.
#[derive(Debug)]
pub(super) struct Secrets {
    files: SecretFiles,
    /// The cluster's first, and behind it the one that it had before.
    used: RwLock<Arc<[Secret]>>,
}

impl Secrets {
    /// Reads the files, and warns where others may read or change them. Errors: one line that says what to do.
    pub(super) fn load(files: SecretFiles) -> Result<Secrets, String> {
        let used = RwLock::new(read_all(&files)?);
        Ok(Secrets { files, used })
    }

    /// Those of whom this node believes: one, or two.
    pub(super) fn all(&self) -> Arc<[Secret]> {
        self.used.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// That of the cluster.
    pub(super) fn now(&self) -> Secret {
        self.all()[0].clone()
    }

    /// What whoever calls another node shows it, which hears one at a time: the cluster's secret first, the one
    /// before where the call before came to nothing, and so on. Says, too, whether it is the last one to try.
    pub(super) fn to_show(&self, failures: usize) -> (Secret, bool) {
        let all = self.all();
        let at = failures % all.len();
        (all[at].clone(), at + 1 == all.len())
    }

    /// Reads the files again, for links to come. What is wrong is told and changes nothing.
    pub(super) fn reload_and_tell(&self) {
        match read_all(&self.files) {
            Ok(used) => {
                let count = used.len();
                let before = std::mem::replace(&mut *self.used.write().unwrap_or_else(PoisonError::into_inner), used);
                if *before != *self.all() {
                    tracing::info!(
                        count,
                        "the secret of the cluster was read again: links to come are made with what is there now"
                    );
                }
            }
            Err(error) => {
                tracing::error!("the secret of the cluster not changed, the one before stays in use: {error}")
            }
        }
    }
}

/// Whether a file has nothing in it but white space.
fn is_blank(path: &Path) -> bool {
    let is_short = std::fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.len() <= SPACE_BYTES_MAX);
    is_short && std::fs::read(path).is_ok_and(|bytes| bytes.trim_ascii().is_empty())
}

fn read_all(files: &SecretFiles) -> Result<Arc<[Secret]>, String> {
    let mut all = Vec::new();
    let before = files.before.iter().map(|path| (BEFORE, path));
    for (setting, path) in [(NOW, &files.now)].into_iter().chain(before) {
        if setting == BEFORE && is_blank(path) {
            continue;
        }
        let (secret, open) = Secret::read(setting, path).map_err(|error| match setting {
            BEFORE => format!("{error}; where there was none before, leave the file there and empty"),
            _ => error,
        })?;
        if let Some(open) = open {
            tracing::warn!("{open}");
        }
        match all.contains(&secret) {
            false => all.push(secret),
            true => {
                tracing::info!("cluster_secret_file_before has the secret of cluster_secret_file: only that one counts")
            }
        }
    }
    Ok(all.into())
}

/// Who besides this user and root may read or change a file, if somebody may. Where root lets a
/// group read a file of its own it is how the broker gets it.
fn open_to(facts: &Metadata, own: u32) -> Option<&'static str> {
    let (mode, owner) = (facts.mode(), facts.uid());
    let groups = if owner == 0 { 0o020 } else { 0o060 };
    if mode & 0o007 != 0 {
        Some("every user of the machine may read or change it")
    } else if mode & groups != 0 {
        Some("its group may read or change it")
    } else if owner != 0 && owner != own {
        Some("that user may read and change it")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A file of this mode, and what a start says of it.
    fn read_with_mode(bytes: &[u8], mode: u32) -> Result<(Secret, Option<String>), String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        Secret::read(NOW, &path)
    }

    #[test]
    fn a_secret_is_long_enough_and_never_shown() {
        assert!(read_with_mode(b"short\n", 0o600).expect_err("too short").contains("has 5 bytes"));
        let (secret, _) = read_with_mode(b"long enough for a secret\n", 0o600).expect("it is long enough");
        assert_eq!(secret.0, b"long enough for a secret");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        let longest = [&[b'a'; SECRET_BYTES_MAX][..], b"\r\n"].concat();
        assert_eq!(read_with_mode(&longest, 0o600).expect("it is short enough").0.0.len(), SECRET_BYTES_MAX);
        for too_long in [SECRET_BYTES_MAX + 1, 1 << 20] {
            let wrong = read_with_mode(&vec![b'a'; too_long], 0o600).expect_err("too long");
            assert!(wrong.contains("has more than 4096 bytes"), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_file_is_neither_read_nor_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, rustix::fs::Mode::RWXU, 0).expect("made");
        for path in [&pipe, Path::new("/dev/zero"), folder.path()] {
            let wrong = Secret::read(NOW, path).expect_err("it is no file");
            assert!(wrong.contains("is no regular file: make one with"), "{wrong}");
        }
    }

    #[test]
    fn a_secret_that_others_may_read_or_change_is_told() {
        let told = |mode| read_with_mode(b"long enough for a secret\n", mode).expect("it is long enough").1;
        for private in [0o600, 0o400, 0o700] {
            assert_eq!(told(private), None, "{private:o}");
        }
        for open in [0o644, 0o666, 0o602, 0o620] {
            let warning = told(open).unwrap_or_else(|| panic!("{open:o} is told"));
            assert!(warning.contains(&format!("mode {open:o}")) && warning.contains("`chmod 600 "), "{warning}");
        }
        // Whose it is decides about a group that may read it, and about the rest.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("set");
        let facts = std::fs::metadata(&path).expect("it is there");
        assert_eq!(open_to(&facts, facts.uid()).is_none(), facts.uid() == 0);
        assert_eq!(open_to(&facts, facts.uid() + 1).is_none(), facts.uid() == 0);
    }
    #[test]
    fn while_the_secret_changes_both_count_and_are_shown_in_turn() {
        let folder = tempfile::tempdir().expect("a folder");
        let (now, before) = (folder.path().join("now"), folder.path().join("before"));
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).expect("written");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("set");
        };
        write(&now, "the secret from now on\n");
        let files = SecretFiles { now: now.clone(), before: Some(before.clone()) };
        let missing = Secrets::load(files.clone()).expect_err("a file that is named is there");
        assert!(missing.starts_with("cluster_secret_file_before "), "{missing}");
        write(&before, " \r\n");
        let secrets = Secrets::load(files).expect("an empty one stands for none");
        let (new, old) = (Secret::of(b"the secret from now on"), Secret::of(b"the secret before it"));
        assert_eq!(secrets.all().as_ref(), std::slice::from_ref(&new));
        assert_eq!((secrets.to_show(0), secrets.to_show(1)), ((new.clone(), true), (new.clone(), true)));
        write(&before, "the secret before it\n");
        secrets.reload_and_tell();
        assert_eq!(*secrets.all(), [new.clone(), old.clone()]);
        let shown = [0, 1, 2].map(|failures| secrets.to_show(failures));
        assert_eq!(shown, [(new.clone(), false), (old.clone(), true), (new.clone(), false)]);
        // What is wrong changes nothing, and the same one twice is one.
        write(&now, "short");
        secrets.reload_and_tell();
        assert_eq!(*secrets.all(), [new, old.clone()]);
        write(&now, "the secret before it");
        secrets.reload_and_tell();
        assert_eq!(*secrets.all(), [old]);
    }
}
