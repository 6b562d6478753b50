//! Tests of settings: reading and writing all of them, rejected values, mailbox plans.

use super::list::*;
use super::plan::MailboxPlan;
use super::*;
use crate::job::Job;
use weir_link::shm::FileSystemSpace;
use weir_proto::{DataRegion, Growth};

fn with(variables: &[(&str, &str)]) -> Result<Settings, SettingError> {
    Settings::from_lookup(|wanted| {
        variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
    })
}

fn refusal(variable: &str, value: &str) -> String {
    with(&[(variable, value)]).unwrap_err().to_string()
}

#[test]
fn unset_settings_have_the_documented_defaults() {
    let settings = with(&[]).unwrap();
    assert_eq!(settings, Settings::default());
    // Settings of schemes other than the default one have no value.
    let of_others = [
        PIGGYBACK,
        ATTACH,
        PREPOSTED,
        RNR_TIMER_US,
        RNR_RETRIES,
        ECM_THRESHOLD,
        ADAPTIVE_START,
        ADAPTIVE_MAX,
        ADAPTIVE_GROWTH,
    ];
    let documented: Vec<_> = SETTINGS
        .iter()
        .filter(|s| !s.default.is_empty() && !of_others.contains(&s.variable))
        .map(|s| (s.variable, s.default.to_owned()))
        .collect();
    assert_eq!(settings.to_variables(), documented);
}

#[test]
fn an_empty_value_means_the_default() {
    let empty: Vec<_> = SETTINGS.iter().map(|setting| (setting.variable, "")).collect();
    assert_eq!(with(&empty).unwrap(), Settings::default());
}

#[test]
fn every_setting_is_read_and_written_back() {
    let here = std::env::temp_dir();
    let here = here.to_str().unwrap();
    let values = [
        (FLOW, ""),
        (PIGGYBACK, "0"),
        (MAILBOX_SLOTS, "16777216"),
        (SLOTS_PER_PEER, "1024"),
        (ATTACH, "start"),
        (CREDIT_SLOTS, "16"),
        (PREPOSTED, "65535"),
        (RNR_TIMER_US, "655360"),
        (RNR_RETRIES, "6"),
        (ECM_THRESHOLD, "20"),
        (ADAPTIVE_START, "2"),
        (ADAPTIVE_MAX, "300"),
        (ADAPTIVE_GROWTH, "linear:3"),
        (QUOTA_REST, "round"),
        (EAGER_BYTES, "1048576"),
        (FAR_EAGER_BYTES, "0"),
        (UNEXPECTED_BUDGET, "65536"),
        (ENVELOPE_BUDGET, "4096"),
        (BOUNCE_BYTES, "1099511627776"),
        (CROSS_MEMORY, "0"),
        (COLLECTIVES, "1"),
        (COLLECTIVES_ACROSS, "0"),
        (MAX_PEERS, "1"),
        (IDLE_BYTES, "0"),
        (SPIN, "1000000"),
        (SKIP_YIELDS, "0"),
        (SHORT_SLICE, "0"),
        (SLEEP_US, "100000"),
        (CLOSE_MS, "600000"),
        (LINGER_S, "86400"),
        (LINK, "shm,udp"),
        (NET, "10.0.0.0/8"),
        (PORTS, "20100-21100"),
        (SOCKET_BUFFER, "65536"),
        (CONNECTED_SOCKET, "0"),
        (PROTECTION, "off"),
        (PEER_TIMEOUT_S, "3600"),
        (ADMIT, "proxy,token"),
        (ADMIT_TOKENS, "65535"),
        (ADMIT_DELAY_NS, "1000000000"),
        (ADMIT_THRESHOLDS, "udp:2048:4:96,udp:65536:4:24,udp:65536:16:0,ofi:0:1:65535"),
        (ADMIT_SERVERS, "64"),
        (ADMIT_DRAIN, "1"),
        (SHM_DIR, here),
        (STATS, here),
        (TRACE, here),
        (STALL_MS, "3600000"),
    ];
    assert_eq!(
        values.map(|(variable, _)| variable).as_slice(),
        SETTINGS.iter().map(|s| s.variable).collect::<Vec<_>>()
    );
    let each_scheme_name_selects_its_scheme: [(&str, Scheme, &[&str]); 7] = [
        ("unlimited", Scheme::Unlimited, &[]),
        (
            "hardware",
            Scheme::Hardware { rnr_timer_ns: 655_360_000, rnr_retries: 6 },
            &[PREPOSTED, RNR_TIMER_US, RNR_RETRIES],
        ),
        ("static", Scheme::Static { piggyback: false }, &[PIGGYBACK]),
        (
            "static-connection",
            Scheme::StaticConnection { ecm_threshold: NonZeroU32::new(20) },
            &[PREPOSTED, ECM_THRESHOLD],
        ),
        (
            "adaptive",
            Scheme::AdaptiveBacklog {
                growth: Growth::Linear { slots: NonZeroU32::new(3).unwrap() },
                ecm_threshold: NonZeroU32::new(20),
            },
            &[ECM_THRESHOLD, ADAPTIVE_START, ADAPTIVE_MAX, ADAPTIVE_GROWTH],
        ),
        ("dynamic", Scheme::Dynamic { piggyback: false }, &[PIGGYBACK, SLOTS_PER_PEER, ATTACH]),
        ("demand", Scheme::Demand, &[SLOTS_PER_PEER]),
    ];
    let of_schemes: Vec<_> =
        each_scheme_name_selects_its_scheme.iter().flat_map(|(_, _, own)| *own).collect();
    for (flow, scheme, own) in each_scheme_name_selects_its_scheme {
        let mut given = values;
        given[0].1 = flow;
        let settings = with(&given).unwrap();
        assert_eq!(settings.scheme, scheme);
        assert_eq!(settings.stats_dir.as_deref(), Some(Path::new(here)));
        let used = |variable: &str| own.contains(&variable) || !of_schemes.contains(&&variable);
        let written: Vec<_> =
            given.iter().filter(|(variable, _)| used(variable)).map(|(v, w)| (*v, (*w).to_owned())).collect();
        assert_eq!(settings.to_variables(), written, "{flow}");
    }
}

#[test]
fn growth_is_linear_by_a_number_or_exponential() {
    for good in ["linear:1", "linear:65535", "exponential"] {
        assert_eq!(growth_of(good).map(growth_word).as_deref(), Some(good));
    }
    for bad in ["linear", "linear:", "linear:0", "linear:65536", "linear: 1", "Exponential", "2"] {
        assert_eq!(
            refusal(ADAPTIVE_GROWTH, bad),
            format!("FI_WEIR_ADAPTIVE_GROWTH={bad}: allowed are linear:1 to linear:65535, exponential")
        );
    }
}

#[test]
fn mechanisms_of_admission_that_an_endpoint_does_not_have_are_rejected() {
    for absent in ["token,proxy", "proxy,rate", "contact", "Token"] {
        let allowed =
            format!("FI_WEIR_ADMIT={absent}: allowed are off, rate, token, auto, proxy, proxy,token");
        assert_eq!(refusal(ADMIT, absent), allowed);
    }
    assert_eq!(refusal(ADMIT_TOKENS, "0"), "FI_WEIR_ADMIT_TOKENS=0: allowed are 1 to 65535");
    assert_eq!(refusal(ADMIT_SERVERS, "0"), "FI_WEIR_ADMIT_SERVERS=0: allowed are 1 to 64");
}

#[test]
fn a_proxy_has_a_gate_only_with_tokens() {
    for (word, has_proxy, has_gate) in
        [("token", false, true), ("proxy", true, false), ("proxy,token", true, true), ("auto", false, false)]
    {
        let settings = with(&[(ADMIT, word)]).unwrap();
        assert_eq!(settings.admission.has_proxy(), has_proxy, "{word}");
        assert_eq!(settings.send_gate(None, 8).is_some(), has_gate, "{word}");
        assert!(settings.send_proxy(None, Some(1)).is_none(), "without a node segment");
    }
}

#[test]
fn there_is_a_gate_only_if_thresholds_can_limit_a_message_over_this_link() {
    let has_gate = |given: &[(&str, &str)], ranks| with(given).unwrap().send_gate(None, ranks).is_some();
    let thresholds = (ADMIT_THRESHOLDS, "udp:2048:4:96,ofi:4096:2:7,ofi:4096:8:0");
    assert!(!has_gate(&[], 8) && !has_gate(&[(ADMIT, "auto")], 8), "no thresholds");
    assert!(has_gate(&[thresholds], 4) && has_gate(&[thresholds], 0), "0 ranks: not known");
    assert!(!has_gate(&[thresholds], 3), "fewer ranks than in any step");
    assert!(!has_gate(&[thresholds, (ADMIT, "off")], 8));
    assert!(has_gate(&[thresholds, (LINK, "shm,ofi:tcp")], 2) && !has_gate(&[thresholds, (LINK, "udp")], 2));
    assert!(!has_gate(&[(ADMIT_THRESHOLDS, "ofi:4096:1:7"), (LINK, "udp")], 8), "of another link");
    assert!(!has_gate(&[(ADMIT_THRESHOLDS, "udp:4096:1:0")], 8), "no tokens");
}

#[test]
fn thresholds_name_the_part_that_is_wrong() {
    for (value, wrong) in [
        ("udp", "udp: it has no colon"),
        ("udp:2048:4:96,", ": it has no colon"),
        ("udp:2048:4", "udp:2048:4: a number is missing"),
        ("udp:2048:4:96:1", "udp:2048:4:96:1: it has too many colons"),
        ("udp:2048:4:96,tcp:1:1:1", "tcp:1:1:1: LINK is tcp"),
        ("udp:2k:4:96", "udp:2k:4:96: BYTES is 2k"),
        ("udp:4294967296:4:96", "udp:4294967296:4:96: BYTES is 4294967296"),
        ("udp:2048:0:96", "udp:2048:0:96: RANKS is 0"),
        ("udp:2048:4097:96", "udp:2048:4097:96: RANKS is 4097"),
        ("ofi:2048:4:65536", "ofi:2048:4:65536: TOKENS is 65536"),
        ("ofi:2048:4:-1", "ofi:2048:4:-1: TOKENS is -1"),
        ("udp:1:2:3, udp:4:5:6", " udp:4:5:6: LINK is  udp"),
        ("ofi:1:2:3,udp:1:2:3,ofi:1:2:4", "ofi: two steps begin at 1 B and 2 ranks; allowed: one"),
    ] {
        let text = refusal(ADMIT_THRESHOLDS, value);
        let begin =
            format!("FI_WEIR_ADMIT_THRESHOLDS={value}: {wrong}; allowed are LINK:BYTES:RANKS:TOKENS, ");
        assert!(text.starts_with(&begin), "{text}");
    }
    let many = (0..65).map(|bytes| format!("udp:{bytes}:1:1")).collect::<Vec<_>>().join(",");
    assert!(refusal(ADMIT_THRESHOLDS, &many).contains(": udp: 65 steps; allowed: at most 64; "));
}

#[test]
fn contradicting_settings_are_rejected() {
    let refused = |variables: &[(&str, &str)]| with(variables).unwrap_err().to_string();
    assert_eq!(
        refused(&[(FLOW, "static-connection"), (PREPOSTED, "8"), (ECM_THRESHOLD, "9")]),
        "FI_WEIR_ECM_THRESHOLD=9: must be at most FI_WEIR_PREPOSTED=8"
    );
    assert_eq!(
        refused(&[(FLOW, "adaptive"), (ADAPTIVE_START, "9"), (ADAPTIVE_MAX, "8")]),
        "FI_WEIR_ADAPTIVE_START=9: must be at most FI_WEIR_ADAPTIVE_MAX=8"
    );
    assert!(
        with(&[(FLOW, "adaptive"), (ADAPTIVE_MAX, "2")]).is_ok(),
        "the default start is lowered to the maximum"
    );
}

#[test]
fn each_scheme_gets_its_lane_slots() {
    let plan = |variables: &[(&str, &str)], peers| {
        let MailboxPlan { base_slots, rest_lanes, start_slots, credit_slots, region } =
            with(variables).unwrap().quota(peers).unwrap();
        assert!(region == DataRegion::default() || region.start_slots == start_slots);
        [base_slots, rest_lanes, start_slots, credit_slots]
    };
    assert_eq!(plan(&[(FLOW, "hardware")], 4), [256, 0, 0, 0]);
    assert_eq!(plan(&[(FLOW, "hardware"), (PREPOSTED, "1"), (MAILBOX_SLOTS, "99")], 4), [1, 0, 0, 0]);
    assert_eq!(plan(&[(FLOW, "hardware"), (MAILBOX_SLOTS, "9")], 4), [2, 1, 0, 0]);
    assert_eq!(plan(&[(FLOW, "static-connection")], 4), [256, 0, 0, 2]);
    let connection = [(FLOW, "static-connection"), (PREPOSTED, "100"), (ECM_THRESHOLD, "10")];
    assert_eq!(plan(&connection, 4), [100, 0, 0, 10]);
    assert_eq!(plan(&[(FLOW, "static-connection"), (MAILBOX_SLOTS, "4")], 4), [1, 0, 0, 1]);
    // Half of 3 is 2, half of 4 is 2: the first lane's owner needs two slots for credit packets.
    assert_eq!(plan(&[(FLOW, "static-connection"), (MAILBOX_SLOTS, "13")], 4), [3, 1, 0, 2]);
    assert_eq!(plan(&[(FLOW, "adaptive")], 4), [256, 0, 4, 2]);
    assert_eq!(plan(&[(FLOW, "adaptive"), (ADAPTIVE_MAX, "64"), (ADAPTIVE_START, "1")], 4), [64, 0, 1, 2]);
    assert_eq!(plan(&[(FLOW, "adaptive"), (MAILBOX_SLOTS, "4")], 4), [1, 0, 1, 2]);
    assert_eq!(plan(&[(FLOW, "dynamic")], 4), [8192, 0, 256, 2]);
    assert_eq!(plan(&[(FLOW, "dynamic"), (MAILBOX_SLOTS, "80"), (ATTACH, "start")], 4), [80, 0, 2, 2]);
}

#[test]
fn each_scheme_name_selects_its_scheme() {
    assert_eq!(with(&[(FLOW, "unlimited")]).unwrap().scheme, Scheme::Unlimited);
    assert_eq!(with(&[(FLOW, "unlimited"), (PIGGYBACK, "1")]).unwrap().scheme, Scheme::Unlimited);
    assert_eq!(with(&[(FLOW, "static")]).unwrap().scheme, Scheme::Static { piggyback: true });
    assert_eq!(
        with(&[(FLOW, "dynamic"), (PIGGYBACK, "0")]).unwrap().scheme,
        Scheme::Dynamic { piggyback: false }
    );
    assert_eq!(
        refusal(FLOW, "fast"),
        "FI_WEIR_FLOW=fast: allowed are unlimited, hardware, static, static-connection, adaptive, dynamic, demand"
    );
    assert!(refusal(FLOW, "Static").starts_with("FI_WEIR_FLOW=Static: allowed are unlimited, "));
    assert_eq!(refusal(PIGGYBACK, "on"), "FI_WEIR_PIGGYBACK=on: allowed are 0, 1");
}

#[test]
fn numbers_outside_their_range_are_rejected() {
    let ranges: [(&str, u64, u64); 21] = [
        (MAILBOX_SLOTS, 0, 16_777_216),
        (SLOTS_PER_PEER, 1, 1024),
        (CREDIT_SLOTS, 1, 16),
        (PREPOSTED, 0, 65535),
        (RNR_TIMER_US, 1, 655_360),
        (RNR_RETRIES, 0, 7),
        (ECM_THRESHOLD, 0, 65535),
        (ADAPTIVE_START, 1, 65535),
        (ADAPTIVE_MAX, 0, 65535),
        (EAGER_BYTES, 0, 1_048_576),
        (FAR_EAGER_BYTES, 0, 1_048_576),
        (UNEXPECTED_BUDGET, 1 << 16, 1 << 40),
        (ENVELOPE_BUDGET, 0, 1 << 40),
        (BOUNCE_BYTES, 0, 1 << 40),
        (STALL_MS, 0, 3_600_000),
        (MAX_PEERS, 1, 4096),
        (IDLE_BYTES, 0, 4_294_967_295),
        (SPIN, 0, 1_000_000),
        (SLEEP_US, 0, 100_000),
        (CLOSE_MS, 0, 600_000),
        (LINGER_S, 0, 86_400),
    ];
    for (variable, least, most) in ranges {
        for inside in [least, most] {
            with(&[(variable, &inside.to_string())]).unwrap_or_else(|error| panic!("{error}"));
        }
        let allowed = SETTINGS.iter().find(|s| s.variable == variable).unwrap().allowed;
        assert!(allowed.contains(&most.to_string()), "{variable}: {allowed}");
        for outside in ["-1", &(most + 1).to_string(), "18446744073709551616"] {
            assert_eq!(refusal(variable, outside), format!("{variable}={outside}: allowed are {allowed}"));
        }
        for word in ["1e3", "8k", "1M", " 1", "0x10", "NaN"] {
            let advice = "as a number alone, without a unit";
            assert_eq!(
                refusal(variable, word),
                format!("{variable}={word}: allowed are {allowed}, {advice}")
            );
        }
        if least > 0 {
            assert!(with(&[(variable, "0")]).is_err());
        }
    }
}

#[test]
fn a_missing_directory_is_rejected() {
    let advice = "is not an existing directory; create it or name another";
    assert_eq!(refusal(SHM_DIR, "/no/such"), format!("FI_WEIR_SHM_DIR=/no/such: {advice}"));
    assert_eq!(refusal(STATS, "/proc/version"), format!("FI_WEIR_STATS=/proc/version: {advice}"));
}

#[test]
fn misspelled_names_are_rejected() {
    let check = |name: &str| check_names([String::from("PATH"), name.to_owned()]).map_err(|e| e.to_string());
    assert_eq!(check("FI_WEIR_FLOW"), Ok(()));
    assert_eq!(check("FI_PROVIDER"), Ok(()));
    for (wrong, nearest) in [
        ("FI_WEIR_FLOWS", FLOW),
        ("FI_WEIR_MAILBOX_SLOT", MAILBOX_SLOTS),
        ("FI_WEIR_mailbox_slots", MAILBOX_SLOTS),
        ("FI_WEIR_CREDITS", CREDIT_SLOTS),
        ("FI_WEIR_EAGER", EAGER_BYTES),
    ] {
        let error = check(wrong).unwrap_err();
        assert!(
            error.starts_with(&format!(
                "{wrong}: no such setting; did you mean {nearest}? Known are FI_WEIR_FLOW, "
            )),
            "{error}"
        );
        assert!(!error.contains('\n'));
    }
}

#[test]
fn a_former_name_is_rejected_with_the_name_that_replaces_it() {
    let error = check_names([String::from("FI_WEIR_RETAIN_BYTES")]).unwrap_err();
    assert_eq!(error.variable(), "FI_WEIR_RETAIN_BYTES");
    assert_eq!(
        error.to_string(),
        "FI_WEIR_RETAIN_BYTES: this setting is called FI_WEIR_BOUNCE_BYTES now; set FI_WEIR_BOUNCE_BYTES instead"
    );
}

fn static_credits() -> Settings {
    Settings { scheme: Scheme::Static { piggyback: true }, ..Settings::default() }
}

#[test]
fn the_default_mailbox_of_static_credits_grows_with_the_ranks() {
    let region = DataRegion::default();
    let plan = MailboxPlan { base_slots: 256, rest_lanes: 0, start_slots: 0, credit_slots: 2, region };
    for peers in [0, 1, 8, 4096] {
        assert_eq!(static_credits().quota(peers), Ok(plan));
    }
}

#[test]
fn the_shared_region_grows_with_the_ranks_within_its_bounds() {
    let region = |peers| Settings::default().quota(peers).unwrap().region;
    let figures = |peers| (region(peers).slots, region(peers).start_slots);
    assert_eq!([0, 2].map(figures), [(4096, 256), (16_384, 256)]);
    assert_eq!([8, 64, 100].map(|peers| figures(peers).0), [65_536; 3]);
    assert_eq!([16, 32].map(figures), [(32_768, 256); 2]);
    // The reservation of one message for each sender leaves less for the region.
    assert_eq!([600, 870].map(figures), [(28_226, 11), (13_920, 4)]);
    assert_eq!([1024, 4096].map(figures), [(16_384, 4), (65_536, 4)]);
    let small_budget = Settings { unexpected_budget_bytes: 2 << 20, ..Settings::default() };
    let least_budget = Settings { unexpected_budget_bytes: 1 << 16, ..Settings::default() };
    assert_eq!(
        [small_budget, least_budget].map(|settings| settings.quota(8).unwrap().region.slots),
        [8192, 4096]
    );
    let wide = Settings { slots_per_peer: 64, ..Settings::default() };
    assert_eq!(wide.quota(4096).unwrap().region.slots, 262_144);
    for peers in 1..=4096 {
        let MailboxPlan { base_slots, region, .. } = Settings::default().quota(peers).unwrap();
        assert!(region.start_slots * peers <= region.slots / 4, "{region:?}");
        assert!(region.start_slots <= base_slots && base_slots <= region.slots, "{region:?}");
    }
}

#[test]
fn lanes_of_a_small_job_fill_32_mib_or_an_eighth_of_the_file_system() {
    let lane = |peers| Settings::default().quota(peers).unwrap().base_slots;
    assert_eq!([0, 1, 2, 8].map(lane), [1024, 8192, 8192, 8192]);
    assert_eq!([9, 16, 22, 23, 4096].map(lane), [6472, 2048, 1083, 1024, 1024]);
    for peers in 1..=22 {
        assert!(lane(peers) * peers * peers * 64 <= 32 << 20, "{peers}");
    }
    // In a Docker container with its default /dev/shm: other jobs and spawned ranks have room too.
    let little = |peers| Settings::default().quota_within(peers, 64 << 20).unwrap().base_slots;
    assert_eq!([0, 2, 4, 8, 12, 4096].map(little), [1024, 8192, 8192, 2048, 1024, 1024]);
    let budget = |mib: u64| Settings { unexpected_budget_bytes: mib << 20, ..Settings::default() };
    assert_eq!([1, 2, 4, 64].map(|mib| budget(mib).quota(4).unwrap().base_slots), [1024, 2048, 4096, 8192]);
    let small = Settings { mailbox_slots: 300, ..Settings::default() };
    assert_eq!(small.quota(2).unwrap().base_slots, 300, "no lane is longer than the region");
}

#[test]
fn mailboxes_are_in_the_directory_while_all_lanes_of_the_job_fit_into_half_of_its_free_space() {
    let place = |ranks, mib: u64, unlimited| {
        let space = FileSystemSpace { size_bytes: mib << 20, free_bytes: mib << 20 };
        let (plan, place) = Settings::default().placed(ranks, Some(space), || unlimited).unwrap();
        (place.in_memory, plan.base_slots, place.reserved_lanes)
    };
    let default_slots = |ranks| Settings::default().quota(ranks).unwrap().base_slots;
    for unlimited in [true, false] {
        assert_eq!(place(8, 1024, unlimited), (false, default_slots(8), 1));
        assert_eq!(place(32, 256, unlimited), (false, 1024, 1));
    }
    // Docker's default, and less.
    for (ranks, mib) in [(32, 64), (64, 64), (8, 8)] {
        assert_eq!(place(ranks, mib, true), (true, default_slots(ranks), 1), "{ranks} ranks, {mib} MiB");
    }
    assert_eq!(
        [(32, 64), (64, 64), (8, 8)].map(|(ranks, mib)| place(ranks, mib, false)),
        [(false, 440, 32), (false, 56, 64), (false, 952, 8)]
    );
    assert_eq!(place(64, 8, false), (false, 56, 14), "senders take turns on the lanes that fit");
    assert_eq!(place(64, 0, false), (false, 56, 1));
    let space = FileSystemSpace { size_bytes: 2 << 20, free_bytes: 2 << 20 };
    let (_, place) = Settings::default().placed(4, Some(space), || true).unwrap();
    assert!(place.in_memory && place.needed_bytes > 2 << 20, "{place:?}");
    let enough = FileSystemSpace { size_bytes: 2 << 20, free_bytes: place.needed_bytes };
    assert!(!Settings::default().placed(4, Some(enough), || true).unwrap().1.in_memory);
    let unknown = Settings::default().placed(8, None, || false).unwrap();
    assert_eq!(unknown.0, Settings::default().quota(8).unwrap());
}

#[test]
fn every_scheme_has_lanes_that_fit_a_small_directory_or_takes_turns() {
    let space = FileSystemSpace { size_bytes: 16 << 20, free_bytes: 16 << 20 };
    for flow in ["unlimited", "hardware", "static", "static-connection", "adaptive", "dynamic", "demand"] {
        let settings = with(&[(FLOW, flow)]).unwrap();
        let (plan, place) = settings.placed(32, Some(space), || false).unwrap();
        let lane_bytes = weir_link::shm::lane_bytes(plan.base_slots, plan.credit_slots);
        let reserved_bytes = u64::from(place.reserved_lanes) * lane_bytes;
        assert!(place.reserved_lanes >= 1 && plan.start_slots <= plan.base_slots, "{flow}: {plan:?}");
        assert!(32 * reserved_bytes <= 8 << 20, "{flow}: {place:?}");
    }
    let unlimited = with(&[(FLOW, "unlimited")]).unwrap();
    assert_eq!(unlimited.placed(8, None, || false).unwrap().0.base_slots, 1024);
}

#[test]
fn with_attach_start_all_senders_get_equal_quotas() {
    let settings = Settings { attach: AttachPolicy::Start, mailbox_slots: 120, ..Settings::default() };
    let plan = settings.quota(8).unwrap();
    assert_eq!((plan.base_slots, plan.region.slots, plan.region.start_slots), (120, 120, 2));
    assert_eq!(plan.region.attach_policy, AttachPolicy::Start);
    assert!(settings.quota(61).is_err()); // two guaranteed slots each
}

#[test]
fn a_set_mailbox_size_is_divided_among_the_ranks() {
    let settings = Settings { mailbox_slots: 38, ..static_credits() };
    let region = DataRegion::default();
    let plan = |base_slots, rest_lanes| {
        Ok(MailboxPlan { base_slots, rest_lanes, start_slots: 0, credit_slots: 2, region })
    };
    assert_eq!(settings.quota(0), plan(38, 0));
    assert_eq!(settings.quota(8), plan(4, 6));
    assert_eq!(settings.quota(19), plan(2, 0));
    let round = Settings { quota_rest: QuotaRest::Round, ..settings };
    assert_eq!(round.quota(8), plan(4, 0));
}

#[test]
fn a_mailbox_too_small_for_the_ranks_is_rejected() {
    for scheme in [Scheme::Static { piggyback: true }, Scheme::Dynamic { piggyback: true }] {
        let settings = Settings { mailbox_slots: 10, scheme, ..Settings::default() };
        assert_eq!(
            settings.quota(8).unwrap_err().to_string(),
            "FI_WEIR_MAILBOX_SLOTS=10: 8 ranks with 2 credit slots each need at least 16"
        );
        assert!(settings.quota(5).is_ok());
        assert!(settings.quota(6).is_err());
    }
    let unlimited = Settings { mailbox_slots: 10, scheme: Scheme::Unlimited, ..Settings::default() };
    assert!(unlimited.quota(10).is_ok());
    assert_eq!(
        unlimited.quota(11).unwrap_err().to_string(),
        "FI_WEIR_MAILBOX_SLOTS=10: 11 ranks need at least 11"
    );
}

#[test]
fn a_sender_gets_no_more_slots_than_a_lane_can_have() {
    let settings = Settings { mailbox_slots: 1 << 24, ..static_credits() };
    let refused = settings.quota(2).map_err(|error| error.to_string());
    let text = "FI_WEIR_MAILBOX_SLOTS=16777216: 2 ranks can have at most 2097146, 1048576 slots each";
    assert_eq!(refused, Err(text.into()));
    assert!(settings.quota(32).is_ok());
}

#[test]
fn more_ranks_than_lanes_are_planned_as_one_per_lane() {
    let scheme = Scheme::Static { piggyback: true };
    let settings = Settings { scheme, max_peers: 4, mailbox_slots: 100, ..Settings::default() };
    assert_eq!(settings.quota(8), settings.quota(4));
    assert_eq!(settings.quota(8).unwrap().base_slots, 25);
}

#[test]
fn messages_to_other_nodes_are_longer_if_the_budget_has_room_for_one_of_each_rank() {
    let limits = |settings: &Settings, ranks: u32, has_network: bool| {
        let mut job = Job::from(ranks);
        job.has_network = has_network;
        let settings = settings.among(&job);
        (settings.eager_bytes, settings.readable_eager_bytes.min(settings.eager_bytes))
    };
    let default = Settings::default();
    let most = (default.unexpected_budget_bytes / 4 / weir_proto::unexpected_cost_bytes(65536)) as u32;
    for (ranks, has_network, expected) in [
        (2, true, (65536, 16384)),
        (most, true, (65536, 16384)),
        (most + 1, true, (16384, 16384)),
        (0, true, (16384, 16384)),
        (2, false, (16384, 16384)),
    ] {
        assert_eq!(limits(&default, ranks, has_network), expected, "{ranks} ranks, network {has_network}");
    }
    let shorter = with(&[(FAR_EAGER_BYTES, "1000")]).expect("allowed");
    assert_eq!(limits(&shorter, 2, true), (16384, 16384));
    let both = with(&[(EAGER_BYTES, "100"), (FAR_EAGER_BYTES, "1000")]).expect("allowed");
    assert_eq!(limits(&both, 2, true), (1000, 100));
}

#[test]
fn parameter_names_are_lower_case_without_the_prefix() {
    assert_eq!(SETTINGS[2].parameter(), "mailbox_slots");
}

#[test]
fn the_choice_of_links_decides_whether_there_is_a_network() {
    for (word, inside_a_node, across_nodes) in
        [("auto", false, true), ("shm", false, false), ("udp", true, true), ("ofi:tcp", true, true)]
    {
        let links = with(&[(LINK, word)]).expect("allowed").links;
        assert_eq!(
            (links.has_network(false), links.has_network(true)),
            (inside_a_node, across_nodes),
            "{word}"
        );
    }
    for (word, provider, is_network_alone) in [
        ("udp", None, true),
        ("shm,udp", None, false),
        ("ofi:tcp", Some("tcp"), true),
        ("shm,ofi:verbs;ofi_rxm", Some("verbs;ofi_rxm"), false),
    ] {
        let settings = with(&[(LINK, word)]).expect("allowed");
        let links = &settings.links;
        assert_eq!((links.core_provider(), links.is_network_alone()), (provider, is_network_alone), "{word}");
        let layers = provider.filter(|provider| provider.contains(';')).map(|_| "verbs,ofi_rxm");
        assert_eq!(links.core_layers().as_deref(), layers, "{word}");
        assert!(settings.to_variables().contains(&(LINK, word.to_owned())), "{word}");
    }
    let wrong = [
        "tcp",
        "udp,shm",
        "SHM",
        "shm,",
        "ofi",
        "ofi:",
        "ofi:weir",
        "ofi:WEIR",
        "ofi:tcp;ofi_weir",
        "ofi:weir;ofi_rxm",
        "ofi:tcp,udp",
        "ofi:^tcp",
        "ofi:tcp;",
        "ofi:;ofi_rxm",
        "ofi:tcp,shm",
        "shm,ofi:",
        "udp,ofi:tcp",
        "ofi:t cp",
    ];
    for word in wrong {
        let allowed = "auto, shm, udp, shm,udp, ofi:NAME, shm,ofi:NAME, where NAME is a core provider of libfabric other than \
                       weir";
        assert_eq!(refusal(LINK, word), format!("FI_WEIR_LINK={word}: allowed are {allowed}"));
    }
    for ports in ["20100", "0-5", "9-8", "1-65536", "a-b", "1-2-3"] {
        assert!(
            refusal(PORTS, ports).starts_with(&format!("FI_WEIR_PORTS={ports}: allowed are two numbers"))
        );
    }
    assert_eq!(with(&[(PORTS, "7-7")]).expect("allowed").ports, Some(7..=7));
}
