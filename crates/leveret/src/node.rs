//! `leveret server`: from the configuration to a running node and its end.
//!
//! Invariant: nothing is opened before the whole configuration is known to be right, and the log's
//! first line says which build runs with which settings.

use management::{Listening, Management};
use server::config::{Config, Key, Machine, Sources};
use server::engine::OpenError;
use server::run::RunError;
use server::{Handle, StartError, Startup};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::exit::{self, Exit};
use crate::version::VERSION;
use crate::{descriptors, logging, notify, signals};

/// Runs a node until it is told to stop.
pub(crate) fn serve(sources: &Sources) -> Exit {
    descriptors::raise();
    let machine = Machine::detect();
    let config = match server::config::load(sources, &machine) {
        Ok(config) => config,
        Err(errors) => {
            errors.iter().for_each(|error| exit::say(&error.to_string()));
            return Exit::Usage;
        }
    };
    logging::start(&config.log, config.log_format);
    log_start(&config, &machine);
    let shutdown = match signals::listen() {
        Ok(shutdown) => shutdown,
        Err(error) => {
            tracing::error!("cannot listen to signals: {error}");
            return Exit::Failed;
        }
    };
    let ended = run(config, shutdown);
    logging::finish();
    match ended {
        Ok(()) => {
            tracing::info!("stopped");
            Exit::Done
        }
        Err(error) => {
            tracing::error!("{error}");
            if error.is_lasting() { Exit::Usage } else { Exit::Failed }
        }
    }
}

fn log_start(config: &Config, machine: &Machine) {
    tracing::info!(
        data_dir = %config.data_dir.display(),
        pid = std::process::id(),
        processors = machine.processors,
        memory_mib = machine.memory_bytes >> 20,
        descriptors = machine.descriptors,
        "leveret {} starts",
        *VERSION
    );
    for (setting, value, origin) in config.chosen() {
        tracing::info!("setting {} = {} ({origin})", setting.name, value.shown(setting.kind));
    }
    for sentence in &config.left_out {
        tracing::warn!("{sentence}");
    }
    if let Some(warning) = descriptors::warning(machine.descriptors, config.connections_max) {
        tracing::warn!("{warning}");
    }
    if !config.loopback_users.iter().any(|user| user == "guest") && !config.is_default(Key::loopback_users) {
        tracing::warn!("loopback_users does not name guest: its well-known password opens this broker to the network");
    }
}

/// An address of the management API cannot be listened on: because another process serves this very
/// folder, if so.
fn not_bound(config: &Config, setting: &'static str, address: SocketAddr, source: std::io::Error) -> RunError {
    let is_taken = source.kind() == std::io::ErrorKind::AddrInUse;
    match server::config::folder_holder(config).filter(|_| is_taken) {
        Some(held) => RunError::Open(OpenError::Storage(held)),
        None => RunError::Start(StartError::Listen { setting, address, source }),
    }
}

/// The one way into the room that serves.
fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), RunError> {
    let failed = |setting| move |(address, source): (SocketAddr, std::io::Error)| (setting, address, source);
    let management = match Management::bind(&config.management) {
        Ok(management) => Some(management),
        Err((address, error)) if config.is_default(Key::management) => {
            // A second broker on one machine: nobody asked for this address, so nobody is refused
            // the rest for it.
            tracing::warn!(%address, %error, "the management API and metrics are not served; --management names another address");
            Management::bind(&[]).ok()
        }
        Err((address, source)) => return Err(not_bound(&config, "management", address, source)),
    };
    let management = management.map(|management| {
        let management = management.bind_tls(&config.management_tls).map_err(failed("management_tls"))?;
        management.with_metrics(&config.prometheus).map_err(failed("prometheus"))
    });
    let management = management.transpose();
    let management = management.map_err(|(setting, address, source)| not_bound(&config, setting, address, source))?;
    server::run::run(
        &config,
        shutdown,
        crate::allocator::give_back_freed_pages,
        server::run::Asks { report: &signals::REPORT, reload: &signals::RELOAD, ends: &signals::ENDS },
        Attendant { management, folder: &config.data_dir },
    )
}

/// Has the management API say what the node waits for, and then serve it.
struct Attendant<'a> {
    management: Option<Management>,
    folder: &'a Path,
}

impl server::Attendant for Attendant<'_> {
    type Attending = Attended;

    fn begin(&mut self, startup: &Arc<Startup>) {
        let begun = self.management.as_mut().map_or(Ok(()), |management| management.begin(self.folder, startup));
        if let Err(error) = begun {
            tracing::error!(%error, "the management API cannot say what the node waits for");
        }
    }

    fn hold(&mut self) {
        self.management.iter_mut().for_each(Management::hold);
    }

    fn attend(self, handle: Handle) -> Attended {
        let attending = attend(self.management, handle);
        notify::ready();
        Attended { _attending: attending }
    }
}

/// A node that serves, until it begins to drain.
struct Attended {
    _attending: Option<Listening>,
}

impl Drop for Attended {
    fn drop(&mut self) {
        notify::stopping();
    }
}

/// The node runs: whoever looks after it is let in.
fn attend(management: Option<Management>, handle: Handle) -> Option<Listening> {
    let management = management?;
    let (addresses, metrics) = (management.addresses(), management.metrics_addresses());
    match management.serve(handle) {
        Ok(listening) => {
            for (address, is_tls) in addresses {
                let over = if is_tls { "HTTPS" } else { "HTTP" };
                tracing::info!(%address, "ready: management API and metrics over {over}");
            }
            for address in metrics {
                tracing::info!(%address, "ready: metrics over HTTP");
            }
            Some(listening)
        }
        Err(error) => {
            tracing::error!(%error, "the management API has no thread");
            None
        }
    }
}
