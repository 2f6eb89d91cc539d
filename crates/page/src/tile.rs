//! The answer at the top of a page: a sentence, and tiles with the figures that it rests on.
//!
//! Invariant: whether something is good or bad is said in words too, never by a colour alone.

use crate::escape;
use crate::hue::Hue;

/// How an answer or a figure is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Nothing to say against it.
    Good,
    /// Something is wrong.
    Bad,
    /// Neither, or not known.
    Plain,
}

impl Tone {
    /// The class of the style that stands for it.
    pub fn class(self) -> &'static str {
        match self {
            Tone::Good => "good",
            Tone::Bad => "bad",
            Tone::Plain => "plain",
        }
    }
}

/// The answer in words.
pub fn answer(tone: Tone, sentence: &str, more: &[String]) -> String {
    let more: String = more.iter().map(|line| format!("<p>{}</p>\n", escape(line))).collect();
    format!(
        "<section class=\"answer {}\"><p class=\"first\">{}</p>\n{more}</section>\n",
        tone.class(),
        escape(sentence)
    )
}

/// A figure of a tile.
#[derive(Clone, Debug)]
pub struct Line {
    /// Whose it is; empty where the page is about one thing only.
    pub of: Option<(String, Hue)>,
    /// The figure.
    pub value: String,
    /// What else is to be known of it.
    pub more: String,
    /// It is the best one.
    pub is_best: bool,
    /// What it means.
    pub tone: Tone,
}

impl Line {
    /// A figure by itself, and what else is to be known of it.
    pub fn of(value: impl Into<String>, more: impl Into<String>) -> Line {
        Line { of: None, value: value.into(), more: more.into(), is_best: false, tone: Tone::Plain }
    }
}

/// A tile.
#[derive(Clone, Debug, Default)]
pub struct Tile {
    /// What it is of.
    pub name: String,
    /// One figure for each thing that is compared.
    pub lines: Vec<Line>,
    /// Percentile curves, one for each line that has one: percentile and milliseconds.
    pub curves: Vec<(Hue, Vec<(f64, f64)>)>,
}

impl Tile {
    /// A tile with these figures.
    pub fn of(name: impl Into<String>, lines: Vec<Line>) -> Tile {
        Tile { name: name.into(), lines, curves: Vec::new() }
    }
}

/// Tiles beside each other.
pub fn tiles(tiles: &[Tile]) -> String {
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.iter().map(Tile::html).collect::<String>())
}

impl Tile {
    fn html(&self) -> String {
        let mut html = format!("<section class=\"tile\"><h3>{}</h3>\n", escape(&self.name));
        for line in &self.lines {
            let best = if line.is_best { " <span class=\"best\">best</span>" } else { "" };
            let of = line.of.as_ref().map_or(String::new(), |(name, hue)| {
                format!(
                    "<span class=\"of\"><i class=\"swatch\" style=\"background:{}\"></i>{}</span> ",
                    hue.css(),
                    escape(name)
                )
            });
            html.push_str(&format!(
                "<p class=\"figure {}\">{of}<b>{}</b>{best}</p>\n",
                line.tone.class(),
                escape(&line.value)
            ));
            if !line.more.is_empty() {
                html.push_str(&format!("<p class=\"more\">{}</p>\n", escape(&line.more)));
            }
        }
        html.push_str(&spark(&self.curves));
        html + "</section>\n"
    }
}

/// Nines of a percentile: 0 for the 0th, 1 for the 90th, 2 for the 99th.
fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).max(1e-5).log10()
}

/// Small percentile curves, for their shape: from the median to the rarest tail, by tens both ways.
fn spark(curves: &[(Hue, Vec<(f64, f64)>)]) -> String {
    let points = |curve: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let drawn = curve.iter().filter(|(percentile, ms)| *percentile >= 49.0 && *ms > 0.0);
        drawn.map(|(percentile, ms)| (nines(*percentile), ms.log10())).collect()
    };
    let curves: Vec<_> =
        curves.iter().map(|(hue, curve)| (hue, points(curve))).filter(|(_, points)| points.len() > 1).collect();
    let all = || curves.iter().flat_map(|(_, points)| points.iter());
    let range = |of: fn(&(f64, f64)) -> f64| {
        all().map(of).fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    };
    if curves.is_empty() {
        return String::new();
    }
    let ((left, right), (low, high)) = (range(|p| p.0), range(|p| p.1));
    let mut lines = String::new();
    for (hue, points) in &curves {
        let place = |(x, y): &(f64, f64)| {
            let x = 100.0 * (x - left) / (right - left).max(f64::EPSILON);
            let y = 2.0 + 36.0 * (1.0 - (y - low) / (high - low).max(0.3));
            format!("{x:.1},{y:.1}")
        };
        let path: Vec<String> = points.iter().map(place).collect();
        lines.push_str(&format!("<polyline style=\"stroke:{}\" points=\"{}\"/>", hue.css(), path.join(" ")));
    }
    let last = (0..=4).rev().find(|tens| f64::from(*tens) <= right + 0.05).unwrap_or(0);
    let last = ["the median", "p90", "p99", "p99.9", "p99.99"][last as usize];
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 100 40\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"percentile curve\">{lines}</svg>\
         <p class=\"ends\"><span>p50</span><span>beyond {last}</span></p>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_says_its_figure_whose_it_is_and_draws_its_curve() {
        let line =
            |name: &str, is_best| Line { of: Some((name.to_owned(), Hue::nth(0))), is_best, ..Line::of("4.32 ms", "") };
        let curve = vec![(0.0, 0.1), (50.0, 1.0), (90.0, 2.0), (99.0, 100.0)];
        let tile = Tile {
            name: "p99".to_owned(),
            lines: vec![line("A & B", true), line("C", false)],
            curves: vec![(Hue::nth(0), curve)],
        };
        let html = tiles(&[tile]);
        assert_eq!(html.matches("<span class=\"best\">best</span>").count(), 1);
        assert!(html.contains("A &amp; B") && html.contains("<span>beyond p99</span>"), "{html}");
        // From the median on, over the whole width and height.
        let expected = "points=\"0.0,38.0 ";
        assert!(html.contains(expected) && html.contains(" 100.0,2.0\""), "{html}");
        assert!(!tiles(&[Tile::default()]).contains("<svg"));
    }
}
