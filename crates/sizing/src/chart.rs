//! Charts as inline SVG: bars in groups, lines over a rising target, dots of cost against rate.
//!
//! Invariant: a chart is text without references to anything outside of it, coordinates have one decimal, and the same data gives the
//! same bytes. Colours are classes, so that the page decides for light and dark.

use std::fmt::Write as _;

use crate::table::escape;

/// Width of every chart in its own units; the page scales it.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 46.0;
/// Colours that the page knows; more series start over with dashes.
const COLOURS: usize = 8;
const WRITES: &str = "a String takes everything";

/// A line or a group of dots.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// x, y, and what a pointer resting there says.
    pub points: Vec<(f64, f64, String)>,
}

/// What stands at the axes.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// Under the chart.
    pub x: &'a str,
    /// Beside it.
    pub y: &'a str,
    /// True where y spans decades.
    pub is_log: bool,
    /// A level to compare with, and what it is.
    pub level: Option<(f64, &'a str)>,
}

struct Frame {
    x: (f64, f64),
    /// The lowest and the highest x that there is.
    x_values: (f64, f64),
    y: (f64, f64),
    is_log: bool,
}

impl Frame {
    fn px(&self, x: f64) -> f64 {
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0).max(f64::MIN_POSITIVE) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        let at = |y: f64| if self.is_log { y.max(self.y.0).log10() } else { y };
        let (low, high) = (at(self.y.0), at(self.y.1));
        HEIGHT - BOTTOM - (at(y) - low) / (high - low).max(f64::MIN_POSITIVE) * (HEIGHT - TOP - BOTTOM)
    }

    fn grid(&self, axes: &Axes<'_>, svg: &mut String) {
        for y in ticks(self.y, self.is_log) {
            let at = self.py(y);
            write!(
                svg,
                "<line class=\"g\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                short(y)
            )
            .expect(WRITES);
        }
        write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            escape(axes.x),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(axes.y)
        )
        .expect(WRITES);
    }

    /// The level to compare with. Drawn last: what lies under it must not hide it.
    fn level(&self, axes: &Axes<'_>, svg: &mut String) {
        let Some((level, name)) = axes.level.filter(|(level, _)| (self.y.0..=self.y.1).contains(level)) else { return };
        let at = self.py(level);
        // Below its line where it would stand above the chart.
        let below = if at - 4.0 < TOP { 16.0 } else { 0.0 };
        write!(
            svg,
            "<line class=\"level\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"h\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT + 6.0,
            at - 4.0 + below,
            escape(name)
        )
        .expect(WRITES);
    }
}

fn open(svg: &mut String) {
    write!(svg, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">")
        .expect(WRITES);
}

fn legend(names: &[&str], svg: &mut String) {
    for (at, name) in names.iter().enumerate() {
        let y = TOP + 14.0 * at as f64 + 6.0;
        if y > HEIGHT - 8.0 {
            break;
        }
        write!(
            svg,
            "<rect class=\"f{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            at % COLOURS,
            WIDTH - RIGHT + 12.0,
            y - 8.0,
            WIDTH - RIGHT + 26.0,
            y,
            escape(name)
        )
        .expect(WRITES);
    }
}

/// Lines over x; `None` with fewer than one point in all.
pub fn lines(series: &[Series], axes: &Axes<'_>) -> Option<String> {
    let frame = frame(series, axes, false)?;
    let mut svg = String::new();
    open(&mut svg);
    frame.grid(axes, &mut svg);
    x_ticks(&frame, &mut svg);
    for (at, one) in series.iter().enumerate() {
        let path: Vec<String> =
            one.points.iter().map(|(x, y, _)| format!("{:.1},{:.1}", frame.px(*x), frame.py(*y))).collect();
        let dash = if at >= COLOURS { " stroke-dasharray=\"5 3\"" } else { "" };
        write!(svg, "<polyline class=\"l{}\"{dash} points=\"{}\"/>", at % COLOURS, path.join(" ")).expect(WRITES);
        dots(one, at, &frame, &mut svg);
    }
    frame.level(axes, &mut svg);
    legend(&names(series), &mut svg);
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Dots of x against y, each with its word beside it.
pub fn scatter(series: &[Series], axes: &Axes<'_>) -> Option<String> {
    let frame = frame(series, axes, true)?;
    let mut svg = String::new();
    open(&mut svg);
    frame.grid(axes, &mut svg);
    x_ticks(&frame, &mut svg);
    for (at, one) in series.iter().enumerate() {
        dots(one, at, &frame, &mut svg);
        for (x, y, word) in &one.points {
            let word = word.split(':').next().unwrap_or_default();
            let (x, y) = (frame.px(*x), frame.py(*y) + 4.0);
            // On the right of its dot, and on the left where the legend would be in its way.
            let is_right = x > LEFT + (WIDTH - LEFT - RIGHT) * 0.8;
            let (x, anchor) = if is_right { (x - 6.0, " text-anchor=\"end\"") } else { (x + 6.0, "") };
            write!(svg, "<text class=\"s\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{}</text>", escape(word)).expect(WRITES);
        }
    }
    frame.level(axes, &mut svg);
    legend(&names(series), &mut svg);
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Bars: a group for each of `groups`, in it a bar for each of `names`; `values[group][name]`.
pub fn bars(groups: &[String], names: &[String], values: &[Vec<Option<f64>>], axes: &Axes<'_>) -> Option<String> {
    let highest = values.iter().flatten().flatten().copied().reduce(f64::max)?;
    let highest = axes.level.map_or(highest, |(level, _)| level.max(highest));
    let x = (0.0, groups.len() as f64);
    let frame = Frame { x, x_values: x, y: (0.0, nice(highest)), is_log: false };
    let mut svg = String::new();
    open(&mut svg);
    frame.grid(axes, &mut svg);
    for (group, name) in groups.iter().enumerate() {
        let (first, limit) = (frame.px(group as f64), frame.px(group as f64 + 1.0));
        let width = (limit - first) * 0.8 / names.len().max(1) as f64;
        for (at, value) in values[group].iter().enumerate() {
            let Some(value) = value else { continue };
            let (x, y) = (first + (limit - first) * 0.1 + width * at as f64, frame.py(*value));
            write!(
                svg,
                "<rect class=\"f{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{} {}: {}</title></rect>",
                at % COLOURS,
                (width - 1.0).max(1.0),
                HEIGHT - BOTTOM - y,
                escape(name),
                escape(&names[at]),
                short(*value)
            )
            .expect(WRITES);
        }
        write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (first + limit) / 2.0,
            HEIGHT - BOTTOM + 15.0,
            escape(name)
        )
        .expect(WRITES);
    }
    frame.level(axes, &mut svg);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    legend(&names, &mut svg);
    svg.push_str("</svg>\n");
    Some(svg)
}

fn names(series: &[Series]) -> Vec<&str> {
    series.iter().map(|one| one.name.as_str()).collect()
}

fn dots(one: &Series, at: usize, frame: &Frame, svg: &mut String) {
    for (x, y, word) in &one.points {
        write!(
            svg,
            "<circle class=\"f{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{} {}</title></circle>",
            at % COLOURS,
            frame.px(*x),
            frame.py(*y),
            escape(&one.name),
            escape(word)
        )
        .expect(WRITES);
    }
}

fn x_ticks(frame: &Frame, svg: &mut String) {
    // Of one value alone there is nothing to read off between round numbers.
    let only = (frame.x_values.0 == frame.x_values.1).then(|| vec![frame.x_values.0]);
    for x in only.unwrap_or_else(|| ticks(frame.x, false)) {
        let at = frame.px(x);
        write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 15.0,
            short(x)
        )
        .expect(WRITES);
    }
}

fn frame(series: &[Series], axes: &Axes<'_>, is_loose: bool) -> Option<Frame> {
    let points = || series.iter().flat_map(|one| &one.points);
    let x_low = points().map(|point| point.0).reduce(f64::min)?;
    let x_high = points().map(|point| point.0).reduce(f64::max)?;
    let y_low = points().map(|point| point.1).filter(|y| *y > 0.0).reduce(f64::min).unwrap_or(0.1);
    let y_high = points().map(|point| point.1).reduce(f64::max)?;
    let y_high = axes.level.map_or(y_high, |(level, _)| level.max(y_high));
    let x = match (is_loose, x_low == x_high && x_low > 0.0) {
        (true, _) => (0.0, nice(x_high)),
        // One value stands in the middle, not on the edge.
        (false, true) => (0.0, 2.0 * x_low),
        (false, false) => (x_low.min(0.0), nice(x_high)),
    };
    let y = match axes.is_log {
        true => (10f64.powf(y_low.log10().floor()), 10f64.powf(y_high.max(y_low * 10.0).log10().ceil())),
        false => (0.0, nice(y_high)),
    };
    Some(Frame { x, x_values: (x_low, x_high), y, is_log: axes.is_log })
}

/// The next round number: one, two, two and a half or five times a power of ten.
fn nice(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(highest.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= highest).unwrap_or(10.0 * power)
}

fn ticks((low, high): (f64, f64), is_log: bool) -> Vec<f64> {
    if is_log {
        let (first, last) = (low.log10().round() as i32, high.log10().round() as i32);
        return (first..=last).map(|power| 10f64.powi(power)).collect();
    }
    (0..=5).map(|step| low + (high - low) * f64::from(step) / 5.0).collect()
}

fn short(number: f64) -> String {
    let trimmed = |text: String| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    match number {
        number if number >= 10_000.0 => format!("{}k", trimmed(format!("{:.1}", number / 1000.0))),
        number if number >= 10.0 || number == 0.0 => format!("{number:.0}"),
        number => trimmed(format!("{number:.2}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const AXES: Axes<'_> = Axes { x: "x", y: "y", is_log: false, level: None };

    #[test]
    fn every_point_lies_inside_of_its_chart_and_names_are_escaped() {
        let points = (1..20).map(|at| (f64::from(at) * 1000.0, f64::from(at * at), "a:<b>".to_owned())).collect();
        let series = [Series { name: "<script>".to_owned(), points }];
        for axes in [AXES, Axes { is_log: true, level: Some((50.0, "wanted & due")), ..AXES }] {
            for svg in [lines(&series, &axes).unwrap(), scatter(&series, &axes).unwrap()] {
                assert!(!svg.contains("<script>") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                for cut in svg.split("cx=\"").skip(1) {
                    let x: f64 = cut.split('"').next().unwrap().parse().unwrap();
                    assert!((LEFT..=WIDTH - RIGHT + 0.1).contains(&x), "{x}");
                }
            }
        }
        assert_eq!(lines(&[], &AXES), None);
    }

    #[test]
    fn one_target_stands_in_the_middle_under_its_own_number() {
        let point = |y: f64| Series { name: "n".to_owned(), points: vec![(1000.0, y, String::new())] };
        let svg = lines(&[point(5.0), point(7.0)], &AXES).unwrap();
        let middle = format!("{:.1}", (LEFT + WIDTH - RIGHT) / 2.0);
        assert_eq!(svg.matches(&format!("cx=\"{middle}\"")).count(), 2, "{svg}");
        let tick =
            format!("<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">1000</text>", HEIGHT - BOTTOM + 15.0);
        assert!(svg.contains(&tick) && !svg.contains(">400</text>"), "{svg}");
    }

    #[test]
    fn a_level_lies_over_bars_and_its_name_within_the_chart() {
        let axes = |level| Axes { level: Some((level, "required")), ..AXES };
        for level in [10.0, 100.0] {
            let svg = bars(&["g".to_owned()], &["n".to_owned()], &[vec![Some(100.0)]], &axes(level)).unwrap();
            assert!(svg.find("class=\"level\"") > svg.find("class=\"f0\""), "{svg}");
            let name = svg.split("class=\"h\"").nth(1).and_then(|rest| rest.split("y=\"").nth(1)).unwrap();
            let y: f64 = name.split('"').next().unwrap().parse().unwrap();
            assert!((TOP..HEIGHT - BOTTOM).contains(&y), "{y}");
        }
    }

    #[test]
    fn a_bar_is_as_high_as_its_value() {
        let svg = bars(&["g".to_owned()], &["n".to_owned()], &[vec![Some(50.0)]], &AXES).unwrap();
        assert!(svg.contains(&format!("height=\"{:.1}\"", HEIGHT - TOP - BOTTOM)), "{svg}");
    }
}
