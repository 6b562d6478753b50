//! The page of `weir reproduce`: published statements (points), our verdicts about them, their sensitivity, and the
//! figures and plans of each experiment. It is one HTML file that needs no other file, and contains the results as
//! JSON.

use super::Reproduced;
use super::points::Verdict;
use serde_json::json;
use weir_output::markup::Html;
use weir_output::quantity::{count, three_digits};

/// The whole page.
pub fn render(reproduced: &[Reproduced<'_>], quick: bool) -> String {
    let mut html = Html::begin("weir: the published experiments, repeated");
    html.heading(1, "The published experiments, repeated");
    html.paragraph(
        "These worlds run the protocol that ships, on modelled networks, in virtual time. Grey is what was published; colours are our \
         worlds. Each point names the rule by which it is judged. docs/explanation/fidelity.md explains points that do not hold.",
    );
    if quick {
        html.warning(
            "The quick variant: its worlds are much smaller than the published ones, so that everything runs in minutes. A point may \
             hold here and not at full size, or the other way round.",
        );
    }
    let verdicts: Vec<Verdict> =
        reproduced.iter().flat_map(|it| &it.points).map(|point| point.verdict).collect();
    let of = |verdict| count(verdicts.iter().filter(|it| **it == verdict).count() as u64);
    let worlds = super::worlds(reproduced);
    let packets: u64 = worlds.iter().map(|record| record.packets).sum();
    let wall_s: f64 = worlds.iter().map(|record| record.wall_s).sum();
    html.tiles(&[
        ("points that hold", of(Verdict::Holds), String::from("by rules stated with each")),
        ("hold, not swept", of(Verdict::HoldsUnswept), String::from("with the assumed parameters")),
        ("hold if", of(Verdict::HoldsIf), String::from("an assumed parameter lies in a range")),
        ("do not hold", of(Verdict::DoesNotHold), String::from("see docs/explanation/fidelity.md")),
        ("not evaluated", of(Verdict::NotEvaluated), String::from("their worlds were not run")),
        ("worlds", count(worlds.len() as u64), format!("{} packets", count(packets))),
        (
            "real time of all worlds",
            format!("{} min", three_digits(wall_s / 60.0)),
            String::from("summed, also where several ran at a time"),
        ),
    ]);
    for it in reproduced {
        section(&mut html, it);
    }
    html.data(&json!({
        "schema": "weir-reproduce-page-2",
        "quick": quick,
        "experiments": reproduced.iter().map(|it| json!({
            "id": it.experiment.id,
            "points": it.points,
            "worlds": it.evidence.records.iter().map(|record| json!({
                "settings": record.settings,
                "time_ns": record.time_ns,
                "overhead_percent": it.evidence.overhead(record),
                "messages": record.messages,
                "stalls": record.stalls,
                "packets": record.packets,
                "credit_packets": record.credit_packets,
                "trace": record.trace,
            })).collect::<Vec<_>>(),
            "memory": it.evidence.memory,
        })).collect::<Vec<_>>(),
    }));
    html.end()
}

fn section(html: &mut Html, it: &Reproduced<'_>) {
    html.heading(2, &format!("{} {}", it.experiment.id, it.experiment.title));
    html.note(it.experiment.source);
    let rows = it.points.iter().map(|point| {
        let row = vec![point.text.clone(), point.published.clone(), super::ours(point), point.verdict_text()];
        (row, point.verdict == Verdict::DoesNotHold)
    });
    html.statements(&["point", "published", "ours", ""], rows);
    if it.points.iter().any(|point| point.verdict == Verdict::DoesNotHold) {
        html.warning("A point does not hold. The page of this experiment in docs/explanation/fidelity says why, as far as we know.");
    }
    let names = super::parameters(std::slice::from_ref(it));
    if !names.is_empty() {
        html.begin_details("Sensitivity: the range of each assumed parameter over which the verdict stays");
        html.note("Swept in the small worlds of the quick variant, one parameter at a time.");
        let heading: Vec<&str> = ["point", "verdict"].into_iter().chain(names.iter().copied()).collect();
        let judged = it.points.iter().filter(|point| !point.id.is_empty());
        html.table(&heading, judged.map(|point| super::sensitivity_row(point, &names)));
        html.end_details();
    }
    html.charts(&(it.experiment.figures)(&it.evidence));
    for plan in &it.plans {
        let path = plan.path.display().to_string();
        html.begin_details(&format!("The plan: {path}, {} worlds", count(plan.worlds.len() as u64)));
        html.preformatted(&std::fs::read_to_string(&plan.path).unwrap_or_default());
        html.end_details();
    }
}
