//! Helpers that several tests of the engine share.

use weir_engine::{Engine, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_proto::{SendLevel, Space};

/// Injects `count` messages of 8 B with tag 7.
pub fn inject(sender: &mut Engine, receiver: &Engine, count: usize) {
    let to = sender.peer(&receiver.address());
    for _ in 0..count {
        let payload = OwnedMemory::new(8);
        let send = SendArguments {
            to,
            space: Space::Tagged,
            tag: 7,
            data: None,
            level: SendLevel::Buffered,
            memory: payload.view(),
            inject: true,
        };
        sender.send(Post::default(), send).expect("taken");
    }
}
