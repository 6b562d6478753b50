//! The reference page of commands and their options, generated from the command line.

use super::markdown::{GENERATED, escape, item, paragraph};
use clap::{Arg, Command};

/// The page of a command and its subcommands.
pub fn page(mut command: Command) -> String {
    command.build(); // usage lines then have the full name
    let mut page = format!("# Commands\n\n{GENERATED}\n");
    page += &paragraph(
        "`weir COMMAND --help` prints the same text. After `make install`, `man weir-run` and the like show it too, and bash, \
         zsh and fish complete commands and options.",
    );
    add(&mut page, &command, "weir");
    page
}

/// `command` and its subcommands, depth first. `path` is what a user types to get there.
fn add(page: &mut String, command: &Command, path: &str) {
    *page += &format!("\n## {path}\n\n");
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        *page += &paragraph(&sentence(&escape(&about.to_string())));
    }
    let usage = command.clone().render_usage().to_string();
    *page += &format!("\n```text\n{}\n```\n", usage.trim_start_matches("Usage: ").replace("\n       ", "\n"));
    let subcommands: Vec<&Command> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    if !subcommands.is_empty() {
        *page += "\nCommands:\n\n";
        for subcommand in &subcommands {
            let name = format!("{path} {}", subcommand.get_name());
            let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
            let anchor = name.replace(' ', "-");
            *page += &item(&format!("[`{name}`](#{anchor}): {}", sentence(&escape(&about))));
        }
    }
    let is_shown = |argument: &&Arg| {
        !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
    };
    let arguments: Vec<&Arg> = command.get_positionals().filter(is_shown).collect();
    let options: Vec<&Arg> =
        command.get_arguments().filter(|argument| !argument.is_positional()).filter(is_shown).collect();
    for (title, list) in [("Arguments", arguments), ("Options", options)] {
        if !list.is_empty() {
            *page += &format!("\n{title}:\n\n");
            list.iter().for_each(|argument| *page += &item(&describe(argument)));
        }
    }
    if path == "weir settings" {
        *page += "\nThe list is in [Settings](settings.md).\n";
    } else if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        *page += &after_help(&after.to_string());
    }
    for subcommand in subcommands {
        add(page, subcommand, &format!("{path} {}", subcommand.get_name()));
    }
}

fn describe(argument: &Arg) -> String {
    let mut names: Vec<String> = Vec::new();
    names.extend(argument.get_short().map(|short| format!("-{short}")));
    names.extend(argument.get_long().map(|long| format!("--{long}")));
    let mut shown = names.join(", ");
    let takes_value = argument.get_action().takes_values();
    if takes_value {
        let values: Vec<&str> =
            argument.get_value_names().unwrap_or_default().iter().map(AsRef::as_ref).collect();
        let is_optional = argument.get_num_args().is_some_and(|number| number.min_values() == 0);
        let values = values.join(" ");
        let values = if is_optional { format!("[{values}]") } else { values };
        shown = if shown.is_empty() { values } else { format!("{shown} {values}") };
    }
    let help =
        argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = format!("`{shown}`: {}", sentence(&escape(&help)));
    let possible: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if takes_value && !possible.is_empty() && !argument.is_hide_possible_values_set() {
        text += &format!(" Allowed: {}.", possible.join(", "));
    }
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if takes_value && !defaults.is_empty() {
        text += &format!(" Default: {}.", defaults.join(" "));
    }
    if argument.is_required_set() {
        text += " Required.";
    }
    text
}

/// clap takes the last full stop of a doc comment away.
fn sentence(text: &str) -> String {
    let text = text.trim_end();
    if text.is_empty() || text.ends_with('.') { String::from(text) } else { format!("{text}.") }
}

/// The text behind the options. A line is a paragraph; indented lines are commands if they begin with `weir`, otherwise items
/// of a list. A line that is indented further continues the item before.
fn after_help(text: &str) -> String {
    let mut page = String::new();
    let mut items: Vec<String> = Vec::new();
    for line in text.lines().chain([""]) {
        if let Some(continued) = line.strip_prefix("    ")
            && let Some(last) = items.last_mut()
        {
            *last = format!("{last} {}", continued.trim());
        } else if let Some(item) = line.strip_prefix("  ") {
            items.push(item.trim().to_owned());
        } else {
            page += &list(&std::mem::take(&mut items));
            if !line.is_empty() {
                page += &format!("\n{}", paragraph(&escape(line)));
            }
        }
    }
    page
}

/// Indented lines. Two spaces or more separate a command from its comment and a term from its meaning.
fn list(lines: &[String]) -> String {
    let parts = |line: &String| {
        let (first, rest) = line.split_once("  ").unwrap_or((line, ""));
        (first.to_owned(), rest.trim().to_owned())
    };
    let lines: Vec<(String, String)> = lines.iter().map(parts).collect();
    if lines.is_empty() {
        return String::new();
    }
    if lines.iter().all(|(first, _)| first.starts_with("weir ")) {
        let commands = lines.iter().map(|(command, comment)| match comment.as_str() {
            "" => format!("{command}\n"),
            comment => format!("{command}  # {}\n", comment.trim_matches(['(', ')'])),
        });
        return format!("\n```sh,no-test\n{}```\n", commands.collect::<String>());
    }
    let items = lines.iter().map(|(term, meaning)| match meaning.as_str() {
        "" => item(&escape(term)),
        meaning => item(&format!("`{term}`: {}", escape(meaning))),
    });
    format!("\n{}", items.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_commands_of_a_help_text_are_recognised() {
        let text = "Examples:\n  weir run -n 2 -- x   (then look)\n\nStatus:\n  0     good\n  other  bad\nOrder:\n  1. first\n     or so\n";
        let page = after_help(text);
        assert_eq!(
            page,
            "\nExamples:\n\n```sh,no-test\nweir run -n 2 -- x  # then look\n```\n\nStatus:\n\n- `0`: good\n- `other`: bad\n\
             \nOrder:\n\n1. first or so\n"
        );
    }
}
