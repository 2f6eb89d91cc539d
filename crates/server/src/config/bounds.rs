//! Bounds of settings: how much each may be, and how much those may be together that bound each other.
//!
//! Invariant: what may be set can be done: the compiler checks it against the log and its records, the
//! start of a node against the other settings.

use super::error::ConfigError;
use super::setting::bytes_text;
use super::settings::{Config, Key};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const TIB: u64 = 1 << 40;

/// Descriptors that are not for clients: log files, extents being read, listeners, and what the
/// runtime holds.
pub const DESCRIPTORS_RESERVED: u64 = 256;
/// A channel key has room for this many.
pub(super) const SHARD_THREADS_MAX: u64 = 64;
/// Memory that one idle connection may cost at most, by which the default of `connections_max` is
/// reckoned.
pub(super) const CONNECTION_BYTES: u64 = 32 * KIB;
/// Largest frame that may be negotiated. Properties of a message come in one frame, so this bounds
/// them too.
pub(super) const FRAME_BYTES_MAX: u64 = MIB;
/// Largest body that may be allowed: RabbitMQ's own limit.
pub(super) const BODY_BYTES_MAX: u64 = 16 * MIB;
const _: () = assert!(
    BODY_BYTES_MAX + FRAME_BYTES_MAX <= partition::message::MESSAGE_BYTES_MAX as u64,
    "the largest body that may be allowed can be stored with its properties"
);
/// Range of `wal_file_bytes`.
pub(super) const WAL_FILE_BYTES: (u64, u64) = (4 * MIB, GIB);
const _: () = assert!(
    WAL_FILE_BYTES.0 >= storage::wal::FILE_BYTES_MIN as u64 && WAL_FILE_BYTES.1 <= storage::wal::FILE_BYTES_MAX as u64,
    "the log can have files of every size that may be set"
);

/// A record never spans two WAL files, and an entry is a body with some properties; half a file
/// leaves room for both.
const BODIES_PER_WAL_FILE_MIN: u64 = 2;
/// What `disk_free_min_bytes` holds, in WAL files: one that is begun while publishers are told, one for what
/// they had sent by then, one for acknowledgements, and one for checkpoints and copies that make room.
const SPARE_WAL_FILES: u64 = 4;

impl Config {
    /// Settings that are each allowed but not together.
    pub(super) fn contradictions(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let body_bytes_allowed = self.wal_file_bytes / BODIES_PER_WAL_FILE_MIN;
        if self.body_bytes_max > body_bytes_allowed {
            errors.push(self.contradiction([
                (
                    Key::body_bytes_max,
                    format!(
                        "with wal_file_bytes = {} it may be at most {}",
                        bytes_text(self.wal_file_bytes),
                        bytes_text(body_bytes_allowed)
                    ),
                ),
                (
                    Key::wal_file_bytes,
                    format!(
                        "with body_bytes_max = {} it must be at least {}",
                        bytes_text(self.body_bytes_max),
                        bytes_text(self.body_bytes_max * BODIES_PER_WAL_FILE_MIN)
                    ),
                ),
            ]));
        }
        if self.connection_bytes_max < self.body_bytes_max {
            errors.push(self.contradiction([
                (
                    Key::connection_bytes_max,
                    format!(
                        "with body_bytes_max = {} it must be at least {}",
                        bytes_text(self.body_bytes_max),
                        bytes_text(self.body_bytes_max)
                    ),
                ),
                (
                    Key::body_bytes_max,
                    format!(
                        "with connection_bytes_max = {} it may be at most {}",
                        bytes_text(self.connection_bytes_max),
                        bytes_text(self.connection_bytes_max)
                    ),
                ),
            ]));
        }
        errors.extend(self.cluster_contradictions());
        errors.extend(self.access_contradictions());
        errors.extend(self.token_contradictions());
        errors.extend(self.trace_contradictions());
        let free_bytes_needed = self.wal_file_bytes * SPARE_WAL_FILES;
        if self.disk_free_min_bytes < free_bytes_needed {
            errors.push(self.contradiction([
                (
                    Key::disk_free_min_bytes,
                    format!(
                        "with wal_file_bytes = {} it must be at least {}",
                        bytes_text(self.wal_file_bytes),
                        bytes_text(free_bytes_needed)
                    ),
                ),
                (
                    Key::wal_file_bytes,
                    format!(
                        "with disk_free_min_bytes = {} it may be at most {}",
                        bytes_text(self.disk_free_min_bytes),
                        bytes_text(self.disk_free_min_bytes / SPARE_WAL_FILES)
                    ),
                ),
            ]));
        }
        errors
    }

    /// Blames the first of two settings that somebody has said: an error about a default would name
    /// what nobody wrote.
    fn contradiction(&self, sides: [(Key, String); 2]) -> ConfigError {
        let [first, second] = sides;
        let (key, rule) = if self.is_default(first.0) { second } else { first };
        let setting = key.setting();
        ConfigError::relation(setting, self.origin(key), self.value(key).shown(setting.kind), rule)
    }
}
