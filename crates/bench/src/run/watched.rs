//! The broker's processes through a run, also where some end and others come in their stead.
//!
//! Invariant: what one that is gone had used stays in the sums, and one that listens in its stead is in them from its beginning. What
//! cannot be seen is said and not guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use testbed::process::listeners;
use testbed::{Look, Watch};

use crate::options::Options;

/// How long a port may take to say whether anybody listens there.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watched {
    watch: Watch,
    /// All that were seen, in the order of their coming.
    pids: Vec<u32>,
    /// Who listened last at each port of the broker on this machine, where anybody did.
    at_ports: BTreeMap<u16, Vec<u32>>,
    restarts: u32,
}

impl Watched {
    /// `named`: the processes, where somebody says which; without any those that listen where the load goes.
    pub(super) fn new(options: &Options, named: &[u32]) -> Watched {
        let local = |host: &str| host == "localhost" || host == "::1" || host.starts_with("127.");
        let ports = options.uris.iter().filter(|uri| local(&uri.host)).map(|uri| uri.port);
        let ports: BTreeSet<u16> = ports.collect();
        Watched::at(ports, named)
    }

    fn at(ports: BTreeSet<u16>, named: &[u32]) -> Watched {
        let found = ports.into_iter().map(|port| (port, who_listens(port)));
        let mut at_ports: BTreeMap<u16, Vec<u32>> = found.filter(|(_, pids)| !pids.is_empty()).collect();
        let mut pids = named.to_vec();
        if named.is_empty() {
            pids = at_ports.values().flatten().copied().collect::<BTreeSet<u32>>().into_iter().collect();
        } else {
            // Somebody else may listen there, as the end of a tunnel does.
            at_ports.retain(|_, found| found.iter().any(|pid| named.contains(pid)));
        }
        Watched { watch: Watch::default(), pids, at_ports, restarts: 0 }
    }

    /// All that were seen, those that are gone too.
    pub(super) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Looks at them, and at who has come in the stead of those that are gone.
    pub(super) fn look(&mut self) -> Option<Look> {
        for (port, known) in &mut self.at_ports {
            if known.iter().all(|pid| is_there(*pid)) {
                continue;
            }
            let found = who_listens(*port);
            // Until then it is on its way up.
            if found.is_empty() {
                continue;
            }
            let new = found.iter().filter(|pid| !self.pids.contains(pid));
            let new: Vec<u32> = new.copied().collect();
            // Of a broker with several processes one may go and leave its port to the others.
            self.restarts += u32::from(!new.is_empty());
            self.pids.extend(new);
            *known = found;
        }
        self.watch.look(&self.pids)
    }

    /// What is to be said of it beside the figures.
    pub(super) fn notes(&self) -> Vec<String> {
        let times = match self.restarts {
            0 => None,
            1 => Some("once".to_owned()),
            count => Some(format!("{count} times")),
        };
        let restarted = times.map(|times| {
            format!("the broker was restarted {times}: its CPU and memory are those of its processes before and after")
        });
        let gone = self.at_ports.iter().filter(|(_, known)| !known.iter().any(|pid| is_there(*pid)));
        let gone = gone.map(|(port, _)| match is_served(*port) {
            true => format!(
                "the broker's process at port {port} ended, and who listens there now cannot be seen: figures of CPU and memory lack \
                 what it used"
            ),
            false => format!("the broker's process at port {port} ended and had not come back at the end of the run"),
        });
        // Of who was named and listens nowhere nobody knows who came in its stead.
        let ended = self.pids.iter().filter(|pid| !is_there(**pid) && self.at_ports.is_empty()).count();
        let unknown = (ended > 0).then(|| {
            format!("{ended} of the broker's processes ended: figures of CPU and memory lack what came in their stead")
        });
        restarted.into_iter().chain(gone).chain(unknown).collect()
    }
}

fn who_listens(port: u16) -> Vec<u32> {
    let mut pids = listeners(port);
    pids.retain(|pid| *pid != std::process::id());
    pids
}

/// Whether a process is there, and is more than what its parent has to hear of its end.
fn is_there(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

fn is_served(port: u16) -> bool {
    let addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    addresses.iter().any(|address| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    /// A process that listens at a port and has used a moment of CPU.
    fn listen(port: u16) -> Child {
        let script = "import socket,sys,time
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('127.0.0.1',int(sys.argv[1])))
while time.process_time()<0.1: pass
s.listen(); time.sleep(60)";
        let mut command = Command::new("python3");
        command.args(["-c", script, &port.to_string()]).stdin(Stdio::null());
        let child = command.spawn().expect("python runs");
        let until = Instant::now() + Duration::from_secs(20);
        while who_listens(port) != [child.id()] {
            assert!(Instant::now() < until, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    fn end(mut child: Child) {
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    #[test]
    fn a_node_that_comes_back_is_measured_on_and_told_of() {
        let port = testbed::node::free_port().expect("a port");
        let first = listen(port);
        let mut watched = Watched::at([port].into(), &[]);
        let before = watched.look().expect("it is there").used;
        assert_eq!((watched.pids(), watched.notes()), (&[first.id()][..], Vec::new()));
        end(first);
        assert!(watched.look().is_none(), "nothing is to be seen");
        let ended = format!("the broker's process at port {port} ended and had not come back at the end of the run");
        assert_eq!(watched.notes(), [ended]);
        let second = listen(port);
        let after = watched.look().expect("the other one is there").used;
        assert!(after.cpu_ns >= before.cpu_ns + 50_000_000, "both lives count: {before:?} {after:?}");
        assert!(after.rss_bytes > 0 && watched.pids().contains(&second.id()));
        let told = "the broker was restarted once: its CPU and memory are those of its processes before and after";
        assert_eq!(watched.notes(), [told]);
        watched.look().expect("it is there still");
        assert_eq!(watched.notes(), [told]);
        end(second);
        let third = listen(port);
        watched.look().expect("a third life");
        assert!(watched.notes()[0].contains("restarted 2 times"), "{:?}", watched.notes());
        end(third);
    }

    #[test]
    fn of_a_process_that_was_named_and_listens_nowhere_it_is_said_what_the_figures_lack() {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let mut watched = Watched::at(BTreeSet::new(), &[child.id()]);
        assert!(watched.look().is_some() && watched.notes().is_empty());
        end(child);
        assert!(watched.look().is_none());
        assert!(watched.notes()[0].contains("figures of CPU and memory lack"), "{:?}", watched.notes());
    }
}
