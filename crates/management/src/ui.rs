//! The page: what a browser is given at `/`. Its files are in `ui/`, next to this crate's sources,
//! and are part of the binary.
//!
//! ```text
//! /                the page itself, asked for anew each time (an ETag spares the bytes)
//! /ui/HASH/FILE    what it is made of; HASH is that of all files, so a browser keeps them for good
//! ```
//!
//! Invariant: nothing here depends on who asks, and nothing is shown but what this build has; all
//! that the page tells comes from the API, with its rights. The browser runs no script but these
//! files and asks nobody else (the policy says so in each answer).

use crate::answer::{Answer, Refused};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, ETAG, HeaderName, IF_NONE_MATCH, VARY};
use hyper::http::request::Parts;
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::sync::OnceLock;

/// A file of the page: its path, its type, its bytes.
struct File {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// One file, from where it lies.
macro_rules! file {
    ($path:literal, $content_type:expr) => {
        file!($path, $content_type, concat!("../ui/", $path))
    };
    ($path:literal, $content_type:expr, $source:expr) => {
        File { path: $path, content_type: $content_type, bytes: include_bytes!($source) }
    };
}

/// The page, with places for what is known only here.
const INDEX: &str = include_str!("../ui/index.html");

/// Everything that it asks for. Modules are named in the page too, so that a browser fetches all of
/// them at once.
const FILES: &[File] = &[
    file!("icon.svg", "image/svg+xml"),
    file!("app.css", STYLE),
    file!("vendored/preact.js", SCRIPT, "../ui/vendored/preact/preact.min.umd.js"),
    file!("vendored/hooks.js", SCRIPT, "../ui/vendored/preact/hooks.umd.js"),
    file!("vendored/htm.js", SCRIPT, "../ui/vendored/htm/htm.umd.js"),
    file!("vendored/uplot.js", SCRIPT, "../../page/vendored/uplot/uPlot.iife.min.js"),
    file!("vendored/uplot.css", STYLE, "../../page/vendored/uplot/uPlot.min.css"),
    file!("js/theme.js", SCRIPT),
    file!("js/lib.js", SCRIPT),
    file!("js/format.js", SCRIPT),
    file!("js/icons.js", SCRIPT),
    file!("js/api.js", SCRIPT),
    file!("js/router.js", SCRIPT),
    file!("js/ui.js", SCRIPT),
    file!("js/chart.js", SCRIPT),
    file!("js/table.js", SCRIPT),
    file!("js/login.js", SCRIPT),
    file!("js/palette.js", SCRIPT),
    file!("js/alarms.js", SCRIPT),
    file!("js/cluster.js", SCRIPT),
    file!("js/app.js", SCRIPT),
    file!("js/pages/overview.js", SCRIPT),
    file!("js/pages/span.js", SCRIPT),
    file!("js/pages/latencies.js", SCRIPT),
    file!("js/pages/nodes.js", SCRIPT),
    file!("js/pages/queues.js", SCRIPT),
    file!("js/pages/queue.js", SCRIPT),
    file!("js/pages/messages.js", SCRIPT),
    file!("js/pages/bindings.js", SCRIPT),
    file!("js/pages/exchanges.js", SCRIPT),
    file!("js/pages/clients.js", SCRIPT),
    file!("js/pages/topology.js", SCRIPT),
    file!("js/pages/vhosts.js", SCRIPT),
    file!("js/pages/users.js", SCRIPT),
    file!("js/pages/policies.js", SCRIPT),
    file!("js/pages/limits.js", SCRIPT),
    file!("js/pages/definitions.js", SCRIPT),
    file!("js/pages/reference.js", SCRIPT),
    file!("js/pages/parameters.js", SCRIPT),
    file!("js/pages/flags.js", SCRIPT),
    file!("js/pages/waiting.js", SCRIPT),
    file!("js/pages/settings.js", SCRIPT),
    file!("js/pages/copies.js", SCRIPT),
    file!("js/pages/join.js", SCRIPT),
    file!("js/pages/leave.js", SCRIPT),
];

/// What a browser lets the page do: run these files, ask this address, and nothing else. Text can
/// never become markup either: no part of the page makes a policy that would let it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// What each answer of the page carries.
const HEADERS: [(HeaderName, &str); 6] = [
    (HeaderName::from_static("content-security-policy"), POLICY),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("referrer-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (VARY, "accept-encoding"),
];

/// Bytes as they are and compressed.
struct Packed {
    plain: Bytes,
    gzip: Bytes,
}

impl Packed {
    fn new(plain: Bytes) -> Packed {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing into memory does not fail; if it did, what is plain would do.
        let gzip = encoder.write_all(&plain).and_then(|()| encoder.finish()).unwrap_or_default();
        Packed { plain, gzip: gzip.into() }
    }
}

/// The page as this process serves it; made when the first browser comes.
struct Built {
    hash: String,
    index: Packed,
    files: Vec<Packed>,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut digest = Sha256::new();
        digest.update(INDEX);
        for file in FILES {
            digest.update(file.path);
            digest.update(file.bytes);
        }
        let hash: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let modules = FILES.iter().filter(|file| file.path.starts_with("js/") && file.path != "js/theme.js");
        let preload: String =
            modules.map(|file| format!("<link rel=\"modulepreload\" href=\"UI/{}\">\n", file.path)).collect();
        let index = INDEX.replace("<!--MODULES-->\n", &preload).replace("\"UI/", &format!("\"ui/{hash}/"));
        let files = FILES.iter().map(|file| Packed::new(Bytes::from_static(file.bytes))).collect();
        Built { hash, index: Packed::new(index.into()), files }
    })
}

/// Whether a path is one of the page's.
pub(crate) fn is_page(head: &Parts) -> bool {
    let path = head.uri.path();
    matches!(path, "/" | "/index.html" | "/favicon.ico") || path.starts_with("/ui/") || reference(path).is_some()
}

/// Where RabbitMQ tells people of its API: the page that does so here, as seen from there, as a proxy may have
/// put a folder before both.
fn reference(path: &str) -> Option<&'static str> {
    match path {
        "/api" => Some("./#/api"),
        "/api/" | "/api/index.html" => Some("../#/api"),
        _ => None,
    }
}

/// The answer to a request for a part of the page.
pub(crate) fn answer(head: &Parts) -> Result<Answer, Refused> {
    if !matches!(head.method, hyper::Method::GET | hyper::Method::HEAD) {
        return Err(Refused::NotAllowed(&["GET", "HEAD"]));
    }
    if let Some(place) = reference(head.uri.path()) {
        return Ok(Answer::found_at(place));
    }
    let built = built();
    let says = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_gzip = says(hyper::header::ACCEPT_ENCODING).split(',').any(|word| {
        let (coding, weight) = word.split_once(';').unwrap_or((word, ""));
        coding.trim() == "gzip" && weight.trim() != "q=0"
    });
    let (content_type, packed, is_index, is_this) = match head.uri.path() {
        "/" | "/index.html" => (HTML, &built.index, true, true),
        "/favicon.ico" => ("image/svg+xml", &built.files[0], false, false),
        path => {
            let (hash, path) =
                path.strip_prefix("/ui/").and_then(|rest| rest.split_once('/')).ok_or(Refused::NotFound)?;
            let at = FILES.iter().position(|file| file.path == path).ok_or(Refused::NotFound)?;
            // While a cluster is brought to another build, a page of one node may ask another.
            (FILES[at].content_type, &built.files[at], false, hash == built.hash)
        }
    };
    let keep = if is_index || !is_this { "no-cache" } else { "public, max-age=31536000, immutable" };
    let tag = format!("\"{}{}\"", built.hash, if is_gzip { "-gzip" } else { "" });
    let is_known = says(IF_NONE_MATCH).split(',').any(|known| known.trim().trim_start_matches("W/") == tag);
    let mut answer = match is_known {
        true => Answer::unchanged(),
        false => Answer::text(if is_gzip { packed.gzip.clone() } else { packed.plain.clone() }, content_type),
    };
    answer = answer.with(CACHE_CONTROL, keep).with(ETAG, &tag);
    if is_gzip && !is_known {
        answer = answer.with(CONTENT_ENCODING, "gzip");
    }
    Ok(HEADERS.into_iter().fold(answer, |answer, (name, value)| answer.with(name, value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder of the page") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { below(&path, found) } else { found.push(path) }
        }
    }

    #[test]
    fn every_file_of_the_page_is_served_and_every_import_is_a_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut found = Vec::new();
        below(&root, &mut found);
        for path in found {
            let name = path.strip_prefix(&root).expect("below the root").to_str().expect("a plain name").to_owned();
            let is_told = name == "index.html" || name.starts_with("vendored/");
            assert!(is_told || FILES.iter().any(|file| file.path == name), "{name} is not among FILES");
        }
        for file in FILES.iter().filter(|file| file.path.starts_with("js/")) {
            let text = std::str::from_utf8(file.bytes).expect("a script is text");
            let folder = Path::new(file.path).parent().expect("a folder");
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let from = line.split("from \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a source");
                let mut wanted = folder.to_owned();
                for part in from.split('/') {
                    match part {
                        "." => {}
                        ".." => drop(wanted.pop()),
                        name => wanted.push(name),
                    }
                }
                let wanted = wanted.to_str().expect("plain");
                assert!(FILES.iter().any(|file| file.path == wanted), "{} imports {from}", file.path);
            }
        }
    }

    #[test]
    fn no_file_of_ours_makes_markup_of_text_or_asks_another_address() {
        let ours = FILES.iter().filter(|file| !file.path.starts_with("vendored/"));
        for file in ours {
            let text = std::str::from_utf8(file.bytes).expect("text");
            let forbidden = [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "https://",
                "@import",
                "url(",
            ];
            for word in forbidden {
                assert!(!text.contains(word), "{} has {word}", file.path);
            }
            assert_eq!(text.matches("http://").count(), text.matches("http://www.w3.org/").count(), "{}", file.path);
        }
        assert!(!INDEX.contains("<script>") && !INDEX.contains("style=") && !INDEX.contains("onload"));
        assert!(!POLICY.contains("unsafe"));
    }

    #[test]
    fn what_is_vendored_is_what_was_taken() {
        for (told, files) in [
            (
                include_str!("../ui/vendored/preact/README.md"),
                [
                    ("preact.min.umd.js", &include_bytes!("../ui/vendored/preact/preact.min.umd.js")[..]),
                    ("hooks.umd.js", include_bytes!("../ui/vendored/preact/hooks.umd.js")),
                    ("LICENSE", include_bytes!("../ui/vendored/preact/LICENSE")),
                ]
                .as_slice(),
            ),
            (
                include_str!("../ui/vendored/htm/README.md"),
                &[
                    ("htm.umd.js", &include_bytes!("../ui/vendored/htm/htm.umd.js")[..]),
                    ("LICENSE", include_bytes!("../ui/vendored/htm/LICENSE")),
                ],
            ),
        ] {
            for (name, bytes) in files {
                let sum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                assert!(told.contains(&format!("| `{name}` | `{sum}` |")), "{name} is {sum}");
            }
        }
    }

    #[test]
    fn the_whole_page_is_small_on_the_way() {
        let built = built();
        let bytes: usize = built.files.iter().map(|file| file.gzip.len()).sum::<usize>() + built.index.gzip.len();
        assert!(bytes < 136 << 10, "{bytes}");
    }
}
