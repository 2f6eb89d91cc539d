//! Charts: what is drawn, as data that `assets/page.js` gives to uPlot.
//!
//! Invariant: a chart holds finite numbers only, and of a logarithmic axis only such as have a
//! logarithm; a value that was not measured is a gap in its curve. Colours are names, so that the
//! page decides for light and dark.

use serde::Serialize;

use crate::escape;
use crate::hue::Hue;

/// How values lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Evenly, in seconds; charts of one group that have it share their crosshair and their zoom.
    Time,
    /// By tens.
    Log,
    /// Percentiles: as much room from 99 to 99.9 as from 90 to 99.
    Percentile,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stroke {
    /// A line.
    Solid,
    /// A broken line.
    Dashed,
    /// A line of points.
    Dotted,
    /// Dots without a line between them.
    Dots,
}

/// One curve.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    name: String,
    hue: Hue,
    stroke: Stroke,
    x: Vec<f64>,
    y: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
}

impl Series {
    /// A curve through these points; one without a value is a gap.
    pub fn new(name: impl Into<String>, hue: Hue, points: impl IntoIterator<Item = (f64, Option<f64>)>) -> Series {
        let points = points.into_iter().filter(|(x, _)| x.is_finite());
        let (x, y) = points.map(|(x, y)| (short(x), y.filter(|y| y.is_finite()).map(short))).unzip();
        Series { name: name.into(), hue, stroke: Stroke::Solid, x, y, labels: Vec::new() }
    }

    /// Dots, each with its word beside it where there is room for it, and always under the pointer.
    pub fn dots(name: impl Into<String>, hue: Hue, points: &[(f64, f64, String)]) -> Series {
        let finite: Vec<_> = points.iter().filter(|(x, y, _)| x.is_finite() && y.is_finite()).collect();
        let series = Series::new(name, hue, finite.iter().map(|(x, y, _)| (*x, Some(*y)))).stroke(Stroke::Dots);
        Series { labels: finite.iter().map(|(_, _, label)| label.clone()).collect(), ..series }
    }

    /// Drawn so.
    pub fn stroke(mut self, stroke: Stroke) -> Series {
        self.stroke = stroke;
        self
    }
}

/// Something that happened at a place of the horizontal axis, or over a part of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Where it began.
    pub at: f64,
    /// Where it ended, if it lasted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// What it was, in a word or two.
    pub text: String,
    /// It is trouble, and not a step that was asked for.
    pub bad: bool,
}

/// A chart.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    #[serde(skip)]
    title: String,
    x: Axis,
    y: Axis,
    /// Charts with the same group and the same kind of axis move together.
    group: String,
    series: Vec<Series>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<Mark>,
    /// A height to compare with, and what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<(f64, String)>,
}

#[derive(Clone, Debug, Serialize)]
struct Axis {
    name: String,
    scale: Scale,
}

impl Chart {
    /// An empty chart; `x` and `y` are the axes' names, with their units.
    pub fn new(title: &str, x: (&str, Scale), y: (&str, Scale)) -> Chart {
        let axis = |(name, scale): (&str, Scale)| Axis { name: name.to_owned(), scale };
        Chart {
            title: title.to_owned(),
            x: axis(x),
            y: axis(y),
            group: String::new(),
            series: Vec::new(),
            marks: Vec::new(),
            level: None,
        }
    }

    /// With a height to compare with.
    pub fn level(mut self, at: f64, name: &str) -> Chart {
        self.level = Some((at, name.to_owned()));
        self
    }

    /// Moves together with the others of this group.
    pub fn group(mut self, group: &str) -> Chart {
        group.clone_into(&mut self.group);
        self
    }

    /// With what happened on the way.
    pub fn marks(mut self, marks: &[Mark]) -> Chart {
        self.marks = marks.to_vec();
        self
    }

    /// Adds a curve; one without a value is left out.
    pub fn push(&mut self, mut series: Series) {
        if self.y.scale == Scale::Log {
            series.y.iter_mut().for_each(|y| *y = y.filter(|y| *y > 0.0));
        }
        let (low, high) = if self.x.scale == Scale::Log { (f64::MIN_POSITIVE, f64::MAX) } else { (f64::MIN, f64::MAX) };
        let is_in = |x: &f64| (low..=high).contains(x);
        if series.x.iter().zip(&series.y).any(|(x, y)| is_in(x) && y.is_some()) {
            let kept = |at: &usize| is_in(&series.x[*at]);
            let kept: Vec<usize> = (0..series.x.len()).filter(kept).collect();
            self.series.push(Series {
                x: kept.iter().map(|at| series.x[*at]).collect(),
                y: kept.iter().map(|at| series.y[*at]).collect(),
                labels: kept.iter().filter_map(|at| series.labels.get(*at).cloned()).collect(),
                ..series
            });
        }
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The names of its curves.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.series.iter().map(|series| series.name.as_str())
    }

    /// Its heading.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The chart with its data, for a page.
    pub fn html(&self) -> String {
        // Nothing in JSON can end the element that it stands in: `<` is written as its number.
        let data =
            serde_json::to_string(self).expect("finite numbers and text are always JSON").replace('<', "\\u003c");
        format!(
            "<figure class=\"chart\"><figcaption><b>{}</b> <span class=\"faint\">{}</span></figcaption>\n<div class=\"plot\"></div>\
             <script type=\"application/json\">{data}</script></figure>\n",
            escape(&self.title),
            escape(&self.y.name)
        )
    }
}

/// Charts beside each other, as many in a row as there is room for.
pub fn grid(charts: &[Chart]) -> String {
    if charts.is_empty() {
        return String::new();
    }
    format!("<div class=\"charts\">\n{}</div>\n", charts.iter().map(Chart::html).collect::<String>())
}

/// Five digits: a chart shows three, and a page is not to be large for those that nobody sees.
fn short(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(chart: &Chart) -> serde_json::Value {
        let html = chart.html();
        let json = html.split("application/json\">").nth(1).and_then(|rest| rest.split("</script>").next());
        serde_json::from_str(json.expect("a chart has its data")).expect("which is JSON")
    }

    #[test]
    fn a_chart_is_its_data_and_what_was_not_measured_is_a_gap() {
        let mut chart = Chart::new("A <b>", ("seconds", Scale::Time), ("ms", Scale::Log)).group("g");
        let points =
            [(1.0, Some(1.234_567)), (2.0, None), (3.0, Some(0.0)), (f64::NAN, Some(1.0)), (4.0, Some(f64::INFINITY))];
        chart.push(Series::new("p99 </script>", Hue::RECEIVED, points).stroke(Stroke::Dashed));
        chart.push(Series::new("nothing", Hue::SENT, [(1.0, None)]));
        let mark = Mark { at: 2.0, until: None, text: "5,000/s".to_owned(), bad: false };
        let chart = chart.marks(&[mark]);
        let html = chart.html();
        assert!(html.contains("A &lt;b&gt;") && html.matches("</script>").count() == 1, "{html}");
        let series = serde_json::json!({
            "name": "p99 </script>", "hue": 2, "stroke": "dashed",
            "x": [1.0, 2.0, 3.0, 4.0], "y": [1.2346, null, null, null],
        });
        let expected = serde_json::json!({
            "x": {"name": "seconds", "scale": "time"}, "y": {"name": "ms", "scale": "log"}, "group": "g",
            "series": [series], "marks": [{"at": 2.0, "text": "5,000/s", "bad": false}],
        });
        assert_eq!(data(&chart), expected);
    }

    #[test]
    fn dots_keep_their_words_and_a_level_its_name() {
        let mut chart = Chart::new("t", ("msg/s", Scale::Log), ("cost", Scale::Linear)).level(5.0, "budget");
        let dots = [(0.0, 1.0, "none".to_owned()), (10.0, 2.0, "a".to_owned()), (20.0, 3.0, "b".to_owned())];
        chart.push(Series::dots("all", Hue::nth(0), &dots));
        let data = data(&chart);
        assert_eq!(data["series"][0]["labels"], serde_json::json!(["a", "b"]), "the first has no logarithm");
        assert_eq!(
            (&data["series"][0]["stroke"], &data["level"]),
            (&"dots".into(), &serde_json::json!([5.0, "budget"]))
        );
    }

    #[test]
    fn a_logarithmic_axis_has_nothing_without_a_logarithm() {
        let mut chart = Chart::new("t", ("bytes", Scale::Log), ("ms", Scale::Linear));
        chart.push(Series::new("a", Hue::SENT, [(0.0, Some(1.0)), (10.0, Some(0.0))]));
        assert_eq!(data(&chart)["series"][0]["x"], serde_json::json!([10.0]));
        chart.push(Series::new("b", Hue::SENT, [(0.0, Some(1.0))]));
        assert_eq!(chart.names().collect::<Vec<_>>(), ["a"]);
    }
}
