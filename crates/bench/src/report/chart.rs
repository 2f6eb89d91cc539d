//! Line charts as SVG, drawn by hand: axes, grid, curves, and a legend.
//!
//! Invariant: a chart draws finite numbers only, and what it draws lies within its frame.

use super::escape;

/// How values lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By tens.
    Log,
    /// Percentiles: as much room from 99 to 99.9 as from 90 to 99.
    Percentile,
}

/// One curve.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    color: usize,
    dashed: bool,
}

impl Series {
    /// A curve through these points.
    pub fn new(name: String, points: Vec<(f64, f64)>) -> Series {
        let points = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        Series { name, points, color: 0, dashed: false }
    }

    /// The `at`-th colour.
    pub fn color(mut self, at: usize) -> Series {
        self.color = at;
        self
    }

    /// Dashed.
    pub fn dashed(mut self) -> Series {
        self.dashed = true;
        self
    }
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    x_name: String,
    y_name: String,
    x: Scale,
    y: Scale,
    series: Vec<Series>,
}

/// Colours that colour-blind readers can tell apart too, and that show on light and dark paper.
const COLORS: [&str; 12] = [
    "#0b7bc1", "#d9541e", "#0d9a6c", "#b9509b", "#c99400", "#4aa3df", "#7a6fd0", "#8a8f98", "#8f4a1d", "#5c8a1f",
    "#d46a8c", "#2f6f7a",
];

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
/// Half of the last label of an axis stands beyond the axis.
const RIGHT: f64 = 28.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;

/// Names of curves stand in columns, as many as the longest of them leaves room for.
const LEGEND_COLUMNS_MAX: usize = 4;
/// A line and the gaps around it.
const LEGEND_MARK: f64 = 48.0;
/// A letter of 12 pixels, with something to spare: fonts differ.
const LETTER: f64 = 6.6;

/// The rarest tail on a percentile axis: 1 in 100,000.
const PERCENTILE_TENS: f64 = 5.0;

impl Chart {
    /// An empty chart.
    pub fn new(title: &str, x_name: &str, y_name: &str) -> Chart {
        let (title, x_name, y_name) = (title.to_owned(), x_name.to_owned(), y_name.to_owned());
        Chart { title, x_name, y_name, x: Scale::Linear, y: Scale::Linear, series: Vec::new() }
    }

    /// With this scale of its horizontal axis.
    pub fn x(mut self, scale: Scale) -> Chart {
        self.x = scale;
        self
    }

    /// With this scale of its vertical axis.
    pub fn y(mut self, scale: Scale) -> Chart {
        self.y = scale;
        self
    }

    /// Adds a curve; one without points is left out.
    pub fn push(&mut self, series: Series) {
        if !series.points.is_empty() {
            self.series.push(series);
        }
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The chart.
    pub fn svg(&self) -> String {
        let (columns, column_width) = self.legend_columns();
        let legend_rows = self.series.len().div_ceil(columns);
        let height = HEIGHT + 18.0 * legend_rows as f64;
        let x = Axis::of(self.x, self.series.iter().flat_map(|s| s.points.iter().map(|p| p.0)), false);
        let y = Axis::of(self.y, self.series.iter().flat_map(|s| s.points.iter().map(|p| p.1)), true);
        let at = |px: f64, py: f64| {
            (LEFT + x.place(px) * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y.place(py) * (HEIGHT - TOP - BOTTOM))
        };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"15\" font-weight=\"600\">{}</text>\n",
            escape(&self.title)
        );
        for tick in y.ticks() {
            let (_, py) = at(0.0, tick);
            svg.push_str(&format!(
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{py:.1}\" x2=\"{:.1}\" y2=\"{py:.1}\"/>\
                 <text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                WIDTH - RIGHT,
                LEFT - 8.0,
                py + 4.0,
                number(tick)
            ));
        }
        for tick in x.ticks() {
            let (px, _) = at(tick, 0.0);
            svg.push_str(&format!(
                "<line class=\"grid\" x1=\"{px:.1}\" y1=\"{TOP}\" x2=\"{px:.1}\" y2=\"{:.1}\"/>\
                 <text class=\"faint\" x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 18.0,
                number(tick)
            ));
        }
        svg.push_str(&format!(
            "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"faint\" x=\"14\" y=\"{:.1}\" transform=\"rotate(-90 14 {:.1})\" text-anchor=\"middle\">{}</text>\n",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(&self.x_name),
            HEIGHT / 2.0,
            HEIGHT / 2.0,
            escape(&self.y_name)
        ));
        for series in &self.series {
            svg.push_str(&curve(series, &at));
        }
        for (place, series) in self.series.iter().enumerate() {
            let (lx, ly) =
                (LEFT + (place % columns) as f64 * column_width, HEIGHT + 12.0 + (place / columns) as f64 * 18.0);
            let dash = if series.dashed { " dashed" } else { "" };
            svg.push_str(&format!(
                "<line class=\"curve{dash}\" x1=\"{lx}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{ly}\">{}</text>\n",
                ly - 4.0,
                lx + 22.0,
                ly - 4.0,
                COLORS[series.color % COLORS.len()],
                lx + 28.0,
                escape(&series.name)
            ));
        }
        svg + "</svg>"
    }

    /// How many columns of names there are, and how wide each is.
    fn legend_columns(&self) -> (usize, f64) {
        let longest = self.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
        let room = WIDTH - LEFT;
        let fit = (room / (LEGEND_MARK + longest as f64 * LETTER)) as usize;
        let columns = fit.clamp(1, LEGEND_COLUMNS_MAX);
        (columns, room / columns as f64)
    }
}

fn curve(series: &Series, at: &dyn Fn(f64, f64) -> (f64, f64)) -> String {
    let color = COLORS[series.color % COLORS.len()];
    let dash = if series.dashed { " dashed" } else { "" };
    let places: Vec<(f64, f64)> = series.points.iter().map(|(x, y)| at(*x, *y)).collect();
    if let [(x, y)] = places[..] {
        return format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>\n");
    }
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!(
        "<polyline class=\"curve{dash}\" stroke=\"{color}\" points=\"{}\"><title>{}</title></polyline>\n",
        path.join(" "),
        escape(&series.name)
    )
}

/// An axis from its lowest to its highest value.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn of(scale: Scale, values: impl Iterator<Item = f64>, from_zero: bool) -> Axis {
        let (mut low, mut high) = (f64::MAX, f64::MIN);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        match scale {
            Scale::Percentile => Axis { scale, low: 0.0, high: PERCENTILE_TENS },
            Scale::Log => {
                // Zero has no place among tens; a thousandth of the unit is as good as nothing.
                let low = low.max(1e-3).log10().floor();
                Axis { scale, low, high: high.max(1e-3).log10().ceil().max(low + 1.0) }
            }
            Scale::Linear => {
                let low = if from_zero { low.min(0.0) } else { low };
                let high = if high > low { high } else { low + 1.0 };
                Axis { scale, low, high: if from_zero { high * 1.05 } else { high } }
            }
        }
    }

    /// From 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(1e-3).log10(),
            Scale::Percentile => -((1.0 - value / 100.0).max(1e-9)).log10(),
        };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Percentile => vec![0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999],
            Scale::Log => (self.low as i32..=self.high as i32).map(|ten| 10f64.powi(ten)).collect(),
            Scale::Linear => {
                let step = nice_step((self.high - self.low) / 6.0);
                let first = (self.low / step).ceil() as i64;
                (first..).map(|n| n as f64 * step).take_while(|tick| *tick <= self.high).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, at least `rough`.
fn nice_step(rough: f64) -> f64 {
    let ten = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * ten).find(|step| *step >= rough).unwrap_or(10.0 * ten)
}

fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        v if v >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        let axis = Axis::of(Scale::Linear, [0.0, 9_700.0].into_iter(), true);
        assert_eq!(axis.ticks(), [0.0, 2000.0, 4000.0, 6000.0, 8000.0, 10_000.0]);
        let axis = Axis::of(Scale::Log, [0.3, 80.0].into_iter(), true);
        assert_eq!(axis.ticks().iter().map(|t| number(*t)).collect::<Vec<_>>(), ["0.1", "1", "10", "100"]);
        let axis = Axis::of(Scale::Percentile, [].into_iter(), false);
        assert!((axis.place(99.9) - 0.6).abs() < 1e-9);
    }

    #[test]
    fn no_name_in_the_legend_runs_into_the_next() {
        for letters in [5, 30, 46, 70] {
            let mut chart = Chart::new("t", "x", "y");
            (0..9).for_each(|_| chart.push(Series::new("n".repeat(letters), vec![(0.0, 1.0), (1.0, 2.0)])));
            let (columns, width) = chart.legend_columns();
            assert!(columns == 1 || letters as f64 * LETTER + LEGEND_MARK <= width, "{letters} letters in {columns}");
        }
    }

    #[test]
    fn what_is_drawn_lies_within_the_frame() {
        let frame = (LEFT..=WIDTH - RIGHT, TOP..=HEIGHT - BOTTOM);
        let scales = [Scale::Linear, Scale::Log, Scale::Percentile];
        for (x, y) in scales.into_iter().flat_map(|x| [(x, Scale::Linear), (x, Scale::Log)]) {
            let points = [(0.0, 0.0), (1.0, f64::NAN), (2.0, 5.0), (40.0, -3.0), (99.99999, 700.0), (100.0, 1e12)];
            let drawn = places(&Chart::new("t", "x", "y").x(x).y(y), &points);
            assert_eq!(drawn.len(), points.len() - 1, "what is no number is left out: {x:?} {y:?}");
            for (px, py) in &drawn {
                assert!(frame.0.contains(px) && frame.1.contains(py), "{px},{py} of {x:?} {y:?}");
            }
            // A curve that was squeezed into a corner would lie within the frame too.
            let (first, last) = (drawn[0], drawn[drawn.len() - 1]);
            assert_eq!((first.0, last.0), (LEFT, WIDTH - RIGHT), "from edge to edge: {x:?} {y:?}");
            assert!(last.1 < TOP + 0.1 * HEIGHT && last.1 < first.1, "the largest is at the top: {x:?} {y:?}");
        }
        // A value beyond its axis: percentiles end at one in 100,000, and tens have no place for nothing.
        assert_eq!(
            places(&Chart::new("t", "x", "y").x(Scale::Percentile), &[(50.0, 1.0), (100.0, 2.0)])[1].0,
            WIDTH - RIGHT
        );
        assert_eq!(places(&Chart::new("t", "x", "y").y(Scale::Log), &[(0.0, 0.0), (1.0, 9.0)])[0].1, HEIGHT - BOTTOM);
    }

    /// Where the points of a curve are drawn.
    fn places(chart: &Chart, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let mut chart = chart.clone();
        chart.push(Series::new("s".into(), points.to_vec()));
        let svg = chart.svg();
        let drawn = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let number = |text: &str| text.parse::<f64>().expect("a number");
        let point = |text: &str| text.split_once(',').map(|(x, y)| (number(x), number(y))).expect("x,y");
        drawn.split(' ').map(point).collect()
    }

    #[test]
    fn labels_and_names_of_curves_lie_within_the_picture() {
        let mut chart = Chart::new("t", "x", "y").x(Scale::Percentile).y(Scale::Log);
        (0..30).for_each(|at| chart.push(Series::new(format!("curve {at}"), vec![(0.0, 0.001), (99.0, 1e9)])));
        let svg = chart.svg();
        let height: f64 = svg
            .split("viewBox=\"0 0 960 ")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .expect("a size")
            .parse()
            .expect("a number");
        let attribute = |tag: &str, name: &str| -> Option<f64> {
            tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok()
        };
        let texts: Vec<&str> = svg.split("<text").skip(1).collect();
        assert!(texts.len() > 40, "ticks, names of axes and of curves: {}", texts.len());
        for text in texts {
            let (x, y) = (attribute(text, "x").expect("x"), attribute(text, "y").expect("y"));
            let letters = text.split('>').nth(1).and_then(|rest| rest.split('<').next()).unwrap_or_default();
            let width = letters.chars().count() as f64 * LETTER;
            let (left, right) = match attribute_text(text) {
                Some("end") => (x - width, x),
                Some("middle") => (x - width / 2.0, x + width / 2.0),
                _ => (x, x + width),
            };
            let is_turned = text.contains("rotate");
            assert!(is_turned || (left >= 0.0 && right <= WIDTH), "{letters} from {left} to {right}");
            assert!(y > 0.0 && y < height, "{letters} at {y} of {height}");
        }
    }

    /// How a text lies around its place.
    fn attribute_text(tag: &str) -> Option<&str> {
        tag.split("text-anchor=\"").nth(1)?.split('"').next()
    }
}
