//! Draws a chart as SVG, for a page or as a file of its own: axes, marks, curves and legend.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Chart, Mark, PUBLISHED, SHADES, StyledCurve};
use crate::figures::{FONT, short};

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
pub(super) const SIZE: (u32, u32) = (484, 300);
/// Size of a chart in a file of its own, without the lines of text above and below it. Unit: pixels.
const FILE_SIZE: (u32, u32) = (600, 280);
/// Height of a line of text in a file. Unit: pixels.
const FILE_LINE: u32 = 24;
/// Height of title and subtitle in a file. Unit: pixels.
const FILE_HEAD: u32 = 2 * FILE_LINE + 10;
const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(228, 228, 228);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;

impl Chart {
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

fn font(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}
