//! One link between two nodes that have introduced themselves, on the shard that has its socket:
//! packets both ways until it is gone.
//!
//! What the shard itself has for the other node is written at the end of its turn, before it stands
//! still for the disk: no other thread is woken for it. What other shards have wakes the link's own
//! task, which also writes on when the socket was full, and says something when nobody else does.
//!
//! Invariant: what is written leaves in the order in which it was put into the outbox, whole packets
//! after whole packets; a packet that is not sound ends the link, and so does what no sound node says,
//! which builds for tests look for in what they send, too. A link over which nothing comes for
//! [`SILENT_TICKS_MAX`] is gone: each side says something at least every [`LIFE_SIGN_EVERY`]. A side
//! that stood still for so long that the other may have taken it for gone takes in nothing more of
//! what came meanwhile: what it held, and what was on its way to it, may be somebody else's by now.

use super::links::Outbox;
use super::sealed::Sealed;
use crate::engine::wall_ms;
use broker::PartitionId;
use bytes::{Buf, Bytes, BytesMut};
use node::NodeId;
use partition::peer::packet::{self, FRAME_BYTES_MIN, Frame, HEAD_BYTES, Head, PACKET_BYTES, PacketWriter};
use partition::peer::speaker;
use rustls::Connection;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::MissedTickBehavior;

/// A side that has nothing to say says so after this long.
const LIFE_SIGN_EVERY: Duration = Duration::from_millis(500);
/// A link over which nothing came for so many of these is gone. Ticks and no clock: a side that
/// itself stood still for as long has not missed anything yet.
const SILENT_TICKS_MAX: u32 = 4;
/// A side that did nothing for so long may have been silent for all of [`SILENT_TICKS_MAX`]: what it
/// said last it may have said two ticks before.
const STOOD_STILL_AFTER: Duration = LIFE_SIGN_EVERY.saturating_mul(SILENT_TICKS_MAX + 1 - 2);
/// What one read takes at most, but for the rest of a packet that is longer. What was read is held until it is applied:
/// with short buffers the next read finds memory that the processor's caches still have.
const READ_BYTES: usize = 64 << 10;
/// A read that has room for so much, and for the packet that has begun, is made with the room that is left.
const READ_ROOM_MIN: usize = 16 << 10;
/// Room for so many frames is kept for the next read.
const INCOMING_KEPT: usize = 64;
/// Pieces of one write at most.
const PIECES_MAX: usize = 64;

/// What came in packets, in order.
pub(super) type Incoming = Vec<(PartitionId, Frame)>;

/// The end of a link that is written to. Lives on the thread of its shard.
pub(crate) struct LinkOut {
    outbox: Arc<Outbox>,
    /// The other node, and this one.
    ends: (NodeId, NodeId),
    writer: OwnedWriteHalf,
    /// Where nodes encrypt.
    sealed: Option<Sealed>,
    /// What the socket did not take yet.
    pieces: RefCell<Pieces>,
    frames: RefCell<Vec<(PartitionId, Frame)>>,
    packets: RefCell<PacketWriter>,
    /// Whether something was written since the last tick.
    has_spoken: Cell<bool>,
    has_heard: Cell<bool>,
    /// When its task ran last.
    turned: Cell<Instant>,
}

/// A link over a connection whose sides know each other, and the end that is read from.
/// `session` encrypts over it, where nodes do. `ends` are the other node and this one.
pub(super) fn link(
    stream: TcpStream,
    session: Option<Box<Connection>>,
    outbox: Arc<Outbox>,
    ends: (NodeId, NodeId),
) -> (LinkOut, OwnedReadHalf) {
    let (reader, writer) = stream.into_split();
    let sealed = session.map(Sealed::new);
    let (pieces, frames, packets) = (RefCell::default(), RefCell::default(), RefCell::default());
    let (has_spoken, has_heard) = (Cell::new(false), Cell::new(false));
    let turned = Cell::new(Instant::now());
    (LinkOut { outbox, ends, writer, sealed, pieces, frames, packets, has_spoken, has_heard, turned }, reader)
}

impl LinkOut {
    /// Writes what waits, as far as the socket takes it. What it does not take, and what is wrong with it, is left to the
    /// link's task. To be called by its shard when it has put something into the outbox.
    pub(crate) fn flush(&self) {
        if !matches!(self.write(false), Ok(true)) {
            self.outbox.wake.notify_one();
        }
    }

    /// The same, with one part of an answer behind it if `with_answer`; true if all of it left.
    fn write(&self, mut with_answer: bool) -> std::io::Result<bool> {
        let mut pieces = self.pieces.borrow_mut();
        loop {
            if !pieces.has_remaining() {
                self.encode(&mut pieces, std::mem::take(&mut with_answer));
            }
            if !pieces.has_remaining() {
                return self.flush_sealed();
            }
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = pieces.chunks_vectored(&mut slices);
            let written = match &self.sealed {
                None => self.writer.try_write_vectored(&slices[..count]),
                Some(sealed) => sealed.try_write_vectored(self.writer.as_ref(), &slices[..count]),
            };
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.has_spoken.set(true);
                    pieces.advance(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes what is sealed and not yet with the socket; true if all of it left.
    fn flush_sealed(&self) -> std::io::Result<bool> {
        match self.sealed.as_ref().map_or(Ok(()), |sealed| sealed.flush(self.writer.as_ref())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes packets of what is in the outbox.
    fn encode(&self, pieces: &mut Pieces, with_answer: bool) {
        let mut frames = self.frames.borrow_mut();
        self.outbox.take(&mut frames, with_answer);
        let mut rest = &frames[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest.iter().take_while(|(_, frame)| {
                let fits = bytes < PACKET_BYTES;
                bytes += weight(frame);
                fits
            });
            let (packet, behind) = rest.split_at(count.count());
            let before = pieces.0.len();
            let frames_of_it = packet.iter().map(|(partition, frame)| (*partition, frame));
            self.packets.borrow_mut().encode(frames_of_it, &mut pieces.0);
            debug_assert_eq!(objection_to(pieces.0.range(before..), self.ends), None, "this node is sound");
            rest = behind;
        }
        frames.clear();
    }

    /// Carries packets until the link is gone; says why it is.
    pub(super) async fn run(&self, reader: OwnedReadHalf, deliver: impl FnMut(&mut Incoming)) -> String {
        tokio::select! {
            why = self.read(reader, deliver) => why,
            why = self.write_on() => why,
            why = self.keep_alive() => why,
        }
    }

    async fn read(&self, mut reader: OwnedReadHalf, mut deliver: impl FnMut(&mut Incoming)) -> String {
        let (mut buffer, mut unopened, mut incoming) = (BytesMut::new(), BytesMut::new(), Incoming::new());
        let mut usual = 0;
        loop {
            make_room(&mut buffer, usual);
            let read = match &self.sealed {
                None => reader.read_buf(&mut buffer).await,
                Some(sealed) => sealed.read(&mut reader, &mut unopened, READ_BYTES, &mut buffer).await,
            };
            match read {
                Err(error) => return error.to_string(),
                Ok(0) => return "the other side closed it".to_owned(),
                Ok(_) => self.has_heard.set(true),
            }
            if let Some(why) = self.stood_still(Instant::now()) {
                return why;
            }
            loop {
                let before = incoming.len();
                match take_packet(&mut buffer, &mut incoming) {
                    Ok(Some(length)) => {
                        usual = length.max(usual - usual / 8);
                        let objection = |(partition, frame): &_| speaker::objection(*partition, frame, self.ends);
                        if let Some(why) = incoming[before..].iter().find_map(objection) {
                            return why.to_owned();
                        }
                    }
                    Ok(None) => break,
                    Err(why) => return why,
                }
            }
            if !incoming.is_empty() {
                deliver(&mut incoming);
                incoming.clear();
                // What a burst took is given back.
                incoming.shrink_to(INCOMING_KEPT);
            }
        }
    }

    /// Writes what other shards have, what the socket did not take at once, and answers, a part at a
    /// time: a long one holds up neither the link nor the shard.
    async fn write_on(&self) -> String {
        loop {
            match self.write(true) {
                Ok(true) if self.outbox.has_answers() => tokio::task::yield_now().await,
                Ok(true) => self.outbox.wake.notified().await,
                Ok(false) => {
                    if let Err(error) = self.writer.writable().await {
                        return error.to_string();
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
    }

    /// The link's task runs now; says why the link is over if it has not for too long. Whatever runs
    /// first after that asks, so that nothing is taken in before.
    fn stood_still(&self, now: Instant) -> Option<String> {
        let stood = now.saturating_duration_since(self.turned.replace(now));
        (stood >= STOOD_STILL_AFTER).then(|| format!("this node stood still for {:.1} s", stood.as_secs_f64()))
    }

    async fn keep_alive(&self) -> String {
        // All links of a node at once: it wakes for all of them together.
        let every_ms = LIFE_SIGN_EVERY.as_millis() as u64;
        let first = Instant::now() + Duration::from_millis(every_ms - wall_ms() % every_ms);
        let mut ticks = tokio::time::interval_at(first.into(), LIFE_SIGN_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silent = 0;
        loop {
            ticks.tick().await;
            if let Some(why) = self.stood_still(Instant::now()) {
                return why;
            }
            silent = if self.has_heard.take() { 0 } else { silent + 1 };
            if silent > SILENT_TICKS_MAX {
                return "nothing came for more than two seconds".to_owned();
            }
            if !self.has_spoken.take() {
                let mut pieces = self.pieces.borrow_mut();
                if !pieces.has_remaining() {
                    self.packets.borrow_mut().encode::<&Frame>([], &mut pieces.0);
                }
                drop(pieces);
                // A socket that is full has its writer waiting.
                self.outbox.wake.notify_one();
            }
        }
    }
}

/// Makes room for the next read. Others hold what was read before, so a new buffer is memory that no cache has, and what
/// has come of a packet is copied into it: only where the old one is nearly full, or too short for that packet. `usual`: the bytes
/// of a packet, as they came until now. Between two packets there is nothing to copy, so the next one begins where a little more fits.
fn make_room(buffer: &mut BytesMut, usual: usize) {
    let missing = match buffer.first_chunk::<HEAD_BYTES>().map(Head::parse) {
        // The longest ones get it in steps: a head alone takes no more than any packet.
        Some(Ok(head)) => (HEAD_BYTES + head.length()).saturating_sub(buffer.len()).min(PACKET_BYTES),
        // It is refused once it is looked at.
        Some(Err(_)) => 0,
        None => (usual + usual / 4).min(PACKET_BYTES),
    };
    if buffer.capacity() - buffer.len() < missing.max(READ_ROOM_MIN) {
        buffer.reserve(missing.max(READ_BYTES));
    }
}

/// Takes one packet off the front, if all of it is there; says how long it was.
fn take_packet(buffer: &mut BytesMut, incoming: &mut Incoming) -> Result<Option<usize>, String> {
    let Some(head) = buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let head = Head::parse(head).map_err(|error| error.to_string())?;
    let length = HEAD_BYTES + head.length();
    if buffer.len() < length {
        return Ok(None);
    }
    buffer.advance(HEAD_BYTES);
    let body = buffer.split_to(head.length()).freeze();
    packet::decode_into(&head, body, incoming).map_err(|error| error.to_string())?;
    Ok(Some(length))
}

/// Why the other node would close the link over a packet from here.
fn objection_to<'a>(packet: impl Iterator<Item = &'a Bytes>, (other, own): (NodeId, NodeId)) -> Option<String> {
    let (mut bytes, mut frames) = (BytesMut::new(), Vec::new());
    packet.for_each(|piece| bytes.extend_from_slice(piece));
    match take_packet(&mut bytes, &mut frames) {
        Ok(_) => {
            let object = |(partition, frame): &_| speaker::objection(*partition, frame, (own, other));
            frames.iter().find_map(object).map(str::to_owned)
        }
        Err(why) => Some(why),
    }
}

/// About what a frame takes in a packet, and no less where it is long.
fn weight(frame: &Frame) -> usize {
    use partition::message::stored_bytes;
    use partition::peer::forward::Forward;
    use partition::{Command, Effect, PeerFrame};
    FRAME_BYTES_MIN
        + match frame {
            Frame::Group(PeerFrame::Raft(message)) => message.body_bytes(),
            Frame::Group(PeerFrame::ImagePart { bytes, .. }) => bytes.len(),
            Frame::Group(PeerFrame::MessagesPart { messages, .. }) => messages.iter().map(|(_, m)| m.len() + 16).sum(),
            Frame::Group(PeerFrame::HaveMissing(_, messages)) => {
                messages.iter().map(|(_, m)| m.as_ref().map_or(0, Bytes::len) + 16).sum()
            }
            Frame::Forward(Forward::Command(Command::Publish(publish))) => {
                stored_bytes(&publish.message) + 16 * publish.targets.len()
            }
            Frame::Forward(Forward::Effect(Effect::Deliver(delivery))) => delivery.message.len(),
            Frame::Forward(Forward::Ask { question: bytes, .. } | Forward::Answer { part: bytes, .. }) => bytes.len(),
            Frame::Forward(Forward::Propose { change, .. }) => change.len(),
            _ => 0,
        }
}

/// The pieces of packets on their way out.
#[derive(Default)]
struct Pieces(VecDeque<Bytes>);

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
    use tokio::io::AsyncWriteExt;

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
                while take_packet(&mut buffer, &mut taken).expect("sound").is_some() {}
                buffer.extend_from_slice(part);
            }
            assert_eq!(taken, frames, "cut at {cut}");
        }
        bytes[10] ^= 1;
        assert!(take_packet(&mut BytesMut::from(&bytes[..]), &mut Vec::new()).is_err());
    }

    #[test]
    fn a_read_goes_on_in_its_buffer_while_that_has_room_for_it_and_for_the_packet() {
        let begin = |buffer: &mut BytesMut, length: usize| {
            let mut head = packet::encode::<&Frame>([]).concat();
            head[..4].copy_from_slice(&(length as u32).to_le_bytes());
            buffer.extend_from_slice(&head);
            make_room(buffer, 0);
        };
        let mut buffer = BytesMut::new();
        make_room(&mut buffer, 0);
        let place = buffer.as_ptr();
        begin(&mut buffer, READ_BYTES / 2);
        assert_eq!(buffer.as_ptr(), place, "the packet fits it");
        buffer.resize(READ_BYTES - 2 * READ_ROOM_MIN, 0);
        let held = buffer.split().freeze();
        let rest = buffer.as_ptr();
        make_room(&mut buffer, 0);
        begin(&mut buffer, READ_ROOM_MIN);
        assert_eq!(buffer.as_ptr(), rest, "there is room for what comes");
        buffer.clear();
        begin(&mut buffer, READ_BYTES);
        assert!(buffer.capacity() >= READ_BYTES + HEAD_BYTES);
        assert_eq!(held[..4], ((READ_BYTES / 2) as u32).to_le_bytes(), "what others hold stays");
        // Who only says that much comes is not given memory for it.
        buffer.clear();
        begin(&mut buffer, 200 << 20);
        assert!(buffer.capacity() <= PACKET_BYTES + 2 * READ_BYTES, "{}", buffer.capacity());
    }

    #[test]
    fn where_packets_are_long_the_next_one_begins_where_it_fits() {
        let usual = READ_BYTES + READ_BYTES / 2;
        let mut buffer = BytesMut::new();
        make_room(&mut buffer, usual);
        for round in 0..10 {
            let place = buffer.as_ptr();
            let mut bytes = packet::encode::<&Frame>([]).concat();
            bytes[..4].copy_from_slice(&((usual - HEAD_BYTES) as u32).to_le_bytes());
            bytes.resize(usual, 0);
            // It comes in parts.
            for part in bytes.chunks(10_000) {
                buffer.extend_from_slice(part);
                make_room(&mut buffer, usual);
            }
            assert_eq!(buffer.as_ptr(), place, "nothing of packet {round} was copied");
            drop(buffer.split_to(usual).freeze());
            make_room(&mut buffer, usual);
        }
        let mut buffer = BytesMut::new();
        make_room(&mut buffer, 200 << 20);
        assert!(buffer.capacity() <= PACKET_BYTES + READ_BYTES, "{}", buffer.capacity());
    }

    #[test]
    fn pieces_go_out_in_order_however_much_is_taken() {
        let mut pieces = Pieces::default();
        pieces.0.extend([Bytes::from_static(b"abc"), Bytes::from_static(b"defg")]);
        let mut out = Vec::new();
        while pieces.has_remaining() {
            let count = pieces.chunk().len().min(2);
            out.extend_from_slice(&pieces.chunk()[..count]);
            pieces.advance(count);
        }
        assert_eq!(out, b"abcdefg");
    }

    #[test]
    fn what_the_socket_does_not_take_at_once_follows_as_soon_as_it_does() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("it is bound");
            let (here, there) = tokio::join!(TcpStream::connect(address), listener.accept());
            let outbox = Arc::<Outbox>::default();
            let (out, _reader) = link(here.expect("it connects"), None, outbox.clone(), (NodeId(2), NodeId(1)));
            let (mut there, _) = there.expect("it is accepted");
            let mut received = Vec::new();
            let shard = async {
                // Its task is asleep by then, and nobody else has anything to write.
                tokio::task::yield_now().await;
                let part = Bytes::from(vec![b'x'; 1 << 20]);
                for number in 0..16 {
                    let answer = Forward::Answer { number, part: part.clone(), is_last: true, is_refused: false };
                    outbox.put((PartitionId(0), Frame::Forward(answer)));
                }
                out.flush();
                while received.len() < 16 << 20 {
                    assert!(there.read_buf(&mut received).await.expect("it comes") > 0);
                }
            };
            tokio::select! {
                // Without signs of life, the next of which would move it on.
                why = out.write_on() => panic!("{why}"),
                () = tokio::time::sleep(LIFE_SIGN_EVERY * 20) => panic!("nothing moves it on"),
                () = shard => {}
            }
        });
    }

    #[test]
    fn what_came_while_this_side_stood_still_is_not_taken_in() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("it is bound");
            let (here, there) = tokio::join!(TcpStream::connect(address), listener.accept());
            let (out, reader) = link(here.expect("it connects"), None, Arc::default(), (NodeId(2), NodeId(1)));
            let (mut there, _) = there.expect("it is accepted");
            let said = packet::encode([(PartitionId(0), &Frame::Forward(Forward::Ping { number: 1 }))]).concat();
            there.write_all(&said).await.expect("it is sent");
            // It is there to be read, as after a SIGCONT.
            out.writer.as_ref().readable().await.expect("it came");
            out.turned.set(Instant::now().checked_sub(STOOD_STILL_AFTER).expect("the machine has run for as long"));
            let mut taken = 0;
            let why = out.run(reader, |incoming| taken += incoming.len()).await;
            assert_eq!((taken, why.starts_with("this node stood still for 1.")), (0, true), "{why}");
        });
    }
}
