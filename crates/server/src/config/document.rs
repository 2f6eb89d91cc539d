//! `docs/configuration.md`, made from the table.
//!
//! Invariant: nothing about a single setting is written here; it all comes from the rows. A test
//! compares the file in the repository.

use std::fmt::Write as _;

use super::environment::variable_name;
use super::setting::{DefaultValue, Section, Setting};
use super::settings::SETTINGS;
use super::value::{Given, Value};

/// The whole page.
pub fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    for section in Section::ALL {
        let _ = write!(page, "\n## {}\n", section.title());
        for setting in SETTINGS.iter().filter(|setting| setting.section == section) {
            write_setting(&mut page, setting);
        }
    }
    page.push_str(EXAMPLE_INTRODUCTION);
    page.push_str("```toml\n");
    for setting in &SETTINGS {
        if let Some(value) = fixed_default(setting) {
            let _ = writeln!(page, "{} = {}", setting.name, value.as_toml(setting.kind));
        }
    }
    page.push_str("```\n");
    page
}

fn write_setting(page: &mut String, setting: &Setting) {
    let default = match setting.default {
        DefaultValue::Fixed(_) => format!("`{}`", setting.default_shown()),
        DefaultValue::OfMachine { .. } => setting.default_shown(),
    };
    let _ = write!(
        page,
        "\n### `{}`\n\n{}\n\n- Variable `{}`, flag `--{}`\n- Allowed: {}\n- Default: {}\n",
        setting.name,
        setting.help,
        variable_name(setting),
        setting.flag_name(),
        setting.kind.allowed(),
        default
    );
}

/// The default, if it is the same on every machine.
fn fixed_default(setting: &Setting) -> Option<Value> {
    match setting.default {
        DefaultValue::Fixed(text) => Value::check(setting.kind, &Given::Plain(text.to_owned())),
        DefaultValue::OfMachine { .. } => None,
    }
}

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the table of settings in crates/server/src/config/settings.rs; a test compares this page with it and says how to renew it. -->

Leveret runs without any configuration. Every setting can be given in three ways, and the first of these that has it counts:

1. a flag of `leveret server`: `--heartbeat-s 30`
2. an environment variable: `LEVERET_HEARTBEAT_S=30`
3. a line of the TOML file that `--config FILE` or `LEVERET_CONFIG` names: `heartbeat_s = 30`

Behind these three comes RabbitMQ's own `rabbitmq.conf`, where `--rabbitmq-config FILE` or `LEVERET_RABBITMQ_CONFIG` names one (or a folder
of them): keys that mean something here become settings, each of the others is told with its line, and what would be open or lost without it
is an error. `advanced.config` is not read.

There is no file that is read without being named. Settings stand at the top level of the file, without tables.

An unknown name, a wrong type or a value out of range is an error that names the setting and what is allowed, whichever way it came;
the broker does not start. So is any other environment variable that begins with `LEVERET_`, except those that Kubernetes and Docker
make for services (`LEVERET_SERVICE_HOST`, `LEVERET_PORT_5672_TCP` and the like).

Numbers of bytes may have a unit: `64MiB`, `1 GiB`, `50MB`; in the file they are then quoted: `\"64 MiB\"`. `KiB`, `MiB`, `GiB` and `TiB`
count by 1024, `kB`, `MB`, `GB` and `TB` by 1000. Lists are TOML lists in the file and have commas elsewhere; a flag of a list may also be
given several times.

A change takes effect at the next start. The contents of files that settings name (`definitions`, certificates and their keys) are read again at
SIGHUP too, where the setting says so.
";

const EXAMPLE_INTRODUCTION: &str = "
## A file with every default

Settings whose default depends on the machine are left out.

";
