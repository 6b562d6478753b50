//! The table `reliability` of a plan ([`Reliability`]).

use serde::{Deserialize, Serialize};
use weir_proto::reliability::ReliabilityConfig;

use crate::MAX_NS;

/// Parameters of reliable paths. The defaults are those of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reliability {
    /// Packets of a path that are not acknowledged.
    pub window_packets: u32,
    /// Packets that a path may have under way; 0: as many as the window.
    pub grant_packets: u32,
    /// The shortest timeout. Unit: ns.
    pub min_timeout_ns: u64,
    /// The time that an acknowledgement waits for a packet to ride on. A sender that needs none soon doubles it. Unit: ns.
    pub acknowledgement_delay_ns: u64,
}

impl Default for Reliability {
    fn default() -> Reliability {
        Reliability::PROVIDER
    }
}

impl Reliability {
    /// The values of the provider. A test compares them.
    pub const PROVIDER: Reliability = Reliability {
        window_packets: 256,
        grant_packets: 0,
        min_timeout_ns: 200_000,
        acknowledgement_delay_ns: 50_000,
    };

    /// Checks the values.
    ///
    /// # Errors
    /// A text that names the key, its value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let Reliability { window_packets, .. } = *self;
        if !window_packets.is_power_of_two() || !(64..=1 << 16).contains(&window_packets) {
            let what =
                format!("window_packets is {window_packets}; allowed: a power of two, 64 to {}", 1 << 16);
            return Err(what);
        }
        let times = [
            ("min_timeout_ns", self.min_timeout_ns),
            ("acknowledgement_delay_ns", self.acknowledgement_delay_ns),
        ];
        match times.into_iter().find(|&(_, ns)| ns > MAX_NS) {
            Some((key, ns)) => Err(format!("{key} is {ns}; allowed: 0 to {MAX_NS}")),
            None => Ok(()),
        }
    }

    /// The parameters of a path whose datagrams have at most this length.
    pub(super) fn config(&self, datagram_bytes: u32) -> ReliabilityConfig {
        let defaults = ReliabilityConfig::default();
        ReliabilityConfig {
            window_bundles: self.window_packets,
            datagram_bytes,
            // Every datagram passes the network, so no path need look for a smaller length.
            base_datagram_bytes: datagram_bytes,
            first_grant: if self.grant_packets == 0 { u32::MAX } else { self.grant_packets },
            acknowledgement_delay_ns: self.acknowledgement_delay_ns,
            min_timeout_ns: self.min_timeout_ns,
            // No timeout passes before the longest delay.
            max_timeout_ns: (defaults.max_timeout_ns.max(self.min_timeout_ns))
                .max(2 * (self.acknowledgement_delay_ns << defaults.max_delay_doublings)),
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_provider() {
        let defaults = ReliabilityConfig::default();
        assert_eq!(
            Reliability::default().config(defaults.datagram_bytes),
            ReliabilityConfig { base_datagram_bytes: defaults.datagram_bytes, ..defaults }
        );
    }

    #[test]
    fn impossible_values_are_refused() {
        assert_eq!(Reliability::PROVIDER.check(), Ok(()));
        for window_packets in [0, 32, 100, 1 << 17] {
            let what = Reliability { window_packets, ..Reliability::PROVIDER }.check().unwrap_err();
            assert!(what.starts_with(&format!("window_packets is {window_packets}; allowed:")), "{what}");
        }
        let late = Reliability { min_timeout_ns: MAX_NS + 1, ..Reliability::PROVIDER }.check().unwrap_err();
        assert!(late.starts_with("min_timeout_ns is "), "{late}");
    }
}
