//! Placeholder: the crate `storage` is laid in the next commits.
