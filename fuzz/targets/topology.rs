//! A command of the topology's log, and a snapshot of its state, of any bytes.
//!
//! Invariant: they are refused or read; what is read can be carried out and written, and what is
//! written is read again as the same. The first byte chooses which of the two it is.
#![no_main]

use broker::topology::{Command, Topology};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    let mut topology = match kind {
        0 => Topology::new(),
        _ => match Topology::decode_snapshot(data) {
            Ok(topology) => topology,
            Err(_) => return,
        },
    };
    if *kind == 0 {
        let Ok(command) = Command::decode(data) else { return };
        // By their bytes, because a float that is no number equals not even itself.
        let written = command.encode();
        let again = Command::decode(&written).map(|command| command.encode());
        assert_eq!(again, Ok(written), "what is written is read again");
        // Queues and exchanges of one node only have another way in, which the log never takes.
        let is_of_map = matches!(
            command,
            Command::PutNode { .. } | Command::PutPool { .. } | Command::PutPartition { .. } | Command::RaiseVersion { .. }
        );
        if is_of_map {
            topology.apply(&command);
        }
    }
    let written = topology.encode_snapshot();
    let read = Topology::decode_snapshot(&written).expect("what was written can be read");
    assert_eq!(read.encode_snapshot(), written);
});
