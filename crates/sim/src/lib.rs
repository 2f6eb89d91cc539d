//! Placeholder: the crate `sim` is laid in the next commits.
