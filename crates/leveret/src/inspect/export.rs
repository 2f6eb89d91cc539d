//! `leveret inspect DIR --export`: the messages of all extents, one JSON object a line, those that
//! a repair kept aside too. Messages that are in the log alone are not among them, which standard error says.
//!
//! Invariant: every line is an object with `kind`: `message`, `damage`, `unfinished` (a file that a
//! node writes at this moment, or that a kill left half written), and one `summary` at the end.

use std::io::{self, BufWriter, Write as _};

use management::stored_message;
use serde_json::json;
use server::engine::ASIDE_FOLDER;
use storage::Disk;
use storage::export::{Found, export};

use crate::exit::{self, Exit};

/// Prints them. Done without damage, Failed with damage.
pub(super) fn run<D: Disk>(disk: &D) -> Exit {
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut message_count, mut damage_count) = (0u64, 0u64);
    let mut failed = None;
    let mut print = |line: serde_json::Value| {
        // Once nobody reads, only the counts go on: the damage is the exit code.
        if failed.is_none() {
            failed = writeln!(out, "{line}").err();
        }
    };
    export(disk, ASIDE_FOLDER, &mut |name, found| {
        let damage = match found {
            Found::Message { queue, message } => match stored_message(queue, message.seq, &message.body) {
                Some(mut line) => {
                    message_count += 1;
                    line["kind"] = json!("message");
                    line["file"] = json!(name);
                    return print(line);
                }
                None => format!("what is stored as message {} of queue {queue} is none", message.seq),
            },
            Found::Unfinished => {
                let text = "it has no end: it is being written, or a kill left it so; nothing refers to it";
                return print(json!({ "kind": "unfinished", "file": name, "text": text }));
            }
            Found::Damaged(error) => error.to_string(),
        };
        damage_count += 1;
        print(json!({ "kind": "damage", "file": name, "text": damage }));
    });
    print(json!({ "kind": "summary", "message_count": message_count, "damage_count": damage_count }));
    if disk.list("wal").is_ok_and(|names| !names.is_empty()) {
        exit::say(&format!(
            "these {message_count} messages outlived the log; those that are in the log alone, the newest ones, are not printed: a node that \
             is started on a copy of the folder has them"
        ));
    }
    super::ended(failed.or(out.flush().err()), damage_count)
}
