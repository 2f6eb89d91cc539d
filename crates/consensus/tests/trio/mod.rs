//! Members whose disks are as fast as memory, with messages that arrive when the test says so.

// Each test uses a part of this, and a module of a test has no one to be public to.
#![allow(dead_code, unreachable_pub)]

use bytes::Bytes;
use consensus::{
    Config, Entry, EntryKind, Group, HardState, LogIndex, Message, NodeId, Ready, Restored, Segments, Term,
};

pub const GROUP: u32 = 7;

pub fn voters(count: u64) -> Vec<NodeId> {
    (1..=count).map(NodeId).collect()
}

/// A member of a group of `count` voters whose log holds these entries behind the beginning, each
/// with its term.
pub fn member(node: u64, count: u64, terms: &[u64], forgot: bool) -> Group {
    member_with(Config::new(NodeId(node), GROUP, node), count, terms, forgot)
}

pub fn member_with(config: Config, count: u64, terms: &[u64], forgot: bool) -> Group {
    let mut restored = Restored::bootstrap(voters(count));
    let entry = |(number, term): (usize, &u64)| Entry {
        index: LogIndex(number as u64 + 2),
        term: Term(*term),
        kind: EntryKind::Command,
        data: Bytes::from_static(b"command"),
        crc: None,
    };
    restored.entries = terms.iter().enumerate().map(entry).collect();
    let term = terms.last().copied().unwrap_or(1);
    restored.hard_state = HardState { term: Term(term), vote: None, ..restored.hard_state };
    restored.forgot = forgot;
    Group::new(config, restored).expect("a valid configuration")
}

/// Takes out what a member has to say, with everything synced and applied at once.
pub fn drain(group: &mut Group, network: &mut Vec<Message>) {
    let mut ready = Ready::new();
    while group.ready(&mut ready) {
        if let Some(snapshot) = &ready.snapshot {
            let at = snapshot.position.index;
            group.persisted(ready.number);
            group.applied(at);
        } else if ready.must_sync {
            group.persisted(ready.number);
        }
        network.append(&mut ready.messages);
        network.append(&mut ready.messages_after_sync);
        if let Some(last) = ready.committed.last() {
            group.applied(last.index);
        }
    }
}

/// Lets these members talk until they have nothing more to say; messages to others are lost.
pub fn talk(members: &mut [&mut Group], ids: &[u64]) {
    let mut network = Vec::new();
    loop {
        members.iter_mut().for_each(|group| drain(group, &mut network));
        if network.is_empty() {
            return;
        }
        for message in network.drain(..) {
            if let Some(to) = ids.iter().position(|id| *id == message.to().0) {
                let _ = members[to].step(message);
            }
        }
    }
}

/// A message made by hand: kind and flags, from whom, to whom, the eight numbers of the wire's
/// form, and what follows them.
pub fn crafted(kind: u8, from: u64, to: u64, numbers: [u64; 8], rest: &[u8]) -> Option<Message> {
    Message::decode(&mut crafted_bytes(kind, from, to, numbers, rest)).ok()
}

pub fn crafted_bytes(kind: u8, from: u64, to: u64, numbers: [u64; 8], rest: &[u8]) -> Bytes {
    let mut out = Segments::new();
    out.put_u8(consensus::WIRE_VERSION);
    out.put_u8(kind);
    out.put_u8((0..8).filter(|bit| numbers[*bit] != 0).fold(0, |mask, bit| mask | 1 << bit));
    out.put_varint(u64::from(GROUP));
    out.put_varint(from);
    out.put_varint(to);
    numbers.into_iter().filter(|number| *number != 0).for_each(|number| out.put_varint(number));
    out.put_slice(rest);
    out.to_bytes()
}
