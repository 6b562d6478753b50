//! Charts for pages and figure files: curves, the spread of their points, and published values and marks beside them.
//! Callers also ask a [`Curve`] for values and for the x from which on a condition holds. [`ChartData`] is a chart in
//! JSON. `draw` makes SVG of it. This file does not know what the values mean.

mod curve;
mod draw;

use super::figures::{COLOURS, hex, short};
pub use curve::Curve;
use plotters::prelude::RGBColor;
use serde::{Deserialize, Serialize};

/// A published statement, drawn at its place.
#[derive(Clone, Copy, Debug)]
pub enum Mark {
    /// A value of x.
    At {
        /// The value of x.
        x: f64,
        /// The label.
        text: &'static str,
    },
    /// A range of x.
    Span {
        /// The first x.
        from: f64,
        /// The last x.
        to: f64,
        /// The label.
        text: &'static str,
    },
    /// A limit on y.
    Level {
        /// The value of y.
        y: f64,
        /// The label.
        text: &'static str,
    },
    /// A text without a place, also about something that is not drawn.
    Words {
        /// The text.
        text: &'static str,
    },
}

/// A chart with a legend of its own.
pub struct Chart {
    /// The title.
    pub title: String,
    x_title: String,
    y_title: String,
    curves: Vec<StyledCurve>,
    published: Vec<(String, Vec<(f64, f64)>)>,
    marks: Vec<Mark>,
    logarithmic: bool,
    /// Whether the y axis of a logarithmic chart is linear.
    has_linear_y: bool,
    /// Whether values of x are categories without an order.
    is_categorical: bool,
    /// Formats values of x on the axis.
    x_name: fn(f64) -> String,
    /// Factor between labels of a logarithmic x axis.
    x_base: f64,
    /// Names of the categories.
    categories: Vec<String>,
    /// Whether each point of a curve has a marker.
    has_markers: bool,
}

/// The curves of a chart as data. A chart made of it has the same curves, without published values and marks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChartData {
    /// The title.
    pub title: String,
    /// Title of the x axis.
    pub x: String,
    /// Title of the y axis.
    pub y: String,
    /// The curves, in the order of the legend.
    pub curves: Vec<CurveData>,
}

/// A curve as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurveData {
    /// Its name in the legend.
    pub name: String,
    /// Values of x and y.
    pub points: Vec<(f64, f64)>,
}

impl ChartData {
    /// A chart with these curves.
    pub fn chart(&self) -> Chart {
        let mut chart = Chart::new(self.title.clone(), self.x.clone(), self.y.clone());
        for curve in &self.curves {
            chart.curve(curve.name.clone(), Curve(curve.points.clone()));
        }
        chart
    }
}

/// A curve with its style.
struct StyledCurve {
    name: String,
    curve: Curve,
    /// (x, smallest, largest) of some points.
    spread: Vec<(f64, f64, f64)>,
    colour: RGBColor,
}

/// The colour of what was published.
const PUBLISHED: RGBColor = RGBColor(150, 150, 150);
/// Colours of published curves, used in turn.
const SHADES: [RGBColor; 2] = [PUBLISHED, RGBColor(70, 70, 70)];

impl Chart {
    /// A chart without curves.
    pub fn new(title: impl Into<String>, x_title: impl Into<String>, y_title: impl Into<String>) -> Chart {
        Chart {
            title: title.into(),
            x_title: x_title.into(),
            y_title: y_title.into(),
            curves: Vec::new(),
            published: Vec::new(),
            marks: Vec::new(),
            logarithmic: false,
            has_linear_y: false,
            is_categorical: false,
            x_name: short,
            x_base: 10.0,
            categories: Vec::new(),
            has_markers: true,
        }
    }

    /// Points without lines. Values of x are indices into these names.
    #[must_use]
    pub fn categories(mut self, names: impl IntoIterator<Item = String>) -> Chart {
        self.categories = names.into_iter().collect();
        self.is_categorical = true;
        self
    }

    /// Values of x are powers of two; `name` formats them on the axis.
    #[must_use]
    pub fn x_powers_of_two(mut self, name: fn(f64) -> String) -> Chart {
        (self.x_name, self.x_base) = (name, 2.0);
        self
    }

    /// Makes both axes logarithmic. The y axis stays linear if its values are too close for two labels.
    #[must_use]
    pub fn logarithmic(mut self) -> Chart {
        self.logarithmic = true;
        self
    }

    /// Makes the x axis logarithmic, for values of y that can be negative.
    #[must_use]
    pub fn logarithmic_x(mut self) -> Chart {
        (self.logarithmic, self.has_linear_y) = (true, true);
        self
    }

    /// Curves without a marker at each point, for curves of many points.
    #[must_use]
    pub fn without_markers(mut self) -> Chart {
        self.has_markers = false;
        self
    }

    /// Adds a curve of ours. A curve without points is not drawn.
    pub fn curve(&mut self, name: impl Into<String>, curve: Curve) {
        self.spread_curve(self.curves.len(), name, curve, Vec::new());
    }

    /// Adds a curve with (x, smallest, largest) of its points, in colour `number`. A curve without points is not drawn.
    pub fn spread_curve(
        &mut self,
        number: usize,
        name: impl Into<String>,
        curve: Curve,
        spread: Vec<(f64, f64, f64)>,
    ) {
        if !curve.is_empty() {
            self.curves.push(StyledCurve { name: name.into(), curve, spread, colour: colour(number) });
        }
    }

    /// Adds published values: grey triangles on a line, darker for the second curve.
    pub fn published(&mut self, name: impl Into<String>, values: Vec<(f64, f64)>) {
        self.published.push((name.into(), values));
    }

    /// Adds a published mark.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.push(mark);
    }

    /// Whether it shows anything published.
    pub fn shows_published(&self) -> bool {
        !self.published.is_empty() || !self.marks.is_empty() && !self.logarithmic // logarithmic charts draw no marks
    }

    /// Whether there are no curves.
    pub fn is_empty(&self) -> bool {
        self.curves.is_empty()
    }

    /// Titles and our curves, as data.
    pub fn data(&self) -> ChartData {
        let curve = |it: &StyledCurve| CurveData { name: it.name.clone(), points: it.curve.0.clone() };
        ChartData {
            title: self.title.clone(),
            x: self.x_title.clone(),
            y: self.y_title.clone(),
            curves: self.curves.iter().map(curve).collect(),
        }
    }

    /// Names and colours of all curves.
    pub fn legend(&self) -> Vec<(String, String)> {
        let ours = self.curves.iter().map(|drawn| (drawn.name.clone(), hex(drawn.colour)));
        let published = self.published.iter().zip(SHADES.into_iter().cycle());
        ours.chain(published.map(|((name, _), shade)| (name.clone(), hex(shade)))).collect()
    }
}

/// The colour of a curve. From the ninth curve on the colours are those of the first eight, paler.
fn colour(index: usize) -> RGBColor {
    let RGBColor(red, green, blue) = COLOURS[index % COLOURS.len()];
    let pale = |channel: u8| if index < COLOURS.len() { channel } else { channel / 2 + 127 };
    RGBColor(pale(red), pale(green), pale(blue))
}

#[cfg(test)]
mod tests {
    use super::draw::SIZE;
    use super::*;
    use crate::figures::FONT;

    #[test]
    fn charts_are_well_formed_and_show_published_values() {
        let mut chart = Chart::new("t", "x", "y");
        chart.curve("nothing", Curve::default());
        assert!(chart.is_empty());
        chart.curve("ours", Curve(vec![(30.0, -3.0), (40.0, 20.0), (64.0, 1.0)]));
        chart.published("theirs", vec![(30.0, 5.0), (64.0, 2.0)]);
        chart.mark(Mark::Span { from: 38.0, to: 42.0, text: "falls" });
        chart.mark(Mark::At { x: 57.0, text: "stable" });
        chart.mark(Mark::Level { y: 5.0, text: "limit" });
        chart.mark(Mark::At { x: 99.0, text: "outside" });
        chart.mark(Mark::Words { text: "less" });
        for chart in [chart, Chart::new("empty", "x", "y"), Chart::new("empty", "x", "y").logarithmic()] {
            let svg = chart.draw();
            let parsed = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
            assert_eq!(parsed.root_element().tag_name().name(), "svg");
            let is_full = !chart.is_empty();
            for text in ["falls", "stable", "limit", "less"] {
                assert_eq!(svg.contains(text), is_full, "{text}");
            }
            assert!(!svg.contains("outside"));
            assert_eq!(chart.legend().len(), if is_full { 2 } else { 0 });
        }
    }

    #[test]
    fn a_chart_file_has_title_legend_and_a_white_background() {
        let mut chart = Chart::new("A title", "time (s)", "MiB").without_markers();
        for (name, top) in [("one", 4.0), ("two", 9.0), ("three", 2.0)] {
            chart.curve(name, Curve(vec![(0.0, 0.0), (1.0, top), (2.0, top)]));
        }
        let svg = chart.draw_file("a subtitle");
        let parsed = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        let first = parsed.root_element().first_element_child().unwrap();
        assert_eq!((first.tag_name().name(), first.attribute("fill")), ("rect", Some("#FFFFFF")));
        for text in ["A title", "a subtitle", "time (s)", "MiB", "one", "two", "three"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(parsed.descendants().filter(|node| node.has_tag_name("circle")).count(), 0);
        for colour in &COLOURS[..3] {
            // Its line, and its square in the legend.
            assert_eq!(svg.matches(&hex(*colour).to_uppercase()).count(), 2, "{svg}");
        }
    }

    #[test]
    fn categories_have_names_and_stable_colours() {
        let mut chart = Chart::new("t", "", "y").categories(["one", "other"].map(String::from));
        chart.spread_curve(0, "one", Curve::default(), Vec::new());
        chart.spread_curve(1, "other", Curve(vec![(1.0, 2.0)]), vec![(1.0, 1.0, 3.0)]);
        let svg = chart.draw();
        assert!(svg.contains("other") && svg.contains("one"), "{svg}");
        assert_eq!(chart.legend(), [("other".to_owned(), hex(COLOURS[1]))]);
    }

    #[test]
    fn a_logarithmic_axis_has_two_labels_or_is_linear() {
        for (values, labels) in [([1.6, 40.0], [">20<", ">40<"]), ([1.0, 60.0], [">1<", ">10<"])] {
            let mut chart = Chart::new("t", "bytes", "us").logarithmic();
            chart.curve("ours", Curve(vec![(2.0, values[0]), (4000.0, values[1])]));
            let svg = chart.draw().replace(char::is_whitespace, "");
            for label in labels {
                assert!(svg.contains(label), "{label}: {svg}");
            }
        }
    }

    #[test]
    fn a_logarithmic_x_axis_permits_negative_values_of_y() {
        let mut chart = Chart::new("t", "messages", "%").logarithmic_x();
        chart.curve("ours", Curve(vec![(1.0, -10.0), (10.0, 0.0), (100.0, 20.0)]));
        let svg = chart.draw().replace(char::is_whitespace, "");
        for label in [">1<", ">10<", ">100<", ">-10<", ">0<", ">20<"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
        assert!(!svg.contains(">40<"), "the x axis is linear: {svg}");
    }

    #[test]
    fn the_last_label_of_the_x_axis_is_inside_the_chart() {
        for chart in [Chart::new("t", "x", "y"), Chart::new("t", "x", "y").logarithmic()] {
            let mut chart = chart;
            chart.curve("ours", Curve(vec![(1.0, 1.0), (100.0, 9.0)]));
            let svg = chart.draw();
            let parsed = roxmltree::Document::parse(&svg).unwrap();
            let is_label =
                |node: &roxmltree::Node<'_, '_>| node.text().is_some_and(|text| text.trim() == "100");
            let label = parsed.descendants().filter(|node| node.has_tag_name("text")).find(is_label).unwrap();
            assert_eq!(label.attribute("text-anchor"), Some("middle"));
            let middle: u32 = label.attribute("x").unwrap().parse().unwrap();
            // Three digits, each about half as wide as the font is high.
            assert!(SIZE.0 - middle >= FONT * 3 / 4, "{middle} of {}", SIZE.0);
        }
    }

    #[test]
    fn an_axis_of_powers_of_two_has_labels_at_them() {
        let mut chart =
            Chart::new("t", "ranks", "us").logarithmic().x_powers_of_two(|ranks| format!("{ranks} ranks"));
        chart.curve("ours", Curve(vec![(2.0, 1.0), (4.0, 20.0), (16.0, 4000.0)]));
        let svg = chart.draw();
        for label in ["2 ranks", "4 ranks", "8 ranks", "16 ranks"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
    }
}
