//! `weir bench paired`: compares contenders, each with settings of its own, by their ratios round by round. A contender
//! is weir, another transport or MPI, or `floor`: a program without MPI, as a lower bound for collectives.
//!
//! The speed of a host changes from minute to minute. So two runs an hour apart cannot be compared, but two runs that
//! follow each other can. Each round runs the contenders in turn, and begins with another one each time. The table
//! shows the medians of the values, and of their ratios to the first contender within a round.
//!
//! ```text
//! round 1    weir, weir:FI_WEIR_ATTACH=start, ucx        ratios 1.02, 0.71
//! round 2    weir:FI_WEIR_ATTACH=start, ucx, weir        ratios 1.00, 0.69
//! ```

use crate::contender::Contender;
use crate::contender_set::ContenderSet;
use crate::jobs::{self, Jobs};
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions, TimeoutOption};
use crate::program::{FLOOR, MEASURE};
use crate::result_line;
use crate::statistics::{Quartiles, ratios};
use crate::transport::Transport;
use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use weir_engine::config::Settings;
use weir_mpi::launch::{Launch, collectives_library};
use weir_mpi::{provider_file, scratch};
use weir_output::{Failure, table};

/// The contender that is a program without MPI and protocol: a lower bound of collectives.
const FLOOR_WORD: &str = "floor";
/// Measures that the lower bound has.
const COLLECTIVES: [&str; 4] = ["collectives", "barrier", "allreduce", "alltoall"];
/// Keys of a result line that are no values to compare: parameters, and the list of what each sender has sent.
const NOT_COMPARED: [&str; 5] = ["ranks", "senders", "window", "windows", "counts"];
/// The variable that names another build of weir's plug-in.
const PROVIDER_VARIABLE: &str = "WEIR_PROVIDER_PATH";
/// The variable with which a job loads the library beside the plug-in that does collective operations in node groups.
const COLLECTIVES_ON: (&str, &str) = ("FI_WEIR_COLLECTIVES", "1");

/// Options of `weir bench paired`.
#[derive(Args, Debug)]
#[command(after_help = "\
A contender is a transport that `weir bench list` names, or `floor`. The first is the reference. Settings follow a \
colon: weir:FI_WEIR_ATTACH=start;FI_WEIR_EAGER_BYTES=65536. WEIR_PROVIDER_PATH names another build of weir. `floor` is \
a program without MPI and protocol: a lower bound of collectives. With FI_WEIR_COLLECTIVES=1 the ranks load \
libweir-mpi.so.

MEASURE has the arguments of tests/mpi/measure.c: a name, the seconds for each value, and message sizes in bytes. \
Names: latency, stream, ends, collectives, operations, barrier, allreduce, alltoall, incast, memory.

Each row has the median and the quartiles over the rounds. `x` is the ratio to the reference in the same round. `best` \
is the ratio of the best values.

Exit status:
  0      everything was measured
  1      a job failed or timed out
  2      a wrong option or setting
  127    a program was not found

Examples:
  weir bench paired 'collectives 0.15 2048' weir intel-mpi 'intel-mpi:I_MPI_COLL_INTRANODE=pt2pt' floor --rounds 25
  weir bench paired 'ends 0.3 8' weir ucx --ranks 2
  weir bench paired 'incast 0.2 2048' weir weir:WEIR_PROVIDER_PATH=/tmp/before/libweir-fi.so --beside 2")]
pub struct PairedArguments {
    /// Name, seconds and sizes of the measure, in quotes: 'latency 0.2 8 2048'.
    #[arg(value_name = "MEASURE")]
    measure: String,
    /// Contenders, the reference first.
    #[arg(value_name = "CONTENDER", required = true)]
    contenders: Vec<SetContender>,
    /// Number of ranks.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: u32,
    /// Also run each contender with this number of ranks, and show the ratio between both.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    beside: Option<u32>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    mpich: MpichOption,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    output: OutputOptions,
}

/// A contender with its own settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SetContender {
    /// As on the command line.
    text: String,
    /// `None`: the lower bound.
    contender: Option<Contender>,
    settings: Vec<(String, String)>,
}

impl FromStr for SetContender {
    type Err = String;

    fn from_str(text: &str) -> Result<SetContender, String> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let contender = match name {
            FLOOR_WORD => None,
            _ => Some(name.parse().map_err(|error| format!("{error}, {FLOOR_WORD}"))?),
        };
        let pair = |setting: &str| match setting.split_once('=') {
            Some((variable, value)) if !variable.is_empty() => Ok((variable.to_owned(), value.to_owned())),
            _ => Err(format!("the setting {setting:?} is not VARIABLE=VALUE")),
        };
        let settings = settings.split(';').filter(|it| !it.is_empty()).map(pair).collect::<Result<_, _>>()?;
        Ok(SetContender { text: text.to_owned(), contender, settings })
    }
}

/// A value of a run, by the words of its line and its key: `latency bytes=8 us`.
pub type Values = Vec<(String, f64)>;

/// The samples of one contender at one number of ranks, in the order of the rounds.
#[derive(Debug, Default, Serialize)]
struct Samples {
    measure: String,
    samples: Vec<f64>,
    /// The same with the other number of ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<f64>,
}

/// All samples of one contender.
#[derive(Debug, Serialize)]
struct Row<'a> {
    contender: &'a str,
    values: Vec<Samples>,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpis: &'a [String],
    measure: &'a str,
    ranks: u32,
    beside: Option<u32>,
    rounds: u32,
    rows: &'a [Row<'a>],
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`] if a contender is missing, or if a job fails.
pub fn run(arguments: &PairedArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let settings = Settings::from_environment()?;
    let scratch = scratch::directory()?;
    let wanted: Vec<Contender> = arguments.contenders.iter().filter_map(|it| it.contender).collect();
    let set = ContenderSet::prepare(&arguments.mpich, &wanted, &[MEASURE, FLOOR], scratch.path())?;
    if let Some((contender, why)) = set.missing.iter().find(|(contender, _)| wanted.contains(contender)) {
        return Err(Failure::NoMpi(format!("{}: {why}", contender.word())));
    }
    let words: Vec<&str> = arguments.measure.split_whitespace().collect();
    if arguments.contenders.iter().any(|it| it.contender.is_none()) {
        check_floor(&words)?;
    }
    let plug_ins = contenders_plug_ins(&arguments.contenders, scratch.path())?;
    let jobs = Jobs { limit: arguments.timeout.limit(), shm_dir: settings.shm_dir };
    let rank_counts: Vec<u32> = arguments.beside.into_iter().chain([arguments.ranks]).collect();
    let contenders = &arguments.contenders;
    let total = u64::from(arguments.rounds) * (contenders.len() * rank_counts.len()) as u64;
    let bar = arguments.output.progress_bar(total);
    let mut rows: Vec<Row<'_>> =
        contenders.iter().map(|it| Row { contender: &it.text, values: Vec::new() }).collect();
    let numbered: Vec<_> = contenders.iter().enumerate().collect();
    for round in 0..arguments.rounds as usize {
        for &(index, contender) in jobs::rotated(&numbered, round) {
            for &ranks in &rank_counts {
                bar.set_message(format!("round {}: {} with {ranks} ranks", round + 1, contender.text));
                let launch = launch(&set, contender, plug_ins[index].as_deref(), ranks, &words)?;
                let failed = |why: String| Failure::Measurement(format!("{}: {why}", contender.text));
                let output =
                    jobs.run(&launch, || true)?.map_err(|unfinished| failed(unfinished.to_string()))?;
                let values = values(&output).map_err(failed)?;
                rows[index].add(values, arguments.beside == Some(ranks) && ranks != arguments.ranks);
                bar.inc(1);
            }
        }
    }
    drop(bar);
    arguments.output.record.print(render(&rows, arguments))?;
    let content = RecordContent {
        machine: &Machine::of_this(),
        mpis: &set.mpis(),
        measure: &arguments.measure,
        ranks: arguments.ranks,
        beside: arguments.beside,
        rounds: arguments.rounds,
        rows: &rows,
    };
    arguments.output.record.write("weir-bench-paired-1", content)?;
    Ok(0)
}

/// The lower bound has collectives of one size only.
fn check_floor(words: &[&str]) -> Result<(), Failure> {
    match words {
        [what, _, _] if COLLECTIVES.contains(what) => Ok(()),
        _ => Err(Failure::Usage(format!(
            "{FLOOR_WORD} with the measure {:?}; allowed: {}, with seconds and one size",
            words.join(" "),
            COLLECTIVES.join(", ")
        ))),
    }
}

/// For each contender that names another build of weir: a directory that holds only this plug-in.
fn contenders_plug_ins(contenders: &[SetContender], scratch: &Path) -> Result<Vec<Option<PathBuf>>, Failure> {
    let plug_in = |(index, contender): (usize, &SetContender)| {
        let setting = contender.settings.iter().find(|(variable, _)| variable == PROVIDER_VARIABLE);
        let Some((_, path)) = setting else { return Ok(None) };
        if contender.contender != Some(Contender::Mpich(Transport::Weir)) {
            let what = format!("{}: {PROVIDER_VARIABLE} is allowed with weir only", contender.text);
            return Err(Failure::Usage(what));
        }
        let found = provider_file::find(Some(OsStr::new(path)), Path::new("/"))?;
        let directory = scratch.join(format!("contender-{index}"));
        std::fs::create_dir(&directory).map_err(Failure::system(directory.display().to_string()))?;
        provider_file::isolate(&found, &directory).map(Some)
    };
    contenders.iter().enumerate().map(plug_in).collect()
}

/// The job of a contender.
///
/// - `plug_in`: a directory that holds only the contender's own plug-in.
/// - `words`: the arguments of the program.
///
/// # Errors
/// [`Failure::Usage`]: its settings need a library that is not beside the plug-in.
pub fn launch(
    set: &ContenderSet,
    contender: &SetContender,
    plug_in: Option<&Path>,
    ranks: u32,
    words: &[&str],
) -> Result<Launch, Failure> {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut launch = match (contender.contender, plug_in) {
        (Some(_), Some(directory)) => set.launch_over_plug_in(directory, ranks, MEASURE, owned(words)),
        (Some(it), None) => set.launch(it, ranks, MEASURE, owned(words)),
        (None, _) => set.launch_alone(FLOOR, [vec![ranks.to_string()], owned(&words[1..])].concat()),
    };
    for (variable, value) in contender.settings.iter().filter(|(it, _)| it != PROVIDER_VARIABLE) {
        launch.set(variable, value);
    }
    if contender
        .settings
        .iter()
        .any(|(variable, value)| (variable.as_str(), value.as_str()) == COLLECTIVES_ON)
    {
        let own = plug_in.map(|directory| directory.join(provider_file::INSTALLED_NAME));
        let library = own.as_deref().or(set.plug_in()).and_then(collectives_library);
        let missing =
            || Failure::Usage(format!("{}: libweir-mpi.so is not beside the plug-in", contender.text));
        launch.preload(&library.ok_or_else(missing)?);
    }
    Ok(launch)
}

/// All numeric results of an output.
///
/// # Errors
/// One line: there is none.
pub fn values(output: &str) -> Result<Values, String> {
    let mut values = Values::new();
    for (word, pairs) in result_line::pairs(output) {
        let size = pairs.iter().find(|(key, _)| *key == "bytes").map(|(_, value)| format!(" {value} B"));
        for (key, value) in pairs.iter().filter(|(key, _)| *key != "bytes" && !NOT_COMPARED.contains(key)) {
            if let Some(value) = value.parse::<f64>().ok().filter(|value| value.is_finite()) {
                values.push((format!("{word}{} {key}", size.as_deref().unwrap_or_default()), value));
            }
        }
    }
    if values.is_empty() { Err(String::from("it printed no result")) } else { Ok(values) }
}

impl Row<'_> {
    fn add(&mut self, values: Values, is_beside: bool) {
        for (measure, value) in values {
            let index = self.values.iter().position(|known| known.measure == measure).unwrap_or_else(|| {
                self.values.push(Samples { measure, ..Samples::default() });
                self.values.len() - 1
            });
            let samples = &mut self.values[index];
            if is_beside { samples.beside.push(value) } else { samples.samples.push(value) }
        }
    }

    fn samples(&self, measure: &str) -> Option<&Samples> {
        self.values.iter().find(|samples| samples.measure == measure)
    }
}

/// Median and quartiles.
fn spread(values: &[f64]) -> String {
    let [low, median, high] = Quartiles::of(values).ordered().map(weir_output::quantity::three_digits);
    format!("{median} ({low} .. {high})")
}

/// The best value of a measure: the largest rate or overlap, or the smallest time.
fn best(measure: &str, values: &[f64]) -> f64 {
    let larger_is_better = measure.ends_with("per_s") || measure.ends_with("percent");
    let better = |one: f64, other: f64| if larger_is_better { one.max(other) } else { one.min(other) };
    values.iter().copied().reduce(better).unwrap_or(f64::NAN)
}

/// Measure, contender, value, ratio to the reference, ratio of the best values, ratio to the other number of ranks.
fn cells(reference: &Row<'_>, row: &Row<'_>, samples: &Samples) -> [String; 6] {
    let Samples { measure, samples: ours, beside } = samples;
    let is_reference = std::ptr::eq(reference, row);
    let theirs = reference.samples(measure).filter(|_| !is_reference).map(|it| it.samples.as_slice());
    let paired = theirs.and_then(|theirs| Some((ratios(ours, theirs)?, theirs)));
    let (ratio, best_ratio) = paired.map_or_else(Default::default, |(ratios, theirs)| {
        (spread(&ratios), format!("{:.3}", best(measure, ours) / best(measure, theirs)))
    });
    let over = ratios(ours, beside).map_or_else(String::new, |ratios| spread(&ratios));
    [measure.clone(), row.contender.to_owned(), spread(ours), ratio, best_ratio, over]
}

fn render(rows: &[Row<'_>], arguments: &PairedArguments) -> String {
    let mut table = table::plain();
    let beside = arguments.beside.map(|ranks| format!("over {ranks} ranks"));
    let columns = if beside.is_some() { 6 } else { 5 };
    let heads = ["measure", "contender", "median (quartiles)", "x", "best"].map(String::from);
    table.set_header(heads.into_iter().chain(beside));
    let reference = &rows[0];
    let mut measures: Vec<&str> = Vec::new();
    for samples in rows.iter().flat_map(|row| &row.values) {
        if !measures.contains(&samples.measure.as_str()) {
            measures.push(&samples.measure);
        }
    }
    for measure in measures {
        for row in rows {
            let Some(samples) = row.samples(measure) else { continue };
            let cells = cells(reference, row, samples).into_iter().take(columns).enumerate();
            table.add_row(
                cells.map(|(column, text)| if column < 2 { Cell::new(text) } else { table::right(text) }),
            );
        }
    }
    let (rounds, ranks) = (arguments.rounds, arguments.ranks);
    let name = &reference.contender;
    format!(
        "{}\n{rounds} interleaved rounds with {ranks} ranks; x: over {name}, round by round",
        table::text(&table)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_has_a_name_and_settings() {
        let plain: SetContender = "ucx".parse().unwrap();
        assert_eq!((plain.contender, plain.settings), (Some(Contender::Mpich(Transport::Ucx)), Vec::new()));
        let set: SetContender = "weir:A=1;B=x=y".parse().unwrap();
        let pair = |variable: &str, value: &str| (variable.to_owned(), value.to_owned());
        assert_eq!(set.settings, [pair("A", "1"), pair("B", "x=y")]);
        assert_eq!("floor".parse::<SetContender>().unwrap().contender, None);
        let unknown = "tcp".parse::<SetContender>().unwrap_err();
        assert!(unknown.contains("ofi-tcp") && unknown.contains("floor"), "{unknown}");
        assert!("weir:A".parse::<SetContender>().unwrap_err().contains("VARIABLE=VALUE"));
    }

    #[test]
    fn the_lower_bound_has_collectives_of_one_size_only() {
        assert!(check_floor(&["barrier", "0.1", "8"]).is_ok());
        for words in [&["latency", "0.1", "8"][..], &["alltoall", "0.1", "8", "64"], &[]] {
            assert!(
                check_floor(words).unwrap_err().to_string().contains("allowed: collectives"),
                "{words:?}"
            );
        }
    }

    #[test]
    fn values_of_several_sizes_are_distinct() {
        let output = "hello\nlatency bytes=8 us=0.5\nlatency bytes=64 us=0.75\nbarrier ranks=2 us=3\n";
        let named = |name: &str, value: f64| (name.to_owned(), value);
        let expected =
            [named("latency 8 B us", 0.5), named("latency 64 B us", 0.75), named("barrier us", 3.0)];
        assert_eq!(values(output).unwrap(), expected);
        // With one sender the list looks like a number.
        let incast = "incast senders=1 bytes=8 per_s=9 counts=7\n";
        assert_eq!(values(incast).unwrap(), [named("incast 8 B per_s", 9.0)]);
        assert!(values("hello\n").is_err());
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut rows =
            [Row { contender: "weir", values: Vec::new() }, Row { contender: "ucx", values: Vec::new() }];
        // The second round is ten times as slow for both.
        for (row, times) in rows.iter_mut().zip([[1.0, 10.0], [2.0, 20.0]]) {
            times.iter().for_each(|&us| row.add(vec![(String::from("barrier us"), us)], false));
            row.add(vec![(String::from("barrier us"), 0.5)], true);
        }
        let [_, contender, _, ratio, best, _] = cells(&rows[0], &rows[1], &rows[1].values[0]);
        assert_eq!(
            (contender.as_str(), ratio.as_str(), best.as_str()),
            ("ucx", "2.00 (2.00 .. 2.00)", "2.000")
        );
        let own = cells(&rows[0], &rows[0], &rows[0].values[0]);
        assert_eq!(
            (own[3].as_str(), own[5].as_str()),
            ("", ""),
            "no ratio to itself, and rounds lack values"
        );
        assert_eq!((best_of("stream messages_per_s"), best_of("latency us")), (3.0, 1.0));
    }

    fn best_of(measure: &str) -> f64 {
        best(measure, &[2.0, 1.0, 3.0])
    }
}
