//! One thread of load: sockets, timers, and who may go on.
//!
//! Invariant: the loop never waits for anything but its sockets and its timers. A broker that
//! stalls therefore stalls nobody's schedule: what fell due meanwhile is sent late and counted
//! late.

mod arrivals;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use amqp::wire::frame::HEARTBEAT;
use amqp::wire::method::Method;
use bytes::Bytes;
use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::connection::Link;
use super::consumer::{Consumer, ConsumerSettings};
use super::producer::{Producer, ProducerSettings, Waits};
use super::tally::{Books, Final, Sample, Side};
use super::{Connector, Control, Gauges, Phase, Ready};
use crate::clock::{Clock, SECOND};
use crate::plan::ConnectionPlan;

/// Messages that fall due within this time go together: at 20,000 a second and more the loop need
/// not run for each.
const TOGETHER_NS: u64 = 50_000;

/// How often a thread looks at what nobody wakes it for: the phase, lost connections, heartbeats,
/// confirms that are overdue.
const TICK_NS: u64 = 20_000_000;

/// Events of one wait.
const EVENTS_MAX: usize = 256;

/// The timer's place among the sockets.
const TIMER_TOKEN: u64 = u64::MAX;

/// Everything that a thread is given.
#[derive(Debug)]
pub struct WorkerSettings {
    /// Its number among the run's threads.
    pub thread: usize,
    /// Which side it is on.
    pub side: Side,
    /// The run's clock.
    pub clock: Clock,
    /// When the load starts.
    pub start_ns: u64,
    /// Length of a sample.
    pub interval_ns: u64,
    /// Publishers that are measured each for itself, and when their messages are handed to the
    /// socket; 0 is none.
    pub stages: usize,
    /// Producers, if this is their side.
    pub producer: Arc<ProducerSettings>,
    /// Consumers, if this is theirs.
    pub consumer: Arc<ConsumerSettings>,
    /// Seconds until a lost connection is made again; `None` ends the run.
    pub recovery_secs: Option<(f64, f64)>,
    /// When each consumer starts, after the start; by its place on this thread.
    pub consumer_starts_ns: Vec<u64>,
    /// When each producer starts, after the start; by its channel's place on this thread.
    pub producer_starts_ns: Vec<u64>,
}

#[derive(Debug)]
enum Role {
    Producers(Vec<Producer>),
    Consumers(Vec<Consumer>),
}

#[derive(Debug)]
struct Connection {
    at: usize,
    plan: ConnectionPlan,
    role: Role,
    link: Option<Link>,
    attempt: u32,
    start_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Channel(u16),
    Start,
    Reconnect,
}

/// What an attempt to connect again came to, and for which connection.
type Reconnected = (usize, Result<Ready, String>);

/// One thread of load.
pub struct Worker {
    settings: WorkerSettings,
    control: Arc<Control>,
    gauges: Arc<Gauges>,
    samples: Sender<(usize, Box<Sample>)>,
    connector: Connector,
    names: Vec<String>,
    connections: Vec<Connection>,
    timers: BinaryHeap<Reverse<(u64, usize, Timer)>>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer goes off next; 0 once it has.
    timer_at: u64,
    sample: Sample,
    books: Books,
    returned: (Sender<Reconnected>, Receiver<Reconnected>),
    next_tick: u64,
    /// Published, confirmed and received before this sample.
    before: (u64, u64, u64),
    /// Since when the broker holds back a publishing connection, as far as it is not in the sample
    /// yet.
    held_back_since: Option<u64>,
    /// Confirmed and received, when that last changed.
    events: u64,
}

impl Worker {
    /// A thread with these connections of the plan, already set up.
    pub fn new(
        settings: WorkerSettings,
        connections: Vec<(usize, ConnectionPlan, Ready)>,
        names: Vec<String>,
        (control, gauges): (Arc<Control>, Arc<Gauges>),
        samples: Sender<(usize, Box<Sample>)>,
        connector: Connector,
    ) -> Result<Worker, crate::Error> {
        let machine = |why: rustix::io::Errno| crate::Error::machine("setting up an event loop", why);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(machine)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(machine)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER_TOKEN), epoll::EventFlags::IN).map_err(machine)?;
        let sample = Sample::new(0, settings.side, settings.stages, steps_of(&settings));
        let mut worker = Worker {
            control,
            gauges,
            samples,
            connector,
            names,
            connections: Vec::new(),
            timers: BinaryHeap::new(),
            epoll,
            timer,
            timer_at: 0,
            sample,
            books: Books::default(),
            returned: channel(),
            next_tick: 0,
            before: (0, 0, 0),
            held_back_since: None,
            events: 0,
            settings,
        };
        for (at, plan, ready) in connections {
            worker.add(at, plan, ready)?;
        }
        Ok(worker)
    }

    fn add(&mut self, at: usize, plan: ConnectionPlan, ready: Ready) -> Result<(), crate::Error> {
        let start = self.settings.start_ns;
        let place = self.connections.len();
        let (role, start_ns) = match &plan {
            ConnectionPlan::Producer(channels) => {
                let before: usize = self.connections.iter().map(|c| c.channel_count()).sum();
                let of = |(i, plan): (usize, &crate::plan::ProducerPlan)| {
                    let offset = self.settings.producer_starts_ns.get(before + i).copied().unwrap_or(0);
                    Producer::new(Arc::clone(&self.settings.producer), plan, i as u16 + 1, start, offset)
                };
                (Role::Producers(channels.iter().enumerate().map(of).collect()), start)
            }
            ConnectionPlan::Consumer(channels) => {
                let settings = &self.settings.consumer;
                let of = |(i, plan)| Consumer::new(Arc::clone(settings), plan, i as u16 + 1, start);
                let delay = self.settings.consumer_starts_ns.get(place).copied().unwrap_or(0);
                (Role::Consumers(channels.iter().enumerate().map(of).collect()), start + delay)
            }
        };
        self.connections.push(Connection { at, plan, role, link: None, attempt: 0, start_ns });
        self.attach(place, ready).map_err(|why| crate::Error::machine("handing a socket to its event loop", why))
    }

    /// A socket is ready for its connection: at the start, or again.
    fn attach(&mut self, place: usize, ready: Ready) -> std::io::Result<()> {
        let now = self.settings.clock.now();
        for (queue, name) in &ready.names {
            self.names[*queue as usize].clone_from(name);
        }
        let link = Link::new(ready, self.settings.stages > 0, now)?;
        epoll::add(&self.epoll, &link.stream, epoll::EventData::new_u64(place as u64), epoll::EventFlags::IN)?;
        let connection = &mut self.connections[place];
        connection.link = Some(link);
        self.timers.push(Reverse((connection.start_ns.max(now), place, Timer::Start)));
        Ok(())
    }

    /// Runs until the run is over.
    pub fn run(mut self) -> Final {
        let mut buffer = Vec::new();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        for place in 0..self.connections.len() {
            let leftover = self.connections[place].link.as_mut().map(Link::take_leftover).unwrap_or_default();
            if !leftover.is_empty() {
                self.take_frames(place, &leftover);
            }
        }
        loop {
            let now = self.settings.clock.now();
            self.run_timers(now);
            if now >= self.next_tick {
                self.tick(now);
                self.next_tick = now + TICK_NS;
            }
            self.roll_sample(now);
            self.publish_gauges(now);
            if self.control.phase() == Phase::Ending {
                return self.finish();
            }
            self.wait(&mut events);
            for event in events.drain(..) {
                let token = event.data.u64();
                if token == TIMER_TOKEN {
                    let mut expirations = [0; 8];
                    let _ = rustix::io::read(&self.timer, &mut expirations);
                    self.timer_at = 0;
                    continue;
                }
                self.on_socket(token as usize, event.flags, &mut buffer);
            }
        }
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>) {
        let now = self.settings.clock.now();
        let first = self.timers.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at).min(self.next_tick);
        let sample_end = self.settings.start_ns + (self.sample.index + 1) * self.settings.interval_ns;
        let first = first.min(sample_end);
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if first <= now {
            Some(&zero)
        } else {
            self.set_timer(first, now);
            None
        };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(why) => self.control.fail(format!("waiting for sockets: {why}")),
        }
    }

    /// A timer of its own: epoll's waits in milliseconds. One that goes off early enough already is
    /// left as it is: with writers that wait for each confirm, setting it again would be a system
    /// call a message.
    fn set_timer(&mut self, first: u64, now: u64) {
        let at = first.max(now + TOGETHER_NS);
        if self.timer_at != 0 && self.timer_at <= at {
            return;
        }
        self.timer_at = at;
        let wait = at - now;
        let value = Timespec { tv_sec: (wait / SECOND) as i64, tv_nsec: (wait % SECOND) as _ };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }

    fn run_timers(&mut self, now: u64) {
        // What falls due while this runs waits for the next turn, so that sockets get theirs.
        while let Some(&Reverse((at, place, timer))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Channel(channel) => self.on_channel_timer(place, channel, now),
                Timer::Start => self.start(place, now),
                Timer::Reconnect => self.reconnect(place),
            }
        }
    }

    fn start(&mut self, place: usize, now: u64) {
        let connection = &mut self.connections[place];
        let Some(link) = &mut connection.link else { return };
        match &mut connection.role {
            Role::Producers(_) => self.pump(place, now),
            Role::Consumers(consumers) => {
                consumers.iter_mut().filter(|c| !c.is_started).for_each(|c| c.start(link, &self.names));
                self.flush(place);
            }
        }
    }

    fn on_channel_timer(&mut self, place: usize, channel: u16, now: u64) {
        let connection = &mut self.connections[place];
        match &mut connection.role {
            Role::Producers(producers) => {
                producers[usize::from(channel) - 1].timer_set = false;
                self.pump_one(place, usize::from(channel) - 1, now);
                self.flush(place);
            }
            Role::Consumers(consumers) => {
                let consumer = &mut consumers[usize::from(channel) - 1];
                consumer.timer_set = false;
                let Some(link) = &mut connection.link else { return };
                if let Some(again) = consumer.on_time(link, &self.names, &mut self.sample, now) {
                    consumer.timer_set = true;
                    self.timers.push(Reverse((again, place, Timer::Channel(channel))));
                }
                self.flush(place);
            }
        }
    }

    /// Lets all producers of a connection go on.
    fn pump(&mut self, place: usize, now: u64) {
        for at in 0..self.connections[place].channel_count() {
            self.pump_one(place, at, now);
        }
        self.flush(place);
    }

    fn pump_one(&mut self, place: usize, at: usize, now: u64) {
        let connection = &mut self.connections[place];
        let (Role::Producers(producers), Some(link)) = (&mut connection.role, &mut connection.link) else { return };
        let producer = &mut producers[at];
        if now < self.settings.start_ns {
            return;
        }
        match producer.pump(link, &mut self.sample, now) {
            Waits::Until(u64::MAX) | Waits::ForTheBroker | Waits::Done => {}
            Waits::Until(due) => {
                if !producer.timer_set {
                    producer.timer_set = true;
                    self.timers.push(Reverse((due, place, Timer::Channel(producer.channel))));
                }
            }
            Waits::ForItsTurn => {
                if !producer.timer_set {
                    producer.timer_set = true;
                    self.timers.push(Reverse((now, place, Timer::Channel(producer.channel))));
                }
            }
        }
    }

    fn flush(&mut self, place: usize) {
        let clock = self.settings.clock;
        let connection = &mut self.connections[place];
        let Some(link) = &mut connection.link else { return };
        if !link.has_unwritten() {
            return;
        }
        let waited = link.waits_for_room;
        link.last_write_ns = clock.now();
        let result = link.flush(&mut self.sample, || clock.now());
        let waits = link.waits_for_room;
        if waits != waited {
            let flags = if waits { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let _ = epoll::modify(&self.epoll, &link.stream, epoll::EventData::new_u64(place as u64), flags);
        }
        if let Err(why) = result {
            self.lose(place, &why.to_string());
        } else if waited && !waits {
            self.go_on(place);
        }
    }

    /// There is room again on a connection: whoever was turned away for the lack of it has its turn
    /// next. No event would tell them, whoever made the room.
    fn go_on(&mut self, place: usize) {
        let now = self.settings.clock.now();
        let Role::Producers(producers) = &mut self.connections[place].role else { return };
        for producer in producers.iter_mut().filter(|producer| !producer.timer_set) {
            producer.timer_set = true;
            self.timers.push(Reverse((now, place, Timer::Channel(producer.channel))));
        }
    }

    fn on_socket(&mut self, place: usize, flags: epoll::EventFlags, buffer: &mut Vec<u8>) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(place);
        }
        let Some(link) = &mut self.connections[place].link else { return };
        match link.fill(buffer, &mut self.sample) {
            Ok(Some(0)) => {}
            Ok(Some(count)) => {
                let filled = std::mem::take(buffer);
                self.take_frames(place, &filled[..count]);
                *buffer = filled;
            }
            Ok(None) => self.lose(place, "the broker closed the connection"),
            Err(why) => self.lose(place, &why.to_string()),
        }
    }

    /// A connection is gone.
    fn lose(&mut self, place: usize, why: &str) {
        let connection = &mut self.connections[place];
        let Some(link) = connection.link.take() else { return };
        let now = self.settings.clock.now();
        if let Some(since) = link.blocked_since {
            self.sample.counts.blocked_ns += now.saturating_sub(since);
        }
        let _ = epoll::delete(&self.epoll, &link.stream);
        match &mut connection.role {
            Role::Producers(producers) => producers.iter_mut().for_each(Producer::lost),
            Role::Consumers(consumers) => consumers.iter_mut().for_each(Consumer::lost),
        }
        if self.control.phase() == Phase::Ending {
            return;
        }
        self.sample.counts.connections_lost += 1;
        match self.settings.recovery_secs {
            None => self.control.fail(format!("a connection was lost: {why}")),
            Some(range) => {
                let wait = pause(range, place as u64 + u64::from(connection.attempt) * 7919);
                self.timers.push(Reverse((now + wait, place, Timer::Reconnect)));
            }
        }
    }

    /// Connects again, on a thread of its own: a connection attempt may take its time.
    fn reconnect(&mut self, place: usize) {
        let connection = &mut self.connections[place];
        connection.attempt += 1;
        let (at, plan, attempt) = (connection.at, connection.plan.clone(), connection.attempt);
        let connector = Arc::clone(&self.connector);
        let sender = self.returned.0.clone();
        std::thread::spawn(move || {
            let result = connector.connect(at, &plan, attempt).map_err(|why| why.to_string());
            // The run may have ended meanwhile; then nobody wants the socket.
            let _ = sender.send((place, result));
        });
    }

    fn tick(&mut self, now: u64) {
        while let Ok((place, result)) = self.returned.1.try_recv() {
            match result {
                Ok(ready) => {
                    self.connections[place].start_ns = self.settings.start_ns;
                    if let Err(why) = self.attach(place, ready) {
                        self.control.fail(format!("handing a socket to its event loop: {why}"));
                        continue;
                    }
                    let leftover = self.connections[place].link.as_mut().map(Link::take_leftover).unwrap_or_default();
                    self.take_frames(place, &leftover);
                }
                Err(_) => {
                    let range = self.settings.recovery_secs.unwrap_or((1.0, 1.0));
                    let wait = pause(range, place as u64 + u64::from(self.connections[place].attempt) * 7919);
                    self.timers.push(Reverse((now + wait, place, Timer::Reconnect)));
                }
            }
        }
        let is_draining = self.control.phase() != Phase::Running;
        for place in 0..self.connections.len() {
            let connection = &mut self.connections[place];
            if let Role::Producers(producers) = &mut connection.role {
                if is_draining {
                    producers.iter_mut().for_each(Producer::stop);
                }
                if let Some(late) = producers.iter().find_map(|producer| producer.overdue(now)) {
                    self.control.fail(format!("a message is unconfirmed for {:.1} s", late as f64 / SECOND as f64));
                }
            }
            let Some(link) = &mut connection.link else { continue };
            link.look_whether_read(now);
            let heartbeat_ns = u64::from(link.limits.heartbeat_secs) * SECOND;
            if heartbeat_ns > 0 && now.saturating_sub(link.last_write_ns) > heartbeat_ns / 2 {
                link.output.extend_from_slice(&HEARTBEAT);
                self.flush(place);
            }
        }
        self.look_who_is_held_back(now);
        if is_draining && self.is_quiet(now) {
            self.ack_rest();
        }
        self.publish_channel_gauges();
    }

    /// Whether the broker holds back somebody who publishes, and why. Once nothing more is to be
    /// sent, nobody is held back.
    fn look_who_is_held_back(&mut self, now: u64) {
        if self.settings.side != Side::Producing {
            return;
        }
        let mut is_held_back = false;
        if self.control.phase() == Phase::Running {
            for why in self.connections.iter().filter_map(|c| c.link.as_ref()?.held_back_why(now)) {
                is_held_back = true;
                crate::record::add_reason(&mut self.sample.held_back_why, why);
            }
        }
        if !is_held_back {
            self.enter_held_back(now);
            self.held_back_since = None;
        } else if self.held_back_since.is_none() {
            // What a broker says before the load starts counts from its start.
            self.held_back_since = Some(now.max(self.settings.start_ns));
            self.sample.held_back_times += 1;
        }
    }

    /// Enters what the broker held back until `now` into the sample, so that an interval tells it
    /// while it goes on.
    fn enter_held_back(&mut self, now: u64) {
        if let Some(since) = &mut self.held_back_since {
            self.sample.held_back_ns += now.saturating_sub(*since);
            *since = now.max(*since);
        }
        for link in self.connections.iter_mut().filter_map(|connection| connection.link.as_mut()) {
            if let Some(since) = &mut link.blocked_since {
                self.sample.counts.blocked_ns += now.saturating_sub(*since);
                *since = now.max(*since);
            }
        }
    }

    /// Nothing came for a while.
    fn is_quiet(&self, now: u64) -> bool {
        now.saturating_sub(self.gauges.last_event_ns.load(Ordering::Relaxed)) > SECOND / 5
    }

    /// Multi-ack holds acks back; at the end the rest is acked, or it would be delivered again.
    fn ack_rest(&mut self) {
        for place in 0..self.connections.len() {
            let connection = &mut self.connections[place];
            if let (Role::Consumers(consumers), Some(link)) = (&mut connection.role, &mut connection.link) {
                consumers.iter_mut().for_each(|consumer| consumer.ack_rest(link));
                self.flush(place);
            }
        }
    }

    fn roll_sample(&mut self, now: u64) {
        let index = now.saturating_sub(self.settings.start_ns) / self.settings.interval_ns;
        if index > self.sample.index {
            self.enter_held_back((self.settings.start_ns + index * self.settings.interval_ns).min(now));
            let next = Sample::new(index, self.settings.side, self.settings.stages, steps_of(&self.settings));
            let mut done = std::mem::replace(&mut self.sample, next);
            done.cpu_ns = thread_cpu_ns();
            let (published, confirmed, received) = self.before;
            self.before =
                (published + done.counts.published, confirmed + done.counts.confirmed, received + done.counts.received);
            let _ = self.samples.send((self.settings.thread, Box::new(done)));
            // The reason belongs to the new sample too.
            self.look_who_is_held_back(now);
        }
    }

    fn publish_gauges(&mut self, now: u64) {
        let store = |gauge: &std::sync::atomic::AtomicU64, value| gauge.store(value, Ordering::Relaxed);
        let events = self.before.1 + self.sample.counts.confirmed + self.before.2 + self.sample.counts.received;
        if events != self.events {
            self.events = events;
            store(&self.gauges.last_event_ns, now);
        }
        store(&self.gauges.published, self.before.0 + self.sample.counts.published);
        store(&self.gauges.confirmed, self.before.1 + self.sample.counts.confirmed);
        store(&self.gauges.received, self.before.2 + self.sample.counts.received);
    }

    /// The counters that need a look at every channel; with thousands of them that is not for every
    /// loop.
    fn publish_channel_gauges(&mut self) {
        let (mut outstanding, mut unsettled, mut done, mut lost) = (0, 0, 0, 0);
        for connection in &self.connections {
            lost += u64::from(connection.link.is_none());
            match &connection.role {
                Role::Producers(producers) => {
                    outstanding += producers.iter().map(Producer::outstanding).sum::<u64>();
                    outstanding += connection.link.as_ref().map_or(0, |link| u64::from(link.pending() > 0));
                    done += producers.iter().filter(|producer| producer.is_done()).count() as u64;
                }
                Role::Consumers(consumers) => {
                    unsettled += consumers.iter().map(Consumer::unsettled).sum::<u64>();
                    done += consumers.iter().filter(|consumer| consumer.is_done()).count() as u64;
                }
            }
        }
        let store = |gauge: &std::sync::atomic::AtomicU64, value| gauge.store(value, Ordering::Relaxed);
        store(&self.gauges.outstanding, outstanding);
        store(&self.gauges.unacked, unsettled);
        store(&self.gauges.done_channels, done);
        store(&self.gauges.lost_connections, lost);
    }

    fn finish(mut self) -> Final {
        self.ack_rest();
        self.enter_held_back(self.settings.clock.now());
        let mut sample = std::mem::replace(&mut self.sample, Sample::new(u64::MAX, self.settings.side, 0, (0, 0)));
        sample.cpu_ns = thread_cpu_ns();
        let _ = self.samples.send((self.settings.thread, Box::new(sample)));
        let mut finals = Final { publishers: Vec::new(), books: self.books };
        for connection in &mut self.connections {
            if let Some(link) = &mut connection.link {
                let text = Bytes::from_static(b"done");
                let close = Method::ConnectionClose { reply_code: 200, reply_text: text, class_id: 0, method_id: 0 };
                close.write(&mut link.output, 0);
                let mut unseen = Sample::new(u64::MAX, self.settings.side, 0, (0, 0));
                let _ = link.flush(&mut unseen, || 0);
                link.stream.end();
            }
        }
        for connection in self.connections {
            if let Some(mut link) = connection.link {
                wait_for_the_end(&mut link);
            }
            match connection.role {
                Role::Producers(producers) => finals.publishers.extend(producers.into_iter().map(Producer::finish)),
                Role::Consumers(consumers) => {
                    finals.books.given_back += consumers.iter().map(Consumer::given_back).sum::<u64>();
                }
            }
        }
        finals
    }
}

impl Connection {
    fn channel_count(&self) -> usize {
        match &self.role {
            Role::Producers(producers) => producers.len(),
            Role::Consumers(consumers) => consumers.len(),
        }
    }
}

/// Reads until the broker has closed too, so that it does not find a reset connection. Half a
/// second at most.
fn wait_for_the_end(link: &mut Link) {
    use std::io::Read as _;
    let _ = link.stream.socket().set_nonblocking(false);
    let _ = link.stream.socket().set_read_timeout(Some(Duration::from_millis(500)));
    let mut sink = vec![0; 64 * 1024];
    while matches!(link.stream.read(&mut sink), Ok(count) if count > 0) {}
}

/// A wait within a range, different for each connection and attempt but not random: a run can be
/// repeated.
fn pause((low, high): (f64, f64), salt: u64) -> u64 {
    let share = (salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / f64::from(1u32 << 24);
    ((low + (high - low) * share) * SECOND as f64) as u64
}

/// How many sizes of bodies, and rates, the samples of this thread tell apart.
fn steps_of(settings: &WorkerSettings) -> (usize, usize) {
    let consumer = &settings.consumer;
    match settings.side {
        Side::Producing => (0, 0),
        Side::Consuming => (consumer.sizes.len(), consumer.rates.as_ref().map_or(0, |(rates, _)| rates.len())),
    }
}

fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}
