//! Round trips of small messages between two endpoints of this process over UDP, for `tools/budget.py gate:BYTES`,
//! which counts their instructions. The first argument is the number of round trips, the second the length of a
//! message in bytes. Settings are in the environment, as always.

use weir_engine::config::{LinkChoice, Settings};
use weir_engine::job::{Job, Ranks};
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_link::shm::node_segment::JobKey;
use weir_proto::{Pattern, Peer, SendLevel, Space};

const ANY: Pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };

fn send(engine: &mut Engine, to: Peer, memory: &OwnedMemory) {
    let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, memory.view());
    let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
    engine.send(Post::default(), arguments).expect("taken");
}

/// Makes progress until the receive has completed. The other one is asked only if it has something to answer, as at the
/// begin.
fn wait(engine: &mut Engine, other: &mut Engine) {
    loop {
        engine.progress();
        while let Some(completion) = engine.next_completion() {
            if completion.operation == Operation::Receive {
                return;
            }
        }
        other.progress();
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let mut next = || arguments.next().expect("usage: gate_cost ROUND_TRIPS BYTES");
    let (round_trips, bytes): (usize, usize) = (next(), next());
    let given = Settings::from_environment().expect("valid settings");
    let settings = Settings { links: LinkChoice::Udp, net: Some(String::from("127.0.0.1")), ..given };
    // Known to be on one node, so that they share tokens and queues.
    let job = || Job::known(Ranks { node: 2, job: 2 }, JobKey::new(&std::process::id()));
    let open = || Engine::open(&settings, job(), false).expect("an endpoint");
    let (mut here, mut there) = (open(), open());
    let (to, back) = (here.peer(&there.address()), there.peer(&here.address()));
    let (from, into) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
    for _ in 0..round_trips {
        there.receive(Post::default(), ANY, into.view(), None).expect("taken");
        here.receive(Post::default(), ANY, into.view(), None).expect("taken");
        send(&mut here, to, &from);
        // The other one's socket has it when the call returns. So nobody polls in vain, and counts are alike.
        here.progress();
        wait(&mut there, &mut here);
        send(&mut there, back, &from);
        there.progress();
        wait(&mut here, &mut there);
    }
    for engine in [&mut here, &mut there] {
        engine.begin_close();
    }
    while !here.close_step(&[]).done | !there.close_step(&[]).done {}
    for mut engine in [here, there] {
        engine.end_close();
    }
}
