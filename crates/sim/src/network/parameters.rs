//! Reads networks from files, for `weir sim` and `weir calibrate`. The names of the keys end with their units.
//!
//! A file describes a machine (`kind`, `[network]`, `[cost]`). The plan decides how many nodes there are, how many ranks
//! a node has and how large mailboxes are ([`Shape`]). An unknown key, a missing key or a value outside its range is an
//! error that names file and line.
//!
//! ```text
//! kind = "extoll"          the model that reads the rest
//! [network]
//! hop_ns = 87.0            becomes Parameters::hop_ps = 87,000
//! [cost]
//! packet_send_ns = 100.0   becomes Cost::packet_send_ps = 100,000
//! ```

use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::fat_tree::FatTree;
use super::ideal::Ideal;
use super::mesh::Mesh;
use super::{extoll, infiniband, loggops};
use crate::Picoseconds;
use crate::cost::Cost;

/// A time in a file. The file states it in ns, with fractions; it is stored in ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nanoseconds(Picoseconds);

/// Longest time that is allowed. Unit: ns.
const LONGEST_NS: f64 = 1e9;

impl<'de> Deserialize<'de> for Nanoseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Nanoseconds, D::Error> {
        let ns = f64::deserialize(deserializer)?;
        if !(0.0..=LONGEST_NS).contains(&ns) {
            return Err(D::Error::custom(format_args!("the time is {ns:?} ns; allowed: 0 to {LONGEST_NS}")));
        }
        Ok(Nanoseconds((ns * 1000.0).round() as Picoseconds))
    }
}

/// The model that reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// [`extoll`].
    Extoll,
    /// [`super::ideal`].
    Ideal,
    /// [`infiniband`].
    Infiniband,
    /// [`loggops`].
    Loggops,
}

#[derive(Debug, Deserialize)]
struct Head {
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<N> {
    #[serde(rename = "kind")]
    _kind: Kind,
    network: N,
    cost: CostKeys,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtollKeys {
    link_packet_ns: Nanoseconds,
    hop_ns: Nanoseconds,
    inject_packet_ns: Nanoseconds,
    eject_packet_ns: Nanoseconds,
    ends_ns: Nanoseconds,
    buffer_packets: u32,
    nic_packets: u32,
    get_byte_ns: Nanoseconds,
    get_ns: Nanoseconds,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdealKeys {
    latency_ns: Nanoseconds,
    byte_ns: Nanoseconds,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InfinibandKeys {
    arity: u32,
    levels: u32,
    mtu_bytes: u32,
    packet_header_bytes: u32,
    link_byte_ns: Nanoseconds,
    hop_ns: Nanoseconds,
    buffer_packets: u32,
    host_byte_ns: Nanoseconds,
    host_packet_ns: Nanoseconds,
    send_ns: Nanoseconds,
    receive_ns: Nanoseconds,
    read_ns: Nanoseconds,
    ack_timeout_ns: Nanoseconds,
}

impl InfinibandKeys {
    /// Checks the ranges of values: a switch has at least two ports, and a tree has at most as many hosts as
    /// a world may have ranks.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let Self { arity, levels, mtu_bytes, buffer_packets, .. } = *self;
        let slot_bytes = infiniband::GEOMETRY.slot_bytes;
        let hosts = arity.checked_pow(levels).filter(|hosts| *hosts <= 1 << 20);
        if arity < 2 || levels == 0 || hosts.is_none() {
            return Err((
                "arity",
                format!(
                    "arity is {arity} and levels is {levels}; allowed: arity ^ levels from 2 to 2^20, arity at least 2"
                ),
            ));
        }
        if mtu_bytes < slot_bytes {
            return Err((
                "mtu_bytes",
                format!("mtu_bytes is {mtu_bytes}; allowed: at least {slot_bytes}, a slot"),
            ));
        }
        if buffer_packets == 0 {
            return Err(("buffer_packets", String::from("buffer_packets is 0; allowed: at least 1")));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoggopsKeys {
    latency_ns: Nanoseconds,
    overhead_ns: Nanoseconds,
    gap_ns: Nanoseconds,
    gap_byte_ns: Nanoseconds,
    eager_bytes: u64,
}

/// A file without `[cost]`: the model's `o` is the price of the processor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoggopsFile {
    #[serde(rename = "kind")]
    _kind: Kind,
    network: LoggopsKeys,
}

impl LoggopsKeys {
    fn parameters(&self) -> loggops::Parameters {
        loggops::Parameters {
            latency_ps: self.latency_ns.0,
            overhead_ps: self.overhead_ns.0,
            gap_ps: self.gap_ns.0,
            gap_byte_ps: self.gap_byte_ns.0,
            eager_bytes: self.eager_bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CostKeys {
    send_call_ns: Nanoseconds,
    receive_call_ns: Nanoseconds,
    packet_send_ns: Nanoseconds,
    packet_receive_ns: Nanoseconds,
    credit_send_ns: Nanoseconds,
    credit_receive_ns: Nanoseconds,
    match_ns: Nanoseconds,
    copy_ns_per_kib: Nanoseconds,
    unexpected_copy_ns_per_kib: Nanoseconds,
    get_ns: Nanoseconds,
    poll_ns: Nanoseconds,
    call_jitter_ns: Nanoseconds,
}

impl CostKeys {
    fn cost(&self) -> Cost {
        Cost {
            send_call_ps: self.send_call_ns.0,
            receive_call_ps: self.receive_call_ns.0,
            packet_send_ps: self.packet_send_ns.0,
            packet_receive_ps: self.packet_receive_ns.0,
            credit_send_ps: self.credit_send_ns.0,
            credit_receive_ps: self.credit_receive_ns.0,
            match_ps: self.match_ns.0,
            copy_ps_per_kib: self.copy_ns_per_kib.0,
            unexpected_copy_ps_per_kib: self.unexpected_copy_ns_per_kib.0,
            get_ps: self.get_ns.0,
            poll_ps: self.poll_ns.0,
            call_jitter_ps: self.call_jitter_ns.0,
        }
    }
}

/// The part of a machine that a world uses. The plan states it, not the file of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The mesh of nodes.
    pub mesh: Mesh,
    /// Ranks of a node.
    pub ranks_per_node: u32,
    /// Slots of a mailbox; `None`: as many as needed.
    pub mailbox_slots: Option<u32>,
}

/// The parameters of EXTOLL links that a calibration can fit. Sources state the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtollWires {
    /// [`extoll::Parameters::link_packet_ps`].
    pub link_packet_ps: Picoseconds,
    /// [`extoll::Parameters::hop_ps`].
    pub hop_ps: Picoseconds,
}

/// A network read from a file.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Prices of its processors.
    pub cost: Cost,
    wires: Wires,
}

#[derive(Clone, Copy, Debug)]
enum Wires {
    Extoll(ExtollKeys),
    Ideal(IdealKeys),
    Infiniband(InfinibandKeys),
    Loggops(LoggopsKeys),
}

/// Why a file is not a valid network.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A key or value is not allowed, or a key is missing.
    #[error("{path}:{line}: {message}")]
    Content {
        /// Its path.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The error, and what is allowed.
        message: String,
    },
}

impl Model {
    /// Reads a file.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn read(path: &Path) -> Result<Model, FileError> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| FileError::Read { path: name.clone(), source })?;
        Model::parse(&text, &name)
    }

    /// Reads the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// [`FileError::Content`].
    pub fn parse(text: &str, path: &str) -> Result<Model, FileError> {
        let refuse = |error: toml::de::Error| {
            let line = line_of(text, error.span());
            let mut message = error.message().to_owned();
            if !message.contains('`') {
                // The message names no key, so we show the line.
                let shown = text.lines().nth(line - 1).unwrap_or("").trim();
                message = format!("{message}; in the line `{shown}`");
            }
            FileError::Content { path: path.to_owned(), line, message }
        };
        let Head { kind } = toml::from_str(text).map_err(refuse)?;
        let (wires, cost) = match kind {
            Kind::Extoll => {
                let file: File<ExtollKeys> = toml::from_str(text).map_err(refuse)?;
                for (key, value) in [
                    ("buffer_packets", file.network.buffer_packets),
                    ("nic_packets", file.network.nic_packets),
                ] {
                    if value == 0 {
                        let line = text.lines().position(|line| line.trim_start().starts_with(key));
                        return Err(FileError::Content {
                            path: path.to_owned(),
                            line: line.map_or(1, |line| line + 1),
                            message: format!("{key} is 0; allowed: at least 1"),
                        });
                    }
                }
                (Wires::Extoll(file.network), file.cost)
            }
            Kind::Ideal => {
                let file: File<IdealKeys> = toml::from_str(text).map_err(refuse)?;
                (Wires::Ideal(file.network), file.cost)
            }
            Kind::Infiniband => {
                let file: File<InfinibandKeys> = toml::from_str(text).map_err(refuse)?;
                if let Err((key, message)) = file.network.check() {
                    let line = text.lines().position(|line| line.trim_start().starts_with(key));
                    let line = line.map_or(1, |line| line + 1);
                    return Err(FileError::Content { path: path.to_owned(), line, message });
                }
                (Wires::Infiniband(file.network), file.cost)
            }
            Kind::Loggops => {
                let file: LoggopsFile = toml::from_str(text).map_err(refuse)?;
                let overhead_ps = file.network.overhead_ns.0;
                if overhead_ps < file.network.gap_byte_ns.0 {
                    let line = text.lines().position(|line| line.trim_start().starts_with("overhead_ns"));
                    return Err(FileError::Content {
                        path: path.to_owned(),
                        line: line.map_or(1, |line| line + 1),
                        message: String::from(
                            "overhead_ns is less than gap_byte_ns; allowed: at least gap_byte_ns",
                        ),
                    });
                }
                return Ok(Model {
                    cost: file.network.parameters().cost(),
                    wires: Wires::Loggops(file.network),
                });
            }
        };
        Ok(Model { cost: cost.cost(), wires })
    }

    /// The model that reads the file.
    pub fn kind(&self) -> Kind {
        match self.wires {
            Wires::Extoll(_) => Kind::Extoll,
            Wires::Ideal(_) => Kind::Ideal,
            Wires::Infiniband(_) => Kind::Infiniband,
            Wires::Loggops(_) => Kind::Loggops,
        }
    }

    /// The parameters of an EXTOLL of this shape; `None` if the file describes another network.
    pub fn extoll(&self, shape: Shape) -> Option<extoll::Parameters> {
        let Wires::Extoll(keys) = self.wires else { return None };
        let Shape { mesh, ranks_per_node, mailbox_slots } = shape;
        Some(extoll::Parameters {
            mesh,
            ranks_per_node,
            link_packet_ps: keys.link_packet_ns.0,
            hop_ps: keys.hop_ns.0,
            inject_packet_ps: keys.inject_packet_ns.0,
            eject_packet_ps: keys.eject_packet_ns.0,
            ends_ps: keys.ends_ns.0,
            buffer_packets: keys.buffer_packets,
            nic_packets: keys.nic_packets,
            mailbox_slots,
            get_byte_ps: keys.get_byte_ns.0,
            get_ps: keys.get_ns.0,
        })
    }

    /// The link parameters that a calibration can fit; `None` if the file describes another network.
    pub fn extoll_wires(&self) -> Option<ExtollWires> {
        let Wires::Extoll(keys) = &self.wires else { return None };
        Some(ExtollWires { link_packet_ps: keys.link_packet_ns.0, hop_ps: keys.hop_ns.0 })
    }

    /// The same model with other link parameters. A model of another network stays as it is.
    #[must_use]
    pub fn with_extoll_wires(mut self, wires: ExtollWires) -> Model {
        if let Wires::Extoll(keys) = &mut self.wires {
            keys.link_packet_ns = Nanoseconds(wires.link_packet_ps);
            keys.hop_ns = Nanoseconds(wires.hop_ps);
        }
        self
    }

    /// The ideal network; `None` if the file describes another network.
    pub fn ideal(&self) -> Option<Ideal> {
        let Wires::Ideal(keys) = self.wires else { return None };
        Some(Ideal::new(keys.latency_ns.0, keys.byte_ns.0))
    }

    /// The parameters of an InfiniBand network with this number of ranks on a node; `None` if the file
    /// describes another network.
    pub fn infiniband(&self, ranks_per_node: u32) -> Option<infiniband::Parameters> {
        let Wires::Infiniband(keys) = self.wires else { return None };
        Some(infiniband::Parameters {
            tree: FatTree { arity: keys.arity, levels: keys.levels },
            ranks_per_node,
            mtu_bytes: keys.mtu_bytes,
            packet_header_bytes: keys.packet_header_bytes,
            link_byte_ps: keys.link_byte_ns.0,
            hop_ps: keys.hop_ns.0,
            buffer_packets: keys.buffer_packets,
            host_byte_ps: keys.host_byte_ns.0,
            host_packet_ps: keys.host_packet_ns.0,
            send_ps: keys.send_ns.0,
            receive_ps: keys.receive_ns.0,
            read_ps: keys.read_ns.0,
            ack_timeout_ps: keys.ack_timeout_ns.0,
        })
    }

    /// The parameters of LogGOPS; `None` if the file describes another network.
    pub fn loggops(&self) -> Option<loggops::Parameters> {
        let Wires::Loggops(keys) = self.wires else { return None };
        Some(keys.parameters())
    }
}

/// Returns `text` with another value for an existing key, everything else unchanged; `None` if the key is
/// missing.
pub fn replace(text: &str, section: &str, key: &str, value: &str) -> Option<String> {
    let table = toml::de::DeTable::parse(text).ok()?;
    let span = table.get_ref().get(section)?.get_ref().as_table()?.get(key)?.span();
    Some(format!("{}{value}{}", &text[..span.start], &text[span.end..]))
}

/// The line, from 1, at which a span begins.
fn line_of(text: &str, span: Option<std::ops::Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start.min(text.len()));
    1 + text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTOLL: &str = include_str!("../../../../experiments/networks/extoll.toml");
    const INFINIBAND: &str = include_str!("../../../../experiments/networks/infiniband.toml");
    const LOGGOPS: &str = include_str!("../../../../experiments/networks/loggops.toml");
    const IDEAL: &str = include_str!("../../../../experiments/networks/ideal.toml");

    fn refusal(text: &str) -> String {
        Model::parse(text, "x.toml").expect_err("refused").to_string()
    }

    #[test]
    fn shipped_network_files_parse() {
        let shape = Shape { mesh: Mesh { size: [4, 4, 1] }, ranks_per_node: 16, mailbox_slots: Some(9) };
        let extoll = Model::parse(EXTOLL, "extoll.toml").expect("a network");
        let parameters = extoll.extoll(shape).expect("an EXTOLL");
        assert_eq!((parameters.ranks_per_node, parameters.mailbox_slots), (16, Some(9)));
        assert!(parameters.hop_ps > 0 && extoll.cost.packet_send_ps > 0);
        assert!(extoll.ideal().is_none() && extoll.kind() == Kind::Extoll);
        let ideal = Model::parse(IDEAL, "ideal.toml").expect("a network");
        assert_eq!(ideal.ideal().expect("ideal").latency_ps, 1_000_000);
        assert!(ideal.extoll(shape).is_none() && ideal.cost == Cost::FREE);
    }

    #[test]
    fn network_files_equal_the_defaults_in_the_code() {
        let infiniband = Model::parse(INFINIBAND, "infiniband.toml").expect("a network");
        assert_eq!(infiniband.infiniband(1), Some(infiniband::Parameters::CLUSTER_2003));
        assert_eq!((infiniband.cost, infiniband.kind()), (infiniband::COST_2003, Kind::Infiniband));
        let loggops = Model::parse(LOGGOPS, "loggops.toml").expect("a network");
        assert_eq!(loggops.loggops(), Some(loggops::Parameters::DEFAULT));
        assert_eq!(loggops.cost, loggops::Parameters::DEFAULT.cost());
        let refused = |old: &str, new: &str| refusal(&INFINIBAND.replace(old, new));
        assert!(refused("arity = 8", "arity = 1").contains("from 2 to 2^20"));
        assert!(refused("mtu_bytes = 2048", "mtu_bytes = 256").contains("at least 2048"));
        assert!(refused("buffer_packets = 4", "buffer_packets = 0").contains("at least 1"));
        assert!(
            refusal(&LOGGOPS.replace("overhead_ns = 1500.0", "overhead_ns = 1.0"))
                .contains("at least gap_byte_ns")
        );
    }

    #[test]
    fn network_file_errors_name_the_line() {
        let line = 1 + IDEAL.lines().position(|line| line.starts_with("latency_ns")).expect("is there");
        let unknown = refusal(&IDEAL.replace("latency_ns", "latency_us"));
        assert!(unknown.starts_with(&format!("x.toml:{line}: unknown field `latency_us`")), "{unknown}");
        assert!(unknown.contains("`latency_ns`"), "says what is allowed: {unknown}");
        let negative = refusal(&IDEAL.replace("latency_ns = 1000.0", "latency_ns = -1.0"));
        let what = "the time is -1.0 ns; allowed: 0 to 1000000000; in the line `latency_ns = -1.0`";
        assert_eq!(negative, format!("x.toml:{line}: {what}"));
        let missing = refusal(&IDEAL.replace("latency_ns = 1000.0", ""));
        assert!(missing.contains("missing field `latency_ns`"), "{missing}");
        let kind = refusal(&IDEAL.replace("\"ideal\"", "\"ether\""));
        assert!(kind.contains("`extoll`") && kind.contains("`ideal`"), "{kind}");
        let none = refusal(&EXTOLL.replace("nic_packets = 16", "nic_packets = 0"));
        assert!(none.ends_with("nic_packets is 0; allowed: at least 1"), "{none}");
    }
}
