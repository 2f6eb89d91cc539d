//! From the settings `data_dir` and `node_name` to an open data folder.
//!
//! Invariant: a folder keeps the name of its node. A name that somebody chose must be that name; a
//! default one gives way to it, because host names change where folders move with their containers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};
use storage::data_folder::{held_by_another, refuse_open_to_all};
use storage::{DataFolder, FolderIdentity, RealDisk, StorageError};

use super::settings::{Config, Key};

/// Opens the node's data folder, or founds it in an empty or missing one, and takes its lock.
/// `cluster`: the cluster that it founds with others, and whose folder it is.
///
/// - The node's name is the folder's afterwards: read it from [`DataFolder::identity`], not from
///   the settings.
/// - Errors: each is one line that says what to do: in use, another node's, another version's, no
///   data folder, not writable.
pub fn open_data_folder(config: &Config, cluster: Option<u128>) -> Result<DataFolder<RealDisk>, StorageError> {
    let disk = RealDisk::create(&config.data_dir).map_err(|source| not_usable(&config.data_dir, source))?;
    if let Some(mode) = refuse_open_to_all(&disk)? {
        tracing::warn!(
            mode = format!("{mode:o}"),
            "every user of this machine may put files into the data folder, and with them into this broker: chmod o-w it"
        );
    }
    let disk = Arc::new(disk);
    let open = |node_name: &str| {
        let node_name = node_name.to_owned();
        let (folder_id, process) = (random_id()?, std::process::id());
        match cluster {
            None => {
                let founding = FolderIdentity { node_name, cluster_id: random_id()?, folder_id };
                DataFolder::open(disk.clone(), founding, process)
            }
            Some(cluster_id) => {
                DataFolder::join(disk.clone(), FolderIdentity { node_name, cluster_id, folder_id }, process)
            }
        }
    };
    match open(&config.node_name) {
        Err(StorageError::OtherNode { found, .. }) if config.is_default(Key::node_name) => open(&found),
        result => result,
    }
}

/// Why the data folder cannot be used now, if another process has it.
pub fn folder_holder(config: &Config) -> Option<StorageError> {
    held_by_another(&RealDisk::existing(&config.data_dir).ok()?)
}

fn not_usable(folder: &Path, source: io::Error) -> StorageError {
    let folder = folder.display().to_string();
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StorageError::NotWritable { folder, source }
        }
        _ => StorageError::Io { action: "use", file: format!("the data folder {folder}"), source },
    }
}

/// An id that no other cluster or folder has.
fn random_id() -> Result<u128, StorageError> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes[..], GetRandomFlags::empty());
    match filled {
        Ok(count) if count == bytes.len() => Ok(u128::from_le_bytes(bytes)),
        // The system gives up to 256 bytes at once; less is as wrong as none.
        other => {
            let source = other.err().map_or_else(|| io::ErrorKind::UnexpectedEof.into(), io::Error::from);
            Err(StorageError::Io { action: "read", file: "the system's random numbers".to_owned(), source })
        }
    }
}
