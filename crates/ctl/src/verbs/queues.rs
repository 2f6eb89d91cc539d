//! One queue: purge it, delete it.

use crate::api::path;
use crate::context::Cx;
use crate::failure::{Failure, USAGE};
use crate::form::Shown;
use crate::options::{flag, short};
use crate::verb::{Section, VERB, Verb};

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "purge_queue",
        section: Section::Queues,
        usage: "<queue> [--vhost <vhost>]",
        about: "Drops what is ready in a queue",
        words: (1, 1),
        run: purge,
        ..VERB
    },
    Verb {
        name: "delete_queue",
        section: Section::Queues,
        usage: "<queue_name> [--if-empty|-e] [--if-unused|-u] [--vhost <vhost>]",
        about: "Deletes a queue with what is in it",
        words: (1, 1),
        switches: &[
            short('e', flag("if-empty", "only if nothing is in it")),
            short('u', flag("if-unused", "only if nobody consumes from it")),
        ],
        run: delete,
        ..VERB
    },
];

fn purge(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (queue, vhost) = (cx.word(0), cx.vhost());
    cx.banner(&format!("Purging queue '{queue}' in vhost '{vhost}' ..."));
    let purged = cx.api()?.delete(&path(&["queues", vhost, queue, "contents"]))?.good_or_none()?;
    purged.map(|_| Shown::Done).ok_or_else(|| Failure::refused("not_found"))
}

/// How many messages go is what was there a moment before.
fn delete(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (queue, vhost) = (cx.word(0), cx.vhost());
    let (if_empty, if_unused) = (cx.options.flag("if-empty"), cx.options.flag("if-unused"));
    let conditions = match (if_empty, if_unused) {
        (false, false) => "",
        (true, false) => " if queue is empty",
        (false, true) => " if queue is unused",
        (true, true) => " if queue is empty and if queue is unused",
    };
    cx.banner(&format!("Deleting queue '{queue}' on vhost '{vhost}'{conditions} ..."));
    let at = path(&["queues", vhost, queue]);
    let missing = || Failure::error(USAGE, "Queue not found");
    let found = cx.api()?.get(&at)?.good_or_none()?.ok_or_else(missing)?;
    let answer = cx.api()?.delete(&format!("{at}?if-empty={if_empty}&if-unused={if_unused}"))?;
    if answer.status == 400 {
        return Err(Failure::refused(match answer.reason().as_str() {
            "not empty" => "Queue is not empty".to_owned(),
            "in use" => "Queue is in use".to_owned(),
            other => other.to_owned(),
        }));
    }
    answer.good_or_none()?.ok_or_else(missing)?;
    Ok(Shown::Line(match found["messages_ready"].as_u64() {
        Some(ready) => format!("Queue was successfully deleted with {ready} ready messages"),
        // Without a leader nobody counts them.
        None => "Queue was successfully deleted".to_owned(),
    }))
}
