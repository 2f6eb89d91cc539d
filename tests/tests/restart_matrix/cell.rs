//! One cell of the matrix: its queue type, how it looks at messages, its own names, and a
//! connection while the broker runs.

use std::time::{Duration, Instant};

use clients::matrix::Outcome;
use clients::wire::Properties;
use clients::{Client, Delivery, End, Event, ExchangeDeclare, Http, Publish, QueueDeclare, Value};

/// How long anything that must come may take. Shorter than elsewhere, as a bad build has many cells
/// that wait in vain.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The queue types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Classic,
    Quorum,
}

impl Kind {
    pub(crate) const ALL: [Kind; 2] = [Kind::Classic, Kind::Quorum];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Classic => "classic",
            Kind::Quorum => "quorum",
        }
    }
}

/// How messages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Get,
    Consumer,
}

impl By {
    pub(crate) const ALL: [By; 2] = [By::Get, By::Consumer];

    pub(crate) fn word(self) -> &'static str {
        match self {
            By::Get => "get",
            By::Consumer => "consumer",
        }
    }
}

/// A message to publish.
pub(crate) type ToPut<'a> = (&'a str, Properties);

/// One cell.
pub(crate) struct Cell<'a> {
    pub(crate) http: &'a Http,
    pub(crate) kind: Kind,
    pub(crate) by: By,
    number: usize,
    end: End,
    /// Which restart lies behind: 0 while things are prepared.
    pub(crate) round: u32,
    client: Option<Client>,
    addr: Option<std::net::SocketAddr>,
}

/// `Ok` if it is so, otherwise a sentence that begins with what was looked at.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Outcome {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, where {wanted:?} was due")) }
}

pub(crate) fn bodies(found: &[Delivery]) -> Vec<String> {
    found.iter().map(|d| String::from_utf8_lossy(&d.body).into_owned()).collect()
}

impl<'a> Cell<'a> {
    pub(crate) fn new(http: &'a Http, end: End, kind: Kind, by: By, number: usize) -> Cell<'a> {
        Cell { http, kind, by, number, end, round: 0, client: None, addr: None }
    }

    pub(crate) fn connect(&mut self, addr: std::net::SocketAddr) {
        self.addr = Some(addr);
        self.client = Some(Client::connect(addr));
    }

    pub(crate) fn disconnect(&mut self) -> Option<Client> {
        self.client.take()
    }

    pub(crate) fn addr(&self) -> std::net::SocketAddr {
        self.addr.unwrap()
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        self.client.as_mut().expect("a cell is connected while it is tried")
    }

    /// A name of this cell alone, the same in every round.
    pub(crate) fn name(&self, stem: &str) -> String {
        // RabbitMQ is one broker for both ends.
        let (end, kind, by) = (self.end, self.kind.word(), self.by.word());
        format!("{stem}-{}-{}-{end:?}-{kind}-{by}", std::process::id(), self.number)
    }

    /// Declares the cell's durable queue `stem` with more arguments.
    pub(crate) fn declare(&mut self, stem: &str, arguments: &[(&str, Value)]) -> Result<String, String> {
        let name = self.name(stem);
        let mut all = vec![("x-queue-type", Value::from(self.kind.word()))];
        all.extend(arguments.iter().cloned());
        let declare = QueueDeclare { name: &name, durable: true, arguments: all, ..Default::default() };
        let client = self.client();
        let channel = client.channel();
        client.declare(channel, &declare).map_err(|closed| format!("declare {name}: {closed:?}"))?;
        client.close_channel(channel);
        Ok(name)
    }

    pub(crate) fn declare_exchange(
        &mut self,
        stem: &str,
        kind: &str,
        arguments: &[(&str, Value)],
    ) -> Result<String, String> {
        let name = self.name(stem);
        let (durable, arguments) = (true, arguments.to_vec());
        let declare = ExchangeDeclare { name: &name, kind, durable, arguments, ..Default::default() };
        let client = self.client();
        let channel = client.channel();
        client.declare_exchange(channel, &declare).map_err(|closed| format!("declare {name}: {closed:?}"))?;
        client.close_channel(channel);
        Ok(name)
    }

    pub(crate) fn bind(&mut self, queue: &str, exchange: &str, key: &str, arguments: &[(&str, Value)]) -> Outcome {
        let client = self.client();
        let channel = client.channel();
        client.bind(channel, queue, exchange, key, arguments).map_err(|closed| format!("bind {queue}: {closed:?}"))?;
        client.close_channel(channel);
        Ok(())
    }

    /// Publishes to an exchange, with confirms; the numbers, from 1, of those that were refused.
    pub(crate) fn publish(&mut self, exchange: &str, key: &str, messages: &[ToPut<'_>]) -> Result<Vec<u64>, String> {
        let client = self.client();
        let channel = client.channel();
        client.confirm_select(channel).map_err(|closed| format!("{closed:?}"))?;
        for (body, properties) in messages {
            let (properties, body) = (properties.clone(), body.as_bytes());
            client.publish(channel, &Publish { exchange, key, properties, body, ..Default::default() });
        }
        let (mut open, mut refused): (std::collections::BTreeSet<u64>, _) =
            ((1..=messages.len() as u64).collect(), Vec::new());
        while !open.is_empty() {
            match client.event_within(channel, PATIENCE) {
                Some(Event::Confirm { tag, multiple, nack }) => {
                    let done: Vec<u64> =
                        open.iter().copied().filter(|seq| *seq == tag || (multiple && *seq < tag)).collect();
                    done.iter().for_each(|seq| _ = open.remove(seq));
                    refused.extend(done.into_iter().filter(|_| nack));
                }
                other => return Err(format!("confirms were due, got {other:?}")),
            }
        }
        client.close_channel(channel);
        refused.sort_unstable();
        Ok(refused)
    }

    /// Publishes persistent messages to a queue; none may be refused.
    pub(crate) fn put(&mut self, queue: &str, bodies: &[&str]) -> Outcome {
        let messages: Vec<ToPut<'_>> = bodies.iter().map(|body| (*body, Properties::persistent())).collect();
        self.put_as(queue, &messages)
    }

    pub(crate) fn put_as(&mut self, queue: &str, messages: &[ToPut<'_>]) -> Outcome {
        let refused = self.publish("", queue, messages)?;
        same("refused publishes", refused, Vec::new())
    }

    /// The next `count` messages of a queue, unacked, on a channel of their own. There may be no
    /// more than that.
    pub(crate) fn held(&mut self, queue: &str, count: usize) -> Result<(u16, Vec<Delivery>), String> {
        let by = self.by;
        let client = self.client();
        let channel = client.channel();
        let mut found = Vec::new();
        if by == By::Consumer {
            client.consume(channel, queue, "look").map_err(|closed| format!("consume {queue}: {closed:?}"))?;
        }
        while found.len() < count {
            if by == By::Get {
                match get(client, channel, queue)? {
                    Some(delivery) => found.push(delivery),
                    None => return Err(format!("{queue} has {:?} and no more, {count} were due", bodies(&found))),
                }
                continue;
            }
            match client.event_within(channel, PATIENCE) {
                Some(Event::Delivery(delivery)) => found.push(delivery),
                None => return Err(format!("{queue} gave {:?} and no more, {count} were due", bodies(&found))),
                other => return Err(format!("a delivery of {queue} was due, got {other:?}")),
            }
        }
        let more = match by {
            By::Get => get(client, channel, queue)?,
            By::Consumer => {
                client.cancel(channel, "look").map_err(|closed| format!("{closed:?}"))?;
                match client.event_within(channel, Duration::ZERO) {
                    Some(Event::Delivery(delivery)) => Some(delivery),
                    _ => None,
                }
            }
        };
        match more {
            Some(more) => Err(format!("{queue} has {:?} too, behind {:?}", bodies(&[more]), bodies(&found))),
            None => Ok((channel, found)),
        }
    }

    /// What is in a queue, `count` messages; it stays there.
    pub(crate) fn look(&mut self, queue: &str, count: usize) -> Result<Vec<Delivery>, String> {
        let (channel, found) = self.held(queue, count)?;
        self.client().close_channel(channel);
        Ok(found)
    }

    /// A queue holds messages with these bodies, in this order, and nothing else. They stay there.
    pub(crate) fn holds(&mut self, queue: &str, wanted: &[&str]) -> Outcome {
        let found = self.look(queue, wanted.len())?;
        same(queue, bodies(&found), wanted.iter().map(|body| (*body).to_owned()).collect())
    }

    /// As [`holds`](Self::holds), once it does: something is still on its way.
    pub(crate) fn comes_to_hold(&mut self, queue: &str, wanted: &[&str]) -> Outcome {
        let due = Instant::now() + PATIENCE;
        loop {
            let client = self.client();
            let channel = client.channel();
            let counts = client.counts(channel, queue).map_err(|closed| format!("{queue}: {closed:?}"))?;
            client.close_channel(channel);
            if counts.0 as usize == wanted.len() || Instant::now() > due {
                return self.holds(queue, wanted);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until `is_so`.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) -> Outcome {
        let due = Instant::now() + PATIENCE * 2;
        while !is_so(self) {
            if Instant::now() > due {
                return Err(format!("{what} does not come"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Takes the first `count` messages and settles each by a closure, then waits until the broker
    /// has seen that.
    pub(crate) fn settle(
        &mut self,
        queue: &str,
        count: usize,
        mut settle: impl FnMut(&mut Client, u16, &Delivery),
    ) -> Outcome {
        let client = self.client();
        let channel = client.channel();
        let mut found = Vec::new();
        while found.len() < count {
            found.extend(Some(get(client, channel, queue)?.ok_or("there are too few")?));
        }
        found.iter().for_each(|delivery| settle(client, channel, delivery));
        // Nobody confirms an ack. What is confirmed behind it on the same queue proves that it is
        // in the log.
        client.round_trip(channel).map_err(|closed| format!("{closed:?}"))?;
        client.close_channel(channel);
        Ok(())
    }
}

fn get(client: &mut Client, channel: u16, queue: &str) -> Result<Option<Delivery>, String> {
    use clients::methods::{BASIC_GET, BASIC_GET_EMPTY};
    client.send(channel, BASIC_GET, &clients::wire::Args::new().short(0).shortstr(queue).bits(&[false]));
    match client.event_within(channel, PATIENCE) {
        Some(Event::Delivery(delivery)) => Ok(Some(delivery)),
        Some(Event::Method(BASIC_GET_EMPTY, _)) => Ok(None),
        None => Err(format!("a get from {queue} is not answered")),
        other => Err(format!("an answer to a get from {queue} was due, got {other:?}")),
    }
}
