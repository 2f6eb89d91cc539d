//! Feature flags and deprecated features.

use crate::api::path;
use crate::context::{Cx, items};
use crate::failure::{Failure, USAGE};
use crate::form::{Rows, Shown};
use crate::options::flag;
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{ANY, Section, VERB, Verb};
use serde_json::{Value, json};

const FLAG: Verb = Verb { section: Section::Flags, ..VERB };

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_feature_flags",
        tools: CTL | DIAGNOSTICS,
        usage: "[<column> ...]",
        about: "Lists RabbitMQ's feature flags whose meaning holds here",
        words: (0, ANY),
        columns: &["name", "state", "stability", "provided_by", "desc", "doc_url"],
        run: list,
        ..FLAG
    },
    Verb {
        name: "enable_feature_flag",
        usage: "<feature_flag> | all",
        about: "Tells that a feature flag is enabled, as all of them are",
        words: (1, 1),
        run: enable,
        ..FLAG
    },
    Verb {
        name: "list_deprecated_features",
        tools: CTL | DIAGNOSTICS,
        usage: "[--used] [<column> ...]",
        about: "Lists deprecated features",
        words: (0, ANY),
        switches: &[flag("used", "those that are in use")],
        columns: &["name", "deprecation_phase", "provided_by", "desc", "doc_url"],
        run: list_deprecated,
        ..FLAG
    },
];

fn list_of(cx: &Cx<'_>, at: &str, columns: &[&str]) -> Result<Shown, Failure> {
    let found = items(cx.api()?.get(at)?.good()?)?;
    let row = |item: &Value| columns.iter().map(|column| Cell::Value(item[*column].clone())).collect();
    Ok(Rows::new(columns).with(found.iter().map(row)))
}

fn list(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["name", "state"])?;
    cx.banner("Listing feature flags ...");
    list_of(cx, "feature-flags", &columns)
}

fn list_deprecated(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["name", "deprecation_phase"])?;
    let used = cx.options.flag("used");
    cx.banner(if used { "Listing deprecated features in use ..." } else { "Listing deprecated features ..." });
    list_of(cx, if used { "deprecated-features/used" } else { "deprecated-features" }, &columns)
}

fn enable(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let name = cx.word(0);
    if name == "all" {
        cx.banner("Enabling all feature flags ...");
        // They are, for good.
        cx.api()?.get("feature-flags")?.good()?;
        return Ok(Shown::Done);
    }
    cx.banner(&format!("Enabling feature flag \"{name}\" ..."));
    let answer = cx.api()?.put(&path(&["feature-flags", name, "enable"]), &json!({ "name": name }))?;
    match answer.status {
        400 | 404 => {
            let text = format!("This feature flag is not supported by node {}", cx.node()?);
            Err(Failure::error(USAGE, text))
        }
        _ => answer.good().map(|_| Shown::Done),
    }
}
