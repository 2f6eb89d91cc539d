//! What the broker wrote to disk: the kernel's counters, which [`testbed::written`] compares, and
//! Leveret's own count beside them.
//!
//! Invariant: nobody but Leveret is asked, and only on this machine.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use testbed::process::ports_of;
pub use testbed::written::Written;

/// How long the broker may take to tell its own counter.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// The counter of Leveret's own that stands beside the kernel's.
const OWN_COUNTER: &str = "leveret_log_written_bytes_total ";

/// What Leveret says that it gave its log; `None` of another broker, or where it tells no metrics
/// on this machine.
pub fn own_count(pids: &[u32], broker_ports: &[u16]) -> Option<u64> {
    let mut sum = None;
    for pid in pids {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // Nobody else is asked: on a port of another broker this would be noise in its log.
        if name.trim() != "leveret" {
            return None;
        }
        let ports = ports_of(*pid);
        let told = ports.into_iter().filter(|port| !broker_ports.contains(port)).find_map(ask)?;
        sum = Some(sum.unwrap_or(0) + told);
    }
    sum
}

fn ask(port: u16) -> Option<u64> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ASK_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(ASK_TIMEOUT)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.take(1 << 22).read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    answer.lines().find_map(|line| line.strip_prefix(OWN_COUNTER))?.trim().parse::<f64>().ok().map(|bytes| bytes as u64)
}
