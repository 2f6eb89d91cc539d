//! Bars beside names: how much of each, longest as wide as the page.
//!
//! Invariant: each bar has its figure beside it, so that nothing has to be read off its length, and
//! it needs no script.

use crate::escape;
use crate::figures::three;
use crate::hue::Hue;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Whose it is.
    pub name: String,
    /// Its colour.
    pub hue: Hue,
    /// How long it is.
    pub figure: f64,
    /// What stands beside it.
    pub told: String,
}

impl Bar {
    /// With its figure beside it.
    pub fn of(name: impl Into<String>, hue: Hue, figure: f64) -> Bar {
        Bar { name: name.into(), hue, figure, told: three(figure) }
    }
}

/// A group of bars.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// What it is of; empty where that is said above it.
    pub name: String,
    /// Its bars.
    pub bars: Vec<Bar>,
}

/// The bars, with a line at a figure to compare with, if there is one. Nothing where there are
/// none.
pub fn html(groups: &[Group], level: Option<(f64, &str)>) -> String {
    let figures = groups.iter().flat_map(|group| group.bars.iter().map(|bar| bar.figure));
    let most = figures.chain(level.map(|(at, _)| at)).fold(0.0, f64::max);
    if most <= 0.0 || groups.iter().all(|group| group.bars.is_empty()) {
        return String::new();
    }
    let share = |figure: f64| 100.0 * figure.max(0.0) / most;
    let line =
        level.map_or(String::new(), |(at, _)| format!("<i class=\"level\" style=\"left:{:.1}%\"></i>", share(at)));
    let mut text = String::from("<div class=\"bars\">\n");
    for group in groups.iter().filter(|group| !group.bars.is_empty()) {
        if !group.name.is_empty() {
            text.push_str(&format!("<p class=\"group\">{}</p>\n", escape(&group.name)));
        }
        for Bar { name, hue, figure, told } in &group.bars {
            text.push_str(&format!(
                "<span>{}</span><span class=\"track\"><i style=\"width:{:.1}%;background:{}\"></i>{line}</span><b>{}</b>\n",
                escape(name),
                share(*figure),
                hue.css(),
                escape(told)
            ));
        }
    }
    if let Some((at, name)) = level {
        text.push_str(&format!("<p class=\"faint\">The line: {} {}.</p>\n", three(at), escape(name)));
    }
    text + "</div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_as_wide_as_there_is_room_and_each_has_its_figure() {
        let half = Bar { told: "$15".to_owned(), ..Bar::of("io1", Hue::nth(1), 15_000.0) };
        let bars = vec![Bar::of("gp3 <b>", Hue::nth(0), 30_000.0), half];
        let groups = [Group { name: "a".to_owned(), bars }];
        let text = html(&groups, Some((20_000.0, "msg/s are required")));
        for part in [
            "width:100.0%",
            "width:50.0%",
            "left:66.7%",
            "<b>30,000</b>",
            "<b>$15</b>",
            "gp3 &lt;b&gt;",
            "20,000 msg/s are required.",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(html(&[], None), "");
    }
}
