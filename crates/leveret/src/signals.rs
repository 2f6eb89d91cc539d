//! What the operator tells a running server by signals.
//!
//! Invariant: the first SIGTERM or SIGINT asks for an orderly end, the second ends the process at once, whatever the rest of it is doing:
//! a thread of its own waits for signals, so that a stuck server can still be stopped without SIGKILL.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Added to a signal's number, this is the exit code that a shell shows for a process that a signal ended.
const EXIT_CODE_OF_SIGNALS: i32 = 128;

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

/// Starts to listen. Call it once; from here on SIGTERM, SIGINT and SIGHUP no longer end the process by themselves.
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
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn wait(mut self, ask: oneshot::Sender<()>) {
        let mut ask = Some(ask);
        loop {
            let (name, kind) = tokio::select! {
                _ = self.terminate.recv() => ("SIGTERM", SignalKind::terminate()),
                _ = self.interrupt.recv() => ("SIGINT", SignalKind::interrupt()),
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP: nothing is reloaded while running; restart to change settings");
                    continue;
                }
            };
            match ask.take() {
                Some(ask) => {
                    tracing::info!("{name}: stopping; a second signal ends the process at once");
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
