//! Placeholder: the crate `consensus` is laid in the next commits.
