//! A socket whose peer has to take what it is sent, and whose requests are measured as they come.
//!
//! Invariant: a write that makes no progress for so long fails, so that nobody holds an answer in
//! memory by not reading it.

use crate::framing::Framing;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// See the module.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    stream: S,
    framing: Framing,
    timeout: Duration,
    /// Runs while the peer takes nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// The peer may take nothing for `timeout`.
    pub(crate) fn new(stream: S, timeout: Duration, framing: Framing) -> Self {
        Patient { stream, framing, timeout, stuck: None }
    }

    fn within<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let timeout = self.timeout;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.framing.see(&buf.filled()[before..]);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.within(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.within(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.within(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.within(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn a_peer_that_takes_nothing_is_given_up_and_one_that_reads_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (stream, mut peer) = tokio::io::duplex(16);
            let mut patient = Patient::new(stream, Duration::from_millis(50), Framing::new(Rc::default()));
            let reading = async {
                let mut all = [0; 48];
                peer.read_exact(&mut all).await.expect("it is written");
            };
            let (written, ()) = tokio::join!(patient.write_all(&[1; 48]), reading);
            written.expect("the peer reads");
            let error = patient.write_all(&[2; 48]).await.expect_err("the peer reads no more");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
