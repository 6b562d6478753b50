//! Plans: experiments in TOML files. This module turns a plan into worlds, runs them and keeps records of them. A plan
//! can also ask for measurements of memory, which callers make.
//!
//! A plan is read, checked and expanded before any world runs. So an error in it is reported before anything has run,
//! with file and line. This module does not know figures or verdicts about published statements, which are made from
//! records. `docs/reference/plan-keys.md` describes the format.
//!
//! ```text
//! table      TOML tables with spans: overlays base and sweeps, makes a table for each combination
//! network    the network's file, and the keys that the plan replaces
//! setup      one combination: Settings (as the plan states), Config and prices (as run)
//! keys       every key with its meaning, for the reference page
//! faults     faults of links and ranks that the plan states
//! assumed    parameters without a published value, and how a sweep changes one
//! estimate   the number of packets and the memory of a world
//! run        runs worlds on threads, with a Record each
//! record     one line of JSON for each world; a world with a record does not run again
//! ```

pub mod assumed;
pub mod estimate;
pub mod faults;
pub mod keys;
pub mod network;
pub mod record;
pub mod run;
pub mod setup;
mod table;

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

pub use record::{Key, Record};
pub use setup::{SchemeName, Settings, Setup};
use table::SpannedError;

/// A plan, ready to run.
#[derive(Debug)]
pub struct Plan {
    /// Path of the file.
    pub path: PathBuf,
    /// Title, in one line.
    pub title: String,
    /// The experiment to which its records belong, for example `E1.2`.
    pub experiment: String,
    /// The publication of the experiment.
    pub source: String,
    /// The worlds, each once, with their references unless the plan leaves them out.
    pub worlds: Vec<Setup>,
    /// Numbers of peers for which the memory of a receiver is measured.
    pub memory_peers: Vec<u32>,
    /// Whether this is the quick variant.
    pub is_quick: bool,
}

/// The reason why a plan is not valid.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file contains something that is not allowed.
    #[error("{}:{line}: {what}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error, and what is allowed.
        what: String,
    },
}

/// Keys at the top of a file. Tables with lists of alternatives are removed before.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    title: String,
    experiment: String,
    source: String,
    seeds: Option<Spanned<Vec<u64>>>,
    memory_peers: Option<Spanned<Vec<u32>>>,
    /// Whether each world is compared with one without flow control, which runs too.
    reference: Option<bool>,
    #[serde(rename = "base")]
    _base: Option<IgnoredAny>,
    #[serde(rename = "sweep")]
    _sweep: Option<IgnoredAny>,
    #[serde(rename = "quick")]
    _quick: Option<IgnoredAny>,
}

impl Plan {
    /// Reads a plan, or its quick variant. `networks` is the directory of the network files.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn read(path: &Path, networks: &Path, quick: bool) -> Result<Plan, PlanError> {
        let text = read_text(path).map_err(|source| PlanError::Read { path: path.to_owned(), source })?;
        Plan::parse(&text, path, networks, quick).map_err(|SpannedError { span, what }| {
            let line = line_of(&text, span.start);
            PlanError::Content { path: path.to_owned(), line, what: with_line(what, &text, line) }
        })
    }

    /// Also reports errors of the quick variant when the full plan is read.
    fn parse(text: &str, path: &Path, networks: &Path, quick: bool) -> Result<Plan, SpannedError> {
        let plan = Plan::parse_variant(text, path, networks, quick)?;
        let has_quick = || DeTable::parse(text).is_ok_and(|top| top.get_ref().contains_key("quick"));
        if !quick && has_quick() {
            Plan::parse_variant(text, path, networks, true)?;
        }
        Ok(plan)
    }

    fn parse_variant(text: &str, path: &Path, networks: &Path, quick: bool) -> Result<Plan, SpannedError> {
        let top = DeTable::parse(text).map_err(|error| fault(&error, &(0..0)))?;
        let everything = top.span();
        let mut top = top.into_inner();
        let quick_table = table_at(top.remove("quick"), "quick")?;
        let is_quick = quick && quick_table.is_some();
        if quick && let Some((over, _)) = &quick_table {
            // A list of sweeps replaces the sweeps; everything else is merged.
            table::overlay(&mut top, over);
        }
        let base = table_at(top.remove("base"), "base")?.map(|(base, _)| base).unwrap_or_default();
        let sweeps = sweeps(top.remove("sweep"))?;
        let head = Head::deserialize(Deserializer::from(Spanned::new(everything.clone(), top)))
            .map_err(|error| fault(&error, &everything))?;
        if let Some((over, span)) = quick_table {
            check_quick(over, &span)?;
        }
        let memory_peers = match head.memory_peers {
            None => Vec::new(),
            Some(peers) if peers.get_ref().iter().all(|peers| (64..=1 << 22).contains(peers)) => {
                not_empty(&peers, "memory_peers")?;
                peers.into_inner()
            }
            Some(peers) => {
                let what = format!("memory_peers is {:?}; allowed: 64 to {} each", peers.get_ref(), 1 << 22);
                return Err(SpannedError { span: peers.span(), what });
            }
        };
        let mut worlds = Vec::new();
        if !sweeps.is_empty() {
            let Some(seeds) = &head.seeds else {
                let what = String::from("seeds is missing; allowed: a list of numbers, as in seeds = [1]");
                return Err(SpannedError { span: 0..0, what });
            };
            not_empty(seeds, "seeds")?;
            let directory = path.parent().unwrap_or(Path::new("."));
            let mut known = HashSet::new();
            for (sweep, span) in &sweeps {
                let mut table = base.clone();
                table::overlay(&mut table, sweep);
                for table in table::combinations(&table, span)? {
                    for &seed in seeds.get_ref() {
                        let setup = Setup::read(table.clone(), span.clone(), directory, networks, seed)?;
                        let reference = head.reference.unwrap_or(true).then(|| setup.reference());
                        for setup in reference.into_iter().chain([setup]) {
                            if known.insert(setup.key()) {
                                worlds.push(setup);
                            }
                        }
                    }
                }
            }
        } else if memory_peers.is_empty() {
            let what =
                String::from("the plan has nothing to run; allowed: [[sweep]] tables, or memory_peers");
            return Err(SpannedError { span: 0..0, what });
        }
        let Head { title, experiment, source, .. } = head;
        Ok(Plan { path: path.to_owned(), title, experiment, source, worlds, memory_peers, is_quick })
    }
}

/// Reads a file as text.
fn read_text(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => {
            io::Error::new(ErrorKind::InvalidData, "the file is not text; allowed: UTF-8")
        }
        _ => error,
    })
}

fn not_empty<T>(list: &Spanned<Vec<T>>, name: &str) -> Result<(), SpannedError> {
    if list.get_ref().is_empty() {
        let what = format!("{name} is empty; allowed: one number or more");
        return Err(SpannedError { span: list.span(), what });
    }
    Ok(())
}

type Table<'i> = (DeTable<'i>, Range<usize>);

fn table_at<'i>(value: Option<table::Value<'i>>, name: &str) -> Result<Option<Table<'i>>, SpannedError> {
    let Some(value) = value else { return Ok(None) };
    let span = value.span();
    match value.into_inner() {
        DeValue::Table(table) => Ok(Some((table, span))),
        _ => Err(SpannedError { span, what: format!("{name} is not a table; allowed: [{name}]") }),
    }
}

fn sweeps(value: Option<table::Value<'_>>) -> Result<Vec<Table<'_>>, SpannedError> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let span = value.span();
    let wrong =
        |span| SpannedError { span, what: String::from("sweep is not a list of tables; allowed: [[sweep]]") };
    let DeValue::Array(list) = value.into_inner() else { return Err(wrong(span)) };
    if list.is_empty() {
        return Err(SpannedError { span, what: String::from("sweep is empty; allowed: one table or more") });
    }
    let mut sweeps = Vec::new();
    for element in list {
        let span = element.span();
        match element.into_inner() {
            DeValue::Table(table) => sweeps.push((table, span)),
            _ => return Err(wrong(span)),
        }
    }
    Ok(sweeps)
}

/// Checks the keys of the quick variant.
fn check_quick(table: DeTable<'_>, span: &Range<usize>) -> Result<(), SpannedError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only their names are looked at")]
    struct Quick {
        seeds: Option<Vec<u64>>,
        memory_peers: Option<Vec<u32>>,
        base: Option<IgnoredAny>,
        sweep: Option<IgnoredAny>,
    }
    Quick::deserialize(Deserializer::from(Spanned::new(span.clone(), table)))
        .map(drop)
        .map_err(|error| fault(&error, span))
}

/// A deserializer of a table.
fn reader<'i>(table: &DeTable<'i>, span: &Range<usize>) -> Deserializer<'i> {
    Deserializer::from(Spanned::new(span.clone(), table.clone()))
}

/// The message of the TOML reader. Suggests a key if only the unit in its name is missing or wrong.
fn fault(error: &toml::de::Error, around: &Range<usize>) -> SpannedError {
    let mut what = error.message().to_owned();
    let mut names = what.split('`').skip(1).step_by(2);
    // The stem of `start_skew_us` is `start_skew`.
    let stem = |name: &str| name.rsplit_once('_').map(|(stem, _)| stem.to_owned());
    if what.starts_with("unknown field")
        && let Some(unknown) = names.next()
        && let Some(meant) = names.find(|name| {
            let has_unit = name.ends_with("_ns") || name.ends_with("_bytes");
            name.starts_with(&format!("{unknown}_")) || has_unit && stem(name) == stem(unknown)
        })
    {
        what = format!("{what}; the name contains the unit: {meant}");
    }
    let what = what.replace('\n', " ");
    SpannedError { span: error.span().unwrap_or(around.clone()), what }
}

/// Appends the line to messages of the TOML reader that do not name the key.
fn with_line(what: String, text: &str, line: usize) -> String {
    if !["invalid", "wanted", "duplicate"].iter().any(|word| what.starts_with(word)) {
        return what;
    }
    let allowed = what
        .replace("expected u32", &format!("allowed: a whole number from 0 to {}", u32::MAX))
        .replace("expected u64", &format!("allowed: a whole number from 0 to {}", u64::MAX))
        .replace("wanted string or table", "not a name; allowed: a string")
        .replace("expected f64", "allowed: a number")
        .replace("expected a string", "allowed: a string");
    let line: String = text.lines().nth(line - 1).unwrap_or("").trim().chars().take(80).collect();
    format!("{allowed}; in the line `{line}`")
}

/// The line, from 1, of a byte offset.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests;
