//! What incast over weir has sent again, from the counters that its endpoints leave (`FI_WEIR_STATS`), and what was lost on
//! the way, from those of the kernel ([`Hosts::dropped`](super::hosts::Hosts::dropped)).
//!
//! Endpoints cannot tell what was lost: a bundle that was sent again may have arrived, and nobody reads what comes last,
//! when the job ends.

use crate::compare::measure::{Measure, Quantity, Value};
use std::path::Path;
use weir_engine::stats;
use weir_link::NetworkReport;
use weir_output::Failure;

/// The values of an incast of `senders`, from the counters in this directory. `dropped`: by the kernel, meanwhile. Empty: no
/// endpoint has used a network.
///
/// # Errors
/// [`Failure::System`]: the counters cannot be read.
pub fn values(counters: &Path, senders: u64, dropped: u64) -> Result<Vec<Value>, Failure> {
    let reports = stats::read_dir(counters).map_err(Failure::system("the counters of a job"))?;
    let networks = reports.endpoints.iter().filter_map(|endpoint| endpoint.network);
    let all = networks.fold(NetworkReport::default(), |sum, one| sum.plus(&one));
    Ok(shares(&all, dropped).map_or(Vec::new(), |shares| {
        let whats = [Quantity::IncastSentAgain, Quantity::IncastLost];
        let value = |(what, value)| Value { measure: Measure { what, at: senders }, value };
        whats.into_iter().zip(shares).map(value).collect()
    }))
}

/// What was sent again, and what the kernel has dropped, as shares of all datagrams. `None`: there were none.
fn shares(network: &NetworkReport, dropped: u64) -> Option<[f64; 2]> {
    let NetworkReport { datagrams_sent, sent_again, .. } = *network;
    let share = |datagrams: u64| datagrams as f64 / datagrams_sent as f64;
    (datagrams_sent > 0).then(|| [share(sent_again), share(dropped)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_again_was_not_lost_by_that() {
        let network = NetworkReport { datagrams_sent: 1000, sent_again: 4, ..NetworkReport::default() };
        assert_eq!(shares(&network, 0), Some([0.004, 0.0]));
        assert_eq!(shares(&network, 3), Some([0.004, 0.003]));
        assert_eq!(shares(&NetworkReport::default(), 0), None);
    }
}
