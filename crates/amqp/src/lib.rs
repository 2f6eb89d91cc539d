//! Placeholder: the crate `amqp` is laid in the next commits.
