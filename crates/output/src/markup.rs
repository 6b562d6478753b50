//! HTML by hand: a few kinds of blocks, everything that comes from outside escaped.

use crate::figures;
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#fff;max-width:1000px;margin:1.5em auto;padding:0 1em;overflow-wrap:break-word}\
h1{font-size:1.35em;overflow-wrap:anywhere}h2{font-size:1.15em;margin:2em 0 .4em;border-bottom:1px solid #ccc}\
h3{font-size:1em;margin:.8em 0 .2em}figure{margin:.4em 0}figcaption{font-size:.86em;color:#444}\
svg{max-width:100%;min-width:var(--least);height:auto;display:block}.note{font-size:.82em;color:#555;overflow-wrap:anywhere}\
.warning{border-left:4px solid #d55e00;padding:.3em .7em;background:#fdf3ea}\
.row{display:flex;flex-wrap:wrap;gap:8px;align-items:flex-start}.row>*{flex:1 1 470px;min-width:0;max-width:490px}\
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:1em 0}.tiles div{border:1px solid #ddd;border-radius:6px;padding:.5em .8em;flex:1 1 150px}\
.tiles b{display:block;font-size:1.3em}.tiles span{font-size:.8em;color:#555;display:block}\
.legend{font-size:.86em}.legend span{margin-right:1.1em;display:inline-block}.legend i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}\
.scale{font-size:.86em;color:#444}.scale i{display:inline-block;width:110px;height:.8em;margin:0 .5em;vertical-align:-.1em;border:1px solid #ccc}\
pre{font-size:.8em;overflow-x:auto;background:#f6f6f6;padding:.6em}.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85em;margin:.6em 0}td,th{padding:.18em .7em;text-align:right;border-bottom:1px solid #eee}\
th{border-bottom:1px solid #999;font-weight:600}td:first-child,th:first-child,.text td,.text th{text-align:left}";

const SCRIPT: &str = "\
for(const s of document.querySelectorAll('select[data-choice]')){s.onchange=()=>{\
for(const b of document.querySelectorAll('[data-'+s.dataset.choice+']'))\
b.hidden=s.value!==''&&b.dataset[s.dataset.choice]!==s.value};s.onchange()}";

/// Text as it can stand in HTML, between tags and in quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// A page that grows.
pub struct Html(String);

impl Html {
    /// A page with nothing in it.
    pub fn begin(title: &str) -> Html {
        let title = escape(title);
        Html(format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\n\
             <style>{STYLE}</style></head><body>\n"
        ))
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.0.write_fmt(text);
    }

    /// A heading.
    pub fn heading(&mut self, level: u8, text: &str) {
        self.add(format_args!("<h{level}>{}</h{level}>\n", escape(text)));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.add(format_args!("<p>{}</p>\n", escape(text)));
    }

    /// A paragraph in small print.
    pub fn note(&mut self, text: &str) {
        self.add(format_args!("<p class=\"note\">{}</p>\n", escape(text)));
    }

    /// A paragraph that is not to be overlooked.
    pub fn warning(&mut self, text: &str) {
        self.add(format_args!("<p class=\"warning\">{}</p>\n", escape(text)));
    }

    /// The few numbers that matter most: what, how many, and what goes with it.
    pub fn tiles(&mut self, tiles: &[(&str, String, String)]) {
        self.0.push_str("<div class=\"tiles\">");
        for (what, number, more) in tiles {
            let (what, number, more) = (escape(what), escape(number), escape(more));
            self.add(format_args!("<div>{what}<b>{number}</b><span>{more}</span></div>"));
        }
        self.0.push_str("</div>\n");
    }

    /// Names and their colours.
    pub fn legend(&mut self, entries: impl IntoIterator<Item = (String, String)>) {
        self.0.push_str("<p class=\"legend\">");
        for (name, colour) in entries {
            self.add(format_args!("<span><i style=\"background:{colour}\"></i>{}</span>", escape(&name)));
        }
        self.0.push_str("</p>\n");
    }

    /// The scale of a heat map, from white to `colour`.
    pub fn scale(&mut self, what: &str, low: &str, high: &str, colour: &str) {
        let (what, low, high) = (escape(what), escape(low), escape(high));
        self.add(format_args!(
            "<p class=\"scale\">{what}: {low}<i style=\"background:linear-gradient(to right,#fff,{colour})\"></i>{high}</p>\n"
        ));
    }

    /// A figure. `svg`: the markup of a figure of [`figures`] or [`chart`](crate::chart), or nothing. In a narrow window
    /// the figure shrinks as far as its text stays readable, and scrolls.
    pub fn figure(&mut self, caption: &str, svg: &str) {
        let caption = escape(caption);
        self.add(format_args!("<figure><figcaption>{caption}</figcaption>"));
        if !svg.is_empty() {
            let min_width = f64::from(figures::width(svg)) * figures::MIN_SCALE;
            self.add(format_args!("<div class=\"wide\" style=\"--least:{min_width:.0}px\">{svg}</div>"));
        }
        self.0.push_str("</figure>\n");
    }

    /// A table of statements, all of it text; a row that `stands_out` is not to be overlooked.
    pub fn statements(&mut self, heading: &[&str], rows: impl IntoIterator<Item = (Vec<String>, bool)>) {
        self.0.push_str("<div class=\"wide\"><table class=\"text\"><thead><tr>");
        for cell in heading {
            self.add(format_args!("<th>{}</th>", escape(cell)));
        }
        self.0.push_str("</tr></thead><tbody>\n");
        for (row, stands_out) in rows {
            self.0.push_str(if stands_out { "<tr class=\"warning\">" } else { "<tr>" });
            for cell in row {
                self.add(format_args!("<td>{}</td>", escape(&cell)));
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</tbody></table></div>\n");
    }

    /// Text as it is, line by line.
    pub fn preformatted(&mut self, text: &str) {
        self.add(format_args!("<pre>{}</pre>\n", escape(text)));
    }

    /// A table; the first column is text, the others are numbers.
    pub fn table(&mut self, heading: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        self.0.push_str("<div class=\"wide\"><table><thead><tr>");
        for cell in heading {
            self.add(format_args!("<th>{}</th>", escape(cell)));
        }
        self.0.push_str("</tr></thead><tbody>\n");
        for row in rows {
            self.0.push_str("<tr>");
            for cell in row {
                self.add(format_args!("<td>{}</td>", escape(&cell)));
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</tbody></table></div>\n");
    }

    /// A choice between blocks of [`Html::begin_choice`], of which all or the `first` is shown in the beginning; without
    /// scripts all of them are shown.
    pub fn selector(&mut self, what: &str, values: &[String], first: bool) {
        let what = escape(what);
        self.add(format_args!(
            "<p><label>Show {what} <select data-choice=\"{what}\"><option value=\"\">all</option>"
        ));
        for (index, value) in values.iter().enumerate() {
            let selected = if first && index == 0 { " selected" } else { "" };
            self.add(format_args!("<option{selected}>{}</option>", escape(value)));
        }
        self.0.push_str("</select></label></p>\n");
    }

    /// Begins a block that a selector shows or hides.
    pub fn begin_choice(&mut self, what: &str, value: &str) {
        self.add(format_args!("<div data-{}=\"{}\">\n", escape(what), escape(value)));
    }

    /// Begins a block whose parts stand side by side, where there is room.
    pub fn begin_row(&mut self) {
        self.0.push_str("<div class=\"row\">\n");
    }

    /// Begins a block whose parts stand below each other.
    pub fn begin_column(&mut self) {
        self.0.push_str("<div>\n");
    }

    /// Ends a choice, row or column.
    pub fn end_block(&mut self) {
        self.0.push_str("</div>\n");
    }

    /// Begins a block that is folded away.
    pub fn begin_details(&mut self, summary: &str) {
        self.add(format_args!("<details><summary>{}</summary>\n", escape(summary)));
    }

    /// Ends it.
    pub fn end_details(&mut self) {
        self.0.push_str("</details>\n");
    }

    /// Data for programs.
    pub fn data(&mut self, data: &Value) {
        // Inside a script only `</script` and `<!--` mean something, and in JSON `<` stands in strings only.
        let text = data.to_string().replace('<', "\\u003c");
        self.add(format_args!("<script type=\"application/json\" id=\"weir-data\">{text}</script>\n"));
    }

    /// The finished page.
    pub fn end(mut self) -> String {
        self.add(format_args!("<script>{SCRIPT}</script>\n</body></html>\n"));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_text_is_escaped() {
        assert_eq!(escape("<b a=\"x\">&'"), "&lt;b a=&quot;x&quot;&gt;&amp;&#39;");
        let mut html = Html::begin("</title><script>");
        html.data(&serde_json::json!({ "command": "</script><!--" }));
        let page = html.end();
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(page.contains("<title>&lt;/title&gt;&lt;script&gt;</title>"));
        assert!(page.contains(r#"{"command":"\u003c/script>\u003c!--"}"#));
    }
}
