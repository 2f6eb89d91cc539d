//! TLS record by record, where a client depends on more than the standard asks for.
//!
//! Invariant: nothing is decrypted here. The lengths of records are there for everybody to see.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use clients::Broker;
use clients::broker::free_port;
use clients::client::PATIENCE;

const HANDSHAKE: u8 = 22;
const CHANGE_CIPHER_SPEC: u8 = 20;
const APPLICATION_DATA: u8 = 23;
/// What TLS 1.3 adds to a record's content: its kind, and the tag.
const SEALED: usize = 17;
const MESSAGE_HEADER: usize = 4;

/// The suites of TLS 1.3 and the bytes of their hash, which is what Finished holds.
const SUITES: [(u16, usize); 3] = [(0x1301, 32), (0x1302, 48), (0x1303, 32)];

fn prefixed(length_bytes: usize, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_be_bytes();
    [&length[4 - length_bytes..], content].concat()
}

/// What Java 17 says first, as far as a server looks at it; of its suites one.
fn client_hello(suite: u16) -> Vec<u8> {
    let extension = |kind: u16, content: &[u8]| [&kind.to_be_bytes()[..], &prefixed(2, content)].concat();
    // Any 32 bytes are a key of x25519, which is all a server needs to go on.
    let key_share = [&[0x00, 0x1d][..], &prefixed(2, &[9; 32])].concat();
    let extensions = [
        extension(0x000a, &prefixed(2, &[0x00, 0x1d])),
        extension(0x000d, &prefixed(2, &[0x04, 0x03, 0x08, 0x04, 0x04, 0x01])),
        extension(0x002b, &prefixed(1, &[0x03, 0x04])),
        extension(0x002d, &prefixed(1, &[0x01])),
        extension(0x0033, &prefixed(2, &key_share)),
    ]
    .concat();
    let hello = [
        &[0x03, 0x03][..],
        &[7; 32],
        &prefixed(1, &[8; 32]),
        &prefixed(2, &suite.to_be_bytes()),
        &prefixed(1, &[0]),
        &prefixed(2, &extensions),
    ]
    .concat();
    let message = [&[1][..], &prefixed(3, &hello)].concat();
    [&[HANDSHAKE, 0x03, 0x01][..], &prefixed(2, &message)].concat()
}

/// The next record: its kind and its length.
fn record(stream: &mut TcpStream) -> (u8, usize) {
    let mut header = [0; 5];
    stream.read_exact(&mut header).expect("another record");
    let [kind, high, low, length @ ..] = header;
    assert_eq!([high, low], [3, 3], "the version that every record says");
    let length = usize::from(u16::from_be_bytes(length));
    stream.read_exact(&mut vec![0; length]).expect("a whole record");
    (kind, length)
}

#[test]
fn finished_has_a_record_of_its_own_as_java_s_nio_transport_needs_it() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let paths = [&certificate, &key].map(|path| path.to_str().unwrap());
    // One certificate, and a chain so long that the flight takes more than one full record.
    for chain in [1, 60] {
        std::fs::write(&certificate, certified.cert.pem().repeat(chain)).unwrap();
        let addr = free_port();
        let arguments = ["--amqps", &addr.to_string(), "--tls-certificate", paths[0], "--tls-key", paths[1]];
        let Some(_broker) = Broker::own_or_skip(&arguments) else { return };
        for (suite, hash) in SUITES {
            let mut stream = TcpStream::connect(addr).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&client_hello(suite)).unwrap();
            assert_eq!(record(&mut stream).0, HANDSHAKE, "its hello");
            assert_eq!(record(&mut stream), (CHANGE_CIPHER_SPEC, 1));
            let finished = MESSAGE_HEADER + hash + SEALED;
            let mut before = 0;
            loop {
                let (kind, length) = record(&mut stream);
                assert_eq!(kind, APPLICATION_DATA, "{suite:x}: sealed");
                if length == finished {
                    break;
                }
                before += length;
            }
            assert!(before > chain * certified.cert.der().len(), "{suite:x}: the certificates are before it");
        }
    }
}
