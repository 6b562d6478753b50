//! What holds packets back before a network ([`Admission`]), as `FI_WEIR_ADMIT` names it, and the tokens by message
//! size and active ranks that `auto` uses ([`Thresholds`], `FI_WEIR_ADMIT_THRESHOLDS`).

use std::ops::RangeInclusive;
use std::str::FromStr;

use weir_link::datagram::{SendGate, SendProxy};
use weir_link::shm::node_segment::NodeHandle;
use weir_proto::admission::{TokenStep, TokenTable, TokenTableError};

/// What holds packets back before a network (`FI_WEIR_ADMIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing.
    Off,
    /// A minimum delay between the packets of an endpoint.
    Rate,
    /// A bound for the datagrams of a node and job that no peer has acknowledged.
    Token,
    /// The same, with the numbers of [`Thresholds`]; without any, nothing.
    Auto,
    /// One endpoint of a node at a time sends the datagrams of all.
    Proxy,
    /// The same, with the bound of [`Admission::Token`].
    ProxyToken,
}

impl Admission {
    /// The names.
    pub(super) const WORDS: [(&str, Admission); 6] = [
        ("off", Admission::Off),
        ("rate", Admission::Rate),
        ("token", Admission::Token),
        ("auto", Admission::Auto),
        ("proxy", Admission::Proxy),
        ("proxy,token", Admission::ProxyToken),
    ];

    /// Whether endpoints send for each other.
    pub fn has_proxy(self) -> bool {
        matches!(self, Admission::Proxy | Admission::ProxyToken)
    }

    /// The name.
    pub fn word(self) -> &'static str {
        Admission::WORDS.iter().find(|(_, admission)| *admission == self).map_or("", |(word, _)| word)
    }
}

/// A kind of network with thresholds of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdLink {
    /// UDP.
    Udp,
    /// Core providers of libfabric.
    Ofi,
}

impl ThresholdLink {
    const WORDS: [(&'static str, ThresholdLink); 2] =
        [("udp", ThresholdLink::Udp), ("ofi", ThresholdLink::Ofi)];

    /// Its name in `FI_WEIR_ADMIT_THRESHOLDS`.
    pub fn word(self) -> &'static str {
        ThresholdLink::WORDS.iter().find(|(_, link)| *link == self).map_or("", |(word, _)| word)
    }
}

/// Tokens by message size and active ranks, for each kind of network (`FI_WEIR_ADMIT_THRESHOLDS`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    udp: TokenTable,
    ofi: TokenTable,
}

/// The reason why a text is no list of thresholds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdsError {
    /// One of its parts is no step.
    #[error("{part}: {why}")]
    Part {
        /// The part.
        part: String,
        /// What is wrong.
        why: String,
    },
    /// The steps of a link are no table.
    #[error("{}: {source}", link.word())]
    Table {
        /// The link.
        link: ThresholdLink,
        /// What is wrong.
        source: TokenTableError,
    },
}

fn number<T: FromStr + PartialOrd>(text: &str, name: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{name} is {text}"))
}

fn step(part: &str) -> Result<(ThresholdLink, TokenStep), String> {
    let words: Vec<&str> = part.split(':').collect();
    let &[link, bytes, ranks, tokens] = &words[..] else {
        return Err(String::from(match words.len() {
            1 => "it has no colon",
            2 | 3 => "a number is missing",
            _ => "it has too many colons",
        }));
    };
    let known = ThresholdLink::WORDS.iter().find(|(word, _)| *word == link);
    let (_, link) = known.ok_or_else(|| format!("LINK is {link}"))?;
    let bytes = number(bytes, "BYTES", 0..=u32::MAX)?;
    let tasks = number(ranks, "RANKS", 1..=4096)?;
    let tokens = number(tokens, "TOKENS", 0..=65535)?;
    Ok((*link, TokenStep { bytes, tasks, tokens }))
}

impl FromStr for Thresholds {
    type Err = ThresholdsError;

    fn from_str(text: &str) -> Result<Thresholds, ThresholdsError> {
        let mut of_links = [ThresholdLink::Udp, ThresholdLink::Ofi].map(|link| (link, Vec::new()));
        for part in text.split(',') {
            let (link, step) = step(part).map_err(|why| ThresholdsError::Part { part: part.into(), why })?;
            of_links.iter_mut().filter(|(of, _)| *of == link).for_each(|(_, steps)| steps.push(step));
        }
        let [udp, ofi] = of_links.map(|(link, steps)| {
            TokenTable::new(steps).map_err(|source| ThresholdsError::Table { link, source })
        });
        Ok(Thresholds { udp: udp?, ofi: ofi? })
    }
}

impl Thresholds {
    /// The table of a link.
    pub fn table(&self, link: ThresholdLink) -> &TokenTable {
        match link {
            ThresholdLink::Udp => &self.udp,
            ThresholdLink::Ofi => &self.ofi,
        }
    }

    /// The same with another table for `link`.
    #[must_use]
    pub fn with_table(mut self, link: ThresholdLink, table: TokenTable) -> Thresholds {
        match link {
            ThresholdLink::Udp => self.udp = table,
            ThresholdLink::Ofi => self.ofi = table,
        }
        self
    }

    /// As the setting has them; empty: there are none.
    pub fn word(&self) -> String {
        let words = |link: ThresholdLink| {
            let word = move |step: &TokenStep| {
                format!("{}:{}:{}:{}", link.word(), step.bytes, step.tasks, step.tokens)
            };
            self.table(link).steps().iter().map(word)
        };
        words(ThresholdLink::Udp).chain(words(ThresholdLink::Ofi)).collect::<Vec<_>>().join(",")
    }
}

impl super::Settings {
    /// The table of the network of this endpoint for `auto`, if it limits anything with `ranks` ranks on the node; 0: not known.
    fn table_in_force(&self, ranks: u32) -> Option<&TokenTable> {
        let is_udp = self.links.core_provider().is_none();
        let link = if is_udp { ThresholdLink::Udp } else { ThresholdLink::Ofi };
        let table = self.admission_thresholds.table(link);
        let least_ranks = table.least_tasks()?;
        (ranks == 0 || ranks >= least_ranks).then_some(table)
    }

    /// Whether something may hold packets back before the network of an endpoint with `ranks` ranks on its node; 0: not known.
    pub(crate) fn holds_packets_back(&self, ranks: u32) -> bool {
        match self.admission {
            Admission::Off => false,
            Admission::Auto => self.table_in_force(ranks).is_some(),
            Admission::Rate | Admission::Token | Admission::Proxy | Admission::ProxyToken => true,
        }
    }

    /// The gate of an endpoint with a network. Endpoints of one job that have joined the same node segment share their
    /// tokens. `None`: all packets pass.
    ///
    /// - `ranks`: those of the node; 0: not known.
    pub fn send_gate(&self, node: Option<&NodeHandle>, ranks: u32) -> Option<SendGate> {
        match self.admission {
            Admission::Off | Admission::Proxy => None,
            Admission::Rate => Some(SendGate::with_delay(self.admission_delay_ns.into())),
            Admission::Token | Admission::ProxyToken => {
                Some(SendGate::with_tokens(self.admission_tokens, node))
            }
            Admission::Auto => SendGate::with_table(self.table_in_force(ranks)?.clone(), node),
        }
    }

    /// The proxy of an endpoint over a network with this number
    /// ([`domain`](weir_link::datagram::network::DatagramNetwork::domain)). `None`: it sends its datagrams itself, because
    /// the setting does not ask for a proxy, or because there is no node segment, or no queue in it.
    pub fn send_proxy(&self, node: Option<&NodeHandle>, domain: Option<u64>) -> Option<SendProxy> {
        let (node, domain) = node.zip(domain).filter(|_| self.admission.has_proxy())?;
        SendProxy::open(node, self.admission_servers, self.admission_drains, domain)
    }
}
