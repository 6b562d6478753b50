//! Messages of an endpoint to itself, to be counted: `valgrind --tool=callgrind` gives the instructions of a post, a
//! send, a poll and two completions, without libfabric and MPI.
//!
//! `FI_WEIR_FLOW=dynamic instructions BYTES MESSAGES`

use weir_engine::config::Settings;
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_proto::{Pattern, SendLevel, Space};

fn main() {
    let number =
        |nth, default| std::env::args().nth(nth).map_or(default, |text| text.parse().expect("a number"));
    let (bytes, messages) = (number(1, 8), number(2, 10_000));
    let mut engine =
        Engine::open(&Settings::from_environment().expect("settings"), 2, false).expect("a mailbox");
    let own = engine.address();
    let to = engine.peer(&own);
    let (from, into) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
    let pattern = Pattern { space: Space::Tagged, from: Some(to), tag: 0, ignore: 0 };
    for _ in 0..messages {
        engine.receive(Post::default(), pattern, into.view(), None).expect("taken");
        let (space, level, memory) = (Space::Tagged, SendLevel::Delivered, from.view());
        let arguments = SendArguments { to, space, tag: 0, data: Some(0), level, memory, inject: true };
        engine.send(Post::default(), arguments).expect("taken");
        let mut received = false;
        while !received {
            engine.progress();
            while let Some(completion) = engine.next_completion() {
                received |= completion.operation == Operation::Receive;
            }
        }
    }
    engine.close();
}
