//! Every wrong rule of flow control ([`Mutant`]) is detected by a search, or by a test that this file names, or is exempt
//! for a reason. docs/explanation/proof.md says the same.

use std::path::Path;

use weir_proto::flow::Mutant;
use weir_prove::model::Rule;
use weir_prove::suite;

/// What is known of a mutant that no search has to detect.
enum Elsewhere {
    /// A test of this name in this file of `crates` detects it.
    Test { file: &'static str, name: &'static str },
    /// It violates no invariant.
    Exempt { reason: &'static str, shown_by: &'static str, file: &'static str },
}

const WORLDS: &str = "sim/tests/simulator/faults.rs";
const INJECTED: &str = "injected_bugs_are_found_with_a_repeat_command";

const ELSEWHERE: [(Mutant, Elsewhere); 5] = [
    (Mutant::CreditIsLost, Elsewhere::Test { file: WORLDS, name: INJECTED }),
    (Mutant::CreditsReturnTwice, Elsewhere::Test { file: WORLDS, name: INJECTED }),
    (
        Mutant::DeferredIsForgotten,
        Elsewhere::Test {
            file: "proto/src/flow/demand_credits/tests.rs",
            name: "a_deferred_guarantee_that_is_forgotten_starves_a_sender",
        },
    ),
    (
        Mutant::AmountIsFixedByTheRequest,
        Elsewhere::Exempt {
            reason: "it equals our rule while packets of a pair are in order; a search of it holds",
            shown_by: "gap_6_the_amount_of_a_response_is_fixed_when_it_leaves",
            file: "proto/src/endpoint/compulsory/tests.rs",
        },
    ),
    (
        Mutant::PiggybackIgnoresTheQuota,
        Elsewhere::Exempt {
            reason: "it costs speed only",
            shown_by: "gap_11_piggybacking_does_not_refill_a_sender_above_its_quota",
            file: "proto/src/flow/dynamic_credits/tests.rs",
        },
    ),
];

/// The test `name` exists in `file`, which names the mutant.
fn assert_test_exists(mutant: Mutant, file: &str, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    for wanted in [format!("fn {name}()"), format!("Mutant::{mutant:?}")] {
        assert!(text.contains(&wanted), "{mutant:?}: {file} does not contain {wanted}");
    }
}

#[test]
fn every_mutant_is_detected_or_exempt() {
    let wrong = |rule| match rule {
        Rule::Wrong(mutant) => Some(mutant),
        _ => None,
    };
    let detected: Vec<Mutant> =
        suite::mutants().into_iter().filter_map(|mutant| wrong(mutant.setup.rule)).collect();
    for &mutant in Mutant::ALL {
        let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == mutant);
        match elsewhere {
            Some((_, Elsewhere::Test { file, name })) => assert_test_exists(mutant, file, name),
            Some((_, Elsewhere::Exempt { reason, shown_by, file })) => {
                assert!(!detected.contains(&mutant), "a search detects {mutant:?}, although {reason}");
                assert_test_exists(mutant, file, shown_by);
            }
            None => assert!(detected.contains(&mutant), "no search and no test detects {mutant:?}"),
        }
        assert!(
            elsewhere.is_none() || !detected.contains(&mutant),
            "a search detects {mutant:?}: it has no place in this list"
        );
    }
}
