//! What incast over weir has sent again, from the counters that its endpoints leave (`FI_WEIR_STATS`).
//!
//! A bundle that was sent again and has arrived twice was not lost. So receivers drop as many bundles that had arrived
//! before as were sent again, if the network has lost nothing.

use crate::compare::measure::{Measure, Quantity, Value};
use std::path::Path;
use weir_engine::stats;
use weir_link::NetworkReport;
use weir_output::Failure;

/// The values of an incast of `senders`, from the counters in this directory. Empty: no endpoint has used a network.
///
/// # Errors
/// [`Failure::System`]: the counters cannot be read.
pub fn values(counters: &Path, senders: u64) -> Result<Vec<Value>, Failure> {
    let reports = stats::read_dir(counters).map_err(Failure::system("the counters of a job"))?;
    let networks = reports.endpoints.iter().filter_map(|endpoint| endpoint.network);
    let all = networks.fold(NetworkReport::default(), |sum, one| sum.plus(&one));
    Ok(shares(&all).map_or(Vec::new(), |shares| {
        let whats = [Quantity::IncastSentAgain, Quantity::IncastLost];
        let value = |(what, value)| Value { measure: Measure { what, at: senders }, value };
        whats.into_iter().zip(shares).map(value).collect()
    }))
}

/// What was sent again, and what of it was lost, as shares of all datagrams. `None`: there were none.
fn shares(network: &NetworkReport) -> Option<[f64; 2]> {
    let NetworkReport { datagrams_sent, sent_again, dropped_repeated, .. } = *network;
    let share = |bundles: u64| bundles as f64 / datagrams_sent as f64;
    (datagrams_sent > 0).then(|| [share(sent_again), share(sent_again.saturating_sub(dropped_repeated))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_that_has_arrived_twice_was_not_lost() {
        let network = |sent_again, dropped_repeated| NetworkReport {
            datagrams_sent: 1000,
            sent_again,
            dropped_repeated,
            ..NetworkReport::default()
        };
        assert_eq!(shares(&network(4, 4)), Some([0.004, 0.0]));
        assert_eq!(shares(&network(4, 1)), Some([0.004, 0.003]));
        assert_eq!(shares(&network(0, 2)), Some([0.0, 0.0]));
        assert_eq!(shares(&NetworkReport::default()), None);
    }
}
