//! HTML pages of `weir`, built of blocks that are added one after the other. The crate maud escapes all text. Figures
//! are inserted as they are, and data for programs as JSON.

use crate::chart::Chart;
use crate::figures;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A page to which blocks are added.
pub struct Html {
    title: String,
    body: String,
}

impl Html {
    /// An empty page.
    pub fn begin(title: &str) -> Html {
        Html { title: title.to_owned(), body: String::new() }
    }

    fn add(&mut self, markup: Markup) {
        self.body += &markup.into_string();
        self.body.push('\n');
    }

    /// A heading. `level`: 1 to 3.
    pub fn heading(&mut self, level: u8, text: &str) {
        self.add(match level {
            1 => html! { h1 { (text) } },
            2 => html! { h2 { (text) } },
            _ => html! { h3 { (text) } },
        });
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.add(html! { p { (text) } });
    }

    /// A paragraph in small print.
    pub fn note(&mut self, text: &str) {
        self.add(html! { p.note { (text) } });
    }

    /// A highlighted paragraph.
    pub fn warning(&mut self, text: &str) {
        self.add(html! { p.warning { (text) } });
    }

    /// The most important numbers: name, value and a remark of each.
    pub fn tiles(&mut self, tiles: &[(&str, String, String)]) {
        self.add(html! {
            div.tiles {
                @for (name, value, remark) in tiles {
                    div { (name) b { (value) } span { (remark) } }
                }
            }
        });
    }

    /// Names and their colours.
    pub fn legend(&mut self, entries: impl IntoIterator<Item = (String, String)>) {
        self.add(html! {
            p.legend {
                @for (name, colour) in entries {
                    span { i style={ "background:" (colour) } {} (name) }
                }
            }
        });
    }

    /// The scale of a heat map, from white to `colour`.
    pub fn scale(&mut self, what: &str, low: &str, high: &str, colour: &str) {
        self.add(html! {
            p.scale {
                (what) ": " (low)
                i style={ "background:linear-gradient(to right,#fff," (colour) ")" } {}
                (high)
            }
        });
    }

    /// Charts beside each other, with their legends. Empty ones are left out.
    pub fn charts<'a>(&mut self, charts: impl IntoIterator<Item = &'a Chart>) {
        self.begin_row();
        for chart in charts.into_iter().filter(|chart| !chart.is_empty()) {
            self.begin_column();
            self.figure(&chart.title, &chart.draw());
            self.legend(chart.legend());
            self.end_block();
        }
        self.end_block();
    }

    /// A figure. `svg`: the markup of a figure of [`figures`] or [`chart`](crate::chart), or nothing. In a narrow window
    /// the figure shrinks as far as its text stays readable, and scrolls. A screen reader reads the caption.
    pub fn figure(&mut self, caption: &str, svg: &str) {
        let min_width = f64::from(figures::width(svg)) * figures::MIN_SCALE;
        self.add(html! {
            figure {
                figcaption { (caption) }
                @if !svg.is_empty() {
                    div.wide role="img" aria-label=(caption) style=(format!("--least:{min_width:.0}px")) { (PreEscaped(svg)) }
                }
            }
        });
    }

    /// A table of text. A row whose `bool` is set is highlighted.
    pub fn statements(&mut self, heading: &[&str], rows: impl IntoIterator<Item = (Vec<String>, bool)>) {
        self.add(html! {
            div.wide {
                table.text {
                    (table_head(heading))
                    tbody {
                        @for (row, is_highlighted) in rows {
                            tr class=[is_highlighted.then_some("warning")] { @for cell in row { td { (cell) } } }
                        }
                    }
                }
            }
        });
    }

    /// Text with its line breaks and spaces.
    pub fn preformatted(&mut self, text: &str) {
        self.add(html! { pre { (text) } });
    }

    /// A table whose first column is text and whose other columns are numbers.
    pub fn table(&mut self, heading: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        self.add(html! {
            div.wide {
                table {
                    (table_head(heading))
                    tbody { @for row in rows { tr { @for cell in row { td { (with_unit(&cell)) } } } } }
                }
            }
        });
    }

    /// A selector of blocks of [`Html::begin_choice`]. At first all blocks are shown, or those of the first value if `first`.
    /// Without scripts all blocks are shown.
    pub fn selector(&mut self, what: &str, values: &[String], first: bool) {
        self.add(html! {
            p {
                label {
                    "Show " (what) " "
                    select data-choice=(what) {
                        option value="" { "all" }
                        @for (index, value) in values.iter().enumerate() {
                            option selected[first && index == 0] { (value) }
                        }
                    }
                }
            }
        });
    }

    /// Begins a block that a selector shows or hides. `what`: as for [`Html::selector`], lower-case letters.
    pub fn begin_choice(&mut self, what: &str, value: &str) {
        // maud has no computed names of attributes, and no block without an end.
        let (what, value) = (html! { (what) }.into_string(), html! { (value) }.into_string());
        self.body += &format!("<div data-{what}=\"{value}\">\n");
    }

    /// Begins a block whose parts stand side by side, where there is room.
    pub fn begin_row(&mut self) {
        self.body += "<div class=\"row\">\n";
    }

    /// Begins a block whose parts stand below each other.
    pub fn begin_column(&mut self) {
        self.body += "<div>\n";
    }

    /// Ends a choice, row or column.
    pub fn end_block(&mut self) {
        self.body += "</div>\n";
    }

    /// Begins a block that is closed until the reader opens it.
    pub fn begin_details(&mut self, summary: &str) {
        self.body += "<details>";
        self.add(html! { summary { (summary) } });
    }

    /// Ends the block of [`Html::begin_details`].
    pub fn end_details(&mut self) {
        self.body += "</details>\n";
    }

    /// Data for programs.
    pub fn data(&mut self, data: &Value) {
        // In a script only `</script` and `<!--` have a meaning, and in JSON `<` stands in strings only.
        let text = data.to_string().replace('<', "\\u003c");
        self.add(html! { script type="application/json" id="weir-data" { (PreEscaped(text)) } });
    }

    /// The finished page.
    pub fn end(self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    (PreEscaped(self.body))
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        page.into_string() + "\n"
    }
}

/// `text` without a line break between a number and its unit.
fn with_unit(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        let is_after_number = joined.ends_with(|last: char| last.is_ascii_digit());
        let is_before_unit = rest.peek().is_some_and(|next| next.is_alphabetic() || *next == '%');
        joined.push(if character == ' ' && is_after_number && is_before_unit { '\u{a0}' } else { character });
    }
    joined
}

fn table_head(heading: &[&str]) -> Markup {
    html! { thead { tr { @for cell in heading { th { (cell) } } } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_text_is_escaped() {
        let mut html = Html::begin("</title><script>");
        html.paragraph("<b a=\"x\">&'");
        html.begin_choice("seed", "\"><script>");
        html.data(&serde_json::json!({ "command": "</script><!--" }));
        let page = html.end();
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(page.contains("<title>&lt;/title&gt;&lt;script&gt;</title>"));
        assert!(page.contains("<p>&lt;b a=&quot;x&quot;&gt;&amp;'</p>"));
        assert!(page.contains("<div data-seed=\"&quot;&gt;&lt;script&gt;\">"));
        assert!(page.contains(r#"{"command":"\u003c/script>\u003c!--"}"#));
    }

    #[test]
    fn a_number_in_a_table_stays_beside_its_unit() {
        let mut html = Html::begin("t");
        html.table(&["a", "b"], [vec!["weir".to_owned(), "5.00 us .. 9.31 us, 12 %".to_owned()]]);
        let page = html.end();
        let cells = "<td>weir</td><td>5.00\u{a0}us .. 9.31\u{a0}us, 12\u{a0}%</td>";
        assert!(page.contains(cells), "{page}");
    }

    #[test]
    fn blocks_have_their_classes_and_attributes() {
        let mut html = Html::begin("t");
        html.selector("seed", &["1".to_owned(), "2".to_owned()], true);
        html.statements(&["a"], [(vec!["x".to_owned()], true), (vec!["y".to_owned()], false)]);
        html.figure("c", "<svg width=\"400\"></svg>");
        html.legend([("weir".to_owned(), "#0072b2".to_owned())]);
        let page = html.end();
        for part in [
            "<select data-choice=\"seed\"><option value=\"\">all</option><option selected>1</option><option>2</option>",
            "<tr class=\"warning\"><td>x</td></tr><tr><td>y</td></tr>",
            "<div class=\"wide\" role=\"img\" aria-label=\"c\" style=\"--least:300px\"><svg width=\"400\"></svg></div>",
            "<span><i style=\"background:#0072b2\"></i>weir</span>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
