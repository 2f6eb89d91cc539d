//! What is packed: that the process says when it is ready, as its unit expects.
#![allow(clippy::unwrap_used)]

use clients::Broker;
use clients::broker::is_foreign;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

#[test]
fn the_service_manager_is_told_when_clients_are_let_in_and_when_they_have_to_go() {
    if is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let listener = UnixDatagram::bind(&path).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let hear = || {
        let mut bytes = [0; 256];
        let count = listener.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut broker = Broker::not_started(&[]);
    broker.set_env("NOTIFY_SOCKET", path.to_str().unwrap());
    broker.launch();
    assert_eq!(hear(), "READY=1");
    // What it said is so.
    drop(broker.connect());
    assert_eq!(broker.terminate().code(), Some(0));
    assert_eq!(hear(), "STOPPING=1");
}
