//! Charts for pages and figure files: curves, the spread of their points, and published values and marks beside them.
//! Callers also ask a [`Curve`] for values and for the x from which on a condition holds. [`ChartData`] is a chart in
//! JSON. This file does not know what the values mean.

use super::figures::{COLOURS, FONT, hex, short};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};

/// Points of a curve, in the order of x.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve(pub Vec<(f64, f64)>);

impl Curve {
    /// The value at `x`.
    pub fn at(&self, x: f64) -> Option<f64> {
        self.0.iter().find(|point| point.0 == x).map(|point| point.1)
    }

    /// Whether the curve has no points.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Values from `from` to `to`, both included.
    pub fn between(&self, from: f64, to: f64) -> Vec<f64> {
        self.0.iter().filter(|point| (from..=to).contains(&point.0)).map(|point| point.1).collect()
    }

    /// The first `x` from which on all values satisfy `holds`.
    pub fn holds_from(&self, holds: impl Fn(f64) -> bool) -> Option<f64> {
        let last_bad = self.0.iter().rposition(|point| !holds(point.1));
        self.0.get(last_bad.map_or(0, |index| index + 1)).map(|point| point.0)
    }
}

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

/// Sizes of texts and of the areas around a chart. Unit: pixels.
#[derive(Clone, Copy)]
struct Look {
    /// Height of labels. plotters writes a font size of 1 / 1.24 of it.
    label: u32,
    /// Height of the texts at marks.
    mark: u32,
    /// Height of the area below the x axis.
    x_area: u32,
    /// Width of the area beside the y axis.
    y_area: u32,
    /// Width of curves.
    curve: u32,
}

/// Sizes on a page. A page does not let a chart shrink until its text is too small.
const ON_PAGE: Look = Look { label: FONT, mark: FONT, x_area: 40, y_area: 62, curve: 2 };
/// Sizes in a file, which may be shown with a width of 400 pixels. Labels are then 10 pixels high.
const IN_FILE: Look = Look { label: 19, mark: 17, x_area: 50, y_area: 78, curve: 3 };

/// Smallest ratio of largest to smallest value for a logarithmic y axis. Labels are at powers of ten, and the axis
/// extends by a factor of 1.5 at both ends. From this ratio on it surely has two labels.
const MIN_LOGARITHMIC_RATIO: f64 = 100.0 / (1.5 * 1.5);
/// Size of a chart on a page. Unit: pixels.
const SIZE: (u32, u32) = (484, 300);
/// Size of a chart in a file of its own, without the lines of text above and below it. Unit: pixels.
const FILE_SIZE: (u32, u32) = (600, 280);
/// Height of a line of text in a file. Unit: pixels.
const FILE_LINE: u32 = 24;
/// Height of title and subtitle in a file. Unit: pixels.
const FILE_HEAD: u32 = 2 * FILE_LINE + 10;
const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(228, 228, 228);
const PUBLISHED: RGBColor = RGBColor(150, 150, 150);
/// Colours of published curves, used in turn.
const SHADES: [RGBColor; 2] = [PUBLISHED, RGBColor(70, 70, 70)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;

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

    /// The chart as SVG.
    pub fn draw(&self) -> String {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw_on(&area, ON_PAGE).and_then(|()| area.present()).expect("a string takes everything");
        }
        text
    }

    /// The chart as an SVG file of its own: title, `subtitle`, chart and legend on a white background, so that it can be
    /// read on a dark page too.
    pub fn draw_file(&self, subtitle: &str) -> String {
        let mut text = String::new();
        {
            let legend = FILE_LINE * self.legend().len() as u32 + 8;
            let size = (FILE_SIZE.0, FILE_HEAD + FILE_SIZE.1 + legend);
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            let drawn = self.draw_file_on(&area, subtitle);
            drawn.and_then(|()| area.present()).expect("a string takes everything");
        }
        text
    }

    fn draw_file_on(&self, area: &Area<'_>, subtitle: &str) -> Result<(), DrawError> {
        const EDGE_PIXELS: i32 = 12;
        area.fill(&WHITE)?;
        let (head, rest) = area.split_vertically(FILE_HEAD);
        let (chart, legend) = rest.split_vertically(FILE_SIZE.1);
        head.draw(&Text::new(self.title.as_str(), (EDGE_PIXELS, 8), font(IN_FILE.label + 3)))?;
        head.draw(&Text::new(subtitle, (EDGE_PIXELS, 10 + FILE_LINE as i32), font(IN_FILE.mark)))?;
        self.draw_on(&chart, IN_FILE)?;
        let colours = self.curves.iter().map(|drawn| (drawn.name.as_str(), drawn.colour));
        let published = self.published.iter().zip(SHADES.into_iter().cycle());
        let entries = colours.chain(published.map(|((name, _), shade)| (name.as_str(), shade)));
        for (index, (name, colour)) in entries.enumerate() {
            let (left, top) = (EDGE_PIXELS, (index as u32 * FILE_LINE) as i32);
            legend.draw(&Rectangle::new([(left, top + 3), (left + 14, top + 17)], colour.filled()))?;
            legend.draw(&Text::new(name, (left + 22, top), font(IN_FILE.label)))?;
        }
        Ok(())
    }

    fn draw_on(&self, area: &Area<'_>, look: Look) -> Result<(), DrawError> {
        if self.logarithmic { self.draw_logarithmic(area, look) } else { self.draw_linear(area, look) }
    }

    /// All values of x and y.
    fn range(&self) -> [(f64, f64); 2] {
        let ours = self.curves.iter().flat_map(|drawn| drawn.curve.0.iter().copied());
        let spread = self.curves.iter().flat_map(|drawn| drawn.spread.iter());
        let ends = spread.flat_map(|&(x, low, high)| [(x, low), (x, high)]);
        let published = self.published.iter().flat_map(|(_, values)| values.iter().copied());
        let mut range = [(f64::INFINITY, f64::NEG_INFINITY); 2];
        for (x, y) in ours.chain(ends).chain(published) {
            for (range, value) in range.iter_mut().zip([x, y]) {
                *range = (range.0.min(value), range.1.max(value));
            }
        }
        range.map(|(low, high)| {
            if low > high {
                (0.0, 1.0)
            } else if low == high {
                (low - 1.0, high + 1.0)
            } else {
                (low, high)
            }
        })
    }

    fn draw_linear(&self, area: &Area<'_>, look: Look) -> Result<(), DrawError> {
        let [mut x, y] = self.range();
        if !self.categories.is_empty() {
            x = (-0.5, self.categories.len() as f64 - 0.5);
        }
        let limits = self
            .marks
            .iter()
            .filter_map(|mark| if let Mark::Level { y, .. } = mark { Some(*y) } else { None });
        let top = limits.fold(y.1, f64::max);
        let bottom = y.0.min(0.0);
        let room = (top - bottom) * 0.06;
        let bottom = if bottom < 0.0 { bottom - room } else { 0.0 };
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(look.label)
            .x_label_area_size(look.x_area)
            .y_label_area_size(look.y_area)
            .build_cartesian_2d(x.0..x.1, bottom..top + room)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(font(look.label))
            .axis_desc_style(font(look.label))
            .x_labels(7)
            .y_labels(7)
            .x_label_formatter(&|value| self.x_label(*value))
            .y_label_formatter(&|value| short(*value))
            .x_desc(self.x_title.as_str())
            .y_desc(self.y_title.as_str())
            .draw()?;
        let mut line = 0;
        for mark in &self.marks {
            let (place, label) = match *mark {
                Mark::Span { from, to, text } => {
                    let (from, to) = (from.max(x.0), to.min(x.1));
                    if from >= to {
                        continue;
                    }
                    let corners = [(from, bottom), (to, top + room)];
                    chart.draw_series([Rectangle::new(corners, PUBLISHED.mix(0.25).filled())])?;
                    ((from, top + room), text)
                }
                Mark::At { x: at, text } => {
                    if !(x.0..=x.1).contains(&at) {
                        continue;
                    }
                    let ends = [(at, bottom), (at, top + room)];
                    chart.draw_series([PathElement::new(ends, PUBLISHED.stroke_width(1))])?;
                    ((at, top + room), text)
                }
                Mark::Level { y: at, text } => {
                    let ends = [(x.0, at), (x.1, at)];
                    chart.draw_series([PathElement::new(ends, PUBLISHED.stroke_width(1))])?;
                    let (left, height) = chart.backend_coord(&(x.0, at));
                    let style = font(look.mark).pos(Pos::new(HPos::Left, VPos::Bottom));
                    area.draw(&Text::new(text, (left + 4, height - 1), style))?;
                    continue;
                }
                Mark::Words { text } => {
                    let (right, height) = chart.backend_coord(&(x.1, top + room));
                    let style = font(look.mark).pos(Pos::new(HPos::Right, VPos::Top));
                    area.draw(&Text::new(text, (right - 4, height + 2 + look.mark as i32 * line), style))?;
                    line += 1;
                    continue;
                }
            };
            // Labels of neighbours are on different lines.
            let (left, height) = chart.backend_coord(&place);
            let style = font(look.mark).pos(Pos::new(HPos::Left, VPos::Top));
            area.draw(&Text::new(label, (left + 3, height + 2 + look.mark as i32 * line), style))?;
            line = (line + 1) % 3;
        }
        self.draw_curves(&mut chart, look)
    }

    fn draw_logarithmic(&self, area: &Area<'_>, look: Look) -> Result<(), DrawError> {
        let [x, y] = self.range();
        let mut builder = ChartBuilder::on(area);
        builder.margin(6).margin_right(look.label);
        builder.x_label_area_size(look.x_area).y_label_area_size(look.y_area);
        let x = (x.0..x.1).log_scale().base(self.x_base);
        if self.has_linear_y {
            let (bottom, top) = (y.0.min(0.0), y.1.max(0.0));
            let room = (top - bottom) * 0.06;
            let bottom = if bottom < 0.0 { bottom - room } else { 0.0 };
            return self.draw_with_logarithmic_x(builder.build_cartesian_2d(x, bottom..top + room)?, look);
        }
        if y.0 >= 0.0 && y.1 < y.0 * MIN_LOGARITHMIC_RATIO {
            return self.draw_with_logarithmic_x(builder.build_cartesian_2d(x, 0.0..y.1 * 1.06)?, look);
        }
        let (low, high) = (y.0.max(y.1 * 1e-9).max(f64::MIN_POSITIVE) / 1.5, y.1 * 1.5);
        self.draw_with_logarithmic_x(builder.build_cartesian_2d(x, (low..high).log_scale())?, look)
    }

    fn draw_with_logarithmic_x<'a, X, Y>(
        &self,
        mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
        look: Look,
    ) -> Result<(), DrawError>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(font(look.label))
            .axis_desc_style(font(look.label))
            .x_labels(6)
            .y_labels(7)
            .x_label_formatter(&|value| self.x_label(*value))
            .y_label_formatter(&|value| short(*value))
            .x_desc(self.x_title.as_str())
            .y_desc(self.y_title.as_str())
            .draw()?;
        self.draw_curves(&mut chart, look)
    }

    fn draw_curves<'a, X, Y>(
        &self,
        chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
        look: Look,
    ) -> Result<(), DrawError>
    where
        X: Ranged<ValueType = f64>,
        Y: Ranged<ValueType = f64>,
    {
        // The first curve is drawn last, so that no other covers it.
        for StyledCurve { curve, spread, colour, .. } in self.curves.iter().rev() {
            if !self.is_categorical {
                chart.draw_series([PathElement::new(curve.0.clone(), colour.stroke_width(look.curve))])?;
            }
            let ends = spread.iter().map(|&(x, low, high)| [(x, low), (x, high)]);
            chart.draw_series(ends.map(|ends| PathElement::new(ends, colour.mix(0.6).stroke_width(1))))?;
            // A curve of one point has no line.
            if self.has_markers || curve.0.len() == 1 {
                let radius = if self.is_categorical { 5 } else { 2 };
                chart.draw_series(curve.0.iter().map(|&at| Circle::new(at, radius, colour.filled())))?;
            }
        }
        // Small and on top, so that points at the same place stay visible.
        for ((_, values), shade) in self.published.iter().zip(SHADES.into_iter().cycle()) {
            if !self.is_categorical {
                chart.draw_series([PathElement::new(values.clone(), shade.stroke_width(1))])?;
            }
            chart.draw_series(values.iter().map(|&at| TriangleMarker::new(at, 5, shade.filled())))?;
        }
        Ok(())
    }

    /// The label of a place on the x axis.
    fn x_label(&self, value: f64) -> String {
        if self.categories.is_empty() {
            return (self.x_name)(value);
        }
        let index = value.round();
        let is_thing = (value - index).abs() < 1e-6 && index >= 0.0;
        self.categories.get(index as usize).filter(|_| is_thing).cloned().unwrap_or_default()
    }
}

/// The colour of a curve. From the ninth curve on the colours are those of the first eight, paler.
fn colour(index: usize) -> RGBColor {
    let RGBColor(red, green, blue) = COLOURS[index % COLOURS.len()];
    let pale = |channel: u8| if index < COLOURS.len() { channel } else { channel / 2 + 127 };
    RGBColor(pale(red), pale(green), pale(blue))
}

fn font(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}

#[cfg(test)]
mod tests {
    use super::*;

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
