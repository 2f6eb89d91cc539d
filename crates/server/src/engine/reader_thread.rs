//! The thread that reads messages back from the disk, so that a cold page stalls one queue and not
//! a shard.

use super::Routes;
use node::{Listener, Reader};
use partition::outputs::Read;
use std::sync::mpsc::{Sender, channel};
use storage::RealDisk;

/// Where reads go, and the loop to run on a thread of its own; it ends when all senders are gone.
pub(crate) fn prepare(mut reader: Reader<RealDisk>, mut routes: Routes) -> (Sender<Read>, impl FnOnce() + Send) {
    let (sender, receiver) = channel::<Read>();
    let run = move || {
        while let Ok(read) = receiver.recv() {
            let partition = read.partition;
            routes.tell(partition, reader.read(read), true);
        }
    };
    (sender, run)
}
