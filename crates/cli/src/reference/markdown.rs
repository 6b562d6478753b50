//! Markdown of the generated pages: lines of at most 120 characters, and text that is never taken for markup.

/// Longest line. Unit: characters.
const WIDTH: usize = 120;

/// The line below the title of each page.
pub const GENERATED: &str = "<!-- Generated from the code by `make reference`. Do not edit. -->\n";

/// Plain text as Markdown: `code` keeps its marks, everything else that Markdown would interpret is escaped.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            escaped.push_str(&format!("`{part}`"));
            continue;
        }
        for character in part.chars() {
            if matches!(character, '<' | '>' | '*' | '[' | ']' | '|' | '_' | '\\') {
                escaped.push('\\');
            }
            escaped.push(character);
        }
    }
    escaped
}

/// A paragraph, wrapped.
pub fn paragraph(text: &str) -> String {
    wrap(text, "", "")
}

/// An item of a list, wrapped.
pub fn item(text: &str) -> String {
    wrap(text, "- ", "  ")
}

fn wrap(text: &str, first: &str, others: &str) -> String {
    let mut wrapped = String::new();
    let mut line = String::from(first);
    for word in text.split_whitespace() {
        let is_empty =
            line.len() == first.len().max(others.len()) && line.trim_start_matches(['-', ' ']).is_empty();
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            wrapped.push_str(&line);
            wrapped.push('\n');
            line = String::from(others);
        } else if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
    }
    wrapped + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped_outside_code() {
        assert_eq!(escape("a <b> `c|<d>` FI_X_* [e]"), r"a \<b\> `c|<d>` FI\_X\_\* \[e\]");
    }

    #[test]
    fn long_text_is_wrapped_and_items_are_indented() {
        let text = item(&"word ".repeat(40));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(lines[0].starts_with("- word word") && lines[1].starts_with("  word"), "{text}");
        assert_eq!(paragraph("one  two\nthree"), "one two three\n");
    }
}
