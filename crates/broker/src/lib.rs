//! Placeholder: the crate `broker` is laid in the next commits.
