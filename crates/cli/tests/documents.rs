//! Tests of the documents: every command, path, make target and setting that they name exists.
//!
//! Documents are README.md, CONTRIBUTING.md and the pages of docs/, lab notes excepted. Commands that take seconds run in
//! tests/mpi/test_documents.py; here they are only parsed.
#![allow(missing_docs, reason = "test code")]

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use regex_lite::Regex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weir_cli::command_line::CommandLine;
use weir_engine::config::SETTINGS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Name relative to the root, and text.
fn documents() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    collect(&root().join("docs"), "md", &mut paths);
    assert!(paths.len() > 10, "{paths:?}");
    let name = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string();
    paths.into_iter().map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
}

/// Appends the files with this ending below a directory, lab notes excepted.
fn collect(directory: &Path, ending: &str, files: &mut Vec<PathBuf>) {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && path.file_name().is_none_or(|name| name != "notes") {
            collect(&path, ending, files);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            files.push(path);
        }
    }
}

/// Collects what is wrong in all documents, so that one run of a test shows everything.
fn assert_all(problems: impl Fn(&str) -> Vec<String>) {
    let found: Vec<String> = documents()
        .iter()
        .flat_map(|(name, text)| problems(text).into_iter().map(move |problem| format!("{name}: {problem}")))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Fixed parts of output that pages show, with the file that prints them.
const SHOWN: &[(&str, &str, &str)] = &[
    ("docs/how-to/own-mpiexec.md", "crates/cli/src/explain.rs", " endpoints open"),
    (
        "docs/how-to/own-mpiexec.md",
        "crates/cli/src/explain.rs",
        "no send has waited for credit or a link for ",
    ),
    (
        "docs/how-to/own-mpiexec.md",
        "crates/cli/src/doctor/mpis.rs",
        ", with collective operations in shared memory",
    ),
    (
        "docs/how-to/debug-a-stall.md",
        "crates/cli/src/explain.rs",
        "no send has waited for credit or a link for ",
    ),
    ("docs/how-to/debug-a-stall.md", "crates/cli/src/explain.rs", " for each other, in a cycle"),
    ("docs/how-to/debug-a-stall.md", "crates/cli/src/explain.rs", ", which waits for no credit"),
    (
        "docs/how-to/debug-a-stall.md",
        "crates/engine/src/closing.rs",
        "waits to close: live receivers have not taken ",
    ),
    ("docs/how-to/debug-a-stall.md", "crates/engine/src/closing.rs", " closes and gives up "),
    (
        "docs/how-to/debug-a-stall.md",
        "crates/engine/src/closing.rs",
        " of completed sends, because no receiver took any for ",
    ),
    ("docs/tutorial/who-floods-whom.md", "crates/cli/src/explain.rs", " endpoints open"),
    ("docs/tutorial/who-floods-whom.md", "crates/cli/src/explain.rs", ", which waits for no credit"),
    (
        "docs/tutorial/first-run.md",
        "crates/cli/src/doctor/mod.rs",
        "all FI_WEIR_* variables of the environment are valid",
    ),
    ("docs/tutorial/first-run.md", "crates/cli/src/doctor/host.rs", " on this host"),
    (
        "docs/tutorial/first-experiment.md",
        "crates/lab/src/sim/execute.rs",
        " of them with checks from outside, ",
    ),
    ("docs/how-to/containers.md", "crates/cli/src/clean.rs", " stale mailboxes from "),
    ("docs/how-to/tune-a-host.md", "crates/cli/src/tune.rs", "The host was not idle (load "),
    ("docs/how-to/tune-a-host.md", "crates/cli/src/tune.rs", "on an idle host another value may be best."),
    ("docs/how-to/tune-a-host.md", "crates/cli/src/tune.rs", "; `weir run` reads it from there."),
    ("docs/how-to/read-the-report.md", "crates/cli/src/page/mod.rs", "unexpected messages, peak"),
    ("docs/how-to/read-the-report.md", "crates/cli/src/page/mod.rs", "waited for credit"),
    ("docs/how-to/read-the-report.md", "crates/cli/src/page/timeline.rs", "peer state"),
];

#[test]
fn pages_show_output_as_the_command_prints_it() {
    let mut missing = Vec::new();
    for (page, source, text) in SHOWN {
        for file in [page, source] {
            if !std::fs::read_to_string(root().join(file)).unwrap().contains(text) {
                missing.push(format!("{file} does not contain {text:?}"));
            }
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn the_page_of_json_formats_names_the_versions_that_the_commands_write() {
    let names = |text: &str, quote: char| {
        let name = Regex::new(&format!("{quote}(weir-[a-z-]+-[0-9]){quote}")).unwrap();
        name.captures_iter(text).map(|found| found[1].to_owned()).collect::<BTreeSet<_>>()
    };
    let mut sources = Vec::new();
    for crate_name in ["bench", "cli", "lab"] {
        collect(&root().join("crates").join(crate_name).join("src"), "rs", &mut sources);
    }
    let written = sources.iter().flat_map(|path| names(&std::fs::read_to_string(path).unwrap(), '"'));
    let page = std::fs::read_to_string(root().join("docs/reference/json.md")).unwrap();
    assert_eq!(names(&page, '`'), written.collect());
}

/// Command lines of the fences `sh` and `sh,no-test`, continuation lines joined, here-documents left out.
fn shell_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_shell = false;
    let mut is_fence = false;
    let mut here_end: Option<String> = None;
    let mut begun = String::new();
    for line in text.lines() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            is_fence = !is_fence;
            is_shell = is_fence && matches!(info.split(',').next(), Some("sh" | "bash" | "console"));
            continue;
        }
        if !is_shell {
            continue;
        }
        if let Some(end) = &here_end {
            if line.trim() == end {
                here_end = None;
            }
            continue;
        }
        begun.push_str(line.trim().trim_start_matches("$ "));
        if let Some(rest) = begun.strip_suffix('\\') {
            begun = format!("{} ", rest.trim_end());
            continue;
        }
        if let Some((_, end)) = begun.split_once("<<") {
            here_end = Some(end.trim_matches(['-', ' ', '\'', '"']).to_owned());
        }
        lines.push(std::mem::take(&mut begun));
    }
    lines
}

/// The commands of a line as words: separated by `;`, `|`, `&&` and the like, without assignments before and redirections
/// behind.
fn commands(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap_or_else(|| panic!("quotes do not match: {line}"));
    let mut commands = vec![Vec::new()];
    let mut is_redirected = false;
    for word in words {
        if matches!(word.as_str(), "|" | "||" | "&&" | "&" | ";") {
            commands.push(Vec::new());
            is_redirected = false;
            continue;
        }
        is_redirected |= word.starts_with('>') || word.starts_with("2>");
        let ends = word.ends_with(';');
        let command = commands.last_mut().unwrap();
        let is_assignment = command.is_empty() && word.contains('=') && !word.starts_with(['-', '/', '.']);
        if !is_redirected && !is_assignment {
            command.push(word.trim_end_matches(';').to_owned());
        }
        if ends {
            commands.push(Vec::new());
            is_redirected = false;
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// Text between single backticks, outside fences.
fn code_spans(text: &str) -> Vec<String> {
    let mut is_fence = false;
    let prose: String = text
        .lines()
        .filter(|line| {
            let is_border = line.trim_start().starts_with("```");
            is_fence ^= is_border;
            !is_fence && !is_border
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let spans = Regex::new("`([^`]+)`").unwrap();
    spans.captures_iter(&prose).map(|found| found[1].replace('\n', " ")).collect()
}

fn is_weir(word: &str) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == "weir")
}

#[test]
fn every_shown_command_parses() {
    assert_all(|text| {
        let lines = shell_lines(text);
        let all = lines.iter().flat_map(|line| commands(line));
        all.filter(|words| is_weir(&words[0])).filter_map(|words| refusal(&words)).collect()
    });
}

fn refusal(words: &[String]) -> Option<String> {
    let error = CommandLine::try_parse_from(words).err()?;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    (!is_help).then(|| format!("`{}`: {}", words.join(" "), error.to_string().lines().next().unwrap_or("")))
}

/// Within a sentence a command may lack its arguments, but not be unknown: `weir bench flood --quick`.
#[test]
fn commands_and_options_in_sentences_exist() {
    assert_all(|text| {
        code_spans(text)
            .iter()
            .filter(|span| span.starts_with("weir "))
            .filter_map(|span| unknown(span))
            .collect()
    });
}

fn unknown(span: &str) -> Option<String> {
    let root = CommandLine::command();
    let mut command = &root;
    let mut is_named = true;
    for word in span.split_whitespace().skip(1).take_while(|word| *word != "--") {
        if let Some(long) = word.strip_prefix("--") {
            is_named = false;
            let long = long.split('=').next().unwrap_or(long);
            let exists = ["help", "version"].contains(&long)
                || command.get_arguments().any(|argument| argument.get_long() == Some(long));
            if !exists {
                return Some(format!("`{span}`: {} has no option --{long}", command.get_name()));
            }
        } else if let Some(subcommand) = command.find_subcommand(word).filter(|_| is_named) {
            command = subcommand;
        } else if is_named
            && command.has_subcommands()
            && word.starts_with(|first: char| first.is_lowercase())
        {
            return Some(format!("`{span}`: {} has no command {word}", command.get_name()));
        } else {
            is_named = false;
        }
    }
    None
}

/// Targets of the Makefile.
fn targets() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mpis: Vec<&str> =
        text.lines().find_map(|line| line.strip_prefix("ENVS := ")).unwrap().split_whitespace().collect();
    let mut targets: BTreeSet<String> = mpis.iter().map(|mpi| format!("env-{mpi}")).collect();
    for line in text.lines() {
        let names = line.strip_prefix(".PHONY:").or_else(|| line.split_once(':').map(|(names, _)| names));
        if !line.starts_with(['\t', '#', ' ']) {
            targets.extend(names.unwrap_or("").split_whitespace().map(str::to_owned));
        }
    }
    targets
}

#[test]
fn make_targets_exist() {
    let targets = targets();
    let unknown = |words: Vec<String>| -> Option<String> {
        let mut names = words.iter().skip(1).filter(|word| !word.starts_with('-') && !word.contains('='));
        names
            .find(|name| !targets.contains(*name))
            .map(|name| format!("`{}`: no target {name}", words.join(" ")))
    };
    assert_all(|text| {
        let spans = code_spans(text).into_iter().filter(|span| span.starts_with("make "));
        let lines = shell_lines(text).into_iter().chain(spans);
        let all = lines.flat_map(|line| commands(&line)).filter(|words| words[0] == "make");
        all.filter_map(unknown).collect()
    });
}

#[test]
fn paths_of_the_source_tree_exist() {
    let path = Regex::new(r"(?:^|[\s`(\x22'=])((?:experiments|tools|crates|tests|docs|\.ci)/[\w./*<>{}-]*)")
        .unwrap();
    assert_all(|text| {
        let found = text.lines().flat_map(|line| path.captures_iter(line).map(|found| found[1].to_owned()));
        let stated = found.map(|path| path.trim_end_matches(['.', '/']).to_owned());
        // Placeholders are in capitals.
        let is_real = |path: &String| {
            !path.contains(['*', '<', '{'])
                && !path.split(['/', '.']).any(|part| part.chars().all(char::is_uppercase))
        };
        stated
            .filter(is_real)
            .filter(|path| !root().join(path).exists())
            .map(|path| format!("{path} does not exist"))
            .collect()
    });
}

#[test]
fn named_settings_exist() {
    let name = Regex::new(r"FI_WEIR_[A-Z_]*").unwrap();
    let is_placeholder = |name: &str| matches!(name, "FI_WEIR_" | "FI_WEIR_X");
    assert_all(|text| {
        // A page may show what weir says about a name with a mistake.
        let lines = text.lines().filter(|line| !line.contains("no such setting"));
        let names = lines
            .flat_map(|line| name.find_iter(line))
            .map(|found| found.as_str().trim_end_matches('_').to_owned());
        names
            .filter(|name| name != "FI_WEIR" && !is_placeholder(name))
            .filter(|name| !SETTINGS.iter().any(|setting| setting.variable == name))
            .map(|name| format!("{name} is no setting"))
            .collect()
    });
}

/// `make docs` checks the links of the pages; these files are not among them.
#[test]
fn relative_links_of_files_outside_the_site_exist() {
    let link = Regex::new(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)").unwrap();
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        for found in link.captures_iter(&text) {
            assert!(root().join(&found[1]).exists(), "{name}: the link {} is dead", &found[1]);
        }
    }
}

#[test]
fn shell_lines_are_joined_and_split_into_commands() {
    let text = "```sh\n$ A=1 weir run \\\n  -n 4 -- x > y\nweir a; weir b | c # d\ncat > e <<'END'\nweir no\nEND\nweir f\n```\nweir no\n```text\nweir no\n```\n";
    let all: Vec<String> =
        shell_lines(text).iter().flat_map(|line| commands(line)).map(|words| words.join(" ")).collect();
    assert_eq!(all, ["weir run -n 4 -- x", "weir a", "weir b", "c", "cat", "weir f"]);
}

#[test]
fn mistakes_in_documents_are_reported() {
    let words = |line: &str| commands(line).remove(0);
    assert!(refusal(&words("weir run -n 4 -- ./program")).is_none());
    assert!(
        refusal(&words("weir run --no-such-option -n 4 -- ./program")).unwrap().contains("--no-such-option")
    );
    assert!(refusal(&words("weir walk")).unwrap().contains("walk"));
    assert!(unknown("weir bench flood --quick").is_none());
    assert!(unknown("weir run -n 4 -- PROGRAM --its-option").is_none());
    assert!(unknown("weir bench flod").unwrap().contains("flod"));
    assert!(unknown("weir sim --fast").unwrap().contains("--fast"));
    assert!(targets().contains("env-mpich") && targets().contains("docs") && !targets().contains("doc"));
}
