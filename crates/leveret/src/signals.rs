//! What the operator tells a running server by signals.
//!
//! Invariant: the first SIGTERM or SIGINT asks for an orderly end, the second ends the process at
//! once, whatever the rest of it is doing: a thread of its own waits for signals, so that a stuck
//! server can still be stopped without SIGKILL.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Added to a signal's number, this is the exit code that a shell shows for a process that a signal
/// ended.
const EXIT_CODE_OF_SIGNALS: i32 = 128;

/// Set by SIGUSR1: the node logs its gauges and takes it back.
pub(crate) static REPORT: AtomicBool = AtomicBool::new(false);

/// Set by SIGHUP: the node reads certificates and definitions again and takes it back; a demo ends.
pub(crate) static RELOAD: AtomicBool = AtomicBool::new(false);

/// Set by the first SIGTERM or SIGINT.
pub(crate) static ENDS: AtomicBool = AtomicBool::new(false);

/// Ready once the operator has asked for an orderly end. Needs no runtime.
pub(crate) struct Shutdown(oneshot::Receiver<()>);

impl Future for Shutdown {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // The sender goes away unused only if its thread died, and that is not a wish to stop.
        match Pin::new(&mut self.0).poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Starts to listen. Call it once; from here on SIGTERM, SIGINT and SIGHUP no longer end the
/// process by themselves.
pub(crate) fn listen() -> io::Result<Shutdown> {
    let (ask, asked) = oneshot::channel();
    let (tell_ready, ready) = std::sync::mpsc::channel();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(tell_ready.send(Err(error))),
        };
        runtime.block_on(async {
            match Signals::new() {
                Ok(signals) => {
                    let _ = tell_ready.send(Ok(()));
                    signals.wait(ask).await
                }
                Err(error) => drop(tell_ready.send(Err(error))),
            }
        })
    })?;
    ready.recv().unwrap_or_else(|_| Err(io::Error::other("the thread for signals ended")))?;
    Ok(Shutdown(asked))
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
        })
    }

    async fn wait(mut self, ask: oneshot::Sender<()>) {
        let mut ask = Some(ask);
        loop {
            let (name, kind) = tokio::select! {
                _ = self.terminate.recv() => ("SIGTERM", SignalKind::terminate()),
                _ = self.interrupt.recv() => ("SIGINT", SignalKind::interrupt()),
                _ = self.user1.recv() => {
                    REPORT.store(true, Ordering::Relaxed);
                    continue;
                }
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP: certificates, the secret of the cluster and definitions are read again; all else needs a restart");
                    RELOAD.store(true, Ordering::Relaxed);
                    continue;
                }
            };
            match ask.take() {
                Some(ask) => {
                    tracing::info!("{name}: stopping; a second signal ends the process at once");
                    ENDS.store(true, Ordering::Relaxed);
                    let _ = ask.send(());
                }
                None => {
                    tracing::warn!("{name} again: ending at once, clients will see their connections break");
                    std::process::exit(EXIT_CODE_OF_SIGNALS + kind.as_raw_value());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Signals are sent to a process of its own: this test binary again, running one test that
    //! behaves like a server.

    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Set for the process that plays the server; its value is whether it ends when asked.
    const PLAY_VARIABLE: &str = "SIGNALS_TEST_ENDS_WHEN_ASKED";

    #[test]
    #[allow(clippy::print_stdout)]
    fn plays_the_server() {
        // Played in a process of its own by the tests below; among the other tests there is nothing
        // to play.
        let Ok(wanted) = std::env::var(PLAY_VARIABLE) else { return };
        let ends_when_asked = wanted == "yes";
        let shutdown = listen().expect("signals can be listened to");
        println!("\nready");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(shutdown);
        println!("asked");
        if !ends_when_asked {
            loop {
                thread::park();
            }
        }
        std::process::exit(0);
    }

    struct Server {
        process: Child,
        said: BufReader<ChildStdout>,
    }

    impl Server {
        fn start(ends_when_asked: bool) -> Server {
            let mut process = Command::new(std::env::current_exe().expect("this test binary"))
                .args(["--exact", "signals::tests::plays_the_server", "--nocapture"])
                .env(PLAY_VARIABLE, if ends_when_asked { "yes" } else { "no" })
                .stdout(Stdio::piped())
                .spawn()
                .expect("this test binary starts again");
            let said = BufReader::new(process.stdout.take().expect("piped"));
            let mut server = Server { process, said };
            server.wait_for("ready");
            server
        }

        fn send(&self, signal: Signal) {
            kill_process(Pid::from_child(&self.process), signal).expect("the process is there");
        }

        fn wait_for(&mut self, wanted: &str) {
            let mut line = String::new();
            while line.trim() != wanted {
                line.clear();
                let bytes = self.said.read_line(&mut line).expect("the pipe is read");
                assert!(bytes > 0, "the server ended before it said {wanted}");
            }
        }

        fn wait(&mut self) -> ExitStatus {
            self.process.wait().expect("the process is ours")
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            // A failed test must not leave its server behind; one that has ended already is no
            // error.
            let _ = self.process.kill();
        }
    }

    #[test]
    fn the_first_signal_asks_for_an_orderly_end() {
        for signal in [Signal::TERM, Signal::INT] {
            let mut server = Server::start(true);
            server.send(signal);
            server.wait_for("asked");
            assert_eq!(server.wait().code(), Some(0));
        }
    }

    #[test]
    fn the_second_signal_ends_a_stuck_server_at_once() {
        for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            let mut server = Server::start(false);
            server.send(Signal::TERM);
            server.wait_for("asked");
            server.send(signal);
            assert_eq!(server.wait().code(), Some(code));
        }
    }

    #[test]
    fn a_hangup_ends_nothing() {
        // If a hangup counted as a wish to stop, SIGTERM would be the second one and end the
        // process with 143.
        let mut server = Server::start(false);
        server.send(Signal::HUP);
        thread::sleep(std::time::Duration::from_millis(50));
        server.send(Signal::TERM);
        server.wait_for("asked");
        server.send(Signal::INT);
        assert_eq!(server.wait().code(), Some(130));
    }
}
