//! Tests of generated files: the committed reference pages are what the code says, and man pages and completions
//! cover every command.
#![allow(missing_docs, reason = "test code")]

use clap::CommandFactory;
use std::path::Path;
use std::process::Command;
use weir_cli::command_line::CommandLine;
use weir_cli::reference::pages;

#[test]
fn committed_reference_pages_equal_the_generated_ones() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (name, text) in pages() {
        let committed = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
        assert!(committed == text, "docs/reference/{name} differs from the code: run make reference");
    }
}

#[test]
fn the_committed_fidelity_pages_show_the_committed_results() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let results = ["results", "e3", "e4"].map(|name| root.join(format!("experiments/{name}.json")));
    let committed = root.join("docs/explanation");
    let directory = tempfile::tempdir().unwrap();
    let experiments = directory.path().join("fidelity");
    std::fs::create_dir(&experiments).unwrap();
    for page in std::fs::read_dir(committed.join("fidelity")).unwrap() {
        let page = page.unwrap();
        std::fs::copy(page.path(), experiments.join(page.file_name())).unwrap();
    }
    let [all, of_e3, of_e4] = results.each_ref().map(|path| path.to_str().unwrap());
    let status = weir(&["reference", "fidelity", all, of_e3, of_e4], directory.path());
    assert!(status.success());
    let names = std::fs::read_dir(&experiments).unwrap();
    let names = names.map(|page| Path::new("fidelity").join(page.unwrap().file_name()));
    for name in names.chain([Path::new("fidelity.md").to_owned()]) {
        let [written, committed] = [directory.path(), &committed]
            .map(|place| std::fs::read_to_string(place.join(&name)).unwrap_or_default());
        assert!(
            committed == written,
            "docs/explanation/{} does not show the results in experiments: run make reference",
            name.display()
        );
    }
}

#[test]
fn the_committed_page_of_credits_on_demand_shows_the_committed_results() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = tempfile::tempdir().unwrap();
    let results = root.join("experiments/demand.json");
    assert!(weir(&["reference", "demand", results.to_str().unwrap()], directory.path()).success());
    for name in ["explanation/demand.md", "figures/demand.svg"] {
        let [written, committed] = [directory.path(), &root.join("docs")]
            .map(|place| std::fs::read_to_string(place.join(name)).unwrap_or_default());
        assert!(
            committed == written,
            "docs/{name} does not show experiments/demand.json: run make reference"
        );
    }
}

#[test]
fn lines_of_generated_pages_are_short() {
    for (name, text) in pages() {
        for line in text.lines() {
            let is_fixed = line.starts_with("weir ") || line.split(' ').count() <= 3;
            assert!(line.chars().count() <= 120 || is_fixed, "{name}: {line}");
        }
    }
}

#[test]
fn pages_are_written_as_generated() {
    let directory = tempfile::tempdir().unwrap();
    let status = weir(&["reference", "pages"], &directory.path().join("new"));
    assert!(status.success());
    for (name, text) in pages() {
        assert_eq!(std::fs::read_to_string(directory.path().join("new").join(name)).unwrap(), text);
    }
}

#[test]
fn every_command_has_a_man_page() {
    let share = share();
    assert_manual(&CommandLine::command(), "weir", &share.path().join("man/man1"));
    let run = std::fs::read_to_string(share.path().join("man/man1/weir-run.1")).unwrap();
    assert!(run.contains(r"\-\-mailbox\-slots") && run.contains("Exit status"), "{run}");
    let settings = std::fs::read_to_string(share.path().join("man/man1/weir-settings.1")).unwrap();
    assert!(settings.contains("FI_WEIR_FLOW"), "{settings}");
}

/// `command` and its subcommands have a page; hidden commands have none.
fn assert_manual(command: &clap::Command, name: &str, directory: &Path) {
    let path = directory.join(format!("{name}.1"));
    assert_eq!(path.exists(), !command.is_hide_set(), "{}", path.display());
    for subcommand in command.get_subcommands().filter(|_| !command.is_hide_set()) {
        assert_manual(subcommand, &format!("{name}-{}", subcommand.get_name()), directory);
    }
}

#[test]
fn completions_of_all_shells_offer_every_command() {
    let share = share();
    let places = [
        "bash-completion/completions/weir",
        "zsh/site-functions/_weir",
        "fish/vendor_completions.d/weir.fish",
    ];
    for place in places {
        let text = std::fs::read_to_string(share.path().join(place)).unwrap();
        for command in CommandLine::command().get_subcommands() {
            let is_offered = text.contains(command.get_name());
            // Names of hidden commands may be words of a help text, except these.
            if !command.is_hide_set() || command.get_name().contains('-') {
                assert_eq!(is_offered, !command.is_hide_set(), "{place}: {}", command.get_name());
            }
        }
        assert!(text.contains("mailbox-slots"), "{place}");
    }
    let bash = share.path().join(places[0]);
    assert!(Command::new("bash").arg("-n").arg(bash).status().unwrap().success());
}

/// A directory with the files that `make install` writes into `PREFIX/share`.
fn share() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    assert!(weir(&["reference", "share"], directory.path()).success());
    directory
}

fn weir(words: &[&str], directory: &Path) -> std::process::ExitStatus {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(words).arg(directory).status().unwrap()
}
