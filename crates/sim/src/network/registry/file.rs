//! Reads networks from files. The names of the keys end with their units.
//!
//! A file describes hardware: `kind`, `[network]`, `[cost]` unless the model has prices of its own, and `[nic]` if its NICs
//! have processors. The plan decides how many nodes there are, how many ranks a node has and how large mailboxes are
//! ([`Shape`]). An unknown key, a missing key or a value outside its range is an error that names file and line.
//! [`replace`] changes one value of a file, for plans and fits. The keys of `nic` are the same in a plan.
//!
//! ```text
//! kind = "extoll"          the entry of the registry that reads the rest
//! [network]
//! hop_ns = 87.0            becomes Parameters::hop_ps = 87,000
//! [cost]
//! packet_send_ns = 100.0   becomes Cost::packet_send_ps = 100,000
//! ```

use std::path::Path;

use serde::Deserialize;

use super::{AnyKeys, Kind, Nanoseconds, NetworkInfo, NetworkKeys, Shape, TIME, WithNetwork};
use crate::cost::{Cost, NicCost};
use crate::keys::Section;

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
    #[serde(rename = "nic")]
    _nic: Option<NicKeys>,
}

/// The table of a file that all kinds share.
#[derive(Debug, Deserialize)]
struct NicTable {
    nic: Option<NicKeys>,
}

/// A file of a network whose model has prices of its own.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWithoutCost<N> {
    #[serde(rename = "kind")]
    _kind: Kind,
    network: N,
}

keys! {
    /// Keys of `[cost]`.
    CostKeys {
        send_call_ns: Nanoseconds = TIME, "100.0", "A call of the program that begins a send.";
        receive_call_ns: Nanoseconds = TIME, "100.0", "A call of the program that posts a receive.";
        packet_send_ns: Nanoseconds = TIME, "100.0", "Handing one data packet to the network.";
        send_ns_per_kib: Nanoseconds = TIME, "0.0", "The same for one KiB of its payload, in addition.";
        packet_receive_ns: Nanoseconds = TIME, "100.0",
            "Taking one data packet from the mailbox and processing it.";
        credit_send_ns: Nanoseconds = TIME, "100.0", "Sending one explicit credit packet.";
        credit_receive_ns: Nanoseconds = TIME, "100.0", "Taking one explicit credit packet and processing it.";
        match_ns: Nanoseconds = TIME, "100.0", "Matching one message with its receive.";
        copy_ns_per_kib: Nanoseconds = TIME, "100.0", "Copying one KiB into the program's buffer.";
        unexpected_copy_ns_per_kib: Nanoseconds = TIME, "100.0",
            "Copying one KiB of an unexpected message out of the slots.";
        get_ns: Nanoseconds = TIME, "100.0", "Starting a remote get.";
        poll_ns: Nanoseconds = TIME, "100.0",
            "Time between two polls of a waiting processor; 0: it sees at once what arrives.";
        call_jitter_ns: Nanoseconds = TIME, "100.0",
            "Mean of the random extra time of each send call and receive call. It is exponentially distributed and drawn from the seed; 0: none, and all seeds give the same world.";
    }
}

/// Keys of `[cost]`: prices of a rank's processor.
pub const COSTS: Section =
    Section { name: "cost", about: "The time that a rank's processor spends.", keys: CostKeys::KEYS };

impl CostKeys {
    fn cost(&self) -> Cost {
        Cost {
            send_call_ps: self.send_call_ns.0,
            receive_call_ps: self.receive_call_ns.0,
            packet_send_ps: self.packet_send_ns.0,
            send_ps_per_kib: self.send_ns_per_kib.0,
            packet_receive_ps: self.packet_receive_ns.0,
            credit_send_ps: self.credit_send_ns.0,
            credit_receive_ps: self.credit_receive_ns.0,
            match_ps: self.match_ns.0,
            copy_ps_per_kib: self.copy_ns_per_kib.0,
            unexpected_copy_ps_per_kib: self.unexpected_copy_ns_per_kib.0,
            // Combining eight bytes takes nanoseconds.
            combine_ps_per_kib: 0,
            get_ps: self.get_ns.0,
            poll_ps: self.poll_ns.0,
            call_jitter_ps: self.call_jitter_ns.0,
        }
    }
}

keys! {
    /// Keys of the table `nic` of a plan or of a network file.
    NicKeys {
        packet_send_ns: Nanoseconds = TIME, "1000.0", "Sending one packet.";
        send_ns_per_kib: Nanoseconds = TIME, "0.0",
            "Sending one KiB of payload, in addition. It has no effect where the NIC itself makes packets.";
        packet_receive_ns: Nanoseconds = TIME, "1000.0", "Receiving one packet.";
        copy_send_ns: Nanoseconds = TIME, "300.0",
            "Replacing the header of a packet and sending it again, to another rank: multi-sends, and machines on a NIC.";
        get_ns: Nanoseconds = TIME, "500.0", "Ending a remote get of a rank of this host.";
        host_read_ns: Nanoseconds = TIME, "0.0", "Taking one packet of a rank from the memory of the host.";
        host_write_ns: Nanoseconds = TIME, "0.0",
            "Putting one packet, or the end of an operation of the NIC, into the memory of the host.";
        word_ns: Nanoseconds = TIME, "0.0", "Changing one word of the memory of the host.";
        copy_ns_per_kib: Nanoseconds = TIME, "0.0", "Copying one KiB, for an operation of the NIC.";
        combine_ns_per_kib: Nanoseconds = TIME, "0.0", "Combining one KiB of integers with others.";
        float_combine_ns_per_kib: Nanoseconds = TIME, "0.0", "Combining one KiB of floats with others.";
    }
}

/// Keys of `nic`: prices of the processor of a NIC.
pub const NIC: Section = Section {
    name: "nic",
    about: "The time that the processor of a NIC spends. All ranks of a node share it, and it does one thing after the other.",
    keys: NicKeys::KEYS,
};

impl NicKeys {
    /// The prices.
    pub fn cost(&self) -> NicCost {
        NicCost {
            packet_send_ps: self.packet_send_ns.0,
            send_ps_per_kib: self.send_ns_per_kib.0,
            packet_receive_ps: self.packet_receive_ns.0,
            copy_send_ps: self.copy_send_ns.0,
            get_ps: self.get_ns.0,
            host_read_ps: self.host_read_ns.0,
            host_write_ps: self.host_write_ns.0,
            word_ps: self.word_ns.0,
            copy_ps_per_kib: self.copy_ns_per_kib.0,
            combine_ps_per_kib: self.combine_ns_per_kib.0,
            float_combine_ps_per_kib: self.float_combine_ns_per_kib.0,
        }
    }
}

/// The reason why a file is not a valid network.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// The reason.
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

/// The text of a file, and its path for messages.
pub(super) struct Text<'a> {
    text: &'a str,
    path: &'a str,
}

impl Text<'_> {
    fn parse<T: for<'de> Deserialize<'de>>(&self) -> Result<T, FileError> {
        toml::from_str(self.text).map_err(|error| {
            let line = line_of(self.text, error.span());
            let mut message = error.message().to_owned();
            if !message.contains('`') {
                // The message names no key, so we show the line.
                let shown = self.text.lines().nth(line - 1).unwrap_or("").trim();
                message = format!("{message}; in the line `{shown}`");
            }
            FileError::Content { path: self.path.to_owned(), line, message }
        })
    }

    /// Reads and checks the keys of one kind of network, and the prices of processors.
    pub fn read<K: NetworkKeys>(&self) -> Result<(K, Cost), FileError> {
        let (keys, cost) = if K::INFO.has_cost {
            let File { network, cost, .. } = self.parse::<File<K>>()?;
            (network, Some(cost.cost()))
        } else {
            (self.parse::<FileWithoutCost<K>>()?.network, None)
        };
        keys.check().map_err(|(key, message)| {
            let line = self.text.lines().position(|line| line.trim_start().starts_with(key));
            FileError::Content { path: self.path.to_owned(), line: line.map_or(1, |line| line + 1), message }
        })?;
        let cost = cost.or_else(|| keys.cost()).expect("a model without [cost] has prices of its own");
        Ok((keys, cost))
    }
}

/// A network read from a file.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Prices of its processors.
    pub cost: Cost,
    /// Prices of the processors of its NICs; `None`: they have none.
    pub nic: Option<NicKeys>,
    keys: AnyKeys,
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
        let file = Text { text, path };
        let Head { kind } = file.parse()?;
        let (keys, cost) = AnyKeys::read(kind, &file)?;
        let NicTable { nic } = file.parse()?;
        Ok(Model { cost, nic, keys })
    }

    /// The kind of network.
    pub fn kind(&self) -> Kind {
        self.keys.kind()
    }

    /// The entry of the registry.
    pub fn info(&self) -> &'static NetworkInfo {
        self.kind().info()
    }

    /// Number of nodes, if the file states it.
    pub fn hosts(&self) -> Option<u32> {
        self.keys.hosts()
    }

    /// The keys, if the file describes this kind of network.
    pub fn keys<K: NetworkKeys>(&self) -> Option<K>
    where
        AnyKeys: TryInto<K>,
    {
        self.keys.try_into().ok()
    }

    /// The same prices with other keys.
    #[must_use]
    pub fn with_keys<K: NetworkKeys>(self, keys: K) -> Model
    where
        AnyKeys: From<K>,
    {
        Model { keys: keys.into(), ..self }
    }

    /// Makes the network for a world, and passes it to `with`.
    pub fn build<W: WithNetwork>(&self, shape: Shape, with: W) -> W::Output {
        self.keys.build(shape, with)
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
