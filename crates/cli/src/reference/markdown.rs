//! Markdown of the generated pages: wraps paragraphs and items at 120 characters, and escapes what Markdown would take
//! for markup.

/// Longest line. Unit: characters.
const WIDTH: usize = 120;

/// The line below the title of each page.
pub const GENERATED: &str = "<!-- Generated from the code by `make reference`. Do not edit. -->\n";

/// Plain text as Markdown: options and names with underscores become code, and nothing else is taken for markup.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            escaped.push_str(&format!("`{part}`"));
            continue;
        }
        for word in part.split_inclusive(char::is_whitespace) {
            escaped.push_str(&escape_word(word));
        }
    }
    escaped
}

fn escape_word(word: &str) -> String {
    let is_border = |character: char| character.is_whitespace() || "(),.;:".contains(character);
    let name = word.trim_matches(is_border);
    if name.contains('_') || name.starts_with("--") {
        return word.replacen(name, &format!("`{name}`"), 1);
    }
    let mut escaped = String::new();
    for character in word.chars() {
        if matches!(character, '<' | '>' | '*' | '[' | ']' | '|' | '\\') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// A paragraph, wrapped.
pub fn paragraph(text: &str) -> String {
    wrap(text, "", "")
}

/// An item of a list, wrapped; text that begins with a number, as in `1. first`, is an item of a numbered list.
pub fn item(text: &str) -> String {
    let is_numbered = text.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    if is_numbered { wrap(text, "", "   ") } else { wrap(text, "- ", "  ") }
}

fn wrap(text: &str, first: &str, others: &str) -> String {
    let mut wrapped = String::new();
    let mut line = String::from(first);
    let mut is_empty = true;
    for word in words(text) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            wrapped.push_str(&line);
            wrapped.push('\n');
            line = String::from(others);
        } else if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    wrapped + &line + "\n"
}

/// Text between spaces; code stays in one piece.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_code = false;
    for character in text.chars() {
        is_code ^= character == '`';
        if character.is_whitespace() && !is_code {
            words.push(String::new());
        } else if let Some(word) = words.last_mut() {
            word.push(character);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped_outside_code() {
        assert_eq!(escape("a <b> `c|<d>` [e] *"), r"a \<b\> `c|<d>` \[e\] \*");
        assert_eq!(escape("(FI_WEIR_X, --set) FI_WEIR_*."), "(`FI_WEIR_X`, `--set`) `FI_WEIR_*`.");
    }

    #[test]
    fn long_text_is_wrapped_and_items_are_indented() {
        let text = item(&"word ".repeat(40));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(lines[0].starts_with("- word word") && lines[1].starts_with("  word"), "{text}");
        assert!(item("1. one").starts_with("1. one") && item("1 one").starts_with("- 1 one"));
        assert_eq!(paragraph("one  two\nthree"), "one two three\n");
        let code = format!("{}`code in one piece`", "word ".repeat(22));
        assert!(paragraph(&code).ends_with("\n`code in one piece`\n"));
    }
}
