//! The silence matrix: after ten seconds without any traffic one step of each kind, which has to
//! take no longer than it would in the middle of traffic. A wake-up that was not given cannot hide
//! behind the next one here, as there is no next one.
//!
//! Invariant: each cell has a broker of its own, and from the beginning of the silence to the end
//! of the step nobody says anything to it but the step itself. What falls due by itself is waited
//! for by a consumer that only listens.

use clients::broker::{is_foreign, unique};
use clients::matrix::{Matrix, Outcome, attempt, is_whole, side_by_side};
use clients::methods::*;
use clients::wire::Args;
use clients::{Broker, Client, End, Event, Properties, Publish, QueueDeclare, Value};
use std::time::{Duration, Instant};

const SILENCE_MS: u64 = 10_000;
/// What a step may take. A shard that did something is woken two seconds later by a timer of its
/// own, so a wake-up that was lost takes at least that long, or for ever.
const STEP_MAX: Duration = Duration::from_millis(1_500);
/// A machine that is busy with something else may be late once. A wake-up that is never given is
/// late each time.
const TRIES: usize = 2;
/// Queues of a cell: with two shards some of them are not on the connection's.
const QUEUES: usize = 3;
/// What falls due falls due at times of its own, or one would wake the thread for the other.
const DUE_APART_MS: u64 = 2_500;

/// The kinds of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Classic,
    Quorum,
    /// In memory.
    Transient,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Classic, Kind::Quorum, Kind::Transient];

    fn column(self, shards: usize) -> String {
        format!("{}, {shards} shards", format!("{self:?}").to_lowercase())
    }
}

/// One cell under way.
struct Cell {
    broker: Broker,
    client: Client,
    channel: u16,
    kind: Kind,
}

impl Cell {
    fn queue(&mut self, mut arguments: Vec<(&str, Value)>) -> String {
        let name = unique("silence");
        match self.kind {
            Kind::Classic => arguments.push(("x-queue-type", "classic".into())),
            Kind::Quorum => arguments.push(("x-queue-type", "quorum".into())),
            Kind::Transient => {}
        }
        let durable = self.kind != Kind::Transient;
        let declare = QueueDeclare { name: &name, durable, arguments, ..Default::default() };
        self.client.declare(self.channel, &declare).expect("a queue can be declared");
        name
    }

    fn queues(&mut self, arguments: &[(&str, Value)]) -> Vec<String> {
        (0..QUEUES).map(|_| self.queue(arguments.to_vec())).collect()
    }

    /// Puts a message into a queue and waits until it is there.
    fn fill(&mut self, queue: &str, properties: &Properties) {
        let channel = self.client.channel();
        self.client.confirm_select(channel).expect("confirm mode");
        let publish = Publish { key: queue, properties: properties.clone(), body: b"1", ..Default::default() };
        self.client.publish(channel, &publish);
        self.client.confirmed(channel, 1, 1);
    }

    fn put(&mut self, queue: &str) {
        let publish = Publish { key: queue, properties: Properties::persistent(), body: b"1", ..Default::default() };
        self.client.publish(self.channel, &publish);
    }

    /// A consumer on a channel of its own, of a queue that may have messages.
    fn consume(&mut self, queue: &str) -> u16 {
        let channel = self.client.channel();
        self.client.consume(channel, queue, "waits").expect("a consumer can attach");
        channel
    }

    fn silence(&self) {
        std::thread::sleep(Duration::from_millis(SILENCE_MS));
    }

    /// Waits for the next event of a channel.
    fn event(&mut self, channel: u16, what: &str) -> Result<Event, String> {
        self.client.event_within(channel, STEP_MAX * 4).ok_or_else(|| format!("{what}: nothing came"))
    }

    fn delivery(&mut self, channel: u16, what: &str) -> Outcome {
        match self.event(channel, what)? {
            Event::Delivery(_) => Ok(()),
            other => Err(format!("{what}: {other:?} instead of a delivery")),
        }
    }

    /// What fell due by itself must be told at `due`, and not later than a step takes.
    fn falls_due(&mut self, channel: u16, due: Instant, what: &str) -> Result<Event, String> {
        let left = due.saturating_duration_since(Instant::now());
        let event = self.client.event_within(channel, left + STEP_MAX * 4).ok_or(format!("{what}: nothing came"))?;
        in_time(due, what)?;
        Ok(event)
    }
}

fn in_time(since: Instant, what: &str) -> Outcome {
    match since.elapsed() {
        late if late > STEP_MAX => Err(format!("{what} took {} ms", late.as_millis())),
        _ => Ok(()),
    }
}

/// One kind of step.
struct Step {
    name: &'static str,
    kinds: &'static [Kind],
    /// RabbitMQ 3.10.8 has it.
    is_rabbitmqs: bool,
    run: fn(&mut Cell) -> Outcome,
}

const DURABLE: &[Kind] = &[Kind::Classic, Kind::Quorum];

const STEPS: &[Step] = &[
    Step { name: "publish, synced", kinds: DURABLE, is_rabbitmqs: true, run: |cell| publish(cell, &[]) },
    Step {
        name: "publish, written",
        kinds: DURABLE,
        is_rabbitmqs: false,
        run: |cell| publish(cell, &[("x-durability", "written".into())]),
    },
    Step { name: "publish, in memory", kinds: &[Kind::Transient], is_rabbitmqs: true, run: |cell| publish(cell, &[]) },
    Step { name: "publish to a consumer", kinds: &Kind::ALL, is_rabbitmqs: true, run: publish_to_consumer },
    Step { name: "get", kinds: &Kind::ALL, is_rabbitmqs: true, run: get },
    Step { name: "a consumer that comes", kinds: &Kind::ALL, is_rabbitmqs: true, run: consumer_comes },
    Step { name: "get from the disk", kinds: DURABLE, is_rabbitmqs: false, run: get_from_disk },
    Step { name: "a consumer that reads from the disk", kinds: DURABLE, is_rabbitmqs: false, run: consumer_reads },
    Step { name: "ack that makes room", kinds: &Kind::ALL, is_rabbitmqs: true, run: ack_makes_room },
    Step { name: "tx.commit", kinds: &Kind::ALL, is_rabbitmqs: true, run: commit },
    Step { name: "delete", kinds: &Kind::ALL, is_rabbitmqs: true, run: delete },
    Step { name: "dead letter of a reject", kinds: &Kind::ALL, is_rabbitmqs: true, run: reject },
    Step { name: "a connection that goes", kinds: &Kind::ALL, is_rabbitmqs: true, run: connection_goes },
    Step { name: "a message expires", kinds: &Kind::ALL, is_rabbitmqs: true, run: expires },
    Step { name: "x-delay falls due", kinds: &Kind::ALL, is_rabbitmqs: false, run: delay },
    Step { name: "x-expires", kinds: &Kind::ALL, is_rabbitmqs: false, run: queue_expires },
    Step { name: "a consumer's time-out", kinds: &Kind::ALL, is_rabbitmqs: false, run: consumer_timeout },
];

fn publish(cell: &mut Cell, arguments: &[(&str, Value)]) -> Outcome {
    let queues = cell.queues(arguments);
    cell.client.confirm_select(cell.channel).expect("confirm mode");
    cell.silence();
    for (queue, n) in queues.iter().zip(1..) {
        let since = Instant::now();
        cell.put(queue);
        cell.client.confirmed(cell.channel, n, n);
        in_time(since, "a confirm")?;
    }
    Ok(())
}

fn publish_to_consumer(cell: &mut Cell) -> Outcome {
    let queues = cell.queues(&[]);
    let channels: Vec<u16> = queues.iter().map(|queue| cell.consume(queue)).collect();
    cell.silence();
    for (queue, channel) in queues.iter().zip(channels) {
        let since = Instant::now();
        cell.put(queue);
        cell.delivery(channel, "a delivery")?;
        in_time(since, "a delivery")?;
    }
    Ok(())
}

fn filled(cell: &mut Cell, messages: usize) -> Vec<String> {
    let queues = cell.queues(&[]);
    for queue in &queues {
        (0..messages).for_each(|_| cell.fill(queue, &Properties::persistent()));
    }
    queues
}

fn get(cell: &mut Cell) -> Outcome {
    let queues = filled(cell, 1);
    gets(cell, &queues)
}

fn gets(cell: &mut Cell, queues: &[String]) -> Outcome {
    cell.silence();
    for queue in queues {
        let since = Instant::now();
        let got = cell.client.get(cell.channel, queue, true).expect("a get is answered");
        in_time(since, "a get")?;
        got.ok_or("the message is not there")?;
    }
    Ok(())
}

/// Queues with a message each that is in no memory: the broker was started anew behind it.
fn on_disk(cell: &mut Cell) -> Vec<String> {
    let queues = filled(cell, 1);
    cell.broker.restart(End::Terminated);
    cell.client = cell.broker.connect();
    cell.channel = cell.client.channel();
    queues
}

fn get_from_disk(cell: &mut Cell) -> Outcome {
    let queues = on_disk(cell);
    gets(cell, &queues)
}

fn consumer_reads(cell: &mut Cell) -> Outcome {
    let queues = on_disk(cell);
    first_messages(cell, &queues)
}

fn consumer_comes(cell: &mut Cell) -> Outcome {
    let queues = filled(cell, 1);
    first_messages(cell, &queues)
}

fn first_messages(cell: &mut Cell, queues: &[String]) -> Outcome {
    let channels: Vec<u16> = queues.iter().map(|_| cell.client.channel()).collect();
    cell.silence();
    for (queue, channel) in queues.iter().zip(channels) {
        let since = Instant::now();
        cell.client.consume(channel, queue, "comes").expect("a consumer can attach");
        cell.delivery(channel, "its first message")?;
        in_time(since, "its first message")?;
    }
    Ok(())
}

fn ack_makes_room(cell: &mut Cell) -> Outcome {
    let queues = filled(cell, 2);
    let mut channels = Vec::new();
    for queue in &queues {
        let channel = cell.client.channel();
        cell.client.qos(channel, 1, false).expect("a prefetch");
        cell.client.consume(channel, queue, "one").expect("a consumer can attach");
        cell.delivery(channel, "the first message")?;
        channels.push(channel);
    }
    cell.silence();
    for channel in channels {
        let since = Instant::now();
        cell.client.ack(channel, 1, false);
        cell.delivery(channel, "the next message")?;
        in_time(since, "the next message")?;
    }
    Ok(())
}

fn commit(cell: &mut Cell) -> Outcome {
    let queues = cell.queues(&[]);
    cell.client.call(cell.channel, TX_SELECT, &Args::new(), TX_SELECT_OK).expect("a transaction");
    cell.silence();
    for queue in &queues {
        let since = Instant::now();
        cell.put(queue);
        cell.client.call(cell.channel, TX_COMMIT, &Args::new(), TX_COMMIT_OK).expect("a commit");
        in_time(since, "a commit")?;
    }
    Ok(())
}

fn delete(cell: &mut Cell) -> Outcome {
    let queues = filled(cell, 1);
    cell.silence();
    for queue in &queues {
        let since = Instant::now();
        let count = cell.client.delete(cell.channel, queue, false, false).expect("a delete");
        in_time(since, "a delete")?;
        if count != 1 {
            return Err(format!("{count} messages were deleted"));
        }
    }
    Ok(())
}

/// Queues whose dead letters go to a queue of their own, and who listens there.
fn mortal(cell: &mut Cell, arguments: &[(&str, Value)]) -> Vec<(String, u16)> {
    let pair = |cell: &mut Cell| {
        let grave = cell.queue(Vec::new());
        let mut all = arguments.to_vec();
        all.push(("x-dead-letter-exchange", "".into()));
        all.push(("x-dead-letter-routing-key", grave.as_str().into()));
        (cell.queue(all), cell.consume(&grave))
    };
    (0..QUEUES).map(|_| pair(cell)).collect()
}

fn reject(cell: &mut Cell) -> Outcome {
    let queues = mortal(cell, &[]);
    let mut tags = Vec::new();
    for (queue, _) in &queues {
        cell.fill(queue, &Properties::persistent());
        tags.push(cell.client.get(cell.channel, queue, false).expect("a get").expect("a message").tag);
    }
    cell.silence();
    for ((_, grave), tag) in queues.iter().zip(tags) {
        let since = Instant::now();
        cell.client.reject(cell.channel, tag, false);
        cell.delivery(*grave, "a dead letter")?;
        in_time(since, "a dead letter")?;
    }
    Ok(())
}

fn connection_goes(cell: &mut Cell) -> Outcome {
    let queues = filled(cell, 1);
    let mut waiting = Vec::new();
    for queue in &queues {
        let mut other = cell.broker.connect();
        let channel = other.channel();
        other.get(channel, queue, false).expect("a get").expect("a message");
        waiting.push((other, cell.consume(queue)));
    }
    cell.silence();
    for (other, channel) in waiting {
        let since = Instant::now();
        drop(other);
        cell.delivery(channel, "what it held")?;
        in_time(since, "what it held")?;
    }
    Ok(())
}

/// When the thing with this number falls due, in milliseconds from now.
fn due_ms(n: usize) -> u64 {
    SILENCE_MS + n as u64 * DUE_APART_MS
}

fn expires(cell: &mut Cell) -> Outcome {
    let queues = mortal(cell, &[]);
    let mut due = Vec::new();
    for (n, (queue, grave)) in queues.iter().enumerate() {
        let ms = due_ms(n);
        cell.fill(queue, &Properties::persistent().with_expiration(&ms.to_string()));
        due.push((*grave, Instant::now() + Duration::from_millis(ms)));
    }
    due.into_iter().try_for_each(|(grave, at)| cell.falls_due(grave, at, "a dead letter").map(|_| ()))
}

fn delay(cell: &mut Cell) -> Outcome {
    let queues = cell.queues(&[]);
    let channels: Vec<u16> = queues.iter().map(|queue| cell.consume(queue)).collect();
    let mut due = Vec::new();
    for (n, (queue, channel)) in queues.iter().zip(channels).enumerate() {
        let ms = due_ms(n);
        cell.fill(queue, &Properties::with_headers(&[("x-delay", (ms as i32).into())]));
        due.push((channel, Instant::now() + Duration::from_millis(ms)));
    }
    due.into_iter().try_for_each(|(channel, at)| cell.falls_due(channel, at, "what was delayed").map(|_| ()))
}

fn queue_expires(cell: &mut Cell) -> Outcome {
    let told = cell.client.channel();
    let exclusive = QueueDeclare { name: "told", exclusive: true, ..Default::default() };
    cell.client.declare(told, &exclusive).expect("a queue can be declared");
    cell.client.bind(told, "told", "amq.rabbitmq.event", "queue.deleted", &[]).expect("a binding");
    cell.client.consume(told, "told", "told").expect("a consumer can attach");
    let mut due = Vec::new();
    for n in 0..QUEUES {
        let ms = due_ms(n);
        cell.queue(vec![("x-expires", (ms as i32).into())]);
        due.push(Instant::now() + Duration::from_millis(ms));
    }
    due.into_iter().try_for_each(|at| cell.falls_due(told, at, "the end of a queue").map(|_| ()))
}

fn consumer_timeout(cell: &mut Cell) -> Outcome {
    // The broker's limit is that of this cell: see `arguments`.
    let queues = filled(cell, 1);
    let mut due = Vec::new();
    for (n, queue) in queues.iter().enumerate() {
        let channel = cell.consume(queue);
        cell.delivery(channel, "the message that is held")?;
        due.push((channel, Instant::now() + Duration::from_millis(SILENCE_MS)));
        if n + 1 < queues.len() {
            std::thread::sleep(Duration::from_millis(DUE_APART_MS));
        }
    }
    // Who holds a message is looked at once an eighth of the time-out, and is late by two looks at
    // most.
    let looks = Duration::from_millis(SILENCE_MS / 4);
    for (channel, at) in due {
        match cell.falls_due(channel, at + looks, "the end of a consumer")? {
            Event::Cancelled(_) => {}
            other => return Err(format!("{other:?} instead of a cancel")),
        }
    }
    Ok(())
}

/// Tries a step on a fresh broker.
fn try_step(step: &Step, kind: Kind, shards: usize) -> Outcome {
    attempt(|| {
        let (shards, timeout) = (shards.to_string(), SILENCE_MS.to_string());
        let mut arguments = vec!["--shard-threads", &shards, "--event-exchange-vhost", "/"];
        if step.name == "a consumer's time-out" {
            arguments.extend(["--consumer-timeout-ms", &timeout]);
        }
        let broker = match is_foreign() {
            true => Broker::managed(&[]).map(|(broker, _)| broker).ok_or("MANAGEMENT does not name the API")?,
            false => Broker::own(&arguments),
        };
        let mut client = broker.connect();
        let channel = client.channel();
        (step.run)(&mut Cell { broker, client, channel, kind })
    })
}

#[test]
fn after_ten_seconds_without_traffic_each_step_takes_no_longer_than_ever() {
    // Shards are nothing that another broker has.
    let shards: &[usize] = if is_foreign() { &[1] } else { &[1, 2] };
    let kinds_of = |at: usize, step: &Step| match is_whole() {
        true => step.kinds.to_vec(),
        // One kind each, in turn.
        false => vec![step.kinds[at % step.kinds.len()]],
    };
    let columns = shards.iter().flat_map(|shards| Kind::ALL.map(|kind| kind.column(*shards)));
    let matrix = Matrix::new("silence", STEPS.iter().map(|step| step.name), columns, &[]);
    let mut jobs = Vec::new();
    for (at, step) in STEPS.iter().enumerate() {
        for shards in shards {
            for kind in Kind::ALL {
                let is_asked = kinds_of(at + shards, step).contains(&kind) && (step.is_rabbitmqs || !is_foreign());
                match is_asked {
                    true => jobs.push((step, kind, *shards)),
                    false => matrix.leave_out(step.name, &kind.column(*shards)),
                }
            }
        }
    }
    // Brokers that are silent cost nothing: they share the one silence.
    side_by_side(
        jobs.len().min(30),
        jobs,
        |_| (),
        |(), (step, kind, shards)| {
            let mut outcome = Ok(());
            for _ in 0..TRIES {
                outcome = try_step(step, kind, shards);
                if outcome.is_ok() {
                    break;
                }
            }
            matrix.record(step.name, &kind.column(shards), outcome);
        },
    );
    matrix.finish();
}
