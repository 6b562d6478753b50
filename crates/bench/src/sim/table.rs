//! The targets of `weir bench sim` for each case, the verdicts on them, and the tables of cases and targets.

use super::worlds::Case;
use super::{Measured, name};
use crate::machine::Machine;
use comfy_table::Cell;
use serde::Serialize;
use weir_output::quantity::{bytes, count, three_digits};
use weir_output::table::{self, right};

/// The megabyte of the targets, which is decimal.
const MB: f64 = 1e6;

/// A target and the measured value.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedTarget {
    case: Case,
    /// The limited quantity with its unit.
    what: &'static str,
    /// Whether the target is a lower limit; otherwise it is an upper limit.
    at_least: bool,
    target: f64,
    measured: f64,
    /// Whether the measured value is within the limit.
    pub reached: bool,
}

/// The targets of the measured cases.
pub fn judge(measured: &[Measured]) -> Vec<JudgedTarget> {
    let mut judged = Vec::new();
    for world in measured {
        let mut limit = |what, at_least, target: f64, measured: f64| {
            let reached = if at_least { measured >= target } else { measured <= target };
            judged.push(JudgedTarget { case: world.case, what, at_least, target, measured, reached });
        };
        let (cpu_s, peak_mb) = (world.cpu_s, world.peak_bytes as f64 / MB);
        let (hops_per_s, messages_per_s) =
            (world.per_s(world.result.packet_hops), world.per_s(world.result.messages));
        match world.case {
            Case::AlltoallMesh64 | Case::AlltoallMesh1024 => {
                limit("seconds", false, 60.0, cpu_s);
                limit("MB", false, 512.0, peak_mb);
                limit("packet-hops/s", true, 8e6, hops_per_s);
            }
            Case::MessagesWindowed => limit("messages/s", true, 1e6, messages_per_s),
            Case::MessagesAtOnce => {
                limit("messages/s", true, 1e6, messages_per_s);
                if let Some(windowed) = measured.iter().find(|world| world.case == Case::MessagesWindowed) {
                    limit("times the windowed one", false, 1.2, cpu_s / windowed.cpu_s);
                }
            }
            Case::MessagesLoggops
            | Case::MessagesInfiniband
            | Case::Neighbours
            | Case::NeighboursLong
            | Case::InfinibandLong => limit("packet-hops/s", true, 8e6, hops_per_s),
            Case::Barrier => {
                limit("seconds", false, 10.0, cpu_s);
                limit("MB", false, 1000.0, peak_mb);
            }
            Case::ManySenders => {}
            // The network models alone. The cases above also have ranks at both ends and have the same target.
            Case::BareMesh64
            | Case::BareMesh1024
            | Case::BareInfiniband
            | Case::BareIdeal
            | Case::BareLoggops => limit("packet-hops/s", true, 8e6, hops_per_s),
        }
    }
    judged
}

/// Returns both tables.
pub fn render(measured: &[Measured], judged: &[JudgedTarget], machine: &Machine) -> String {
    let mut table = table::plain();
    let headings = [
        "case",
        "ranks",
        "CPU s",
        "peak",
        "B per\nrank",
        "events/s",
        "packets/s",
        "hops/s",
        "messages/s",
        "messages",
    ];
    table.set_header(headings.map(right));
    for world in measured {
        let million = |number: u64| format!("{} M", three_digits(world.per_s(number) / 1e6));
        table.add_row(vec![
            Cell::new(name(world.case)),
            right(count(world.result.ranks.into())),
            right(format!("{:.2}", world.cpu_s)),
            right(bytes(world.peak_bytes)),
            right(count(world.peak_bytes / u64::from(world.result.ranks))),
            right(million(world.result.events)),
            right(million(world.result.packets)),
            right(million(world.result.packet_hops)),
            right(million(world.result.messages)),
            right(count(world.result.messages)),
        ]);
    }
    let mut text = format!(
        "{}\n{}, load {:.1} before; CPU s: user and kernel time of one core",
        table::text(&table),
        machine.processor,
        machine.load
    );
    if !judged.is_empty() {
        let mut table = table::plain();
        table.set_header(["case", "target", "", "measured", "reached"]);
        for judged in judged {
            let JudgedTarget { what, target, measured, .. } = judged;
            table.add_row(vec![
                Cell::new(name(judged.case)),
                right(format!(
                    "{} {}",
                    if judged.at_least { "at least" } else { "at most" },
                    number(*target)
                )),
                Cell::new(what),
                right(number(*measured)),
                Cell::new(if judged.reached { "yes" } else { "NO" }),
            ]);
        }
        text += &format!("\n\n{}", table::text(&table));
    }
    text
}

fn number(number: f64) -> String {
    match number {
        million if million >= 1e5 => format!("{} M", three_digits(million / 1e6)),
        number => three_digits(number),
    }
}
