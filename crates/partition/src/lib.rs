//! Placeholder: the crate `partition` is laid in the next commits.
