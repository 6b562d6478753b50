//! `weir calibrate extoll`: fits parameters of the EXTOLL model to published times, and prints the parameters and the
//! residuals. Credit packets are in no published time: they are assumed to cost what data packets cost. With `--write`
//! the command changes the values in the network file. [`weir_sim::calibrate`] describes the fits.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::{Cell, Table};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::Serialize;
use weir_sim::calibrate::{Calibration, Failure as NoCalibration, Residual, extoll};
use weir_sim::network::registry::{Model, replace};

use crate::sim::places;
use weir_bench::options::RecordOption;
use weir_output::Failure;
use weir_output::table::{self, right};

/// Networks that can be calibrated.
#[derive(Subcommand, Debug)]
pub enum CalibrateCommand {
    /// EXTOLL, to the times without flow control of Prades' thesis, section 5.3.
    Extoll(CalibrateArguments),
}

/// Options of `weir calibrate extoll`.
#[derive(Args, Debug)]
#[command(after_help = "\
The page EXTOLL of the documentation says what is fitted to what. The command runs a dozen worlds of up to 256 ranks, \
which takes seconds. One world of 1024 ranks takes a minute and 0.5 GB of memory. --quick skips it.

Exit status:
  0      every fit has ended
  1      a fit did not end, or a failure of the system
  2      a wrong option, or the file is not valid

Examples:
  weir calibrate extoll --quick
  weir calibrate extoll --fit-link --file experiments/networks/extoll-contended.toml --write")]
pub struct CalibrateArguments {
    /// The network file. Default: networks/extoll.toml of the plans directory.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Fit the time of a packet on a link as well, to the all-to-all among 256 ranks.
    #[arg(long)]
    fit_link: bool,
    /// Write the fitted values into the file.
    #[arg(long)]
    write: bool,
    /// Skip the world of 1024 ranks, to which nothing is fitted.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    record: RecordOption,
}

/// One parameter of the file.
#[derive(Clone, Debug, Serialize)]
struct Fitted {
    section: &'static str,
    key: &'static str,
    before_ns: f64,
    fitted_ns: f64,
    status: Status,
}

/// The origin of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    /// A published time determines it.
    Fitted,
    /// No published time contains it, or none was used.
    Assumed,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    reference: &'static str,
    published_us: f64,
    simulated_us: f64,
    /// Relative difference from the published time.
    difference: f64,
    /// Whether a parameter is fitted to this time.
    fitted: bool,
}

/// The part of the `--json` record below its head.
#[derive(Debug, Serialize)]
struct Results {
    file: String,
    worlds: u32,
    parameters: Vec<Fitted>,
    references: Vec<Row>,
}

/// Fits the model and prints residuals. Returns the exit status.
///
/// # Errors
/// [`Failure`] if the file cannot be read, or if a fit does not converge.
pub fn run(command: &CalibrateCommand) -> Result<u8, Failure> {
    let CalibrateCommand::Extoll(arguments) = command;
    let CalibrateArguments { file, fit_link, write, quick, record } = arguments;
    record.check()?;
    let file = match file {
        Some(file) => file.clone(),
        None => places::experiments()?.join("networks/extoll.toml"),
    };
    let system = |what: &str| {
        let what = format!("{what} {}", file.display());
        move |source| Failure::System { what, source }
    };
    let text = std::fs::read_to_string(&file).map_err(system("reading"))?;
    let start = Model::parse(&text, &file.display().to_string())
        .map_err(|error| Failure::Usage(error.to_string()))?;

    let spinner = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{spinner} {elapsed} world {pos}: {msg}");
    spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    spinner.enable_steady_tick(Duration::from_millis(200));
    let mut report_progress = |what: &str| {
        spinner.inc(1);
        spinner.set_message(what.to_owned());
        true
    };
    let calibration =
        extoll(&start, *fit_link, !quick, &mut report_progress).map_err(|error| match error {
            NoCalibration::OtherNetwork => Failure::Usage(format!("{}: {error}", file.display())),
            _ => Failure::Measurement(format!("{}: {error}", file.display())),
        })?;
    drop(spinner);

    let results = Results {
        file: file.display().to_string(),
        worlds: calibration.worlds,
        parameters: fitted(&start, &calibration.model, *fit_link),
        references: rows(&calibration),
    };
    let tables = [parameter_table(&results.parameters), reference_table(&results.references)];
    record.print(tables.map(|table| table::text(&table)).join("\n\n"))?;
    record.write("weir-calibrate-1", &results)?;
    if *write {
        std::fs::write(&file, written(&text, &results.parameters)?).map_err(system("writing"))?;
    }
    Ok(0)
}

/// The parameters that a fit can change.
///
/// - `fit_link`: the time of a packet on a link was fitted.
fn fitted(before: &Model, after: &Model, fit_link: bool) -> Vec<Fitted> {
    let wires = before.extoll_wires().zip(after.extoll_wires());
    let mut all = Vec::new();
    let mut add = |section, key, before_ps: u64, fitted_ps: u64, is_fitted: bool| {
        let (before_ns, fitted_ns) = (before_ps as f64 / 1000.0, fitted_ps as f64 / 1000.0);
        let status = if is_fitted { Status::Fitted } else { Status::Assumed };
        all.push(Fitted { section, key, before_ns, fitted_ns, status });
    };
    if let Some((before, after)) = wires {
        add("network", "hop_ns", before.hop_ps, after.hop_ps, true);
        add("network", "link_packet_ns", before.link_packet_ps, after.link_packet_ps, fit_link);
    }
    let (before, after) = (&before.cost, &after.cost);
    let is_one_price = before.packet_send_ps == before.packet_receive_ps;
    add("cost", "packet_send_ns", before.packet_send_ps, after.packet_send_ps, is_one_price);
    add("cost", "packet_receive_ns", before.packet_receive_ps, after.packet_receive_ps, true);
    // The published times are without flow control: a credit packet is assumed to cost what a data packet costs.
    add("cost", "credit_send_ns", before.credit_send_ps, after.credit_send_ps, false);
    add("cost", "credit_receive_ns", before.credit_receive_ps, after.credit_receive_ps, false);
    all
}

fn rows(calibration: &Calibration) -> Vec<Row> {
    let row = |residual: &Residual| Row {
        reference: residual.reference.name,
        published_us: residual.reference.published_us,
        simulated_us: residual.simulated_us,
        difference: residual.part(),
        fitted: residual.fitted,
    };
    calibration.residuals.iter().map(row).collect()
}

fn written(text: &str, parameters: &[Fitted]) -> Result<String, Failure> {
    parameters.iter().try_fold(text.to_owned(), |text, Fitted { section, key, fitted_ns, .. }| {
        replace(&text, section, key, &format!("{fitted_ns:?}"))
            .ok_or_else(|| Failure::Measurement(format!("[{section}] {key} is no longer in the file")))
    })
}

fn parameter_table(parameters: &[Fitted]) -> Table {
    let mut table = table::plain();
    table.set_header(["parameter", "before (ns)", "now (ns)", ""]);
    for Fitted { section, key, before_ns, fitted_ns, status } in parameters {
        let name = Cell::new(format!("{section}.{key}"));
        let status = Cell::new(if *status == Status::Fitted { "fitted" } else { "assumed" });
        table.add_row([name, right(format!("{before_ns:.3}")), right(format!("{fitted_ns:.3}")), status]);
    }
    table
}

fn reference_table(rows: &[Row]) -> Table {
    let mut table = table::plain();
    table.set_header(["reference", "published (us)", "simulated (us)", "difference", ""]);
    for row in rows {
        table.add_row([
            Cell::new(row.reference),
            right(format!("{:.2}", row.published_us)),
            right(format!("{:.2}", row.simulated_us)),
            right(format!("{:+.2} %", 100.0 * row.difference)),
            Cell::new(if row.fitted { "fitted" } else { "predicted" }),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_that_no_published_time_contains_are_assumed() {
        let extoll = include_str!("../../../experiments/networks/extoll.toml");
        let contended = include_str!("../../../experiments/networks/extoll-contended.toml");
        let assumed = |text, fit_link| {
            let model = Model::parse(text, "x").expect("a network");
            let all = fitted(&model, &model, fit_link).into_iter();
            all.filter(|it| it.status == Status::Assumed).map(|it| it.key).collect::<Vec<_>>()
        };
        assert_eq!(assumed(extoll, false), ["link_packet_ns", "credit_send_ns", "credit_receive_ns"]);
        assert_eq!(assumed(contended, true), ["packet_send_ns", "credit_send_ns", "credit_receive_ns"]);
    }

    #[test]
    fn only_fitted_values_are_replaced() {
        let text = include_str!("../../../experiments/networks/extoll.toml");
        let new = [("network", "hop_ns", 12.5), ("cost", "packet_receive_ns", 1234.0)];
        let parameters: Vec<_> = new
            .iter()
            .map(|&(section, key, fitted_ns)| {
                let status = Status::Fitted;
                Fitted { section, key, before_ns: 0.0, fitted_ns, status }
            })
            .collect();
        let changed = written(text, &parameters).expect("both are there");
        let model = Model::parse(&changed, "x").expect("a network");
        assert_eq!(model.extoll_wires().expect("EXTOLL").hop_ps, 12_500);
        assert_eq!(model.cost.packet_receive_ps, 1_234_000);
        let same = text.lines().zip(changed.lines()).filter(|(old, new)| old != new).count();
        assert_eq!((same, text.lines().count()), (2, changed.lines().count()));
    }
}
