//! Tests of the page of `weir run --report`: it is well formed and self-contained, shows the numbers of the counters,
//! and stays small with many ranks.

use super::timeline::tests::{sample, trace};
use super::*;
use crate::report::tests::endpoint;
use std::collections::BTreeMap;
use weir_engine::NetworkReport;
use weir_engine::stats::Reports;
use weir_engine::trace::{PairSample, Sample};
use weir_proto::Counters;

/// A job of `ranks` ranks in which each rank sends to `peers` others, and the last rank receives slowly.
fn job(ranks: u64, peers: u64) -> (Vec<EndpointReport>, Vec<Trace>) {
    let slow = ranks - 1;
    let steps = if ranks > 64 { 25 } else { 100 };
    let endpoints: Vec<_> = (0..ranks)
        .map(|rank| {
            let counters = Counters {
                packets_sent: 1000 + 10 * rank,
                credit_packets_sent: 100 + rank,
                more_packets_sent: 300,
                finished_packets_sent: 50,
                ..endpoint(rank, true, 100, 3).counters
            };
            EndpointReport { identity: 1000 + rank, counters, ..endpoint(rank, true, 100, 3) }
        })
        .collect();
    let pair = |rank: u64, peer: u64, step: u64| {
        let to_slow = peer == slow;
        let phase = (step * 7 + rank * 13 + peer * 29) % 64;
        PairSample {
            credits: Some(if to_slow { (phase as u32) / 16 } else { 256 - phase as u32 }),
            spent_total: Some((step * 100) as u32),
            current: Some(200 + phase as u32 / 2),
            stalled_ns: if to_slow { step * 2_000_000 } else { step * phase * 1000 },
            ..PairSample::default()
        }
    };
    let traces = (0..ranks).map(|rank| {
        let near: Vec<u64> = (1..=peers).map(|distance| (rank + distance) % ranks).collect();
        let samples: Vec<Sample> = (0..steps)
            .map(|step| step * 100 / steps)
            .map(|step| {
                let pairs: BTreeMap<u32, PairSample> =
                    near.iter().map(|&peer| (peer as u32, pair(rank, peer, step))).collect();
                let mut sample = sample(step * 5, 0, &[]);
                sample.counters.stalled_ns = pairs.values().map(|pair| pair.stalled_ns).sum();
                sample.gauges.mailbox_bytes = 16_896 * peers;
                sample.gauges.process_bytes = (20 << 20) + (step << 17) * (rank % 5);
                sample.gauges.unexpected_messages =
                    if rank == slow { step * 40 } else { phase_of(step, rank) };
                sample.gauges.unexpected_bytes = sample.gauges.unexpected_messages * 2048;
                sample.gauges.peer_state_bytes = 400 * peers;
                sample.pairs = pairs;
                sample
            })
            .collect();
        let known: Vec<_> = near.iter().map(|&peer| (peer as u32, 1000 + peer)).collect();
        trace(rank, samples, &known)
    });
    (endpoints, traces.collect())
}

fn phase_of(step: u64, rank: u64) -> u64 {
    (step * 3 + rank * 5) % 11
}

fn page(ranks: u64, peers: u64) -> String {
    page_with(ranks, peers, |_| None)
}

/// The page of a job whose ranks have done this over networks.
fn page_with(ranks: u64, peers: u64, network: impl Fn(u64) -> Option<NetworkReport>) -> String {
    let (mut endpoints, mut traces) = job(ranks, peers);
    for trace in traces.iter_mut().filter(|_| network(0).is_some_and(|network| network.open_paths > 0)) {
        let pairs = trace.samples.iter_mut().flat_map(|sample| &mut sample.pairs);
        pairs.for_each(|(peer, pair)| (pair.round_trip_us, pair.sent_again) = (20 * (peer + 1), 4));
    }
    for (endpoint, rank) in endpoints.iter_mut().zip(0..) {
        endpoint.network = network(rank);
    }
    let summary = Job::new(&Reports { endpoints: endpoints.clone(), skipped: vec![] });
    render(Content {
        command: &["./flood".into(), "<b>&".into()],
        summary: "a synthetic job",
        settings: vec![("FI_WEIR_FLOW".into(), "static".into())],
        warnings: &[String::from("rank 1 ended without closing the endpoint")],
        job: &summary,
        endpoints: &endpoints,
        traces,
    })
}

fn figures_in(page: &str) -> Vec<&str> {
    let ends = page.match_indices("</svg>").map(|(end, _)| end + "</svg>".len());
    page.match_indices("<svg").zip(ends).map(|((start, _), end)| &page[start..end]).collect()
}

fn data_in(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"weir-data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_page_is_well_formed_and_self_contained_with_all_figures() {
    for (ranks, peers, figures) in
        [(2, 1, 1 + 2 * 2 + 5 + 3), (8, 7, 2 + 8 * 2 + 5 + 3), (40, 39, 2 + 16 * 4 + 5 + 3)]
    {
        let page = page(ranks, peers);
        let found = figures_in(&page);
        assert_eq!(found.len(), figures, "{ranks} ranks");
        for svg in &found {
            let parsed = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
            assert_eq!(parsed.root_element().tag_name().name(), "svg");
        }
        for heading in [
            "Who waits for credit",
            "Credits per peer over time",
            "Memory of each rank",
            "Collective operations",
            "Packets by kind",
            "Ranks",
        ] {
            assert!(page.contains(heading), "{heading}");
        }
        // The page refers to no other file; SVG's namespace is a name, not a reference.
        let without_names = page.replace("http://www.w3.org/2000/svg", "");
        for reference in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!without_names.contains(reference), "{reference}");
        }
        for tag in ["div", "figure", "table", "details", "p", "select"] {
            let opened =
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert!(page.contains("<h1>weir: ./flood &lt;b&gt;&amp;</h1>"));
        assert!(page.contains("rank 1 ended without closing"));
    }
}

/// What a rank has done over a network on which it lost little.
fn network(rank: u64) -> NetworkReport {
    NetworkReport {
        open_paths: 3,
        least_round_trip_ns: 12_000,
        greatest_round_trip_ns: 80_000 + 1000 * rank,
        datagrams_sent: 4321,
        sent_again: 9,
        sent_needlessly: 2,
        dropped_repeated: 2,
        dropped_forged: 5,
        ..NetworkReport::default()
    }
}

fn cells_in(page: &str) -> String {
    page.replace("</td><td>", "|").replace('\u{a0}', " ")
}

#[test]
fn the_network_has_a_section_with_round_trips_bundles_sent_again_and_drops_of_each_rank() {
    let (inside, page) = (page(2, 1), page_with(2, 1, |rank| Some(network(rank))));
    assert!(!inside.contains("<h2>Network</h2>") && page.contains("<h2>Network</h2>"));
    assert!(!page.contains("<h2>Admission</h2>"), "nothing was held back");
    assert_eq!(figures_in(&page).len(), figures_in(&inside).len() + 3);
    let cells = cells_in(&page);
    let row = "<td>1|3|12.0 us .. 81.0 us|4,321|0 B|0|9|2|0|0|7</td>";
    assert!(cells.contains(row), "{cells}");
    assert!(
        page.contains("18 bundles were sent again (4 needlessly)") && page.contains("4 repeated, 10 forged")
    );
    for part in ["in us.", "</i>lost, as far as is known", "</i>forged", "</i>the shortest path"] {
        assert!(page.contains(part), "{part}");
    }
    let path = "<td>1|0|20.0 us|4|10</td>".replace("|10<", "|9,900<");
    assert!(cells.contains(&path), "{cells}");
    let three = page_with(3, 2, |rank| Some(network(rank)));
    for map in
        ["Smoothed round trip of each path, by sender (row)", "Bundles that each sender (row) sent again"]
    {
        assert!(three.contains(map) && !page.contains(map), "{map}");
    }
    assert_eq!(data_in(&three)["pairs"][0]["sent_again"], 4);
    let quiet = page_with(2, 1, |_| Some(NetworkReport { datagrams_sent: 7, ..NetworkReport::default() }));
    assert_eq!(figures_in(&quiet).len(), figures_in(&inside).len(), "no figure without a mark");
    assert!(quiet.contains("dropped: none.") && cells_in(&quiet).contains("|unknown|7|"));
}

#[test]
fn admission_has_a_section_with_waits_and_the_share_of_each_server() {
    let held = |rank: u64| NetworkReport {
        gate_tokens: 24,
        gate_waits: 1200,
        gate_waited_ns: 2_000_000 * rank,
        gate_most_held: 64,
        proxy_queued: 200,
        proxy_sent_for_others: 100 * rank,
        proxy_without_room: 3,
        ..network(rank)
    };
    let page = page_with(2, 1, |rank| Some(held(rank)));
    assert_eq!(figures_in(&page).len(), figures_in(&page_with(2, 1, |rank| Some(network(rank)))).len() + 2);
    let cells = cells_in(&page);
    assert!(cells.contains("<td>1|24|1,200|2.00 ms|64|200|100|25 %|3</td>"), "{cells}");
    for line in [
        "<h2>Admission</h2>",
        "admission: 24 tokens; packets waited 2,400 times, 2.00 ms in all",
        "(25 %) were sent by",
    ] {
        assert!(page.contains(line), "{line}");
    }
    let many = page_with(40, 3, |rank| Some(held(rank)));
    assert_eq!(many.matches("<summary>40 ranks</summary>").count(), 3, "long tables are folded");
}

#[test]
fn the_page_data_equal_the_counters() {
    let data = data_in(&page(8, 7));
    assert_eq!(data["schema"], "weir-page-1");
    assert_eq!(data["job"]["ranks"][3]["counters"]["packets_sent"], 1030);
    let kinds = &data["endpoints"][3]["packets_by_kind"];
    assert_eq!(
        (&kinds["eager"], &kinds["credit"], &kinds["more"]),
        (&json!(1030 - 103 - 350), &json!(103), &json!(300))
    );
    assert_eq!(data["pairs_in_all"], 56);
    // All ranks wait longest for the slow one.
    assert_eq!(
        (&data["pairs"][0]["receiver"], &data["pairs"][0]["stalled_ns"]),
        (&json!("7"), &json!(198_000_000))
    );
    assert_eq!(data["times_s"].as_array().unwrap().len(), 240);
}

/// `WEIR_PAGES=DIR` writes the pages into DIR, to look at them.
#[test]
fn pages_of_few_ranks_and_of_256_in_contact_stay_small() {
    for (ranks, peers, most_bytes) in [(2, 1, 1 << 20), (8, 7, 2 << 20), (256, 255, 12 << 20)] {
        let page = page(ranks, peers);
        if let Some(directory) = std::env::var_os("WEIR_PAGES") {
            std::fs::write(std::path::Path::new(&directory).join(format!("{ranks}.html")), &page).unwrap();
        }
        assert!(page.len() < most_bytes, "{ranks} ranks: {} bytes", page.len());
        let listed = data_in(&page)["pairs"].as_array().unwrap().len();
        assert_eq!(listed, MAX_PAIRS.min((ranks * peers) as usize));
    }
}

#[test]
fn a_run_without_endpoints_has_a_page_too() {
    let page = render(Content {
        command: &["true".into()],
        summary: "",
        settings: vec![],
        warnings: &[],
        job: &Job::new(&Reports::default()),
        endpoints: &[],
        traces: vec![],
    });
    assert!(!page.contains("Collective operations"));
    assert!(page.contains("No endpoint has a trace") && page.ends_with("</html>\n"));
}

#[test]
fn the_band_of_many_series_has_their_median_and_leaves_out_unknown_values() {
    let series = [vec![4.0, f64::NAN], vec![1.0, f64::NAN], vec![f64::NAN, f64::NAN], vec![2.0, f64::NAN]];
    let even = [vec![1.0], vec![2.0], vec![4.0], vec![9.0]];
    let of_bin = |series: &[Series], bin: usize| spread(&series.iter().collect::<Vec<_>>()).map(|it| it[bin]);
    assert_eq!(of_bin(&series, 0), [1.0, 2.0, 4.0]);
    assert!(of_bin(&series, 1).iter().all(|value| value.is_nan()));
    assert_eq!(of_bin(&even, 0), [1.0, 3.0, 9.0], "the mean of the two in the middle");
}
