//! Offloaded atomics in the simulator: results, and who pays for them, the processor of the rank or its NIC.

use std::cell::RefCell;
use std::rc::Rc;

use crate::support::row;
use weir_proto::Scheme;
use weir_proto::offload::WordOperation;
use weir_proto::offload::atomics::MAX_ATOMICS;
use weir_sim::cost::{Cost, NicCost};
use weir_sim::network::extoll::Extoll;
use weir_sim::program::{Program, Rank};
use weir_sim::world::{Report, World, WorldSpec};

const NS: u64 = 1000;
const US: u64 = 1_000_000;
const NIC: NicCost = NicCost { packet_send_ps: US, packet_receive_ps: US, ..NicCost::FREE };

/// `ranks` ranks, two on each node of a row.
fn world(
    ranks: u32,
    scheme: Scheme,
    nic: Option<NicCost>,
    program: impl Fn(Rank) -> Program,
) -> World<Extoll> {
    let cost = Cost { packet_send_ps: 100 * NS, packet_receive_ps: 200 * NS, ..Cost::FREE };
    let spec = WorldSpec { nic, machines_on_nic: nic.is_some(), ..WorldSpec::new(ranks, scheme, 60, cost) };
    World::new(spec, row(ranks / 2), program)
}

/// Each rank but 0 adds 1 to a word of rank 0 several times. Rank 0 computes meanwhile, for `compute_ps`. Returns the old
/// words.
fn count(
    ranks: u32,
    scheme: Scheme,
    nic: Option<NicCost>,
    (times, compute_ps): (u32, u64),
) -> (Report, Vec<u64>) {
    let fetched = Rc::new(RefCell::new(Vec::new()));
    let all = Rc::clone(&fetched);
    let program = move |rank: Rank| -> Program {
        let all = Rc::clone(&all);
        Box::pin(async move {
            if rank.rank() == 0 {
                return rank.compute(compute_ps);
            }
            for _ in 0..times {
                let old = rank.fetch_add(0, 7, 1).await;
                all.borrow_mut().push(old);
            }
        })
    };
    let report = world(ranks, scheme, nic, program).checked(true).run().expect("ends");
    let fetched = fetched.borrow().clone();
    (report, fetched)
}

/// The old words are 0, 1, 2, ...: no two fetches see the same word, and none is lost.
fn assert_a_chain(mut fetched: Vec<u64>, length: u32) {
    fetched.sort_unstable();
    assert_eq!(fetched, (0..u64::from(length)).collect::<Vec<_>>());
}

#[test]
fn fetches_of_all_ranks_form_a_chain_on_hosts_and_on_nics() {
    for scheme in [Scheme::Static { piggyback: false }, Scheme::Static { piggyback: true }, Scheme::Unlimited]
    {
        for nic in [None, Some(NIC)] {
            let (_, fetched) = count(8, scheme, nic, (50, 0));
            assert_a_chain(fetched, 7 * 50);
        }
    }
}

#[test]
fn a_nic_answers_while_its_rank_computes_and_takes_no_time_of_it() {
    let compute_ps = 5000 * US;
    let run = |nic| count(4, Scheme::Static { piggyback: false }, nic, (10, compute_ps)).0;
    let (on_host, on_nic) = (run(None), run(Some(NIC)));
    assert!(on_host.finished[1..].iter().all(|&at| at > compute_ps), "{:?}", on_host.finished);
    assert!(on_nic.finished[1..].iter().all(|&at| at < compute_ps / 10), "{:?}", on_nic.finished);
    assert_eq!(on_nic.finished[0], compute_ps);
    assert_eq!(on_nic.counters[0].packets_sent, 0, "the endpoint of the rank sends nothing");
}

#[test]
fn a_fetch_on_nics_takes_the_prices_of_their_processors() {
    let run = |nic: NicCost| {
        let program = |rank: Rank| -> Program {
            Box::pin(async move {
                if rank.rank() == 2 {
                    rank.fetch_add(0, 0, 1).await;
                }
            })
        };
        world(4, Scheme::Static { piggyback: false }, Some(nic), program).run().expect("ends").finished[2]
    };
    // The descriptor and two packets are received, two packets are sent.
    let dearer = |send_ps, receive_ps| NicCost {
        packet_send_ps: NIC.packet_send_ps + send_ps,
        packet_receive_ps: NIC.packet_receive_ps + receive_ps,
        ..NIC
    };
    let base = run(NIC);
    assert_eq!(run(dearer(3 * US, 0)), base + 2 * 3 * US);
    assert_eq!(run(dearer(0, 3 * US)), base + 3 * 3 * US);
}

#[test]
fn a_compare_and_swap_replaces_the_word_once() {
    for nic in [None, Some(NIC)] {
        let won = Rc::new(RefCell::new(Vec::new()));
        let program = |rank: Rank| -> Program {
            let won = Rc::clone(&won);
            Box::pin(async move {
                if rank.rank() > 0 {
                    let handle = rank.icompare_swap(0, 3, 0, rank.rank().into());
                    let old = rank.wait(handle).await.bytes;
                    won.borrow_mut().push((old, u64::from(rank.rank())));
                }
            })
        };
        world(8, Scheme::Static { piggyback: false }, nic, program).checked(true).run().expect("ends");
        let won = won.borrow();
        let winner = won.iter().find(|(old, _)| *old == 0).expect("one sees 0").1;
        assert!(won.iter().all(|&(old, rank)| old == if rank == winner { 0 } else { winner }), "{won:?}");
    }
}

/// More fetches at a time than an endpoint allows: the others wait until answers come.
#[test]
fn fetches_beyond_the_bound_wait() {
    const FETCHES: u64 = MAX_ATOMICS as u64 + 40;
    for nic in [None, Some(NIC)] {
        let program = |rank: Rank| -> Program {
            Box::pin(async move {
                if rank.rank() == 1 {
                    let handles = (0..FETCHES).map(|_| rank.ifetch(0, 3, WordOperation::Sum, 1));
                    for (handle, old) in handles.collect::<Vec<_>>().into_iter().zip(0..) {
                        assert_eq!(rank.wait(handle).await.bytes, old);
                    }
                }
            })
        };
        world(2, Scheme::Static { piggyback: false }, nic, program).checked(true).run().expect("ends");
    }
}

#[test]
fn a_thousand_ranks_count_on_one_nic_and_the_trace_is_the_same_again() {
    let run = || count(1024, Scheme::Static { piggyback: false }, Some(NIC), (2, 0));
    let ((first, fetched), (second, _)) = (run(), run());
    assert_a_chain(fetched, 1023 * 2);
    assert_eq!((first.trace, first.finished), (second.trace, second.finished));
}
