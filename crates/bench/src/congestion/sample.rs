//! What a job of congestion traffic has measured ([`Sample`]).

use crate::net::hosts::TcpSegments;
use crate::result_line::ResultLine;
use crate::statistics::fairness;
use serde::Serialize;
use weir_link::NetworkReport;

/// The result of one job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Operations of all ranks a second: updates, all-to-alls of all ranks, or half round trips.
    pub per_s: f64,
    /// A half of the operations took at most so long. Unit: us.
    pub p50_us: f64,
    /// 99 of 100 took at most so long. Unit: us. `None`: only a median was measured.
    pub p99_us: Option<f64>,
    /// Jain's index of the operations of the ranks that send. `None`: they take turns anyway.
    pub fairness: Option<f64>,
    /// Datagrams that left.
    pub datagrams: u64,
    /// Bundles that were sent again.
    pub sent_again: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Waits of packets at the gate.
    pub gate_waits: u64,
    /// The most datagrams under way of each rank with a gate, in all.
    pub most_held: u64,
    /// Segments of the hosts, if the link is one over TCP: it sends again what weir takes for delivered.
    pub tcp: Option<TcpSegments>,
}

impl Sample {
    fn with(network: &NetworkReport, per_s: f64, p50_us: f64) -> Sample {
        Sample {
            per_s,
            p50_us,
            p99_us: None,
            fairness: None,
            datagrams: network.datagrams_sent,
            sent_again: network.sent_again,
            timeouts: network.timeouts,
            gate_waits: network.gate_waits,
            most_held: network.gate_most_held,
            tcp: None,
        }
    }

    /// The result in the output of the program `congestion`.
    ///
    /// # Errors
    /// One line: what is missing.
    pub fn of_traffic(output: &str, word: &str, network: &NetworkReport) -> Result<Sample, String> {
        let line = ResultLine::find(output, word)?;
        let counts: Result<Vec<u64>, _> = line.value("counts")?.split(',').map(str::parse).collect();
        let counts = counts.map_err(|_| String::from("its counts are no numbers"))?;
        let p99_us = Some(line.number("p99_us")?);
        let is_exchange = word == "alltoall";
        let fairness = if is_exchange { None } else { fairness(&counts) };
        let sample = Sample::with(network, line.positive("per_s")?, line.number("p50_us")?);
        Ok(Sample { p99_us, fairness, ..sample })
    }

    /// The result in the output of `measure latency`.
    ///
    /// # Errors
    /// One line: what is missing.
    pub fn of_latency(output: &str, network: &NetworkReport) -> Result<Sample, String> {
        let us = ResultLine::find(output, "latency")?.positive("us")?;
        Ok(Sample::with(network, 1e6 / us, us))
    }

    /// The 99th percentile, or the median if only that was measured. Unit: us.
    pub fn tail_us(&self) -> f64 {
        self.p99_us.unwrap_or(self.p50_us)
    }

    /// What was sent again: segments, of all segments, if the link is one over TCP; else bundles, of all datagrams.
    pub fn sent_again_share(&self) -> f64 {
        let (sent_again, sent) = match self.tcp {
            Some(tcp) => (tcp.sent_again, tcp.sent),
            None => (self.sent_again, self.datagrams),
        };
        sent_again as f64 / (sent.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_rate_percentiles_fairness_and_the_counters_of_the_link() {
        let network = NetworkReport { datagrams_sent: 200, sent_again: 5, ..NetworkReport::default() };
        let output = "noise\nrandom ranks=4 bytes=16 outstanding=8 per_s=1000.5 p50_us=12.0 p99_us=90.5 counts=9,0,0\n";
        let sample = Sample::of_traffic(output, "random", &network).unwrap();
        assert_eq!((sample.per_s, sample.p50_us, sample.p99_us), (1000.5, 12.0, Some(90.5)));
        assert_eq!((sample.fairness, sample.sent_again_share()), (Some(1.0 / 3.0), 0.025));
        let segments = [(900, 3), (1000, 7)].map(|(sent, sent_again)| TcpSegments { sent, sent_again });
        let over_tcp = Sample { tcp: Some(segments[1] - segments[0]), ..sample };
        assert_eq!(over_tcp.sent_again_share(), 0.04);
        let output = output.replace("random", "alltoall");
        assert_eq!(Sample::of_traffic(&output, "alltoall", &network).unwrap().fairness, None);
        assert!(Sample::of_traffic(&output, "random", &network).is_err());
        let nothing = "incast ranks=2 per_s=0 p50_us=0 p99_us=0 counts=0\n";
        assert!(Sample::of_traffic(nothing, "incast", &network).is_err(), "no operation has ended");
        let latency = Sample::of_latency("latency bytes=8 us=5.0000\n", &network).unwrap();
        assert_eq!((latency.per_s, latency.p50_us, latency.p99_us), (200_000.0, 5.0, None));
    }
}
