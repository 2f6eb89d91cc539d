//! One link between two nodes that have introduced themselves: packets both ways until it is gone.
//!
//! Invariant: what is written leaves in the order in which it was put into the outbox, whole packets
//! after whole packets; a packet that is not sound ends the link. A link over which nothing comes for
//! [`SILENCE_MAX`] is gone: each side says something at least every [`LIFE_SIGN_EVERY`].

use super::links::Outbox;
use broker::PartitionId;
use bytes::{Buf, Bytes, BytesMut};
use partition::peer::packet::{self, Frame, HEAD_BYTES, Head, PACKET_BYTES};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// A side that has nothing to say says so after this long.
const LIFE_SIGN_EVERY: Duration = Duration::from_millis(500);
/// A link over which nothing came for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// What one read takes at most.
const READ_BYTES: usize = 256 << 10;

/// What came in packets, in order.
pub(super) type Incoming = Vec<(PartitionId, Frame)>;

/// Carries packets until the link is gone; says why it is.
pub(super) async fn run(stream: TcpStream, outbox: &Outbox, deliver: impl FnMut(Incoming)) -> String {
    let (reader, writer) = stream.into_split();
    tokio::select! {
        why = read(reader, deliver) => why,
        why = write(writer, outbox) => why,
    }
}

async fn read(mut reader: OwnedReadHalf, mut deliver: impl FnMut(Incoming)) -> String {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        match tokio::time::timeout(SILENCE_MAX, reader.read_buf(&mut buffer)).await {
            Err(_) => return "nothing came for three seconds".to_owned(),
            Ok(Err(error)) => return error.to_string(),
            Ok(Ok(0)) => return "the other side closed it".to_owned(),
            Ok(Ok(_)) => {}
        }
        let mut incoming = Vec::new();
        loop {
            match take_packet(&mut buffer) {
                Ok(Some(mut frames)) => incoming.append(&mut frames),
                Ok(None) => break,
                Err(why) => return why,
            }
        }
        if !incoming.is_empty() {
            deliver(incoming);
        }
    }
}

/// Takes one packet off the front, if all of it is there.
fn take_packet(buffer: &mut BytesMut) -> Result<Option<Incoming>, String> {
    let Some(head) = buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let head = Head::parse(head).map_err(|error| error.to_string())?;
    if buffer.len() < HEAD_BYTES + head.length() {
        return Ok(None);
    }
    buffer.advance(HEAD_BYTES);
    let body = buffer.split_to(head.length()).freeze();
    packet::decode(&head, body).map(Some).map_err(|error| error.to_string())
}

async fn write(mut writer: OwnedWriteHalf, outbox: &Outbox) -> String {
    let mut frames = Vec::new();
    loop {
        outbox.take(&mut frames);
        let mut pieces = Pieces::default();
        if frames.is_empty() {
            if tokio::time::timeout(LIFE_SIGN_EVERY, outbox.wake.notified()).await.is_ok() {
                continue;
            }
            pieces.put(packet::encode::<&Frame>([]));
        }
        while !frames.is_empty() {
            let mut bytes = 0;
            let count = frames.iter().take_while(|(_, frame)| {
                let fits = bytes < PACKET_BYTES;
                bytes += weight(frame);
                fits
            });
            let count = count.count();
            pieces.put(packet::encode(frames[..count].iter().map(|(partition, frame)| (*partition, frame))));
            frames.drain(..count);
        }
        if let Err(error) = writer.write_all_buf(&mut pieces).await {
            return error.to_string();
        }
    }
}

/// About what a frame takes in a packet.
fn weight(frame: &Frame) -> usize {
    use partition::peer::forward::Forward;
    use partition::{Command, Effect, PeerFrame};
    match frame {
        Frame::Group(PeerFrame::Raft(message)) => message.body_bytes() + 64,
        Frame::Group(PeerFrame::ImagePart { bytes, .. }) => bytes.len() + 64,
        Frame::Group(PeerFrame::MessagesPart { messages, .. }) => messages.iter().map(|(_, m)| m.len() + 16).sum(),
        Frame::Forward(Forward::Command(Command::Publish(publish))) => publish.message.body.len() + 128,
        Frame::Forward(Forward::Effect(Effect::Deliver(delivery))) => delivery.message.len() + 64,
        _ => 64,
    }
}

/// The pieces of packets on their way out.
#[derive(Default)]
struct Pieces(VecDeque<Bytes>);

impl Pieces {
    fn put(&mut self, packet: Vec<Bytes>) {
        self.0.extend(packet.into_iter().filter(|piece| !piece.is_empty()));
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn has_remaining(&self) -> bool {
        !self.0.is_empty()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.0).map(|(slice, piece)| *slice = IoSlice::new(piece));
        filled.count()
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let first = self.0.front_mut().expect("no more is taken than there is");
            if first.len() > count {
                return first.advance(count);
            }
            count -= first.len();
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partition::peer::forward::Forward;

    #[test]
    fn packets_are_taken_whole_wherever_a_read_ends() {
        let frames: Vec<(PartitionId, Frame)> =
            (1..=3).map(|number| (PartitionId(0), Frame::Forward(Forward::Ping { number }))).collect();
        let mut bytes = Vec::new();
        for (partition, frame) in &frames {
            bytes.extend(packet::encode([(*partition, frame)]).concat());
        }
        for cut in 0..bytes.len() {
            let mut buffer = BytesMut::from(&bytes[..cut]);
            let mut taken = Vec::new();
            for part in [&bytes[cut..], &[]] {
                while let Some(mut packet) = take_packet(&mut buffer).expect("sound") {
                    taken.append(&mut packet);
                }
                buffer.extend_from_slice(part);
            }
            assert_eq!(taken, frames, "cut at {cut}");
        }
        bytes[10] ^= 1;
        assert!(take_packet(&mut BytesMut::from(&bytes[..])).is_err());
    }

    #[test]
    fn pieces_go_out_in_order_however_much_is_taken() {
        let mut pieces = Pieces::default();
        pieces.put(vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")]);
        let mut out = Vec::new();
        while pieces.has_remaining() {
            let count = pieces.chunk().len().min(2);
            out.extend_from_slice(&pieces.chunk()[..count]);
            pieces.advance(count);
        }
        assert_eq!(out, b"abcdefg");
    }
}
