//! Tests of the plan of `weir tune --network`, and of what is measured again.

use super::choice::tests::sample;
use super::*;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    options: NetworkTuningOptions,
}

fn options(words: &str) -> NetworkTuningOptions {
    Command::try_parse_from(std::iter::once("tune").chain(words.split(' '))).unwrap().options
}

#[test]
fn a_plan_fits_into_four_minutes_and_a_quick_one_into_a_minute() {
    let plan = |words: &str| options(words).plan(None, None).unwrap();
    let (whole, quick) = (plan("--network"), plan("--network --quick"));
    assert!(whole.expected_s() < 240.0, "{} s", whole.expected_s());
    assert!(quick.expected_s() < 40.0, "{} s", quick.expected_s());
    assert_eq!((whole.jobs(), quick.jobs()), (2 * 3 * 2 * 5 * 3, 2 * 2 * 4 * 2));
    assert_eq!((whole.sweep_jobs(), quick.sweep_jobs()), (2 * 3 * 4, 2 * 3));
    let chosen =
        options("--network --sizes 8192,4096 --per-host 3 --tokens 9,5").plan(Some(7), None).unwrap();
    assert_eq!(chosen.points, [4096, 8192].map(|bytes| Point { bytes, ranks: 3 }));
    assert_eq!(chosen.candidates(chosen.points[0]), [None, Some(5), Some(9)]);
    assert_eq!((chosen.rounds, chosen.jobs()), (7, 2 * 2 * 3 * 7), "numbers that are given stay as they are");
    let many = (1..=33).map(|ranks| ranks.to_string()).collect::<Vec<_>>().join(",");
    let refusal = options(&format!("--network --per-host {many}")).plan(None, None).err().unwrap();
    assert_eq!(refusal.to_string(), "--sizes and --per-host: 66 combinations; allowed: at most 64");
}

#[test]
fn a_plan_has_no_more_ranks_than_the_hosts_of_the_file_take() {
    let ranks = |words: &str, slots| {
        let plan = options(words).plan(None, Some(slots))?;
        let ranks: std::collections::BTreeSet<u32> = plan.points.iter().map(|point| point.ranks).collect();
        Ok(ranks.into_iter().collect::<Vec<_>>())
    };
    let found = |words, slots| ranks(words, slots).map_err(|failure: Failure| failure.to_string());
    assert_eq!(found("--network", 3), Ok(vec![2, 3]));
    assert_eq!(found("--network --per-host 4", 4), Ok(vec![4]));
    let refused = "--per-host 5: a host of the file takes less; allowed: 1 to 4";
    assert_eq!(found("--network --per-host 1,5", 4), Err(refused.to_owned()));
}

#[test]
fn hosts_are_at_least_two_and_their_ports_are_their_own() {
    assert!(Command::try_parse_from(["tune", "--network", "--hosts", "f", "--port-rate", "9"]).is_err());
    assert!(Command::try_parse_from(["tune", "--network", "--remote-shell", "rsh"]).is_err());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "127.0.0.1:4\n").unwrap();
    let hosts = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        let hosts = options(&format!("--network --hosts {}", file.path().display())).hosts();
        hosts.map(|hosts| hosts.map(|hosts| hosts.names().count())).map_err(|failure| failure.to_string())
    };
    assert_eq!(hosts("127.0.0.1\n127.0.0.2:4\n"), Ok(Some(2)));
    assert!(hosts("127.0.0.1:4\n").unwrap_err().ends_with(": one host; allowed: at least two"));
    assert_eq!(options("--network").hosts().unwrap(), None);
}

#[test]
fn messages_below_2_kib_and_unknown_links_are_refused() {
    assert!(Command::try_parse_from(["tune", "--network", "--sizes", "2047"]).is_err());
    assert!(Command::try_parse_from(["tune", "--quick"]).is_err(), "only with --network");
    let link = |link: &str| options(&format!("--network --link {link}")).threshold_link();
    assert_eq!(link("udp").unwrap(), ThresholdLink::Udp);
    assert_eq!(link("ofi:tcp").unwrap(), ThresholdLink::Ofi);
    assert_eq!(link("tcp").unwrap_err().to_string(), "--link tcp: allowed are udp, ofi:NAME");
    assert!(link("ofi:").is_err());
}

#[test]
fn what_is_measured_are_the_settings_of_a_user() {
    let point = Point { bytes: 4096, ranks: 3 };
    let [admit, (variable, value)] = &variables(ThresholdLink::Ofi, point, Some(7))[..] else {
        panic!("two settings")
    };
    assert_eq!(admit, &(ADMIT, String::from("auto")));
    assert_eq!((*variable, value.as_str()), (THRESHOLDS, "ofi:4096:1:7"));
    assert!(value.parse::<Thresholds>().is_ok());
}

#[test]
fn a_number_of_tokens_that_fails_or_falls_far_behind_is_not_measured_again() {
    let point = Point { bytes: 2048, ranks: 2 };
    let mut measured = Measured::default();
    for (tokens, per_s) in [(None, 100.0), (Some(8), 70.0), (Some(24), 97.0)] {
        measured.add((point, Traffic::Random, tokens), Ok(sample(per_s, 10.0, 0)));
    }
    measured.add((point, Traffic::Incast, Some(64)), Err(String::from("timed out after 3 s")));
    let worth = [None, Some(8), Some(24), Some(64)].map(|tokens| measured.is_worth_it(point, tokens));
    assert_eq!(worth, [true, false, true, false]);
    let plan = options("--network --sizes 2048 --per-host 2 --tokens 8,24,64").plan(None, None).unwrap();
    let tokens: Vec<_> = measured.comparisons(&plan).iter().map(|one| one.tokens).collect();
    assert_eq!(tokens, [8, 24], "both are in the table, and the one that failed is not");
    assert_eq!(choice::best(&measured.comparisons(&plan), point), None, "far behind, and as off");
    assert!(measured.is_worth_it(Point { ranks: 3, ..point }, Some(8)), "another point");
}

#[test]
fn the_number_beyond_which_operations_fall_is_tried_too() {
    let of = |ranks, outstanding, per_s| {
        Unlimited::of(Point { bytes: 2048, ranks }, outstanding, &sample(per_s, 10.0, 0))
    };
    let sweep = [of(2, 1, 50.0), of(2, 16, 90.0), of(2, 64, 60.0), of(4, 1, 50.0), of(4, 16, 60.0)];
    let thresholds = unlimited::thresholds(&sweep);
    let tried = |words: &str| {
        let mut plan = options(words).plan(None, None).unwrap();
        let most = plan.jobs();
        plan.add_tokens(&thresholds);
        assert!(plan.jobs() <= most, "{} jobs, {most} were announced", plan.jobs());
        [2, 4].map(|ranks| plan.tokens[&Point { bytes: 2048, ranks }].clone())
    };
    assert_eq!(tried("--network --sizes 2048 --per-host 2,4"), [vec![8, 24, 32, 64], vec![16, 48, 128]]);
    assert_eq!(tried("--network --sizes 2048 --per-host 2,4 --tokens 5"), [[5], [5]]);
}
