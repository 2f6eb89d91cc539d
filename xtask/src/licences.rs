//! Each dependency's licence and source against `deny.toml`.
//!
//! Invariant: the rules are read from `deny.toml` alone, so cargo-deny, where it is installed, and
//! this chore agree. This one needs no download and no minutes of building; what it can not do is
//! advisories, whose database is not in a registry: `cargo deny check` does that where it may reach
//! it.

use std::collections::BTreeSet;

use crate::shell;

/// Checks every package of the lock file.
pub(crate) fn run() -> Result<(), String> {
    let text = std::fs::read_to_string(shell::root().join("deny.toml")).map_err(|why| format!("deny.toml: {why}"))?;
    let rules: toml::Table = text.parse().map_err(|why| format!("deny.toml: {why}"))?;
    let allowed = strings(&rules, "licenses", "allow")?;
    let sources = strings(&rules, "sources", "allow-registry")?;
    // Every target and kind of dependency, each package once.
    let format = ["--prefix", "none", "--format", "{p}|{l}", "--target", "all", "-e", "normal,build,dev", "--locked"];
    let tree = shell::output("cargo", &[&["tree", "--workspace"], &format[..]].concat()).ok_or("cargo tree failed")?;
    let packages: BTreeSet<(&str, &str)> = tree.lines().filter_map(|line| line.rsplit_once('|')).collect();
    let mut wrong = Vec::new();
    for (package, licence) in &packages {
        let licence = licence.trim_end_matches(" (*)");
        if !satisfied(licence, &allowed) {
            wrong.push(format!("{package}: licence {licence:?} is not among those of deny.toml"));
        }
    }
    let lock = std::fs::read_to_string(shell::root().join("Cargo.lock")).map_err(|why| format!("Cargo.lock: {why}"))?;
    let lock: toml::Table = lock.parse().map_err(|why| format!("Cargo.lock: {why}"))?;
    for package in lock.get("package").and_then(toml::Value::as_array).into_iter().flatten() {
        let field = |name: &str| package.get(name).and_then(toml::Value::as_str).unwrap_or_default();
        let source = field("source");
        if !source.is_empty() && !sources.iter().any(|allowed| source == format!("registry+{allowed}")) {
            wrong.push(format!("{}: source {source} is not among those of deny.toml", field("name")));
        }
    }
    if wrong.is_empty() {
        println!("licences: ok, {} packages", packages.len());
        return Ok(());
    }
    Err(wrong.join("\n"))
}

fn strings(rules: &toml::Table, section: &str, key: &str) -> Result<Vec<String>, String> {
    let list = rules.get(section).and_then(|section| section.get(key)).and_then(toml::Value::as_array);
    let list = list.ok_or_else(|| format!("deny.toml has no list {section}.{key}"))?;
    Ok(list.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect())
}

/// Whether an SPDX expression can be met with the allowed licences. `A/B` is how older packages
/// write `A OR B`.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&tokens, &mut at, allowed);
    met && at == tokens.len()
}

fn either(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = both(tokens, at, allowed);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(tokens, at, allowed);
    }
    met
}

fn both(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = one(tokens, at, allowed);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(tokens, at, allowed);
    }
    met
}

fn one(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if *token == "(" {
        let met = either(tokens, at, allowed);
        *at += 1;
        return met;
    }
    if tokens.get(*at) == Some(&"WITH") {
        let with = format!("{token} WITH {}", tokens.get(*at + 1).unwrap_or(&""));
        *at += 2;
        return allowed.contains(&with);
    }
    allowed.iter().any(|licence| licence == token)
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    #[test]
    fn spdx_expressions_are_understood() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        let met = |expression| satisfied(expression, &allowed);
        assert!(met("MIT") && met("GPL-3.0 OR MIT") && met("MIT/GPL-3.0") && met("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(met("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
        assert!(!met("") && !met("GPL-3.0") && !met("MIT AND GPL-3.0") && !met("GPL-3.0 OR (MIT AND ISC)"));
        assert!(!met("MIT WITH LLVM-exception"));
    }
}
