//! What a node tells all others of itself, as it stands: it counts until the next word about the same
//! thing, or until the link is gone.
//!
//! ```text
//! 92 alarms   flags { disk, memory }
//! 93 user     length, name, connections, channels
//! 94 vhost    virtual host, connections
//! 95 traced   virtual host, flags { on }, stamp
//! 96 rests    flags { on }
//! ```
//!
//! Invariant: as of the other frames, see `peer`. Each says what is, and not what changed, so that one
//! that is told twice does no harm.

use super::key_form::{flags, number_u32, put_flags};
use super::{put, sized};
use broker::VhostId;
use bytes::Bytes;
use consensus::{Cursor, DecodeError, Segments};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Which alarms of the sending node hold publishers.
    Alarms {
        /// Its disk is nearly full.
        disk: bool,
        /// Its messages in memory are at their limit.
        memory: bool,
    },
    /// What a user has open on the sending node.
    User {
        /// Who.
        name: Bytes,
        /// Connections.
        connections: u64,
        /// Channels.
        channels: u64,
    },
    /// What is open in a virtual host on the sending node.
    Vhost {
        /// Which.
        vhost: VhostId,
        /// Connections.
        connections: u64,
    },
    /// Whether messages of a virtual host are traced, on all nodes.
    Traced {
        /// Which.
        vhost: VhostId,
        /// Whether they are.
        on: bool,
        /// The highest counts.
        stamp: u64,
    },
    /// Whether the sending node is to lead nothing.
    Rests {
        /// Whether it is.
        on: bool,
    },
}

pub(super) fn kind(news: &News) -> u8 {
    match news {
        News::Alarms { .. } => 92,
        News::User { .. } => 93,
        News::Vhost { .. } => 94,
        News::Traced { .. } => 95,
        News::Rests { .. } => 96,
    }
}

pub(super) fn encode(news: &News, out: &mut Segments) {
    match news {
        News::Alarms { disk, memory } => put_flags(out, &[*disk, *memory]),
        News::User { name, connections, channels } => {
            out.put_varint(name.len() as u64);
            out.put_bytes(name);
            put(out, &[*connections, *channels]);
        }
        News::Vhost { vhost, connections } => put(out, &[u64::from(vhost.0), *connections]),
        News::Traced { vhost, on, stamp } => {
            out.put_varint(u64::from(vhost.0));
            put_flags(out, &[*on]);
            out.put_varint(*stamp);
        }
        News::Rests { on } => put_flags(out, &[*on]),
    }
}

/// Reads what follows the kind; `None` if it is another's.
pub(super) fn read(kind: u8, cursor: &mut Cursor<'_>) -> Result<Option<News>, DecodeError> {
    let vhost = |cursor: &mut Cursor<'_>| number_u32(cursor).map(VhostId);
    let news = match kind {
        92 => {
            let [disk, memory] = flags(cursor)?;
            News::Alarms { disk, memory }
        }
        93 => News::User { name: sized(cursor)?, connections: cursor.varint()?, channels: cursor.varint()? },
        94 => News::Vhost { vhost: vhost(cursor)?, connections: cursor.varint()? },
        95 => {
            let (vhost, [on]) = (vhost(cursor)?, flags(cursor)?);
            News::Traced { vhost, on, stamp: cursor.varint()? }
        }
        96 => {
            let [on] = flags(cursor)?;
            News::Rests { on }
        }
        _ => return Ok(None),
    };
    Ok(Some(news))
}
