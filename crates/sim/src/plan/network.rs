//! The network of a plan: a network file, in which the plan can replace keys and prices of the processor. An error
//! names its place in the plan. [`mesh`] reads the size of a mesh.

use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::table::{SpannedError, Value};
use crate::cost::Cost;
use crate::network::registry::{Model, Nodes, SwitchedKeys, replace};

/// A network with its parameters.
#[derive(Clone, Debug)]
pub struct PlanNetwork {
    /// The model, with replaced keys.
    pub model: Model,
}

impl PlanNetwork {
    /// Prices of its processors.
    pub fn cost(&self) -> Cost {
        self.model.cost
    }

    /// Whether its nodes form a mesh.
    pub fn has_mesh(&self) -> bool {
        self.model.info().nodes == Nodes::Mesh
    }

    /// Number of ranks that it has room for; `None` if there are no nodes, or if the plan states the number
    /// of nodes.
    pub fn places(&self, ranks_per_node: u32) -> Option<u64> {
        Some(u64::from(self.model.hosts()?) * u64::from(ranks_per_node))
    }

    /// Whether its links retransmit lost and reordered packets.
    pub fn links_repair(&self) -> bool {
        self.model.info().repairs
    }

    /// Whether its queues drop packets, so that ranks may need reliable paths.
    pub fn drops_packets(&self) -> bool {
        self.model.keys::<SwitchedKeys>().is_some()
    }

    /// Number of packets of an eager message.
    pub fn packets(&self, bytes: u64) -> u64 {
        let Some(geometry) = self.model.info().geometry else { return 1 };
        (bytes + u64::from(geometry.eager_header_bytes)).div_ceil(geometry.slot_bytes.into()).max(1)
    }
}

#[derive(Deserialize)]
struct File {
    file: Spanned<String>,
}

/// Reads `{ file = "extoll", hop_ns = 60.0 }` and `{ packet_send_ns = 90.0 }`. Returns the network, and its
/// name with the replaced keys.
///
/// # Errors
/// `SpannedError` if the file is missing or invalid, or if a key or value is not allowed.
pub fn choose(
    network: &Value<'_>,
    cost: Option<&Value<'_>>,
    directory: &Path,
) -> Result<(PlanNetwork, String), SpannedError> {
    let span = network.span();
    let Some(table) = network.get_ref().as_table() else {
        let what = String::from("network is not a table; allowed: { file = \"extoll\" }");
        return Err(SpannedError { span, what });
    };
    if !table.contains_key("file") {
        let what = format!(
            "network has no file; allowed: {{ file = NAME }}, one of {}",
            names_in(directory).join(", ")
        );
        return Err(SpannedError { span, what });
    }
    let File { file } = File::deserialize(Deserializer::from(Spanned::new(span.clone(), table.clone())))
        .map_err(|error| super::fault(&error, &span))?;
    let path = directory.join(format!("{}.toml", file.get_ref()));
    let refuse = |what: String| SpannedError { span: file.span(), what };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        refuse(format!("{}: {error}; allowed: {}", path.display(), names_in(directory).join(", ")))
    })?;
    let shown = path.display().to_string();
    Model::parse(&text, &shown).map_err(|error| refuse(error.to_string()))?;
    // The file is valid. Replaces one key at a time, so that an error names its place in the plan.
    let mut name = file.get_ref().clone();
    let mut changed = text;
    let changes = pairs(network, "{ file = \"extoll\" }")?.into_iter().map(|change| ("network", change));
    let changes = changes.filter(|(_, (key, _))| key != "file").collect::<Vec<_>>();
    let costs = match cost {
        Some(cost) => pairs(cost, "cost.packet_send_ns = 90.0 and the like")?,
        None => Vec::new(),
    };
    for (section, (key, value)) in changes.into_iter().chain(costs.into_iter().map(|change| ("cost", change)))
    {
        let refuse = |what: String| SpannedError { span: value.span(), what };
        let shown_value =
            scalar(value.get_ref()).ok_or_else(|| refuse(format!("{key}: allowed: a number")))?;
        changed = replace(&changed, section, &key, &shown_value).ok_or_else(|| {
            let allowed = keys_of(&changed, section).join(", ");
            refuse(format!("{key} is not in [{section}] of {shown}; allowed: {allowed}"))
        })?;
        let prefix = format!("{shown}:");
        Model::parse(&changed, &shown).map_err(|error| {
            let text = error.to_string();
            refuse(
                text.strip_prefix(&prefix).map_or(text.clone(), |rest| {
                    rest.split_once(": ").map_or(rest, |(_, what)| what).to_owned()
                }),
            )
        })?;
        name.push_str(&format!(" {key}={shown_value}"));
    }
    let model = Model::parse(&changed, &shown).map_err(|error| refuse(error.to_string()))?;
    Ok((PlanNetwork { model }, name))
}

/// The keys and values of a table.
fn pairs<'i>(value: &Value<'i>, allowed: &str) -> Result<Vec<(String, Value<'i>)>, SpannedError> {
    let Some(table) = value.get_ref().as_table() else {
        return Err(SpannedError {
            span: value.span(),
            what: format!("the value is not a table; allowed: {allowed}"),
        });
    };
    Ok(table.iter().map(|(key, value)| (key.get_ref().to_string(), value.clone())).collect())
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

fn keys_of(text: &str, section: &str) -> Vec<String> {
    let Ok(table) = DeTable::parse(text) else { return Vec::new() };
    let section = table.get_ref().get(section).and_then(|section| section.get_ref().as_table());
    section.map(|section| section.keys().map(|key| key.get_ref().to_string()).collect()).unwrap_or_default()
}

/// Names of the available networks.
fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned())).collect();
    names.sort();
    names
}

/// Parses `4x4x1`, `8x8` or `16` as sizes along x, y and z.
pub fn mesh(text: &str) -> Option<[u32; 3]> {
    let mut size = [1; 3];
    let parts: Vec<&str> = text.split('x').collect();
    if parts.is_empty() || parts.len() > 3 {
        return None;
    }
    for (place, part) in size.iter_mut().zip(parts) {
        *place = part.parse().ok().filter(|nodes| (1..=64).contains(nodes))?;
    }
    Some(size)
}
