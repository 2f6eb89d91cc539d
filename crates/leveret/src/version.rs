//! Which build this is.

use std::sync::LazyLock;

/// Version, and the commit when the build knew it: `0.1.0 (1c2e22cabc)`.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| match option_env!("BUILT_FROM") {
    Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
    None => env!("CARGO_PKG_VERSION").to_owned(),
});
