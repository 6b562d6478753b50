//! The table of `weir sim`: for each world its differing parameters, its time and the cost of flow control. The page of
//! `weir sim` takes its rows, columns and overheads from here.

use weir_output::quantity::{count, three_digits, time_ns};
use weir_output::table;
use weir_sim::plan::{Record, SchemeName, Settings};

/// A parameter in which worlds differ: heading and value.
pub type Column = (String, Box<dyn Fn(&Settings) -> String>);

/// The table of these worlds, with references.
pub fn render(records: &[&Record]) -> String {
    let (headings, rows) = rows(records);
    let mut table = table::plain();
    table.set_header(headings.into_iter().map(table::right));
    for row in rows {
        table.add_row(row.into_iter().map(table::right).collect::<Vec<_>>());
    }
    table::text(&table)
}

/// Headings, and one row for each world.
pub fn rows(records: &[&Record]) -> (Vec<String>, Vec<Vec<String>>) {
    let columns = differing(records);
    let measured =
        ["time", "overhead", "stalls per 100 sends", "credit packets", "packets", "fullest mailbox"];
    let headings = columns.iter().map(|(heading, _)| heading.clone()).chain(measured.map(String::from));
    let row = |record: &&Record| {
        let settings = &record.settings;
        let share =
            |part: u64, whole: u64| format!("{} %", three_digits(100.0 * part as f64 / whole.max(1) as f64));
        let overhead = match overhead(records, record) {
            Some(overhead) if settings.scheme != SchemeName::Unlimited => {
                format!("{}{} %", if overhead < 0.0 { "-" } else { "" }, three_digits(100.0 * overhead.abs()))
            }
            _ => String::new(),
        };
        let cells = columns.iter().map(|(_, value)| value(settings)).chain([
            time_ns(record.time_ns),
            overhead,
            if settings.scheme == SchemeName::Unlimited {
                String::new()
            } else {
                three_digits(100.0 * record.stalls as f64 / record.messages.max(1) as f64)
            },
            share(record.credit_packets, record.packets),
            count(record.packets),
            count(record.peak_mailbox_slots.into()),
        ]);
        cells.collect()
    };
    (headings.collect(), records.iter().map(row).collect())
}

/// Time divided by that of the reference, minus one; `None` without reference.
pub fn overhead(records: &[&Record], record: &Record) -> Option<f64> {
    let reference = record.settings.reference();
    let reference = records.iter().find(|other| other.settings == reference)?;
    Some(record.time_ns / reference.time_ns - 1.0)
}

/// The columns in which the worlds differ.
pub fn differing(records: &[&Record]) -> Vec<Column> {
    columns(records).into_iter().filter(|(_, value)| differ(records, value.as_ref())).collect()
}

/// Name of the scheme in plans.
pub fn scheme_name(settings: &Settings) -> String {
    let name = serde_json::to_value(settings.scheme).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}

fn differ(records: &[&Record], value: &dyn Fn(&Settings) -> String) -> bool {
    records.windows(2).any(|pair| value(&pair[0].settings) != value(&pair[1].settings))
}

fn columns(records: &[&Record]) -> Vec<Column> {
    fn column(heading: &str, value: impl Fn(&Settings) -> String + 'static) -> Column {
        (heading.to_owned(), Box::new(value))
    }
    let number = |number: u32| if number == 0 { String::new() } else { number.to_string() };
    let mut columns = vec![
        column("network", |it| it.network.clone()),
        column("ranks", |it| it.ranks.to_string()),
        column("mesh", |it| it.mesh_nodes.clone()),
        column("scheme", scheme_name),
        column("piggyback", |it| String::from(if it.piggyback { "yes" } else { "" })),
        column("credit slots", move |it| number(it.credit_slots)),
        column("slots per peer", move |it| number(it.slots_per_peer)),
        column("start slots", move |it| number(it.start_slots)),
        column("RNR timer (us)", |it| match it.rnr_timer_ns {
            0 => String::new(),
            ns => (ns as f64 / 1e3).to_string(),
        }),
        column("workload", |it| it.workload_name().to_owned()),
    ];
    // Parameters of workloads, in the order in which they occur.
    let mut names: Vec<String> = Vec::new();
    for record in records {
        let parameters = record.settings.workload.as_object().and_then(|table| table.values().next());
        for name in parameters.and_then(|it| it.as_object()).into_iter().flat_map(|table| table.keys()) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    for name in names {
        columns.push(column(&name.clone(), move |it| {
            let parameters = it.workload.as_object().and_then(|table| table.values().next());
            match parameters.and_then(|parameters| parameters.get(&name)) {
                None => String::new(),
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
            }
        }));
    }
    columns.push(column("NIC", |it| {
        it.nic.map_or_else(String::new, |nic| serde_json::to_string(&nic).unwrap_or_default())
    }));
    columns.push(column("shortest timeout (us)", |it| {
        it.reliability.map_or_else(String::new, |paths| (paths.min_timeout_ns as f64 / 1e3).to_string())
    }));
    columns.push(column("faults", |it| {
        it.faults
            .as_ref()
            .map_or_else(String::new, |faults| serde_json::to_string(faults).unwrap_or_default())
    }));
    columns.push(column("seed", |it| it.seed.to_string()));
    columns
}
