//! Figures as SVG for the page of `weir run --report`: lines, bands, heat maps, bars. Charts and other pages use its
//! colours, text sizes and short numbers.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours of lines and bars, distinguishable with red-green colour blindness. Source: Wong, Nature Methods 8, 441.
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 60),
    RGBColor(110, 110, 110),
];
/// Darkest colour of heat maps for waiting.
pub const HOT: RGBColor = RGBColor(178, 24, 43);
/// Darkest colour of heat maps for amounts.
pub const COLD: RGBColor = RGBColor(8, 69, 148);

const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(228, 228, 228);
/// Most rows and half the columns of a wide heat map. More are merged, and a cell shows their maximum.
const MAX_CELLS: usize = 128;
/// The same for a narrow heat map.
const MAX_CELLS_NARROW: usize = 64;
/// Widest narrow heat map. Unit: pixels.
const NARROW: u32 = 600;
/// Shades of a heat map, so that neighbours of nearly the same value are one rectangle.
const SHADES: f64 = 12.0;

/// Height of all text. The SVG has it divided by 1.24: 12.1 CSS pixels. Unit: pixels.
pub(crate) const FONT: u32 = 15;
/// Smallest scale of a figure on a page, so that text keeps 9 CSS pixels.
pub(crate) const MIN_SCALE: f64 = 0.75;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The width of a figure, from its markup; 0 if it has none. Unit: pixels.
pub(crate) fn width(svg: &str) -> u32 {
    let digits = svg.split_once("width=\"").and_then(|(_, rest)| rest.split_once('"'));
    digits.and_then(|(digits, _)| digits.parse().ok()).unwrap_or(0)
}

/// `#rrggbb`, for the legend.
pub fn hex(colour: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// One line; a `NaN` interrupts it.
pub struct Line<'a> {
    /// One value for each bin of the time span.
    pub values: &'a [f64],
    /// Colour.
    pub colour: RGBColor,
}

/// The unit of the values of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A number of things with this name.
    Count(&'static str),
}

/// The divisor of values on the axis, and the unit on the axis.
fn scale(unit: Unit, top: f64) -> (f64, &'static str) {
    match unit {
        Unit::Count(what) => (1.0, what),
        Unit::Bytes => match top {
            top if top >= 1_073_741_824.0 => (1_073_741_824.0, "GiB"),
            top if top >= 1_048_576.0 => (1_048_576.0, "MiB"),
            top if top >= 1024.0 => (1024.0, "KiB"),
            _ => (1.0, "bytes"),
        },
    }
}

fn draw(size: (u32, u32), figure: impl FnOnce(&Area<'_>) -> Result<(), DrawError>) -> String {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        figure(&area).and_then(|()| area.present()).expect("a string takes everything");
    }
    text
}

type DrawError = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;

fn font() -> TextStyle<'static> {
    TextStyle::from(("sans-serif", FONT).into_font()).color(&INK)
}

/// The largest value; 0 if there is none.
pub fn max_value<'a>(series: impl IntoIterator<Item = &'a [f64]>) -> f64 {
    series.into_iter().flatten().copied().fold(0.0, f64::max)
}

/// Draws lines over time, and below them a band between two series.
pub fn lines(
    size: (u32, u32),
    span_s: f64,
    lines: &[Line<'_>],
    band: Option<(&[f64], &[f64])>,
    unit: Unit,
) -> String {
    let all = lines.iter().map(|line| line.values).chain(band.map(|(_, upper)| upper));
    let top_value = max_value(all);
    let (factor, what) = scale(unit, top_value);
    let top_value = if top_value > 0.0 { top_value / factor * 1.05 } else { 1.0 };
    let time = |bin: usize, bins: usize| (bin as f64 + 0.5) * span_s / bins as f64;
    draw(size, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .x_label_area_size(40)
            .y_label_area_size(62)
            .build_cartesian_2d(0.0..span_s, 0.0..top_value)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(font())
            .x_labels((size.0 / 90) as usize)
            .y_labels((size.1 / 40) as usize)
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| short(*value))
            .x_desc("time (s)")
            .y_desc(what)
            .axis_desc_style(font())
            .draw()?;
        if let Some((lower, upper)) = band {
            for (from, to) in runs(upper) {
                let forth = (from..to).map(|bin| (time(bin, upper.len()), upper[bin] / factor));
                let back = (from..to).rev().map(|bin| (time(bin, lower.len()), lower[bin] / factor));
                chart.draw_series([Polygon::new(
                    forth.chain(back).collect::<Vec<_>>(),
                    COLOURS[0].mix(0.22),
                )])?;
            }
        }
        for line in lines {
            for (from, to) in runs(line.values) {
                let points = (from..to).map(|bin| (time(bin, line.values.len()), line.values[bin] / factor));
                let points: Vec<_> = points.collect();
                if let [only] = points[..] {
                    chart.draw_series([Circle::new(only, 3, line.colour.filled())])?;
                } else {
                    chart.draw_series([PathElement::new(points, line.colour.stroke_width(2))])?;
                }
            }
        }
        Ok(())
    })
}

/// The ranges of consecutive values that are not NaN.
fn runs(values: &[f64]) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut from = None;
    for (index, value) in values.iter().enumerate() {
        match (value.is_nan(), from) {
            (false, None) => from = Some(index),
            (true, Some(start)) => {
                runs.push((start, index));
                from = None;
            }
            _ => {}
        }
    }
    runs.extend(from.map(|start| (start, values.len())));
    runs
}

/// At most six characters: `0.25`, `12`, `3.5k`.
pub fn short(value: f64) -> String {
    let trimmed = |text: String| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match value.abs() {
        v if v >= 1e9 => format!("{}G", trimmed(format!("{:.1}", value / 1e9))),
        v if v >= 1e6 => format!("{}M", trimmed(format!("{:.1}", value / 1e6))),
        v if v >= 1e4 => format!("{}k", trimmed(format!("{:.1}", value / 1e3))),
        v if v >= 10.0 => trimmed(format!("{value:.1}")),
        _ => trimmed(format!("{value:.3}")),
    }
}

/// The columns of a heat map.
#[derive(Clone, Copy, Debug)]
pub enum Columns<'a> {
    /// Bins of a time span. Unit: s.
    Time(f64),
    /// Named columns, and the title of their axis.
    Names(&'a [String], &'a str),
}

/// A heat map.
pub struct HeatMap<'a> {
    /// Names of the rows, top to bottom.
    pub rows: &'a [String],
    /// Title of the rows.
    pub row_title: &'a str,
    /// The columns.
    pub columns: Columns<'a>,
    /// Values by row; `NaN`: not known.
    pub values: &'a [Vec<f64>],
    /// The value of the darkest shade.
    pub top: f64,
    /// The darkest shade.
    pub colour: RGBColor,
}

/// Draws a heat map. Its height depends on the number of rows.
pub fn heat_map(width: u32, heat: &HeatMap<'_>) -> String {
    let most = if width > NARROW { MAX_CELLS } else { MAX_CELLS_NARROW };
    let row_step = heat.rows.len().div_ceil(most).max(1);
    let column_step = match heat.columns {
        // Time has twice as many columns as there are rows, since time matters most.
        Columns::Time(_) => heat.values.first().map_or(0, Vec::len).div_ceil(2 * most).max(1),
        Columns::Names(names, _) => names.len().div_ceil(most).max(1),
    };
    let cells: Vec<Vec<f64>> = heat.values.chunks(row_step).map(|rows| merge(rows, column_step)).collect();
    let (rows, columns) = (cells.len().max(1), cells.first().map_or(1, Vec::len).max(1));
    let row_pixels = (420 / rows as u32).clamp(3, 22);
    let left = 12 + 8 * heat.rows.iter().map(String::len).max().unwrap_or(1) as u32 + 16;
    let height = rows as u32 * row_pixels + 52;
    draw((width, height), |area| {
        let x_range = match heat.columns {
            Columns::Time(span_s) => 0.0..span_s,
            Columns::Names(..) => 0.0..columns as f64,
        };
        let column_width = x_range.end / columns as f64;
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .x_label_area_size(40)
            .y_label_area_size(left)
            .build_cartesian_2d(x_range, 0.0..rows as f64)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh().axis_style(INK).label_style(font()).axis_desc_style(font());
        mesh.y_labels(0).y_desc(heat.row_title);
        match heat.columns {
            Columns::Time(_) => {
                mesh.x_labels((width / 90) as usize)
                    .x_label_formatter(&|value| short(*value))
                    .x_desc("time (s)");
                mesh.draw()?;
            }
            Columns::Names(_, title) => mesh.x_labels(0).x_desc(title).draw()?,
        }
        for (row, values) in cells.iter().enumerate() {
            let bottom = (rows - row) as f64 - 1.0;
            for (from, to, shade) in shades(values, heat.top) {
                let corners =
                    [(from as f64 * column_width, bottom), (to as f64 * column_width, bottom + 1.0)];
                chart.draw_series([Rectangle::new(corners, blend(heat.colour, shade).filled())])?;
            }
        }
        // Names of rows must not overlap.
        let every = FONT.div_ceil(row_pixels) as usize;
        for row in (0..cells.len()).step_by(every) {
            let (x, y) = chart.backend_coord(&(0.0, (rows - row) as f64 - 0.5));
            let style = font().pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(heat.rows[row * row_step].clone(), (x - 6, y), style))?;
        }
        if let Columns::Names(names, _) = heat.columns {
            let pixels = ((width - left) / columns as u32).max(1);
            let every = (36 / pixels + 1) as usize;
            for column in (0..columns.min(names.len())).step_by(every) {
                let (x, y) = chart.backend_coord(&(column as f64 + 0.5, 0.0));
                let style = font().pos(Pos::new(HPos::Center, VPos::Top));
                area.draw(&Text::new(names[column * column_step].clone(), (x, y + 5), style))?;
            }
        }
        Ok(())
    })
}

/// Merges rows and groups of `step` columns into one row of cells: the maximum of each.
fn merge(rows: &[Vec<f64>], step: usize) -> Vec<f64> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    (0..columns.div_ceil(step))
        .map(|cell| {
            let inside = rows.iter().flat_map(|row| row.iter().skip(cell * step).take(step));
            inside.copied().fold(f64::NAN, f64::max) // `max` ignores a NaN
        })
        .collect()
}

/// Runs of cells with the same shade, from 0 to 1 (`None`: not known). Runs of shade 0 are left out.
fn shades(values: &[f64], top: f64) -> Vec<(usize, usize, Option<f64>)> {
    let shade = |value: f64| {
        (!value.is_nan())
            .then(|| if top > 0.0 { (value / top * SHADES).ceil().clamp(0.0, SHADES) / SHADES } else { 0.0 })
    };
    let mut runs: Vec<(usize, usize, Option<f64>)> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let now = shade(*value);
        match runs.last_mut() {
            Some(run) if run.2 == now => run.1 = index + 1,
            _ => runs.push((index, index + 1, now)),
        }
    }
    runs.retain(|run| run.2 != Some(0.0));
    runs
}

fn blend(dark: RGBColor, shade: Option<f64>) -> RGBColor {
    let Some(shade) = shade else { return RGBColor(240, 240, 240) };
    // The faintest shade must differ from white.
    let part = 0.15 + 0.85 * shade;
    let mix = |channel: u8| (255.0 - (255.0 - f64::from(channel)) * part) as u8;
    RGBColor(mix(dark.0), mix(dark.1), mix(dark.2))
}

/// Stacked bars, one for each name: `parts` are the heights of each bar, from below.
///
/// - `(title, heights)`: what the names are, and what the heights are.
pub fn bars(
    size: (u32, u32),
    names: &[String],
    (title, heights): (&str, &str),
    parts: &[Vec<f64>],
) -> String {
    let step = names.len().div_ceil(MAX_CELLS * 2).max(1);
    let kept: Vec<usize> = (0..names.len()).step_by(step).collect();
    let highest = parts.iter().map(|bar| bar.iter().sum::<f64>()).fold(0.0, f64::max);
    draw(size, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .x_label_area_size(40)
            .y_label_area_size(66)
            .build_cartesian_2d(0.0..kept.len().max(1) as f64, 0.0..(highest * 1.05).max(1.0))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(font())
            .axis_desc_style(font())
            .x_labels(0)
            .y_labels((size.1 / 40) as usize)
            .y_label_formatter(&|value| short(*value))
            .x_desc(title)
            .y_desc(heights)
            .draw()?;
        let gap = if kept.len() > 64 { 0.0 } else { 0.1 };
        for (place, &bar) in kept.iter().enumerate() {
            let mut below = 0.0;
            for (part, colour) in parts[bar].iter().zip(COLOURS) {
                if *part > 0.0 {
                    let corners = [(place as f64 + gap, below), (place as f64 + 1.0 - gap, below + part)];
                    chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                }
                below += part;
            }
        }
        let pixels = ((size.0 - 80) / kept.len().max(1) as u32).max(1);
        for (place, &bar) in kept.iter().enumerate().step_by((36 / pixels + 1) as usize) {
            let (x, y) = chart.backend_coord(&(place as f64 + 0.5, 0.0));
            let style = font().pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(names[bar].clone(), (x, y + 5), style))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| number.to_string()).collect()
    }

    fn elements(svg: &str, name: &str) -> usize {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        document.descendants().filter(|node| node.has_tag_name(name)).count()
    }

    #[test]
    fn a_line_is_interrupted_at_missing_values() {
        let values = [1.0, 2.0, f64::NAN, 3.0, 4.0];
        assert_eq!(runs(&values), [(0, 2), (3, 5)]);
        let drawn = |values: &[f64]| {
            let line = Line { values, colour: COLOURS[0] };
            let svg = lines((400, 200), 2.0, &[line], None, Unit::Bytes);
            svg.matches(&hex(COLOURS[0]).to_uppercase()).count()
        };
        assert_eq!((drawn(&values), drawn(&[1.0, 2.0]), drawn(&[f64::NAN])), (2, 1, 0));
    }

    #[test]
    fn a_value_between_missing_ones_is_a_circle() {
        let values = [f64::NAN, f64::NAN, 3.0];
        let line = Line { values: &values, colour: COLOURS[0] };
        let svg = lines((400, 200), 2.0, &[line], None, Unit::Bytes);
        assert_eq!(elements(&svg, "circle"), 1);
    }

    #[test]
    fn empty_figures_are_well_formed() {
        let none: [String; 3] = [
            lines((300, 150), 1.0, &[], None, Unit::Count("slots")),
            heat_map(
                300,
                &HeatMap {
                    rows: &[],
                    row_title: "rank",
                    columns: Columns::Time(1.0),
                    values: &[],
                    top: 0.0,
                    colour: HOT,
                },
            ),
            bars((300, 150), &[], ("rank", "packets"), &[]),
        ];
        for svg in none {
            assert_eq!(elements(&svg, "svg"), 1);
        }
        let band = lines((300, 150), 1.0, &[], Some((&[0.0, 1.0], &[2.0, 3.0])), Unit::Count("slots"));
        assert_eq!(elements(&band, "polygon"), 1);
    }

    #[test]
    fn a_heat_map_of_a_thousand_ranks_has_no_more_cells_than_its_bound() {
        let names = names(1000);
        let values: Vec<Vec<f64>> = (0..1000)
            .map(|row| (0..1000).map(|column| ((row * 7 + column * 13) % 101) as f64).collect())
            .collect();
        let columns = Columns::Names(&names, "receiver");
        let heat =
            HeatMap { rows: &names, row_title: "sender", columns, values: &values, top: 100.0, colour: HOT };
        let cells = elements(&super::heat_map(900, &heat), "rect");
        assert!(cells <= MAX_CELLS * MAX_CELLS, "{cells} rectangles");
    }

    #[test]
    fn equal_neighbours_are_one_rectangle_and_zeros_are_not_drawn() {
        let known = Some(1.0);
        assert_eq!(shades(&[0.0, 5.0, 5.0, 0.0, f64::NAN], 5.0), [(1, 3, known), (4, 5, None)]);
        assert_eq!(shades(&[0.0, 0.001], 5.0), [(1, 2, Some(1.0 / SHADES))]); // a small value is visible
        assert_eq!(shades(&[0.0; 3], 0.0), []);
    }

    #[test]
    fn merged_cells_show_the_maximum() {
        assert_eq!(merge(&[vec![1.0, 2.0, 3.0], vec![f64::NAN, 7.0, 0.0]], 2), [7.0, 3.0]);
    }

    #[test]
    fn the_width_of_a_figure_is_in_its_markup() {
        assert_eq!(width(&lines((400, 200), 2.0, &[], None, Unit::Bytes)), 400);
        assert_eq!(width("<svg>"), 0);
    }

    #[test]
    fn axis_labels_are_short() {
        assert_eq!(
            [0.0, 0.25, 12.5, 9999.0, 12_500.0, 3e6].map(short),
            ["0", "0.25", "12.5", "9999", "12.5k", "3M"]
        );
    }
}
