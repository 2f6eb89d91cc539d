//! Placeholder: the crate `server` is laid in the next commits.
