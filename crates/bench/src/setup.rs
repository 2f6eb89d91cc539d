//! Everything before the first message: exchange, queues, bindings, channels.
//!
//! Invariant: when it returns, every connection is open and every queue exists, so that the first
//! message of the load meets no set-up. Consumers do not consume yet: the load starts them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amqp::Table;
use amqp::wire::method::Method;
use bytes::Bytes;

use crate::Error;
use crate::client::{Client, Identity, QueueDeclare};
use crate::load::{Connect, Ready};
use crate::options::Options;
use crate::plan::{ConnectionPlan, Plan, QueueId};

/// Connections that are made at the same time; more would only meet in the broker's accept backlog.
const CONNECTING_MAX: usize = 8;

/// What the set-up found.
#[derive(Debug)]
pub struct Found {
    /// Who the broker is.
    pub identity: Identity,
    /// Messages that lay in the queues.
    pub backlog: u64,
    /// The version of TLS, over TLS.
    pub tls: Option<&'static str>,
}

/// Makes the connections of a plan, and their channels.
#[derive(Debug)]
pub struct Setup {
    options: Options,
    plan: Plan,
    backlog: AtomicU64,
}

impl Setup {
    /// For this run.
    pub fn new(options: &Options, plan: &Plan) -> Setup {
        Setup { options: options.clone(), plan: plan.clone(), backlog: AtomicU64::new(0) }
    }

    /// Waits for the broker if asked to, declares the exchange and the queues with names.
    pub fn prepare(&self) -> Result<Found, Error> {
        let mut client = self.first_client()?;
        let (identity, tls) = (client.identity().clone(), client.tls_version());
        client.open_channel(1)?;
        self.declare_exchange(&mut client)?;
        if !self.options.topology.exclusive {
            for queue in self.plan.queues.iter().filter(|queue| !queue.name.is_empty()) {
                self.declare(&mut client, &queue.name, &queue.routing_key)?;
            }
        }
        client.close();
        Ok(Found { identity, backlog: self.backlog.load(Ordering::Relaxed), tls })
    }

    /// All connections, in the plan's order; several at a time.
    pub fn connect_all(&self) -> Result<Vec<Ready>, Error> {
        let count = self.plan.connections.len();
        let next = AtomicU64::new(0);
        let made: Mutex<Vec<Option<Result<Ready, Error>>>> = Mutex::new((0..count).map(|_| None).collect());
        std::thread::scope(|scope| {
            for _ in 0..CONNECTING_MAX.min(count) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                        let Some(plan) = self.plan.connections.get(at) else { return };
                        let result = self.connect(at, plan, 0);
                        let failed = result.is_err();
                        made.lock().expect("nobody panics with this lock")[at] = Some(result);
                        if failed {
                            next.store(count as u64, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let made = made.into_inner().expect("nobody panics with this lock");
        // The error that stopped the others comes first.
        let (mut ready, mut error) = (Vec::with_capacity(count), None);
        for result in made.into_iter().flatten() {
            match result {
                Ok(one) => ready.push(one),
                Err(why) => error = error.or(Some(why)),
            }
        }
        error.map_or(Ok(ready), Err)
    }

    /// Messages that are ready in these queues; a queue that is gone has none.
    pub fn depth(&self, names: &[String]) -> Result<u64, Error> {
        let mut client = self.any_client()?;
        client.open_channel(1)?;
        let mut sum = 0;
        for name in names.iter().filter(|name| !name.is_empty()) {
            match client.declare_queue(&QueueDeclare::passive(name)) {
                Ok((_, ready, _)) => sum += u64::from(ready),
                // Gone, or another connection's own: the channel is closed with it.
                Err(Error::Refused { code: 404 | 405, .. }) => client.open_channel(1)?,
                Err(why) => return Err(why),
            }
        }
        client.close();
        Ok(sum)
    }

    fn first_client(&self) -> Result<Client, Error> {
        let patience = Duration::from_secs(self.options.startup_secs);
        let started = Instant::now();
        loop {
            match self.any_client() {
                Err(Error::Unreachable { .. }) if started.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(250));
                }
                result => return result,
            }
        }
    }

    /// A connection to the first broker that answers.
    fn any_client(&self) -> Result<Client, Error> {
        let mut last = None;
        for uri in &self.options.uris {
            match Client::connect(uri, &self.options) {
                Ok(client) => return Ok(client),
                Err(why) => last = Some(why),
            }
        }
        Err(last.expect("options have at least one URI"))
    }

    fn declare_exchange(&self, client: &mut Client) -> Result<(), Error> {
        let topology = &self.options.topology;
        let is_standard = topology.exchange.is_empty() || topology.exchange.starts_with("amq.");
        if topology.predeclared || is_standard {
            return Ok(());
        }
        let declare = Method::ExchangeDeclare {
            ticket: 0,
            exchange: Bytes::copy_from_slice(topology.exchange.as_bytes()),
            kind: Bytes::copy_from_slice(topology.exchange_type.as_bytes()),
            passive: false,
            // As PerfTest declares it, so that both may run against one broker.
            durable: true,
            auto_delete: false,
            internal: false,
            no_wait: false,
            arguments: Table::new(),
        };
        client.call(1, declare, &format!("exchange {:?}", topology.exchange)).map(|_| ())
    }

    /// Declares a queue (or only looks at it) and binds it; returns its name.
    fn declare(&self, client: &mut Client, name: &str, routing_key: &str) -> Result<String, Error> {
        let topology = &self.options.topology;
        let looks_only = QueueDeclare::passive(name);
        let declare = QueueDeclare {
            name,
            passive: false,
            durable: topology.durable,
            exclusive: topology.exclusive,
            auto_delete: topology.auto_delete,
            arguments: topology.arguments.clone(),
        };
        let (name, ready, _) = client.declare_queue(if topology.predeclared { &looks_only } else { &declare })?;
        self.backlog.fetch_add(u64::from(ready), Ordering::Relaxed);
        if topology.predeclared || topology.skip_binding || topology.exchange.is_empty() {
            return Ok(name);
        }
        let bind = Method::QueueBind {
            ticket: 0,
            queue: Bytes::copy_from_slice(name.as_bytes()),
            exchange: Bytes::copy_from_slice(topology.exchange.as_bytes()),
            routing_key: Bytes::copy_from_slice(routing_key.as_bytes()),
            no_wait: false,
            arguments: Table::new(),
        };
        client.call(1, bind, &format!("the binding of queue {name:?}"))?;
        Ok(name)
    }

    fn set_up_consumers(
        &self,
        client: &mut Client,
        queues: &[QueueId],
        channels: u16,
        again: bool,
    ) -> Result<Vec<(u32, String)>, Error> {
        let mut names = Vec::new();
        for channel in 1..=channels {
            client.open_channel(channel)?;
            for (count, global) in
                [(self.options.consuming.channel_prefetch, true), (self.options.consuming.prefetch, false)]
            {
                if count > 0 {
                    let qos = Method::BasicQos { prefetch_size: 0, prefetch_count: count, global };
                    client.call(channel, qos, "the prefetch")?;
                }
            }
        }
        for id in queues {
            let queue = &self.plan.queues[id.0 as usize];
            let is_own = queue.name.is_empty() || self.options.topology.exclusive;
            // A queue that deletes itself may be gone when its consumer comes back.
            if is_own || again && !self.options.topology.predeclared {
                names.push((id.0, self.declare(client, &queue.name, &queue.routing_key)?));
            }
        }
        Ok(names)
    }
}

impl Connect for Setup {
    fn connect(&self, at: usize, plan: &ConnectionPlan, attempt: u32) -> Result<Ready, Error> {
        let uri = &self.options.uris[(at + attempt as usize) % self.options.uris.len()];
        let mut client = Client::connect(uri, &self.options)?;
        let mut names = Vec::new();
        match plan {
            ConnectionPlan::Producer(channels) => {
                for channel in 1..=channels.len() as u16 {
                    client.open_channel(channel)?;
                    if self.options.producing.confirm.is_some() {
                        client.call(channel, Method::ConfirmSelect { no_wait: false }, "confirms")?;
                    }
                }
            }
            ConnectionPlan::Consumer(channels) => {
                let queues = channels.first().map_or(&[][..], |channel| &channel.queues);
                names = self.set_up_consumers(&mut client, queues, channels.len() as u16, attempt > 0)?;
            }
        }
        let blocked = client.blocked().cloned();
        let (stream, leftover, limits) = client.into_parts();
        Ok(Ready { stream, leftover, limits, names, blocked })
    }
}
