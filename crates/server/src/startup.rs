//! What a node on its way up waits for, for whoever asks meanwhile.
//!
//! Invariant: it is words for people. Nothing is decided by it.

use crate::handle::Handle;
use crate::random;
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
#[derive(Debug)]
pub struct Startup {
    node_name: String,
    secret: u128,
    waits_for: Mutex<String>,
}

impl Startup {
    /// Of a node that reads its data folder.
    pub fn new(node_name: &str) -> Startup {
        let waits_for = Mutex::new("it reads its data folder".to_owned());
        Startup { node_name: node_name.to_owned(), secret: random::secret(), waits_for }
    }

    /// The node.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// Bits of this start that nobody can guess.
    pub fn secret(&self) -> u128 {
        self.secret
    }

    /// What it does or waits for now, as a sentence that begins with "it".
    pub fn waits_for(&self) -> String {
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It does or waits for something else from here on.
    pub fn note(&self, waits_for: String) {
        *self.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    }
}

/// Who looks after a node beside its clients.
pub trait Attendant {
    /// What is dropped when the node begins to drain.
    type Attending;

    /// The data folder is this process's from here on. Clients are not let in yet: `startup` says what that
    /// waits for.
    fn begin(&mut self, startup: &Arc<Startup>);

    /// Clients are about to be let in: whoever asks from here on waits until [`Attendant::attend`].
    fn hold(&mut self);

    /// Clients are let in.
    fn attend(self, handle: Handle) -> Self::Attending;
}
